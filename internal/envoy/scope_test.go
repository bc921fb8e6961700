package envoy

import (
	"errors"
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/meshd/meshd/internal/mesh"
)

func TestScopeOf(t *testing.T) {
	for name, tt := range map[string]struct {
		node string
		want Scope
	}{
		"a plain id is a node without redirection": {
			`{"id": "web-1"}`, Scope{Namespace: "default", Capture: None},
		},
		"Istio's id has address, namespace and domain": {
			`{"id": "sidecar~192.0.2.1~vm1.shop~shop.svc.cluster.local"}`,
			Scope{Namespace: "shop", Capture: Redirect, Domain: "shop.svc.cluster.local", Addresses: "192.0.2.1"},
		},
		"an IPv6 id": {
			`{"id": "sidecar~2001:db8::1~vm1.shop~Mesh.Internal"}`,
			Scope{Namespace: "shop", Capture: Redirect, Family: IPv6, Domain: "mesh.internal", Addresses: "2001:db8::1"},
		},
		"metadata wins over the id": {
			`{"id": "sidecar~192.0.2.1~vm1.shop~mesh.internal", "metadata":
				{"NAMESPACE": "pay", "INSTANCE_IPS": "192.0.2.1, 2001:db8::1", "INTERCEPTION_MODE": "NONE"}}`,
			Scope{Namespace: "pay", Capture: None, Family: Dual, Domain: "mesh.internal"},
		},
		"meshd's own metadata win over Istio's": {
			`{"id": "x", "metadata": {"NAMESPACE": "pay", "INTERCEPTION_MODE": "NONE", "meshd": {"capture": "redirect", "namespace": "shop"}}}`,
			Scope{Namespace: "shop", Capture: Redirect},
		},
		"TPROXY is a redirection": {
			`{"id": "x", "metadata": {"INTERCEPTION_MODE": "TPROXY"}}`, Scope{Namespace: "default", Capture: Redirect},
		},
		"an unprivileged proxy, in Istio's words": {
			`{"id": "x", "metadata": {"UNPRIVILEGED_POD": "true"}}`, Scope{Namespace: "default", Capture: None, Privileges: Unprivileged},
		},
		"an unprivileged proxy": {
			`{"id": "x", "metadata": {"meshd": {"unprivileged": true}}}`, Scope{Namespace: "default", Capture: None, Privileges: Unprivileged},
		},
		"a gRPC client has a namespace and a locality, and nothing that only proxies have": {
			`{"id": "sidecar~192.0.2.1~vm1.shop~mesh.internal", "userAgentName": "gRPC Java", "locality": {"region": "eu"},
				"metadata": {"INTERCEPTION_MODE": "REDIRECT", "UNPRIVILEGED_POD": "true", "DNS_CAPTURE": "true"}}`,
			Scope{Kind: GRPC, Namespace: "shop", Capture: None, Locality: mesh.Locality{Region: "eu"}},
		},
		"a gRPC client that reports its load": {
			`{"id": "x", "userAgentName": "gRPC Go", "metadata": {"meshd": {"loadReports": true}}}`,
			Scope{Kind: GRPC, Namespace: "default", Capture: None, Reports: LoadReports},
		},
		"an Envoy that does, which makes no difference to what it is sent": {
			`{"id": "x", "metadata": {"meshd": {"loadReports": true}}}`, Scope{Namespace: "default", Capture: None},
		},
		"the locality": {
			`{"id": "x", "locality": {"region": "eu", "zone": "1", "sub_zone": "b"}}`,
			Scope{Namespace: "default", Capture: None, Locality: mesh.Locality{Region: "eu", Zone: "1", SubZone: "b"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ScopeOf(node(t, tt.node)); err != nil || got != tt.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestScopeOfUnreadableNodesNamesTheField(t *testing.T) {
	for text, field := range map[string]string{
		`{}`: "node.id",
		fmt.Sprintf(`{"id": "%*s"}`, maxNodeID+1, "x"):                       "node.id",
		`{"id": "sidecar~elsewhere~vm1.shop~mesh.internal"}`:                 "node.id",
		`{"id": "x", "metadata": {"INSTANCE_IPS": "192.0.2.1,vm1"}}`:         "node.metadata.INSTANCE_IPS",
		`{"id": "x", "metadata": {"INTERCEPTION_MODE": "IPTABLES"}}`:         "node.metadata.INTERCEPTION_MODE",
		`{"id": "x", "metadata": {"NAMESPACE": 7}}`:                          "node.metadata.NAMESPACE",
		`{"id": "x", "metadata": {"NAMESPACE": "Shop_1"}}`:                   "node.metadata.NAMESPACE",
		`{"id": "x", "metadata": {"meshd": "none"}}`:                         "node.metadata.meshd",
		`{"id": "x", "metadata": {"meshd": {"capture": "iptables"}}}`:        "node.metadata.meshd.capture",
		`{"id": "x", "metadata": {"meshd": {"unprivileged": "yes"}}}`:        "node.metadata.meshd.unprivileged",
		`{"id": "x", "metadata": {"meshd": {"loadReports": "yes"}}}`:         "node.metadata.meshd.loadReports",
		`{"id": "x", "metadata": {"meshd": {"capture": true}}}`:              "node.metadata.meshd.capture",
		`{"id": "sidecar~192.0.2.1~vm1.Bad_Namespace~mesh.internal"}`:        "node.id",
		`{"id": "x", "metadata": {"meshd": {"namespace": "Bad_Namespace"}}}`: "node.metadata.meshd.namespace",
	} {
		_, err := ScopeOf(node(t, text))
		var f *FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: got %v, want an error at %s", text, err, field)
		}
	}
}

func node(t *testing.T, text string) *corev3.Node {
	n := &corev3.Node{}
	if err := protojson.Unmarshal([]byte(text), n); err != nil {
		t.Fatal(err)
	}
	return n
}
