package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// callTimeout is long: a slow machine must not look like a failed request.
	callTimeout = 15 * time.Second
	// betweenCalls leaves the processor to those who are tested.
	betweenCalls = 3 * time.Millisecond
)

// load calls services without a break, each client from its own goroutine, and counts.
type load struct {
	stop func()

	mu      sync.Mutex
	tallies map[string]*tally
}

// tally is what became of one client's calls.
type tally struct {
	ok, failed int
	errors     []string // the first few
}

// startLoad runs until the test ends, or stopped is called. The name of a client tells the reader which service it calls and how.
func startLoad(t *testing.T, callers map[string]caller) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{tallies: map[string]*tally{}}
	var calling sync.WaitGroup
	l.stop = func() {
		cancel()
		calling.Wait()
	}
	for name := range callers {
		l.tallies[name] = &tally{} // all of them before anybody looks
	}
	for name, c := range callers {
		calling.Go(func() {
			defer c.close()
			pause := time.NewTicker(betweenCalls)
			defer pause.Stop()
			for ctx.Err() == nil {
				// A call that has begun is always finished, so that stopping is not a failure.
				l.one(name, c)
				select {
				case <-pause.C:
				case <-ctx.Done():
				}
			}
		})
	}
	t.Cleanup(l.stop)
	l.progress(t)
	return l
}

func (l *load) one(name string, c caller) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	began := time.Now()
	_, err := c.call(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	y := l.tallies[name]
	if err == nil {
		y.ok++
		return
	}
	y.failed++
	if len(y.errors) < 5 {
		y.errors = append(y.errors, fmt.Sprintf("%s (after %s): %v", began.Format(time.StampMilli), time.Since(began), err))
	}
}

// progress waits until every client has made another dozen calls from now on, so that what has just happened was under load.
func (l *load) progress(t *testing.T) {
	t.Helper()
	const enough = 12
	before := l.calls()
	eventually(t, "progress of every client", func() error {
		for name, n := range l.calls() {
			if n < before[name]+enough {
				return fmt.Errorf("%s has made %d of %d calls", name, n-before[name], enough)
			}
		}
		return nil
	})
}

func (l *load) calls() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := map[string]int{}
	for name, y := range l.tallies {
		calls[name] = y.ok + y.failed
	}
	return calls
}

// requireNoFailure ends the load and fails the test if one call has failed.
func (l *load) requireNoFailure(t *testing.T) {
	t.Helper()
	l.stop()
	var report strings.Builder
	for _, name := range slices.Sorted(maps.Keys(l.tallies)) {
		y := l.tallies[name]
		fmt.Fprintf(&report, "\n  %-24s %6d ok, %d failed", name, y.ok, y.failed)
		if y.failed > 0 || y.ok == 0 {
			t.Errorf("%s: %d of %d calls failed:\n  %s", name, y.failed, y.ok+y.failed, strings.Join(y.errors, "\n  "))
		}
	}
	t.Logf("calls under load:%s", report.String())
}
