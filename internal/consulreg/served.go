package consulreg

import (
	"fmt"
	"maps"
	"slices"

	"github.com/meshd/meshd/internal/mesh"
)

// served is what all of Consul's services come to: mesh services by host, of which each has one alone. Of several of Consul's
// services that claim a host, the one whose name is first in the alphabet has it.
type served struct {
	outcomes  map[string]outcome                    // by the name of Consul's service
	claims    map[mesh.Key]map[string]*mesh.Service // and by that of the claimant
	complain  map[string]bool                       // names whose outcomes have problems
	contested map[mesh.Key]bool                     // hosts with several claimants
	services  mesh.Services                         // that have their hosts
	moved     bool                                  // whether problems may be others than when it was last set to false
}

func newServed() *served {
	return &served{
		outcomes: map[string]outcome{}, claims: map[mesh.Key]map[string]*mesh.Service{},
		complain: map[string]bool{}, contested: map[mesh.Key]bool{},
	}
}

// put makes an outcome that of a service. The zero outcome is that of none.
func (s *served) put(name string, next outcome) {
	last := s.outcomes[name]
	s.outcomes[name] = next
	if len(next.services)+len(next.problems)+len(next.omitted) == 0 {
		delete(s.outcomes, name)
	}
	s.moved = s.moved || !slices.Equal(last.problems, next.problems)
	set(s.complain, name, len(next.problems) > 0)
	touched := map[mesh.Key]bool{}
	for _, is := range last.services {
		touched[is.Key] = true
		delete(s.claims[is.Key], name)
	}
	for _, is := range next.services {
		touched[is.Key] = true
		if s.claims[is.Key] == nil {
			s.claims[is.Key] = map[string]*mesh.Service{}
		}
		s.claims[is.Key][name] = is
	}
	for k := range touched {
		s.settle(k)
	}
}

// settle gives a host to the first of its claimants.
func (s *served) settle(k mesh.Key) {
	claimants := s.claimants(k)
	s.moved = s.moved || s.contested[k] || len(claimants) > 1
	set(s.contested, k, len(claimants) > 1)
	if len(claimants) == 0 {
		delete(s.claims, k)
		s.services = s.services.Without(k)
		return
	}
	is := s.claims[k][claimants[0]]
	if was, ok := s.services.Get(k); !ok || !was.Identical(is) {
		s.services = s.services.With(k, is)
	}
}

func (s *served) claimants(k mesh.Key) []string { return slices.Sorted(maps.Keys(s.claims[k])) }

// problems are those of single services. They are in no order.
func (s *served) problems() (all []mesh.Problem) {
	for name := range s.complain {
		all = append(all, s.outcomes[name].problems...)
	}
	for k := range s.contested {
		claimants := s.claimants(k)
		for _, name := range claimants[1:] {
			all = append(all, mesh.Problem{
				Severity: mesh.Error, Code: "consul-name-taken", Origin: s.claims[k][name].Origin, Services: k.String(),
				Message: fmt.Sprintf("the services %q and %q would both be %s; %q has it, and this one is not served: rename it",
					claimants[0], name, k.Host, claimants[0]),
			})
		}
	}
	return all
}

// set puts a key into a set or takes it out.
func set[K comparable](keys map[K]bool, key K, in bool) {
	if in {
		keys[key] = true
	} else {
		delete(keys, key)
	}
}
