// Package registrytest is the contract of a registry, as a test that every implementation runs.
//
// It knows a registry from outside: it moves what the registry watches, by way of a [Fixture], and looks at what is
// published. What it asks for is what the rest of meshd relies on: catalogs are complete, immutable and sorted; the
// first one means that the registry knows its source; a service that did not change keeps its pointer; an outage takes nothing away;
// and nothing goes on after Run has returned.
package registrytest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/meshd/meshd/internal/mesh"
)

// Registry is what is tested.
type Registry interface {
	Name() string
	Run(ctx context.Context, publish func(mesh.Catalog)) error
}

// Service is a service as a source holds it: one HTTP port, with endpoints that are IP addresses, in the default
// namespace.
type Service struct {
	Host      string
	Port      uint16
	Endpoints []string
}

// Fixture is a registry and the source that it watches. The functions change the source, before Run as well as during it.
type Fixture struct {
	Registry Registry
	Put      func(Service)     // adds a service, or replaces the one of that host
	Remove   func(host string) // takes a service away
	// Break makes the source unreachable and Mend makes it as before. Nil if that cannot be.
	Break, Mend func()
}

// patience is how long a change may take to be published, and calm for how long nothing may be published once it need not be.
const (
	patience = 10 * time.Second
	calm     = time.Second
)

// Test runs the contract. Each part opens a fixture of its own, with an empty source.
func Test(t *testing.T, open func(t *testing.T) Fixture) {
	alpha := Service{"alpha.service.mesh.internal", 8080, []string{"192.0.2.1"}}
	bravo := Service{"bravo.service.mesh.internal", 8080, []string{"192.0.2.2", "192.0.2.3"}}
	charlie := Service{"charlie.service.mesh.internal", 9090, []string{"192.0.2.4"}}
	moved := Service{"bravo.service.mesh.internal", 8080, []string{"192.0.2.9"}}

	for _, part := range []struct {
		name string
		test func(t *testing.T, f Fixture)
	}{
		{"an empty source gives an empty catalog", func(t *testing.T, f Fixture) {
			r := run(t, f)
			r.expect("the first catalog")
		}},
		{"the first catalog is complete", func(t *testing.T, f Fixture) {
			f.Put(alpha)
			f.Put(bravo)
			f.Put(charlie)
			r := run(t, f)
			r.await("the first catalog", func(mesh.Catalog) bool { return true })
			r.expect("what was there before the start", alpha, bravo, charlie)
			if n := len(r.all()); n != 1 {
				t.Errorf("%d catalogs were published until all was there; the first must hold it", n)
			}
		}},
		{"changes arrive, and what did not change keeps its pointer", func(t *testing.T, f Fixture) {
			f.Put(alpha)
			f.Put(bravo)
			r := run(t, f)
			before := r.expect("what was there before the start", alpha, bravo)
			f.Put(moved)
			after := r.expect("another endpoint", alpha, moved)
			sameService(t, before, after, alpha.Host)
			f.Put(charlie)
			before, after = after, r.expect("a new service", alpha, moved, charlie)
			sameService(t, before, after, alpha.Host, bravo.Host)
			f.Remove(bravo.Host)
			before, after = after, r.expect("a service less", alpha, charlie)
			sameService(t, before, after, alpha.Host, charlie.Host)
		}},
		{"a published catalog never changes", func(t *testing.T, f Fixture) {
			f.Put(alpha)
			f.Put(bravo)
			r := run(t, f)
			first := r.expect("what was there before the start", alpha, bravo)
			services := slices.Collect(first.Services.Values())
			digests := digestsOf(services)
			f.Put(moved)
			f.Remove(alpha.Host)
			r.expect("both changes", moved)
			if !slices.Equal(services, slices.Collect(first.Services.Values())) || !slices.Equal(digests, digestsOf(services)) {
				t.Error("the first catalog is another one after a change; publish a new one instead")
			}
		}},
		{"nothing is published when nothing has changed", func(t *testing.T, f Fixture) {
			f.Put(alpha)
			r := run(t, f)
			r.expect("what was there before the start", alpha)
			f.Put(alpha)
			r.quiet("after a service was put again as it was")
		}},
		{"an outage takes nothing away and is a problem", func(t *testing.T, f Fixture) {
			if f.Break == nil {
				t.Skip("this source cannot be out of reach")
			}
			f.Put(alpha)
			f.Put(bravo)
			r := run(t, f)
			before := r.expect("what was there before the start", alpha, bravo)
			f.Break()
			r.await("a problem that says so", func(c mesh.Catalog) bool { return len(c.Problems) > len(before.Problems) })
			during := r.expect("the outage", alpha, bravo)
			sameService(t, before, during, alpha.Host, bravo.Host)
			f.Mend()
			r.await("the end of the problem", func(c mesh.Catalog) bool { return len(c.Problems) == len(before.Problems) })
			after := r.expect("the end of the outage", alpha, bravo)
			sameService(t, before, after, alpha.Host, bravo.Host)
			f.Put(charlie)
			r.expect("a new service after the outage", alpha, bravo, charlie)
		}},
		{"a source that is out of reach at the start is a problem", func(t *testing.T, f Fixture) {
			if f.Break == nil {
				t.Skip("this source cannot be out of reach")
			}
			f.Put(alpha)
			f.Break()
			r := run(t, f)
			f.Mend()
			r.expect("the end of the outage", alpha)
		}},
		{"a run that was over before it began returns", func(t *testing.T, f Fixture) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := f.Registry.Run(ctx, func(mesh.Catalog) {}); err != nil {
				t.Errorf("Run returned %v; want nil", err)
			}
		}},
		{"it has a name", func(t *testing.T, f Fixture) {
			name := f.Registry.Name()
			if name == "" || name != f.Registry.Name() {
				t.Errorf("the name is %q; want one that stays", name)
			}
			f.Put(alpha)
			for s := range run(t, f).expect("what was there before the start", alpha).Services.Values() {
				if s.Origin.Registry != name {
					t.Errorf("the origin of %s is of registry %q; want %q", s.Key, s.Origin.Registry, name)
				}
			}
		}},
	} {
		t.Run(part.name, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, ignore) }) // after all that the fixture and the run clean up
			part.test(t, open(t))
		})
	}
}

// recorder runs a registry and keeps what it publishes.
type recorder struct {
	t      *testing.T
	signal chan struct{}

	mu       sync.Mutex
	catalogs []mesh.Catalog
	ended    bool
}

// run runs the registry until the test ends; then it sees to it that the run ends well.
func run(t *testing.T, f Fixture) *recorder {
	r := &recorder{t: t, signal: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Registry.Run(ctx, r.publish) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run returned %v after its context ended; want nil", err)
			}
		case <-time.After(patience):
			t.Errorf("Run still runs %s after its context ended", patience)
		}
		r.mu.Lock()
		r.ended = true
		r.mu.Unlock()
		r.check()
	})
	return r
}

func (r *recorder) publish(c mesh.Catalog) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		r.t.Error("a catalog was published after Run had returned")
		return
	}
	r.catalogs = append(r.catalogs, c)
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

func (r *recorder) all() []mesh.Catalog {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.catalogs)
}

// await waits until the latest catalog is as it should be, and returns it.
func (r *recorder) await(what string, is func(mesh.Catalog) bool) mesh.Catalog {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		all := r.all()
		if len(all) > 0 && is(all[len(all)-1]) {
			return all[len(all)-1]
		}
		select {
		case <-r.signal:
		case <-deadline:
			r.t.Fatalf("%s did not come within %s; the latest of %d catalogs is\n%s", what, patience, len(all), describe(all))
		}
	}
}

// expect waits until the latest catalog holds just these services, and returns it.
func (r *recorder) expect(what string, services ...Service) mesh.Catalog {
	r.t.Helper()
	want := map[string]Service{}
	for _, s := range services {
		want[s.Host] = s
	}
	return r.await(what, func(c mesh.Catalog) bool { return cmp.Equal(want, servicesOf(c)) })
}

// quiet sees to it that nothing is published for a while.
func (r *recorder) quiet(when string) {
	r.t.Helper()
	before := len(r.all())
	timeout := time.After(calm)
	for {
		select {
		case <-r.signal: // perhaps of what came before
		case <-timeout:
			if all := r.all(); len(all) != before {
				r.t.Errorf("%d catalogs were published %s; the latest is\n%s", len(all)-before, when, describe(all))
			}
			return
		}
	}
}

// check looks at every catalog for what must hold of all.
func (r *recorder) check() {
	for _, c := range r.all() {
		if !slices.IsSortedFunc(c.Problems, mesh.Problem.Compare) {
			r.t.Errorf("the problems of a catalog are not sorted: %v", c.Problems)
		}
		for k, s := range c.Services.All() {
			if k != s.Key {
				r.t.Errorf("a catalog has %s at the key %s", s.Key, k)
			}
			if s.Digest() == (mesh.Digest{}) {
				r.t.Errorf("%s is not sealed", s.Key)
			}
			for _, e := range s.Endpoints {
				if len(e.Ports) != len(s.Ports) {
					r.t.Errorf("%s has %d ports, and an endpoint %s with %d", s.Key, len(s.Ports), e.Address, len(e.Ports))
				}
			}
		}
	}
}

func sameService(t *testing.T, before, after mesh.Catalog, hosts ...string) {
	t.Helper()
	for _, host := range hosts {
		h, err := mesh.ParseHost(host)
		if err != nil {
			t.Fatal(err)
		}
		key := mesh.Key{Host: h, Namespace: mesh.DefaultNamespace}
		was, _ := before.Services.Get(key)
		is, _ := after.Services.Get(key)
		if was != is {
			t.Errorf("%s has another pointer though it did not change", key)
		}
	}
}

func servicesOf(c mesh.Catalog) map[string]Service {
	services := map[string]Service{}
	for s := range c.Services.Values() {
		as := Service{Host: s.Host.String()}
		if len(s.Ports) > 0 {
			as.Port = s.Ports[0].Number
		}
		for _, e := range s.Endpoints {
			as.Endpoints = append(as.Endpoints, e.Address.String())
		}
		services[as.Host] = as
	}
	return services
}

func digestsOf(services []*mesh.Service) (digests []mesh.Digest) {
	for _, s := range services {
		digests = append(digests, s.Digest())
	}
	return digests
}

func describe(catalogs []mesh.Catalog) string {
	if len(catalogs) == 0 {
		return "(none)"
	}
	last := catalogs[len(catalogs)-1]
	return cmp.Diff(map[string]Service{}, servicesOf(last)) + cmp.Diff([]mesh.Problem(nil), last.Problems)
}
