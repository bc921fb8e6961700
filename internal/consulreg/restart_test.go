package consulreg_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
)

// TestARestartWhileConsulIsOutOfReach begins with a record, goes on with a Consul that replays its log, and ends with one that is well
// and has less.
func TestARestartWhileConsulIsOutOfReach(t *testing.T) {
	for _, way := range []struct {
		name string
		tls  bool
	}{{"sweeps", false}, {"watches", true}} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls})
			fleet := consultest.Fleet(10, 3, 5)
			s.Register(fleet...)
			o := consulreg.Options{Link: consulreg.Link{Addresses: []string{s.URL}, TLS: consulreg.TLS{CAFile: s.CAFile}}, StateDir: t.TempDir()}
			w := observe(t, o)
			w.awaitEndpoints(len(fleet))
			w.stop()
			s.Down()

			w = observe(t, o)
			w.awaitEndpoints(len(fleet))
			if p := w.awaitProblem("consul-unreachable"); p.Serving == "" {
				t.Errorf("the problem does not say that it serves what it knew: %+v", p)
			}
			s.Replay("svc-0000", "svc-0001")
			s.Deregister("node-000", "svc-0000-0")
			s.Up()
			w.awaitNoProblem("consul-unreachable")
			s.AwaitRequests(consultest.List, 1)
			s.Register(consultest.Service{Name: "svc-0001", ID: "new", Node: "node-009", Address: "192.0.2.99", Port: 99})
			w.nothingLost()
			w.awaitEndpoints(len(fleet)) // those that were there
			s.EndReplay()
			w.await("the new one, without the one that is gone", func(c mesh.Catalog) bool {
				all := endpointsOf(c)
				_, there := all["svc-0001.service.consul:8001 192.0.2.99:99"]
				return there && len(all) == len(fleet)
			})
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.losses) != 1 || !strings.HasPrefix(w.losses[0], "svc-0000.service.consul") {
				t.Errorf("lost were %q, want the one that was deregistered", w.losses)
			}
		})
	}
}

// TestAfterARestartAllIsReadAnew changes what no list tells of while nobody looks.
func TestAfterARestartAllIsReadAnew(t *testing.T) {
	for _, way := range []struct {
		name string
		tls  bool
	}{{"sweeps", false}, {"watches", true}} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls})
			s.Register(consultest.Service{Name: "pay", Address: "192.0.2.7", Port: 80})
			o := consulreg.Options{Link: consulreg.Link{Addresses: []string{s.URL}, TLS: consulreg.TLS{CAFile: s.CAFile}}, StateDir: t.TempDir()}
			w := observe(t, o)
			w.awaitEndpoints(1)
			w.stop()
			health := func(want mesh.Health) func(mesh.Catalog) bool {
				return func(c mesh.Catalog) bool { return endpointsOf(c)["pay.service.consul:80 192.0.2.7:80"] == want }
			}
			s.SetStatus("node-1", "pay", "critical")
			w = observe(t, o)
			w.await("what is known", func(c mesh.Catalog) bool { return len(endpointsOf(c)) == 1 })
			w.await("what has changed", health(mesh.Unhealthy))
			s.SetStatus("node-1", "pay", "passing")
			w.await("what changes now", health(mesh.Healthy))
		})
	}
}

// TestAStateThatCannotBeKept has folders that cannot be written and files that cannot be read.
func TestAStateThatCannotBeKept(t *testing.T) {
	t.Parallel()
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	s.Register(consultest.Service{Name: "pay", Address: "192.0.2.7", Port: 80})
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "consul.state"), []byte("something"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, dir, code string }{
		{"a folder that cannot be", filepath.Join(file, "state"), "state-not-saved"},
		{"a disk that is full", "/dev/full/state", "state-not-saved"},
		{"a file that is damaged", dir, "state-unreadable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := observe(t, consulreg.Options{Link: consulreg.Link{Addresses: []string{s.URL}}, StateDir: tt.dir})
			w.awaitEndpoints(1)
			if p := w.awaitProblem(tt.code); p.Severity != mesh.Warning {
				t.Errorf("the problem is %+v", p)
			}
		})
	}
}
