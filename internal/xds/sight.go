package xds

import (
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// What the nodes of a scope are given for a host, and the scope itself, for those who do not import envoy.
type (
	Sight = envoy.Sight
	Scope = envoy.Scope
)

// Sights tells what the connected nodes are given for a host, once for each scope that there is among them, in no order.
func (s *Server) Sights(h mesh.Host) []Sight {
	var snapshots []*envoy.Snapshot
	for _, sc := range s.scopes.inhabited() {
		if snapshot := sc.snapshot.Load(); snapshot != nil {
			snapshots = append(snapshots, snapshot)
		}
	}
	return envoy.Sights(h, snapshots)
}

// Snapshot is what a node of a scope is sent, or would be if it were connected; nil before the first view.
func (s *Server) Snapshot(key envoy.Scope) *envoy.Snapshot {
	view := s.scopes.view.Load()
	if view == nil {
		return nil
	}
	others := s.scopes.made(view)
	for _, o := range others {
		if o.Scope == key {
			return o
		}
	}
	return s.scopes.translate(nil, view, key, s.scopes.settings, others...)
}

// inhabited are the scopes that nodes are of.
func (s *scopes) inhabited() (out []*scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sc := range s.of {
		if len(sc.members) > 0 {
			out = append(out, sc)
		}
	}
	return out
}
