package xds

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/envoy"
)

// order is in which way one type waits for others, so that what is made is there before what refers to it, and what is
// removed goes after what referred to it (rules 17 and 18). A type that the stream has not asked for is not waited for.
var order = [envoy.Types]struct {
	// after are types of which the edition must have been sent: the stream keeps the order.
	after []envoy.Type
	// answered are types of which the edition must have been answered: by then an Envoy has asked for the endpoints of
	// new clusters, so that these are warm when a route leads to them.
	answered []envoy.Type
	// holds are types that must not be owed anything when this goes on to the next edition: a cluster that came with one
	// and goes with the next is sent its endpoints all the same, since a route of the one may lead to it.
	holds []envoy.Type
	// before are types that must have accepted an edition before what it removes of this type goes.
	before []envoy.Type
	// gone are types of which what has the same name must have gone before: an Envoy drops its subscription to a
	// cluster's endpoints with the cluster, and need not be told that they are gone (rule 5).
	gone []envoy.Type
	// forces are types of which the same names are sent again after this: a cluster that is changed warms until its
	// endpoints come (rule 17).
	forces []envoy.Type
	// leader is the type whose resources say which of this type an Envoy asks for.
	leader envoy.Type
	// full types are always sent whole in the state of the world: what is missing there is deleted (rule 15).
	full bool
}{
	envoy.Cluster: {
		holds:  []envoy.Type{envoy.Endpoints},
		before: []envoy.Type{envoy.Listener, envoy.Route},
		forces: []envoy.Type{envoy.Endpoints},
		leader: none,
		full:   true,
	},
	envoy.Endpoints: {
		leader: envoy.Cluster,
		after:  []envoy.Type{envoy.Cluster},
		before: []envoy.Type{envoy.Listener, envoy.Route},
		gone:   []envoy.Type{envoy.Cluster},
	},
	envoy.Listener: {
		answered: []envoy.Type{envoy.Cluster, envoy.Endpoints},
		leader:   none,
		full:     true,
	},
	envoy.Route: {
		leader:   envoy.Listener,
		after:    []envoy.Type{envoy.Listener},
		answered: []envoy.Type{envoy.Cluster, envoy.Endpoints},
		before:   []envoy.Type{envoy.Listener},
	},
}

// none is no type.
const none = envoy.Types

// session is what one stream has asked for and was given. It is not safe for use by several goroutines.
type session struct {
	protocol Protocol
	grace    time.Duration // how long a removal waits after what referred to it
	retry    time.Duration // after what time something that was rejected is tried again at first; 0: not before it changes
	rosters  *rosters      // that it shares with others; nil: with nobody
	tracks   [envoy.Types]track
	nonce    uint64
}

// response is what a stream is sent next.
type response struct {
	typ     envoy.Type
	version string
	nonce   string
	removed []envoy.Name
	content *content
	edition *edition
	again   bool // it brings nothing that has just changed: it is the first of its type, or one of what was rejected
}

// verdict is what a request says of the response that it answers.
type verdict struct {
	rejected bool
	known    bool       // it has rejected all of it before
	found    *Rejection // what a client rejects is known now, by this answer or by this and some before
}

// request takes a request for a type.
func (s *session) request(t envoy.Type, r *request, now time.Time) verdict {
	k := &s.tracks[t]
	first := !k.asked
	k.asked = true
	if s.protocol == SotW && k.nonce != "" && r.nonce != k.nonce {
		// Stale: the answer to the last response carries all names as well (rule 10). But what this one does not name,
		// the client has dropped, though the answer may name it again.
		if k.want.retain(r, s.rosters) {
			k.owesNames = true // they are asked for by name now
		}
		k.summed = nil
		k.missed = k.flight != nil
		if !k.missed || !order[t].full { // else the list on its way has what it may want again
			k.forget()
		}
		return verdict{}
	}
	k.missed = false
	waited := k.flight != nil
	var came []*envoy.Resource // state of the world: with what this answers, so that the client may have it though it dropped it before
	if waited && s.protocol == SotW {
		came = k.flight.resources
		if order[t].full {
			came = k.flight.list
		}
	}
	v := s.answered(t, r, now)
	var o outcome
	if s.protocol == SotW {
		if o = k.want.replace(r, s.rosters); !o.same {
			k.summed = nil
		}
		if first {
			k.version = r.version
			k.answer = order[t].full && r.version != "" // it must learn what is gone, even if that is all
		}
		// A request that says nothing new is an Envoy that made a cluster anew and wants its endpoints (rule 17c).
		if o.same && !waited && !first && !r.failed && !order[t].full {
			o.all = k.want.names.len() > 0
		}
	} else {
		if k.claims != nil {
			k.claims.doubt(&k.want)
		}
		o = k.want.update(r, first, s.rosters)
		switch {
		case first && r.claimed.n > 0:
			k.claims = &claims{request: r}
		case k.claims != nil: // asked twice: it is not sure of what it has
			for _, n := range o.asked {
				k.claims.void.add(n)
			}
			if o.all {
				for n := range k.want.names.all() {
					k.claims.void.add(n)
				}
			}
		}
	}
	k.renew(t, o, came)
	k.owe(o)
	k.forget()
	if o.widened {
		k.answer, k.owesAll = true, true
	}
	return v
}

// next is the response that is due now, if any, on the way to the newest edition.
func (s *session) next(newest *edition, now time.Time) *response {
	for {
		for t := range envoy.Types {
			if r := s.due(t, newest, now); r != nil {
				return r
			}
		}
		if !s.freed(now) {
			return nil
		}
	}
}

// freed tells whether the grace of a removal can begin now: other types may have arrived with nothing to be sent.
func (s *session) freed(now time.Time) bool {
	for t := range envoy.Types {
		for n, d := range s.tracks[t].doomed {
			if d.due.IsZero() && s.tracks[t].flight == nil && (s.mayGo(t, n, d, now) || !d.due.IsZero()) {
				return true
			}
		}
	}
	return false
}

// skips moves to the next edition if that changes nothing for the stream, and tells whether it did so.
func (s *session) skips(from, to *edition) bool {
	for t := range envoy.Types {
		if k := &s.tracks[t]; k.asked && (k.sent != from || k.meets(to.since(t, from))) {
			return false
		}
	}
	for t := range envoy.Types {
		if s.tracks[t].asked {
			s.pass(t, to)
		}
	}
	return true
}

// unanswered is when the oldest response was sent that the client has not answered; zero if there is none.
func (s *session) unanswered() (at time.Time) {
	for t := range s.tracks {
		if k := &s.tracks[t]; k.flight != nil && (at.IsZero() || k.marks.sent.Time.Before(at)) {
			at = k.marks.sent.Time
		}
	}
	return at
}

// alarm is when next has to be called though nothing happens; zero if never. What is past waits for the client.
func (s *session) alarm(now time.Time) (at time.Time) {
	for t := range s.tracks {
		for _, d := range s.tracks[t].doomed {
			at = earliest(at, d.due, now)
		}
		if s.tracks[t].flight != nil {
			continue
		}
		for _, h := range s.tracks[t].held {
			at = earliest(at, h.again, now)
		}
	}
	return at
}

// earliest is the earlier one of two times that are to come; zero stands for none.
func earliest(a, b, now time.Time) time.Time {
	if !b.After(now) || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// target is the edition that a type may be brought to by now; nil if it has to wait.
func (s *session) target(t envoy.Type, newest *edition) *edition {
	e := newest
	bound := func(types []envoy.Type, reached func(*track) *edition) {
		for _, p := range types {
			if k := &s.tracks[p]; k.asked && reached(k).ordinal() < e.ordinal() {
				e = reached(k)
			}
		}
	}
	bound(order[t].after, func(k *track) *edition { return k.sent })
	bound(order[t].answered, (*track).answeredUpTo)
	sent := s.tracks[t].sent
	if e == nil || sent == nil {
		return e
	}
	if e.number < sent.number || slices.ContainsFunc(order[t].holds, func(p envoy.Type) bool { return s.tracks[p].owes() }) {
		return sent
	}
	for p := range envoy.Types {
		if order[p].leader == t && s.led(p) && s.tracks[p].sent.ordinal() < sent.number && s.tracks[t].meets(e.since(t, sent)) {
			return sent // or what goes and comes again is wanted anew under a version that has it
		}
	}
	return e
}

// mayGo tells whether nothing that the client has refers to what is doomed any more, and the grace since then is over.
func (s *session) mayGo(t envoy.Type, n envoy.Name, d *doom, now time.Time) bool {
	for _, p := range order[t].before {
		if k := &s.tracks[p]; k.asked && k.accepted.ordinal() < d.edition && !k.frees(d) {
			return false
		}
	}
	for _, p := range order[t].gone {
		if s.tracks[p].mayHave(n) {
			return false
		}
	}
	if d.due.IsZero() {
		d.due = now.Add(s.grace)
	}
	return !now.Before(d.due)
}

// due is the response of one type that may be sent now.
func (s *session) due(t envoy.Type, newest *edition, now time.Time) *response {
	k := &s.tracks[t]
	if k.owes() && s.protocol == SotW && order[t].full {
		k.apart = nil // a list has what is asked for as well; the suspects follow it
	}
	if k.flight == nil && len(k.kept) > 0 {
		if kept := s.keeps(t); len(kept) > 0 {
			r := s.respond(t, k.sent, &flight{}, &content{resources: kept}, now)
			r.again = true
			return r
		}
	}
	if k.flight == nil && len(k.apart) > 0 {
		if g := s.group(t, newest); len(g) > 0 {
			return s.apart(t, g, now)
		}
		s.settle(t)
	}
	e := s.target(t, newest)
	if !k.asked || e == nil {
		return nil
	}
	st := &nowhere
	if k.sent != nil || k.want.wildcard {
		st = e.since(t, k.sent)
	}
	if k.flight != nil {
		if !k.meets(st) {
			s.pass(t, e)
		}
		return nil
	}
	if s.upToDate(t, e) {
		s.arrived(t, e, now)
		return nil
	}

	g := gathering{session: s, t: t, track: k, edition: e}
	if k.claims != nil {
		k.claims.compare(t, e, &k.want)
	}
	g.step(st)
	g.debts()
	g.removals(now)
	if g.nothing() && !k.answer && !s.outdated(t, e) {
		s.arrived(t, e, now)
		if suspects := s.suspects(t, e); len(suspects) > 0 || k.retell {
			return s.apart(t, suspects, now)
		}
		if r := s.overdue(t, newest, now); r != nil {
			return s.again(t, r, now)
		}
		return nil
	}
	resources, removed := g.result()
	f := &flight{resources: resources, removed: removed, from: k.sent, anew: k.anew, returned: g.returned}
	f.cameWith = s.protocol == SotW && k.sent == nil && k.version != ""
	if k.claims != nil {
		f.came = k.claims.other
		for n := range k.claims.unsure {
			f.came.add(n)
		}
	}
	c := g.shared
	if c == nil {
		c = e.share(t, resources, st)
	}
	r := s.respond(t, e, f, c, now)
	k.clear()
	k.spent = 0
	return r
}

// apart is a response that has nothing but what was rejected before.
func (s *session) apart(t envoy.Type, resources []*envoy.Resource, now time.Time) *response {
	s.tracks[t].spent++
	return s.repeat(t, &flight{resources: resources}, now)
}

// again is a response that tries one of these again.
func (s *session) again(t envoy.Type, r *envoy.Resource, now time.Time) *response {
	return s.repeat(t, &flight{resources: []*envoy.Resource{r}, retry: true}, now)
}

func (s *session) repeat(t envoy.Type, f *flight, now time.Time) *response {
	e := s.tracks[t].sent
	r := s.respond(t, e, f, e.share(t, f.resources, &nowhere), now)
	r.again = true
	return r
}

// respond sends what a flight holds, and what the client did not hear before.
func (s *session) respond(t envoy.Type, e *edition, f *flight, c *content, now time.Time) *response {
	k := &s.tracks[t]
	if len(k.unheard) > 0 {
		for _, r := range f.resources {
			delete(k.unheard, r.Name)
		}
		f.removed = slices.AppendSeq(f.removed, maps.Keys(k.unheard))
		slices.Sort(f.removed)
		f.removed = slices.Compact(f.removed)
	}
	s.nonce++
	f.nonce = nonceOf(s.nonce)
	r := &response{typ: t, nonce: f.nonce, edition: e, again: k.nonce == "", version: s.version(t, e), removed: f.removed, content: c}
	part := false
	for n := range k.held {
		part = part || !f.has(n)
	}
	if s.protocol == SotW {
		r.removed = nil
		if order[t].full {
			r.content = s.whole(k, t, e, f)
			f.list = r.content.resources
		}
		part = part || !k.want.wildcard && !s.led(t) || len(k.doomed) > 0
	}
	if part {
		r.version += partly
	}
	k.sent, k.nonce, k.flight, k.retell = e, r.nonce, f, false
	k.marks.sent = Mark{Version: r.version, Nonce: r.nonce, Time: now}
	for _, typ := range order[t].forces {
		s.force(typ, f.resources, e)
	}
	return r
}

// partly marks the version of a response that does not hold exactly what the snapshot has.
const partly = "~"

// upToDate tells whether a client of the state of the world that came with everything has it: it need not be answered. One
// that names what it wants may have dropped some of that since, and want it again, which its version does not say: it is
// answered, unless it is led and its leader has nothing new for it either.
func (s *session) upToDate(t envoy.Type, e *edition) bool {
	k := &s.tracks[t]
	if s.protocol != SotW || k.sent != nil || k.nonce != "" || k.version != s.version(t, e) {
		return false
	}
	return k.want.wildcard && !k.want.spoke || s.led(t) && s.tracks[order[t].leader].nonce == ""
}

// led tells whether a client of the state of the world asks for what we tell it to ask for: an Envoy that takes all clusters asks for their
// endpoints. What it drops it drops since we said so, on the same stream, so that its version says just what it has if we
// see to it that it has another one before it is told to ask again.
func (s *session) led(t envoy.Type) bool {
	if s.protocol != SotW || order[t].leader == none || s.tracks[t].want.wildcard {
		return false
	}
	l := &s.tracks[order[t].leader]
	return l.asked && l.want.wildcard && !l.want.spoke && s.tracks[t].asked
}

// version is that of what the client is to have of an edition.
func (s *session) version(t envoy.Type, e *edition) string {
	if !s.led(t) {
		return e.Versions[t].String()
	}
	k := &s.tracks[t]
	switch {
	case k.summed == nil || k.summed.number > e.number:
		k.digest = e.digest(t, &k.want.names)
	default:
		for _, c := range e.since(t, k.summed).changes {
			if !k.want.has(c.Key) {
				continue
			}
			if c.Old != nil {
				k.digest = k.digest.Minus(c.Old.Digest)
			}
			if c.New != nil {
				k.digest = k.digest.Plus(c.New.Digest)
			}
		}
	}
	k.summed = e
	return k.digest.String()
}

// outdated tells whether the version that a led client was told has something that is gone, or that it does not want any more. It is told
// another one, though nothing comes with it.
func (s *session) outdated(t envoy.Type, e *edition) bool {
	k := &s.tracks[t]
	return s.led(t) && k.nonce != "" && len(k.held) == 0 && strings.TrimSuffix(k.marks.sent.Version, partly) != s.version(t, e)
}

// whole is all that the client is to have of a type: what is there of what it wants, but for what is held back, which it
// keeps as it has it, and what is doomed.
func (s *session) whole(k *track, t envoy.Type, e *edition, f *flight) *content {
	all := &e.since(t, nil).added
	if k.want.wildcard && len(k.doomed)+len(k.held) == 0 {
		return all
	}
	var list []*envoy.Resource
	add := func(r *envoy.Resource) {
		if h := k.held[r.Name]; h != nil && !h.fixed(s, t) && !f.has(r.Name) {
			r = h.kept()
		}
		if r != nil {
			list = append(list, r)
		}
	}
	if k.want.wildcard {
		for _, r := range all.resources {
			add(r)
		}
	} else {
		for n := range k.want.names.all() {
			if r, ok := e.Resources[t].Get(n); ok {
				add(r)
			}
		}
	}
	for _, d := range k.doomed {
		list = append(list, d.resource)
	}
	slices.SortFunc(list, byName)
	return &content{resources: list}
}

// force makes the resources of a type that have the names of others be sent after these.
func (s *session) force(t envoy.Type, others []*envoy.Resource, e *edition) {
	k := &s.tracks[t]
	if !k.asked || k.owesNames && k.claims == nil {
		return
	}
	for _, o := range others {
		if _, ok := e.Resources[t].Get(o.Name); ok && k.want.has(o.Name) {
			k.mustSend(o.Name)
			k.forced.add(o.Name)
			if k.claims != nil {
				k.claims.void.add(o.Name)
			}
		}
	}
}

// gathering collects what a response of one type must hold.
type gathering struct {
	session *session
	t       envoy.Type
	track   *track
	edition *edition

	changed  []*envoy.Resource // by the step, in order
	more     []*envoy.Resource
	shared   *content // if set, all that there is to send
	removed  []envoy.Name
	returned map[envoy.Name]*doom // was to go, and does not
}

// step takes what has changed of what is wanted.
func (g *gathering) step(st *step) {
	k := g.track
	if k.want.wildcard && k.claims == nil && len(k.doomed)+len(k.held) == 0 && len(st.added.resources) == len(st.changes) {
		g.changed = st.added.resources
		return
	}
	for i := range st.changes {
		c := &st.changes[i]
		switch {
		case !k.want.has(c.Key):
		case c.New == nil:
			g.lose(c.Key, c.Old)
		case !k.claims.has(c.Key):
			g.take(&g.changed, c.New)
		}
	}
}

// debts takes what is owed whether it has changed or not, and what the client came with and must drop.
func (g *gathering) debts() {
	k := g.track
	if k.owesAll && k.sent != nil {
		for _, r := range g.edition.since(g.t, nil).added.resources {
			g.take(&g.more, r)
		}
	}
	switch {
	case k.owesNames && k.want.names.exact() && len(k.doomed)+len(k.held)+len(g.changed) == 0:
		g.selection(g.edition.selected(g.t, k.want.names.roster))
	case k.owesNames:
		for n := range k.want.names.all() {
			g.debt(n)
		}
	default:
		for n := range k.owed {
			g.debt(n)
		}
	}
	if k.claims == nil {
		return
	}
	for n := range k.claims.other {
		if _, ok := g.edition.Resources[g.t].Get(n); !ok {
			g.lose(n, nil)
		}
	}
}

// debt takes what there is of a name.
func (g *gathering) debt(n envoy.Name) {
	r, ok := g.edition.Resources[g.t].Get(n)
	switch {
	case ok && g.track.claims.has(n): // the exception of rule 4
	case ok:
		g.take(&g.more, r)
	default:
		g.missing(n)
	}
}

// missing answers a name of which there is nothing; if the client has something, that is lost.
func (g *gathering) missing(n envoy.Name) {
	if c := g.track.claims; g.session.protocol == Delta && (c == nil || !c.other.has(n)) {
		g.drop(n)
	}
}

// selection takes what there is of a whole roster, where nothing is held back or doomed.
func (g *gathering) selection(s *selection) {
	c := g.track.claims
	if c == nil {
		g.shared, g.more = s.content, s.content.resources
	} else {
		for _, r := range s.content.resources {
			if !c.has(r.Name) {
				g.more = append(g.more, r)
			}
		}
	}
	for _, n := range s.missing {
		g.missing(n)
	}
}

// take takes what is there. What is held back is tried again, but not now, so that it cannot take others with it.
func (g *gathering) take(to *[]*envoy.Resource, r *envoy.Resource) {
	k := g.track
	if h := k.held[r.Name]; h != nil && !h.fixed(g.session, g.t) {
		h.rejected, h.fault, k.spent = r, false, 0
		return
	}
	*to = append(*to, r)
	if d := k.doomed[r.Name]; d != nil {
		if g.returned == nil {
			g.returned = map[envoy.Name]*doom{}
		}
		g.returned[r.Name] = d
		delete(k.doomed, r.Name)
	}
}

// lose takes what is not there any more; old is what the client has, if known. What others may refer to goes later, unless
// the client never had it.
func (g *gathering) lose(n envoy.Name, old *envoy.Resource) {
	k := g.track
	h := k.held[n]
	k.letGo(n)
	if len(order[g.t].before) == 0 || h != nil && !h.stays(g.session.protocol) || g.session.protocol == SotW && !order[g.t].full {
		g.drop(n)
		return
	}
	if h != nil {
		old = cmp.Or(h.kept(), h.rejected)
	}
	if k.doomed == nil {
		k.doomed = map[envoy.Name]*doom{}
	}
	k.doomed[n] = &doom{resource: old, edition: g.edition.number}
}

func (g *gathering) drop(n envoy.Name) {
	delete(g.track.doomed, n)
	g.removed = append(g.removed, n)
}

// removals takes what was doomed and may go now.
func (g *gathering) removals(now time.Time) {
	for n, d := range g.track.doomed {
		if g.session.mayGo(g.t, n, d, now) {
			g.drop(n)
		}
	}
}

// nothing tells whether there is nothing to say. In the state of the world only a full type can say what is gone.
func (g *gathering) nothing() bool {
	sayable := g.session.protocol == Delta || order[g.t].full
	return len(g.changed) == 0 && len(g.more) == 0 && (len(g.removed) == 0 || !sayable)
}

// result is all of it, in order of name and each name once (rule 14).
func (g *gathering) result() ([]*envoy.Resource, []envoy.Name) {
	resources := g.changed
	switch {
	case g.shared != nil:
		resources = g.more
	case len(g.more) > 0:
		resources = slices.Concat(g.changed, g.more)
		slices.SortFunc(resources, byName)
		resources = slices.Compact(resources)
	}
	slices.Sort(g.removed)
	return resources, slices.Compact(g.removed)
}

func byName(a, b *envoy.Resource) int { return strings.Compare(string(a.Name), string(b.Name)) }
