package consulreg

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
)

// mirrorOf is a mirror that does not run.
func mirrorOf(o Options) *mirror {
	log, o := hclog.NewNullLogger(), o.withDefaults()
	return newMirror(log, "consul", o, newLink(o.Link, o.Connections), newKeeper(log, "consul", ""), new(sync.WaitGroup))
}

// believe has a mirror believe that a service has these instances.
func (m *mirror) believe(name string, tags []string, now time.Time, instances ...*instance) {
	all := map[string][]string{name: tags}
	maps.Copy(all, m.directory.names)
	m.directory = &directory{names: all, index: 7}
	was, ok := m.pages.Get(serviceName(name))
	if !ok {
		was = &page{}
	}
	m.turn(name, was, &page{instances: instances, index: 9}, now)
}

// rich are instances with something in each of their fields.
func rich(name string, n int) (all []*instance) {
	for i := range n {
		all = append(all, &instance{
			Datacenter: "dc1", Node: fmt.Sprint("vm", i), ID: fmt.Sprint(name, "-", i), Name: name, Address: fmt.Sprintf("192.0.2.%d", i+1), NodeAddress: "198.51.100.1",
			Port: 8080, Tagged: map[string]socket{"wan": {"203.0.113.1", 80}}, NodeTagged: map[string]string{"wan": "203.0.113.2"}, Tags: []string{"a=b", "meshd.enable=true"},
			Meta: map[string]string{"protocol": "http", "version": "2"}, NodeMeta: map[string]string{"zone": "a"}, Weights: weights{3, 1},
			Status: []status{passing, warning, critical, maintenance}[i%4],
		})
	}
	return all
}

// a mirror that has something to record.
func full(o Options) *mirror {
	m := mirrorOf(o)
	m.believe("consul", nil, noon)
	m.believe("pay", []string{"a=b"}, noon, rich("pay", 4)...)
	m.believe("web", nil, noon, rich("web", 1)...)
	m.believe("none", nil, noon)
	m.unread = map[string]bool{}
	return m
}

func saved(t testing.TB, m *mirror) []byte {
	t.Helper()
	data, err := m.recorded()()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// digests are the services of a mirror with what they are made of.
func digests(m *mirror) map[string]string {
	all := map[string]string{}
	for s := range m.served.services.Values() {
		all[s.Key.String()] = fmt.Sprint(s.Digest(), s.Origin, len(s.Endpoints))
	}
	return all
}

func TestWhatIsRecordedIsRestored(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    Options // of the one that restores
	}{
		{"by the same rules", Options{}},
		{"by other rules", Options{Rules: Rules{Domain: "mesh.internal", Namespace: "team", Exclude: []Match{{Name: "web"}}, ZoneMeta: "rack", Protocol: mesh.TCP}}},
		{"by rules for exposed ones", Options{Rules: Rules{Expose: ExposeTagged}}},
		{"with all watches shared", Options{Watches: 1, Damping: time.Hour}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			was := full(Options{Link: Link{Datacenter: "dc1"}, Rules: Rules{Distance: Near}})
			is := mirrorOf(tt.o)
			if err := is.restore(saved(t, was)); err != nil {
				t.Fatal(err)
			}
			o := tt.o
			o.Link.Datacenter, o.Rules.Distance = "dc1", Near
			want := full(o)
			if d := cmp.Diff(digests(want), digests(is)); d != "" {
				t.Errorf("services (-want +got):\n%s", d)
			}
			for s := range want.served.services.Values() {
				if got, ok := is.served.services.Get(s.Key); !ok || !got.Identical(s) {
					t.Errorf("%s is not identical", s.Key)
				}
			}
			if d := cmp.Diff(was.directory.names, is.directory.names); d != "" || is.directory.index != 0 {
				t.Errorf("the list has index %d (-want +got):\n%s", is.directory.index, d)
			}
			for name, p := range was.pages.All() {
				if got, _ := is.pages.Get(name); !sameInstances(got.instances, p.instances) || got.index != 0 {
					t.Errorf("%s has index %d and %q", name, got.index, wordsOf(got.instances))
				}
			}
			if !is.complete() {
				t.Error("it does not take it for complete")
			}
			if d := cmp.Diff(string(saved(t, was)), string(saved(t, is))); d != "" {
				t.Errorf("recorded again (-want +got):\n%s", d)
			}
		})
	}
}

// TestARecordTellsTheDatacenter restores one of an agent that is not in the datacenter.
func TestARecordTellsTheDatacenter(t *testing.T) {
	far := Options{Link: Link{Datacenter: "dc2"}}
	was := mirrorOf(far)
	was.locate("dc1")
	was.believe("consul", nil, noon)
	was.believe("pay", nil, noon, rich("pay", 1)...)
	is := mirrorOf(far)
	if err := is.restore(saved(t, was)); err != nil {
		t.Fatal(err)
	}
	if !is.located || is.o.Rules.Distance != Far || len(digests(is)) == 0 {
		t.Errorf("located %v, distance %d, %v", is.located, is.o.Rules.Distance, digests(is))
	}
	if d := cmp.Diff(digests(was), digests(is)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestAServiceThatOtherRulesDidNotWantIsUnread restores with rules that want more.
func TestAServiceThatOtherRulesDidNotWantIsUnread(t *testing.T) {
	was := mirrorOf(Options{Rules: Rules{Exclude: []Match{{Name: "web"}}}})
	was.believe("pay", nil, noon, rich("pay", 1)...)
	was.directory.names["web"] = nil
	is := mirrorOf(Options{})
	if err := is.restore(saved(t, was)); err != nil {
		t.Fatal(err)
	}
	if is.complete() {
		t.Error("it takes for complete what lacks a service")
	}
	again := mirrorOf(was.o)
	if err := again.restore(saved(t, was)); err != nil || !again.complete() {
		t.Errorf("with the same rules, %v, complete %v", err, again.complete())
	}
}

func TestARecordThatIsNone(t *testing.T) {
	for _, tt := range []struct{ record, want string }{
		{``, "read the record: unexpected end of JSON input"},
		{`[]`, "read the record: "},
		{`{}`, "it has no list of services"},
		{`{"names": null, "services": []}`, "it has no list of services"},
		{`{"names": {}, "datacenter": "dc2"}`, `it is of the datacenter "dc2", and not of "dc1"`},
		{`{"names": {}, "distance": 9}`, "it has a distance 9"},
		{`{"names": {}, "services": [{"name": "a"}]}`, `the service "a" is not in its list`},
		{`{"names": {"a": null}, "services": [{"name": "a", "instances": [null]}]}`, `the service "a" has an instance that cannot be`},
		{`{"names": {"a": null}, "services": [{"name": "a", "instances": [{"status": 4}]}]}`, `the service "a" has an instance that cannot be`},
		{`{"names": {"a": null}, "services": [{"name": "a", "instances": [{"id": "2"}, {"id": "1"}]}]}`, `the service "a" has an instance that cannot be`},
	} {
		m := full(Options{Link: Link{Datacenter: "dc1"}, Rules: Rules{Distance: Near}})
		before := digests(m)
		if err := m.restore([]byte(tt.record)); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("of %s the error is %v, want %s", tt.record, err, tt.want)
		}
		if d := cmp.Diff(before, digests(m)); d != "" {
			t.Errorf("%s changed something (-before +after):\n%s", tt.record, d)
		}
	}
}

// FuzzRestore restores what is no record of any meshd, too. What is taken is recorded again as it was.
func FuzzRestore(f *testing.F) {
	f.Add(saved(f, full(Options{})))
	f.Add([]byte(`{"names": {"a": null, "b": ["x"]}, "services": [{"name": "a"}, {"name": "a", "instances": [{"id": "1"}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		one, two := mirrorOf(Options{}), mirrorOf(Options{})
		if one.restore(data) != nil {
			return
		}
		first := saved(t, one)
		if err := two.restore(first); err != nil {
			t.Fatalf("%s cannot be restored: %v", first, err)
		}
		if second := saved(t, two); string(first) != string(second) {
			t.Fatalf("%s becomes %s", first, second)
		}
		if d := cmp.Diff(digests(one), digests(two)); d != "" {
			t.Fatal(d)
		}
	})
}

// healthOf is how the instances of a service are, in their order.
func (m *mirror) healthOf(name string) string {
	var words []string
	for _, s := range m.served.outcomes[name].services {
		for _, e := range s.Endpoints {
			words = append(words, e.Health.String())
		}
	}
	return strings.Join(words, " ")
}

// TestDamping has instances that get ill and well at certain times.
func TestDamping(t *testing.T) {
	one := func(s status) *instance { i := *rich("pay", 1)[0]; i.Status = s; return &i }
	type step struct {
		after  time.Duration // since the step before
		status status        // that is read; 99: nothing is
		want   string
	}
	const nothing status = 99
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"one that was never ill is well at once", []step{{0, passing, "healthy"}, {1, warning, "healthy"}, {1, passing, "healthy"}}},
		{"one that is ill from the start is ill, and recovers after the time", []step{{0, critical, "unhealthy"}, {1, passing, "unhealthy"}, {9, nothing, "unhealthy"}, {1, nothing, "healthy"}}},
		{"one that gets ill is ill at once", []step{{0, passing, "healthy"}, {1, critical, "unhealthy"}}},
		{"one that gets well is well after the time", []step{{0, passing, "healthy"}, {1, critical, "unhealthy"}, {5, passing, "unhealthy"}, {9, nothing, "unhealthy"}, {1, nothing, "healthy"}}},
		{"one that flaps is ill until it is well for the time", []step{
			{0, passing, "healthy"},
			{1, critical, "unhealthy"},
			{1, passing, "unhealthy"},
			{9, critical, "unhealthy"},
			{1, passing, "unhealthy"},
			{9, critical, "unhealthy"},
			{1, passing, "unhealthy"},
			{9, nothing, "unhealthy"},
			{1, nothing, "healthy"},
			{1, critical, "unhealthy"},
		}},
		{"a warning is well enough, and what comes during the time does not prolong it", []step{
			{0, critical, "unhealthy"}, {1, warning, "unhealthy"}, {5, passing, "unhealthy"}, {4, nothing, "unhealthy"}, {1, nothing, "healthy"},
		}},
		{"after maintenance too", []step{{0, passing, "healthy"}, {1, maintenance, "draining"}, {1, passing, "unhealthy"}, {10, nothing, "healthy"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, now := mirrorOf(Options{Damping: 10}), noon
			for n, s := range tt.steps {
				now = now.Add(s.after)
				m.tick(now)
				if s.status != nothing {
					m.believe("pay", nil, now, one(s.status))
				}
				if got := m.healthOf("pay"); got != s.want {
					t.Fatalf("after step %d it is %s, want %s", n+1, got, s.want)
				}
				if due := m.untilDue(now); len(m.recoveries) > 0 && due > 10 {
					t.Errorf("after step %d it looks again in %s", n+1, due)
				}
			}
			m.forget("pay")
			if len(m.recoveries) > 0 {
				t.Errorf("what is left is %v", m.recoveries)
			}
		})
	}

	t.Run("others are as they are", func(t *testing.T) {
		m := mirrorOf(Options{Damping: 10})
		all := rich("pay", 3)
		for _, i := range all {
			i.Status = passing
		}
		sick := *all[1]
		sick.Status = critical
		m.believe("pay", nil, noon, all...)
		m.believe("pay", nil, noon, all[0], &sick, all[2])
		m.believe("pay", nil, noon, all...)
		if got := m.healthOf("pay"); got != "healthy unhealthy healthy" {
			t.Errorf("they are %s", got)
		}
		m.believe("pay", nil, noon, all[1:]...)
		if got := m.healthOf("pay"); got != "unhealthy healthy" {
			t.Errorf("with one less they are %s", got)
		}
		m.believe("pay", nil, noon, all[0])
		m.tick(noon.Add(10))
		if got := m.healthOf("pay"); got != "healthy" || len(m.recoveries) > 0 {
			t.Errorf("without it they are %s, and %v is left", got, m.recoveries)
		}
	})
	t.Run("without damping one that gets well is well", func(t *testing.T) {
		m := mirrorOf(Options{})
		m.believe("pay", nil, noon, one(critical))
		m.believe("pay", nil, noon, one(passing))
		if got := m.healthOf("pay"); got != "healthy" {
			t.Errorf("it is %s", got)
		}
	})
}

// TestFlapping flaps in Consul, and looks at all catalogs.
func TestFlapping(t *testing.T) {
	t.Parallel()
	for _, tls := range []bool{false, true} {
		t.Run(fmt.Sprint("TLS ", tls), func(t *testing.T) {
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: tls})
			s.Register(consultest.Service{Name: "pay", ID: "pay", Address: "192.0.2.7", Port: 80})
			var mu sync.Mutex
			var seen []mesh.Health
			signal := make(chan mesh.Health, 100)
			publish := func(c mesh.Catalog) {
				mu.Lock()
				defer mu.Unlock()
				for is := range c.Services.Values() {
					for _, e := range is.Endpoints {
						if len(seen) == 0 || seen[len(seen)-1] != e.Health {
							seen = append(seen, e.Health)
							signal <- e.Health
						}
					}
				}
			}
			await := func(want mesh.Health) {
				t.Helper()
				select {
				case got := <-signal:
					if got != want {
						t.Fatalf("it is %s, want %s", got, want)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("it is not %s", want)
				}
			}
			const damping = 300 * time.Millisecond
			r := New(hclog.NewNullLogger(), "consul", Options{Link: Link{Addresses: []string{s.URL}, TLS: TLS{CAFile: s.CAFile}}, Damping: damping})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- r.Run(ctx, publish) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()
			await(mesh.Healthy)
			s.SetStatus("node-1", "pay", "critical")
			await(mesh.Unhealthy)
			well := time.Now()
			s.SetStatus("node-1", "pay", "passing")
			await(mesh.Healthy)
			if waited := time.Since(well); waited < damping {
				t.Errorf("it was well again after %s", waited)
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(seen, []mesh.Health{mesh.Healthy, mesh.Unhealthy, mesh.Healthy}) {
				t.Errorf("it was %v", seen)
			}
		})
	}
}

// TestHiddenIsSaidOfAllAlone reads services of which one is hidden.
func TestHiddenIsSaidOfAllAlone(t *testing.T) {
	m := mirrorOf(Options{})
	m.directory = &directory{names: names("a b consul"), index: 7}
	m.unread = map[string]bool{"a": true, "b": true}
	m.turn("a", &page{}, &page{index: 7, filtered: true}, noon)
	if why := m.hidden(); why != "" || m.complete() {
		t.Errorf("with one to be read, it says %q, complete %v", why, m.complete())
	}
	m.turn("b", &page{}, &page{index: 7, filtered: true}, noon)
	if why := m.hidden(); why == "" || m.complete() {
		t.Errorf("with all hidden, it says %q, complete %v", why, m.complete())
	}
	m.turn("b", &page{}, &page{index: 8, instances: seen("1")}, noon)
	if why := m.hidden(); why != "" || !m.complete() {
		t.Errorf("with one that is seen, it says %q, complete %v", why, m.complete())
	}
}

// TestWhatIsReleasedIsReadAgain releases what was doubted, which may be old by then.
func TestWhatIsReleasedIsReadAgain(t *testing.T) {
	m := mirrorOf(Options{})
	m.believe("pay", nil, noon, seen("a b c d")...)
	p, _ := m.pages.Get("pay")
	next, _ := m.o.Guard.judge(p, sighting{instances: seen("a"), index: 10, at: noon})
	m.turn("pay", p, next, noon)
	if len(m.doubted) != 1 {
		t.Fatal("there is no doubt")
	}
	if gone := m.release(t.Context()); gone != 3 || len(m.doubted) > 0 {
		t.Errorf("%d are gone, and %v is left", gone, m.doubted)
	}
	p, _ = m.pages.Get("pay")
	if got := wordsOf(p.instances); got != "a" || !m.queue.waits(ofInstances, "pay") {
		t.Errorf("it is %q, and is to be read: %v", got, m.queue.waits(ofInstances, "pay"))
	}
}
