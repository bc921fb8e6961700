package filereg

import (
	"cmp"
	"maps"
	"slices"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

// label is a label in a namespace. The empty one is had by every workload of the namespace.
type label struct{ namespace, key, value string }

// Compare orders labels by namespace, key and value.
func (l label) Compare(o label) int {
	return cmp.Or(cmp.Compare(l.namespace, o.namespace), cmp.Compare(l.key, o.key), cmp.Compare(l.value, o.value))
}

// combine makes the services of the entries that stand, each anew only if what it is made of has changed.
func (s *State) combine(prev *State) {
	changes := slices.Collect(pmap.Diff(prev.holdings, s.holdings))
	for _, c := range changes {
		if c.Old != nil {
			s.strike(c.Old)
		}
	}
	for _, c := range changes {
		if c.New != nil {
			s.enter(c.New)
		}
	}
	concerned := map[mesh.Key]bool{}
	for _, c := range changes {
		for _, h := range []*holding{c.Old, c.New} {
			if h != nil {
				s.concern(h.entry, concerned)
			}
		}
	}
	for key := range concerned {
		s.serve(key)
	}
}

// enter puts a holding where it is looked for, and strike takes it from there.
func (s *State) enter(h *holding) {
	if h.past {
		s.past = s.past.With(h.at, h)
	}
	id := h.entry.identity
	for _, d := range h.entry.definitions {
		s.definitions = s.definitions.with(d.service.Key, id, d)
	}
	for _, l := range h.entry.has() {
		s.workloads = s.workloads.with(l, id, h.entry)
	}
	for _, l := range h.entry.wants() {
		s.selectors = s.selectors.with(l, id, h.entry)
	}
}

func (s *State) strike(h *holding) {
	if h.past {
		s.past = s.past.Without(h.at)
	}
	id := h.entry.identity
	for _, d := range h.entry.definitions {
		s.definitions = s.definitions.without(d.service.Key, id)
	}
	for _, l := range h.entry.has() {
		s.workloads = s.workloads.without(l, id)
	}
	for _, l := range h.entry.wants() {
		s.selectors = s.selectors.without(l, id)
	}
}

// has are the labels under which a workload is found, with the empty one; a service has none.
func (e *entry) has() (labels []label) {
	if e.workload == nil {
		return nil
	}
	labels = append(labels, label{namespace: e.identity.namespace})
	for key, value := range e.workload.labels {
		labels = append(labels, label{e.identity.namespace, key, value})
	}
	return labels
}

// wants is a label, maybe the empty one, that all workloads have that a service selects; none if it does not select.
func (e *entry) wants() []label {
	if len(e.definitions) == 0 || !e.definitions[0].selects {
		return nil
	}
	selector := e.definitions[0].selector
	if len(selector) == 0 {
		return []label{{namespace: e.identity.namespace}}
	}
	key := slices.Min(slices.Collect(maps.Keys(selector)))
	return []label{{e.identity.namespace, key, selector[key]}}
}

// concern adds the services that an entry defines, or that select it.
func (s *State) concern(e *entry, services map[mesh.Key]bool) {
	for _, d := range e.definitions {
		services[d.service.Key] = true
	}
	for _, l := range e.has() {
		for by := range s.selectors.of(l).Values() {
			for _, d := range by.definitions {
				if includes(e.workload.labels, d.selector) {
					services[d.service.Key] = true
				}
			}
		}
	}
}

// serve makes a service of all that defines it.
func (s *State) serve(key mesh.Key) {
	var inputs []input
	for d := range s.definitions.of(key).Values() {
		in := input{definition: d}
		if d.selects {
			in.selected = s.selected(key.Namespace, d.selector)
		}
		inputs = append(inputs, in)
	}
	slices.SortFunc(inputs, byAge)
	if len(inputs) == 0 {
		s.catalog.Services = s.catalog.Services.Without(key)
		s.find(subject{service: key}, nil)
		return
	}
	is := merge(inputs)
	if was, _ := s.catalog.Services.Get(key); was == nil || !was.Identical(is.service) {
		s.catalog.Services = s.catalog.Services.With(key, is.service)
	}
	s.find(subject{service: key}, is.problems)
}

// selected returns the workloads of the namespace that have all of the labels, in order of name.
func (s *State) selected(namespace string, labels map[string]string) (selected []*workload) {
	least := s.workloads.of(label{namespace: namespace})
	for key, value := range labels {
		if with := s.workloads.of(label{namespace, key, value}); with.Len() < least.Len() {
			least = with
		}
	}
	for e := range least.Values() {
		if includes(e.workload.labels, labels) {
			selected = append(selected, e.workload)
		}
	}
	return selected
}

func includes(labels, of map[string]string) bool {
	for k, v := range of {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}
