package xds

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// track is the state of one type on one stream. What the client has of it is the edition sent, cut with what it wants,
// but for the exceptions: owed, doomed, refused.
type track struct {
	asked bool // there was a request
	want  subscription

	answer  bool                  // a response is due even if it is empty (rule 16)
	version string                // state of the world: what the client had when it came
	initial map[envoy.Name]string // delta: likewise, until the first answer

	sent     *edition // nil: nothing yet
	settled  *edition // what of sent is answered, with either answer
	accepted *edition // what of sent is acknowledged

	owed    names                // to be sent even if unchanged
	owesAll bool                 // all is owed
	missed  bool                 // state of the world: a stale request may have asked for more; the answer will tell
	doomed  map[envoy.Name]*doom // the client has them still; they go when nothing refers to them any more
	refused names                // were in a response that was rejected; sent again with the next one (rule 11)

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
}

// has tells whether the response had something new of a name.
func (f *flight) has(n envoy.Name) bool {
	if f == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(f.resources, n, func(r *envoy.Resource, n envoy.Name) int { return r.Name.Compare(n) })
	return found || slices.Contains(f.removed, n)
}

// marks is what the delivery row shows beyond the state.
type marks struct {
	sent, accepted Mark
	rejected       *Rejection
}

// meets tells whether a step changes something that the client wants, or may have wanted when it gets what is in flight.
func (k *track) meets(st *step) bool {
	if k.want.wildcard {
		return len(st.changes) > 0
	}
	return slices.ContainsFunc(st.changes, func(c change) bool { return k.want.names.has(c.Key) || k.flight.has(c.Key) })
}

// pass moves to an edition in which nothing that the client wants is different.
func (k *track) pass(e *edition) {
	k.sent = e
	if k.flight == nil {
		k.settled = e
		if len(k.refused) == 0 {
			k.accepted = e
		}
	}
}

// arrived notes that the client has all it wants of an edition, with nothing to be sent. One that came with it has
// accepted it, from this server's predecessor or another replica.
func (k *track) arrived(t envoy.Type, e *edition, now time.Time) {
	if k.nonce == "" && (k.version != "" || len(k.initial) > 0) {
		k.marks.accepted = Mark{Version: e.Versions[t].String(), Time: now}
	}
	k.clear()
	k.pass(e)
}

// answered takes the client's answer to the response in flight, if the request is that.
func (k *track) answered(r *request, now time.Time) *Rejection {
	if k.flight == nil || r.nonce != k.flight.nonce {
		return nil
	}
	f := k.flight
	k.flight, k.settled = nil, k.sent
	if !r.failed {
		k.accepted = k.sent
		k.marks.accepted = Mark{Version: k.marks.sent.Version, Nonce: f.nonce, Time: now}
		k.marks.rejected = nil
		return nil
	}
	for _, r := range f.resources {
		k.refused.add(r.Name)
	}
	for _, n := range f.removed {
		k.refused.add(n)
	}
	k.marks.rejected = blame(f, r.message)
	k.marks.rejected.Mark = Mark{Version: k.marks.sent.Version, Nonce: f.nonce, Time: now}
	return k.marks.rejected
}

// owe makes the next response hold what is there of the names.
func (k *track) owe(asked []envoy.Name) {
	for _, n := range asked {
		if k.want.has(n) {
			k.owed.add(n)
		}
	}
}

// owes tells whether there is something to be sent even if unchanged, or may be.
func (k *track) owes() bool { return len(k.owed) > 0 || k.owesAll || k.missed }

// clear notes that everything owed has been sent.
func (k *track) clear() { k.answer, k.initial, k.owed, k.owesAll = false, nil, nil, false }

// answeredUpTo is the edition up to which the client has been given what it asked for, and has answered.
func (k *track) answeredUpTo() *edition {
	if k.owes() {
		return nil
	}
	return k.settled
}

// mayHave tells whether the client may still have what is removed.
func (k *track) mayHave(n envoy.Name) bool {
	return k.doomed[n] != nil || k.flight.has(n)
}

// forget drops the exceptions of what is not wanted any more.
func (k *track) forget() {
	k.owesAll = k.owesAll && k.want.wildcard
	unwanted := func(n envoy.Name) bool { return !k.want.has(n) }
	maps.DeleteFunc(k.doomed, func(n envoy.Name, _ *doom) bool { return unwanted(n) })
	maps.DeleteFunc(k.initial, func(n envoy.Name, _ string) bool { return unwanted(n) })
	for _, set := range []names{k.owed, k.refused} {
		maps.DeleteFunc(set, func(n envoy.Name, _ struct{}) bool { return unwanted(n) })
	}
}

// longestMessage is how much of a client's message is kept and looked through.
const longestMessage = 16 << 10

// blame finds the resources of a rejected response that the client's message names.
func blame(f *flight, message string) *Rejection {
	message = strings.TrimSpace(strings.ToValidUTF8(message[:min(len(message), longestMessage)], ""))
	j := &Rejection{Message: message}
	for _, r := range f.resources {
		if len(f.resources) == 1 || mentions(message, string(r.Name)) {
			j.Resources = append(j.Resources, r.Name)
			j.Services = append(j.Services, r.Services...)
		}
	}
	slices.SortFunc(j.Services, mesh.Key.Compare)
	j.Services = slices.Compact(j.Services)
	return j
}

// mentions tells whether text has the name, and not as a part of a longer one.
func mentions(text, name string) bool {
	for start := 0; name != ""; {
		i := strings.Index(text[start:], name)
		if i < 0 {
			return false
		}
		begin, end := start+i, start+i+len(name)
		if (begin == 0 || !inName(text[begin-1])) && !goesOn(text[end:]) {
			return true
		}
		start = begin + 1
	}
	return false
}

func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-|.", c) >= 0
}

// goesOn tells whether a name that was found goes on in the rest: a point alone ends a sentence.
func goesOn(rest string) bool {
	return rest != "" && inName(rest[0]) && (rest[0] != '.' || len(rest) > 1 && inName(rest[1]))
}
