package consultest

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hashicorp/consul/api"
)

// store is a catalog with Consul's indexes, as agent/consul/state of Consul 1.14 moves them. Every write gets the next index, and the
// indexes of what it changes become that. It knows nothing of time or requests.
type store struct {
	datacenter string
	index      uint64 // of the last write
	epoch      int    // moves when history is rewritten, which ends all waiting

	nodes map[string]*node
	where map[string]map[place]struct{} // by service: its instances

	nodesIndex, servicesIndex, checksIndex uint64
	listed                                 uint64            // when an instance came, went or changed, which alone wakes lists
	extinct                                uint64            // when a service last lost its last instance; 0: never
	serviceIndex                           map[string]uint64 // when a service last changed, or went away
	stateIndex                             map[string]uint64 // when a check came to a state, left it, or changed in it; by any: in any
}

type node struct {
	address          string
	meta, tagged     map[string]string
	created, changed uint64
	instances        map[string]*instance
	checks           map[string]*api.HealthCheck // of the node and of its instances
}

// place is what identifies an instance.
type place struct{ node, id string }

type instance struct {
	service          *api.AgentService
	created, changed uint64
}

func newStore(datacenter string) *store {
	return &store{
		datacenter: datacenter, index: 10,
		nodes: map[string]*node{}, where: map[string]map[place]struct{}{}, serviceIndex: map[string]uint64{}, stateIndex: map[string]uint64{},
	}
}

func (s *store) register(r *api.CatalogRegistration) {
	s.index++
	n := s.nodes[r.Node]
	if n == nil {
		n = &node{created: s.index, instances: map[string]*instance{}, checks: map[string]*api.HealthCheck{}}
		s.nodes[r.Node] = n
	}
	if !r.SkipNodeUpdate && (n.changed == 0 || n.address != r.Address || !maps.Equal(n.meta, r.NodeMeta) || !maps.Equal(n.tagged, r.TaggedAddresses)) {
		n.address, n.meta, n.tagged, n.changed = r.Address, maps.Clone(r.NodeMeta), maps.Clone(r.TaggedAddresses), s.index
		s.nodesIndex = s.index
		s.touchAll(n)
	}
	if r.Service != nil {
		is := &instance{service: r.Service, created: s.index, changed: s.index}
		was := n.instances[r.Service.ID]
		if was == nil || !sameService(was.service, is.service) {
			if was != nil {
				is.created = was.created
			}
			n.instances[r.Service.ID] = is
			at := place{r.Node, r.Service.ID}
			if was != nil {
				delete(s.where[was.service.Service], at)
			}
			if s.where[r.Service.Service] == nil {
				s.where[r.Service.Service] = map[place]struct{}{}
			}
			s.where[r.Service.Service][at] = struct{}{}
			s.touch(r.Service.Service)
			s.servicesIndex, s.nodesIndex, s.listed = s.index, s.index, s.index
			if was != nil && was.service.Service != is.service.Service {
				s.gone(was.service.Service)
			}
		}
	}
	if r.Check != nil {
		s.setCheck(n, r.Node, r.Check)
	}
}

func (s *store) setCheck(n *node, name string, c *api.AgentCheck) {
	is := &api.HealthCheck{
		Node: name, CheckID: c.CheckID, Name: c.Name, Status: c.Status, Output: c.Output, ServiceID: c.ServiceID,
		ServiceTags: []string{}, CreateIndex: s.index, ModifyIndex: s.index,
	}
	if c.ServiceID != "" {
		i := n.instances[c.ServiceID]
		if i == nil {
			return
		}
		is.ServiceName, is.ServiceTags = i.service.Service, i.service.Tags
	}
	was := n.checks[c.CheckID]
	if was != nil {
		if was.Status == is.Status && was.Output == is.Output && was.Name == is.Name && was.ServiceName == is.ServiceName &&
			slices.Equal(was.ServiceTags, is.ServiceTags) {
			return
		}
		is.CreateIndex = was.CreateIndex
		s.stir(was.Status)
	}
	n.checks[c.CheckID] = is
	s.stir(is.Status)
	s.touchBy(n, is)
}

func (s *store) removeCheck(nodeName, checkID string) {
	s.index++
	if n := s.nodes[nodeName]; n != nil {
		s.dropCheck(n, checkID)
	}
}

func (s *store) dropCheck(n *node, checkID string) {
	c := n.checks[checkID]
	if c == nil {
		return
	}
	delete(n.checks, checkID)
	s.stir(c.Status)
	s.touchBy(n, c)
	if c.ServiceID == "" {
		s.servicesIndex = s.index // so Consul does, but it wakes nobody
	}
}

func (s *store) deregister(nodeName, id string) {
	s.index++
	n := s.nodes[nodeName]
	if n == nil {
		return
	}
	if id != "" {
		s.dropInstance(nodeName, n, id)
		return
	}
	for id := range n.instances {
		s.dropInstance(nodeName, n, id)
	}
	for id := range n.checks {
		s.dropCheck(n, id)
	}
	delete(s.nodes, nodeName)
	s.nodesIndex = s.index
}

func (s *store) dropInstance(nodeName string, n *node, id string) {
	i := n.instances[id]
	if i == nil {
		return
	}
	for checkID, c := range n.checks {
		if c.ServiceID == id {
			s.dropCheck(n, checkID)
		}
	}
	delete(n.instances, id)
	delete(s.where[i.service.Service], place{nodeName, id})
	s.checksIndex, s.servicesIndex, s.nodesIndex, s.listed = s.index, s.index, s.index, s.index
	s.touch(i.service.Service)
	s.gone(i.service.Service)
}

// gone notes if a service has no instance anymore.
func (s *store) gone(service string) {
	if !s.has(service) {
		s.extinct = s.index
	}
}

// stir notes that there is something new among the checks of a state. Their common index moves by less.
func (s *store) stir(state string) {
	s.stateIndex[state], s.stateIndex[api.HealthAny], s.checksIndex = s.index, s.index, s.index
}

func (s *store) touch(service string) { s.serviceIndex[service] = s.index }

// touchBy moves what a check is of.
func (s *store) touchBy(n *node, c *api.HealthCheck) {
	if c.ServiceID != "" {
		s.touch(c.ServiceName)
		return
	}
	s.touchAll(n)
}

func (s *store) touchAll(n *node) {
	for _, i := range n.instances {
		s.touch(i.service.Service)
	}
}

func (s *store) has(service string) bool { return len(s.where[service]) > 0 }

// rewind makes all indexes as low as that, as if an old snapshot had been restored that had the same in it.
func (s *store) rewind(to uint64) {
	s.epoch++
	for _, i := range []*uint64{&s.index, &s.nodesIndex, &s.servicesIndex, &s.checksIndex, &s.listed, &s.extinct} {
		*i = min(*i, to)
	}
	for _, m := range []map[string]uint64{s.serviceIndex, s.stateIndex} {
		for k, v := range m {
			m[k] = min(v, to)
		}
	}
}

// services is the answer to /v1/catalog/services, as far as it is visible.
func (s *store) services(visible func(string) bool) (tags map[string][]string, hidden bool) {
	tags = map[string][]string{}
	for _, n := range s.nodes {
		for _, i := range n.instances {
			name := i.service.Service
			if !visible(name) {
				hidden = true
				continue
			}
			tags[name] = append(tags[name], i.service.Tags...)
		}
	}
	for name, all := range tags {
		slices.Sort(all)
		if tags[name] = slices.Compact(all); tags[name] == nil {
			tags[name] = []string{}
		}
	}
	return tags, hidden
}

// instances is the answer to /v1/health/service/NAME.
func (s *store) instances(service string) []*api.ServiceEntry {
	entries := []*api.ServiceEntry{}
	order := func(a, b place) int { return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.id, b.id)) }
	for _, at := range slices.SortedFunc(maps.Keys(s.where[service]), order) {
		n := s.nodes[at.node]
		i := n.instances[at.id]
		is := *i.service
		is.CreateIndex, is.ModifyIndex = i.created, i.changed
		entry := &api.ServiceEntry{
			Node: &api.Node{
				Node: at.node, Address: n.address, Datacenter: s.datacenter, TaggedAddresses: n.tagged, Meta: n.meta,
				CreateIndex: n.created, ModifyIndex: n.changed,
			},
			Service: &is, Checks: api.HealthChecks{},
		}
		for _, c := range n.checks {
			if c.ServiceID == "" || c.ServiceID == at.id {
				entry.Checks = append(entry.Checks, c)
			}
		}
		slices.SortFunc(entry.Checks, func(a, b *api.HealthCheck) int {
			return cmp.Or(cmp.Compare(a.ServiceID, b.ServiceID), cmp.Compare(a.CheckID, b.CheckID))
		})
		entries = append(entries, entry)
	}
	return entries
}

// checks is the answer to /v1/health/state/STATE, as far as it is visible. Checks of nodes always are.
func (s *store) checks(state string, visible func(string) bool) (found api.HealthChecks, hidden bool) {
	found = api.HealthChecks{}
	for _, n := range s.nodes {
		for _, c := range n.checks {
			if state != api.HealthAny && c.Status != state {
				continue
			}
			if c.ServiceName != "" && !visible(c.ServiceName) {
				hidden = true
				continue
			}
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b *api.HealthCheck) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.CheckID, b.CheckID))
	})
	return found, hidden
}

// A resource is what a query can wait for.
type resource struct {
	kind Kind
	name string // of the service or the state
}

// indexOf is the index that an answer has. A service without instances has no index of its own.
func (s *store) indexOf(r resource) uint64 {
	switch r.kind {
	case List:
		return s.servicesIndex
	case State:
		return s.checksIndex
	default:
		if s.has(r.name) {
			return s.serviceIndex[r.name]
		}
		return cmp.Or(s.extinct, max(s.nodesIndex, s.servicesIndex, s.checksIndex))
	}
}

// watch begins to wait for a resource to move beyond an index. What it returns tells whether it has, and is to be asked after
// each write.
func (s *store) watch(r resource, index uint64) (moved func() bool) {
	epoch := s.epoch
	switch r.kind {
	case State:
		// Consul wakes by what changes among the checks of that state, or by any if there is none, and then looks at the index of all.
		seen, first := s.index, true
		empty := s.stateEmpty(r.name)
		return func() bool {
			stirred := first || empty && s.stateIndex[api.HealthAny] > seen || s.stateIndex[r.name] > seen
			seen, first, empty = s.index, false, s.stateEmpty(r.name)
			return s.epoch != epoch || stirred && s.checksIndex > index
		}
	case Instances:
		// A service without instances is woken when it gets one, whatever the index is that it answers with.
		first := true
		return func() bool {
			behind := first && s.indexOf(r) > index
			first = false
			return s.epoch != epoch || behind || s.serviceIndex[r.name] > index
		}
	default:
		seen, first := s.index, true
		return func() bool {
			stirred := first || s.listed > seen
			seen, first = s.index, false
			return s.epoch != epoch || stirred && s.servicesIndex > index
		}
	}
}

func (s *store) stateEmpty(state string) bool {
	for _, n := range s.nodes {
		for _, c := range n.checks {
			if c.Status == state {
				return false
			}
		}
	}
	return true
}

func sameService(a, b *api.AgentService) bool {
	return a.Service == b.Service && a.Kind == b.Kind && a.Address == b.Address && a.Port == b.Port && a.Weights == b.Weights &&
		slices.Equal(a.Tags, b.Tags) && maps.Equal(a.Meta, b.Meta) && maps.Equal(a.TaggedAddresses, b.TaggedAddresses)
}
