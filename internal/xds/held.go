package xds

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// hold is a resource that a client is not sent because it was in a response that it rejected (rule 11): all others go on.
type hold struct {
	rejected *envoy.Resource
	// last is what the client has instead: the last version that it accepted; nil if it has none, or if only it knows.
	last *envoy.Resource
	has  bool // it has, or may have, an earlier version
	// took is what it has instead of last, if it takes the rest of a response in which it names what it rejects, as Envoys and
	// gRPC clients do.
	took *envoy.Resource
	// maybe is what it may have instead of that: versions of a response that it rejected for another one, whose rest it may
	// have taken.
	maybe []*envoy.Resource
	// fault says that the resource was rejected alone or by name. One that was rejected with others is a suspect, to be
	// sent again apart.
	fault   bool
	message string // the client's
	since   time.Time

	refused string    // the version that was rejected last
	told    string    // the message that was logged for it
	tries   int       // how often that version was tried again, since time had passed
	again   time.Time // when it is tried next; zero if not before it changes
}

// longestWait is how long a resource that is rejected again and again is not tried at most.
const longestWait = time.Hour

// wait puts off the next try: each time for twice as long.
func (h *hold) wait(first time.Duration, now time.Time) {
	h.again = time.Time{}
	if first > 0 {
		h.again = now.Add(min(first<<min(h.tries, 20), max(first, longestWait)))
	}
}

// fixed tells whether the client may have a version that only it knows, and would lose it if a list of the state of the
// world left the resource out. So lists have it, in the version that was rejected: Envoy and gRPC clients take all others
// of a list that they reject.
func (h *hold) fixed(s *session, t envoy.Type) bool {
	return s.protocol == SotW && order[t].full && h.has && h.kept() == nil
}

// kept is what the client has, as far as is known.
func (h *hold) kept() *envoy.Resource { return cmp.Or(h.took, h.last) }

// maybes is how many versions a hold remembers that the client may have; with more it may be any.
const maybes = 8

// some tells whether the client has, or may have, any version.
func (h *hold) some() bool { return h.has || len(h.maybe) > 0 }

// stays tells whether what the client has can stay for a while after it is gone: a list must not have what it may reject.
func (h *hold) stays(p Protocol) bool {
	if p == SotW {
		return h.has || h.took != nil
	}
	return h.some()
}

// leadsTo tells whether what the client may have was made of one of these services.
func (h *hold) leadsTo(services []mesh.Key) bool {
	if h.has && h.last == nil {
		return true // for all we know
	}
	shares := func(r *envoy.Resource) bool {
		return slices.ContainsFunc(services, func(s mesh.Key) bool { return slices.Contains(r.Services, s) })
	}
	return len(h.maybe) > maybes || h.last != nil && shares(h.last) || slices.ContainsFunc(h.maybe, shares)
}

// perFault is how many responses are spent on each halving until a client's rejections are looked into no further before
// something changes.
const perFault = 16

// searching tells whether a response follows that is to find out what a client rejects, or that it did take the rest.
func (s *session) searching(t envoy.Type) bool {
	k := &s.tracks[t]
	if len(k.apart) > 0 || k.retell {
		return true
	}
	for _, h := range k.held {
		if !h.fault && !h.fixed(s, t) && !k.tired() {
			return true
		}
	}
	return false
}

// tired tells whether enough was spent on searching since the last change.
func (k *track) tired() bool { return k.spent >= perFault*bits.Len(uint(len(k.held))) }

// group is what is sent next to find out what a client rejects: the next part of what it rejected, or of the suspects. What
// has changed since is left to the step that brings the change.
func (s *session) group(t envoy.Type, newest *edition) []*envoy.Resource {
	k := &s.tracks[t]
	for len(k.apart) > 0 {
		g := k.apart[len(k.apart)-1]
		k.apart = k.apart[:len(k.apart)-1]
		g = slices.DeleteFunc(slices.Clone(g), func(r *envoy.Resource) bool {
			h := k.held[r.Name]
			current, ok := newest.Resources[t].Get(r.Name)
			return h == nil || h.fault || h.rejected.Version != r.Version || !ok || current.Version != r.Version
		})
		if len(g) > 0 {
			return g
		}
	}
	return nil
}

// keeps is what a client must be told again that it keeps: an Envoy that rejects the endpoints of a cluster which it has made anew
// does not wait for others, and has none from then on.
func (s *session) keeps(t envoy.Type) []*envoy.Resource {
	k := &s.tracks[t]
	kept := k.kept
	k.kept = nil
	return slices.DeleteFunc(kept, func(r *envoy.Resource) bool { return k.held[r.Name] == nil || k.held[r.Name].last != r })
}

// suspects are those resources of an edition that were rejected with others, or have changed since they were rejected.
func (s *session) suspects(t envoy.Type, e *edition) (out []*envoy.Resource) {
	k := &s.tracks[t]
	if k.tired() {
		return nil
	}
	for n, h := range k.held {
		if r, ok := e.Resources[t].Get(n); ok && !h.fault && !h.fixed(s, t) {
			h.rejected = r
			out = append(out, r)
		}
	}
	slices.SortFunc(out, byName)
	return out
}

// overdue is a resource that the client rejected and that is the newest still, of which it is time to try it again: it may have
// been for a cause of the client's own, such as a port that was taken. nil if there is none.
func (s *session) overdue(t envoy.Type, newest *edition, now time.Time) (next *envoy.Resource) {
	k := &s.tracks[t]
	var since time.Time
	for n, h := range k.held {
		if h.again.IsZero() || now.Before(h.again) {
			continue
		}
		sent, _ := k.sent.Resources[t].Get(n)
		latest, _ := newest.Resources[t].Get(n)
		if sent == nil || latest == nil || sent.Version != h.refused || latest.Version != h.refused {
			continue
		}
		if next == nil || h.again.Before(since) || h.again.Equal(since) && n < next.Name {
			next, since = sent, h.again
		}
	}
	return next
}

// knew tells whether a client has rejected all that is new in a response before, as it is.
func (k *track) knew(f *flight) bool {
	return len(f.resources) > 0 && !slices.ContainsFunc(f.resources, func(r *envoy.Resource) bool {
		h := k.held[r.Name]
		return h == nil || h.refused != r.Version
	})
}

// news tells whether a rejection says something that was not logged before.
func (k *track) news(found *Rejection) bool {
	news := len(found.Resources) == 0
	for _, n := range found.Resources {
		if h := k.held[n]; h.told != h.message {
			h.told, news = h.message, true
		}
	}
	return news
}

// letGo drops the hold of what is not there any more, or not wanted.
func (k *track) letGo(n envoy.Name) {
	if k.held[n] == nil {
		return
	}
	delete(k.held, n)
	if len(k.held) == 0 {
		k.marks.open, k.marks.rejected = false, nil
	}
}

// accept notes that a client has taken what is new in a response.
func (s *session) accept(t envoy.Type, f *flight) {
	k := &s.tracks[t]
	if len(k.held) > 0 {
		for _, r := range f.resources {
			delete(k.held, r.Name)
		}
	}
	for _, r := range f.resources {
		delete(k.forced, r.Name)
	}
	k.anew.got(f.resources)
	k.unheard = nil
}

// reject takes the rejection of a response: what the message names is at fault, or what was alone; the rest is sent again
// without it, and in halves if nothing is named. It returns what is at fault.
func (s *session) reject(t envoy.Type, f *flight, message string, now time.Time) (fault []*envoy.Resource) {
	k := &s.tracks[t]
	fault = blame(f.resources, message)
	named := len(fault) > 0
	if len(f.resources) == 1 {
		fault = f.resources
	}
	var rest []*envoy.Resource
	for _, r := range f.resources {
		h := k.held[r.Name]
		if h == nil {
			h = &hold{since: now}
			if !k.anew.has(r.Name) { // else it has dropped it since
				h.last, h.has = f.before(t, r.Name)
			}
			if k.held == nil {
				k.held = map[envoy.Name]*hold{}
			}
			k.held[r.Name] = h
		}
		h.fault = find(fault, r.Name) != nil
		if h.refused != r.Version {
			h.refused, h.told, h.tries = r.Version, "", 0
		} else if f.retry {
			h.tries++
		}
		h.rejected, h.message = r, message
		h.wait(s.retry, now)
		if !h.fault && named {
			h.took = r
		}
		if !h.fault && len(h.maybe) <= maybes && !slices.Contains(h.maybe, r) {
			h.maybe = append(h.maybe, r)
		}
		if !h.fault && !h.fixed(s, t) {
			rest = append(rest, r)
		}
		if k.forced.has(r.Name) {
			delete(k.forced, r.Name)
			if h.last != nil && h.took == nil {
				k.kept = append(k.kept, h.last)
			}
		}
	}
	switch half := len(rest) / 2; {
	case len(rest) == 0:
	case len(fault) > 0 || half == 0:
		k.apart = append(k.apart, rest)
	default:
		k.apart = append(k.apart, rest[half:], rest[:half])
	}
	if s.protocol == Delta || order[t].full { // else it was not told
		for _, n := range f.removed {
			k.unheard.add(n)
		}
		k.retell = len(k.unheard) > 0 && len(f.resources) > 0
	}
	if k.tired() {
		k.apart, k.retell = nil, false
	}
	return fault
}

// knows tells whether a rejection is of nothing but what a list must have although it was rejected before: the message says more
// of that than of anything that is new.
func (s *session) knows(t envoy.Type, f *flight, message string) bool {
	most := silent
	for _, r := range f.resources {
		most = max(most, mentions(message, string(r.Name)))
	}
	for n, h := range s.tracks[t].held {
		if h.fixed(s, t) && !f.has(n) && mentions(message, string(n)) > most {
			return true
		}
	}
	return false
}

// frees tells whether nothing that a client has of the type instead of newer versions leads to what is doomed.
func (k *track) frees(d *doom) bool {
	if k.settled.ordinal() < d.edition || len(k.unheard) > 0 || d.resource == nil || len(d.resource.Services) == 0 {
		return false
	}
	for _, h := range k.held {
		if h.leadsTo(d.resource.Services) {
			return false
		}
	}
	return true
}

// lags tells whether a client may have something that an edition which it was sent has not.
func (k *track) lags() bool {
	for _, h := range k.held {
		if h.some() {
			return true
		}
	}
	return len(k.unheard) > 0
}

// longestMessage is how much of a client's message is kept and looked through.
const longestMessage = 16 << 10

func trim(message string) string {
	return strings.TrimSpace(strings.ToValidUTF8(message[:min(len(message), longestMessage)], ""))
}

// blame finds the resources of a rejected response that the client's message names, in their order.
func blame(resources []*envoy.Resource, message string) (fault []*envoy.Resource) {
	strongest := mentioned
	for _, r := range resources {
		switch m := mentions(message, string(r.Name)); {
		case m < strongest:
		case m > strongest: // those before may stand in somebody else's reason
			strongest, fault = m, []*envoy.Resource{r}
		default:
			fault = append(fault, r)
		}
	}
	return fault
}

// mention is what a message says of a name.
type mention uint8

const (
	silent    mention = iota
	mentioned         // somewhere
	accused           // NAME: REASON, as Envoy and gRPC clients write; or the text ends with it, perhaps because it was cut
)

// mentions looks for a name in a text, where it is not a part of a longer one.
func mentions(text, name string) (m mention) {
	for start := 0; name != ""; {
		i := strings.Index(text[start:], name)
		if i < 0 {
			break
		}
		begin, end := start+i, start+i+len(name)
		if (begin == 0 || !inName(text[begin-1])) && !goesOn(text[end:]) {
			rest := strings.TrimLeft(text[end:], `"'`)
			if rest == "" && text[end:] == "" || rest == ":" || strings.HasPrefix(rest, ": ") {
				return accused
			}
			m = mentioned
		}
		start = begin + 1
	}
	return m
}

func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-|.", c) >= 0
}

// goesOn tells whether a name that was found goes on in the rest: a point alone ends a sentence.
func goesOn(rest string) bool {
	return rest != "" && inName(rest[0]) && (rest[0] != '.' || len(rest) > 1 && inName(rest[1]))
}
