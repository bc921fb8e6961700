package aggregate

import (
	"fmt"
	"slices"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

// Source is one registry's part in a merge.
type Source struct {
	Registry string
	Catalog  mesh.Catalog
	Synced   bool // whether the registry has published at all
}

// Merged is the outcome of a merge, from which the next one goes on. The zero Merged is that of no sources.
type Merged struct {
	View    *mesh.View
	sources []Source
	// conflicts are what the merge itself has found, by service.
	conflicts pmap.Map[mesh.Key, *findings]
}

type findings struct{ problems []mesh.Problem }

// Merge makes the view of all sources, given in order of precedence, and tells what it changed. Of a service that
// several registries have, the first registry defines it; ports and endpoints of the others join where resolution,
// port name and protocol agree, and are problems where they do not. A definition that prefers no
// endpoints goes by region if one that joins it does.
func Merge(last Merged, sources []Source) (Merged, Change) {
	next := Merged{sources: sources, conflicts: last.conflicts}
	view := &mesh.View{}
	for _, s := range sources {
		view.Registries = append(view.Registries, s.Registry)
	}
	if last.View != nil && slices.Equal(last.View.Registries, view.Registries) {
		view.Generation, view.Digest = last.View.Generation, last.View.Digest
		view.Services, view.Tenancies = last.View.Services, last.View.Tenancies
	} else {
		last.sources, next.conflicts = nil, pmap.Map[mesh.Key, *findings]{}
	}
	change := Change{EndpointsOnly: true}
	touched := map[mesh.Key]bool{}
	for i, s := range sources {
		var before mesh.Services
		if last.sources != nil {
			before = last.sources[i].Catalog.Services
		}
		did := false
		for c := range pmap.Diff(before, s.Catalog.Services) {
			touched[c.Key] = true
			did = true
		}
		if did {
			change.Registries = append(change.Registries, s.Registry)
		}
	}
	for key := range touched {
		next.set(view, key, &change)
	}
	for _, keys := range [][]mesh.Key{change.Added, change.Altered, change.Removed} {
		slices.SortFunc(keys, mesh.Key.Compare)
	}
	if last.View == nil || view.Digest != last.View.Digest {
		view.Generation++
	}
	change.Generation, change.Digest = view.Generation, view.Digest
	view.Problems = next.problems()
	next.View = view
	return next, change
}

// set merges one service anew.
func (m *Merged) set(view *mesh.View, key mesh.Key, change *Change) {
	var definitions []*mesh.Service
	for _, s := range m.sources {
		if d, ok := s.Catalog.Services.Get(key); ok {
			definitions = append(definitions, d)
		}
	}
	was, _ := view.Services.Get(key)
	m.conflicts = m.conflicts.Without(key)
	if len(definitions) == 0 {
		if was != nil {
			view.Services = view.Services.Without(key)
			view.Tenancies = mesh.Resettle(view.Tenancies, was, nil)
			view.Digest = view.Digest.Minus(was.Digest())
			change.Removed = append(change.Removed, key)
			change.EndpointsOnly = false
		}
		return
	}
	is := definitions[0]
	if len(definitions) > 1 {
		var problems []mesh.Problem
		is, problems = join(definitions)
		if len(problems) > 0 {
			m.conflicts = m.conflicts.With(key, &findings{problems})
		}
		if was != nil && was.Identical(is) {
			is = was
		}
	}
	view.Services = view.Services.With(key, is)
	view.Tenancies = mesh.Resettle(view.Tenancies, was, is)
	view.Digest = view.Digest.Plus(is.Digest())
	if was == nil {
		change.Added = append(change.Added, key)
		change.EndpointsOnly = false
		return
	}
	view.Digest = view.Digest.Minus(was.Digest())
	if was.Digest() != is.Digest() {
		change.Altered = append(change.Altered, key)
		change.EndpointsOnly = change.EndpointsOnly && was.Frame() == is.Frame()
	}
}

func (m *Merged) problems() []mesh.Problem {
	var all []mesh.Problem
	for _, s := range m.sources {
		all = append(all, s.Catalog.Problems...)
		if !s.Synced {
			all = append(all, mesh.Problem{
				Severity: mesh.Error, Code: "registry-not-synced", Origin: mesh.Origin{Registry: s.Registry},
				Message: "has not said yet what it knows; the mesh is served without it",
			})
		}
	}
	for f := range m.conflicts.Values() {
		all = append(all, f.problems...)
	}
	slices.SortFunc(all, mesh.Problem.Compare)
	return all
}

// join merges the definitions of one service by several registries, the first of which decides.
func join(definitions []*mesh.Service) (*mesh.Service, []mesh.Problem) {
	s := *definitions[0]
	s.Ports = slices.Clone(s.Ports)
	s.Endpoints = slices.Clone(s.Endpoints)
	s.Joined = slices.Clone(s.Joined)
	var problems []mesh.Problem
	for _, o := range definitions[1:] {
		conflict := func(origin mesh.Origin, message string) {
			problems = append(problems, mesh.Problem{
				Severity: mesh.Warning, Code: "registry-conflict", Origin: origin, Services: s.Key.String(), Message: fmt.Sprintf(
					"%s is also defined at %s, by a registry of higher precedence, %s; make them agree or remove one", s.Key, s.Origin, message),
			})
		}
		if o.Resolution != s.Resolution {
			conflict(o.Origin, fmt.Sprintf("with resolution %s where this one has %s: this one is not used", s.Resolution, o.Resolution))
			continue
		}
		s.Joined = append(append(s.Joined, o.Origin), o.Joined...)
		if s.Distribution == mesh.AnyEndpoint && o.Distribution == mesh.PreferRegion {
			s.Distribution = mesh.PreferRegion // else far regions had the share of near ones, which o's registry does not want
		}
		place := slices.Repeat([]int{-1}, len(s.Ports)) // which of o's ports each of s is
		for i, p := range o.Ports {
			at := slices.IndexFunc(s.Ports, func(q mesh.Port) bool { return q.Number == p.Number || q.Name == p.Name })
			switch {
			case at < 0:
				s.Ports, place = append(s.Ports, p), append(place, i)
			case s.Ports[at].Name != p.Name || s.Ports[at].Protocol != p.Protocol:
				q := s.Ports[at]
				conflict(p.Origin, fmt.Sprintf("with port %d as %q %s where this one has port %d as %q %s: this one's port is not used",
					q.Number, q.Name, q.Protocol, p.Number, p.Name, p.Protocol))
			default:
				place[at] = i
			}
		}
		for _, e := range o.Endpoints {
			if e.Ports = mesh.Rearrange(e.Ports, place); !e.Idle() {
				s.Endpoints = append(s.Endpoints, e)
			}
		}
	}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; len(e.Ports) < len(s.Ports) {
			e.Ports = append(slices.Clone(e.Ports), make([]uint16, len(s.Ports)-len(e.Ports))...)
		}
	}
	return mesh.Seal(s), problems
}
