package filereg

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
)

// CrossCheck finds what entries say in vain as far as these files tell: exports to where nobody seems to be, and workloads
// that no service selects. It is for people who check files; a running daemon knows nodes and other registries as well, so
// that these are no problems of its catalog. Nothing is found where something that cannot be read may be the reason.
func (s *State) CrossCheck() []mesh.Problem {
	c := crossCheck{
		namespaces: map[string]bool{mesh.DefaultNamespace: true}, unclear: map[string]bool{}, selected: map[*workload]bool{},
		selecting: map[selectorLabel][]*definition{}, documents: map[*byte]map[strictyaml.Position]*strictyaml.Document{},
	}
	if !c.survey(s) {
		return nil
	}
	for h := range s.holdings.Values() {
		if h.entry.workload != nil {
			c.workload(h.entry)
		} else {
			c.exports(h.entry)
		}
	}
	slices.SortFunc(c.problems, mesh.Problem.Compare)
	return c.problems
}

// crossCheck is what a check across documents knows and has found.
type crossCheck struct {
	namespaces map[string]bool                                        // in which there are entries
	unclear    map[string]bool                                        // namespaces in which there may be more services than those that could be read
	selected   map[*workload]bool                                     // by any service
	selecting  map[selectorLabel][]*definition                        // definitions with a selector, by one of its labels
	documents  map[*byte]map[strictyaml.Position]*strictyaml.Document // that were read again, by their text and place
	problems   []mesh.Problem
}

type selectorLabel struct{ key, value string }

// survey goes through a state, and tells whether all that there is could be read well enough.
func (c *crossCheck) survey(s *State) bool {
	for src := range s.sources.Values() {
		if src.broken != nil {
			return false
		}
		for _, d := range src.documents {
			if d.refused && d.identity == (identity{}) {
				return false
			}
			c.namespaces[d.identity.namespace] = true
			c.unclear[d.identity.namespace] = c.unclear[d.identity.namespace] || d.refused && d.identity.kind == kindService
		}
	}
	for h := range s.holdings.Values() {
		for _, l := range h.entry.wants() {
			of := h.entry.definitions[0].selector
			for _, w := range s.selected(l.namespace, of) {
				c.selected[w] = true
			}
			if len(of) > 0 {
				at := selectorLabel{l.key, l.value}
				c.selecting[at] = append(c.selecting[at], h.entry.definitions...)
			}
		}
	}
	return true
}

// exports finds namespaces of a service's spec.exportTo in which there are no entries.
func (c *crossCheck) exports(e *entry) {
	export := e.definitions[0].service.Export
	if export.All || !slices.ContainsFunc(export.Namespaces, func(n string) bool { return !c.namespaces[n] }) {
		return
	}
	doc := c.document(e)
	for i := range export.Namespaces {
		path := fmt.Sprintf("spec.exportTo[%d]", i)
		if name, _ := doc.String(path); name != "." && !c.namespaces[name] {
			remedy := cmp.Or(didYouMean(name, slices.Sorted(maps.Keys(c.namespaces))), "; remove it if there are none")
			c.notice("export-to-nobody", e, path, "no entry is in namespace %q, so that at most nodes of that namespace see the service%s", name, remedy)
		}
	}
}

// workload finds one that no service selects.
func (c *crossCheck) workload(e *entry) {
	if c.selected[e.workload] || c.unclear[e.identity.namespace] {
		return
	}
	doc, path := c.document(e), "spec"
	for _, labels := range []string{"metadata.labels", "spec.labels"} {
		if doc.Has(labels) {
			path = labels
		}
	}
	c.notice("workload-unselected", e, path, "no ServiceEntry of namespace %q selects it, so that nobody is sent to it; %s", e.identity.namespace, c.remedy(e.workload.labels))
}

// remedy says what to do with a workload of these labels that no service of its namespace selects.
func (c *crossCheck) remedy(labels map[string]string) string {
	var elsewhere, own []string
	for key, value := range labels {
		own = append(own, key+": "+value)
		for _, d := range c.selecting[selectorLabel{key, value}] {
			if includes(labels, d.selector) {
				elsewhere = append(elsewhere, fmt.Sprintf("%s of namespace %q", d.service.Host, d.service.Namespace))
			}
		}
	}
	switch {
	case len(elsewhere) > 0:
		return slices.Min(elsewhere) + " selects its labels, but only in its own namespace: write one namespace in both"
	case len(own) == 0:
		return "give it the labels that the service's spec.workloadSelector has"
	}
	slices.Sort(own)
	return "compare the service's spec.workloadSelector with its labels, " + strings.Join(own, ", ")
}

func (c *crossCheck) notice(code string, e *entry, path, format string, args ...any) {
	p := mesh.Problem{Severity: mesh.Notice, Code: code, Origin: e.origin, Field: path, Message: fmt.Sprintf(format, args...)}
	at := c.document(e).At(path)
	p.Origin.Line, p.Origin.Column = at.Line+e.in.lines, at.Column
	c.problems = append(c.problems, p)
}

// document reads an entry's document again, for its places, which count from the beginning of what has it.
func (c *crossCheck) document(e *entry) *strictyaml.Document {
	text := &e.in.file.Data[0]
	read := c.documents[text]
	if read == nil {
		read = map[strictyaml.Position]*strictyaml.Document{}
		parsed, _ := strictyaml.Parse(e.in.file.Data, strictyaml.Limits{Bytes: len(e.in.file.Data)})
		for _, d := range parsed {
			for _, one := range append(d.Items("items"), d) {
				read[one.Position()] = one
			}
		}
		c.documents[text] = read
	}
	return read[strictyaml.Position{Line: e.origin.Line - e.in.lines, Column: e.origin.Column}]
}

// ownHost finds an endpoint that is written as the service's own host, which may lead back to the service.
func (m *merged) ownHost(d *definition, e *mesh.Endpoint) {
	s := &d.service
	implied := e.Origin == s.Origin // there are no endpoints, so that the host is looked up
	if e.Address != mesh.HostAddress(s.Host.String()) || implied {
		return
	}
	severity, remedy := mesh.Warning, "write the names or addresses of the machines"
	if s.Location == mesh.External {
		severity, remedy = mesh.Notice, "write another name or an address, or no endpoints at all"
	}
	m.report(severity, "endpoint-is-own-host", e.Origin, "", "%s is the service's own host, so that connections go round in a circle wherever the mesh itself answers for its hosts; %s", e.Address, remedy)
}
