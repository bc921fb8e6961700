package mesh

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/meshd/meshd/internal/pmap"
)

// Services is a set of services by key, immutable and ordered.
type Services = pmap.Map[Key, *Service]

// Catalog is everything that one registry knows, complete and immutable.
type Catalog struct {
	Services Services
	Problems []Problem // sorted
	// Unread says that the source has not been read in full yet, now or before a restart: that a service is not among
	// Services means nothing. The problems say why.
	Unread bool
}

// Tenancy says that a service has an endpoint at an IP address.
type Tenancy struct {
	Address netip.Addr
	Service Key
}

// Compare orders tenancies by address.
func (t Tenancy) Compare(o Tenancy) int {
	return cmp.Or(t.Address.Compare(o.Address), t.Service.Compare(o.Service))
}

// Tenancies tell which services are at an address.
type Tenancies = pmap.Map[Tenancy, struct{}]

// Resettle is tenancies after a service has become another one. Either may be nil.
func Resettle(all Tenancies, was, is *Service) Tenancies {
	before, after := was.tenancies(), is.tenancies()
	for t := range before {
		if !after[t] {
			all = all.Without(t)
		}
	}
	for t := range after {
		if !before[t] {
			all = all.With(t, struct{}{})
		}
	}
	return all
}

func (s *Service) tenancies() map[Tenancy]bool {
	all := map[Tenancy]bool{}
	if s == nil {
		return all
	}
	for i := range s.Endpoints {
		if ip, ok := s.Endpoints[i].Address.IP(); ok {
			all[Tenancy{ip, s.Key}] = true
		}
		if ip := s.Endpoints[i].Second; ip.IsValid() {
			all[Tenancy{ip, s.Key}] = true
		}
	}
	return all
}

// View is the merge of all catalogs: what the mesh is. It is immutable.
type View struct {
	Generation uint64 // counts the views of one process, from 1
	Digest     Digest // the same for the same services, whichever process made it
	Services   Services
	Tenancies  Tenancies
	Problems   []Problem // sorted; all registries' and the merge's own
	Registries []string  // by precedence
}

// Before orders the services of a view for all that can have but one of them: a listener's address, a domain.
// By precedence of the registry, then age, host and namespace.
func (v *View) Before(a, b *Service) int {
	return cmp.Or(cmp.Compare(v.rank(a), v.rank(b)), Older(a, b))
}

func (v *View) rank(s *Service) int { return slices.Index(v.Registries, s.Origin.Registry) }

// OfHost yields the services of one host, one for each namespace that has it.
func (v *View) OfHost(h Host) iter.Seq[*Service] {
	return func(yield func(*Service) bool) {
		for k, s := range v.Services.From(Key{Host: h}) {
			if k.Host != h || !yield(s) {
				return
			}
		}
	}
}

// At yields the services that have an endpoint at an address.
func (v *View) At(address netip.Addr) iter.Seq[*Service] {
	return func(yield func(*Service) bool) {
		for t := range v.Tenancies.From(Tenancy{Address: address}) {
			if t.Address != address {
				return
			}
			if s, ok := v.Services.Get(t.Service); ok && !yield(s) {
				return
			}
		}
	}
}
