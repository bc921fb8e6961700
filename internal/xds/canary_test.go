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
	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// fleet is a server without gRPC, and clients of everything.
type fleet struct {
	t tester
	*Server
	world
	nodes map[string]*member
	// If set, saw is told of each response when the node has it, of what it has rejected of it, and of what it had before.
	saw func(m *member, g *got, bad []envoy.Name, old map[envoy.Name]string)
}

type member struct {
	*stream
	held     [envoy.Types]map[envoy.Name]string
	versions [envoy.Types]string // state of the world: of the last list that it accepted
	rejects  func(version string) bool
}

const canaryTime = time.Minute

// canaries runs a test with n nodes that have the first view, of which a tenth go first.
func canaries(t *testing.T, n int, test func(f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f, stop := newFleet(t, Canary{Share: 0.1, Time: canaryTime})
		defer stop()
		f.service("a", "1")
		f.publish()
		for i := range n {
			f.connect(fmt.Sprintf("node-%d", i))
		}
		f.everyone(cds, "a", "1")
		test(f)
	})
}

// newFleet is one without nodes, whose roll-outs go on until it is stopped.
func newFleet(t tester, c Canary) (f *fleet, stop func()) {
	f = &fleet{t: t, nodes: map[string]*member{}}
	f.Server = New(hclog.NewNullLogger(), Options{Canary: c, Translate: f.translate, DrainGrace: -1})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		f.scopes.canary.run(ctx)
		close(ended)
	}()
	return f, func() {
		cancel()
		<-ended
	}
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

func (f *fleet) connect(id string) *member {
	return f.join(id, Delta, func(string) bool { return false })
}

// join connects a node.
func (f *fleet) join(id string, p Protocol, rejects func(version string) bool) *member {
	f.t.Helper()
	m := f.member(p, rejects)
	for t := range envoy.Types {
		m.send(f.t, t, id, "", "")
	}
	f.nodes[id] = m
	f.exchange()
	return m
}

// member is a node that has not asked for anything yet.
func (f *fleet) member(p Protocol, rejects func(version string) bool) *member {
	m := &member{
		stream: &stream{
			server: f.Server, protocol: p, only: allTypes, wake: make(chan struct{}, 1),
			session: session{protocol: p, retry: f.options.RetryRejected},
		},
		rejects: rejects,
	}
	for t := range m.held {
		m.held[t] = map[envoy.Name]string{}
	}
	return m
}

// lose ends a node's stream.
func (f *fleet) lose(id string) {
	f.nodes[id].leave(errors.New("lost"))
	delete(f.nodes, id)
}

// send asks for all of a type: the first request of a stream says who it is, others answer a response.
func (m *member) send(t tester, typ envoy.Type, id, nonce, why string) {
	t.Helper()
	var node *corev3.Node
	if id != "" {
		node = &corev3.Node{Id: id}
	}
	detail := status.New(codes.InvalidArgument, why).Proto()
	if why == "" {
		detail = nil
	}
	var q proto.Message = &discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: typ.URL(), ResponseNonce: nonce, ErrorDetail: detail}
	if m.protocol == SotW {
		q = &discovery.DiscoveryRequest{Node: node, TypeUrl: typ.URL(), ResponseNonce: nonce, ErrorDetail: detail, VersionInfo: m.versions[typ]}
	}
	m.say(t, typ, q)
}

func (m *member) say(t tester, typ envoy.Type, q proto.Message) {
	t.Helper()
	r, err := parseRequest(m.protocol, marshal(t, q))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.identify(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	m.request(typ, r)
}

// exchange lets all nodes take what there is for them.
func (f *fleet) exchange() {
	f.t.Helper()
	synctest.Wait()
	for _, id := range slices.Sorted(maps.Keys(f.nodes)) {
		m := f.nodes[id]
		for {
			next := m.next(time.Now())
			if next == nil {
				break
			}
			f.take(m, f.decode(m, next))
		}
	}
}

func (f *fleet) decode(m *member, next *frame) *got {
	f.t.Helper()
	return decode(f.t, m.protocol, next, func(t envoy.Type, n envoy.Name, r proto.Message) string {
		return newResource(t, string(n), contentOf(r)).Version
	})
}

// take lets a node take a response, but for what it rejects, as an Envoy does.
func (f *fleet) take(m *member, g *got) {
	f.t.Helper()
	old := maps.Clone(m.held[g.Type])
	if m.protocol == SotW && order[g.Type].full {
		m.held[g.Type] = map[envoy.Name]string{}
	}
	var bad []envoy.Name
	for _, n := range g.Resources {
		v := g.versions[n]
		if m.rejects(v) {
			bad = append(bad, n)
			v = old[n]
		}
		if v != "" {
			m.held[g.Type][n] = v
		}
	}
	for _, n := range g.Removed {
		delete(m.held[g.Type], n)
	}
	if f.saw != nil {
		f.saw(m, g, bad, old)
	}
	if len(bad) > 0 {
		m.send(f.t, g.Type, "", g.Nonce, strings.Join(text(bad), ": no good, ")+": no good")
		return
	}
	m.versions[g.Type] = g.Version
	m.send(f.t, g.Type, "", g.Nonce, "")
}

// is is a taste that rejects a version.
func is(version string) func(string) bool { return func(v string) bool { return v == version } }

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
			m.rejects = is(newResource(lds, "a", "bad").Version)
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
		f.lose(first[0])
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
		for id := range f.nodes {
			if !slices.Contains(first, id) { // does not matter
				f.lose(id)
				break
			}
		}
		if st := f.Canary(); st.StoppedFor != "" {
			t.Fatalf("status %+v, want it going on", st)
		}
		f.lose(first[0])
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
		f.lose(first[0])
		m := f.join(first[0], Delta, is(newResource(lds, "a", "1").Version))
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

func TestAScopeThatIsNewInATrialIsNotAheadOfIt(t *testing.T) {
	canaries(t, 5, func(f *fleet) {
		f.set(cds, "b", "1")
		f.publish()
		f.set(cds, "b", "2") // is tried next
		f.publish()
		for i := range 3 {
			f.connect(fmt.Sprintf("sidecar~10.0.0.%d~other.elsewhere~elsewhere.svc.cluster.local", i))
		}
		f.wait(canaryTime)
		if got := f.having(cds, "b", "1"); len(got) != 4+2 {
			t.Errorf("%q have what was tried, want all but one of each base scope", got)
		}
		f.wait(canaryTime)
		f.everyone(cds, "b", "2")
	})
}

func TestWhoIsNoCanaryAnyMoreHasWhatTheRestHas(t *testing.T) {
	canaries(t, 5, func(f *fleet) {
		for _, m := range f.nodes {
			m.rejects = is(newResource(lds, "a", "bad").Version)
		}
		f.set(lds, "a", "bad")
		f.set(cds, "b", "1")
		f.publish()
		first := f.having(cds, "b", "1")[0]
		before := "before"
		for hashOf(before) > hashOf(first) {
			before += "!"
		}
		f.connect(before)
		f.set(lds, "a", "2")
		f.set(cds, "b", "2")
		f.publish()
		f.only([]string{before}, cds, "b", "2")
		f.only(nil, cds, "b", "1")
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
