package consulreg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
)

// Discovery is what one look at a datacenter has found.
type Discovery struct {
	Registry   string
	Datacenter string
	Services   []Discovered // by name
	Problems   []mesh.Problem
}

// Discovered is one of Consul's services, and what it becomes.
type Discovered struct {
	Name     string
	Services []*mesh.Service // one for each of its hosts; none if it is left out
	Omitted  []Omission      // what is left out of it, and why
}

// errLooked ends the look.
var errLooked = errors.New("there is something to tell")

// Discover looks at a datacenter once, as a registry with these options does, and says what it found. It fails if Consul does
// not answer, or hides everything.
func Discover(ctx context.Context, name string, o Options) (Discovery, error) {
	o.StateDir = "" // neither read nor written
	r := New(hclog.NewNullLogger(), name, o)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var last mesh.Catalog
	m := r.mirror(ctx, func(c mesh.Catalog) {
		last = c
		cancel(errLooked)
	})
	if err := context.Cause(ctx); !errors.Is(err, errLooked) {
		return Discovery{}, err
	}
	if last.Unread { // which is told only with a reason
		return Discovery{}, errors.New(m.own[0].String())
	}
	d := Discovery{Registry: name, Datacenter: m.o.Rules.Datacenter, Problems: last.Problems}
	for _, name := range slices.Sorted(maps.Keys(m.directory.names)) {
		found := Discovered{Name: name}
		p, read := m.pages.Get(serviceName(name))
		outcome := m.served.outcomes[name]
		switch {
		case read && len(p.instances) == 0 && p.filtered:
			found.Omitted = []Omission{{Service: name, Reason: "the token may not see its instances"}}
		case read && len(p.instances) == 0:
			found.Omitted = []Omission{{Service: name, Reason: noInstances}}
		case read:
			found.Omitted = outcome.omitted
			for _, s := range outcome.services {
				if is, ok := m.served.services.Get(s.Key); ok && is == s {
					found.Services = append(found.Services, s)
				} else {
					found.Omitted = append(found.Omitted, Omission{Service: name, Reason: fmt.Sprintf("another service has the host %s", s.Host)})
				}
			}
		default:
			found.Omitted = []Omission{{Service: name, Reason: m.o.Rules.refusal(name)}}
		}
		d.Services = append(d.Services, found)
	}
	return d, nil
}
