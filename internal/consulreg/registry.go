package consulreg

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
)

// Registry is one datacenter's catalog as a registry of services.
type Registry struct {
	log      hclog.Logger
	name     string
	o        Options
	link     *link
	releases chan chan int

	mu       sync.Mutex
	standing mesh.Standing
}

// New makes a registry of that name. It connects when it runs.
func New(log hclog.Logger, name string, o Options) *Registry {
	o = o.withDefaults()
	return &Registry{
		log: log.Named("consul").With("registry", name), name: name, o: o,
		link: newLink(o.Link, o.Connections), releases: make(chan chan int),
	}
}

// Name is the registry's name.
func (r *Registry) Name() string { return r.name }

// Run keeps a mirror of the catalog and publishes what it comes to, until ctx ends.
func (r *Registry) Run(ctx context.Context, publish func(mesh.Catalog)) error {
	r.mirror(ctx, publish)
	return nil
}

// mirror keeps a mirror until ctx ends, and returns it as it was then.
func (r *Registry) mirror(ctx context.Context, publish func(mesh.Catalog)) *mirror {
	ctx, cancel := context.WithCancel(ctx)
	var asking, keeping sync.WaitGroup
	k := newKeeper(r.log, r.name, r.o.StateDir)
	m := newMirror(r.log, r.name, r.o, r.link, k, &asking)
	k.Load(m.restore)
	keeping.Go(func() { k.Run(ctx) })
	m.run(ctx, publish, r.releases, r.show)
	cancel()
	k.Close()
	keeping.Wait()
	asking.Wait()
	r.link.close()
	return m
}

// ErrNotRunning says that a registry does not run.
var ErrNotRunning = errors.New("the registry does not run")

// Release lets go of all instances that are held although Consul has told that they are gone, and returns how many. It fails
// if the registry does not take the order before ctx ends.
func (r *Registry) Release(ctx context.Context) (int, error) {
	done := make(chan int, 1)
	select {
	case <-ctx.Done():
		return 0, ErrNotRunning
	case r.releases <- done:
		return <-done, nil
	}
}

// Standing tells how the registry stands with Consul.
func (r *Registry) Standing() mesh.Standing {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.standing
	s.Source, s.Connections, s.Requests = r.link.address(), int(r.link.connections.Load()), r.link.requests.Load()
	return s
}

func (r *Registry) show(s mesh.Standing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.standing = s
}
