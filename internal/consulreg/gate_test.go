package consulreg

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errSick = errors.New("it is ill")

func TestAnOpenGateLetsAllThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, start := newGate(), time.Now()
		for range 100 { // none of which leaves
			if probe, err := g.enter(t.Context()); probe || err != nil {
				t.Fatalf("%v, %v", probe, err)
			}
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("they waited for %s", waited)
		}
	})
}

// TestThePausesOfAGateGrow has one who asks again and again, and fails.
func TestThePausesOfAGateGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		g.leave(false, errSick)
		for n := range 12 {
			start := time.Now()
			probe, err := g.enter(t.Context())
			if !probe || err != nil {
				t.Fatalf("%v, %v", probe, err)
			}
			most := min(longPause, shortPause<<n)
			if wait := time.Since(start); wait < most/2 || wait > most {
				t.Errorf("the pause after failure %d is %s, want %s to %s", n+1, wait, most/2, most)
			}
			g.leave(true, errSick)
		}
		if probe, err := g.enter(t.Context()); !probe || err != nil {
			t.Fatalf("%v, %v", probe, err)
		}
		g.leave(true, nil)
		g.leave(false, errSick)
		start := time.Now()
		if probe, _ := g.enter(t.Context()); !probe || time.Since(start) > shortPause {
			t.Errorf("after a success the first pause is %s", time.Since(start))
		}
	})
}

// crowd is many who want to pass a gate, each once. What comes of one that passes is said by its answer.
type crowd struct {
	mu     sync.Mutex
	passed []time.Time
	probes int
	all    sync.WaitGroup
}

func (c *crowd) come(ctx context.Context, g *gate, n int, answer func() error) {
	for range n {
		c.all.Go(func() {
			for {
				probe, err := g.enter(ctx)
				if err != nil {
					return
				}
				c.mu.Lock()
				c.passed = append(c.passed, time.Now())
				if probe {
					c.probes++
				}
				c.mu.Unlock()
				err = answer()
				g.leave(probe, err)
				if err == nil {
					return
				}
			}
		})
	}
}

func TestACrowdBeforeASickConsulCostsOneRequestPerPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		g.leave(false, errSick)
		ill, end := time.Minute, time.Now().Add(time.Minute)
		var c crowd
		c.come(t.Context(), g, 2000, func() error {
			time.Sleep(time.Millisecond)
			if time.Now().Before(end) {
				return errSick
			}
			return nil
		})
		c.all.Wait()
		asked := 0
		var last time.Time
		for _, at := range c.passed {
			if at.Before(end) {
				if asked++; asked > 1 && at.Sub(last) < shortPause/2 {
					t.Errorf("two pass within %s", at.Sub(last))
				}
				last = at
			}
		}
		// Pauses of 50 ms to 3.2 s grow for 6 failures, and then are of 2.5 to 5 s.
		if most := 6 + int(ill/(longPause/2)); asked < int(ill/longPause) || asked > most {
			t.Errorf("%d asked while it was ill, want at most %d", asked, most)
		}
		if c.probes != asked+1 {
			t.Errorf("%d of %d were probes", c.probes, asked)
		}
		if late := time.Since(end); late > longPause+time.Second {
			t.Errorf("the last one had an answer %s after it was well", late)
		}
		if len(c.passed) != asked+2000 {
			t.Errorf("%d passed, want each once more", len(c.passed)-asked)
		}
	})
}

// TestOfManyThatFailTogetherOneCounts fails all those that were under way.
func TestOfManyThatFailTogetherOneCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		for range 2000 {
			g.leave(false, errSick)
		}
		start := time.Now()
		if probe, _ := g.enter(t.Context()); !probe || time.Since(start) > shortPause {
			t.Errorf("the pause is %s, want the first one", time.Since(start))
		}
	})
}

// probed is a gate that a failure has closed, with a probe out there.
func probed(t *testing.T) *gate {
	t.Helper()
	g := newGate()
	g.leave(false, errSick)
	probe, err := g.enter(t.Context())
	if !probe || err != nil {
		t.Fatal(probe, err)
	}
	return g
}

func TestAnAnswerOpensTheGateForAll(t *testing.T) {
	for _, tt := range []struct {
		name string
		open func(g *gate, probe bool)
	}{
		{"the one of the probe", func(g *gate, probe bool) { g.leave(probe, nil) }},
		{"one that was under way before it was closed", func(g *gate, _ bool) { g.leave(false, nil) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := probed(t)
				var c crowd
				c.come(t.Context(), g, 50, func() error { return nil })
				synctest.Wait()
				if len(c.passed) > 0 {
					t.Fatalf("%d passed while one was out there", len(c.passed))
				}
				start := time.Now()
				tt.open(g, true)
				c.all.Wait()
				if waited := time.Since(start); waited != 0 || c.probes != 0 {
					t.Errorf("they waited for %s, and %d of them were probes", waited, c.probes)
				}
			})
		})
	}
}

func TestAProbeThatIsAbandonedLetsAnotherOneTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := probed(t)
		var c crowd
		c.come(t.Context(), g, 1, func() error { return nil })
		synctest.Wait()
		g.abandon(false) // somebody else
		synctest.Wait()
		if len(c.passed) > 0 {
			t.Fatal("one passed while the probe was out there")
		}
		start := time.Now()
		g.abandon(true)
		c.all.Wait()
		if c.probes != 1 || time.Since(start) != 0 {
			t.Errorf("%d tried, after %s; want one, at once", c.probes, time.Since(start))
		}
	})
}

func TestWhoeverWaitsAtAGateMayGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		g.leave(false, errSick)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if probe, err := g.enter(ctx); probe || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", probe, err)
		}
		if probe, err := g.enter(t.Context()); !probe || err != nil {
			t.Errorf("then %v, %v", probe, err)
		}
	})
}

func TestJitter(t *testing.T) {
	for range 1000 {
		if d := jitter(time.Minute); d < 54*time.Second || d > 66*time.Second {
			t.Fatal(d)
		}
	}
	if d := jitter(1); d != 1 {
		t.Errorf("of 1 ns it is %d", d)
	}
}
