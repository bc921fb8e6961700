package envoy

import (
	"net/netip"
	"slices"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshd/meshd/internal/mesh"
)

// The inbound side: what a node whose own addresses are endpoints is given for the services of its namespace, whether it
// sees them or not. The rules are Istio's.

// localize is base with the inbound side of a scope that has addresses. prev is the scope's snapshot before, or nil.
func localize(prev, base *Snapshot, scope Scope) *Snapshot {
	own := tenants(base.View, scope)
	next := &Snapshot{
		View: base.View, Scope: scope, Resources: base.Resources, Versions: base.Versions,
		visible: base.visible, ports: base.ports, base: base, own: own,
	}
	if len(own) == 0 {
		return next
	}
	t := &translation{next: next}
	same := prev != nil && slices.Equal(prev.own, own)
	for _, typ := range []Type{Cluster, Listener} {
		if same && prev.base.Resources[typ] == base.Resources[typ] {
			next.Resources[typ], next.Versions[typ] = prev.Resources[typ], prev.Versions[typ]
			continue
		}
		for _, r := range inboundResources(typ, own, scope) {
			if prev != nil {
				if old, ok := prev.Resources[typ].Get(r.Name); ok && old.Version == r.Version && slices.Equal(old.Services, r.Services) {
					r = old
				}
			}
			t.put(r)
		}
	}
	t.dropOwnAddresses(own, scope)
	return next
}

// tenants are the services of the scope's namespace that have an endpoint at one of its addresses, in their order.
func tenants(v *mesh.View, scope Scope) []*mesh.Service {
	var out []*mesh.Service
	for _, a := range scope.addresses() {
		for s := range v.At(a) {
			if s.Namespace == scope.Namespace && !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	slices.SortFunc(out, v.Before)
	return out
}

// door is a port on which the node's own application serves.
type door struct {
	port    uint16
	service *mesh.Service
	as      mesh.Port
}

// doors are the ports of the node's applications by number. Of two services on one port the first decides.
func doors(own []*mesh.Service, scope Scope) []door {
	var out []door
	addresses := scope.addresses()
	for _, s := range own {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			ip, _ := e.Address.IP()
			if !slices.Contains(addresses, ip) && !slices.Contains(addresses, e.Second) {
				continue
			}
			for n, p := range s.Ports {
				d := door{e.Ports[n], s, p}
				taken := slices.ContainsFunc(out, func(o door) bool { return o.port == d.port })
				if d.port != 0 && d.port != inboundPort && d.port != outboundPort && !taken && p.Protocol != mesh.UDP {
					out = append(out, d)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b door) int { return int(a.port) - int(b.port) })
	return out
}

func inboundName(port uint16) string { return "inbound|" + strconv.Itoa(int(port)) + "||" }

func inboundResources(typ Type, own []*mesh.Service, scope Scope) []*Resource {
	open := doors(own, scope)
	if typ == Listener {
		return []*Resource{NewResource(Listener, virtualInbound, inboundListener(open, scope), "", keysOf(own)...)}
	}
	var out []*Resource
	for _, d := range open {
		out = append(out, NewResource(Cluster, Name(inboundName(d.port)), inboundCluster(d, scope), "", d.service.Key))
	}
	return out
}

// virtualInbound is the listener that redirected connections to this machine arrive at.
const virtualInbound = "virtualInbound"

// inboundListener lets connections in by the doors, and passes all others to where they were made to.
func inboundListener(open []door, scope Scope) *listenerv3.Listener {
	l := redirected(virtualInbound, inboundPort, corev3.TrafficDirection_INBOUND, scope)
	var chains []*listenerv3.FilterChain
	for _, d := range open {
		chains = append(chains, d.chains()...)
	}
	l.FilterChains = append(chains, l.FilterChains...)
	l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
		Name: virtualInbound + "-catchall-http", FilterChainMatch: plainHTTP(),
		Filters: []*listenerv3.Filter{routeTo(inboundPassthrough, "inbound|http|0")},
	})
	for _, transport := range []string{"raw_buffer", "tls"} {
		l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
			Name:             virtualInbound + "-catchall-" + transport,
			FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: transport},
			Filters:          []*listenerv3.Filter{forward(inboundPassthrough)},
		})
	}
	l.ListenerFilters = []*listenerv3.ListenerFilter{
		listenerFilter("original_dst", &originaldstv3.OriginalDst{}),
		listenerFilter("tls_inspector", &tlsinspectorv3.TlsInspector{}),
		listenerFilter("http_inspector", &httpinspectorv3.HttpInspector{}),
	}
	waitForFirstBytes(l)
	return l
}

// routeTo routes all requests to one cluster, with the routes in place.
func routeTo(cluster, virtualHostName string) *listenerv3.Filter {
	web := connectionManager(cluster)
	web.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
		Name:             cluster,
		VirtualHosts:     []*routev3.VirtualHost{virtualHost(virtualHostName, []string{"*"}, cluster)},
		ValidateClusters: wrapperspb.Bool(false),
	}}
	return networkFilter("http_connection_manager", web)
}

func inboundCluster(d door, scope Scope) *clusterv3.Cluster {
	c := newCluster(inboundName(d.port))
	toApplication(c, scope.Family)
	switch {
	case d.as.Protocol.HTTP2():
		speakHTTP2(c)
	case d.as.Protocol == mesh.Sniffed:
		speakAsDownstream(c)
	}
	return c
}

// toApplication makes a cluster of the application on this machine. Its source address is Istio's own, by which the
// firewall's rules tell the proxy's connections to the application.
func toApplication(c *clusterv3.Cluster, f Family) {
	originalDestination(c)
	source := "127.0.0.6"
	if f == IPv6 {
		source = "::6"
	}
	c.UpstreamBindConfig = &corev3.BindConfig{SourceAddress: &corev3.SocketAddress{
		Address: source, PortSpecifier: &corev3.SocketAddress_PortValue{},
	}}
}

// chains are a door's filter chains on virtualInbound.
func (d door) chains() []*listenerv3.FilterChain {
	match := func(transport string) *listenerv3.FilterChainMatch {
		return &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(uint32(d.port)), TransportProtocol: transport}
	}
	name := inboundName(d.port)
	var out []*listenerv3.FilterChain
	if d.as.Protocol.HTTP() || d.as.Protocol == mesh.Sniffed {
		m := match("raw_buffer")
		if d.as.Protocol == mesh.Sniffed {
			m.ApplicationProtocols = plainHTTP().ApplicationProtocols
		}
		out = append(out, &listenerv3.FilterChain{Name: name + "http", FilterChainMatch: m, Filters: []*listenerv3.Filter{routeTo(name, "inbound|http|"+strconv.Itoa(int(d.as.Number)))}})
		if d.as.Protocol != mesh.Sniffed {
			return out
		}
	}
	for _, transport := range []string{"raw_buffer", "tls"} {
		out = append(out, &listenerv3.FilterChain{Name: name + transport, FilterChainMatch: match(transport), Filters: []*listenerv3.Filter{forward(name)}})
	}
	return out
}

// dropOwnAddresses takes away the listeners at the node's own addresses that services without resolution have at the
// addresses of their workloads: there the application itself is meant.
func (t *translation) dropOwnAddresses(own []*mesh.Service, scope Scope) {
	for _, s := range own {
		if s.Resolution != mesh.ResolutionNone || len(s.Addresses) > 0 {
			continue
		}
		for _, a := range scope.addresses() {
			for _, p := range s.Ports {
				name := listenerName(a, p.Number)
				if r, ok := t.next.Resources[Listener].Get(name); ok && slices.Equal(r.Services, []mesh.Key{s.Key}) {
					t.drop(Listener, name)
				}
			}
		}
	}
}

func listenerName(bind netip.Addr, port uint16) Name {
	return Name(bind.String() + "_" + strconv.Itoa(int(port)))
}
