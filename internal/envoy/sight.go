package envoy

import (
	"cmp"
	"slices"
	"strconv"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshd/meshd/internal/mesh"
)

// Sight is what the nodes of a scope are given for a host.
type Sight struct {
	Scope   Scope
	Service *mesh.Service // that they mean by the host; nil: none
	Parts   []Part        // by type and name
}

// Part is what a resource has of a service: all of a cluster or of a load assignment, and of a listener or a route what
// leads to the service's clusters. It is read from the resource itself, so that it is what nodes are sent.
type Part struct {
	Type Type
	Name Name

	Routes       []Name        // of a listener: by which its HTTP requests are routed
	ServerNames  []string      // of a listener: for TLS to these alone
	Ranges       []string      // of a listener: for connections to these alone
	VirtualHosts []VirtualHost // of a route
}

// VirtualHost is one of a route's, with the hosts that requests may name.
type VirtualHost struct {
	Name    string   `json:"name"`
	Domains []string `json:"domains"`
}

// Sights tells what is in each of the snapshots for a host.
func Sights(h mesh.Host, snapshots []*Snapshot) []Sight {
	shared := map[*Snapshot][]Part{} // by snapshot of a base scope
	sights := make([]Sight, len(snapshots))
	for i, s := range snapshots {
		base := s
		if s.base != nil {
			base = s.base
		}
		parts, known := shared[base]
		if !known {
			parts = base.outbound(h)
			shared[base] = parts
		}
		sight := Sight{Scope: s.Scope}
		sight.Service, _ = s.visible.Get(h)
		for _, p := range parts {
			if _, there := s.Resources[p.Type].Get(p.Name); there { // else it is at the node's own address
				sight.Parts = append(sight.Parts, p)
			}
		}
		sight.Parts = append(sight.Parts, s.inbound(h)...)
		slices.SortFunc(sight.Parts, func(a, b Part) int { return cmp.Or(cmp.Compare(a.Type, b.Type), a.Name.Compare(b.Name)) })
		sights[i] = sight
	}
	return sights
}

func partOf(r *Resource) Part { return Part{Type: r.Type, Name: r.Name} }

// outbound are the clusters of the service that is meant by a host, and what leads to them.
func (s *Snapshot) outbound(h mesh.Host) (parts []Part) {
	service, ok := s.visible.Get(h)
	if !ok {
		return nil
	}
	clusters := map[string]bool{}
	for _, p := range service.Ports {
		for _, typ := range []Type{Cluster, Endpoints} {
			if r, ok := s.Resources[typ].Get(clusterName(service, p.Number)); ok {
				clusters[string(r.Name)] = true
				parts = append(parts, partOf(r))
			}
		}
	}
	routes := map[string]bool{}
	for _, r := range s.onPorts(service, Route) {
		p, message := partOf(r), decoded[*routev3.RouteConfiguration](r)
		for _, v := range message.VirtualHosts {
			if slices.ContainsFunc(v.Routes, func(r *routev3.Route) bool { return clusters[r.GetRoute().GetCluster()] }) {
				p.VirtualHosts = append(p.VirtualHosts, VirtualHost{v.Name, v.Domains})
			}
		}
		if len(p.VirtualHosts) > 0 {
			routes[string(p.Name)] = true
			parts = append(parts, p)
		}
	}
	for _, r := range s.onPorts(service, Listener) {
		p, message := partOf(r), decoded[*listenerv3.Listener](r)
		leads := p.lead(message.GetDefaultFilterChain(), clusters, routes)
		if api := message.GetApiListener().GetApiListener(); api != nil {
			leads = p.leadBy(api, clusters, routes)
		}
		for _, c := range message.FilterChains {
			leads = p.lead(c, clusters, routes) || leads
		}
		if leads {
			parts = append(parts, p)
		}
	}
	return parts
}

// onPorts are the listeners or routes of a service's ports, whichever services these are for.
func (s *Snapshot) onPorts(service *mesh.Service, typ Type) (out []*Resource) {
	for _, p := range service.Ports {
		if r, ok := s.Resources[typ].Get(Name(virtualHostName(service, p.Number))); ok && s.Scope.Kind == GRPC {
			out = append(out, r)
		}
		group, _ := s.ports.Get(portNumber(p.Number))
		for _, made := range group.all() {
			if r, ok := s.Resources[typ].Get(made.Name); ok && made.Type == typ {
				out = append(out, r)
			}
		}
	}
	return out
}

// decoded is what meshd itself has encoded.
func decoded[M proto.Message](r *Resource) M {
	m, err := r.Message()
	if err != nil {
		panic(err)
	}
	return m.(M)
}

// lead notes how a filter chain leads to one of the clusters, at once or by one of the routes; false: not at all.
func (p *Part) lead(c *listenerv3.FilterChain, clusters, routes map[string]bool) (leads bool) {
	for _, f := range c.GetFilters() {
		leads = p.leadBy(f.GetTypedConfig(), clusters, routes) || leads
	}
	if leads {
		p.ServerNames = append(p.ServerNames, c.GetFilterChainMatch().GetServerNames()...)
		for _, r := range c.GetFilterChainMatch().GetPrefixRanges() {
			p.Ranges = append(p.Ranges, r.GetAddressPrefix()+"/"+strconv.Itoa(int(r.GetPrefixLen().GetValue())))
		}
	}
	return leads
}

// leadBy is lead for what one filter is set to.
func (p *Part) leadBy(settings *anypb.Any, clusters, routes map[string]bool) bool {
	m, err := settings.UnmarshalNew()
	if err != nil {
		return false // it has no settings, and forwards nothing
	}
	switch m := m.(type) {
	case *tcpv3.TcpProxy:
		return clusters[m.GetCluster()]
	case *hcmv3.HttpConnectionManager:
		route := m.GetRds().GetRouteConfigName()
		if routes[route] && !slices.Contains(p.Routes, Name(route)) {
			p.Routes = append(p.Routes, Name(route))
		}
		return routes[route]
	}
	return false
}

// inbound are the clusters for what the node itself serves of a host, and the listener that leads to them.
func (s *Snapshot) inbound(h mesh.Host) (parts []Part) {
	for _, d := range doors(s.own, s.Scope) {
		if r, ok := s.Resources[Cluster].Get(Name(inboundName(d.port))); ok && d.service.Host == h {
			parts = append(parts, partOf(r))
		}
	}
	if r, ok := s.Resources[Listener].Get(virtualInbound); ok && len(parts) > 0 {
		parts = append(parts, partOf(r))
	}
	return parts
}
