package consulreg

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/keep"
	"github.com/meshd/meshd/internal/pmap"
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
	if m.o.Rules.Datacenter == "" {
		m.o.Rules.Datacenter = r.Datacenter
	}
	if !m.located && r.Distance != AnyDistance {
		m.o.Rules.Distance, m.located = r.Distance, true
	}
	m.directory = &directory{names: r.Names, filtered: r.Filtered}
	m.pages = pmap.Map[serviceName, *page]{}
	for _, s := range r.Services {
		m.pages = m.pages.With(serviceName(s.Name), &page{instances: s.Instances, filtered: s.Filtered})
		m.translate(s.Name)
	}
	return nil
}
