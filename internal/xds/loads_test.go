package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadservice "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// paid is a name such as clusters of services have, of a service of the world.
const paid = "outbound|80||a.mesh"

// givenClusters are what a client was given: the cluster of a service, one of none, and one to this machine.
func givenClusters() (out envoy.Resources) {
	for name, services := range map[string][]mesh.Key{paid: {serviceKey("a")}, "PassthroughCluster": nil, "inbound|80||": {serviceKey("a")}} {
		out = out.With(envoy.Name(name), envoy.NewResource(cds, envoy.Name(name), newMessage(cds, name, "1"), "", services...))
	}
	return out
}

func locality(zone string, issued, good, bad, running uint64) *endpointv3.UpstreamLocalityStats {
	return &endpointv3.UpstreamLocalityStats{
		Locality: &corev3.Locality{Region: "eu", Zone: zone}, TotalIssuedRequests: issued, TotalSuccessfulRequests: good,
		TotalErrorRequests: bad, TotalRequestsInProgress: running,
	}
}

func reportOf(name string, localities ...*endpointv3.UpstreamLocalityStats) *endpointv3.ClusterStats {
	return &endpointv3.ClusterStats{ClusterName: name, UpstreamLocalityStats: localities, LoadReportInterval: durationpb.New(2 * time.Second)}
}

func newReporter(node string, kind envoy.Kind) *reporter {
	return &reporter{node: node, scope: &scope{key: envoy.Scope{Kind: kind}}, clusters: map[envoy.Name]*ledger{}}
}

var keys = cmp.Comparer(func(a, b mesh.Key) bool { return a == b })

func TestReportsAreSummed(t *testing.T) {
	var l loads
	now := time.Unix(1e9, 0)
	one, two := newReporter("web-1", envoy.Proxy), newReporter("web-2", envoy.Proxy)
	l.join(one)
	l.join(two)
	stats := reportOf(paid, locality("1", 10, 8, 1, 1), locality("2", 4, 4, 0, 0))
	stats.TotalDroppedRequests = 3
	stats.DroppedRequests = []*endpointv3.ClusterStats_DroppedRequests{{Category: "lb", DroppedCount: 2}}
	given := givenClusters()
	l.take(one, []*endpointv3.ClusterStats{stats, reportOf("meshd", locality("", 1, 1, 0, 0)), reportOf("PassthroughCluster")}, given, time.Second, now)
	l.take(two, []*endpointv3.ClusterStats{
		reportOf(paid, locality("2", 0, 2, 2, 0)), // of a client that does not say how many it has issued
		reportOf("PassthroughCluster", locality("", 2, 2, 0, 0)),
		reportOf("inbound|80||", locality("", 1, 1, 0, 0)),
	}, given, time.Second, now)

	eu := func(zone string) mesh.Locality { return mesh.Locality{Region: "eu", Zone: zone} }
	want := Loads{Interval: time.Second, Nodes: 2, Clusters: []ClusterLoad{
		{
			Cluster: "PassthroughCluster", Nodes: []string{"web-2"}, Load: Load{LoadRate{Requests: 1}, LoadCount{Requests: 2, Successes: 2}},
			Localities: []LocalityLoad{{eu(""), Load{LoadRate{Requests: 1}, LoadCount{Requests: 2, Successes: 2}}}},
		},
		{
			Cluster: "inbound|80||", Nodes: []string{"web-2"}, Load: Load{LoadRate{Requests: 0.5}, LoadCount{Requests: 1, Successes: 1}},
			Localities: []LocalityLoad{{eu(""), Load{LoadRate{Requests: 0.5}, LoadCount{Requests: 1, Successes: 1}}}},
		},
		{
			Cluster: paid, Service: serviceKey("a"), Port: 80, Nodes: []string{"web-1", "web-2"},
			Load: Load{LoadRate{Requests: 9, Errors: 1.5, Drops: 1.5, InProgress: 1}, LoadCount{Requests: 18, Successes: 14, Errors: 3, Drops: 3}},
			Localities: []LocalityLoad{
				{eu("1"), Load{LoadRate{Requests: 5, Errors: 0.5, InProgress: 1}, LoadCount{Requests: 10, Successes: 8, Errors: 1}}},
				{eu("2"), Load{LoadRate{Requests: 4, Errors: 1}, LoadCount{Requests: 8, Successes: 6, Errors: 2}}},
			},
			Drops: []DropLoad{{"lb", 1, 2}},
		},
	}}
	if diff := cmp.Diff(want, l.sum("", time.Second, now), keys); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if got := l.sum("web-1", time.Second, now); len(got.Clusters) != 1 || got.Nodes != 1 || got.Clusters[0].Total.Requests != 14 || got.Clusters[0].Rate.Requests != 7 {
		t.Errorf("one node: %+v", got)
	}
	if got := l.sum("web-3", time.Second, now); got.Nodes != 0 || len(got.Clusters) != 0 {
		t.Errorf("a node that does not report: %+v", got)
	}

	// The next report replaces the rates, and adds to the totals; a client that goes takes its rates with it.
	l.take(one, []*endpointv3.ClusterStats{reportOf(paid, locality("1", 2, 2, 0, 0))}, given, time.Second, now.Add(time.Second))
	l.leave(two)
	got := l.sum("", time.Second, now.Add(time.Second)).Clusters[2]
	if got.Total.Requests != 20 || got.Rate != (LoadRate{Requests: 1}) || !slices.Equal(got.Nodes, []string{"web-1"}) || got.Localities[1].Rate != (LoadRate{}) {
		t.Errorf("after another report: %+v", got)
	}
	// One that does not report any more does not send for ever what it sent last.
	if got := l.sum("", time.Second, now.Add(time.Minute)).Clusters[2]; got.Total.Requests != 20 || got.Rate != (LoadRate{}) || got.Nodes != nil {
		t.Errorf("after a minute of silence: %+v", got)
	}
}

func TestReportsOfWhatGoes(t *testing.T) {
	var l loads
	now := time.Unix(1e9, 0)
	r := newReporter("web-1", envoy.Proxy)
	l.join(r)
	given := givenClusters()
	stats := []*endpointv3.ClusterStats{reportOf(paid, locality("1", 2, 2, 0, 0))}
	l.take(r, stats, given, time.Second, now)
	given = given.Without(paid)
	l.take(r, stats, given, time.Second, now) // the last ones
	if got := l.sum("", time.Second, now).Clusters[0]; got.Total.Requests != 4 || got.Service != serviceKey("a") {
		t.Errorf("a cluster that has just gone: %+v", got)
	}
	l.take(r, nil, given, time.Second, now)
	l.take(r, nil, given, time.Second, now)
	if len(r.clusters) != 0 {
		t.Errorf("of a cluster that is gone is kept %v", r.clusters)
	}
	l.take(r, stats, given, time.Second, now)
	if got := l.sum("", time.Second, now).Clusters[0]; got.Total.Requests != 4 {
		t.Errorf("a cluster that nobody has been given: %+v", got)
	}
	l.prune(mesh.Services{}.With(serviceKey("a"), nil), time.Second, now)
	if len(l.totals) != 1 {
		t.Errorf("of a service that is there is kept %v", l.totals)
	}
	l.prune(mesh.Services{}, time.Second, now.Add(time.Second/2)) // not yet
	if len(l.totals) != 1 {
		t.Errorf("pruned again at once")
	}
	l.prune(mesh.Services{}, time.Second, now.Add(time.Second))
	if len(l.totals) != 0 {
		t.Errorf("of a service that is gone is kept %v", l.totals)
	}
}

// TestReportsAreBounded has a client that makes up names.
func TestReportsAreBounded(t *testing.T) {
	var l loads
	r := newReporter("web-1", envoy.GRPC)
	l.join(r)
	given := givenClusters()
	long := strings.Repeat("x", longestLoadText+1)
	stats := reportOf(paid, locality(long, 1, 1, 0, 0), locality("1", 1, 1, 0, 0))
	stats.UpstreamLocalityStats[1].Locality.SubZone = "a#3" // added for gRPC clients alone
	stats.DroppedRequests = append(stats.DroppedRequests, &endpointv3.ClusterStats_DroppedRequests{Category: long, DroppedCount: 1})
	for i := range 1000 {
		stats.UpstreamLocalityStats = append(stats.UpstreamLocalityStats, locality(fmt.Sprint("made-up-", i), 1, 1, 0, 0))
		stats.DroppedRequests = append(stats.DroppedRequests, &endpointv3.ClusterStats_DroppedRequests{Category: fmt.Sprint(i), DroppedCount: 1})
	}
	all := []*endpointv3.ClusterStats{stats}
	for i := range 1000 {
		all = append(all, reportOf(fmt.Sprint("made-up-", i), locality("1", 1, 1, 0, 0)))
	}
	all = append(all, &endpointv3.ClusterStats{ClusterName: paid, LoadReportInterval: durationpb.New(-1), UpstreamLocalityStats: stats.UpstreamLocalityStats})
	l.take(r, all, given, time.Second, time.Unix(1e9, 0))
	got := l.sum("", time.Second, time.Unix(1e9, 0))
	if len(got.Clusters) != 1 || got.Clusters[0].Total.Requests != 2004 {
		t.Fatalf("clusters %+v", got.Clusters)
	}
	c := got.Clusters[0]
	if len(c.Localities) != mostLoadLocalities || len(c.Drops) != mostLoadCategories {
		t.Errorf("%d localities and %d categories are kept", len(c.Localities), len(c.Drops))
	}
	if at := (mesh.Locality{Region: "eu", Zone: "1", SubZone: "a"}); c.Localities[0].Locality != at {
		t.Errorf("the first locality is %v, want %v", c.Localities[0].Locality, at)
	}
}

type lrsStream = grpc.BidiStreamingClient[loadservice.LoadStatsRequest, loadservice.LoadStatsResponse]

func (r *running) lrs(t testing.TB) lrsStream {
	t.Helper()
	s, err := loadservice.NewLoadReportingServiceClient(r.conn).StreamLoadStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLoadReportsOverGRPC(t *testing.T) {
	r := start(t, Options{LoadReportInterval: 20 * time.Millisecond})
	r.set(cds, "a", "1")
	s := r.lrs(t)
	send(t, s, &loadservice.LoadStatsRequest{Node: &corev3.Node{Id: "web-1", ClientFeatures: []string{sendsAllClusters}}})
	named := r.lrs(t)
	send(t, named, &loadservice.LoadStatsRequest{Node: &corev3.Node{Id: "web-2"}})
	await(t, "the nodes", func() bool { return r.Loads("").Nodes == 2 })
	r.publish() // before it nobody is told what to report
	if m := receive(t, s); !m.SendAllClusters || len(m.Clusters) != 0 || m.LoadReportingInterval.AsDuration() != 20*time.Millisecond || m.ReportEndpointGranularity {
		t.Errorf("one that sends all is told %v", m)
	}
	if m := receive(t, named); m.SendAllClusters || !slices.Equal(m.Clusters, []string{"a"}) {
		t.Errorf("one that has to be told names is told %v", m)
	}
	r.set(cds, "b", "1")
	r.publish()
	if m := receive(t, named); !slices.Equal(m.Clusters, []string{"a", "b"}) {
		t.Errorf("when there is one more, it is told %v", m)
	}
	if n := len(r.Nodes()); n != 0 {
		t.Errorf("%d nodes are connected; those that report alone are none", n)
	}
	if n := r.Stats().Scopes; n != 1 {
		t.Errorf("%d scopes, want 1", n)
	}
	send(t, s, &loadservice.LoadStatsRequest{ClusterStats: []*endpointv3.ClusterStats{reportOf("a", locality("1", 2, 2, 0, 0))}})
	await(t, "the report", func() bool { l := r.Loads("web-1"); return len(l.Clusters) == 1 && l.Clusters[0].Total.Requests == 2 })
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := named.CloseSend(); err != nil {
		t.Fatal(err)
	}
	await(t, "the nodes to be gone", func() bool { return r.Loads("").Nodes == 0 && r.Stats().Scopes == 0 })
	if got := r.Loads("").Clusters; len(got) != 1 || got[0].Total.Requests != 2 {
		t.Errorf("when all have gone: %+v", got)
	}

	bad := r.lrs(t)
	send(t, bad, &loadservice.LoadStatsRequest{})
	if _, err := bad.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "node: is missing") {
		t.Errorf("without a node: %v", err)
	}
}

func TestLoadReportsAreOffUnlessThereIsAnInterval(t *testing.T) {
	r := start(t, Options{})
	s := r.lrs(t)
	if _, err := s.Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want Unimplemented", err)
	}
}

func TestLoadReportsEndWithTheServer(t *testing.T) {
	r := start(t, Options{DrainTime: time.Minute, LoadReportInterval: time.Minute})
	r.publish()
	s := r.lrs(t)
	send(t, s, &loadservice.LoadStatsRequest{Node: node})
	receive(t, s)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v, want Unavailable", err)
	}
}

// A scope that is held for one who reports outlives its streams, with its base, and goes with the last.
func TestAHeldScopeStays(t *testing.T) {
	s := scopes{of: map[envoy.Scope]*scope{}}
	key := envoy.Scope{Namespace: "default", Addresses: "192.0.2.1"}
	x := &stream{wake: make(chan struct{}, 1)}
	member, held := s.join(key, x), s.hold(key)
	if member != held || len(s.of) != 2 {
		t.Fatalf("%d scopes", len(s.of))
	}
	s.leave(member, x)
	if len(s.of) != 2 {
		t.Errorf("%d scopes are left while one is held, want it and its base", len(s.of))
	}
	s.release(held)
	if len(s.of) != 0 {
		t.Errorf("%d scopes are left", len(s.of))
	}
	// The other way round.
	member, held = s.join(key, x), s.hold(key)
	s.release(held)
	if len(s.of) != 2 {
		t.Errorf("%d scopes are left with a stream, want it and its base", len(s.of))
	}
	s.leave(member, x)
	if len(s.of) != 0 {
		t.Errorf("%d scopes are left", len(s.of))
	}
}
