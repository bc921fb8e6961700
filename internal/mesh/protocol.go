package mesh

import "strings"

// Protocol is what is spoken on a port. The zero value leaves it to the proxy to find out (sniffing).
type Protocol uint8

// The protocols of Istio's ServiceEntry.
const (
	Sniffed Protocol = iota
	HTTP
	HTTP2
	GRPC
	GRPCWeb
	HTTPProxy
	TCP
	TLS
	HTTPS
	Mongo
	MySQL
	Redis
	UDP
)

var protocolNames = [...]string{"", "HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTP_PROXY", "TCP", "TLS", "HTTPS", "MONGO", "MYSQL", "REDIS", "UDP"}

// ParseProtocol reads a protocol's name in any letter case; the empty name is [Sniffed].
func ParseProtocol(s string) (Protocol, bool) {
	for i, n := range protocolNames {
		if strings.EqualFold(n, s) {
			return Protocol(i), true
		}
	}
	return Sniffed, false
}

// ProtocolNames are the names that [ParseProtocol] takes, but for the empty one.
func ProtocolNames() []string { return append([]string(nil), protocolNames[1:]...) }

// String is the protocol's name; empty for [Sniffed].
func (p Protocol) String() string { return protocolNames[p] }

// MarshalText writes the name.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// HTTP tells whether the proxy routes requests of this protocol by their host.
func (p Protocol) HTTP() bool { return HTTP <= p && p <= HTTPProxy }

// HTTP2 tells whether upstreams of this protocol are spoken to in HTTP/2.
func (p Protocol) HTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// TLS tells whether connections carry a server name that the proxy can read without ending them.
func (p Protocol) TLS() bool { return p == TLS || p == HTTPS }

// TCP tells whether the proxy forwards bytes of this protocol, TLS included.
func (p Protocol) TCP() bool { return TCP <= p && p <= Redis }

// Resolution is how a service's endpoints are found.
type Resolution uint8

// The resolutions of Istio's ServiceEntry.
const (
	ResolutionNone Resolution = iota // the address that the application dialled
	Static                           // the endpoints' addresses
	DNS                              // every address that the endpoints' names resolve to
	DNSRoundRobin                    // one address at a time of one name
	DynamicDNS                       // the name in the request
)

func (r Resolution) String() string {
	return [...]string{"NONE", "STATIC", "DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS"}[r]
}

// MarshalText writes the name.
func (r Resolution) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// DNS tells whether the proxy resolves the endpoints' names.
func (r Resolution) DNS() bool { return r == DNS || r == DNSRoundRobin }

// Location tells whether a service is part of the mesh.
type Location uint8

// The locations of Istio's ServiceEntry.
const (
	External Location = iota
	Internal
)

func (l Location) String() string { return [...]string{"MESH_EXTERNAL", "MESH_INTERNAL"}[l] }

// MarshalText writes the name.
func (l Location) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Distribution is how near endpoints are preferred, after Istio's annotation networking.istio.io/traffic-distribution.
type Distribution uint8

// The traffic distributions. PreferClose goes by region and zone, PreferSameNode by the sub-zone as well: a machine that is
// to be told from its neighbours has one of its own. PreferRegion, which no annotation says, goes by the region, and where
// that of the node has no endpoints or is not known by their rank.
const (
	AnyEndpoint Distribution = iota
	PreferClose
	PreferSameNode
	PreferRegion
)

// ConnectStrategy is how a DNS service's addresses are tried, after Istio's annotation istio.io/connect-strategy.
type ConnectStrategy uint8

// The connect strategies.
const (
	DefaultConnect ConnectStrategy = iota
	RaceFirstTCPConnect
)
