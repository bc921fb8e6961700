package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshd/meshd/internal/mesh"
)

// gRPC clients without a proxy. Each port of a service that may speak HTTP/2 is one chain of resources under the name that
// the application dials, xds:///HOST:PORT: listener, route, cluster, endpoints. Nothing is shared between services, so that
// a client is sent what it names and no more. The rules are those of gRPC's proposals (A27, A28, A37, A39, A41, A48).

// Kind is what a node is.
type Kind uint8

// The kinds. A gRPC client is no proxy: it takes no connections, and is given neither a capture nor an inbound side.
const (
	Proxy Kind = iota
	GRPC
)

func (k Kind) String() string { return [...]string{"proxy", "grpc"}[k] }

// MarshalText writes the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// GRPCAgent is how the user agents of gRPC clients begin, whatever their language: "gRPC Go", "gRPC Java".
const GRPCAgent = "gRPC"

// forGRPC tells whether a gRPC client may speak to a port.
func forGRPC(p mesh.Port) bool {
	return slices.ContainsFunc(p.Protocols(), func(o mesh.Protocol) bool {
		return o == mesh.Sniffed || o.HTTP() && o != mesh.HTTPProxy
	})
}

// grpcResources are all that gRPC clients are given of a service.
func grpcResources(s *mesh.Service, scope Scope) []*Resource {
	var out []*Resource
	for i, p := range s.Ports {
		if !forGRPC(p) {
			continue
		}
		c, obstacle := grpcCluster(s, i, scope)
		if obstacle != "" {
			continue
		}
		name, target := clusterName(s, p.Number), virtualHostName(s, p.Number)
		cluster := NewResource(Cluster, name, c, "", s.Key)
		out = append(out, cluster)
		if c.GetType() == clusterv3.Cluster_EDS {
			out = append(out, NewResource(Endpoints, name, grpcAssignment(s, i, scope), cluster.Version, s.Key))
		}
		out = append(out,
			NewResource(Listener, Name(target), grpcListener(target), "", s.Key),
			NewResource(Route, Name(target), grpcRoutes(s, target, string(name)), "", s.Key))
	}
	return out
}

// grpcListener is a listener that nothing listens on: it only says by which route a target's calls go.
func grpcListener(target string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: target, ApiListener: &listenerv3.ApiListener{ApiListener: pack(&hcmv3.HttpConnectionManager{
		StatPrefix:     target,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: target}},
		HttpFilters:    []*hcmv3.HttpFilter{httpFilter("router", &routerv3.Router{})},
	})}}
}

// grpcRoutes are those of one target. A client looks for its target among the domains as it is written, port and all.
func grpcRoutes(s *mesh.Service, target, cluster string) *routev3.RouteConfiguration {
	host := virtualHost(target, []string{target, s.Host.String()}, cluster)
	host.Routes[0].Match.PathSpecifier = &routev3.RouteMatch_Prefix{}
	return routeConfiguration(target, host)
}

// grpcCluster is the cluster of a service's port, or what stands in the way of one. Its endpoints come by EDS, or are one
// name that the client resolves (A37).
//
// The policy is ROUND_ROBIN: with LEAST_REQUEST gRPC heeds no weights of localities, and not every language knows it (A48).
func grpcCluster(s *mesh.Service, port int, scope Scope) (c *clusterv3.Cluster, obstacle string) {
	switch {
	case s.Host.Wildcard():
		return nil, "a gRPC client asks for the host that it dials, and meshd cannot tell which there are; list the hosts one by one"
	case s.Resolution == mesh.ResolutionNone || s.Resolution == mesh.DynamicDNS:
		return nil, fmt.Sprintf("with resolution %s the destination is what was dialled, which gRPC has no kind of cluster for; give it endpoints and resolution STATIC or DNS", s.Resolution)
	}
	c = newCluster(string(clusterName(s, s.Ports[port].Number)))
	c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	if scope.Reports == LoadReports { // to the server that the cluster comes from (A27)
		c.LrsServer = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}}
	}
	if !s.Resolution.DNS() {
		endpointDiscovery(c)
		return c, ""
	}
	dnsCluster(c, s, port, scope)
	all, names := 0, 0
	for _, g := range c.LoadAssignment.Endpoints {
		for _, e := range g.LbEndpoints {
			all++
			if _, err := netip.ParseAddr(e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()); err != nil {
				names++
			}
		}
	}
	switch {
	case c.GetType() == clusterv3.Cluster_LOGICAL_DNS:
	case names == 0: // nothing to resolve
		c.LoadAssignment = nil
		endpointDiscovery(c)
	case all == 1:
		discovery(c, clusterv3.Cluster_LOGICAL_DNS)
	default:
		return nil, fmt.Sprintf("gRPC resolves one name for a service, and this has %d endpoints of which some are names; keep one, or write their IP addresses and resolution STATIC", all)
	}
	return c, ""
}

// grpcAssignment is the load assignment of a service's port as gRPC heeds it: of endpoints it takes those that are healthy
// and have an IP address; weights only between localities, not within one; none that is degraded (A27). So each locality is
// divided into parts of one weight, and what is degraded comes after all that is not, as Envoy has it.
func grpcAssignment(s *mesh.Service, port int, scope Scope) *endpointv3.ClusterLoadAssignment {
	type class struct {
		weight   uint32
		priority uint32
	}
	type place struct {
		region, zone, subZone string
		priority              uint32
	}
	a := assignment(s, port, scope)
	afterAll := uint32(len(a.Endpoints)) // priorities have no gaps, so that all are less
	var parts []*endpointv3.LocalityLbEndpoints
	taken := map[place]bool{}
	named := func(l *corev3.Locality, c class) *corev3.Locality {
		at := place{l.Region, l.Zone, l.SubZone, c.priority}
		if taken[at] {
			at.subZone += "#" + strconv.Itoa(int(c.weight))
		}
		for taken[at] {
			at.subZone += "#"
		}
		taken[at] = true
		return &corev3.Locality{Region: at.region, Zone: at.zone, SubZone: at.subZone}
	}
	for _, g := range a.Endpoints {
		classes := map[class]*endpointv3.LocalityLbEndpoints{}
		for _, e := range g.LbEndpoints {
			c := class{e.LoadBalancingWeight.GetValue(), g.Priority}
			switch e.HealthStatus {
			case corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_HEALTHY:
			case corev3.HealthStatus_DEGRADED:
				e.HealthStatus = corev3.HealthStatus_HEALTHY
				c.priority += afterAll
			default:
				continue
			}
			if e.GetEndpoint().GetAddress().GetSocketAddress() == nil {
				continue
			}
			part := classes[c]
			if part == nil {
				part = &endpointv3.LocalityLbEndpoints{
					Locality: named(g.Locality, c), Priority: c.priority, LoadBalancingWeight: wrapperspb.UInt32(0),
				}
				classes[c] = part
				parts = append(parts, part)
			}
			part.LbEndpoints = append(part.LbEndpoints, e)
			part.LoadBalancingWeight.Value += c.weight
		}
	}
	closeGaps(parts)
	a.Endpoints = parts
	return a
}

// grpcPort is what gRPC clients are not given of a port, and why. What they are given does not depend on the other services
// of the port.
func grpcPort(number uint16, services []*mesh.Service, scope Scope) *portGroup {
	b := &portBuilder{number: number, scope: scope}
	for _, s := range services {
		i := slices.IndexFunc(s.Ports, func(p mesh.Port) bool { return p.Number == number })
		if !forGRPC(s.Ports[i]) {
			continue
		}
		if _, obstacle := grpcCluster(s, i, scope); obstacle != "" {
			b.refuse(s, s.Ports[i], "not-for-grpc", fmt.Sprintf("%s:%d is not served: %s", s.Host, number, obstacle))
		}
	}
	return &portGroup{services: services, problems: b.problems}
}
