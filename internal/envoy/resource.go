package envoy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshd/meshd/internal/mesh"
)

// Type is one of the resource types that meshd serves, in the order in which a change is made before what it
// replaces is broken: clusters, their endpoints, listeners, routes.
type Type uint8

// The types. A loop over all of them runs from 0 to Types.
const (
	Cluster Type = iota
	Endpoints
	Listener
	Route
	Types
)

var types = [Types]struct {
	message proto.Message
	word    string
}{
	Cluster:   {&clusterv3.Cluster{}, "clusters"},
	Endpoints: {&endpointv3.ClusterLoadAssignment{}, "endpoints"},
	Listener:  {&listenerv3.Listener{}, "listeners"},
	Route:     {&routev3.RouteConfiguration{}, "routes"},
}

const urlPrefix = "type.googleapis.com/"

// URL is the type's URL in xDS.
func (t Type) URL() string {
	return urlPrefix + string(types[t].message.ProtoReflect().Descriptor().FullName())
}

// String is a word for people: clusters, endpoints, listeners, routes.
func (t Type) String() string { return types[t].word }

// MarshalText writes the word.
func (t Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Name is a resource's name, unique in its type.
type Name string

// Compare orders names.
func (n Name) Compare(o Name) int { return cmp.Compare(n, o) }

// Resource is one Envoy resource, marshalled once. It is immutable and shared by all snapshots and streams.
type Resource struct {
	Type    Type
	Name    Name
	Version string // a content hash
	Digest  mesh.Digest
	// Services are those that it was made from; they lead from a rejection to the lines of the operator's files.
	// Empty for what every node gets.
	Services []mesh.Key

	wire    []byte // an envoy.service.discovery.v3.Resource
	any     int    // where its Any begins in wire
	invalid error  // why Envoy would reject it
}

// Wire is the resource as an encoded envoy.service.discovery.v3.Resource, as delta xDS sends it.
func (r *Resource) Wire() []byte { return r.wire }

// Any is the resource as an encoded google.protobuf.Any, as state-of-the-world xDS sends it.
func (r *Resource) Any() []byte { return r.wire[r.any:] }

// Message decodes the resource.
func (r *Resource) Message() (proto.Message, error) {
	m := types[r.Type].message.ProtoReflect().New().Interface()
	a := &anypb.Any{}
	if err := proto.Unmarshal(r.Any(), a); err != nil {
		return nil, fmt.Errorf("decode %s %q: %w", r.Type, r.Name, err)
	}
	if err := a.UnmarshalTo(m); err != nil {
		return nil, fmt.Errorf("decode %s %q: %w", r.Type, r.Name, err)
	}
	return m, nil
}

// NewResource marshals m. The version covers salt as well: a resource of another salt is another version, whatever
// it holds.
func NewResource(t Type, name Name, m proto.Message, salt string, services ...mesh.Key) *Resource {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("marshal %s %q: %v", t, name, err)) // only text that is no UTF-8 does this, and hosts are none
	}
	h := sha256.New()
	for _, s := range []string{string(name), "\x00", salt, "\x00"} {
		h.Write([]byte(s))
	}
	h.Write(value)
	r := &Resource{Type: t, Name: name, Services: services}
	if v, ok := m.(interface{ Validate() error }); ok {
		r.invalid = v.Validate()
	}
	copy(r.Digest[:], h.Sum(nil))
	r.Version = hex.EncodeToString(r.Digest[:8])

	// discovery.Resource: version = 1, resource = 2, name = 3; Any: type_url = 1, value = 2. The Any comes last, so
	// that it is the rest of the buffer.
	url := t.URL()
	anySize := protowire.SizeTag(1) + protowire.SizeBytes(len(url)) + protowire.SizeTag(2) + protowire.SizeBytes(len(value))
	b := make([]byte, 0, anySize+len(name)+len(r.Version)+16)
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, r.Version)
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	b = protowire.AppendString(b, string(name))
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(anySize))
	r.any = len(b)
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendString(b, url)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	r.wire = protowire.AppendBytes(b, value)
	return r
}
