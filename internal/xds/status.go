package xds

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// NodeStatus is one stream of a node. An Envoy that does not use ADS has several.
type NodeStatus struct {
	ID         string      `json:"id"`
	Cluster    string      `json:"cluster,omitempty"`
	Scope      envoy.Scope `json:"scope"`
	Peer       string      `json:"peer"`
	UserAgent  string      `json:"userAgent,omitempty"`
	Version    string      `json:"version,omitempty"`
	Connected  time.Time   `json:"connected"`
	Protocol   Protocol    `json:"protocol"`
	Aggregated bool        `json:"aggregated"`
	Deliveries []Delivery  `json:"deliveries"` // of the types that were asked for, in their order
}

// Delivery is what one stream was sent, accepted or rejected of one type.
type Delivery struct {
	Type       envoy.Type `json:"type"`
	Wildcard   bool       `json:"wildcard,omitempty"`
	Subscribed int        `json:"subscribed"`        // names, not counting what a wildcard adds
	Sent       Mark       `json:"sent,omitzero"`     // the last response
	Accepted   Mark       `json:"accepted,omitzero"` // the last response that was acknowledged, or what the client came with
	// Rejected is the rejection since which nothing was accepted.
	Rejected *Rejection `json:"rejected,omitempty"`
	// Pending says that the client has not answered what was sent.
	Pending bool `json:"pending"`
}

// Mark is a response and when it was sent or answered.
type Mark struct {
	Version string    `json:"version"`
	Nonce   string    `json:"nonce"`
	Time    time.Time `json:"time"`
}

// Rejection is a response that a client did not take.
type Rejection struct {
	Mark
	Message   string       `json:"message"`             // the client's
	Resources []envoy.Name `json:"resources,omitempty"` // those that the message names
	Services  []mesh.Key   `json:"services,omitempty"`  // those that these were made from
}

// Stats are counters since the start and gauges of now.
type Stats struct {
	Streams [protocols]int // by protocol; of nodes that have said who they are
	Scopes  int
	Pending int // responses that are not answered
	Types   [envoy.Types]TypeStats
	// Translation is how long the last view took until all scopes had it.
	Translation time.Duration
	Latency     Latency
}

// TypeStats are counters of one type.
type TypeStats struct{ Pushes, Resources, Removed, Bytes, Rejections uint64 }

// latencyBounds are the upper bounds of Latency's buckets.
var latencyBounds = [...]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second,
}

// Latency is a histogram of the time from a view being applied to its changes being sent to one stream. What a stream is
// sent first is not counted.
type Latency struct {
	Bounds  []time.Duration // upper bounds
	Buckets []uint64        // how many up to each bound, those of lower bounds not counted again
	Count   uint64          // all, with those over the last bound
	Sum     time.Duration
}

// meter counts.
type meter struct {
	types [envoy.Types]struct{ pushes, resources, removed, bytes, rejections atomic.Uint64 }

	translation  atomic.Int64
	latency      [len(latencyBounds)]atomic.Uint64
	latencyCount atomic.Uint64
	latencySum   atomic.Int64
}

func (m *meter) sent(r *response, bytes int, now time.Time) {
	t := &m.types[r.typ]
	t.pushes.Add(1)
	t.resources.Add(uint64(len(r.content.resources)))
	t.removed.Add(uint64(len(r.removed)))
	t.bytes.Add(uint64(bytes))
	if r.first {
		return
	}
	took := now.Sub(r.edition.applied)
	if i, _ := slices.BinarySearch(latencyBounds[:], took); i < len(latencyBounds) {
		m.latency[i].Add(1)
	}
	m.latencyCount.Add(1)
	m.latencySum.Add(int64(took))
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	m := &s.meter
	st := Stats{
		Translation: time.Duration(m.translation.Load()),
		Latency: Latency{
			Bounds: latencyBounds[:], Buckets: make([]uint64, len(latencyBounds)),
			Count: m.latencyCount.Load(), Sum: time.Duration(m.latencySum.Load()),
		},
	}
	for i := range m.latency {
		st.Latency.Buckets[i] = m.latency[i].Load()
	}
	for t := range m.types {
		c := &m.types[t]
		st.Types[t] = TypeStats{c.pushes.Load(), c.resources.Load(), c.removed.Load(), c.bytes.Load(), c.rejections.Load()}
	}
	streams, scopes := s.scopes.streams()
	st.Scopes = scopes
	for _, x := range streams {
		st.Streams[x.protocol]++
		st.Pending += x.pending()
	}
	return st
}

// Nodes returns who is connected, in order of node id and then of connecting.
func (s *Server) Nodes() []NodeStatus {
	streams, _ := s.scopes.streams()
	nodes := make([]NodeStatus, 0, len(streams))
	for _, x := range streams {
		nodes = append(nodes, x.status())
	}
	slices.SortFunc(nodes, func(a, b NodeStatus) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), a.Connected.Compare(b.Connected), cmp.Compare(a.Peer, b.Peer))
	})
	return nodes
}

// Problems are what connected nodes cannot be given of the view, each once, in their order.
func (s *Server) Problems() []mesh.Problem {
	var all []mesh.Problem
	for _, sc := range s.scopes.all() {
		if snapshot := sc.snapshot.Load(); snapshot != nil && sc.base == nil {
			all = slices.AppendSeq(all, snapshot.Problems())
		}
	}
	slices.SortFunc(all, mesh.Problem.Compare)
	return slices.Compact(all)
}

func (s *session) deliveries() []Delivery {
	var rows []Delivery
	for t := range envoy.Types {
		k := &s.tracks[t]
		if !k.asked {
			continue
		}
		rows = append(rows, Delivery{
			Type: t, Wildcard: k.want.wildcard, Subscribed: len(k.want.names),
			Sent: k.marks.sent, Accepted: k.marks.accepted, Rejected: k.marks.rejected, Pending: k.flight != nil,
		})
	}
	return rows
}

// versionOf is the version of a node's program, as far as it says.
func versionOf(node *corev3.Node) string {
	if v := node.GetUserAgentVersion(); v != "" {
		return v
	}
	v := node.GetUserAgentBuildVersion().GetVersion()
	if v == nil {
		return ""
	}
	return nonceOf(uint64(v.GetMajorNumber())) + "." + nonceOf(uint64(v.GetMinorNumber())) + "." + nonceOf(uint64(v.GetPatch()))
}
