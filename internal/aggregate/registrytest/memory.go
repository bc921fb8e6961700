package registrytest

import (
	"context"
	"slices"
	"sync"

	"github.com/meshd/meshd/internal/mesh"
)

// Memory is a registry that holds what it is told, for tests and for programs that embed meshd. It is safe for use by
// many goroutines.
type Memory struct {
	name   string
	signal chan struct{}

	mu      sync.Mutex
	catalog mesh.Catalog
}

// NewMemory makes a registry without services.
func NewMemory(name string) *Memory { return &Memory{name: name, signal: make(chan struct{}, 1)} }

// Name is the registry's name.
func (m *Memory) Name() string { return m.name }

// Put adds services, or replaces those of the same key.
func (m *Memory) Put(services ...*mesh.Service) {
	m.update(func(c *mesh.Catalog) {
		for _, s := range services {
			c.Services = c.Services.With(s.Key, s)
		}
	})
}

// Remove takes services away.
func (m *Memory) Remove(keys ...mesh.Key) {
	m.update(func(c *mesh.Catalog) {
		for _, k := range keys {
			c.Services = c.Services.Without(k)
		}
	})
}

// Report sets the registry's problems.
func (m *Memory) Report(problems ...mesh.Problem) {
	m.update(func(c *mesh.Catalog) {
		c.Problems = slices.SortedFunc(slices.Values(problems), mesh.Problem.Compare)
	})
}

func (m *Memory) update(change func(*mesh.Catalog)) {
	m.mu.Lock()
	change(&m.catalog)
	m.mu.Unlock()
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// Run publishes what is there and each change of it until ctx ends.
func (m *Memory) Run(ctx context.Context, publish func(mesh.Catalog)) error {
	var last mesh.Catalog
	for first := true; ; first = false {
		m.mu.Lock()
		catalog := m.catalog
		m.mu.Unlock()
		if first || catalog.Services != last.Services || !slices.Equal(catalog.Problems, last.Problems) {
			publish(catalog)
			last = catalog
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.signal:
		}
	}
}
