package xds

import (
	"maps"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/envoy"
)

// parseRequest reads a request that stands alone.
func parseRequest(p Protocol, wire []byte) (*request, error) {
	return (&reader{protocol: p}).read(wire)
}

// What the walk reads is what the generated types read.
func sameAsDecoded(t interface{ Fatalf(string, ...any) }, p Protocol, wire []byte) {
	r, err := parseRequest(p, wire)
	var url, version, nonce string
	var names, gone []string
	var initial map[string]string
	var node *corev3.Node
	var failed bool
	var message string
	if p == SotW {
		m := &discovery.DiscoveryRequest{}
		if wrong := proto.Unmarshal(wire, m); wrong != nil {
			return // the walk looks at less
		}
		url, version, nonce, names, node = m.TypeUrl, m.VersionInfo, m.ResponseNonce, m.ResourceNames, m.Node
		failed, message = m.ErrorDetail != nil, m.ErrorDetail.GetMessage()
	} else {
		m := &discovery.DeltaDiscoveryRequest{}
		if wrong := proto.Unmarshal(wire, m); wrong != nil {
			return
		}
		url, nonce, node, initial = m.TypeUrl, m.ResponseNonce, m.Node, m.InitialResourceVersions
		names, gone = m.ResourceNamesSubscribe, m.ResourceNamesUnsubscribe
		failed, message = m.ErrorDetail != nil, m.ErrorDetail.GetMessage()
	}
	if err != nil {
		t.Fatalf("the walk fails on what decodes: %v", err)
	}
	var read corev3.Node
	if err := proto.Unmarshal(r.node, &read); err != nil || (r.node != nil) != (node != nil) {
		t.Fatalf("node %v, %v; want %v", &read, err, node)
	}
	got := map[string]string{}
	for value := range r.values(initialField) {
		n, v, err := entry(value)
		if err != nil {
			t.Fatalf("an entry that parses, and then does not: %v", err)
		}
		got[string(n)] = string(v)
	}
	switch {
	case string(r.typeURL) != url || r.version != version || r.nonce != nonce || r.failed != failed || r.message != message:
		t.Fatalf("got %q %q %q %v %q, want %q %q %q %v %q", r.typeURL, r.version, r.nonce, r.failed, r.message, url, version, nonce, failed, message)
	case !slices.Equal(text(slices.Collect(r.names(subscribeField))), names):
		t.Fatalf("names %q, want %q", slices.Collect(r.names(subscribeField)), names)
	case !slices.Equal(text(slices.Collect(r.names(unsubscribeField))), gone):
		t.Fatalf("unsubscribed %q, want %q", slices.Collect(r.names(unsubscribeField)), gone)
	case !maps.Equal(got, initial):
		t.Fatalf("initial versions %q, want %q", got, initial)
	}
}

func TestRequestsAreReadAsTheGeneratedTypesReadThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringN(0, 5, -1)
		words := rapid.SliceOfN(word, 0, 4)
		var node *corev3.Node
		if rapid.Bool().Draw(t, "node") {
			node = &corev3.Node{Id: word.Draw(t, "id"), ClientFeatures: words.Draw(t, "features")}
		}
		failure := status.New(codes.InvalidArgument, word.Draw(t, "failure")).Proto()
		if rapid.Bool().Draw(t, "accepted") {
			failure = nil
		}
		var message proto.Message
		p := rapid.SampledFrom([]Protocol{SotW, Delta}).Draw(t, "protocol")
		if p == SotW {
			message = &discovery.DiscoveryRequest{
				TypeUrl: word.Draw(t, "url"), VersionInfo: word.Draw(t, "version"), ResponseNonce: word.Draw(t, "nonce"), Node: node,
				ResourceNames: words.Draw(t, "names"), ErrorDetail: failure,
				ResourceLocators: []*discovery.ResourceLocator{{Name: "x"}},
			}
		} else {
			message = &discovery.DeltaDiscoveryRequest{
				TypeUrl: word.Draw(t, "url"), ResponseNonce: word.Draw(t, "nonce"), Node: node,
				ResourceNamesSubscribe: words.Draw(t, "subscribe"), ResourceNamesUnsubscribe: words.Draw(t, "unsubscribe"),
				InitialResourceVersions: rapid.MapOfN(word, word, 0, 4).Draw(t, "initial"), ErrorDetail: failure,
			}
		}
		wire := marshal(t, message)
		sameAsDecoded(t, p, wire)
	})
}

func FuzzRequest(f *testing.F) {
	wire := marshal(f, &discovery.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "n"}, TypeUrl: envoy.Cluster.URL(), ResourceNamesSubscribe: []string{"a", "*"},
		ResourceNamesUnsubscribe: []string{"b"}, InitialResourceVersions: map[string]string{"a": "1"}, ResponseNonce: "1",
		ErrorDetail: status.New(codes.InvalidArgument, "bad").Proto(),
	})
	f.Add(wire)
	f.Add([]byte{0x0a})
	f.Add([]byte{0x2a, 0x03, 0x1a, 0x01, 0xff}) // an unknown field of a map's entry that is no text
	f.Fuzz(func(t *testing.T, wire []byte) {
		for p := range protocols {
			sameAsDecoded(t, p, wire)
		}
	})
}
