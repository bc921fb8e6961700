package xds

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// A sender that waits is woken when there is something to send, and not to find that there is nothing.
func TestASenderIsWokenByWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, nodes: map[string]*member{}}
		f.Server = New(hclog.NewNullLogger(), Options{Translate: f.translate})
		f.service("a", "1")
		f.publish()
		m := f.connect("node")
		m.session.grace = time.Second
		f.everyone(rds, "a", "1")
		woken := func() bool { return len(m.wake) > 0 }
		acknowledge := func(g *got) {
			ack := askDelta(g.Type)
			ack.ResponseNonce = g.Nonce
			m.say(t, g.Type, ack)
		}
		<-m.wake // for the last of these

		f.set(eds, "a", "2")
		f.Apply(f.view())
		if !woken() {
			t.Error("a change does not wake the sender")
		}
		<-m.wake
		g := f.decode(m, m.next(time.Now()))
		if m.next(time.Now()) != nil {
			t.Error("something is sent beside the change")
		}
		acknowledge(g)
		if woken() {
			t.Error("an acknowledgement wakes the sender")
		}
		if m.session.tracks[rds].sent != m.newest() {
			t.Error("after the acknowledgement nobody has looked")
		}

		m.say(t, cds, askDelta(cds, "a"))
		m.say(t, lds, askDelta(lds, "a"))
		if g = f.decode(m, m.next(time.Now())); g.Type != cds {
			t.Errorf("the first of two answers that wait is of %s, want %s", g.Type, cds)
		}
		<-m.wake
		acknowledge(g)
		f.exchange()

		f.withdraw("a")
		f.publish()
		<-m.wake
		f.wait(time.Second - time.Nanosecond)
		f.everyone(lds, "a", "")
		f.everyone(rds, "a", "1")
		if woken() {
			t.Error("the sender is woken before the grace is over")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !woken() {
			t.Error("the end of the grace does not wake the sender")
		}
		f.exchange()
		f.everyone(rds, "a", "")
	})
}
