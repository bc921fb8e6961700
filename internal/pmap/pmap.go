// Package pmap is an immutable ordered map whose versions share what they have in common.
//
// It is what makes meshd's cost follow a change and not the size of the mesh: catalogs, views and snapshots
// are such maps, a version that differs in one key shares all but a path of the version before it, and [Diff]
// finds what differs without looking at what is shared. The map is a treap with priorities from a hash of
// the key, so that its shape depends on its keys alone and equal parts of two versions stand at equal places.
package pmap

import (
	"hash/maphash"
	"iter"
)

// Key is what a map is ordered by.
type Key[K any] interface {
	comparable
	Compare(K) int
}

// Map is an immutable ordered map; the zero Map is empty. It may be copied and read by many goroutines. Values
// are compared with == to tell what changed, so they are pointers to immutable things.
type Map[K Key[K], V comparable] struct{ root *node[K, V] }

type node[K Key[K], V comparable] struct {
	key         K
	value       V
	priority    uint64
	size        int
	left, right *node[K, V]
}

// seed is drawn once a process: no output may depend on a map's shape.
var seed = maphash.MakeSeed()

func (n *node[K, V]) len() int {
	if n == nil {
		return 0
	}
	return n.size
}

// above tells whether a is nearer to the root than b. The key decides between equal hashes.
func above[K Key[K], V comparable](a, b *node[K, V]) bool {
	return a.priority > b.priority || a.priority == b.priority && a.key.Compare(b.key) < 0
}

// join makes a node like n with the given children.
func join[K Key[K], V comparable](n, left, right *node[K, V]) *node[K, V] {
	return &node[K, V]{n.key, n.value, n.priority, left.len() + right.len() + 1, left, right}
}

// split parts n at key: what is below, the node with the key itself or nil, and what is above.
func split[K Key[K], V comparable](n *node[K, V], key K) (left, at, right *node[K, V]) {
	if n == nil {
		return nil, nil, nil
	}
	switch c := key.Compare(n.key); {
	case c < 0:
		l, m, r := split(n.left, key)
		return l, m, join(n, r, n.right)
	case c > 0:
		l, m, r := split(n.right, key)
		return join(n, n.left, l), m, r
	}
	return n.left, n, n.right
}

// merge joins two trees, every key of a being below every key of b.
func merge[K Key[K], V comparable](a, b *node[K, V]) *node[K, V] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case above(a, b):
		return join(a, a.left, merge(a.right, b))
	}
	return join(b, merge(a, b.left), b.right)
}

func insert[K Key[K], V comparable](n, add *node[K, V]) *node[K, V] {
	switch {
	case n == nil:
		return add
	case n.key == add.key:
		if n.value == add.value {
			return n
		}
		return join(add, n.left, n.right)
	case above(add, n):
		left, _, right := split(n, add.key)
		return join(add, left, right)
	case add.key.Compare(n.key) < 0:
		if left := insert(n.left, add); left != n.left {
			return join(n, left, n.right)
		}
	default:
		if right := insert(n.right, add); right != n.right {
			return join(n, n.left, right)
		}
	}
	return n
}

func remove[K Key[K], V comparable](n *node[K, V], key K) *node[K, V] {
	if n == nil {
		return nil
	}
	switch c := key.Compare(n.key); {
	case c < 0:
		if left := remove(n.left, key); left != n.left {
			return join(n, left, n.right)
		}
	case c > 0:
		if right := remove(n.right, key); right != n.right {
			return join(n, n.left, right)
		}
	default:
		return merge(n.left, n.right)
	}
	return n
}

// Len is the number of keys.
func (m Map[K, V]) Len() int { return m.root.len() }

// Get returns the value at key.
func (m Map[K, V]) Get(key K) (V, bool) {
	for n := m.root; n != nil; {
		switch c := key.Compare(n.key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	var none V
	return none, false
}

// With returns the map with value at key. It is m itself if that is so already.
func (m Map[K, V]) With(key K, value V) Map[K, V] {
	return Map[K, V]{insert(m.root, &node[K, V]{key: key, value: value, priority: maphash.Comparable(seed, key), size: 1})}
}

// Without returns the map less key. It is m itself if the key is absent.
func (m Map[K, V]) Without(key K) Map[K, V] { return Map[K, V]{remove(m.root, key)} }

// All yields keys and values in order of key.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { walk(m.root, yield) }
}

// Values yields the values in order of key.
func (m Map[K, V]) Values() iter.Seq[V] {
	return func(yield func(V) bool) { walk(m.root, func(_ K, v V) bool { return yield(v) }) }
}

func walk[K Key[K], V comparable](n *node[K, V], yield func(K, V) bool) bool {
	return n == nil || walk(n.left, yield) && yield(n.key, n.value) && walk(n.right, yield)
}

// From yields keys and values in order, beginning with the first key that is not below key.
func (m Map[K, V]) From(key K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { walkFrom(m.root, key, yield) }
}

func walkFrom[K Key[K], V comparable](n *node[K, V], key K, yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	if n.key.Compare(key) < 0 {
		return walkFrom(n.right, key, yield)
	}
	return walkFrom(n.left, key, yield) && yield(n.key, n.value) && walk(n.right, yield)
}

// Change is one key at which two maps differ. Old or New is the zero value where the key is absent.
type Change[K, V any] struct {
	Key      K
	Old, New V
}

// Diff yields, in order of key, where two maps differ. What they share by descent is not looked at: its cost
// is the number of changes times the logarithm of the size for maps of which one was made from the other.
func Diff[K Key[K], V comparable](old, new Map[K, V]) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) { diff(old.root, new.root, yield) }
}

func diff[K Key[K], V comparable](a, b *node[K, V], yield func(Change[K, V]) bool) bool {
	switch {
	case a == b:
		return true
	case a == nil:
		return walk(b, func(k K, v V) bool { return yield(Change[K, V]{Key: k, New: v}) })
	case b == nil:
		return walk(a, func(k K, v V) bool { return yield(Change[K, V]{Key: k, Old: v}) })
	case a.key == b.key:
		return diff(a.left, b.left, yield) &&
			(a.value == b.value || yield(Change[K, V]{a.key, a.value, b.value})) &&
			diff(a.right, b.right, yield)
	case above(a, b): // then b lacks a's key: it would stand above b
		left, _, right := split(b, a.key)
		return diff(a.left, left, yield) && yield(Change[K, V]{Key: a.key, Old: a.value}) && diff(a.right, right, yield)
	}
	left, _, right := split(a, b.key)
	return diff(left, b.left, yield) && yield(Change[K, V]{Key: b.key, New: b.value}) && diff(right, b.right, yield)
}
