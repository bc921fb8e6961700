package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/mesh"
)

// TestGRPCAssignment has endpoints of which gRPC would take less than an Envoy, or nothing.
func TestGRPCAssignment(t *testing.T) {
	at := func(address string, weight uint32, locality string, h mesh.Health) mesh.Endpoint {
		e := mesh.Endpoint{Weight: weight, Locality: mesh.ParseLocality(locality), Health: h, Ports: []uint16{50051}}
		if path, ok := strings.CutPrefix(address, "unix:"); ok {
			e.Address = mesh.SocketAddress(path)
		} else {
			e.Address = mesh.IPAddress(netip.MustParseAddr(address))
		}
		return e
	}
	for name, tt := range map[string]struct {
		endpoints []mesh.Endpoint
		nearest   mesh.Distribution
		want      []string // priority, locality, its weight, addresses
	}{
		"one locality of one weight stays whole": {
			endpoints: []mesh.Endpoint{at("192.0.2.1", 5, "eu/1", mesh.HealthUnknown), at("192.0.2.2", 5, "eu/1", mesh.Healthy)},
			want:      []string{"0 eu/1 10: 192.0.2.1 192.0.2.2"},
		},
		"each weight is a locality": {
			endpoints: []mesh.Endpoint{at("192.0.2.1", 1, "", 0), at("192.0.2.2", 9, "", 0), at("192.0.2.3", 1, "", 0)},
			want:      []string{"0  2: 192.0.2.1 192.0.2.3", "0 //#9 9: 192.0.2.2"},
		},
		"none has the name of another": {
			endpoints: []mesh.Endpoint{at("192.0.2.1", 9, "eu/1/#9", 0), at("192.0.2.2", 1, "eu/1", 0), at("192.0.2.3", 9, "eu/1", 0)},
			want:      []string{"0 eu/1 1: 192.0.2.2", "0 eu/1/#9 9: 192.0.2.3", "0 eu/1/#9#9 9: 192.0.2.1"},
		},
		"what is unhealthy or behind a socket has no weight": {
			endpoints: []mesh.Endpoint{
				at("192.0.2.1", 1, "eu", 0), at("192.0.2.2", 4, "eu", mesh.Unhealthy), at("192.0.2.3", 4, "eu", mesh.Draining),
				at("unix:/run/pay.sock", 1, "eu", 0), at("192.0.2.4", 1, "us", mesh.Unhealthy),
			},
			want: []string{"0 eu 1: 192.0.2.1"},
		},
		"what is degraded comes after all else": {
			endpoints: []mesh.Endpoint{at("192.0.2.1", 1, "eu", mesh.Degraded), at("192.0.2.2", 1, "us", 0)},
			nearest:   mesh.PreferClose,
			want:      []string{"1 eu 1: 192.0.2.1", "0 us 1: 192.0.2.2"},
		},
		"what is degraded comes after all else, however near": {
			endpoints: []mesh.Endpoint{
				at("192.0.2.1", 1, "eu/1", mesh.Degraded), at("192.0.2.2", 1, "eu/1", 0), at("192.0.2.3", 1, "eu/1/b", 0),
				at("192.0.2.4", 1, "eu/1/c", mesh.Degraded), at("192.0.2.5", 1, "eu/2", 0), at("192.0.2.6", 1, "us", 0),
			},
			nearest: mesh.PreferSameNode,
			want: []string{
				"4 eu/1 1: 192.0.2.1", "0 eu/1 1: 192.0.2.2", "1 eu/1/b 1: 192.0.2.3", "5 eu/1/c 1: 192.0.2.4", "2 eu/2 1: 192.0.2.5", "3 us 1: 192.0.2.6",
			},
		},
		"what is degraded is all there is": {
			endpoints: []mesh.Endpoint{at("192.0.2.1", 1, "eu", mesh.Degraded)},
			want:      []string{"0 eu 1: 192.0.2.1"},
		},
		"the nearest come first": {
			endpoints: []mesh.Endpoint{at("192.0.2.1", 1, "eu/1", 0), at("192.0.2.2", 1, "eu/2", 0), at("192.0.2.3", 1, "us", 0)},
			nearest:   mesh.PreferClose,
			want:      []string{"0 eu/1 1: 192.0.2.1", "1 eu/2 1: 192.0.2.2", "2 us 1: 192.0.2.3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := mesh.Seal(mesh.Service{
				Key: mesh.Key{Host: host(t, "pay.mesh.internal"), Namespace: "default"}, Resolution: mesh.Static, Distribution: tt.nearest,
				Ports: []mesh.Port{{Number: 443, Protocol: mesh.GRPC}}, Endpoints: slices.Clone(tt.endpoints),
			})
			var got []string
			a := grpcAssignment(s, 0, Scope{Kind: GRPC, Locality: mesh.ParseLocality("eu/1")})
			for _, g := range a.Endpoints {
				at := mesh.Locality{Region: g.Locality.Region, Zone: g.Locality.Zone, SubZone: g.Locality.SubZone}
				got = append(got, fmt.Sprintf("%d %s %d:%s", g.Priority, at, g.LoadBalancingWeight.GetValue(), placesOf(g)))
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func placesOf(g *endpointv3.LocalityLbEndpoints) (text string) {
	for _, e := range g.LbEndpoints {
		text += " " + e.GetEndpoint().Address.GetSocketAddress().Address
	}
	return text
}

// TestNotForGRPC has what gRPC has no cluster for, and what it has one for all the same.
func TestNotForGRPC(t *testing.T) {
	ip, name, socket := mesh.IPAddress(netip.MustParseAddr("192.0.2.1")), mesh.HostAddress("vm1.example.net"), mesh.SocketAddress("/run/x.sock")
	another, ip2 := mesh.HostAddress("vm2.example.net"), mesh.IPAddress(netip.MustParseAddr("192.0.2.2"))
	for title, tt := range map[string]struct {
		host       string
		resolution mesh.Resolution
		connect    mesh.ConnectStrategy
		protocol   mesh.Protocol // zero: sniffed
		at         []mesh.Address
		want       string // the cluster's type, a part of the problem, or nothing
	}{
		"fixed endpoints":                       {resolution: mesh.Static, at: []mesh.Address{ip, ip2}, want: "EDS"},
		"no endpoints":                          {resolution: mesh.Static, want: "EDS"},
		"a gRPC port":                           {resolution: mesh.Static, protocol: mesh.GRPC, want: "EDS"},
		"a port for gRPC-Web":                   {resolution: mesh.Static, protocol: mesh.GRPCWeb, want: "EDS"},
		"a TCP port":                            {resolution: mesh.Static, protocol: mesh.TCP},
		"a TLS port":                            {resolution: mesh.Static, protocol: mesh.HTTPS},
		"an HTTP proxy":                         {resolution: mesh.Static, protocol: mesh.HTTPProxy},
		"one name":                              {resolution: mesh.DNS, at: []mesh.Address{name}, want: "LOGICAL_DNS"},
		"one name beside a socket":              {resolution: mesh.DNS, at: []mesh.Address{name, socket}, want: "LOGICAL_DNS"},
		"the first of two names":                {resolution: mesh.DNSRoundRobin, at: []mesh.Address{name, another}, want: "LOGICAL_DNS"},
		"a race to the first of two names":      {resolution: mesh.DNS, connect: mesh.RaceFirstTCPConnect, at: []mesh.Address{name, another}, want: "LOGICAL_DNS"},
		"addresses that need no resolving":      {resolution: mesh.DNS, at: []mesh.Address{ip, ip2}, want: "EDS"},
		"names to resolve, but there are none":  {resolution: mesh.DNS, want: "EDS"},
		"two names":                             {resolution: mesh.DNS, at: []mesh.Address{name, another}, want: "this has 2 endpoints of which some are names"},
		"a name and an address":                 {resolution: mesh.DNS, at: []mesh.Address{ip, name}, want: "this has 2 endpoints of which some are names"},
		"the address that was dialled":          {resolution: mesh.ResolutionNone, want: "with resolution NONE"},
		"the name in the request":               {resolution: mesh.DynamicDNS, want: "with resolution DYNAMIC_DNS"},
		"a wildcard":                            {host: "*.mesh.internal", resolution: mesh.Static, at: []mesh.Address{ip}, want: "list the hosts one by one"},
		"a wildcard of a port that is not gRPC": {host: "*.mesh.internal", resolution: mesh.Static, protocol: mesh.TCP},
	} {
		t.Run(title, func(t *testing.T) {
			s := mesh.Service{
				Key: mesh.Key{Host: host(t, "pay.mesh.internal"), Namespace: "default"}, Resolution: tt.resolution, Connect: tt.connect,
				Export: mesh.Visibility{All: true}, Ports: []mesh.Port{{Number: 443, Protocol: tt.protocol}},
			}
			if tt.host != "" {
				s.Host = host(t, tt.host)
			}
			for _, a := range tt.at {
				s.Endpoints = append(s.Endpoints, mesh.Endpoint{Address: a, Weight: 1, Ports: []uint16{50051}})
			}
			view := &mesh.View{}
			change(view, s.Key, mesh.Seal(s))
			snapshot := Translate(nil, view, Scope{Kind: GRPC, Namespace: "default", Capture: None}, Mesh{})
			got := ""
			for p := range snapshot.Problems() {
				got = p.Message
			}
			clusters := 0
			for r := range snapshot.Resources[Cluster].Values() {
				clusters++
				got += decoded[*clusterv3.Cluster](r).GetType().String()
			}
			for _, typ := range []Type{Listener, Route} {
				if n := snapshot.Resources[typ].Len(); n != clusters {
					t.Errorf("%d %s, %d clusters", n, typ, clusters)
				}
			}
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// checkForGRPC is what gRPC's own validation asks of a resource beyond Envoy's (A27, A37).
func checkForGRPC(t *rapid.T, m proto.Message) {
	switch m := m.(type) {
	case *listenerv3.Listener:
		if m.ApiListener == nil || m.Address != nil || m.FilterChains != nil {
			t.Fatalf("no listener for gRPC: %v", m)
		}
	case *clusterv3.Cluster:
		groups := m.GetLoadAssignment().GetEndpoints()
		one := len(groups) == 1 && len(groups[0].LbEndpoints) == 1
		if m.LbPolicy != clusterv3.Cluster_ROUND_ROBIN ||
			(m.GetType() != clusterv3.Cluster_EDS || m.LoadAssignment != nil) && (m.GetType() != clusterv3.Cluster_LOGICAL_DNS || !one) {
			t.Fatalf("no cluster for gRPC: %v", m)
		}
	case *endpointv3.ClusterLoadAssignment:
		seen, priorities := map[string]bool{}, map[uint32]bool{}
		once := func(key string) {
			if seen[key] {
				t.Fatalf("%s is there twice: %v", key, m)
			}
			seen[key] = true
		}
		for _, g := range m.Endpoints {
			priorities[g.Priority] = true
			once(fmt.Sprint(g.Priority, " ", g.Locality))
			sum := uint64(0)
			for _, e := range g.LbEndpoints {
				at := e.GetEndpoint().Address.GetSocketAddress()
				once(fmt.Sprint(at.GetAddress(), " ", at.GetPortValue()))
				sum += uint64(e.LoadBalancingWeight.GetValue())
				if at == nil || e.HealthStatus > corev3.HealthStatus_HEALTHY || e.LoadBalancingWeight.GetValue() == 0 {
					t.Fatalf("no endpoint for gRPC: %v", e)
				}
			}
			if g.Locality == nil || sum == 0 || uint64(g.LoadBalancingWeight.GetValue()) != sum {
				t.Fatalf("no group of endpoints for gRPC: %v", g)
			}
		}
		for p := range uint32(len(priorities)) {
			if !priorities[p] {
				t.Fatalf("no endpoints of priority %d: %v", p, m)
			}
		}
	}
}
