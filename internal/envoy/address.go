package envoy

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"

	"github.com/meshd/meshd/internal/mesh"
)

// NameCapture is whether a node's DNS requests are answered by its proxy, so that a service may have an address that
// nobody else knows.
type NameCapture uint8

// The name captures.
const (
	NamesNotCaptured NameCapture = iota
	NamesCaptured
)

func (c NameCapture) String() string { return [...]string{"off", "on"}[c] }

// MarshalText writes the word.
func (c NameCapture) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// addressesOf are the addresses by which nodes of a scope know a service: its own or, if it has none and their proxies
// answer for names, those that were allocated to it, else one that follows from its identity. An address of the other
// family is of no use then.
func addressesOf(s *mesh.Service, scope Scope) []netip.Prefix {
	if len(s.Addresses) > 0 || scope.Names != NamesCaptured || s.Resolution == mesh.ResolutionNone {
		return s.Addresses
	}
	all := s.Allocated
	if len(all) == 0 && s.Allocation == mesh.Allocate && (!s.Host.Wildcard() || s.Resolution == mesh.DynamicDNS) {
		all = ownAddresses(s.Key)
	}
	var out []netip.Prefix
	for _, a := range all {
		if scope.Family.has(a) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// addressFor is where nodes of a family reach an endpoint: at its second address if the first is one that they have no like of.
func addressFor(f Family, e *mesh.Endpoint) mesh.Address {
	if ip, ok := e.Address.IP(); ok && !f.has(ip) && e.Second.IsValid() && f.has(e.Second) {
		return mesh.IPAddress(e.Second)
	}
	return e.Address
}

// ownAddresses are the addresses of a service that nobody has given one: in 240.0.0.0/5, which is routed nowhere, and in
// 2001:2::/48 (RFC 5180). They follow from namespace and host alone, so that they are the same on every replica, after
// every restart, and whatever other services come and go. Two services of one address are rarer than one in a thousand
// meshes of 500 services; they are told apart by port, and else the second is a problem.
func ownAddresses(k mesh.Key) []netip.Addr {
	h := sha256.Sum256([]byte(k.String()))
	const hosts = 1<<27 - 2 // but for the range's first and last
	var four [4]byte
	binary.BigEndian.PutUint32(four[:], 240<<24+1+binary.BigEndian.Uint32(h[:])%hosts)
	six := [16]byte{0x20, 0x01, 0x00, 0x02}
	copy(six[6:], h[4:])
	return []netip.Addr{netip.AddrFrom4(four), netip.AddrFrom16(six)}
}
