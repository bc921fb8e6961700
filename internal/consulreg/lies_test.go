package consulreg_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/consultest"
	"github.com/meshd/meshd/internal/mesh"
)

// standInWays are the two ways of keeping up with a stand-in: by HTTP/1.1, or by HTTP/2.
var standInWays = []struct {
	name string
	tls  bool
}{{"sweeps", false}, {"watches", true}}

// eachWay runs a test by each way of keeping up, side by side: with a stand-in that has the fleet, and a registry that has seen it.
func eachWay(t *testing.T, test func(t *testing.T, s *consultest.StandIn, w *observer, watches bool)) {
	t.Helper()
	t.Parallel()
	for _, way := range standInWays {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls})
			s.Register(fleet...)
			w := observe(t, consulreg.Options{Link: linkTo(s)})
			w.awaitEndpoints(len(fleet))
			test(t, s, w, way.tls)
		})
	}
}

// linkTo is the link to a stand-in.
func linkTo(s *consultest.StandIn) consulreg.Link {
	return consulreg.Link{Addresses: []string{s.URL}, TLS: consulreg.TLS{CAFile: s.CAFile}}
}

// hasty makes a registry wait for less long than usual.
func hasty(r *consulreg.Registry) { r.Hasten(2*time.Second, 2*time.Second) }

// always is a fault that hits all requests, and sometimes one that hits some of them at random.
func always(r consultest.Response) func(*http.Request) *consultest.Response {
	return func(*http.Request) *consultest.Response { return &r }
}

func sometimes(share float64, r consultest.Response) func(*http.Request) *consultest.Response {
	return func(*http.Request) *consultest.Response {
		if rand.Float64() < share {
			return &r
		}
		return nil
	}
}

const secret = "5ec3e700-0000-4000-8000-000000000001"

// fleet is what the stand-ins have in the tests of illness: 40 services of 3 instances on 10 nodes.
var fleet = consultest.Fleet(40, 3, 10)

// first are the services with a number below n, and that of Consul.
func first(n int) func(string) bool {
	return func(service string) bool {
		var is int
		_, err := fmt.Sscanf(service, "svc-%d", &is)
		return err != nil || is < n
	}
}

// TestIllness makes a Consul ill while its catalog is served, and well again. Meanwhile nothing of what is served may be lost nor made
// unhealthy, and afterwards what has changed in the meantime, and what changes then, arrives.
func TestIllness(t *testing.T) {
	t.Parallel()
	cut := consultest.Response{Status: 200, Header: http.Header{"X-Consul-Index": {"77"}, "Content-Length": {"4000"}}, Body: `[{"Node":{"Node":"node-0`}
	for _, tt := range []struct {
		name    string
		falls   func(*consultest.StandIn)
		code    string // of the problem that is to be told; empty: none is awaited
		message string // part of the problem's
		recover func(*consultest.StandIn)
	}{
		{
			name:    "out of reach",
			falls:   (*consultest.StandIn).Down,
			code:    "consul-unreachable",
			message: "connection refused; see to it that it runs and can be reached, or correct its address",
			recover: (*consultest.StandIn).Up,
		},
		{
			name:    "no leader",
			falls:   func(s *consultest.StandIn) { s.LoseLeader(); s.Interrupt() },
			code:    "consul-unreachable",
			message: "No cluster leader; see to it that its servers run and have a leader",
			recover: (*consultest.StandIn).ElectLeader,
		},
		{
			name:    "all requests are too many",
			falls:   func(s *consultest.StandIn) { s.TooMany(1 << 30); s.Interrupt() },
			code:    "consul-throttled",
			message: "raise limits.http_max_conns_per_client of the agent, or lower the setting connections",
			recover: func(s *consultest.StandIn) { s.TooMany(0) },
		},
		{
			name: "bursts of 429",
			falls: func(s *consultest.StandIn) {
				s.Fault(sometimes(0.5, consultest.Response{Status: 429, Body: "slow down"}))
				s.Interrupt()
			},
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name: "bursts of 500",
			falls: func(s *consultest.StandIn) {
				s.Fault(sometimes(0.5, consultest.Response{Status: 500, Body: "rpc error"}))
				s.Interrupt()
			},
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name: "503 for all",
			falls: func(s *consultest.StandIn) {
				s.Fault(always(consultest.Response{Status: 503, Body: "rate limit"}))
				s.Interrupt()
			},
			code:    "consul-unreachable",
			message: "fails: rate limit",
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name: "connections that are cut at once",
			falls: func(s *consultest.StandIn) {
				s.Fault(always(consultest.Response{Status: consultest.Abort}))
				s.Interrupt()
			},
			code:    "consul-unreachable",
			message: "does not answer",
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name:    "bodies that are cut",
			falls:   func(s *consultest.StandIn) { s.Fault(always(cut)); s.Interrupt() },
			code:    "consul-unreachable",
			message: "does not answer",
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name: "a page of a proxy",
			falls: func(s *consultest.StandIn) {
				s.Fault(always(consultest.Response{Status: 200, Header: http.Header{"X-Consul-Index": {"77"}}, Body: "<html>sorry</html>"}))
				s.Interrupt()
			},
			code:    "consul-unreachable",
			message: "what came is not what Consul says; correct its address",
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name: "something else than is asked for",
			falls: func(s *consultest.StandIn) {
				s.Fault(always(consultest.Response{Status: 200, Header: http.Header{"X-Consul-Index": {"77"}}, Body: `"pong"`}))
				s.Interrupt()
			},
			code:    "consul-unreachable",
			message: "what came is not what Consul says; correct its address",
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name: "answers without an index",
			falls: func(s *consultest.StandIn) {
				s.Fault(always(consultest.Response{Status: 200, Body: `[]`}))
				s.Interrupt()
			},
			code:    "consul-unreachable",
			message: "X-Consul-Index",
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name: "slow answers",
			falls: func(s *consultest.StandIn) {
				s.Fault(sometimes(0.7, consultest.Response{Delay: time.Second}))
				s.Interrupt()
			},
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name:    "answers that come too late",
			falls:   func(s *consultest.StandIn) { s.Fault(always(consultest.Response{Delay: time.Minute})); s.Interrupt() },
			code:    "consul-unreachable",
			message: "nothing came in time",
			recover: func(s *consultest.StandIn) { s.Fault(nil) },
		},
		{
			name:    "a server that replays its log for longer than consistent reads wait",
			falls:   func(s *consultest.StandIn) { s.Replay("svc-0001", "svc-0002"); s.Interrupt() },
			code:    "consul-held",
			message: "are missing in answers that are not believed, and are served on",
			recover: (*consultest.StandIn).EndReplay,
		},
		{
			name:    "indexes that go back",
			falls:   func(s *consultest.StandIn) { s.Rewind(12) },
			recover: func(*consultest.StandIn) {},
		},
		{
			name:    "a token that has expired",
			falls:   func(s *consultest.StandIn) { s.SetToken("another") },
			code:    "consul-denied",
			message: "refuses the request: ACL not found; give a token that may read services and nodes",
			recover: func(s *consultest.StandIn) { s.SetToken(secret) },
		},
		{
			name: "a policy that is cut to nothing",
			falls: func(s *consultest.StandIn) {
				s.Filter(func(string) bool { return false })
			},
			code:    "consul-held",
			message: "are missing in answers that are not believed, and are served on",
			recover: func(s *consultest.StandIn) { s.Filter(nil) },
		},
		{
			name:    "a policy that is cut to some",
			falls:   func(s *consultest.StandIn) { s.Filter(first(10)) },
			code:    "consul-held",
			message: "Consul left out what the token may not see, which it did not before",
			recover: func(s *consultest.StandIn) { s.Filter(nil) },
		},
		{
			name:    "a policy that is cut, without a word",
			falls:   func(s *consultest.StandIn) { s.FilterSilently(func(string) bool { return false }) },
			recover: func(s *consultest.StandIn) { s.FilterSilently(nil) },
		},
	} {
		for _, way := range standInWays {
			t.Run(tt.name+", "+way.name, func(t *testing.T) {
				t.Parallel()
				s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls, Token: secret})
				s.Register(fleet...)
				link := linkTo(s)
				link.Token = secret
				w := observe(t, consulreg.Options{Link: link}, hasty)
				w.awaitEndpoints(len(fleet))
				w.followsOn(s)

				tt.falls(s)
				if tt.code != "" {
					w.awaitWords(tt.code, tt.message)
				}
				s.Register(consultest.Service{Name: "meanwhile", Address: "192.0.2.88", Port: 80})
				s.Register(consultest.Service{Name: "svc-0001", ID: "svc-0001-x", Address: "192.0.2.89", Port: 8001})
				w.awaitStanding("some requests", requestsSince(w, 3))
				w.nothingLost()

				tt.recover(s)
				w.awaitHealth("meanwhile.service.consul:80 192.0.2.88:80", mesh.Healthy)
				w.awaitHealth("svc-0001.service.consul:8001 192.0.2.89:8001", mesh.Healthy)
				w.awaitWell()
				w.awaitEndpoints(len(fleet) + 2)
				w.nothingLost()
				w.followsOn(s)
				s.Deregister("node-001", "svc-0000-1")
				w.awaitGone("svc-0000.service.consul:8000 10.2.0.2:8000")
				if got := w.lost(); len(got) != 1 {
					t.Errorf("lost %v, and not one", got)
				}
				if c := s.Counts(); c.PeakOpen > 20 {
					t.Errorf("%d connections at one time; want at most 20", c.PeakOpen)
				}
				w.awaitStanding("few connections", func(s mesh.Standing) bool { return s.Connections <= 20 })
			})
		}
	}
}

// requestsSince tells when so many more requests were made.
func requestsSince(w *observer, n uint64) func(mesh.Standing) bool {
	before := w.registry.Standing().Requests
	return func(s mesh.Standing) bool { return s.Requests >= before+n }
}

// TestIllFromTheStart begins with a Consul that says nothing, or nothing useful. The registry says why, runs on, and serves all soon
// after that has changed.
func TestIllFromTheStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		with    func(s *consultest.StandIn, l *consulreg.Link)
		code    string
		message string
		cure    func(t *testing.T, s *consultest.StandIn, l consulreg.Link)
	}{
		{
			name:    "nothing is at the address",
			with:    func(s *consultest.StandIn, _ *consulreg.Link) { s.Down() },
			code:    "consul-unreachable",
			message: "connection refused; see to it that it runs and can be reached, or correct its address",
			cure:    func(_ *testing.T, s *consultest.StandIn, _ consulreg.Link) { s.Up() },
		},
		{
			name:    "the datacenter is unknown",
			with:    func(_ *consultest.StandIn, l *consulreg.Link) { l.Datacenter = "dc9" },
			code:    "consul-unreachable",
			message: `knows no way to the datacenter "dc9": correct its name`,
			cure: func(t *testing.T, s *consultest.StandIn, _ consulreg.Link) {
				other := consultest.NewStandIn(t, consultest.StandInOptions{Datacenter: "dc9"})
				other.Register(fleet...)
				s.Federate(other)
			},
		},
		{
			name: "the token is unknown",
			with: func(s *consultest.StandIn, l *consulreg.Link) {
				s.SetToken(secret)
				l.TokenFile = "wrong"
			},
			code:    "consul-denied",
			message: "ACL not found; give a token that may read services and nodes",
			cure: func(t *testing.T, _ *consultest.StandIn, l consulreg.Link) {
				write(t, l.TokenFile, secret)
			},
		},
		{
			name:    "there is no token, and nothing may be seen without",
			with:    func(s *consultest.StandIn, _ *consulreg.Link) { s.SetToken(secret) },
			code:    "consul-hidden",
			message: "the token, or the lack of one, hides everything",
			cure:    func(_ *testing.T, s *consultest.StandIn, _ consulreg.Link) { s.SetToken("") },
		},
		{
			name: "the file of the token is missing",
			with: func(s *consultest.StandIn, l *consulreg.Link) {
				s.SetToken(secret)
				l.TokenFile = "missing"
			},
			code:    "consul-unreachable",
			message: "cannot be asked: read the token",
			cure: func(t *testing.T, _ *consultest.StandIn, l consulreg.Link) {
				write(t, l.TokenFile, secret)
			},
		},
		{
			name:    "the server replays its log",
			with:    func(s *consultest.StandIn, _ *consulreg.Link) { s.Replay("svc-0000") },
			code:    "consul-unreachable",
			message: "nothing came in time",
			cure:    func(_ *testing.T, s *consultest.StandIn, _ consulreg.Link) { s.EndReplay() },
		},
		{
			name:    "there is no leader",
			with:    func(s *consultest.StandIn, _ *consulreg.Link) { s.LoseLeader() },
			code:    "consul-unreachable",
			message: "No cluster leader",
			cure:    func(_ *testing.T, s *consultest.StandIn, _ consulreg.Link) { s.ElectLeader() },
		},
	} {
		for _, way := range standInWays {
			t.Run(tt.name+", "+way.name, func(t *testing.T) {
				t.Parallel()
				s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls})
				s.Register(fleet...)
				link := linkTo(s)
				tt.with(s, &link)
				switch {
				case link.TokenFile == "missing":
					link.TokenFile = filepath.Join(t.TempDir(), "token")
				case link.TokenFile != "":
					link.TokenFile = filepath.Join(t.TempDir(), "token")
					write(t, link.TokenFile, "wrong")
				}
				w := observe(t, consulreg.Options{Link: link}, hasty)
				c := w.awaitWords(tt.code, tt.message)
				if !c.Unread || c.Services.Len() > 0 {
					t.Errorf("unread %t, %d services", c.Unread, c.Services.Len())
				}
				tt.cure(t, s, link)
				w.awaitEndpoints(len(fleet))
				w.awaitWell()
				w.nothingLost()
			})
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestALimitedToken has a token that never saw more than some services. Of what it sees single ones go at once; many at once are held.
func TestALimitedToken(t *testing.T) {
	t.Parallel()
	for _, way := range standInWays {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls, Token: secret})
			s.Register(fleet...)
			s.Filter(first(10))
			link := linkTo(s)
			link.Token = secret
			w := observe(t, consulreg.Options{Link: link}, hasty)
			w.awaitEndpoints(30)
			w.awaitProblem("consul-filtered")
			w.followsOn(s)

			s.Deregister("node-000", "svc-0000-0")
			w.awaitGone("svc-0000.service.consul:8000 10.2.0.1:8000")
			for i := range 3 {
				s.Deregister(fleet[3+i].Node, fleet[3+i].ID)
			}
			w.awaitEndpoints(26)

			w.forget()
			for _, f := range fleet[6:30] {
				s.Deregister(f.Node, f.ID)
			}
			w.awaitProblem("consul-held")
			w.nothingLost()
			s.Register(consultest.Service{Name: "svc-0000", ID: "more", Address: "192.0.2.89", Port: 8000})
			w.awaitEndpoints(27)
			w.nothingLost()
			if n := w.release(); n != 24 {
				t.Errorf("%d were released; want 24", n)
			}
			w.awaitEndpoints(3)
			w.awaitNoProblem("consul-held")
			if n := w.release(); n != 0 {
				t.Errorf("%d were released the second time", n)
			}
			s.Filter(nil)
			w.awaitEndpoints(93)
			w.awaitNoProblem("consul-filtered")
			w.followsOn(s)
		})
	}
}

// TestRelease lets go of what is held while a policy is cut. What comes and goes later is judged anew.
func TestRelease(t *testing.T) {
	t.Parallel()
	for _, way := range standInWays {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls, Token: secret})
			s.Register(fleet...)
			link := linkTo(s)
			link.Token = secret
			w := observe(t, consulreg.Options{Link: link}, hasty)
			w.awaitEndpoints(len(fleet))
			if n := w.release(); n != 0 {
				t.Errorf("%d were released while nothing was held", n)
			}
			s.Filter(first(10))
			w.awaitStanding("90 held instances", func(s mesh.Standing) bool { return s.HeldInstances() == 90 })
			w.nothingLost()
			if n := w.release(); n != 90 {
				t.Errorf("%d were released; want 90", n)
			}
			w.awaitEndpoints(30)
			w.awaitNoProblem("consul-held")
			if n := w.release(); n != 0 {
				t.Errorf("%d were released the second time", n)
			}
			w.forget()
			s.Filter(nil)
			w.awaitEndpoints(len(fleet))
			w.followsOn(s)
			s.Filter(first(20))
			w.awaitStanding("60 held instances", func(s mesh.Standing) bool { return s.HeldInstances() == 60 })
			w.nothingLost()
			s.Filter(nil)
			w.awaitWell()
			w.awaitEndpoints(len(fleet))
			w.nothingLost()
		})
	}
}

// TestFlappingNodes takes half of the nodes away and brings them back, again and again. The instances on the others stay.
func TestFlappingNodes(t *testing.T) {
	eachWay(t, func(t *testing.T, s *consultest.StandIn, w *observer, _ bool) {
		half := slices.DeleteFunc(slices.Clone(fleet), func(f consultest.Service) bool { return f.Node >= "node-005" })
		for round := range 10 {
			for n := range 5 {
				s.Deregister(fmt.Sprintf("node-%03d", n), "")
			}
			if round%3 == 0 { // else it is quicker than anybody looks
				w.awaitEndpoints(len(fleet) - len(half))
			}
			s.Register(half...)
		}
		w.awaitEndpoints(len(fleet))
		for _, at := range w.lost() {
			var a, b, c, d int
			if _, err := fmt.Sscanf(at[strings.Index(at, " ")+1:], "%d.%d.%d.%d", &a, &b, &c, &d); err != nil || d > 5 {
				t.Errorf("lost %s, whose node did not go away (%v)", at, err)
			}
		}
		w.awaitWell()
		w.followsOn(s)
	})
}

// TestNothingGrows makes Consul go and come many times. It costs no goroutine and no connection.
func TestNothingGrows(t *testing.T) {
	for _, way := range standInWays {
		t.Run(way.name, func(t *testing.T) {
			s := consultest.NewStandIn(t, consultest.StandInOptions{TLS: way.tls})
			s.Register(fleet...)
			w := observe(t, consulreg.Options{Link: linkTo(s)})
			watches := map[bool]int{false: 3, true: len(fleet)/3 + 1}[way.tls]
			settle := func() int {
				w.awaitEndpoints(len(fleet))
				w.awaitWell()
				s.AwaitBlocking(watches)
				return runtime.NumGoroutine()
			}
			before := settle()
			for range 5 {
				s.Down()
				w.awaitProblem("consul-unreachable")
				s.Up()
				settle()
				s.Interrupt()
				w.followsOn(s)
			}
			deadline := time.Now().Add(patience)
			for settle() > before+8 {
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines, and %d before", runtime.NumGoroutine(), before)
				}
				time.Sleep(10 * time.Millisecond) // nobody tells how many goroutines there are
			}
			if c := s.Counts(); c.PeakOpen > 20 {
				t.Errorf("%d connections at one time", c.PeakOpen)
			}
			w.nothingLost()
		})
	}
}

// TestFewerConnectionsThanWanted has an agent that allows very few connections. That is slow, and is told, but all arrives.
func TestFewerConnectionsThanWanted(t *testing.T) {
	t.Parallel()
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	s.LimitConnections(5)
	s.Register(fleet...)
	w := observe(t, consulreg.Options{Link: linkTo(s)})
	w.awaitEndpoints(len(fleet))
	w.followsOn(s)
	w.nothingLost()
}

// TestOneBadAnswer has one service that cannot be read, ever. It alone is not followed.
func TestOneBadAnswer(t *testing.T) {
	eachWay(t, func(t *testing.T, s *consultest.StandIn, w *observer, _ bool) {
		var bad atomic.Int64
		s.Fault(func(r *http.Request) *consultest.Response {
			if strings.HasSuffix(r.URL.Path, "/bad") {
				bad.Add(1)
				return &consultest.Response{Status: 500, Body: "rpc error: bad"}
			}
			return nil
		})
		s.Register(consultest.Service{Name: "bad", Address: "192.0.2.99", Port: 99})
		for range 3 {
			w.followsOn(s)
		}
		w.awaitStanding("some reads of the bad one", func(mesh.Standing) bool { return bad.Load() > 5 })
		w.nothingLost()
		s.Fault(nil)
		w.awaitHealth("bad.service.consul:99 192.0.2.99:99", mesh.Healthy)
		w.awaitWell()
	})
}
