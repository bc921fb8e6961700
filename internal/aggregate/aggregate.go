// Package aggregate makes one view of the mesh out of many registries.
//
// A [Controller] runs the registries, waits until each has spoken once, merges what they know by precedence and hands
// each new view to its handlers. [Merge] decides and is pure; it looks only at what changed since the merge before.
package aggregate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
)

// Registry is a source of services.
type Registry interface {
	// Name is unique among the registries of a controller, and stable.
	Name() string
	// Run publishes the registry's complete catalog each time it changes, the first time as soon as it is known; publish
	// never blocks. Run returns nil when ctx ends, with all its goroutines gone. A source out of reach is a problem in the
	// catalog beside what was known before, not an error.
	Run(ctx context.Context, publish func(mesh.Catalog)) error
}

// Stander is a registry that can tell how it stands with its source. It may be asked at any time, and answers at once.
type Stander interface {
	Standing() mesh.Standing
}

// Holder is a registry that may hold things: serve them on although its source has told that they are gone, as long as it has
// reasons not to believe it.
type Holder interface {
	// Release lets go of all that is held, and returns how many instances that is. It fails if the registry does not take the
	// order before ctx ends, since it does not run or is busy.
	Release(ctx context.Context) (int, error)
}

// Options are a controller's settings; zero values are the defaults.
type Options struct {
	FirstView time.Duration // longest wait for registries that are not synced, if others are; 30 s
}

// Change is what one view changed against the one before.
type Change struct {
	Generation              uint64
	Digest                  mesh.Digest
	Time                    time.Time  // when the generation came to be
	Added, Altered, Removed []mesh.Key // sorted
	EndpointsOnly           bool       // whether no more than endpoints differ
	Registries              []string   // whose catalogs caused it
}

// Handler is told of each new view. It is given a change and the view after it.
type Handler func(Change, *mesh.View)

// historyLength is how many changes are remembered.
const historyLength = 64

// RegistryStatus is what is known of one registry.
type RegistryStatus struct {
	Name      string    `json:"name"`
	Synced    bool      `json:"synced"`
	Reason    string    `json:"reason,omitempty"`   // why it is not synced
	Published time.Time `json:"published,omitzero"` // when its latest catalog came
	Services  int       `json:"services"`
	Problems  int       `json:"problems"`
	// Standing is how it stands with its source at this moment; nil for a registry that does not tell, as that of files.
	Standing *mesh.Standing `json:"standing,omitempty"`
	// Why are the problems of a registry that is not synced: before the first view nothing else has them.
	Why []mesh.Problem `json:"-"`
}

// Controller runs registries and keeps the view of all of them.
type Controller struct {
	log        hclog.Logger
	registries []Registry
	options    Options
	handlers   []Handler
	signal     chan struct{} // a catalog has come

	mu       sync.Mutex
	arrived  []Source // by registry; what has been published
	statuses []RegistryStatus
	current  *mesh.View
	history  []Change
}

// New makes a controller of registries in order of precedence.
func New(log hclog.Logger, registries []Registry, o Options) *Controller {
	c := &Controller{
		log: log.Named("aggregate"), registries: registries, options: o, signal: make(chan struct{}, 1),
		arrived: make([]Source, len(registries)), statuses: make([]RegistryStatus, len(registries)),
	}
	if c.options.FirstView == 0 {
		c.options.FirstView = 30 * time.Second
	}
	for i, r := range registries {
		c.arrived[i].Registry, c.statuses[i].Name = r.Name(), r.Name()
	}
	return c
}

// Handle appends a handler. Handlers run one after the other, in the order in which they were appended, and before the
// next view is made. It must not be called once the controller runs.
func (c *Controller) Handle(h Handler) { c.handlers = append(c.handlers, h) }

// Current is the newest view that the handlers have been given; nil before the first.
func (c *Controller) Current() *mesh.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// History is the latest changes, the newest last.
func (c *Controller) History() []Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.history)
}

// Registries are the registries' states in order of precedence.
func (c *Controller) Registries() []RegistryStatus {
	c.mu.Lock()
	all := slices.Clone(c.statuses)
	c.mu.Unlock()
	for i, r := range c.registries {
		if r, ok := r.(Stander); ok {
			standing := r.Standing()
			all[i].Standing = &standing
		}
	}
	return all
}

// Why a release is impossible, whatever happens. Other errors of [Controller.Release] may pass.
var (
	ErrNoRegistry   = errors.New("there is no registry")
	ErrHoldsNothing = errors.New("holds nothing that can be released")
)

// Release has a registry let go of all that it holds although its source has told that it is gone, and returns how many
// instances that is. The error is [ErrNoRegistry], or [ErrHoldsNothing] of a registry that by its nature never does, or says
// that the registry did not take the order before ctx ended.
func (c *Controller) Release(ctx context.Context, name string) (int, error) {
	var names []string
	for _, r := range c.registries {
		if names = append(names, r.Name()); r.Name() != name {
			continue
		}
		holder, ok := r.(Holder)
		if !ok {
			return 0, fmt.Errorf("the registry %s %w; where it serves an earlier version of something, a problem says so", name, ErrHoldsNothing)
		}
		n, err := holder.Release(ctx)
		if err != nil {
			return 0, fmt.Errorf("the registry %s has not taken the order: %w", name, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("%w %q; there are: %s", ErrNoRegistry, name, strings.Join(names, ", "))
}

// Run runs the registries and the handlers until ctx ends or a registry fails, and returns when all of them have ended.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for i, r := range c.registries {
		group.Go(func() {
			err := r.Run(ctx, func(catalog mesh.Catalog) { c.publish(i, catalog) })
			if err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("registry %s: %w", r.Name(), err))
			}
		})
	}
	c.work(ctx)
	group.Wait()
	if err := context.Cause(ctx); !errors.Is(err, ctx.Err()) {
		return err
	}
	return nil
}

func (c *Controller) publish(i int, catalog mesh.Catalog) {
	c.mu.Lock()
	c.arrived[i].Catalog, c.arrived[i].Synced = catalog, !catalog.Unread
	s := &c.statuses[i]
	s.Synced, s.Published, s.Services, s.Problems = !catalog.Unread, time.Now(), catalog.Services.Len(), len(catalog.Problems)
	s.Reason, s.Why = "", nil
	if catalog.Unread && len(catalog.Problems) > 0 {
		s.Reason, s.Why = catalog.Problems[0].String(), catalog.Problems
	}
	c.mu.Unlock()
	c.wake()
}

// wake makes the worker look at what has arrived.
func (c *Controller) wake() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// work merges and calls the handlers, until ctx ends. A change after a quiet time is handed on at once; those that
// follow wait, at the pace.
func (c *Controller) work(ctx context.Context) {
	deadline := time.NewTimer(c.options.FirstView)
	defer deadline.Stop()
	var state Merged
	since := map[mesh.Problem]time.Time{}
	var pace pace
	for started, late := false, false; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.signal:
		case <-deadline.C:
			late = true
			if started {
				continue
			}
		}
		if !started {
			missing := c.missing()
			switch {
			case len(missing) == 0:
			case late && c.knowsAny():
				c.log.Warn("the first view is served without all registries", "missing", missing)
			default:
				continue
			}
			started = true
		}
		state = c.advance(state, since)
		c.pause(ctx, state, pace.after(time.Now()))
	}
}

// pause waits. What is urgent ends it early. What has come meanwhile is there to be taken afterwards.
func (c *Controller) pause(ctx context.Context, state Merged, d time.Duration) {
	end, soon := time.After(d), time.After(hurried(d))
	seen := state
	for came, hurry := false, false; ; {
		over := false
		select {
		case <-ctx.Done():
			return
		case <-end:
			over = true
		case <-soon:
			soon = nil
		case <-c.signal:
			came = true
			if !hurry {
				// Each look goes on from the one before, or what has come would be merged again with each that follows.
				next, change := Merge(seen, c.sources())
				hurry, seen = urgent(seen.View, next.View, change), next
			}
		}
		if over || hurry && soon == nil {
			if came {
				c.wake()
			}
			return
		}
	}
}

func (c *Controller) sources() []Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.arrived)
}

// knowsAny tells whether there is any service, or a registry that knows of none. To serve a view of registries that know
// nothing yet would take from nodes what they have.
func (c *Controller) knowsAny() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.arrived, func(s Source) bool { return s.Synced || s.Catalog.Services.Len() > 0 })
}

func (c *Controller) missing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, s := range c.arrived {
		if !s.Synced {
			names = append(names, s.Registry)
		}
	}
	return names
}

// advance merges what has arrived and hands on the view, if it is another one.
func (c *Controller) advance(last Merged, since map[mesh.Problem]time.Time) Merged {
	now := time.Now()
	next, change := Merge(last, c.sources())
	stamp(next.View.Problems, since, now)
	if last.View != nil && last.View.Services == next.View.Services && slices.Equal(last.View.Problems, next.View.Problems) {
		return next
	}
	c.mu.Lock()
	c.current = next.View
	if last.View == nil || change.Generation != last.View.Generation {
		change.Time = now
		c.history = append(c.history, change)
		c.history = c.history[max(0, len(c.history)-historyLength):]
	} else {
		change.Time = c.history[len(c.history)-1].Time // only problems or places differ
	}
	c.mu.Unlock()
	for _, h := range c.handlers {
		h(change, next.View)
	}
	return next
}

// stamp says of each problem since when it has been there, if its registry does not, and forgets those that are gone.
func stamp(problems []mesh.Problem, since map[mesh.Problem]time.Time, now time.Time) {
	there := make(map[mesh.Problem]bool, len(problems))
	for i := range problems {
		p := problems[i]
		p.Since = time.Time{}
		there[p] = true
		if problems[i].Since.IsZero() {
			first, ok := since[p]
			if !ok {
				first = now
				since[p] = first
			}
			problems[i].Since = first
		}
	}
	for p := range since {
		if !there[p] {
			delete(since, p)
		}
	}
}
