package admin

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/xds"
)

// Explanation is the answer of /api/v1/explain?host=HOST or NAMESPACE/HOST: all about one host. It comes with status 404 if
// no service has the host.
type Explanation struct {
	Host      string `json:"host"`
	Namespace string `json:"namespace,omitempty"` // if one was asked for
	// Suspects are why a request to the host may not arrive, the likeliest first; empty if everything looks right.
	Suspects []string           `json:"suspects"`
	Services []ExplainedService `json:"services"` // by namespace
	Problems []Problem          `json:"problems"` // that concern the host, the worst first
	Seen     []Sight            `json:"seen"`     // by what nodes are given for the host
	Nodes    []NodeState        `json:"nodes"`    // by id

	// Of a host that is not there: those that may have been meant, as NAMESPACE/HOST, the likeliest first.
	Near []string `json:"near,omitempty"`
	// Likewise: the wildcard hosts that cover it.
	Wildcards []string `json:"wildcards,omitempty"`
	// Likewise: problems with what could not be read at all, so that the host may stand there.
	Unread []Problem `json:"unread,omitempty"`
}

// ExplainedService is a service with all that defines it.
type ExplainedService struct {
	Service
	Definitions []Definition `json:"definitions"` // the deciding one first
}

// Definition is a document, or a registry's record, that defines a service.
type Definition struct {
	Role   string      `json:"role"` // decides, joins (adds ports and endpoints to the deciding one) or lost (has no effect)
	Origin mesh.Origin `json:"origin"`
	Reason string      `json:"reason,omitempty"` // why it lost
}

// Sight is what some nodes are given for a host, all of them the same.
type Sight struct {
	Service   string     `json:"service,omitempty"` // NAMESPACE/HOST, that these nodes mean by the host; empty: none
	Scopes    []Scope    `json:"scopes"`
	Nodes     []string   `json:"nodes"`     // by id
	Resources []Resource `json:"resources"` // by type and name: clusters, endpoints, listeners, routes
}

// Resource is an Envoy resource that leads to a service.
type Resource struct {
	Type string `json:"type"`
	Name string `json:"name"`

	Routes       []string      `json:"routes,omitempty"`       // of a listener: by which its HTTP requests are routed
	ServerNames  []string      `json:"serverNames,omitempty"`  // of a listener: for TLS connections to these alone
	Ranges       []string      `json:"ranges,omitempty"`       // of a listener: for connections to these addresses alone
	VirtualHosts []VirtualHost `json:"virtualHosts,omitempty"` // of a route
}

// VirtualHost is the part of a route that is a service's.
type VirtualHost struct {
	Name    string   `json:"name"`
	Domains []string `json:"domains"` // the hosts of the requests that it is for
}

// NodeState is how a connected node stands with what it is given for a host.
type NodeState struct {
	ID      string `json:"id"`
	Scope   Scope  `json:"scope"`
	Service string `json:"service,omitempty"` // that the node means by the host; empty: none
	// State is accepted, pending (sent and not answered), rejected (what it names leads to the host, or it names nothing),
	// rejects-others (accepted, as far as can be told, with a rejection of other resources of the types), not-asked (for
	// any such resource), or nothing (there is nothing for it).
	State      string          `json:"state"`
	NotAsked   []string        `json:"notAsked,omitempty"` // types that have resources of the host
	Rejections []NodeRejection `json:"rejections,omitempty"`
}

// NodeRejection is what a node does not take.
type NodeRejection struct {
	Type    string `json:"type"`
	Message string `json:"message"` // the node's own words
	// Resources are those of the host that the message names; empty if it names none, or others.
	Resources []string `json:"resources,omitempty"`
}

// The states of nodes.
const (
	StateNothing       = "nothing"
	StateAccepted      = "accepted"
	StateRejectsOthers = "rejects-others"
	StatePending       = "pending"
	StateNotAsked      = "not-asked"
	StateRejected      = "rejected"
)

// NodeStates are the states of nodes, the worst last.
func NodeStates() []string {
	return []string{StateNothing, StateAccepted, StateRejectsOthers, StatePending, StateNotAsked, StateRejected}
}

// Facts are what an explanation is made from.
type Facts struct {
	View     *mesh.View
	Problems []mesh.Problem   // besides those of the view: what nodes cannot be given of it
	Nodes    []xds.NodeStatus // who is connected; nil where nobody can be, since there is no daemon
	Sights   []xds.Sight      // what nodes are given for the host, by scope; there may be some without nodes
	// Near returns which word of some is most like another, empty if none is.
	Near func(word string, among []string) string
}

// ParseService reads HOST, or NAMESPACE/HOST.
func ParseService(text string) (h mesh.Host, namespace string, err error) {
	host := text
	if n, rest, ok := strings.Cut(text, "/"); ok {
		if namespace, host = n, rest; !mesh.IsLabel(namespace) {
			return mesh.Host{}, "", fmt.Errorf("%q is not a namespace; write HOST or NAMESPACE/HOST", namespace)
		}
	}
	if h, err = mesh.ParseHost(strings.TrimSuffix(host, ".")); err != nil {
		return mesh.Host{}, "", fmt.Errorf("%q %w", host, err)
	}
	return h, namespace, nil
}

// Explain tells all about a host, in one namespace or, if that is empty, in all.
func (f Facts) Explain(h mesh.Host, namespace string) Explanation {
	x := Explanation{
		Host: h.String(), Namespace: namespace, Suspects: []string{}, Services: []ExplainedService{}, Problems: []Problem{},
		Seen: f.seen(), Nodes: f.states(),
	}
	var services []*mesh.Service
	for s := range f.View.OfHost(h) {
		if namespace == "" || s.Namespace == namespace {
			services = append(services, s)
		}
	}
	var problems []mesh.Problem
	all := slices.Concat(f.View.Problems, f.Problems)
	for _, p := range all {
		if p.Concerns(h, namespace) || slices.ContainsFunc(services, func(s *mesh.Service) bool { return from(s, p) }) {
			problems = append(problems, p)
		}
	}
	x.Problems = ranked(problems)
	for _, s := range services {
		x.Services = append(x.Services, ExplainedService{serviceOf(s), definitions(s, problems)})
	}
	if len(services) == 0 {
		x.Seen, x.Nodes = []Sight{}, []NodeState{}
		x.Near, x.Wildcards = f.near(h, namespace), f.wildcards(h)
		x.Unread = ranked(slices.DeleteFunc(all, func(p mesh.Problem) bool { return !unread(p) }))
		return x
	}
	x.Suspects = f.suspects(services, problems, x.Nodes)
	return x
}

// from tells whether a problem is with a document that a service comes from. One that says which services it concerns is
// only if the document's last good version is served, which may name others.
func from(s *mesh.Service, p mesh.Problem) bool {
	if p.Services != "" && p.Serving == "" {
		return false
	}
	same := func(o mesh.Origin) bool {
		switch {
		case o.Registry != p.Origin.Registry || o.Source == "" || p.Origin.Source == "":
			return false
		case o.Source != p.Origin.Source: // it may be the folder
			return strings.HasPrefix(o.Source, strings.TrimSuffix(p.Origin.Source, "/")+"/")
		case p.Origin.Name == "":
			return p.Serving != "" || o.Document == p.Origin.Document
		}
		return o.Name == p.Origin.Name
	}
	return same(s.Origin) || slices.ContainsFunc(s.Joined, same) ||
		slices.ContainsFunc(s.Endpoints, func(e mesh.Endpoint) bool { return same(e.Origin) })
}

// unread tells whether nothing could be made of what a problem is with, not even who it is.
func unread(p mesh.Problem) bool {
	return p.Severity == mesh.Error && p.Services == "" && p.Serving == "" && p.Origin.Name == ""
}

// definitions are what defines a service, given the problems that concern its host.
func definitions(s *mesh.Service, problems []mesh.Problem) []Definition {
	out := []Definition{{Role: "decides", Origin: s.Origin}}
	for _, o := range s.Joined {
		out = append(out, Definition{Role: "joins", Origin: o})
	}
	for _, p := range problems {
		part := func(d Definition) bool {
			return d.Origin.Registry == p.Origin.Registry && d.Origin.Source == p.Origin.Source && d.Origin.Document == p.Origin.Document
		}
		lost := p.Code == "host-conflict" || p.Code == "duplicate-entry" || p.Code == "registry-conflict"
		if lost && p.Concerns(s.Host, s.Namespace) && !slices.ContainsFunc(out, part) {
			out = append(out, Definition{"lost", p.Origin, p.Message})
		}
	}
	return out
}

// seen are the sights, those that are the same but for their scopes taken together.
func (f Facts) seen() []Sight {
	nodes := map[xds.Scope][]string{}
	for _, n := range f.Nodes {
		nodes[n.Scope] = append(nodes[n.Scope], n.ID)
	}
	out := []Sight{}
	for _, s := range f.Sights {
		sight := Sight{Service: keyOf(s.Service), Resources: resourcesOf(s)}
		i := slices.IndexFunc(out, func(o Sight) bool {
			return o.Service == sight.Service && reflect.DeepEqual(o.Resources, sight.Resources)
		})
		if i < 0 {
			i = len(out)
			out = append(out, sight)
		}
		if scope := ScopeOf(s.Scope); !slices.Contains(out[i].Scopes, scope) {
			out[i].Scopes = append(out[i].Scopes, scope)
		}
		out[i].Nodes = append(out[i].Nodes, nodes[s.Scope]...)
	}
	for i := range out {
		slices.SortFunc(out[i].Scopes, Scope.compare)
		out[i].Nodes = append([]string{}, slices.Compact(slices.Sorted(slices.Values(out[i].Nodes)))...)
	}
	slices.SortFunc(out, func(a, b Sight) int {
		return cmp.Or(len(b.Nodes)-len(a.Nodes), cmp.Compare(b.Service, a.Service), a.Scopes[0].compare(b.Scopes[0]))
	})
	return out
}

func keyOf(s *mesh.Service) string {
	if s == nil {
		return ""
	}
	return s.Key.String()
}

func resourcesOf(s xds.Sight) []Resource {
	out := []Resource{}
	for _, p := range s.Parts {
		r := Resource{Type: p.Type.String(), Name: string(p.Name), ServerNames: p.ServerNames, Ranges: p.Ranges}
		for _, n := range p.Routes {
			r.Routes = append(r.Routes, string(n))
		}
		for _, v := range p.VirtualHosts {
			r.VirtualHosts = append(r.VirtualHosts, VirtualHost(v))
		}
		out = append(out, r)
	}
	return out
}

func (s Scope) compare(o Scope) int {
	return cmp.Or(cmp.Compare(s.Namespace, o.Namespace), -cmp.Compare(s.Kind, o.Kind), cmp.Compare(s.Capture, o.Capture), cmp.Compare(s.Family, o.Family),
		cmp.Compare(s.DNSDomain, o.DNSDomain), s.Locality.Compare(o.Locality), cmp.Compare(s.Privileges, o.Privileges))
}

// states are how the nodes stand, by id. A node that is connected since the sights were taken is left out.
func (f Facts) states() []NodeState {
	sights := map[xds.Scope]xds.Sight{}
	for _, s := range f.Sights {
		sights[s.Scope] = s
	}
	out := []NodeState{}
	for i := 0; i < len(f.Nodes); {
		n := f.Nodes[i]
		var deliveries []xds.Delivery // of all streams of the node, which stand together
		for ; i < len(f.Nodes) && f.Nodes[i].ID == n.ID && f.Nodes[i].Scope == n.Scope; i++ {
			deliveries = append(deliveries, f.Nodes[i].Deliveries...)
		}
		if s, ok := sights[n.Scope]; ok {
			state := stateOf(deliveries, resourcesOf(s))
			state.ID, state.Scope, state.Service = n.ID, ScopeOf(n.Scope), keyOf(s.Service)
			out = append(out, state)
		}
	}
	return out
}

// stateOf is how a node stands with some resources.
func stateOf(deliveries []xds.Delivery, resources []Resource) NodeState {
	if len(resources) == 0 {
		return NodeState{State: StateNothing}
	}
	byType := map[string][]string{}
	for _, r := range resources {
		byType[r.Type] = append(byType[r.Type], r.Name)
	}
	states := []string{}
	out := NodeState{}
	for _, d := range deliveries {
		typ := d.Type.String()
		names, ours := byType[typ]
		if !ours {
			continue
		}
		delete(byType, typ)
		switch {
		case d.Rejected != nil:
			r := NodeRejection{Type: typ, Message: d.Rejected.Message}
			for _, n := range d.Rejected.Resources {
				if slices.Contains(names, string(n)) {
					r.Resources = append(r.Resources, string(n))
				}
			}
			out.Rejections = append(out.Rejections, r)
			if len(r.Resources) > 0 || len(d.Rejected.Resources) == 0 {
				states = append(states, StateRejected)
			} else {
				states = append(states, StateRejectsOthers)
			}
		case d.Pending:
			states = append(states, StatePending)
		default:
			states = append(states, StateAccepted)
		}
	}
	out.State = StateNotAsked
	if len(states) > 0 {
		out.State = slices.MaxFunc(states, func(a, b string) int { return slices.Index(NodeStates(), a) - slices.Index(NodeStates(), b) })
	}
	for typ := range byType {
		out.NotAsked = append(out.NotAsked, typ)
	}
	slices.Sort(out.NotAsked)
	return out
}

// near are services that may have been meant by a host that is not there: the host in other namespaces, those of which it
// is the beginning, the one with the most similar first label in the same domain, and the most similar one elsewhere.
func (f Facts) near(h mesh.Host, namespace string) []string {
	const most = 5
	var out, begun []string
	for s := range f.View.OfHost(h) {
		out = append(out, s.Key.String())
	}
	label, domain, _ := strings.Cut(h.String(), ".")
	var labels, elsewhere []string
	byHost := map[string][]string{}
	for k := range f.View.Services.All() {
		host := k.Host.String()
		if k.Host == h || namespace != "" && k.Namespace != namespace {
			continue
		}
		byHost[host] = append(byHost[host], k.String())
		switch first, rest, _ := strings.Cut(host, "."); {
		case strings.HasPrefix(host, h.String()+"."):
			begun = append(begun, k.String())
		case rest == domain:
			labels = append(labels, first)
		default:
			elsewhere = append(elsewhere, host)
		}
	}
	out = append(out, begun...)
	out = append(out, byHost[f.Near(label, labels)+"."+domain]...)
	out = append(out, byHost[f.Near(h.String(), elsewhere)]...)
	return out[:min(most, len(out))]
}

// wildcards are the services of wildcard hosts that cover a host, the nearest first.
func (f Facts) wildcards(h mesh.Host) (out []string) {
	for rest := h.String(); ; {
		_, parent, more := strings.Cut(rest, ".")
		if !more {
			return out
		}
		rest = parent
		if w, err := mesh.ParseHost("*." + parent); err == nil && w != h {
			for s := range f.View.OfHost(w) {
				out = append(out, s.Key.String())
			}
		}
	}
}

// suspects are why a request to the services may not arrive, the likeliest first.
func (f Facts) suspects(services []*mesh.Service, problems []mesh.Problem, nodes []NodeState) []string {
	out := []string{}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, s := range services {
		switch n, usable := len(s.Endpoints), usable(s); {
		case s.Resolution == mesh.ResolutionNone || s.Resolution == mesh.DynamicDNS:
		case n == 0:
			say("%s has no endpoints: requests are answered with 503, connections closed", s.Key)
		case usable == 0:
			say("%s has no endpoint that is healthy, of %d", s.Key, n)
		case usable < n:
			say("%s has %d of %d endpoints that are not healthy", s.Key, n-usable, n)
		}
		for i, p := range s.Ports {
			if len(s.Endpoints) > 0 && !slices.ContainsFunc(s.Endpoints, func(e mesh.Endpoint) bool { return e.Ports[i] != 0 }) {
				say("%s: no endpoint serves port %d (%s)", s.Key, p.Number, p.Name)
			}
		}
	}
	for _, p := range problems {
		switch {
		case p.Serving != "":
			say("%s is wrong now, and served instead is %s", p.Origin.Source, p.Serving)
		case slices.Contains(f.Problems, p):
			say("%s: %s", p.Origin, p.Message)
		case p.Severity == mesh.Error:
			say("%s is not served as it is written: %s", p.Origin, p.Code)
		}
	}
	means := func(n NodeState) bool {
		return slices.ContainsFunc(services, func(s *mesh.Service) bool { return s.Key.String() == n.Service })
	}
	for _, c := range []struct {
		is   func(NodeState) bool
		what string
	}{
		{func(n NodeState) bool { return n.State == StateRejected }, "what comes from it was rejected"},
		{func(n NodeState) bool { return n.State == StatePending }, "what was sent has not been answered yet"},
		{func(n NodeState) bool { return n.State == StateNotAsked }, "nothing of it was asked for"},
		{func(n NodeState) bool { return !means(n) }, "not seen, since exportTo leaves the node's namespace out or another namespace's is nearer"},
	} {
		var ids []string
		for _, n := range nodes {
			if c.is(n) {
				ids = append(ids, n.ID)
			}
		}
		if len(ids) > 0 {
			say("%d of %d nodes (%s): %s", len(ids), len(nodes), some(ids), c.what)
		}
	}
	if f.Nodes != nil && len(f.Nodes) == 0 {
		say("no node is connected")
	}
	return distinct(out)
}

// distinct are the texts, each once, in their order.
func distinct(texts []string) []string {
	out := texts[:0]
	for _, t := range texts {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// usable counts the endpoints that are sent traffic.
func usable(s *mesh.Service) (n int) {
	for _, e := range s.Endpoints {
		if e.Health != mesh.Unhealthy && e.Health != mesh.Draining {
			n++
		}
	}
	return n
}

// some are the first few of a list.
func some(all []string) string {
	const most = 3
	text := strings.Join(all[:min(most, len(all))], ", ")
	if len(all) > most {
		text += " …"
	}
	return text
}
