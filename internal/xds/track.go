package xds

import (
	"maps"
	"slices"
	"time"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// track is the state of one type on one stream. What the client has of it is the edition sent, cut with what it wants,
// but for the exceptions: owed, doomed, held, unheard.
type track struct {
	asked bool // there was a request
	want  subscription

	answer  bool    // a response is due even if it is empty (rule 16)
	version string  // state of the world: what the client had when it came
	claims  *claims // delta: likewise, until the first answer

	summed *edition    // state of the world: of which digest is the version, cut with what the client wants; nil: of none
	digest mesh.Digest // of that

	sent     *edition // nil: nothing yet
	settled  *edition // what of sent is answered, with either answer
	accepted *edition // what of sent is acknowledged

	owed      names                // to be sent even if unchanged
	owesNames bool                 // all that it wants is owed, and it is no wildcard
	owesAll   bool                 // all is owed, and it is a wildcard
	missed    bool                 // state of the world: a stale request may have asked for more; the answer will tell
	anew      anew                 // of what is owed, that of which the client has nothing
	doomed    map[envoy.Name]*doom // the client has them still; they go when nothing refers to them any more

	held    map[envoy.Name]*hold // what the client rejects, or may reject, alone (rule 11)
	apart   [][]*envoy.Resource  // groups of held ones that are each sent alone, the next one last
	spent   int                  // responses of such groups since something else was sent
	forced  names                // sent again since their cluster was; not accepted since then
	kept    []*envoy.Resource    // what it keeps instead of those that it rejects; to be told again at once
	unheard names                // removals in a response that was rejected; told again with the next one
	retell  bool                 // that is due even if there is nothing else to say

	flight *flight // the response that is not answered yet
	nonce  string  // of the last response

	marks marks
}

// doom is a removal that waits.
type doom struct {
	resource *envoy.Resource // what the client has; nil if that is known only to the client
	edition  uint64          // the first without it
	due      time.Time       // when the grace is over; zero while references may be left
}

// flight is what must be kept of a response until it is answered.
type flight struct {
	nonce     string
	resources []*envoy.Resource // what was new in it
	removed   []envoy.Name
	retry     bool // it tries again what was rejected, since time has passed

	// What the client had before: what it wants of an edition, but for what it did not want then; of what was doomed, that;
	// and at first what it came with.
	from     *edition
	anew     anew
	returned map[envoy.Name]*doom
	came     names // may have more than the response
	cameWith bool  // state of the world: it came with something, and may have any of it

	list []*envoy.Resource // state of the world, of a full type: all that was in it
}

// anew is what a client asks for that it did not want before, so that it has nothing of it, though what it was sent last has.
type anew struct {
	names names
	all   bool // it has become a wildcard: all but what is kept
	kept  names
}

func (a *anew) has(n envoy.Name) bool { return a.names.has(n) || a.all && !a.kept.has(n) }

// got notes that the client has something of these.
func (a *anew) got(list []*envoy.Resource) {
	if len(a.names) == 0 && !a.all {
		return
	}
	for _, r := range list {
		delete(a.names, r.Name)
		if a.all {
			a.kept.add(r.Name)
		}
	}
}

// before is the version that the client had of a name; nil if none, or if only the client knows.
func (f *flight) before(t envoy.Type, n envoy.Name) (r *envoy.Resource, has bool) {
	switch d := f.returned[n]; {
	case d != nil:
		return d.resource, true
	case f.cameWith || f.came.has(n):
		return nil, true
	case f.from == nil || f.anew.has(n):
		return nil, false
	}
	return f.from.Resources[t].Get(n)
}

// has tells whether the response had something new of a name.
func (f *flight) has(n envoy.Name) bool {
	if f == nil {
		return false
	}
	return f.resource(n) != nil || slices.Contains(f.removed, n)
}

// resource is the new version of a resource in the response.
func (f *flight) resource(n envoy.Name) *envoy.Resource { return find(f.resources, n) }

// find looks in a list in order of name.
func find(list []*envoy.Resource, n envoy.Name) *envoy.Resource {
	if i, ok := slices.BinarySearchFunc(list, n, func(r *envoy.Resource, n envoy.Name) int { return r.Name.Compare(n) }); ok {
		return list[i]
	}
	return nil
}

// marks is what the delivery row shows beyond the state.
type marks struct {
	sent, accepted Mark
	rejected       *Rejection // since which not all is accepted
	open           bool       // what is at fault in it is looked for
	fault          []envoy.Name
}

// meets tells whether a step changes something that the client wants, or may have wanted when it gets what is in flight.
func (k *track) meets(st *step) bool {
	if k.want.wildcard || k.missed { // what a request dropped that crosses a list, the answer may name again
		return len(st.changes) > 0
	}
	return slices.ContainsFunc(st.changes, func(c change) bool { return k.want.names.has(c.Key) || k.flight.has(c.Key) })
}

// pass moves to an edition in which nothing that the client wants is different.
func (s *session) pass(t envoy.Type, e *edition) {
	s.tracks[t].sent = e
	s.settle(t)
}

// settle notes that what was sent is answered, unless there is more of it to come.
func (s *session) settle(t envoy.Type) {
	k := &s.tracks[t]
	if k.flight != nil || s.searching(t) {
		return
	}
	k.settled = k.sent
	if !k.lags() {
		k.accepted = k.sent
	}
}

// arrived notes that the client has all it wants of an edition, with nothing to be sent. One that came with it has
// accepted it, from this server's predecessor or another replica.
func (s *session) arrived(t envoy.Type, e *edition, now time.Time) {
	k := &s.tracks[t]
	if k.nonce == "" && (k.version != "" || k.claims != nil && k.claims.some) {
		k.marks.accepted = Mark{Version: s.version(t, e), Time: now}
	}
	k.clear()
	s.pass(t, e)
}

// answered takes the client's answer to the response in flight, if the request is that.
func (s *session) answered(t envoy.Type, r *request, now time.Time) (v verdict) {
	k := &s.tracks[t]
	if k.flight == nil || r.nonce != k.flight.nonce {
		return verdict{}
	}
	f, named := k.flight, false
	k.flight = nil
	message := trim(r.message)
	switch {
	case r.failed && s.knows(t, f, message): // it took the rest
		s.accept(t, f)
	case r.failed:
		v.rejected, v.known = true, k.knew(f)
		whole := k.spent == 0 && !f.retry // no part of what was rejected before
		if whole || !k.marks.open {
			k.marks.open, k.marks.fault = true, nil
			k.marks.rejected = &Rejection{Mark: Mark{Version: k.marks.sent.Version, Nonce: f.nonce, Time: now}, Message: message}
		}
		if len(f.resources) == 1 {
			k.marks.rejected.Message = message
		}
		fault := s.reject(t, f, message, now)
		for _, r := range fault {
			k.marks.fault = append(k.marks.fault, r.Name)
		}
		named = whole && len(fault) > 0
	default:
		s.accept(t, f)
		maps.DeleteFunc(k.held, func(_ envoy.Name, h *hold) bool { return h.fixed(s, t) }) // it had these too
		k.marks.accepted = Mark{Version: k.marks.sent.Version, Nonce: f.nonce, Time: now}
	}
	s.settle(t)
	if k.marks.open && (named || !s.searching(t)) {
		k.marks.open = false
		v.found = s.rejection(t, func(n envoy.Name, h *hold) bool {
			return slices.Contains(k.marks.fault, n) || len(k.marks.fault) == 0 && !h.fault
		})
		if !k.news(v.found) {
			v.found = nil
		}
	}
	if !r.failed && len(k.held) == 0 {
		k.marks.open, k.marks.rejected = false, nil
	}
	return v
}

// renew notes what a request asks for of which the client has nothing, unless it just came.
func (k *track) renew(t envoy.Type, o outcome, came []*envoy.Resource) {
	if k.sent == nil {
		return
	}
	add := func(n envoy.Name) {
		listed := find(came, n) != nil
		if !listed {
			k.anew.names.add(n)
		}
		if h := k.held[n]; h != nil && !(listed && order[t].full) { // a list has what was there before
			h.last, h.took, h.has = nil, nil, listed // when it dropped it only the client knows
		}
	}
	if o.all && !o.wild && !o.same {
		for n := range k.want.names.all() {
			add(n)
		}
	}
	for _, n := range o.fresh {
		add(n)
	}
	if !o.widened {
		return
	}
	for n, h := range k.held {
		if !o.old.has(n) && !(order[t].full && find(came, n) != nil) { // it may have dropped it meanwhile
			h.last, h.took, h.has = nil, nil, !order[t].full
		}
	}
	if k.anew.all {
		return
	}
	k.anew.all, k.anew.kept = true, nil
	for n := range o.old.all() {
		if !k.anew.names.has(n) {
			k.anew.kept.add(n)
		}
	}
	k.anew.got(came)
}

// owe makes the next response hold what is there of the names that a request asks for.
func (k *track) owe(o outcome) {
	k.owesNames = k.owesNames || o.all
	if k.want.wildcard && k.owesNames { // then a name may be dropped, and what it stands for is wanted all the same
		k.owed, k.owesNames = k.owing(), false
	}
	for _, n := range o.asked {
		k.mustSend(n)
	}
}

// mustSend makes the next response hold what is there of a name, if that is wanted.
func (k *track) mustSend(n envoy.Name) {
	if k.want.has(n) && !k.owesNames {
		k.owed.add(n)
	}
}

// isOwed tells whether what is there of a name is to be sent.
func (k *track) isOwed(n envoy.Name) bool {
	return k.owesAll || k.owesNames && k.want.has(n) || k.owed.has(n)
}

// owing are the names that are owed one by one.
func (k *track) owing() names {
	all := maps.Clone(k.owed)
	if k.owesNames {
		for n := range k.want.names.all() {
			all.add(n)
		}
	}
	return all
}

// owes tells whether there is something to be sent even if unchanged, or may be.
func (k *track) owes() bool { return len(k.owed) > 0 || k.owesNames || k.owesAll || k.missed }

// clear notes that everything owed has been sent.
func (k *track) clear() {
	if k.claims != nil && k.claims.request.release != nil {
		k.claims.request.release()
	}
	k.answer, k.claims, k.owed, k.owesNames, k.owesAll, k.anew = false, nil, nil, false, false, anew{}
}

// answeredUpTo is the edition up to which the client has been given what it asked for, and has answered.
func (k *track) answeredUpTo() *edition {
	if k.owes() {
		return nil
	}
	return k.settled
}

// mayHave tells whether the client may still have what is removed.
func (k *track) mayHave(n envoy.Name) bool {
	return k.doomed[n] != nil || k.unheard.has(n) || k.flight.has(n)
}

// forget drops the exceptions of what is not wanted any more.
func (k *track) forget() {
	k.owesAll = k.owesAll && k.want.wildcard
	k.owesNames = k.owesNames && k.want.names.len() > 0
	if k.anew.all && !k.want.wildcard {
		for n := range k.want.names.all() {
			if !k.anew.kept.has(n) {
				k.anew.names.add(n)
			}
		}
		k.anew.all, k.anew.kept = false, nil
	}
	unwanted := func(n envoy.Name) bool { return !k.want.has(n) }
	maps.DeleteFunc(k.doomed, func(n envoy.Name, _ *doom) bool { return unwanted(n) })
	for n := range k.held {
		if unwanted(n) {
			k.letGo(n)
		}
	}
	for _, set := range []names{k.owed, k.forced, k.unheard, k.anew.names} {
		maps.DeleteFunc(set, func(n envoy.Name, _ struct{}) bool { return unwanted(n) })
	}
}
