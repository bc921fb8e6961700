package filereg

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/mesh"
)

// tree is what is believed to be in the folders. Nothing is believed at first sight: a file counts as written, or as
// removed, once a second look has found it as the first did. One goroutine owns a tree.
type tree struct {
	registry string
	roots    []string
	options  Options
	read     func(path string, maxBytes int64) (file File, after stamp)
	files    map[string]*leaf
	folders  map[string]*branch // those that have held files
	moved    time.Time          // when a look found something new last
}

// leaf is one file.
type leaf struct {
	seen     stamp     // at the last look; zero: not there
	since    time.Time // when it was first seen so
	replaced bool      // the last look found another file in its place
	pending  time.Time // since when it has not been believed; zero: it is

	file   File      // as it was read
	read   stamp     // what was read; zero: nothing yet
	readAt time.Time // when
}

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
	return &tree{registry: registry, roots: roots, options: o, read: readFile, files: map[string]*leaf{}, folders: map[string]*branch{}}
}

// advance takes in a look and reads what it makes believable. It returns all files to go by, in order of path, the
// problems of files and folders that are kept as they were, and whether another look is needed to believe something.
func (t *tree) advance(w *walk, now time.Time) (files []File, problems []mesh.Problem, unsettled bool) {
	kept, problems, unsettled := t.keep(w, now)
	t.see(w, kept, now)
	for path, l := range t.files {
		_, there := w.files[path]
		switch {
		case !there && kept.hold(path):
		case l.current(now):
			l.pending = time.Time{}
		case !t.believes(l, now):
			l.pending = cmp.Or(l.pending, now)
			unsettled = true
			if there && now.Sub(l.pending) >= patience {
				problems = append(problems, t.problem(mesh.Notice, "file-unsettled", path, "is being written to all the time; until that ends it counts as it was"))
			}
		case !there:
			delete(t.files, path)
			continue
		case !t.reads(l, path, now):
			unsettled = true
		}
		if l.read != (stamp{}) {
			files = append(files, l.file)
		}
	}
	slices.SortFunc(files, byPath)
	return files, problems, unsettled
}

// see notes how the look found each file that it could find.
func (t *tree) see(w *walk, kept folders, now time.Time) {
	first := t.moved.IsZero()
	if first {
		t.moved = now
	}
	for path, s := range w.files {
		if t.files[path] == nil {
			l := &leaf{}
			if first { // what has long been as it is need not be looked at twice
				l.seen, l.since = s, earliest(s.latest(), now)
			}
			t.files[path] = l
		}
	}
	for path, l := range t.files {
		s, there := w.files[path]
		if l.replaced = false; s != l.seen && (there || !kept.hold(path)) {
			l.replaced = s != (stamp{}) && l.seen != (stamp{}) && s.id != l.seen.id
			l.seen, l.since, t.moved = s, now, now
		}
	}
}

// current tells whether what was read is what is there.
func (l *leaf) current(now time.Time) bool {
	recheck := l.readAt.Sub(l.seen.latest()) < tick && now.Sub(l.readAt) >= tick
	return l.seen == l.read && !recheck
}

// believes tells whether the file is what it seems. A file in whose place others come again and again is, since they
// were written elsewhere. A removal is when nothing else moves either, since what moves may be the same file coming back.
func (t *tree) believes(l *leaf, now time.Time) bool {
	settled := now.Sub(l.since) >= t.options.Settle
	pending := now.Sub(cmp.Or(l.pending, now))
	if l.seen == (stamp{}) {
		return settled && (now.Sub(t.moved) >= t.options.Settle || pending >= patience)
	}
	return settled || l.replaced && pending >= t.options.MaxDelay
}

// reads reads the file, and tells whether it stayed as it was meanwhile.
func (t *tree) reads(l *leaf, path string, now time.Time) bool {
	file, after := t.read(path, t.options.MaxFileBytes)
	if file.Err == nil && after != l.seen {
		l.seen, l.since = after, now
		return false
	}
	if file.Err != nil {
		after = unreadable // so that it is tried again at the next look
	}
	if l.read == (stamp{}) || !bytes.Equal(l.file.Data, file.Data) || file.Err != nil || l.file.Err != nil {
		l.file = file
	}
	l.read, l.readAt, l.pending = after, now, time.Time{}
	return true
}

// keep finds the folders whose absent files are not taken for removed: a folder that cannot be read, a root that is
// not there, and a folder that has come in another's place and holds nothing, as when a file system is unmounted. Of a
// root that has been emptied its files go, after a longer second look.
func (t *tree) keep(w *walk, now time.Time) (kept folders, problems []mesh.Problem, unsettled bool) {
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
		switch {
		case errors.Is(f.err, fs.ErrNotExist) && root:
			keep(path, "folder-missing", "is not there; create it, or name another folder")
		case errors.Is(f.err, fs.ErrNotExist): // it went while it was looked at
		case f.err != nil:
			keep(path, "folder-unreadable", "cannot be read: "+reason(f.err))
		case f.files > 0:
			t.folders[path] = &branch{id: f.id}
		case b == nil:
		case b.id != f.id:
			keep(path, "folder-replaced", "is another folder than before, with nothing in it, as when a file system is not mounted; mount it, or put a file into it, be it one with nothing but a comment")
		case root && (b.empty.IsZero() || now.Sub(b.empty) < t.options.EmptySettle):
			b.empty = cmp.Or(b.empty, now)
			keep(path, "folder-empty", "has been emptied, which counts once another look finds it so")
			unsettled = true
		default:
			delete(t.folders, path)
		}
	}
	for path := range t.folders {
		if _, there := w.folders[path]; !there && !kept.hold(path) {
			delete(t.folders, path)
		}
	}
	return kept, problems, unsettled
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
	for _, l := range t.files {
		if l.read != (stamp{}) {
			l.read = unreadable
		}
	}
}
