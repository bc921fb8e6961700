package envoy

import (
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
)

func nodeWith(t *testing.T, id string, metadata map[string]any) *corev3.Node {
	t.Helper()
	fields, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: id, Metadata: fields}
}

var here = []HostPort{{"127.0.0.1", 15010}}

func bootstrapOf(t *testing.T, b Bootstrap) *bootstrapv3.Bootstrap {
	t.Helper()
	m, err := b.Message()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ValidateAll(); err != nil {
		t.Error(err)
	}
	return m
}

func TestBootstrapSpellsOutTheCapture(t *testing.T) {
	for _, tt := range []struct {
		name           string
		node, metadata *corev3.Node
	}{
		{
			"a node of any other id has none",
			nodeWith(t, "web-1", nil),
			nodeWith(t, "web-1", map[string]any{"meshd": map[string]any{"capture": "none"}}),
		},
		{
			"a node without metadata has none",
			&corev3.Node{Id: "web-1"},
			nodeWith(t, "web-1", map[string]any{"meshd": map[string]any{"capture": "none"}}),
		},
		{
			"a node of Istio's form is redirected",
			nodeWith(t, "sidecar~192.0.2.1~web.shop~shop.internal", nil),
			nodeWith(t, "sidecar~192.0.2.1~web.shop~shop.internal", map[string]any{"meshd": map[string]any{"capture": "redirect"}}),
		},
		{
			"what is said stays, and all that stands beside it",
			nodeWith(t, "web-1", map[string]any{"team": "a", "meshd": map[string]any{"capture": "redirect", "namespace": "shop"}}),
			nodeWith(t, "web-1", map[string]any{"team": "a", "meshd": map[string]any{"capture": "redirect", "namespace": "shop"}}),
		},
		{
			"Istio's word is heard",
			nodeWith(t, "web-1", map[string]any{"INTERCEPTION_MODE": "REDIRECT", "meshd": map[string]any{}}),
			nodeWith(t, "web-1", map[string]any{"INTERCEPTION_MODE": "REDIRECT", "meshd": map[string]any{"capture": "redirect"}}),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := proto.CloneOf(tt.node)
			m := bootstrapOf(t, Bootstrap{Node: tt.node, XDS: here})
			if diff := cmp.Diff(tt.metadata, m.GetNode(), protocmp.Transform()); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
			if !proto.Equal(before, tt.node) {
				t.Error("the caller's node has changed")
			}
			want, err := ScopeOf(tt.node)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := ScopeOf(m.GetNode()); err != nil || got != want {
				t.Errorf("the bootstrap's node has the scope %+v (%v), not %+v", got, err, want)
			}
		})
	}
}

func TestBootstrapRefusesWhatTheServerWouldRefuse(t *testing.T) {
	for _, node := range []*corev3.Node{
		{},
		nodeWith(t, "sidecar~somewhere~web.shop~shop.internal", nil),
		nodeWith(t, "web-1", map[string]any{"meshd": "none"}),
		nodeWith(t, "web-1", map[string]any{"meshd": map[string]any{"capture": "all"}}),
	} {
		_, want := ScopeOf(node)
		if _, err := (Bootstrap{Node: node, XDS: here}).Message(); err == nil || err.Error() != want.Error() {
			t.Errorf("%v: error %v, not %v", node, err, want)
		}
	}
}

func TestBootstrapResolvesNamesOnly(t *testing.T) {
	for host, want := range map[string]clusterv3.Cluster_DiscoveryType{
		"127.0.0.1":         clusterv3.Cluster_STATIC,
		"2001:db8::1":       clusterv3.Cluster_STATIC,
		"meshd.example.net": clusterv3.Cluster_STRICT_DNS,
	} {
		m := bootstrapOf(t, Bootstrap{Node: &corev3.Node{Id: "web-1"}, XDS: []HostPort{{host, 15010}}})
		if got := m.GetStaticResources().GetClusters()[0].GetType(); got != want {
			t.Errorf("%s: %s, not %s", host, got, want)
		}
	}
}

func TestBootstrapAsksReplicasInOrder(t *testing.T) {
	for _, tt := range []struct {
		name string
		xds  []HostPort
		want clusterv3.Cluster_DiscoveryType
	}{
		{"addresses", []HostPort{{"192.0.2.1", 15010}, {"2001:db8::1", 443}}, clusterv3.Cluster_STATIC},
		{"names", []HostPort{{"a.example.net", 15010}, {"b.example.net", 15010}}, clusterv3.Cluster_STRICT_DNS},
		{"a name last", []HostPort{{"192.0.2.1", 15010}, {"192.0.2.2", 15010}, {"b.example.net", 15010}}, clusterv3.Cluster_STRICT_DNS},
		{"a name first", []HostPort{{"b.example.net", 15010}, {"192.0.2.1", 15010}}, clusterv3.Cluster_STRICT_DNS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := bootstrapOf(t, Bootstrap{Node: &corev3.Node{Id: "web-1"}, XDS: tt.xds}).GetStaticResources().GetClusters()[0]
			if c.GetType() != tt.want {
				t.Errorf("%s, not %s", c.GetType(), tt.want)
			}
			var got []HostPort
			for i, l := range c.GetLoadAssignment().GetEndpoints() {
				if l.GetPriority() != uint32(i) {
					t.Errorf("priority %d at %d", l.GetPriority(), i)
				}
				for _, e := range l.GetLbEndpoints() {
					a := e.GetEndpoint().GetAddress().GetSocketAddress()
					got = append(got, HostPort{a.GetAddress(), uint16(a.GetPortValue())})
				}
			}
			if diff := cmp.Diff(tt.xds, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if n := c.GetOutlierDetection().GetConsecutive_5Xx().GetValue(); n != 1 {
				t.Errorf("one that fails is left after %d failures", n)
			}
		})
	}
	if c := bootstrapOf(t, Bootstrap{Node: &corev3.Node{Id: "web-1"}, XDS: here}).GetStaticResources().GetClusters()[0]; c.GetOutlierDetection() != nil {
		t.Error("where there is one meshd, it may be left")
	}
}

func TestBootstrapHasAnAdminOnlyWhereOneIsWanted(t *testing.T) {
	if m := bootstrapOf(t, Bootstrap{Node: &corev3.Node{Id: "web-1"}, XDS: here}); m.GetAdmin() != nil {
		t.Errorf("admin: %v", m.GetAdmin())
	}
	m := bootstrapOf(t, Bootstrap{Node: &corev3.Node{Id: "web-1"}, XDS: here, Admin: HostPort{"::1", 15000}})
	if a := m.GetAdmin().GetAddress().GetSocketAddress(); a.GetAddress() != "::1" || a.GetPortValue() != 15000 {
		t.Errorf("admin: %v", a)
	}
}

func TestBootstrapReportsLoadOnlyWhereThatIsWanted(t *testing.T) {
	if m := bootstrapOf(t, Bootstrap{Node: &corev3.Node{Id: "web-1"}, XDS: here}); m.GetClusterManager() != nil {
		t.Errorf("cluster manager: %v", m.GetClusterManager())
	}
	m := bootstrapOf(t, Bootstrap{Node: &corev3.Node{Id: "web-1"}, XDS: here, Reports: LoadReports})
	to := m.GetClusterManager().GetLoadStatsConfig().GetGrpcServices()
	if len(to) != 1 || to[0].GetEnvoyGrpc().GetClusterName() != m.GetStaticResources().GetClusters()[0].GetName() {
		t.Errorf("it reports to %v", to)
	}
}

func TestWithLoadReportsIsRead(t *testing.T) {
	n := nodeWith(t, "shop-1", map[string]any{"meshd": map[string]any{"namespace": "shop"}})
	n.UserAgentName = GRPCAgent
	before := proto.CloneOf(n)
	want := Scope{Kind: GRPC, Namespace: "shop", Capture: None, Reports: LoadReports}
	if got, err := ScopeOf(WithLoadReports(n)); err != nil || got != want {
		t.Errorf("scope %+v, %v; want %+v", got, err, want)
	}
	if !proto.Equal(before, n) {
		t.Error("the caller's node has changed")
	}
}
