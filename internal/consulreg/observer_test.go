package consulreg_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
)

// TestMain lets many tests run side by side, since they wait for most of their time.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

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

// observe runs a registry until the test ends, after it was prepared.
func observe(t *testing.T, o consulreg.Options, prepare ...func(*consulreg.Registry)) *observer {
	t.Helper()
	level := hclog.Off
	if testing.Verbose() {
		level = hclog.Debug
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "test", Level: level, Output: os.Stderr})
	w := &observer{t: t, registry: consulreg.New(log, "consul", o), signal: make(chan struct{}, 1)}
	for _, p := range prepare {
		p(w.registry)
	}
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
		if strings.HasPrefix(at, "fresh-") {
			continue // it comes and goes to show that this is followed
		}
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
	return w.awaitOr(what, is, func(mesh.Catalog) string { return "" })
}

// awaitOr is await, and says more if it is in vain.
func (w *observer) awaitOr(what string, is func(mesh.Catalog) bool, more func(mesh.Catalog) string) mesh.Catalog {
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
			w.t.Fatalf("%s: not within %s; of %d services, with problems %v; %+v\n%s", what, patience, last.Services.Len(), last.Problems, w.registry.Standing(), more(last))
		}
	}
}

// awaitQuiet waits until nothing is asked for a while.
func (w *observer) awaitQuiet() {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for quiet := 0; quiet < 50; quiet++ {
		before := w.registry.Standing().Requests
		time.Sleep(10 * time.Millisecond) // that nothing happens is told by nobody
		if w.registry.Standing().Requests != before {
			quiet = 0
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("it is not quiet after %s: %+v", patience, w.registry.Standing())
		}
	}
}

// lastCatalog is the newest.
func (w *observer) lastCatalog() mesh.Catalog {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
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

// awaitHealth waits until an endpoint is there and has that health, and awaitGone until it is not there.
func (w *observer) awaitHealth(at string, want mesh.Health) {
	w.t.Helper()
	w.await(fmt.Sprint(at, " ", want), func(c mesh.Catalog) bool { h, ok := endpointsOf(c)[at]; return ok && h == want })
}

func (w *observer) awaitGone(at string) {
	w.t.Helper()
	w.await(at+" gone", func(c mesh.Catalog) bool { _, ok := endpointsOf(c)[at]; return !ok })
}

// awaitWell waits until there is no problem but those of single services and what the token may not see.
func (w *observer) awaitWell() {
	w.t.Helper()
	ill := []string{"consul-unreachable", "consul-denied", "consul-throttled", "consul-hidden", "consul-held"}
	w.await("the end of all problems", func(c mesh.Catalog) bool {
		return !c.Unread && !slices.ContainsFunc(c.Problems, func(p mesh.Problem) bool { return slices.Contains(ill, p.Code) })
	})
}

// awaitStanding waits until the registry stands with Consul as it should.
func (w *observer) awaitStanding(what string, is func(mesh.Standing) bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for !is(w.registry.Standing()) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within %s; %+v", what, patience, w.registry.Standing())
		}
		time.Sleep(5 * time.Millisecond) // a standing is asked for, and not told
	}
}

// published is how many catalogs there were.
func (w *observer) published() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.catalogs
}

// forget begins to look for what is lost anew.
func (w *observer) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses, w.worse = nil, nil
}

// lost is what was taken away since, sorted, each once.
func (w *observer) lost() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(w.losses)))
}

// release lets go of what is held.
func (w *observer) release() int {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	n, err := w.registry.Release(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// catalog is what has services to register: a real Consul or the stand-in.
type catalog interface {
	Register(...consultest.Service)
	Deregister(node, id string)
	SetStatus(node, id, status string)
	SetCheck(node, id, checkID, status, output string)
	RemoveCheck(node, checkID string)
	EnterMaintenance(node, id string)
	LeaveMaintenance(node, id string)
}

var fresh atomic.Int64

// followsOn sees to it that what changes from now on arrives: a new service, and that it is gone again.
func (w *observer) followsOn(c catalog) {
	w.t.Helper()
	name := fmt.Sprintf("fresh-%d", fresh.Add(1))
	at := name + ".service.consul:8080 192.0.2.77:8080"
	c.Register(consultest.Service{Name: name, Node: "fresh", NodeAddress: "192.0.2.77", Port: 8080})
	w.awaitHealth(at, mesh.Healthy)
	c.SetStatus("fresh", name, "critical")
	w.awaitHealth(at, mesh.Unhealthy)
	c.Deregister("fresh", name)
	w.awaitGone(at)
}

// awaitWords waits until there is a problem of that code with these words in it.
func (w *observer) awaitWords(code, words string) mesh.Catalog {
	w.t.Helper()
	return w.await(fmt.Sprintf("a problem %s that says %q", code, words), func(c mesh.Catalog) bool {
		return slices.ContainsFunc(c.Problems, func(p mesh.Problem) bool { return p.Code == code && strings.Contains(p.Message, words) })
	})
}
