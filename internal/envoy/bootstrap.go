package envoy

import (
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// meshdCluster is the one cluster of a bootstrap: meshd itself.
const meshdCluster = "meshd"

// What a bootstrap says of the connection to meshd, and of those from applications.
const (
	xdsConnectTimeout = 5 * time.Second
	// A dead connection is noticed within 40 s, which no TCP time-out would do for an Envoy that has nothing to say.
	xdsKeepalive        = 30 * time.Second
	xdsKeepaliveTimeout = 10 * time.Second
	// With another meshd to go to there is no use in patience; but meshd refuses clients that ping more often than every 10 s.
	replicaConnectTimeout   = 2 * time.Second
	replicaKeepalive        = 15 * time.Second
	replicaKeepaliveTimeout = 5 * time.Second
	// For how long a meshd that failed is passed over, at first and at most: long enough for the next to be asked by the stream of
	// load reports too, which Envoy opens again after 5 s, and no longer, for while all are passed over, Envoy asks any of them at random.
	replicaPassedOver    = 6 * time.Second
	replicaPassedOverMax = 10 * time.Second
	// Envoy's own longest pause is 30 s; an outage of meshd should not last that much longer than meshd is away.
	xdsRetry    = 500 * time.Millisecond
	xdsRetryMax = 10 * time.Second
	// More connections than this are refused, where file descriptors would run out. Envoy warns of a bootstrap without a limit.
	maxDownstreamConnections = 100_000
)

// Bootstrap is what an Envoy is told when it starts: who it is, and where its meshd is.
type Bootstrap struct {
	Node *corev3.Node
	// XDS is meshd or, if there are replicas, all of them: Envoy asks the first, and when that fails the next that does
	// not. It stays with the one that answers until their connection ends.
	XDS   []HostPort
	Admin HostPort // Envoy's own administration; the zero HostPort is none
	// Reports are what it tells meshd of its own accord.
	Reports Reports
	TLS     TLS
}

// HostPort is a host name or an IP address, and a port.
type HostPort struct {
	Host string
	Port uint16
}

// Message makes the bootstrap's message: everything by delta xDS over one stream. The node's metadata is made to say how
// it is captured. The error is that of [ScopeOf], for a node that meshd would refuse.
func (b Bootstrap) Message() (*bootstrapv3.Bootstrap, error) {
	scope, err := ScopeOf(b.Node)
	if err != nil {
		return nil, err
	}
	m := &bootstrapv3.Bootstrap{
		Node: withCapture(b.Node, scope.Capture),
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: &corev3.ApiConfigSource{
				ApiType:             corev3.ApiConfigSource_DELTA_GRPC,
				TransportApiVersion: corev3.ApiVersion_V3,
				// A node with much metadata is not read again with each acknowledgement.
				SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
					ClusterName: meshdCluster,
					RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
						BaseInterval: durationpb.New(xdsRetry), MaxInterval: durationpb.New(xdsRetryMax),
					}},
				}}}},
			},
			CdsConfig: ads(),
			LdsConfig: ads(),
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{b.cluster()}},
		OverloadManager: &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
			Name: "envoy.resource_monitors.global_downstream_max_connections",
			ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: pack(&downstreamv3.DownstreamConnectionsConfig{
				MaxActiveDownstreamConnections: maxDownstreamConnections,
			})},
		}}},
	}
	if b.Reports == LoadReports {
		m.ClusterManager = &bootstrapv3.ClusterManager{LoadStatsConfig: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: meshdCluster}, // it tries again every five seconds
			}}},
		}}
	}
	if b.Admin != (HostPort{}) {
		m.Admin = &bootstrapv3.Admin{Address: socketAddress(b.Admin.Host, b.Admin.Port)}
	}
	return m, nil
}

// cluster is that of meshd, whose names Envoy resolves unless all are IP addresses.
func (b Bootstrap) cluster() *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:           meshdCluster,
		ConnectTimeout: durationpb.New(xdsConnectTimeout),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: meshdCluster},
		// One for all: it is the same service under several addresses.
		TransportSocket: b.TLS.socket(b.XDS),
	}
	keepalive := &corev3.KeepaliveSettings{Interval: durationpb.New(xdsKeepalive), Timeout: durationpb.New(xdsKeepaliveTimeout)}
	discovery(c, clusterv3.Cluster_STATIC)
	for i, x := range b.XDS {
		c.LoadAssignment.Endpoints = append(c.LoadAssignment.Endpoints, &endpointv3.LocalityLbEndpoints{
			Priority: uint32(i),
			LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socketAddress(x.Host, x.Port)}},
			}},
		})
		if !isIP(x.Host) {
			discovery(c, clusterv3.Cluster_STRICT_DNS)
			c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
		}
	}
	if len(b.XDS) > 1 {
		failOver(c)
		keepalive = &corev3.KeepaliveSettings{Interval: durationpb.New(replicaKeepalive), Timeout: durationpb.New(replicaKeepaliveTimeout)}
	}
	speak(c, &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: &corev3.Http2ProtocolOptions{ConnectionKeepalive: keepalive},
			},
		},
	}})
	return c
}

// failOver makes a cluster whose endpoints have a priority each leave one at its first failure. Priorities alone do not: an
// endpoint that nobody has found unhealthy is healthy, and Envoy would dial the dead one for ever. What tells is outlier
// detection, for which a connection that cannot be made, or that breaks, is a response of 503. No health checks: they would
// keep a connection open to every meshd from every Envoy.
func failOver(c *clusterv3.Cluster) {
	c.ConnectTimeout = durationpb.New(replicaConnectTimeout)
	c.OutlierDetection = &clusterv3.OutlierDetection{
		Consecutive_5Xx:    wrapperspb.UInt32(1),
		Interval:           durationpb.New(time.Second),
		BaseEjectionTime:   durationpb.New(replicaPassedOver),
		MaxEjectionTime:    durationpb.New(replicaPassedOverMax),
		MaxEjectionPercent: wrapperspb.UInt32(100),
	}
}

// withCapture is the node with its capture spelt out, so that the default of a later meshd does not change it.
func withCapture(node *corev3.Node, capture Capture) *corev3.Node {
	return with(node, "capture", structpb.NewStringValue(capture.String()))
}

// WithLoadReports is a gRPC client's node with the word that it reports its load.
func WithLoadReports(node *corev3.Node) *corev3.Node {
	return with(node, "loadReports", structpb.NewBoolValue(true))
}

// with is the node with one of meshd's own settings in its metadata.
func with(node *corev3.Node, setting string, value *structpb.Value) *corev3.Node {
	n := proto.CloneOf(node)
	if n.Metadata.GetFields() == nil {
		n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	}
	own := n.Metadata.Fields["meshd"].GetStructValue()
	if own.GetFields() == nil {
		own = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		n.Metadata.Fields["meshd"] = structpb.NewStructValue(own)
	}
	own.Fields[setting] = value
	return n
}
