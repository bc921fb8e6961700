package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// world is a mesh of which only names and versions matter. It stands in for the translation.
type world struct {
	resources [envoy.Types]envoy.Resources
	versions  [envoy.Types]mesh.Digest

	mu        sync.Mutex
	snapshots map[*mesh.View]*envoy.Snapshot
	last      *mesh.View
}

// newMessage is a message that holds its content, so that a client can tell versions apart.
func newMessage(t envoy.Type, name, content string) proto.Message {
	switch t {
	case envoy.Cluster:
		return &clusterv3.Cluster{Name: name, AltStatName: content}
	case envoy.Endpoints:
		return &endpointv3.ClusterLoadAssignment{
			ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{Locality: &corev3.Locality{Region: content}}},
		}
	case envoy.Listener:
		return &listenerv3.Listener{Name: name, StatPrefix: content}
	}
	return &routev3.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{content}}
}

func contentOf(m proto.Message) string {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return m.AltStatName
	case *endpointv3.ClusterLoadAssignment:
		return m.Endpoints[0].Locality.Region
	case *listenerv3.Listener:
		return m.StatPrefix
	case *routev3.RouteConfiguration:
		return m.InternalOnlyHeaders[0]
	}
	panic(fmt.Sprintf("%T", m))
}

// newResource is one of the service of the same name, or of these.
func newResource(t envoy.Type, name, content string, services ...mesh.Key) *envoy.Resource {
	if len(services) == 0 {
		services = []mesh.Key{serviceKey(name)}
	}
	return envoy.NewResource(t, envoy.Name(name), newMessage(t, name, content), "", services...)
}

func serviceKey(name string) mesh.Key {
	h, err := mesh.ParseHost(name + ".mesh")
	if err != nil {
		panic(err)
	}
	return mesh.Key{Host: h, Namespace: mesh.DefaultNamespace}
}

// set gives a resource some content, which is as good as its version.
func (w *world) set(t envoy.Type, name, content string, services ...mesh.Key) {
	w.remove(t, name)
	r := newResource(t, name, content, services...)
	w.resources[t] = w.resources[t].With(r.Name, r)
	w.versions[t] = w.versions[t].Plus(r.Digest)
}

func (w *world) remove(t envoy.Type, name string) {
	if old, ok := w.resources[t].Get(envoy.Name(name)); ok {
		w.versions[t] = w.versions[t].Minus(old.Digest)
		w.resources[t] = w.resources[t].Without(old.Name)
	}
}

// service adds or changes a service: a cluster, its endpoints, a listener and a route of the same name.
func (w *world) service(name, content string) {
	for t := range envoy.Types {
		w.set(t, name, content)
	}
}

func (w *world) withdraw(name string) {
	for t := range envoy.Types {
		w.remove(t, name)
	}
}

func (w *world) snapshot(view *mesh.View) *envoy.Snapshot {
	return &envoy.Snapshot{View: view, Resources: w.resources, Versions: w.versions}
}

// view is the world as it is now.
func (w *world) view() *mesh.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &mesh.View{Generation: 1}
	if w.snapshots == nil {
		w.snapshots = map[*mesh.View]*envoy.Snapshot{}
	}
	w.snapshots[w.last] = w.snapshot(w.last)
	return w.last
}

func (w *world) translate(_ *envoy.Snapshot, view *mesh.View, scope envoy.Scope, _ envoy.Mesh, _ ...*envoy.Snapshot) *envoy.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := *w.snapshots[view]
	s.Scope = scope
	return &s
}

// got is a response as a client sees it.
type got struct {
	Type      envoy.Type
	Version   string
	Nonce     string
	Resources []envoy.Name
	Removed   []envoy.Name
	versions  map[envoy.Name]string // of the resources
}

// decode reads a response with the generated types, and with nothing of ours.
func decode(t tester, p Protocol, f *frame, versionOf func(envoy.Type, envoy.Name, proto.Message) string) *got {
	t.Helper()
	wire := f.buffers.Materialize()
	g := &got{versions: map[envoy.Name]string{}}
	var controlPlane *corev3.ControlPlane
	if p == SotW {
		m := &discovery.DiscoveryResponse{}
		if err := proto.Unmarshal(wire, m); err != nil {
			t.Fatal(err)
		}
		g.Type, _ = typeOf([]byte(m.TypeUrl))
		g.Version, g.Nonce, controlPlane = m.VersionInfo, m.Nonce, m.ControlPlane
		for _, a := range m.Resources {
			r, err := a.UnmarshalNew()
			if err != nil {
				t.Fatal(err)
			}
			n := nameOf(r)
			g.Resources = append(g.Resources, n)
			g.versions[n] = versionOf(g.Type, n, r)
		}
	} else {
		m := &discovery.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(wire, m); err != nil {
			t.Fatal(err)
		}
		g.Type, _ = typeOf([]byte(m.TypeUrl))
		g.Version, g.Nonce, controlPlane = m.SystemVersionInfo, m.Nonce, m.ControlPlane
		for _, r := range m.Resources {
			g.Resources = append(g.Resources, envoy.Name(r.Name))
			g.versions[envoy.Name(r.Name)] = r.Version
		}
		for _, n := range m.RemovedResources {
			g.Removed = append(g.Removed, envoy.Name(n))
		}
	}
	if controlPlane.GetIdentifier() != "meshd" {
		t.Errorf("control plane %v, want meshd", controlPlane)
	}
	if len(g.versions) != len(g.Resources) {
		t.Errorf("a response of %s has a name twice: %q", g.Type, g.Resources) // rule 14
	}
	for _, n := range g.Removed {
		if _, ok := g.versions[n]; ok {
			t.Errorf("a response of %s has %q as resource and as removed", g.Type, n)
		}
	}
	return g
}

func nameOf(m proto.Message) envoy.Name {
	switch m := m.(type) {
	case *clusterv3.Cluster:
		return envoy.Name(m.Name)
	case *endpointv3.ClusterLoadAssignment:
		return envoy.Name(m.ClusterName)
	case *listenerv3.Listener:
		return envoy.Name(m.Name)
	case *routev3.RouteConfiguration:
		return envoy.Name(m.Name)
	}
	panic(fmt.Sprintf("%T", m))
}

// tester is what a *testing.T and a *rapid.T have in common.
type tester interface {
	Helper()
	Errorf(string, ...any)
	Fatalf(string, ...any)
	Fatal(...any)
}

// rig is a server side without gRPC: a world, its editions, and one session.
type rig struct {
	t tester
	world
	newest  *edition
	now     time.Time
	session session
	reader  reader
	rosters rosters
}

const (
	grace = 3 * time.Second
	retry = time.Minute
)

func newRig(t tester, p Protocol) *rig {
	r := &rig{t: t, now: time.Unix(1e9, 0)}
	r.connect(p)
	return r
}

// connect begins a new stream.
func (r *rig) connect(p Protocol) {
	r.session = session{protocol: p, grace: grace, retry: retry, rosters: &r.rosters}
	r.reader = reader{protocol: p, rosters: &r.rosters}
}

// publish makes the world as it is the newest edition, and offers it as a scope does.
func (r *rig) publish() {
	from := r.newest
	if from != nil && from.Resources == r.resources {
		return
	}
	r.newest = &edition{number: from.ordinal() + 1, Snapshot: r.world.snapshot(&mesh.View{}), applied: r.now}
	if from != nil {
		r.session.skips(from, r.newest)
	}
}

func marshal(t tester, m proto.Message) []byte {
	t.Helper()
	wire, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func (r *rig) request(t envoy.Type, m proto.Message) *Rejection {
	r.t.Helper()
	wire := marshal(r.t, m)
	req, err := r.reader.read(wire)
	if err != nil {
		r.t.Fatal(err)
	}
	over := func() { // the bytes are used for something else then
		for i := range wire {
			wire[i] = 0xff
		}
	}
	if req.claimed.n > 0 {
		req.release = over
	}
	found := r.session.request(t, req, r.now).found
	if req.release == nil {
		over()
	}
	return found
}

// next is the next response, or nil.
func (r *rig) next() *got {
	r.t.Helper()
	if r.newest == nil {
		return nil
	}
	resp := r.session.next(r.newest, r.now)
	if resp == nil {
		return nil
	}
	return decode(r.t, r.session.protocol, encode(r.session.protocol, encodeControlPlane("meshd"), resp),
		func(t envoy.Type, n envoy.Name, m proto.Message) string {
			return newResource(t, string(n), contentOf(m)).Version
		})
}

// model is a client's state of one type.
type model struct {
	asked    bool
	wildcard bool
	legacy   bool // the wildcard was never named
	names    map[envoy.Name]bool
	held     map[envoy.Name]string // versions
	version  string                // accepted, state of the world
	nonce    string
}

// client is a model of an xDS client, in both protocols. What it sends goes to the rig at once, or lies in its outbox.
type client struct {
	*rig
	types  [envoy.Types]model
	queues bool
	outbox []func()
	inbox  []*got

	// What the client rejects, and how: whether its message names that, and whether it takes the rest all the same. An Envoy
	// and a gRPC client do both.
	rejects        func(t envoy.Type, n envoy.Name, version string) bool
	names, lenient bool
}

func newClient(t tester, p Protocol) *client {
	return &client{rig: newRig(t, p), types: emptyModels()}
}

func emptyModels() (m [envoy.Types]model) {
	for t := range m {
		m[t] = model{names: map[envoy.Name]bool{}, held: map[envoy.Name]string{}}
	}
	return m
}

// both runs a test in both protocols.
func both(t *testing.T, test func(t *testing.T, c *client)) {
	for p := range protocols {
		t.Run(p.String(), func(t *testing.T) { test(t, newClient(t, p)) })
	}
}

func text(names []envoy.Name) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}

// list is what a state-of-the-world request names.
func (m *model) list() []string {
	out := text(slices.Sorted(maps.Keys(m.names)))
	if m.wildcard && !m.legacy {
		out = append(out, "*")
	}
	return out
}

// all subscribes to all resources in the old way, by naming none.
func (c *client) all(t envoy.Type) {
	m := &c.types[t]
	m.wildcard, m.legacy = true, true
	c.send(t, nil, nil, "")
}

func (c *client) subscribe(t envoy.Type, names ...envoy.Name) {
	m := &c.types[t]
	if m.legacy && c.session.protocol == SotW {
		m.wildcard, m.legacy = false, false
	}
	for _, n := range names {
		if n == everything {
			m.wildcard = true
		} else {
			m.names[n] = true
		}
	}
	m.forget()
	c.send(t, names, nil, "")
}

func (c *client) unsubscribe(t envoy.Type, names ...envoy.Name) {
	m := &c.types[t]
	for _, n := range names {
		if n == everything {
			m.wildcard, m.legacy = false, false
		}
		delete(m.names, n)
	}
	m.forget()
	c.send(t, nil, names, "")
}

// forget drops what is not wanted any more.
func (m *model) forget() {
	for n := range m.held {
		if !m.wants(n) {
			delete(m.held, n)
		}
	}
}

func (m *model) wants(n envoy.Name) bool { return m.wildcard || m.names[n] }

func (c *client) send(t envoy.Type, subscribe, unsubscribe []envoy.Name, nonce string) *Rejection {
	c.t.Helper()
	m := c.message(t, subscribe, unsubscribe, nonce, "")
	if !c.queues {
		return c.request(t, m)
	}
	c.outbox = append(c.outbox, func() { c.request(t, m) })
	return nil
}

// message is the client's next request. In delta, nonce says what is answered.
func (c *client) message(t envoy.Type, subscribe, unsubscribe []envoy.Name, nonce, why string) proto.Message {
	m := &c.types[t]
	detail := status.New(codes.InvalidArgument, why).Proto()
	if why == "" {
		detail = nil
	}
	first := !m.asked
	m.asked = true
	if c.session.protocol == SotW {
		return &discovery.DiscoveryRequest{
			TypeUrl: t.URL(), ResourceNames: m.list(), VersionInfo: m.version, ResponseNonce: m.nonce, ErrorDetail: detail,
		}
	}
	req := &discovery.DeltaDiscoveryRequest{
		TypeUrl: t.URL(), ResourceNamesSubscribe: text(subscribe), ResourceNamesUnsubscribe: text(unsubscribe),
		ResponseNonce: nonce, ErrorDetail: detail,
	}
	if first {
		req.InitialResourceVersions = map[string]string{}
		for n, v := range m.held {
			req.InitialResourceVersions[string(n)] = v
		}
	}
	return req
}

// apply takes a response's resources, as a client that accepts it.
func (c *client) apply(g *got) {
	m := &c.types[g.Type]
	if c.session.protocol == SotW && order[g.Type].full {
		m.held = map[envoy.Name]string{}
	}
	for _, n := range g.Resources {
		if m.wants(n) {
			m.held[n] = g.versions[n]
		}
	}
	for _, n := range g.Removed {
		delete(m.held, n)
	}
}

// answer acknowledges a response, or rejects it if there is something in it that the client rejects.
func (c *client) answer(g *got) (found *Rejection) {
	c.t.Helper()
	bad := c.taste(g)
	if len(bad) == 0 {
		return c.ack(g)
	}
	return c.nack(g, c.complaint(bad))
}

// taste takes a response's resources, but for those that it rejects; which are these?
func (c *client) taste(g *got) (bad []envoy.Name) {
	for _, n := range g.Resources {
		if c.rejects != nil && c.types[g.Type].wants(n) && c.rejects(g.Type, n, g.versions[n]) {
			bad = append(bad, n)
		}
	}
	if len(bad) == 0 {
		c.apply(g)
	} else if c.lenient {
		rest := *g
		rest.Resources = slices.DeleteFunc(slices.Clone(g.Resources), func(n envoy.Name) bool { return slices.Contains(bad, n) })
		old := maps.Clone(c.types[g.Type].held)
		c.apply(&rest)
		for _, n := range bad {
			if old[n] != "" {
				c.types[g.Type].held[n] = old[n]
			}
		}
	}
	return bad
}

func (c *client) complaint(bad []envoy.Name) string {
	if !c.names {
		return "no"
	}
	return "Error adding/updating thing(s) " + strings.Join(text(bad), ": no, ") + ": no"
}

// settle answers all that comes, at most so many responses, and returns how many there were.
func (c *client) settle(most int) (n int) {
	c.t.Helper()
	for ; ; n++ {
		g := c.next()
		if g == nil {
			return n
		}
		if n == most {
			c.t.Fatalf("more than %d responses; the next is %s %q", most, g.Type, g.Resources)
		}
		c.answer(g)
	}
}

func (c *client) ack(g *got) *Rejection {
	c.t.Helper()
	c.apply(g)
	m := &c.types[g.Type]
	m.version, m.nonce = g.Version, g.Nonce
	return c.send(g.Type, nil, nil, g.Nonce)
}

func (c *client) nack(g *got, message string) *Rejection {
	c.t.Helper()
	c.types[g.Type].nonce = g.Nonce
	m := c.message(g.Type, nil, nil, g.Nonce, message)
	if !c.queues {
		return c.request(g.Type, m)
	}
	c.outbox = append(c.outbox, func() { c.request(g.Type, m) })
	return nil
}

// take is the next response, which must be of type t and hold these names; the client acknowledges it.
func (c *client) take(t envoy.Type, names ...envoy.Name) *got {
	c.t.Helper()
	g := c.expect(t, names...)
	c.ack(g)
	return g
}

func (c *client) expect(t envoy.Type, names ...envoy.Name) *got {
	c.t.Helper()
	g := c.next()
	if g == nil {
		c.t.Fatalf("nothing is sent, want %s %q", t, names)
	}
	if g.Type != t || !slices.Equal(g.Resources, names) {
		c.t.Fatalf("got %s %q (removed %q), want %s %q", g.Type, g.Resources, g.Removed, t, names)
	}
	return g
}

// removed is as take, of names that are removed; in the state of the world a list without them.
func (c *client) removed(t envoy.Type, gone []envoy.Name, left ...envoy.Name) {
	c.t.Helper()
	g := c.next()
	if g == nil {
		c.t.Fatalf("nothing is sent, want removal of %s %q", t, gone)
	}
	if c.session.protocol == SotW {
		if g.Type != t || !slices.Equal(g.Resources, left) {
			c.t.Fatalf("got %s %q, want %s %q without %q", g.Type, g.Resources, t, left, gone)
		}
	} else if g.Type != t || !slices.Equal(g.Removed, gone) || len(g.Resources) > 0 {
		c.t.Fatalf("got %s %q, removed %q; want %s removed %q", g.Type, g.Resources, g.Removed, t, gone)
	}
	c.ack(g)
}

// quiet fails if something is sent.
func (c *client) quiet() {
	c.t.Helper()
	if g := c.next(); g != nil {
		c.t.Fatalf("got %s %q (removed %q), want silence", g.Type, g.Resources, g.Removed)
	}
}

// drain acknowledges all that comes.
func (c *client) drain() {
	c.t.Helper()
	for range 1000 {
		g := c.next()
		if g == nil {
			return
		}
		c.ack(g)
	}
	c.t.Fatal("it does not end")
}

// reconnect begins a new stream; the client keeps what it has, and has yet to ask.
func (c *client) reconnect() {
	c.connect(c.session.protocol)
	c.outbox, c.inbox = nil, nil
	for t := range c.types {
		c.types[t].nonce, c.types[t].asked = "", false
	}
}

// resume asks again for what was asked for before.
func (c *client) resume(types ...envoy.Type) {
	c.t.Helper()
	for _, t := range types {
		names := slices.Sorted(maps.Keys(c.types[t].names))
		if m := &c.types[t]; m.wildcard && (!m.legacy || len(names) > 0) {
			names = append(names, everything)
		}
		c.send(t, names, nil, "")
	}
}

// has fails unless the client has these, in their newest version.
func (c *client) has(t envoy.Type, names ...envoy.Name) {
	c.t.Helper()
	want := map[envoy.Name]string{}
	for _, n := range names {
		r, _ := c.resources[t].Get(n)
		want[n] = r.Version
	}
	if !maps.Equal(c.types[t].held, want) {
		c.t.Fatalf("the client has %s %v, want %v", t, c.types[t].held, want)
	}
}

// accepted looks whether the status says that the client has the newest version of a type.
func (c *client) accepted(t envoy.Type) {
	c.t.Helper()
	for _, d := range c.session.deliveries() {
		if d.Type == t && d.Accepted.Version == c.newest.Versions[t].String() {
			return
		}
	}
	c.t.Errorf("the status does not say that the client has version %s of %s: %+v", c.newest.Versions[t], t, c.session.deliveries())
}
