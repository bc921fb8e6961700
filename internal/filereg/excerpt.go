package filereg

import (
	"bytes"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/strictyaml"
)

// excerpt is a file, or a part of it, from the beginning of a line on. It is immutable.
type excerpt struct {
	file  File // with the data of the part
	lines int  // how many stand before it
	first int  // which number its first document has in the file
}

// documents reads what stands in the excerpt. Places and numbers are those in the file.
func (x excerpt) documents(registry string) (documents []*document, mistakes []strictyaml.Error) {
	data := x.file.Data
	if x.lines > 0 {
		data = slices.Concat(bytes.Repeat([]byte("\n"), x.lines), data)
	}
	parsed, mistakes := strictyaml.Parse(data, strictyaml.Limits{Bytes: len(data)}) // the size is for the reader to limit
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	parts, more := x.parts(), 0
	for _, doc := range parsed {
		number := x.first + doc.Index() + more
		for len(parts) > 1 && parts[1].lines < doc.Position().Line {
			parts = parts[1:]
			parts[0].first = number
		}
		if kind, _ := doc.String("kind"); kind != kindList {
			documents = append(documents, read(registry, parts[0], doc, number))
			continue
		}
		items, mistakes := itemsOf(doc)
		if len(mistakes) > 0 {
			return nil, mistakes
		}
		for i, item := range items {
			d := read(registry, parts[0], item, number+i)
			if d.entry != nil {
				d.entry.single = true
			}
			documents = append(documents, d)
		}
		more += max(0, len(items)-1)
	}
	return documents, nil
}

// itemsOf are the documents in a list of Kubernetes', as kubectl writes it. A mistake outside of its items makes them
// uncertain.
func itemsOf(list *strictyaml.Document) (items []*strictyaml.Document, mistakes []strictyaml.Error) {
	var fields struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   any    `yaml:"metadata"`
		Items      []any  `yaml:"items"`
	}
	mistakes = slices.DeleteFunc(list.Decode(&fields, strictyaml.Options{}), func(e strictyaml.Error) bool {
		return strings.HasPrefix(e.Path, "items[")
	})
	missing := func(path, code, message string) {
		mistakes = append(mistakes, strictyaml.Error{Position: list.At(path), Path: path, Code: code, Message: message})
	}
	items = list.Items("items")
	switch {
	case len(mistakes) > 0:
	case items == nil && list.Has("items"): // it cannot be gone through, for a mistake in one of its items
		mistakes = list.Decode(&fields, strictyaml.Options{})
	case items == nil:
		missing("items", "missing-field", "is missing; write the list's documents under it, or [] if there are none")
	case fields.APIVersion != listVersion:
		missing("apiVersion", "unknown-version", "must be "+listVersion+" for a List")
	}
	return items, mistakes
}

// parts splits the excerpt where one YAML document ends and another begins, so that each document can be read without
// the others. It is left whole if lines may end in other ways than they do on Unix and Windows, or if there are directives.
func (x excerpt) parts() []excerpt {
	data := x.file.Data
	part := func(from, to, line int) excerpt {
		p := x
		p.file.Data, p.lines = data[from:to:to], x.lines+line
		return p
	}
	var parts []excerpt
	from, at := 0, 0     // where the part begins, and its line
	offset, line := 0, 0 // where we are
	for text := range bytes.Lines(data) {
		switch {
		case oddBreak(text), text[0] == '%':
			return []excerpt{x}
		case mark(text, "---") && offset > from:
			parts = append(parts, part(from, offset, at))
			from, at = offset, line
		}
		offset += len(text)
		line++
		if mark(text, "...") {
			parts = append(parts, part(from, offset, at))
			from, at = offset, line
		}
	}
	return append(parts, part(from, len(data), at))
}

// mark tells whether a line begins with a mark between documents.
func mark(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// oddBreak tells whether YAML sees more than one line in a line.
func oddBreak(line []byte) bool {
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	return bytes.IndexByte(line, '\r') >= 0 || bytes.Contains(line, []byte("\u0085")) ||
		bytes.Contains(line, []byte("\u2028")) || bytes.Contains(line, []byte("\u2029"))
}

// alone is the entry without what stood around it in its file, so that a version of long ago does not keep all of that.
// What stands in a list keeps the list, which it shares with the others that do.
func (e *entry) alone() *entry {
	if e.single {
		return e
	}
	single := *e
	single.in.file.Data, single.single = bytes.Clone(e.in.file.Data), true
	return &single
}
