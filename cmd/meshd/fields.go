package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// change is what becomes of a thing.
type change string

const (
	added     change = "added"
	removed   change = "removed"
	changed   change = "changed"
	reordered change = "reordered"
)

// sign is the change at the beginning of a line.
func (c change) sign() string {
	return map[change]string{added: "+", removed: "-", changed: "~", reordered: "~"}[c]
}

// fieldDifference is a value within a resource that is another, or only on one side.
type fieldDifference struct {
	Change change          `json:"change"`
	Path   string          `json:"path"`          // as filter_chains[0].filters[envoy.filters.network.tcp_proxy].name
	Old    json.RawMessage `json:"old,omitempty"` // of a list that is reordered neither is there
	New    json.RawMessage `json:"new,omitempty"`
}

// lines are the difference for people. Of what is long and gone the path says enough.
func (f fieldDifference) lines() []string {
	const long = 120
	line := f.Change.sign() + " " + f.Path
	value := cmp.Or(string(f.Old), string(f.New))
	switch {
	case f.Change == reordered:
		return []string{line + ": is in another order"}
	case f.Change == changed:
		return []string{line + ": " + string(f.Old) + " -> " + string(f.New)}
	case len(value) <= long:
		return []string{line + ": " + value}
	case f.Change == removed:
		return []string{line}
	}
	return append([]string{line}, leaves("    ", f.New)...)
}

// leaves are the parts of a JSON value that have no parts themselves, each as PATH: VALUE after an indent.
func leaves(indent string, text json.RawMessage) (lines []string) {
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				walk(member(path, key), v[key])
			}
			if len(v) > 0 {
				return
			}
		case []any:
			for _, i := range itemsOf(v) {
				walk(i.path(path), i.value)
			}
			if len(v) > 0 {
				return
			}
		}
		lines = append(lines, indent+path+": "+string(compact(v)))
	}
	walk("", decode(text))
	return lines
}

// decode reads JSON that has been read before.
func decode(text json.RawMessage) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

// fieldDifferences tells in what two JSON values differ, the parts of objects and lists by themselves.
func fieldDifferences(old, new any) []fieldDifference {
	var f fields
	f.compare("", old, new)
	return f.found
}

// fields collects differences.
type fields struct{ found []fieldDifference }

func (f *fields) add(c change, path string, old, new any) {
	d := fieldDifference{Change: c, Path: path}
	if c == removed || c == changed {
		d.Old = compact(old)
	}
	if c == added || c == changed {
		d.New = compact(new)
	}
	f.found = append(f.found, d)
}

func compact(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // it was decoded from JSON
	}
	return bytes.TrimSpace(b.Bytes())
}

func (f *fields) compare(path string, old, new any) {
	switch o := old.(type) {
	case map[string]any:
		if n, ok := new.(map[string]any); ok {
			f.objects(path, o, n)
			return
		}
	case []any:
		if n, ok := new.([]any); ok {
			f.lists(path, o, n)
			return
		}
	}
	if !reflect.DeepEqual(old, new) {
		f.add(changed, path, old, new)
	}
}

func (f *fields) objects(path string, old, new map[string]any) {
	for _, key := range union(old, new) {
		f.either(member(path, key), old, new, key)
	}
}

// either compares what two objects have under a key that at least one of them has.
func (f *fields) either(path string, old, new map[string]any, key string) {
	o, had := old[key]
	n, has := new[key]
	switch {
	case !had:
		f.add(added, path, nil, n)
	case !has:
		f.add(removed, path, o, nil)
	default:
		f.compare(path, o, n)
	}
}

// lists compares lists by what identifies their items, and where nothing does, item by item.
func (f *fields) lists(path string, old, new []any) {
	before, had := identified(old)
	after, has := identified(new)
	if !had || !has {
		before, after = numbered(old), numbered(new)
	}
	was := map[string]any{}
	is := map[string]any{}
	for _, i := range before {
		was[i.id] = i.value
	}
	for _, i := range after {
		is[i.id] = i.value
	}
	for _, i := range before {
		f.either(i.path(path), was, is, i.id)
	}
	var kept, order []string // what both have, as it stands in each
	for _, i := range before {
		if _, ok := is[i.id]; ok {
			kept = append(kept, i.id)
		}
	}
	for _, i := range after {
		if _, ok := was[i.id]; ok {
			order = append(order, i.id)
		} else {
			f.either(i.path(path), was, is, i.id)
		}
	}
	if !slices.Equal(kept, order) {
		f.add(reordered, path, nil, nil)
	}
}

// item is an item of a list, by what tells it from the others.
type item struct {
	id    string
	value any
	plain bool // its value is what tells it from the others
}

// path is where the item stands.
func (i item) path(list string) string {
	if i.plain {
		return list
	}
	return list + "[" + i.id + "]"
}

// itemsOf are the items of a list by what identifies them, or by number.
func itemsOf(list []any) []item {
	items, ok := identified(list)
	if !ok {
		items = numbered(list)
	}
	return items
}

func numbered(list []any) []item {
	items := make([]item, len(list))
	for n, v := range list {
		items[n] = item{id: strconv.Itoa(n), value: v}
	}
	return items
}

// identified are the items of a list by name, address, locality or match, or by their whole value if they have no parts;
// false if there are two of one identity or one has none.
func identified(list []any) ([]item, bool) {
	items := make([]item, len(list))
	seen := map[string]bool{}
	for n, v := range list {
		i := identify(v)
		if i.id == "" || seen[i.id] {
			return nil, false
		}
		seen[i.id] = true
		items[n] = i
	}
	return items, true
}

// identify finds out what tells a list's item from others; its id is empty if nothing does.
func identify(v any) item {
	switch v := v.(type) {
	case []any:
		return item{value: v}
	case map[string]any:
		return item{id: identity(v), value: v}
	}
	return item{id: string(compact(v)), value: v, plain: true}
}

func identity(o map[string]any) string {
	if name, ok := o["name"].(string); ok {
		return name
	}
	if address, ok := at(o, "endpoint", "address").(map[string]any); ok {
		if host, ok := at(address, "socket_address", "address").(string); ok {
			return net.JoinHostPort(host, string(compact(at(address, "socket_address", "port_value"))))
		}
		return string(compact(address))
	}
	if _, ok := o["lb_endpoints"]; ok {
		var parts []string
		for _, key := range []string{"region", "zone", "sub_zone"} {
			part, _ := at(o, "locality", key).(string)
			parts = append(parts, part)
		}
		return cmp.Or(strings.TrimRight(strings.Join(parts, "/"), "/"), "no locality")
	}
	if match, ok := o["filter_chain_match"]; ok {
		return "match " + string(compact(match))
	}
	if _, ok := o["filters"]; ok {
		return "no match"
	}
	return ""
}

// at is the value at a path of keys; nil if there is none.
func at(v any, keys ...string) any {
	for _, k := range keys {
		o, _ := v.(map[string]any)
		v = o[k]
	}
	return v
}

// member is the path of a key of an object.
func member(path, key string) string {
	switch {
	case strings.Contains(key, "."):
		return path + "[" + key + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// union are the keys of both in order.
func union[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}
