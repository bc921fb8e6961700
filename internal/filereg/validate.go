package filereg

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
)

// This file holds every rule for a single document. A field is checked where it is read, so that what is accepted is
// what can be converted. The rules are those of Istio's own validation (its errors are errors, its warnings warnings)
// and those that keep from Envoy what it would reject.

// Annotations and labels that have a meaning.
const (
	trafficDistribution = "networking.istio.io/traffic-distribution"
	connectStrategy     = "istio.io/connect-strategy"
	healthChecked       = "proxy.istio.io/health-checks-enabled"
	autoAddress         = "networking.istio.io/enable-autoallocate-ip"
	localityLabel       = "istio-locality"
)

// addressKind is a set of kinds of endpoint addresses.
type addressKind uint8

const (
	ipAddress addressKind = 1 << iota
	hostName
	unixSocket

	noAddress  addressKind = 0
	anyAddress             = ipAddress | hostName | unixSocket
	resolvable             = ipAddress | hostName
)

// addressForm is what may stand in spec.addresses.
type addressForm uint8

const (
	nothing addressForm = iota
	singleAddresses
	addressRanges
)

// resolutions is what each resolution allows.
var resolutions = map[mesh.Resolution]struct {
	addresses addressForm
	endpoints int         // at most
	written   addressKind // of endpoints that are written in the entry
	selected  addressKind // of workloads that are selected; others are passed over
}{
	mesh.ResolutionNone: {addressRanges, 0, noAddress, ipAddress},
	mesh.Static:         {addressRanges, math.MaxInt, ipAddress | unixSocket, ipAddress},
	mesh.DNS:            {singleAddresses, math.MaxInt, resolvable, resolvable},
	mesh.DNSRoundRobin:  {singleAddresses, 1, resolvable, resolvable},
	mesh.DynamicDNS:     {nothing, 0, noAddress, noAddress},
}

// dynamicProtocols are those that carry the name for DYNAMIC_DNS to look up.
var dynamicProtocols = []mesh.Protocol{mesh.HTTP, mesh.HTTP2, mesh.GRPC, mesh.TLS}

// serviceSpec is a ServiceEntry's spec as read.
type serviceSpec struct {
	hosts     []placed
	addresses []netip.Prefix
	ports     []mesh.Port
	targets   []uint16 // by port, the one that endpoints listen on if they do not say otherwise

	resolution   mesh.Resolution
	location     mesh.Location
	endpoints    []*workload
	selects      bool
	selector     map[string]string
	export       mesh.Visibility
	sans         []string
	distribution mesh.Distribution
	connect      mesh.ConnectStrategy
	allocation   mesh.Allocation
	allocated    map[mesh.Host][]netip.Addr
}

// placed is a host and where it stands.
type placed struct {
	host   mesh.Host
	path   string
	origin mesh.Origin
}

// metadata checks what all kinds have in common.
func (r *reader) metadata(kind string, m *metadata) {
	const name, namespace = "metadata.name", "metadata.namespace"
	switch {
	case m.Name == "" && r.doc.Has("metadata.generateName"):
		r.refuse("missing-field", name, "is missing; an entry in a file needs a name, since generateName works only in Kubernetes")
	case m.Name == "":
		r.refuse("missing-field", name, "is missing; write a name that no other %s of the namespace has", kind)
	case len(m.Name) > 253 || !all(strings.Split(m.Name, "."), mesh.IsLabel):
		r.refuse("invalid-name", name, "%q is not a name; write at most 253 lower-case letters, digits, and inner hyphens or dots", m.Name)
	}
	if m.Namespace != "" && !mesh.IsLabel(m.Namespace) {
		r.refuse("invalid-name", namespace, "%q is not a namespace; write at most 63 lower-case letters, digits and inner hyphens", m.Namespace)
	}
	r.labels("metadata.labels", m.Labels)
}

// serviceSpec reads a ServiceEntry's spec.
func (r *reader) serviceSpec(in *networking.ServiceEntry, m *metadata, namespace string) *serviceSpec {
	s := &serviceSpec{
		resolution: mesh.Resolution(in.Resolution), location: mesh.Location(in.Location), sans: slices.Sorted(slices.Values(in.SubjectAltNames)),
		distribution: r.distribution(m), connect: r.connect(m),
	}
	if m.Labels[autoAddress] == "false" {
		s.allocation = mesh.NeverAllocate
	}
	s.hosts = r.hosts(in.Hosts)
	s.addresses = r.addresses(in.Addresses)
	s.ports, s.targets = r.ports(in.Ports)
	s.export = r.export(in.ExportTo, namespace)
	s.selects, s.selector = in.WorkloadSelector != nil, in.WorkloadSelector.GetLabels()
	r.selector(s)
	s.endpoints = r.endpoints(s, in.Endpoints)
	if !r.lost("spec.resolution") {
		r.resolution(s, in, m)
	}
	return s
}

func (r *reader) hosts(in []string) (hosts []placed) {
	if len(in) == 0 {
		r.refuse("missing-field", "spec.hosts", "is missing; write at least one host, such as payments.mesh.internal")
	}
	for i, text := range in {
		path := fmt.Sprintf("spec.hosts[%d]", i)
		host, err := mesh.ParseHost(text)
		switch {
		case err != nil:
			r.refuse("invalid-host", path, "%q %v", text, err)
		case slices.ContainsFunc(hosts, func(h placed) bool { return h.host == host }):
			r.warn("duplicate-host", path, "%q is there already; remove one", text)
		default:
			hosts = append(hosts, placed{host, path, r.at(path)})
		}
	}
	return hosts
}

// addresses reads spec.addresses: the unspecified address means none, bits beyond a range's length do not count, and
// an address that is there twice is there once.
func (r *reader) addresses(in []string) (addresses []netip.Prefix) {
	for i, text := range in {
		address, err := parsePrefix(text)
		if err != nil {
			r.refuse("invalid-address", fmt.Sprintf("spec.addresses[%d]", i), "%q %v", text, err)
			continue
		}
		if address.IsSingleIP() && address.Addr().IsUnspecified() || slices.Contains(addresses, address) {
			continue
		}
		addresses = append(addresses, address)
	}
	return addresses
}

func parsePrefix(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		ip, err := parseIP(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, errors.New("is not an address range; write one as in 10.1.0.0/16")
	}
	if ip := prefix.Addr(); ip.Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, errors.New("mixes IPv4 and IPv6; write the range in one of them")
		}
		prefix = netip.PrefixFrom(ip.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), nil
}

func parseIP(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	switch {
	case err == nil && ip.Zone() != "":
		return netip.Addr{}, errors.New("has a zone, which means something on one machine only; write the address without it")
	case err == nil:
		return ip.Unmap(), nil
	case mesh.IsHostName(text):
		return netip.Addr{}, errors.New("is a name; write an IP address such as 10.1.2.3, or a range such as 10.1.0.0/16")
	}
	return netip.Addr{}, errors.New("is not an IP address; write one such as 10.1.2.3, or a range such as 10.1.0.0/16")
}

// ports reads spec.ports, with the port that endpoints listen on beside each.
func (r *reader) ports(in []*networking.ServicePort) (ports []mesh.Port, targets []uint16) {
	names, numbers := map[string]int{}, map[uint32]int{}
	for i, p := range in {
		path := fmt.Sprintf("spec.ports[%d]", i)
		r.portNumber(path+".number", p.Number, true)
		r.portNumber(path+".targetPort", p.TargetPort, false)
		r.portName(path+".name", p.Name)
		if first, twice := numbers[p.Number]; twice && p.Number != 0 {
			r.refuse("duplicate-port", path+".number", "%d is already the number of spec.ports[%d]; give each port its own", p.Number, first)
		}
		if first, twice := names[p.Name]; twice && p.Name != "" {
			r.refuse("duplicate-port", path+".name", "%q is already the name of spec.ports[%d]; give each port its own", p.Name, first)
		}
		numbers[p.Number], names[p.Name] = i, i
		protocol, known := mesh.ParseProtocol(p.Protocol)
		if !known {
			r.refuse("unknown-protocol", path+".protocol", "%q is not a protocol (%s)%s", p.Protocol,
				strings.Join(mesh.ProtocolNames(), ", "), didYouMean(strings.ToUpper(p.Protocol), mesh.ProtocolNames()))
			protocol = mesh.HTTP // which no other rule objects to
		}
		ports = append(ports, mesh.Port{Number: uint16(p.Number), Name: p.Name, Protocol: protocol, Origin: r.at(path)})
		targets = append(targets, uint16(cmp.Or(p.TargetPort, p.Number)))
	}
	return ports, targets
}

// portNumber checks a port number; one that is not required may be absent, but not 0.
func (r *reader) portNumber(path string, number uint32, required bool) {
	switch {
	case number == 0 && !r.doc.Has(path):
		if required {
			r.refuse("missing-field", path, "is missing; write the port number, 1 to 65535")
		}
	case number == 0 || number > 65535:
		r.refuse("invalid-port", path, "%d is not a port number; write one from 1 to 65535", number)
	}
}

// portName checks a port name. It may be in capitals, unlike the names of Kubernetes.
func (r *reader) portName(path, name string) {
	switch {
	case name == "":
		r.refuse("missing-field", path, "is missing; write a name that is this port's own in the entry, such as http")
	case !isLabelText(name) || strings.ContainsAny(name, "_."):
		r.refuse("invalid-port-name", path, "%q is not a port name; write at most 63 letters, digits and inner hyphens", name)
	}
}

func didYouMean(word string, among []string) string {
	if near := strictyaml.Suggest(word, among); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// export reads spec.exportTo: the own namespace is ".", nowhere "~", everywhere "*" or nothing.
func (r *reader) export(in []string, namespace string) mesh.Visibility {
	var v mesh.Visibility
	seen := map[string]int{}
	for i, to := range in {
		path := fmt.Sprintf("spec.exportTo[%d]", i)
		name := to
		if to == "." {
			name = namespace
		}
		if first, twice := seen[name]; twice {
			r.refuse("duplicate-export", path, "%q is the same as spec.exportTo[%d], %q; remove one", to, first, in[first])
			continue
		}
		seen[name] = i
		switch {
		case name == "*" || name == "~":
			if len(in) > 1 {
				r.refuse("export-conflict", path, "%q must stand alone; remove it or the others", to)
			}
		case to != "." && !mesh.IsLabel(name):
			r.refuse("invalid-export", path, `%q is not a namespace; write a namespace's name, "." for the entry's own, "*" for all or "~" for none`, to)
		}
		if name != "*" && name != "~" {
			v.Namespaces = append(v.Namespaces, name)
		}
	}
	_, everywhere := seen["*"]
	v.All = everywhere || len(in) == 0
	slices.Sort(v.Namespaces)
	return v
}

func (r *reader) selector(s *serviceSpec) {
	const path = "spec.workloadSelector"
	if !s.selects {
		return
	}
	if len(s.selector) == 0 {
		r.warn("selector-of-all", path, "has no labels and so selects every WorkloadEntry of the namespace; write the labels of those that are meant")
	}
	for _, key := range slices.Sorted(maps.Keys(s.selector)) {
		at := field(path+".labels", key)
		switch value := s.selector[key]; {
		case key == "":
			r.refuse("invalid-selector", path+".labels", "has an empty key; write a label's key")
		case strings.Contains(key, "*"), strings.Contains(value, "*"):
			r.refuse("invalid-selector", at, `"%s: %s" has a "*", but labels are compared as they are; write the whole label, or remove it to select all`, key, value)
		}
	}
	switch {
	case r.lost("spec.resolution"):
	case s.resolution == mesh.ResolutionNone:
		r.warn("selector-unused", path, "selects no endpoints with resolution NONE, which forwards to the address that was dialled; set spec.resolution to STATIC or DNS, or remove the selector")
	case s.resolution == mesh.DynamicDNS:
		r.warn("selector-unused", path, "selects no endpoints with resolution DYNAMIC_DNS, which looks up the name in the request; remove it")
	}
}

// endpoints reads spec.endpoints.
func (r *reader) endpoints(s *serviceSpec, in []*networking.WorkloadEntry) (endpoints []*workload) {
	const path = "spec.endpoints"
	allows := resolutions[s.resolution]
	if r.lost("spec.resolution") {
		allows.written, allows.endpoints = anyAddress, len(in)
	}
	switch {
	case len(in) == 0:
		return nil
	case s.selects:
		r.refuse("endpoints-and-selector", path, "stand beside spec.workloadSelector; keep one of the two")
		allows.written = anyAddress
	case allows.endpoints == 0:
		r.refuse("endpoints-not-allowed", path, "have no meaning with resolution %s; remove them, or set spec.resolution to STATIC for IP addresses or DNS for host names", s.resolution)
		allows.written = anyAddress
	case len(in) > allows.endpoints:
		r.refuse("too-many-endpoints", fmt.Sprintf("%s[%d]", path, allows.endpoints), "is one more than resolution %s takes; keep one, or set spec.resolution to DNS", s.resolution)
	}
	for i, e := range in {
		at := fmt.Sprintf("%s[%d]", path, i)
		w := r.workload(at, e, allows.written)
		if _, socket := w.address.Socket(); socket && allows.written&unixSocket != 0 && len(s.ports) != 1 {
			r.refuse("socket-ports", at+".address", "is a Unix socket, which serves exactly one port, but the entry has %d; split the entry", len(s.ports))
		}
		for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
			if !slices.ContainsFunc(s.ports, func(p mesh.Port) bool { return p.Name == name }) && !r.lost("spec.ports") {
				r.refuse("unknown-port", field(at+".ports", name), "%q is not the name of a port in spec.ports (%s)%s", name, portNames(s.ports), didYouMean(name, names(s.ports)))
			}
		}
		if w.address != (mesh.Address{}) {
			endpoints = append(endpoints, w)
		}
	}
	return endpoints
}

func names(ports []mesh.Port) (names []string) {
	for _, p := range ports {
		names = append(names, p.Name)
	}
	return names
}

func portNames(ports []mesh.Port) string {
	return cmp.Or(strings.Join(names(ports), ", "), "there are none")
}

// workload reads a WorkloadEntry's spec, or an endpoint, which is the same. The address must be of an allowed kind.
func (r *reader) workload(path string, in *networking.WorkloadEntry, allowed addressKind) *workload {
	w := &workload{
		ports: in.Ports, labels: in.Labels, locality: in.Locality, network: in.Network, weight: max(1, in.Weight),
		serviceAccount: in.ServiceAccount, origin: r.at(path + ".address"),
	}
	w.address = r.address(path+".address", in, allowed)
	if _, socket := w.address.Socket(); socket && len(in.Ports) > 0 {
		r.refuse("socket-ports", path+".ports", "have no meaning for a Unix socket; remove them")
	}
	for _, name := range slices.Sorted(maps.Keys(in.Ports)) {
		r.portName(field(path+".ports", name), name)
		r.portNumber(field(path+".ports", name), in.Ports[name], true)
	}
	r.labels(path+".labels", in.Labels)
	return w
}

// address reads an endpoint's address, none if the endpoint has only a network.
func (r *reader) address(path string, in *networking.WorkloadEntry, allowed addressKind) mesh.Address {
	text := in.Address
	if text == "" {
		if in.Network == "" || allowed == resolvable {
			r.refuse("missing-field", path, "is missing; write %s", addressKinds(allowed))
		} else {
			r.warn("no-address", path, "is missing, so that the endpoint is left out; write %s, since network %q alone does not say where it is", addressKinds(allowed), in.Network)
		}
		return mesh.Address{}
	}
	address, err := parseAddress(text)
	if err != nil {
		r.refuse("invalid-address", path, "%q %v", text, err)
		return mesh.Address{}
	}
	switch kind := kindOfAddress(address); {
	case kind&allowed != 0:
	case kind == hostName:
		r.refuse("address-not-allowed", path, "%q is a host name, which resolution STATIC does not look up; write an IP address, or set spec.resolution to DNS", text)
	case kind == unixSocket:
		r.refuse("address-not-allowed", path, "%q is a Unix socket, which DNS cannot look up; set spec.resolution to STATIC", text)
	}
	return address
}

func addressKinds(allowed addressKind) string {
	var kinds []string
	for _, k := range []struct {
		kind addressKind
		text string
	}{{ipAddress, "an IP address"}, {hostName, "a host name"}, {unixSocket, "a Unix socket such as unix:///run/app.sock"}} {
		if k.kind&allowed != 0 {
			kinds = append(kinds, k.text)
		}
	}
	return orList(kinds)
}

func kindOfAddress(a mesh.Address) addressKind {
	if _, ip := a.IP(); ip {
		return ipAddress
	}
	if _, socket := a.Socket(); socket {
		return unixSocket
	}
	return hostName
}

// parseAddress reads an endpoint's address of any kind.
func parseAddress(text string) (mesh.Address, error) {
	if path, socket := strings.CutPrefix(text, "unix://"); socket {
		return mesh.SocketAddress(path), checkSocket(path)
	}
	if _, err := netip.ParseAddr(text); err == nil {
		ip, err := parseIP(text)
		return mesh.IPAddress(ip), err
	}
	if strings.HasPrefix(text, "unix:") {
		return mesh.Address{}, errors.New("is not a Unix socket; write unix:// and the absolute path, as in unix:///run/app.sock")
	}
	if _, err := netip.ParsePrefix(text); err == nil {
		return mesh.Address{}, errors.New("is a range; write one address")
	}
	if host, port, ok := cutPort(text); ok {
		return mesh.Address{}, fmt.Errorf("has a port; write %q, and the port %s under ports", host, port)
	}
	if strings.Trim(text, "0123456789.") == "" {
		return mesh.Address{}, errors.New("is not an IP address; write four numbers up to 255, as in 10.1.2.3")
	}
	host, err := mesh.ParseHost(text)
	if err == nil && host.Wildcard() {
		err = errors.New("is a wildcard, which cannot be looked up; write a full host name or an IP address")
	}
	return mesh.HostAddress(text), err
}

// cutPort takes HOST:PORT apart, if text is that.
func cutPort(text string) (host, port string, ok bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 1 || i == len(text)-1 || strings.Trim(text[i+1:], "0123456789") != "" {
		return "", "", false
	}
	host = strings.Trim(text[:i], "[]")
	if _, err := netip.ParseAddr(host); err != nil && !mesh.IsHostName(host) {
		return "", "", false
	}
	return host, text[i+1:], true
}

// maxSocketPath is the longest path that the kernel takes (sun_path, less its end), and so Envoy.
const maxSocketPath = 107

func checkSocket(path string) error {
	switch abstract := strings.HasPrefix(path, "@"); {
	case path == "" || path == "@":
		return errors.New("names no socket; write the absolute path, as in unix:///run/app.sock")
	case !abstract && path[0] != '/':
		return errors.New("has a relative path; write an absolute one, as in unix:///run/app.sock")
	case !abstract && path[len(path)-1] == '/':
		return errors.New("is a folder; write the path of the socket, without a slash at the end")
	case len(path) > maxSocketPath:
		return fmt.Errorf("has a path of %d bytes; a socket's path has at most %d", len(path), maxSocketPath)
	case strings.ContainsFunc(path, unicode.IsControl):
		return errors.New("has a control character in its path; remove it")
	}
	return nil
}

// labels checks labels as Kubernetes does.
func (r *reader) labels(path string, in map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(in)) {
		at := field(path, key)
		prefix, name, prefixed := strings.Cut(key, "/")
		if !prefixed {
			prefix, name = "", key
		}
		if !isLabelText(name) || name == "" || prefixed && !isPrefix(prefix) {
			r.refuse("invalid-label", at, "%q is not a label's key; write at most 63 letters, digits, and inner hyphens, underscores or dots, after a domain and a slash if need be", key)
		}
		if !isLabelText(in[key]) {
			r.refuse("invalid-label", at, "%q is not a label's value; write at most 63 letters, digits, and inner hyphens, underscores or dots", in[key])
		}
	}
}

// isLabelText tells whether s may be a label's value, or its key if it is not empty.
func isLabelText(s string) bool {
	alphanumeric := func(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' }
	for i := range len(s) {
		if inner := 0 < i && i < len(s)-1; !alphanumeric(s[i]) && !(inner && strings.IndexByte("-_.", s[i]) >= 0) {
			return false
		}
	}
	return len(s) <= 63
}

// isPrefix tells whether s may stand before the slash of a label's key.
func isPrefix(s string) bool { return len(s) <= 253 && all(strings.Split(s, "."), mesh.IsLabel) }

func all[T any](list []T, is func(T) bool) bool {
	return !slices.ContainsFunc(list, func(t T) bool { return !is(t) })
}

func (r *reader) distribution(m *metadata) mesh.Distribution {
	switch text := m.Annotations[trafficDistribution]; strings.ToLower(text) {
	case "preferclose", "prefersamezone":
		return mesh.PreferClose
	case "prefersamenode":
		return mesh.PreferSameNode
	case "":
	default:
		r.warn("unknown-annotation-value", field("metadata.annotations", trafficDistribution), "%q is not a traffic distribution (PreferClose, PreferSameZone, PreferSameNode) and has no effect", text)
	}
	return mesh.AnyEndpoint
}

func (r *reader) connect(m *metadata) mesh.ConnectStrategy {
	switch text := m.Annotations[connectStrategy]; text {
	case "RACE_FIRST_TCP_CONNECT":
		return mesh.RaceFirstTCPConnect
	case "":
	default:
		r.warn("unknown-annotation-value", field("metadata.annotations", connectStrategy), "%q is not a connect strategy (RACE_FIRST_TCP_CONNECT) and has no effect", text)
	}
	return mesh.DefaultConnect
}

// resolution checks what depends on the resolution.
func (r *reader) resolution(s *serviceSpec, in *networking.ServiceEntry, m *metadata) {
	allowed := resolutions[s.resolution].addresses
	if allowed == nothing && len(in.Addresses) > 0 {
		r.refuse("address-not-allowed", "spec.addresses", "have no meaning with resolution %s, which goes by the name in the request; remove them", s.resolution)
	}
	for i, text := range in.Addresses {
		if allowed == singleAddresses && strings.Contains(text, "/") {
			r.refuse("range-not-allowed", fmt.Sprintf("spec.addresses[%d]", i), "%q is a range, which resolution %s does not take; write single addresses, or set spec.resolution to NONE or STATIC", text, s.resolution)
		}
	}
	switch s.resolution {
	case mesh.DNS, mesh.DNSRoundRobin:
		r.dns(s, len(in.Endpoints) > 0)
	case mesh.DynamicDNS:
		r.dynamicDNS(s)
	}
	if s.resolution != mesh.ResolutionNone && len(s.hosts) > 1 {
		r.indistinct(s)
	}
	r.unaddressed(s, in, m)
}

func (r *reader) dns(s *serviceSpec, endpoints bool) {
	for _, h := range s.hosts {
		if h.host.Wildcard() && !endpoints {
			r.refuse("wildcard-not-resolvable", h.path, "%q is a wildcard, which resolution %s cannot look up; write full host names, add endpoints, or set spec.resolution to DYNAMIC_DNS", h.host, s.resolution)
		}
	}
	tcp := slices.IndexFunc(s.ports, func(p mesh.Port) bool { return p.Protocol.TCP() })
	if tcp >= 0 && len(s.addresses) > 0 && len(s.hosts) > 1 {
		r.warn("hosts-share-address", fmt.Sprintf("spec.ports[%d]", tcp), "is not HTTP, so that connections to spec.addresses cannot be told apart by host and all go to the first one; write an entry for each host")
	}
}

func (r *reader) dynamicDNS(s *serviceSpec) {
	for _, h := range s.hosts {
		if !h.host.Wildcard() {
			r.refuse("wildcard-needed", h.path, `%q is not a wildcard, as resolution DYNAMIC_DNS needs; write one such as "*.example.org", or set spec.resolution to DNS`, h.host)
		}
	}
	for i, p := range s.ports {
		if !slices.Contains(dynamicProtocols, p.Protocol) {
			r.refuse("protocol-not-allowed", fmt.Sprintf("spec.ports[%d].protocol", i), "%s does not carry the host name that resolution DYNAMIC_DNS looks up; use HTTP, HTTP2, GRPC or TLS", protocolName(p.Protocol))
		}
	}
}

// allocations reads status.addresses, which a controller writes.
func (r *reader) allocations(s *serviceSpec, in []allocated) {
	s.allocated = map[mesh.Host][]netip.Addr{}
	for i, a := range in {
		path := fmt.Sprintf("status.addresses[%d].value", i)
		ip, err := parseIP(a.Value)
		if err != nil {
			r.warn("invalid-address", path, "%q %v; it is passed over", a.Value, err)
			continue
		}
		for _, h := range s.hosts {
			if a.Host == "" || strings.EqualFold(a.Host, h.host.String()) {
				s.allocated[h.host] = append(s.allocated[h.host], ip)
			}
		}
	}
}

// indistinct refuses several hosts on a port where nothing tells which of them is meant.
func (r *reader) indistinct(s *serviceSpec) {
	for i, p := range s.ports {
		if !p.Protocol.HTTP() && !p.Protocol.TLS() {
			r.refuse("hosts-indistinct", fmt.Sprintf("spec.ports[%d].protocol", i), "%s does not carry the host name, so that the entry's %d hosts cannot be told apart; write an entry for each host, or use HTTP or TLS", protocolName(p.Protocol), len(s.hosts))
			return
		}
	}
}

// unaddressed warns of ports that take every connection to their number, where no address is allocated either.
func (r *reader) unaddressed(s *serviceSpec, in *networking.ServiceEntry, m *metadata) {
	if len(in.Addresses) > 0 || s.resolution == mesh.DynamicDNS {
		return
	}
	wildcard := slices.ContainsFunc(s.hosts, func(h placed) bool { return h.host.Wildcard() })
	if s.resolution != mesh.ResolutionNone && !wildcard && m.Labels[autoAddress] != "false" {
		return
	}
	for i, p := range s.ports {
		if p.Protocol == mesh.Sniffed || p.Protocol == mesh.TCP {
			r.warn("no-service-address", fmt.Sprintf("spec.ports[%d]", i), "takes every connection to port %d, whatever its destination, since the entry has no addresses; write the addresses that applications dial under spec.addresses", p.Number)
		}
	}
}
