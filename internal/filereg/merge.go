package filereg

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
)

// input is one definition of a service with the workloads that it selects.
type input struct {
	definition *definition
	selected   []*workload
}

func byAge(a, b input) int { return mesh.Older(&a.definition.service, &b.definition.service) }

// merged is one service and what it was made of. It is immutable.
type merged struct {
	inputs   []input
	service  *mesh.Service
	problems []mesh.Problem
}

// merge makes one service of all definitions of one host in one namespace, given by age. The first is the service; each other
// that agrees with it adds the ports that the service lacks, and its endpoints; one that does not agree leaves no trace
// but a problem.
func merge(inputs []input) *merged {
	m := &merged{inputs: inputs}
	s := inputs[0].definition.service
	s.Ports = slices.Clone(s.Ports)
	s.Endpoints = nil
	joined := inputs[:1:1]
	for _, in := range inputs[1:] {
		o := &in.definition.service
		if what := differing(&s, o, agreed); what != "" {
			m.report(mesh.Error, "host-conflict", o.Origin, in.definition.field, "%q is already defined by %q at %s, with another %s, so that this entry is not used for it; make the two agree, or remove the host from one",
				o.Host, s.Origin.Name, s.Origin, what)
			continue
		}
		if what := differing(&s, o, decided); what != "" {
			m.report(mesh.Warning, "host-joined", o.Origin, in.definition.field, "%q is already defined by %q at %s, which this entry adds to; what it says of %s has no effect, make the two agree",
				o.Host, s.Origin.Name, s.Origin, what)
		}
		s.Joined = append(s.Joined, o.Origin)
		m.joinPorts(&s, o)
		joined = append(joined, in)
	}
	for _, in := range joined {
		place := places(s.Ports, in.definition.service.Ports)
		for _, e := range m.endpoints(in) {
			m.ownHost(in.definition, &e)
			e.Ports = mesh.Rearrange(e.Ports, place)
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	s.Endpoints = m.pool(s.Endpoints)
	if s.Resolution == mesh.DNSRoundRobin {
		s.Endpoints = m.first(s.Endpoints)
	}
	m.service = mesh.Seal(s)
	return m
}

func (m *merged) report(severity mesh.Severity, code string, at mesh.Origin, field, format string, args ...any) {
	m.problems = append(m.problems, mesh.Problem{
		Severity: severity, Code: code, Origin: at, Field: field, Message: fmt.Sprintf(format, args...),
		Services: m.inputs[0].definition.service.Key.String(),
	})
}

// aspect is one thing that a definition says of a service.
type aspect struct {
	name  string
	equal func(s, o *mesh.Service) bool
}

var (
	// agreed are those in which definitions must agree to be one service.
	agreed = []aspect{
		{"resolution", func(s, o *mesh.Service) bool { return s.Resolution == o.Resolution }},
		{"labels", func(s, o *mesh.Service) bool { return maps.Equal(s.Labels, o.Labels) }},
		{"workloadSelector", func(s, o *mesh.Service) bool { return s.Selector == o.Selector }},
		{"exportTo", func(s, o *mesh.Service) bool { return s.Export.Equal(o.Export) }},
	}

	// decided are those that the first definition alone decides.
	decided = []aspect{
		{"addresses", func(s, o *mesh.Service) bool { return slices.Equal(s.Addresses, o.Addresses) }},
		{"location", func(s, o *mesh.Service) bool { return s.Location == o.Location }},
		{"subjectAltNames", func(s, o *mesh.Service) bool { return slices.Equal(s.SubjectAltNames, o.SubjectAltNames) }},
		{"traffic distribution", func(s, o *mesh.Service) bool { return s.Distribution == o.Distribution }},
		{"connect strategy", func(s, o *mesh.Service) bool { return s.Connect == o.Connect }},
	}
)

// differing names the aspects in which two definitions differ, empty if in none.
func differing(s, o *mesh.Service, aspects []aspect) string {
	var names []string
	for _, a := range aspects {
		if !a.equal(s, o) {
			names = append(names, a.name)
		}
	}
	return strings.Join(names, " and ")
}

// joinPorts adds to s the ports of o that it lacks. Where both have a port of one number and not of one protocol, that
// of s decides how upstreams are spoken to, and both are listened for.
func (m *merged) joinPorts(s, o *mesh.Service) {
	for _, p := range o.Ports {
		i := slices.IndexFunc(s.Ports, func(q mesh.Port) bool { return q.Number == p.Number })
		if i < 0 {
			s.Ports = append(s.Ports, p)
			continue
		}
		if q := &s.Ports[i]; !slices.Contains(q.Protocols(), p.Protocol) {
			q.Also = append(q.Also, p.Protocol)
			m.report(mesh.Warning, "protocol-conflict", p.Origin, "", "port %d of %s is %s here and %s in %q at %s, which decides; give it one protocol",
				p.Number, s.Host, protocolName(p.Protocol), protocolName(q.Protocol), q.Origin.Name, q.Origin)
		}
	}
}

func protocolName(p mesh.Protocol) string {
	if p == mesh.Sniffed {
		return "an unset protocol"
	}
	return p.String()
}

// places tells for each port of a service which of a definition's ports it is; -1: none. Ports are the same by name,
// else by number; a name that the service has twice tells nothing.
func places(service, definition []mesh.Port) []int {
	place := make([]int, len(service))
	for i, p := range service {
		sameName := func(q mesh.Port) bool { return q.Name == p.Name }
		named := slices.IndexFunc(definition, sameName)
		twice := slices.ContainsFunc(service[:i], sameName) || slices.ContainsFunc(service[i+1:], sameName)
		if place[i] = named; named < 0 || twice {
			place[i] = slices.IndexFunc(definition, func(q mesh.Port) bool { return q.Number == p.Number })
		}
	}
	return place
}

// endpoints returns a definition's endpoints: those written in it, and the selected workloads of which the resolution
// can make use.
func (m *merged) endpoints(in input) []mesh.Endpoint {
	d := in.definition
	endpoints := slices.Clone(d.service.Endpoints)
	selected := resolutions[d.service.Resolution].selected
	for _, w := range in.selected {
		switch {
		case selected == noAddress || w.unhealthy || w.address == mesh.Address{}: // the entry itself has been warned of
		case kindOfAddress(w.address)&selected != 0:
			endpoints = append(endpoints, d.endpoint(w))
		default:
			m.report(mesh.Warning, "endpoint-left-out", w.origin, "spec.address", "%q is not used by %s, which selects it at %s, since resolution %s takes %s; change the one or the other",
				w.address, d.service.Host, d.service.Origin, d.service.Resolution, addressKinds(selected))
		}
	}
	if d.selects && len(in.selected) == 0 && selected != noAddress {
		m.report(mesh.Warning, "selector-without-match", d.service.Origin, "spec.workloadSelector", "no WorkloadEntry of namespace %q has the labels %s, so that %s has no endpoints from it; compare the labels", d.service.Namespace, d.service.Selector, d.service.Host)
	}
	return endpoints
}

// pool sees to it that no port of an address is there twice, since Envoy would keep only one: the ports that an earlier
// endpoint has already are taken from the later one, and if none are left its weight is added to the earlier one's.
func (m *merged) pool(endpoints []mesh.Endpoint) []mesh.Endpoint {
	at := make(map[mesh.Address][]int, len(endpoints))
	pooled := endpoints[:0]
	for _, e := range endpoints {
		var twin *mesh.Endpoint
		for _, i := range at[e.Address] {
			if take(e.Ports, func(port int) bool { return e.Ports[port] == pooled[i].Ports[port] }) && twin == nil {
				twin = &pooled[i]
			}
		}
		if twin != nil {
			m.report(mesh.Notice, "duplicate-endpoint", e.Origin, "", "%s is there already with the same port, at %s; the two are one endpoint, with their weights added", e.Address, twin.Origin)
			if e.Idle() {
				twin.Weight = uint32(min(math.MaxUint32, uint64(twin.Weight)+uint64(e.Weight)))
				continue
			}
		}
		at[e.Address] = append(at[e.Address], len(pooled))
		pooled = append(pooled, e)
	}
	return pooled
}

// first leaves one endpoint for each port, as DNS_ROUND_ROBIN has it.
func (m *merged) first(endpoints []mesh.Endpoint) []mesh.Endpoint {
	by := map[int]mesh.Origin{} // who serves each port
	kept := endpoints[:0]
	for _, e := range endpoints {
		var before mesh.Origin
		take(e.Ports, func(port int) (taken bool) {
			o, taken := by[port]
			if taken {
				before = o
			}
			return taken
		})
		if e.Idle() && before != (mesh.Origin{}) {
			m.report(mesh.Warning, "endpoint-left-out", e.Origin, "", "%s is not used, since resolution DNS_ROUND_ROBIN takes one endpoint, which is the one at %s; set spec.resolution to DNS to use all", e.Address, before)
			continue
		}
		for port, number := range e.Ports {
			if number != 0 {
				by[port] = e.Origin
			}
		}
		kept = append(kept, e)
	}
	return kept
}

// take sets those ports to 0 that the endpoint does not keep, and tells whether there were any.
func take(ports []uint16, away func(port int) bool) (taken bool) {
	for i, number := range ports {
		if number != 0 && away(i) {
			ports[i], taken = 0, true
		}
	}
	return taken
}
