package main

import (
	"fmt"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/xds"
)

// feed is what a node asks a server for and has been given, as Envoy does it: all clusters and listeners, and the endpoints
// and routes that these name. It takes responses, and says what they change and what to send; it outlives streams.
type feed struct {
	protocol xds.Protocol
	tracks   [envoy.Types]track
}

// track is a feed's part of one type.
type track struct {
	asked   map[string]bool    // the names that are asked for; nil: all there are, or nothing yet
	held    map[string]holding // by name
	absent  map[string]bool    // the names of which the server said that there is nothing
	version string             // of the type, as the server last said it
	nonce   string
	// settled is whether all that was asked for at first has been answered. What comes later is news.
	settled bool
}

// holding is a resource that the node has.
type holding struct {
	version string // in the state of the world there is only that of the type
	message proto.Message
}

// response is what a server sends, of either protocol.
type response struct {
	typ            envoy.Type
	version, nonce string
	resources      []resource
	removed        []string // delta's alone
}

type resource struct {
	version string
	any     *anypb.Any
}

// order is a request to be sent: an acknowledgement, a change of what is asked for, or both.
type order struct {
	typ                    envoy.Type
	subscribe, unsubscribe []string          // delta's
	initial                map[string]string // delta's: the versions that the node has, on a new stream
	names                  []string          // the state of the world's: all that is asked for
	version, nonce         string
}

// news is what a response or a lost reference changes of a type.
type news struct {
	typ     envoy.Type
	version string
	phase   phase
	changes []resourceChange
	resent  []string // the names of those that came again as they were
}

// phase is how far a node has come with a type.
type phase uint8

const (
	filling phase = iota // something that was asked for at first has not been answered
	filled               // with this the first state is complete
	following
)

type resourceChange struct {
	name     string
	version  string
	old, new proto.Message // nil if it is not there before, or after
}

// references are the types that a node asks for by the names that resources of another type hold.
var references = map[envoy.Type]struct {
	typ envoy.Type
	in  func(proto.Message) []string
}{
	envoy.Cluster:  {envoy.Endpoints, endpointsNamed},
	envoy.Listener: {envoy.Route, routesNamed},
}

// wildcard tells whether a node asks for all resources of a type.
func wildcard(t envoy.Type) bool {
	_, ok := references[t]
	return ok
}

func newFeed(p xds.Protocol) *feed {
	f := &feed{protocol: p}
	for t := range envoy.Types {
		f.tracks[t].held, f.tracks[t].absent = map[string]holding{}, map[string]bool{}
	}
	return f
}

// begin are the requests at the start of a stream. A server that has nothing newer need not answer.
func (f *feed) begin() []order {
	var orders []order
	for t := range envoy.Types {
		k := &f.tracks[t]
		k.nonce = ""
		if !wildcard(t) && len(k.asked) == 0 {
			continue
		}
		o := order{typ: t, names: sorted(k.asked), subscribe: sorted(k.asked), version: k.version}
		if wildcard(t) {
			o.subscribe = []string{"*"}
		}
		if len(k.held) > 0 {
			o.initial = map[string]string{}
			for name, h := range k.held {
				o.initial[name] = h.version
			}
		}
		orders = append(orders, o)
	}
	return orders
}

// take takes a response in. The error is that of a response that is none of xDS.
func (f *feed) take(r response) ([]news, []order, error) {
	k := &f.tracks[r.typ]
	n := news{typ: r.typ, version: r.version}
	k.version, k.nonce = r.version, r.nonce
	came := map[string]bool{}
	for _, one := range r.resources {
		m, err := one.any.UnmarshalNew()
		if err != nil {
			return nil, nil, fmt.Errorf("decode one of the %s: %w", r.typ, err)
		}
		name := resourceName(m)
		came[name] = true
		old, had := k.held[name]
		k.held[name] = holding{one.version, m}
		if had && proto.Equal(old.message, m) {
			n.resent = append(n.resent, name)
		} else {
			n.changes = append(n.changes, resourceChange{name: name, version: one.version, old: old.message, new: m})
		}
	}
	gone := r.removed
	if f.protocol == xds.SotW && wildcard(r.typ) { // such a response is complete
		for name := range k.held {
			if !came[name] {
				gone = append(gone, name)
			}
		}
	}
	n.changes = append(n.changes, k.drop(gone)...)
	if f.protocol == xds.SotW {
		n.resent = nil // it has no other way to say that they are still there
	}
	for _, name := range r.removed {
		k.absent[name] = true
	}
	n.phase = k.settle(f.protocol)

	orders := []order{{typ: r.typ, names: sorted(k.asked), version: k.version, nonce: k.nonce}}
	all := []news{n}
	if ref, ok := references[r.typ]; ok {
		lost, o := f.want(ref.typ, k.named(ref.in))
		all = append(all, lost...)
		orders = append(orders, o...)
	}
	for i := range all {
		slices.SortFunc(all[i].changes, func(a, b resourceChange) int { return envoy.Name(a.name).Compare(envoy.Name(b.name)) })
		slices.Sort(all[i].resent)
	}
	return all, orders, nil
}

// settle takes note of whether the first state of a type is complete: in delta, once every name has been answered.
func (k *track) settle(p xds.Protocol) phase {
	if k.settled {
		return following
	}
	for name := range k.asked {
		if _, ok := k.held[name]; !ok && !k.absent[name] && p == xds.Delta {
			return filling
		}
	}
	k.settled = true
	return filled
}

// drop forgets resources, and says which the node had.
func (k *track) drop(names []string) (changes []resourceChange) {
	for _, name := range names {
		if h, ok := k.held[name]; ok {
			delete(k.held, name)
			changes = append(changes, resourceChange{name: name, old: h.message})
		}
	}
	return changes
}

// named are the names that a type's resources refer to.
func (k *track) named(in func(proto.Message) []string) map[string]bool {
	names := map[string]bool{}
	for _, h := range k.held {
		for _, name := range in(h.message) {
			names[name] = true
		}
	}
	return names
}

// want asks for these names of a type and no others. What nothing names any more, the node loses.
func (f *feed) want(t envoy.Type, names map[string]bool) ([]news, []order) {
	k := &f.tracks[t]
	var added, dropped []string
	for name := range names {
		if !k.asked[name] {
			added = append(added, name)
		}
	}
	for name := range k.asked {
		if !names[name] {
			dropped = append(dropped, name)
		}
	}
	if len(added)+len(dropped) == 0 {
		return nil, nil
	}
	k.asked = names
	slices.Sort(added)
	slices.Sort(dropped)
	orders := []order{{typ: t, subscribe: added, unsubscribe: dropped, names: sorted(names), version: k.version, nonce: k.nonce}}
	if lost := k.drop(dropped); len(lost) > 0 {
		return []news{{typ: t, version: k.version, phase: following, changes: lost}}, orders
	}
	return nil, orders
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// resourceName is the name of a resource. A load assignment has that of its cluster.
func resourceName(m proto.Message) string {
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		return m.GetClusterName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}

// endpointsNamed is the load assignment that a cluster takes over EDS.
func endpointsNamed(m proto.Message) []string {
	c, ok := m.(*clusterv3.Cluster)
	switch name := c.GetEdsClusterConfig().GetServiceName(); {
	case !ok || c.GetType() != clusterv3.Cluster_EDS:
		return nil
	case name != "":
		return []string{name}
	}
	return []string{c.GetName()}
}

// routesNamed are the routes that a listener's connection managers take over RDS; a gRPC client's listener is nothing else.
func routesNamed(m proto.Message) (names []string) {
	l, _ := m.(*listenerv3.Listener)
	configs := []*anypb.Any{l.GetApiListener().GetApiListener()}
	for _, chain := range append(slices.Clone(l.GetFilterChains()), l.GetDefaultFilterChain()) {
		for _, filter := range chain.GetFilters() {
			configs = append(configs, filter.GetTypedConfig())
		}
	}
	for _, c := range configs {
		manager := &hcmv3.HttpConnectionManager{}
		if c != nil && c.UnmarshalTo(manager) == nil && manager.GetRds() != nil {
			names = append(names, manager.GetRds().GetRouteConfigName())
		}
	}
	return names
}
