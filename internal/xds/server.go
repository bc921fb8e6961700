package xds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	loadservice "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	statusservice "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// Options are a server's settings. Zero values stand for the defaults, unless a field says otherwise.
type Options struct {
	Settings   envoy.Mesh
	Identifier string // names this meshd to its clients, as Envoy's admin pages show it; default "meshd"

	// DrainTime is how long streams get to end when the server stops; default 5 s.
	DrainTime time.Duration
	// DrainGrace is how long a cluster or its endpoints stay after the last listener and route that led to them went;
	// default 1 s, negative for none.
	DrainGrace time.Duration
	// RetryRejected is after what time a resource that a client rejected is sent to it again as it is, by itself; then after
	// twice that, and so on, at most an hour; default 1 min, negative for never.
	RetryRejected time.Duration
	// MaxConnectionAge is after what time, give or take a tenth, a client is told to connect anew, so that replicas share
	// the load; default 4 h.
	MaxConnectionAge time.Duration

	Canary Canary // off by default

	MaxRequestSize int // bytes; default 64 MiB
	MaxStreams     int // at one time, of all services; default 10,000. As many connections are allowed
	// MaxRequestRate is how many requests a second one stream may send in the long run, where each begun 64 KiB count as one; default
	// 500. What comes faster waits.
	MaxRequestRate int
	// MinPing is how often a client may ping; default 10 s. Envoys are told to every 30 s, which gRPC's own default of
	// five minutes answers with GOAWAY.
	MinPing time.Duration
	// Ping is after what idle time a client is pinged, and PingTimeout how long it has to answer; defaults 30 s and 30 s. An
	// Envoy answers by the thread that applies what it is sent, which may take it long.
	Ping, PingTimeout time.Duration

	// LoadReportInterval is how often clients that report their load (LRS) do so; 0 takes no reports.
	LoadReportInterval time.Duration

	Credentials *Credentials // how clients connect; default in plain text

	Translate Translation // default [envoy.Translate]
}

// endOfAge is how long the streams of a connection that has reached its age may go on.
const endOfAge = 10 * time.Second

// What one connection may have: so many streams at one time, time to say who it is, and time without a stream. An Envoy has five streams at
// most, if it does not use ADS.
const (
	streamsOfOne = 100
	greeting     = 20 * time.Second
	idle         = 10 * time.Minute
)

// window is how many bytes of requests a client may send ahead. Setting it turns off the pings that measure bandwidth.
const window = 1 << 20

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.DrainTime, 5*time.Second)
	set(&o.DrainGrace, time.Second)
	set(&o.RetryRejected, time.Minute)
	set(&o.MaxConnectionAge, 4*time.Hour)
	set(&o.MinPing, 10*time.Second)
	set(&o.Ping, 30*time.Second)
	set(&o.PingTimeout, 30*time.Second)
	if o.MaxRequestSize == 0 {
		o.MaxRequestSize = 64 << 20
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 10_000
	}
	if o.MaxRequestRate == 0 {
		o.MaxRequestRate = 500
	}
	if o.Identifier == "" {
		o.Identifier = "meshd"
	}
	if o.Translate == nil {
		o.Translate = envoy.Translate
	}
	return o
}

// Server serves the views that it is given. It serves once.
type Server struct {
	log          hclog.Logger
	options      Options
	controlPlane []byte
	health       *health.Server
	scopes       scopes
	rosters      rosters
	meter        meter
	loads        loads
	limits       limits
	describing   sync.Mutex // held by who makes an answer of the client status service

	draining  chan struct{}
	receivers sync.WaitGroup
}

// New makes a server. It does nothing before Run.
func New(log hclog.Logger, o Options) *Server {
	o = o.withDefaults()
	s := &Server{
		log:          log.Named("xds"),
		options:      o,
		controlPlane: encodeControlPlane(o.Identifier),
		health:       health.NewServer(),
		scopes:       scopes{translate: o.Translate, settings: o.Settings, of: map[envoy.Scope]*scope{}},
		limits:       limits{log: log.Named("xds"), most: o.MaxStreams},
		draining:     make(chan struct{}),
	}
	if o.Canary.on() {
		s.scopes.canary = &canary{options: o.Canary, scopes: &s.scopes, wake: make(chan struct{}, 1)}
	}
	s.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	return s
}

// Apply makes view the one that is served. Views are applied by one goroutine, in order; no client is waited for. Streams
// that came before the first view are answered now.
func (s *Server) Apply(view *mesh.View) {
	start := time.Now()
	s.scopes.apply(view)
	s.meter.translation.Store(int64(time.Since(start)))
	s.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
}

// Run serves on l, which it closes, until ctx ends; then it tells all clients to go elsewhere, waits for at most the
// drain time, and returns when nothing is left. The error is that of the listener.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()),
		s.options.Credentials.option(),
		grpc.MaxRecvMsgSize(s.options.MaxRequestSize),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(window),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: s.options.MinPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: s.options.Ping, Timeout: s.options.PingTimeout,
			MaxConnectionIdle: idle,
			MaxConnectionAge:  s.options.MaxConnectionAge, MaxConnectionAgeGrace: endOfAge, // gRPC adds the jitter
		}),
		grpc.MaxConcurrentStreams(streamsOfOne),
		grpc.ConnectionTimeout(greeting),
		grpc.StreamInterceptor(s.limits.stream),
		grpc.UnaryInterceptor(s.limits.unary),
		grpc.WaitForHandlers(true),
	)
	s.register(g)

	if c := s.scopes.canary; c != nil {
		canaries, stop := context.WithCancel(ctx)
		var rolling sync.WaitGroup
		rolling.Go(func() { c.run(canaries) })
		defer rolling.Wait()
		defer stop()
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(limitedListener{l, &s.limits}) }()
	select {
	case <-ctx.Done():
	case err := <-served:
		served <- err
	}

	s.health.Shutdown()
	close(s.draining)
	stopped := make(chan struct{})
	go func() {
		g.GracefulStop()
		close(stopped)
	}()
	patience := time.NewTimer(s.options.DrainTime)
	defer patience.Stop()
	select {
	case <-stopped:
	case <-patience.C:
		s.limits.disconnect()
		g.Stop()
		<-stopped
	}
	s.receivers.Wait()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve xDS on %s: %w", l.Addr(), err)
	}
	return nil
}

// stopping tells whether streams end since the server does.
func (s *Server) stopping() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

func (s *Server) register(g *grpc.Server) {
	discovery.RegisterAggregatedDiscoveryServiceServer(g, adsService{Server: s})
	clusterservice.RegisterClusterDiscoveryServiceServer(g, cdsService{Server: s})
	endpointservice.RegisterEndpointDiscoveryServiceServer(g, edsService{Server: s})
	listenerservice.RegisterListenerDiscoveryServiceServer(g, ldsService{Server: s})
	routeservice.RegisterRouteDiscoveryServiceServer(g, rdsService{Server: s})
	statusservice.RegisterClientStatusDiscoveryServiceServer(g, csdsService{Server: s})
	if s.options.LoadReportInterval > 0 {
		loadservice.RegisterLoadReportingServiceServer(g, lrsService{Server: s})
	}
	grpc_health_v1.RegisterHealthServer(g, s.health)
	reflection.Register(g) // so that grpcurl and the like know the services
}

// The services. What is not here, the Fetch methods of REST, is Unimplemented.
type (
	adsService struct {
		*Server
		discovery.UnimplementedAggregatedDiscoveryServiceServer
	}
	cdsService struct {
		*Server
		clusterservice.UnimplementedClusterDiscoveryServiceServer
	}
	edsService struct {
		*Server
		endpointservice.UnimplementedEndpointDiscoveryServiceServer
	}
	ldsService struct {
		*Server
		listenerservice.UnimplementedListenerDiscoveryServiceServer
	}
	rdsService struct {
		*Server
		routeservice.UnimplementedRouteDiscoveryServiceServer
	}
)

func (s adsService) StreamAggregatedResources(ss discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.serve(ss, SotW, allTypes)
}

func (s adsService) DeltaAggregatedResources(ss discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(ss, Delta, allTypes)
}

func (s cdsService) StreamClusters(ss clusterservice.ClusterDiscoveryService_StreamClustersServer) error {
	return s.serve(ss, SotW, envoy.Cluster)
}

func (s cdsService) DeltaClusters(ss clusterservice.ClusterDiscoveryService_DeltaClustersServer) error {
	return s.serve(ss, Delta, envoy.Cluster)
}

func (s edsService) StreamEndpoints(ss endpointservice.EndpointDiscoveryService_StreamEndpointsServer) error {
	return s.serve(ss, SotW, envoy.Endpoints)
}

func (s edsService) DeltaEndpoints(ss endpointservice.EndpointDiscoveryService_DeltaEndpointsServer) error {
	return s.serve(ss, Delta, envoy.Endpoints)
}

func (s ldsService) StreamListeners(ss listenerservice.ListenerDiscoveryService_StreamListenersServer) error {
	return s.serve(ss, SotW, envoy.Listener)
}

func (s ldsService) DeltaListeners(ss listenerservice.ListenerDiscoveryService_DeltaListenersServer) error {
	return s.serve(ss, Delta, envoy.Listener)
}

func (s rdsService) StreamRoutes(ss routeservice.RouteDiscoveryService_StreamRoutesServer) error {
	return s.serve(ss, SotW, envoy.Route)
}

func (s rdsService) DeltaRoutes(ss routeservice.RouteDiscoveryService_DeltaRoutesServer) error {
	return s.serve(ss, Delta, envoy.Route)
}
