package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// envoy is a running Envoy.
type envoy struct {
	*process
	admin string // host:port
}

// envoyBinary is $ENVOY, envoy on the PATH, or what scripts/envoy has fetched.
func envoyBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	path := filepath.Join(repository(), ".tools", "envoy", "envoy")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no Envoy: set ENVOY to its path, have envoy on the PATH, or run scripts/envoy (%v)", err)
	}
	return path
}

// startEnvoy starts an Envoy and waits until it has taken its first configuration. It is run by the command in front, if there is one.
func startEnvoy(t *testing.T, bootstrap []byte, command ...string) *envoy {
	t.Helper()
	e := launchEnvoy(t, bootstrap, command...)
	e.awaitReady(t)
	return e
}

// launchEnvoy starts an Envoy whose configuration may have to wait.
func launchEnvoy(t *testing.T, bootstrap []byte, command ...string) *envoy {
	t.Helper()
	dir := t.TempDir()
	config, adminFile := filepath.Join(dir, "bootstrap.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(config, bootstrap, 0o644); err != nil {
		t.Fatal(err)
	}
	command = append(command, envoyBinary(t),
		"--config-path", config, "--admin-address-path", adminFile, "--use-dynamic-base-id", "--concurrency", "1",
		// What is drained is gone soon, so that it shows within a test whom draining hurts.
		"--drain-time-s", "1",
		"--log-level", "warning", "--component-log-level", "upstream:info,config:info")
	e := &envoy{process: startProcess(t, "envoy", command[0], command[1:]...)}
	eventually(t, "Envoy's start", func() error {
		admin, err := os.ReadFile(adminFile)
		if err != nil {
			return err
		}
		e.admin = string(admin)
		_, err = netip.ParseAddrPort(e.admin) // the file is there before its text is
		return err
	})
	return e
}

func (e *envoy) awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, "Envoy's readiness", func() error {
		_, err := e.get("/ready")
		return err
	})
}

var adminClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func httpGet(url string) ([]byte, error) {
	resp, err := adminClient.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return body, err
}

// get reads from Envoy's admin interface.
func (e *envoy) get(path string) ([]byte, error) { return httpGet("http://" + e.admin + path) }

// stats gives the counters and gauges whose names match a regular expression.
func (e *envoy) stats(t *testing.T, filter string) map[string]int {
	t.Helper()
	body, err := e.get("/stats?format=json&filter=" + url.QueryEscape(filter))
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Stats []struct {
			Name  string
			Value any
		}
	}
	if err := json.Unmarshal(body, &page); err != nil {
		t.Fatalf("Envoy's stats: %v", err)
	}
	stats := map[string]int{}
	for _, s := range page.Stats {
		// The others are texts and histograms.
		if n, ok := s.Value.(float64); ok {
			stats[s.Name] = int(n)
		}
	}
	return stats
}

// requireNoRejection fails the test if Envoy has ever refused what it was sent, of any type.
func (e *envoy) requireNoRejection(t *testing.T) {
	t.Helper()
	seen := e.stats(t, `update_rejected|control_plane\.`)
	for _, name := range []string{"cluster_manager.cds.update_rejected", "listener_manager.lds.update_rejected"} {
		if _, ok := seen[name]; !ok {
			t.Errorf("Envoy has no stat %s: is it fed by xDS at all?", name)
		}
	}
	for name, n := range seen {
		if strings.HasSuffix(name, "update_rejected") && n != 0 {
			t.Errorf("Envoy has refused an update: %s is %d", name, n)
		}
	}
}

// loaded is what Envoy has taken, by type and by name.
type loaded struct {
	clusters, listeners, routes map[string]*anypb.Any
	// versions are those of the resources, by type and name, as in clusters/outbound|80||a.example. Those of listeners are
	// not among them: one whose filter chains alone have changed shows the version that it was first made of (1.40).
	versions map[string]string
	// pending are resources that wait for others (warming, draining), or were refused.
	pending []string
}

// loaded reads /config_dump.
func (e *envoy) loaded(t *testing.T) loaded {
	t.Helper()
	l := loaded{clusters: map[string]*anypb.Any{}, listeners: map[string]*anypb.Any{}, routes: map[string]*anypb.Any{}, versions: map[string]string{}}
	for _, c := range dump[*adminv3.ClustersConfigDump_DynamicCluster](t, e, "dynamic_active_clusters") {
		name := nameOf(t, c.GetCluster())
		l.clusters[name] = c.GetCluster()
		l.versions["clusters/"+name] = c.GetVersionInfo()
	}
	for _, c := range dump[*adminv3.ClustersConfigDump_DynamicCluster](t, e, "dynamic_warming_clusters") {
		l.pending = append(l.pending, "warming cluster "+nameOf(t, c.GetCluster()))
	}
	for _, d := range dump[*adminv3.ListenersConfigDump_DynamicListener](t, e, "dynamic_listeners") {
		if active := d.GetActiveState(); active != nil {
			l.listeners[d.GetName()] = active.GetListener()
		}
		if d.GetWarmingState() != nil {
			l.pending = append(l.pending, "warming listener "+d.GetName())
		}
		if d.GetErrorState() != nil {
			l.pending = append(l.pending, "refused listener "+d.GetName()+": "+d.GetErrorState().GetDetails())
		}
	}
	for _, r := range dump[*adminv3.RoutesConfigDump_DynamicRouteConfig](t, e, "dynamic_route_configs") {
		name := nameOf(t, r.GetRouteConfig())
		l.routes[name] = r.GetRouteConfig()
		l.versions["routes/"+name] = r.GetVersionInfo()
	}
	return l
}

func dump[M proto.Message](t *testing.T, e *envoy, resource string) []M {
	t.Helper()
	body, err := e.get("/config_dump?resource=" + resource)
	if err != nil {
		t.Fatal(err)
	}
	var page adminv3.ConfigDump
	if err := protojson.Unmarshal(body, &page); err != nil {
		t.Fatalf("Envoy's %s (does resources_test.go lack a type?): %v", resource, err)
	}
	var all []M
	for _, any := range page.GetConfigs() {
		m, err := any.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m.(M))
	}
	return all
}

// hosts gives the endpoints of every cluster from /clusters, as ADDRESS weight=N locality=R/Z/S priority=P, in order.
func (e *envoy) hosts(t *testing.T) map[string][]string {
	t.Helper()
	hosts := map[string][]string{}
	for _, c := range e.clusters(t) {
		hosts[c.GetName()] = []string{}
		for _, h := range c.GetHostStatuses() {
			hosts[c.GetName()] = append(hosts[c.GetName()], endpointText(addressText(h.GetAddress()), h.GetWeight(), h.GetLocality(), h.GetPriority()))
		}
		slices.Sort(hosts[c.GetName()])
	}
	return hosts
}

// requests is how many requests Envoy has sent to each endpoint of a cluster.
func (e *envoy) requests(t *testing.T, cluster string) map[string]int {
	t.Helper()
	requests := map[string]int{}
	for _, c := range e.clusters(t) {
		if c.GetName() != cluster {
			continue
		}
		for _, h := range c.GetHostStatuses() {
			for _, s := range h.GetStats() {
				if s.GetName() == "rq_total" {
					requests[addressText(h.GetAddress())] = int(s.GetValue())
				}
			}
		}
	}
	return requests
}

// clusters reads /clusters.
func (e *envoy) clusters(t *testing.T) []*adminv3.ClusterStatus {
	t.Helper()
	body, err := e.get("/clusters?format=json")
	if err != nil {
		t.Fatal(err)
	}
	var page adminv3.Clusters
	if err := protojson.Unmarshal(body, &page); err != nil {
		t.Fatalf("Envoy's clusters: %v", err)
	}
	return page.GetClusterStatuses()
}

// connections is how many connections Envoy has made to the endpoints of a cluster.
func (e *envoy) connections(t *testing.T, cluster string) int {
	t.Helper()
	name := "cluster." + cluster + ".upstream_cx_total"
	return e.stats(t, "^"+regexp.QuoteMeta(name)+"$")[name]
}

// awaitStat waits until a counter or gauge has a value.
func (e *envoy) awaitStat(t *testing.T, name string, want int) {
	t.Helper()
	eventually(t, "Envoy's "+name, func() error {
		if have := e.stats(t, "^"+regexp.QuoteMeta(name)+"$"); have[name] != want {
			return fmt.Errorf("it is %d, want %d", have[name], want)
		}
		return nil
	})
}

// awaitConnected waits until Envoy has a stream to meshd (1) or has lost it (0).
func (e *envoy) awaitConnected(t *testing.T, state int) {
	t.Helper()
	e.awaitStat(t, "control_plane.connected_state", state)
}

// awaitDrained waits until the listeners and chains that were replaced or removed are gone, with all their connections.
func (e *envoy) awaitDrained(t *testing.T) {
	t.Helper()
	e.awaitStat(t, "listener_manager.total_listeners_draining", 0)
	e.awaitStat(t, "listener_manager.total_filter_chains_draining", 0)
}
