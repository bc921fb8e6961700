package xds

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// rollout is a fleet and what must be true of its canaries, told by nothing but the views, the time, and what the nodes said.
type rollout struct {
	*fleet
	views map[uint64]*rolled // by generation
	last  uint64

	// How it stood when it was last looked at.
	trying, rest uint64 // 0: none; and what the rest has
	since        time.Time
	failed       bool // a canary has rejected something new, or gone
	may          bool // a canary has rejected again what it had rejected
	firsts       map[*member]bool
	refused      map[*member]map[string]bool // versions
	used         map[*member]names           // routes
	leadsTo      map[string]envoy.Name       // from a listener's or route's version to a cluster
}

// rolled is what a view comes to.
type rolled struct {
	resources [envoy.Types]envoy.Resources
	digests   [envoy.Types]mesh.Digest
	versions  [envoy.Types]map[envoy.Name]string
}

// same tells whether two views differ in nothing but endpoints.
func (v *rolled) same(o *rolled) bool {
	for t := range envoy.Types {
		if t != eds && !maps.Equal(v.versions[t], o.versions[t]) {
			return false
		}
	}
	return true
}

// publish applies the world as it is.
func (r *rollout) publish() {
	r.last++
	v := &rolled{resources: r.resources, digests: r.world.versions}
	for t := range v.versions {
		v.versions[t] = map[envoy.Name]string{}
		for n, res := range r.resources[t].All() {
			v.versions[t][n] = res.Version
		}
	}
	r.views[r.last] = v
	view := r.view()
	view.Generation = r.last
	alone := len(r.nodes) == 0
	r.Apply(view)
	synctest.Wait()
	r.observe(alone)
	r.exchange()
	r.check()
}

// observe looks how the roll-out went on since it was last looked at. With nobody there, a change needs no trial.
func (r *rollout) observe(alone bool) {
	st := r.Canary()
	rest := st.Rest
	if st.Trying == 0 {
		rest = r.last
	}
	if was, is := r.views[r.rest], r.views[rest]; was != nil && !was.same(is) && !alone {
		switch {
		case r.trying == 0 || !r.views[r.trying].same(is):
			r.t.Fatalf("the rest went from generation %d to %d; %d was tried", r.rest, rest, r.trying)
		case r.failed:
			r.t.Fatalf("the rest went from generation %d to %d, which has failed", r.rest, rest)
		case time.Since(r.since) < canaryTime:
			r.t.Fatalf("the rest went from generation %d to %d, which was tried for %v", r.rest, rest, time.Since(r.since))
		}
	}
	if st.Trying == r.trying && st.Since.Equal(r.since) {
		r.rest = rest
		return
	}
	if was := r.views[r.trying]; st.Trying != 0 && was != nil && r.failed && was.same(r.views[st.Trying]) {
		r.t.Fatalf("generation %d is tried, which is what failed as %d", st.Trying, r.trying)
	}
	r.trying, r.rest, r.since, r.failed, r.may, r.firsts = st.Trying, rest, st.Since, false, false, map[*member]bool{}
	if st.Trying == 0 {
		return
	}
	of := map[envoy.Scope]int{}
	for id, m := range r.nodes {
		of[m.scope.key.Base()]++
		r.firsts[m] = slices.Contains(st.Nodes, id)
	}
	want := 0
	for _, n := range of {
		want += r.options.Canary.count(n)
	}
	if len(st.Nodes) != want || st.Of != len(r.nodes) {
		r.t.Fatalf("%q of %d are first, want %d of %d", st.Nodes, st.Of, want, len(r.nodes))
	}
}

// taken is told of each response.
func (r *rollout) taken(m *member, g *got, bad []envoy.Name, before map[envoy.Name]string) {
	to := r.views[r.rest]
	if r.firsts[m] {
		to = r.views[r.trying]
	}
	for _, n := range g.Resources {
		v := g.versions[n]
		if before[n] != v && !r.in(to, g.Type, n, v) {
			r.t.Fatalf("node %q is sent %s %q in version %q; first: %t, generation %d is tried and %d is with the rest", m.info.ID, g.Type, n, v, r.firsts[m], r.trying, r.rest)
		}
	}
	for n := range before {
		if m.held[g.Type][n] == "" && to.versions[g.Type][n] != "" {
			r.t.Fatalf("node %q loses %s %q; first: %t, generation %d is tried and %d is with the rest", m.info.ID, g.Type, n, r.firsts[m], r.trying, r.rest)
		}
	}
	for _, n := range bad {
		v := g.versions[n]
		r.failed = r.failed || r.firsts[m] && !r.refused[m][v]
		r.may = r.may || r.firsts[m]
		if r.refused[m] == nil {
			r.refused[m] = map[string]bool{}
		}
		r.refused[m][v] = true
	}
	used := r.used[m] // an Envoy drops a route with its listener
	if used == nil {
		used = names{}
		r.used[m] = used
	}
	for n := range m.held[rds] {
		switch {
		case m.held[lds][n] == "":
			delete(used, n)
		case g.Type == rds && g.versions[n] != "":
			used.add(n)
		}
	}
	for _, t := range []envoy.Type{lds, rds} {
		for n, v := range m.held[t] {
			if to := r.leadsTo[v]; m.held[cds][to] == "" && (t == lds || used.has(n)) {
				r.t.Fatalf("%s %q of node %q leads to %q, of %v", t, n, m.info.ID, to, m.held[cds])
			}
		}
	}
}

// in tells whether a view has a version; endpoints may be those of any view in which the cluster is the same.
func (r *rollout) in(v *rolled, t envoy.Type, n envoy.Name, version string) bool {
	if t != eds {
		return v.versions[t][n] == version
	}
	for _, o := range r.views {
		if o.versions[eds][n] == version && o.versions[cds][n] == v.versions[cds][n] {
			return true
		}
	}
	return false
}

// check looks at what all have when all is exchanged.
func (r *rollout) check() {
	st := r.Canary()
	if stopped := st.StoppedFor != ""; st.Trying != 0 && (stopped && !r.failed && !r.may || r.failed && !stopped) {
		r.t.Fatalf("status %+v; failed: %t", st, r.failed)
	}
	if st.Trying != 0 {
		r.failed = st.StoppedFor != ""
	}
	newest := r.views[r.last]
	for id, m := range r.nodes {
		if m.canary.Load() != r.firsts[m] {
			r.t.Fatalf("node %q is first: %t, want %t", id, m.canary.Load(), r.firsts[m])
		}
		to := r.views[r.rest]
		if r.firsts[m] {
			to = r.views[r.trying]
		}
		for _, h := range m.holdings() {
			if h.standing == isHeld && h.resource != nil && m.held[h.typ][h.name] != h.resource.Version {
				r.t.Fatalf("node %q is shown to have %s %q in version %q, and has %q", id, h.typ, h.name, h.resource.Version, m.held[h.typ][h.name])
			}
		}
		for t := range envoy.Types {
			for n, want := range to.versions[t] {
				got := m.held[t][n]
				switch {
				case r.refused[m][want] || t == eds && m.held[cds][n] != newest.versions[cds][n]:
				case t == eds:
					if got != newest.versions[eds][n] {
						r.t.Fatalf("node %q has old endpoints of %q", id, n)
					}
				case got != want:
					r.t.Fatalf("node %q has %s %q in version %q, want %q; first: %t, generation %d is tried and %d is with the rest", id, t, n, got, want, r.firsts[m], r.trying, r.rest)
				}
			}
		}
	}
}

func (r *rollout) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	r.observe(false)
	r.exchange()
	r.check()
}

// Whatever changes, comes, goes, is rejected and takes its time: the rest is sent nothing but endpoints that was not tried for long
// enough, without a canary that rejected it or went. What was stopped stays so until it is something else, and when nobody rejects
// anything any more all have the newest view.
func TestTheRestIsSentWhatWasTried(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			options := Canary{Nodes: rapid.IntRange(1, 2).Draw(t, "nodes"), Share: rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "share"), Time: canaryTime}
			f, stop := newFleet(t, options)
			defer stop()
			r := &rollout{
				fleet: f, views: map[uint64]*rolled{}, firsts: map[*member]bool{},
				refused: map[*member]map[string]bool{}, used: map[*member]names{}, leadsTo: map[string]envoy.Name{},
			}
			f.saw = r.taken

			clusters, routes := []string{"a", "b", "c"}, []string{"x", "y"}
			frames := map[string]int{}
			cluster := func(n, endpoints string) { // as the translation does: the cluster's version is part of its endpoints'
				v := nonceOf(uint64(frames[n]))
				r.set(cds, n, v)
				r.set(eds, n, v+"/"+endpoints)
			}
			bad, picky := map[string]bool{}, map[string]bool{} // versions that all reject, or some
			there := func(n string) bool {
				_, ok := r.resources[cds].Get(envoy.Name(n))
				return ok
			}
			route := func(n, to, quality string) {
				if !there(to) {
					return
				}
				for _, typ := range []envoy.Type{lds, rds} {
					r.set(typ, n, to+quality, serviceKey(to))
					res, _ := r.resources[typ].Get(envoy.Name(n))
					r.leadsTo[res.Version], bad[res.Version], picky[res.Version] = envoy.Name(to), quality == " bad", quality == " picky"
				}
			}
			leaves := func(n string) { // if nothing leads to it
				for _, to := range routes {
					if res, ok := r.resources[lds].Get(envoy.Name(to)); ok && r.leadsTo[res.Version] == envoy.Name(n) {
						return
					}
				}
				r.remove(cds, n)
				r.remove(eds, n)
			}
			over := false // nobody rejects anything any more
			join := func(id string, p Protocol) {
				h := fnv.New32a()
				h.Write([]byte(id))
				r.join(id, p, func(v string) bool { return !over && (bad[v] || picky[v] && h.Sum32()%2 == 0) })
				r.check()
			}
			ids := []string{"node-1", "node-2", "node-3", "node-4"}
			for i := range 4 {
				ids = append(ids, fmt.Sprintf("sidecar~10.0.0.%d~x.shop~shop.svc.cluster.local", i))
			}

			cluster("a", "1")
			route("x", "a", "")
			r.publish()
			anyCluster, anyRoute := rapid.SampledFrom(clusters), rapid.SampledFrom(routes)
			anyQuality := rapid.SampledFrom([]string{"", "", " bad", " picky"})
			t.Repeat(map[string]func(*rapid.T){
				"a cluster changes": func(t *rapid.T) {
					n := anyCluster.Draw(t, "name")
					frames[n]++
					cluster(n, "1")
				},
				"endpoints change": func(t *rapid.T) {
					if n := anyCluster.Draw(t, "name"); there(n) {
						cluster(n, rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "endpoints"))
					}
				},
				"a route moves": func(t *rapid.T) {
					route(anyRoute.Draw(t, "route"), anyCluster.Draw(t, "to"), anyQuality.Draw(t, "quality"))
				},
				"a route goes": func(t *rapid.T) {
					n := anyRoute.Draw(t, "route")
					r.remove(lds, n)
					r.remove(rds, n)
				},
				"a cluster goes": func(t *rapid.T) { leaves(anyCluster.Draw(t, "name")) },
				"all is taken back": func(*rapid.T) {
					r.resources, r.world.versions = r.views[r.rest].resources, r.views[r.rest].digests
					r.publish()
					if st := r.Canary(); st.Trying != 0 {
						t.Fatalf("status %+v, though there is nothing to try", st)
					}
				},
				"publish":  func(*rapid.T) { r.publish() },
				"publish ": func(*rapid.T) { r.publish() },
				"a node comes": func(t *rapid.T) {
					if id := rapid.SampledFrom(ids).Draw(t, "id"); r.nodes[id] == nil {
						join(id, rapid.SampledFrom([]Protocol{SotW, Delta}).Draw(t, "protocol"))
					}
				},
				"a node goes": func(t *rapid.T) {
					if id := rapid.SampledFrom(ids).Draw(t, "id"); r.nodes[id] != nil {
						r.failed = r.failed || r.firsts[r.nodes[id]]
						r.lose(id)
						r.check()
					}
				},
				"time":      func(*rapid.T) { r.wait(canaryTime / 4) },
				"more time": func(*rapid.T) { r.wait(canaryTime / 2) },
			})

			over = true
			frames["a"]++ // if it was stopped, it goes on with a change
			cluster("a", "1")
			r.publish()
			for range 10 {
				r.wait(canaryTime / 2)
			}
			for range 4 {
				time.Sleep(longestWait) // what was rejected is tried again
				r.exchange()
			}
			if st := r.Canary(); st.Trying != 0 {
				t.Fatalf("status %+v, want all to have the newest", st)
			}
			for id, m := range r.nodes {
				for typ := range envoy.Types {
					got := maps.Clone(m.held[typ])
					if m.protocol == SotW && !order[typ].full { // what is gone cannot be told
						maps.DeleteFunc(got, func(n envoy.Name, _ string) bool { return r.views[r.last].versions[typ][n] == "" })
					}
					if want := r.views[r.last].versions[typ]; !maps.Equal(got, want) {
						t.Fatalf("node %q has %s %v, want %v", id, typ, got, want)
					}
				}
			}
		})
	})
}
