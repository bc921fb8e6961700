package consultest_test

import (
	"context"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/meshd/meshd/internal/consultest"
)

// program is the Consul to test with.
var program = os.Getenv("CONSUL")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		client.CloseIdleConnections()
		os.Exit(code)
	}))
}

func TestServerKeepsItsCatalogWhenKilled(t *testing.T) {
	a := consultest.Start(t, consultest.Options{Program: program, Mode: consultest.Server})
	a.Register(consultest.Fleet(40, 3, 10)...)
	a.Kill()
	if _, err := a.Client().Catalog().Datacenters(); err == nil {
		t.Error("a killed agent answers")
	}
	a.Restart()
	a.Ready()
	services, _, err := a.Client().Catalog().Services(nil)
	if err != nil || len(services) != 41 {
		t.Errorf("%d services after the restart, error %v; want 41", len(services), err)
	}
}

func TestDevForgetsWhenKilled(t *testing.T) {
	a := consultest.Start(t, consultest.Options{Program: program})
	a.Register(consultest.Service{Name: "web", Port: 80})
	a.Restart()
	a.Ready()
	services, _, err := a.Client().Catalog().Services(nil)
	if err != nil || len(services) != 1 {
		t.Errorf("services %v after the restart, error %v; want consul alone", services, err)
	}
}

func TestPausedAgentDoesNotAnswer(t *testing.T) {
	a := consultest.Start(t, consultest.Options{Program: program})
	a.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if got := fetch(ctx, t, "http://"+a.Addr+"/v1/catalog/services"); got.status != 0 {
		t.Errorf("it answers: %+v", got)
	}
	a.Resume()
	a.Ready()
}

// TestACLsAnswerAlike asks both with each kind of token.
func TestACLsAnswerAlike(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{Program: program, ACL: true})
	standIn := consultest.NewStandIn(t, consultest.StandInOptions{Token: consultest.ManagementToken})
	consul.Register(consultest.Service{Name: "web", Port: 80})
	standIn.Register(consultest.Service{Name: "web", Port: 80})
	for _, token := range []string{"", consultest.ManagementToken, "7e577e57-0000-4000-8000-00000000dead"} {
		for _, path := range []string{
			"/v1/catalog/services", "/v1/health/service/web", "/v1/health/state/passing", "/v1/agent/self",
			"/v1/acl/token/self", "/v1/status/leader", "/v1/catalog/services?index=nothing", "/v1/catalog/services?dc=moon",
		} {
			type said struct {
				Status   int
				Filtered string
				Empty    bool
			}
			ask := func(at string) said {
				r := fetch(t.Context(), t, at+path, "X-Consul-Token", token)
				t.Logf("%s %q: %d %.100q", path, token, r.status, r.body)
				return said{r.status, r.filtered, len(r.body) < 4}
			}
			if diff := cmp.Diff(ask("http://"+consul.Addr), ask(standIn.URL)); diff != "" {
				t.Errorf("%s with token %q (-Consul +stand-in):\n%s", path, token, diff)
			}
		}
	}
}

func TestTokensAndPolicies(t *testing.T) {
	a := consultest.Start(t, consultest.Options{Program: program, ACL: true})
	a.Register(consultest.Service{Name: "web", Port: 80}, consultest.Service{Name: "db", Port: 5432})
	read := func(token string) reply {
		return fetch(t.Context(), t, "http://"+a.Addr+"/v1/health/service/web", "X-Consul-Token", token)
	}
	a.SetPolicy("some", `node_prefix "" { policy = "read" } service "web" { policy = "read" }`)
	accessor, secret := a.NewToken(time.Hour, "some")
	if got := read(secret); len(got.body) < 4 || got.filtered != "" {
		t.Errorf("with the policy: %s, filtered %q", got.body, got.filtered)
	}
	if got := fetch(t.Context(), t, "http://"+a.Addr+"/v1/catalog/services", "X-Consul-Token", secret); got.filtered != "true" {
		t.Errorf("the list is %s, filtered %q; want that it says so", got.body, got.filtered)
	}
	a.SetPolicy("some", `service "db" { policy = "read" }`)
	if got := read(secret); string(got.body) != "[]\n" && string(got.body) != "[]" {
		t.Errorf("with the policy cut: %s", got.body)
	}
	a.DeleteToken(accessor)
	if got := read(secret); got.status != http.StatusForbidden {
		t.Errorf("with the token deleted: %d %s", got.status, got.body)
	}
}

func TestDatacentersSeeEachOther(t *testing.T) {
	one := consultest.Start(t, consultest.Options{Program: program, Mode: consultest.Server})
	two := consultest.Start(t, consultest.Options{Program: program, Datacenter: "dc2", Mode: consultest.Server, JoinWAN: one})
	standIn1 := consultest.NewStandIn(t, consultest.StandInOptions{})
	standIn2 := consultest.NewStandIn(t, consultest.StandInOptions{Datacenter: "dc2"})
	standIn1.Federate(standIn2)
	two.Register(consultest.Service{Name: "far", Port: 80})
	standIn2.Register(consultest.Service{Name: "far", Port: 80})
	for _, at := range []string{"http://" + one.Addr, standIn1.URL} {
		if got := fetch(t.Context(), t, at+"/v1/health/service/far?dc=dc2"); len(got.body) < 4 {
			t.Errorf("%s: dc2 has %s", at, got.body)
		}
		if got := fetch(t.Context(), t, at+"/v1/health/service/far"); len(got.body) > 3 {
			t.Errorf("%s: dc1 has %s", at, got.body)
		}
	}
	standIn2.Down()
	if got := fetch(t.Context(), t, standIn1.URL+"/v1/health/service/far?dc=dc2"); got.status != http.StatusInternalServerError {
		t.Errorf("without a path to dc2: %d %s", got.status, got.body)
	}
}

func TestClientAgent(t *testing.T) {
	server := consultest.Start(t, consultest.Options{Program: program, Mode: consultest.Server, ACL: true})
	server.Register(consultest.Service{Name: "web", Port: 80})
	a := consultest.Start(t, consultest.Options{Program: program, Mode: consultest.Client, JoinLAN: server, ACL: true})
	services, _, err := a.Client().Catalog().Services(nil)
	if err != nil || len(services) != 2 {
		t.Errorf("services %v, error %v; want web and consul", services, err)
	}
}

// TestLeaderLost lets both lose their leader.
func TestLeaderLost(t *testing.T) {
	servers := consultest.StartServers(t, 2, consultest.Options{Program: program, Config: `performance { rpc_hold_timeout = "200ms" }`})
	standIn := consultest.NewStandIn(t, consultest.StandInOptions{})
	servers[0].Kill()
	standIn.LoseLeader()
	for _, at := range []string{"http://" + servers[1].Addr, standIn.URL} {
		eventually(t, at+": a stale read without a leader", func() bool {
			got := fetch(t.Context(), t, at+"/v1/catalog/services?stale")
			return got.status == http.StatusOK && got.leader == "false" && len(got.body) > 3
		})
		for _, consistency := range []string{"", "?consistent"} {
			if got := fetch(t.Context(), t, at+"/v1/catalog/services"+consistency); got.status != http.StatusInternalServerError {
				t.Errorf("%s: services%s: %+v", at, consistency, got)
			}
		}
		if got := fetch(t.Context(), t, at+"/v1/status/leader"); string(got.body) != `""` {
			t.Errorf("%s: the leader is %s", at, got.body)
		}
	}
}

// TestHTTP2 looks that many queries over HTTPS share a connection.
func TestHTTP2(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{Program: program, HTTPS: true})
	standIn := consultest.NewStandIn(t, consultest.StandInOptions{TLS: true})
	for _, s := range []struct {
		at string
		*http.Transport
	}{
		{"https://" + consul.HTTPSAddr, &http.Transport{TLSClientConfig: consul.TLS(), ForceAttemptHTTP2: true}},
		{standIn.URL, &http.Transport{TLSClientConfig: standIn.TLS(), ForceAttemptHTTP2: true}},
	} {
		if got := fetchBy(t.Context(), t, &http.Client{Transport: s.Transport}, s.at+"/v1/catalog/services"); got.proto != "HTTP/2.0" {
			t.Errorf("%s: it answers by %s", s.at, got.proto)
		}
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			all.Go(func() {
				fetchBy(ctx, t, &http.Client{Transport: s.Transport}, s.at+"/v1/health/service/web?index=99999&wait=1m")
			})
		}
		if s.at == standIn.URL {
			standIn.AwaitBlocking(100)
			if c := standIn.Counts(); c.Open != 1 || c.PeakBlocking != 100 || c.Requests[consultest.Instances] != 100 {
				t.Errorf("counts %+v", c)
			}
		}
		cancel()
		all.Wait()
		s.CloseIdleConnections()
	}
}

func TestFaults(t *testing.T) {
	hold := make(chan struct{})
	for _, tt := range []struct {
		name  string
		make  func(*consultest.StandIn)
		path  string
		check func(t *testing.T, s *consultest.StandIn, got reply)
	}{
		{
			"an answer of one's own", func(s *consultest.StandIn) {
				s.Fault(func(*http.Request) *consultest.Response {
					return &consultest.Response{Status: 503, Header: http.Header{"Retry-After": {"1"}}, Body: "busy", Delay: time.Millisecond}
				})
			}, "/v1/catalog/services", func(t *testing.T, _ *consultest.StandIn, got reply) {
				if got.status != 503 || string(got.body) != "busy" {
					t.Errorf("got %+v", got)
				}
			},
		},
		{
			"the true answer, held back", func(s *consultest.StandIn) {
				s.Fault(func(*http.Request) *consultest.Response { return &consultest.Response{Until: hold} })
				go func() {
					s.AwaitRequests(consultest.List, 1)
					close(hold)
				}()
			}, "/v1/catalog/services", func(t *testing.T, _ *consultest.StandIn, got reply) {
				if got.status != 200 || len(got.body) < 4 {
					t.Errorf("got %+v", got)
				}
			},
		},
		{
			"too many requests", func(s *consultest.StandIn) { s.TooMany(1) }, "/v1/catalog/services",
			func(t *testing.T, s *consultest.StandIn, got reply) {
				next := fetch(t.Context(), t, s.URL+"/v1/catalog/services")
				if got.status != 429 || next.status != 200 {
					t.Errorf("got %+v, then %+v", got, next)
				}
			},
		},
		{
			"part of the log was read", func(s *consultest.StandIn) { s.Replay("web") }, "/v1/health/service/db",
			func(t *testing.T, s *consultest.StandIn, got reply) {
				web := fetch(t.Context(), t, s.URL+"/v1/health/service/web?index=1")
				if string(got.body) != "[]" || len(web.body) < 4 {
					t.Errorf("db is %s, web is %s", got.body, web.body)
				}
				var full sync.WaitGroup
				full.Go(func() {
					if got := fetch(t.Context(), t, s.URL+"/v1/health/service/db?consistent"); len(got.body) < 4 {
						t.Errorf("consistently, db is %s", got.body)
					}
				})
				s.AwaitBlocking(1)
				s.EndReplay()
				full.Wait()
			},
		},
		{
			"hidden, and it says so", func(s *consultest.StandIn) { s.Filter(func(name string) bool { return name != "db" }) },
			"/v1/health/service/db", func(t *testing.T, _ *consultest.StandIn, got reply) {
				if string(got.body) != "[]" || got.filtered != "true" {
					t.Errorf("got %+v", got)
				}
			},
		},
		{
			"hidden, and it does not", func(s *consultest.StandIn) { s.FilterSilently(func(name string) bool { return name != "db" }) },
			"/v1/health/service/db", func(t *testing.T, _ *consultest.StandIn, got reply) {
				if string(got.body) != "[]" || got.filtered != "" {
					t.Errorf("got %+v", got)
				}
			},
		},
		{
			"a wait that is cut short", func(s *consultest.StandIn) { s.MaxWait(time.Millisecond) }, "/v1/health/state/critical?index=99999",
			func(t *testing.T, _ *consultest.StandIn, got reply) {
				if got.status != 200 || got.index == "99999" {
					t.Errorf("got %+v", got)
				}
			},
		},
		{
			"away and back", func(s *consultest.StandIn) { s.Down(); s.Up() }, "/v1/catalog/services",
			func(t *testing.T, _ *consultest.StandIn, got reply) {
				if got.status != 200 {
					t.Errorf("got %+v", got)
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := consultest.NewStandIn(t, consultest.StandInOptions{})
			s.Register(consultest.Service{Name: "web", Port: 80}, consultest.Service{Name: "db", Port: 5432})
			tt.make(s)
			tt.check(t, s, fetch(t.Context(), t, s.URL+tt.path))
		})
	}
}

func TestRewindAnswersWhatSleeps(t *testing.T) {
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	s.Register(consultest.Service{Name: "web", Port: 80})
	for _, path := range reads {
		is := fetch(t.Context(), t, s.URL+path)
		var all sync.WaitGroup
		all.Go(func() {
			got := fetch(t.Context(), t, s.URL+path+"?index="+is.index)
			was, _ := strconv.Atoi(is.index)
			if now, err := strconv.Atoi(got.index); err != nil || now >= was {
				t.Errorf("%s: index %s after %s", path, got.index, is.index)
			}
		})
		s.AwaitBlocking(1)
		s.Rewind(uint64(len(path) % 7))
		all.Wait()
		s.Register(consultest.Service{Name: "web", Port: len(path)})
		for range 20 {
			s.SetStatus("node-1", "web", api.HealthCritical)
			s.SetStatus("node-1", "web", api.HealthPassing)
			s.Register(consultest.Service{Name: "web", Port: 1}, consultest.Service{Name: "web", Port: 2}, consultest.Service{Name: "db"})
			s.Deregister("node-1", "db")
		}
	}
}

func TestConnectionsAreLimited(t *testing.T) {
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	s.LimitConnections(1)
	var first sync.WaitGroup
	first.Go(func() { fetch(t.Context(), t, s.URL+"/v1/catalog/services?index=99999&wait=10s") })
	s.AwaitBlocking(1)
	if got := fetch(t.Context(), t, s.URL+"/v1/catalog/services"); got.status != http.StatusTooManyRequests {
		t.Errorf("on the second connection: %+v", got)
	}
	s.MaxWait(time.Millisecond)
	s.Rewind(1)
	first.Wait()
}

func TestDownCutsWhatSleeps(t *testing.T) {
	s := consultest.NewStandIn(t, consultest.StandInOptions{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res, err := client.Get(s.URL + "/v1/catalog/services?index=99999")
		if err == nil {
			res.Body.Close()
			t.Error("it was answered")
		}
	}()
	s.AwaitBlocking(1)
	s.Down()
	<-ended
}

// eventually waits for what Consul tells nobody.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in time", what)
		}
	}
}
