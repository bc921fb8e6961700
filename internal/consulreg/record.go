package consulreg

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/keep"
)

// record is what is believed, in the form in which it outlives a restart. It holds what Consul said, and not what was made of
// it, so that other rules take effect over a restart.
type record struct {
	Datacenter string              `json:"datacenter,omitempty"`
	Distance   Distance            `json:"distance,omitempty"`
	Names      map[string][]string `json:"names"` // of the services, with their tags
	Filtered   bool                `json:"filtered,omitempty"`
	Services   []recordedService   `json:"services"`
}

type recordedService struct {
	Name      string      `json:"name"`
	Filtered  bool        `json:"filtered,omitempty"`
	Instances []*instance `json:"instances"`
}

func newKeeper(log hclog.Logger, registry, folder string) *keep.Keeper {
	o := keep.Options{
		Registry: registry, Title: "consul", Form: 1,
		Unread:    "if Consul is out of reach now, its services are not served until it is back",
		Unwritten: "if Consul is out of reach after a restart, its services may be missing then or be older ones",
	}
	if folder != "" {
		o.Path = filepath.Join(folder, "consul.state")
	}
	return keep.New(log, o)
}

// recorded is the record of what is believed now.
func (m *mirror) recorded() keep.Record {
	directory, pages := m.directory, m.pages // neither changes
	r := record{Datacenter: m.o.Rules.Datacenter, Distance: m.o.Rules.Distance, Names: directory.names, Filtered: directory.filtered}
	return func() ([]byte, error) {
		r.Services = make([]recordedService, 0, pages.Len())
		for name, p := range pages.All() {
			r.Services = append(r.Services, recordedService{string(name), p.filtered, p.instances})
		}
		return json.Marshal(r)
	}
}

// restore begins with what was believed before a restart. Nothing of it has an index, so that the first answers are compared in
// full.
func (m *mirror) restore(data []byte) error {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return fmt.Errorf("read the record: %w", err)
	}
	if err := r.check(m.o.Rules.Datacenter); err != nil {
		return err
	}
	def(&m.o.Rules.Datacenter, r.Datacenter)
	if !m.located && r.Distance != AnyDistance {
		m.o.Rules.Distance, m.located = r.Distance, true
	}
	m.directory = &directory{names: r.Names, filtered: r.Filtered}
	for _, s := range r.Services {
		m.pages = m.pages.With(serviceName(s.Name), &page{instances: s.Instances, filtered: s.Filtered})
		set(m.filtered, s.Name, s.Filtered)
		m.translate(s.Name)
	}
	for name, tags := range r.Names {
		if _, read := m.pages.Get(serviceName(name)); !read && m.o.Rules.wanted(name, tags) {
			m.unread[name] = true // other rules did not want it
		}
	}
	return nil
}

// check tells what is wrong with a record for a datacenter, whose name may be empty.
func (r *record) check(datacenter string) error {
	switch {
	case r.Names == nil:
		return errors.New("it has no list of services")
	case datacenter != "" && r.Datacenter != "" && datacenter != r.Datacenter:
		return fmt.Errorf("it is of the datacenter %q, and not of %q", r.Datacenter, datacenter)
	case r.Distance > Far:
		return fmt.Errorf("it has a distance %d", r.Distance)
	}
	for _, s := range r.Services {
		if _, listed := r.Names[s.Name]; !listed {
			return fmt.Errorf("the service %q is not in its list", s.Name)
		}
		for n, i := range s.Instances {
			if i == nil || i.Status > maintenance || n > 0 && s.Instances[n-1].compare(i) > 0 {
				return fmt.Errorf("the service %q has an instance that cannot be", s.Name)
			}
		}
	}
	return nil
}
