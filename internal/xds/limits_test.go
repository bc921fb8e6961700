package xds

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/meshd/meshd/internal/mesh"
)

// codesOf are the codes of problems, each once.
func codesOf(problems []mesh.Problem) (codes []string) {
	for _, p := range problems {
		codes = append(codes, p.Code)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

func TestStreamsThatAreTooManyAreRefused(t *testing.T) {
	r := start(t, Options{MaxStreams: 3})
	r.service("a", "1")
	r.publish()
	ctx, cancel := context.WithCancel(t.Context())
	var open []deltaStream
	for range 3 {
		s, err := discovery.NewAggregatedDiscoveryServiceClient(r.conn).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		send(t, s, askDelta(cds))
		send(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: cds.URL(), ResponseNonce: receive(t, s).Nonce})
		open = append(open, s)
	}
	refused := r.delta(t)
	_, err := refused.Recv()
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "raise max-streams") {
		t.Errorf("the stream that is one too many ends with %v", err)
	}
	if n := strings.Count(r.logs.String(), "nodes are refused"); n != 1 {
		t.Errorf("it is logged %d times, want once", n)
	}
	if got := r.Stats().Refused; got != 1 {
		t.Errorf("%d were refused, want 1", got)
	}
	if got := codesOf(r.Problems()); !slices.Equal(got, []string{"too-many-streams"}) {
		t.Errorf("the problems are %q", got)
	}
	r.set(cds, "a", "2")
	r.publish()
	for _, s := range open {
		receive(t, s) // they go on
	}
	cancel()
	await(t, "all have gone", func() bool { return r.limits.streams.Load() == 0 })
	s := r.delta(t)
	send(t, s, askDelta(cds))
	receive(t, s)
}

// TestConnectionsThatAreTooManyAreClosed opens connections and says nothing on them, which does not hold up the end either.
func TestConnectionsThatAreTooManyAreClosed(t *testing.T) {
	s, l := New(hclog.NewNullLogger(), Options{MaxStreams: 2, DrainTime: 100 * time.Millisecond}), loopback(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()
	defer func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(greeting / 2):
			t.Errorf("it does not end as long as a connection says nothing, but then: %v", <-ended)
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	first := dial()
	dial()
	third := dial()
	if err := third.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := third.Read(make([]byte, 100)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the third connection is not closed: %v", err)
	}
	first.Close()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ads, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	send(t, ads, ask(cds))
	await(t, "a stream", func() bool { return s.limits.streams.Load() == 1 })
}

func TestSpend(t *testing.T) {
	quota, now := newQuota(10), time.Now()
	for range 50 {
		if wait := spend(quota, 0, now); wait != 0 {
			t.Fatalf("within the burst it waits %s", wait)
		}
	}
	if wait := spend(quota, requestUnit-1, now); wait != 100*time.Millisecond {
		t.Errorf("after the burst it waits %s, want a tenth of a second", wait)
	}
	if wait := spend(quota, requestUnit, now); wait != 300*time.Millisecond {
		t.Errorf("one of two units waits %s, want 0.2 s more", wait)
	}
	now = now.Add(time.Minute)
	if wait := spend(quota, 1<<30, now); wait != 0 {
		t.Errorf("what is larger than the burst waits %s", wait)
	}
	if wait := spend(quota, 0, now); wait != 100*time.Millisecond {
		t.Errorf("after it one waits %s, want a tenth of a second", wait)
	}
}

// TestAClientThatSendsForever sends as fast as it can. It is slowed down, and others are served.
func TestAClientThatSendsForever(t *testing.T) {
	r := start(t, Options{MaxRequestRate: 20})
	r.service("a", "1")
	r.publish()
	wild := r.delta(t)
	send(t, wild, askDelta(cds))
	go func() {
		for wild.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: cds.URL(), ResourceNamesUnsubscribe: []string{"none"}}) == nil {
		}
	}()
	await(t, "the wild one is told of", func() bool { return slices.Equal(codesOf(r.Problems()), []string{"node-throttled"}) })
	if n := r.Nodes(); len(n) != 1 || n[0].Throttled.IsZero() {
		t.Errorf("the nodes are %+v", n)
	}
	calm := r.sotw(t)
	send(t, calm, ask(cds))
	m := receive(t, calm)
	for i := range 10 {
		send(t, calm, &discovery.DiscoveryRequest{TypeUrl: cds.URL(), VersionInfo: m.VersionInfo, ResponseNonce: m.Nonce})
		r.service("a", nonceOf(uint64(i+2)))
		r.publish()
		m = receive(t, calm)
	}
}

func TestANodeThatConnectsAgainAndAgain(t *testing.T) {
	l, now := limits{most: 3}, time.Now()
	s := &Server{limits: limits{}}
	told := func(now time.Time) []string {
		s.limits.visits = l.visits
		var messages []string
		for _, p := range s.conduct(now) {
			messages = append(messages, p.Code+": "+p.Message)
		}
		return messages
	}
	for range manyVisits {
		l.visit("web-1", "10.0.0.1:1000", now)
		l.visit("web-2", "10.0.0.2:1000", now)
	}
	if got := told(now); got != nil {
		t.Errorf("after %d visits it says %q", manyVisits, got)
	}
	l.visit("web-1", "10.0.0.1:1001", now)
	want := []string{`node-reconnects: node "web-1" at 10.0.0.1 connected more than 30 times within a minute; see in its log why, and whether two have one id`}
	if got := told(now); !slices.Equal(got, want) {
		t.Errorf("it says %q, want %q", got, want)
	}
	l.visit("web-2", "10.0.0.2:1002", now)
	if got := told(now); len(got) != 1 || !strings.Contains(got[0], `node "web-1" at 10.0.0.1, and 1 more, connected`) {
		t.Errorf("of two it says %q", got)
	}
	if got := told(now.Add(lately)); got != nil {
		t.Errorf("a minute later it says %q", got)
	}
	// Of those that are not there any more nothing is kept in the long run.
	for i := range 100 {
		now = now.Add(lately)
		l.visit("pod-"+nonceOf(uint64(i)), "10.0.0.3:1", now)
	}
	if len(l.visits) > 2*l.most {
		t.Errorf("%d nodes are remembered", len(l.visits))
	}
}

func TestANodeThatDoesNotAnswer(t *testing.T) {
	r := start(t, Options{})
	r.service("a", "1")
	r.publish()
	s := r.delta(t)
	send(t, s, askDelta(cds))
	m := receive(t, s)
	now := time.Now()
	if got := r.conduct(now.Add(lately / 2)); got != nil {
		t.Errorf("half a minute later it says %v", got)
	}
	if got := codesOf(r.conduct(now.Add(2 * lately))); !slices.Equal(got, []string{"node-silent"}) {
		t.Errorf("two minutes later it says %q", got)
	}
	send(t, s, &discovery.DeltaDiscoveryRequest{TypeUrl: cds.URL(), ResponseNonce: m.Nonce})
	await(t, "the answer", func() bool { return r.Stats().Pending == 0 })
	if got := r.conduct(now.Add(2 * lately)); got != nil {
		t.Errorf("after the answer it says %v", got)
	}
}

// TestHugeRequests sends a request of 64 MiB less a little, which is taken, and one that is larger, which ends the stream.
func TestHugeRequests(t *testing.T) {
	r := start(t, Options{})
	r.service("a", "1")
	r.publish()
	locator := &discovery.ResourceLocator{Name: strings.Repeat("n", 1<<20)} // which nobody reads
	huge := askDelta(cds)
	for range 63 {
		huge.ResourceLocatorsSubscribe = append(huge.ResourceLocatorsSubscribe, locator)
	}
	s, err := discovery.NewAggregatedDiscoveryServiceClient(r.conn).DeltaAggregatedResources(t.Context(), grpc.MaxCallSendMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	send(t, s, huge)
	if m := receive(t, s); len(m.Resources) != 1 {
		t.Errorf("%d clusters are sent, want 1", len(m.Resources))
	}
	huge.ResourceLocatorsSubscribe = append(huge.ResourceLocatorsSubscribe, locator, locator)
	if err := s.Send(huge); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a larger one ends with %v", err)
	}
	other := r.sotw(t)
	send(t, other, ask(cds))
	receive(t, other)
}

// TestTenThousandConnects has clients come and go, each in one of the ways in which clients go, and sees to it that nothing stays of them.
func TestTenThousandConnects(t *testing.T) {
	r := startOn(t, Options{MaxStreams: 200}, loopback(t))
	for i := range 20 {
		r.service("s"+nonceOf(uint64(i)), "1")
	}
	r.publish()
	visit := func(n int) {
		conn, err := r.dial()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		id := "node-" + nonceOf(uint64(n%500))
		first := askDelta(eds, "s1", id) // each has names of its own
		first.Node = &corev3.Node{Id: id, Locality: &corev3.Locality{Zone: nonceOf(uint64(n % 7))}}
		if err := s.Send(first); err != nil {
			t.Error(err)
			return
		}
		if n%4 == 0 {
			return // without having read anything
		}
		m, err := s.Recv()
		if err != nil {
			t.Error(err)
			return
		}
		if n%4 == 1 {
			return // without an answer
		}
		answer := &discovery.DeltaDiscoveryRequest{TypeUrl: eds.URL(), ResponseNonce: m.Nonce}
		if n%4 == 2 {
			answer.ErrorDetail = &rpcstatus.Status{Message: "not this"}
		}
		if err := s.Send(answer); err != nil {
			t.Error(err)
			return
		}
		if n%8 == 3 {
			if err := s.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("a stream ends with %v", err)
			}
		}
	}
	next := 0
	connects := func(n int) (heap uint64) {
		var group errgroup.Group
		group.SetLimit(20)
		for range n {
			n := next
			next++
			group.Go(func() error { visit(n); return nil })
		}
		_ = group.Wait() // it has no errors
		await(t, "all have gone", func() bool { return r.limits.streams.Load() == 0 })
		r.logs.clear()
		runtime.GC()
		runtime.GC() // what a pool holds is gone after the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := connects(2000)
	after := connects(8000)
	if after > before+1<<20 {
		t.Errorf("after 2,000 connects the heap has %d bytes, and 8,000 later %d", before, after)
	}
	if nodes, st := r.Nodes(), r.Stats(); len(nodes) != 0 || st.Scopes != 0 {
		t.Errorf("%d nodes and %d scopes are left", len(nodes), st.Scopes)
	}
}
