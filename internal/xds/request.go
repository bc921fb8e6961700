package xds

import (
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshd/meshd/internal/envoy"
)

// request is a DiscoveryRequest or a DeltaDiscoveryRequest. It is read from the wire without decoding: most requests are
// acknowledgements, of which two short strings matter, though those of the state of the world repeat all names.
type request struct {
	protocol Protocol
	wire     []byte

	node    []byte // an encoded Node
	typeURL []byte
	version string // state of the world: the version that the client has
	nonce   string
	failed  bool // has error_detail: the response of that nonce is rejected (rule 9)

	subscribes bool    // names what it wants
	digest     uint64  // of these names, as they stand there
	span       int     // how many bytes they are, if they stand together; else 0
	roster     *roster // they are, if they stand together and others have written them just so
	claimed    sum     // delta: of the versions that the client has already
	release    func()  // if set, gives wire back; for what keeps the request

	at      [initialField + 1]struct{ from, to int } // where the values of a field are; among them may be others
	message string                                   // why
}

// field says which part of a request a field number is.
type field uint8

const (
	nodeField field = iota + 1
	typeField
	versionField
	nonceField
	errorField
	subscribeField // state of the world: all that is wanted
	unsubscribeField
	initialField
)

// fields holds the numbers of envoy.service.discovery.v3.DiscoveryRequest and DeltaDiscoveryRequest.
var fields = [protocols][10]field{
	SotW: {1: versionField, 2: nodeField, 3: subscribeField, 4: typeField, 5: nonceField, 6: errorField},
	Delta: {
		1: nodeField, 2: typeField, 3: subscribeField, 4: unsubscribeField, 5: initialField, 6: nonceField,
		7: errorField,
	},
}

func (p Protocol) field(n protowire.Number) field {
	if int(n) < len(fields[p]) {
		return fields[p][n]
	}
	return 0
}

var errText = errors.New("text that is not UTF-8")

// reader reads the requests of a stream.
type reader struct {
	protocol Protocol
	rosters  *rosters
	// known are, of each type, the names of the last request: how many bytes, and their digest. In the state of the world each
	// acknowledgement repeats them, and so they need not be looked at one by one.
	known [envoy.Types + 1]struct {
		span   int
		digest uint64
	}
}

// read reads a request. It keeps wire.
func (x *reader) read(wire []byte) (*request, error) {
	r := &request{protocol: x.protocol, wire: wire}
	at := func(rest []byte) int { return len(wire) - len(rest) }
	for b := wire; len(b) > 0; {
		if b[0] == namesTag && !r.subscribes {
			size, err := x.names(r, b)
			if err != nil {
				return nil, fmt.Errorf("decode request: %w", err)
			}
			r.saw(subscribeField, at(b), size)
			if b = b[size:]; len(b) == 0 {
				break
			}
		}
		n, value, size := next(b)
		if size < 0 {
			return nil, fmt.Errorf("decode request: %w", protowire.ParseError(size))
		}
		if value != nil {
			f := r.protocol.field(n)
			r.saw(f, at(b), size)
			if err := r.set(f, value); err != nil {
				return nil, fmt.Errorf("decode request: %w", err)
			}
		}
		b = b[size:]
	}
	if r.span > 0 {
		t, ok := typeOf(r.typeURL)
		if !ok {
			t = envoy.Types
		}
		x.known[t].span, x.known[t].digest = r.span, r.digest
	}
	return r, nil
}

// namesTag begins each name that a request subscribes to, in both protocols.
const namesTag = 3<<3 | byte(protowire.BytesType)

// names takes the names at the beginning of b, and returns how many bytes they are.
func (x *reader) names(r *request, b []byte) (size int, err error) {
	for _, k := range x.known {
		if k.span > 0 && k.span <= len(b) && maphash.Bytes(seed, b[:k.span]) == k.digest {
			r.subscribes, r.span, r.digest = true, k.span, k.digest
			return k.span, nil
		}
	}
	for size < len(b) && b[size] == namesTag {
		_, _, n := next(b[size:])
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		size += n
	}
	r.subscribes, r.span, r.digest = true, size, maphash.Bytes(seed, b[:size])
	if r.roster = x.rosters.asWritten(r.digest); r.roster != nil {
		return size, nil
	}
	for rest := b[:size]; len(rest) > 0; {
		_, value, n := next(rest)
		if !utf8.Valid(value) {
			return 0, errText
		}
		rest = rest[n:]
	}
	return size, nil
}

// saw notes where a field is.
func (r *request) saw(f field, from, size int) {
	at := &r.at[f]
	if at.to == 0 {
		at.from = from
	}
	at.to = from + size
}

// set takes a field.
func (r *request) set(f field, value []byte) error {
	switch f {
	case nodeField:
		r.node = value
		return nil
	case errorField:
		r.failed = true
		return walk(value, func(n protowire.Number, text []byte) error { // google.rpc.Status
			if n == 2 {
				r.message = string(text)
			}
			return nil
		})
	case initialField:
		key, version, err := entry(value)
		r.claimed.versioned(key, version)
		if err == nil && !(utf8.Valid(key) && utf8.Valid(version)) {
			err = errText
		}
		return err
	case typeField:
		r.typeURL = value
	case versionField:
		r.version = string(value)
	case nonceField:
		r.nonce = string(value)
	case subscribeField:
		r.subscribes = true
		r.span, r.digest = 0, r.digest*31+maphash.Bytes(seed, value)+1 // it does not follow the others
	}
	if f != 0 && !utf8.Valid(value) {
		return errText
	}
	return nil
}

// names yields the names to subscribe to, or to unsubscribe from.
func (r *request) names(f field) iter.Seq[envoy.Name] {
	return func(yield func(envoy.Name) bool) {
		for value := range r.values(f) {
			if !yield(envoy.Name(value)) {
				return
			}
		}
	}
}

// values yields the values of a field, where they stand in the request.
func (r *request) values(f field) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for b := r.wire[r.at[f].from:r.at[f].to]; len(b) > 0; {
			n, value, size := next(b)
			if size < 0 || value != nil && r.protocol.field(n) == f && !yield(value) { // the request was read, so it is not malformed
				return
			}
			b = b[size:]
		}
	}
}

// entry reads an entry of a map of strings.
func entry(b []byte) (key, value []byte, err error) {
	for len(b) > 0 {
		n, text, size := next(b)
		switch {
		case size < 0:
			return nil, nil, protowire.ParseError(size)
		case text == nil:
		case n == 1:
			key = text
		case n == 2:
			value = text
		}
		b = b[size:]
	}
	return key, value, nil
}

// walk calls do for each length-delimited field of a message.
func walk(b []byte, do func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		n, value, size := next(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if value != nil {
			if err := do(n, value); err != nil {
				return err
			}
		}
		b = b[size:]
	}
	return nil
}

// next reads the field with which a message begins: its number, its value if that is length-delimited, else nil, and the size of
// both; the size is negative if it is malformed. Nearly all fields are of a small number and shorter than 128 bytes.
func next(b []byte) (n protowire.Number, value []byte, size int) {
	const short = 0x80
	if len(b) > 1 && b[0] < short && b[0]&7 == byte(protowire.BytesType) && b[0] > 7 && b[1] < short {
		if size = 2 + int(b[1]); size <= len(b) {
			return protowire.Number(b[0] >> 3), b[2:size:size], size
		}
	}
	return nextOfAny(b)
}

func nextOfAny(b []byte) (n protowire.Number, value []byte, size int) {
	n, t, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return 0, nil, tag
	}
	if t == protowire.BytesType {
		value, size = protowire.ConsumeBytes(b[tag:])
	} else {
		size = protowire.ConsumeFieldValue(n, t, b[tag:])
	}
	if size < 0 {
		return 0, nil, size
	}
	return n, value, tag + size
}
