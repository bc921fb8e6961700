package xds

import (
	"hash/maphash"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"unique"
	"weak"

	"github.com/meshd/meshd/internal/envoy"
)

// names is a set of names of one stream's own.
type names map[envoy.Name]struct{}

func (s *names) add(n envoy.Name) {
	if *s == nil {
		*s = names{}
	}
	(*s)[n] = struct{}{}
}

func (s names) has(n envoy.Name) bool {
	_, ok := s[n]
	return ok
}

// roster is an immutable set of names, which all streams that name the same share. The nil roster is empty.
type roster struct {
	names []unique.Handle[envoy.Name] // in order; rosters that differ share the texts
	sum   sum
}

// sum identifies a set of names, or of names in versions, whatever their order: it has the sums of their hashes and of a mixture of each. That two sets
// have the same by chance, or by intent without the seed, need not be reckoned with.
type sum struct {
	hashes, mixtures uint64
	n                int
}

var seed = maphash.MakeSeed()

func (s *sum) plus(name []byte) { s.add(maphash.Bytes(seed, name)) }

// versioned adds a name in a version.
func (s *sum) versioned(name, version []byte) {
	s.add(maphash.Bytes(seed, name)*0x9e3779b97f4a7c15 ^ maphash.Bytes(seed, version))
}

func (s *sum) add(h uint64) {
	high, low := bits.Mul64(h, 0x9e3779b97f4a7c15)
	s.hashes += h
	s.mixtures += high ^ low
	s.n++
}

func sumOf(list []unique.Handle[envoy.Name]) (s sum) {
	for _, h := range list {
		s.plus([]byte(h.Value()))
	}
	return s
}

func (r *roster) len() int {
	if r == nil {
		return 0
	}
	return len(r.names)
}

func (r *roster) has(n envoy.Name) bool {
	if r == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(r.names, n, func(h unique.Handle[envoy.Name], n envoy.Name) int { return h.Value().Compare(n) })
	return found
}

// all yields the names in order.
func (r *roster) all() iter.Seq[envoy.Name] {
	return func(yield func(envoy.Name) bool) {
		if r == nil {
			return
		}
		for _, h := range r.names {
			if !yield(h.Value()) {
				return
			}
		}
	}
}

// rosters finds the roster of a set that other streams have named. It holds none: the last stream that goes takes its roster with
// it. The nil rosters find nothing.
type rosters struct {
	mu      sync.Mutex
	of      index[sum]
	written index[uint64] // by the digest of the names as a request had them, without "*"
}

// index finds rosters as long as somebody has them.
type index[K comparable] struct {
	of    map[K]weak.Pointer[roster]
	sweep int // at this size those that are gone are swept out
}

func (x *index[K]) put(key K, r *roster) {
	if len(x.of) >= x.sweep {
		maps.DeleteFunc(x.of, func(_ K, p weak.Pointer[roster]) bool { return p.Value() == nil })
		x.sweep = 2*len(x.of) + 64
	}
	if x.of == nil {
		x.of = map[K]weak.Pointer[roster]{}
	}
	x.of[key] = weak.Make(r)
}

func (s *rosters) find(of sum) *roster {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of.of[of].Value()
}

// asWritten finds a roster by how a request has its names.
func (s *rosters) asWritten(digest uint64) *roster {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.of[digest].Value()
}

// named finds or makes the roster of what a request subscribes to, and tells whether "*" is there, which is none of it.
func (s *rosters) named(r *request) (set *roster, wildcard bool) {
	if r.span > 0 && r.roster != nil {
		return r.roster, false
	}
	set, wildcard = s.oneByOne(r)
	if s != nil && r.span > 0 && set != nil && !wildcard {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.written.put(r.digest, set)
	}
	return set, wildcard
}

// oneByOne is as named, of a request that has to be read.
func (s *rosters) oneByOne(r *request) (set *roster, wildcard bool) {
	var as sum
	for value := range r.values(subscribeField) {
		if string(value) == string(everything) {
			wildcard = true
			continue
		}
		as.plus(value)
	}
	if as.n == 0 {
		return nil, wildcard
	}
	if set = s.find(as); set != nil {
		return set, wildcard
	}
	list := make([]unique.Handle[envoy.Name], 0, as.n)
	for n := range r.names(subscribeField) {
		if n != everything {
			list = append(list, unique.Make(n))
		}
	}
	return s.make(list), wildcard
}

// make finds or makes the roster of names in any order, which may be there twice. It keeps the list.
func (s *rosters) make(list []unique.Handle[envoy.Name]) *roster {
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b unique.Handle[envoy.Name]) int { return a.Value().Compare(b.Value()) })
	list = slices.Compact(list)
	made := &roster{names: list, sum: sumOf(list)}
	if s == nil {
		return made
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.of.of[made.sum].Value(); known != nil {
		return known
	}
	s.of.put(made.sum, made)
	return made
}

// named is a set of names that can change, most of which are in a roster.
type named struct {
	roster     *roster
	more, less names // what is not in the roster and belongs here, and the other way round
}

func (s *named) len() int { return s.roster.len() + len(s.more) - len(s.less) }

func (s *named) has(n envoy.Name) bool {
	return s.more.has(n) || s.roster.has(n) && !s.less.has(n)
}

// exact tells whether the roster is the set.
func (s *named) exact() bool { return len(s.more)+len(s.less) == 0 }

// all yields the names.
func (s *named) all() iter.Seq[envoy.Name] {
	return func(yield func(envoy.Name) bool) {
		for n := range s.roster.all() {
			if !s.less.has(n) && !yield(n) {
				return
			}
		}
		for n := range s.more {
			if !yield(n) {
				return
			}
		}
	}
}

func (s *named) add(n envoy.Name) {
	switch {
	case !s.roster.has(n):
		s.more.add(n)
	case s.less != nil:
		delete(s.less, n)
	}
}

func (s *named) remove(n envoy.Name) {
	switch {
	case s.more.has(n):
		delete(s.more, n)
	case s.roster.has(n):
		s.less.add(n)
	}
}

// fewNames is by how many names a set may differ from its roster, if that is not a sixteenth of it.
const fewNames = 32

// settle gives the set a roster of its own, or another stream's, if it differs much from the one that it has: so a set that
// grows name by name is sorted some dozen times.
func (s *named) settle(all *rosters) {
	if s.len() > 0 && len(s.more)+len(s.less) <= max(fewNames, s.roster.len()/16) {
		return
	}
	if s.exact() {
		return
	}
	list := make([]unique.Handle[envoy.Name], 0, s.len())
	for n := range s.all() {
		list = append(list, unique.Make(n))
	}
	*s = named{roster: all.make(list)}
}
