package xds

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

// Canary says that a change goes first to a few nodes, and to all others when these have had it for a time without a
// rejection or a lost stream. The zero Canary is off. Of the nodes of a scope, their addresses aside, it is at least one;
// else the larger of the two. It is the same ones each time, as long as they are connected.
type Canary struct {
	Share float64 // of the nodes, 0 to 1
	Nodes int
	Time  time.Duration
}

func (c Canary) on() bool { return c.Time > 0 && (c.Share > 0 || c.Nodes > 0) }

// count is how many of n nodes go first.
func (c Canary) count(n int) int {
	return min(n, max(1, c.Nodes, int(math.Ceil(c.Share*float64(n)))))
}

// CanaryStatus is how the roll-out of a change stands.
type CanaryStatus struct {
	On         bool      `json:"on"`
	Trying     uint64    `json:"trying,omitempty"` // the generation that is tried, or was; 0 if all nodes have the newest
	Rest       uint64    `json:"rest,omitempty"`   // the generation that the others have, but for endpoints
	Nodes      []string  `json:"nodes,omitempty"`  // the ids of those that try it
	Of         int       `json:"of,omitempty"`     // how many there were
	Since      time.Time `json:"since,omitzero"`
	StoppedFor string    `json:"stoppedFor,omitempty"` // why it goes no further before the next change
}

// canary rolls changes out. A scope then has, beside the newest snapshot, an edition for its canaries and one for the rest.
// Endpoints do not wait: in both those of the newest snapshot are put in place, where they are of a cluster that is the same.
type canary struct {
	options Canary
	scopes  *scopes
	wake    chan struct{}

	mu       sync.Mutex // comes before scopes.mu
	released *mesh.View // what the rest has, but for endpoints
	trial    *trial     // nil: all have the newest
}

// trial is a change that canaries have.
type trial struct {
	view   *mesh.View
	nodes  []string // in order
	of     int
	began  time.Time
	cause  string // why it was stopped; empty while it runs
	failed time.Time
}

func (t *trial) running() bool { return t != nil && t.cause == "" }

// follow brings a scope, which has a new snapshot or is new, to what its nodes may have of it by now.
func (c *canary) follow(sc *scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	newest := sc.snapshot.Load()
	if newest == nil {
		return
	}
	rest := newest
	switch from := sc.rest.Load(); {
	case from != nil:
		rest = withEndpoints(from.Snapshot, newest)
	case c.trial != nil: // it is new: its nodes get what others of their kind have
		rest = c.of(sc, c.released, newest)
	}
	tried := rest
	switch from := sc.tried.Load(); {
	case from == nil && c.trial != nil: // not the newest, which may have come since and is tried next
		tried = c.of(sc, c.trial.view, newest)
	case from != sc.rest.Load():
		tried = withEndpoints(from.Snapshot, newest)
	}
	c.put(sc, rest, tried)
}

// of is what a scope has of a view, with the endpoints of its newest snapshot.
func (c *canary) of(sc *scope, view *mesh.View, newest *envoy.Snapshot) *envoy.Snapshot {
	if view == newest.View {
		return newest
	}
	return withEndpoints(c.scopes.translate(nil, view, sc.key, c.scopes.settings), newest)
}

// all are the scopes, those first that others are based on.
func (c *canary) all() []*scope {
	all := c.scopes.all()
	slices.SortStableFunc(all, func(a, b *scope) int {
		switch {
		case a.base == nil && b.base != nil:
			return -1
		case a.base != nil && b.base == nil:
			return 1
		}
		return 0
	})
	return all
}

// advance looks what is to be done with a view that all scopes have translated.
func (c *canary) advance(view *mesh.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proceed(view)
}

func (c *canary) proceed(view *mesh.View) {
	behind, other := false, false
	for _, sc := range c.all() {
		if newest, rest, tried := sc.snapshot.Load(), sc.rest.Load(), sc.tried.Load(); newest != nil && rest != nil && tried != nil {
			behind = behind || rest.Versions != newest.Versions
			other = other || tried.Versions != newest.Versions
		}
	}
	switch {
	case !behind: // there is nothing to try, or what was tried is withdrawn
		c.release(view)
	case c.trial == nil || !c.trial.running() && other:
		c.begin(view)
	}
}

// begin gives the newest snapshots to the canaries.
func (c *canary) begin(view *mesh.View) {
	chosen, of := c.choose()
	if of == 0 {
		c.release(view)
		return
	}
	c.trial = &trial{view: view, nodes: slices.Sorted(maps.Keys(chosen)), of: of, began: time.Now()}
	first := func(x *stream) bool {
		_, is := chosen[x.info.ID]
		return is
	}
	for _, sc := range c.all() {
		c.lead(sc, func(x *stream) bool { return x.canary.Load() && first(x) }) // who is new must not see what was tried before
		if rest := sc.rest.Load(); rest != nil {
			c.put(sc, rest.Snapshot, sc.snapshot.Load())
		}
		c.lead(sc, first)
	}
	signal(c.wake)
}

// choose takes the nodes whose ids have the lowest hashes, of each base scope.
func (c *canary) choose() (chosen map[string]struct{}, of int) {
	ids := map[envoy.Scope]map[string]struct{}{} // of each base scope
	c.scopes.mu.Lock()
	for _, sc := range c.scopes.of {
		base := sc.key.Base()
		if ids[base] == nil {
			ids[base] = map[string]struct{}{}
		}
		for x := range sc.members {
			ids[base][x.info.ID] = struct{}{}
		}
	}
	c.scopes.mu.Unlock()
	chosen = map[string]struct{}{}
	for _, some := range ids {
		list := slices.SortedFunc(maps.Keys(some), func(a, b string) int {
			return cmp.Or(cmp.Compare(hashOf(a), hashOf(b)), cmp.Compare(a, b))
		})
		of += len(list)
		for _, id := range list[:c.options.count(len(list))] {
			chosen[id] = struct{}{}
		}
	}
	return chosen, of
}

func hashOf(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	x := h.Sum64() // of short texts that differ in their end alone, its high bits hardly do
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// release gives the newest snapshots to all.
func (c *canary) release(view *mesh.View) {
	c.trial, c.released = nil, view
	for _, sc := range c.all() {
		if newest := sc.snapshot.Load(); newest != nil {
			c.put(sc, newest, newest)
		}
		c.lead(sc, nobody)
	}
}

// pass gives what was tried to all, and goes on to what has come since.
func (c *canary) pass(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.trial.running() || now.Before(c.trial.began.Add(c.options.Time)) {
		return
	}
	c.released, c.trial = c.trial.view, nil
	for _, sc := range c.all() {
		if tried := sc.tried.Load(); tried != nil {
			c.put(sc, tried.Snapshot, tried.Snapshot)
		}
		c.lead(sc, nobody)
	}
	c.proceed(c.scopes.view.Load())
}

// fail stops a roll-out if the stream is a canary's. It tells whether it did.
func (c *canary) fail(x *stream, cause string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.trial.running() || !x.canary.Load() {
		return false
	}
	c.trial.cause, c.trial.failed = cause, time.Now()
	signal(c.wake)
	return true
}

// lead makes these streams of a scope its canaries, and no others.
func (c *canary) lead(sc *scope, first func(*stream) bool) {
	c.scopes.mu.Lock()
	defer c.scopes.mu.Unlock()
	for x := range sc.members {
		if is := first(x); x.canary.Swap(is) != is {
			x.signal()
		}
	}
}

func nobody(*stream) bool { return false }

// put makes these snapshots the editions of a scope for the rest and for canaries, and tells its streams. The canaries' has
// never the lower number, since the others may be sent it later.
func (c *canary) put(sc *scope, rest, tried *envoy.Snapshot) {
	fromRest, fromTried := sc.rest.Load(), sc.tried.Load()
	toRest := sc.edition(fromRest, rest, func(s *scope) *edition { return s.rest.Load() })
	if toRest.number < fromTried.ordinal() && (same(rest, tried) || !same(tried, fromTried.Snapshot)) {
		// Canaries come back to what the rest has, all or those that are none any more.
		toRest = sc.edition(nil, rest, func(s *scope) *edition { return s.rest.Load() })
	}
	toTried := toRest
	if !same(rest, tried) {
		toTried = sc.edition(fromTried, tried, func(s *scope) *edition { return s.tried.Load() })
		if toTried.number <= toRest.number {
			toTried = sc.edition(nil, tried, func(s *scope) *edition { return s.tried.Load() })
		}
	}
	sc.rest.Store(toRest)
	sc.tried.Store(toTried)
	for _, old := range []*edition{fromRest, fromTried} {
		if old != nil && old != toRest && old != toTried {
			old.supersede()
		}
	}
	c.scopes.mu.Lock()
	defer c.scopes.mu.Unlock()
	for x := range sc.members {
		from, to := fromRest, toRest
		if x.canary.Load() {
			from, to = fromTried, toTried
		}
		if from != to {
			x.offer(from, to)
		}
	}
}

func same(a, b *envoy.Snapshot) bool { return a == b || a.Resources == b.Resources }

// edition is one of a snapshot: the one that there is, if it is of the same, or one with the next number.
func (sc *scope) edition(old *edition, s *envoy.Snapshot, ofBase func(*scope) *edition) *edition {
	if old != nil && same(old.Snapshot, s) {
		return old
	}
	sc.last++
	e := &edition{number: sc.last, Snapshot: s, applied: time.Now()}
	if sc.base != nil {
		e.base = ofBase(sc.base)
	}
	return e
}

// withEndpoints is a snapshot with the endpoints of a newer one, of those clusters that are the same in both; or the newer
// one, if nothing else differs.
func withEndpoints(old, newer *envoy.Snapshot) *envoy.Snapshot {
	if old == newer {
		return old
	}
	out := *old
	for c := range pmap.Diff(old.Resources[envoy.Endpoints], newer.Resources[envoy.Endpoints]) {
		a, had := old.Resources[envoy.Cluster].Get(c.Key)
		b, has := newer.Resources[envoy.Cluster].Get(c.Key)
		if c.Old == nil || c.New == nil || !had || !has || a.Version != b.Version {
			continue
		}
		out.Resources[envoy.Endpoints] = out.Resources[envoy.Endpoints].With(c.Key, c.New)
		out.Versions[envoy.Endpoints] = out.Versions[envoy.Endpoints].Minus(c.Old.Digest).Plus(c.New.Digest)
	}
	if out.Versions == newer.Versions {
		return newer
	}
	return &out
}

// run passes trials when their time is over, until ctx ends.
func (c *canary) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
			c.pass(time.Now())
		}
		c.mu.Lock()
		if c.trial.running() {
			timer.Reset(time.Until(c.trial.began.Add(c.options.Time)))
		}
		c.mu.Unlock()
	}
}

func (c *canary) status() CanaryStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := CanaryStatus{On: true}
	if t := c.trial; t != nil {
		st.Trying, st.Rest, st.Nodes, st.Of, st.Since, st.StoppedFor = t.view.Generation, c.released.Generation, t.nodes, t.of, t.began, t.cause
	}
	return st
}

// problem is that a roll-out was stopped.
func (c *canary) problem() (p mesh.Problem, stopped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.trial
	if t == nil || t.cause == "" {
		return mesh.Problem{}, false
	}
	return mesh.Problem{
		Severity: mesh.Error, Code: "canary-stopped", Origin: mesh.Origin{Registry: "xds"}, Since: t.failed,
		Message: fmt.Sprintf("generation %d is with %d of %d nodes and goes no further, since %s; mend it, or take it back: the next change is tried anew",
			t.view.Generation, len(t.nodes), t.of, t.cause),
		Serving: fmt.Sprintf("generation %d, with the newest endpoints, at all other nodes", c.released.Generation),
	}, true
}

// Canary tells how the roll-out of the newest change stands.
func (s *Server) Canary() CanaryStatus {
	if s.scopes.canary == nil {
		return CanaryStatus{}
	}
	return s.scopes.canary.status()
}
