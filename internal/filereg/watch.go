package filereg

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watch asks the kernel to say when something moves. All that it says means "look"; what it does not say, or what is
// not watched, is found by the next look at everything. One goroutine owns a watch.
type watch struct {
	open   func() (*fsnotify.Watcher, error)
	kernel *fsnotify.Watcher   // nil while there is none
	paths  map[fileID]string   // of the folders that are watched
	names  map[string][]string // by path, those in the folder that matter; nil: all
	retry  time.Time           // no other watcher is opened before
	err    error               // why not all is watched
}

// set watches these places and no others. It tells whether it has begun to watch any, so that what moved there before
// must be looked for. After a failure it tries again, though it opens a watcher only once in an interval.
func (w *watch) set(places []place, now time.Time, interval time.Duration) (began bool) {
	if w.kernel == nil {
		if now.Before(w.retry) {
			return false
		}
		w.retry = now.Add(interval)
		if w.kernel, w.err = w.open(); w.err != nil {
			w.kernel = nil
			return false
		}
		w.paths = map[fileID]string{}
	}
	wanted := map[fileID]bool{}
	for _, p := range places {
		wanted[p.id] = true
	}
	alive := map[string]bool{}
	for _, path := range w.kernel.WatchList() {
		alive[path] = true
	}
	maps.DeleteFunc(w.paths, func(id fileID, path string) bool {
		if !wanted[id] {
			_ = w.kernel.Remove(path) // it fails if the kernel has let go of it already
		}
		return !wanted[id] || !alive[path]
	})
	w.names, w.err = map[string][]string{}, nil
	for _, p := range places {
		if w.paths[p.id] == "" && w.err == nil {
			if err := w.kernel.Add(p.folder); err == nil {
				w.paths[p.id], began = p.folder, true
			} else if !errors.Is(err, fs.ErrNotExist) {
				w.err = err
			}
		}
		path := w.paths[p.id] // none if it cannot be watched
		if names, there := w.names[path]; p.name == "" || there && names == nil {
			w.names[path] = nil
		} else {
			w.names[path] = append(names, p.name)
		}
	}
	return began
}

// complete tells whether all that was set is watched.
func (w *watch) complete() bool { return w.kernel != nil && w.err == nil }

// matters tells whether an event may be of something that is read.
func (w *watch) matters(e fsnotify.Event) bool {
	names, watched := w.names[filepath.Dir(e.Name)]
	_, folder := w.names[e.Name]
	return folder || !watched || names == nil || slices.Contains(names, filepath.Base(e.Name))
}

// channels are the kernel's, none while there is no watcher.
func (w *watch) channels() (<-chan fsnotify.Event, <-chan error) {
	if w.kernel == nil {
		return nil, nil
	}
	return w.kernel.Events, w.kernel.Errors
}

// close lets go of the watcher and all that it watches.
func (w *watch) close() {
	if w.kernel != nil {
		_ = w.kernel.Close() // nothing is left of it either way
		w.kernel = nil
	}
}
