package integration

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/meshd/meshd/internal/consultest"
)

const (
	shopURL    = "http://shop.service.consul:9001/"
	dbTarget   = "db.service.consul:9002"
	databaseIP = "198.51.100.30"
)

// shop is an instance of the service shop, on a node of its own.
func shop(ip string) consultest.Service {
	return consultest.Service{
		Name: "shop", ID: ip, Node: "vm-" + ip, NodeAddress: ip, Port: 9001, Meta: map[string]string{"protocol": "http"},
	}
}

// database is an instance of the service db, which has an address as TCP services need one where connections are redirected.
func database(ip string) consultest.Service {
	return consultest.Service{
		Name: "db", ID: "db-" + ip, Node: "vm-" + ip, NodeAddress: ip, Address: ip, Port: 9002, Meta: map[string]string{"meshd-protocol": "TCP"},
		Tagged: map[string]api.ServiceAddress{"virtual": {Address: databaseIP}},
	}
}

// consulApp is an application that calls services in Consul. Their upstreams stay until the end, whatever Consul says.
func consulApp(t *testing.T, c capture) *application {
	t.Helper()
	startHTTP(t, "10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001")
	startTCP(t, "10.77.0.11:9002", "10.77.0.12:9002")
	return &application{capture: c, ips: map[string]string{"db.service.consul": databaseIP}}
}

// startConsulMesh starts a daemon with these settings of Consul, and an Envoy.
func startConsulMesh(t *testing.T, c capture, settings string) (*daemon, *envoy) {
	t.Helper()
	d := newMeshd(t)
	d.configure(t, settings)
	d.start(t)
	return d, startEnvoy(t, d.bootstrap(t, c, delta))
}

// awaitAnswers makes calls until for a while these upstreams answer, all of them and no others.
func awaitAnswers(t *testing.T, what string, c caller, upstreams ...string) {
	t.Helper()
	defer c.close()
	eventually(t, what, func() error {
		answered, err := caller{call: c.call, close: func() {}}.times(t.Context(), 15*len(upstreams))
		if err == nil && !slices.Equal(slices.Sorted(maps.Keys(answered)), upstreams) {
			err = fmt.Errorf("answers came from %v, want all of %q", answered, upstreams)
		}
		return err
	})
}

// TestConsulTraffic shows that services in Consul are reached by their names, and that requests go where Consul says that
// instances are, and are well.
func TestConsulTraffic(t *testing.T) {
	const a, b, c = "10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001"
	consul := consultest.Start(t, consultest.Options{})
	for _, way := range []capture{none, redirect} {
		t.Run(string(way), func(t *testing.T) {
			app := consulApp(t, way)
			one, two, three := shop("10.77.0.11"), shop("10.77.0.12"), shop("10.77.0.13")
			stays := consultest.Service{Name: "stays", Node: "vm-stays", Address: "10.77.0.14", Port: 9003, Meta: one.Meta}
			consul.Register(one, database("10.77.0.11"), stays)
			d, e := startConsulMesh(t, way, "consul: ["+consul.Addr+"]")
			d.awaitNoProblem(t)
			requireReaches(t, "HTTP", app.http(shopURL), a)
			requireReaches(t, "TCP", app.tcp(dbTarget), "10.77.0.11:9002")
			l := startLoad(t, map[string]caller{
				"shop": app.http(shopURL), "shop, once": app.httpOnce(shopURL), "db": app.tcp(dbTarget), "db, kept": app.tcpKept(dbTarget),
			})

			consul.Register(two, database("10.77.0.12"))
			awaitAnswers(t, "a second instance", app.http(shopURL), a, b)
			awaitAnswers(t, "a second instance, TCP", app.tcp(dbTarget), "10.77.0.11:9002", "10.77.0.12:9002")
			for _, change := range []struct {
				name      string
				ill, well func()
			}{
				{
					"a critical instance",
					func() { consul.SetStatus(two.Node, two.ID, api.HealthCritical) },
					func() { consul.SetStatus(two.Node, two.ID, api.HealthPassing) },
				},
				{
					"a critical node",
					func() { consul.SetStatus(two.Node, "", api.HealthCritical) },
					func() { consul.SetStatus(two.Node, "", api.HealthPassing) },
				},
				{
					"an instance in maintenance",
					func() { consul.EnterMaintenance(two.Node, two.ID) },
					func() { consul.LeaveMaintenance(two.Node, two.ID) },
				},
				{
					"a node in maintenance",
					func() { consul.EnterMaintenance(two.Node, "") },
					func() { consul.LeaveMaintenance(two.Node, "") },
				},
			} {
				change.ill()
				awaitAnswers(t, change.name, app.http(shopURL), a)
				l.progress(t)
				change.well()
				awaitAnswers(t, change.name+" that got well", app.http(shopURL), a, b)
			}

			heavy := two
			heavy.Weights = &api.AgentWeights{Passing: 3, Warning: 0}
			consul.Register(heavy)
			cluster := "outbound|9001||shop.service.consul"
			eventually(t, "a weight", func() error {
				if hosts := e.hosts(t)[cluster]; !slices.Contains(hosts, b+" weight=3 locality=dc1 priority=0") {
					return fmt.Errorf("Envoy has %q", hosts)
				}
				return nil
			})
			// The turns of one client among several are not spread evenly; those of all are.
			before := e.requests(t, cluster)
			if _, err := app.httpOnce(shopURL).times(t.Context(), 150); err != nil {
				t.Error(err)
			}
			after := e.requests(t, cluster)
			light, heavier := after[a]-before[a], after[b]-before[b]
			if light+heavier < 150 || 2*light > heavier || 4*light < heavier {
				t.Errorf("instances of weight 1 and 3 were sent %d and %d requests", light, heavier)
			}
			consul.SetStatus(two.Node, two.ID, api.HealthWarning)
			awaitAnswers(t, "an instance in warning, whose weight is 0 then", app.http(shopURL), a)
			consul.SetStatus(two.Node, two.ID, api.HealthPassing)

			consul.Register(three)
			awaitAnswers(t, "a third instance", app.http(shopURL), a, b, c)
			consul.Deregister(one.Node, one.ID)
			awaitAnswers(t, "an instance that is gone", app.http(shopURL), b, c)
			consul.Deregister(two.Node, "")
			awaitAnswers(t, "a node that is gone", app.http(shopURL), c)
			awaitAnswers(t, "a node that is gone, TCP", app.tcp(dbTarget), "10.77.0.11:9002")
			l.progress(t)
			l.requireNoFailure(t)
			requireInStep(t, d, e, way, delta)

			consul.SetStatus(three.Node, three.ID, api.HealthCritical)
			awaitRefused(t, "a service without a good instance", app.httpOnce(shopURL), "503")
			consul.Deregister(three.Node, "")
			consul.Deregister(one.Node, "")
			if way == none {
				awaitRefused(t, "a service that is gone", app.httpOnce(shopURL), "connection refused")
			} else {
				awaitFails(t, "a service that is gone", app.httpOnce(shopURL))
			}
			requireInStep(t, d, e, way, delta)
			d.requireAccepted(t)
		})
	}
}

// awaitRefused makes calls until one fails with a text in its error.
func awaitRefused(t *testing.T, what string, c caller, text string) {
	t.Helper()
	defer c.close()
	eventually(t, what, func() error {
		upstream, err := caller{call: c.call, close: func() {}}.once(t.Context())
		if err == nil || !strings.Contains(err.Error(), text) {
			return fmt.Errorf("%s answers, and the error is %v, want %s", cmp.Or(upstream, "nobody"), err, text)
		}
		return nil
	})
}

// readAll are the rights that meshd needs.
const readAll = `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`

// TestConsulIsIll shows that requests flow, and Envoy loses nothing, whatever Consul goes through, and that what is registered
// after each of these arrives.
func TestConsulIsIll(t *testing.T) {
	app := consulApp(t, redirect)
	consul := consultest.Start(t, consultest.Options{Mode: consultest.Server, ACL: true})
	consul.SetPolicy("meshd", readAll)
	accessor, secret := consul.NewToken(0, "meshd")
	const services = 300
	fleet := consultest.Fleet(services, 2, 50)
	for i := range fleet {
		fleet[i].Port = 8000
	}
	consul.Register(append(fleet, shop("10.77.0.11"), shop("10.77.0.12"), database("10.77.0.11"))...)

	d := newMeshd(t)
	token := d.config + ".token"
	replaceFile(t, token, secret)
	d.configure(t, fmt.Sprintf("consul:\n- address: %s\n  token-file: %s\n", consul.Addr, token))
	d.start(t)
	e := startEnvoy(t, d.bootstrap(t, redirect, delta))
	requireInStep(t, d, e, redirect, delta)
	if n := len(e.loaded(t).clusters); n < services {
		t.Fatalf("Envoy has %d clusters", n)
	}
	l := startLoad(t, map[string]caller{
		"shop": app.http(shopURL).from("10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001"), "shop, once": app.httpOnce(shopURL),
		"db": app.tcp(dbTarget), "db, kept": app.tcpKept(dbTarget),
	})

	// The third instance comes and goes, to show that news arrive. All else stays.
	const removals = `^cluster_manager\.cluster_removed|listener_manager\.listener_removed|cluster\.outbound_8000.*\.membership_change$`
	before := e.stats(t, removals)
	well := func(t *testing.T) {
		t.Helper()
		consul.Register(shop("10.77.0.13"))
		awaitAnswers(t, "an instance that was registered afterwards", app.http(shopURL), "10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001")
		d.awaitNoProblem(t, `"consul-`)
		consul.Deregister("vm-10.77.0.13", "")
		awaitAnswers(t, "and was taken away again", app.http(shopURL), "10.77.0.11:9001", "10.77.0.12:9001")
		l.progress(t)
		if now := e.stats(t, removals); !maps.Equal(now, before) {
			for name, n := range now {
				if n != before[name] {
					t.Errorf("Envoy counts %d of %s, and %d before", n, name, before[name])
				}
			}
		}
	}
	well(t)

	t.Run("killed and started again", func(t *testing.T) {
		consul.Kill()
		d.awaitProblem(t, "consul-unreachable")
		l.progress(t)
		consul.Restart()
		consul.Ready()
		well(t)
	})
	t.Run("killed and started again at once", func(t *testing.T) {
		consul.Restart()
		consul.Ready()
		well(t)
	})
	t.Run("the token is deleted", func(t *testing.T) {
		consul.DeleteToken(accessor)
		d.awaitProblem(t, "consul-denied")
		l.progress(t)
		accessor, secret = consul.NewToken(0, "meshd")
		replaceFile(t, token, secret)
		well(t)
	})
	t.Run("the policy is cut", func(t *testing.T) {
		// The change of a policy does not wake those who wait for news, and such news still comes by the old one.
		port := 0
		cut := func(rules, problem string) {
			t.Helper()
			consul.SetPolicy("meshd", rules)
			asked := d.requests(t)
			eventually(t, problem, func() error {
				port++
				consul.Register(consultest.Service{Name: "news", Port: port})
				p, err := d.problem(problem)
				if err == nil && (p == "" || d.requests(t) < asked+100) {
					err = fmt.Errorf("%d requests, and %q", d.requests(t)-asked, p)
				}
				return err
			})
			l.progress(t)
		}
		cut(`service "shop" { policy = "read" } service "consul" { policy = "read" } node_prefix "" { policy = "read" }`, "consul-held")
		cut(`service_prefix "" { policy = "read" }`, "consul-filtered") // without nodes there are no instances
		cut(``, "consul-held")
		consul.SetPolicy("meshd", readAll)
		well(t)
		consul.Deregister("node-1", "")
		eventually(t, "the end of the news", func() error {
			body, err := httpGet("http://" + adminAddress + "/api/v1/services")
			if err == nil && strings.Contains(string(body), `"news.service.consul"`) {
				err = errors.New("they are served")
			}
			return err
		})
	})
	t.Run("gone for good, and meshd is killed", func(t *testing.T) {
		// What is known is written behind, once it has changed.
		last := shop("10.77.0.13")
		last.Tags = []string{"the-last"}
		consul.Register(last)
		awaitAnswers(t, "the last news", app.http(shopURL), "10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001")
		eventually(t, "the state on disk", func() error { return keeps(filepath.Join(d.state, "consul", "consul.state"), `"the-last"`) })
		consul.Kill()
		d.awaitProblem(t, "consul-unreachable")
		d.kill()
		l.progress(t)
		changes := `^(cluster_manager\.cluster_(added|modified|removed)|listener_manager\.listener_(added|modified|removed)|http\..*\.rds\..*\.config_reload|cluster\..*\.membership_change)$`
		before := e.stats(t, changes)
		d.start(t)
		d.awaitProblem(t, "consul-unreachable")
		e.awaitConnected(t, 1)
		d.requireAccepted(t)
		l.progress(t)
		for name, n := range e.stats(t, changes) {
			if n != before[name] {
				t.Errorf("meshd's return made Envoy count %d more of %s", n-before[name], name)
			}
		}
		l.requireNoFailure(t)
		requireInStep(t, d, e, redirect, delta)

		e.kill()
		e = startEnvoy(t, d.bootstrap(t, redirect, delta))
		requireInStep(t, d, e, redirect, delta)
		if n := len(e.loaded(t).clusters); n < services {
			t.Errorf("the new Envoy has %d clusters", n)
		}
		requireReaches(t, "TCP", app.tcp(dbTarget), "10.77.0.11:9002")
		awaitAnswers(t, "what was known last", app.http(shopURL), "10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001")
		d.requireAccepted(t)
	})
}

// requests is how many the daemon has sent to Consul.
func (d *daemon) requests(t *testing.T) int {
	t.Helper()
	var answer struct {
		Registries []struct{ Standing struct{ Requests int } }
	}
	if err := d.get("/api/v1/registries", &answer); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, r := range answer.Registries {
		sum += r.Standing.Requests
	}
	return sum
}

// replaceFile gives a file another text, which is read whole or not at all.
func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	err := os.WriteFile(path+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// keeps says what is missing as long as a file of state does not hold a text.
func keeps(path, text string) error {
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	r, err := gzip.NewReader(bytes.NewReader(file[bytes.IndexByte(file, '\n')+1:]))
	if err != nil {
		return err
	}
	record, err := io.ReadAll(r)
	if err == nil && !bytes.Contains(record, []byte(text)) {
		err = fmt.Errorf("%s does not hold %s", path, text)
	}
	return err
}

// TestConsulHasNoLeader takes the leader away, which Consul's servers may well hide from those who ask.
func TestConsulHasNoLeader(t *testing.T) {
	app := consulApp(t, none)
	servers := consultest.StartServers(t, 2, consultest.Options{Config: `performance { rpc_hold_timeout = "200ms" }`})
	servers[0].Register(shop("10.77.0.11"), shop("10.77.0.12"), database("10.77.0.11"))
	d, e := startConsulMesh(t, none, "consul: ["+servers[0].Addr+"]")
	l := startLoad(t, map[string]caller{"shop": app.http(shopURL), "db, kept": app.tcpKept(dbTarget)})

	eventually(t, "the state on disk", func() error { return keeps(filepath.Join(d.state, "consul", "consul.state"), `"10.77.0.12"`) })

	servers[1].Kill()
	eventually(t, "the loss of the leader", func() error {
		if leader, err := servers[0].Client().Status().Leader(); err != nil || leader != "" {
			return fmt.Errorf("the leader is %q, %w", leader, err)
		}
		return nil
	})
	l.progress(t)
	// Who has asked before sleeps on; who begins now is told.
	d.kill()
	d.start(t)
	d.awaitProblem(t, `"consul-`)
	e.awaitConnected(t, 1)
	l.progress(t)
	requireInStep(t, d, e, none, delta)
	servers[1].Restart()
	servers[0].Ready()
	d.awaitNoProblem(t, `"consul-`)
	servers[0].Register(shop("10.77.0.13"))
	awaitAnswers(t, "news under the new leader", app.http(shopURL), "10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001")
	l.progress(t)
	l.requireNoFailure(t)
	requireInStep(t, d, e, none, delta)
}

// shopEntry is the service shop before it was in Consul.
const shopEntry = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop}
spec:
  hosts: [shop.service.consul]
  resolution: STATIC
  ports:
  - {number: 9001, name: http, protocol: HTTP}
  endpoints:
  - {address: 10.77.0.11}
  - {address: 10.77.0.12}
`

// TestMoveToConsul moves a service from a file to Consul and back: no request is lost on the way.
func TestMoveToConsul(t *testing.T) {
	const a, b, c = "10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001"
	consul := consultest.Start(t, consultest.Options{})
	for _, way := range []capture{none, redirect} {
		t.Run(string(way), func(t *testing.T) {
			app := consulApp(t, way)
			d, e := startConsulMesh(t, way, "consul: ["+consul.Addr+"]")
			d.write(t, "shop.yaml", shopEntry)
			awaitAnswers(t, "the file", app.http(shopURL), a, b)
			l := startLoad(t, map[string]caller{"shop": app.http(shopURL), "shop, once": app.httpOnce(shopURL)})

			consul.Register(shop("10.77.0.12"), shop("10.77.0.13"))
			awaitAnswers(t, "the file and Consul", app.http(shopURL), a, b, c)
			d.awaitNoProblem(t)
			d.remove(t, "shop.yaml")
			awaitAnswers(t, "Consul", app.http(shopURL), b, c)
			requireInStep(t, d, e, way, delta)
			l.progress(t)

			d.write(t, "shop.yaml", shopEntry)
			awaitAnswers(t, "Consul and the file", app.http(shopURL), a, b, c)
			l.progress(t)
			consul.Deregister("vm-10.77.0.12", "")
			consul.Deregister("vm-10.77.0.13", "")
			awaitAnswers(t, "the file again", app.http(shopURL), a, b)
			requireInStep(t, d, e, way, delta)
			e.awaitDrained(t)
			l.progress(t)
			l.requireNoFailure(t)
			d.awaitNoProblem(t)
			d.requireAccepted(t)
		})
	}
}

// TestTwoDatacenters shows that a service of two datacenters is called in the nearer one as long as an instance there is well.
func TestTwoDatacenters(t *testing.T) {
	const near, near2, far = "10.77.0.11:9001", "10.77.0.12:9001", "10.77.0.13:9001"
	app := consulApp(t, none)
	one := consultest.Start(t, consultest.Options{})
	two := consultest.Start(t, consultest.Options{Datacenter: "dc2", JoinWAN: one})
	one.Register(shop("10.77.0.11"), shop("10.77.0.12"))
	two.Register(shop("10.77.0.13"))
	// Both by way of the first, as far as Consul goes.
	d := newMeshd(t)
	d.configure(t, fmt.Sprintf("consul:\n- address: %s\n  datacenter: dc1\n- address: %[1]s\n  datacenter: dc2\n", one.Addr))
	d.start(t)
	d.awaitNoProblem(t)
	e := startEnvoy(t, d.bootstrap(t, none, delta))
	requireInStep(t, d, e, none, delta)
	l := startLoad(t, map[string]caller{
		"shop": app.http(shopURL), "shop, once": app.httpOnce(shopURL), "dc2": app.http("http://shop.service.dc2.consul:9001/").from(far),
	})

	requireOnly(t, "the near instances", app.http(shopURL), near, near2)
	requireOnly(t, "those of a datacenter that is named", app.http("http://shop.service.dc1.consul:9001/"), near, near2)
	one.SetStatus("vm-10.77.0.11", "10.77.0.11", api.HealthCritical)
	awaitAnswers(t, "the near instance that is well", app.http(shopURL), near2)
	one.SetStatus("vm-10.77.0.12", "10.77.0.12", api.HealthCritical)
	awaitAnswers(t, "the far one while all near ones are ill", app.http(shopURL), far)
	l.progress(t)
	one.SetStatus("vm-10.77.0.11", "10.77.0.11", api.HealthPassing)
	one.SetStatus("vm-10.77.0.12", "10.77.0.12", api.HealthPassing)
	awaitAnswers(t, "the near ones again", app.http(shopURL), near, near2)
	l.progress(t)

	two.Kill()
	d.awaitProblem(t, `"consul-`, "dc2")
	one.SetStatus("vm-10.77.0.11", "10.77.0.11", api.HealthCritical)
	one.SetStatus("vm-10.77.0.12", "10.77.0.12", api.HealthCritical)
	awaitAnswers(t, "the far one while its Consul is away", app.http(shopURL), far)
	l.progress(t)
	l.requireNoFailure(t)
	one.SetStatus("vm-10.77.0.11", "10.77.0.11", api.HealthPassing)
	one.SetStatus("vm-10.77.0.12", "10.77.0.12", api.HealthPassing)
	awaitAnswers(t, "the near ones once more", app.http(shopURL), near, near2)
	requireInStep(t, d, e, none, delta)

	e.kill()
	startEnvoy(t, d.bootstrap(t, none, delta, "--locality", "dc2/rack-1"))
	requireOnly(t, "what is near for a node in dc2", app.http(shopURL), far)
}

// requireOnly makes calls, which these upstreams must answer, all of them and no others.
func requireOnly(t *testing.T, what string, c caller, upstreams ...string) {
	t.Helper()
	answered, err := c.times(t.Context(), 15*len(upstreams))
	if err != nil || !slices.Equal(slices.Sorted(maps.Keys(answered)), upstreams) {
		t.Errorf("%s: answers came from %v (%v), want all of %q", what, answered, err, upstreams)
	}
}
