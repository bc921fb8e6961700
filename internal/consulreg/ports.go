package consulreg

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
)

// group is a port of the service with the instances that serve it.
type group struct {
	port    mesh.Port
	members []*member
}

// group makes a port of the instances that name it alike, and one of those that name none. They are sorted by number.
//
// An instance in Consul has one port, on which it listens. The number that applications dial is the same for all of a port's
// instances, so that they have to agree on it. Where they do not most of them decide: what a few say wrong changes nothing
// for the rest.
func (t *translation) group(members []*member) []*group {
	named := map[string][]*member{}
	for _, m := range members {
		named[m.portName] = append(named[m.portName], m)
	}
	var groups []*group
	for _, name := range slices.Sorted(maps.Keys(named)) {
		g := &group{mesh.Port{Name: name, Origin: t.origin()}, named[name]}
		protocols := poll(g.members, func(m *member) mesh.Protocol { return m.protocol }, byName)
		g.port.Protocol = protocols[0].choice
		if name == "" {
			g.port.Name = unnamed(g.port.Protocol, named)
		}
		if len(protocols) > 1 {
			t.report(mesh.Warning, "consul-protocols-differ", t.origin(), "", fmt.Sprintf(
				"instances differ in the protocol of port %q: %s, of which the first counts for all; give the same %sprotocol in meta to %s, or a %sport-name if they serve another port",
				g.port.Name, protocols.counts(), t.MetaPrefix, protocols.dissenters(), t.MetaPrefix))
		}
		g.port.Number = t.number(g)
		groups = append(groups, g)
	}
	return t.distinct(groups)
}

// number is the one that applications dial.
func (t *translation) number(g *group) uint16 {
	if explicit := slices.DeleteFunc(slices.Clone(g.members), func(m *member) bool { return m.dialled == 0 }); len(explicit) > 0 {
		numbers := poll(explicit, func(m *member) uint16 { return m.dialled }, cmp.Compare[uint16])
		if len(numbers) > 1 {
			t.report(mesh.Warning, "consul-ports-differ", t.origin(), "", fmt.Sprintf(
				"instances differ in the number that applications dial for port %q: %s, of which the first counts for all; give the same %sport in meta to %s, or a %sport-name if they serve another port",
				g.port.Name, numbers.counts(), t.MetaPrefix, numbers.dissenters(), t.MetaPrefix))
		}
		return numbers[0].choice
	}
	numbers := poll(g.members, func(m *member) uint16 { return m.listens }, cmp.Compare[uint16])
	switch {
	case len(numbers) == 1:
		return numbers[0].choice
	case t.Port != 0:
		return t.Port
	}
	t.report(mesh.Notice, "consul-ports-differ", t.origin(), "", fmt.Sprintf(
		"instances listen on different ports for port %q, %s, and do not say which number applications dial, so that it is %d, the commonest, until that changes; give the instances the number in meta as %sport, or the registry in its setting port",
		g.port.Name, numbers.counts(), numbers[0].choice, t.MetaPrefix))
	return numbers[0].choice
}

// unnamed is the name of the port of instances that give none: their protocol, told from the names that others give.
func unnamed(p mesh.Protocol, taken map[string][]*member) string {
	base := cmp.Or(strings.ReplaceAll(strings.ToLower(p.String()), "_", "-"), "default")
	name := base
	for n := 2; taken[name] != nil; n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	return name
}

// distinct leaves each number to the port that is first by name, and sorts by number.
func (t *translation) distinct(groups []*group) (kept []*group) {
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.port.Number, b.port.Number), cmp.Compare(a.port.Name, b.port.Name))
	})
	for _, g := range groups {
		if len(kept) == 0 || kept[len(kept)-1].port.Number != g.port.Number {
			kept = append(kept, g)
			continue
		}
		reason := fmt.Sprintf("port %q would have the number %d, as port %q has, so that its instances are left out (%s); give them another %sport in meta",
			g.port.Name, g.port.Number, kept[len(kept)-1].port.Name, some(g.members), t.MetaPrefix)
		t.report(mesh.Warning, "consul-port-taken", t.origin(), "", reason)
		for _, m := range g.members {
			t.omit(m.instance, reason)
		}
	}
	return kept
}

// ballot is one thing that instances say, and those that say it.
type ballot[T comparable] struct {
	choice T
	voters []*member
}

type ballots[T comparable] []ballot[T]

// poll asks instances for something. What most say is first, and of what equally many say the lowest in order.
func poll[T comparable](members []*member, says func(*member) T, order func(a, b T) int) ballots[T] {
	voters := map[T][]*member{}
	for _, m := range members {
		voters[says(m)] = append(voters[says(m)], m)
	}
	var all ballots[T]
	for choice, by := range voters {
		all = append(all, ballot[T]{choice, by})
	}
	slices.SortFunc(all, func(a, b ballot[T]) int {
		return cmp.Or(cmp.Compare(len(b.voters), len(a.voters)), order(a.choice, b.choice))
	})
	return all
}

func byName(a, b mesh.Protocol) int { return cmp.Compare(a.String(), b.String()) }

// counts is, for people, how many say what.
func (all ballots[T]) counts() string {
	var texts []string
	for _, b := range all {
		texts = append(texts, fmt.Sprintf("%s (%d)", cmp.Or(fmt.Sprint(b.choice), "none"), len(b.voters)))
	}
	return shorten(texts)
}

// dissenters are, for people, those that say something else than most.
func (all ballots[T]) dissenters() string {
	var members []*member
	for _, b := range all[1:] {
		members = append(members, b.voters...)
	}
	return some(members)
}

// some names instances for people, each by its node and id.
func some(members []*member) string {
	var names []string
	for _, m := range members {
		names = append(names, m.Node+"/"+m.ID)
	}
	return shorten(names)
}

// shorten lists the first three things of many.
func shorten(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
