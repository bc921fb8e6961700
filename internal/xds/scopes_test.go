package xds

import (
	"net/netip"
	"testing"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// TestNodesThatDifferInTheirAddressesShareWhatIsNotDueToThem has two nodes behind redirections, one of which is an endpoint.
func TestNodesThatDifferInTheirAddressesShareWhatIsNotDueToThem(t *testing.T) {
	s := scopes{translate: envoy.Translate, of: map[envoy.Scope]*scope{}}
	key := func(address string) envoy.Scope {
		return envoy.Scope{Namespace: "default", Capture: envoy.Redirect, Addresses: address}
	}
	a, b := s.join(key("192.0.2.1"), nil), s.join(key("192.0.2.2"), nil)
	publish := func(endpoint string) {
		svc := mesh.Seal(mesh.Service{
			Key: serviceKey("a"), Resolution: mesh.Static, Export: mesh.Visibility{All: true},
			Ports:     []mesh.Port{{Number: 80, Name: "http", Protocol: mesh.HTTP}},
			Endpoints: []mesh.Endpoint{{Address: mesh.IPAddress(netip.MustParseAddr(endpoint)), Ports: []uint16{8080}, Weight: 1}},
		})
		v := &mesh.View{Services: mesh.Services{}.With(svc.Key, svc), Tenancies: mesh.Resettle(mesh.Tenancies{}, nil, svc)}
		s.view.Store(v)
		s.update(a)
		s.update(b)
	}
	inbound := func(sc *scope) bool {
		_, ok := sc.newest.Load().Resources[cds].Get("inbound|8080||")
		return ok
	}
	publish("192.0.2.1")
	if !inbound(a) || inbound(b) {
		t.Errorf("inbound clusters: %v for the node that is the endpoint, %v for the other", inbound(a), inbound(b))
	}
	first := b.newest.Load()
	for _, typ := range []envoy.Type{cds, eds, lds, rds} {
		if x, y := first.since(typ, nil), first.base.since(typ, nil); x != y {
			t.Errorf("%s: the node that is no endpoint does not share the encoding of its base", typ)
		}
	}
	if x, y := a.newest.Load().since(eds, nil), first.since(eds, nil); x != y {
		t.Error("the two do not share the encoding of their endpoints")
	}

	before := a.newest.Load()
	publish("192.0.2.2")
	if inbound(a) || !inbound(b) {
		t.Errorf("after the endpoint has moved, inbound clusters: %v and %v", inbound(a), inbound(b))
	}
	if changes := a.newest.Load().since(cds, before).changes; len(changes) != 1 || changes[0].New != nil {
		t.Errorf("clusters of the node that was the endpoint: %v, want one removal", changes)
	}
	if a.newest.Load().since(eds, before) != b.newest.Load().since(eds, first) {
		t.Error("the two do not share the step of their endpoints")
	}

	s.leave(a, nil)
	if len(s.of) != 2 {
		t.Errorf("%d scopes with one node left, want its own and the base", len(s.of))
	}
	s.leave(b, nil)
	if len(s.of) != 0 {
		t.Errorf("%d scopes without nodes", len(s.of))
	}
}
