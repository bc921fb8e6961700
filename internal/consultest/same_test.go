package consultest_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/consul/api"

	"github.com/meshd/meshd/internal/consultest"
)

// catalog is what an Agent and a StandIn have in common.
type catalog interface {
	Register(...consultest.Service)
	Deregister(node, id string)
	SetStatus(node, id, status string)
	SetCheck(node, id, checkID, status, output string)
	RemoveCheck(node, checkID string)
	EnterMaintenance(node, id string)
	LeaveMaintenance(node, id string)
}

// The reads that the script watches, by short names.
var reads = map[string]string{
	"list":     "/v1/catalog/services",
	"web":      "/v1/health/service/web",
	"db":       "/v1/health/service/db",
	"nobody":   "/v1/health/service/nobody",
	"critical": "/v1/health/state/critical",
	"warning":  "/v1/health/state/warning",
	"any":      "/v1/health/state/any",
}

// TestStandInIsLikeConsul runs one script against both: after each step the same blocking queries wake and the same is read.
func TestStandInIsLikeConsul(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{Program: program})
	standIn := consultest.NewStandIn(t, consultest.StandInOptions{})
	subjects := []struct {
		name string
		catalog
		at    string
		ready func(asleep int)
	}{
		{"Consul", consul, "http://" + consul.Addr, func(int) {}},
		{"stand-in", standIn, standIn.URL, standIn.AwaitBlocking},
	}

	db := consultest.Service{Name: "db", Node: "n1", Port: 5432}
	web := consultest.Service{Name: "web", ID: "web-1", Node: "n1", Port: 80, Tags: []string{"a", "b"}}
	web2 := consultest.Service{Name: "web", ID: "web-2", Node: "n2", NodeAddress: "192.0.2.2", Address: "192.0.2.22", Port: 80}
	tagged, meta, weighted, placed := web, web, web, web
	tagged.Tags = []string{"a", "c"}
	meta.Tags, meta.Meta = tagged.Tags, map[string]string{"version": "2"}
	weighted = meta
	weighted.Weights = &api.AgentWeights{Passing: 5, Warning: 0}
	placed = weighted
	placed.NodeMeta = map[string]string{"zone": "z"}
	hidden := consultest.Service{Name: "web", ID: "web-3", Node: "n3", Port: 81, Status: consultest.NoCheck, Kind: api.ServiceKindTypical}

	for _, s := range subjects {
		s.Register(db)
	}
	for _, step := range []struct {
		name   string
		change func(catalog)
		wakes  []string
	}{
		{"a new service", func(c catalog) { c.Register(web) }, []string{"any", "critical", "list", "warning", "web"}},
		{"another instance", func(c catalog) { c.Register(web2) }, []string{"any", "critical", "list", "warning", "web"}},
		{"the same again", func(c catalog) { c.Register(web2) }, nil},
		{"an instance without a check", func(c catalog) { c.Register(hidden) }, []string{"list", "web"}},
		{"other tags", func(c catalog) { c.Register(tagged) }, []string{"any", "critical", "list", "warning", "web"}},
		{"other meta", func(c catalog) { c.Register(meta) }, []string{"list", "web"}},
		{"other weights", func(c catalog) { c.Register(weighted) }, []string{"list", "web"}},
		{"other meta of the node", func(c catalog) { c.Register(placed) }, []string{"db", "web"}},
		{"a check becomes critical", func(c catalog) { c.SetStatus("n1", "web-1", "critical") }, []string{"any", "critical", "warning", "web"}},
		{"the same status again", func(c catalog) { c.SetStatus("n1", "web-1", "critical") }, nil},
		{"the output of a passing check while another is critical", func(c catalog) { c.SetCheck("n2", "web-2", "", "passing", "fine") }, []string{"any", "warning", "web"}},
		{"another becomes a warning", func(c catalog) { c.SetStatus("n2", "web-2", "warning") }, []string{"any", "warning", "web"}},
		{"the output of a warning", func(c catalog) { c.SetCheck("n2", "web-2", "", "warning", "hm") }, []string{"any", "warning", "web"}},
		{"the critical one passes again", func(c catalog) { c.SetStatus("n1", "web-1", "passing") }, []string{"any", "critical", "web"}},
		{"a check of a node", func(c catalog) { c.SetStatus("n1", "", "critical") }, []string{"any", "critical", "db", "web"}},
		{"the check of the node goes", func(c catalog) { c.RemoveCheck("n1", "node") }, []string{"any", "critical", "db", "web"}},
		{"maintenance of an instance", func(c catalog) { c.EnterMaintenance("n1", "db") }, []string{"any", "critical", "db"}},
		{"the end of it", func(c catalog) { c.LeaveMaintenance("n1", "db") }, []string{"any", "critical", "db"}},
		{"maintenance of a node", func(c catalog) { c.EnterMaintenance("n2", "") }, []string{"any", "critical", "web"}},
		{"the end of that", func(c catalog) { c.LeaveMaintenance("n2", "") }, []string{"any", "critical", "web"}},
		{"an instance goes", func(c catalog) { c.Deregister("n1", "web-1") }, []string{"any", "critical", "list", "web"}},
		{"an instance without a check goes", func(c catalog) { c.Deregister("n3", "web-3") }, []string{"list", "web"}},
		{"a node goes, and with it the last instance", func(c catalog) { c.Deregister("n2", "") }, []string{"any", "critical", "list", "warning", "web"}},
		{"the service comes back", func(c catalog) { c.Register(placed) }, []string{"any", "critical", "list", "warning", "web"}},
		{"the last instance goes", func(c catalog) { c.Deregister("n1", "web-1") }, []string{"any", "critical", "list", "warning", "web"}},
	} {
		t.Run(step.name, func(t *testing.T) {
			slices.Sort(step.wakes)
			var said []map[string]any
			for _, s := range subjects {
				was := map[string]string{}
				for name, path := range reads {
					was[name] = fetch(t.Context(), t, s.at+path).index
				}
				if diff := cmp.Diff(step.wakes, wakes(t, s.at, s.ready, func() { step.change(s) }, len(step.wakes)), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%s: what wakes (-want +got):\n%s", s.name, diff)
				}
				all := map[string]any{}
				for name, path := range reads {
					is := fetch(t.Context(), t, s.at+path)
					all[name] = essence(t, is.body)
					all[name+" moved"] = is.index != was[name]
					all[name+" headers"] = [...]string{is.leader, is.backend, is.filtered}
				}
				said = append(said, all)
			}
			if diff := cmp.Diff(said[0], said[1], cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("what is read (-Consul +stand-in):\n%s", diff)
			}
		})
	}
}

// wakes tells which of the reads wake by a change, so many at least if there is time.
func wakes(t *testing.T, at string, ready func(int), change func(), atLeast int) []string {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asking, sent sync.WaitGroup
	woken := make(chan string, len(reads))
	for name, path := range reads {
		is := fetch(ctx, t, at+path)
		asking.Add(1)
		sent.Add(1)
		ctx := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { sent.Done() }})
		go func() {
			defer asking.Done()
			if fetch(ctx, t, at+path+"?wait=1m&index="+is.index).index != "" {
				woken <- name
			}
		}()
	}
	sent.Wait()
	ready(len(reads))
	<-time.After(100 * time.Millisecond) // Consul does not say whether it sleeps yet
	change()
	var got []string
	timeout := time.After(10 * time.Second)
	for len(got) < atLeast {
		select {
		case name := <-woken:
			got = append(got, name)
		case <-timeout:
			atLeast = 0
		}
	}
	<-time.After(100 * time.Millisecond) // for what should not wake
	cancel()
	asking.Wait()
	close(woken)
	for name := range woken {
		got = append(got, name)
	}
	slices.Sort(got)
	return got
}

type reply struct {
	status                 int
	index, leader, backend string
	filtered               string
	proto                  string
	body                   []byte
}

// client is the tests' own, whose connections are closed when the tests have ended.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 20}}

// fetch reads a URL. It is empty if the context ended.
func fetch(ctx context.Context, t testing.TB, url string, header ...string) reply {
	return fetchBy(ctx, t, client, url, header...)
}

func fetchBy(ctx context.Context, t testing.TB, client *http.Client, url string, header ...string) reply {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Error(err)
		return reply{}
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(r)
	if err != nil {
		if ctx.Err() == nil {
			t.Error(err)
		}
		return reply{}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	h := res.Header
	return reply{
		res.StatusCode, h.Get("X-Consul-Index"), h.Get("X-Consul-Knownleader"), h.Get("X-Consul-Query-Backend"),
		h.Get("X-Consul-Results-Filtered-By-Acls"), res.Proto, body,
	}
}

// essence is a body without what differs between two Consuls that hold the same: indexes, IDs, the service consul.
func essence(t *testing.T, body []byte) any {
	var all any
	if err := json.Unmarshal(body, &all); err != nil {
		t.Errorf("%v: %s", err, body)
	}
	return prune(all)
}

func prune(v any) any {
	switch v := v.(type) {
	case []any:
		out := []any{}
		for _, e := range v {
			if m, ok := e.(map[string]any); ok && (m["CheckID"] == "serfHealth" || m["Node"] == "stand-in") {
				continue
			}
			out = append(out, prune(e))
		}
		slices.SortFunc(out, func(a, b any) int {
			x, _ := json.Marshal(a)
			y, _ := json.Marshal(b)
			return slices.Compare(x, y)
		})
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			switch k {
			case "CreateIndex", "ModifyIndex", "Definition", "Proxy", "Connect", "consul":
				continue
			}
			e = prune(e)
			if e == nil || e == "" || e == false || e == 0.0 || isEmpty(e) {
				continue // some are left out where they are empty
			}
			out[k] = e
		}
		return out
	default:
		return v
	}
}

func isEmpty(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	default:
		return false
	}
}
