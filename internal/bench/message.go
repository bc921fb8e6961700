package main

import (
	"encoding/binary"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// protocol is a variant of xDS, with the numbers of its requests' fields.
type protocol struct {
	name, path                                    string
	node, typeURL, names, initial, nonce, version protowire.Number
}

const service = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"

var (
	delta = &protocol{name: "delta", path: service + "DeltaAggregatedResources", node: 1, typeURL: 2, names: 3, initial: 5, nonce: 6}
	sotw  = &protocol{name: "sotw", path: service + "StreamAggregatedResources", version: 1, node: 2, names: 3, typeURL: 4, nonce: 5}
)

// The fields of responses, the same in both.
const (
	responseVersion   protowire.Number = 1
	responseResources protowire.Number = 2
	responseType      protowire.Number = 4
	responseNonce     protowire.Number = 5
	responseRemoved   protowire.Number = 6 // the control plane in the state of the world
)

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

func appendText(b []byte, n protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

func appendBytes(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// response is what is read of one: its resources are counted, and looked at only if it is small.
type response struct {
	size                    int
	typeURL, version, nonce []byte
	resources, removed      int
}

// smallResponse is up to what size, in bytes, the resources are looked at.
const smallResponse = 64 << 10

// responses reads the messages of a gRPC stream as they come, in pieces. It keeps nothing that it does not need.
type responses struct {
	resource func([]byte)         // is given the resources of small responses
	whole    func(response) error // is given each response when it is whole
	copied   func(message []byte) // if set, is given each as it was
	copy     []byte

	prefix     [5]byte
	prefixHave int
	left       int // of the message

	head  []byte // a field's tag and length, not whole
	field protowire.Number
	body  int    // what is left of the field's value
	kept  []byte // of a value that comes in pieces
	in    response
}

var errResponse = errors.New("malformed response")

func (r *responses) take(b []byte) error {
	for len(b) > 0 {
		if r.prefixHave < len(r.prefix) {
			n := copy(r.prefix[r.prefixHave:], b)
			r.prefixHave, b = r.prefixHave+n, b[n:]
			if r.prefixHave < len(r.prefix) {
				return nil
			}
			r.left = int(binary.BigEndian.Uint32(r.prefix[1:]))
			r.in = response{size: r.left, typeURL: r.in.typeURL[:0], version: r.in.version[:0], nonce: r.in.nonce[:0]}
			r.copy = nil
		}
		piece := b[:min(len(b), r.left)]
		b, r.left = b[len(piece):], r.left-len(piece)
		if r.copied != nil {
			r.copy = append(r.copy, piece...)
		}
		if err := r.fields(piece); err != nil {
			return err
		}
		if r.left > 0 {
			return nil
		}
		if r.body > 0 || len(r.head) > 0 {
			return errResponse
		}
		r.prefixHave = 0
		if r.copied != nil {
			r.copied(r.copy)
		}
		if err := r.whole(r.in); err != nil {
			return err
		}
	}
	return nil
}

func (r *responses) fields(b []byte) error {
	for len(b) > 0 {
		if r.body == 0 {
			n, err := r.begin(b)
			if err != nil {
				return err
			}
			b = b[n:]
			if r.body == 0 {
				continue
			}
		}
		piece := b[:min(len(b), r.body)]
		b, r.body = b[len(piece):], r.body-len(piece)
		switch {
		case r.field == responseResources && r.in.size > smallResponse, r.field >= responseRemoved:
		case r.body > 0:
			r.kept = append(r.kept, piece...)
		default:
			if len(r.kept) > 0 {
				piece = append(r.kept, piece...)
			}
			r.value(piece)
			r.kept = r.kept[:0]
		}
	}
	return nil
}

// begin reads a field's tag and length, and returns how much of b they took. Fields of other kinds there are none.
func (r *responses) begin(b []byte) (used int, err error) {
	const longest = 2 * binary.MaxVarintLen32
	had := len(r.head)
	r.head = append(r.head, b[:min(len(b), longest)]...)
	n, typ, tag := protowire.ConsumeTag(r.head)
	if tag > 0 && typ != protowire.BytesType {
		return 0, errResponse
	}
	size, length := uint64(0), -1
	if tag > 0 {
		size, length = protowire.ConsumeVarint(r.head[tag:])
	}
	if length < 0 {
		if len(r.head) >= longest {
			return 0, errResponse
		}
		return len(b), nil
	}
	r.head = r.head[:0]
	r.field, r.body = n, int(size)
	switch n {
	case responseResources:
		r.in.resources++
	case responseRemoved:
		r.in.removed++
	}
	return tag + length - had, nil
}

func (r *responses) value(v []byte) {
	switch r.field {
	case responseVersion:
		r.in.version = append(r.in.version, v...)
	case responseType:
		r.in.typeURL = append(r.in.typeURL, v...)
	case responseNonce:
		r.in.nonce = append(r.in.nonce, v...)
	case responseResources:
		if r.resource != nil {
			r.resource(v)
		}
	}
}

// each calls do for the length-delimited fields of a message.
func each(b []byte, do func(protowire.Number, []byte)) error {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errResponse
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(n, typ, b); size < 0 {
			return errResponse
		}
		if typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			do(n, v)
		}
		b = b[size:]
	}
	return nil
}
