package filereg

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

// holding is the entry that stands for an identity: the document itself, or its last good version if it is bad now. It is
// immutable.
type holding struct {
	entry *entry
	at    spot // of the document
	past  bool // it is not what stands there now
}

// hold finds what stands for each identity that a changed file may concern.
func (s *State) hold(prev *State) {
	concerned := map[identity]bool{}
	for c := range pmap.Diff(prev.sources, s.sources) {
		for d := range c.Old.named() {
			s.named = s.named.without(d.identity, d.spot())
			concerned[d.identity] = true
		}
		for d := range c.New.named() {
			s.named = s.named.with(d.identity, d.spot(), d)
			concerned[d.identity] = true
		}
		for h := range prev.pastOf(c.Key) {
			concerned[h.entry.identity] = true
		}
	}
	for id := range concerned {
		before, _ := prev.holdings.Get(id)
		switch is := s.stands(id, before); {
		case is == nil:
			s.holdings = s.holdings.Without(id)
		case before == nil || *before != *is:
			s.holdings = s.holdings.With(id, is)
		}
	}
}

// stands finds what stands for an identity: in order of path and document, what is right, and what stood in the same file
// before it was wrong; if there is neither, what has moved and become wrong at once, or no longer says which it is. Where
// nothing has changed since it was found it is found again, so that it need not be looked for.
func (s *State) stands(id identity, before *holding) *holding {
	documents := s.named.of(id)
	if before == nil {
		for at, d := range documents.All() {
			if d.entry != nil {
				return &holding{d.entry, at, false}
			}
		}
		return nil
	}
	there, mute := s.document(before.at), s.mute(before.at.path)
	for at, d := range documents.All() {
		switch {
		case mute && before.at.path < at.path:
			return &holding{before.entry, before.at, true}
		case d.entry != nil:
			return &holding{d.entry, at, false}
		case before.at.path == at.path && (there == nil || there.entry != before.entry):
			return &holding{before.entry.alone(), at, true}
		}
	}
	if mute {
		return &holding{before.entry, before.at, true}
	}
	var homeless []spot
	if there != nil && there.refused && there.identity == (identity{}) {
		homeless = append(homeless, before.at)
	}
	for at := range documents.All() {
		homeless = append(homeless, at)
	}
	if len(homeless) == 0 {
		return nil
	}
	return &holding{before.entry.alone(), slices.MinFunc(homeless, spot.Compare), true}
}

// mute tells whether a file is there and says nothing, so that all that it gave last goes on being served.
func (s *State) mute(path filePath) bool {
	src, _ := s.sources.Get(path)
	return src != nil && (src.broken != nil || src.blank)
}

// document is the one at a spot, or nil.
func (s *State) document(at spot) *document {
	src, _ := s.sources.Get(at.path)
	if src == nil {
		return nil
	}
	i, there := slices.BinarySearchFunc(src.documents, at, func(d *document, at spot) int { return d.spot().Compare(at) })
	if !there {
		return nil
	}
	return src.documents[i]
}

// named yields the documents that say which they are.
func (s *source) named() iter.Seq[*document] {
	return func(yield func(*document) bool) {
		if s == nil {
			return
		}
		for _, d := range s.documents {
			if d.identity != (identity{}) && !yield(d) {
				return
			}
		}
	}
}

// pastOf yields what stands in an earlier version for the documents of a file, in their order.
func (s *State) pastOf(path filePath) iter.Seq[*holding] {
	return func(yield func(*holding) bool) {
		for at, h := range s.past.From(spot{path: path}) {
			if at.path != path || !yield(h) {
				return
			}
		}
	}
}

// review finds the problems of each file that has changed, or of whose documents something else stands than before.
func (s *State) review(prev *State) {
	concerned := map[filePath]bool{}
	for c := range pmap.Diff(prev.sources, s.sources) {
		concerned[c.Key] = true
	}
	for c := range pmap.Diff(prev.holdings, s.holdings) {
		for _, h := range []*holding{c.Old, c.New} {
			if h != nil {
				concerned[h.at.path] = true
			}
		}
		for at := range s.named.of(c.Key).All() {
			concerned[at.path] = true
		}
	}
	for path := range concerned {
		s.find(subject{path: path}, s.problemsIn(path))
	}
}

// problemsIn are those of one file.
func (s *State) problemsIn(path filePath) (problems []mesh.Problem) {
	src, _ := s.sources.Get(path)
	if src == nil {
		return nil
	}
	if s.mute(path) {
		return src.report(s.registry, slices.Collect(s.pastOf(path)))
	}
	for _, d := range src.documents {
		stands, _ := s.holdings.Get(d.identity)
		before, _ := s.past.Get(d.spot())
		switch {
		case d.entry != nil && d.entry != stands.entry:
			problems = append(problems, duplicate(d, stands))
		case d.entry == nil && before != nil:
			problems = append(problems, d.serving(before.entry)...)
		default:
			problems = append(problems, d.problems...)
		}
	}
	return problems
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
func (s *source) report(registry string, kept []*holding) []mesh.Problem {
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
func enumerate(kept []*holding) string {
	const most = 3
	if len(kept) == 0 {
		return ""
	}
	var names []string
	for _, h := range kept[:min(most, len(kept))] {
		names = append(names, h.entry.identity.String())
	}
	text := "what it gave last: " + strings.Join(names, ", ")
	if more := len(kept) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func duplicate(d *document, first *holding) mesh.Problem {
	var services []string
	for _, of := range d.entry.definitions {
		services = append(services, of.service.Key.String())
	}
	return mesh.Problem{
		Severity: mesh.Error, Code: "duplicate-entry", Origin: d.origin, Field: "metadata.name", Services: strings.Join(services, " "),
		Message: fmt.Sprintf("%s is there already, at %s:%d, which is the one that is served; rename or remove one of them", d.identity, first.at.path, first.entry.origin.Line),
	}
}
