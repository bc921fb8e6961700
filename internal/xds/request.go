package xds

import (
	"errors"
	"fmt"
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
	failed  bool   // has error_detail: the response of that nonce is rejected (rule 9)
	message string // why
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

// parseRequest reads a request. It keeps wire.
func parseRequest(p Protocol, wire []byte) (*request, error) {
	r := &request{protocol: p, wire: wire}
	err := walk(wire, func(n protowire.Number, value []byte) error {
		f := p.field(n)
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
			_, _, err := entry(value)
			return err
		case typeField:
			r.typeURL = value
		case versionField:
			r.version = string(value)
		case nonceField:
			r.nonce = string(value)
		}
		if f != 0 && !utf8.Valid(value) {
			return errText
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	return r, nil
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

// initial are the versions that a delta client has already; nil if it says nothing of them.
func (r *request) initial() map[envoy.Name]string {
	var m map[envoy.Name]string
	for value := range r.values(initialField) {
		name, version, err := entry(value)
		if err != nil {
			return m // parseRequest has looked
		}
		if m == nil {
			m = map[envoy.Name]string{}
		}
		m[envoy.Name(name)] = string(version)
	}
	return m
}

// values yields the values of a field, where they stand in the request.
func (r *request) values(f field) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for b := r.wire; len(b) > 0; {
			n, t, size := protowire.ConsumeTag(b)
			b = b[size:]
			size = protowire.ConsumeFieldValue(n, t, b)
			if t == protowire.BytesType && r.protocol.field(n) == f {
				if v, _ := protowire.ConsumeBytes(b); !yield(v) {
					return
				}
			}
			b = b[size:]
		}
	}
}

// entry reads an entry of a map of strings.
func entry(b []byte) (key, value []byte, err error) {
	err = walk(b, func(n protowire.Number, text []byte) error {
		switch n {
		case 1:
			key = text
		case 2:
			value = text
		default:
			return nil
		}
		if !utf8.Valid(text) {
			return errText
		}
		return nil
	})
	return key, value, err
}

// walk calls do for each length-delimited field of a message.
func walk(b []byte, do func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		n, t, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		size = protowire.ConsumeFieldValue(n, t, b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		if t == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			if err := do(n, v); err != nil {
				return err
			}
		}
		b = b[size:]
	}
	return nil
}
