package aggregate

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/meshd/meshd/internal/aggregate/registrytest"
	"github.com/meshd/meshd/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// silent is a registry that never publishes.
type silent struct{ name string }

func (s silent) Name() string { return s.name }

func (silent) Run(ctx context.Context, _ func(mesh.Catalog)) error {
	<-ctx.Done()
	return nil
}

// start runs a controller until the test ends. The second result waits for all that is due, and is the views made so far.
// It is called in a bubble of its own time, as are the registries' constructors.
func start(t *testing.T, registries ...Registry) (*Controller, func() []*mesh.View) {
	c := New(hclog.NewNullLogger(), registries, Options{})
	var views []*mesh.View
	var last Change
	c.Handle(func(change Change, v *mesh.View) {
		if change.Generation == last.Generation && !change.Time.Equal(last.Time) {
			t.Errorf("generation %d came to be at %s and at %s", change.Generation, last.Time, change.Time)
		}
		last = change
		views = append(views, v)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c, func() []*mesh.View {
		time.Sleep(time.Second) // of the bubble's time
		synctest.Wait()
		return slices.Clone(views)
	}
}

func TestTheFirstViewWaitsForEveryRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := registrytest.NewMemory("files")
		files.Put(service(t, "files", "a.mesh.internal", http80, "192.0.2.1"))
		c, views := start(t, files, silent{"consul"})
		if v := views(); len(v) != 0 || c.Current() != nil {
			t.Fatalf("%d views before all registries have spoken", len(v))
		}
		time.Sleep(30 * time.Second)
		v := views()
		if len(v) != 1 || v[0].Services.Len() != 1 || len(v[0].Problems) != 1 {
			t.Fatalf("after the time limit: %d views, want one with the service and a problem", len(v))
		}
		if v[0].Problems[0].Since.IsZero() {
			t.Error("the problem does not say since when")
		}
	})
}

// unread is a registry whose source cannot be read until it is mended.
type unread struct{ mended chan mesh.Catalog }

func (unread) Name() string { return "files" }

func (u unread) Run(ctx context.Context, publish func(mesh.Catalog)) error {
	publish(mesh.Catalog{Unread: true, Problems: []mesh.Problem{{Severity: mesh.Error, Code: "folder-missing", Message: "is missing"}}})
	select {
	case <-ctx.Done():
	case c := <-u.mended:
		publish(c)
		<-ctx.Done()
	}
	return nil
}

func TestNothingIsServedOfRegistriesThatKnowNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := unread{make(chan mesh.Catalog)}
		c, views := start(t, u)
		time.Sleep(time.Hour)
		if v := views(); len(v) != 0 {
			t.Fatalf("%d views of a source that was never read; nodes would lose what they have", len(v))
		}
		if r := c.Registries()[0]; r.Synced || r.Reason != "is missing [folder-missing]" {
			t.Errorf("the registry's status is %+v, want why it is not synced", r)
		}
		u.mended <- catalog(service(t, "files", "a.mesh.internal", http80, "192.0.2.1"))
		if v := views(); len(v) != 1 || v[0].Services.Len() != 1 {
			t.Errorf("%d views once the source could be read, want one with its service", len(v))
		}
		if r := c.Registries()[0]; !r.Synced || r.Reason != "" {
			t.Errorf("the registry's status is %+v, want synced", r)
		}
	})
}

func TestManyChangesAtOnceAreOneView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := registrytest.NewMemory("files")
		c, views := start(t, files)
		before := len(views())
		files.Put(service(t, "files", "a.mesh.internal", http80, "192.0.2.1"))
		synctest.Wait()
		if c.Current().Services.Len() != 1 {
			t.Error("a change after a quiet time was not handed on at once")
		}
		for i := range 100 {
			files.Put(service(t, "files", "a.mesh.internal", http80, "192.0.2."+string(rune('1'+i%9))))
			synctest.Wait()
		}
		files.Put(service(t, "files", "a.mesh.internal", http80, "192.0.2.77"))
		if n := len(views()) - before; n != 2 {
			t.Errorf("%d views of 102 changes, want 2", n)
		}
		s, _ := c.Current().Services.Get(key(t, "default", "a.mesh.internal"))
		if got := s.Endpoints[0].Address.String(); got != "192.0.2.77" {
			t.Errorf("the last view has %s, want the newest change", got)
		}
	})
}

func TestTheSameCatalogAgainIsNoView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := registrytest.NewMemory("files")
		a := service(t, "files", "a.mesh.internal", http80, "192.0.2.1")
		files.Put(a)
		c, views := start(t, files)
		before := views()
		files.Put(a)
		if after := views(); len(after) != len(before) {
			t.Error("a catalog without a difference made a view")
		}
		if n := len(c.History()); n != 1 {
			t.Errorf("%d changes in the history, want 1", n)
		}
	})
}

func TestAProblemAloneMakesAViewOfTheSameGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := registrytest.NewMemory("files")
		c, views := start(t, files)
		generation := views()[0].Generation
		p := mesh.Problem{Severity: mesh.Error, Code: "x", Message: "broken"}
		files.Report(p)
		v := views()
		if got := v[len(v)-1]; len(got.Problems) != 1 || got.Generation != generation {
			t.Errorf("generation %d with %d problems, want %d with 1", got.Generation, len(got.Problems), generation)
		}
		since := c.Current().Problems[0].Since
		files.Put(service(t, "files", "a.mesh.internal", http80, "192.0.2.1"))
		views()
		if got := c.Current().Problems[0].Since; !got.Equal(since) {
			t.Errorf("the problem is now there since %s, before since %s", got, since)
		}
	})
}

type failing struct{ silent }

func (failing) Run(context.Context, func(mesh.Catalog)) error { return errors.New("no such thing") }

func TestARegistryThatFailsEndsTheController(t *testing.T) {
	c := New(hclog.NewNullLogger(), []Registry{failing{silent{"bad"}}, silent{"good"}}, Options{})
	err := c.Run(t.Context())
	if err == nil || err.Error() != "registry bad: no such thing" {
		t.Errorf("got %v", err)
	}
}

// doubting is a registry that does not believe its source.
type doubting struct {
	silent
	held *int
}

func (d doubting) Standing() mesh.Standing {
	return mesh.Standing{Source: "192.0.2.1:8500", Held: []mesh.Holding{{Service: "pay", Instances: *d.held}}}
}

func (d doubting) Release(ctx context.Context) (int, error) {
	if ctx.Err() != nil {
		return 0, errors.New("the registry does not run")
	}
	n := *d.held
	*d.held = 0
	return n, nil
}

func TestStandingsAreThoseOfTheMoment(t *testing.T) {
	held := 2
	c := New(hclog.NewNullLogger(), []Registry{silent{"files"}, doubting{silent{"consul"}, &held}}, Options{})
	for _, want := range []int{2, 1} {
		held = want
		r := c.Registries()
		if r[0].Standing != nil {
			t.Errorf("a registry that tells no standing has %+v", r[0].Standing)
		}
		if r[1].Standing == nil || r[1].Standing.HeldInstances() != want {
			t.Errorf("got the standing %+v, want one with %d held instances", r[1].Standing, want)
		}
	}
}

func TestRelease(t *testing.T) {
	held := 2
	c := New(hclog.NewNullLogger(), []Registry{silent{"files"}, doubting{silent{"consul"}, &held}}, Options{})
	late, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name     string
		ctx      context.Context
		registry string
		want     int
		kind     error
		message  string
	}{
		{name: "what is held goes", ctx: t.Context(), registry: "consul", want: 2},
		{name: "nothing is held any more", ctx: t.Context(), registry: "consul"},
		{
			name: "a name that no registry has", ctx: t.Context(), registry: "Consul", kind: ErrNoRegistry,
			message: `there is no registry "Consul"; there are: files, consul`,
		},
		{
			name: "a registry that never holds anything", ctx: t.Context(), registry: "files", kind: ErrHoldsNothing,
			message: "the registry files holds nothing that can be released; where it serves an earlier version of something, a problem says so",
		},
		{
			name: "a registry that is too busy", ctx: late, registry: "consul",
			message: "the registry consul has not taken the order: the registry does not run",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := c.Release(tt.ctx, tt.registry)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if n != tt.want || message != tt.message || tt.kind != nil && !errors.Is(err, tt.kind) {
				t.Errorf("got %d and %q, want %d and %q, of kind %v", n, message, tt.want, tt.message, tt.kind)
			}
		})
	}
}
