package integration

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// canaryTime is long beside what a canary takes to reject a change, or to be killed.
const canaryTime = 8 * time.Second

// tried is the change that goes to a canary first.
const tried = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tried}
spec:
  hosts: [tried.mesh.internal]
  resolution: STATIC
  ports:
  - {number: 7400, name: tcp, protocol: TCP, targetPort: 9001}
  endpoints:
  - {address: 10.77.0.31}
`

// machine is an Envoy and its application, with a loopback address of their own instead of 127.0.0.1.
type machine struct {
	*envoy
	app  *application
	load *load
}

// has tells whether the machine's Envoy has the cluster and the listener of a TCP service on this port.
func (m *machine) has(t *testing.T, host string, port int) (cluster, listener bool) {
	t.Helper()
	loaded := m.loaded(t)
	return loaded.clusters[fmt.Sprintf("outbound|%d||%s", port, host)] != nil, loaded.listeners[fmt.Sprintf("%s_%d", m.app.at, port)] != nil
}

// canaryStatus is what meshd says of the roll-out of a change.
type canaryStatus struct {
	Trying     int
	Nodes      []string
	Of         int
	Since      time.Time
	StoppedFor string
}

func (d *daemon) canary(t *testing.T) canaryStatus {
	t.Helper()
	var answer struct{ Canary *canaryStatus }
	if err := d.get("/api/v1/status", &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Canary == nil {
		t.Fatal("meshd knows of no canaries")
	}
	return *answer.Canary
}

// TestCanary shows that a change goes to one of three Envoys first, and no further if that rejects it or is lost; and that nobody
// notices, whatever becomes of it.
func TestCanary(t *testing.T) {
	app := newMesh(t, none)
	d := newMeshd(t, folders(none)...)
	d.configure(t, fmt.Sprintf("canary: 1 for %s\n", canaryTime))
	d.start(t)
	machines := map[string]*machine{}
	taken := map[string]net.Listener{} // the port of the change, on each machine
	for i, id := range []string{"vm1", "vm2", "vm3"} {
		at := *app
		at.at = fmt.Sprintf("127.0.0.%d", i+2)
		// One of them speaks the other protocol.
		p := delta
		if i == 1 {
			p = stateOfTheWorld
		}
		bootstrap := d.bootstrap(t, none, p, "--node-id", id, "--admin-address", "127.0.0.1:"+fmt.Sprint(15100+i))
		m := &machine{envoy: startEnvoy(t, startWire(t, bootstrap, "127.0.0.1", at.at)), app: &at}
		machines[id], taken[id] = m, listen(t, at.at+":7400")
		awaitReaches(t, id, m.app.http("http://shop.mesh.internal:8080/"), "10.77.0.13:9001")
		m.load = startLoad(t, map[string]caller{
			"shop": m.app.http("http://shop.mesh.internal:8080/"), "web, once": m.app.httpOnce("http://web.mesh.internal:8080/"),
			"api": m.app.grpc("api.mesh.internal:9090"), "db": m.app.tcp("db.mesh.internal:7000"), "db, kept": m.app.tcpKept("db.mesh.internal:7000"),
		})
	}

	// The port is taken on all machines, so that whichever tries the change rejects it.
	d.write(t, "tried.yaml", tried)
	d.awaitProblem(t, "canary-stopped", "with 1 of 3 nodes", "Address already in use")
	d.awaitProblem(t, "rejected-by-node", "tried.yaml", `"line":`, "7400")
	d.awaitSaid(t, "a change goes no further than the first nodes")
	stopped := d.canary(t)
	if len(stopped.Nodes) != 1 || stopped.Of != 3 || !strings.Contains(stopped.StoppedFor, "Address already in use") {
		t.Fatalf("the roll-out stands like this: %+v", stopped)
	}
	canary := machines[stopped.Nodes[0]]
	others := maps.Clone(machines)
	delete(others, stopped.Nodes[0])
	if said := string(output(t, meshdBinary, "status", "--admin", adminAddress)); !strings.Contains(said, "it goes no further: node") {
		t.Errorf("meshd status says\n%s", said)
	}
	for id := range others {
		if err := taken[id].Close(); err != nil { // it would take the change
			t.Fatal(err)
		}
	}

	// Endpoints go to all meanwhile.
	d.edit(t, "shop.yaml", "10.77.0.13", "10.77.0.14")
	for id, m := range machines {
		awaitReaches(t, "an endpoint that was replaced, from "+id, m.app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
	}
	requireStopped := func(host string, port int) {
		t.Helper()
		since := d.canary(t).Since
		eventually(t, "the end of the time that a change is tried", func() error {
			if time.Since(since) < canaryTime+time.Second {
				return errors.New("it is not over")
			}
			return nil
		})
		for id, m := range others {
			m.load.progress(t)
			if cluster, listener := m.has(t, host, port); cluster || listener {
				t.Errorf("%s has the change (cluster %t, listener %t), which was stopped", id, cluster, listener)
			}
		}
		if st := d.canary(t); st.StoppedFor == "" {
			t.Errorf("the roll-out stands like this: %+v", st)
		}
	}
	requireStopped("tried.mesh.internal", 7400)

	// It is mended: the same one tries it, and then all have it.
	d.edit(t, "tried.yaml", "7400", "7401")
	awaitReaches(t, "a service on trial", canary.app.tcp("tried.mesh.internal:7401"), "10.77.0.31:9001")
	for id, m := range others {
		cluster, listener := m.has(t, "tried.mesh.internal", 7401)
		// Looked at after that, so that it says nothing of what was released in between.
		if st := d.canary(t); st.Trying != 0 && (cluster || listener || !slices.Equal(st.Nodes, stopped.Nodes)) {
			t.Errorf("%s has what is on trial (cluster %t, listener %t): %+v", id, cluster, listener, st)
		}
	}
	d.awaitNoProblem(t, "canary-stopped")
	d.awaitNoProblem(t, "rejected-by-node")
	for id, m := range others {
		awaitReaches(t, "a service that was tried, from "+id, m.app.tcp("tried.mesh.internal:7401"), "10.77.0.31:9001")
	}
	if st := d.canary(t); st.Trying != 0 || st.StoppedFor != "" {
		t.Errorf("the roll-out stands like this: %+v", st)
	}

	// The canary is lost with a change that it has taken.
	canary.load.requireNoFailure(t)
	d.write(t, "fresh.yaml", fresh)
	awaitReaches(t, "another service on trial", canary.app.tcp("fresh.mesh.internal:7300"), "10.77.0.73:9002")
	canary.kill()
	d.awaitProblem(t, "canary-stopped", "with 1 of 3 nodes", fmt.Sprintf(`node \"%s\" left`, stopped.Nodes[0]))
	requireStopped("fresh.mesh.internal", 7300)

	// It is taken back.
	d.remove(t, "fresh.yaml")
	d.awaitNoProblem(t, "canary-stopped")
	for _, m := range others {
		m.load.progress(t)
		m.load.requireNoFailure(t)
		m.requireNoRejection(t)
	}
}
