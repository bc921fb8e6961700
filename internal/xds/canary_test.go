package xds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// fleet is a server without gRPC, and delta clients of everything.
type fleet struct {
	t *testing.T
	*Server
	world
	nodes map[string]*member
}

type member struct {
	*stream
	held    [envoy.Types]map[envoy.Name]string
	rejects string // a version
}

const canaryTime = time.Minute

// canaries runs a test with n nodes that have the first view, of which a tenth go first.
func canaries(t *testing.T, n int, test func(f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{t: t, nodes: map[string]*member{}}
		f.Server = New(hclog.NewNullLogger(), Options{Canary: Canary{Share: 0.1, Time: canaryTime}, Translate: f.translate, DrainGrace: -1})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			f.scopes.canary.run(ctx)
			close(ended)
		}()
		f.service("a", "1")
		f.publish()
		for i := range n {
			f.connect(fmt.Sprintf("node-%d", i))
		}
		f.everyone(cds, "a", "1")
		test(f)
		cancel()
		<-ended
	})
}

func (f *fleet) publish() {
	view := f.view()
	view.Generation = f.generation()
	f.Apply(view)
	f.exchange()
}

func (f *fleet) generation() uint64 {
	if v := f.scopes.view.Load(); v != nil {
		return v.Generation + 1
	}
	return 1
}

func (f *fleet) connect(id string) *member { return f.connectWith(id, "") }

// connectWith connects a node that rejects a version.
func (f *fleet) connectWith(id, rejects string) *member {
	f.t.Helper()
	m := &member{
		stream: &stream{
			server: f.Server, protocol: Delta, only: allTypes, wake: make(chan struct{}, 1),
			session: session{protocol: Delta, retry: f.options.RetryRejected},
		},
		rejects: rejects,
	}
	for t := range m.held {
		m.held[t] = map[envoy.Name]string{}
	}
	for t := range envoy.Types {
		first := askDelta(t)
		first.Node = &corev3.Node{Id: id}
		m.send(f.t, t, first)
	}
	f.nodes[id] = m
	f.exchange()
	return m
}

func (m *member) send(t *testing.T, typ envoy.Type, q *discovery.DeltaDiscoveryRequest) {
	t.Helper()
	r, err := parseRequest(Delta, marshal(t, q))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.identify(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	m.request(typ, r)
}

// exchange lets all nodes take what there is for them.
func (f *fleet) exchange() {
	f.t.Helper()
	synctest.Wait()
	for _, m := range f.nodes {
		for {
			next := m.next(time.Now())
			if next == nil {
				break
			}
			g := decode2(f.t, next)
			answer := &discovery.DeltaDiscoveryRequest{TypeUrl: g.Type.URL(), ResponseNonce: g.Nonce}
			for _, n := range g.Resources {
				if g.versions[n] == m.rejects {
					answer.ErrorDetail = status.New(codes.InvalidArgument, string(n)+": no good").Proto()
					continue
				}
				m.held[g.Type][n] = g.versions[n]
			}
			for _, n := range g.Removed {
				delete(m.held[g.Type], n)
			}
			m.send(f.t, g.Type, answer)
		}
	}
}

// decode2 reads a delta response.
func decode2(t *testing.T, f *frame) *got { return decode(t, Delta, f, nil) }

// having are the nodes that have a resource with this content.
func (f *fleet) having(t envoy.Type, n envoy.Name, content string) (ids []string) {
	want := ""
	if content != "" {
		want = newResource(t, string(n), content).Version
	}
	for _, id := range slices.Sorted(maps.Keys(f.nodes)) {
		if f.nodes[id].held[t][n] == want {
			ids = append(ids, id)
		}
	}
	return ids
}

func (f *fleet) everyone(t envoy.Type, n envoy.Name, content string) {
	f.t.Helper()
	if got := f.having(t, n, content); len(got) != len(f.nodes) {
		f.t.Fatalf("%s %q with content %q is at %q, want it at all", t, n, content, got)
	}
}

func (f *fleet) only(ids []string, t envoy.Type, n envoy.Name, content string) {
	f.t.Helper()
	if got := f.having(t, n, content); !slices.Equal(got, ids) {
		f.t.Fatalf("%s %q with content %q is at %q, want it at %q", t, n, content, got, ids)
	}
}

func (f *fleet) wait(d time.Duration) {
	f.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	f.exchange()
}

func TestACanaryIsFirst(t *testing.T) {
	canaries(t, 20, func(f *fleet) {
		f.service("b", "1")
		f.publish()
		first := f.having(cds, "b", "1")
		if len(first) != 2 {
			t.Fatalf("%q have the change, want two", first)
		}
		if st := f.Canary(); st.Trying != 2 || st.Rest != 1 || !slices.Equal(st.Nodes, first) || st.Of != 20 {
			t.Errorf("status %+v", st)
		}
		f.only(first, rds, "b", "1")
		f.wait(canaryTime - time.Second)
		f.only(first, cds, "b", "1")
		f.wait(time.Second)
		f.everyone(cds, "b", "1")
		f.everyone(rds, "b", "1")
		if st := f.Canary(); st.Trying != 0 || len(f.Problems()) != 0 {
			t.Errorf("status %+v, problems %v", st, f.Problems())
		}

		f.remove(cds, "b") // the same ones are first again
		f.publish()
		f.only(first, cds, "b", "")
		f.wait(canaryTime)
		f.everyone(cds, "b", "")
	})
}

func TestARejectionStopsARollOut(t *testing.T) {
	canaries(t, 20, func(f *fleet) {
		for _, m := range f.nodes {
			m.rejects = newResource(lds, "a", "bad").Version
		}
		f.set(lds, "a", "bad")
		f.set(cds, "b", "1")
		f.publish()
		first := f.having(cds, "b", "1")
		f.wait(10 * canaryTime)
		f.only(first, cds, "b", "1")
		f.everyone(lds, "a", "1")
		st := f.Canary()
		if !strings.Contains(st.StoppedFor, "rejected listeners (a: no good)") {
			t.Errorf("status %+v", st)
		}
		problems := f.Problems()
		if !slices.ContainsFunc(problems, func(p mesh.Problem) bool {
			return p.Code == "canary-stopped" && strings.Contains(p.Message, "generation 2 is with 2 of 20 nodes")
		}) {
			t.Errorf("problems %v", problems)
		}

		// A node that comes, and a canary that comes anew, get what the rest has.
		f.connect("late")
		f.nodes[first[0]].leave(errors.New("lost"))
		f.connect(first[0])
		f.only(first[1:], cds, "b", "1")

		// Endpoints do not wait.
		f.set(eds, "a", "2")
		f.publish()
		f.everyone(eds, "a", "2")
		f.only(first[1:], cds, "b", "1")
		if st := f.Canary(); st.StoppedFor == "" || st.Trying != 2 {
			t.Errorf("status %+v, want it stopped still", st)
		}

		f.set(lds, "a", "good")
		f.publish()
		f.wait(canaryTime)
		f.everyone(lds, "a", "good")
		f.everyone(cds, "b", "1")
		if st := f.Canary(); st.Trying != 0 || len(f.Problems()) != 0 {
			t.Errorf("status %+v, problems %v", st, f.Problems())
		}
	})
}

func TestALostCanaryStopsARollOut(t *testing.T) {
	canaries(t, 20, func(f *fleet) {
		f.set(cds, "b", "1")
		f.publish()
		first := f.having(cds, "b", "1")
		for id, m := range f.nodes {
			if !slices.Contains(first, id) { // does not matter
				m.leave(errors.New("lost"))
				delete(f.nodes, id)
				break
			}
		}
		if st := f.Canary(); st.StoppedFor != "" {
			t.Fatalf("status %+v, want it going on", st)
		}
		f.nodes[first[0]].leave(errors.New("lost"))
		delete(f.nodes, first[0])
		f.wait(2 * canaryTime)
		f.only(first[1:], cds, "b", "1")
		if st := f.Canary(); st.StoppedFor != fmt.Sprintf("node %q left", first[0]) {
			t.Errorf("status %+v", st)
		}
		f.remove(cds, "b") // taken back: at once, since the others have nothing to try
		f.publish()
		f.everyone(cds, "b", "")
		if st := f.Canary(); st.Trying != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// What a node has rejected before a change was tried on it is tried again meanwhile, and says nothing of the change.
func TestAnOldRejectionDoesNotStopARollOut(t *testing.T) {
	canaries(t, 20, func(f *fleet) {
		f.set(cds, "b", "1")
		f.publish()
		first := f.having(cds, "b", "1")
		f.wait(canaryTime)
		f.nodes[first[0]].leave(errors.New("lost"))
		m := f.connectWith(first[0], newResource(lds, "a", "1").Version)
		f.wait(retry / 2)
		f.set(cds, "b", "2")
		f.publish()
		f.only(first, cds, "b", "2")
		tried := f.Stats().Types[lds].Rejections
		f.wait(retry / 2)
		if f.Stats().Types[lds].Rejections != tried+1 || m.held[lds]["a"] != "" {
			t.Fatal("the listener was not tried again")
		}
		if st := f.Canary(); st.StoppedFor != "" {
			t.Fatalf("status %+v, want it going on", st)
		}
		f.wait(canaryTime)
		f.everyone(cds, "b", "2")
	})
}

func TestEndpointsDoNotWaitForCanaries(t *testing.T) {
	canaries(t, 20, func(f *fleet) {
		f.service("same", "1")
		f.publish()
		f.wait(canaryTime)
		f.set(eds, "a", "2") // alone it needs no canary
		f.publish()
		f.everyone(eds, "a", "2")
		if st := f.Canary(); st.Trying != 0 {
			t.Errorf("status %+v", st)
		}
		f.set(eds, "a", "3") // and with other changes not either
		f.set(cds, "same", "2")
		f.set(eds, "same", "2")
		f.publish()
		first := f.having(cds, "same", "2")
		if len(first) != 2 {
			t.Fatalf("%q have the change", first)
		}
		f.everyone(eds, "a", "3")
		f.only(first, eds, "same", "2") // these belong to the new cluster
		for i := range 5 {
			f.wait(canaryTime / 10)
			f.set(eds, "a", fmt.Sprint(4+i))
			f.publish()
			f.everyone(eds, "a", fmt.Sprint(4+i))
		}
		f.only(first, cds, "same", "2")
		f.wait(canaryTime / 2)
		f.everyone(cds, "same", "2")
		f.everyone(eds, "same", "2")
		f.everyone(eds, "a", "8")
	})
}

func TestChangesDuringATrialAreTriedNext(t *testing.T) {
	canaries(t, 20, func(f *fleet) {
		f.set(cds, "b", "1")
		f.publish()
		first := f.having(cds, "b", "1")
		f.wait(canaryTime / 2)
		f.set(cds, "b", "2")
		f.publish()
		f.only(first, cds, "b", "1")
		f.connect("late")
		f.only(nil, cds, "b", "2")
		f.wait(canaryTime / 2)
		for id, m := range f.nodes {
			if m.canary.Load() != (m.held[cds]["b"] == newResource(cds, "b", "2").Version) || !m.canary.Load() && m.held[cds]["b"] != newResource(cds, "b", "1").Version {
				t.Errorf("node %q has %v; canary %t", id, m.held[cds], m.canary.Load())
			}
		}
		f.wait(canaryTime)
		f.everyone(cds, "b", "2")
	})
}

func TestAnotherScopeHasItsOwnCanary(t *testing.T) {
	canaries(t, 5, func(f *fleet) {
		f.connect("sidecar~10.0.0.1~other.elsewhere~elsewhere.svc.cluster.local") // a scope of its own
		f.set(cds, "b", "1")
		f.publish()
		if got := f.having(cds, "b", "1"); len(got) != 2 || !slices.ContainsFunc(got, func(id string) bool { return strings.HasPrefix(id, "sidecar~") }) {
			t.Errorf("%q have the change, want one of each scope", got)
		}
		// A node of a scope that there was none of gets what the rest has.
		f.connect("sidecar~10.0.0.2~third.third~third.svc.cluster.local")
		if got := f.having(cds, "b", "1"); len(got) != 2 {
			t.Errorf("%q have the change", got)
		}
		f.wait(canaryTime)
		f.everyone(cds, "b", "1")
	})
}

func TestCanaryCount(t *testing.T) {
	for _, tt := range []struct {
		c       Canary
		n, want int
	}{
		{Canary{Share: 0.1}, 100, 10},
		{Canary{Share: 0.01}, 5, 1},
		{Canary{Nodes: 3}, 100, 3},
		{Canary{Nodes: 3}, 2, 2},
		{Canary{Share: 0.5, Nodes: 3}, 100, 50},
	} {
		if got := tt.c.count(tt.n); got != tt.want {
			t.Errorf("%+v of %d: %d, want %d", tt.c, tt.n, got, tt.want)
		}
	}
}
