package aggregate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/mesh"
)

type fataler interface{ Fatalf(string, ...any) }

func key(t fataler, namespace, host string) mesh.Key {
	h, err := mesh.ParseHost(host)
	if err != nil {
		t.Fatalf("%q: %v", host, err)
	}
	return mesh.Key{Namespace: namespace, Host: h}
}

// service is a STATIC service of one HTTP port with endpoints.
func service(t fataler, registry, host string, port mesh.Port, addresses ...string) *mesh.Service {
	s := mesh.Service{
		Key: key(t, "default", host), Ports: []mesh.Port{port}, Resolution: mesh.Static, Export: mesh.Visibility{All: true},
		Origin: mesh.Origin{Registry: registry, Source: host},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, mesh.Endpoint{
			Address: mesh.IPAddress(netip.MustParseAddr(a)), Ports: []uint16{port.Number + 1}, Weight: 1,
		})
	}
	return mesh.Seal(s)
}

func catalog(services ...*mesh.Service) mesh.Catalog {
	var c mesh.Catalog
	for _, s := range services {
		c.Services = c.Services.With(s.Key, s)
	}
	return c
}

func sources(catalogs ...mesh.Catalog) []Source {
	names := []string{"files", "consul", "other"}
	var out []Source
	for i, c := range catalogs {
		out = append(out, Source{Registry: names[i], Catalog: c, Synced: true})
	}
	return out
}

var http80 = mesh.Port{Number: 80, Name: "http", Protocol: mesh.HTTP}

// describe is a service's ports, and its endpoints with theirs.
func describe(s *mesh.Service) (out []string) {
	for _, p := range s.Ports {
		out = append(out, fmt.Sprintf("%d %s %s", p.Number, p.Name, p.Protocol))
	}
	for _, e := range s.Endpoints {
		out = append(out, fmt.Sprintf("%s%v", e.Address, e.Ports))
	}
	return out
}

func TestServicesOfTwoRegistries(t *testing.T) {
	const host = "pay.mesh.internal"
	admin := mesh.Port{Number: 81, Name: "admin", Protocol: mesh.HTTP}
	for name, tt := range map[string]struct {
		second   *mesh.Service
		want     []string
		problems int
	}{
		"pool their endpoints where name, number and protocol agree": {
			second: service(t, "consul", host, http80, "192.0.2.2"),
			want:   []string{"80 http HTTP", "192.0.2.1[81]", "192.0.2.2[81]"},
		},
		"join by the port's name where the numbers differ": {
			second: service(t, "consul", host, mesh.Port{Number: 8080, Name: "http", Protocol: mesh.HTTP}, "192.0.2.2"),
			want:   []string{"80 http HTTP", "192.0.2.1[81]", "192.0.2.2[8081]"},
		},
		"have the ports of both": {
			second: service(t, "consul", host, admin, "192.0.2.2"),
			want:   []string{"80 http HTTP", "81 admin HTTP", "192.0.2.1[81 0]", "192.0.2.2[0 82]"},
		},
		"conflict where a port has two protocols": {
			second:   service(t, "consul", host, mesh.Port{Number: 80, Name: "http", Protocol: mesh.TCP}, "192.0.2.2"),
			want:     []string{"80 http HTTP", "192.0.2.1[81]"},
			problems: 1,
		},
		"conflict where a number has two names": {
			second:   service(t, "consul", host, mesh.Port{Number: 80, Name: "web", Protocol: mesh.HTTP}, "192.0.2.2"),
			want:     []string{"80 http HTTP", "192.0.2.1[81]"},
			problems: 1,
		},
		"are the first's alone where the resolutions differ": {
			second: mesh.Seal(mesh.Service{
				Key: key(t, "default", host), Ports: []mesh.Port{http80}, Resolution: mesh.DNS,
				Endpoints: []mesh.Endpoint{{Address: mesh.HostAddress("vm2.example.net"), Ports: []uint16{80}, Weight: 1}},
			}),
			want:     []string{"80 http HTTP", "192.0.2.1[81]"},
			problems: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := service(t, "files", host, http80, "192.0.2.1")
			m, _ := Merge(Merged{}, sources(catalog(first), catalog(tt.second)))
			got, ok := m.View.Services.Get(first.Key)
			if !ok {
				t.Fatal("the service is not there")
			}
			if d := gocmp.Diff(tt.want, describe(got)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if len(m.View.Problems) != tt.problems {
				t.Errorf("%d problems, want %d: %v", len(m.View.Problems), tt.problems, m.View.Problems)
			}
			if got.Origin != first.Origin {
				t.Errorf("its origin is %s, want %s", got.Origin, first.Origin)
			}
		})
	}
}

// TestRegionsOfTwoRegistries joins definitions of datacenters that know where they are.
func TestRegionsOfTwoRegistries(t *testing.T) {
	define := func(registry string, d mesh.Distribution, region string, rank uint8, address, second string) *mesh.Service {
		e := mesh.Endpoint{
			Address: mesh.IPAddress(netip.MustParseAddr(address)), Locality: mesh.Locality{Region: region}, Rank: rank, Ports: []uint16{8080}, Weight: 1,
		}
		if second != "" {
			e.Second = netip.MustParseAddr(second)
		}
		return mesh.Seal(mesh.Service{
			Key: key(t, "default", "pay.mesh.internal"), Ports: []mesh.Port{http80}, Resolution: mesh.Static, Distribution: d,
			Endpoints: []mesh.Endpoint{e}, Origin: mesh.Origin{Registry: registry},
		})
	}
	file := func(d mesh.Distribution) *mesh.Service { return define("files", d, "", 0, "192.0.2.1", "") }
	near := define("consul", mesh.PreferRegion, "dc1", 0, "192.0.2.2", "2001:db8::2")
	far := define("other", mesh.PreferRegion, "dc2", 1, "192.0.2.3", "")
	for _, tt := range []struct {
		name        string
		definitions []*mesh.Service
		want        []string // the distribution; of each endpoint the address, the second one, the region and the rank
	}{
		{"two datacenters keep their regions and ranks", []*mesh.Service{near, far}, []string{
			"by region", "192.0.2.2 2001:db8::2 dc1 0", "192.0.2.3 - dc2 1",
		}},
		{"whichever comes first", []*mesh.Service{far, near}, []string{
			"by region", "192.0.2.2 2001:db8::2 dc1 0", "192.0.2.3 - dc2 1",
		}},
		{"a file that prefers no endpoints goes by region with them", []*mesh.Service{file(mesh.AnyEndpoint), near, far}, []string{
			"by region", "192.0.2.1 - - 0", "192.0.2.2 2001:db8::2 dc1 0", "192.0.2.3 - dc2 1",
		}},
		{"a file that says what it prefers is heeded", []*mesh.Service{file(mesh.PreferClose), near}, []string{
			"another way", "192.0.2.1 - - 0", "192.0.2.2 2001:db8::2 dc1 0",
		}},
		{"a datacenter is not told by a file what to prefer", []*mesh.Service{near, file(mesh.PreferClose)}, []string{
			"by region", "192.0.2.1 - - 0", "192.0.2.2 2001:db8::2 dc1 0",
		}},
		{"files alone prefer what they did", []*mesh.Service{file(mesh.AnyEndpoint), file(mesh.PreferClose)}, []string{
			"any", "192.0.2.1 - - 0", "192.0.2.1 - - 0",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var catalogs []mesh.Catalog
			for _, d := range tt.definitions {
				catalogs = append(catalogs, catalog(d))
			}
			m, _ := Merge(Merged{}, sources(catalogs...))
			s, ok := m.View.Services.Get(near.Key)
			if !ok || len(m.View.Problems) > 0 {
				t.Fatalf("%v, problems %v", ok, m.View.Problems)
			}
			how := map[mesh.Distribution]string{mesh.AnyEndpoint: "any", mesh.PreferRegion: "by region"}
			got := []string{cmp.Or(how[s.Distribution], "another way")}
			for _, e := range s.Endpoints {
				second := "-"
				if e.Second.IsValid() {
					second = e.Second.String()
				}
				got = append(got, fmt.Sprint(e.Address, " ", second, " ", cmp.Or(e.Locality.Region, "-"), " ", e.Rank))
			}
			if d := gocmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestUnchangedServicesKeepTheirPointers(t *testing.T) {
	a, b := service(t, "files", "a.mesh.internal", http80, "192.0.2.1"), service(t, "files", "b.mesh.internal", http80, "192.0.2.2")
	both := service(t, "consul", "b.mesh.internal", http80, "192.0.2.3")
	first, _ := Merge(Merged{}, sources(catalog(a, b), catalog(both)))
	moved := service(t, "files", "a.mesh.internal", http80, "192.0.2.9")
	// The second catalog is made anew from equal services, as after a restart of a registry.
	second, change := Merge(first, sources(catalog(moved, b), catalog(service(t, "consul", "b.mesh.internal", http80, "192.0.2.3"))))

	was, _ := first.View.Services.Get(b.Key)
	is, _ := second.View.Services.Get(b.Key)
	if was != is {
		t.Error("a merged service that did not change has another pointer")
	}
	if got, _ := first.View.Services.Get(a.Key); got != a {
		t.Error("a service of one registry is not the registry's own")
	}
	if d := gocmp.Diff([]mesh.Key{a.Key}, change.Altered, gocmp.Comparer(func(a, b mesh.Key) bool { return a == b })); d != "" {
		t.Errorf("altered (-want +got):\n%s", d)
	}
	if !change.EndpointsOnly {
		t.Error("a change of one endpoint is not told as one of endpoints only")
	}
}

func TestARegistryThatHasNotSpokenIsAProblem(t *testing.T) {
	m, _ := Merge(Merged{}, []Source{{Registry: "files", Synced: true}, {Registry: "consul"}})
	if len(m.View.Problems) != 1 || m.View.Problems[0].Origin.Registry != "consul" || m.View.Problems[0].Code != "registry-not-synced" {
		t.Errorf("problems: %v", m.View.Problems)
	}
}

// TestMergeByStepsIsMergeAtOnce publishes random catalogs in random order, and compares with a merge from nothing: the order
// in which registries publish does not matter, and the digest is that of what is there.
func TestMergeByStepsIsMergeAtOnce(t *testing.T) {
	ports := []mesh.Port{http80, {Number: 80, Name: "http", Protocol: mesh.TCP}, {Number: 81, Name: "http", Protocol: mesh.HTTP}}
	rapid.Check(t, func(t *rapid.T) {
		catalogs := make([]mesh.Catalog, 3)
		last := Merged{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			i := rapid.IntRange(0, 2).Draw(t, "registry")
			c := &catalogs[i]
			h := rapid.SampledFrom([]string{"a.mesh.internal", "b.mesh.internal"}).Draw(t, "host")
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				c.Services = c.Services.Without(key(t, "default", h))
			} else {
				s := service(t, sources(catalogs...)[i].Registry, h, rapid.SampledFrom(ports).Draw(t, "port"),
					rapid.SliceOfDistinct(rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2"}), rapid.ID).Draw(t, "addresses")...)
				c.Services = c.Services.With(s.Key, s)
			}
			next, change := Merge(last, sources(catalogs...))
			scratch, _ := Merge(Merged{}, sources(catalogs...))
			if d := gocmp.Diff(tenancies(scratch.View), tenancies(next.View)); d != "" {
				t.Fatalf("tenancies (-at once +by steps):\n%s", d)
			}
			if next.View.Digest != scratch.View.Digest || !slices.Equal(next.View.Problems, scratch.View.Problems) {
				t.Fatalf("by steps %v %v, at once %v %v", next.View.Digest, next.View.Problems, scratch.View.Digest, scratch.View.Problems)
			}
			var want, got [][]string
			for s := range scratch.View.Services.Values() {
				want = append(want, describe(s))
			}
			for s := range next.View.Services.Values() {
				got = append(got, describe(s))
			}
			if d := gocmp.Diff(want, got); d != "" {
				t.Fatalf("(-at once +by steps):\n%s", d)
			}
			changed := len(change.Added)+len(change.Altered)+len(change.Removed) > 0
			if last.View != nil && changed != (next.View.Generation != last.View.Generation) {
				t.Fatalf("generation %d after %d, with changes: %v", next.View.Generation, last.View.Generation, changed)
			}
			last = next
		}
	})
}

// tenancies is who is where, in text.
func tenancies(v *mesh.View) []string {
	var out []string
	for t := range v.Tenancies.All() {
		out = append(out, fmt.Sprint(t))
	}
	return out
}

// BenchmarkMergeOneService is a merge after a change of one endpoint of one service.
func BenchmarkMergeOneService(b *testing.B) {
	for _, size := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var c mesh.Catalog
			for i := range size {
				s := service(b, "files", fmt.Sprintf("s%d.mesh.internal", i), http80, "192.0.2.1", "192.0.2.2")
				c.Services = c.Services.With(s.Key, s)
			}
			m, _ := Merge(Merged{}, sources(c, mesh.Catalog{}))
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				s := service(b, "files", fmt.Sprintf("s%d.mesh.internal", n%size), http80, "192.0.2.1", fmt.Sprintf("192.0.2.%d", 3+n%200))
				c.Services = c.Services.With(s.Key, s)
				m, _ = Merge(m, sources(c, mesh.Catalog{}))
			}
		})
	}
}

// BenchmarkMergeAll is the first merge.
func BenchmarkMergeAll(b *testing.B) {
	for _, size := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var one, two mesh.Catalog
			for i := range size {
				h := fmt.Sprintf("s%d.mesh.internal", i)
				s, o := service(b, "files", h, http80, "192.0.2.1"), service(b, "consul", h, http80, "192.0.2.2")
				one.Services = one.Services.With(s.Key, s)
				if i%10 == 0 {
					two.Services = two.Services.With(o.Key, o)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				Merge(Merged{}, sources(one, two))
			}
		})
	}
}
