package xds_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	grpcxds "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/xds"
)

// Tests with gRPC's own xDS client. It speaks the state of the world and names all that it wants.

// patience is for what takes milliseconds.
const patience = 30 * time.Second

// backend is a gRPC server that says its name.
type backend struct {
	name string
	port uint16
	stop func()
}

func startBackend(t *testing.T, name string) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := grpc.SetHeader(ctx, metadata.Pairs("backend", name)); err != nil {
				return nil, err
			}
			return handle(ctx, q)
		}))
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	b := &backend{name: name, port: uint16(l.Addr().(*net.TCPAddr).Port), stop: sync.OnceFunc(func() {
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(b.stop)
	return b
}

// at is an endpoint of a backend.
func (b *backend) at(weight uint32, locality string) mesh.Endpoint {
	return mesh.Endpoint{
		Address: mesh.IPAddress(netip.MustParseAddr("127.0.0.1")), Ports: []uint16{b.port}, Weight: weight, Locality: mesh.ParseLocality(locality),
	}
}

// control is a meshd's xDS server on a TCP port, with the services that it serves.
type control struct {
	*xds.Server
	address   string
	stop      func()
	view      *mesh.View
	translate xds.Translation // nil: the usual one
}

func startControl(t *testing.T) *control {
	t.Helper()
	return startTranslating(t, nil)
}

// startTranslating starts one with another translation.
func startTranslating(t *testing.T, translate xds.Translation) *control {
	t.Helper()
	c := &control{view: &mesh.View{Registries: []string{"files"}}, translate: translate}
	c.listen(t, "127.0.0.1:0")
	return c
}

func (c *control) listen(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c.Server, c.address = xds.New(hclog.NewNullLogger(), xds.Options{DrainGrace: time.Millisecond, Translate: c.translate}), l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	server := c.Server
	go func() { ended <- server.Run(ctx, l) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(c.stop)
}

// service changes a service of the view, or takes it out if it is to have no port.
func (c *control) service(t *testing.T, name string, change func(*mesh.Service)) {
	t.Helper()
	h, err := mesh.ParseHost(name)
	if err != nil {
		t.Fatal(err)
	}
	s := mesh.Service{
		Key: mesh.Key{Host: h, Namespace: mesh.DefaultNamespace}, Resolution: mesh.Static, Export: mesh.Visibility{All: true},
		Ports: []mesh.Port{{Number: 443, Name: "grpc", Protocol: mesh.GRPC}},
	}
	change(&s)
	next := *c.view
	next.Generation++
	if next.Services = next.Services.Without(s.Key); len(s.Ports) > 0 {
		next.Services = next.Services.With(s.Key, mesh.Seal(s))
	}
	c.view = &next
	c.Apply(c.view)
}

func endpoints(all ...mesh.Endpoint) func(*mesh.Service) {
	return func(s *mesh.Service) { s.Endpoints = all }
}

func gone(s *mesh.Service) { s.Ports = nil }

// client is a connection to xds:///TARGET of a process of its own.
type client struct {
	grpc_health_v1.HealthClient
	answered *atomic.Int64 // calls
}

// connect makes a client whose bootstrap has the features.
func (c *control) connect(t *testing.T, target string, features ...string) client {
	t.Helper()
	text := fmt.Sprintf(`{
		"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["%s"]}],
		"node": {"id": "shop-1", "locality": {"region": "eu", "zone": "1"}}
	}`, c.address, strings.Join(append([]string{"xds_v3"}, features...), `", "`))
	resolver, err := grpcxds.NewXDSResolverWithConfigForTesting([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///"+target, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return client{grpc_health_v1.NewHealthClient(conn), new(atomic.Int64)}
}

// call makes one call, which does not wait for a connection unless the options say so, and tells which backend answered.
func (c client) call(t *testing.T, options ...grpc.CallOption) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var header metadata.MD
	_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, append(options, grpc.Header(&header))...)
	c.answered.Add(1)
	return strings.Join(header.Get("backend"), ""), err
}

// reaches waits for a connection, and fails unless a call then comes to one of the backends.
func (c client) reaches(t *testing.T, backends ...*backend) {
	t.Helper()
	got, err := c.call(t, grpc.WaitForReady(true))
	if err != nil || !slices.ContainsFunc(backends, func(b *backend) bool { return b.name == got }) {
		t.Fatalf("a call came to %q, %v", got, err)
	}
}

// comesTo calls until the outcome is as wanted.
func (c client) comesTo(t *testing.T, want string, is func(backend string, err error) bool) {
	t.Helper()
	eventually(t, "calls come to "+want, func() (string, bool) {
		got, err := c.call(t)
		return fmt.Sprintf("%q, %v", got, err), is(got, err)
	})
}

// eventually waits until something is so, and else tells how it is.
func eventually(t *testing.T, what string, done func() (string, bool)) {
	t.Helper()
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	late := time.After(patience)
	for {
		is, ok := done()
		if ok {
			return
		}
		select {
		case <-pause.C:
		case <-late:
			t.Fatalf("%s: not within %s: %s", what, patience, is)
		}
	}
}

func (c client) movesTo(t *testing.T, b *backend) {
	t.Helper()
	c.comesTo(t, b.name, func(got string, err error) bool { return err == nil && got == b.name })
}

// busy calls all the time until it is told to stop, and returns how many calls there were. None may fail.
func (c client) busy(t *testing.T) (stop func() int) {
	t.Helper()
	end, counted := make(chan struct{}), make(chan int)
	var failed atomic.Bool
	go func() {
		n := 0
		pause := time.NewTicker(time.Millisecond)
		defer pause.Stop()
		for {
			select {
			case <-end:
				counted <- n
				return
			case <-pause.C:
			}
			if _, err := c.call(t); err != nil && failed.CompareAndSwap(false, true) {
				t.Errorf("call %d: %v", n, err)
			}
			n++
		}
	}()
	return sync.OnceValue(func() int {
		close(end)
		return <-counted
	})
}

// progress waits until the one who is busy has made ten more calls.
func (c client) progress(t *testing.T) {
	t.Helper()
	before := c.answered.Load()
	eventually(t, "ten more calls", func() (string, bool) {
		n := c.answered.Load() - before
		return fmt.Sprint(n), n >= 10
	})
}

const (
	pay   = "pay.mesh.internal"
	books = "books.mesh.internal"
)

func TestGRPCClientFollowsEndpoints(t *testing.T) {
	a, b := startBackend(t, "a"), startBackend(t, "b")
	meshd := startControl(t)
	meshd.service(t, pay, endpoints(a.at(1, "")))
	c := meshd.connect(t, pay+":443")
	c.reaches(t, a)

	stop := c.busy(t)
	meshd.service(t, pay, endpoints(b.at(1, "")))
	c.movesTo(t, b)
	meshd.service(t, pay, endpoints(a.at(1, ""), b.at(1, "")))
	c.movesTo(t, a)
	c.movesTo(t, b)
	stop()

	meshd.service(t, pay, endpoints())
	c.comesTo(t, "nowhere", unavailable)
	meshd.service(t, pay, endpoints(a.at(1, "")))
	c.movesTo(t, a)
	nothingRejected(t, meshd)
}

func unavailable(_ string, err error) bool { return status.Code(err) == codes.Unavailable }

func nothingRejected(t *testing.T, c *control) {
	t.Helper()
	nodes := c.Nodes()
	if len(nodes) == 0 {
		t.Error("no client is connected")
	}
	for _, n := range nodes {
		if !strings.HasPrefix(n.UserAgent, "gRPC") || n.Scope.Kind.String() != "grpc" {
			t.Errorf("%q is of kind %s", n.UserAgent, n.Scope.Kind)
		}
		for _, d := range n.Deliveries {
			if d.Rejected != nil {
				t.Errorf("%s: %s", d.Type, d.Rejected.Message)
			}
			if d.Wildcard || d.Subscribed > 1 {
				t.Errorf("%s: asked for %d by name, or for all: %v", d.Type, d.Subscribed, d.Wildcard)
			}
		}
	}
}

// TestGRPCClientOfAServiceThatGoes has a service removed and returned, for clients that heed that and for those whose bootstrap
// says that they should not.
func TestGRPCClientOfAServiceThatGoes(t *testing.T) {
	a, b := startBackend(t, "a"), startBackend(t, "b")
	meshd := startControl(t)
	meshd.service(t, pay, endpoints(a.at(1, "")))
	heeds := meshd.connect(t, pay+":443")
	keeps := meshd.connect(t, pay+":443", "ignore_resource_deletion")
	heeds.reaches(t, a)
	keeps.reaches(t, a)

	for range 2 {
		stop := keeps.busy(t)
		meshd.service(t, pay, gone)
		heeds.comesTo(t, "nowhere", unavailable)
		nothingRejected(t, meshd)
		meshd.service(t, pay, endpoints(b.at(1, "")))
		heeds.movesTo(t, b)
		keeps.movesTo(t, b)
		meshd.service(t, pay, endpoints(a.at(1, "")))
		heeds.movesTo(t, a)
		keeps.movesTo(t, a)
		stop()
	}
	nothingRejected(t, meshd)
}

// TestGRPCClientBeforeItsService asks for what is there later only.
func TestGRPCClientBeforeItsService(t *testing.T) {
	a := startBackend(t, "a")
	meshd := startControl(t)
	c := meshd.connect(t, pay+":443")
	answered := make(chan string, 1)
	go func() {
		got, err := c.call(t, grpc.WaitForReady(true))
		answered <- fmt.Sprint(got, err)
	}()
	meshd.service(t, books, endpoints()) // the first view is without it
	meshd.service(t, pay, endpoints(a.at(1, "")))
	if got := <-answered; got != "a<nil>" {
		t.Errorf("got %s", got)
	}
	nothingRejected(t, meshd)
}

// TestGRPCClientHeedsWeightsAndLocalities counts where calls come to.
func TestGRPCClientHeedsWeightsAndLocalities(t *testing.T) {
	a, b, far := startBackend(t, "a"), startBackend(t, "b"), startBackend(t, "far")
	meshd := startControl(t)
	meshd.service(t, pay, endpoints(a.at(1, ""), b.at(3, "")))
	c := meshd.connect(t, pay+":443")
	c.reaches(t, a, b)
	c.movesTo(t, a)
	c.movesTo(t, b)
	share := func(n int) map[string]int {
		t.Helper()
		counts := map[string]int{}
		for range n {
			got, err := c.call(t)
			if err != nil {
				t.Fatal(err)
			}
			counts[got]++
		}
		return counts
	}
	if got := share(800); got["a"] < 130 || got["a"] > 270 { // 200 are due; six standard deviations are 73
		t.Errorf("weights 1 and 3: calls came to %v", got)
	}

	near := func(s *mesh.Service) {
		s.Distribution = mesh.PreferClose
		s.Endpoints = []mesh.Endpoint{a.at(1, "eu/1"), b.at(1, "eu/1"), far.at(100, "us/1")}
	}
	meshd.service(t, pay, near)
	c.comesTo(t, "evenly near", func(string, error) bool {
		got := share(40)
		return got["far"] == 0 && got["a"] > 10 && got["b"] > 10
	})
	a.stop()
	b.stop()
	c.movesTo(t, far)
	nothingRejected(t, meshd)
}

// TestGRPCClientIsNotDisturbed changes other services, and counts what is sent.
func TestGRPCClientIsNotDisturbed(t *testing.T) {
	a, b := startBackend(t, "a"), startBackend(t, "b")
	meshd := startControl(t)
	meshd.service(t, pay, endpoints(a.at(1, "")))
	c := meshd.connect(t, pay+":443")
	c.reaches(t, a)
	sent := func() (all []string) {
		for _, d := range meshd.Nodes()[0].Deliveries {
			all = append(all, fmt.Sprint(d.Type, " ", d.Subscribed, " ", d.Sent.Nonce))
		}
		return all
	}
	before := sent()
	stop := c.busy(t)
	for i := range 20 {
		meshd.service(t, books, endpoints(a.at(uint32(i+1), "")))
	}
	meshd.service(t, books, gone)
	meshd.service(t, pay, endpoints(b.at(1, "")))
	c.movesTo(t, b)
	if stop() == 0 {
		t.Error("there were no calls")
	}
	want := slices.Clone(before)
	if len(want) != 4 || want[1] != "endpoints 1 4" {
		t.Fatalf("sent before: %q", want)
	}
	want[1] = "endpoints 1 5"
	if got := sent(); !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// TestGRPCClientOutlivesARestart has calls all the time while meshd is away and comes again.
func TestGRPCClientOutlivesARestart(t *testing.T) {
	a, b := startBackend(t, "a"), startBackend(t, "b")
	meshd := startControl(t)
	meshd.service(t, pay, endpoints(a.at(1, "")))
	c := meshd.connect(t, pay+":443")
	c.reaches(t, a)
	stop := c.busy(t)
	meshd.stop()
	c.progress(t)
	meshd.listen(t, meshd.address)
	eventually(t, "the client comes again", func() (string, bool) { return "", len(meshd.Nodes()) > 0 })
	meshd.Apply(meshd.view) // until when nothing is answered
	meshd.service(t, pay, endpoints(b.at(1, "")))
	c.movesTo(t, b)
	stop()
	nothingRejected(t, meshd)
}

// TestGRPCClientResolvesAName has a service of one name.
func TestGRPCClientResolvesAName(t *testing.T) {
	a, b := startBackend(t, "a"), startBackend(t, "b")
	meshd := startControl(t)
	named := func(at *backend) func(*mesh.Service) {
		return func(s *mesh.Service) {
			s.Resolution = mesh.DNS
			s.Endpoints = []mesh.Endpoint{{Address: mesh.HostAddress("localhost"), Ports: []uint16{at.port}, Weight: 1}}
		}
	}
	meshd.service(t, pay, named(a))
	c := meshd.connect(t, pay+":443")
	c.reaches(t, a)
	meshd.service(t, pay, named(b))
	c.movesTo(t, b)
	meshd.service(t, pay, endpoints(a.at(1, ""))) // of another kind
	c.movesTo(t, a)
	nothingRejected(t, meshd)
}

// spoil is the usual translation, but where a service's port has the name of a type: of that the service's resource becomes one
// that gRPC does not take.
func spoil(prev *envoy.Snapshot, view *mesh.View, scope envoy.Scope, settings envoy.Mesh, others ...*envoy.Snapshot) *envoy.Snapshot {
	out := *envoy.Translate(prev, view, scope, settings, others...)
	for t := range envoy.Types {
		for _, good := range out.Resources[t].All() {
			if s, ok := view.Services.Get(good.Services[0]); !ok || s.Ports[0].Name != t.String() {
				continue
			}
			m, err := good.Message()
			if err != nil {
				panic(err)
			}
			spoilers[t](m)
			bad := envoy.NewResource(t, good.Name, m, "", good.Services...)
			if bad.Version == good.Version { // it is prev's
				continue
			}
			out.Resources[t] = out.Resources[t].With(bad.Name, bad)
			out.Versions[t] = out.Versions[t].Minus(good.Digest).Plus(bad.Digest)
		}
	}
	return &out
}

// spoilers make of a resource what gRPC rejects. What they have made they make again.
var spoilers = [envoy.Types]func(proto.Message){
	envoy.Cluster: func(m proto.Message) { m.(*clusterv3.Cluster).LbPolicy = clusterv3.Cluster_MAGLEV },
	envoy.Endpoints: func(m proto.Message) {
		m.(*endpointv3.ClusterLoadAssignment).Endpoints[0].Priority = 1 // and none has 0
	},
	envoy.Listener: func(m proto.Message) { m.(*listenerv3.Listener).ApiListener = nil },
	envoy.Route: func(m proto.Message) {
		m.(*routev3.RouteConfiguration).VirtualHosts[0].Routes[0].Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: "("},
		}
	},
}

// TestGRPCClientRejects gives a client what it does not take. Its calls go on as before, and so do those to other targets.
func TestGRPCClientRejects(t *testing.T) {
	for typ := range envoy.Types {
		t.Run(typ.String(), func(t *testing.T) {
			a, b := startBackend(t, "a"), startBackend(t, "b")
			meshd := startTranslating(t, spoil)
			at := mesh.Origin{Registry: "files", Source: "pay.yaml", Line: 7}
			paying := func(port string, to *backend) {
				t.Helper()
				meshd.service(t, pay, func(s *mesh.Service) {
					s.Origin, s.Ports[0].Name, s.Endpoints = at, port, []mesh.Endpoint{to.at(1, "")}
				})
			}
			paying("good", a)
			meshd.service(t, books, endpoints(a.at(1, "")))
			c, other := meshd.connect(t, pay+":443"), meshd.connect(t, books+":443")
			c.reaches(t, a)
			other.reaches(t, a)
			stop, stopOther := c.busy(t), other.busy(t)
			var had *envoy.Resource
			for _, r := range envoy.Translate(nil, meshd.view, meshd.Nodes()[0].Scope, envoy.Mesh{}).Resources[typ].All() {
				if strings.Contains(string(r.Name), pay) {
					had = r
				}
			}

			paying(typ.String(), a)
			meshd.holdsBack(t, typ, 1)
			if h := meshd.held(typ)[0]; h.Name != had.Name || h.Last != had.Version || h.Rejected == h.Last || h.Message == "" {
				t.Errorf("held back: %+v, want %q at version %s", h, had.Name, had.Version)
			}
			problems := meshd.Problems()
			if len(problems) != 1 || problems[0].Code != "rejected-by-node" || problems[0].Origin != at || problems[0].Serving == "" {
				t.Errorf("problems: %+v", problems)
			}
			meshd.service(t, books, endpoints(b.at(1, "")))
			other.movesTo(t, b)
			c.progress(t)
			c.reaches(t, a)
			// A client that comes now has no earlier version.
			late := meshd.connect(t, pay+":443")
			late.comesTo(t, "nowhere", unavailable)
			meshd.holdsBack(t, typ, 2)
			if !slices.ContainsFunc(meshd.held(typ), func(h xds.Held) bool { return h.Name == had.Name && h.Last == "" }) {
				t.Errorf("held back: %+v, want one without an earlier version", meshd.held(typ))
			}

			paying("good", b)
			c.movesTo(t, b)
			late.movesTo(t, b)
			meshd.holdsBack(t, typ, 0)
			if p := meshd.Problems(); len(p) > 0 {
				t.Errorf("problems are left: %v", p)
			}
			nothingRejected(t, meshd)
			stop()
			stopOther()
		})
	}
}

// holdsBack waits until a resource of the type is held back from so many clients, and no others have rejected any.
func (c *control) holdsBack(t *testing.T, typ envoy.Type, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d %s are held back", want, typ), func() (string, bool) {
		rejected := 0
		for _, n := range c.Nodes() {
			for _, d := range n.Deliveries {
				if d.Rejected != nil {
					rejected++
				}
			}
		}
		held := c.held(typ)
		return fmt.Sprintf("%d have rejected some; %+v", rejected, held), len(held) == want && rejected == want
	})
}

// held are the resources of a type that are held back, each once for every client.
func (c *control) held(typ envoy.Type) (held []xds.Held) {
	for _, n := range c.Nodes() {
		for _, d := range n.Deliveries {
			if d.Type == typ {
				held = append(held, d.Held...)
			}
		}
	}
	return held
}
