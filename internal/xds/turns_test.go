package xds

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/envoy"
)

func TestTurns(t *testing.T) {
	p := turns{most: 100}
	var begun []int
	all := map[int]*turn{}
	ask := func(bytes int) bool {
		all[bytes] = &turn{bytes: bytes, begin: func() { begun = append(begun, bytes) }}
		return p.ask(all[bytes])
	}
	expect := func(want ...int) {
		t.Helper()
		if !slices.Equal(begun, want) {
			t.Fatalf("turns that waited and have begun: %v, want %v", begun, want)
		}
		begun = nil
	}
	if !ask(200) || ask(10) {
		t.Fatal("one that is larger than all begins alone")
	}
	p.end(all[200])
	expect(10)
	if !ask(60) || ask(50) || ask(20) {
		t.Fatal("those who asked before are before those who are small")
	}
	p.end(all[50]) // does not wait any more
	expect(20)
	if ask(40) || ask(30) {
		t.Fatal("more is taken than may be")
	}
	p.end(all[60])
	expect(40, 30)
	for _, b := range []int{10, 20, 30, 40} {
		p.end(all[b])
	}
	if p.taken != 0 || len(p.queue) != 0 {
		t.Errorf("%d bytes are taken by nobody, %d wait", p.taken, len(p.queue))
	}
}

// TestFirstStatesTakeTurns has clients come of which each asks for more than half of what may be on its way at one time.
func TestFirstStatesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, nodes: map[string]*member{}}
		f.Server = New(hclog.NewNullLogger(), Options{Translate: f.translate, DrainGrace: -1, FirstStateBytes: 200 << 10})
		f.service("small", "1")
		f.publish()
		early := f.connect("early")
		f.set(cds, "large", strings.Repeat("x", 100<<10))
		f.publish() // it has what it asked for first, and so this is no first state

		come := func(id string) *member {
			m := f.member(Delta, func(string) bool { return false })
			for typ := range envoy.Types {
				m.send(t, typ, id, "", "")
			}
			return m
		}
		first, second, third := come("first"), come("second"), come("third")
		pull := func(m *member) *got {
			if next := m.next(time.Now()); next != nil {
				return f.decode(m, next)
			}
			return nil
		}
		a := pull(first)
		if a == nil || pull(second) != nil || pull(third) != nil {
			t.Fatal("the first is sent something, and the others are not")
		}
		f.set(cds, "small", "2")
		f.Apply(f.view())
		if pull(early) == nil {
			t.Error("a change waits for first states")
		}

		f.take(first, a)
		b := pull(second)
		if b == nil || pull(third) != nil {
			t.Fatal("once the first has answered, the second is next")
		}
		time.Sleep(turnTime) // it does not answer
		synctest.Wait()
		if pull(third) == nil {
			t.Fatal("the third waits for one that does not answer")
		}
		third.leave(nil)
		second.leave(nil)
		if f.turns.taken != 0 || len(f.turns.queue) != 0 {
			t.Errorf("%d bytes are taken by nobody, %d wait", f.turns.taken, len(f.turns.queue))
		}
		if third.next(time.Now()) != nil || f.turns.taken != 0 {
			t.Error("one that has left takes a turn")
		}
	})
}
