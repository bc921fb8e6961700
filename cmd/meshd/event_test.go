package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/xds"
)

// place is an endpoint of a load assignment in a test.
type place struct {
	host     string
	weight   uint32
	health   corev3.HealthStatus
	region   string
	priority uint32
}

func assignment(name string, places ...place) *endpointv3.ClusterLoadAssignment {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for _, p := range places {
		e := &endpointv3.LbEndpoint{
			HealthStatus: p.health,
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: p.host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080},
				}}},
			}},
		}
		if p.weight > 0 {
			e.LoadBalancingWeight = wrapperspb.UInt32(p.weight)
		}
		a.Endpoints = append(a.Endpoints, &endpointv3.LocalityLbEndpoints{
			Locality: &corev3.Locality{Region: p.region}, Priority: p.priority, LbEndpoints: []*endpointv3.LbEndpoint{e},
		})
	}
	return a
}

func edsCluster(name string, timeout time.Duration) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}, ConnectTimeout: durationpb.New(timeout),
	}
}

// answer is a response of a delta server to a feed.
func answer(t *testing.T, typ envoy.Type, version string, messages ...proto.Message) response {
	t.Helper()
	r := response{typ: typ, version: version + "-of-the-type", nonce: "n" + version}
	for _, m := range messages {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		r.resources = append(r.resources, resource{version + "-of-the-resource", a})
	}
	return r
}

// said gives what a teller prints of responses.
func said(t *testing.T, tell teller, f *feed, responses ...response) string {
	t.Helper()
	var out bytes.Buffer
	tell.out, tell.aside = &out, &out
	tell.now = func() time.Time { return time.Date(2026, 5, 1, 10, 31, 2, 0, time.UTC) }
	for _, r := range responses {
		all, _, err := f.take(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			if err := tell.news(f, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out.String()
}

func TestTailPrints(t *testing.T) {
	const pay = "outbound|80||pay.mesh.internal"
	first := func() []response {
		return []response{
			answer(t, envoy.Cluster, "1", edsCluster(pay, time.Second)),
			answer(t, envoy.Endpoints, "1", assignment(pay, place{host: "10.0.0.1"}, place{host: "10.0.0.2"})),
			answer(t, envoy.Listener, "1", &listenerv3.Listener{Name: "l"}),
		}
	}
	removal := func(typ envoy.Type, names ...string) response {
		return response{typ: typ, version: "9", removed: names}
	}
	for _, tt := range []struct {
		name  string
		tell  teller
		after []response
		want  string // after the first state
	}{
		{
			"endpoints that come, go and fall ill",
			teller{},
			[]response{answer(t, envoy.Endpoints, "2", assignment(pay, place{host: "10.0.0.1", health: corev3.HealthStatus_UNHEALTHY}, place{host: "10.0.0.3"}))},
			"10:31:02  endpoints  ~ outbound|80||pay.mesh.internal  +10.0.0.3:8080  -10.0.0.2:8080  10.0.0.1:8080 unhealthy  (version 2-of-the)\n",
		},
		{
			"an endpoint that is well again",
			teller{},
			[]response{
				answer(t, envoy.Endpoints, "2", assignment(pay, place{host: "10.0.0.1", health: corev3.HealthStatus_DRAINING})),
				answer(t, envoy.Endpoints, "3", assignment(pay, place{host: "10.0.0.1", health: corev3.HealthStatus_HEALTHY})),
			},
			"10:31:02  endpoints  ~ outbound|80||pay.mesh.internal  -10.0.0.2:8080  10.0.0.1:8080 draining  (version 2-of-the)\n" +
				"10:31:02  endpoints  ~ outbound|80||pay.mesh.internal  10.0.0.1:8080 healthy  (version 3-of-the)\n",
		},
		{
			"endpoints with other facts",
			teller{},
			[]response{answer(t, envoy.Endpoints, "2", assignment(pay, place{host: "10.0.0.1", weight: 5, region: "eu", priority: 1}, place{host: "10.0.0.2"}, place{host: "10.0.0.3", weight: 2, region: "us", priority: 2, health: corev3.HealthStatus_DEGRADED}))},
			"10:31:02  endpoints  ~ outbound|80||pay.mesh.internal  +10.0.0.3:8080 degraded weight 2 us priority 2  10.0.0.1:8080 weight 1 -> 5 locality none -> eu priority 0 -> 1  (version 2-of-the)\n",
		},
		{
			"a load assignment that is another, with the same endpoints",
			teller{},
			[]response{answer(t, envoy.Endpoints, "2", func() proto.Message {
				a := assignment(pay, place{host: "10.0.0.1"}, place{host: "10.0.0.2"})
				a.Policy = &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(100)}
				return a
			}())},
			"10:31:02  endpoints  ~ outbound|80||pay.mesh.internal  (version 2-of-the)\n" +
				"            + policy: {\"overprovisioning_factor\":100}\n",
		},
		{
			"a cluster with another field",
			teller{},
			[]response{answer(t, envoy.Cluster, "2", edsCluster(pay, 2*time.Second))},
			"10:31:02  clusters   ~ outbound|80||pay.mesh.internal  (version 2-of-the)\n" +
				"            ~ connect_timeout: \"1s\" -> \"2s\"\n",
		},
		{
			"a cluster that comes, and goes with its endpoints",
			teller{},
			[]response{
				answer(t, envoy.Cluster, "2", edsCluster("new", time.Second)),
				answer(t, envoy.Endpoints, "2", assignment("new", place{host: "10.0.0.9"})),
				removal(envoy.Cluster, "new"),
			},
			"10:31:02  clusters   + new  (version 2-of-the)\n" +
				"10:31:02  endpoints  + new  +10.0.0.9:8080  (version 2-of-the)\n" +
				"10:31:02  clusters   - new  (version 9)\n" +
				"10:31:02  endpoints  - new  (version 2-of-the)\n",
		},
		{
			"what is new with all fields",
			teller{full: true, types: []string{"clusters"}},
			[]response{answer(t, envoy.Cluster, "2", &clusterv3.Cluster{Name: "new"})},
			"10:31:02  clusters   + new  (version 2-of-the)\n" +
				"            name: \"new\"\n",
		},
		{
			"what comes again as it was",
			teller{},
			[]response{answer(t, envoy.Endpoints, "2", assignment(pay, place{host: "10.0.0.1"}, place{host: "10.0.0.2"}))},
			"10:31:02  endpoints  1 resource sent again unchanged  (version 2-of-the)\n",
		},
		{
			"nothing",
			teller{},
			[]response{answer(t, envoy.Cluster, "2"), removal(envoy.Endpoints, "unknown")},
			"",
		},
		{
			"a type that nobody wants",
			teller{types: []string{"listeners", "routes"}},
			[]response{answer(t, envoy.Cluster, "2", edsCluster(pay, 2*time.Second)), removal(envoy.Listener, "l")},
			"10:31:02  listeners  - l  (version 9)\n",
		},
		{
			"the same for programs",
			teller{json: true},
			[]response{
				answer(t, envoy.Endpoints, "2", assignment(pay, place{host: "10.0.0.1", health: corev3.HealthStatus_UNHEALTHY}, place{host: "10.0.0.2"})),
				removal(envoy.Cluster, pay),
			},
			`{"time":"2026-05-01T10:31:02Z","event":"update","type":"endpoints","version":"2-of-the-type","resources":1,"endpoints":2,"unhealthy":1,"differences":[{"type":"endpoints","name":"outbound|80||pay.mesh.internal","change":"changed","fields":[{"change":"added","path":"endpoints[0].lb_endpoints[10.0.0.1:8080].health_status","new":"UNHEALTHY"}],"version":"2-of-the-resource","endpoints":[{"change":"changed","address":"10.0.0.1:8080","old":{"weight":1},"new":{"health":"unhealthy","weight":1}}]}]}` + "\n" +
				`{"time":"2026-05-01T10:31:02Z","event":"update","type":"clusters","version":"9","resources":0,"differences":[{"type":"clusters","name":"outbound|80||pay.mesh.internal","change":"removed"}]}` + "\n" +
				`{"time":"2026-05-01T10:31:02Z","event":"update","type":"endpoints","version":"2-of-the-type","resources":0,"endpoints":0,"differences":[{"type":"endpoints","name":"outbound|80||pay.mesh.internal","change":"removed","endpoints":[{"change":"removed","address":"10.0.0.1:8080","old":{"health":"unhealthy","weight":1}},{"change":"removed","address":"10.0.0.2:8080","old":{"weight":1}}]}]}` + "\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFeed(xds.Delta)
			said(t, tt.tell, f, first()...)
			if diff := cmp.Diff(tt.want, said(t, tt.tell, f, tt.after...)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTailPrintsTheFirstStateOnceItIsThere(t *testing.T) {
	two := []response{
		answer(t, envoy.Cluster, "1", edsCluster("a", time.Second), edsCluster("b", time.Second), edsCluster("gone", time.Second)),
		answer(t, envoy.Endpoints, "1", assignment("a", place{host: "10.0.0.1"})),
		{typ: envoy.Endpoints, version: "1", removed: []string{"gone"}},
		answer(t, envoy.Endpoints, "1", assignment("b", place{host: "10.0.0.2"}, place{host: "10.0.0.3", health: corev3.HealthStatus_TIMEOUT})),
	}
	want := "10:31:02  clusters   3 resources  (version 1-of-the)\n" +
		"10:31:02  endpoints  2 resources with 3 endpoints, 1 not healthy  (version 1-of-the)\n"
	if diff := cmp.Diff(want, said(t, teller{}, newFeed(xds.Delta), two...)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = "10:31:02  endpoints  2 resources with 3 endpoints, 1 not healthy  (version 1-of-the)\n" +
		"10:31:02  endpoints  + a  +10.0.0.1:8080  (version 1-of-the)\n" +
		"10:31:02  endpoints  + b  +10.0.0.2:8080  +10.0.0.3:8080 timeout  (version 1-of-the)\n"
	if diff := cmp.Diff(want, said(t, teller{full: true, types: []string{"endpoints"}}, newFeed(xds.Delta), two...)); diff != "" {
		t.Errorf("--full (-want +got):\n%s", diff)
	}
}

func TestTailSaysHowItStandsBesideTheAnswer(t *testing.T) {
	var out, aside bytes.Buffer
	tell := teller{out: &out, aside: &aside, now: func() time.Time { return time.Date(2026, 5, 1, 10, 31, 2, 0, time.UTC) }}
	both := []event{
		{Event: connected, Server: "127.0.0.1:15010", Node: "web-1"},
		{Event: disconnected, Server: "127.0.0.1:15010", Reason: "connection refused"},
	}
	for _, e := range both {
		if err := tell.tell(e); err != nil {
			t.Fatal(err)
		}
	}
	want := "10:31:02  connected to 127.0.0.1:15010 as web-1\n10:31:02  lost 127.0.0.1:15010 (connection refused); trying again\n"
	if diff := cmp.Diff(want, aside.String()); diff != "" || out.Len() > 0 {
		t.Errorf("(-want +got):\n%s\nand as the answer %q", diff, out.String())
	}
	tell.json = true
	for _, e := range both {
		if err := tell.tell(e); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines for programs:\n%s", n, out.String())
	}
}
