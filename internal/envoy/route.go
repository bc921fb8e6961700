package envoy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshd/meshd/internal/mesh"
)

// virtualHostName is HOST:PORT.
func virtualHostName(s *mesh.Service, port uint16) string {
	return s.Host.String() + ":" + strconv.Itoa(int(port))
}

// portRoutes is the route configuration that the HTTP services of a port share, named after the port. The services come
// in the order in which they take domains.
func portRoutes(port uint16, services []*mesh.Service, scope Scope, settings Mesh) *routev3.RouteConfiguration {
	claimed := map[string]bool{}
	for _, s := range services {
		claimed[s.Host.String()] = true
	}
	var hosts []*routev3.VirtualHost
	for _, s := range services {
		own := s.Host.String()
		domains := []string{own}
		for _, d := range slices.Concat([]string{own + "."}, shortNames(s.Host, scope), addressDomains(addressesOf(s, scope))) {
			if !claimed[d] {
				claimed[d] = true
				domains = append(domains, d)
			}
		}
		hosts = append(hosts, virtualHost(virtualHostName(s, port), domains, string(clusterName(s, port))))
	}
	slices.SortFunc(hosts, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.Name, b.Name) })
	return routeConfiguration(strconv.Itoa(int(port)), append(hosts, otherHosts(settings))...)
}

// ownRoutes is the route configuration of a sniffed port with a listener of its own: whatever the host, it is meant.
func ownRoutes(s *mesh.Service, port uint16) *routev3.RouteConfiguration {
	name := virtualHostName(s, port)
	return routeConfiguration(name, virtualHost(name, []string{"*"}, string(clusterName(s, port))))
}

func routeConfiguration(name string, hosts ...*routev3.VirtualHost) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                     name,
		VirtualHosts:             hosts,
		ValidateClusters:         wrapperspb.Bool(false),
		IgnorePortInHostMatching: true,
	}
}

// otherHosts is the virtual host for what is no service.
func otherHosts(settings Mesh) *routev3.VirtualHost {
	if settings.Outbound == AllowAny {
		return virtualHost("allow_any", []string{"*"}, passthrough)
	}
	return &routev3.VirtualHost{Name: "block_all", Domains: []string{"*"}, Routes: []*routev3.Route{{
		Name: "block_all", Match: everything(),
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}},
	}}}
}

func everything() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// virtualHost routes all requests for the domains to one cluster, with Istio's defaults: no time limit but the one that
// gRPC clients send, and two retries of what has not reached the application.
func virtualHost(name string, domains []string, cluster string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, Domains: domains, Routes: []*routev3.Route{{
		Name: "default", Match: everything(),
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier:  &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:           noLimit,
			MaxStreamDuration: streamDuration,
			RetryPolicy:       retries,
		}},
	}}}
}

// What all routes have in common is made once: a route configuration may have thousands.
var (
	noLimit        = durationpb.New(0)
	streamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: noLimit, GrpcTimeoutHeaderMax: noLimit}
	retries        = &routev3.RetryPolicy{
		RetryOn:    "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
		NumRetries: wrapperspb.UInt32(2),
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
				TypedConfig: pack(&previoushostsv3.PreviousHostsPredicate{}),
			},
		}},
		HostSelectionRetryMaxAttempts: 5,
	}
)

// addressDomains are plain addresses as a Host header has them.
func addressDomains(addresses []netip.Prefix) []string {
	var out []string
	for _, a := range addresses {
		switch {
		case !a.IsSingleIP():
		case a.Addr().Is6():
			out = append(out, "["+a.Addr().String()+"]")
		default:
			out = append(out, a.Addr().String())
		}
	}
	return out
}

// shortNames are the names by which applications of a node's DNS domain know a host, after Istio's rules. In a
// Kubernetes domain NAMESPACE.svc.SUFFIX they are what Kubernetes' resolver finds; in any other the labels that the
// host shares with the domain are left off.
func shortNames(h mesh.Host, scope Scope) []string {
	if h.Wildcard() || scope.Domain == "" {
		return nil
	}
	host := h.String()
	if namespace, suffix, ok := strings.Cut(scope.Domain, ".svc."); ok {
		long, ok := strings.CutSuffix(host, ".svc."+suffix)
		if !ok {
			return nil
		}
		names := []string{long, long + ".svc"}
		if name, of, ok := strings.Cut(long, "."); ok && of == namespace {
			names = append(names, name)
		}
		return names
	}
	labels, domain := strings.Split(host, "."), strings.Split(scope.Domain, ".")
	shared := 0
	for shared < min(len(labels), len(domain)) && labels[len(labels)-1-shared] == domain[len(domain)-1-shared] {
		shared++
	}
	own := labels[:len(labels)-shared]
	if shared == 0 || len(own) == 0 {
		return nil
	}
	names := []string{strings.Join(own, ".")}
	if len(own) == 2 {
		names = append(names, strings.Join(labels[:3], "."))
	}
	return names
}

// plainAddresses are the addresses that are no range.
func plainAddresses(addresses []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, a := range addresses {
		if a.IsSingleIP() {
			out = append(out, a.Addr())
		}
	}
	return out
}
