package strictyaml

import (
	"reflect"
	"strings"
	"sync"
)

// Field is a field of a struct as [Document.Decode] finds it in a document.
type Field struct {
	Name string // in YAML
	Also string // another name for it, which the .proto file has; empty: none
	Type reflect.Type
}

// Fields returns the fields of a struct, in its order.
func Fields(t reflect.Type) (all []Field) {
	for i := range t.NumField() {
		if name, second := namesOf(t.Field(i)); name != "" {
			if second == name {
				second = ""
			}
			all = append(all, Field{name, second, t.Field(i).Type})
		}
	}
	return all
}

// fields are the fields of a struct by their names in YAML.
type fields struct {
	byName map[string]field // also by the second name that protobuf's fields have
	names  []string         // in the order of the struct
}

type field struct {
	name  string
	index int
}

// fieldsByType keeps what fieldsOf found out: reading tags is slow.
var fieldsByType sync.Map // reflect.Type to *fields

// fieldsOf returns the fields of a struct. A field without a name in its tags is
// none.
func fieldsOf(t reflect.Type) *fields {
	if known, ok := fieldsByType.Load(t); ok {
		return known.(*fields)
	}
	all := &fields{byName: make(map[string]field)}
	for i := range t.NumField() {
		name, second := namesOf(t.Field(i))
		if name == "" {
			continue
		}
		all.names = append(all.names, name)
		all.byName[name] = field{name, i}
		if second != "" {
			all.byName[second] = field{name, i}
		}
	}
	fieldsByType.Store(t, all)
	return all
}

// namesOf returns the name of a field: that of its yaml tag, or the JSON name of
// its protobuf tag, or that of its json tag. Fields of protobuf messages are also
// known by the name that they have in the .proto file.
func namesOf(f reflect.StructField) (name, second string) {
	if !f.IsExported() {
		return "", ""
	}
	if tag, ok := f.Tag.Lookup("yaml"); ok {
		return tagName(tag), ""
	}
	if tag, ok := f.Tag.Lookup("protobuf"); ok {
		for part := range strings.SplitSeq(tag, ",") {
			if value, ok := strings.CutPrefix(part, "name="); ok {
				second = value
			}
			if value, ok := strings.CutPrefix(part, "json="); ok {
				name = value
			}
		}
		if name == "" {
			return second, ""
		}
		return name, second
	}
	return tagName(f.Tag.Get("json")), ""
}

func tagName(tag string) string {
	name, _, _ := strings.Cut(tag, ",")
	if name == "-" {
		return ""
	}
	return name
}
