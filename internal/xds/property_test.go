package xds

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/envoy"
)

// Whatever a client does, and however requests, responses and changes cross each other: when all has come to rest, the
// client has what it wants of the newest snapshot, and nothing else; but of what it rejects it has what it had before, or
// nothing. That is so for clients that name what they reject and those that do not, and for those that take the rest of a
// response that they reject and those that do not.
func TestAClientEndsWithTheSnapshot(t *testing.T) {
	for p := range protocols {
		t.Run(p.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := newClient(t, p)
				c.queues = true
				c.names, c.lenient = rapid.Bool().Draw(t, "names"), rapid.Bool().Draw(t, "lenient")
				bad := map[string]bool{} // versions
				c.rejects = func(_ envoy.Type, _ envoy.Name, version string) bool { return bad[version] }
				// What the client had ever and has not dropped since, and what it may have lost for another reason.
				var had, lost [envoy.Types]names

				anyType := rapid.Custom(func(t *rapid.T) envoy.Type { return envoy.Type(rapid.IntRange(0, 3).Draw(t, "type")) })
				anyName := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
				wanted := rapid.SampledFrom([]envoy.Name{"a", "b", "c", "d", "e", everything})
				content := rapid.SampledFrom([]string{"1", "2", "bad", "worse"})
				set := func(typ envoy.Type, n, content string) {
					c.set(typ, n, content)
					if content == "bad" || content == "worse" {
						bad[newResource(typ, n, content).Version] = true
					}
				}

				// drops is for what may have the client drop something itself.
				drops := func(typ envoy.Type, do func()) {
					old := maps.Clone(c.types[typ].held)
					do()
					for n := range old {
						if c.types[typ].held[n] == "" {
							delete(had[typ], n)
						}
					}
				}
				receive := func(mayRefuse bool) {
					if len(c.inbox) == 0 {
						return
					}
					g := c.inbox[0]
					c.inbox = c.inbox[1:]
					if mayRefuse && rapid.IntRange(0, 4).Draw(t, "refuse") == 0 {
						c.nack(g, "no")
						return
					}
					rejected := slices.ContainsFunc(g.Resources, func(n envoy.Name) bool { return bad[g.versions[n]] })
					c.answer(g)
					for n := range c.types[g.Type].held {
						if c.names || !rejected { // else nobody can tell what it took of the rest
							had[g.Type].add(n)
						}
					}
				}
				answer := func() {
					if g := c.next(); g != nil {
						c.inbox = append(c.inbox, g)
						for _, other := range c.inbox[:len(c.inbox)-1] {
							if other.Type == g.Type {
								t.Fatalf("two responses of %s in flight", g.Type)
							}
						}
					}
				}
				take := func() {
					if len(c.outbox) > 0 {
						c.outbox[0]()
						c.outbox = c.outbox[1:]
					}
				}
				rest := func() {
					for range 100 {
						for range 20 {
							take()
							answer()
							receive(false)
						}
						if len(c.inbox)+len(c.outbox) == 0 && !c.leaving() {
							if g := c.next(); g == nil {
								return
							} else {
								c.inbox = append(c.inbox, g)
							}
						}
						c.now = c.now.Add(grace)
					}
					t.Fatalf("it does not come to rest")
				}

				t.Repeat(map[string]func(*rapid.T){
					"change": func(t *rapid.T) {
						typ, n := anyType.Draw(t, "type"), anyName.Draw(t, "name")
						if rapid.IntRange(0, 2).Draw(t, "how") == 0 {
							c.remove(typ, n)
							lost[typ].add(envoy.Name(n))
						} else {
							set(typ, n, content.Draw(t, "content"))
						}
						c.publish()
					},
					"subscribe": func(t *rapid.T) {
						typ := anyType.Draw(t, "type")
						if m := &c.types[typ]; !m.asked && m.version == "" && rapid.Bool().Draw(t, "legacy") {
							c.all(typ)
							return
						}
						drops(typ, func() { // in the state of the world naming something may end a wildcard
							c.subscribe(typ, rapid.SliceOfNDistinct(wanted, 1, 3, rapid.ID).Draw(t, "names")...)
						})
					},
					"unsubscribe": func(t *rapid.T) {
						typ := anyType.Draw(t, "type")
						if !c.types[typ].asked || c.types[typ].legacy && p == SotW {
							return // there it cannot be said
						}
						drops(typ, func() { c.unsubscribe(typ, rapid.SliceOfNDistinct(wanted, 1, 3, rapid.ID).Draw(t, "names")...) })
					},
					"drop, and ask again": func(t *rapid.T) { // at once, so that both cross what is on its way
						typ := anyType.Draw(t, "type")
						if !c.types[typ].asked || c.types[typ].legacy {
							return
						}
						names := rapid.SliceOfNDistinct(wanted, 1, 3, rapid.ID).Draw(t, "names")
						drops(typ, func() { c.unsubscribe(typ, names...) })
						if rapid.Bool().Draw(t, "now") {
							receive(false)
						}
						drops(typ, func() { c.subscribe(typ, names...) })
					},
					"server takes a request": func(*rapid.T) { take() },
					"server answers":         func(*rapid.T) { answer() },
					"client receives":        func(*rapid.T) { receive(true) },
					"time":                   func(*rapid.T) { c.now = c.now.Add(grace / 2) },
					"reconnect": func(t *rapid.T) {
						c.reconnect()
						for i := range c.types {
							// What others than Envoys and gRPC clients may lose, they lose by starting anew; and what was taken of a
							// response that was rejected has no version by which it could be told of.
							if p == SotW && (c.types[i].version == "" || order[i].full && (!c.names || !c.lenient)) {
								c.types[i].held, c.types[i].version, had[i] = map[envoy.Name]string{}, "", nil
							}
						}
						for _, i := range rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, "order") {
							if m := &c.types[i]; m.wildcard || len(m.names) > 0 {
								c.resume(envoy.Type(i))
							}
						}
					},
				})

				c.publish()
				rest()
				heal := func() { // what is rejected is tried again
					for range 2 {
						c.now = c.now.Add(longestWait)
						rest()
					}
				}
				heal()
				for typ := range envoy.Types {
					for n, h := range c.session.tracks[typ].held {
						untold := p == SotW && !order[typ].full && lost[typ].has(n) // when it was gone
						if held := c.types[typ].held[n]; !untold && !h.may(held) {
							t.Fatalf("the client has %s %q in version %q, and what it rejects is held back at %q", typ, n, held, h.status().Last)
						}
					}
					want := map[envoy.Name]string{}
					for n, r := range c.resources[typ].All() {
						held := c.types[typ].held[n]
						switch {
						case !c.types[typ].wants(n):
						case !bad[r.Version]:
							want[n] = r.Version
						case held != "":
							want[n] = held
						case had[typ].has(n) && !lost[typ].has(n):
							t.Fatalf("the client has lost %s %q, of which it rejects %s", typ, n, r.Version)
						}
					}
					got := maps.Clone(c.types[typ].held)
					if p == SotW && !order[typ].full || c.keeps(typ) {
						for n := range got { // cannot be told
							if _, ok := c.resources[typ].Get(n); !ok {
								delete(got, n)
							}
						}
					}
					if !maps.Equal(got, want) {
						t.Fatalf("the client has %s %v, want %v (subscription %+v)", typ, got, want, c.types[typ])
					}
				}

				c.rejects = nil
				heal()
				for typ := range envoy.Types {
					for n, r := range c.resources[typ].All() {
						if c.types[typ].wants(n) && c.types[typ].held[n] != r.Version {
							t.Fatalf("the client has %s %q in version %q, though it takes %q by now", typ, n, c.types[typ].held[n], r.Version)
						}
					}
					for n := range c.session.tracks[typ].held {
						t.Fatalf("%s %q is held back still", typ, n)
					}
				}
			})
		})
	}
}

// leaving tells whether a removal waits for a time that is to come.
func (c *client) leaving() bool {
	for t := range c.session.tracks {
		for _, d := range c.session.tracks[t].doomed {
			if d.due.After(c.now) {
				return true
			}
		}
	}
	return false
}

// keeps tells whether removals of a type may have to wait: what the client has of another, in place of what it rejects, may
// lead to them.
func (c *client) keeps(t envoy.Type) bool {
	return slices.ContainsFunc(order[t].before, func(p envoy.Type) bool { return c.session.tracks[p].lags() })
}

// may tells whether the client may have a version of what it rejects, "" for none.
func (h *hold) may(version string) bool {
	is := func(r *envoy.Resource) bool { return r.Version == version }
	switch {
	case len(h.maybe) > 0 && (len(h.maybe) > maybes || slices.ContainsFunc(h.maybe, is)), h.has && h.last == nil:
		return true
	case h.last != nil:
		return is(h.last)
	default:
		return version == ""
	}
}

// An Envoy, which asks for the endpoints of the clusters that it gets and for the routes of its listeners, never has a
// listener or route that leads to a cluster that it does not have or that is still warming, through whatever changes of
// the mesh, though it may reject some listeners and routes and keep the ones before; and no cluster is left warming.
func TestAnEnvoyIsNeverWithoutTheClustersOfItsRoutes(t *testing.T) {
	for p := range protocols {
		t.Run(p.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := newClient(t, p)
				c.queues = true
				c.names, c.lenient = true, true
				leadsTo := map[string]string{} // from a listener's or route's version to a cluster
				bad := map[string]bool{}       // versions
				c.rejects = func(_ envoy.Type, _ envoy.Name, version string) bool { return bad[version] }
				warming := map[envoy.Name]bool{}

				clusters := []string{"a", "b", "c", "d"}
				routes := []string{"r", "s"}
				versions := map[string]int{}
				cluster := func(n, endpoints string) { // as the translation does: the cluster's version is part of its endpoints'
					v := nonceOf(uint64(versions[n]))
					c.set(cds, n, v)
					c.set(eds, n, v+"/"+endpoints)
				}
				route := func(n, to string) {
					for _, typ := range []envoy.Type{lds, rds} {
						cluster := strings.TrimSuffix(to, " bad")
						c.set(typ, n, to, serviceKey(cluster))
						r, _ := c.resources[typ].Get(envoy.Name(n))
						leadsTo[r.Version], bad[r.Version] = cluster, cluster != to
					}
				}
				for _, n := range clusters {
					cluster(n, "1")
				}
				for _, n := range routes {
					route(n, "a")
				}
				c.publish()

				blind := false // a list of the state of the world after a reconnect cannot spare what only the client knows
				check := func() {
					if blind {
						return
					}
					for _, typ := range []envoy.Type{lds, rds} {
						for n, v := range c.types[typ].held {
							to := envoy.Name(leadsTo[v])
							if c.types[cds].held[to] == "" || warming[to] {
								t.Fatalf("%s %q leads to %q; the client has %v, of which are warming %v", typ, n, to, c.types[cds].held, warming)
							}
						}
					}
				}
				receive := func() {
					if len(c.inbox) == 0 {
						return
					}
					g := c.inbox[0]
					c.inbox = c.inbox[1:]
					old := maps.Clone(c.types[g.Type].held)
					rejected := c.taste(g)
					held := c.types[g.Type].held
					switch g.Type {
					case cds:
						var come, gone []envoy.Name
						for n, v := range held {
							switch {
							case old[n] == "":
								come = append(come, n)
								warming[n] = true
							case old[n] != v && v != "doomed":
								// The former one serves while the new one warms; it must be sent its endpoints.
								warming[n] = len(c.types[lds].held) == 0
								c.types[eds].held[n] = "before " + v
							}
						}
						for n := range old {
							if held[n] == "" {
								gone = append(gone, n)
								delete(warming, n)
							}
						}
						if len(gone) > 0 {
							c.unsubscribe(eds, gone...)
						}
						if len(come) > 0 {
							slices.Sort(come)
							c.subscribe(eds, come...)
						}
						if !c.types[lds].asked {
							c.all(lds)
						}
					case eds:
						for _, n := range g.Resources {
							delete(warming, n)
						}
					case lds:
						var come []envoy.Name
						for n := range held {
							if !c.types[rds].names[n] {
								come = append(come, n)
							}
						}
						if len(come) > 0 {
							slices.Sort(come)
							c.subscribe(rds, come...)
						}
					}
					if m := &c.types[g.Type]; len(rejected) > 0 {
						c.nack(g, c.complaint(rejected))
						if p == SotW {
							m.version = "part of " + g.Version // it keeps its version, which is a lie until it acknowledges the rest
						}
					} else {
						m.version, m.nonce = g.Version, g.Nonce
						c.send(g.Type, nil, nil, g.Nonce)
					}
					check()
				}
				answer := func() {
					if g := c.next(); g != nil {
						c.inbox = append(c.inbox, g)
					}
				}
				take := func() {
					if len(c.outbox) > 0 {
						c.outbox[0]()
						c.outbox = c.outbox[1:]
					}
				}
				rest := func() {
					for range 300 {
						take()
						answer()
						receive()
						if c.leaving() {
							c.now = c.session.alarm(c.now)
						}
					}
					blind = blind && c.keeps(cds)
				}

				c.all(cds)
				t.Repeat(map[string]func(*rapid.T){
					"endpoints": func(t *rapid.T) {
						n := rapid.SampledFrom(clusters).Draw(t, "name")
						if _, ok := c.resources[cds].Get(envoy.Name(n)); ok {
							cluster(n, rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "endpoints"))
							c.publish()
						}
					},
					"a cluster comes or changes": func(t *rapid.T) {
						n := rapid.SampledFrom(clusters).Draw(t, "name")
						versions[n] = rapid.IntRange(0, 2).Draw(t, "version") // it may be again what it was
						cluster(n, "1")
						c.publish()
					},
					"a route moves": func(t *rapid.T) {
						to := rapid.SampledFrom(clusters).Draw(t, "to")
						if _, ok := c.resources[cds].Get(envoy.Name(to)); ok {
							route(rapid.SampledFrom(routes).Draw(t, "route"), to+rapid.SampledFrom([]string{"", "", " bad"}).Draw(t, "quality"))
							c.publish()
						}
					},
					"everything moves off a cluster, which goes": func(t *rapid.T) {
						n := rapid.SampledFrom(clusters).Draw(t, "name")
						var to string
						for other := range c.resources[cds].All() {
							if string(other) != n {
								to = string(other)
							}
						}
						if to == "" {
							return
						}
						for _, r := range routes {
							if res, ok := c.resources[lds].Get(envoy.Name(r)); ok && leadsTo[res.Version] == n {
								route(r, to)
							}
						}
						c.remove(cds, n)
						c.remove(eds, n)
						c.publish()
					},
					"server takes a request": func(*rapid.T) { take() },
					"server answers":         func(*rapid.T) { answer() },
					"client receives":        func(*rapid.T) { receive() },
					"time":                   func(*rapid.T) { c.now = c.now.Add(grace) },
					"much time":              func(*rapid.T) { c.now = c.now.Add(longestWait) }, // what is rejected is tried again
					"all settles":            func(*rapid.T) { rest() },
					"reconnect": func(t *rapid.T) {
						blind = p == SotW
						c.reconnect()
						for _, i := range []envoy.Type{cds, eds, lds, rds} {
							if m := &c.types[i]; m.wildcard || len(m.names) > 0 {
								c.resume(i)
							}
						}
					},
				})
				rest()
				for n := range warming { // of what is not there any more, and is kept for what leads to it, no endpoints can be sent
					if _, there := c.resources[cds].Get(n); there {
						t.Fatalf("left warming: %v", warming)
					}
				}
				for typ := range envoy.Types {
					want := map[envoy.Name]string{}
					got := maps.Clone(c.types[typ].held)
					for n, r := range c.resources[typ].All() {
						want[n] = r.Version
						if bad[r.Version] {
							delete(got, n)
							delete(want, n)
						}
					}
					if c.keeps(typ) {
						maps.DeleteFunc(got, func(n envoy.Name, _ string) bool { return want[n] == "" })
					}
					if !maps.Equal(got, want) {
						t.Fatalf("the client has %s %v, want %v", typ, got, want)
					}
				}
			})
		})
	}
}
