package xds

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// Translation is a function such as [envoy.Translate].
type Translation func(prev *envoy.Snapshot, view *mesh.View, scope envoy.Scope, settings envoy.Mesh, others ...*envoy.Snapshot) *envoy.Snapshot

// scopes holds the snapshots of all scopes that have streams.
type scopes struct {
	translate Translation
	settings  envoy.Mesh
	view      atomic.Pointer[mesh.View]
	canary    *canary // nil: a change goes to all at once

	mu   sync.Mutex
	of   map[envoy.Scope]*scope
	left []*scope // scopes of which the last stream has left, the newest last: one that comes back finds its snapshot
}

// mostLeft is how many scopes without streams are kept. They follow no view; what has changed is translated when a stream comes.
const mostLeft = 8

// scope is the streams of one scope and the editions of their snapshot.
type scope struct {
	key  envoy.Scope
	base *scope // of a scope with addresses, the one that has all but what is due to them

	members map[*stream]struct{} // guarded by scopes.mu, as is
	locals  int                  // how many scopes have this one as their base

	translating sync.Mutex                     // held by who changes the following
	snapshot    atomic.Pointer[envoy.Snapshot] // of the newest view
	newest      atomic.Pointer[edition]        // nil before the first view

	// With canaries streams are sent these instead; changed with canary.mu held, as is the last number.
	rest, tried atomic.Pointer[edition]
	last        uint64
}

// join makes a stream a member of a scope.
func (s *scopes) join(key envoy.Scope, x *stream) *scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc := s.open(key)
	sc.members[x] = struct{}{}
	return sc
}

func (s *scopes) open(key envoy.Scope) *scope {
	if sc := s.of[key]; sc != nil {
		return sc
	}
	var sc *scope
	if i := slices.IndexFunc(s.left, func(l *scope) bool { return l.key == key }); i >= 0 {
		sc = s.left[i]
		s.left = slices.Delete(s.left, i, i+1)
	} else {
		sc = &scope{key: key, members: map[*stream]struct{}{}}
		if base := key.Base(); base != key {
			sc.base = s.open(base)
			sc.base.locals++
		}
	}
	s.of[key] = sc
	return sc
}

// leave ends a stream's membership.
func (s *scopes) leave(sc *scope, x *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(sc.members, x)
	s.drop(sc)
}

// hold keeps a scope for one who is no member.
func (s *scopes) hold(key envoy.Scope) *scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc := s.open(key)
	sc.locals++
	return sc
}

// release ends a hold.
func (s *scopes) release(sc *scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc.locals--
	s.drop(sc)
}

// drop lets go of a scope if nobody needs it, and then perhaps of its base. It is called with mu held.
func (s *scopes) drop(sc *scope) {
	for sc != nil && len(sc.members) == 0 && sc.locals == 0 {
		delete(s.of, sc.key)
		base := sc.base
		if base != nil {
			base.locals--
		} else if s.canary == nil { // what is tried and what is released is another one each time
			if len(s.left) == mostLeft {
				s.left = slices.Delete(s.left, 0, 1)
			}
			s.left = append(s.left, sc)
		}
		sc = base
	}
}

// apply brings all scopes to a view. It waits for no client.
func (s *scopes) apply(view *mesh.View) {
	s.view.Store(view)
	for _, sc := range s.all() {
		s.refresh(sc)
	}
	if s.canary != nil {
		s.canary.advance(view)
	}
}

// refresh brings a scope to the newest view and tells its streams.
func (s *scopes) refresh(sc *scope) {
	from, to := s.update(sc)
	if s.canary != nil {
		s.canary.follow(sc)
		return
	}
	if from == to {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range sc.members {
		x.offer(from, to)
	}
}

// update translates the newest view for a scope. There is a new edition if that changes a resource.
func (s *scopes) update(sc *scope) (from, to *edition) {
	sc.translating.Lock()
	defer sc.translating.Unlock()
	from, prev, view := sc.newest.Load(), sc.snapshot.Load(), s.view.Load()
	if view == nil || prev != nil && prev.View == view {
		return from, from
	}
	var others []*envoy.Snapshot
	var base *edition
	if sc.base != nil {
		s.refresh(sc.base)
		others, base = []*envoy.Snapshot{sc.base.snapshot.Load()}, sc.base.newest.Load()
	} else {
		others = s.made(view)
	}
	next := s.translate(prev, view, sc.key, s.settings, others...)
	sc.snapshot.Store(next)
	if from != nil && from.Resources == next.Resources {
		return from, from
	}
	to = &edition{number: from.ordinal() + 1, Snapshot: next, base: base, applied: time.Now()}
	sc.newest.Store(to)
	if from != nil {
		from.supersede()
	}
	return from, to
}

// made are the snapshots of a view that other scopes may take from.
func (s *scopes) made(view *mesh.View) (out []*envoy.Snapshot) {
	for _, sc := range s.all() {
		if o := sc.snapshot.Load(); sc.base == nil && o != nil && o.View == view {
			out = append(out, o)
		}
	}
	return out
}

func (s *scopes) all() []*scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*scope, 0, len(s.of))
	for _, sc := range s.of {
		out = append(out, sc)
	}
	return out
}

// streams are the members of all scopes.
func (s *scopes) streams() (streams []*stream, scopes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sc := range s.of {
		for x := range sc.members {
			streams = append(streams, x)
		}
	}
	return streams, len(s.of)
}
