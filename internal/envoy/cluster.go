package envoy

import (
	"math"
	"slices"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshd/meshd/internal/mesh"
)

// The clusters that every node has, under the names that Istio gives them.
const (
	passthrough        = "PassthroughCluster"        // to the address that the application dialled
	blackHole          = "BlackHoleCluster"          // to nowhere
	inboundPassthrough = "InboundPassthroughCluster" // to the application on this machine
)

const (
	connectTimeout = 10 * time.Second
	dnsRefresh     = 60 * time.Second // where an answer has no time to live
	dnsJitter      = 100 * time.Millisecond
)

// clusterName is outbound|PORT|SUBSET|HOST, as Istio has it.
func clusterName(s *mesh.Service, port uint16) Name {
	return Name("outbound|" + strconv.Itoa(int(port)) + "||" + s.Host.String())
}

// sameClusters tells whether nodes of two scopes are given the same clusters and endpoints of a service.
func sameClusters(s *mesh.Service, a, b Scope) bool {
	return a.Kind == b.Kind && a.Reports == b.Reports && a.Family == b.Family && (a.Capture == b.Capture || s.Resolution != mesh.ResolutionNone) &&
		heeded(s.Distribution, a.Locality) == heeded(s.Distribution, b.Locality)
}

// serviceResources are a service's clusters and the load assignments of those that have one.
func serviceResources(s *mesh.Service, scope Scope) []*Resource {
	if scope.Kind == GRPC {
		return grpcResources(s, scope)
	}
	var out []*Resource
	for i, p := range s.Ports {
		if !slices.ContainsFunc(p.Protocols(), func(o mesh.Protocol) bool { return forwarded(s, o, scope) }) {
			continue
		}
		name := clusterName(s, p.Number)
		c := serviceCluster(s, i, scope)
		cluster := NewResource(Cluster, name, c, "", s.Key)
		out = append(out, cluster)
		if c.GetType() == clusterv3.Cluster_EDS {
			// A cluster that changes warms until its endpoints come again (Envoy's CDS documentation, "warming"): its
			// version is part of theirs.
			out = append(out, NewResource(Endpoints, name, assignment(s, i, scope), cluster.Version, s.Key))
		}
	}
	return out
}

// forwardsByName tells whether a port's destination is the name in the request: what DYNAMIC_DNS says, and all that
// is left of NONE where nothing redirects connections, since what was dialled is then the proxy itself.
func forwardsByName(s *mesh.Service, scope Scope) bool {
	return s.Resolution == mesh.DynamicDNS || s.Resolution == mesh.ResolutionNone && scope.Capture == None
}

// forwarded tells whether connections of a protocol have a destination in this scope: UDP has none, and where the name
// decides, a protocol that carries none has none either.
func forwarded(s *mesh.Service, p mesh.Protocol, scope Scope) bool {
	return p != mesh.UDP && (carriesName(p) || !forwardsByName(s, scope))
}

func carriesName(p mesh.Protocol) bool { return p.HTTP() || p.TLS() || p == mesh.Sniffed }

func serviceCluster(s *mesh.Service, port int, scope Scope) *clusterv3.Cluster {
	p := s.Ports[port]
	c := newCluster(string(clusterName(s, p.Number)))
	switch {
	case forwardsByName(s, scope):
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.clusters.dynamic_forward_proxy",
			TypedConfig: pack(&dfpclusterv3.ClusterConfig{
				ClusterImplementationSpecifier: &dfpclusterv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: dnsCache(scope.Family)},
				// Else Envoy wants HTTP options to verify the name in the upstream's certificate. There is none: what is encrypted
				// is passed on as it is.
				AllowInsecureClusterOptions: true,
			}),
		}}
	case s.Resolution == mesh.ResolutionNone:
		originalDestination(c)
		if p.Target != 0 {
			c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
				UpstreamPortOverride: wrapperspb.UInt32(uint32(p.Target)),
			}}
		}
	case s.Resolution.DNS():
		dnsCluster(c, s, port, scope)
	default:
		endpointDiscovery(c)
	}
	if s.Distribution != mesh.AnyEndpoint && c.LbPolicy == clusterv3.Cluster_LEAST_REQUEST {
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	}
	switch {
	case p.Protocol.HTTP2():
		speakHTTP2(c)
	case p.Protocol == mesh.Sniffed:
		speakAsDownstream(c)
	}
	return c
}

// newCluster has what all clusters have in common: no limits but the application's own, and no panic: a cluster whose
// endpoints are all unhealthy says so.
func newCluster(name string) *clusterv3.Cluster {
	unlimited := wrapperspb.UInt32(math.MaxUint32)
	return &clusterv3.Cluster{
		Name:           name,
		ConnectTimeout: durationpb.New(connectTimeout),
		LbPolicy:       clusterv3.Cluster_LEAST_REQUEST,
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: unlimited, MaxPendingRequests: unlimited, MaxRequests: unlimited, MaxRetries: unlimited,
		}}},
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}},
	}
}

func discovery(c *clusterv3.Cluster, t clusterv3.Cluster_DiscoveryType) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: t}
}

// endpointDiscovery makes a cluster whose endpoints come as a load assignment of the same name.
func endpointDiscovery(c *clusterv3.Cluster) {
	discovery(c, clusterv3.Cluster_EDS)
	c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: c.Name}
}

func originalDestination(c *clusterv3.Cluster) {
	discovery(c, clusterv3.Cluster_ORIGINAL_DST)
	c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
}

// dnsCluster makes a cluster whose endpoints Envoy resolves. Round robin, and racing of connections, need LOGICAL_DNS,
// which takes exactly one endpoint: the first. Without any, STRICT_DNS is an empty cluster that answers 503.
func dnsCluster(c *clusterv3.Cluster, s *mesh.Service, port int, scope Scope) {
	c.LoadAssignment = assignment(s, port, scope)
	kind := clusterv3.Cluster_STRICT_DNS
	race := s.Connect == mesh.RaceFirstTCPConnect
	if groups := c.LoadAssignment.Endpoints; len(groups) > 0 && (s.Resolution == mesh.DNSRoundRobin || race) {
		kind = clusterv3.Cluster_LOGICAL_DNS
		groups[0].LbEndpoints = groups[0].LbEndpoints[:1]
		groups[0].LoadBalancingWeight = groups[0].LbEndpoints[0].LoadBalancingWeight
		groups[0].Priority = 0
		c.LoadAssignment.Endpoints = groups[:1]
	}
	discovery(c, kind)
	c.DnsLookupFamily = lookupFamily(scope.Family)
	if race {
		c.DnsLookupFamily = clusterv3.Cluster_ALL
	}
	// The typed form of DNS clusters would change their type, by which dashboards know them.
	c.DnsRefreshRate = durationpb.New(dnsRefresh) //lint:ignore SA1019 see above
	c.RespectDnsTtl = true                        //lint:ignore SA1019 see above
	c.DnsJitter = durationpb.New(dnsJitter)       //lint:ignore SA1019 see above
}

func lookupFamily(f Family) clusterv3.Cluster_DnsLookupFamily {
	if f == IPv6 {
		return clusterv3.Cluster_V6_ONLY
	}
	return clusterv3.Cluster_V4_ONLY
}

// dnsCache is the one cache of a node's dynamic forward proxies: Envoy wants all that share it to say the same of it,
// and finds a filter's hosts in a cluster only if they share it.
func dnsCache(f Family) *dfpv3.DnsCacheConfig {
	return &dfpv3.DnsCacheConfig{Name: "meshd", DnsLookupFamily: lookupFamily(f)}
}

const httpOptionsName = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func speak(c *clusterv3.Cluster, o *httpv3.HttpProtocolOptions) {
	c.TypedExtensionProtocolOptions = packed(httpOptionsName, o)
}

func speakHTTP2(c *clusterv3.Cluster) {
	speak(c, &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
		},
	}})
}

// speakAsDownstream uses upstream what the application uses.
func speakAsDownstream(c *clusterv3.Cluster) {
	speak(c, &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
		UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
			HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
		},
	}})
}

// baseClusters are the clusters that every node has.
func baseClusters(f Family) []*clusterv3.Cluster {
	pass := newCluster(passthrough)
	hole := newCluster(blackHole)
	inbound := newCluster(inboundPassthrough)
	originalDestination(pass)
	toApplication(inbound, f)
	for _, c := range []*clusterv3.Cluster{pass, inbound} {
		speakAsDownstream(c)
	}
	discovery(hole, clusterv3.Cluster_STATIC)
	hole.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	return []*clusterv3.Cluster{pass, hole, inbound}
}

// assignment is the load assignment of a service's port. Its groups have weights, priorities from 0 without gaps, and
// no endpoint twice, as Envoy and gRPC (A27) want them.
func assignment(s *mesh.Service, port int, scope Scope) *endpointv3.ClusterLoadAssignment {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: string(clusterName(s, s.Ports[port].Number))}
	type place struct {
		address mesh.Address
		port    uint16
	}
	seen := map[place]*wrapperspb.UInt32Value{}
	var group *endpointv3.LocalityLbEndpoints
	var at mesh.Locality // of group
	scale := weightScale(s.Endpoints)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		here := place{addressFor(scope.Family, e), e.Ports[port]}
		if here.port == 0 || !resolvable(s, here.address) {
			continue
		}
		weight := uint32(max(1, uint64(e.Weight)/scale))
		if w := seen[here]; w != nil {
			w.Value += weight
			continue
		}
		far := distance(s.Distribution, scope.Locality, e)
		if group == nil || e.Locality != at || far != group.Priority {
			at = e.Locality
			group = &endpointv3.LocalityLbEndpoints{
				Locality: &corev3.Locality{Region: at.Region, Zone: at.Zone, SubZone: at.SubZone},
				Priority: far,
			}
			a.Endpoints = append(a.Endpoints, group)
		}
		w := wrapperspb.UInt32(weight)
		seen[here] = w
		group.LbEndpoints = append(group.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: endpointAddress(here.address, here.port)}},
			HealthStatus:        healthStatus[e.Health],
			LoadBalancingWeight: w,
		})
	}
	for _, g := range a.Endpoints {
		sum := uint32(0)
		for _, e := range g.LbEndpoints {
			sum += e.LoadBalancingWeight.Value
		}
		g.LoadBalancingWeight = wrapperspb.UInt32(sum)
	}
	closeGaps(a.Endpoints)
	return a
}

// weightScale is what weights are divided by, so that their sum stays in 32 bits as Envoy wants it.
func weightScale(endpoints []mesh.Endpoint) uint64 {
	var sum uint64
	for i := range endpoints {
		sum += uint64(endpoints[i].Weight)
	}
	// Each share may round up to 1: room for that is kept.
	room := uint64(math.MaxUint32) - uint64(len(endpoints))
	return 1 + sum/room
}

// resolvable tells whether a cluster of the service can hold the address.
func resolvable(s *mesh.Service, a mesh.Address) bool {
	_, host := a.Host()
	_, socket := a.Socket()
	if s.Resolution.DNS() {
		return !socket
	}
	return !host
}

var healthStatus = [...]corev3.HealthStatus{
	mesh.HealthUnknown: corev3.HealthStatus_UNKNOWN,
	mesh.Healthy:       corev3.HealthStatus_HEALTHY,
	mesh.Degraded:      corev3.HealthStatus_DEGRADED,
	mesh.Draining:      corev3.HealthStatus_DRAINING,
	mesh.Unhealthy:     corev3.HealthStatus_UNHEALTHY,
}

func endpointAddress(a mesh.Address, port uint16) *corev3.Address {
	if path, ok := a.Socket(); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return socketAddress(a.String(), port)
}

// distance is the priority of an endpoint for a node at from: 0 the nearest.
func distance(d mesh.Distribution, from mesh.Locality, e *mesh.Endpoint) uint32 {
	at := e.Locality
	sameRegion := from.Region == at.Region && from.Region != ""
	switch {
	case d == mesh.AnyEndpoint || d == mesh.PreferRegion && sameRegion:
		return 0
	case d == mesh.PreferRegion:
		return 1 + uint32(e.Rank)
	case !sameRegion:
		return 3
	case from.Zone != at.Zone:
		return 2
	case from.SubZone != at.SubZone && d == mesh.PreferSameNode:
		return 1
	}
	return 0
}

// heeded is what counts of a node's locality in a [distance].
func heeded(d mesh.Distribution, from mesh.Locality) mesh.Locality {
	switch d {
	case mesh.PreferRegion:
		return mesh.Locality{Region: from.Region}
	case mesh.PreferClose:
		return mesh.Locality{Region: from.Region, Zone: from.Zone}
	case mesh.PreferSameNode:
		return from
	}
	return mesh.Locality{}
}

// closeGaps renumbers priorities so that they begin at 0 and none is left out.
func closeGaps(groups []*endpointv3.LocalityLbEndpoints) {
	var used []uint32
	for _, g := range groups {
		used = append(used, g.Priority)
	}
	slices.Sort(used)
	used = slices.Compact(used)
	for _, g := range groups {
		i, _ := slices.BinarySearch(used, g.Priority)
		g.Priority = uint32(i)
	}
}
