package consulreg_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
)

// small is what the real Consuls have in tests where the number does not matter: 10 services of 3 instances on 5 nodes.
var small = consultest.Fleet(10, 3, 5)

// both are two registries that look at one Consul, each in its way.
type both []*observer

func observeBoth(t *testing.T, a *consultest.Agent, change func(*consulreg.Options)) (all both) {
	t.Helper()
	return observeAll(t, a, change, hasty)
}

func observeAll(t *testing.T, a *consultest.Agent, change func(*consulreg.Options), prepare ...func(*consulreg.Registry)) (all both) {
	t.Helper()
	for _, way := range ways {
		o := consulreg.Options{Link: way.link(a)}
		if change != nil {
			change(&o)
		}
		all = append(all, observe(t, o, prepare...))
	}
	return all
}

func (b both) each(do func(*observer)) {
	for _, w := range b {
		w.t.Helper()
		do(w)
	}
}

func (b both) stop() { b.each(func(w *observer) { w.stop() }) }

const (
	readAll   = `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`
	readSome  = `service_prefix "svc-000" { policy = "read" } node_prefix "" { policy = "read" }`
	noNodes   = `service_prefix "" { policy = "read" }`
	readNone  = `key_prefix "x" { policy = "read" }`
	anonymous = "00000000-0000-0000-0000-000000000002"
)

// TestRights takes rights away, and gives them back.
func TestRights(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{ACL: true, HTTPS: true})
	fleet := consultest.Fleet(20, 3, 5) // svc-0000 to svc-0019, of which readSome sees half
	a.Register(fleet...)
	file := filepath.Join(t.TempDir(), "token")
	policies := 0
	// become makes the token that is in the file one with a policy of these rules, and returns what changes these.
	become := func(rules string) (accessor string, change func(rules string)) {
		policies++
		name := fmt.Sprint("policy-", policies)
		a.SetPolicy(name, rules)
		accessor, secret := a.NewToken(0, name)
		write(t, file, secret)
		return accessor, func(rules string) { a.SetPolicy(name, rules) }
	}
	withFile := func(o *consulreg.Options) { o.Link.Token, o.Link.TokenFile = "", file }
	start := func(t *testing.T) both {
		all := observeBoth(t, a, withFile)
		all.each(func(w *observer) {
			w.awaitEndpoints(len(fleet))
			w.awaitWell()
		})
		return all
	}
	well := func(all both) {
		t.Helper()
		all.each(func(w *observer) {
			w.awaitWell()
			w.awaitEndpoints(len(fleet))
			w.nothingLost()
			w.followsOn(a)
		})
		all.stop()
	}
	// changed changes an instance in the meantime, in a way that is seen in its weight only.
	weight := 1
	changed := func() {
		weight++
		s := fleet[0]
		s.Weights = &api.AgentWeights{Passing: weight, Warning: 1}
		a.Register(s)
	}
	weighs := func(all both) {
		t.Helper()
		all.each(func(w *observer) {
			w.await("the change that came meanwhile", func(c mesh.Catalog) bool {
				return slices.ContainsFunc(told(c), func(s string) bool {
					return strings.HasPrefix(s, fmt.Sprintf("svc-0000:8000 10.2.0.1:8000 healthy %d ", weight))
				})
			})
		})
	}

	t.Run("the token is deleted, and there is a new one", func(t *testing.T) {
		accessor, _ := become(readAll)
		all := start(t)
		a.DeleteToken(accessor)
		all.each(func(w *observer) { w.awaitWords("consul-denied", "ACL not found; give a token") })
		changed()
		all.each(func(w *observer) { w.nothingLost() })
		become(readAll)
		weighs(all)
		well(all)
	})
	t.Run("the file of the token is emptied", func(t *testing.T) {
		become(readAll)
		all := start(t)
		write(t, file, "")
		all.each(func(w *observer) { w.awaitWords("consul-unreachable", "token is empty; correct that file") })
		changed()
		all.each(func(w *observer) { w.nothingLost() })
		become(readAll)
		weighs(all)
		well(all)
	})
	for _, cut := range []struct{ name, rules string }{
		{"to nothing", readNone}, {"to some services", readSome}, {"to services without nodes", noNodes},
	} {
		t.Run("the policy is cut "+cut.name, func(t *testing.T) {
			_, change := become(readAll)
			all := start(t)
			change(cut.rules)
			changed()
			all.each(func(w *observer) {
				w.awaitProblem("consul-held")
				w.nothingLost()
			})
			change(readAll)
			weighs(all)
			well(all)
		})
		if cut.rules == noNodes {
			continue // services are on the list as ever, and nobody asks for their instances before the next sweep
		}
		t.Run("the policy is cut, and all is quiet, "+cut.name, func(t *testing.T) {
			_, change := become(readAll)
			all := start(t)
			change(cut.rules)
			all.each(func(w *observer) { w.awaitProblem("consul-held") })
			change(readAll)
			well(all)
		})
	}
	for _, tt := range []struct{ name, rules, words string }{
		{"the token may not read nodes from the start", noNodes, "the token may read services, but not nodes"},
		{"the token may read nothing from the start", readNone, "hides everything"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, change := become(tt.rules)
			all := observeBoth(t, a, withFile)
			all.each(func(w *observer) {
				if c := w.awaitWords("consul-hidden", tt.words); !c.Unread {
					t.Error("that counts as read")
				}
			})
			change(readAll)
			well(all)
		})
	}
	t.Run("the token is unknown from the start", func(t *testing.T) {
		write(t, file, "0bad0bad-0000-4000-8000-000000000001")
		all := observeBoth(t, a, withFile)
		all.each(func(w *observer) { w.awaitWords("consul-denied", "ACL not found; give a token") })
		become(readAll)
		well(all)
	})
	t.Run("there is no token", func(t *testing.T) {
		all := observeBoth(t, a, func(o *consulreg.Options) { o.Link.Token = "" })
		all.each(func(w *observer) {
			if c := w.awaitWords("consul-hidden", "the token, or the lack of one, hides everything"); !c.Unread {
				t.Error("that counts as read")
			}
		})
		allow := func(rules string) {
			a.SetPolicy("anonymous", rules)
			if _, _, err := a.Client().ACL().TokenUpdate(&api.ACLToken{
				AccessorID: anonymous, Policies: []*api.ACLTokenPolicyLink{{Name: "anonymous"}},
			}, nil); err != nil {
				t.Fatal(err)
			}
		}
		allow(readAll)
		all.each(func(w *observer) {
			w.awaitEndpoints(len(fleet))
			w.awaitWell()
		})
		allow(readNone)
		changed()
		all.each(func(w *observer) { w.awaitProblem("consul-held"); w.nothingLost() })
		allow(readAll)
		weighs(all)
		well(all)
	})
	t.Run("the token sees some services from the start", func(t *testing.T) {
		_, change := become(readSome)
		all := observeBoth(t, a, withFile)
		all.each(func(w *observer) {
			w.awaitEndpoints(30)
			w.awaitProblem("consul-filtered")
			w.awaitWell()
		})
		a.Deregister(fleet[0].Node, fleet[0].ID)
		all.each(func(w *observer) { w.awaitEndpoints(29) })
		for _, f := range fleet[3:6] {
			a.Deregister(f.Node, f.ID)
		}
		all.each(func(w *observer) { w.awaitEndpoints(26); w.forget() })
		change(`service_prefix "svc-0000" { policy = "read" } node_prefix "" { policy = "read" }`)
		changed() // which registers the first again
		all.each(func(w *observer) { w.awaitProblem("consul-held"); w.nothingLost() })
		all.each(func(w *observer) {
			w.awaitStanding("24 held instances", func(s mesh.Standing) bool { return s.HeldInstances() == 24 })
			if n := w.release(); n != 24 {
				t.Errorf("%d were released; want 24", n)
			}
			w.awaitEndpoints(3)
			w.awaitNoProblem("consul-held")
			if n := w.release(); n != 0 {
				t.Errorf("%d were released the second time", n)
			}
			w.forget()
		})
		change(readAll)
		a.Register(fleet[3:6]...)
		well(all)
	})
}

// TestAServer has a server without an agent before it.
func TestAServer(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{Mode: consultest.Server, HTTPS: true})
	a.Register(small...)
	all := observeBoth(t, a, nil)
	all.each(func(w *observer) { w.awaitEndpoints(len(small)) })
	t.Run("it stands still for longer than one waits for an answer", func(t *testing.T) {
		a.Pause()
		all.each(func(w *observer) { w.awaitProblem("consul-unreachable") })
		a.Resume()
		all.each(func(w *observer) {
			w.awaitWell()
			w.nothingLost()
			w.followsOn(a)
		})
	})
	t.Run("it is killed, and comes back", func(t *testing.T) {
		a.Kill()
		all.each(func(w *observer) { w.awaitWords("consul-unreachable", "connection refused; see to it that it runs") })
		a.Restart()
		a.Ready()
		all.each(func(w *observer) {
			w.awaitWell()
			w.nothingLost()
			w.followsOn(a)
		})
	})
	t.Run("an older snapshot is restored", func(t *testing.T) {
		all := observeAll(t, a, nil) // with the usual times: streaming watches do not wake when their index goes back
		all.each(func(w *observer) { w.awaitEndpoints(len(small)) })
		snapshot, _, err := a.Client().Snapshot().Save(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer snapshot.Close()
		var saved bytes.Buffer
		if _, err := saved.ReadFrom(snapshot); err != nil {
			t.Fatal(err)
		}
		// Afterwards a service comes, one grows, and one goes.
		a.Register(consultest.Service{Name: "newer", Address: "192.0.2.66", Port: 66})
		grown := small[0]
		grown.ID, grown.Address = "grown", "192.0.2.67"
		a.Register(grown)
		for _, s := range small[3:6] {
			a.Deregister(s.Node, s.ID)
		}
		all.each(func(w *observer) {
			w.await("all of that", func(c mesh.Catalog) bool {
				all := strings.Join(told(c), " ")
				return strings.Contains(all, "192.0.2.66:66") && strings.Contains(all, "192.0.2.67:8000") && !strings.Contains(all, "svc-0001")
			})
			w.forget()
		})
		all.each((*observer).awaitQuiet) // a question that is asked just after the restore, with the index of before, sleeps for its whole minute
		if err := a.Client().Snapshot().Restore(nil, &saved); err != nil {
			t.Fatal(err)
		}
		all.each(func(w *observer) {
			w.awaitOr("what was saved", func(c mesh.Catalog) bool { return len(endpointsOf(c)) == len(small) }, func(c mesh.Catalog) string { return strings.Join(told(c), "\n") })
			w.awaitWell()
			want := []string{"newer.service.consul:66 192.0.2.66:66", "svc-0000.service.consul:8000 192.0.2.67:8000"}
			if got := w.lost(); !slices.Equal(got, want) {
				t.Errorf("lost %q; want %q", got, want)
			}
			w.forget()
			w.followsOn(a)
		})
	})
	all.each(func(w *observer) {
		if n := w.registry.Standing().Connections; n > 20 {
			t.Errorf("%d connections", n)
		}
	})
}

// TestAClientAgent has an agent between: its server is killed, and replays its log when it comes back.
func TestAClientAgent(t *testing.T) {
	t.Parallel()
	server := consultest.Start(t, consultest.Options{Mode: consultest.Server})
	fleet := consultest.Fleet(300, 3, 50)
	server.Register(fleet...)
	a := consultest.Start(t, consultest.Options{Mode: consultest.Client, HTTPS: true, JoinLAN: server, Config: `performance { rpc_hold_timeout = "1s" }`})
	all := observeBoth(t, a, nil)
	all.each(func(w *observer) { w.awaitEndpoints(len(fleet)) })
	for range 2 {
		server.Kill()
		all.each(func(w *observer) { w.awaitProblem("consul-unreachable") })
		server.Restart()
		server.Ready()
		all.each(func(w *observer) {
			w.awaitWell()
			w.nothingLost()
			w.followsOn(server)
			w.nothingLost()
		})
	}
	// The agent itself is killed.
	a.Kill()
	all.each(func(w *observer) { w.awaitProblem("consul-unreachable") })
	server.Register(consultest.Service{Name: "meanwhile", Address: "192.0.2.88", Port: 80})
	a.Restart()
	all.each(func(w *observer) {
		w.awaitWell()
		w.awaitHealth("meanwhile.service.consul:80 192.0.2.88:80", mesh.Healthy)
		w.nothingLost()
	})
}

// TestNoQuorum has one of two servers killed, so that the other one has no leader.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	servers := consultest.StartServers(t, 2, consultest.Options{HTTPS: true, Config: `performance { raft_multiplier = 1 rpc_hold_timeout = "500ms" }`})
	a := servers[0]
	a.Register(small...)
	all := observeBoth(t, a, nil)
	all.each(func(w *observer) { w.awaitEndpoints(len(small)) })
	servers[1].Kill()
	all.each(func(w *observer) {
		w.awaitWords("consul-unreachable", "see to it that its servers run and have a leader")
		w.nothingLost()
	})
	servers[1].Restart()
	all.each(func(w *observer) { w.awaitWell() })
	a.Ready()
	all.each(func(w *observer) {
		w.awaitWell()
		w.nothingLost()
		w.followsOn(a)
	})
}

// TestTwoDatacenters asks for another datacenter through the agent of one.
func TestTwoDatacenters(t *testing.T) {
	t.Parallel()
	one := consultest.Start(t, consultest.Options{Mode: consultest.Server, HTTPS: true, Config: `performance { raft_multiplier = 1 rpc_hold_timeout = "500ms" }`})
	two := consultest.Start(t, consultest.Options{Mode: consultest.Server, Datacenter: "dc2", JoinWAN: one})
	one.Register(small...)
	two.Register(small...)
	two.Register(
		consultest.Service{
			Name: "far", Address: "10.9.9.9", Port: 99, Node: "far-1", NodeAddress: "10.9.0.1", NodeTagged: map[string]string{"wan": "198.51.100.1"},
			Tagged: map[string]api.ServiceAddress{"wan": {Address: "198.51.100.9", Port: 999}},
		},
		consultest.Service{Name: "further", Port: 98, Node: "far-1", NodeAddress: "10.9.0.1", NodeTagged: map[string]string{"wan": "198.51.100.1"}},
	)
	near := observeBoth(t, one, nil)
	far := observeBoth(t, one, func(o *consulreg.Options) { o.Link.Datacenter, o.Rules.Several = "dc2", true })
	near.each(func(w *observer) { w.awaitEndpoints(len(small)) })
	far.each(func(w *observer) {
		c := w.await("wide-area addresses", func(c mesh.Catalog) bool {
			lines := told(c)
			return slices.Contains(lines, "far:999 198.51.100.9:999 healthy 1") && slices.Contains(lines, "further:98 198.51.100.1:98 healthy 1")
		})
		for s := range c.Services.Values() {
			for _, e := range s.Endpoints {
				if e.Locality.Region != "dc2" {
					t.Errorf("%s has an endpoint in %s", s.Host, e.Locality.Region)
				}
			}
		}
		if h, _ := mesh.ParseHost("far.service.dc2.consul"); !serves(c, h) {
			t.Errorf("there is no %s", h)
		}
		w.followsOn2(two)
	})
	two.Kill()
	far.each(func(w *observer) {
		w.awaitProblem("consul-unreachable")
		w.nothingLost()
	})
	near.each(func(w *observer) {
		w.followsOn(one)
		w.awaitWell()
	})
	two.Restart()
	far.each(func(w *observer) {
		w.awaitWell()
		w.nothingLost()
	})
	two.Ready()
	far.each(func(w *observer) {
		w.followsOn2(two)
		w.awaitWell()
		w.nothingLost()
	})
	near.each(func(w *observer) { w.nothingLost() })
}

func serves(c mesh.Catalog, h mesh.Host) bool {
	_, ok := c.Services.Get(mesh.Key{Host: h, Namespace: "default"})
	return ok
}

// followsOn2 sees to it that a new service of a datacenter arrives.
func (w *observer) followsOn2(a *consultest.Agent) {
	w.t.Helper()
	name := fmt.Sprintf("fresh-%d", fresh.Add(1))
	a.Register(consultest.Service{Name: name, Node: "fresh", NodeAddress: "192.0.2.77", Port: 8080})
	w.awaitHealth(name+".service.consul:8080 192.0.2.77:8080", mesh.Healthy)
}
