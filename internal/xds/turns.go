package xds

import (
	"slices"
	"sync"
	"time"

	"github.com/meshd/meshd/internal/envoy"
)

const (
	// smallState is up to how many bytes a first state is sent without waiting for a turn.
	smallState = 64 << 10
	// turnTime is for how long a turn lasts that the client does not end by an answer, so that one that reads slowly holds up no other.
	turnTime = 250 * time.Millisecond
)

// turns pace first states: when a thousand clients come at once, they are sent what they ask for first one after the other, in the order in which they
// asked, so that so many bytes at most are on their way. What changes for those that have their first state does not
// wait, and finds the processors free.
type turns struct {
	most int // bytes

	mu    sync.Mutex
	taken int
	queue []*turn
}

// turn is a stream's, from when it asks until it is over.
type turn struct {
	bytes int
	on    bool        // not in the queue any more
	begin func()      // called when it leaves the queue
	over  *time.Timer // since something was sent in it
}

// ask begins a turn or puts it into the queue, and tells which. One that is larger than all that may be taken gets it when nothing is.
func (p *turns) ask(t *turn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) > 0 || !p.fits(t) {
		p.queue = append(p.queue, t)
		return false
	}
	p.taken += t.bytes
	t.on = true
	return true
}

func (p *turns) fits(t *turn) bool { return p.taken == 0 || p.taken+t.bytes <= p.most }

// has tells whether a turn has begun.
func (p *turns) has(t *turn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return t.on
}

// end ends a turn, or takes it out of the queue, and begins those that are next.
func (p *turns) end(t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.on {
		p.taken -= t.bytes
	} else {
		p.queue = slices.DeleteFunc(p.queue, func(q *turn) bool { return q == t })
	}
	for len(p.queue) > 0 && p.fits(p.queue[0]) {
		next := p.queue[0]
		p.queue = p.queue[1:]
		p.taken += next.bytes
		next.on = true
		next.begin()
	}
}

// mayBegin tells whether what is due may be made ready: the first state of a type is only when it is the stream's turn, for which it asks. It is called
// with mu held, as are spendTurn and endTurn.
func (x *stream) mayBegin(newest *edition) bool {
	turns := &x.server.turns
	if x.turn != nil {
		return turns.has(x.turn)
	}
	bytes := x.session.firstBytes(newest)
	if bytes < smallState {
		return true
	}
	x.turn = &turn{bytes: bytes, begin: x.signal}
	return turns.ask(x.turn)
}

// spendTurn notes that something is sent in the stream's turn, if it has one. The turn ends when the client answers, or after a time.
func (x *stream) spendTurn() {
	t := x.turn
	if t == nil || t.over != nil {
		return
	}
	t.over = time.AfterFunc(turnTime, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.turn == t {
			x.endTurn()
		}
	})
}

// endTurn ends the stream's turn, or its wait for it.
func (x *stream) endTurn() {
	t := x.turn
	if t == nil {
		return
	}
	if t.over != nil {
		t.over.Stop()
	}
	x.server.turns.end(t)
	x.turn = nil
}

// firstBytes is about how much a client is sent of the types of which it has not been sent anything yet.
func (s *session) firstBytes(newest *edition) (bytes int) {
	for t := range envoy.Types {
		k := &s.tracks[t]
		if !k.asked || k.nonce != "" || k.sent != nil {
			continue
		}
		switch all := newest.Resources[t].Len(); {
		case all == 0:
		case k.want.wildcard:
			bytes += newest.bytes(t)
		default:
			bytes += newest.bytes(t) / all * min(all, k.want.names.len())
		}
	}
	return bytes
}
