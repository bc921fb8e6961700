package xds

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a server with a world, and a connection to it.
type running struct {
	*Server
	world
	conn *grpc.ClientConn
	dial func() (*grpc.ClientConn, error) // one more connection
	stop func() error
	logs *lockedText
}

type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func start(t testing.TB, o Options) *running {
	t.Helper()
	return startOn(t, o, bufconn.Listen(1<<20))
}

// loopback is a listener whose connections are those that users have.
func loopback(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func startOn(t testing.TB, o Options, l net.Listener) *running {
	t.Helper()
	r := &running{logs: &lockedText{}}
	o.Translate = r.translate
	r.Server = New(hclog.New(&hclog.LoggerOptions{Output: r.logs, Level: hclog.Debug}), o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, l) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	r.dial = func() (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				if b, ok := l.(*bufconn.Listener); ok {
					return b.DialContext(ctx)
				}
				var d net.Dialer
				return d.DialContext(ctx, "tcp", l.Addr().String())
			}))
	}
	conn, err := r.dial()
	if err != nil {
		t.Fatal(err)
	}
	r.conn = conn
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *running) publish() { r.Apply(r.view()) }

var node = &corev3.Node{Id: "node-1", Cluster: "c", UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.40.0"}}

func ask(t envoy.Type, names ...string) *discovery.DiscoveryRequest {
	return &discovery.DiscoveryRequest{Node: node, TypeUrl: t.URL(), ResourceNames: names}
}

func askDelta(t envoy.Type, names ...string) *discovery.DeltaDiscoveryRequest {
	return &discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: t.URL(), ResourceNamesSubscribe: names}
}

type (
	sotwStream  = grpc.BidiStreamingClient[discovery.DiscoveryRequest, discovery.DiscoveryResponse]
	deltaStream = grpc.BidiStreamingClient[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]
)

func (r *running) sotw(t testing.TB) sotwStream {
	t.Helper()
	s, err := discovery.NewAggregatedDiscoveryServiceClient(r.conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (r *running) delta(t testing.TB) deltaStream {
	t.Helper()
	s, err := discovery.NewAggregatedDiscoveryServiceClient(r.conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func send[Q, A any](t testing.TB, s grpc.BidiStreamingClient[Q, A], m *Q) {
	t.Helper()
	if err := s.Send(m); err != nil {
		t.Fatal(err)
	}
}

func receive[Q, A any](t testing.TB, s grpc.BidiStreamingClient[Q, A]) *A {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// await looks until what is looked for is so. Nothing tells a test that the server has taken a request that has no answer.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("never: " + what)
		}
	}
}

func TestBothProtocolsOverGRPC(t *testing.T) {
	r := start(t, Options{})
	r.service("a", "1")
	r.service("b", "1")
	r.publish()

	sotw := r.sotw(t)
	send(t, sotw, ask(cds))
	if m := receive(t, sotw); m.TypeUrl != cds.URL() || len(m.Resources) != 2 || m.ControlPlane.Identifier != "meshd" {
		t.Errorf("got %v", m)
	}
	delta := r.delta(t)
	send(t, delta, askDelta(eds, "a", "none"))
	m := receive(t, delta)
	if len(m.Resources) != 1 || m.Resources[0].Name != "a" || len(m.RemovedResources) != 1 || m.RemovedResources[0] != "none" {
		t.Errorf("got %v", m)
	}
	if _, err := m.Resources[0].Resource.UnmarshalNew(); err != nil {
		t.Error(err)
	}
	send(t, delta, &discovery.DeltaDiscoveryRequest{TypeUrl: eds.URL(), ResponseNonce: m.Nonce})
	await(t, "the acknowledgement", func() bool { return r.Stats().Pending == 1 }) // the other stream's
	r.set(eds, "a", "2")
	r.publish()
	if m := receive(t, delta); len(m.Resources) != 1 || m.Resources[0].Name != "a" {
		t.Errorf("got %v", m)
	}
}

func TestServicesOfOneType(t *testing.T) {
	r := start(t, Options{})
	r.service("a", "1")
	r.publish()
	ctx := t.Context()
	for typ, open := range map[envoy.Type]struct {
		sotw  func() (sotwStream, error)
		delta func() (deltaStream, error)
		fetch func() error
	}{
		cds: {
			func() (sotwStream, error) {
				return clusterservice.NewClusterDiscoveryServiceClient(r.conn).StreamClusters(ctx)
			},
			func() (deltaStream, error) {
				return clusterservice.NewClusterDiscoveryServiceClient(r.conn).DeltaClusters(ctx)
			},
			func() error {
				_, err := clusterservice.NewClusterDiscoveryServiceClient(r.conn).FetchClusters(ctx, ask(cds))
				return err
			},
		},
		eds: {
			func() (sotwStream, error) {
				return endpointservice.NewEndpointDiscoveryServiceClient(r.conn).StreamEndpoints(ctx)
			},
			func() (deltaStream, error) {
				return endpointservice.NewEndpointDiscoveryServiceClient(r.conn).DeltaEndpoints(ctx)
			},
			func() error {
				_, err := endpointservice.NewEndpointDiscoveryServiceClient(r.conn).FetchEndpoints(ctx, ask(eds))
				return err
			},
		},
		lds: {
			func() (sotwStream, error) {
				return listenerservice.NewListenerDiscoveryServiceClient(r.conn).StreamListeners(ctx)
			},
			func() (deltaStream, error) {
				return listenerservice.NewListenerDiscoveryServiceClient(r.conn).DeltaListeners(ctx)
			},
			func() error {
				_, err := listenerservice.NewListenerDiscoveryServiceClient(r.conn).FetchListeners(ctx, ask(lds))
				return err
			},
		},
		rds: {
			func() (sotwStream, error) {
				return routeservice.NewRouteDiscoveryServiceClient(r.conn).StreamRoutes(ctx)
			},
			func() (deltaStream, error) {
				return routeservice.NewRouteDiscoveryServiceClient(r.conn).DeltaRoutes(ctx)
			},
			func() error {
				_, err := routeservice.NewRouteDiscoveryServiceClient(r.conn).FetchRoutes(ctx, ask(rds))
				return err
			},
		},
	} {
		t.Run(typ.String(), func(t *testing.T) {
			sotw, err := open.sotw()
			if err != nil {
				t.Fatal(err)
			}
			other := cds
			if typ == cds {
				other = eds
			}
			send(t, sotw, ask(other, "a")) // silence
			send(t, sotw, &discovery.DiscoveryRequest{ResourceNames: []string{"a"}})
			if m := receive(t, sotw); m.TypeUrl != typ.URL() || len(m.Resources) != 1 {
				t.Errorf("got %v", m)
			}
			delta, err := open.delta()
			if err != nil {
				t.Fatal(err)
			}
			send(t, delta, askDelta(typ, "a"))
			if m := receive(t, delta); m.TypeUrl != typ.URL() || len(m.Resources) != 1 {
				t.Errorf("got %v", m)
			}
			if err := open.fetch(); status.Code(err) != codes.Unimplemented {
				t.Errorf("fetch: %v, want Unimplemented", err)
			}
		})
	}
}

// talk is a stream of either protocol.
type talk struct {
	ask  func(node *corev3.Node, url, nonce string, names ...string) // in the state of the world names are all that is wanted
	next func() answer
}

// answer is what a response of either protocol says beside its resources' content.
type answer struct {
	url, nonce, controlPlane string
	resources, removed       int
	ttl                      bool // of any resource, or what could hold one
}

// inBoth runs a test with a stream of each protocol.
func inBoth(t *testing.T, o Options, test func(t *testing.T, r *running, s talk)) {
	t.Run("sotw", func(t *testing.T) {
		r := start(t, o)
		s := r.sotw(t)
		test(t, r, talk{
			func(node *corev3.Node, url, nonce string, names ...string) {
				send(t, s, &discovery.DiscoveryRequest{Node: node, TypeUrl: url, ResponseNonce: nonce, ResourceNames: names})
			},
			func() answer {
				m := receive(t, s)
				wrapped := slices.ContainsFunc(m.Resources, func(a *anypb.Any) bool { return a.TypeUrl != m.TypeUrl })
				return answer{m.TypeUrl, m.Nonce, m.ControlPlane.GetIdentifier(), len(m.Resources), 0, wrapped}
			},
		})
	})
	t.Run("delta", func(t *testing.T) {
		r := start(t, o)
		s := r.delta(t)
		test(t, r, talk{
			func(node *corev3.Node, url, nonce string, names ...string) {
				if nonce != "" {
					names = nil // that was said before
				}
				send(t, s, &discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: url, ResponseNonce: nonce, ResourceNamesSubscribe: names})
			},
			func() answer {
				m := receive(t, s)
				ttl := slices.ContainsFunc(m.Resources, func(r *discovery.Resource) bool { return r.Ttl != nil || r.Resource == nil })
				return answer{m.TypeUrl, m.Nonce, m.ControlPlane.GetIdentifier(), len(m.Resources), len(m.RemovedResources), ttl}
			},
		})
	})
}

// extensions is the type of ECDS.
const extensions = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

func TestRule08UnknownTypesMeetSilence(t *testing.T) {
	inBoth(t, Options{}, func(t *testing.T, r *running, s talk) {
		r.service("a", "1")
		r.publish()
		s.ask(node, "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "")
		s.ask(nil, cds.URL(), "")
		if m := s.next(); m.url != cds.URL() {
			t.Errorf("got %+v, want the clusters", m)
		}
	})
}

func TestRule12OnlyTheFirstRequestCarriesTheNode(t *testing.T) {
	inBoth(t, Options{}, func(t *testing.T, r *running, s talk) {
		r.service("a", "1")
		r.publish()
		s.ask(node, cds.URL(), "")
		s.next()
		s.ask(nil, eds.URL(), "", "a")
		if m := s.next(); m.url != eds.URL() || m.resources != 1 {
			t.Errorf("got %+v", m)
		}
	})
}

func TestRule20NothingHasATimeToLive(t *testing.T) {
	able := &corev3.Node{Id: "node-1", ClientFeatures: []string{"xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"}}
	inBoth(t, Options{}, func(t *testing.T, r *running, s talk) {
		r.service("a", "1")
		r.publish()
		for typ := range envoy.Types {
			s.ask(able, typ.URL(), "", "a")
			m := s.next()
			if m.url != typ.URL() || m.resources != 1 || m.ttl {
				t.Errorf("got %+v, want one of %s as it is", m, typ)
			}
			s.ask(nil, typ.URL(), m.nonce, "a") // listeners wait for that
		}
	})
}

func TestRule21EveryResponseSaysWhoSendsIt(t *testing.T) {
	inBoth(t, Options{Identifier: "meshd-7"}, func(t *testing.T, r *running, s talk) {
		r.service("a", "1")
		r.publish()
		s.ask(node, cds.URL(), "")
		m := s.next()
		if m.controlPlane != "meshd-7" {
			t.Errorf("got %+v", m)
		}
		s.ask(nil, cds.URL(), m.nonce)
		r.set(cds, "a", "2")
		r.publish()
		if m := s.next(); m.controlPlane != "meshd-7" {
			t.Errorf("got %+v", m)
		}
	})
}

// A removal by ECDS makes an Envoy answer with 5xx. What it waits for there is not ours to give.
func TestRule24AnExtensionIsNeverRemoved(t *testing.T) {
	inBoth(t, Options{}, func(t *testing.T, r *running, s talk) {
		r.service("a", "1")
		r.publish()
		s.ask(node, extensions, "", "filter-1", "filter-2")
		s.ask(nil, extensions, "", "filter-1")
		s.ask(nil, cds.URL(), "")
		m := s.next()
		if m.url != cds.URL() || m.removed != 0 {
			t.Errorf("got %+v, want the clusters", m)
		}
		s.ask(nil, cds.URL(), m.nonce)
		s.ask(nil, extensions, m.nonce, "filter-1")
		r.set(cds, "b", "1")
		r.publish()
		if m := s.next(); m.url != cds.URL() || m.removed != 0 {
			t.Errorf("got %+v, want the clusters", m)
		}
	})
}

func TestBadRequestsEndTheStreamAndNameTheField(t *testing.T) {
	r := start(t, Options{})
	r.publish()
	badMetadata, err := structpb.NewStruct(map[string]any{"INTERCEPTION_MODE": "MAGIC"})
	if err != nil {
		t.Fatal(err)
	}
	for want, m := range map[string]*discovery.DiscoveryRequest{
		"node":                             {TypeUrl: cds.URL()},
		"node.id":                          {TypeUrl: cds.URL(), Node: &corev3.Node{}},
		"node.metadata.INTERCEPTION_MODE:": {TypeUrl: cds.URL(), Node: &corev3.Node{Id: "x", Metadata: badMetadata}},
		"type_url":                         {Node: node},
	} {
		s := r.sotw(t)
		send(t, s, m)
		if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want InvalidArgument naming %s", m, err, want)
		}
	}
	s, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		discovery.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName, grpc.ForceCodecV2(newCodec()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(&frame{mem.BufferSlice{mem.SliceBuffer("\x0a")}}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&raw{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a request that does not decode: %v", err)
	}
	await(t, "the streams to be gone", func() bool { return r.Stats().Scopes == 0 })
}

func TestHeldUntilTheFirstViewAndHealth(t *testing.T) {
	r := start(t, Options{})
	health := grpc_health_v1.NewHealthClient(r.conn)
	check := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		m, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil || m.Status != want {
			t.Errorf("health %v, %v; want %v", m, err, want)
		}
	}
	check(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	s := r.sotw(t)
	send(t, s, ask(cds))
	await(t, "the node", func() bool { return len(r.Nodes()) == 1 })
	if rows := r.Nodes()[0].Deliveries; len(rows) == 1 && rows[0].Sent.Nonce != "" {
		t.Errorf("answered before the first view: %+v", rows)
	}
	r.service("a", "1")
	r.publish()
	if m := receive(t, s); len(m.Resources) != 1 {
		t.Errorf("got %v", m)
	}
	check(grpc_health_v1.HealthCheckResponse_SERVING)
}

func TestARejectionIsTracedToItsServices(t *testing.T) {
	r := start(t, Options{})
	r.service("a", "1")
	r.service("b", "1")
	view := r.view()
	origin := mesh.Origin{Registry: "files", Source: "b.yaml", Line: 12}
	view.Services = view.Services.With(serviceKey("b"), mesh.Seal(mesh.Service{Key: serviceKey("b"), Origin: origin}))
	r.Apply(view)
	s := r.delta(t)
	send(t, s, askDelta(cds))
	m := receive(t, s)
	send(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: cds.URL(), ResponseNonce: m.Nonce, ErrorDetail: status.New(codes.InvalidArgument, "Error adding/updating cluster(s) b: bad\nand worse\n").Proto()})
	await(t, "the rejection", func() bool { return r.Stats().Types[cds].Rejections == 1 })
	rest := receive(t, s)
	send(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: cds.URL(), ResponseNonce: rest.Nonce})
	await(t, "the answer", func() bool { return r.Stats().Pending == 0 })
	b, _ := r.resources[cds].Get("b")
	message := "Error adding/updating cluster(s) b: bad\nand worse"
	accepted := Mark{Version: m.SystemVersionInfo + "~", Nonce: rest.Nonce}
	want := []NodeStatus{{
		ID: "node-1", Cluster: "c", Scope: envoy.Scope{Namespace: "default", Capture: envoy.None}, Peer: "bufconn",
		UserAgent: "envoy", Version: "1.40.0", Protocol: Delta, Aggregated: true,
		Deliveries: []Delivery{{
			Type: cds, Wildcard: true, Sent: accepted, Accepted: accepted,
			Rejected: &Rejection{
				Mark:    Mark{Version: m.SystemVersionInfo, Nonce: m.Nonce},
				Message: message, Resources: []envoy.Name{"b"}, Services: []mesh.Key{serviceKey("b")},
			},
			Held: []Held{{Name: "b", Rejected: b.Version, Message: message}},
		}},
	}}
	if diff := cmp.Diff(want, r.Nodes(), cmpopts.IgnoreTypes(time.Time{}), cmp.Comparer(func(a, b mesh.Key) bool { return a == b })); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	await(t, "the log", func() bool { return strings.Contains(r.logs.String(), "b.yaml:12") })
	if line := r.logs.String(); !strings.Contains(line, `b: bad; and worse`) { // Envoy's messages end in a newline
		t.Errorf("the message is not on the line:\n%s", line)
	}
	if got := strings.Count(r.logs.String(), "[WARN]"); got != 1 {
		t.Errorf("%d warnings, want 1:\n%s", got, r.logs)
	}
	if st := r.Stats().Types[cds]; st.Pushes != 2 || st.Resources != 3 || st.Bytes == 0 || st.Held != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestARejectionIsAProblemOfTheDocument(t *testing.T) {
	r := start(t, Options{})
	r.service("a", "1")
	r.publish()
	publish := func() {
		view := r.view()
		origin := mesh.Origin{Registry: "files", Source: "b.yaml", Line: 12}
		view.Services = view.Services.With(serviceKey("b"), mesh.Seal(mesh.Service{Key: serviceKey("b"), Origin: origin}))
		r.Apply(view)
	}
	var streams []deltaStream
	for _, id := range []string{"node-2", "node-1"} {
		s := r.delta(t)
		first := askDelta(lds)
		first.Node = &corev3.Node{Id: id}
		send(t, s, first)
		send(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: lds.URL(), ResponseNonce: receive(t, s).Nonce})
		streams = append(streams, s)
	}
	await(t, "the answers", func() bool { return r.Stats().Pending == 0 })
	reject := func(s deltaStream, message string) {
		m := receive(t, s)
		send(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: lds.URL(), ResponseNonce: m.Nonce, ErrorDetail: status.New(codes.InvalidArgument, message).Proto()})
	}
	r.set(lds, "b", "1")
	publish()
	reject(streams[0], "b: cannot\nbind")
	await(t, "the first rejection", func() bool { return r.Stats().Types[lds].Held == 1 })
	want := `b.yaml:12: node "node-2" rejects the listener "b" of b.mesh (b: cannot bind), which is held back, and tried again from time to time [rejected-by-node]`
	if got := r.Problems(); len(got) != 1 || got[0].String() != want || got[0].Serving != "" || got[0].Services != "default/b.mesh" || got[0].Since.IsZero() {
		t.Errorf("problems %+v, want\n%s", got, want)
	}
	reject(streams[1], "taken")
	await(t, "the second rejection", func() bool { return r.Stats().Types[lds].Held == 2 })
	want = `b.yaml:12: 2 nodes reject the listener "b" of b.mesh ("node-1" says: taken), which is held back, and tried again from time to time [rejected-by-node]`
	if got := r.Problems(); len(got) != 1 || got[0].String() != want {
		t.Errorf("problems %+v, want\n%s", got, want)
	}
	r.set(lds, "b", "2")
	publish()
	m := receive(t, streams[0])
	send(t, streams[0], &discovery.DeltaDiscoveryRequest{TypeUrl: lds.URL(), ResponseNonce: m.Nonce})
	if err := streams[1].CloseSend(); err != nil { // the node goes
		t.Fatal(err)
	}
	await(t, "no problem", func() bool { return len(r.Problems()) == 0 })
}

func TestARejectionIsAProblemUntilItIsTaken(t *testing.T) {
	r := start(t, Options{RetryRejected: time.Millisecond})
	r.service("a", "1")
	r.publish()
	s := r.delta(t)
	send(t, s, askDelta(lds))
	for range 4 { // it is sent again and again
		m := receive(t, s)
		if len(m.Resources) != 1 || m.Resources[0].Name != "a" {
			t.Fatalf("got %v", m)
		}
		send(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: lds.URL(), ResponseNonce: m.Nonce, ErrorDetail: status.New(codes.InvalidArgument, "a: taken").Proto()})
	}
	m := receive(t, s)
	if p := r.Problems(); len(p) != 1 || p[0].Code != "rejected-by-node" || r.Stats().Types[lds].Held != 1 {
		t.Errorf("problems %v, want one while it is tried", p)
	}
	send(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: lds.URL(), ResponseNonce: m.Nonce})
	await(t, "no problem", func() bool { return len(r.Problems()) == 0 })
	if st := r.Stats().Types[lds]; st.Held != 0 || st.Rejections != 4 {
		t.Errorf("stats %+v, want 4 rejections and nothing held", st)
	}
	if got := strings.Count(r.logs.String(), "[WARN]"); got != 1 {
		t.Errorf("%d warnings, want 1:\n%s", got, r.logs)
	}
}

func TestNodesOfAScopeShareASnapshotAndScopesAreDropped(t *testing.T) {
	r := start(t, Options{})
	var translated int
	var last *envoy.Snapshot // from which the last translation began
	inner := r.scopes.translate
	r.scopes.translate = func(prev *envoy.Snapshot, view *mesh.View, scope envoy.Scope, m envoy.Mesh, others ...*envoy.Snapshot) *envoy.Snapshot {
		r.mu.Lock()
		translated++
		last = prev
		r.mu.Unlock()
		return inner(prev, view, scope, m, others...)
	}
	count := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return translated
	}
	r.service("a", "1")
	r.publish()
	ctx, cancel := context.WithCancel(t.Context())
	for range 5 {
		s, err := discovery.NewAggregatedDiscoveryServiceClient(r.conn).StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		send(t, s, ask(cds))
		receive(t, s)
	}
	if count() != 1 || r.Stats().Scopes != 1 || r.Stats().Streams[SotW] != 5 {
		t.Errorf("%d translations, %+v; want 1, one scope, 5 streams", count(), r.Stats())
	}
	r.set(cds, "a", "2")
	r.publish()
	if count() != 2 {
		t.Errorf("%d translations, want 2", count())
	}
	cancel()
	await(t, "the scope to go", func() bool { return r.Stats().Scopes == 0 })
	r.publish()
	if count() != 2 {
		t.Errorf("%d translations without a stream, want 2", count())
	}
	r.set(cds, "a", "3")
	r.publish()
	s := r.sotw(t)
	send(t, s, ask(cds))
	m, err := receive(t, s).Resources[0].UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	if got := contentOf(m); got != "3" {
		t.Errorf("a stream that comes back is sent %q, want the newest", got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if translated != 3 || last == nil {
		t.Errorf("%d translations, from %v; want a third, from what there was", translated, last)
	}
}

func TestStopEndsStreamsAndLeavesNothing(t *testing.T) {
	r := start(t, Options{DrainTime: time.Minute})
	r.service("a", "1")
	r.publish()
	s := r.sotw(t)
	send(t, s, ask(cds))
	receive(t, s)
	silent := r.sotw(t) // has sent nothing
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []sotwStream{s, silent} {
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want Unavailable", err)
		}
	}
	if n := len(r.Nodes()); n != 0 {
		t.Errorf("%d nodes are left", n)
	}
}

func TestRunEndsWithItsContextAndFailsWithItsListener(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := New(hclog.NewNullLogger(), Options{}).Run(ctx, bufconn.Listen(1)); err != nil {
		t.Errorf("a context that had ended: %v, want nil", err)
	}
	l := bufconn.Listen(1)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := New(hclog.NewNullLogger(), Options{}).Run(t.Context(), l); err == nil {
		t.Error("a closed listener: nil, want an error")
	}
}

// With the real translation: an endpoint that changes is sent alone, a cluster that changes with its endpoints after it.
func TestATranslatedServiceReachesAnEnvoy(t *testing.T) {
	c := newClient(t, Delta)
	scope := envoy.Scope{Namespace: mesh.DefaultNamespace, Capture: envoy.None}
	var last *envoy.Snapshot
	publish := func(address string, port uint16) {
		s := mesh.Seal(mesh.Service{
			Key: serviceKey("a"), Resolution: mesh.Static, Export: mesh.Visibility{All: true},
			Ports:     []mesh.Port{{Number: port, Name: "http", Protocol: mesh.HTTP}},
			Endpoints: []mesh.Endpoint{{Address: mesh.IPAddress(netip.MustParseAddr(address)), Ports: []uint16{8080}, Weight: 1}},
		})
		view := &mesh.View{Services: mesh.Services{}.With(s.Key, s)}
		last = envoy.Translate(last, view, scope, envoy.Mesh{})
		c.resources, c.versions = last.Resources, last.Versions
		c.publish()
	}
	publish("10.0.0.1", 80)
	c.all(cds)
	first := c.next()
	c.ack(first)
	name := envoy.Name("outbound|80||a.mesh")
	if !slices.Contains(first.Resources, name) {
		t.Fatalf("clusters %q, want %s among them", first.Resources, name)
	}
	c.subscribe(eds, name)
	c.take(eds, name)
	publish("10.0.0.2", 80)
	c.take(eds, name)
	c.quiet()
	publish("10.0.0.2", 81)
	c.take(cds, "outbound|81||a.mesh")
	c.quiet()
	c.now = c.now.Add(grace)
	c.removed(cds, []envoy.Name{name})
}

func TestAClientThatNeverReadsHoldsUpNobody(t *testing.T) {
	r := start(t, Options{DrainTime: 100 * time.Millisecond})
	for i := range 2000 {
		r.set(rds, strings.Repeat("long-name.", 20)+"r"+nonceOf(uint64(i)), "1")
	}
	r.service("a", "1")
	r.publish()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	deaf, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		discovery.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if err := deaf.SendMsg(askDelta(rds)); err != nil { // more than the window
		t.Fatal(err)
	}
	await(t, "the large response", func() bool { return r.Stats().Pending == 1 })
	other := r.sotw(t)
	send(t, other, ask(cds))
	m := receive(t, other)
	for i := range 20 {
		send(t, other, &discovery.DiscoveryRequest{TypeUrl: cds.URL(), VersionInfo: m.VersionInfo, ResponseNonce: m.Nonce})
		if err := deaf.SendMsg(askDelta(cds, "none")); err != nil { // its requests are taken all the same
			t.Fatal(err)
		}
		r.service("a", strings.Repeat("x", i+2))
		r.publish()
		m = receive(t, other)
	}
	if err := r.stop(); err != nil { // it is cut off after the drain time
		t.Fatal(err)
	}
}

func TestAClientMayCloseItsSide(t *testing.T) {
	r := start(t, Options{})
	r.publish()
	s := r.sotw(t)
	send(t, s, ask(cds))
	receive(t, s)
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
}

// Many streams, changes and answers at once; for the race detector. All end with the newest state.
func TestManyStreamsAtOnce(t *testing.T) { manyStreams(t, Options{DrainGrace: -1}) }

func TestManyStreamsAtOnceWithCanaries(t *testing.T) {
	manyStreams(t, Options{DrainGrace: -1, Canary: Canary{Nodes: 1, Share: 0.2, Time: 20 * time.Millisecond}})
}

func manyStreams(t *testing.T, o Options) {
	r := start(t, o)
	for i := range 50 {
		r.service("s"+nonceOf(uint64(i)), "0")
	}
	r.publish()
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() {
			s := r.delta(t)
			first := askDelta(cds)
			first.Node = &corev3.Node{Id: "node-" + nonceOf(uint64(i))}
			if err := s.Send(first); err != nil {
				t.Error(err)
				return
			}
			held := map[string]string{}
			for {
				m, err := s.Recv()
				if err != nil {
					t.Error(err)
					return
				}
				for _, res := range m.Resources {
					held[res.Name] = res.Version
				}
				if err := s.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: cds.URL(), ResponseNonce: m.Nonce}); err != nil {
					t.Error(err)
					return
				}
				if _, done := held["last"]; done {
					if len(held) != 51 {
						t.Errorf("%d clusters, want 51", len(held))
					}
					return
				}
			}
		})
	}
	for i := range 200 {
		r.set(cds, "s"+nonceOf(uint64(i%50)), nonceOf(uint64(i)))
		r.publish()
		if i%20 == 0 {
			r.Nodes()
		}
	}
	r.set(cds, "last", "1")
	r.publish()
	clients.Wait()
}

func TestReflectionNamesTheServices(t *testing.T) {
	r := start(t, Options{LoadReportInterval: time.Minute})
	s, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, s, &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	var names []string
	for _, service := range receive(t, s).GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	for _, want := range []string{"envoy.service.discovery.v3.AggregatedDiscoveryService", "envoy.service.status.v3.ClientStatusDiscoveryService", "envoy.service.load_stats.v3.LoadReportingService"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %q", want, names)
		}
	}
}
