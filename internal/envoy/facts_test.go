package envoy_test

// What a service definition decides about resources, in the form of the conformance cases' expect.json: without what
// every mesh sets for itself (timeouts, retries, circuit breakers). Lists whose order means nothing are sorted.

import (
	"cmp"
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/envoy"
)

type facts struct {
	Clusters  map[string]clusterFacts  `json:"clusters"`
	Listeners map[string]listenerFacts `json:"listeners"`
	Routes    map[string]routeConfig   `json:"routes"`
}

type clusterFacts struct {
	Type         string          `json:"type"` // an Envoy discovery type, or an extension's name
	LB           string          `json:"lb"`
	HTTP         string          `json:"http,omitempty"` // http1, http2, downstream or auto
	DNSFamily    string          `json:"dns_lookup_family,omitempty"`
	PortOverride uint32          `json:"original_dst_port_override,omitempty"`
	Locality     bool            `json:"locality_weighted,omitempty"`
	Endpoints    []endpointFacts `json:"endpoints,omitempty"`
}

type endpointFacts struct {
	Address  string `json:"address"` // host:port, or unix:PATH
	Weight   uint32 `json:"weight,omitempty"`
	Locality string `json:"locality,omitempty"` // region/zone/sub-zone
	Priority uint32 `json:"priority,omitempty"`
	Health   string `json:"health,omitempty"` // unless unknown
}

type listenerFacts struct {
	Address       string       `json:"address"`
	Extra         []string     `json:"additional_addresses,omitempty"`
	BindToPort    bool         `json:"bind_to_port"`
	UseOriginal   bool         `json:"use_original_dst,omitempty"`
	Direction     string       `json:"direction"`
	ListenFilters []string     `json:"listener_filters,omitempty"`
	Chains        []chainFacts `json:"chains,omitempty"`
	Default       *chainFacts  `json:"default_chain,omitempty"`
}

type chainFacts struct {
	Prefixes  []string      `json:"prefix_ranges,omitempty"`
	Port      uint32        `json:"destination_port,omitempty"`
	Servers   []string      `json:"server_names,omitempty"`
	Transport string        `json:"transport_protocol,omitempty"`
	ALPN      []string      `json:"application_protocols,omitempty"`
	Filters   []filterFacts `json:"filters"`
}

type filterFacts struct {
	Name    string             `json:"name"`
	Route   string             `json:"route,omitempty"`        // a route configuration's name
	Inline  []virtualHostFacts `json:"inline_route,omitempty"` // a route configuration in place
	HTTP    []string           `json:"http_filters,omitempty"` // but for the router
	Cluster string             `json:"cluster,omitempty"`
}

type routeConfig struct {
	IgnorePort   bool               `json:"ignore_port_in_host_matching,omitempty"`
	VirtualHosts []virtualHostFacts `json:"virtual_hosts"`
}

type virtualHostFacts struct {
	Name    string       `json:"name"`
	Domains []string     `json:"domains"`
	Routes  []routeFacts `json:"routes,omitempty"`
}

type routeFacts struct {
	Match   string `json:"match"`
	Cluster string `json:"cluster,omitempty"`
	Status  uint32 `json:"status,omitempty"` // a direct response
}

// messages decodes a type's resources.
func messages[M proto.Message](s *envoy.Snapshot, t envoy.Type) map[string]M {
	out := map[string]M{}
	for name, r := range s.Resources[t].All() {
		m, err := r.Message()
		if err != nil {
			panic(err)
		}
		out[string(name)] = m.(M)
	}
	return out
}

// factsOf reduces a snapshot. Routes are those that a listener refers to, since nodes ask for no others.
func factsOf(s *envoy.Snapshot) facts {
	f := facts{map[string]clusterFacts{}, map[string]listenerFacts{}, map[string]routeConfig{}}
	assignments := messages[*endpointv3.ClusterLoadAssignment](s, envoy.Endpoints)
	for name, c := range messages[*clusterv3.Cluster](s, envoy.Cluster) {
		a := c.GetLoadAssignment()
		if c.GetType() == clusterv3.Cluster_EDS && c.GetClusterType() == nil {
			a = assignments[c.GetEdsClusterConfig().GetServiceName()]
		}
		f.Clusters[name] = clusterFactsOf(c, a)
	}
	for name, l := range messages[*listenerv3.Listener](s, envoy.Listener) {
		f.Listeners[name] = listenerFactsOf(l)
	}
	for name, r := range messages[*routev3.RouteConfiguration](s, envoy.Route) {
		f.Routes[name] = routeConfig{r.GetIgnorePortInHostMatching(), virtualHosts(r)}
	}
	return f
}

// without leaves out what o has word for word.
func (f facts) without(o facts) facts {
	drop(f.Clusters, o.Clusters)
	drop(f.Listeners, o.Listeners)
	drop(f.Routes, o.Routes)
	return f
}

func drop[T any](from, known map[string]T) {
	for k, v := range from {
		if o, ok := known[k]; ok && text(v) == text(o) {
			delete(from, k)
		}
	}
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func clusterFactsOf(c *clusterv3.Cluster, la *endpointv3.ClusterLoadAssignment) clusterFacts {
	f := clusterFacts{
		Type: c.GetType().String(), LB: c.GetLbPolicy().String(),
		PortOverride: c.GetOriginalDstLbConfig().GetUpstreamPortOverride().GetValue(),
		Locality:     c.GetCommonLbConfig().GetLocalityWeightedLbConfig() != nil,
	}
	if c.GetClusterType() != nil {
		f.Type = c.GetClusterType().GetName()
	}
	if strings.HasSuffix(f.Type, "_DNS") {
		f.DNSFamily = c.GetDnsLookupFamily().String()
	}
	for _, a := range c.GetTypedExtensionProtocolOptions() {
		o := &httpv3.HttpProtocolOptions{}
		if a.UnmarshalTo(o) != nil {
			continue
		}
		switch {
		case o.GetUseDownstreamProtocolConfig() != nil:
			f.HTTP = "downstream"
		case o.GetAutoConfig() != nil:
			f.HTTP = "auto"
		case o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil:
			f.HTTP = "http2"
		case o.GetExplicitHttpConfig().GetHttpProtocolOptions() != nil:
			f.HTTP = "http1"
		}
	}
	for _, g := range la.GetEndpoints() {
		for _, e := range g.GetLbEndpoints() {
			ef := endpointFacts{
				Address:  address(e.GetEndpoint().GetAddress()),
				Weight:   e.GetLoadBalancingWeight().GetValue(),
				Priority: g.GetPriority(),
			}
			if l := g.GetLocality(); l.GetRegion() != "" {
				ef.Locality = strings.TrimRight(l.GetRegion()+"/"+l.GetZone()+"/"+l.GetSubZone(), "/")
			}
			if h := e.GetHealthStatus(); h != corev3.HealthStatus_UNKNOWN {
				ef.Health = h.String()
			}
			f.Endpoints = append(f.Endpoints, ef)
		}
	}
	slices.SortFunc(f.Endpoints, func(a, b endpointFacts) int { return cmp.Compare(text(a), text(b)) })
	return f
}

func address(a *corev3.Address) string {
	switch {
	case a.GetSocketAddress() != nil:
		s := a.GetSocketAddress()
		return net.JoinHostPort(s.GetAddress(), strconv.Itoa(int(s.GetPortValue())))
	case a.GetPipe() != nil:
		return "unix:" + a.GetPipe().GetPath()
	}
	return a.String()
}

func listenerFactsOf(l *listenerv3.Listener) listenerFacts {
	f := listenerFacts{
		Address:     address(l.GetAddress()),
		BindToPort:  l.GetBindToPort() == nil || l.GetBindToPort().GetValue(),
		UseOriginal: l.GetUseOriginalDst().GetValue(),
		Direction:   l.GetTrafficDirection().String(),
	}
	for _, a := range l.GetAdditionalAddresses() {
		f.Extra = append(f.Extra, address(a.GetAddress()))
	}
	for _, lf := range l.GetListenerFilters() {
		f.ListenFilters = append(f.ListenFilters, short(lf.GetName()))
	}
	slices.Sort(f.ListenFilters)
	for _, c := range l.GetFilterChains() {
		f.Chains = append(f.Chains, chainFactsOf(c))
	}
	slices.SortFunc(f.Chains, func(a, b chainFacts) int { return cmp.Compare(text(a), text(b)) })
	if c := l.GetDefaultFilterChain(); c != nil {
		d := chainFactsOf(c)
		f.Default = &d
	}
	return f
}

func chainFactsOf(c *listenerv3.FilterChain) chainFacts {
	m := c.GetFilterChainMatch()
	f := chainFacts{
		Port: m.GetDestinationPort().GetValue(), Transport: m.GetTransportProtocol(),
		Servers: slices.Sorted(slices.Values(m.GetServerNames())),
		ALPN:    slices.Sorted(slices.Values(m.GetApplicationProtocols())),
	}
	for _, p := range m.GetPrefixRanges() {
		f.Prefixes = append(f.Prefixes, p.GetAddressPrefix()+"/"+strconv.Itoa(int(p.GetPrefixLen().GetValue())))
	}
	slices.Sort(f.Prefixes)
	for _, nf := range c.GetFilters() {
		f.Filters = append(f.Filters, filterFactsOf(nf))
	}
	return f
}

func filterFactsOf(nf *listenerv3.Filter) filterFacts {
	f := filterFacts{Name: short(nf.GetName())}
	hcm, tcp := &hcmv3.HttpConnectionManager{}, &tcpv3.TcpProxy{}
	switch cfg := nf.GetTypedConfig(); {
	case cfg.UnmarshalTo(hcm) == nil:
		f.Route = hcm.GetRds().GetRouteConfigName()
		if rc := hcm.GetRouteConfig(); rc != nil {
			f.Inline = virtualHosts(rc)
		}
		for _, h := range hcm.GetHttpFilters() {
			if n := short(h.GetName()); n != "router" {
				f.HTTP = append(f.HTTP, n)
			}
		}
	case cfg.UnmarshalTo(tcp) == nil:
		f.Cluster = tcp.GetCluster()
	}
	return f
}

func virtualHosts(rc *routev3.RouteConfiguration) []virtualHostFacts {
	out := []virtualHostFacts{}
	for _, vh := range rc.GetVirtualHosts() {
		f := virtualHostFacts{Name: vh.GetName(), Domains: slices.Sorted(slices.Values(vh.GetDomains()))}
		for _, r := range vh.GetRoutes() {
			f.Routes = append(f.Routes, routeFacts{
				Match: match(r.GetMatch()), Cluster: r.GetRoute().GetCluster(),
				Status: r.GetDirectResponse().GetStatus(),
			})
		}
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(a, b virtualHostFacts) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func match(m *routev3.RouteMatch) string {
	if p, ok := m.GetPathSpecifier().(*routev3.RouteMatch_Prefix); ok {
		return p.Prefix
	}
	return m.String()
}

// short is an Envoy extension's name without its namespace.
func short(name string) string {
	if !strings.HasPrefix(name, "envoy.") {
		return name
	}
	return name[strings.LastIndex(name, ".")+1:]
}
