package xds

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusservice "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/envoy"
)

// told is what the status says of a client's resources.
func (c *client) told() (all [envoy.Types]map[envoy.Name]holding) {
	for t := range all {
		all[t] = map[envoy.Name]holding{}
	}
	for _, h := range c.session.holdings() {
		all[h.typ][h.name] = h
	}
	return all
}

// checkStatus compares what the status says with what the client has. The server must have read all that it has said.
func (c *client) checkStatus() {
	c.t.Helper()
	for t, told := range c.told() {
		m := c.types[t]
		if k := &c.session.tracks[t]; k.missed || k.owesAll {
			continue // requests have crossed a response; what the client is to have is told with the next one
		}
		for n, h := range told {
			has := m.held[n]
			switch h.standing {
			case isHeld:
				if c.session.tracks[t].doomed[n] != nil {
					continue // what it has is going; perhaps it has rejected it, or dropped it for a moment
				}
				if has == "" || h.resource != nil && h.resource.Version != has {
					c.t.Fatalf("the status says that the client has %s %q in version %v; it has %q", envoy.Type(t), n, h.resource, has)
				}
			case isAbsent:
				if has != "" && c.session.protocol == Delta { // in the state of the world it can be told only by a later list, or not at all
					c.t.Fatalf("the status says that there is no %s %q; the client has %q", envoy.Type(t), n, has)
				}
			}
		}
		for n, has := range m.held {
			if _, ok := told[n]; !ok && m.asked && c.session.protocol == Delta {
				c.t.Fatalf("the status does not know %s %q, which the client has in version %s", envoy.Type(t), n, has)
			}
		}
	}
}

// Whatever a client does: what the status says that it has, it has, and what it has, the status says or knows to be on the
// way.
func TestTheStatusIsWhatTheClientHas(t *testing.T) {
	for p := range protocols {
		t.Run(p.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := newClient(t, p)
				c.names, c.lenient = rapid.Bool().Draw(t, "names"), rapid.Bool().Draw(t, "lenient")
				bad := map[string]bool{}
				c.rejects = func(_ envoy.Type, _ envoy.Name, version string) bool { return bad[version] }
				anyType := rapid.Custom(func(t *rapid.T) envoy.Type { return envoy.Type(rapid.IntRange(0, 3).Draw(t, "type")) })
				anyName := rapid.SampledFrom([]string{"a", "b", "c", "d"})
				wanted := rapid.SliceOfNDistinct(rapid.SampledFrom([]envoy.Name{"a", "b", "c", "d", everything}), 1, 3, rapid.ID)
				t.Repeat(map[string]func(*rapid.T){
					"change": func(t *rapid.T) {
						typ, n := anyType.Draw(t, "type"), anyName.Draw(t, "name")
						switch content := rapid.SampledFrom([]string{"", "1", "2", "bad"}).Draw(t, "content"); content {
						case "":
							c.remove(typ, n)
						default:
							c.set(typ, n, content)
							bad[newResource(typ, n, content).Version] = content == "bad"
						}
						c.publish()
					},
					"subscribe": func(t *rapid.T) {
						typ := anyType.Draw(t, "type")
						if m := &c.types[typ]; !m.asked && m.version == "" && rapid.Bool().Draw(t, "legacy") {
							c.all(typ)
							return
						}
						if c.types[typ].legacy && p == SotW {
							return // no client goes from all without a name to some
						}
						c.subscribe(typ, wanted.Draw(t, "names")...)
					},
					"unsubscribe": func(t *rapid.T) {
						if typ := anyType.Draw(t, "type"); c.types[typ].asked && !(c.types[typ].legacy && p == SotW) {
							c.unsubscribe(typ, wanted.Draw(t, "names")...)
						}
					},
					"server answers": func(*rapid.T) {
						if g := c.next(); g != nil {
							c.inbox = append(c.inbox, g)
						}
					},
					"client receives": func(*rapid.T) {
						if len(c.inbox) > 0 {
							g := c.inbox[0]
							c.inbox = c.inbox[1:]
							c.answer(g)
						}
					},
					"time": func(*rapid.T) { c.now = c.now.Add(grace / 2) },
					"":     func(*rapid.T) { c.checkStatus() },
				})
			})
		})
	}
}

func TestStatusOfEachStanding(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		expect := func(n envoy.Name, want standing) holding {
			t.Helper()
			h, ok := c.told()[cds][n]
			if !ok || h.standing != want {
				t.Errorf("%q stands at %d (known: %v), want %d", n, h.standing, ok, want)
			}
			return h
		}
		for _, n := range []string{"a", "b", "c"} {
			c.set(cds, n, "1")
		}
		c.subscribe(cds, "a", "b", "c", "none")
		expect("a", isOwed)
		c.publish()
		g := c.next()
		expect("a", isSent)
		c.ack(g)
		c.drain()
		expect("a", isHeld)
		expect("none", isAbsent)
		before, _ := c.resources[cds].Get("b")

		c.set(cds, "b", "2")
		c.publish()
		g = c.next()
		c.nack(g, "cluster b: no good")
		for c.next() != nil { // the others again, if it is a list
		}
		h := expect("b", isRefused)
		expect("a", isHeld)
		if h.resource != before || h.refused.rejected.Version == before.Version || h.refused.message != "cluster b: no good" {
			t.Errorf("rejected: %+v", h)
		}
		one := h.config(false)
		if one.ConfigStatus != statusservice.ConfigStatus_ERROR || one.ClientStatus != adminv3.ClientResourceStatus_NACKED ||
			one.ErrorState.GetDetails() != "cluster b: no good" || one.ErrorState.GetVersionInfo() != h.refused.rejected.Version {
			t.Errorf("rejected: %v", one)
		}
		requireContent(t, one.XdsConfig, "1")
		requireContent(t, one.ErrorState.GetFailedConfiguration(), "2")
		c.checkStatus()
	})
}

// requireContent looks into a resource as a client does.
func requireContent(t *testing.T, a *anypb.Any, want string) {
	t.Helper()
	m, err := a.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	if got := contentOf(m); got != want {
		t.Errorf("content %q, want %q", got, want)
	}
}

func byID(m *matcherv3.StringMatcher) *statusservice.ClientStatusRequest {
	return &statusservice.ClientStatusRequest{NodeMatchers: []*matcherv3.NodeMatcher{{NodeId: m}}}
}

func exactly(id string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: id}}
}

func (r *running) csds() statusservice.ClientStatusDiscoveryServiceClient {
	return statusservice.NewClientStatusDiscoveryServiceClient(r.conn)
}

// ids are the nodes of an answer.
func ids(m *statusservice.ClientStatusResponse) (out []string) {
	for _, c := range m.GetConfig() {
		out = append(out, c.GetNode().GetId())
	}
	return out
}

// TestClientStatusOverGRPC asks with the generated stub what two real streams have.
func TestClientStatusOverGRPC(t *testing.T) {
	r := start(t, Options{})
	r.service("a", "1")
	r.service("b", "1")
	r.publish()
	delta, sotw := r.delta(t), r.sotw(t)
	send(t, delta, askDelta(cds))
	first := receive(t, delta)
	send(t, delta, &discovery.DeltaDiscoveryRequest{TypeUrl: cds.URL(), ResponseNonce: first.Nonce})
	send(t, sotw, &discovery.DiscoveryRequest{Node: &corev3.Node{Id: "node-2", UserAgentName: "gRPC Go", Locality: &corev3.Locality{Region: "eu"}}, TypeUrl: eds.URL(), ResourceNames: []string{"a", "none"}})
	list := receive(t, sotw)
	await(t, "the acknowledgement", func() bool { return r.Stats().Pending == 1 })

	all, err := r.csds().FetchClientStatus(t.Context(), &statusservice.ClientStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	row := func(typ envoy.Type, name, version string, config statusservice.ConfigStatus, client adminv3.ClientResourceStatus, content *anypb.Any) *statusservice.ClientConfig_GenericXdsConfig {
		return &statusservice.ClientConfig_GenericXdsConfig{TypeUrl: typ.URL(), Name: name, VersionInfo: version, ConfigStatus: config, ClientStatus: client, XdsConfig: content}
	}
	want := &statusservice.ClientStatusResponse{Config: []*statusservice.ClientConfig{
		{Node: node, GenericXdsConfigs: []*statusservice.ClientConfig_GenericXdsConfig{
			row(cds, "a", first.Resources[0].Version, statusservice.ConfigStatus_SYNCED, adminv3.ClientResourceStatus_ACKED, first.Resources[0].Resource),
			row(cds, "b", first.Resources[1].Version, statusservice.ConfigStatus_SYNCED, adminv3.ClientResourceStatus_ACKED, first.Resources[1].Resource),
		}},
		{Node: &corev3.Node{Id: "node-2", UserAgentName: "gRPC Go", Locality: &corev3.Locality{Region: "eu"}}, GenericXdsConfigs: []*statusservice.ClientConfig_GenericXdsConfig{
			row(eds, "a", list.VersionInfo, statusservice.ConfigStatus_STALE, adminv3.ClientResourceStatus_REQUESTED, list.Resources[0]),
			row(eds, "none", "", statusservice.ConfigStatus_NOT_SENT, adminv3.ClientResourceStatus_DOES_NOT_EXIST, nil),
		}},
	}}
	plain := cmp.Options{protocmp.Transform(), protocmp.IgnoreFields(&statusservice.ClientConfig_GenericXdsConfig{}, "last_updated")}
	if diff := cmp.Diff(want, all, plain); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if at := all.Config[0].GenericXdsConfigs[0].GetLastUpdated().AsTime(); time.Since(at) > time.Minute {
		t.Errorf("last updated at %s", at)
	}

	// On a stream, one node, without contents; and again when it has answered.
	s, err := r.csds().StreamClientStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bare := byID(exactly("node-2"))
	bare.ExcludeResourceContents = true
	send(t, s, bare)
	m := receive(t, s)
	if len(m.Config) != 1 || m.Config[0].GenericXdsConfigs[0].XdsConfig != nil || m.Config[0].GenericXdsConfigs[0].VersionInfo != list.VersionInfo {
		t.Errorf("without contents: %v", m)
	}
	send(t, sotw, &discovery.DiscoveryRequest{TypeUrl: eds.URL(), ResourceNames: []string{"a", "none"}, VersionInfo: list.VersionInfo, ResponseNonce: list.Nonce})
	await(t, "the answer", func() bool { return r.Stats().Pending == 0 })
	send(t, s, bare)
	if m := receive(t, s); m.Config[0].GenericXdsConfigs[0].ClientStatus != adminv3.ClientResourceStatus_ACKED {
		t.Errorf("after the answer: %v", m)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

func TestClientStatusFindsNodesByID(t *testing.T) {
	r := start(t, Options{})
	r.publish()
	for _, id := range []string{"web-1", "web-2", "Pay-1"} {
		send(t, r.delta(t), &discovery.DeltaDiscoveryRequest{Node: &corev3.Node{Id: id}, TypeUrl: cds.URL()})
	}
	await(t, "the nodes", func() bool { return len(r.Nodes()) == 3 })
	type matcher = matcherv3.StringMatcher
	regex := func(text string) *matcher {
		return &matcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: text}}}
	}
	for name, tt := range map[string]struct {
		matchers []*matcher
		want     []string
		err      string
	}{
		"all":                     {nil, []string{"Pay-1", "web-1", "web-2"}, ""},
		"exact":                   {[]*matcher{exactly("web-1")}, []string{"web-1"}, ""},
		"either of two":           {[]*matcher{exactly("web-2"), exactly("Pay-1")}, []string{"Pay-1", "web-2"}, ""},
		"prefix":                  {[]*matcher{{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "web"}}}, []string{"web-1", "web-2"}, ""},
		"suffix":                  {[]*matcher{{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: "-1"}}}, []string{"Pay-1", "web-1"}, ""},
		"contains, in small":      {[]*matcher{{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: "PAY"}, IgnoreCase: true}}, []string{"Pay-1"}, ""},
		"an expression":           {[]*matcher{regex("web-.")}, []string{"web-1", "web-2"}, ""},
		"an expression of a part": {[]*matcher{regex("web")}, nil, ""},
		"a wrong expression":      {[]*matcher{regex("(")}, nil, "node_matchers[0].node_id.safe_regex: error parsing regexp"},
		"a long expression":       {[]*matcher{regex(strings.Repeat("x", longestPattern+1))}, nil, "node_matchers[0].node_id.safe_regex: is longer than"},
		"no pattern":              {[]*matcher{exactly("a"), {}}, nil, "node_matchers[1].node_id: has no exact"},
		"nothing":                 {[]*matcher{nil}, nil, "node_matchers[0].node_id: is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			q := &statusservice.ClientStatusRequest{}
			for _, m := range tt.matchers {
				q.NodeMatchers = append(q.NodeMatchers, &matcherv3.NodeMatcher{NodeId: m})
			}
			m, err := r.csds().FetchClientStatus(t.Context(), q)
			if tt.err != "" {
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want InvalidArgument with %q", err, tt.err)
				}
				return
			}
			if err != nil || !slices.Equal(ids(m), tt.want) {
				t.Errorf("%q, %v; want %q", ids(m), err, tt.want)
			}
		})
	}
	q := &statusservice.ClientStatusRequest{NodeMatchers: []*matcherv3.NodeMatcher{{NodeId: exactly("web-1"), NodeMetadatas: []*matcherv3.StructMatcher{{}}}}}
	if _, err := r.csds().FetchClientStatus(t.Context(), q); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "node_metadatas") {
		t.Errorf("by metadata: %v", err)
	}
	s, err := r.csds().StreamClientStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, s, q)
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("on a stream: %v", err)
	}
}

// TestClientStatusIsBounded has nodes of which all together are too much for one answer.
func TestClientStatusIsBounded(t *testing.T) {
	r := start(t, Options{})
	long := strings.Repeat("x", 1<<20)
	for _, n := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		r.set(rds, n, long)
	}
	r.publish()
	for i := range 5 {
		s := r.delta(t)
		send(t, s, &discovery.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "node-" + nonceOf(uint64(i))}, TypeUrl: rds.URL()})
	}
	await(t, "the responses", func() bool { return r.Stats().Pending == 5 })
	if _, err := r.csds().FetchClientStatus(t.Context(), &statusservice.ClientStatusRequest{}); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "exclude_resource_contents") {
		t.Errorf("all: %v, want ResourceExhausted with a remedy", err)
	}
	m, err := r.csds().FetchClientStatus(t.Context(), &statusservice.ClientStatusRequest{ExcludeResourceContents: true})
	if err != nil || len(m.Config) != 5 || len(m.Config[0].GenericXdsConfigs) != 8 {
		t.Errorf("all without contents: %d, %v", len(m.GetConfig()), err)
	}
}

func TestClientStatusEndsWithTheServer(t *testing.T) {
	r := start(t, Options{DrainTime: time.Minute})
	r.publish()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := r.csds().StreamClientStatus(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send(t, s, &statusservice.ClientStatusRequest{})
	receive(t, s)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v, want Unavailable", err)
	}
}

// What is shared must not be changed by answering.
func TestAnyOfSharesTheResource(t *testing.T) {
	r := newResource(cds, "a", "1")
	before := slices.Clone(r.Any())
	a := anyOf(r)
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
	if err != nil || !slices.Equal(wire, r.Any()) || !slices.Equal(before, r.Any()) {
		t.Errorf("%x, %v; want %x", wire, err, r.Any())
	}
	requireContent(t, a, "1")
	if got := maps.Collect(slices.All([]string{a.TypeUrl})); got[0] != cds.URL() {
		t.Errorf("type %v", got)
	}
}
