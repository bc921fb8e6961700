package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/mesh"
)

// at is an endpoint at a locality.
func at(l mesh.Locality, rank uint8) *mesh.Endpoint { return &mesh.Endpoint{Locality: l, Rank: rank} }

func TestNearerEndpointsComeFirst(t *testing.T) {
	here := mesh.Locality{Region: "eu", Zone: "1", SubZone: "a"}
	places := []mesh.Locality{here, {Region: "eu", Zone: "1", SubZone: "b"}, {Region: "eu", Zone: "2"}, {Region: "us", Zone: "1"}, {}}
	for _, tt := range []struct {
		name string
		d    mesh.Distribution
		from mesh.Locality
		want []bool // whether a place comes after the one before it
	}{
		{"any endpoint", mesh.AnyEndpoint, here, []bool{false, false, false, false}},
		{"by zone", mesh.PreferClose, here, []bool{false, true, true, false}},
		{"by sub-zone", mesh.PreferSameNode, here, []bool{true, true, true, false}},
		{"of a node that does not say where it is", mesh.PreferClose, mesh.Locality{}, []bool{false, false, false, false}},
	} {
		for i, after := range tt.want {
			a, b := distance(tt.d, tt.from, at(places[i], 0)), distance(tt.d, tt.from, at(places[i+1], 0))
			if a > b || a < b != after {
				t.Errorf("%s: %v has priority %d, %v has %d", tt.name, places[i], a, places[i+1], b)
			}
		}
	}
}

func TestRegionsComeByRank(t *testing.T) {
	endpoint := func(n byte, locality string, rank uint8) mesh.Endpoint {
		return mesh.Endpoint{
			Address: mesh.IPAddress(netip.AddrFrom4([4]byte{192, 0, 2, n})), Locality: mesh.ParseLocality(locality), Rank: rank,
			Weight: 1, Ports: []uint16{8080},
		}
	}
	everywhere := []mesh.Endpoint{
		endpoint(1, "", 0), endpoint(2, "eu/1", 0), endpoint(3, "eu/2", 0), endpoint(4, "us/1", 1), endpoint(5, "us/1", 9), endpoint(6, "asia", 200),
	}
	for _, tt := range []struct {
		name, from string
		endpoints  []mesh.Endpoint
		want       []string // of each group the priority, locality and endpoints
	}{
		{"the node's own region comes first, in all of its zones", "us/2", everywhere, []string{
			"1 : 192.0.2.1", "2 asia: 192.0.2.6", "1 eu/1: 192.0.2.2", "1 eu/2: 192.0.2.3", "0 us/1: 192.0.2.4 192.0.2.5",
		}},
		{"it does so whatever its rank", "asia/1", everywhere, []string{
			"1 : 192.0.2.1", "0 asia: 192.0.2.6", "1 eu/1: 192.0.2.2", "1 eu/2: 192.0.2.3", "2 us/1: 192.0.2.4", "3 us/1: 192.0.2.5",
		}},
		{"a node that does not say where it is goes by rank alone", "", everywhere, []string{
			"0 : 192.0.2.1", "3 asia: 192.0.2.6", "0 eu/1: 192.0.2.2", "0 eu/2: 192.0.2.3", "1 us/1: 192.0.2.4", "2 us/1: 192.0.2.5",
		}},
		{"and so does one whose region has none", "africa", everywhere[3:], []string{
			"2 asia: 192.0.2.6", "0 us/1: 192.0.2.4", "1 us/1: 192.0.2.5",
		}},
		{"what is at one place twice counts for the first of them", "", []mesh.Endpoint{endpoint(1, "eu", 0), endpoint(1, "us", 1)}, []string{
			"0 eu: 192.0.2.1",
		}},
	} {
		for _, kind := range []Kind{Proxy, GRPC} {
			t.Run(tt.name+", "+kind.String(), func(t *testing.T) {
				s := mesh.Seal(mesh.Service{
					Key: mesh.Key{Host: host(t, "pay.mesh.internal"), Namespace: "default"}, Resolution: mesh.Static, Distribution: mesh.PreferRegion,
					Ports: []mesh.Port{{Number: 443, Protocol: mesh.GRPC}}, Endpoints: slices.Clone(tt.endpoints),
				})
				scope := Scope{Kind: kind, Locality: mesh.ParseLocality(tt.from)}
				a := assignment(s, 0, scope)
				if kind == GRPC {
					a = grpcAssignment(s, 0, scope)
				}
				var got []string
				for _, g := range a.Endpoints {
					where := mesh.Locality{Region: g.Locality.Region, Zone: g.Locality.Zone, SubZone: g.Locality.SubZone}
					got = append(got, fmt.Sprintf("%d %s:%s", g.Priority, where, placesOf(g)))
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
				if c := serviceCluster(s, 0, scope); kind == Proxy && c.CommonLbConfig.GetLocalityWeightedLbConfig() == nil {
					t.Error("localities have no weight")
				}
			})
		}
	}
}

func TestNodesShareWhatDistanceDoesNotTellApart(t *testing.T) {
	for _, tt := range []struct {
		name, a, b string
		want       map[mesh.Distribution]bool // absent: they do not
	}{
		{"one place", "eu/1/a", "eu/1/a", map[mesh.Distribution]bool{mesh.AnyEndpoint: true, mesh.PreferRegion: true, mesh.PreferClose: true, mesh.PreferSameNode: true}},
		{"two sub-zones", "eu/1/a", "eu/1/b", map[mesh.Distribution]bool{mesh.AnyEndpoint: true, mesh.PreferRegion: true, mesh.PreferClose: true}},
		{"two zones", "eu/1/a", "eu/2/a", map[mesh.Distribution]bool{mesh.AnyEndpoint: true, mesh.PreferRegion: true}},
		{"two regions", "eu/1/a", "us/1/a", map[mesh.Distribution]bool{mesh.AnyEndpoint: true}},
		{"a region and none", "eu/1/a", "/1/a", map[mesh.Distribution]bool{mesh.AnyEndpoint: true}},
	} {
		for d := mesh.AnyEndpoint; d <= mesh.PreferRegion; d++ {
			s := mesh.Seal(mesh.Service{
				Key: mesh.Key{Host: host(t, "pay.mesh.internal"), Namespace: "default"}, Resolution: mesh.Static, Distribution: d,
				Export: mesh.Visibility{All: true}, Ports: []mesh.Port{{Number: 80, Protocol: mesh.HTTP}},
			})
			view := &mesh.View{}
			change(view, s.Key, s)
			a := Translate(nil, view, Scope{Namespace: "default", Locality: mesh.ParseLocality(tt.a)}, Mesh{})
			b := Translate(nil, view, Scope{Namespace: "default", Locality: mesh.ParseLocality(tt.b)}, Mesh{}, a)
			mine, _ := a.Resources[Endpoints].Get(clusterName(s, 80))
			theirs, _ := b.Resources[Endpoints].Get(clusterName(s, 80))
			if mine == nil || (mine == theirs) != tt.want[d] {
				t.Errorf("%s: with distribution %d they share: %t, want %t", tt.name, d, mine == theirs, tt.want[d])
			}
		}
	}
}
