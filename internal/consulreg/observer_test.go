package consulreg_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long what must happen may take on a busy machine.
const patience = 60 * time.Second

// observer runs a registry and looks at every catalog that it publishes, as an xDS client would: what counts is not only how
// it ends, but that nothing was taken away on the way.
type observer struct {
	t        *testing.T
	registry *consulreg.Registry
	signal   chan struct{}
	stop     func()

	mu       sync.Mutex
	last     mesh.Catalog
	catalogs int
	losses   []string // endpoints that one catalog had and the next one did not
	worse    []string // endpoints that went from healthy to something else
}

// observe runs a registry until the test ends.
func observe(t *testing.T, o consulreg.Options) *observer {
	t.Helper()
	level := hclog.Off
	if testing.Verbose() {
		level = hclog.Debug
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "test", Level: level, Output: os.Stderr})
	w := &observer{t: t, registry: consulreg.New(log, "consul", o), signal: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.registry.Run(ctx, w.publish) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *observer) publish(c mesh.Catalog) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.catalogs++
	before, after := endpointsOf(w.last), endpointsOf(c)
	for at, was := range before {
		switch is, there := after[at]; {
		case !there:
			w.losses = append(w.losses, at)
		case is != was && was == mesh.Healthy:
			w.worse = append(w.worse, fmt.Sprintf("%s %s", at, is))
		}
	}
	w.last = c
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// endpointsOf are the endpoints of a catalog as HOST ADDRESS:PORT, with their health.
func endpointsOf(c mesh.Catalog) map[string]mesh.Health {
	all := map[string]mesh.Health{}
	for s := range c.Services.Values() {
		for _, e := range s.Endpoints {
			for i, p := range e.Ports {
				if p != 0 {
					all[fmt.Sprintf("%s:%d %s:%d", s.Host, s.Ports[i].Number, e.Address, p)] = e.Health
				}
			}
		}
	}
	return all
}

// await waits until the newest catalog is as it should be.
func (w *observer) await(what string, is func(mesh.Catalog) bool) mesh.Catalog {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		last, any := w.last, w.catalogs > 0
		w.mu.Unlock()
		if any && is(last) {
			return last
		}
		select {
		case <-w.signal:
		case <-deadline:
			w.t.Fatalf("%s: not within %s; of %d services, with problems %v; %+v", what, patience, last.Services.Len(), last.Problems, w.registry.Standing())
		}
	}
}

// awaitEndpoints waits until there are so many endpoints.
func (w *observer) awaitEndpoints(n int) mesh.Catalog {
	w.t.Helper()
	return w.await(fmt.Sprint(n, " endpoints"), func(c mesh.Catalog) bool { return !c.Unread && len(endpointsOf(c)) == n })
}

// awaitProblem waits until there is a problem of that code, and awaitNoProblem until there is none.
func (w *observer) awaitProblem(code string) mesh.Problem {
	w.t.Helper()
	var found mesh.Problem
	w.await("a problem "+code, func(c mesh.Catalog) bool {
		i := slices.IndexFunc(c.Problems, func(p mesh.Problem) bool { return p.Code == code })
		if i >= 0 {
			found = c.Problems[i]
		}
		return i >= 0
	})
	return found
}

func (w *observer) awaitNoProblem(code string) {
	w.t.Helper()
	w.await("the end of the problem "+code, func(c mesh.Catalog) bool {
		return !slices.ContainsFunc(c.Problems, func(p mesh.Problem) bool { return p.Code == code })
	})
}

// nothingLost sees to it that no endpoint was ever taken away.
func (w *observer) nothingLost() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.losses); n > 0 {
		w.t.Errorf("%d endpoints were taken away, among them %s", n, strings.Join(w.losses[:min(n, 5)], ", "))
	}
	if n := len(w.worse); n > 0 {
		w.t.Errorf("%d endpoints were made unhealthy, among them %s", n, strings.Join(w.worse[:min(n, 5)], ", "))
	}
}

// endpoint is one of the newest catalog, and whether it is there.
func (w *observer) endpoint(at string) (mesh.Health, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := endpointsOf(w.last)[at]
	return h, ok
}
