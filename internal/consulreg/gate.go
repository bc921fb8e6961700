package consulreg

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The pauses after failures grow from shortPause to longPause, so that a cure is noticed within seconds.
const (
	shortPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
)

// pause is how long to wait after that many failures in a row. Each wait is another one, so that those who failed together do
// not come back together.
func pause(failures int) time.Duration {
	d := longPause
	if failures < maxFailures {
		d = min(longPause, shortPause<<max(0, failures-1))
	}
	return d/2 + rand.N(d/2)
}

// gate stands before a Consul. It lets everybody pass while all is well; after a failure it lets pass one at a time, with
// pauses between them, until one comes back with an answer. So thousands of watches cost a sick Consul no more than one.
type gate struct {
	mu       sync.Mutex
	failures int           // in a row; 0: open
	next     time.Time     // when the next one may pass
	probing  bool          // whether one is out there
	changed  chan struct{} // closed when one of these changes
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

// enter waits until the caller may pass, and tells whether it is the one that all others wait for.
func (g *gate) enter(ctx context.Context) (probe bool, err error) {
	for {
		g.mu.Lock()
		if g.failures == 0 {
			g.mu.Unlock()
			return false, nil
		}
		wait := time.Until(g.next)
		if wait <= 0 && !g.probing {
			g.probing = true
			g.mu.Unlock()
			return true, nil
		}
		changed := g.changed
		g.mu.Unlock()
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-changed:
		case <-due:
		}
	}
}

// leave tells how it went.
func (g *gate) leave(probe bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err == nil && g.failures == 0 && !probe:
		return
	case err == nil:
		g.failures, g.next = 0, time.Time{}
	case probe || g.failures == 0: // of many that fail at once, one counts
		g.failures++
		g.next = time.Now().Add(pause(g.failures))
	}
	if probe {
		g.probing = false
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// abandon says that the caller does not want to know any more.
func (g *gate) abandon(probe bool) {
	if !probe {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.probing = false
	close(g.changed)
	g.changed = make(chan struct{})
}

// jitter is d, or up to a tenth more or less.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }
