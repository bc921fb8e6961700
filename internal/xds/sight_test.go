package xds

import (
	"net/netip"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

func TestSightsAreOfScopesWithNodesAndSnapshotsOfAny(t *testing.T) {
	s := New(hclog.NewNullLogger(), Options{})
	bare := envoy.Scope{Namespace: "default", Capture: envoy.None}
	redirected := envoy.Scope{Namespace: "default", Capture: envoy.Redirect, Addresses: "192.0.2.1"}
	a, b := s.scopes.join(bare, nil), s.scopes.join(redirected, nil)
	if s.Snapshot(bare) != nil || len(s.Sights(serviceKey("a").Host)) != 0 {
		t.Error("there is something to be seen before the first view")
	}

	svc := mesh.Seal(mesh.Service{
		Key: serviceKey("a"), Resolution: mesh.Static, Export: mesh.Visibility{All: true},
		Ports:     []mesh.Port{{Number: 80, Name: "http", Protocol: mesh.HTTP}},
		Endpoints: []mesh.Endpoint{{Address: mesh.IPAddress(netip.MustParseAddr("192.0.2.1")), Ports: []uint16{8080}, Weight: 1}},
	})
	s.scopes.view.Store(&mesh.View{Services: mesh.Services{}.With(svc.Key, svc), Tenancies: mesh.Resettle(mesh.Tenancies{}, nil, svc)})
	s.scopes.update(a)
	s.scopes.update(b)
	parts := map[Scope]int{}
	for _, sight := range s.Sights(svc.Host) {
		parts[sight.Scope] = len(sight.Parts)
		if sight.Service != svc {
			t.Errorf("scope %v means %v", sight.Scope, sight.Service)
		}
	}
	// A cluster, its endpoints, a listener and a route; the node that is the endpoint has the inbound side besides. The base
	// of its scope has no nodes.
	if len(parts) != 2 || parts[bare] != 4 || parts[redirected] != 6 {
		t.Errorf("parts by scope: %v", parts)
	}

	if s.Snapshot(bare) != a.snapshot.Load() {
		t.Error("the snapshot of a scope with nodes is not theirs")
	}
	for _, scope := range []envoy.Scope{redirected, {Namespace: "other", Capture: envoy.None}, {Namespace: "other", Capture: envoy.Redirect, Addresses: "192.0.2.1"}} {
		got, want := s.Snapshot(scope), envoy.Translate(nil, s.scopes.view.Load(), scope, envoy.Mesh{})
		if got.Scope != scope || got.Versions != want.Versions {
			t.Errorf("%v: versions %v, want %v", got.Scope, got.Versions, want.Versions)
		}
	}
	if len(s.scopes.of) != 3 {
		t.Errorf("%d scopes are kept, want those of the two nodes and a base", len(s.scopes.of))
	}
}
