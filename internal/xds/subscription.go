package xds

import (
	"hash/maphash"

	"github.com/meshd/meshd/internal/envoy"
)

// everything is the name that subscribes to all resources of a type.
const everything envoy.Name = "*"

// names is a set of names.
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

// subscription is which resources of one type a client wants. The zero subscription wants none.
type subscription struct {
	wildcard bool
	names    names // also of what does not exist; they are kept beside a wildcard

	named  bool   // state of the world: has named something, so that naming nothing is no wildcard any more (rule 1)
	digest uint64 // state of the world: of the names as they came
}

func (s *subscription) has(n envoy.Name) bool { return s.wildcard || s.names.has(n) }

// outcome is what a request did to a subscription.
type outcome struct {
	same    bool         // nothing
	widened bool         // it is a wildcard now and was not
	asked   []envoy.Name // what must be answered (rules 4 and 6)
}

var seed = maphash.MakeSeed()

// replace takes the names of a state-of-the-world request, which replace those before (rule 3).
func (s *subscription) replace(r *request) (o outcome) {
	var h maphash.Hash
	h.SetSeed(seed)
	some := false
	for value := range r.values(subscribeField) {
		some = true
		h.Write(value)
		h.WriteByte(0xff) // in no text
	}
	digest := h.Sum64()
	was, old := s.wildcard, s.names
	switch {
	case !some:
		s.wildcard, s.names = !s.named, nil
	case s.named && digest == s.digest:
		return outcome{same: true}
	default:
		s.named, s.wildcard, s.names = true, false, names{}
		for n := range r.names(subscribeField) {
			switch {
			case n == everything:
				s.wildcard = true
				continue
			case !old.has(n) && !s.names.has(n):
				o.asked = append(o.asked, n)
			}
			s.names.add(n)
		}
	}
	s.digest = digest
	o.widened = s.wildcard && !was
	o.same = s.wildcard == was && len(o.asked) == 0 && len(s.names) == len(old)
	return o
}

// retain drops what a state-of-the-world request does not name, and adds nothing.
func (s *subscription) retain(r *request) {
	kept, some, wildcard := names{}, false, false
	for n := range r.names(subscribeField) {
		some = true
		wildcard = wildcard || n == everything
		if s.names.has(n) {
			kept.add(n)
		}
	}
	s.wildcard = s.wildcard && (wildcard || !some && !s.named)
	s.named = s.named || some
	s.names, s.digest = kept, 0
}

// update takes a delta request. first says that it is the stream's first of the type: one that names nothing is a
// wildcard, and stays one when names are added (rule 1).
func (s *subscription) update(r *request, first bool) (o outcome) {
	was, some := s.wildcard, false
	for n := range r.names(subscribeField) {
		some = true
		if n == everything {
			s.wildcard = true
			continue
		}
		s.names.add(n)
		o.asked = append(o.asked, n)
	}
	if first && !some {
		s.wildcard = true
	}
	for n := range r.names(unsubscribeField) {
		switch {
		case n == everything:
			s.wildcard = false
		case s.names.has(n):
			delete(s.names, n)
			o.asked = append(o.asked, n) // matters only beside a wildcard
		}
	}
	o.widened = s.wildcard && !was
	return o
}
