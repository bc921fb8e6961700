package envoy

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/mesh"
)

// TestSightsAreWhatLeadsToAService has services that share a port's listener and route, or lose them.
func TestSightsAreWhatLeadsToAService(t *testing.T) {
	view := &mesh.View{Registries: []string{"files"}}
	add := func(name, namespace string, export mesh.Visibility, addresses []netip.Prefix, ports ...mesh.Port) {
		s := mesh.Service{
			Key:        mesh.Key{Host: host(t, name), Namespace: namespace},
			Resolution: mesh.Static, Export: export, Ports: ports, Addresses: addresses, Origin: mesh.Origin{Registry: "files", Source: name},
			Endpoints: []mesh.Endpoint{{Address: mesh.IPAddress(netip.MustParseAddr("192.0.2.1")), Weight: 1}},
		}
		for range ports {
			s.Endpoints[0].Ports = append(s.Endpoints[0].Ports, 8080)
		}
		change(view, s.Key, mesh.Seal(s))
	}
	all := mesh.Visibility{All: true}
	web := mesh.Port{Number: 80, Name: "http", Protocol: mesh.HTTP}
	tls := mesh.Port{Number: 443, Name: "tls", Protocol: mesh.TLS}
	tcp := mesh.Port{Number: 443, Name: "tcp", Protocol: mesh.TCP}
	add("a.mesh.internal", "default", all, nil, web, tls)
	add("b.mesh.internal", "default", all, nil, mesh.Port{Number: 80, Name: "tcp", Protocol: mesh.TCP}) // a has the listener
	add("c.mesh.internal", "default", all, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, tcp)
	add("d.mesh.internal", "default", mesh.Visibility{Namespaces: []string{"default"}}, nil, web)
	add("d.mesh.internal", "alpha", mesh.Visibility{}, nil, web)
	bare := Scope{Namespace: "default", Capture: None}
	redirected := Scope{Namespace: "default", Capture: Redirect}
	endpoint := Scope{Namespace: "default", Capture: Redirect, Addresses: "192.0.2.1"}
	client := Scope{Kind: GRPC, Namespace: "default", Capture: None}
	stranger := Scope{Namespace: "alpha", Capture: None}

	outbound := func(h, port string) []Part {
		return []Part{{Type: Cluster, Name: Name("outbound|" + port + "||" + h)}, {Type: Endpoints, Name: Name("outbound|" + port + "||" + h)}}
	}
	route := func(h string) Part {
		return Part{Type: Route, Name: "80", VirtualHosts: []VirtualHost{{h + ":80", []string{h, h + "."}}}}
	}
	type sight struct {
		Service string
		Parts   []Part
	}
	for name, tt := range map[string]struct {
		host  string
		scope Scope
		want  sight
	}{
		"HTTP by route, TLS by server name": {"a.mesh.internal", bare, sight{"default/a.mesh.internal", []Part{
			outbound("a.mesh.internal", "443")[0], outbound("a.mesh.internal", "80")[0],
			outbound("a.mesh.internal", "443")[1], outbound("a.mesh.internal", "80")[1],
			{Type: Listener, Name: "127.0.0.1_443"},
			{Type: Listener, Name: "127.0.0.1_80", Routes: []Name{"80"}},
			route("a.mesh.internal"),
		}}},
		"where a port's listener is another's, nothing leads to it": {"b.mesh.internal", bare, sight{"default/b.mesh.internal", outbound("b.mesh.internal", "80")}},
		"a range": {"c.mesh.internal", redirected, sight{"default/c.mesh.internal", append(
			outbound("c.mesh.internal", "443"), Part{Type: Listener, Name: "0.0.0.0_443", Ranges: []string{"203.0.113.0/24"}},
		)}},
		"a namespace that is not exported to": {"d.mesh.internal", stranger, sight{}},
		"a host that is nowhere":              {"x.mesh.internal", bare, sight{}},
		"a gRPC client": {"a.mesh.internal", client, sight{"default/a.mesh.internal", []Part{
			outbound("a.mesh.internal", "80")[0], outbound("a.mesh.internal", "80")[1],
			{Type: Listener, Name: "a.mesh.internal:80", Routes: []Name{"a.mesh.internal:80"}},
			{Type: Route, Name: "a.mesh.internal:80", VirtualHosts: []VirtualHost{{"a.mesh.internal:80", []string{"a.mesh.internal:80", "a.mesh.internal"}}}},
		}}},
		"what the node serves itself, besides": {"a.mesh.internal", endpoint, sight{"default/a.mesh.internal", []Part{
			{Type: Cluster, Name: "inbound|8080||"},
			outbound("a.mesh.internal", "443")[0], outbound("a.mesh.internal", "80")[0],
			outbound("a.mesh.internal", "443")[1], outbound("a.mesh.internal", "80")[1],
			{Type: Listener, Name: "0.0.0.0_443", ServerNames: []string{"a.mesh.internal"}},
			{Type: Listener, Name: "0.0.0.0_80", Routes: []Name{"80"}},
			{Type: Listener, Name: "virtualInbound"},
			route("a.mesh.internal"),
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			h := host(t, tt.host)
			got := Sights(h, []*Snapshot{Translate(nil, view, tt.scope, Mesh{})})[0]
			is := sight{Parts: got.Parts}
			if got.Service != nil {
				is.Service = got.Service.Key.String()
			}
			if diff := cmp.Diff(tt.want, is); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Scope != tt.scope {
				t.Errorf("scope %v", got.Scope)
			}
		})
	}
}
