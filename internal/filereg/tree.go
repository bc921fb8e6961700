package filereg

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/meshd/meshd/internal/mesh"
)

// tree is what is believed to be in the folders. Nothing is believed at first sight: a file counts as written, or as
// removed, once a second look has found it as the first did, a while later. That while is short for a file that has come
// into its place when its writer had done with it. One goroutine owns a tree.
type tree struct {
	registry string
	roots    []string
	options  Options
	read     func(path string, maxBytes int64) (file File, after stamp)
	files    fileMap            // what is believed
	leaves   map[string]*leaf   // what has been seen
	open     map[string]bool    // those of which there is more to find out, even if the next look is not at them
	folders  map[string]*branch // those that have held files
	listed   map[string]bool    // those roots that could be listed once
	moved    time.Time          // when a look found something new last
	heard    map[string]arrival // what the kernel has said of files that are not believed yet

	unsettled []string // the files that the last look left to be looked at again
}

// leaf is one file.
type leaf struct {
	seen     stamp     // at the last look; zero: not there
	since    time.Time // when it was first seen so
	replaced bool      // the last look found another file in its place
	finished bool      // by its times, its writer has done with it, and it has not been written to in its place
	pending  time.Time // since when it has not been believed; zero: it is

	read   stamp     // what was read; zero: nothing yet
	readAt time.Time // when
}

// arrival is how a file has come to be as it is, by what the kernel says.
type arrival uint8

const (
	unheard arrival = iota
	came            // into its place
	written         // to, in its place
)

// branch is one folder.
type branch struct {
	id    fileID    // when it last held files
	empty time.Time // since when it holds none; zero: it does
}

const (
	// patience is how long one change may go on before something is done about it: a removal counts though other
	// files are moving, and a file that is written on and on is a problem.
	patience = 5 * time.Second

	// tick is how coarse a file system's times may be. A file that was written so shortly before it was read is read
	// once more, since a later write may have left the same stamp.
	tick = 2 * time.Second
)

func newTree(registry string, roots []string, o Options) *tree {
	return &tree{registry: registry, roots: roots, options: o, read: readFile, leaves: map[string]*leaf{}, open: map[string]bool{}, folders: map[string]*branch{}, listed: map[string]bool{}, heard: map[string]arrival{}}
}

// advance takes in a look and reads what it makes believable. It returns all files to go by, the problems of files and
// folders that are kept as they were, and when to look again to believe something; zero: there is nothing to believe. It
// goes through no more files than the look was at, and those that the one before has left open.
func (t *tree) advance(w *walk, now time.Time) (files fileMap, problems []mesh.Problem, again time.Time) {
	kept, problems, again := t.keep(w, now)
	t.see(w, kept, now)
	open := t.open
	t.open, t.unsettled = map[string]bool{}, nil
	unsettled := func(l *leaf, path string) {
		t.unsettled = append(t.unsettled, path)
		due := t.due(l, path)
		again = earliest(due, cmp.Or(again, due))
	}
	for path := range open {
		l := t.leaves[path]
		_, there := w.files[path]
		switch {
		case !there && kept.hold(path):
		case l.current(now):
			l.pending = time.Time{}
		case !t.believes(l, path, now):
			l.pending = cmp.Or(l.pending, now)
			unsettled(l, path)
			if there && now.Sub(l.pending) >= patience {
				problems = append(problems, t.problem(mesh.Notice, "file-unsettled", path, "is being written to all the time; until that ends it counts as it was"))
			}
		case !there:
			delete(t.leaves, path)
			t.files = t.files.Without(filePath(path))
			continue
		case !t.reads(l, path, now):
			unsettled(l, path)
		}
		if !there || !l.certain() {
			t.open[path] = true
		}
	}
	return t.files, problems, again
}

// remembered is the stamp of what the process before this one read.
var remembered = stamp{size: -2}

// remember makes the tree begin with the files that a state was made of. Whatever holds them now is another folder than
// then: if there is nothing in it, it may not have been mounted yet.
func (t *tree) remember(s *State) {
	t.files = s.files
	for key := range s.files.All() {
		path := string(key)
		if !folders(t.roots).hold(path) {
			t.files = t.files.Without(key)
			continue
		}
		t.leaves[path] = &leaf{read: remembered}
		for folder := filepath.Dir(path); folders(t.roots).hold(folder) && t.folders[folder] == nil; folder = filepath.Dir(folder) {
			t.folders[folder] = &branch{}
		}
	}
}

// see notes how the look found each file that it was at, and opens it. A file has stood since the look was over, as nobody
// knows when in the course of it that file was looked at.
func (t *tree) see(w *walk, kept folders, now time.Time) {
	if w.done.After(now) {
		now = w.done
	}
	first := t.moved.IsZero()
	if first {
		t.moved = now
	}
	if w.named != nil {
		maps.Copy(t.open, w.named)
	} else {
		for path := range w.files {
			t.open[path] = true
		}
		for path := range t.leaves {
			t.open[path] = true
		}
	}
	for path := range t.open {
		s, there := w.files[path]
		l := t.leaves[path]
		if l == nil {
			if !there {
				delete(t.open, path) // it is no file, or has come and gone
				continue
			}
			l = &leaf{}
			t.leaves[path] = l
		}
		if first && there { // what has long been as it is need not be looked at twice
			l.seen, l.since = s, earliest(s.latest(), now)
		}
		if l.replaced = false; s != l.seen && (there || !kept.hold(path)) {
			l.replaced = s != (stamp{}) && l.seen != (stamp{}) && s.id != l.seen.id
			l.finished = s.finished(w.linked[path]) && (l.finished || s.id != l.seen.id)
			l.seen, l.since, t.moved = s, now, now
		}
	}
	for path, how := range t.heard { // a link has come, but who knows what happens to that to which it leads
		if _, there := w.files[path]; !there || how == came && w.linked[path] != 0 {
			delete(t.heard, path)
		}
	}
}

// certain tells whether what was read is what is there, as long as no look finds otherwise.
func (l *leaf) certain() bool { return l.seen == l.read && l.readAt.Sub(l.seen.latest()) >= tick }

// current tells whether what was read is what is there, for now.
func (l *leaf) current(now time.Time) bool {
	return l.certain() || l.seen == l.read && now.Sub(l.readAt) < tick
}

// believes tells whether the file is what it seems. A file in whose place others come again and again is, since they
// were written elsewhere. A removal is when nothing else moves either, since what moves may be the same file coming back.
// A complete file is after a glance in which nothing else moves either, since what moves may be the rest of a change;
// but it does not wait longer than two for that, or it would wait for ever where changes follow one another.
func (t *tree) believes(l *leaf, path string, now time.Time) bool {
	settled := now.Sub(l.since) >= t.options.Settle
	pending := now.Sub(cmp.Or(l.pending, now))
	if l.seen == (stamp{}) {
		return settled && (now.Sub(t.moved) >= t.options.Settle || pending >= patience)
	}
	glanced := now.Sub(t.moved) >= t.options.Glance || now.Sub(l.since) >= 2*t.options.Glance
	return settled || t.complete(l, path) && glanced || l.replaced && pending >= t.options.MaxDelay
}

// complete tells whether a file has come into its place when its writer had done with it: the kernel reported that it
// came and not that it was written to, though there is something in it; or, if nothing was reported, its times say so.
// (Of a file that was renamed within a tick of the clock after the last write, which is 4 ms often, they say nothing.)
// The second look that there is in any case is for who moves a file, or sets its mode, and then goes on writing: if he
// does so by then, it is another file, and no longer a complete one. Who moves a file that he has half written, and then
// pauses for longer, is believed.
func (t *tree) complete(l *leaf, path string) bool {
	return l.seen.size > 0 && (t.heard[path] == came || t.heard[path] == unheard && l.finished)
}

// hear takes in an event. All that it can do is to make a file be believed sooner, or not sooner, than others.
func (t *tree) hear(e fsnotify.Event) {
	switch {
	case !isEntryName(e.Name):
	case e.Has(fsnotify.Create):
		t.heard[e.Name] = came
	case e.Has(fsnotify.Write):
		t.heard[e.Name] = written
	}
}

// deaf notes that not all that happened was reported.
func (t *tree) deaf() { clear(t.heard) }

// due is when a file that is not believed may be if nothing moves.
func (t *tree) due(l *leaf, path string) time.Time {
	switch {
	case l.seen == (stamp{}):
		return t.moved.Add(t.options.Settle)
	case t.complete(l, path):
		return earliest(l.since.Add(t.options.Settle), t.moved.Add(t.options.Glance), l.since.Add(2*t.options.Glance))
	default:
		return l.since.Add(t.options.Settle)
	}
}

// reads reads the file, and tells whether it stayed as it was meanwhile.
func (t *tree) reads(l *leaf, path string, now time.Time) bool {
	file, after := t.read(path, t.options.MaxFileBytes)
	if file.Err == nil && after != l.seen {
		l.seen, l.since, t.moved = after, now, now
		return false
	}
	if file.Err != nil {
		after = unreadable // so that it is tried again at the next look
	}
	if was, known := t.files.Get(filePath(path)); !known || !was.same(file) {
		t.files = t.files.With(filePath(path), &file)
	}
	l.read, l.readAt, l.pending = after, now, time.Time{}
	delete(t.heard, path)
	return true
}

// keep finds the folders whose absent files are not taken for removed: a folder that cannot be read, a root that is
// not there, and a folder that has come in another's place and holds nothing, as when a file system is unmounted. Of a
// root that has been emptied its files go, after a longer second look, though not if nobody has seen it being emptied.
func (t *tree) keep(w *walk, now time.Time) (kept folders, problems []mesh.Problem, again time.Time) {
	keep := func(path, code, message string) {
		kept = append(kept, path)
		p := t.problem(mesh.Error, code, path, message)
		if t.folders[path] != nil {
			p.Serving = "what it held"
		}
		problems = append(problems, p)
	}
	for path, f := range w.folders {
		b, root := t.folders[path], slices.Contains(t.roots, path)
		if root && f.err == nil {
			t.listed[path] = true
		}
		switch {
		case errors.Is(f.err, fs.ErrNotExist) && root:
			keep(path, "folder-missing", "is not there; create it, or name another folder")
		case errors.Is(f.err, fs.ErrNotExist): // it went while it was looked at
		case f.err != nil:
			keep(path, "folder-unreadable", "cannot be read: "+reason(f.err))
		case f.files > 0:
			t.folders[path] = &branch{id: f.id}
		case b == nil:
		case b.id == (fileID{}):
			keep(path, "folder-replaced", "is empty, and was not when meshd ran last, as when a file system is not mounted; mount it, or put a file into it, be it one with nothing but a comment")
		case b.id != f.id:
			keep(path, "folder-replaced", "is another folder than before, with nothing in it, as when a file system is not mounted; mount it, or put a file into it, be it one with nothing but a comment")
		case root && (b.empty.IsZero() || now.Sub(b.empty) < t.options.EmptySettle):
			b.empty = cmp.Or(b.empty, now)
			keep(path, "folder-empty", "has been emptied, which counts once another look finds it so")
			due := b.empty.Add(t.options.EmptySettle)
			again = earliest(due, cmp.Or(again, due))
		default:
			delete(t.folders, path)
		}
	}
	for path := range t.folders {
		if _, there := w.folders[path]; !there && !kept.hold(path) {
			delete(t.folders, path)
		}
	}
	return kept, problems, again
}

// unread tells whether there is a root of which nothing is known, not even from before a restart.
func (t *tree) unread() bool {
	return slices.ContainsFunc(t.roots, func(root string) bool { return !t.listed[root] && t.folders[root] == nil })
}

// folders are paths of folders.
type folders []string

// hold tells whether a path is that of one of the folders or of something in it.
func (f folders) hold(path string) bool {
	return slices.ContainsFunc(f, func(folder string) bool {
		way, err := filepath.Rel(folder, path)
		return err == nil && way != ".." && !strings.HasPrefix(way, "../")
	})
}

func (t *tree) problem(severity mesh.Severity, code, path, message string) mesh.Problem {
	return mesh.Problem{Severity: severity, Code: code, Origin: mesh.Origin{Registry: t.registry, Source: path}, Message: message}
}

// forget makes every file be read again at the next look.
func (t *tree) forget() {
	for _, l := range t.leaves {
		if l.read != (stamp{}) {
			l.read = unreadable
		}
	}
}
