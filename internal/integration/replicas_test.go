package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// failOverWithin is how long an Envoy may be without a meshd when one of two is gone. It takes a second, on a machine that is idle.
const failOverWithin = 10 * time.Second

// replica is a meshd beside the one that has the usual addresses.
type replica struct {
	*process
	xds, admin string
}

// startReplica runs a meshd with the folders of d, at other addresses than the usual ones.
func startReplica(t *testing.T, d *daemon, name, xds, admin string) *replica {
	t.Helper()
	r := &replica{xds: xds, admin: admin}
	r.process = startProcess(t, name, meshdBinary, "serve", "--config", d.config,
		"--entries", d.entries, "--xds-listen", xds, "--admin-listen", admin, "--state-dir", d.state, "--log-level", "debug")
	eventually(t, "the replica's readiness", func() error {
		_, err := httpGet("http://" + admin + "/-/ready")
		return err
	})
	return r
}

// nodesAt is how many nodes are connected to the meshd of an admin API.
func nodesAt(admin string) (int, error) {
	body, err := httpGet("http://" + admin + "/api/v1/nodes")
	if err != nil {
		return 0, err
	}
	var answer struct{ Nodes []json.RawMessage }
	err = json.Unmarshal(body, &answer)
	return len(answer.Nodes), err
}

// awaitNode waits until a node is connected to the meshd of an admin API, and says for how long.
func awaitNode(t *testing.T, admin string) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, "the Envoy at "+admin, func() error {
		n, err := nodesAt(admin)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d nodes are connected", n)
		}
		return err
	})
	return time.Since(began)
}

// sentBy is how many resources of each type the meshd of an admin API has sent so far.
func sentBy(t *testing.T, admin string) map[string]int {
	t.Helper()
	page, err := httpGet("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	sent := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^meshd_xds_resources_total\{type="(.*)"\} (\S+)$`).FindAllSubmatch(page, -1) {
		n, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			t.Fatal(err)
		}
		sent[string(m[1])] = int(n)
	}
	if len(sent) != 4 {
		t.Fatalf("meshd_xds_resources_total: %v", sent)
	}
	return sent
}

// requireSentNothing fails the test if a meshd has sent an Envoy what that had from another one.
func requireSentNothing(t *testing.T, before, after map[string]int) {
	t.Helper()
	for kind, n := range after {
		if n != before[kind] {
			t.Errorf("meshd has sent %d %s that the Envoy had from the other one", n-before[kind], kind)
		}
	}
}

// detour gives a meshd a history: an edit that is taken back.
func (d *daemon) detour(t *testing.T) {
	t.Helper()
	generation := func() (n int) {
		t.Helper()
		var s struct{ View struct{ Generation int } }
		if err := d.get("/api/v1/status", &s); err != nil {
			t.Fatal(err)
		}
		return s.View.Generation
	}
	for _, swap := range [][2]string{{"10.77.0.13", "10.77.0.14"}, {"10.77.0.14", "10.77.0.13"}} {
		before := generation()
		d.edit(t, "shop.yaml", swap[0], swap[1])
		eventually(t, "a new view", func() error {
			if generation() == before {
				return fmt.Errorf("it is still generation %d", before)
			}
			return nil
		})
	}
}

// TestReplicas shows that an Envoy which knows two meshd goes on to the other when one is killed: at once, without a failed
// request, and without being sent what it has. And back again, when that one is killed too.
func TestReplicas(t *testing.T) {
	for _, p := range []protocol{delta, stateOfTheWorld} {
		t.Run(string(p), func(t *testing.T) {
			app := newMesh(t, redirect)
			d, other := newMeshd(t, folders(redirect)...), newMeshd(t, folders(redirect)...)
			d.start(t)
			d.detour(t)

			// The Envoy's first choice is to be the other one: d, which survives, has the addresses that all helpers know.
			var bootstrap []byte
			var first *replica
			for port := 15020; first == nil; port += 10 {
				xds := fmt.Sprintf("127.0.0.1:%d", port)
				bootstrap = d.bootstrap(t, redirect, p, "--xds", xds)
				if text := string(bootstrap); strings.Index(text, strconv.Itoa(port)) < strings.Index(text, `"port_value": 15010`) {
					first = startReplica(t, other, "replica-1", xds, fmt.Sprintf("127.0.0.1:%d", port+4))
				}
			}
			e := startEnvoy(t, bootstrap)
			awaitNode(t, first.admin)
			if n, err := nodesAt(adminAddress); n != 0 || err != nil {
				t.Fatalf("%d nodes at the second meshd while the first is there (%v)", n, err)
			}
			requireInStep(t, d, e, redirect, p) // d says what the first one sends
			l := startLoad(t, app.unchanging())
			const changes = `^(cluster_manager\.cluster_(added|modified|removed)|listener_manager\.listener_(added|modified|removed)|http\..*\.rds\..*\.config_reload)$`
			before, sent := e.stats(t, changes), sentBy(t, adminAddress)

			first.kill()
			if took := awaitNode(t, adminAddress); took > failOverWithin {
				t.Errorf("the Envoy was at the second meshd only after %s", took)
			} else {
				t.Logf("the Envoy is at the second meshd after %s", took)
			}
			d.requireAccepted(t)
			l.progress(t)
			requireSentNothing(t, sent, sentBy(t, adminAddress))
			for name, n := range e.stats(t, changes) {
				if n != before[name] {
					t.Errorf("the change of meshd made Envoy count %d more of %s", n-before[name], name)
				}
			}

			d.edit(t, "shop.yaml", "10.77.0.13", "10.77.0.14")
			awaitReaches(t, "an edit at the survivor", app.http("http://shop.mesh.internal:8080/"), "10.77.0.14:9001")
			requireInStep(t, d, e, redirect, p)

			// The first one returns, and the second goes.
			other.edit(t, "shop.yaml", "10.77.0.13", "10.77.0.14")
			again := startReplica(t, other, "replica-2", first.xds, first.admin)
			e.awaitStat(t, "cluster.meshd.outlier_detection.ejections_active", 0)
			d.kill()
			if took := awaitNode(t, again.admin); took > failOverWithin {
				t.Errorf("the Envoy was back at the first meshd only after %s", took)
			} else {
				t.Logf("the Envoy is back at the first meshd after %s", took)
			}
			l.progress(t)
			requireSentNothing(t, nil, sentBy(t, again.admin))
			other.edit(t, "shop.yaml", "10.77.0.14", "10.77.0.13")
			awaitReaches(t, "an edit at the one that has returned", app.http("http://shop.mesh.internal:8080/"), "10.77.0.13:9001")
			l.progress(t)
			l.requireNoFailure(t)
			e.requireNoRejection(t)
		})
	}
}

// TestReplicaHangs shows that a meshd whose machine is gone without a word is left once it does not answer pings.
func TestReplicaHangs(t *testing.T) {
	d, other := newMeshd(t, folders(redirect)...), newMeshd(t, folders(redirect)...)
	d.start(t)
	r := startReplica(t, other, "replica", "127.0.0.1:15020", "127.0.0.1:15024")
	e := startEnvoy(t, d.bootstrap(t, redirect, delta, "--xds", r.xds))
	e.awaitConnected(t, 1)
	hung, left := r.process, adminAddress
	if n, err := nodesAt(adminAddress); err != nil {
		t.Fatal(err)
	} else if n == 1 {
		hung, left = d.process, r.admin
	}
	hung.signal(syscall.SIGSTOP)
	t.Logf("the Envoy is at the other meshd after %s", awaitNode(t, left))
}

// TestReplicaMissingAtTheStart shows that an Envoy starts, and reports its load, although its first choice, or any other, is not there.
func TestReplicaMissingAtTheStart(t *testing.T) {
	d := newMeshd(t, folders(redirect)...)
	d.start(t)
	// Two that are not there, so that one of them may come first, and a name that does not resolve.
	e := startEnvoy(t, d.bootstrap(t, redirect, delta, "--load-reports", "--xds", "127.0.0.1:15020", "--xds", "127.0.0.1:15030", "--xds", "nowhere.upstream.test:15010"))
	awaitNode(t, adminAddress)
	eventually(t, "a report of load", func() error { _, err := d.loads(); return err })
	requireInStep(t, d, e, redirect, delta)
}

// TestReplicasAgree shows that two meshd with the same entries give everything the same versions, and the same bytes, whatever
// came before.
func TestReplicasAgree(t *testing.T) {
	d, other := newMeshd(t, folders(redirect)...), newMeshd(t, folders(redirect)...)
	d.start(t)
	d.detour(t)
	r := startReplica(t, other, "replica", "127.0.0.1:15020", "127.0.0.1:15024")
	have, want := everythingAt(t, r.xds), everythingAt(t, xdsAddress)
	if len(want) < 20 {
		t.Errorf("there are %d versions to compare: %v", len(want), want)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("the replicas do not agree (-one +other):\n%s", diff)
	}
}

// everythingAt asks a meshd for all resources of each type, in both protocols, and gives the versions: of types, and of
// resources with their bytes.
func everythingAt(t *testing.T, address string) map[string]string {
	t.Helper()
	id, metadata := nodeOf(redirect)
	node := &corev3.Node{Id: id, Metadata: &structpb.Struct{}}
	if err := protojson.Unmarshal([]byte(metadata), node.Metadata); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	all := map[string]string{}
	for _, typeURL := range []string{clusterType, endpointType, listenerType, routeType} {
		incremental, err := client.DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := incremental.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: []string{wildcard}}); err != nil {
			t.Fatal(err)
		}
		d, err := incremental.Recv()
		if err != nil {
			t.Fatal(err)
		}
		all["delta "+typeURL] = d.GetSystemVersionInfo()
		for _, r := range d.GetResources() {
			all[typeURL+" "+r.GetName()] = r.GetVersion() + " " + string(r.GetResource().GetValue())
		}
		world, err := client.StreamAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := world.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNames: []string{wildcard}}); err != nil {
			t.Fatal(err)
		}
		s, err := world.Recv()
		if err != nil {
			t.Fatal(err)
		}
		all["state of the world "+typeURL] = s.GetVersionInfo()
	}
	return all
}
