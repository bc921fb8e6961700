package integration

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

const (
	firstPort = 20000
	hundred   = 100
	takenPort = firstPort + 42
)

// hundredServices are services with a port each, and so with a listener each where connections are not redirected.
func hundredServices() string {
	var b strings.Builder
	for i := range hundred {
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: one-%[1]d}
spec:
  hosts: [one-%[1]d.mesh.internal]
  resolution: STATIC
  ports:
  - {number: %[2]d, name: tcp, protocol: TCP, targetPort: 9001}
  endpoints:
  - {address: 10.77.0.31}
`, i, firstPort+i)
	}
	return b.String()
}

// TestIsolation shows that what an Envoy rejects takes nothing else with it, and is accepted once it is mended.
func TestIsolation(t *testing.T) {
	for _, p := range []protocol{delta, stateOfTheWorld} {
		t.Run(string(p), func(t *testing.T) {
			app, d, e := startMesh(t, none, p)
			l := startLoad(t, app.unchanging())
			taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", takenPort))
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()

			d.write(t, "hundred.yaml", hundredServices())
			d.awaitProblem(t, "rejected-by-node", "hundred.yaml", `"line":`, fmt.Sprint(takenPort), "vm1", "Address already in use")
			requireOthers(t, app, e, 99)
			// What is rejected by name costs one rejection.
			if n := e.stats(t, `^listener_manager\.lds\.update_rejected$`)["listener_manager.lds.update_rejected"]; n != 1 {
				t.Errorf("Envoy has rejected %d updates of listeners, want 1", n)
			}

			// Others come, change and go as ever.
			d.edit(t, "hundred.yaml", "one-7.mesh.internal", "seven.mesh.internal")
			d.write(t, "fresh.yaml", fresh)
			awaitReaches(t, "a new service", app.tcp("fresh.mesh.internal:7300"), "10.77.0.73:9002")
			awaitReaches(t, "a service that has changed", app.tcp(fmt.Sprintf("seven.mesh.internal:%d", firstPort+7)), "10.77.0.31:9001")
			d.remove(t, "fresh.yaml")
			eventually(t, "a listener to go", func() error {
				if _, ok := e.loaded(t).listeners["127.0.0.1_7300"]; ok {
					return fmt.Errorf("it is there")
				}
				return nil
			})
			requireOthers(t, app, e, 99)

			// A new version is tried, and rejected as well.
			d.edit(t, "hundred.yaml", "one-42.mesh.internal", "again.mesh.internal")
			d.awaitProblem(t, "rejected-by-node", "again.mesh.internal")
			requireOthers(t, app, e, 99)

			if err := taken.Close(); err != nil {
				t.Fatal(err)
			}
			d.edit(t, "hundred.yaml", "again.mesh.internal", "cured.mesh.internal")
			awaitReaches(t, "what was rejected", app.tcp(fmt.Sprintf("cured.mesh.internal:%d", takenPort)), "10.77.0.31:9001")
			d.awaitNoProblem(t, "rejected-by-node")
			requireOthers(t, app, e, 100)
			l.progress(t)
			l.requireNoFailure(t)
			d.requireAccepted(t)
		})
	}
}

// requireOthers waits until the Envoy has that many of the hundred listeners, and calls some of them.
func requireOthers(t *testing.T, app *application, e *envoy, want int) {
	t.Helper()
	eventually(t, "listeners", func() error {
		n := 0
		for name := range e.loaded(t).listeners {
			if strings.HasPrefix(name, "127.0.0.1_200") || strings.HasPrefix(name, "127.0.0.1_201") {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d of the hundred, want %d", n, want)
		}
		return nil
	})
	for _, i := range []int{0, 41, 43, 99} {
		awaitReaches(t, fmt.Sprint("service ", i), app.tcp(fmt.Sprintf("one-%d.mesh.internal:%d", i, firstPort+i)), "10.77.0.31:9001")
	}
}
