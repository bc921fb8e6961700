package filereg

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// stamp is what the file system tells of a file without reading it: as long as it is the same, so is the content. The
// zero stamp is that of a file that is not there.
type stamp struct {
	id       fileID
	size     int64
	modified int64 // nanoseconds since 1970
	changed  int64 // the same, for whatever happened to it, a rename too
}

// fileID is a file or folder, however it is reached.
type fileID struct{ device, inode uint64 }

func stampOf(info fs.FileInfo) stamp {
	s := info.Sys().(*syscall.Stat_t)
	return stamp{fileID{uint64(s.Dev), s.Ino}, s.Size, s.Mtim.Nano(), s.Ctim.Nano()}
}

// hasOtherNames tells whether a file may be written to by other names than the one by which it was found.
func hasOtherNames(info fs.FileInfo) bool { return info.Sys().(*syscall.Stat_t).Nlink > 1 }

// unreadable is the stamp of a file that is there but does not even tell its stamp; reading it tells why.
var unreadable = stamp{size: -1}

// latest is when something happened to the file last.
func (s stamp) latest() time.Time { return time.Unix(0, max(s.modified, s.changed)) }

// finished tells whether something else has happened to the file after it was last written to, as it does to one that
// is moved into place, or that is given its times and its owner at the end; or whether a link has been made to it after
// that, at the time given. A write sets both times of a file to the same moment. An empty file is yet to be written.
func (s stamp) finished(linked int64) bool {
	return s.size > 0 && max(s.changed, linked) > s.modified
}

// walk is what one look at the folders has found.
type walk struct {
	files   map[string]stamp
	linked  map[string]int64 // when the last link on the way to a file was made, if there is one, as in a stamp
	folders map[string]folder
	places  []place // what to watch
	seen    map[fileID]bool
	vague   bool            // something may move of which the kernel reports another name, or nothing
	named   map[string]bool // what the last look was at; nil: everything
	done    time.Time       // by then all of it had been looked at; zero: when the walk began
}

// folder is what a walk has found of one folder.
type folder struct {
	id    fileID
	files int // in it and below it
	err   error
}

// look walks the folders. It follows links, and looks at a folder once, by whatever way it is reached first.
func look(roots []string) *walk {
	w := newWalk()
	for _, root := range roots {
		places, linked := way(root)
		w.places, w.vague = append(w.places, places...), w.vague || linked != 0
		w.folder(root, linked)
	}
	return w
}

func newWalk() *walk {
	return &walk{files: map[string]stamp{}, linked: map[string]int64{}, folders: map[string]folder{}, seen: map[fileID]bool{}}
}

// folder looks at one folder and all below it, and returns how many files there are. The last link on the way to it was
// made at the time given.
func (w *walk) folder(path string, linked int64) (files int) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		w.folders[path], w.vague = folder{err: err}, true
		return 0
	}
	id := stampOf(info).id
	if w.seen[id] {
		return 0
	}
	w.seen[id] = true
	w.places = append(w.places, place{folder: path, id: id})
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		files += w.entry(filepath.Join(path, e.Name()), e, linked)
	}
	w.folders[path], w.vague = folder{id, files, err}, w.vague || err != nil
	return files
}

// entry looks at what a folder holds: files by the names that entries have, and folders. Names that begin with a dot
// are those of editors, of rsync, and of the inner workings of a mounted ConfigMap.
func (w *walk) entry(path string, e fs.DirEntry, linked int64) (files int) {
	link := e.Type()&fs.ModeSymlink != 0
	if isHidden(path) || !e.IsDir() && !link && !isEntryName(path) {
		return 0
	}
	w.vague = w.vague || link
	info, err := os.Stat(path)
	isFolder := err == nil && info.IsDir()
	if link && (isFolder || isEntryName(path)) {
		var places []place
		places, linked = way(path)
		w.places = append(w.places, places...)
	}
	switch {
	case isFolder:
		return w.folder(path, linked)
	case !isEntryName(path), errors.Is(err, fs.ErrNotExist), err == nil && !info.Mode().IsRegular():
		return 0
	case err != nil:
		w.files[path], w.vague = unreadable, true
	default:
		w.files[path], w.vague = stampOf(info), w.vague || hasOtherNames(info)
		if linked != 0 {
			w.linked[path] = linked
		}
	}
	return 1
}

func isEntryName(path string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path))
}

func isHidden(path string) bool { return strings.HasPrefix(filepath.Base(path), ".") }

// place is a folder, and the name in it that matters; empty: all of them.
type place struct {
	folder string
	id     fileID
	name   string
}

// maxLinks is how many links the kernel follows on the way to a file.
const maxLinks = 40

// way returns the places on the way to a path where a change would make it lead elsewhere: each link, and the end. If
// the end is not there, the place where the way breaks off. It tells too when the last of the links was made.
func way(path string) (places []place, linked int64) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, 0
	}
	at := func(folder, name string) {
		if info, err := os.Stat(folder); err == nil {
			places = append(places, place{folder, stampOf(info).id, name})
		}
	}
	here, rest := "/", steps(path)
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		name := rest[0]
		rest = rest[1:]
		next := filepath.Join(here, name) // knows . and ..
		info, err := os.Lstat(next)
		link := err == nil && info.Mode()&fs.ModeSymlink != 0
		if err != nil || link || len(rest) == 0 {
			at(here, name)
		}
		if err != nil {
			break
		}
		if !link {
			here = next
			continue
		}
		links++
		linked = max(linked, stampOf(info).changed)
		target, err := os.Readlink(next)
		if err != nil {
			break
		}
		if filepath.IsAbs(target) {
			here = "/"
		}
		rest = append(steps(target), rest...)
	}
	return places, linked
}

// steps are the names that a path is made of.
func steps(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// readFile reads a file, and returns its stamp after that.
func readFile(path string, maxBytes int64) (file File, after stamp) {
	file.Path = path
	// A pipe that has taken the file's place must not block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		file.Err = err
		return file, unreadable
	}
	defer func() { _ = f.Close() }() // it was only read
	file.Data, file.Err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	if int64(len(file.Data)) > maxBytes {
		file.Data, file.Err = nil, fmt.Errorf("it has more than %d bytes; split it", maxBytes)
	}
	info, err := f.Stat()
	if err != nil {
		file.Err = err
		return file, unreadable
	}
	file.Written = info.ModTime()
	return file, stampOf(info)
}

// ReadPaths reads files by name, whatever their name, and the files of folders as a [Registry] does, for commands that
// work without one. What does not exist is an error.
func ReadPaths(paths ...string) ([]File, error) {
	w := newWalk()
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			w.folder(path, 0)
		} else {
			w.files[path] = stampOf(info)
		}
	}
	for path, f := range w.folders {
		if f.err != nil {
			return nil, fmt.Errorf("read folder %s: %w", path, f.err)
		}
	}
	var files []File
	for path := range w.files {
		file, _ := readFile(path, defaultMaxFileBytes)
		files = append(files, file)
	}
	slices.SortFunc(files, byPath)
	return files, nil
}
