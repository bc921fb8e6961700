package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshd/meshd/internal/mesh"
)

// Capture is how a node's applications reach its Envoy.
type Capture uint8

// The captures. Redirect is the firewall's redirection to port 15001, as Istio has it; None is without: listeners
// on 127.0.0.1 and the service's port.
const (
	Redirect Capture = iota
	None
)

var captureNames = [...]string{"redirect", "none"}

func (c Capture) String() string { return captureNames[c] }

// MarshalText writes the name.
func (c Capture) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// CaptureNames are the words that a node's metadata may say.
func CaptureNames() []string { return captureNames[:] }

// Family is the IP families of a node's own addresses.
type Family uint8

// The families. Dual prefers IPv4.
const (
	IPv4 Family = iota
	IPv6
	Dual
)

// has tells whether nodes of the family have addresses like this one.
func (f Family) has(ip netip.Addr) bool { return f == Dual || ip.Is4() == (f == IPv4) }

func (f Family) String() string { return [...]string{"ipv4", "ipv6", "dual"}[f] }

// MarshalText writes the name.
func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// Privileges are what a node's proxy may do.
type Privileges uint8

// The privileges. An unprivileged proxy cannot listen on ports below 1024, which matters where it really binds them.
const (
	Privileged Privileges = iota
	Unprivileged
)

func (p Privileges) String() string { return [...]string{"privileged", "unprivileged"}[p] }

// MarshalText writes the name.
func (p Privileges) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Reports is whether a gRPC client reports its load. It does if its clusters say so; an Envoy does if its bootstrap does.
type Reports uint8

// The choices.
const (
	NoReports Reports = iota
	LoadReports
)

func (r Reports) String() string { return [...]string{"none", "load"}[r] }

// MarshalText writes the name.
func (r Reports) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Scope is those facts of a node that may change what it is sent. Nodes of one scope share one snapshot.
type Scope struct {
	Kind      Kind          `json:"kind"`
	Namespace string        `json:"namespace"`
	Capture   Capture       `json:"capture"`
	Family    Family        `json:"family"`
	Domain    string        `json:"dnsDomain,omitempty"` // short names are relative to it
	Locality  mesh.Locality `json:"locality,omitzero"`
	// Privileges tell which ports the proxy may listen on.
	Privileges Privileges `json:"privileges"`
	// Names say whether the node's DNS requests are answered by its proxy.
	Names NameCapture `json:"names"`
	// Reports say whether a gRPC client reports its load; of other nodes it is no matter.
	Reports Reports `json:"reports,omitempty"`
	// Addresses are the node's own IP addresses, separated by commas. They matter to the inbound side alone, which is
	// there only with redirection.
	Addresses string `json:"addresses,omitempty"`
}

// Base is the scope without what is one node's own: nodes that differ in nothing else share it.
func (s Scope) Base() Scope {
	s.Addresses = ""
	return s
}

func (s Scope) addresses() []netip.Addr {
	var out []netip.Addr
	for a := range strings.SplitSeq(s.Addresses, ",") {
		if ip, err := netip.ParseAddr(a); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

// FieldError names the field of a node that cannot be read.
type FieldError struct{ Field, Message string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

// maxNodeID is how many bytes the id of a node may have: it is kept as long as the node is connected, and longer.
const maxNodeID = 1 << 10

// ScopeOf reads a node's scope from its id and metadata. The id is Istio's sidecar~IP~NAME.NAMESPACE~DOMAIN or any
// other text; metadata has NAMESPACE, INSTANCE_IPS, INTERCEPTION_MODE, UNPRIVILEGED_POD and DNS_CAPTURE as Istio's, and
// meshd's own settings under "meshd": {"capture": "redirect" or "none", "namespace": …, "unprivileged": true}, which win.
// Of a gRPC client, which its user agent tells, only namespace, locality and "loadReports": true under "meshd" matter. The error is a [FieldError].
func ScopeOf(node *corev3.Node) (Scope, error) {
	if node.GetId() == "" {
		return Scope{}, &FieldError{"node.id", "is empty; an Envoy is told its id by --service-node or node.id in its bootstrap"}
	}
	if len(node.GetId()) > maxNodeID {
		return Scope{}, &FieldError{"node.id", fmt.Sprintf("has %d bytes, and may have %d", len(node.GetId()), maxNodeID)}
	}
	l := node.GetLocality()
	s := Scope{
		Namespace: mesh.DefaultNamespace, Capture: None,
		Locality: mesh.Locality{Region: l.GetRegion(), Zone: l.GetZone(), SubZone: l.GetSubZone()},
	}
	r := &nodeReader{}
	var addresses []netip.Addr
	parts := strings.Split(node.GetId(), "~")
	if len(parts) == 4 && (parts[0] == "sidecar" || parts[0] == "router") {
		addresses = r.addresses("node.id", parts[1])
		s.Capture, s.Domain = Redirect, strings.ToLower(parts[3])
		if i := strings.LastIndex(parts[2], "."); i >= 0 {
			r.namespace("node.id", parts[2][i+1:], &s.Namespace)
		}
	}
	istio := object{"node.metadata", node.GetMetadata().GetFields()}
	r.namespace("node.metadata.NAMESPACE", r.text(istio, "NAMESPACE"), &s.Namespace)
	if v := r.text(istio, "INSTANCE_IPS"); v != "" {
		addresses = r.addresses("node.metadata.INSTANCE_IPS", v)
	}
	switch v := r.text(istio, "INTERCEPTION_MODE"); v {
	case "":
	case "REDIRECT", "TPROXY":
		s.Capture = Redirect
	case "NONE":
		s.Capture = None
	default:
		r.reject("node.metadata.INTERCEPTION_MODE", fmt.Sprintf("%q is not a mode (REDIRECT, TPROXY, NONE)", v))
	}
	if r.text(istio, "UNPRIVILEGED_POD") == "true" {
		s.Privileges = Unprivileged
	}
	if r.text(istio, "DNS_CAPTURE") == "true" {
		s.Names = NamesCaptured
	}
	own := r.object(istio, "meshd")
	r.namespace("node.metadata.meshd.namespace", r.text(own, "namespace"), &s.Namespace)
	r.capture("node.metadata.meshd.capture", r.text(own, "capture"), &s.Capture)
	if unprivileged, ok := r.truth(own, "unprivileged"); ok {
		s.Privileges = Privileged
		if unprivileged {
			s.Privileges = Unprivileged
		}
	}
	reports := NoReports
	if report, _ := r.truth(own, "loadReports"); report {
		reports = LoadReports
	}
	s.Family = familyOf(addresses)
	if s.Capture == Redirect {
		s.Addresses = joinAddresses(addresses)
	}
	if r.wrong != nil {
		return Scope{}, r.wrong
	}
	if strings.HasPrefix(node.GetUserAgentName(), GRPCAgent) {
		return Scope{Kind: GRPC, Namespace: s.Namespace, Capture: None, Locality: s.Locality, Reports: reports}, nil
	}
	return s, nil
}

// object is a JSON object in a node's metadata.
type object struct {
	path   string
	fields map[string]*structpb.Value
}

// nodeReader reads a node's fields and keeps the first that is wrong.
type nodeReader struct{ wrong *FieldError }

func (r *nodeReader) reject(field, message string) {
	if r.wrong == nil {
		r.wrong = &FieldError{field, message}
	}
}

func (r *nodeReader) text(o object, key string) string {
	v := o.fields[key]
	if _, ok := v.GetKind().(*structpb.Value_StringValue); v != nil && !ok {
		r.reject(o.path+"."+key, "is not text; put it in quotes")
	}
	return v.GetStringValue()
}

func (r *nodeReader) object(o object, key string) object {
	v := o.fields[key]
	if v != nil && v.GetStructValue() == nil {
		r.reject(o.path+"."+key, "is not an object")
	}
	return object{o.path + "." + key, v.GetStructValue().GetFields()}
}

func (r *nodeReader) namespace(field, value string, into *string) {
	switch {
	case value == "":
	case !mesh.IsLabel(value):
		r.reject(field, fmt.Sprintf("%q is not a namespace; it is lower-case letters, digits and inner hyphens", value))
	default:
		*into = value
	}
}

func (r *nodeReader) capture(field, value string, into *Capture) {
	if value == "" {
		return
	}
	i := slices.Index(captureNames[:], value)
	if i < 0 {
		r.reject(field, fmt.Sprintf("%q is not a capture (%s)", value, strings.Join(captureNames[:], ", ")))
		return
	}
	*into = Capture(i)
}

// truth is what a field says that is true or false, if it is there.
func (r *nodeReader) truth(o object, key string) (value, ok bool) {
	v, ok := o.fields[key]
	if !ok {
		return false, false
	}
	b, ok := v.GetKind().(*structpb.Value_BoolValue)
	if !ok {
		r.reject(o.path+"."+key, "is neither true nor false")
	}
	return b != nil && b.BoolValue, ok
}

func (r *nodeReader) addresses(field, list string) []netip.Addr {
	var out []netip.Addr
	for a := range strings.SplitSeq(list, ",") {
		ip, err := netip.ParseAddr(strings.TrimSpace(a))
		if err != nil {
			r.reject(field, fmt.Sprintf("%q is not an IP address", a))
		}
		out = append(out, ip.Unmap())
	}
	return out
}

func joinAddresses(addresses []netip.Addr) string {
	var texts []string
	for _, a := range addresses {
		texts = append(texts, a.String())
	}
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), ",")
}

func familyOf(addresses []netip.Addr) Family {
	var four, six bool
	for _, a := range addresses {
		if a.Is4() {
			four = true
		} else {
			six = true
		}
	}
	switch {
	case four && six:
		return Dual
	case six:
		return IPv6
	}
	return IPv4
}
