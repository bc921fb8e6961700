package strictyaml

import (
	"iter"
	"strings"

	"gopkg.in/yaml.v3"
)

// Document is one YAML document of a file.
type Document struct {
	index  int
	root   *yaml.Node
	limits Limits
	faults []Error // mistakes that do not depend on what the document is decoded into
	broken bool    // one of them forbids to walk through the document
}

// Index returns the document's number in its file. It counts from 0, and empty
// documents count.
func (d *Document) Index() int { return d.index }

// Position returns where the document's content begins.
func (d *Document) Position() Position { return position(d.root) }

// At returns where the value at path stands. If there is none, it is the place of
// the nearest parent that exists. A key that is not of letters, digits, _ and -
// is written as in metadata.labels["app.kubernetes.io/name"].
func (d *Document) At(path string) Position {
	n, _ := d.find(path)
	return position(n)
}

// Has tells whether there is a value at path. A null is none.
func (d *Document) Has(path string) bool {
	n, ok := d.find(path)
	return ok && !null(n)
}

// String returns the text, number or truth value at path as it is written. It
// serves to tell what a document is that cannot be decoded.
func (d *Document) String(path string) (string, bool) {
	n, ok := d.find(path)
	if !ok || n.Kind != yaml.ScalarNode || null(n) {
		return "", false
	}
	return n.Value, true
}

// Items returns the items of the list at path, each as a document of its own: its
// paths begin at the item, its mistakes are those inside of it, its places are
// those in the file, and its index is that of d. There are none if there is no
// list at path, or if d has a mistake that forbids to go through it, such as
// [CodeTooLarge]; then Decode tells that of d.
func (d *Document) Items(path string) []*Document {
	n, ok := d.find(path)
	if !ok || n.Kind != yaml.SequenceNode || d.broken {
		return nil
	}
	items := make([]*Document, len(n.Content))
	for i, item := range n.Content {
		items[i] = inspect(d.index, item, d.limits)
	}
	return items
}

// find returns the value at path, or its nearest parent and false.
func (d *Document) find(path string) (n *yaml.Node, ok bool) {
	n = d.root
	for path != "" {
		s, rest, ok := nextStep(path)
		if !ok {
			return n, false
		}
		child := d.child(n, s)
		if child == nil {
			return n, false
		}
		n, path = child, rest
	}
	return n, true
}

func (d *Document) child(n *yaml.Node, s step) *yaml.Node {
	if s.index >= 0 {
		if n.Kind != yaml.SequenceNode || s.index >= len(n.Content) {
			return nil
		}
		return target(n.Content[s.index])
	}
	if n.Kind != yaml.MappingNode {
		return nil
	}
	visible := pairs(n)
	if d.broken {
		visible = written(n)
	}
	var snake *yaml.Node
	for p := range visible {
		if p.key.Value == s.key {
			return p.value
		}
		if snake == nil && camel(p.key.Value) == s.key {
			snake = p.value
		}
	}
	return snake
}

// camel returns the JSON name of a field with a protobuf name: exportTo for
// export_to.
func camel(name string) string {
	if !strings.Contains(name, "_") {
		return name
	}
	words := strings.Split(name, "_")
	for i, w := range words[1:] {
		if w != "" {
			words[i+1] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	return strings.Join(words, "")
}

// pair is a key and its value in a mapping.
type pair struct {
	key, value *yaml.Node
	merged     bool // it came by a merge key
}

// pairs goes through the mapping n: first what is written in it, then what its
// merge keys bring. The first pair of a key is the one that counts. In a broken
// document it need not end.
func pairs(n *yaml.Node) iter.Seq[pair] {
	return func(yield func(pair) bool) { walkPairs(n, false, yield) }
}

func walkPairs(n *yaml.Node, merged bool, yield func(pair) bool) bool {
	for p := range written(n) {
		p.merged = merged
		if !yield(p) {
			return false
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if target(n.Content[i]).Tag != mergeTag {
			continue
		}
		for _, source := range mergeSources(n.Content[i+1]) {
			if !walkPairs(source, true, yield) {
				return false
			}
		}
	}
	return true
}

// written goes through what is written in the mapping n. Keys that are no text are
// left out; the inspection has reported them.
func written(n *yaml.Node) iter.Seq[pair] {
	return func(yield func(pair) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := target(n.Content[i])
			if key.Kind != yaml.ScalarNode || key.Tag == mergeTag || key.Tag == nullTag {
				continue
			}
			if !yield(pair{key: key, value: target(n.Content[i+1])}) {
				return
			}
		}
	}
}

// mergeSources returns the mappings that the value of a merge key names.
func mergeSources(value *yaml.Node) []*yaml.Node {
	value = target(value)
	if value.Kind != yaml.SequenceNode {
		return []*yaml.Node{value}
	}
	sources := make([]*yaml.Node, len(value.Content))
	for i, item := range value.Content {
		sources[i] = target(item)
	}
	return sources
}

// YAML's own tags, as the parser writes them.
const (
	strTag   = "!!str"
	intTag   = "!!int"
	floatTag = "!!float"
	boolTag  = "!!bool"
	nullTag  = "!!null"
	timeTag  = "!!timestamp"
	mapTag   = "!!map"
	seqTag   = "!!seq"
	mergeTag = "!!merge"
)

// target returns what n stands for if it is an alias, else n. (The parser lets no
// alias stand for another.)
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == nullTag }

func position(n *yaml.Node) Position { return Position{n.Line, n.Column} }
