package xds

import (
	"strconv"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshd/meshd/internal/envoy"
)

// Protocol is a variant of xDS.
type Protocol uint8

// The variants: state of the world and incremental.
const (
	SotW Protocol = iota
	Delta
	protocols
)

func (p Protocol) String() string { return [...]string{"sotw", "delta"}[p] }

// MarshalText writes the word.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// The fields of envoy.service.discovery.v3.DiscoveryResponse and DeltaDiscoveryResponse. Those that both have, have
// the same numbers.
const (
	versionNumber   protowire.Number = 1
	resourcesNumber protowire.Number = 2
	typeURLNumber   protowire.Number = 4
	nonceNumber     protowire.Number = 5
	removedNumber   protowire.Number = 6 // delta's alone
)

// variants is how responses of the two protocols differ on the wire.
var variants = [protocols]struct {
	payload      func(*envoy.Resource) []byte
	controlPlane protowire.Number
}{
	SotW:  {(*envoy.Resource).Any, 6},
	Delta: {(*envoy.Resource).Wire, 7},
}

// typeURLs are what envoy.Type.URL would build anew each time.
var typeURLs = func() (urls [envoy.Types]string) {
	for t := range envoy.Types {
		urls[t] = t.URL()
	}
	return urls
}()

func typeOf(url []byte) (envoy.Type, bool) {
	for t := range envoy.Types {
		if string(url) == typeURLs[t] {
			return t, true
		}
	}
	return 0, false
}

// encodeResources writes the part of a response that is the same for all who are sent these resources.
func encodeResources(p Protocol, resources []*envoy.Resource) []byte {
	payload := variants[p].payload
	size := 0
	for _, r := range resources {
		size += protowire.SizeTag(resourcesNumber) + protowire.SizeBytes(len(payload(r)))
	}
	b := make([]byte, 0, size)
	for _, r := range resources {
		b = protowire.AppendTag(b, resourcesNumber, protowire.BytesType)
		b = protowire.AppendBytes(b, payload(r))
	}
	return b
}

// encode writes a response. What is its own follows what it may share; fields may come in any order.
func encode(p Protocol, controlPlane []byte, r *response) *frame {
	b := make([]byte, 0, 128) // enough for all but removals
	text := func(n protowire.Number, s string) {
		b = protowire.AppendTag(b, n, protowire.BytesType)
		b = protowire.AppendString(b, s)
	}
	text(versionNumber, r.version)
	text(typeURLNumber, typeURLs[r.typ])
	text(nonceNumber, r.nonce)
	for _, n := range r.removed {
		text(removedNumber, string(n))
	}
	text(variants[p].controlPlane, string(controlPlane))
	return &frame{mem.BufferSlice{mem.SliceBuffer(r.content.body(p)), mem.SliceBuffer(b)}}
}

// encodeControlPlane is an encoded ControlPlane, which Envoy's admin pages show (rule 21).
func encodeControlPlane(identifier string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), identifier)
}

func nonceOf(n uint64) string { return strconv.FormatUint(n, 10) }
