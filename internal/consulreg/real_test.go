package consulreg_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
)

// ways are the two ways of keeping up with a Consul.
var ways = []struct {
	name string
	link func(*consultest.Agent) consulreg.Link
}{
	{"sweeps", func(a *consultest.Agent) consulreg.Link {
		return consulreg.Link{Addresses: []string{a.Addr}, Token: a.Token}
	}},
	{"watches", func(a *consultest.Agent) consulreg.Link {
		return consulreg.Link{Addresses: []string{"https://" + a.HTTPSAddr}, TLS: consulreg.TLS{CAFile: a.CAFile}, Token: a.Token}
	}},
}

// TestAServerThatReplaysItsLog kills a server and starts it again while 2,000 services are registered. Until it has replayed its
// log it answers as if it had fewer: not one endpoint may be lost by that, nor made unhealthy.
func TestAServerThatReplaysItsLog(t *testing.T) {
	t.Parallel()
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			a := consultest.Start(t, consultest.Options{Mode: consultest.Server, HTTPS: true})
			fleet := consultest.Fleet(2000, 3, 300)
			a.Register(fleet...)
			w := observe(t, consulreg.Options{Link: way.link(a), Watches: 3000})
			start := time.Now()
			w.awaitEndpoints(len(fleet))
			t.Logf("read in %s", time.Since(start))
			for range 2 {
				a.Kill()
				w.awaitProblem("consul-unreachable")
				a.Restart()
				w.awaitNoProblem("consul-unreachable")
				a.Ready()
				// A change that comes after it shows that the registry is up to date again.
				name := fmt.Sprintf("late-%d", time.Now().UnixNano())
				a.Register(consultest.Service{Name: name, Address: "192.0.2.77", Port: 8080})
				w.await("a service that was registered afterwards", func(c mesh.Catalog) bool {
					h, _ := mesh.ParseHost(name + ".service.consul")
					_, ok := c.Services.Get(mesh.Key{Host: h, Namespace: "default"})
					return ok
				})
				w.awaitNoProblem("consul-held")
			}
			w.nothingLost()
			t.Logf("%+v", w.registry.Standing())
		})
	}
}
