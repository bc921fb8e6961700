package xds

import (
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
	Identity   string      `json:"identity,omitempty"` // by its certificate, if it had to have one; for people to read, and nothing depends on it
	UserAgent  string      `json:"userAgent,omitempty"`
	Version    string      `json:"version,omitempty"`
	Connected  time.Time   `json:"connected"`
	Protocol   Protocol    `json:"protocol"`
	Aggregated bool        `json:"aggregated"`
	Throttled  time.Time   `json:"throttled,omitzero"` // when a request last had to wait, since there were more than may be
	Deliveries []Delivery  `json:"deliveries"`         // of the types that were asked for, in their order
}

// Delivery is what one stream was sent, accepted or rejected of one type.
type Delivery struct {
	Type       envoy.Type `json:"type"`
	Wildcard   bool       `json:"wildcard,omitempty"`
	Subscribed int        `json:"subscribed"`        // names, not counting what a wildcard adds
	Sent       Mark       `json:"sent,omitzero"`     // the last response
	Accepted   Mark       `json:"accepted,omitzero"` // the last response that was acknowledged, or what the client came with
	// Rejected is the last rejection, until all is accepted. While what is at fault is looked for it may name none.
	Rejected *Rejection `json:"rejected,omitempty"`
	// Held are the resources that are held back since they were rejected, in order of name. All others flow.
	Held []Held `json:"held,omitempty"`
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
	Message   string       `json:"message"`             // the client's, of the last single resource if it named none
	Resources []envoy.Name `json:"resources,omitempty"` // those that are at fault, as far as known
	Services  []mesh.Key   `json:"services,omitempty"`  // those that these were made from
}

// Held is a resource that is held back on one stream.
type Held struct {
	Name     envoy.Name `json:"name"`
	Rejected string     `json:"rejected"`       // the version that the client does not take
	Last     string     `json:"last,omitempty"` // the version that it keeps; empty if it has none, or if only it knows
	Message  string     `json:"message"`        // the client's
	Since    time.Time  `json:"since"`          // when the resource was first rejected
}

// Stats are counters since the start and gauges of now.
type Stats struct {
	Streams [protocols]int // by protocol; of nodes that have said who they are
	Refused uint64         // streams and connections that were too many
	Scopes  int
	Pending int // responses that are not answered
	Types   [envoy.Types]TypeStats
	// Translation is how long the last view took until all scopes had it.
	Translation time.Duration
	Latency     Latency
}

// TypeStats are counters and a gauge of one type.
type TypeStats struct {
	Pushes, Resources, Removed, Bytes, Rejections uint64

	Held int // resources that are held back now, each once for every stream
}

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
	if r.again {
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
		st.Types[t] = TypeStats{
			Pushes: c.pushes.Load(), Resources: c.resources.Load(), Removed: c.removed.Load(), Bytes: c.bytes.Load(),
			Rejections: c.rejections.Load(),
		}
	}
	streams, scopes := s.scopes.streams()
	st.Scopes, st.Refused = scopes, s.limits.refused.Load()
	for _, x := range streams {
		x.count(&st)
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
	slices.SortFunc(nodes, NodeStatus.compare)
	return nodes
}

// Problems are what connected nodes cannot be given of the view, or do not take, and what is wrong with the server's certificates,
// each once, in their order.
func (s *Server) Problems() []mesh.Problem {
	var all []mesh.Problem
	for _, sc := range s.scopes.all() {
		if snapshot := sc.snapshot.Load(); snapshot != nil && sc.base == nil {
			all = slices.AppendSeq(all, snapshot.Problems())
		}
	}
	all = append(all, s.refusals()...)
	all = append(all, s.conduct(time.Now())...)
	all = append(all, s.options.Credentials.problems()...)
	if c := s.scopes.canary; c != nil {
		if p, stopped := c.problem(); stopped {
			all = append(all, p)
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
		held := s.heldBack(t)
		row := Delivery{
			Type: t, Wildcard: k.want.wildcard, Subscribed: k.want.names.len(), Sent: k.marks.sent, Accepted: k.marks.accepted,
			Rejected: s.rejection(t, func(_ envoy.Name, h *hold) bool { return slices.Contains(held, h) }), Pending: k.flight != nil,
		}
		for _, h := range held {
			row.Held = append(row.Held, h.status())
		}
		rows = append(rows, row)
	}
	return rows
}

// rejection is the last rejection, with those held resources that are to blame.
func (s *session) rejection(t envoy.Type, blamed func(envoy.Name, *hold) bool) *Rejection {
	k := &s.tracks[t]
	if k.marks.rejected == nil {
		return nil
	}
	j := *k.marks.rejected
	for n, h := range k.held {
		if blamed(n, h) {
			j.Resources = append(j.Resources, n)
			j.Services = append(j.Services, h.rejected.Services...)
		}
	}
	slices.Sort(j.Resources)
	slices.SortFunc(j.Services, mesh.Key.Compare)
	j.Services = slices.Compact(j.Services)
	return &j
}

// heldBack are the resources that are held back, in order of name; not those of which that is still to be found out.
func (s *session) heldBack(t envoy.Type) (out []*hold) {
	if len(s.tracks[t].held) == 0 {
		return nil
	}
	searching := s.searching(t)
	for _, h := range s.tracks[t].held {
		if h.fault || !searching {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b *hold) int { return byName(a.rejected, b.rejected) })
	return out
}

func (h *hold) status() Held {
	row := Held{Name: h.rejected.Name, Rejected: h.rejected.Version, Message: h.message, Since: h.since}
	if r := h.kept(); r != nil {
		row.Last = r.Version
	}
	return row
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
