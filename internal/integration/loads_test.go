package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// loadOf is what meshd says of the requests to a cluster.
type loadOf struct {
	Cluster, Service  string
	Port              int
	RequestsPerSecond float64
	Total             struct{ Requests, Successes, Errors, Dropped int }
	Localities        []struct {
		Locality struct{ Region, Zone string }
		Total    struct{ Requests int }
	}
	Nodes struct {
		Count int
		First []string
	}
}

func (d *daemon) loads() (map[string]loadOf, error) {
	var answer struct {
		Reporting int
		Clusters  []loadOf
	}
	if err := d.get("/api/v1/loads", &answer); err != nil {
		return nil, err
	}
	if answer.Reporting != 1 {
		return nil, fmt.Errorf("%d nodes report", answer.Reporting)
	}
	all := map[string]loadOf{}
	for _, c := range answer.Clusters {
		all[c.Cluster] = c
	}
	return all, nil
}

// TestLoadReports has an Envoy report the requests that go through it, of several kinds, and counts them.
func TestLoadReports(t *testing.T) {
	app := newMesh(t, none)
	d := newMeshd(t, folders(none)...)
	d.configure(t, "load-report-interval: 200ms\n")
	d.start(t)
	e := startEnvoy(t, d.bootstrap(t, none, delta, "--load-reports"))
	requireInStep(t, d, e, none, delta)

	const web, db, api = "outbound|8080||web.mesh.internal", "outbound|7000||db.mesh.internal", "outbound|9090||api.mesh.internal"
	callers := map[string]caller{
		web: app.http("http://web.mesh.internal:8080/"), api: app.grpc("api.mesh.internal:9090"), db: app.tcp("db.mesh.internal:7000"),
	}
	before := map[string]loadOf{}
	for cluster, c := range callers {
		defer c.close()
		// Envoy counts from its first report on that a cluster is in, and tells nobody when that is.
		eventually(t, "a request in a report", func() error {
			if _, err := c.call(t.Context()); err != nil {
				t.Fatal(err)
			}
			have, err := d.loads()
			if err == nil && have[cluster].Total.Requests == 0 {
				err = errors.New("there is none")
			}
			before[cluster] = have[cluster]
			return err
		})
	}
	const calls = 40
	for _, c := range callers {
		if _, err := c.times(t.Context(), calls); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "what Envoy has sent, in meshd's words", func() error {
		have, err := d.loads()
		if err != nil {
			return err
		}
		for cluster := range callers {
			sent := 0 // with those before it counted
			for _, n := range e.requests(t, cluster) {
				sent += n
			}
			got, least := have[cluster].Total, before[cluster].Total.Requests+calls
			good := got.Requests
			if cluster == db {
				good = 0 // of connections Envoy does not say how they end
			}
			if got.Requests < least || got.Requests > sent || got.Successes != good || got.Errors+got.Dropped > 0 {
				return fmt.Errorf("%s: %+v, want from %d to %d requests", cluster, got, least, sent)
			}
		}
		return nil
	})
	have, err := d.loads()
	if err != nil {
		t.Fatal(err)
	}
	got := have[web]
	if got.Service != "default/web.mesh.internal" || got.Port != 8080 || got.Total.Errors != 0 || len(got.Localities) != 2 {
		t.Errorf("%s: %+v", web, got)
	}
	sum := 0
	for _, l := range got.Localities {
		if l.Locality.Region != "eu" || l.Total.Requests == 0 {
			t.Errorf("a locality of %s: %+v", web, l)
		}
		sum += l.Total.Requests
	}
	if sum != got.Total.Requests {
		t.Errorf("%d requests to all localities of %s, want %d", sum, web, got.Total.Requests)
	}
	if extra, ok := have["meshd"]; ok {
		t.Errorf("requests to a cluster that meshd has not given it: %+v", extra)
	}

	busy := startLoad(t, map[string]caller{"web": app.http("http://web.mesh.internal:8080/")})
	eventually(t, "a rate", func() error {
		have, err := d.loads()
		if err == nil && (have[web].RequestsPerSecond == 0 || have[web].Nodes.Count != 1 || have[web].Nodes.First[0] != "vm1") {
			err = fmt.Errorf("%+v", have[web])
		}
		return err
	})
	busy.requireNoFailure(t)
	table := string(output(t, meshdBinary, "status", "--loads", "--admin", adminAddress))
	if !strings.Contains(table, "default/web.mesh.internal  ") || !strings.Contains(table, "eu/eu-1") {
		t.Errorf("meshd status --loads:\n%s", table)
	}

	// Without an Envoy nobody reports, and the totals stay.
	e.kill()
	eventually(t, "meshd's word that nobody reports", func() error {
		_, err := d.loads()
		if err == nil {
			err = errors.New("somebody does")
		} else if strings.HasPrefix(err.Error(), "0 nodes") {
			err = nil
		}
		return err
	})
}

// TestClientStatus compares what the client status service says of an Envoy with what that Envoy says of itself.
func TestClientStatus(t *testing.T) {
	_, d, e := startMesh(t, redirect, delta)
	d.requireAccepted(t)
	conn, err := grpc.NewClient(xdsAddress, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exact := &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: redirectNode}}
	m, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(t.Context(), &statusv3.ClientStatusRequest{
		NodeMatchers: []*matcherv3.NodeMatcher{{NodeId: exact}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.GetConfig()) != 1 {
		t.Fatalf("%d clients, want 1", len(m.GetConfig()))
	}
	has := e.loaded(t)
	counts := map[string]int{}
	for _, c := range m.GetConfig()[0].GetGenericXdsConfigs() {
		if c.GetConfigStatus() != statusv3.ConfigStatus_SYNCED || len(c.GetXdsConfig().GetValue()) == 0 {
			t.Errorf("%s %s: %s", c.GetTypeUrl(), c.GetName(), c.GetConfigStatus())
		}
		word := map[string]string{
			"type.googleapis.com/envoy.config.cluster.v3.Cluster": "clusters", "type.googleapis.com/envoy.config.listener.v3.Listener": "listeners",
			"type.googleapis.com/envoy.config.route.v3.RouteConfiguration": "routes",
		}[c.GetTypeUrl()]
		counts[word]++
		if version, ok := has.versions[word+"/"+c.GetName()]; (word == "clusters" || word == "routes") && (!ok || version != c.GetVersionInfo()) {
			t.Errorf("%s %s: version %q by the status, %q in Envoy", word, c.GetName(), c.GetVersionInfo(), version)
		}
	}
	if counts["clusters"] != len(has.clusters) || counts["routes"] != len(has.routes) || counts["listeners"] != len(has.listeners) {
		t.Errorf("the status has %v; Envoy %d clusters, %d routes, %d listeners", counts, len(has.clusters), len(has.routes), len(has.listeners))
	}
}
