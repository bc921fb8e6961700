package filereg

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
	"github.com/meshd/meshd/internal/strictyaml"
)

// File is one file as it was read. It is immutable.
type File struct {
	Path    string // the folder as the operator wrote it, joined with the way from there
	Data    []byte
	Written time.Time // when, as far as is known
	Err     error     // why it could not be read
}

// State is everything known from files: what each says now, what it said when it was last right, and the services that
// follow from it. It is immutable, and shares with the state before it all that is the same.
type State struct {
	registry    string
	files       fileMap                                // of which it was made
	sources     pmap.Map[filePath, *source]            // what each of them says
	named       index[identity, spot, *document]       // the documents that say which they are
	holdings    pmap.Map[identity, *holding]           // what stands for each identity
	past        pmap.Map[spot, *holding]               // what of that is an earlier version, by where it stands
	definitions index[mesh.Key, identity, *definition] // of what stands
	workloads   index[label, identity, *entry]         // those that stand, by each of their labels and by none
	selectors   index[label, identity, *entry]         // the services that select workloads, by one of the labels that these must have
	findings    pmap.Map[subject, *findings]
	catalog     mesh.Catalog
	since       map[symptom]time.Time // when problems were first there, as a registry that runs knows
}

// fileMap is files by path.
type fileMap = pmap.Map[filePath, *File]

// source is a file and what was made of it, by itself. It is immutable.
type source struct {
	file      *File
	documents []*document    // by number
	broken    []mesh.Problem // why nothing can be told of its documents
	blank     bool           // there is nothing in it
}

// subject is what problems are found of: a file or a service.
type subject struct {
	path    filePath
	service mesh.Key
}

// Compare orders files by path, and services by key.
func (s subject) Compare(o subject) int {
	return cmp.Or(s.path.Compare(o.path), s.service.Compare(o.service))
}

type findings struct{ problems []mesh.Problem }

// NewState is the state of a registry that has no files yet.
func NewState(registry string) *State { return &State{registry: registry} }

// Catalog is the services and problems.
func (s *State) Catalog() mesh.Catalog { return s.catalog }

// Entries is how many entries are served.
func (s *State) Entries() int { return s.holdings.Len() }

// Load makes the state of files out of the state before them. What has not changed is not read again, and a service
// that has not changed keeps its pointer.
//
// Each document stands for itself, by kind, namespace and name. A document that is wrong is a problem, and its last
// good version goes on being served, wherever it then stood; so is everything that a file gave last if the file cannot be
// read, is no YAML, or holds nothing at all (which is how a file looks whose writer has just begun: to withdraw what
// it gave, remove it, or leave a comment in it). What is gone from a file that is right is gone.
func Load(prev *State, files []File) *State {
	next, there := prev.files, make(map[filePath]bool, len(files))
	for _, f := range files {
		path := filePath(f.Path)
		there[path] = true
		if was, known := next.Get(path); !known || !was.same(f) {
			next = next.With(path, &f)
		}
	}
	for path := range prev.files.All() {
		if !there[path] {
			next = next.Without(path)
		}
	}
	return prev.load(next)
}

// load is [Load] of files that share with those before what is the same. Each step does anew what differs from the state before,
// so that the cost follows the change.
func (s *State) load(files fileMap) *State {
	if files == s.files {
		return s
	}
	next := *s
	next.files, next.since = files, nil
	next.read(s)
	next.hold(s)
	next.combine(s)
	next.review(s)
	next.conclude(s)
	return &next
}

// read parses the files that are not as they were, on all processors: at the start that is all of them.
func (s *State) read(prev *State) {
	changes := slices.Collect(pmap.Diff(prev.files, s.files))
	parsed := make([]*source, len(changes))
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(runtime.GOMAXPROCS(0), len(changes)) {
		workers.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(changes)); n = next.Add(1) - 1 {
				if f := changes[n].New; f != nil {
					parsed[n] = parse(s.registry, f)
				}
			}
		})
	}
	workers.Wait()
	for n, c := range changes {
		if parsed[n] == nil {
			s.sources = s.sources.Without(c.Key)
		} else {
			s.sources = s.sources.With(c.Key, parsed[n])
		}
	}
}

// find notes all problems of a file or service.
func (s *State) find(about subject, problems []mesh.Problem) {
	was, _ := s.findings.Get(about)
	switch {
	case len(problems) == 0:
		s.findings = s.findings.Without(about)
	case was == nil || !slices.Equal(was.problems, problems):
		s.findings = s.findings.With(about, &findings{problems})
	}
}

// conclude makes the catalog's problems of all that have been found.
func (s *State) conclude(prev *State) {
	if s.findings == prev.findings {
		return
	}
	var all []mesh.Problem
	for f := range s.findings.Values() {
		all = append(all, f.problems...)
	}
	slices.SortFunc(all, mesh.Problem.Compare)
	s.catalog.Problems = slices.Compact(all)
}

func byPath(a, b File) int { return strings.Compare(a.Path, b.Path) }

// same tells whether two readings of a file agree.
func (f File) same(g File) bool {
	return f.Path == g.Path && bytes.Equal(f.Data, g.Data) && errorText(f.Err) == errorText(g.Err)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// reason is an error's own text, without what was done to which file, and with a remedy where there is one.
func reason(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	if errors.Is(err, fs.ErrPermission) {
		return err.Error() + "; let the user as which meshd runs read it"
	}
	return err.Error()
}

// parse reads one file by itself.
func parse(registry string, f *File) *source {
	s := &source{file: f}
	broken := func(e strictyaml.Error) {
		s.broken = append(s.broken, mesh.Problem{
			Severity: mesh.Error, Code: e.Code, Field: e.Path, Message: e.Message,
			Origin: mesh.Origin{Registry: registry, Source: f.Path, Line: e.Line, Column: e.Column},
		})
	}
	if f.Err != nil {
		broken(strictyaml.Error{Code: "file-unreadable", Message: "cannot be read: " + reason(f.Err)})
		return s
	}
	if s.blank = len(bytes.TrimSpace(f.Data)) == 0; s.blank {
		return s
	}
	documents, mistakes := excerpt{file: *f}.documents(registry)
	for _, e := range mistakes {
		broken(e)
	}
	s.documents = documents
	return s
}
