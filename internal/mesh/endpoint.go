package mesh

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Address is where an endpoint is: an IP address, a host name for the proxy to resolve, or a Unix socket.
// The zero Address is none.
type Address struct {
	ip   netip.Addr
	text string // a host name, or "unix:" and the path, "@" first for an abstract one
}

// IPAddress is an endpoint's IP address. An IPv4 address in IPv6 form becomes the IPv4 address.
func IPAddress(ip netip.Addr) Address { return Address{ip: ip.Unmap()} }

// HostAddress is an endpoint's host name.
func HostAddress(name string) Address { return Address{text: strings.ToLower(name)} }

// SocketAddress is the path of an endpoint's Unix socket; "@" first makes it an abstract one.
func SocketAddress(path string) Address { return Address{text: "unix:" + path} }

// IP is the IP address, if it is one.
func (a Address) IP() (netip.Addr, bool) { return a.ip, a.ip.IsValid() }

// Host is the host name, if it is one.
func (a Address) Host() (string, bool) {
	return a.text, a.text != "" && !strings.HasPrefix(a.text, "unix:")
}

// Socket is the path of the Unix socket, if it is one.
func (a Address) Socket() (string, bool) { return strings.CutPrefix(a.text, "unix:") }

// Compare orders addresses: IP addresses first, then names and sockets as text.
func (a Address) Compare(o Address) int {
	return cmp.Or(cmp.Compare(a.text, o.text), a.ip.Compare(o.ip))
}

func (a Address) String() string {
	if a.ip.IsValid() {
		return a.ip.String()
	}
	return a.text
}

// MarshalText writes the address.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Locality is where something runs.
type Locality struct {
	Region  string `json:"region,omitempty"`
	Zone    string `json:"zone,omitempty"`
	SubZone string `json:"subZone,omitempty"`
}

// ParseLocality reads REGION/ZONE/SUBZONE, of which the later parts may be absent.
func ParseLocality(s string) Locality {
	p := append(strings.SplitN(s, "/", 3), "", "", "")
	return Locality{p[0], p[1], p[2]}
}

// Compare orders localities.
func (l Locality) Compare(o Locality) int {
	return cmp.Or(cmp.Compare(l.Region, o.Region), cmp.Compare(l.Zone, o.Zone), cmp.Compare(l.SubZone, o.SubZone))
}

func (l Locality) String() string {
	return strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.SubZone, "/")
}

// Health is an endpoint's health as its registry knows it.
type Health uint8

// The states of health, as Envoy has them.
const (
	HealthUnknown Health = iota
	Healthy
	Degraded
	Draining
	Unhealthy
)

func (h Health) String() string {
	return [...]string{"unknown", "healthy", "degraded", "draining", "unhealthy"}[h]
}

// MarshalText writes the name.
func (h Health) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// Endpoint is one instance of a service.
type Endpoint struct {
	Address Address
	// Second is an address of the other IP family, for nodes that have that one alone. The zero Addr is none.
	Second netip.Addr
	// Ports are the ports that the endpoint listens on, in the order of the service's ports; 0 where it does not
	// serve that port. For a Unix socket any other number means that it does.
	Ports          []uint16
	Weight         uint32 // a share of the traffic relative to the others, from 1
	Locality       Locality
	Rank           uint8 // with [PreferRegion]: endpoints of a higher one are for when those of lower ones do not suffice
	Network        string
	Labels         map[string]string
	ServiceAccount string
	Health         Health
	Origin         Origin
}

// Idle tells whether the endpoint serves no port.
func (e *Endpoint) Idle() bool {
	return !slices.ContainsFunc(e.Ports, func(number uint16) bool { return number != 0 })
}

// Rearrange gives an endpoint's ports in the order of other service ports. place tells for each of these which of the
// endpoint's it is; -1: none.
func Rearrange(ports []uint16, place []int) []uint16 {
	out := make([]uint16, len(place))
	for i, at := range place {
		if at >= 0 {
			out[i] = ports[at]
		}
	}
	return out
}

// compare is a total order on what digests hold.
func (e *Endpoint) compare(o *Endpoint) int {
	return cmp.Or(e.Locality.Compare(o.Locality), cmp.Compare(e.Rank, o.Rank), e.Address.Compare(o.Address))
}
