// Package filereg is a registry: folders of ServiceEntry and WorkloadEntry files.
//
// What the files say is computed by [Load], a function from files and the state before to the next state, on which
// `meshd check` and `meshd render` stand as well. A [Registry] only looks when something moves, decides what of it to
// believe, loads, and publishes. It promises that a change is published within a second of the last write, and at once
// if a whole file was moved into place; that nothing half written is; that a document that is wrong, a file that cannot
// be read and a folder that vanishes cost nothing that was served before, be it by the process before this one if there
// is a folder for its state; and that a service that did not change keeps its pointer.
package filereg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
)

// defaultMaxFileBytes is how much of a file is read if nothing else is said.
const defaultMaxFileBytes = 16 << 20

// Options are a registry's settings; zero values are the defaults.
type Options struct {
	RescanInterval time.Duration // between looks that nothing has asked for; 10 s
	MaxFileBytes   int64         // a larger file is not read; 16 MiB

	// StateDir is the folder in which what is served outlives a restart; empty: it does not. Registries do not share one.
	StateDir string

	Debounce    time.Duration // how long events must have ceased before a look, after the first one; 80 ms
	MaxDelay    time.Duration // how long events may put off a look; 1 s
	Settle      time.Duration // how long a change must have stood to be believed; 300 ms
	Glance      time.Duration // the same for a file that was written elsewhere and then moved into place, or twice that while others move; 50 ms
	EmptySettle time.Duration // the same for an emptied folder; 2 s
}

// Registry is folders of files. [New] makes one.
type Registry struct {
	log     hclog.Logger
	name    string
	folders []string
	options Options
	reload  chan struct{}
	open    func() (*fsnotify.Watcher, error)
}

// New makes a registry of folders. It does not look at them yet.
func New(log hclog.Logger, name string, folders []string, o Options) *Registry {
	o.RescanInterval = cmp.Or(o.RescanInterval, 10*time.Second)
	o.MaxFileBytes = cmp.Or(o.MaxFileBytes, defaultMaxFileBytes)
	o.Debounce = cmp.Or(o.Debounce, 80*time.Millisecond)
	o.MaxDelay = cmp.Or(o.MaxDelay, time.Second)
	o.Settle = cmp.Or(o.Settle, 300*time.Millisecond)
	o.Glance = cmp.Or(o.Glance, 50*time.Millisecond)
	o.EmptySettle = cmp.Or(o.EmptySettle, 2*time.Second)
	r := &Registry{
		log: log.Named("filereg").With("registry", name), name: name, options: o,
		reload: make(chan struct{}, 1), open: fsnotify.NewWatcher,
	}
	for _, f := range folders {
		r.folders = append(r.folders, filepath.Clean(f))
	}
	return r
}

// Name is the registry's name.
func (r *Registry) Name() string { return r.name }

// Reload makes a running registry look now, and read again what it finds even if it seems unchanged.
func (r *Registry) Reload() {
	select {
	case r.reload <- struct{}{}:
	default: // it is about to
	}
}

// Run publishes what the folders hold, each time that it changes, until ctx ends; then it returns nil. The first
// catalog comes once the folders have been read.
func (r *Registry) Run(ctx context.Context, publish func(mesh.Catalog)) error {
	w := &watch{open: r.open}
	defer w.close()
	l := &lookout{roots: r.folders, interval: r.options.RescanInterval, watch: w, named: map[string]bool{}}
	t := newTree(r.name, r.folders, r.options)
	out := &output{log: r.log, publish: publish}
	k := newKeeper(r.log, r.name, r.options)
	state := kept(k, r.name)
	out.since = state.since
	t.remember(state)
	var keeping sync.WaitGroup
	keeping.Go(func() { k.Run(ctx) })
	defer keeping.Wait()
	defer k.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	start := time.Now()
	next := start               // when to look if nothing asks for it
	var looked, asked time.Time // when we did last, and when something asked for it first since then
	var found []mesh.Problem    // at the last look
	tell := func() bool {
		return out.put(state, slices.Concat(found, r.unwatched(w.err), k.Problems()), t.unread())
	}
	ask := func(soon time.Duration) {
		now := time.Now()
		asked = cmp.Or(asked, now)
		due := earliest(next, now.Add(soon), asked.Add(r.options.MaxDelay))
		timer.Reset(due.Sub(now))
	}
	for {
		events, failures := w.channels()
		select {
		case <-ctx.Done():
			return nil
		case e, open := <-events:
			if !open {
				w.close()
				l.doubt()
				t.deaf()
			} else if !l.hear(e) {
				continue
			}
			t.hear(e)
			switch {
			case !isEntryName(e.Name) || isHidden(e.Name) || time.Since(looked) < r.options.Debounce:
				ask(r.options.Debounce)
			case e.Has(fsnotify.Write):
				ask(breath)
			default:
				ask(0) // it may be all that there is to see
			}
		case err, open := <-failures:
			if !open || !errors.Is(err, fsnotify.ErrEventOverflow) { // of an overflow the next look makes up for what was lost
				r.log.Warn("the kernel's watch has failed and is set up anew", "error", err)
				w.close()
			}
			l.doubt()
			t.deaf()
			ask(r.options.Debounce)
		case <-k.Changed():
			tell()
		case <-r.reload:
			l.doubt()
			t.forget()
			ask(0)
		case <-timer.C:
			now := time.Now()
			files, problems, again := t.advance(l.look(t.unsettled, now), now)
			looked, asked, found = now, time.Time{}, problems
			next = earliest(l.due(), cmp.Or(again, l.due()))
			timer.Reset(time.Until(next))
			if again.IsZero() || out.started || now.Sub(start) > maxFirst {
				was := state
				state = state.load(files)
				if tell() || state != was {
					k.Keep(state.dated(out.since).record)
				}
			}
		}
	}
}

const (
	// maxFirst is how long files that are being written may put off the first catalog.
	maxFirst = 2 * time.Second

	// breath is how long most who write to a file take for it: a look at half of it would make all wait for another one.
	breath = 10 * time.Millisecond
)

func earliest(times ...time.Time) time.Time { return slices.MinFunc(times, time.Time.Compare) }

// unwatched is the problem that not all changes are reported by the kernel.
func (r *Registry) unwatched(err error) []mesh.Problem {
	if err == nil {
		return nil
	}
	return []mesh.Problem{{
		Severity: mesh.Notice, Code: "not-watched", Origin: mesh.Origin{Registry: r.name},
		Message: fmt.Sprintf("the kernel does not report every change (%v), so that some are seen only at the next look, one every %s; if it is short of watches, raise fs.inotify.max_user_watches and max_user_instances",
			err, r.options.RescanInterval),
	}}
}

// output publishes and logs what has changed.
type output struct {
	log     hclog.Logger
	publish func(mesh.Catalog)
	started bool
	last    mesh.Catalog
	since   map[symptom]time.Time // when the problems of last were first there; immutable
}

// put publishes a state with the problems of its folders, unless that has been published already. It tells which.
func (o *output) put(state *State, folders []mesh.Problem, unread bool) bool {
	catalog := state.Catalog()
	catalog.Unread = unread
	catalog.Problems = slices.Concat(catalog.Problems, folders)
	slices.SortFunc(catalog.Problems, mesh.Problem.Compare)
	since := date(catalog.Problems, o.since, time.Now())
	sameServices := catalog.Services == o.last.Services
	if o.started && sameServices && unread == o.last.Unread && slices.Equal(catalog.Problems, o.last.Problems) {
		return false
	}
	was := symptoms(o.last.Problems)
	for _, p := range catalog.Problems {
		if !was[symptomOf(p)] {
			o.log.Log(level(p), "problem", fields(p)...)
		}
	}
	for _, p := range o.last.Problems {
		if _, still := since[symptomOf(p)]; !still {
			o.log.Info("problem cleared", fields(p)...)
		}
	}
	if !o.started || !sameServices {
		o.log.Info("entries loaded", "entries", state.Entries(), "services", catalog.Services.Len(), "problems", len(catalog.Problems))
	}
	o.started, o.last, o.since = true, catalog, since
	o.publish(catalog)
	return true
}

// symptom is a problem without what changes when lines are added above it, or when something else is served in its place.
type symptom string

func symptomOf(p mesh.Problem) symptom {
	return symptom(strings.Join([]string{p.Code, p.Origin.Source, p.Origin.Name, p.Field, p.Message}, "\n"))
}

func symptoms(problems []mesh.Problem) map[symptom]bool {
	all := make(map[symptom]bool, len(problems))
	for _, p := range problems {
		all[symptomOf(p)] = true
	}
	return all
}

// date says of each problem since when it has been there: since then, or since now. It returns what it has said.
func date(problems []mesh.Problem, since map[symptom]time.Time, now time.Time) map[symptom]time.Time {
	dates := make(map[symptom]time.Time, len(problems))
	for i := range problems {
		p := &problems[i]
		first, known := since[symptomOf(*p)]
		if !known {
			first = now.UTC().Round(0) // of the wall's clock alone, as it outlives a restart
		}
		dates[symptomOf(*p)], p.Since = first, first
	}
	return dates
}

func level(p mesh.Problem) hclog.Level {
	if p.Severity == mesh.Notice {
		return hclog.Info
	}
	return hclog.Warn
}

func fields(p mesh.Problem) []any {
	f := []any{"severity", p.Severity, "code", p.Code, "at", p.Origin, "message", p.Message}
	if p.Field != "" {
		f = append(f, "field", p.Field)
	}
	if p.Serving != "" {
		f = append(f, "serving", p.Serving)
	}
	return f
}
