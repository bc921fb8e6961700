package consulreg_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
)

// told is what a catalog says of its services, a line for each endpoint.
func told(c mesh.Catalog) (lines []string) {
	for s := range c.Services.Values() {
		if len(s.Endpoints) == 0 {
			lines = append(lines, fmt.Sprint(s.Host, " has no endpoint"))
		}
		for _, e := range s.Endpoints {
			for i, p := range e.Ports {
				if p == 0 {
					continue
				}
				var line strings.Builder
				line.WriteString(fmt.Sprintf("%s:%d %s:%d %s %d", strings.TrimSuffix(s.Host.String(), ".service.consul"), s.Ports[i].Number, e.Address, p, e.Health, e.Weight))
				if e.Locality.Zone != "" {
					line.WriteString(" in " + e.Locality.Zone)
				}
				for _, k := range slices.Sorted(maps.Keys(e.Labels)) {
					line.WriteString(fmt.Sprintf(" %s=%s", k, e.Labels[k]))
				}
				lines = append(lines, line.String())
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// awaitTold waits until a catalog says just that.
func (w *observer) awaitTold(step string, want []string) {
	w.t.Helper()
	w.awaitOr(step, func(c mesh.Catalog) bool { return !c.Unread && slices.Equal(told(c), want) },
		func(c mesh.Catalog) string { return cmp.Diff(want, told(c)) })
}

// web is instance n of the service web.
func web(n int, change ...func(*consultest.Service)) consultest.Service {
	s := consultest.Service{
		Name: "web", ID: fmt.Sprint("web-", n), Node: fmt.Sprint("node-", n), NodeAddress: fmt.Sprint("10.1.0.", n), Address: fmt.Sprint("10.0.0.", n), Port: 8080,
		Status: consultest.NoCheck, // so that to register it again says nothing of its health
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

// life is what happens in a catalog, step by step, and what is told afterwards.
var life = []struct {
	name string
	do   func(catalog)
	want []string
}{
	{"three instances are registered", func(c catalog) {
		c.Register(web(1), web(2), web(3))
		for n := range 3 {
			c.SetStatus(fmt.Sprint("node-", n+1), fmt.Sprint("web-", n+1), "passing")
		}
	}, []string{"web:8080 10.0.0.1:8080 healthy 1", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 healthy 1"}},
	{
		"a check of a service comes to warning", func(c catalog) { c.SetStatus("node-1", "web-1", "warning") },
		[]string{"web:8080 10.0.0.1:8080 healthy 1", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 healthy 1"},
	},
	{"weights change, of which that for warnings counts", func(c catalog) {
		c.Register(web(1, func(s *consultest.Service) { s.Weights = &api.AgentWeights{Passing: 10, Warning: 3} }))
	}, []string{"web:8080 10.0.0.1:8080 healthy 3", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 healthy 1"}},
	{
		"the check comes to critical", func(c catalog) { c.SetStatus("node-1", "web-1", "critical") },
		[]string{"web:8080 10.0.0.1:8080 unhealthy 10", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 healthy 1"},
	},
	{
		"the check comes to passing", func(c catalog) { c.SetStatus("node-1", "web-1", "passing") },
		[]string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 healthy 1"},
	},
	{
		"a check of a node comes, and is critical", func(c catalog) { c.SetStatus("node-2", "", "critical") },
		[]string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 unhealthy 1", "web:8080 10.0.0.3:8080 healthy 1"},
	},
	{
		"the check of the node comes to passing", func(c catalog) { c.SetStatus("node-2", "", "passing") },
		[]string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 healthy 1"},
	},
	{
		"a service is put into maintenance", func(c catalog) { c.EnterMaintenance("node-2", "web-2") },
		[]string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 draining 1", "web:8080 10.0.0.3:8080 healthy 1"},
	},
	{"so is a node, while another check is critical", func(c catalog) {
		c.SetStatus("node-3", "web-3", "critical")
		c.EnterMaintenance("node-3", "")
	}, []string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 draining 1", "web:8080 10.0.0.3:8080 draining 1"}},
	{
		"the maintenance of the service ends", func(c catalog) { c.LeaveMaintenance("node-2", "web-2") },
		[]string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 draining 1"},
	},
	{
		"that of the node ends, and the check is still critical", func(c catalog) { c.LeaveMaintenance("node-3", "") },
		[]string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 unhealthy 1"},
	},
	{"all are critical", func(c catalog) {
		c.SetStatus("node-1", "web-1", "critical")
		c.SetStatus("node-2", "web-2", "critical")
	}, []string{"web:8080 10.0.0.1:8080 unhealthy 10", "web:8080 10.0.0.2:8080 unhealthy 1", "web:8080 10.0.0.3:8080 unhealthy 1"}},
	{"all are passing again", func(c catalog) {
		for n := range 3 {
			c.SetStatus(fmt.Sprint("node-", n+1), fmt.Sprint("web-", n+1), "passing")
		}
	}, []string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 healthy 1"}},
	{"a check is taken away while it is critical", func(c catalog) {
		c.SetCheck("node-2", "web-2", "extra", "critical", "")
		c.SetStatus("node-3", "web-3", "critical")
		c.RemoveCheck("node-2", "extra")
	}, []string{"web:8080 10.0.0.1:8080 healthy 10", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 unhealthy 1"}},
	{"tags change", func(c catalog) {
		c.SetStatus("node-3", "web-3", "passing")
		c.Register(web(1, func(s *consultest.Service) { s.Tags = []string{"version=2", "blue"} }))
	}, []string{"web:8080 10.0.0.1:8080 healthy 1 tag/blue=true version=2", "web:8080 10.0.0.2:8080 healthy 1", "web:8080 10.0.0.3:8080 healthy 1"}},
	{"nothing but meta changes", func(c catalog) {
		c.Register(web(2, func(s *consultest.Service) { s.Meta = map[string]string{"team": "a"} }))
	}, []string{"web:8080 10.0.0.1:8080 healthy 1 tag/blue=true version=2", "web:8080 10.0.0.2:8080 healthy 1 team=a", "web:8080 10.0.0.3:8080 healthy 1"}},
	{"a port changes", func(c catalog) {
		c.Register(web(3, func(s *consultest.Service) { s.Port = 8083 }))
	}, []string{"web:8080 10.0.0.1:8080 healthy 1 tag/blue=true version=2", "web:8080 10.0.0.2:8080 healthy 1 team=a", "web:8080 10.0.0.3:8083 healthy 1"}},
	{"an address changes", func(c catalog) {
		c.Register(web(3, func(s *consultest.Service) { s.Address = "10.0.0.33" }))
	}, []string{"web:8080 10.0.0.1:8080 healthy 1 tag/blue=true version=2", "web:8080 10.0.0.2:8080 healthy 1 team=a", "web:8080 10.0.0.33:8080 healthy 1"}},
	{"an instance has the address of its node", func(c catalog) {
		c.Register(web(3, func(s *consultest.Service) { s.Address = "" }))
	}, []string{"web:8080 10.0.0.1:8080 healthy 1 tag/blue=true version=2", "web:8080 10.0.0.2:8080 healthy 1 team=a", "web:8080 10.1.0.3:8080 healthy 1"}},
	{
		"one is deregistered", func(c catalog) { c.Deregister("node-1", "web-1") },
		[]string{"web:8080 10.0.0.2:8080 healthy 1 team=a", "web:8080 10.1.0.3:8080 healthy 1"},
	},
	{"another service comes", func(c catalog) {
		c.Register(consultest.Service{Name: "pay_ment", ID: "p", Node: "node-2", NodeAddress: "10.1.0.2", Port: 90})
	}, []string{"pay-ment:90 10.1.0.2:90 healthy 1", "web:8080 10.0.0.2:8080 healthy 1 team=a", "web:8080 10.1.0.3:8080 healthy 1"}},
	{"a name comes that is the same for DNS, and before it", func(c catalog) {
		c.Register(consultest.Service{Name: "pay-ment", ID: "q", Node: "node-3", NodeAddress: "10.1.0.3", Port: 91})
	}, []string{"pay-ment:91 10.1.0.3:91 healthy 1", "web:8080 10.0.0.2:8080 healthy 1 team=a", "web:8080 10.1.0.3:8080 healthy 1"}},
	{
		"it goes, and the other one has the host", func(c catalog) { c.Deregister("node-3", "q") },
		[]string{"pay-ment:90 10.1.0.2:90 healthy 1", "web:8080 10.0.0.2:8080 healthy 1 team=a", "web:8080 10.1.0.3:8080 healthy 1"},
	},
	{
		"a node goes with all that is on it", func(c catalog) { c.Deregister("node-2", "") },
		[]string{"web:8080 10.1.0.3:8080 healthy 1"},
	},
	{"the last is deregistered", func(c catalog) { c.Deregister("node-3", "web-3") }, nil},
	{"the service comes back, with names that nobody should give", func(c catalog) {
		c.Register(web(1), consultest.Service{Name: "50%", Port: 1}, consultest.Service{Name: "a/b c?d#e", Port: 2}, consultest.Service{Name: "..", Port: 3},
			consultest.Service{Name: "x%2Fy", ID: "xy", Port: 4})
	}, []string{"50:1 192.0.2.1:1 healthy 1", "a-b-c-d-e:2 192.0.2.1:2 healthy 1", "web:8080 10.0.0.1:8080 healthy 1", "x-2fy:4 192.0.2.1:4 healthy 1"}},
}

// TestLife lets all happen in a real Consul that is told of, and looks at it in both ways of keeping up.
func TestLife(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{HTTPS: true})
	var observers []*observer
	for _, way := range ways {
		observers = append(observers, observe(t, consulreg.Options{Link: way.link(a)}))
	}
	for _, step := range life {
		step.do(a)
		for i, w := range observers {
			w.awaitTold(ways[i].name+": "+step.name, step.want)
			w.awaitWell()
		}
	}
}

// TestChangeWhileConfirming changes a check while a read that confirms another change is under way, and does not tell of it.
func TestChangeWhileConfirming(t *testing.T) {
	t.Parallel()
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	s.Register(web(1), web(2))
	s.SetStatus("node-1", "web-1", "passing")
	s.SetStatus("node-2", "web-2", "passing")
	w := observe(t, consulreg.Options{Link: linkTo(s)})
	w.awaitEndpoints(2)
	s.AwaitBlocking(3)

	under, goOn, first := make(chan struct{}), make(chan struct{}), atomic.Bool{}
	s.Fault(func(r *http.Request) *consultest.Response {
		if !r.URL.Query().Has("consistent") || first.Swap(true) {
			return nil
		}
		truth, err := http.Get(s.URL + r.URL.Path)
		if err != nil {
			t.Error(err)
			return nil
		}
		defer truth.Body.Close()
		body, err := io.ReadAll(truth.Body)
		if err != nil {
			t.Error(err)
		}
		close(under)
		return &consultest.Response{Until: goOn, Status: truth.StatusCode, Header: truth.Header, Body: string(body)}
	})
	s.SetStatus("node-1", "web-1", "critical") // soon after the start, so that it is to be confirmed
	select {
	case <-under:
	case <-time.After(patience):
		t.Fatalf("nothing was to be confirmed within %s", patience)
	}
	s.AwaitBlocking(3)
	s.ResetCounts()
	s.SetStatus("node-2", "web-2", "critical")
	s.AwaitRequests(consultest.State, 1) // the watch has told, and asks again
	close(goOn)
	w.awaitTold("both are critical", []string{"web:8080 10.0.0.1:8080 unhealthy 1", "web:8080 10.0.0.2:8080 unhealthy 1"})
}

// TestNodesChange has only nodes change, of which nothing tells but a sweep where services are not watched one by one.
func TestNodesChange(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{HTTPS: true})
	a.Register(web(1, func(s *consultest.Service) { s.Address = "" }))
	for _, way := range ways {
		w := observe(t, consulreg.Options{Link: way.link(a), Sweep: time.Second})
		w.awaitEndpoints(1)
		_, err := a.Client().Catalog().Register(&api.CatalogRegistration{Node: "node-1", Address: "10.1.0.9", NodeMeta: map[string]string{"zone": "z" + way.name}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.awaitTold(way.name, []string{"web:8080 10.1.0.9:8080 healthy 1 in z" + way.name})
	}
}

// TestChattyChecks has checks that say something else all the time, and mean the same. Nothing is published by that, and no service read.
func TestChattyChecks(t *testing.T) {
	t.Parallel()
	for _, way := range standInWays {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls})
			s.Register(fleet...)
			s.SetStatus(fleet[0].Node, fleet[0].ID, "critical")
			w := observe(t, consulreg.Options{Link: linkTo(s)})
			w.awaitEndpoints(len(fleet))
			w.followsOn(s)
			w.awaitResting(s, way.tls)
			published := w.published()
			s.ResetCounts()
			woken := consultest.State
			if way.tls {
				woken = consultest.Instances
			}
			for n := range 10 {
				for _, f := range fleet[:3] {
					status := "passing"
					if f.ID == fleet[0].ID {
						status = "critical"
					}
					s.SetCheck(f.Node, f.ID, "", status, fmt.Sprint("took ms: ", n))
				}
				s.AwaitRequests(woken, n+1)
			}
			w.awaitResting(s, way.tls)
			if n := w.published() - published; n > 0 {
				t.Errorf("%d catalogs were published", n)
			}
			c := s.Counts()
			if n := c.Requests[consultest.Instances]; !way.tls && n > 0 {
				t.Errorf("%d reads of services", n)
			}
			t.Logf("%+v", c)
		})
	}
}

// awaitResting waits until nothing is asked but the standing questions.
func (w *observer) awaitResting(s *consultest.StandIn, watches bool) {
	w.t.Helper()
	want := 3
	if watches {
		want = 1
		for range w.lastCatalog().Services.Values() {
			want++
		}
	}
	s.AwaitBlocking(want)
	w.awaitQuiet()
	s.AwaitBlocking(want)
}

// TestRest has nothing happen: nothing is asked then but the standing questions.
func TestRest(t *testing.T) {
	eachWay(t, func(t *testing.T, s *consultest.StandIn, w *observer, watches bool) {
		w.awaitResting(s, watches)
		s.ResetCounts()
		<-time.After(3 * time.Second) // in which nothing is to happen
		c := s.Counts()
		for kind, n := range c.Requests {
			if n > 0 {
				t.Errorf("%d requests of kind %s at rest", n, consultest.Kind(kind))
			}
		}
		if c.Dialled > 0 {
			t.Errorf("%d new connections at rest", c.Dialled)
		}
	})
}

// TestConnections has more services than connections may be.
func TestConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		tls      bool
		services int
		blocking int
		closing  int // connections that the client has closed, as it does with those too many over HTTP/2, and the server not yet
	}{
		{"5,000 services over HTTP/1.1", false, 5000, 3, 0},
		{"1,990 services over HTTP/2", true, 1990, 1991, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: tt.tls})
			fleet := consultest.Fleet(tt.services, 1, 100)
			s.Register(fleet...)
			start := time.Now()
			w := observe(t, consulreg.Options{Link: linkTo(s)})
			w.awaitEndpoints(len(fleet))
			t.Logf("read in %s", time.Since(start))
			s.AwaitBlocking(tt.blocking)
			w.followsOn(s)
			t.Logf("%+v", s.Counts())
			s.Interrupt()
			w.followsOn(s)
			s.AwaitBlocking(tt.blocking)
			w.nothingLost()
			c := s.Counts()
			t.Logf("%+v", c)
			if most := 20 + tt.closing; c.PeakOpen > most {
				t.Errorf("%d connections at one time; want at most %d", c.PeakOpen, most)
			}
		})
	}
}

// TestModes has services come and go until there are too many to watch them one by one, and then few enough.
func TestModes(t *testing.T) {
	t.Parallel()
	s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: true})
	s.Register(fleet[:15]...)
	w := observe(t, consulreg.Options{Link: linkTo(s), Watches: 6})
	w.awaitEndpoints(15)
	for range 3 {
		w.awaitResting(s, true)
		s.Register(fleet[15:30]...)
		w.awaitEndpoints(30)
		w.awaitStanding("sweeps", func(s mesh.Standing) bool { return strings.HasPrefix(s.Mode, "the list") })
		w.followsOn(s)
		w.nothingLost()
		for _, f := range fleet[15:30] {
			s.Deregister(f.Node, f.ID)
		}
		w.awaitEndpoints(15)
		w.awaitStanding("watches", func(s mesh.Standing) bool { return strings.HasPrefix(s.Mode, "each") })
		w.followsOn(s)
		w.awaitWell()
		w.forget()
	}
	w.awaitResting(s, true)
	if c := s.Counts(); c.Blocking > 6 || c.PeakOpen > 20 {
		t.Errorf("%+v", c)
	}
}
