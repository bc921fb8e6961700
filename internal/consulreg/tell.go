package consulreg

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/mesh"
)

// publish publishes what is known, if it is another thing than before.
func (m *mirror) publish(publish func(mesh.Catalog), held []mesh.Holding) {
	m.synced = m.synced || m.complete()
	own := m.problems(held)
	slices.SortFunc(own, mesh.Problem.Compare)
	last := m.published
	next := mesh.Catalog{Services: m.served.services, Unread: !m.synced}
	switch {
	case m.served.moved, !slices.Equal(own, m.own):
		next.Problems = slices.Concat(own, m.served.problems())
		slices.SortFunc(next.Problems, mesh.Problem.Compare)
	case m.spoken && last.Services == next.Services && last.Unread == next.Unread:
		return
	default:
		next.Problems = last.Problems
	}
	if next.Unread && len(own) == 0 {
		return // it will soon be whole
	}
	if m.spoken && last.Services == next.Services && last.Unread == next.Unread && slices.Equal(last.Problems, next.Problems) {
		return
	}
	m.published, m.own, m.spoken = next, own, true
	m.served.moved = false
	publish(next)
	if m.synced && (last.Services != next.Services || last.Unread) {
		m.keeper.Keep(m.recorded())
	}
}

// complete tells whether all is known that is to be known.
func (m *mirror) complete() bool {
	return m.directory.names != nil && m.located && len(m.unread) == 0 && m.hidden() == ""
}

// hidden tells why what is known cannot be everything; empty if it can.
func (m *mirror) hidden() string {
	if m.directory.names == nil {
		return ""
	}
	if len(m.directory.names) == 0 {
		return "the catalog is empty, and has not even Consul's own service: the token, or the lack of one, hides everything"
	}
	if len(m.unread) > 0 {
		return "" // those that have been read may be the only ones
	}
	any := false
	for _, p := range m.pages.All() {
		if !p.filtered || len(p.instances) > 0 {
			return ""
		}
		any = true
	}
	if any {
		return "the instances of all services are hidden: the token may read services, but not nodes"
	}
	return ""
}

// readAll are the rules of a token that sees everything.
const readAll = `service_prefix "" and node_prefix "" with policy read`

// problems are those of the registry as a whole.
func (m *mirror) problems(held []mesh.Holding) []mesh.Problem {
	all := slices.Clone(m.keeper.Problems())
	add := func(p mesh.Problem) {
		p.Origin = mesh.Origin{Registry: m.name, Source: m.source()}
		all = append(all, p)
	}
	newest := map[string]*failing{} // of each kind: while one asks, the others wait at the gate and know less
	for _, f := range m.failures {
		if was := newest[f.code]; f.told && (was == nil || f.at.After(was.at)) {
			newest[f.code] = f
		}
	}
	for _, f := range newest {
		serving := ""
		if m.served.services.Len() > 0 {
			serving = "what was known before"
		}
		severity := mesh.Error
		if f.code == CodeThrottled {
			severity = mesh.Warning
		}
		add(mesh.Problem{Severity: severity, Code: f.code, Message: f.message, Serving: serving, Since: f.since})
	}
	hidden := m.hidden()
	if hidden != "" {
		add(mesh.Problem{Severity: mesh.Error, Code: "consul-hidden", Message: hidden + "; give one with the rules " + readAll})
	}
	if len(held) > 0 {
		instances := 0
		var names []string
		for _, h := range held {
			instances += h.Instances
			names = append(names, h.Service)
		}
		add(mesh.Problem{Severity: mesh.Warning, Code: "consul-held", Since: held[0].Since, Message: fmt.Sprintf(
			"%s of %s are missing in answers that are not believed, and are served on: %s; if they are really gone, meshd release %s lets them go",
			counted(instances, "instance", "instances"), list(names), held[0].Reason, m.name)})
	}
	if m.synced && hidden == "" && (m.directory.filtered || len(m.filtered) > 0) {
		what := "from the list of services"
		if len(m.filtered) > 0 {
			what = "instances of " + list(slices.Sorted(maps.Keys(m.filtered)))
		}
		add(mesh.Problem{Severity: mesh.Notice, Code: "consul-filtered", Message: fmt.Sprintf(
			"leaves out what the token may not see, %s; if that is not meant, give a token with the rules %s", what, readAll)})
	}
	return all
}

// source is the registry's place, for problems of its own.
func (m *mirror) source() string {
	s := "consul"
	if dc := cmp.Or(m.o.Link.Datacenter, m.o.Rules.Datacenter); dc != "" {
		s += " " + dc
	}
	return s
}

// held are the instances that are held although a consistent read was tried, the longest first.
func (m *mirror) held() []mesh.Holding {
	var all []mesh.Holding
	for name := range m.refused {
		if name == "" {
			d := m.directory.doubt
			if d == nil {
				continue
			}
			for name := range m.directory.names {
				if _, there := d.names[name]; !there {
					if p, ok := m.pages.Get(serviceName(name)); ok && len(p.instances) > 0 && !m.doubted[name] {
						all = append(all, mesh.Holding{Service: name, Instances: len(p.instances), Reason: d.reason, Since: d.since})
					}
				}
			}
			continue
		}
		if p, ok := m.pages.Get(serviceName(name)); ok && p.lost() > 0 {
			all = append(all, mesh.Holding{Service: name, Instances: p.lost(), Reason: p.doubt.reason, Since: p.doubt.since})
		}
	}
	slices.SortFunc(all, func(a, b mesh.Holding) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Service, b.Service))
	})
	return all
}

// list names a few of many.
func list(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more services", strings.Join(names[:most], ", "), len(names)-most)
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// earliest is the earlier one of two times, of which the first may be none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// standing is how the mirror stands with Consul.
func (m *mirror) standing(held []mesh.Holding) mesh.Standing {
	s := mesh.Standing{Unconfirmed: len(m.doubted), Held: held}
	if m.directory.doubt != nil {
		s.Unconfirmed++
	}
	if len(m.failures) > 0 {
		s.TroubledAt = m.troubledAt
	}
	switch {
	case m.directory.index == 0:
		s.Mode = "Consul has not been read yet"
	case m.byWatches:
		s.Mode = "each service is watched"
	default:
		s.Mode = "the list and failing checks are watched, and services read when these move"
	}
	for _, what := range slices.Sorted(maps.Keys(m.watches)) {
		w := *m.watches[what]
		if what == readWatch {
			w.Count = m.pages.Len()
			if m.byWatches {
				w.Count = len(m.attended)
			}
		}
		s.Watches = append(s.Watches, w)
	}
	return s
}
