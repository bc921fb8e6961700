package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	dfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	mongov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/mongo_proxy/v3"
	snidfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshd/meshd/internal/mesh"
)

// The ports of Istio's redirection.
const (
	outboundPort = 15001
	inboundPort  = 15006
)

// listener is a listener while services claim their parts of it; the first to claim a part has it.
type listener struct {
	bind  netip.Addr
	port  uint16
	scope Scope

	http    *httpChain
	matched []*tcpChain // by server name or range
	plain   *tcpChain   // what matches nothing else
	// alone is the service whose protocol cannot share a listener.
	alone *mesh.Service
	first *mesh.Service
}

type httpChain struct {
	by      *mesh.Service
	route   string
	inspect bool // whether the protocol of a connection is found out, so that others may have what is not HTTP
	grpcWeb bool
	byName  bool // whether some service's destination is the name in the request
}

type tcpChain struct {
	by       *mesh.Service
	port     mesh.Port
	protocol mesh.Protocol
	server   string       // a server name; "": any
	prefix   netip.Prefix // a range of destinations; invalid: any
}

// claim is what one protocol of one port of one service asks of a listener. It returns the service that has it already,
// or nil.
type claim func(*listener) *mesh.Service

// claimHTTP asks for the HTTP connections of a listener, to be routed by route.
func claimHTTP(s *mesh.Service, protocol mesh.Protocol, route string, inspect bool, scope Scope) claim {
	return func(l *listener) *mesh.Service {
		if l.alone != nil {
			return l.alone
		}
		if l.http == nil {
			if !inspect && (l.plain != nil || len(l.matched) > 0) {
				return l.first // without finding out the protocol it would take all
			}
			l.http = &httpChain{by: s, route: route, inspect: inspect}
		}
		if l.http.route != route {
			return l.http.by
		}
		l.http.grpcWeb = l.http.grpcWeb || protocol == mesh.GRPCWeb
		l.http.byName = l.http.byName || forwardsByName(s, scope)
		return nil
	}
}

// claimTCP asks for the connections of a listener that c describes.
func claimTCP(c *tcpChain) claim {
	return func(l *listener) *mesh.Service {
		switch {
		case l.alone != nil:
			return l.alone
		case exclusive(c.protocol) && l.first != c.by:
			return l.first
		case l.http != nil && !l.http.inspect:
			return l.http.by
		case c.server == "" && !c.prefix.IsValid():
			if l.plain != nil {
				return l.plain.by
			}
			l.plain = c
		default:
			for _, o := range l.matched {
				if o.server == c.server && o.prefix == c.prefix {
					return o.by
				}
			}
			l.matched = append(l.matched, c)
		}
		if exclusive(c.protocol) {
			l.alone = c.by
		}
		return nil
	}
}

// exclusive tells the protocols whose servers speak first, so that nothing can be found out about a connection.
func exclusive(p mesh.Protocol) bool { return p == mesh.MySQL || p == mesh.Mongo }

// portGroup is what is made of all services of a scope that have one port number.
type portGroup struct {
	services  []*mesh.Service // in the order in which they claim
	resources []*Resource     // listeners and routes
	problems  []mesh.Problem
}

// translatePort makes the listeners and routes of a port.
func translatePort(number uint16, services []*mesh.Service, scope Scope, settings Mesh) *portGroup {
	if scope.Kind == GRPC {
		return grpcPort(number, services, scope)
	}
	b := &portBuilder{number: number, scope: scope, settings: settings, own: map[string]*mesh.Service{}}
	for _, s := range services {
		p, _ := s.Port(number)
		for _, protocol := range p.Protocols() {
			b.add(s, p, protocol)
		}
	}
	g := &portGroup{services: services, problems: b.problems}
	shared, keys := false, keysOf(services)
	for _, l := range b.listeners {
		name := listenerName(l.bind, number)
		g.resources = append(g.resources, NewResource(Listener, name, l.message(string(name), settings), "", l.keys(keys)...))
		shared = shared || l.http != nil && l.http.route == b.route()
	}
	if shared {
		g.resources = append(g.resources, NewResource(Route, Name(b.route()), portRoutes(number, b.hosts, scope, settings), "", keysOf(b.hosts)...))
	}
	for name, s := range b.own {
		g.resources = append(g.resources, NewResource(Route, Name(name), ownRoutes(s, number), "", s.Key))
	}
	return g
}

func keysOf(services []*mesh.Service) []mesh.Key {
	keys := make([]mesh.Key, len(services))
	for i, s := range services {
		keys[i] = s.Key
	}
	return keys
}

type portBuilder struct {
	number    uint16
	scope     Scope
	settings  Mesh
	listeners []*listener
	hosts     []*mesh.Service          // of the port's shared routes
	own       map[string]*mesh.Service // routes of one service, by name
	problems  []mesh.Problem
}

func (b *portBuilder) route() string { return strconv.Itoa(int(b.number)) }

func (b *portBuilder) add(s *mesh.Service, p mesh.Port, protocol mesh.Protocol) {
	switch {
	case protocol == mesh.UDP:
	case b.scope.Capture == None && b.scope.Privileges == Unprivileged && b.number < 1024:
		b.refuse(s, p, "privileged-port", fmt.Sprintf(
			"%s:%d is not served to nodes whose proxy is unprivileged: it cannot listen on a port below 1024; use another port, or let the proxy bind it (CAP_NET_BIND_SERVICE) and take the word from its metadata",
			s.Host, p.Number))
	case forwardsByName(s, b.scope) && !carriesName(protocol):
		b.refuse(s, p, "no-name-to-forward-to", fmt.Sprintf(
			"%s:%d is not served to nodes without redirection: with resolution NONE the destination is the address that the application dialled, which is the proxy itself there, and %s carries no name to go by; give it endpoints and resolution STATIC or DNS",
			s.Host, p.Number, protocol))
	case protocol.HTTP():
		b.addHTTP(s, p, protocol)
	default:
		b.addTCP(s, p, protocol)
	}
}

func (b *portBuilder) addHTTP(s *mesh.Service, p mesh.Port, protocol mesh.Protocol) {
	if b.reserved() {
		b.refuse(s, p, "reserved-port", b.reservedText(s))
		return
	}
	b.host(s)
	inspect := b.scope.Capture == Redirect && protocol != mesh.HTTPProxy
	b.claim(b.wildcard(), s, p, protocol, claimHTTP(s, protocol, b.route(), inspect, b.scope))
}

// addTCP claims for protocols that are forwarded as bytes, and for both halves of a sniffed port.
func (b *portBuilder) addTCP(s *mesh.Service, p mesh.Port, protocol mesh.Protocol) {
	chain := &tcpChain{by: s, port: p, protocol: protocol}
	if b.scope.Capture == None {
		switch {
		case protocol == mesh.Sniffed:
			b.addSniffed(b.wildcard(), chain, virtualHostName(s, p.Number))
		case forwardsByName(s, b.scope):
			chain.server = s.Host.String() // so that the listener is no proxy to everywhere
			fallthrough
		default:
			b.claim(b.wildcard(), s, p, protocol, claimTCP(chain))
		}
		return
	}
	addresses := addressesOf(s, b.scope)
	binds := plainAddresses(addresses)
	if s.Resolution == mesh.ResolutionNone && len(s.Addresses) == 0 {
		binds = endpointAddresses(s, b.scope.Family)
	}
	for _, bind := range binds {
		if protocol == mesh.Sniffed {
			b.addSniffed(bind, chain, virtualHostName(s, p.Number))
		} else {
			b.claim(bind, s, p, protocol, claimTCP(chain))
		}
	}
	ranges := slices.DeleteFunc(slices.Clone(addresses), netip.Prefix.IsSingleIP)
	if len(binds) > 0 && len(ranges) == 0 {
		return
	}
	if b.reserved() {
		b.refuse(s, p, "reserved-port", b.reservedText(s))
		return
	}
	if len(ranges) == 0 {
		ranges = []netip.Prefix{{}}
	}
	for _, r := range ranges {
		c := *chain
		c.prefix = r
		switch {
		case protocol == mesh.Sniffed:
			b.host(s)
			b.addSniffed(b.wildcard(), &c, b.route())
		case protocol.TLS():
			c.server = s.Host.String()
			b.claim(b.wildcard(), s, p, protocol, claimTCP(&c))
		default:
			b.claim(b.wildcard(), s, p, protocol, claimTCP(&c))
		}
	}
}

// addSniffed claims a listener's HTTP for route and, where no HTTP service was there before, its plain TCP.
func (b *portBuilder) addSniffed(bind netip.Addr, chain *tcpChain, route string) {
	s := chain.by
	before := b.at(bind)
	had := before != nil && before.http != nil && before.http.by != s
	if !b.claim(bind, s, chain.port, mesh.Sniffed, claimHTTP(s, mesh.Sniffed, route, true, b.scope)) {
		return
	}
	if route != b.route() {
		b.own[route] = s
	}
	if had || forwardsByName(s, b.scope) {
		return
	}
	if l := b.at(bind); l.plain == nil || chain.prefix.IsValid() {
		claimTCP(chain)(l)
	}
}

func (b *portBuilder) host(s *mesh.Service) {
	if n := len(b.hosts); n == 0 || b.hosts[n-1] != s { // a service's claims come one after the other
		b.hosts = append(b.hosts, s)
	}
}

// wildcard is where services without an address of their own listen.
func (b *portBuilder) wildcard() netip.Addr {
	four, six := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	if b.scope.Capture == None {
		four, six = netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	}
	if b.scope.Family == IPv6 {
		return six
	}
	return four
}

// reserved tells the proxy's own ports.
func (b *portBuilder) reserved() bool {
	return b.scope.Capture == Redirect && (b.number == outboundPort || b.number == inboundPort)
}

func (b *portBuilder) reservedText(s *mesh.Service) string {
	return fmt.Sprintf("%s:%d is not served: port %d is the proxy's own where connections are redirected; use another port", s.Host, b.number, b.number)
}

func (b *portBuilder) at(bind netip.Addr) *listener {
	for _, l := range b.listeners {
		if l.bind == bind {
			return l
		}
	}
	return nil
}

// claim makes a claim on the listener at bind, and a problem if somebody else has what it asks for.
func (b *portBuilder) claim(bind netip.Addr, s *mesh.Service, p mesh.Port, protocol mesh.Protocol, c claim) bool {
	l := b.at(bind)
	isNew := l == nil
	if isNew {
		l = &listener{bind: bind, port: b.number, scope: b.scope, first: s}
	}
	taken := c(l)
	if taken == s {
		return false // the same service, by another of its definitions or addresses
	}
	if taken != nil {
		remedy := "give it an address of its own or another port"
		if b.scope.Capture == None {
			remedy = "give it another port"
		}
		b.refuse(s, p, "listener-taken", fmt.Sprintf("%s:%d (%s) gets no connections: %s has %s:%d already; %s",
			s.Host, p.Number, protocolWord(protocol), taken.Host, bind, b.number, remedy))
		return false
	}
	if isNew {
		b.listeners = append(b.listeners, l)
	}
	return true
}

func protocolWord(p mesh.Protocol) string {
	if p == mesh.Sniffed {
		return "no protocol given"
	}
	return p.String()
}

func (b *portBuilder) refuse(s *mesh.Service, p mesh.Port, code, message string) {
	origin := p.Origin
	if origin == (mesh.Origin{}) {
		origin = s.Origin
	}
	switch {
	case b.scope.Kind == GRPC:
		message = "for gRPC clients: " + message
	case b.scope.Capture != Redirect: // which is what an entry is written for, if nothing else is said
		message = "for nodes with capture " + b.scope.Capture.String() + ": " + message
	}
	b.problems = append(b.problems, mesh.Problem{Severity: mesh.Warning, Code: code, Origin: origin, Services: s.Key.String(), Message: message})
}

// endpointAddresses are the addresses of a service's endpoints that applications on nodes of a family may dial.
func endpointAddresses(s *mesh.Service, f Family) []netip.Addr {
	var out []netip.Addr
	add := func(ip netip.Addr) {
		if ip.IsValid() && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		ip, _ := addressFor(f, e).IP()
		add(ip)
		if f == Dual {
			add(e.Second)
		}
	}
	return out
}

// keys are the services that a listener was made from: those that have a chain, or all of the port if it has HTTP.
func (l *listener) keys(all []mesh.Key) []mesh.Key {
	if l.http != nil {
		return all
	}
	var out []mesh.Key
	for _, c := range append(slices.Clone(l.matched), l.plain) {
		if c != nil && !slices.Contains(out, c.by.Key) {
			out = append(out, c.by.Key)
		}
	}
	return out
}

// message is the listener as Envoy takes it.
func (l *listener) message(name string, settings Mesh) *listenerv3.Listener {
	bound := l.scope.Capture == None
	out := newListener(name, l.bind, l.port, corev3.TrafficDirection_OUTBOUND)
	out.BindToPort = wrapperspb.Bool(bound)
	if l.scope.Family == Dual && l.bind == netip.IPv4Unspecified() {
		out.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socketAddress(netip.IPv6Unspecified().String(), l.port)}}
	}
	inspectTLS := false
	for _, c := range l.matched {
		inspectTLS = inspectTLS || c.server != ""
		out.FilterChains = append(out.FilterChains, c.chain(l.scope))
	}
	if l.http != nil {
		out.FilterChains = append(out.FilterChains, l.http.chain(name, l.scope))
	}
	switch divided := len(l.matched) > 0 || l.http != nil && l.http.inspect; {
	case l.plain != nil && divided:
		out.DefaultFilterChain = l.plain.chain(l.scope)
	case l.plain != nil:
		out.FilterChains = append(out.FilterChains, l.plain.chain(l.scope))
	case divided && !bound:
		out.DefaultFilterChain = &listenerv3.FilterChain{Filters: []*listenerv3.Filter{forward(settings.elsewhere())}}
	}
	if inspectTLS {
		out.ListenerFilters = append(out.ListenerFilters, listenerFilter("tls_inspector", &tlsinspectorv3.TlsInspector{}))
	}
	if l.http != nil && l.http.inspect {
		out.ListenerFilters = append(out.ListenerFilters, listenerFilter("http_inspector", &httpinspectorv3.HttpInspector{}))
	}
	if len(out.ListenerFilters) > 0 {
		waitForFirstBytes(out)
	}
	return out
}

// waitForFirstBytes lets a connection wait for its first bytes without a limit of time, as Istio does.
func waitForFirstBytes(l *listenerv3.Listener) {
	l.ListenerFiltersTimeout = durationpb.New(0)
	l.ContinueOnListenerFiltersTimeout = true
}

func (c *httpChain) chain(listener string, scope Scope) *listenerv3.FilterChain {
	h := connectionManager(strings.ReplaceAll(listener, ":", "_"))
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: c.route}}
	if c.byName {
		h.HttpFilters = slices.Insert(h.HttpFilters, 0, httpFilter("dynamic_forward_proxy", &dfpv3.FilterConfig{
			ImplementationSpecifier: &dfpv3.FilterConfig_DnsCacheConfig{DnsCacheConfig: dnsCache(scope.Family)},
		}))
	}
	if c.grpcWeb {
		h.HttpFilters = slices.Insert(h.HttpFilters, 0, httpFilter("grpc_web", &grpcwebv3.GrpcWeb{}))
	}
	out := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{networkFilter("http_connection_manager", h)}}
	if c.inspect {
		out.FilterChainMatch = plainHTTP()
	}
	return out
}

// plainHTTP matches what the HTTP inspector found to be HTTP.
func plainHTTP() *listenerv3.FilterChainMatch {
	return &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: []string{"http/1.1", "h2c"}}
}

// connectionManager is an HTTP connection manager that changes nothing: streams may be idle, upgrades pass, and the
// upstream's Server header stays.
func connectionManager(stats string) *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{
		StatPrefix:                 stats,
		CodecType:                  hcmv3.HttpConnectionManager_AUTO,
		StreamIdleTimeout:          durationpb.New(0),
		ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
		UseRemoteAddress:           wrapperspb.Bool(false),
		UpgradeConfigs:             []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		HttpFilters:                []*hcmv3.HttpFilter{httpFilter("router", &routerv3.Router{})},
	}
}

func (c *tcpChain) chain(scope Scope) *listenerv3.FilterChain {
	out := &listenerv3.FilterChain{}
	if c.server != "" || c.prefix.IsValid() {
		m := &listenerv3.FilterChainMatch{}
		if c.server != "" {
			m.ServerNames = []string{c.server}
		}
		if c.prefix.IsValid() {
			m.PrefixRanges = []*corev3.CidrRange{{
				AddressPrefix: c.prefix.Masked().Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(c.prefix.Bits())),
			}}
		}
		out.FilterChainMatch = m
	}
	if c.protocol == mesh.Mongo {
		out.Filters = append(out.Filters, networkFilter("mongo_proxy", &mongov3.MongoProxy{StatPrefix: string(clusterName(c.by, c.port.Number))}))
	}
	if forwardsByName(c.by, scope) {
		port := c.port.Number
		if c.port.Target != 0 {
			port = c.port.Target
		}
		out.Filters = append(out.Filters, networkFilter("sni_dynamic_forward_proxy", &snidfpv3.FilterConfig{
			DnsCacheConfig: dnsCache(scope.Family), PortSpecifier: &snidfpv3.FilterConfig_PortValue{PortValue: uint32(port)},
		}))
	}
	out.Filters = append(out.Filters, forward(string(clusterName(c.by, c.port.Number))))
	return out
}

// forward is a TCP proxy to a cluster.
func forward(cluster string) *listenerv3.Filter {
	return networkFilter("tcp_proxy", &tcpv3.TcpProxy{
		StatPrefix: cluster, ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster},
	})
}

func networkFilter(name string, m proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: "envoy.filters.network." + name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(m)}}
}

func httpFilter(name string, m proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: "envoy.filters.http." + name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(m)}}
}

func listenerFilter(name string, m proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name:       "envoy.filters.listener." + name,
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: pack(m)},
	}
}

func newListener(name string, bind netip.Addr, port uint16, direction corev3.TrafficDirection) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, Address: socketAddress(bind.String(), port), TrafficDirection: direction}
}

// elsewhere is the cluster for connections to what is no service.
func (m Mesh) elsewhere() string {
	if m.Outbound == RegistryOnly {
		return blackHole
	}
	return passthrough
}

// baseListeners are the two listeners that redirected connections arrive at: virtualOutbound hands them on to the
// listener of their destination, virtualInbound to the application.
func baseListeners(scope Scope, settings Mesh) []*listenerv3.Listener {
	if scope.Capture == None {
		return nil
	}
	out := redirected("virtualOutbound", outboundPort, corev3.TrafficDirection_OUTBOUND, scope)
	out.UseOriginalDst = wrapperspb.Bool(true)
	out.FilterChains = append(out.FilterChains, &listenerv3.FilterChain{
		Name: "virtualOutbound-catchall-tcp", Filters: []*listenerv3.Filter{forward(settings.elsewhere())},
	})
	return []*listenerv3.Listener{out, inboundListener(nil, scope)}
}

// redirected is a listener for redirected connections, which those that are made to its own port do not get past.
func redirected(name string, port uint16, direction corev3.TrafficDirection, scope Scope) *listenerv3.Listener {
	bind := netip.IPv4Unspecified()
	if scope.Family == IPv6 {
		bind = netip.IPv6Unspecified()
	}
	l := newListener(name, bind, port, direction)
	l.FilterChains = []*listenerv3.FilterChain{{
		Name:             name + "-blackhole",
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(uint32(port))},
		Filters:          []*listenerv3.Filter{forward(blackHole)},
	}}
	return l
}
