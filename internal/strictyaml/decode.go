package strictyaml

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Options say what decoding cannot know from the types.
type Options struct {
	// Enum tells whether an integer type is an enumeration, and then the numbers
	// of its names, and the names in the order of their numbers. Such a value is
	// written by name.
	Enum func(t reflect.Type) (names map[string]int64, ordered []string, ok bool)

	// Lenient are the paths at and below which unknown fields are ignored, such as
	// status and metadata.managedFields.
	Lenient []string
}

// Decode fills what into points to, and returns all mistakes in the order of their
// places. With mistakes, into is filled as far as possible: list items keep their
// index, and a value that cannot be read leaves what was there.
//
// A field of a struct has the name of its yaml tag, else the JSON name of its
// protobuf tag (and then the .proto name too, export_to beside exportTo), else the
// name of its json tag; a field without any is left alone. Null is the same as an
// absent field. Values may be strings, booleans, numbers, slices, maps with string
// keys, structs, pointers to all of these, [time.Time] (RFC 3339), [time.Duration]
// (1m30s), any, and types that read themselves with [encoding.TextUnmarshaler],
// whose errors are shown to the operator. A struct with fields that also reads
// itself may be written either way: as text, or as a mapping. A value for any other
// type is a bug and panics. Of protobuf, oneofs and the well-known types are not
// supported.
func (d *Document) Decode(into any, options Options) []Error {
	dec := decoder{options: options, errs: slices.Clone(d.faults)}
	if !d.broken {
		dec.decode(reflect.ValueOf(into).Elem(), d.root, nil)
	}
	slices.SortStableFunc(dec.errs, func(a, b Error) int { return a.compare(b.Position) })
	return dec.errs
}

type decoder struct {
	options Options
	errs    []Error
}

func (d *decoder) fail(n *yaml.Node, at *path, code, format string, args ...any) {
	d.errs = append(d.errs, Error{position(n), at.String(), code, fmt.Sprintf(format, args...)})
}

// wrong says that n is not what is wanted; remedy is empty or begins with a colon.
func (d *decoder) wrong(n *yaml.Node, at *path, wanted, remedy string) {
	d.fail(n, at, CodeWrongType, "%s expected, not %s%s", wanted, found(n), remedy)
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
)

func (d *decoder) decode(v reflect.Value, n *yaml.Node, at *path) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.decode(v.Elem(), n, at)
		return
	}
	if t := v.Type(); t.PkgPath() != "" && d.named(v, t, n, at) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		d.text(v, n, at)
	case reflect.Bool:
		d.truth(v, n, at)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.whole(v, n, at)
	case reflect.Float32, reflect.Float64:
		d.number(v, n, at)
	case reflect.Struct:
		d.fields(v, n, at)
	case reflect.Map:
		d.keys(v, n, at)
	case reflect.Slice:
		d.items(v, n, at)
	case reflect.Interface:
		if value := natural(n); value != nil {
			v.Set(reflect.ValueOf(value))
		}
	default:
		panic(fmt.Sprintf("strictyaml: cannot decode into %s", v.Type()))
	}
}

// named decodes into the types that are more than their kind, and tells whether v
// is of such a type.
func (d *decoder) named(v reflect.Value, t reflect.Type, n *yaml.Node, at *path) bool {
	switch {
	case t == timeType:
		d.time(v, n, at)
		return true
	case t == durationType:
		d.duration(v, n, at)
		return true
	case v.CanInt() && d.options.Enum != nil:
		if names, ordered, ok := d.options.Enum(t); ok {
			d.enum(v, n, at, names, ordered)
			return true
		}
	}
	reader, ok := v.Addr().Interface().(encoding.TextUnmarshaler)
	if ok && v.Kind() == reflect.Struct && n.Kind != yaml.ScalarNode && len(fieldsOf(t).names) > 0 {
		return false
	}
	if ok {
		d.unmarshal(reader, n, at)
	}
	return ok
}

// mappingName is what operators call a mapping.
const mappingName = "keys with values"

// fields decodes a mapping into a struct.
func (d *decoder) fields(v reflect.Value, n *yaml.Node, at *path) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, at, mappingName+" are", mappingRemedy(n))
		return
	}
	known := fieldsOf(v.Type())
	given := make([]*yaml.Node, v.NumField())
	for p := range pairs(n) {
		f, ok := known.byName[p.key.Value]
		if !ok {
			d.unknown(p.key, at, known)
			continue
		}
		if first := given[f.index]; first != nil {
			if !p.merged && first.Value != p.key.Value {
				d.fail(p.key, at.field(f.name), CodeDuplicateKey, "%s and %s on line %d are the same field: keep one of them", p.key.Value, first.Value, first.Line)
			}
			continue
		}
		given[f.index] = p.key
		if !null(p.value) {
			d.decode(v.Field(f.index), p.value, at.field(f.name))
		}
	}
}

func (d *decoder) unknown(key *yaml.Node, at *path, known *fields) {
	where := at.field(key.Value)
	if d.lenient(where.String()) {
		return
	}
	remedy := ""
	if meant := Suggest(key.Value, known.names); meant != "" {
		remedy = fmt.Sprintf("; did you mean %q?", meant)
	} else if len(known.names) > 0 && len(known.names) <= 12 {
		remedy = fmt.Sprintf(" (known here: %s)", strings.Join(known.names, ", "))
	}
	d.fail(key, where, CodeUnknownField, "unknown field %q%s", clip(key.Value), remedy)
}

func (d *decoder) lenient(where string) bool {
	return slices.ContainsFunc(d.options.Lenient, func(path string) bool {
		rest, ok := strings.CutPrefix(where, path)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// keys decodes a mapping into a map.
func (d *decoder) keys(v reflect.Value, n *yaml.Node, at *path) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, at, mappingName+" are", mappingRemedy(n))
		return
	}
	t := v.Type()
	all := reflect.MakeMapWithSize(t, len(n.Content)/2)
	for p := range pairs(n) {
		key := reflect.ValueOf(p.key.Value).Convert(t.Key())
		if all.MapIndex(key).IsValid() {
			continue
		}
		value := reflect.New(t.Elem()).Elem()
		d.decode(value, p.value, at.field(p.key.Value))
		all.SetMapIndex(key, value)
	}
	v.Set(all)
}

// items decodes a list.
func (d *decoder) items(v reflect.Value, n *yaml.Node, at *path) {
	if n.Kind != yaml.SequenceNode {
		remedy := ""
		if !null(n) {
			remedy = ": put \"- \" before each item"
		}
		d.wrong(n, at, "a list is", remedy)
		return
	}
	all := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		d.decode(all.Index(i), target(item), at.item(i))
	}
	v.Set(all)
}

func mappingRemedy(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return ": remove the \"- \""
	case n.Kind == yaml.ScalarNode && n.Style == 0 && strings.Contains(n.Value, ":"):
		return ": put a space after the \":\""
	}
	return ""
}
