package filereg

import (
	"cmp"
	"strings"

	"github.com/meshd/meshd/internal/pmap"
)

// index finds what belongs to a K: all of it by L, in order. It is immutable; the zero index is empty.
type index[K pmap.Key[K], L pmap.Key[L], V comparable] struct {
	groups pmap.Map[K, pmap.Map[L, V]]
}

func (x index[K, L, V]) of(k K) pmap.Map[L, V] {
	group, _ := x.groups.Get(k)
	return group
}

func (x index[K, L, V]) with(k K, l L, v V) index[K, L, V] {
	return index[K, L, V]{x.groups.With(k, x.of(k).With(l, v))}
}

func (x index[K, L, V]) without(k K, l L) index[K, L, V] {
	rest := x.of(k).Without(l)
	if rest.Len() == 0 {
		return index[K, L, V]{x.groups.Without(k)}
	}
	return index[K, L, V]{x.groups.With(k, rest)}
}

// filePath is a file's path.
type filePath string

// Compare orders paths.
func (p filePath) Compare(q filePath) int { return strings.Compare(string(p), string(q)) }

// spot is where a document stands: the file, and the document's number in it.
type spot struct {
	path     filePath
	document int
}

// Compare orders spots by path and number.
func (p spot) Compare(q spot) int {
	return cmp.Or(p.path.Compare(q.path), cmp.Compare(p.document, q.document))
}
