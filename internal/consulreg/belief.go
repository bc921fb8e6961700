package consulreg

import (
	"fmt"
	"maps"
	"time"
)

// patience is how long an answer that is not believed waits to be confirmed before what it adds and changes is taken after
// all. A server that replays its log (1.6 to 3 s for 12,000 entries) is done by then.
const patience = 15 * time.Second

// A loss of many services at once with an index that went back is what it looks like when Consul has lost its data, and agents are
// about to register their services again, which takes them a minute or two. It is believed if it is still so after reunion.
const (
	reunion = 2 * time.Minute
	many    = 10 // services, of which a share may be a loss of many
)

// staleContact is how long ago a server may have heard from its leader for its answers to count as fresh.
const staleContact = 10 * time.Second

// page is what is believed of one service: an immutable value.
type page struct {
	instances []*instance // sorted
	index     uint64      // of the last answer that was believed; 0: of none since the start
	filtered  bool        // whether that answer was filtered by ACLs
	mixed     bool        // whether more answers than that one have their part in the instances
	doubt     *doubt      // an answer that is not believed; nil: none
}

// doubt is an answer that waits to be confirmed.
type doubt struct {
	instances []*instance
	filtered  bool
	index     uint64
	reason    string    // why it is not believed, as "its index is lower than before"
	since     time.Time // of the first answer of an unbroken row of doubts
	merged    bool      // whether what it adds and changes has been taken
}

// lost are the believed instances that the doubted answer does not have. They are held: served on.
func (p *page) lost() int {
	if p.doubt == nil {
		return 0
	}
	return len(missing(p.instances, p.doubt.instances))
}

// sighting is an answer about one service, with what is needed to judge it.
type sighting struct {
	instances  []*instance
	index      uint64
	filtered   bool
	contact    time.Duration
	consistent bool      // whether it was a consistent read
	troubled   bool      // whether Consul failed shortly before
	at         time.Time // when it came
}

// judge makes the next page of what a page says and of an answer, and tells whether the answer is to be confirmed. It decides
// by these rules:
//
//   - An answer with the index of the last believed one takes nothing away, whatever it says: what it lacks is hidden, and not
//     gone. (What it has besides was hidden before: rights change no index.) If Consul says that it has left something out, which
//     it did not before, that is a doubt as in any other answer, so that it is told.
//   - A suspect answer (see suspicion) is not believed until a consistent read confirms it. What it merely adds and changes is
//     taken if that does not happen for a while.
//   - An answer that is not suspect, but takes more than the guard lets go in one step, waits for a consistent read as well.
//   - A consistent read is believed. One that Consul has filtered by ACLs though earlier answers were not is not; and of one
//     that is filtered as ever, no more is believed than the guard lets go.
//
// The page of a service of which nothing is known has no index and no instances.
func (g Guard) judge(p *page, s sighting) (next *page, confirm bool) {
	newlyFiltered := s.filtered && !p.filtered // which is to be told
	if s.index == p.index && !s.consistent && !newlyFiltered && len(missing(p.instances, s.instances)) > 0 {
		return p, p.doubt != nil
	}
	if sameInstances(p.instances, s.instances) {
		if s.filtered && !p.filtered && len(p.instances) > 0 {
			// It saw all that there was, which ends any doubt, but is not the measure for what comes.
			return &page{instances: p.instances, index: p.index, filtered: p.filtered, mixed: p.mixed}, false
		}
		if s.index < p.index && !s.consistent {
			return p, true // of what a server says that lags behind, the next thing must not look new
		}
		return &page{instances: p.instances, index: s.index, filtered: s.filtered}, false
	}
	reason := g.objection(p, s)
	if reason == "" {
		return &page{instances: s.instances, index: s.index, filtered: s.filtered}, false
	}
	d := &doubt{instances: s.instances, filtered: s.filtered, index: s.index, reason: reason, since: s.at}
	if p.doubt != nil {
		d.since, d.merged = p.doubt.since, p.doubt.merged
	}
	next = &page{instances: p.instances, index: p.index, filtered: p.filtered, mixed: p.mixed, doubt: d}
	if d.merged {
		next = next.merge()
	}
	return next, true
}

// objection is why an answer is not believed; empty if it is.
func (g Guard) objection(p *page, s sighting) string {
	newlyFiltered := s.filtered && !p.filtered && len(p.instances) > 0
	switch {
	case newlyFiltered:
		return "Consul left out what the token may not see, which it did not before"
	case s.consistent && s.index == p.index && !p.mixed && len(missing(p.instances, s.instances)) > 0:
		return "its index is that of an earlier answer that had more: what it lacks is hidden"
	case s.consistent && s.filtered:
		return g.excess(p, s) // the token has never seen everything, so that not even this is the whole truth
	case s.consistent:
		return ""
	}
	if reason := suspicion(p.index, s); reason != "" {
		return reason
	}
	return g.excess(p, s)
}

// wentBack does not say from where to where, so that what is told stays the same while it lasts.
const wentBack = "its index went back, as when a server is replaying its log or was restored"

// suspicion is what makes an answer suspect; empty if nothing does.
func suspicion(believed uint64, s sighting) string {
	switch {
	case s.index < believed:
		return wentBack
	case s.troubled:
		return "it came soon after Consul had failed or was connected to"
	case s.contact > staleContact:
		return "the server that gave it has not heard of its leader for long"
	}
	return ""
}

// excess tells whether an answer takes more of a service's instances than may go in one step.
func (g Guard) excess(p *page, s sighting) string {
	gone := missing(p.instances, s.instances)
	switch {
	case g.Off:
	case len(gone) > 0 && len(s.instances) == 0:
		return "it takes the last instance"
	case len(p.instances) >= 4 && float64(len(gone)) > g.Endpoints*float64(len(p.instances)):
		return fmt.Sprintf("it takes %d of %d instances at once", len(gone), len(p.instances))
	}
	return ""
}

// merge takes what the doubted answer adds and changes. What it lacks stays.
func (p *page) merge() *page {
	d := *p.doubt
	d.merged = true
	next := &page{instances: union(p.instances, d.instances), index: p.index, filtered: p.filtered, mixed: true, doubt: &d}
	if len(next.instances) == len(d.instances) {
		next.doubt = nil // it lacked nothing
		next.index, next.filtered, next.mixed = d.index, d.filtered, false
	}
	return next
}

// release believes the doubted answer, since the operator says so.
func (p *page) release() *page {
	if p.doubt == nil {
		return p
	}
	return &page{instances: p.doubt.instances, index: p.doubt.index, filtered: p.doubt.filtered}
}

// missing are those of was that is does not have. Both are sorted.
func missing(was, is []*instance) (gone []*instance) {
	for _, w := range was {
		for len(is) > 0 && is[0].compare(w) < 0 {
			is = is[1:]
		}
		if len(is) == 0 || is[0].compare(w) != 0 {
			gone = append(gone, w)
		}
	}
	return gone
}

// union is was with what is adds and changes. Both are sorted, and so is it.
func union(was, is []*instance) []*instance {
	out := make([]*instance, 0, max(len(was), len(is)))
	for len(was) > 0 && len(is) > 0 {
		switch c := was[0].compare(is[0]); {
		case c < 0:
			out, was = append(out, was[0]), was[1:]
		case c > 0:
			out, is = append(out, is[0]), is[1:]
		default:
			out, was, is = append(out, is[0]), was[1:], is[1:]
		}
	}
	return append(append(out, was...), is...)
}

// directory is what is believed of the list of services: an immutable value.
type directory struct {
	names    map[string][]string // with all tags of their instances
	index    uint64              // 0: it was never read since the start
	filtered bool
	doubt    *directoryDoubt
}

type directoryDoubt struct {
	names    map[string][]string
	index    uint64
	filtered bool
	reason   string
	since    time.Time
	reunion  bool // whether services that are gone may be about to come back
}

// consulService is the name under which Consul's servers are in their own catalog, always. A token that does not see it does
// not see everything.
const consulService = "consul"

// listing is an answer to the question which services there are.
type listing struct {
	names      map[string][]string
	index      uint64
	filtered   bool
	consistent bool
	troubled   bool
	at         time.Time
}

// look makes the next directory of what one says and of an answer, by the rules of judge. Names that come are taken at once: what
// instances they have is another question. That a name is gone is always confirmed.
func (g Guard) look(d *directory, l listing) (next *directory, confirm bool) {
	if d.names == nil && l.troubled && !l.consistent {
		return d, true // the first list says what everything is; it must be whole
	}
	gone := 0
	for name := range d.names {
		if _, there := l.names[name]; !there {
			gone++
		}
	}
	_, had := d.names[consulService]
	_, has := l.names[consulService]
	hides := len(l.names) == 0 || had && !has || l.filtered && !d.filtered // which is to be told
	if gone > 0 && l.index == d.index && !l.consistent && !hides {
		return d, d.doubt != nil
	}
	reason, share := "", float64(gone)/float64(max(1, len(d.names)))
	lossOfMany := d.doubt != nil && d.doubt.reunion ||
		(l.index < d.index || d.index == 0) && len(d.names) >= many && share > g.Services && !g.Off
	switch {
	case gone == 0:
	case len(l.names) == 0:
		reason = "it is empty, which no catalog is: the token sees nothing of it any more"
	case had && !has:
		reason = "it lacks Consul's own service: the token does not see everything any more"
	case l.filtered && !d.filtered:
		reason = "Consul left out what the token may not see, which it did not before"
	case l.consistent && lossOfMany && (d.doubt == nil || l.at.Before(d.doubt.since.Add(reunion))):
		reason = fmt.Sprintf("its index went back and it lacks %d of %d services, as when Consul has lost its data and agents are to register theirs again; it is believed if it is still so after %s", gone, len(d.names), reunion)
	case l.consistent && !l.filtered:
	case l.consistent && !g.Off && share > g.Services:
		reason = fmt.Sprintf("it takes %d of %d services at once, and the token has never seen everything", gone, len(d.names))
	case l.consistent:
	case l.index < d.index:
		reason = wentBack
	case l.troubled:
		reason = "it came soon after Consul had failed or was connected to"
	case g.Off:
	default:
		reason = fmt.Sprintf("%d of %d services are missing in it", gone, len(d.names))
	}
	if reason == "" {
		// A list that is newly filtered, but lacks nothing, is not the measure for what comes.
		return &directory{names: l.names, index: l.index, filtered: l.filtered && (d.filtered || d.names == nil)}, false
	}
	// The index that was believed stays: the next answer is measured by it.
	next = &directory{
		names: together(d.names, l.names), index: d.index, filtered: d.filtered,
		doubt: &directoryDoubt{names: l.names, index: l.index, filtered: l.filtered, reason: reason, since: l.at},
	}
	if d.doubt != nil {
		next.doubt.since = d.doubt.since
	}
	next.doubt.reunion = lossOfMany
	return next, true
}

// together is was with what is adds and changes.
func together(was, is map[string][]string) map[string][]string {
	out := maps.Clone(was)
	maps.Copy(out, is)
	return out
}
