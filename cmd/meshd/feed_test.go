package main

import (
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/xds"
)

func takeOrders(t *testing.T, f *feed, r response) []order {
	t.Helper()
	_, orders, err := f.take(r)
	if err != nil {
		t.Fatal(err)
	}
	return orders
}

func equalOrders(t *testing.T, want, got []order) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(order{})); diff != "" {
		t.Errorf("orders (-want +got):\n%s", diff)
	}
}

func TestFeedFollowsReferences(t *testing.T) {
	f := newFeed(xds.Delta)
	equalOrders(t, []order{{typ: envoy.Cluster, subscribe: []string{"*"}}, {typ: envoy.Listener, subscribe: []string{"*"}}}, f.begin())

	other := edsCluster("b", time.Second)
	other.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: "endpoints of b"}
	equalOrders(t, []order{
		{typ: envoy.Cluster, version: "1-of-the-type", nonce: "n1"},
		{typ: envoy.Endpoints, subscribe: []string{"a", "endpoints of b"}, names: []string{"a", "endpoints of b"}},
	}, takeOrders(t, f, answer(t, envoy.Cluster, "1", edsCluster("a", time.Second), other, &clusterv3.Cluster{Name: "static"})))
	equalOrders(t, []order{{typ: envoy.Endpoints, names: []string{"a", "endpoints of b"}, version: "2-of-the-type", nonce: "n2"}},
		takeOrders(t, f, answer(t, envoy.Endpoints, "2", assignment("a"), assignment("endpoints of b"))))

	// What it has is said again on a new stream, and asked for anew.
	equalOrders(t, []order{
		{
			typ: envoy.Cluster, subscribe: []string{"*"}, version: "1-of-the-type",
			initial: map[string]string{"a": "1-of-the-resource", "b": "1-of-the-resource", "static": "1-of-the-resource"},
		},
		{
			typ: envoy.Endpoints, subscribe: []string{"a", "endpoints of b"}, names: []string{"a", "endpoints of b"}, version: "2-of-the-type",
			initial: map[string]string{"a": "2-of-the-resource", "endpoints of b": "2-of-the-resource"},
		},
		{typ: envoy.Listener, subscribe: []string{"*"}},
	}, f.begin())

	equalOrders(t, []order{
		{typ: envoy.Cluster, version: "3", nonce: "n3"},
		{typ: envoy.Endpoints, unsubscribe: []string{"a"}, names: []string{"endpoints of b"}, version: "2-of-the-type"},
	}, takeOrders(t, f, response{typ: envoy.Cluster, version: "3", nonce: "n3", removed: []string{"a", "static"}}))
}

func TestFeedOfTheStateOfTheWorldMissesWhatIsNotThere(t *testing.T) {
	f := newFeed(xds.SotW)
	takeOrders(t, f, answer(t, envoy.Cluster, "1", edsCluster("a", time.Second), edsCluster("b", time.Second)))
	takeOrders(t, f, answer(t, envoy.Endpoints, "1", assignment("a"), assignment("b")))
	all, _, err := f.take(answer(t, envoy.Endpoints, "2", assignment("a", place{host: "10.0.0.1"})))
	if err != nil || len(all) != 1 || len(all[0].changes) != 1 || all[0].changes[0].name != "a" {
		t.Errorf("a response with some endpoints changes others: %v, %v", all, err)
	}
	all, orders, err := f.take(answer(t, envoy.Cluster, "2", edsCluster("b", time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	var gone []string
	for _, n := range all {
		for _, c := range n.changes {
			if c.new == nil {
				gone = append(gone, n.typ.String()+" "+c.name)
			}
		}
	}
	if diff := cmp.Diff([]string{"clusters a", "endpoints a"}, gone); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	equalOrders(t, []order{
		{typ: envoy.Cluster, version: "2-of-the-type", nonce: "n2"},
		{typ: envoy.Endpoints, unsubscribe: []string{"a"}, names: []string{"b"}, version: "2-of-the-type", nonce: "n2"},
	}, orders)
}

func TestFeedFindsRoutes(t *testing.T) {
	pack := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	manager := func(route string) *anypb.Any {
		return pack(&hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: route}}})
	}
	chain := func(configs ...*anypb.Any) *listenerv3.FilterChain {
		c := &listenerv3.FilterChain{}
		for _, config := range configs {
			c.Filters = append(c.Filters, &listenerv3.Filter{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}})
		}
		return c
	}
	proxy := &listenerv3.Listener{
		FilterChains:       []*listenerv3.FilterChain{chain(pack(&clusterv3.Cluster{}), manager("a")), chain(manager("b"))},
		DefaultFilterChain: chain(manager("c"), pack(&hcmv3.HttpConnectionManager{})),
	}
	client := &listenerv3.Listener{ApiListener: &listenerv3.ApiListener{ApiListener: manager("d")}}
	if got := append(routesNamed(proxy), routesNamed(client)...); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Errorf("found %q", got)
	}
}

func TestFeedRefusesWhatItCannotRead(t *testing.T) {
	f := newFeed(xds.Delta)
	r := response{typ: envoy.Cluster, resources: []resource{{"1", &anypb.Any{TypeUrl: envoy.Cluster.URL(), Value: []byte("?")}}}}
	if _, _, err := f.take(r); err == nil {
		t.Error("no error")
	}
}
