package integration

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	// suspect is an endpoint that an Envoy on a machine without IPv6 rejects: malformed it calls the address, and does not say of which
	// cluster.
	suspect = "fd00::66"

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
// is the only thing that is held back, and takes nothing from others.
func TestBisection(t *testing.T) {
	for _, p := range []protocol{delta, stateOfTheWorld} {
		t.Run(string(p), func(t *testing.T) {
			app := newMesh(t, none)
			startTCP(t, "10.77.0.33:9001") // the hundred's after
			d := newMeshd(t, folders(none)...)
			d.start(t)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			e := startEnvoy(t, d.bootstrap(t, none, p), self, withoutIPv6)
			requireInStep(t, d, e, none, p)
			l := startLoad(t, app.unchanging())
			before := hundredServices()
			after := strings.ReplaceAll(before, "10.77.0.31", "10.77.0.33")

			// All of them are new.
			d.write(t, "hundred.yaml", withSuspect(before))
			where := fmt.Sprintf(`"line": %d,`, 1+strings.Count(before[:strings.Index(before, faultyHost)], "\n"))
			d.awaitProblem(t, "rejected-by-node", "hundred.yaml", where, "vm1", faultyCluster, "(malformed IP address: "+suspect+".")
			if p, err := d.problem("rejected-by-node", "serving"); err != nil || p != "" {
				t.Errorf("the node had no version of it before (%v):\n%s", err, p)
			}
			requireHosts(t, e, "10.77.0.31:9001")
			requireHeld(t, d, faultyCluster)
			if n := rejections(t, "endpoints"); n < 2 {
				t.Errorf("Envoy has rejected %d responses: was the one at fault known by its name?", n)
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

			// All of their clusters change. Envoy waits for the endpoints of none of these once it has rejected those of one, so that there
			// may be failures until it has them again: a moment, even of the faulty one, which gets those that it had.
			l = startLoad(t, app.unchanging())
			apart := strings.NewReplacer("}\nspec", ", annotations: {networking.istio.io/traffic-distribution: PreferClose}}\nspec")
			d.write(t, "hundred.yaml", withSuspect(apart.Replace(after)))
			d.awaitProblem(t, "rejected-by-node", "hundred.yaml", where, "the version that a node accepted last")
			requireHosts(t, e, "10.77.0.33:9001", "10.77.0.33:9001")
			requireHeld(t, d, faultyCluster)
			l.progress(t)
			l.requireNoFailure(t)
			d.write(t, "hundred.yaml", apart.Replace(after))
			d.awaitNoProblem(t, "rejected-by-node")
			requireHeld(t, d)
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

// requireHeld waits until meshd holds back exactly these resources from its one node; if there are none, that has rejected nothing
// which it has not accepted since.
func requireHeld(t *testing.T, d *daemon, want ...string) {
	t.Helper()
	eventually(t, "what is held back", func() error {
		var answer struct {
			Nodes []struct {
				Deliveries []struct {
					Held     []struct{ Name string }
					Rejected *struct{ Message string }
				}
			}
		}
		if err := d.get("/api/v1/nodes", &answer); err != nil {
			return err
		}
		var have, rejected []string
		for _, n := range answer.Nodes {
			for _, y := range n.Deliveries {
				for _, h := range y.Held {
					have = append(have, h.Name)
				}
				if y.Rejected != nil {
					rejected = append(rejected, y.Rejected.Message)
				}
			}
		}
		if !slices.Equal(have, want) || len(want) == 0 && len(rejected) > 0 {
			return fmt.Errorf("it is %q, want %q; the node's words are %q", have, want, rejected)
		}
		return nil
	})
}

// rejections is how many responses of a type the nodes of meshd have rejected.
func rejections(t *testing.T, kind string) int {
	t.Helper()
	page, err := httpGet("http://" + adminAddress + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^meshd_xds_rejections_total\{type="` + kind + `"\} (\d+)$`).FindSubmatch(page)
	if m == nil {
		t.Fatalf("there is no count of rejections of %s", kind)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
