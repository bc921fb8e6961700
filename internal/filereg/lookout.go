package filereg

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// lookout looks at the folders. Where the kernel reports all that moves, and has named none but files that were there
// before and still are, it looks at those alone. Any doubt makes it look at everything, and so does the interval, for
// what the kernel does not report. One goroutine owns a lookout.
type lookout struct {
	roots    []string
	interval time.Duration // at the end of which everything is looked at again
	watch    *watch
	found    *walk           // at the last look; nil: the next one is at everything
	whole    time.Time       // when everything was looked at last
	named    map[string]bool // what the kernel has named since the last look
}

// hear takes in an event, and tells whether it may be of something that is read.
func (l *lookout) hear(e fsnotify.Event) bool {
	matters := l.watch.matters(e)
	if matters {
		l.named[e.Name] = true
	}
	return matters
}

// doubt makes the next look one at everything.
func (l *lookout) doubt() { l.found = nil }

// look finds what is there now. These files it looks at in any case.
func (l *lookout) look(files []string, now time.Time) *walk {
	for _, path := range files {
		l.named[path] = true
	}
	if l.found == nil || !now.Before(l.due()) || !l.found.again(l.named) {
		l.found, l.whole = l.everything(now), now
	}
	l.named = map[string]bool{}
	l.found.done = time.Now()
	return l.found
}

// due is when to look at everything if nothing asks for it.
func (l *lookout) due() time.Time { return l.whole.Add(l.interval) }

// everything walks the folders, and has all of them watched.
func (l *lookout) everything(now time.Time) *walk {
	w := look(l.roots)
	for range maxLooks {
		if !l.watch.set(w.places, now, l.interval) {
			w.vague = w.vague || !l.watch.complete()
			return w
		}
		w = look(l.roots)
	}
	w.vague = true
	return w
}

// maxLooks is how often to look again at once because more had to be watched.
const maxLooks = 5

// again looks at these paths once more, and tells whether the walk is now what another one would be: each path is of a
// file as before, or of something at which no walk looks, and in the same folder. If not, the walk is of no more use.
func (w *walk) again(paths map[string]bool) bool {
	w.named = paths
	same := map[string]bool{} // folders
	for path := range paths {
		folder := filepath.Dir(path)
		f, known := w.folders[folder]
		if _, is := w.folders[path]; is || !known || w.vague {
			return false
		}
		if !same[folder] { // another file system may have been mounted there
			info, err := os.Stat(folder)
			if err != nil || stampOf(info).id != f.id {
				return false
			}
			same[folder] = true
		}
		_, was := w.files[path]
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !was: // it has come and gone
		case err != nil, !info.Mode().IsRegular(), hasOtherNames(info):
			return false
		case !isEntryName(path), isHidden(path):
		case !was:
			return false
		default:
			w.files[path] = stampOf(info)
		}
	}
	return !w.vague
}
