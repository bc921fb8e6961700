package strictyaml

import (
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// inspection finds what is wrong with a document whatever it is decoded into: too
// much of it, keys given twice, tags.
type inspection struct {
	limits Limits
	nodes  int
	open   []*yaml.Node // the anchored values that we are inside of
	inside int          // aliases that we are inside of
	alias  *yaml.Node   // the last one that is not inside of another
	at     *path        // where it is
	faults []Error
	broken bool
}

// inspect returns the document number index with the mistakes in it.
func inspect(index int, root *yaml.Node, limits Limits) *Document {
	i := inspection{limits: limits}
	root = target(root)
	if root.Kind == yaml.MappingNode {
		i.walk(root, 1, nil)
	} else {
		i.stop(root, nil, CodeWrongType, "%s are expected, not %s%s", mappingName, found(root), mappingRemedy(root))
	}
	return &Document{index: index, root: root, limits: limits, faults: i.faults, broken: i.broken}
}

func (i *inspection) walk(n *yaml.Node, depth int, at *path) {
	i.nodes++
	switch {
	case i.broken:
		return
	case i.nodes > i.limits.Nodes && i.alias != nil:
		i.stop(i.alias, i.at, CodeAliasBomb, "with its aliases (*name) the document grows to more than %d values: write the values out, or use fewer aliases", i.limits.Nodes)
		return
	case i.nodes > i.limits.Nodes:
		i.stop(n, at, CodeTooLarge, "the document has more than %d values: split it", i.limits.Nodes)
		return
	case n.Kind != yaml.ScalarNode && depth > i.limits.Depth:
		i.stop(n, at, CodeTooDeep, "lists and mappings are nested more than %d levels deep", i.limits.Depth)
		return
	}
	i.tag(n, at)
	if n.Anchor != "" {
		i.open = append(i.open, n)
		defer func() { i.open = i.open[:len(i.open)-1] }()
	}
	switch n.Kind {
	case yaml.AliasNode:
		i.follow(n, depth, at)
	case yaml.SequenceNode:
		for k, item := range n.Content {
			i.walk(item, depth+1, at.item(k))
		}
	case yaml.MappingNode:
		i.mapping(n, depth, at)
	}
}

func (i *inspection) follow(n *yaml.Node, depth int, at *path) {
	if slices.Contains(i.open, n.Alias) {
		i.stop(n, at, CodeAliasCycle, "*%s stands inside of what it stands for: write the value out", clip(n.Value))
		return
	}
	if i.inside == 0 {
		i.alias, i.at = n, at
	}
	i.inside++
	i.walk(n.Alias, depth, at)
	i.inside--
}

func (i *inspection) mapping(n *yaml.Node, depth int, at *path) {
	first := make(map[string]*yaml.Node, len(n.Content)/2)
	for k := 0; k+1 < len(n.Content); k += 2 {
		key, value := target(n.Content[k]), n.Content[k+1]
		switch {
		case key.Kind != yaml.ScalarNode:
			i.note(key, at, CodeWrongType, "a key must be text, not %s: put text that begins with { or [ in quotes", found(key))
			continue
		case null(key):
			i.note(key, at, CodeWrongType, "there is no key before the \":\"")
		case first[key.Value] != nil:
			i.note(key, at.field(key.Value), CodeDuplicateKey, "%q stands here a second time, first on line %d: keep one of them", clip(key.Value), first[key.Value].Line)
		default:
			first[key.Value] = key
		}
		if key.Tag == mergeTag && slices.ContainsFunc(mergeSources(value), func(n *yaml.Node) bool { return n.Kind != yaml.MappingNode }) {
			i.stop(target(value), at.field(key.Value), CodeWrongType, "\"<<\" merges mappings, such as *name or [*name, *other]; this is something else")
		}
		i.tag(n.Content[k], at)
		i.walk(value, depth+1, at.field(key.Value))
	}
}

// tag refuses what would be read as something else than it looks like.
func (i *inspection) tag(n *yaml.Node, at *path) {
	if n.Style&yaml.TaggedStyle == 0 {
		return
	}
	known := []string{strTag, intTag, floatTag, boolTag, timeTag}
	switch n.Kind {
	case yaml.MappingNode:
		known = []string{mapTag}
	case yaml.SequenceNode:
		known = []string{seqTag}
	}
	if !slices.Contains(known, n.Tag) {
		i.note(n, at, CodeUnknownTag, "the tag %s means nothing here: remove it, or put text that begins with \"!\" in quotes", clip(n.Tag))
	}
}

// note adds a mistake, once: what an alias stands for is looked at where it is
// written.
func (i *inspection) note(n *yaml.Node, at *path, code, format string, args ...any) {
	if i.inside == 0 {
		i.faults = append(i.faults, Error{position(n), at.String(), code, fmt.Sprintf(format, args...)})
	}
}

// stop adds a mistake that ends the inspection.
func (i *inspection) stop(n *yaml.Node, at *path, code, format string, args ...any) {
	i.broken = true
	i.faults = append(i.faults, Error{position(n), at.String(), code, fmt.Sprintf(format, args...)})
}

// clipped is how much of the operator's text a message shows.
const clipped = 60

// clip shortens text from the file to what a message can show.
func clip(text string) string {
	if len(text) <= clipped {
		return text
	}
	return strings.ToValidUTF8(text[:clipped], "") + "..."
}
