package aggregate

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshd/meshd/internal/aggregate/registrytest"
	"github.com/meshd/meshd/internal/mesh"
)

func TestPace(t *testing.T) {
	var p pace
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for i, tt := range []struct{ since, want time.Duration }{
		{0, 20}, {20, 40}, {60, 80}, {80, 160}, {170, 200}, {400, 200}, {401, 20}, {41, 20}, {40, 40},
	} {
		now = now.Add(tt.since * time.Millisecond)
		if got := p.after(now); got != tt.want*time.Millisecond {
			t.Errorf("pause %d is %s, want %d ms", i, got, tt.want)
		}
	}
}

// TestTheMoreChangesTheLongerThePauses changes something each 10 ms for 3 s, and counts views.
func TestTheMoreChangesTheLongerThePauses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(i int) []string // the endpoints
		most   int
		oldest time.Duration // that a change may be before it is handed on
	}{
		{"endpoints that come are put together", func(i int) []string {
			var all []string
			for n := range i + 1 {
				all = append(all, fmt.Sprintf("192.0.%d.%d", n/250, n%250))
			}
			return all
		}, 25, 200 * time.Millisecond},
		{"one that goes waits less", func(i int) []string { return []string{fmt.Sprintf("192.0.%d.%d", i/250, i%250)} }, 45, 100 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				files := registrytest.NewMemory("files")
				c, views := start(t, files)
				before := len(views())
				var oldest time.Duration
				waits := map[mesh.Digest]time.Time{}
				for i := range 300 {
					s := service(t, "files", "a.mesh.internal", http80, tt.change(i)...)
					waits[s.Digest()] = time.Now()
					files.Put(s)
					time.Sleep(10 * time.Millisecond) // of the bubble's time
					if is, ok := c.Current().Services.Get(s.Key); ok {
						oldest = max(oldest, time.Since(waits[is.Digest()]))
					}
				}
				if n := len(views()) - before; n > tt.most {
					t.Errorf("%d views of 300 changes, want %d at most", n, tt.most)
				}
				// What nodes have is as old as the change after it has waited.
				if oldest > tt.oldest+20*time.Millisecond {
					t.Errorf("nodes had what was %s old, want %s at most", oldest, tt.oldest)
				}
			})
		})
	}
}

func TestWorse(t *testing.T) {
	well := func(addresses ...string) *mesh.Service {
		return service(t, "files", "a.mesh.internal", http80, addresses...)
	}
	sick := func(h mesh.Health) *mesh.Service {
		s := *well("192.0.2.1", "192.0.2.2")
		s.Endpoints[0].Health = h
		return mesh.Seal(s)
	}
	for _, tt := range []struct {
		name    string
		was, is *mesh.Service
		want    bool
	}{
		{"nothing", well("192.0.2.1"), well("192.0.2.1"), false},
		{"one comes", well("192.0.2.1"), well("192.0.2.1", "192.0.2.2"), false},
		{"one goes", well("192.0.2.1", "192.0.2.2"), well("192.0.2.1"), true},
		{"another one instead", well("192.0.2.1"), well("192.0.2.2"), true},
		{"one falls ill", sick(mesh.Healthy), sick(mesh.Unhealthy), true},
		{"one of unknown health falls ill", sick(mesh.HealthUnknown), sick(mesh.Unhealthy), true},
		{"one is known to be well", sick(mesh.HealthUnknown), sick(mesh.Healthy), false},
		{"one drains", sick(mesh.Healthy), sick(mesh.Draining), true},
		{"one gets well", sick(mesh.Unhealthy), sick(mesh.Healthy), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := worse(tt.was, tt.is); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
