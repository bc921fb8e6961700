package mesh

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Port is one port of a service.
type Port struct {
	Number   uint16
	Name     string
	Protocol Protocol
	// Also are further protocols that other definitions of the service give this number. Protocol decides how
	// upstreams are spoken to; each of them is listened for.
	Also []Protocol
	// Target replaces the port that the application dialled, for a service without endpoints of its own; 0: none.
	Target uint16
	Origin Origin
}

// Protocols are all protocols to listen for, the deciding one first.
func (p Port) Protocols() []Protocol { return append([]Protocol{p.Protocol}, p.Also...) }

// Visibility is the namespaces in which a service can be used. The zero Visibility is nowhere.
type Visibility struct {
	All        bool
	Namespaces []string // sorted
}

// In tells whether the service can be used in namespace.
func (v Visibility) In(namespace string) bool { return v.All || v.Names(namespace) }

// Names tells whether namespace is named, and not just included in all.
func (v Visibility) Names(namespace string) bool {
	_, ok := slices.BinarySearch(v.Namespaces, namespace)
	return ok
}

// Equal compares what is visible where.
func (v Visibility) Equal(o Visibility) bool {
	return v.All == o.All && slices.Equal(v.Namespaces, o.Namespaces)
}

// Allocation is whether a service without addresses gets one by itself.
type Allocation uint8

// The allocations.
const (
	Allocate Allocation = iota
	NeverAllocate
)

// Service is what one host in one namespace offers. It is immutable once [Seal] has returned it.
type Service struct {
	Key
	Ports []Port
	// Addresses are the virtual addresses that applications dial; one of full length is a plain address.
	Addresses []netip.Prefix
	// Allocated are addresses that somebody has allocated to a service that has none of its own; they are for nodes whose
	// proxy answers DNS requests with them. Allocation says whether such a service gets one by itself.
	Allocated       []netip.Addr
	Allocation      Allocation
	Resolution      Resolution
	Location        Location
	Endpoints       []Endpoint // sorted by locality, rank and address
	SubjectAltNames []string
	Export          Visibility
	Labels          map[string]string
	// Selector is the workload selector in text form, empty where there is none. Services of different selectors do not merge.
	Selector     string
	Created      time.Time // decides between services in conflict, the older first
	Distribution Distribution
	Connect      ConnectStrategy
	Origin       Origin   // of the definition that decides
	Joined       []Origin // of the other definitions that are part of it

	frame, digest Digest
}

// Digest is a content hash: the first 128 bits of SHA-256.
type Digest [16]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText writes the digest in hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Plus combines two digests regardless of order; Minus takes it back. A set's digest is the sum of its members'.
func (d Digest) Plus(o Digest) Digest {
	lo := binary.BigEndian.Uint64(d[8:]) + binary.BigEndian.Uint64(o[8:])
	hi := binary.BigEndian.Uint64(d[:8]) + binary.BigEndian.Uint64(o[:8])
	return digestOf(hi, lo)
}

// Minus takes o out of a sum.
func (d Digest) Minus(o Digest) Digest {
	lo := binary.BigEndian.Uint64(d[8:]) - binary.BigEndian.Uint64(o[8:])
	hi := binary.BigEndian.Uint64(d[:8]) - binary.BigEndian.Uint64(o[:8])
	return digestOf(hi, lo)
}

func digestOf(hi, lo uint64) (d Digest) {
	binary.BigEndian.PutUint64(d[:8], hi)
	binary.BigEndian.PutUint64(d[8:], lo)
	return d
}

// Seal finishes a service: what has no order is sorted, and its digests are taken. The caller gives up s and
// all that it holds.
func Seal(s Service) *Service {
	slices.SortStableFunc(s.Endpoints, func(a, b Endpoint) int { return a.compare(&b) })
	s.SubjectAltNames = slices.Compact(slices.Sorted(slices.Values(s.SubjectAltNames)))
	slices.Sort(s.Export.Namespaces)

	w := digester{h: sha256.New()}
	w.frame(&s)
	s.frame = w.sum()
	for i := range s.Endpoints {
		w.endpoint(&s.Endpoints[i])
	}
	s.digest = w.sum()
	return &s
}

// Digest is the hash of all but origins.
func (s *Service) Digest() Digest { return s.digest }

// Frame is the hash of all but endpoints and origins: services of one frame differ in their endpoints alone.
func (s *Service) Frame() Digest { return s.frame }

// Identical tells whether two services agree in content and origins, so that one may stand for the other.
func (s *Service) Identical(o *Service) bool {
	return s.digest == o.digest && s.Origin == o.Origin && slices.Equal(s.Joined, o.Joined) &&
		slices.EqualFunc(s.Ports, o.Ports, func(a, b Port) bool { return a.Origin == b.Origin }) &&
		slices.EqualFunc(s.Endpoints, o.Endpoints, func(a, b Endpoint) bool { return a.Origin == b.Origin })
}

// Port returns the port of that number.
func (s *Service) Port(number uint16) (Port, bool) {
	for _, p := range s.Ports {
		if p.Number == number {
			return p, true
		}
	}
	return Port{}, false
}

// digester writes values in a form of which two different ones never look alike.
type digester struct {
	h   hash.Hash
	buf []byte
}

func (w *digester) number(n uint64) { w.buf = binary.AppendUvarint(w.buf, n) }

func (w *digester) text(s string) {
	w.number(uint64(len(s)))
	w.buf = append(w.buf, s...)
}

func (w *digester) labels(m map[string]string) {
	w.number(uint64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.text(k)
		w.text(m[k])
	}
}

func (w *digester) texts(s []string) {
	w.number(uint64(len(s)))
	for _, t := range s {
		w.text(t)
	}
}

func (w *digester) flag(b bool) {
	if b {
		w.number(1)
	} else {
		w.number(0)
	}
}

func (w *digester) frame(s *Service) {
	w.text(s.Namespace)
	w.text(s.Host.name)
	w.number(uint64(len(s.Ports)))
	for _, p := range s.Ports {
		w.number(uint64(p.Number))
		w.text(p.Name)
		w.number(uint64(p.Target))
		w.number(uint64(len(p.Also)))
		for _, o := range p.Protocols() {
			w.number(uint64(o))
		}
	}
	w.number(uint64(len(s.Addresses)))
	for _, a := range s.Addresses {
		w.text(a.String())
	}
	w.number(uint64(len(s.Allocated)))
	for _, a := range s.Allocated {
		w.text(a.String())
	}
	w.number(uint64(s.Allocation))
	w.number(uint64(s.Resolution))
	w.number(uint64(s.Location))
	w.texts(s.SubjectAltNames)
	w.flag(s.Export.All)
	w.texts(s.Export.Namespaces)
	w.labels(s.Labels)
	w.text(s.Selector)
	w.number(uint64(s.Created.Unix()))
	w.number(uint64(s.Distribution))
	w.number(uint64(s.Connect))
}

func (w *digester) endpoint(e *Endpoint) {
	w.text(e.Address.String())
	w.text(e.Second.String())
	w.number(uint64(e.Rank))
	w.number(uint64(len(e.Ports)))
	for _, p := range e.Ports {
		w.number(uint64(p))
	}
	w.number(uint64(e.Weight))
	w.text(e.Locality.Region)
	w.text(e.Locality.Zone)
	w.text(e.Locality.SubZone)
	w.text(e.Network)
	w.labels(e.Labels)
	w.text(e.ServiceAccount)
	w.number(uint64(e.Health))
}

// sum is the digest of all written so far; writing may go on.
func (w *digester) sum() (d Digest) {
	w.h.Write(w.buf)
	w.buf = w.buf[:0]
	var full [sha256.Size]byte
	copy(d[:], w.h.Sum(full[:0]))
	return d
}

// Older orders definitions of services by age, then by where they stand; it never calls two different ones equal.
func Older(a, b *Service) int {
	return cmp.Or(a.Created.Compare(b.Created), a.Key.Compare(b.Key), a.Origin.Compare(b.Origin), slices.Compare(a.digest[:], b.digest[:]))
}
