package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// event is something that meshd tail has seen: one line of its -o json.
type event struct {
	Time  time.Time  `json:"time"`
	Event occurrence `json:"event"`

	Server string `json:"server,omitempty"` // of a connection
	Node   string `json:"node,omitempty"`
	Reason string `json:"reason,omitempty"`

	Type        string               `json:"type,omitempty"`
	Version     string               `json:"version,omitempty"`   // of the type
	Resources   *int                 `json:"resources,omitempty"` // how many the node has now
	Endpoints   *int                 `json:"endpoints,omitempty"` // likewise, if these are endpoints
	Unhealthy   int                  `json:"unhealthy,omitempty"` // of the endpoints
	Differences []resourceDifference `json:"differences,omitempty"`
	Resent      []string             `json:"resent,omitempty"` // came again as they were
}

// occurrence is what an event is.
type occurrence string

const (
	connected    occurrence = "connected"
	disconnected occurrence = "lost"
	firstState   occurrence = "state"
	updated      occurrence = "update"
)

// resourceDifference is what became of a resource.
type resourceDifference struct {
	difference
	Version   string               `json:"version,omitempty"` // in the state of the world only the type has one
	Endpoints []endpointDifference `json:"endpoints,omitempty"`
}

// endpointDifference is an endpoint that came, went, or is another in some facts.
type endpointDifference struct {
	Change  change         `json:"change"`
	Address string         `json:"address"`
	Old     *endpointFacts `json:"old,omitempty"`
	New     *endpointFacts `json:"new,omitempty"`
}

// endpointFacts are what is said of an endpoint beside its address.
type endpointFacts struct {
	Health   string `json:"health,omitempty"` // healthy is empty
	Weight   uint32 `json:"weight"`
	Locality string `json:"locality,omitempty"`
	Priority uint32 `json:"priority,omitempty"`
}

// teller prints events of the types that are wanted.
type teller struct {
	out   io.Writer
	aside io.Writer // for what is no part of the answer
	json  bool
	full  bool     // with all fields of what is new
	types []string // none: all

	now func() time.Time // nil: [time.Now]
}

// news tells what is new of a type that f has taken in.
func (t *teller) news(f *feed, n news) error {
	if n.phase == filling || len(t.types) > 0 && !slices.Contains(t.types, n.typ.String()) {
		return nil
	}
	e := event{Event: updated, Type: n.typ.String(), Version: n.version, Resent: n.resent}
	held := f.tracks[n.typ].held
	if n.phase == filled {
		e.Event, e.Resent, n.changes = firstState, nil, nil
		if t.full {
			for _, name := range slices.Sorted(maps.Keys(held)) {
				n.changes = append(n.changes, resourceChange{name: name, version: held[name].version, new: held[name].message})
			}
		}
	} else if len(n.changes)+len(n.resent) == 0 {
		return nil
	}
	resources := len(held)
	e.Resources = &resources
	if n.typ == envoy.Endpoints {
		endpoints := 0
		for _, h := range held {
			for _, facts := range endpointsOf(h.message) {
				endpoints++
				if facts.Health != "" {
					e.Unhealthy++
				}
			}
		}
		e.Endpoints = &endpoints
	}
	for _, c := range n.changes {
		d, err := differenceOf(n.typ, c)
		if err != nil {
			return err
		}
		e.Differences = append(e.Differences, d)
	}
	return t.tell(e)
}

// tell prints an event with the time of now.
func (t *teller) tell(e event) error {
	e.Time = time.Now()
	if t.now != nil {
		e.Time = t.now()
	}
	if t.json {
		j := json.NewEncoder(t.out)
		j.SetEscapeHTML(false)
		return j.Encode(e)
	}
	out := t.out
	if e.Type == "" {
		out = t.aside
	}
	_, err := io.WriteString(out, strings.Join(e.lines(t.full), "\n")+"\n")
	return err
}

func differenceOf(typ envoy.Type, c resourceChange) (resourceDifference, error) {
	d := resourceDifference{difference: difference{Type: typ.String(), Name: c.name, Change: changed}, Version: c.version}
	old, err := fieldsOf(c.old)
	if err != nil {
		return d, fmt.Errorf("%s %q: %w", typ, c.name, err)
	}
	new, err := fieldsOf(c.new)
	if err != nil {
		return d, fmt.Errorf("%s %q: %w", typ, c.name, err)
	}
	switch {
	case c.old == nil:
		d.Change, d.New = added, new
	case c.new == nil:
		d.Change = removed
	default:
		d.Fields = fieldDifferences(decode(old), decode(new))
	}
	if typ == envoy.Endpoints {
		d.Endpoints = endpointDifferences(endpointsOf(c.old), endpointsOf(c.new))
	}
	return d, nil
}

// fieldsOf are a message's fields, if there is one.
func fieldsOf(m proto.Message) (json.RawMessage, error) {
	if m == nil {
		return nil, nil
	}
	return protoJSON(m)
}

// endpointsOf are a load assignment's endpoints by their addresses.
func endpointsOf(m proto.Message) map[string]endpointFacts {
	out := map[string]endpointFacts{}
	a, _ := m.(*endpointv3.ClusterLoadAssignment)
	for _, l := range a.GetEndpoints() {
		where := mesh.Locality{Region: l.GetLocality().GetRegion(), Zone: l.GetLocality().GetZone(), SubZone: l.GetLocality().GetSubZone()}.String()
		for _, e := range l.GetLbEndpoints() {
			facts := endpointFacts{Weight: max(1, e.GetLoadBalancingWeight().GetValue()), Locality: where, Priority: l.GetPriority()}
			if h := e.GetHealthStatus(); h != corev3.HealthStatus_UNKNOWN && h != corev3.HealthStatus_HEALTHY {
				facts.Health = strings.ToLower(h.String())
			}
			address := addressText(e.GetEndpoint().GetAddress())
			if _, twice := out[address]; twice {
				address += "@" + where
			}
			out[address] = facts
		}
	}
	return out
}

func addressText(a *corev3.Address) string {
	switch {
	case a.GetPipe() != nil:
		return "unix://" + a.GetPipe().GetPath()
	case a.GetEnvoyInternalAddress() != nil:
		return a.GetEnvoyInternalAddress().GetServerListenerName()
	}
	return net.JoinHostPort(a.GetSocketAddress().GetAddress(), strconv.Itoa(int(a.GetSocketAddress().GetPortValue())))
}

// endpointDifferences are what came, what went and what is another, each in order of address.
func endpointDifferences(old, new map[string]endpointFacts) []endpointDifference {
	var out []endpointDifference
	for _, address := range union(old, new) {
		before, had := old[address]
		after, has := new[address]
		switch {
		case !had:
			out = append(out, endpointDifference{added, address, nil, &after})
		case !has:
			out = append(out, endpointDifference{removed, address, &before, nil})
		case before != after:
			out = append(out, endpointDifference{changed, address, &before, &after})
		}
	}
	order := []change{added, removed, changed}
	slices.SortStableFunc(out, func(a, b endpointDifference) int {
		return cmp.Compare(slices.Index(order, a.Change), slices.Index(order, b.Change))
	})
	return out
}

// text is the difference in a few words: +10.0.0.3:8080, or 10.0.0.1:8080 unhealthy.
func (d endpointDifference) text() string {
	switch d.Change {
	case removed:
		return "-" + d.Address
	case added:
		return strings.Join(append([]string{"+" + d.Address}, d.New.words()...), " ")
	}
	words := []string{d.Address}
	say := func(what string, old, new any) {
		if old != new {
			words = append(words, fmt.Sprintf("%s %v -> %v", what, old, new))
		}
	}
	if d.Old.Health != d.New.Health {
		words = append(words, cmp.Or(d.New.Health, "healthy"))
	}
	say("weight", d.Old.Weight, d.New.Weight)
	say("locality", cmp.Or(d.Old.Locality, "none"), cmp.Or(d.New.Locality, "none"))
	say("priority", d.Old.Priority, d.New.Priority)
	return strings.Join(words, " ")
}

// words are those facts that are not as usual.
func (f endpointFacts) words() (words []string) {
	if f.Health != "" {
		words = append(words, f.Health)
	}
	if f.Weight != 1 {
		words = append(words, fmt.Sprintf("weight %d", f.Weight))
	}
	if f.Locality != "" {
		words = append(words, f.Locality)
	}
	if f.Priority != 0 {
		words = append(words, fmt.Sprintf("priority %d", f.Priority))
	}
	return words
}

// lines are an event for people.
func (e event) lines(full bool) []string {
	begin := e.Time.Format(time.TimeOnly) + "  "
	switch e.Event {
	case connected:
		return []string{begin + "connected to " + e.Server + " as " + e.Node}
	case disconnected:
		return []string{begin + "lost " + e.Server + " (" + e.Reason + "); trying again"}
	}
	begin += fmt.Sprintf("%-9s  ", e.Type)
	var lines []string
	if e.Event == firstState {
		line := begin + counted(*e.Resources, "resource", "resources")
		if e.Endpoints != nil {
			line += " with " + counted(*e.Endpoints, "endpoint", "endpoints")
			if e.Unhealthy > 0 {
				line += fmt.Sprintf(", %d not healthy", e.Unhealthy)
			}
		}
		lines = append(lines, line+inVersion(e.Version))
	}
	for _, d := range e.Differences {
		lines = append(lines, d.lines(begin, e.Version, full)...)
	}
	if len(e.Resent) > 0 {
		lines = append(lines, begin+counted(len(e.Resent), "resource", "resources")+" sent again unchanged"+inVersion(e.Version))
	}
	return lines
}

func (d resourceDifference) lines(begin, version string, full bool) []string {
	parts := []string{begin + d.Change.sign() + " " + d.Name}
	if d.Change != removed {
		for _, e := range d.Endpoints {
			parts = append(parts, e.text())
		}
		version = cmp.Or(d.Version, version)
	}
	lines := []string{strings.Join(parts, "  ") + inVersion(version)}
	const indent = "            "
	switch {
	case d.Change == added && full && len(d.Endpoints) == 0:
		lines = append(lines, leaves(indent, d.New)...)
	case d.Change == changed && len(d.Endpoints) == 0: // of which the line says all
		for _, f := range d.Fields {
			said := f.lines()
			if !full {
				said = said[:1] // of what is new and long it is the path
			}
			for _, l := range said {
				lines = append(lines, indent+l)
			}
		}
	}
	return lines
}

// inVersion is a version at the end of a line.
func inVersion(version string) string {
	if version == "" {
		return ""
	}
	return "  (version " + short(version) + ")"
}
