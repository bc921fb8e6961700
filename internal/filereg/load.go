package filereg

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshd/meshd/internal/mesh"
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
// follow from it. It is immutable.
type State struct {
	registry string
	sources  []*source // by path
	holdings map[identity]holding
	services map[mesh.Key]*merged
	catalog  mesh.Catalog
	since    map[symptom]time.Time // when problems were first there, as a registry that runs knows
}

// source is a file and what was made of it, by itself.
type source struct {
	file      File
	documents []*document
	broken    []mesh.Problem // why nothing can be told of its documents
	blank     bool           // there is nothing in it
}

// holding is the entry that stands for an identity: the document itself, or its last good version if it is bad now.
type holding struct {
	entry    *entry
	path     string
	document int
}

// NewState is the state of a registry that has no files yet.
func NewState(registry string) *State { return &State{registry: registry} }

// Catalog is the services and problems.
func (s *State) Catalog() mesh.Catalog { return s.catalog }

// Entries is how many entries are served.
func (s *State) Entries() int { return len(s.holdings) }

// Load makes the state of files out of the state before them. What has not changed is not read again, and a service
// that has not changed keeps its pointer.
//
// Each document stands for itself, by kind, namespace and name. A document that is wrong is a problem, and its last
// good version goes on being served, wherever it then stood; so is everything that a file gave last if the file cannot be
// read, is no YAML, or holds nothing at all (which is how a file looks whose writer has just begun: to withdraw what
// it gave, remove it, or leave a comment in it). What is gone from a file that is right is gone.
func Load(prev *State, files []File) *State {
	next := &State{registry: prev.registry}
	if next.sources = sources(prev, files); slices.Equal(next.sources, prev.sources) {
		return prev
	}
	problems := next.hold(prev)
	problems = append(problems, next.combine(prev)...)
	slices.SortFunc(problems, mesh.Problem.Compare)
	problems = slices.Compact(problems)

	next.catalog.Services = prev.catalog.Services
	for key, m := range next.services {
		if was := prev.services[key]; was == nil || was.service != m.service {
			next.catalog.Services = next.catalog.Services.With(key, m.service)
		}
	}
	for key := range prev.services {
		if next.services[key] == nil {
			next.catalog.Services = next.catalog.Services.Without(key)
		}
	}
	next.catalog.Problems = problems
	if slices.Equal(problems, prev.catalog.Problems) {
		next.catalog.Problems = prev.catalog.Problems
	}
	return next
}

// sources parses the files that are not as they were, on all processors: at the start that is all of them.
func sources(prev *State, files []File) []*source {
	if !slices.IsSortedFunc(files, byPath) {
		files = slices.SortedFunc(slices.Values(files), byPath)
	}
	all := make([]*source, len(files))
	var anew []int
	before := prev.sources
	for i, f := range files {
		for len(before) > 0 && before[0].file.Path < f.Path {
			before = before[1:]
		}
		if len(before) > 0 && before[0].file.same(f) {
			all[i] = before[0]
		} else {
			anew = append(anew, i)
		}
	}
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(runtime.GOMAXPROCS(0), len(anew)) {
		workers.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(anew)); n = next.Add(1) - 1 {
				all[anew[n]] = parse(prev.registry, files[anew[n]])
			}
		})
	}
	workers.Wait()
	return all
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
func parse(registry string, f File) *source {
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
	documents, mistakes := excerpt{file: f}.documents(registry)
	for _, e := range mistakes {
		broken(e)
	}
	s.documents = documents
	return s
}

// hold finds the entry that stands for each identity.
func (s *State) hold(prev *State) (problems []mesh.Problem) {
	s.holdings = make(map[identity]holding, len(prev.holdings))
	claim := func(h holding) bool {
		_, taken := s.holdings[h.entry.identity]
		if !taken {
			s.holdings[h.entry.identity] = h
		}
		return !taken
	}
	held := sync.OnceValue(prev.byFile)
	// In order of path and document: what is right, and what stood at the same place before it was wrong.
	var homeless []*document
	for _, src := range s.sources {
		path := src.file.Path
		if src.broken != nil || src.blank {
			var kept []string
			for _, h := range held()[path] {
				if claim(h) {
					kept = append(kept, h.entry.identity.String())
				}
			}
			problems = append(problems, src.report(s.registry, kept)...)
			continue
		}
		for _, d := range src.documents {
			before, known := prev.holdings[d.identity]
			switch {
			case d.entry != nil:
				if claim(holding{d.entry, path, d.origin.Document}) {
					problems = append(problems, d.problems...)
				} else {
					problems = append(problems, duplicate(d, s.holdings[d.identity]))
				}
			case known && before.path == path && claim(holding{before.entry.alone(), path, d.origin.Document}):
				problems = append(problems, d.serving(before.entry)...)
			default:
				homeless = append(homeless, d)
			}
		}
	}
	// Then what has moved and become wrong at once, or no longer says which it is, unless it is right elsewhere.
	for _, d := range homeless {
		path, number := d.origin.Source, d.origin.Document
		before, known := prev.holdings[d.identity]
		if d.refused && d.identity == (identity{}) {
			for _, h := range held()[path] {
				if h.document == number {
					before, known = h, true
				}
			}
		}
		if known && claim(holding{before.entry.alone(), path, number}) {
			problems = append(problems, d.serving(before.entry)...)
		} else {
			problems = append(problems, d.problems...)
		}
	}
	return problems
}

// byFile returns what stands for the documents of each file, in their order.
func (s *State) byFile() map[string][]holding {
	all := map[string][]holding{}
	for _, h := range s.holdings {
		all[h.path] = append(all[h.path], h)
	}
	for _, of := range all {
		slices.SortFunc(of, func(a, b holding) int { return cmp.Compare(a.document, b.document) })
	}
	return all
}

// serving are the problems of a document in whose place its last good version is served.
func (d *document) serving(instead *entry) []mesh.Problem {
	problems := slices.Clone(d.problems)
	for i := range problems {
		problems[i].Serving = instead.version()
	}
	return problems
}

// version says which version of a document an entry is.
func (e *entry) version() string {
	if e.in.file.Written.IsZero() {
		return "its last good version"
	}
	return "its version of " + e.in.file.Written.Format(time.DateTime)
}

// report are the problems of a file of which nothing can be told, with the entries that it is still served for.
func (s *source) report(registry string, kept []string) []mesh.Problem {
	if s.blank {
		if len(kept) == 0 {
			return nil
		}
		return []mesh.Problem{{
			Severity: mesh.Warning, Code: "file-empty", Origin: mesh.Origin{Registry: registry, Source: s.file.Path},
			Message: "is empty, as a file is that is being written; remove it, or leave a comment in it, to withdraw its entries", Serving: enumerate(kept),
		}}
	}
	problems := slices.Clone(s.broken)
	for i := range problems {
		problems[i].Serving = enumerate(kept)
	}
	return problems
}

// enumerate names what a broken file gave last.
func enumerate(kept []string) string {
	const most = 3
	if len(kept) == 0 {
		return ""
	}
	text := "what it gave last: " + strings.Join(kept[:min(most, len(kept))], ", ")
	if more := len(kept) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func duplicate(d *document, first holding) mesh.Problem {
	var services []string
	for _, of := range d.entry.definitions {
		services = append(services, of.service.Key.String())
	}
	return mesh.Problem{
		Severity: mesh.Error, Code: "duplicate-entry", Origin: d.origin, Field: "metadata.name", Services: strings.Join(services, " "),
		Message: fmt.Sprintf("%s is there already, at %s:%d, which is the one that is served; rename or remove one of them", d.identity, first.path, first.entry.origin.Line),
	}
}

// combine makes the services of the entries that stand, each anew only if what it is made of has changed.
func (s *State) combine(prev *State) (problems []mesh.Problem) {
	var services, workloads []*entry
	for _, h := range s.holdings {
		if h.entry.workload != nil {
			workloads = append(workloads, h.entry)
		} else {
			services = append(services, h.entry)
		}
	}
	roster := newRoster(workloads)
	inputs := make(map[mesh.Key][]input, len(services))
	for _, e := range services {
		for _, d := range e.definitions {
			in := input{definition: d}
			if d.selects {
				in.selected = roster.selected(e.identity.namespace, d.selector)
			}
			inputs[d.service.Key] = append(inputs[d.service.Key], in)
		}
	}
	s.services = make(map[mesh.Key]*merged, len(inputs))
	for key, in := range inputs {
		was := prev.services[key]
		if slices.SortFunc(in, byAge); was == nil || !slices.EqualFunc(was.inputs, in, input.equal) {
			is := merge(in)
			if was != nil && was.service.Identical(is.service) {
				is.service = was.service
			}
			s.services[key] = is
		} else {
			s.services[key] = was
		}
		problems = append(problems, s.services[key].problems...)
	}
	return problems
}
