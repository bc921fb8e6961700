package xds

import (
	"math/bits"
	"slices"
	"testing"
	"time"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// More of rule 11: what a client rejects is held back alone.

// tastes runs a test in both protocols, with clients that name what they reject or do not, and that take the rest of a response
// that they reject or do not. All reject what bad holds: the content of versions.
func tastes(t *testing.T, test func(t *testing.T, c *client)) {
	for _, taste := range []struct {
		name           string
		names, lenient bool
	}{
		{"an Envoy or a gRPC client", true, true},
		{"names it and takes nothing", true, false},
		{"does not name it and takes the rest", false, true},
		{"neither", false, false},
	} {
		t.Run(taste.name, func(t *testing.T) {
			both(t, func(t *testing.T, c *client) {
				c.names, c.lenient = taste.names, taste.lenient
				c.rejectsContent("bad", "worse")
				test(t, c)
			})
		})
	}
}

func (c *client) rejectsContent(contents ...string) {
	c.rejects = func(t envoy.Type, n envoy.Name, version string) bool {
		return slices.ContainsFunc(contents, func(s string) bool { return newResource(t, string(n), s).Version == version })
	}
}

// keepsContent fails unless the client has this content of a name; "" means nothing.
func (c *client) keepsContent(t envoy.Type, n envoy.Name, content string) {
	c.t.Helper()
	want := ""
	if content != "" {
		want = newResource(t, string(n), content).Version
	}
	if got := c.types[t].held[n]; got != want {
		c.t.Fatalf("the client has %s %q in version %q, want %q, of content %q", t, n, got, want, content)
	}
}

func letters(n int) (out []envoy.Name) {
	for i := range n {
		out = append(out, envoy.Name([]byte{'a' + byte(i/26), 'a' + byte(i%26)}))
	}
	return out
}

func TestRule11OneThatIsRejectedTakesNoOtherWithIt(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		for typ := range envoy.Types {
			for _, n := range letters(100) {
				c.set(typ, string(n), "1")
			}
			c.set(typ, "bc", "bad")
			c.publish()
			c.all(typ)
			if n := c.settle(20); c.names && n > 2 {
				t.Errorf("%d responses, want 2", n)
			}
			for _, n := range letters(100) {
				c.keepsContent(typ, n, map[bool]string{false: "1"}[n == "bc"])
			}
			row := c.session.deliveries()[typ]
			if len(row.Held) != 1 || row.Held[0].Name != "bc" || row.Held[0].Last != "" || row.Rejected == nil || !slices.Equal(row.Rejected.Resources, []envoy.Name{"bc"}) {
				t.Errorf("delivery %+v, want bc held back", row)
			}
			// What comes and changes does so as ever, and does not have it.
			c.set(typ, "aa", "2")
			c.set(typ, "new", "1")
			c.publish()
			if n := c.settle(2); n != 1 {
				t.Errorf("%d responses to a change, want 1", n)
			}
			c.keepsContent(typ, "aa", "2")
			c.keepsContent(typ, "new", "1")
			c.set(typ, "bc", "2")
			c.publish()
			c.settle(1)
			c.keepsContent(typ, "bc", "2")
			if row := c.session.deliveries()[typ]; len(row.Held) != 0 || row.Rejected != nil {
				t.Errorf("delivery %+v, want nothing held back", row)
			}
		}
	})
}

func TestRule11WhatIsRejectedStaysAsItWasAccepted(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		for typ := range envoy.Types {
			c.set(typ, "a", "1")
			c.set(typ, "b", "1")
			c.publish()
			c.all(typ)
			c.settle(1)
			c.set(typ, "a", "bad")
			c.set(typ, "b", "2")
			c.publish()
			c.settle(3)
			c.keepsContent(typ, "a", "1")
			c.keepsContent(typ, "b", "2")
			c.set(typ, "a", "worse")
			c.publish()
			c.settle(1)
			c.keepsContent(typ, "a", "1")
			c.set(typ, "c", "1")
			c.remove(typ, "b")
			c.publish()
			c.settle(2)
			c.keepsContent(typ, "a", "1")
			if row := c.session.deliveries()[typ]; len(row.Held) != 1 || row.Held[0].Last != newResource(typ, "a", "1").Version {
				t.Errorf("delivery %+v, want a held at its first version", row)
			}
			c.set(typ, "a", "1") // it has that
			c.publish()
			c.settle(1)
			if row := c.session.deliveries()[typ]; len(row.Held) != 0 {
				t.Errorf("delivery %+v, want nothing held back", row)
			}
			c.remove(typ, "a")
			c.publish()
			c.now = c.now.Add(grace)
			c.settle(2)
			c.now = c.now.Add(grace)
			c.settle(2)
			if c.session.protocol == Delta || order[typ].full {
				c.keepsContent(typ, "a", "")
			}
		}
	})
}

func TestRule11WhatHasChangedSinceItWasRejectedGoesApart(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		c.set(rds, "a", "bad")
		c.set(rds, "b", "1")
		c.publish()
		c.subscribe(rds, "a", "b")
		c.settle(4)
		c.set(rds, "a", "worse")
		c.set(rds, "b", "2")
		c.publish()
		c.take(rds, "b")
		g := c.expect(rds, "a")
		if found := c.answer(g); found == nil || !slices.Equal(found.Resources, []envoy.Name{"a"}) {
			t.Errorf("found %+v, want a", found)
		}
		c.quiet()
	})
}

func TestRule11TheFaultIsFoundByHalves(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.rejectsContent("bad")
		names := letters(8)
		for _, n := range names {
			c.set(eds, string(n), "1")
			c.set(rds, string(n), "1")
		}
		c.set(eds, "ac", "bad")
		c.set(eds, "other", "1")
		c.publish()
		c.subscribe(rds, names...)
		c.settle(1)
		c.subscribe(eds, names...)
		var found []*Rejection
		step := func(names ...envoy.Name) {
			t.Helper()
			g := c.expect(eds, names...)
			c.quiet() // until that is answered
			if j := c.answer(g); j != nil {
				found = append(found, j)
			}
		}
		step(names...)
		step("aa", "ab", "ac", "ad")
		c.set(eds, "ah", "2") // has to wait, and what it was is not sent any more
		c.set(rds, "ah", "2") // does not: but routes go after the endpoints of their edition
		c.publish()
		step("aa", "ab")
		step("ac", "ad")
		step("ac")
		step("ad")
		step("ae", "af", "ag")
		step("ah")
		c.take(rds, "ah")
		c.quiet()
		if len(found) != 1 || !slices.Equal(found[0].Resources, []envoy.Name{"ac"}) || !slices.Equal(found[0].Services, []mesh.Key{serviceKey("ac")}) {
			t.Errorf("found %+v, want ac once", found)
		}
	})
}

func TestRule11ASearchEnds(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		const n = 200
		for _, name := range letters(n) {
			c.set(rds, string(name), "bad")
		}
		c.publish()
		c.rejectsContent("bad")
		c.all(rds)
		most := perFault*bits.Len(n) + 2
		c.settle(most)
		c.quiet()
		if row := c.session.deliveries()[0]; len(row.Held) != n || len(row.Rejected.Resources) != n {
			t.Errorf("%d are held back, and %d blamed; want all", len(row.Held), len(row.Rejected.Resources))
		}
		// Each change has it go on, until all are known.
		for i := 0; ; i++ {
			c.set(rds, "good", nonceOf(uint64(i)))
			c.publish()
			if c.settle(most) == 1 {
				break
			}
			if i == 10 {
				t.Fatal("it does not end")
			}
		}
		c.keepsContent(rds, "aa", "")
		c.set(rds, "aa", "1")
		c.publish()
		c.settle(1)
		c.keepsContent(rds, "aa", "1")
	})
}

func TestRule11WhatIsAskedForAnewIsTriedAnew(t *testing.T) {
	c := newClient(t, Delta)
	c.set(eds, "a", "1")
	c.set(eds, "b", "1")
	c.publish()
	c.subscribe(eds, "a", "b")
	c.nack(c.expect(eds, "a", "b"), "a: no")
	c.take(eds, "b")
	c.subscribe(eds, "a", "b")
	c.take(eds, "b")
	c.take(eds, "a")
	c.quiet()
}

// An edition that was sent before the client asked for a name has what it never got.
func TestRule11WhatWasAskedForJustNowIsNotKept(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		c.set(eds, "a", "1")
		c.publish()
		c.subscribe(eds, "a")
		c.settle(1)
		c.set(eds, "b", "1")
		c.set(eds, "new", "bad")
		c.publish()
		c.quiet()
		c.subscribe(eds, "b", "new")
		c.settle(4)
		c.keepsContent(eds, "b", "1")
		c.keepsContent(eds, "new", "")
		if row := c.session.deliveries()[0]; len(row.Held) != 1 || row.Held[0].Name != "new" || row.Held[0].Last != "" {
			t.Errorf("delivery %+v, want new held back, and no version of it at the client", row)
		}
	})
}

func TestRule11RemovalsOfARejectedResponseAreToldAgain(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		c.set(lds, "a", "1")
		c.set(lds, "b", "1")
		c.publish()
		c.all(lds)
		c.settle(1)
		c.remove(lds, "a")
		c.set(lds, "bad", "bad")
		c.publish()
		c.settle(2)
		c.has(lds, "b")
	})
}

// What the client had before it came is known only to it, and a list without it would take it away.
func TestRule11AListHasWhatAReturningClientRejects(t *testing.T) {
	c := newClient(t, SotW)
	c.names, c.lenient = true, true
	c.rejectsContent("bad", "worse")
	c.set(lds, "a", "1")
	c.set(lds, "b", "1")
	c.publish()
	c.all(lds)
	c.settle(1)
	c.reconnect() // to another meshd
	c.set(lds, "a", "bad")
	c.set(lds, "b", "2")
	c.publish()
	c.resume(lds)
	c.settle(2)
	c.keepsContent(lds, "a", "1")
	c.keepsContent(lds, "b", "2")
	c.set(lds, "b", "3")
	c.publish()
	c.settle(1)
	c.keepsContent(lds, "a", "1")
	c.keepsContent(lds, "b", "3")
	if row := c.session.deliveries()[0]; len(row.Held) != 1 || row.Held[0].Name != "a" {
		t.Errorf("delivery %+v, want a held back", row)
	}
	c.set(lds, "b", "worse")
	c.publish()
	c.settle(1)
	c.keepsContent(lds, "a", "1")
	c.keepsContent(lds, "b", "3")
	c.set(lds, "a", "2")
	c.set(lds, "b", "4")
	c.publish()
	c.settle(2)
	c.has(lds, "a", "b")
	if row := c.session.deliveries()[0]; len(row.Held) != 0 {
		t.Errorf("delivery %+v, want nothing held back", row)
	}
}

// A route may lead to a cluster that the client rejects. It goes on, since it may be one of many in its resource, but not before
// all was tried; calls by it fail until the cluster is there.
func TestRule18ARouteDoesNotWaitForAClusterThatIsRejected(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.publish()
		c.all(cds)
		c.settle(1)
		c.subscribe(eds, "a", "b", "new")
		c.settle(1)
		c.subscribe(rds, "a")
		c.settle(1)

		c.set(cds, "new", "bad")
		c.set(cds, "b", "1")
		c.set(eds, "new", "1")
		c.set(eds, "b", "1")
		c.set(rds, "a", "2 leads to both")
		c.publish()
		sawRoute := false
		for {
			g := c.next()
			if g == nil {
				break
			}
			sawRoute = sawRoute || g.Type == rds
			if g.Type == rds && c.types[cds].held["b"] == "" {
				t.Fatal("the route comes before a cluster that is good")
			}
			c.answer(g)
		}
		if !sawRoute {
			t.Fatal("the route never came")
		}
		c.keepsContent(eds, "new", "1") // its endpoints go on
		c.keepsContent(cds, "new", "")

		// The cluster is mended, and the route changes with it: first the cluster.
		c.set(cds, "new", "2")
		c.set(rds, "a", "3 leads to both")
		c.publish()
		for g := c.next(); g != nil; g = c.next() {
			if g.Type == rds && c.types[cds].held["new"] == "" {
				t.Fatal("the route comes before the cluster that was mended")
			}
			c.answer(g)
		}
		c.keepsContent(rds, "a", "3 leads to both")
	})
}

func TestRule18WhatIsRejectedKeepsItsOwnClustersAlone(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		c.service("a", "1")
		c.service("b", "1")
		c.publish()
		c.all(cds)
		c.settle(1)
		c.all(lds)
		c.settle(1)
		c.set(lds, "a", "bad")
		c.remove(cds, "a")
		c.withdraw("b")
		c.publish()
		c.settle(4)
		c.now = c.now.Add(grace)
		c.settle(1)
		c.hasOnly(cds, "a") // the listener that it has leads to it
		c.now = c.now.Add(grace)
		c.quiet()
		c.set(lds, "a", "2")
		c.publish()
		c.settle(1)
		c.quiet()
		c.now = c.now.Add(grace)
		c.settle(1)
		c.hasOnly(cds)
	})
}

// hasOnly fails unless the client has these and no others, in whatever version.
func (c *client) hasOnly(t envoy.Type, names ...envoy.Name) {
	c.t.Helper()
	var got []envoy.Name
	for n := range c.types[t].held {
		got = append(got, n)
	}
	slices.Sort(got)
	if !slices.Equal(got, names) {
		c.t.Fatalf("the client has %s %q, want %q", t, got, names)
	}
}

// An Envoy that rejects the endpoints of a cluster which it has made anew goes on without any, and so must hear again which it had.
func TestRule17EndpointsThatAreRejectedAreToldAgainAsTheyWere(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		for _, n := range []string{"a", "b", "c"} {
			c.set(cds, n, "1")
			c.set(eds, n, "1")
		}
		c.publish()
		c.all(cds)
		c.settle(1)
		c.subscribe(eds, "a", "b", "c")
		c.settle(1)
		for _, n := range []string{"a", "b"} { // and of c only the endpoints
			c.set(cds, n, "2")
			c.set(eds, n, "2")
		}
		c.set(eds, "b", "bad")
		c.set(eds, "c", "2")
		c.publish()
		c.answer(c.next()) // the clusters
		c.answer(c.expect(eds, "a", "b", "c"))
		told := []envoy.Name{"a", "b"}
		if c.names { // what it does not name it took, as Envoys and gRPC clients do
			told = told[1:]
		}
		again := c.expect(eds, told...)
		for _, n := range again.Resources {
			if again.versions[n] != newResource(eds, string(n), "1").Version {
				t.Errorf("%s is told again in version %s, want that which was accepted", n, again.versions[n])
			}
		}
		c.answer(again)
		c.settle(4)
		c.keepsContent(eds, "a", "2")
		c.keepsContent(eds, "b", "1")
		c.keepsContent(eds, "c", "2")
		if row := c.session.deliveries()[envoy.Endpoints]; len(row.Held) != 1 || row.Held[0].Name != "b" || row.Rejected == nil {
			t.Errorf("delivery %+v, want b held back", row)
		}
		// Of a cluster that stays as it is nothing need be told again.
		c.set(eds, "b", "worse")
		c.publish()
		c.answer(c.expect(eds, "b"))
		c.quiet()
		c.set(cds, "b", "3")
		c.set(eds, "b", "bad")
		c.publish()
		c.settle(3)
		c.keepsContent(eds, "b", "1")
		c.set(eds, "b", "2")
		c.publish()
		c.settle(1)
		c.keepsContent(eds, "b", "2")
		if row := c.session.deliveries()[envoy.Endpoints]; len(row.Held) != 0 || row.Rejected != nil {
			t.Errorf("delivery %+v, want nothing held back", row)
		}
	})
}

// What crosses a list is seen by the client in another order: it drops a name, wants it again, and then gets the list that has it.
func TestRule10AListInFlightGivesBackWhatWasDropped(t *testing.T) {
	for _, leaving := range []string{"doomed when it was sent", "doomed since"} {
		t.Run(leaving, func(t *testing.T) {
			c := newClient(t, SotW)
			for _, n := range []envoy.Name{"a", "b"} {
				c.set(cds, string(n), "1")
			}
			c.publish()
			c.subscribe(cds, "a", "b")
			c.take(cds, "a", "b")
			c.set(cds, "b", "2")
			if leaving == "doomed when it was sent" {
				c.remove(cds, "a")
			}
			c.publish()
			g := c.expect(cds, "a", "b")
			c.unsubscribe(cds, "a")
			c.remove(cds, "a")
			c.publish()
			c.quiet()
			c.subscribe(cds, "a")
			c.ack(g)
			c.quiet() // it has it, and may have something that leads to it
			c.now = c.now.Add(grace)
			c.take(cds, "b")
			c.has(cds, "b")
			c.quiet()
		})
	}
}

// lastOf fails unless the client is thought to keep this content of what it rejects, and does.
func (c *client) lastOf(t envoy.Type, n envoy.Name, content string) {
	c.t.Helper()
	c.keepsContent(t, n, content)
	want := ""
	if content != "" {
		want = newResource(t, string(n), content).Version
	}
	for _, row := range c.session.deliveries() {
		if row.Type == t && len(row.Held) == 1 && row.Held[0].Name == n && row.Held[0].Last == want {
			return
		}
	}
	c.t.Fatalf("deliveries %+v, want %s %q held back, and %q kept", c.session.deliveries(), t, n, want)
}

func TestRule11AClientHasNothingOfANameThatIsNew(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.names, c.lenient = true, true
		c.rejectsContent("bad")
		for typ := range envoy.Types {
			c.set(typ, "a", "1")
			c.set(typ, "b", "1")
			c.set(typ, "c", "1")
			c.publish()
			c.subscribe(typ, "a")
			c.settle(1)
			c.set(typ, "b", "bad")
			c.publish()
			c.subscribe(typ, "b") // there was another version of it, which the client was never sent
			c.settle(2)
			c.lastOf(typ, "b", "")
			c.remove(typ, "b") // and so it need not wait
			c.publish()
			c.settle(1)

			c.set(typ, "c", "2")
			c.publish()
			c.subscribe(typ, "c")
			c.settle(1)
			c.unsubscribe(typ, "c")
			c.set(typ, "c", "bad")
			c.publish()
			c.quiet()
			c.subscribe(typ, "c")
			c.settle(2)
			c.lastOf(typ, "c", "")
		}
	})
}

func TestRule11AWildcardThatIsNarrowedOrWidenedKeepsWhatItHas(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.names, c.lenient = true, true
		c.rejectsContent("bad")
		for typ := range envoy.Types {
			c.set(typ, "a", "1")
			c.set(typ, "b", "1")
			c.publish()
			c.all(typ)
			c.settle(1)
			c.set(typ, "a", "bad")
			c.subscribe(typ, "a", "b")
			c.publish()
			c.settle(4)
			c.lastOf(typ, "a", "1")
		}
	})
	both(t, func(t *testing.T, c *client) {
		c.names, c.lenient = true, true
		c.rejectsContent("bad")
		for typ := range envoy.Types {
			c.set(typ, "a", "1")
			c.set(typ, "b", "1")
			c.publish()
			c.subscribe(typ, "a")
			c.settle(1)
			c.set(typ, "a", "bad")
			c.subscribe(typ, "*")
			c.publish()
			c.settle(4)
			c.lastOf(typ, "a", "1")
			c.keepsContent(typ, "b", "1")
		}
	})
}

// A name that was dropped and asked for again while a response was on its way, which the client then rejects.
func TestRule11WhatWasDroppedIsNotKept(t *testing.T) {
	c := newClient(t, Delta)
	c.names, c.lenient = true, true
	c.rejectsContent("bad")
	for typ := range envoy.Types {
		c.set(typ, "a", "1")
		c.publish()
		c.subscribe(typ, "a")
		c.settle(1)
		c.set(typ, "a", "bad")
		c.publish()
		g := c.expect(typ, "a")
		c.unsubscribe(typ, "a")
		c.subscribe(typ, "a")
		c.answer(g)
		c.settle(2)
		c.lastOf(typ, "a", "")
	}
}

// tried is the next response, which must have just this as something new.
func (c *client) tried(t envoy.Type, n envoy.Name) *got {
	c.t.Helper()
	g := c.next()
	switch {
	case g == nil:
		c.t.Fatalf("nothing is sent, want %s %q", t, n)
	case g.Type != t || !slices.Contains(g.Resources, n) || len(g.Resources) > 1 && !(c.session.protocol == SotW && order[t].full):
		c.t.Fatalf("got %s %q, want %s %q", g.Type, g.Resources, t, n)
	}
	if f := c.session.tracks[t].flight; len(f.resources) != 1 {
		c.t.Fatalf("%d resources are new, want one", len(f.resources))
	}
	return g
}

// waits fails unless nothing is sent before some time, of which the session has to be told.
func (c *client) waits(d time.Duration) {
	c.t.Helper()
	if at := c.session.alarm(c.now); !at.Equal(c.now.Add(d)) {
		c.t.Fatalf("alarm at %v, want it in %v, at %v", at, d, c.now.Add(d))
	}
	c.now = c.now.Add(d - time.Second)
	c.quiet()
	c.now = c.now.Add(time.Second)
}

func (c *client) holds(t envoy.Type, n int) {
	c.t.Helper()
	for _, row := range c.session.deliveries() {
		if row.Type == t && (len(row.Held) != n || (row.Rejected != nil) != (n > 0)) {
			c.t.Fatalf("delivery %+v, want %d held back", row, n)
		}
	}
	refused := 0
	for _, h := range c.session.holdings() {
		if h.typ == t && h.standing == isRefused {
			refused++
		}
	}
	if refused != n {
		c.t.Fatalf("%d are refused, want %d", refused, n)
	}
}

func TestRule11WhatIsRejectedIsTriedAgainAfterATime(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		for typ := range envoy.Types {
			c.rejectsContent("bad")
			c.set(typ, "a", "1")
			c.set(typ, "b", "1")
			c.publish()
			c.all(typ)
			c.settle(1)
			c.set(typ, "a", "bad")
			c.publish()
			c.settle(1)
			for i, minutes := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
				c.waits(minutes * time.Minute)
				g := c.tried(typ, "a")
				c.holds(typ, 1) // still, until it is taken
				c.set(typ, "b", "while "+nonceOf(uint64(i)))
				c.publish()
				if found := c.answer(g); found != nil {
					t.Errorf("found %+v, which is not new", found)
				}
				c.take(typ, map[bool][]envoy.Name{true: {"a", "b"}, false: {"b"}}[c.session.protocol == SotW && order[typ].full]...)
				c.quiet()
				c.holds(typ, 1)
				c.keepsContent(typ, "a", "1")
			}
			c.rejects = nil // its cause is gone
			c.waits(time.Hour)
			c.answer(c.tried(typ, "a"))
			c.keepsContent(typ, "a", "bad")
			c.holds(typ, 0)
			c.quiet()
			if at := c.session.alarm(c.now); !at.IsZero() {
				t.Errorf("alarm at %v, want none", at)
			}
		}
	})
}

func TestRule11WhatChangesIsTriedAtOnceAndNotAsItWas(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		for typ := range envoy.Types {
			c.set(typ, "a", "bad")
			c.publish()
			c.subscribe(typ, "a")
			c.settle(1)
			c.waits(retry)
			c.answer(c.tried(typ, "a"))
			c.waits(2 * retry)
			c.set(typ, "a", "worse")
			c.publish()
			g := c.tried(typ, "a")
			if g.versions["a"] != newResource(typ, "a", "worse").Version {
				t.Fatal("it is tried as it was")
			}
			if found := c.answer(g); found == nil {
				t.Error("nothing is found, though it is another version that is rejected")
			}
			c.waits(retry)
			g = c.tried(typ, "a")
			c.set(typ, "a", "good") // while the one before is tried
			c.publish()
			c.answer(g)
			c.settle(1)
			c.keepsContent(typ, "a", "good")
			c.holds(typ, 0)
			c.quiet()
		}
	})
}

func TestRule11ManyAreTriedAgainOneByOne(t *testing.T) {
	tastes(t, func(t *testing.T, c *client) {
		for _, n := range letters(5) {
			c.set(rds, string(n), "bad")
		}
		c.publish()
		c.subscribe(rds, letters(5)...)
		c.settle(100)
		c.now = c.now.Add(retry)
		for _, n := range letters(4) {
			c.answer(c.tried(rds, n))
			c.holds(rds, 5)
		}
		c.unsubscribe(rds, "ae")
		c.quiet()
		c.holds(rds, 4)
		c.rejects = nil
		c.now = c.now.Add(2 * retry)
		c.settle(4)
		c.holds(rds, 0)
		c.has(rds, letters(4)...)
	})
}

func TestRule11NoMessageIsToldTwice(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		c.set(lds, "a", "1")
		c.publish()
		c.all(lds)
		for i, tt := range []struct {
			message string
			news    bool
		}{{"a: port 80 is taken", true}, {"a: port 80 is taken", false}, {"a: no memory", true}, {"a: no memory", false}} {
			if found := c.nack(c.tried(lds, "a"), tt.message); (found != nil) != tt.news {
				t.Errorf("rejection %d: found %+v, want news %t", i, found, tt.news)
			}
			c.now = c.now.Add(longestWait)
		}
		if row := c.session.deliveries()[0]; row.Rejected == nil || row.Held[0].Message != "a: no memory" {
			t.Errorf("delivery %+v", row)
		}
	})
}

// A rejection of what is not there any more, or not wanted, is over.
func TestRule11ARejectionEndsWithWhatWasRejected(t *testing.T) {
	for _, how := range []string{"withdrawn", "not wanted"} {
		t.Run(how, func(t *testing.T) {
			both(t, func(t *testing.T, c *client) {
				for typ := range envoy.Types {
					c.set(typ, "a", "bad")
					c.publish()
					c.rejectsContent("bad")
					c.subscribe(typ, "a")
					c.settle(1)
					c.holds(typ, 1)
					if how == "withdrawn" {
						c.remove(typ, "a")
						c.publish()
					} else {
						c.unsubscribe(typ, "a")
					}
					c.settle(1)
					c.holds(typ, 0)
				}
			})
		})
	}
}

func TestRule11OnlyWhatWasRejectedBeforeIsKnown(t *testing.T) {
	both(t, func(t *testing.T, c *client) {
		reject := func(g *got) verdict {
			c.types[g.Type].nonce = g.Nonce
			r, err := c.reader.read(marshal(t, c.message(g.Type, nil, nil, g.Nonce, "a: no")))
			if err != nil {
				t.Fatal(err)
			}
			return c.session.request(g.Type, r, c.now)
		}
		c.set(lds, "a", "1")
		c.set(lds, "b", "1")
		c.publish()
		c.all(lds)
		c.settle(1)
		c.remove(lds, "b") // a response without anything new
		c.publish()
		if v := reject(c.next()); !v.rejected || v.known {
			t.Errorf("verdict %+v, want the rejection of a removal to be news", v)
		}
		c.settle(1)
		c.set(lds, "a", "2")
		c.publish()
		if v := reject(c.tried(lds, "a")); !v.rejected || v.known {
			t.Errorf("verdict %+v, want it to be news", v)
		}
		c.settle(1) // the removal is told again
		c.now = c.now.Add(retry)
		if v := reject(c.tried(lds, "a")); !v.rejected || !v.known {
			t.Errorf("verdict %+v, want it to be known", v)
		}
		c.set(lds, "a", "3")
		c.publish()
		if v := reject(c.tried(lds, "a")); !v.rejected || v.known {
			t.Errorf("verdict %+v, want it to be news", v)
		}
	})
}

func TestRule17cWhatIsAskedForAgainIsKept(t *testing.T) {
	c := newClient(t, SotW)
	c.names, c.lenient = true, true
	c.rejectsContent("bad")
	c.set(eds, "a", "1")
	c.publish()
	c.subscribe(eds, "a")
	c.settle(1)
	c.send(eds, nil, nil, "") // an Envoy that made the cluster anew
	c.set(eds, "a", "bad")
	c.publish()
	c.settle(1)
	c.lastOf(eds, "a", "1")
}
