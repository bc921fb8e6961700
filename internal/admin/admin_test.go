package admin

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
	"github.com/meshd/meshd/internal/xds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is when everything happens.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// daemon is what the server is asked to show.
type daemon struct {
	*Server
	registries []aggregate.RegistryStatus
	history    []aggregate.Change
	nodes      []xds.NodeStatus
	stats      xds.Stats
	loads      xds.Loads
	url        string
}

// start runs a server until the end of the test.
func start(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{registries: []aggregate.RegistryStatus{{Name: "files"}}}
	d.Server = New(hclog.NewNullLogger(), Options{
		Version: "1.2.3", Commit: "abc",
		XDS:        &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 15010},
		Registries: func() []aggregate.RegistryStatus { return d.registries },
		Release:    d.letGo,
		History:    func() []aggregate.Change { return d.history },
		Nodes:      func() []xds.NodeStatus { return d.nodes },
		NodeProblems: func() []mesh.Problem {
			return []mesh.Problem{{Severity: mesh.Warning, Code: "listener-taken", Message: "gets no connections", Origin: mesh.Origin{Source: "c.yaml", Line: 9}}}
		},
		Stats: func() xds.Stats { return d.stats },
		Loads: func(node string) xds.Loads {
			if node != "" && node != "rack/web-1" {
				return xds.Loads{Interval: d.loads.Interval}
			}
			return d.loads
		},
		Sights: func(h mesh.Host) []xds.Sight {
			view := d.served.Load().view
			return envoy.Sights(h, []*envoy.Snapshot{envoy.Translate(nil, view, envoy.Scope{Namespace: "shop", Capture: envoy.None}, envoy.Mesh{})})
		},
		Near: strictyaml.Suggest,
		Resources: func(node string) (Resources, error) {
			if node == "" {
				return Resources{}, errors.New("node.id: is empty")
			}
			return Resources{
				Generation: 3, Digest: "f00d", Scope: ScopeOf(envoy.Scope{Namespace: node}), OutboundTrafficPolicy: "allow-any",
				Resources: map[string][]json.RawMessage{"clusters": {json.RawMessage(`{"name": "c"}`)}, "routes": {}},
			}, nil
		},
	})
	d.started = noon
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return d
}

// serve gives the daemon a view of one service, a problem and a node that has rejected the service's cluster.
func (d *daemon) serve(t *testing.T) {
	t.Helper()
	host, err := mesh.ParseHost("pay.mesh.internal")
	if err != nil {
		t.Fatal(err)
	}
	pay := mesh.Seal(mesh.Service{
		Key:        mesh.Key{Host: host, Namespace: "shop"},
		Ports:      []mesh.Port{{Number: 443, Name: "https", Protocol: mesh.HTTPS, Origin: mesh.Origin{Registry: "files", Source: "pay.yaml", Line: 9}}},
		Addresses:  []netip.Prefix{netip.MustParsePrefix("198.51.100.7/32"), netip.MustParsePrefix("203.0.113.0/24")},
		Resolution: mesh.Static, Location: mesh.Internal, Export: mesh.Visibility{All: true},
		Endpoints: []mesh.Endpoint{{
			Address: mesh.IPAddress(netip.MustParseAddr("192.0.2.7")), Ports: []uint16{8443}, Weight: 1,
			Locality: mesh.Locality{Region: "eu", Zone: "eu-1"}, Health: mesh.Healthy, Origin: mesh.Origin{Registry: "files", Source: "pay.yaml", Line: 12},
		}},
		Origin: mesh.Origin{Registry: "files", Source: "pay.yaml", Name: "pay", Line: 4},
	})
	view := &mesh.View{
		Generation: 3, Digest: mesh.Digest{0xf0, 0x0d}, Services: mesh.Services{}.With(pay.Key, pay), Registries: []string{"files"},
		Problems: []mesh.Problem{
			{Severity: mesh.Notice, Code: "unknown-kind", Message: "is skipped", Origin: mesh.Origin{Registry: "files", Source: "a.yaml", Line: 1}, Since: noon},
			{Severity: mesh.Error, Code: "no-such-field", Field: "spec.prots", Message: `is no field; did you mean "ports"?`, Serving: "what it said before", Origin: mesh.Origin{Registry: "files", Source: "b.yaml", Line: 7, Column: 3}, Since: noon},
		},
	}
	d.registries = []aggregate.RegistryStatus{
		{Name: "files", Synced: true, Published: noon, Services: 1, Problems: 2},
		{Name: "consul", Synced: true, Published: noon, Standing: &mesh.Standing{
			Source: "127.0.0.1:8500", Mode: "each service is watched", Connections: 3, Requests: 1234,
			Watches: []mesh.Watch{
				{Query: "instances", Count: 2000, Transport: "HTTP/2.0 streaming", Answered: noon},
				{Query: "services", Count: 1, Transport: "HTTP/2.0 blocking-query", Index: 4711, Answered: noon, Error: "does not answer: EOF", Failed: noon.Add(time.Minute)},
			},
			Held: []mesh.Holding{
				{Service: "pay", Instances: 2, Reason: "its index went back from 9 to 7", Since: noon},
				{Service: "cart", Instances: 1, Reason: "it takes the last instance", Since: noon},
			},
			TroubledAt: noon.Add(time.Minute), Unconfirmed: 4,
		}},
	}
	d.history = []aggregate.Change{
		{Generation: 2, Time: noon, Registries: []string{"files"}, Removed: []mesh.Key{{Host: host, Namespace: "default"}}},
		{Generation: 3, Time: noon, Registries: []string{"files"}, Added: slices.Repeat([]mesh.Key{pay.Key}, 21), Digest: mesh.Digest{0xf0, 0x0d}},
	}
	d.Apply(d.history[1], view)
	mark := xds.Mark{Version: "f00d", Nonce: "7", Time: noon}
	d.nodes = []xds.NodeStatus{{
		ID: "rack/web-1", Cluster: "web", Scope: envoy.Scope{Namespace: "shop", Capture: envoy.None}, Peer: "192.0.2.9:4711",
		UserAgent: "envoy", Version: "1.40.0", Connected: noon, Protocol: xds.Delta, Aggregated: true,
		Deliveries: []xds.Delivery{
			{Type: envoy.Cluster, Wildcard: true, Sent: mark, Rejected: &xds.Rejection{
				Mark: mark, Message: "no good", Resources: []envoy.Name{"outbound|443||pay.mesh.internal"}, Services: []mesh.Key{pay.Key},
			}},
			{Type: envoy.Endpoints, Subscribed: 1, Sent: mark, Accepted: mark},
		},
	}}
	d.stats = xds.Stats{Scopes: 1, Latency: xds.Latency{
		Bounds: []time.Duration{time.Millisecond, time.Second}, Buckets: []uint64{2, 3}, Count: 6, Sum: 3 * time.Second,
	}}
	d.stats.Streams[xds.Delta] = 1
	d.stats.Types[envoy.Listener].Rejections = 4
	load := xds.Load{
		Rate:  xds.LoadRate{Requests: 12.5, Errors: 0.5, Drops: 0.25, InProgress: 3},
		Total: xds.LoadCount{Requests: 125, Successes: 117, Errors: 5, Drops: 2},
	}
	d.loads = xds.Loads{Interval: 10 * time.Second, Nodes: 1, Clusters: []xds.ClusterLoad{
		{Cluster: "PassthroughCluster", Load: xds.Load{Total: xds.LoadCount{Requests: 1, Successes: 1}}},
		{
			Cluster: "outbound|443||pay.mesh.internal", Service: pay.Key, Port: 443, Load: load, Nodes: []string{"rack/web-1"},
			Localities: []xds.LocalityLoad{{Locality: mesh.Locality{Region: "eu", Zone: "eu-1"}, Load: load}},
			Drops:      []xds.DropLoad{{Category: "lb", PerSecond: 0.25, Total: 2}},
		},
	}}
}

// letGo is a release by a registry that holds three instances, one that never holds any, and one that takes no orders.
func (d *daemon) letGo(ctx context.Context, registry string) (int, error) {
	switch registry {
	case "consul":
		return 3, nil
	case "files":
		return 0, fmt.Errorf("the registry files %w", aggregate.ErrHoldsNothing)
	case "consul dc2/busy":
		<-ctx.Done()
		return 0, errors.New("it does not run")
	}
	return 0, fmt.Errorf("%w %q", aggregate.ErrNoRegistry, registry)
}

func (d *daemon) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(d.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestReadyOnceTheFirstCompleteViewIsServed(t *testing.T) {
	d := start(t)
	if code, body := d.get(t, "/-/ready"); code != 503 || body != "not ready: no services yet from files\n" {
		t.Errorf("without services: %d %q", code, body)
	}
	d.registries = []aggregate.RegistryStatus{{Name: "files", Synced: true}}
	if code, body := d.get(t, "/-/ready"); code != 503 || body != "not ready: the first view is being made\n" {
		t.Errorf("without a view: %d %q", code, body)
	}
	d.Apply(aggregate.Change{}, &mesh.View{})
	if code, body := d.get(t, "/-/ready"); code != 200 || body != "ready\n" {
		t.Errorf("with a view: %d %q", code, body)
	}
	d.registries = append(d.registries, aggregate.RegistryStatus{Name: "consul dc1"})
	if code, body := d.get(t, "/-/ready"); code != 503 || body != "not ready: no services yet from consul dc1\n" {
		t.Errorf("with a view that is not complete: %d %q", code, body)
	}
	if code, _ := d.get(t, "/-/healthy"); code != 200 {
		t.Errorf("healthy: %d", code)
	}
}

// TestAnswersKeepTheirShape compares with files, since programs rely on these.
func TestAnswersKeepTheirShape(t *testing.T) {
	d := start(t)
	_, empty := d.get(t, "/api/v1/status")
	golden(t, "starting.json", strings.ReplaceAll(empty, d.url[len("http://"):], "127.0.0.1:15014"))
	d.serve(t)
	for _, name := range []string{"status", "registries", "services", "problems", "changes", "nodes", "nodes/rack/web-1", "loads", "explain?host=pay.mesh.internal", "resources?node=web-1"} {
		_, body := d.get(t, "/api/v1/"+name)
		file, _, _ := strings.Cut(strings.ReplaceAll(name, "/", "-"), "?")
		golden(t, file+".json", strings.ReplaceAll(body, d.url[len("http://"):], "127.0.0.1:15014"))
	}
}

func TestRelease(t *testing.T) {
	d := start(t)
	send := func(method, registry string, headers ...string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, d.url+"/api/v1/registries/"+registry+"/release", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	code, body := send("POST", "consul")
	if code != 200 {
		t.Errorf("release: %d", code)
	}
	golden(t, "release.json", body)
	for _, tt := range []struct {
		name, method, registry string
		headers                []string
		code                   int
		body                   string
	}{
		{"a name that no registry has", "POST", "consl", nil, 404, "there is no registry \"consl\"\n"},
		{"a name that has to be escaped", "POST", "a%20b%2Fc", nil, 404, "there is no registry \"a b/c\"\n"},
		{"a registry that never holds anything", "POST", "files", nil, 409, "the registry files holds nothing that can be released\n"},
		{"a question instead of an order", "GET", "consul", nil, 405, "Method Not Allowed\n"},
		{"another site's page", "POST", "consul", []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross-origin request detected"},
		{"another site's page in an old browser", "POST", "consul", []string{"Origin", "https://evil.example"}, 403, "cross-origin request detected"},
		{"a page whose name was made to lead here", "POST", "consul", []string{"Origin", d.url, "Sec-Fetch-Site", "same-origin"}, 403, "pages give no orders, "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if code, body := send(tt.method, tt.registry, tt.headers...); code != tt.code || !strings.HasPrefix(body, tt.body) {
				t.Errorf("got %d %q, want %d %q", code, body, tt.code, tt.body)
			}
		})
	}
}

func TestARegistryThatTakesNoOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{}
		s := New(hclog.NewNullLogger(), Options{Release: d.letGo})
		began := time.Now()
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/api/v1/registries/consul%20dc2%2Fbusy/release", nil))
		if w.Code != 503 || w.Body.String() != "it does not run\n" || time.Since(began) != orderTimeout {
			t.Errorf("after %s: %d %q", time.Since(began), w.Code, w.Body)
		}
	})
}

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), rewrite it with -update:\n%s", path, diff)
	}
}

func TestExplainTellsWhyItCannot(t *testing.T) {
	d := start(t)
	for _, path := range []string{"/api/v1/explain?host=pay.mesh.internal", "/api/v1/resources?node=web-1"} {
		if code, body := d.get(t, path); code != 503 || body != "not ready: no services yet from files\n" {
			t.Errorf("%s before the first view: %d %q", path, code, body)
		}
	}
	d.serve(t)
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/api/v1/explain":                                {400, `host: "" is empty; write a DNS name`},
		"/api/v1/explain?host=Shop/pay":                  {400, `host: "Shop" is not a namespace`},
		"/api/v1/explain?host=pay":                       {404, `"near": [`},
		"/api/v1/explain?host=default/pay.mesh.internal": {404, `"shop/pay.mesh.internal"`},
		"/api/v1/explain?host=shop/pay.mesh.internal.":   {200, `"namespace": "shop"`},
		"/api/v1/resources":                              {400, "node.id: is empty"},
	} {
		if code, body := d.get(t, path); code != want.code || !strings.Contains(body, want.body) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

func TestMetrics(t *testing.T) {
	d := start(t)
	if code, body := d.get(t, "/metrics"); code != 200 || !strings.Contains(body, "meshd_ready 0\n") || strings.Contains(body, "meshd_view_generation") {
		t.Errorf("before the first view: %d\n%s", code, body)
	}
	d.serve(t)
	_, body := d.get(t, "/metrics")
	for _, want := range []string{
		`meshd_build_info{commit="abc",goversion="go`, "\nmeshd_ready 1\n", "\nmeshd_view_generation 3\n", "\nmeshd_services 1\n", "\nmeshd_endpoints 1\n",
		`meshd_registry_held_instances{registry="consul"} 3`, `meshd_registry_held_services{registry="consul"} 2`,
		`meshd_registry_unconfirmed_answers{registry="consul"} 4`, `meshd_registry_source_up{registry="consul"} 0`,
		`meshd_registry_source_connections{registry="consul"} 3`, `meshd_registry_source_requests_total{registry="consul"} 1234`,
		`meshd_registry_watches{query="instances",registry="consul"} 2000`, `meshd_registry_watch_index{query="services",registry="consul"} 4711`,
		`meshd_registry_watch_answered_timestamp_seconds{query="services",registry="consul"} 1.7673552e+09`,
		`meshd_problems{severity="error"} 1`, `meshd_problems{severity="warning"} 1`, `meshd_registry_synced{registry="files"} 1`,
		`meshd_registry_published_timestamp_seconds{registry="files"} 1.7673552e+09`, `meshd_xds_streams{protocol="delta"} 1`,
		`meshd_xds_rejections_total{type="listeners"} 4`, `meshd_xds_rejecting_streams{type="clusters"} 1`, `meshd_xds_rejecting_streams{type="routes"} 0`,
		`meshd_xds_send_latency_seconds_bucket{le="0.001"} 2`, `meshd_xds_send_latency_seconds_bucket{le="1"} 5`,
		`meshd_load_reporting_nodes 1`, `meshd_load_requests_total{port="443",service="shop/pay.mesh.internal"} 125`,
		`meshd_load_errors_total{port="443",service="shop/pay.mesh.internal"} 5`,
		`meshd_load_dropped_requests_total{port="443",service="shop/pay.mesh.internal"} 2`,
		`meshd_load_requests_in_progress{port="443",service="shop/pay.mesh.internal"} 3`,
		`meshd_xds_send_latency_seconds_bucket{le="+Inf"} 6`, "go_goroutines ", "process_cpu_seconds_total ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	for _, none := range []string{"PassthroughCluster", `meshd_registry_watch_index{query="instances"`, `meshd_registry_source_up{registry="files"}`, `meshd_registry_held_instances{registry="files"}`} {
		if strings.Contains(body, none) {
			t.Errorf("there is %q, of which nothing is known", none)
		}
	}
	families, err := d.metrics().Gather()
	if err != nil {
		t.Fatal(err)
	}
	lint, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range lint {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestPages(t *testing.T) {
	d := start(t)
	d.serve(t)
	_, body := d.get(t, "/")
	for _, p := range pages {
		if code, _ := d.get(t, p.path); code != 200 {
			t.Errorf("the index leads to %s: %d", p.path, code)
		}
		if !strings.Contains(body, `href="`+p.path+`"`) {
			t.Errorf("the index does not lead to %s", p.path)
		}
	}
	for _, path := range []string{"/nothing", "/api/v1/", "/api/v1/nodes/other", "/api/v1/loads?node=other", "/api/v2/status"} {
		if code, _ := d.get(t, path); code != 404 {
			t.Errorf("%s: %d", path, code)
		}
	}
	for _, path := range []string{"/", "/-/ready", "/metrics", "/api/v1/status", "/api/v1/nodes/web-1"} {
		resp, err := http.Post(d.url+path, "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %s", path, resp.Status)
		}
	}
}

func TestRunReturnsTheListenersError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	err = New(hclog.NewNullLogger(), Options{}).Run(t.Context(), l)
	if !errors.Is(err, net.ErrClosed) {
		t.Errorf("error: %v", err)
	}
}
