package mesh

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// Origin is where a thing came from. It is never part of a digest.
type Origin struct {
	Registry string `json:"registry,omitempty"` // the registry's name
	Source   string `json:"source,omitempty"`   // a file's path, or a Consul node and service id
	Name     string `json:"name,omitempty"`     // the entry's own name, where it has one
	Document int    `json:"document,omitempty"` // which document of the file, from 0
	Line     int    `json:"line,omitempty"`     // from 1; 0 where the source has no lines
	Column   int    `json:"column,omitempty"`
}

// Compare orders origins: by name, then source and place.
func (o Origin) Compare(p Origin) int {
	return cmp.Or(cmp.Compare(o.Name, p.Name), cmp.Compare(o.Source, p.Source), cmp.Compare(o.Document, p.Document),
		cmp.Compare(o.Line, p.Line), cmp.Compare(o.Column, p.Column), cmp.Compare(o.Registry, p.Registry))
}

// String is SOURCE:LINE:COLUMN, as far as known.
func (o Origin) String() string {
	s := o.Source
	if s == "" {
		s = o.Registry
	}
	for _, n := range []int{o.Line, o.Column} {
		if n == 0 {
			break
		}
		s += ":" + strconv.Itoa(n)
	}
	return s
}

// Severity is how bad a problem is.
type Severity uint8

// The severities. An error means that something the operator wrote is not served.
const (
	Notice Severity = iota
	Warning
	Error
)

func (s Severity) String() string { return [...]string{"notice", "warning", "error"}[s] }

// MarshalText writes the name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Problem is a finding about input, meant for the operator.
type Problem struct {
	Severity Severity `json:"severity"`
	Code     string   `json:"code"` // a stable word for machines
	Origin   Origin   `json:"origin"`
	Field    string   `json:"field,omitempty"`   // the path of the field, as spec.ports[1].protocol
	Message  string   `json:"message"`           // what is wrong, with the remedy
	Serving  string   `json:"serving,omitempty"` // what is served instead; empty: nothing
	// Services are those that it concerns, as far as known, each as NAMESPACE/HOST and with a space between two: text, so
	// that problems can be compared. A host stands there as it was written, even if it is none.
	Services string `json:"-"`
	// Since is when the problem was first seen; its registry says so, or else the aggregate controller.
	Since time.Time `json:"since,omitzero"`
}

// Compare orders problems by place, the worst first at one place.
func (p Problem) Compare(o Problem) int {
	return cmp.Or(
		cmp.Compare(p.Origin.Registry, o.Origin.Registry), cmp.Compare(p.Origin.Source, o.Origin.Source),
		cmp.Compare(p.Origin.Line, o.Origin.Line), cmp.Compare(p.Origin.Column, o.Origin.Column),
		cmp.Compare(o.Severity, p.Severity), cmp.Compare(p.Code, o.Code), cmp.Compare(p.Field, o.Field),
		cmp.Compare(p.Message, o.Message), cmp.Compare(p.Serving, o.Serving), cmp.Compare(p.Services, o.Services))
}

// Concerns tells whether the problem is known to concern a host, in a namespace or, if that is empty, in any.
func (p Problem) Concerns(h Host, namespace string) bool {
	for service := range strings.FieldsSeq(p.Services) {
		in, host, _ := strings.Cut(service, "/")
		if (namespace == "" || in == namespace) && strings.EqualFold(strings.TrimSuffix(host, "."), h.name) {
			return true
		}
	}
	return false
}

// String is PLACE: FIELD: MESSAGE [CODE].
func (p Problem) String() string {
	var b strings.Builder
	for _, s := range []string{p.Origin.String(), p.Field} {
		if s != "" {
			b.WriteString(s + ": ")
		}
	}
	b.WriteString(p.Message + " [" + p.Code + "]")
	return b.String()
}
