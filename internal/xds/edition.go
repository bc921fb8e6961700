package xds

import (
	"slices"
	"sync"
	"time"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

// edition is a snapshot as one scope's streams are sent it, numbered in order from 1. It is immutable but for what it
// remembers of the way to it.
type edition struct {
	number uint64
	*envoy.Snapshot
	base    *edition // of the base scope, if the scope has one: what is the same there is encoded there
	applied time.Time

	mu         sync.Mutex
	steps      [envoy.Types][]*step // the newest last, at most so many as are remembered
	selections [envoy.Types][]*selection
	index      [envoy.Types]map[envoy.Name]int32
	claims     [envoy.Types]sum
	superseded bool // remembers nothing: streams that lag may hold it for long
}

// remembered is from how many editions the way to one is remembered, and for how many rosters what there is of them, for each
// type. Streams come from nothing, from the edition before, or from one of a few more while they lag; and most want the same.
const remembered = 8

// ordinal is the number, 0 for no edition.
func (e *edition) ordinal() uint64 {
	if e == nil {
		return 0
	}
	return e.number
}

type change = pmap.Change[envoy.Name, *envoy.Resource]

// step is what differs between two editions in one type.
type step struct {
	from    uint64
	changes []change // in order of name
	added   content  // the new and the changed ones
}

// since is the step to e from an earlier edition, or from nothing if from is nil.
func (e *edition) since(t envoy.Type, from *edition) *step {
	if from == e || from != nil && from.Resources[t] == e.Resources[t] {
		return &nowhere
	}
	if e.likeBase(t) && (from == nil || from.likeBase(t)) {
		if from != nil {
			from = from.base
		}
		return e.base.since(t, from)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.steps[t] {
		if s.from == from.ordinal() {
			return s
		}
	}
	var old envoy.Resources
	if from != nil {
		old = from.Resources[t]
	}
	s := &step{from: from.ordinal()}
	for c := range pmap.Diff(old, e.Resources[t]) {
		if c.Old != nil && c.New != nil && c.Old.Version == c.New.Version {
			continue // it has other origins
		}
		s.changes = append(s.changes, c)
		if c.New != nil {
			s.added.resources = append(s.added.resources, c.New)
		}
	}
	if !e.superseded {
		e.steps[t] = remember(e.steps[t], s)
	}
	return s
}

// remember puts the newest last.
func remember[T any](list []T, newest T) []T {
	if len(list) == remembered {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, newest)
}

// likeBase tells whether the base scope has the same resources of a type.
func (e *edition) likeBase(t envoy.Type) bool {
	return e.base != nil && e.Resources[t] == e.base.Resources[t]
}

// supersede notes that there is a newer edition.
func (e *edition) supersede() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.superseded = true
	e.steps, e.selections, e.index = [envoy.Types][]*step{}, [envoy.Types][]*selection{}, [envoy.Types]map[envoy.Name]int32{}
}

// nowhere is the step of those that have arrived.
var nowhere step

// share finds content that other streams send as well, or makes it anew. The resources are of type t, of this
// edition and in order of name.
func (e *edition) share(t envoy.Type, resources []*envoy.Resource, s *step) *content {
	if len(resources) == e.Resources[t].Len() {
		return &e.since(t, nil).added
	}
	if slices.Equal(resources, s.added.resources) {
		return &s.added
	}
	return &content{resources: resources}
}

// selection is what there is of a roster.
type selection struct {
	roster  *roster
	content *content
	missing []envoy.Name
	digest  mesh.Digest // of the content
}

// selected is what there is of a roster in the edition.
func (e *edition) selected(t envoy.Type, of *roster) *selection {
	if e.likeBase(t) {
		return e.base.selected(t, of)
	}
	whole := &e.since(t, nil).added
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.selections[t] {
		if s.roster == of {
			return s
		}
	}
	s := &selection{roster: of, content: &content{}}
	rest := whole.resources
	for n := range of.all() {
		for len(rest) > 0 && rest[0].Name < n {
			rest = rest[1:]
		}
		if len(rest) > 0 && rest[0].Name == n {
			s.content.resources = append(s.content.resources, rest[0])
		} else {
			s.missing = append(s.missing, n)
		}
	}
	for _, r := range s.content.resources {
		s.digest = s.digest.Plus(r.Digest)
	}
	if len(s.content.resources) == len(whole.resources) {
		s.content = whole
	}
	if !e.superseded {
		e.selections[t] = remember(e.selections[t], s)
	}
	return s
}

// digest is the version of what there is of a set of names.
func (e *edition) digest(t envoy.Type, of *named) mesh.Digest {
	d := e.selected(t, of.roster).digest
	for n := range of.more {
		if r, ok := e.Resources[t].Get(n); ok {
			d = d.Plus(r.Digest)
		}
	}
	for n := range of.less {
		if r, ok := e.Resources[t].Get(n); ok {
			d = d.Minus(r.Digest)
		}
	}
	return d
}

// places are where the resources of a type stand among all of it.
func (e *edition) places(t envoy.Type) map[envoy.Name]int32 {
	if e.likeBase(t) {
		return e.base.places(t)
	}
	resources := e.since(t, nil).added.resources
	e.mu.Lock()
	defer e.mu.Unlock()
	index := e.index[t]
	if index == nil {
		index = make(map[envoy.Name]int32, len(resources))
		for i, r := range resources {
			index[r.Name] = int32(i)
		}
		if !e.superseded {
			e.index[t] = index
		}
	}
	return index
}

// claim is what a client claims that has just this edition.
func (e *edition) claim(t envoy.Type) sum {
	if e.likeBase(t) {
		return e.base.claim(t)
	}
	resources := e.since(t, nil).added.resources
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.claims[t]; s.n == len(resources) {
		return s
	}
	var s sum
	for _, r := range resources {
		s.versioned([]byte(r.Name), []byte(r.Version))
	}
	e.claims[t] = s
	return s
}

// content is resources in order of name, and their encoding, which is made once for each protocol.
type content struct {
	resources []*envoy.Resource

	mu     sync.Mutex
	bodies [protocols][]byte
}

func (c *content) body(p Protocol) []byte {
	if len(c.resources) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bodies[p] == nil {
		c.bodies[p] = encodeResources(p, c.resources)
	}
	return c.bodies[p]
}
