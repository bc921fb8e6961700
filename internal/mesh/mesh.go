// Package mesh is meshd's vocabulary: hosts, services, endpoints, catalogs and the merged view.
//
// It holds values and no behaviour beyond what keeps them right. All that is published (a [Service], a
// [Catalog], a [View]) is immutable and complete; a service that did not change keeps its pointer from one
// catalog to the next and from one view to the next, and all that comes after relies on that.
package mesh

import "cmp"

// Key is a service's identity: its host in a namespace. Keys are ordered by host, then namespace, so that all
// namespaces of a host stand together.
type Key struct {
	Host      Host
	Namespace string
}

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(k.Host.Compare(o.Host), cmp.Compare(k.Namespace, o.Namespace))
}

// String is NAMESPACE/HOST.
func (k Key) String() string { return k.Namespace + "/" + k.Host.String() }

// DefaultNamespace is where an entry without a namespace, and a node without one, belongs.
const DefaultNamespace = "default"
