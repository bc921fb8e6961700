package envoy

import (
	"cmp"
	"iter"
	"slices"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

// Mesh is what the operator has set for all nodes.
type Mesh struct {
	Outbound Outbound
}

// Outbound is what becomes of connections to what is no service.
type Outbound uint8

// The outbound policies, as Istio's outboundTrafficPolicy.
const (
	AllowAny Outbound = iota
	RegistryOnly
)

// Resources are a type's resources by name.
type Resources = pmap.Map[Name, *Resource]

// Snapshot is the resources of one view for one scope, immutable.
type Snapshot struct {
	View      *mesh.View
	Scope     Scope
	Resources [Types]Resources
	// Versions are one version a type: an order-free hash of its resources, equal for equal resources.
	Versions [Types]mesh.Digest

	visible pmap.Map[mesh.Host, *mesh.Service] // what the scope sees of each host
	ports   pmap.Map[portNumber, *portGroup]   // what is made of all services with a port
	// Of a scope with addresses: the snapshot of the base scope, and the services that are at the addresses.
	base *Snapshot
	own  []*mesh.Service
}

type portNumber uint16

func (p portNumber) Compare(o portNumber) int { return cmp.Compare(p, o) }

// Service is the service that nodes of the scope mean by a host.
func (s *Snapshot) Service(h mesh.Host) (*mesh.Service, bool) { return s.visible.Get(h) }

// Problems are what nodes of the scope cannot be given, by port.
func (s *Snapshot) Problems() iter.Seq[mesh.Problem] {
	return func(yield func(mesh.Problem) bool) {
		for g := range s.ports.Values() {
			for _, p := range g.problems {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// Translate makes the snapshot of view for scope. prev is an earlier snapshot of the same scope and settings, or nil:
// what did not change since is taken from it. What is made anew is taken from others where they have it: snapshots of
// this view for other scopes. A scope with addresses takes from its [Scope.Base] all but its inbound side.
func Translate(prev *Snapshot, view *mesh.View, scope Scope, settings Mesh, others ...*Snapshot) *Snapshot {
	if scope.Addresses == "" {
		return translate(prev, view, scope, settings, others)
	}
	i := slices.IndexFunc(others, func(o *Snapshot) bool { return o.Scope == scope.Base() && o.View == view })
	if i >= 0 {
		return localize(prev, others[i], scope)
	}
	var base *Snapshot
	if prev != nil {
		base = prev.base
	}
	return localize(prev, translate(base, view, scope.Base(), settings, others), scope)
}

func translate(prev *Snapshot, view *mesh.View, scope Scope, settings Mesh, others []*Snapshot) *Snapshot {
	if prev == nil || !slices.Equal(prev.View.Registries, view.Registries) {
		prev = blank(scope, settings)
	}
	t := &translation{settings: settings, others: others, next: &Snapshot{
		View: view, Scope: scope, Resources: prev.Resources, Versions: prev.Versions, visible: prev.visible, ports: prev.ports,
	}}
	var last mesh.Host
	for c := range pmap.Diff(prev.View.Services, view.Services) {
		if c.Key.Host != last {
			last = c.Key.Host
			t.host(last)
		}
	}
	t.rebuildPorts()
	return t.next
}

// blank is the snapshot of no services: what every node has. A gRPC client has only what it asks for.
func blank(scope Scope, settings Mesh) *Snapshot {
	t := &translation{settings: settings, next: &Snapshot{View: &mesh.View{}, Scope: scope}}
	if scope.Kind == GRPC {
		return t.next
	}
	for _, c := range baseClusters(scope.Family) {
		t.put(NewResource(Cluster, Name(c.Name), c, ""))
	}
	for _, l := range baseListeners(scope, settings) {
		t.put(NewResource(Listener, Name(l.Name), l, ""))
	}
	return t.next
}

// translation is a snapshot in the making.
type translation struct {
	settings Mesh
	others   []*Snapshot
	next     *Snapshot
	// gone and come are the services to take out of, and put into, the ports' groups.
	gone, come map[portNumber][]*mesh.Service
}

// put takes a resource in. One that Envoy would reject stays out, and what was there before stays.
func (t *translation) put(r *Resource) {
	if r.invalid != nil {
		return
	}
	m := &t.next.Resources[r.Type]
	if old, ok := m.Get(r.Name); ok {
		if old.Version == r.Version && slices.Equal(old.Services, r.Services) {
			return // the pointer stays, and with it all that is made from it
		}
		t.next.Versions[r.Type] = t.next.Versions[r.Type].Minus(old.Digest)
	}
	*m = m.With(r.Name, r)
	t.next.Versions[r.Type] = t.next.Versions[r.Type].Plus(r.Digest)
}

func (t *translation) drop(typ Type, name Name) {
	m := &t.next.Resources[typ]
	if old, ok := m.Get(name); ok {
		*m = m.Without(name)
		t.next.Versions[typ] = t.next.Versions[typ].Minus(old.Digest)
	}
}

// replace puts the resources of is in place of those of was.
func (t *translation) replace(was, is []*Resource) {
	type id struct {
		Type
		Name
	}
	stay := map[id]bool{}
	for _, r := range is {
		stay[id{r.Type, r.Name}] = true
	}
	for _, r := range was {
		if !stay[id{r.Type, r.Name}] {
			t.drop(r.Type, r.Name)
		}
	}
	for _, r := range is {
		t.put(r)
	}
}

// host looks again at what the scope sees of a host.
func (t *translation) host(h mesh.Host) {
	was, _ := t.next.visible.Get(h)
	is := visible(t.next.View, h, t.next.Scope)
	if was == is {
		return
	}
	old := t.have(t.next, was)
	if is == nil {
		t.next.visible = t.next.visible.Without(h)
	} else {
		t.next.visible = t.next.visible.With(h, is)
	}
	t.replace(old, t.resources(is))
	if was != nil && is != nil && sameListeners(was, is, t.next.Scope) {
		return
	}
	if t.gone == nil {
		t.gone, t.come = map[portNumber][]*mesh.Service{}, map[portNumber][]*mesh.Service{}
	}
	mark(t.gone, was)
	mark(t.come, is)
}

func mark(ports map[portNumber][]*mesh.Service, s *mesh.Service) {
	if s == nil {
		return
	}
	for _, p := range s.Ports {
		ports[portNumber(p.Number)] = append(ports[portNumber(p.Number)], s)
	}
}

// visible is the service that nodes of a scope mean by a host: that of their own namespace, else the first of those
// exported to it by name, else the first exported to all.
func visible(v *mesh.View, h mesh.Host, scope Scope) *mesh.Service {
	nearness := func(s *mesh.Service) int {
		switch {
		case s.Namespace == scope.Namespace:
			return 0
		case s.Export.Names(scope.Namespace):
			return 1
		}
		return 2
	}
	var best *mesh.Service
	for s := range v.OfHost(h) {
		if s.Export.In(scope.Namespace) &&
			(best == nil || cmp.Or(cmp.Compare(nearness(s), nearness(best)), v.Before(s, best)) < 0) {
			best = s
		}
	}
	return best
}

// sameListeners tells whether two versions of a service have the same listeners and routes. Endpoints are part of
// neither, unless the service has no cluster of its own to hold them, or they decide whether it can have one.
func sameListeners(a, b *mesh.Service, scope Scope) bool {
	decide := a.Resolution == mesh.ResolutionNone || scope.Kind == GRPC && a.Resolution.DNS()
	samePlace := func(p, q mesh.Port) bool { return p.Origin == q.Origin } // which problems name
	return a.Frame() == b.Frame() && a.Origin == b.Origin && slices.EqualFunc(a.Ports, b.Ports, samePlace) && (!decide || a.Digest() == b.Digest())
}

// resources are those of a service alone, made or taken from another scope: its clusters and assignments, and for gRPC
// clients its listeners and routes.
func (t *translation) resources(s *mesh.Service) []*Resource {
	if s == nil {
		return nil
	}
	for _, o := range t.others {
		if other, ok := o.visible.Get(s.Host); ok && other == s && sameClusters(s, o.Scope, t.next.Scope) {
			return t.have(o, s)
		}
	}
	return serviceResources(s, t.next.Scope)
}

// have is what a snapshot holds of a service's own resources.
func (t *translation) have(in *Snapshot, s *mesh.Service) []*Resource {
	if s == nil {
		return nil
	}
	var out []*Resource
	for _, p := range s.Ports {
		for _, typ := range []Type{Cluster, Endpoints} {
			if r, ok := in.Resources[typ].Get(clusterName(s, p.Number)); ok {
				out = append(out, r)
			}
		}
		if in.Scope.Kind != GRPC {
			continue
		}
		for _, typ := range []Type{Listener, Route} {
			if r, ok := in.Resources[typ].Get(Name(virtualHostName(s, p.Number))); ok {
				out = append(out, r)
			}
		}
	}
	return out
}

// rebuildPorts makes the listeners and routes of all ports of which a service has changed.
func (t *translation) rebuildPorts() {
	for number := range union(t.gone, t.come) {
		var was, is *portGroup
		var services []*mesh.Service
		if g, ok := t.next.ports.Get(number); ok {
			was, services = g, g.services
		}
		services = t.regroup(services, t.gone[number], t.come[number])
		if len(services) > 0 {
			is = translatePort(uint16(number), services, t.next.Scope, t.settings)
			t.next.ports = t.next.ports.With(number, is)
		} else {
			t.next.ports = t.next.ports.Without(number)
		}
		t.replace(was.all(), is.all())
	}
}

func (g *portGroup) all() []*Resource {
	if g == nil {
		return nil
	}
	return g.resources
}

// regroup is a port's services with some gone and some come, in the order in which they claim. A group may hold a former
// version of a service whose listeners are the same, hence what goes is found by its key.
func (t *translation) regroup(services, gone, come []*mesh.Service) []*mesh.Service {
	leave := make(map[mesh.Key]bool, len(gone))
	for _, s := range gone {
		leave[s.Key] = true
	}
	out := make([]*mesh.Service, 0, len(services)+len(come))
	for _, s := range services {
		if !leave[s.Key] {
			out = append(out, s)
		}
	}
	out = append(out, come...)
	slices.SortFunc(out, t.next.View.Before)
	return out
}

// union yields the keys of both.
func union[V any](a, b map[portNumber]V) iter.Seq[portNumber] {
	return func(yield func(portNumber) bool) {
		for k := range a {
			if !yield(k) {
				return
			}
		}
		for k := range b {
			if _, ok := a[k]; !ok && !yield(k) {
				return
			}
		}
	}
}
