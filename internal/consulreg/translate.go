package consulreg

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
)

// outcome is what the instances of one of Consul's services come to.
type outcome struct {
	services []*mesh.Service // one for each of its hosts; none if it is left out
	problems []mesh.Problem  // sorted
	// omitted are the instances that are not served, and why; with no services it may have one entry without node and id, for
	// all of the service.
	omitted []Omission
}

// Omission is an instance that is not served.
type Omission struct {
	Service string `json:"service"`
	Node    string `json:"node,omitempty"`
	ID      string `json:"id,omitempty"`
	Reason  string `json:"reason"`
}

func (o Omission) compare(p Omission) int {
	return cmp.Or(cmp.Compare(o.Service, p.Service), cmp.Compare(o.Node, p.Node), cmp.Compare(o.ID, p.ID), cmp.Compare(o.Reason, p.Reason))
}

// translate makes mesh services of the instances of one of Consul's services. It depends on its arguments alone, and not on
// the order of instances, so that every meshd that sees them makes the same.
func (r *Rules) translate(registry, name string, instances []*instance) outcome {
	t := &translation{Rules: r, registry: registry, name: name}
	if chosen := t.choose(instances); len(chosen) > 0 && t.findHosts() {
		var members []*member
		for _, i := range chosen {
			if m, ok := t.member(i); ok {
				members = append(members, m)
			}
		}
		if groups := t.group(members); len(groups) > 0 {
			t.serve(groups)
		}
	}
	slices.SortFunc(t.problems, mesh.Problem.Compare)
	slices.SortFunc(t.omitted, Omission.compare)
	return t.outcome
}

// translation is an outcome in the making.
type translation struct {
	*Rules
	outcome
	registry, name string
	hosts          []mesh.Key
	about          string // the hosts, as problems have them
}

// member is an instance that can be served: an endpoint that has no place among the service's ports yet.
type member struct {
	*instance
	endpoint mesh.Endpoint
	virtual  netip.Addr // none if it is not valid
	listens  uint16
	dialled  uint16 // 0: it does not say
	portName string // empty: it does not say
	protocol mesh.Protocol
}

// choose gives the instances that the rules let through, in their order.
func (t *translation) choose(instances []*instance) (chosen []*instance) {
	if len(instances) == 0 {
		t.omitted = append(t.omitted, Omission{Service: t.name, Reason: noInstances})
	}
	for _, i := range slices.SortedFunc(slices.Values(instances), (*instance).compare) {
		if reason := t.against(t.name, i); reason != "" {
			t.omit(i, reason)
			continue
		}
		chosen = append(chosen, i)
	}
	return chosen
}

const noInstances = "it has no instances"

// findHosts says under which hosts the service is known, unless it has a name of which none can be made.
func (t *translation) findHosts() bool {
	label, changed, ok := hostLabel(t.name)
	var keys []string
	for _, name := range t.hostNames(label) {
		host, err := mesh.ParseHost(name)
		if !ok || err != nil {
			reason := fmt.Sprintf("%q makes no label of a host; register the service under a name of 1 to 63 letters, digits and inner hyphens, or exclude it", t.name)
			if ok {
				reason = fmt.Sprintf("%q makes the host %q, which %v", t.name, name, err)
			}
			t.about = t.Namespace + "/" + name
			t.report(mesh.Error, "consul-bad-name", t.origin(), "name", reason)
			t.omitted = append(t.omitted, Omission{Service: t.name, Reason: "name: " + reason})
			return false
		}
		key := mesh.Key{Host: host, Namespace: t.Namespace}
		t.hosts, keys = append(t.hosts, key), append(keys, key.String())
	}
	t.about = strings.Join(keys, " ")
	if changed {
		t.report(mesh.Notice, "consul-name-changed", t.origin(), "name", fmt.Sprintf(
			"%q has characters that a host cannot have, so that it is known as %s; dial that, or register the service under a name of letters, digits and hyphens",
			t.name, t.hosts[0].Host))
	}
	return true
}

// member makes an endpoint of an instance. It tells what keeps that from being one, and what is wrong with it otherwise.
func (t *translation) member(i *instance) (*member, bool) {
	m := &member{instance: i}
	e := &m.endpoint
	at := i.found(t.Distance)
	var ok bool
	if e.Address, m.listens, ok = t.address(i, at); !ok {
		return nil, false
	}
	e.Second = t.second(i, at, e.Address, m.listens)
	m.virtual = t.ip(i, i.tagged("virtual"))

	m.protocol = recognise(t, i, "protocol", parseProtocol, t.Protocol)
	m.portName = recognise(t, i, "port-name", parsePortName, "")
	m.dialled = recognise(t, i, "port", parsePort, 0)
	e.Weight, e.Health = t.share(i)
	e.Locality = mesh.Locality{Region: t.Datacenter, Zone: recognise(t, i, "zone", parseText, i.NodeMeta[t.ZoneMeta])}
	e.Rank = t.Place
	e.Labels = t.labels(i)
	e.Origin = t.instanceOrigin(i)
	return m, true
}

// healths are what Consul's statuses are in a mesh. An instance in warning is served at its weight for that; one that is
// critical is kept, so that a service without a good one answers 503 and not 404.
var healths = [...]mesh.Health{passing: mesh.Healthy, warning: mesh.Healthy, critical: mesh.Unhealthy, maintenance: mesh.Draining}

// maxWeight is the largest that Consul's agents let one register.
const maxWeight = 65535

// share is how much of the traffic an instance gets: with a weight of 0 none, which for Envoy, whose weights begin at 1, is
// to drain it. Consul's own default is 1 in either state.
// https://developer.hashicorp.com/consul/docs/reference/service#weights
func (t *translation) share(i *instance) (uint32, mesh.Health) {
	w := i.Weights
	if w == (weights{}) { // who wrote it into the catalog gave none
		w = weights{Passing: 1, Warning: 1}
	}
	weight := recognise(t, i, "weight", parseWeight, w.Passing)
	if i.Status == warning {
		weight = w.Warning
	}
	switch {
	case weight == 0:
		return 1, mesh.Draining
	case weight < 0:
		weight = 1
	}
	return uint32(min(weight, maxWeight)), healths[i.Status]
}

// serve makes the services, one for each host. Only the first has the virtual addresses, which lead to one service.
func (t *translation) serve(groups []*group) {
	s := mesh.Service{
		Resolution: mesh.Static, Location: mesh.Internal, Export: mesh.Visibility{All: true}, Origin: t.origin(),
	}
	var virtual []netip.Addr
	for at, g := range groups {
		s.Ports = append(s.Ports, g.port)
		for _, m := range g.members {
			if _, name := m.endpoint.Address.Host(); name {
				s.Resolution = mesh.DNS
			}
			if m.virtual.IsValid() {
				virtual = append(virtual, m.virtual)
			}
			m.endpoint.Ports = make([]uint16, len(groups))
			m.endpoint.Ports[at] = m.listens
			s.Endpoints = append(s.Endpoints, m.endpoint)
		}
	}
	slices.SortFunc(virtual, netip.Addr.Compare)
	for n, key := range t.hosts {
		one := s
		one.Key, one.Endpoints = key, slices.Clone(s.Endpoints)
		if n == 0 {
			for _, ip := range slices.Compact(virtual) {
				one.Addresses = append(one.Addresses, netip.PrefixFrom(ip, ip.BitLen()))
			}
			if t.Several {
				one.Distribution = mesh.PreferRegion
			}
		}
		t.services = append(t.services, mesh.Seal(one))
	}
}

// origin is that of the service as a whole.
func (t *translation) origin() mesh.Origin {
	return mesh.Origin{Registry: t.registry, Source: "consul " + t.Datacenter + "/" + t.name, Name: t.name}
}

func (t *translation) instanceOrigin(i *instance) mesh.Origin {
	return mesh.Origin{Registry: t.registry, Source: "consul " + t.Datacenter + "/" + i.Node + "/" + i.ID, Name: t.name}
}

// report notes a problem. Field is a path in Consul's definition of a service, such as meta.protocol.
// https://developer.hashicorp.com/consul/docs/reference/service
func (t *translation) report(severity mesh.Severity, code string, at mesh.Origin, field, message string) {
	t.problems = append(t.problems, mesh.Problem{
		Severity: severity, Code: code, Origin: at, Field: field, Message: message, Services: t.about,
	})
}

// leaveOut reports what keeps an instance from being served.
func (t *translation) leaveOut(i *instance, severity mesh.Severity, code, field, message string) {
	t.report(severity, code, t.instanceOrigin(i), field, message)
	t.omit(i, field+": "+message)
}

func (t *translation) omit(i *instance, reason string) {
	t.omitted = append(t.omitted, Omission{Service: t.name, Node: i.Node, ID: i.ID, Reason: reason})
}
