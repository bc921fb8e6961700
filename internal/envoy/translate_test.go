package envoy

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/mesh"
)

func host(t interface{ Fatalf(string, ...any) }, s string) mesh.Host {
	h, err := mesh.ParseHost(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return h
}

// drawService makes one of a few services, so that they meet in hosts, ports and addresses.
func drawService(t *rapid.T) *mesh.Service {
	s := mesh.Service{
		Key: mesh.Key{
			Host:      host(t, rapid.SampledFrom([]string{"a.mesh.internal", "b.mesh.internal", "c.example.org", "*.mesh.internal"}).Draw(t, "host")),
			Namespace: rapid.SampledFrom([]string{"default", "alpha"}).Draw(t, "namespace"),
		},
		Resolution:   mesh.Resolution(rapid.IntRange(0, int(mesh.DynamicDNS)).Draw(t, "resolution")),
		Distribution: mesh.Distribution(rapid.IntRange(0, int(mesh.PreferRegion)).Draw(t, "distribution")),
		Export:       rapid.SampledFrom([]mesh.Visibility{{All: true}, {Namespaces: []string{"default"}}, {}}).Draw(t, "export"),
		Origin:       mesh.Origin{Registry: "files", Source: rapid.SampledFrom([]string{"x.yaml", "y.yaml"}).Draw(t, "source")},
	}
	for _, n := range rapid.SliceOfNDistinct(rapid.SampledFrom([]uint16{80, 443, 7000, 15001}), 1, 3, rapid.ID).Draw(t, "ports") {
		p := mesh.Port{Number: n, Name: fmt.Sprint("p", n), Protocol: mesh.Protocol(rapid.IntRange(0, int(mesh.UDP)).Draw(t, "protocol"))}
		if rapid.IntRange(0, 4).Draw(t, "also") == 0 && p.Protocol != mesh.TCP {
			p.Also = []mesh.Protocol{mesh.TCP}
		}
		s.Ports = append(s.Ports, p)
	}
	s.Addresses = rapid.SliceOfN(rapid.SampledFrom([]netip.Prefix{
		netip.MustParsePrefix("198.51.100.1/32"), netip.MustParsePrefix("198.51.100.2/32"),
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::1/128"),
	}), 0, 2).Draw(t, "addresses")
	s.Allocated = rapid.SampledFrom([][]netip.Addr{nil, nil, {netip.MustParseAddr("198.51.100.1")}, {netip.MustParseAddr("2001:db8::9")}}).Draw(t, "allocated")
	s.Allocation = mesh.Allocation(rapid.IntRange(0, 1).Draw(t, "allocation"))
	for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
		e := mesh.Endpoint{
			Address: rapid.SampledFrom([]mesh.Address{
				mesh.IPAddress(netip.MustParseAddr("192.0.2.1")), mesh.IPAddress(netip.MustParseAddr("192.0.2.2")),
				mesh.HostAddress("vm1.example.net"), mesh.SocketAddress("/run/x.sock"),
			}).Draw(t, "address"),
			Weight:   rapid.SampledFrom([]uint32{1, 5, 1<<32 - 1}).Draw(t, "weight"),
			Locality: rapid.SampledFrom([]mesh.Locality{{}, {Region: "eu"}, {Region: "eu", Zone: "1"}, {Region: "us"}}).Draw(t, "locality"),
			Second:   rapid.SampledFrom([]netip.Addr{{}, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}).Draw(t, "second"),
			Rank:     rapid.SampledFrom([]uint8{0, 1, 255}).Draw(t, "rank"),
			Health:   mesh.Health(rapid.IntRange(0, int(mesh.Unhealthy)).Draw(t, "health")),
		}
		for range s.Ports {
			e.Ports = append(e.Ports, rapid.SampledFrom([]uint16{0, 8080, 8081}).Draw(t, "port"))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return mesh.Seal(s)
}

var scopes = []Scope{
	{Namespace: "default", Capture: Redirect, Domain: "mesh.internal", Locality: mesh.Locality{Region: "eu", Zone: "1"}},
	{Namespace: "default", Capture: None, Family: IPv6},
	{Namespace: "default", Capture: None, Privileges: Unprivileged},
	{Namespace: "default", Capture: Redirect, Names: NamesCaptured},
	{Namespace: "alpha", Capture: Redirect, Family: Dual, Domain: "default.svc.mesh.internal"},
	{Namespace: "alpha", Capture: Redirect, Family: Dual, Domain: "default.svc.mesh.internal", Addresses: "192.0.2.1,2001:db8::1"},
	{Namespace: "default", Capture: Redirect, Addresses: "192.0.2.2"},
	{Namespace: "default", Capture: Redirect, Locality: mesh.Locality{Region: "eu", Zone: "2"}},
	{Namespace: "default", Capture: Redirect, Family: IPv6, Addresses: "2001:db8::2"},
	{Kind: GRPC, Namespace: "default", Capture: None, Locality: mesh.Locality{Region: "eu", Zone: "1"}},
	{Kind: GRPC, Namespace: "alpha", Capture: None},
	{Kind: GRPC, Namespace: "default", Capture: None, Reports: LoadReports},
}

// TestIncrementalIsFromScratch makes random changes and compares the snapshots made from the ones before with those made
// from nothing; each resource passes Envoy's own validation, and no resource refers to one that is not there.
func TestIncrementalIsFromScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		settings := Mesh{Outbound: Outbound(rapid.IntRange(0, 1).Draw(t, "outbound"))}
		view := &mesh.View{Registries: []string{"files"}}
		last := make([]*Snapshot, len(scopes))
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			next := *view
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
					if keys := slices.Collect(keysIn(next.Services)); len(keys) > 0 {
						change(&next, rapid.SampledFrom(keys).Draw(t, "key"), nil)
					}
					continue
				}
				s := drawService(t)
				change(&next, s.Key, s)
			}
			view = &next
			var made []*Snapshot
			for i, scope := range scopes {
				last[i] = Translate(last[i], view, scope, settings, made...)
				made = append(made, last[i])
				scratch := Translate(nil, view, scope, settings)
				compare(t, scratch, last[i])
				check(t, last[i])
			}
		}
	})
}

// change puts a service into a view, or takes it out if s is nil.
func change(v *mesh.View, key mesh.Key, s *mesh.Service) {
	was, _ := v.Services.Get(key)
	v.Tenancies = mesh.Resettle(v.Tenancies, was, s)
	v.Services = v.Services.Without(key)
	if s != nil {
		v.Services = v.Services.With(key, s)
	}
}

func keysIn(s mesh.Services) func(func(mesh.Key) bool) {
	return maps.Keys(maps.Collect(s.All()))
}

func compare(t *rapid.T, want, got *Snapshot) {
	for typ := range Types {
		w, g := maps.Collect(want.Resources[typ].All()), maps.Collect(got.Resources[typ].All())
		for name, r := range w {
			if o := g[name]; o == nil || !bytes.Equal(o.Wire(), r.Wire()) || !slices.Equal(o.Services, r.Services) {
				t.Fatalf("%s %q: from scratch %v, by steps %v", typ, name, text(t, r), text(t, o))
			}
		}
		if len(w) != len(g) {
			t.Fatalf("%s: from scratch %d, by steps %d", typ, len(w), len(g))
		}
		if want.Versions[typ] != got.Versions[typ] {
			t.Fatalf("%s: version %s from scratch, %s by steps", typ, want.Versions[typ], got.Versions[typ])
		}
	}
	w, g := slices.Collect(want.Problems()), slices.Collect(got.Problems())
	if !slices.Equal(w, g) {
		t.Fatalf("problems: from scratch %v, by steps %v", w, g)
	}
}

func text(t *rapid.T, r *Resource) string {
	if r == nil {
		return "nothing"
	}
	m, err := r.Message()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(m)
}

// check is Envoy's own validation of each resource, and that what they refer to is there.
func check(t *rapid.T, s *Snapshot) {
	for typ := range Types {
		for _, r := range s.Resources[typ].All() {
			m, err := r.Message()
			if err != nil {
				t.Fatal(err)
			}
			if err := m.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
				t.Fatalf("%s %q: %v\n%v", typ, r.Name, err, m)
			}
			if s.Scope.Kind == GRPC {
				checkForGRPC(t, m)
			}
			for _, ref := range references(t, m) {
				if _, ok := s.Resources[ref.Type].Get(ref.Name); !ok {
					t.Fatalf("%s %q refers to %s %q, which is not there", typ, r.Name, ref.Type, ref.Name)
				}
			}
		}
	}
}

type reference struct {
	Type Type
	Name Name
}

// references finds, anywhere in a message, the names of clusters, assignments and routes.
func references(t *rapid.T, m proto.Message) (out []reference) {
	err := protorange.Range(m.ProtoReflect(), func(v protopath.Values) error {
		last := v.Index(-1)
		if last.Step.Kind() != protopath.FieldAccessStep {
			return nil
		}
		switch f := last.Step.FieldDescriptor(); f.FullName() {
		case "envoy.config.route.v3.RouteAction.cluster", "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.cluster":
			out = append(out, reference{Cluster, Name(last.Value.String())})
		case "envoy.config.cluster.v3.Cluster.EdsClusterConfig.service_name":
			out = append(out, reference{Endpoints, Name(last.Value.String())})
		case "envoy.extensions.filters.network.http_connection_manager.v3.Rds.route_config_name":
			out = append(out, reference{Route, Name(last.Value.String())})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
