package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/mesh"
)

// reachable is an endpoint at an address and a second one, if there are two: "192.0.2.1 2001:db8::1".
func reachable(at string) mesh.Endpoint {
	first, second, two := strings.Cut(at, " ")
	e := mesh.Endpoint{Address: mesh.HostAddress(first), Weight: 1, Ports: []uint16{8080}}
	if ip, err := netip.ParseAddr(first); err == nil {
		e.Address = mesh.IPAddress(ip)
	}
	if two {
		e.Second = netip.MustParseAddr(second)
	}
	return e
}

// TestNodesReachEndpointsInTheirFamily has endpoints of two addresses. Each family's want is what the assignment holds.
func TestNodesReachEndpointsInTheirFamily(t *testing.T) {
	const four, six = "192.0.2.1 2001:db8::1", "2001:db8::1 192.0.2.1"
	for _, tt := range []struct {
		name       string
		resolution mesh.Resolution
		at         []string
		want       map[Family]string
	}{
		{"IPv4 first", mesh.Static, []string{four}, map[Family]string{IPv4: "192.0.2.1", IPv6: "2001:db8::1", Dual: "192.0.2.1"}},
		{"IPv6 first", mesh.Static, []string{six}, map[Family]string{IPv4: "192.0.2.1", IPv6: "2001:db8::1", Dual: "2001:db8::1"}},
		{"to be resolved", mesh.DNS, []string{six, "vm1.example.net"}, map[Family]string{
			IPv4: "192.0.2.1 vm1.example.net", IPv6: "2001:db8::1 vm1.example.net", Dual: "2001:db8::1 vm1.example.net",
		}},
		{"one address alone", mesh.Static, []string{"192.0.2.1"}, map[Family]string{IPv4: "192.0.2.1", IPv6: "192.0.2.1", Dual: "192.0.2.1"}},
		{"two of one family", mesh.Static, []string{"192.0.2.1 192.0.2.2"}, map[Family]string{IPv4: "192.0.2.1", IPv6: "192.0.2.1", Dual: "192.0.2.1"}},
		{"a name resolves to both", mesh.DNS, []string{"vm1.example.net 2001:db8::1"}, map[Family]string{
			IPv4: "vm1.example.net", IPv6: "vm1.example.net", Dual: "vm1.example.net",
		}},
		{"two that are one place in one family", mesh.Static, []string{four, "192.0.2.2 2001:db8::1"}, map[Family]string{
			IPv4: "192.0.2.1 192.0.2.2", IPv6: "2001:db8::1*2", Dual: "192.0.2.1 192.0.2.2",
		}},
		{"two that are one place but for dual nodes", mesh.Static, []string{four, six}, map[Family]string{
			IPv4: "192.0.2.1*2", IPv6: "2001:db8::1*2", Dual: "192.0.2.1 2001:db8::1",
		}},
	} {
		for _, kind := range []Kind{Proxy, GRPC} {
			for family, want := range tt.want {
				t.Run(fmt.Sprint(tt.name, ", ", kind, ", ", family), func(t *testing.T) {
					s := mesh.Service{Ports: []mesh.Port{{Number: 80, Protocol: mesh.HTTP2}}, Resolution: tt.resolution}
					s.Host = host(t, "pay.mesh.internal")
					for _, at := range tt.at {
						s.Endpoints = append(s.Endpoints, reachable(at))
					}
					assign := assignment
					if kind == GRPC {
						assign = grpcAssignment
					}
					var got []string
					for _, g := range assign(mesh.Seal(s), 0, Scope{Kind: kind, Family: family}).Endpoints {
						for _, e := range g.LbEndpoints {
							text := e.GetEndpoint().Address.GetSocketAddress().Address
							if w := e.LoadBalancingWeight.GetValue(); w != 1 {
								text += fmt.Sprint("*", w)
							}
							got = append(got, text)
						}
					}
					if slices.Sort(got); strings.Join(got, " ") != want {
						t.Errorf("got %q, want %q", got, want)
					}
				})
			}
		}
	}
}

// TestListenersAtEndpoints has a service without resolution or addresses: its applications dial the endpoints.
func TestListenersAtEndpoints(t *testing.T) {
	s := mesh.Service{
		Key: mesh.Key{Host: host(t, "db.mesh.internal"), Namespace: "default"}, Ports: []mesh.Port{{Number: 5432, Protocol: mesh.TCP}},
		Export: mesh.Visibility{All: true}, Endpoints: []mesh.Endpoint{reachable("192.0.2.1 2001:db8::1"), reachable("2001:db8::2 192.0.2.2")},
	}
	view := &mesh.View{}
	change(view, s.Key, mesh.Seal(s))
	for family, want := range map[Family][]string{
		IPv4: {"192.0.2.1_5432", "192.0.2.2_5432"},
		IPv6: {"2001:db8::1_5432", "2001:db8::2_5432"},
		Dual: {"192.0.2.1_5432", "192.0.2.2_5432", "2001:db8::1_5432", "2001:db8::2_5432"},
	} {
		var got []string
		for name := range Translate(nil, view, Scope{Namespace: "default", Family: family}, Mesh{}).Resources[Listener].All() {
			if strings.HasSuffix(string(name), "_5432") {
				got = append(got, string(name))
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", family, d)
		}
	}
}

// TestANodeMayBeAtASecondAddress has a node that serves what is registered under another of its addresses.
func TestANodeMayBeAtASecondAddress(t *testing.T) {
	s := mesh.Service{
		Key: mesh.Key{Host: host(t, "pay.mesh.internal"), Namespace: "default"}, Ports: []mesh.Port{{Number: 80, Protocol: mesh.HTTP}},
		Resolution: mesh.Static, Endpoints: []mesh.Endpoint{reachable("192.0.2.1 2001:db8::1")},
	}
	view := &mesh.View{}
	change(view, s.Key, mesh.Seal(s))
	for addresses, want := range map[string]bool{
		"192.0.2.1": true, "2001:db8::1": true, "192.0.2.1,2001:db8::1": true, "192.0.2.9,2001:db8::1": true, "192.0.2.9": false, "2001:db8::9": false,
	} {
		snapshot := Translate(nil, view, Scope{Namespace: "default", Addresses: addresses}, Mesh{})
		if _, got := snapshot.Resources[Cluster].Get(Name(inboundName(8080))); got != want {
			t.Errorf("a node at %s has a door: %t, want %t", addresses, got, want)
		}
	}
}
