package xds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// refusal is a resource that some nodes do not take.
type refusal struct {
	resource *envoy.Resource // as the first of them rejects it
	message  string          // of that one
	nodes    []string        // their ids
	old      int             // how many of them have an earlier version
	since    time.Time
}

// refusals are what connected nodes do not take, as problems of the documents that it came from.
func (s *Server) refusals() []mesh.Problem {
	type id struct {
		t envoy.Type
		n envoy.Name
	}
	found := map[id]*refusal{}
	streams, _ := s.scopes.streams()
	for _, x := range streams {
		for t, held := range x.held() {
			for _, h := range held {
				key := id{envoy.Type(t), h.rejected.Name}
				r := found[key]
				if r == nil {
					r = &refusal{resource: h.rejected, message: h.message, since: h.since}
					found[key] = r
				}
				r.add(x.info.ID, h)
			}
		}
	}
	var out []mesh.Problem
	view := s.scopes.view.Load()
	for _, r := range found {
		out = append(out, r.problem(view))
	}
	return out
}

// add notes one more stream. What the node with the first id says is shown, so that the same streams give the same problem.
func (r *refusal) add(node string, h *hold) {
	if len(r.nodes) > 0 && node < slices.Min(r.nodes) {
		r.resource, r.message = h.rejected, h.message
	}
	if !slices.Contains(r.nodes, node) {
		r.nodes = append(r.nodes, node)
	}
	if h.has || h.took != nil {
		r.old++
	}
	if h.since.Before(r.since) {
		r.since = h.since
	}
}

// singular are the words for one resource of a type.
var singular = [envoy.Types]string{
	envoy.Cluster: "cluster", envoy.Endpoints: "endpoints", envoy.Listener: "listener", envoy.Route: "route configuration",
}

func (r *refusal) problem(view *mesh.View) mesh.Problem {
	who := fmt.Sprintf("node %q rejects", slices.Min(r.nodes))
	if n := len(r.nodes); n > 1 {
		who = fmt.Sprintf("%d nodes reject", n)
	}
	said := strings.Join(strings.Fields(r.message), " ")
	if len(r.nodes) > 1 {
		said = fmt.Sprintf("%q says: %s", slices.Min(r.nodes), said)
	}
	var of string
	var services []string
	p := mesh.Problem{Severity: mesh.Error, Code: "rejected-by-node", Since: r.since}
	for i, key := range r.blamed() {
		services = append(services, key.String())
		if i > 0 {
			continue
		}
		of = " of " + key.Host.String()
		if s, ok := view.Services.Get(key); ok {
			p.Origin = s.Origin
		}
	}
	if n := len(services) - 1; n > 0 {
		of += fmt.Sprintf(" and %d more", n)
	}
	p.Services = strings.Join(services, " ")
	p.Message = fmt.Sprintf("%s the %s %q%s (%s), which is held back, and tried again from time to time", who, singular[r.resource.Type], r.resource.Name, of, said)
	if r.old > 0 {
		p.Serving = "the version that a node accepted last"
	}
	return p
}

// blamed are the services whose hosts the node's message has, if there are any, and else all that the resource was made from.
func (r *refusal) blamed() []mesh.Key {
	var named []mesh.Key
	for _, key := range r.resource.Services {
		if mentions(r.message, key.Host.String()) != silent {
			named = append(named, key)
		}
	}
	if len(named) > 0 {
		return named
	}
	return r.resource.Services
}

// held are the resources that are held back on a stream.
func (x *stream) held() (held [envoy.Types][]*hold) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for t := range held {
		for _, h := range x.session.heldBack(envoy.Type(t)) {
			copied := *h // the session goes on to change it
			held[t] = append(held[t], &copied)
		}
	}
	return held
}
