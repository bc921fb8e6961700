package integration

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// wildcard subscribes to all there are.
const wildcard = "*"

const typePrefix = "type.googleapis.com/envoy.config."

const (
	clusterType  = typePrefix + "cluster.v3.Cluster"
	endpointType = typePrefix + "endpoint.v3.ClusterLoadAssignment"
	listenerType = typePrefix + "listener.v3.Listener"
	routeType    = typePrefix + "route.v3.RouteConfiguration"
)

// sent asks meshd, as a node of this capture, for everything: the resources of each type by name.
func (d *daemon) sent(t *testing.T, c capture, routes []string) map[string]map[string]*discoveryv3.Resource {
	t.Helper()
	id, metadata := nodeOf(c)
	node := &corev3.Node{Id: id, Cluster: "tests", Metadata: &structpb.Struct{}}
	if err := protojson.Unmarshal([]byte(metadata), node.Metadata); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+xdsAddress, grpc.WithTransportCredentials(d.credentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]*discoveryv3.Resource{}
	// ask subscribes and reads until the type has been answered, with all names that were given.
	ask := func(typeURL string, names ...string) {
		t.Helper()
		got[typeURL] = map[string]*discoveryv3.Resource{}
		if len(names) == 0 && (typeURL == endpointType || typeURL == routeType) {
			return
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: names}); err != nil {
			t.Fatal(err)
		}
		missing := map[string]bool{}
		for _, name := range names {
			missing[name] = name != wildcard
		}
		for answered := false; !answered || len(missing) > 0; {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatalf("asking meshd for %s: %v", typeURL, err)
			}
			for _, r := range resp.GetResources() {
				got[resp.GetTypeUrl()][r.GetName()] = r
			}
			maps.DeleteFunc(missing, func(name string, named bool) bool {
				return !named || got[typeURL][name] != nil || slices.Contains(resp.GetRemovedResources(), name)
			})
			answered = answered || resp.GetTypeUrl() == typeURL
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask(clusterType, wildcard)
	var eds []string
	for name, r := range got[clusterType] {
		var cluster clusterv3.Cluster
		if err := r.GetResource().UnmarshalTo(&cluster); err != nil {
			t.Fatal(err)
		}
		if cluster.GetType() == clusterv3.Cluster_EDS {
			eds = append(eds, name)
		}
	}
	slices.Sort(eds)
	ask(endpointType, eds...)
	ask(listenerType, wildcard)
	ask(routeType, routes...)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return got
}

// requireInStep waits until the Envoy holds exactly what meshd sends to a node like it, nothing is pending, and nothing was
// ever refused.
func requireInStep(t *testing.T, d *daemon, e *envoy, c capture, p protocol) {
	t.Helper()
	eventually(t, "Envoy to hold what meshd sends", func() error {
		loaded := e.loaded(t)
		sent := d.sent(t, c, slices.Sorted(maps.Keys(loaded.routes)))
		var diff difference
		diff.add("pending", loaded.pending, []string(nil))
		diff.add("clusters", loaded.clusters, bodies(sent[clusterType]))
		diff.add("listeners", loaded.listeners, bodies(sent[listenerType]))
		diff.add("routes", loaded.routes, bodies(sent[routeType]))
		if p == delta {
			versions := map[string]string{}
			for kind, typeURL := range map[string]string{"clusters/": clusterType, "routes/": routeType} {
				for name, r := range sent[typeURL] {
					versions[kind+name] = r.GetVersion()
				}
			}
			diff.add("versions", loaded.versions, versions)
		}
		hosts := e.hosts(t)
		for name, r := range sent[endpointType] {
			diff.add("endpoints of "+name, hosts[name], endpoints(t, r.GetResource()))
		}
		return diff.err()
	})
	e.requireNoRejection(t)
}

func bodies(resources map[string]*discoveryv3.Resource) map[string]*anypb.Any {
	bodies := map[string]*anypb.Any{}
	for name, r := range resources {
		bodies[name] = r.GetResource()
	}
	return bodies
}

// endpoints gives an assignment's endpoints in the form of envoy.hosts.
func endpoints(t *testing.T, resource *anypb.Any) []string {
	t.Helper()
	var a endpointv3.ClusterLoadAssignment
	if err := resource.UnmarshalTo(&a); err != nil {
		t.Fatal(err)
	}
	texts := []string{}
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			texts = append(texts, endpointText(addressText(e.GetEndpoint().GetAddress()), max(1, e.GetLoadBalancingWeight().GetValue()),
				l.GetLocality(), l.GetPriority()))
		}
	}
	slices.Sort(texts)
	return texts
}

// difference collects what is not as it should be.
type difference struct{ text string }

func (d *difference) add(what string, have, want any) {
	if diff := cmp.Diff(want, have, protocmp.Transform()); diff != "" {
		d.text += what + " (-meshd +envoy):\n" + diff
	}
}

func (d *difference) err() error {
	if d.text == "" {
		return nil
	}
	return errors.New(d.text)
}

// requireRendered fails the test if `meshd render` and the daemon do not make the same of the entries.
func requireRendered(t *testing.T, d *daemon, c capture) {
	t.Helper()
	id, metadata := nodeOf(c)
	var text map[string][]json.RawMessage
	if err := json.Unmarshal(output(t, meshdBinary, "render", "--node-id", id, "--metadata", metadata, d.entries), &text); err != nil {
		t.Fatal(err)
	}
	rendered := map[string]map[string]*anypb.Any{}
	for kind, message := range map[string]proto.Message{
		clusterType: &clusterv3.Cluster{}, endpointType: &endpointv3.ClusterLoadAssignment{},
		listenerType: &listenerv3.Listener{}, routeType: &routev3.RouteConfiguration{},
	} {
		rendered[kind] = map[string]*anypb.Any{}
		for _, one := range text[renderedName[kind]] {
			m := message.ProtoReflect().New().Interface()
			if err := protojson.Unmarshal(one, m); err != nil {
				t.Fatal(err)
			}
			packed, err := anypb.New(m)
			if err != nil {
				t.Fatal(err)
			}
			rendered[kind][nameOf(t, packed)] = packed
		}
	}
	sent := d.sent(t, c, slices.Collect(maps.Keys(rendered[routeType])))
	for kind, want := range rendered {
		if diff := cmp.Diff(want, bodies(sent[kind]), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-rendered +sent):\n%s", renderedName[kind], diff)
		}
	}
}

// renderedName is what `meshd render` calls a type.
var renderedName = map[string]string{clusterType: "clusters", endpointType: "endpoints", listenerType: "listeners", routeType: "routes"}
