package integration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	// suspect is an endpoint that becomes malformed on the way to Envoy, which says so of the address, and not of which cluster.
	suspect   = "10.77.0.66"
	malformed = "10.77.0.6x"

	faulty        = 42 // the one of the hundred that has it
	faultyHost    = "one-42.mesh.internal"
	faultyCluster = "outbound|20042||" + faultyHost
)

// withSuspect gives one of the hundred services that endpoint.
func withSuspect(services string) string {
	const address = "{address: "
	at := strings.Index(services, faultyHost)
	at += strings.Index(services[at:], address) + len(address)
	return services[:at] + suspect + services[at+strings.IndexByte(services[at:], '}'):]
}

// TestBisection shows that what an Envoy rejects without a word of which resource it means is found by sending parts of it again,
// is the only thing that is held back, and costs nobody a request.
func TestBisection(t *testing.T) {
	for _, p := range []protocol{delta, stateOfTheWorld} {
		t.Run(string(p), func(t *testing.T) {
			app := newMesh(t, none)
			startTCP(t, "10.77.0.33:9001") // the hundred's after
			d := newMeshd(t, folders(none)...)
			d.start(t)
			e := startEnvoy(t, startWire(t, d.bootstrap(t, none, p), suspect, malformed))
			requireInStep(t, d, e, none, p)
			l := startLoad(t, app.unchanging())
			before := hundredServices()
			after := strings.ReplaceAll(before, "10.77.0.31", "10.77.0.33")

			// All of them are new.
			d.write(t, "hundred.yaml", withSuspect(before))
			where := fmt.Sprintf(`"line": %d,`, 1+strings.Count(before[:strings.Index(before, faultyHost)], "\n"))
			d.awaitProblem(t, "rejected-by-node", "hundred.yaml", where, "vm1", faultyCluster, "malformed IP address")
			if p, err := d.problem("rejected-by-node", "serving"); err != nil || p != "" {
				t.Errorf("the node had no version of it before (%v):\n%s", err, p)
			}
			requireHosts(t, e, "10.77.0.31:9001")
			requireHeld(t, d, faultyCluster)
			if n := e.stats(t, `^cluster\..*one-7\..*\.update_rejected$`); len(n) != 1 {
				t.Errorf("Envoy has the counters %v, want one", n)
			} else {
				for name, n := range n {
					if n == 0 {
						t.Errorf("%s is 0: was one of them rejected by name?", name)
					}
				}
			}
			l.progress(t)

			d.write(t, "hundred.yaml", before)
			requireHosts(t, e, "10.77.0.31:9001", "10.77.0.31:9001")
			d.awaitNoProblem(t, "rejected-by-node")
			requireHeld(t, d)
			l.progress(t)
			l.requireNoFailure(t)

			// All of them change.
			clients := app.unchanging()
			for i := faulty % 10; i < hundred; i += 10 {
				clients["one-"+strconv.Itoa(i)] = app.tcp(fmt.Sprintf("one-%d.mesh.internal:%d", i, firstPort+i)).from("10.77.0.31:9001", "10.77.0.33:9001")
			}
			l = startLoad(t, clients)
			d.write(t, "hundred.yaml", withSuspect(after))
			d.awaitProblem(t, "rejected-by-node", "hundred.yaml", where, "the version that a node accepted last")
			requireHosts(t, e, "10.77.0.33:9001", "10.77.0.31:9001")
			requireHeld(t, d, faultyCluster)
			l.progress(t)

			// All but that one change again, and then that one is mended.
			d.write(t, "hundred.yaml", withSuspect(before))
			requireHosts(t, e, "10.77.0.31:9001", "10.77.0.31:9001")
			requireHeld(t, d, faultyCluster)
			d.write(t, "hundred.yaml", strings.Replace(withSuspect(before), suspect, "10.77.0.33", 1))
			requireHosts(t, e, "10.77.0.31:9001", "10.77.0.33:9001")
			d.awaitNoProblem(t, "rejected-by-node")
			requireHeld(t, d)
			l.progress(t)
			l.requireNoFailure(t)
			d.requireAccepted(t)
		})
	}
}

// requireHosts waits until the Envoy has one endpoint of each of the hundred services, and these of the faulty one.
func requireHosts(t *testing.T, e *envoy, others string, ofFaulty ...string) {
	t.Helper()
	eventually(t, "the endpoints of the hundred", func() error {
		hosts := e.hosts(t)
		for i := range hundred {
			want := []string{others}
			if i == faulty {
				want = ofFaulty
			}
			cluster := fmt.Sprintf("outbound|%d||one-%d.mesh.internal", firstPort+i, i)
			have, ok := hosts[cluster]
			if !ok || !slices.EqualFunc(have, want, func(text, address string) bool { return strings.HasPrefix(text, address+" ") }) {
				return fmt.Errorf("%s has %q, want %q", cluster, have, want)
			}
		}
		return nil
	})
}

// requireHeld fails the test if meshd does not hold back exactly these resources from its one node.
func requireHeld(t *testing.T, d *daemon, want ...string) {
	t.Helper()
	var answer struct {
		Nodes []struct {
			Deliveries []struct{ Held []struct{ Name string } }
		}
	}
	if err := d.get("/api/v1/nodes", &answer); err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, n := range answer.Nodes {
		for _, y := range n.Deliveries {
			for _, h := range y.Held {
				have = append(have, h.Name)
			}
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("meshd holds back %q, want %q", have, want)
	}
}
