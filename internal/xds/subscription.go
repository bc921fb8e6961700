package xds

import "github.com/meshd/meshd/internal/envoy"

// everything is the name that subscribes to all resources of a type.
const everything envoy.Name = "*"

// subscription is which resources of one type a client wants. The zero subscription wants none.
type subscription struct {
	wildcard bool
	names    named // also of what does not exist; they are kept beside a wildcard

	spoke  bool   // state of the world: has named something, so that naming nothing is no wildcard any more (rule 1)
	digest uint64 // state of the world: of the names as they came
}

func (s *subscription) has(n envoy.Name) bool { return s.wildcard || s.names.has(n) }

// outcome is what a request did to a subscription.
type outcome struct {
	same    bool         // nothing
	widened bool         // it is a wildcard now and was not
	all     bool         // all names must be answered; there were none before
	asked   []envoy.Name // what else must be answered (rules 4 and 6)

	wild  bool         // it was a wildcard before
	old   named        // what it named before, or names still
	fresh []envoy.Name // what it wants and did not, unless that is all
}

// replace takes the names of a state-of-the-world request, which replace those before (rule 3).
func (s *subscription) replace(r *request, all *rosters) (o outcome) {
	was, old := s.wildcard, s.names
	switch {
	case !r.subscribes:
		s.wildcard, s.names = !s.spoke, named{}
	case s.spoke && r.digest == s.digest:
		return outcome{same: true}
	default:
		var set *roster
		set, s.wildcard = all.named(r)
		s.spoke, s.names = true, named{roster: set}
		switch {
		case old.len() == 0:
			o.all = set != nil
		case !old.exact() || old.roster != set:
			for n := range set.all() {
				if !old.has(n) {
					o.asked = append(o.asked, n)
				}
			}
		}
	}
	s.digest = r.digest
	o.wild, o.old, o.widened = was, old, s.wildcard && !was
	if !was {
		o.fresh = o.asked
	}
	o.same = s.wildcard == was && !o.all && len(o.asked) == 0 && s.names.len() == old.len()
	return o
}

// retain drops what a state-of-the-world request does not name, and adds nothing. It tells whether that ended a wildcard.
func (s *subscription) retain(r *request, all *rosters) (narrowed bool) {
	set, wildcard := all.named(r)
	narrowed = s.wildcard && !wildcard && (r.subscribes || s.spoke)
	if narrowed {
		s.names = named{roster: set} // it wanted these, like all
	} else if !wildcard && (!s.names.exact() || s.names.roster != set) { // with a wildcard nothing is dropped
		var gone []envoy.Name
		for n := range s.names.all() {
			if !set.has(n) {
				gone = append(gone, n)
			}
		}
		for _, n := range gone {
			s.names.remove(n)
		}
		s.names.settle(all)
	}
	s.wildcard = s.wildcard && !narrowed
	s.spoke = s.spoke || r.subscribes
	s.digest = 0
	return narrowed
}

// update takes a delta request. first says that it is the stream's first of the type: one that names nothing is a
// wildcard, and stays one when names are added (rule 1).
func (s *subscription) update(r *request, first bool, all *rosters) (o outcome) {
	was := s.wildcard
	if s.names.len() == 0 {
		set, wildcard := all.named(r)
		s.names, o.all = named{roster: set}, set != nil
		s.wildcard = s.wildcard || wildcard
	} else {
		for n := range r.names(subscribeField) {
			if n == everything {
				s.wildcard = true
				continue
			}
			if !was && !s.names.has(n) {
				o.fresh = append(o.fresh, n)
			}
			s.names.add(n)
			o.asked = append(o.asked, n)
		}
	}
	if first && !r.subscribes {
		s.wildcard = true
	}
	for n := range r.names(unsubscribeField) {
		switch {
		case n == everything:
			s.wildcard = false
		case s.names.has(n):
			s.names.remove(n)
			o.asked = append(o.asked, n) // matters only beside a wildcard
		}
	}
	s.names.settle(all)
	o.wild, o.old, o.widened = was, s.names, s.wildcard && !was
	return o
}
