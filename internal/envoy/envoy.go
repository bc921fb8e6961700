// Package envoy translates: a view of the mesh and a node's scope become Envoy resources.
//
// All of it is pure. [Translate] takes the snapshot of the view before and redoes only what differs, by pointer:
// its result is the same as that of a translation from nothing, byte for byte.
package envoy
