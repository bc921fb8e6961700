package xds

import (
	"slices"

	"github.com/meshd/meshd/internal/envoy"
)

// claims are what a delta client says that it has when it comes: the versions in its first request of a type. They are left
// where they stand in the request, and read once, against the edition that the client is answered from; what is kept of
// them is where they differ.
type claims struct {
	request *request
	void    names // it is not sure of these any more, or is sent them whatever it has

	places map[envoy.Name]int32 // in the edition
	same   []bool               // by place: the client has just that
	all    bool                 // it has just that everywhere
	other  names                // it has another version, or what is not there
	unsure names                // void, so that it may have any version
	some   bool                 // it has anything at all that it wants
}

// doubt makes all claims of what the client does not want void: it may drop what it has of it, and want it again.
func (c *claims) doubt(want *subscription) {
	for value := range c.request.values(initialField) {
		if name, _, err := entry(value); err == nil && !want.has(envoy.Name(name)) {
			c.void.add(envoy.Name(name))
		}
	}
}

// compare reads the claims against an edition.
func (c *claims) compare(t envoy.Type, e *edition, want *subscription) {
	list := e.since(t, nil).added.resources
	if len(c.void) == 0 && c.request.claimed == e.claim(t) {
		c.all, c.some = true, slices.ContainsFunc(list, func(r *envoy.Resource) bool { return want.has(r.Name) })
		return
	}
	c.places, c.same, c.other, c.unsure, c.some = e.places(t), make([]bool, len(list)), nil, nil, false
	for value := range c.request.values(initialField) {
		name, version, err := entry(value)
		if err != nil {
			return // parseRequest has looked
		}
		place, there := c.places[envoy.Name(name)]
		same := there && list[place].Version == string(version)
		if len(c.void) > 0 && c.void.has(envoy.Name(name)) {
			c.unsure.add(envoy.Name(name))
			continue
		}
		if there { // the last of several claims of one name counts
			c.same[place] = same
		}
		switch {
		case same || len(version) == 0:
			if len(c.other) > 0 {
				delete(c.other, envoy.Name(name))
			}
		case want.has(envoy.Name(name)):
			c.other.add(envoy.Name(name))
		}
		c.some = c.some || len(version) > 0 && want.has(envoy.Name(name))
	}
	c.all = !slices.Contains(c.same, false)
}

// has tells whether the client has a resource, which is in the edition.
func (c *claims) has(n envoy.Name) bool { return c != nil && (c.all || c.same[c.places[n]]) }
