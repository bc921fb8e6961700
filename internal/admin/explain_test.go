package admin

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
	"github.com/meshd/meshd/internal/xds"
)

func host(t *testing.T, name string) mesh.Host {
	t.Helper()
	h, err := mesh.ParseHost(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// service is one in a file of its own, with one HTTP port, changed as need be.
func service(t *testing.T, name, namespace string, change func(*mesh.Service)) *mesh.Service {
	t.Helper()
	origin := mesh.Origin{Registry: "files", Source: "entries/" + name + ".yaml", Name: name, Line: 5}
	s := mesh.Service{
		Key: mesh.Key{Host: host(t, name), Namespace: namespace}, Resolution: mesh.Static, Export: mesh.Visibility{All: true}, Origin: origin,
		Ports: []mesh.Port{{Number: 80, Name: "http", Protocol: mesh.HTTP, Origin: origin}},
		Endpoints: []mesh.Endpoint{
			{Address: mesh.IPAddress(netip.MustParseAddr("192.0.2.1")), Ports: []uint16{8080}, Weight: 1, Health: mesh.Healthy, Origin: origin},
			{Address: mesh.IPAddress(netip.MustParseAddr("192.0.2.2")), Ports: []uint16{8080}, Weight: 1, Health: mesh.Healthy, Origin: origin},
		},
	}
	if change != nil {
		change(&s)
	}
	return mesh.Seal(s)
}

// factsOf are those of some services, and of nodes without redirection in the namespaces.
func factsOf(h mesh.Host, problems []mesh.Problem, services []*mesh.Service, nodes ...xds.NodeStatus) Facts {
	view := &mesh.View{Registries: []string{"files"}, Problems: problems}
	for _, s := range services {
		view.Services = view.Services.With(s.Key, s)
	}
	f := Facts{View: view, Near: strictyaml.Suggest, Nodes: nodes}
	var made []*envoy.Snapshot
	for _, n := range nodes {
		if !slices.ContainsFunc(made, func(s *envoy.Snapshot) bool { return s.Scope == n.Scope }) {
			made = append(made, envoy.Translate(nil, view, n.Scope, envoy.Mesh{}))
		}
	}
	f.Sights = envoy.Sights(h, made)
	return f
}

// node is one that has accepted everything, but for the changes.
func node(id, namespace string, change func([]xds.Delivery) []xds.Delivery) xds.NodeStatus {
	n := xds.NodeStatus{ID: id, Scope: envoy.Scope{Namespace: namespace, Capture: envoy.None}}
	for t := range envoy.Types {
		n.Deliveries = append(n.Deliveries, xds.Delivery{Type: t, Sent: xds.Mark{Version: "1"}, Accepted: xds.Mark{Version: "1"}})
	}
	if change != nil {
		n.Deliveries = change(n.Deliveries)
	}
	return n
}

func rejects(t envoy.Type, resources ...envoy.Name) func([]xds.Delivery) []xds.Delivery {
	return func(d []xds.Delivery) []xds.Delivery {
		d[t].Rejected = &xds.Rejection{Message: "no good", Resources: resources}
		return d
	}
}

func TestSuspects(t *testing.T) {
	const name = "a.mesh.internal"
	health := func(all ...mesh.Health) func(*mesh.Service) {
		return func(s *mesh.Service) {
			for i, h := range all {
				s.Endpoints[i].Health = h
			}
		}
	}
	own := mesh.Origin{Registry: "files", Source: "entries/" + name + ".yaml", Name: name, Line: 7}
	for what, tt := range map[string]struct {
		service  func(*mesh.Service)
		problems []mesh.Problem
		nodes    []xds.NodeStatus
		want     []string
	}{
		"nothing, if nodes have taken it":   {nodes: []xds.NodeStatus{node("web-1", "default", nil)}, want: []string{}},
		"nobody is there":                   {nodes: []xds.NodeStatus{}, want: []string{"no node is connected"}},
		"nothing, where nobody can be":      {want: []string{}},
		"no endpoints":                      {service: func(s *mesh.Service) { s.Endpoints = nil }, want: []string{"default/a.mesh.internal has no endpoints: requests are answered with 503, connections closed"}},
		"none are needed":                   {service: func(s *mesh.Service) { s.Resolution, s.Endpoints = mesh.DynamicDNS, nil }, want: []string{}},
		"no healthy endpoint":               {service: health(mesh.Unhealthy, mesh.Draining), want: []string{"default/a.mesh.internal has no endpoint that is healthy, of 2"}},
		"some unhealthy endpoints":          {service: health(mesh.Unhealthy, mesh.Degraded), want: []string{"default/a.mesh.internal has 1 of 2 endpoints that are not healthy"}},
		"a port that no endpoint serves":    {service: func(s *mesh.Service) { s.Endpoints[0].Ports[0], s.Endpoints[1].Ports[0] = 0, 0 }, want: []string{"default/a.mesh.internal: no endpoint serves port 80 (http)"}},
		"a node that rejects the listener":  {nodes: []xds.NodeStatus{node("web-1", "default", rejects(envoy.Listener, "127.0.0.1_80", "x")), node("web-2", "default", nil)}, want: []string{"1 of 2 nodes (web-1): what comes from it was rejected"}},
		"a node that rejects it unsaid why": {nodes: []xds.NodeStatus{node("web-1", "default", rejects(envoy.Route))}, want: []string{"1 of 1 nodes (web-1): what comes from it was rejected"}},
		"a node that rejects others":        {nodes: []xds.NodeStatus{node("web-1", "default", rejects(envoy.Listener, "127.0.0.1_81"))}, want: []string{}},
		"nodes that do not see it": {
			service: func(s *mesh.Service) { s.Export = mesh.Visibility{Namespaces: []string{"default"}} },
			nodes:   []xds.NodeStatus{node("1", "shop", nil), node("2", "shop", nil), node("3", "shop", nil), node("4", "shop", nil), node("5", "default", nil)},
			want:    []string{"4 of 5 nodes (1, 2, 3 …): not seen, since exportTo leaves the node's namespace out or another namespace's is nearer"},
		},
		"a node that has not answered": {
			nodes: []xds.NodeStatus{node("web-1", "default", func(d []xds.Delivery) []xds.Delivery { d[envoy.Cluster].Pending = true; return d })},
			want:  []string{"1 of 1 nodes (web-1): what was sent has not been answered yet"},
		},
		"a node that has not asked": {
			nodes: []xds.NodeStatus{node("web-1", "default", func([]xds.Delivery) []xds.Delivery { return nil })},
			want:  []string{"1 of 1 nodes (web-1): nothing of it was asked for"},
		},
		"problems of its document, each once": {
			problems: []mesh.Problem{
				{Severity: mesh.Error, Code: "unknown-field", Origin: own, Services: "default/b.mesh.internal", Serving: "its version of noon"},
				{Severity: mesh.Error, Code: "missing-field", Origin: own, Services: "default/b.mesh.internal", Serving: "its version of noon"},
				{Severity: mesh.Error, Code: "yaml-syntax", Origin: mesh.Origin{Registry: "files", Source: own.Source}, Serving: "what it gave last"},
				{Severity: mesh.Error, Code: "folder-unreadable", Origin: mesh.Origin{Registry: "files", Source: "entries"}},
				{Severity: mesh.Warning, Code: "host-joined", Origin: own, Services: "default/" + name},
				{Severity: mesh.Error, Code: "unknown-field", Origin: own, Services: "default/b.mesh.internal"},
				{Severity: mesh.Error, Code: "unknown-field", Origin: mesh.Origin{Registry: "consul", Source: own.Source, Name: name}},
			},
			want: []string{
				"entries/a.mesh.internal.yaml is wrong now, and served instead is its version of noon",
				"entries/a.mesh.internal.yaml is wrong now, and served instead is what it gave last",
				"entries is not served as it is written: folder-unreadable",
			},
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := host(t, name)
			f := factsOf(h, tt.problems, []*mesh.Service{service(t, name, "default", tt.service)}, tt.nodes...)
			if tt.nodes != nil {
				f.Nodes = tt.nodes
			}
			if diff := cmp.Diff(tt.want, f.Explain(h, "").Suspects); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatNodesCannotBeGivenIsSuspect(t *testing.T) {
	h := host(t, "b.mesh.internal")
	f := factsOf(h, nil, []*mesh.Service{service(t, "b.mesh.internal", "default", nil)})
	f.Problems = []mesh.Problem{
		{Severity: mesh.Warning, Code: "listener-taken", Services: "default/b.mesh.internal", Message: "gets no connections", Origin: mesh.Origin{Source: "b.yaml", Line: 8}},
		{Severity: mesh.Warning, Code: "listener-taken", Services: "default/c.mesh.internal", Message: "gets none either"},
	}
	x := f.Explain(h, "")
	if diff := cmp.Diff([]string{"b.yaml:8: gets no connections"}, x.Suspects); diff != "" || len(x.Problems) != 1 {
		t.Errorf("%d problems; suspects (-want +got):\n%s", len(x.Problems), diff)
	}
}

// TestEachNodeMeansOneService has a host in two namespaces, and nodes of a third and of one of the two.
func TestEachNodeMeansOneService(t *testing.T) {
	h := host(t, "a.mesh.internal")
	services := []*mesh.Service{
		service(t, "a.mesh.internal", "default", nil),
		service(t, "a.mesh.internal", "shop", func(s *mesh.Service) { s.Ports[0].Number = 81 }),
	}
	x := factsOf(h, nil, services, node("1", "shop", nil), node("1", "shop", nil), node("2", "pay", nil), node("3", "default", nil)).Explain(h, "")
	type seen struct {
		service string
		nodes   []string
		parts   int
	}
	var got []seen
	for _, s := range x.Seen {
		got = append(got, seen{s.Service, s.Nodes, len(s.Resources)})
	}
	want := []seen{{"default/a.mesh.internal", []string{"2", "3"}, 4}, {"shop/a.mesh.internal", []string{"1"}, 4}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(seen{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	means := map[string]string{}
	for _, n := range x.Nodes {
		means[n.ID] += n.Service
	}
	if diff := cmp.Diff(map[string]string{"1": "shop/a.mesh.internal", "2": "default/a.mesh.internal", "3": "default/a.mesh.internal"}, means); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func TestDefinitionsWinJoinAndLose(t *testing.T) {
	h := host(t, "a.mesh.internal")
	origin := func(source string, line int) mesh.Origin {
		return mesh.Origin{Registry: "files", Source: source, Name: source, Line: line}
	}
	s := service(t, "a.mesh.internal", "default", func(s *mesh.Service) {
		s.Origin, s.Joined = origin("a", 5), []mesh.Origin{origin("b", 5)}
	})
	x := factsOf(h, []mesh.Problem{
		{Code: "registry-conflict", Origin: origin("b", 9), Services: "default/a.mesh.internal", Message: "a port only"},
		{Code: "host-conflict", Origin: origin("c", 5), Services: "default/a.mesh.internal", Message: "no"},
		{Code: "duplicate-entry", Origin: origin("d", 5), Services: "default/x default/a.mesh.internal", Message: "twice"},
		{Code: "host-conflict", Origin: origin("e", 5), Services: "shop/a.mesh.internal", Message: "elsewhere"},
		{Code: "unknown-field", Origin: origin("f", 5), Services: "default/a.mesh.internal", Message: "refused"},
	}, []*mesh.Service{s}).Explain(h, "default")
	want := []Definition{
		{"decides", origin("a", 5), ""}, {"joins", origin("b", 5), ""}, {"lost", origin("c", 5), "no"}, {"lost", origin("d", 5), "twice"},
	}
	if diff := cmp.Diff(want, x.Services[0].Definitions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(x.Problems) != 4 {
		t.Errorf("%d problems, want those of the namespace: %v", len(x.Problems), x.Problems)
	}
}

func TestStates(t *testing.T) {
	ours := []Resource{{Type: "clusters", Name: "c"}, {Type: "routes", Name: "80"}}
	all := func(change func([]xds.Delivery) []xds.Delivery) []xds.Delivery {
		return node("x", "default", change).Deliveries
	}
	both := func(d []xds.Delivery) []xds.Delivery {
		return rejects(envoy.Route, "81")(rejects(envoy.Cluster, "b", "c")(d))
	}
	for name, tt := range map[string]struct {
		deliveries []xds.Delivery
		resources  []Resource
		want       NodeState
	}{
		"there is nothing":         {all(nil), nil, NodeState{State: StateNothing}},
		"all is well":              {all(rejects(envoy.Listener)), ours, NodeState{State: StateAccepted}},
		"some was not asked for":   {all(nil)[:1], ours, NodeState{State: StateAccepted, NotAsked: []string{"routes"}}},
		"nothing was asked for":    {nil, ours, NodeState{State: StateNotAsked, NotAsked: []string{"clusters", "routes"}}},
		"the worst type decides":   {all(both), ours, NodeState{State: StateRejected, Rejections: []NodeRejection{{"clusters", "no good", []string{"c"}}, {"routes", "no good", nil}}}},
		"others are rejected":      {all(rejects(envoy.Route, "81")), ours, NodeState{State: StateRejectsOthers, Rejections: []NodeRejection{{"routes", "no good", nil}}}},
		"rejected, not said which": {all(rejects(envoy.Route)), ours, NodeState{State: StateRejected, Rejections: []NodeRejection{{"routes", "no good", nil}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, stateOf(tt.deliveries, tt.resources)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAHostThatIsNotThere(t *testing.T) {
	var services []*mesh.Service
	for _, s := range []struct{ host, namespace string }{
		{"pay.mesh.internal", "shop"},
		{"pay.mesh.internal", "test"},
		{"cart.mesh.internal", "shop"},
		{"*.mesh.internal", "shop"},
		{"*.internal", "default"},
		{"www.example.org", "default"},
	} {
		services = append(services, service(t, s.host, s.namespace, nil))
	}
	problems := []mesh.Problem{
		{Severity: mesh.Error, Code: "yaml-syntax", Origin: mesh.Origin{Registry: "files", Source: "broken.yaml"}},
		{Severity: mesh.Error, Code: "yaml-syntax", Origin: mesh.Origin{Registry: "files", Source: "kept.yaml"}, Serving: "what it gave last"},
		{Severity: mesh.Error, Code: "unknown-field", Origin: mesh.Origin{Registry: "files", Source: "x.yaml", Name: "x"}, Services: "shop/books.mesh.internal"},
	}
	for asked, want := range map[string]struct{ near, wildcards, problems []string }{
		"pya.mesh.internal":         {[]string{"shop/pay.mesh.internal", "test/pay.mesh.internal"}, []string{"shop/*.mesh.internal", "default/*.internal"}, nil},
		"shop/pya.mesh.internal":    {[]string{"shop/pay.mesh.internal"}, []string{"shop/*.mesh.internal", "default/*.internal"}, nil},
		"default/pay.mesh.internal": {[]string{"shop/pay.mesh.internal", "test/pay.mesh.internal"}, []string{"shop/*.mesh.internal", "default/*.internal"}, nil},
		"pay":                       {[]string{"shop/pay.mesh.internal", "test/pay.mesh.internal"}, nil, nil},
		"www.exmaple.org":           {[]string{"default/www.example.org"}, nil, nil},
		"books.mesh.internal":       {nil, []string{"shop/*.mesh.internal", "default/*.internal"}, []string{"unknown-field"}},
		"*.example.com":             {nil, nil, nil},
	} {
		t.Run(asked, func(t *testing.T) {
			h, namespace, err := ParseService(asked)
			if err != nil {
				t.Fatal(err)
			}
			x := factsOf(h, problems, services, node("1", "default", nil)).Explain(h, namespace)
			if diff := cmp.Diff([][]string{want.near, want.wildcards}, [][]string{x.Near, x.Wildcards}); diff != "" {
				t.Errorf("near and wildcards (-want +got):\n%s", diff)
			}
			var codes []string
			for _, p := range x.Problems {
				codes = append(codes, p.Code)
			}
			if diff := cmp.Diff(want.problems, codes); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if len(x.Unread) != 1 || x.Unread[0].Origin.Source != "broken.yaml" {
				t.Errorf("unread: %v", x.Unread)
			}
			if len(x.Services)+len(x.Seen)+len(x.Nodes)+len(x.Suspects) > 0 {
				t.Errorf("there is something: %+v", x)
			}
		})
	}
}
