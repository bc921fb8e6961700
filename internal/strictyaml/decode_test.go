package strictyaml

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The shape of Istio's generated types: protobuf tags, and unexported fields that
// are the message's own.
type (
	document struct {
		APIVersion string   `yaml:"apiVersion"`
		Kind       string   `yaml:"kind"`
		Metadata   metadata `yaml:"metadata"`
		Spec       *entry   `yaml:"spec"`
	}
	metadata struct {
		Name    string            `json:"name,omitempty"`
		Labels  map[string]string `json:"labels,omitempty"`
		Created time.Time         `json:"creationTimestamp"`
		Ignored string            `json:"-"`
	}
	entry struct {
		Hosts     []string    `protobuf:"bytes,1,rep,name=hosts,proto3" json:"hosts,omitempty"`
		Ports     []*port     `protobuf:"bytes,3,rep,name=ports,proto3" json:"ports,omitempty"`
		Location  location    `protobuf:"varint,4,opt,name=location,proto3,enum=x.Location" json:"location,omitempty"`
		Endpoints []*endpoint `protobuf:"bytes,6,rep,name=endpoints,proto3" json:"endpoints,omitempty"`
		ExportTo  []string    `protobuf:"bytes,7,rep,name=export_to,json=exportTo,proto3" json:"export_to,omitempty"`
		OneOf     error       `protobuf_oneof:"one_of"`
		sizeCache int32
	}
	port struct {
		Number     uint32 `protobuf:"varint,1,opt,name=number,proto3" json:"number,omitempty"`
		Protocol   string `protobuf:"bytes,2,opt,name=protocol,proto3" json:"protocol,omitempty"`
		Name       string `protobuf:"bytes,3,opt,name=name,proto3" json:"name,omitempty"`
		TargetPort uint32 `protobuf:"varint,4,opt,name=target_port,json=targetPort,proto3" json:"target_port,omitempty"`
	}
	endpoint struct {
		Address string            `protobuf:"bytes,1,opt,name=address,proto3" json:"address,omitempty"`
		Ports   map[string]uint32 `protobuf:"bytes,2,rep,name=ports,proto3" json:"ports,omitempty"`
		Labels  map[string]string `protobuf:"bytes,3,rep,name=labels,proto3" json:"labels,omitempty"`
		Weight  uint32            `protobuf:"varint,6,opt,name=weight,proto3" json:"weight,omitempty"`
	}
	location int32
)

var options = Options{
	Enum: func(t reflect.Type) (map[string]int64, []string, bool) {
		if t != reflect.TypeFor[location]() {
			return nil, nil, false
		}
		return map[string]int64{"MESH_EXTERNAL": 0, "MESH_INTERNAL": 1}, []string{"MESH_EXTERNAL", "MESH_INTERNAL"}, true
	},
	Lenient: []string{"status", "metadata.managedFields"},
}

// upper is a type that reads itself.
type upper string

func (u *upper) UnmarshalText(text []byte) error {
	if len(text) > 3 {
		return fmt.Errorf("%q is longer than 3 letters", text)
	}
	*u = upper(strings.ToUpper(string(text)))
	return nil
}

func decode(t *testing.T, data string, into any) []Error {
	t.Helper()
	documents, errs := Parse([]byte(data), Limits{})
	if len(documents) != 1 || errs != nil {
		t.Fatalf("Parse gives %d documents and %v, want 1 and none", len(documents), errs)
	}
	return documents[0].Decode(into, options)
}

func TestDecodeServiceEntry(t *testing.T) {
	const text = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: payments
  creationTimestamp: 2026-01-31T12:00:00Z
  labels: {team: pay, "on": yes, 80: "80"}
  managedFields: [{anything: 1}]
spec:
  hosts: [pay.example.com]
  location: MESH_INTERNAL
  export_to: ["."]
  ports:
  - {number: 443, name: https, protocol: HTTPS, targetPort: 8443}
  - {number: 0x50, name: http, protocol: ~, target_port: 8080}
  endpoints:
  - &first
    address: 10.0.0.1
    ports: {https: 8443}
    weight: 2
  - <<: *first
    address: 10.0.0.2
    weight:
status: {anything: [1]}
`
	got := document{Spec: &entry{sizeCache: 7}}
	if errs := decode(t, text, &got); errs != nil {
		t.Fatalf("mistakes are\n%swant none", list(errs))
	}
	want := document{
		APIVersion: "networking.istio.io/v1",
		Kind:       "ServiceEntry",
		Metadata: metadata{
			Name:    "payments",
			Created: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC),
			Labels:  map[string]string{"team": "pay", "on": "yes", "80": "80"},
		},
		Spec: &entry{
			Hosts:    []string{"pay.example.com"},
			Location: 1,
			ExportTo: []string{"."},
			Ports:    []*port{{443, "HTTPS", "https", 8443}, {80, "", "http", 8080}},
			Endpoints: []*endpoint{
				{Address: "10.0.0.1", Ports: map[string]uint32{"https": 8443}, Weight: 2},
				{Address: "10.0.0.2", Ports: map[string]uint32{"https": 8443}},
			},
			sizeCache: 7,
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(entry{})); diff != "" {
		t.Errorf("value (-want +got):\n%s", diff)
	}
}

func TestDecodeReportsEveryMistake(t *testing.T) {
	const text = `
kind: ServiceEntry
metadata:
  Name: payments
  labels: {version: 1.10, on: true, empty: , a.b/c: 2}
  creationTimestamp: yesterday
spec:
  hosts: pay.example.com
  location: mesh_internal
  exportTo: ["."]
  export_to: ["*"]
  protcols: []
  ports:
  - number: "443"
    name: 8
    protocol: [HTTP]
  - number: 99999999999
    nme: http
  - number: -1
  - number: 080
  - number: 8.5
  - number: many
  -
  - text
  endpoints:
  - address: 10.0.0.1
    ports: [80]
  address: 10.0.0.2
unheard-of: 1
`
	const want = `4:3: metadata.Name: unknown field "Name"; did you mean "name"? [unknown-field]
5:21: metadata.labels.version: text is expected, not the number 1.10: put it in quotes, "1.10" [wrong-type]
5:31: metadata.labels.on: text is expected, not true: put it in quotes, "true" [wrong-type]
5:44: metadata.labels.empty: text is expected, not an empty value: write "" for empty text [wrong-type]
5:53: metadata.labels["a.b/c"]: text is expected, not the number 2: put it in quotes, "2" [wrong-type]
6:22: metadata.creationTimestamp: a time is expected, not the text "yesterday": write it as in 2026-01-31T12:00:00Z [wrong-type]
8:10: spec.hosts: a list is expected, not the text "pay.example.com": put "- " before each item [wrong-type]
9:13: spec.location: "mesh_internal" is none of MESH_EXTERNAL, MESH_INTERNAL; did you mean "MESH_INTERNAL"? [unknown-value]
11:3: spec.exportTo: export_to and exportTo on line 10 are the same field: keep one of them [duplicate-key]
12:3: spec.protcols: unknown field "protcols" (known here: hosts, ports, location, endpoints, exportTo) [unknown-field]
14:13: spec.ports[0].number: a whole number is expected, not the text "443": remove the quotes [wrong-type]
15:11: spec.ports[0].name: text is expected, not the number 8: put it in quotes, "8" [wrong-type]
16:15: spec.ports[0].protocol: text is expected, not a list [wrong-type]
17:13: spec.ports[1].number: 99999999999 is out of range (0 to 4294967295) [out-of-range]
18:5: spec.ports[1].nme: unknown field "nme"; did you mean "name"? [unknown-field]
19:13: spec.ports[2].number: -1 is out of range (0 to 4294967295) [out-of-range]
20:13: spec.ports[3].number: a whole number is expected, not the number 080: a 0 in front may mean octal, remove it [wrong-type]
21:13: spec.ports[4].number: a whole number is expected, not the number 8.5 [wrong-type]
22:13: spec.ports[5].number: a whole number is expected, not the text "many" [wrong-type]
23:4: spec.ports[6]: keys with values are expected, not an empty value [wrong-type]
24:5: spec.ports[7]: keys with values are expected, not the text "text" [wrong-type]
27:12: spec.endpoints[0].ports: keys with values are expected, not a list: remove the "- " [wrong-type]
28:3: spec.address: unknown field "address" (known here: hosts, ports, location, endpoints, exportTo) [unknown-field]
29:1: unheard-of: unknown field "unheard-of" (known here: apiVersion, kind, metadata, spec) [unknown-field]
`
	var got document
	if diff := cmp.Diff(want, list(decode(t, text, &got))); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
	if got.Kind != "ServiceEntry" || len(got.Spec.Ports) != 8 || got.Spec.Ports[7] == nil || got.Spec.Endpoints[0].Address != "10.0.0.1" {
		t.Errorf("the rest of the value is not filled: %+v", got)
	}
}

func TestDecodeTypes(t *testing.T) {
	type all struct {
		Bool     bool           `yaml:"bool"`
		Int8     int8           `yaml:"int8"`
		Int64    int64          `yaml:"int64"`
		Uint64   uint64         `yaml:"uint64"`
		Float    float64        `yaml:"float"`
		Duration time.Duration  `yaml:"duration"`
		Upper    upper          `yaml:"upper"`
		Pointer  *string        `yaml:"pointer"`
		Uppers   []upper        `yaml:"uppers"`
		ByUpper  map[upper]bool `yaml:"by-upper"`
		Location location       `yaml:"location"`
		Any      any            `yaml:"any"`
	}
	text := "x"
	for _, test := range []struct {
		name, yaml string
		want       all
		mistakes   string
	}{
		{name: "true", yaml: "bool: true", want: all{Bool: true}},
		{name: "true in capitals", yaml: "bool: TRUE", want: all{Bool: true}},
		{name: "yes is no boolean", yaml: "bool: yes", mistakes: `1:7: bool: true or false is expected, not the text "yes": write true [wrong-type]`},
		{name: "off is no boolean", yaml: "bool: off", mistakes: `1:7: bool: true or false is expected, not the text "off": write false [wrong-type]`},
		{name: "a boolean in quotes", yaml: `bool: "true"`, mistakes: `1:7: bool: true or false is expected, not the text "true": remove the quotes [wrong-type]`},
		{name: "a number for a boolean", yaml: "bool: 1", mistakes: "1:7: bool: true or false is expected, not the number 1 [wrong-type]"},
		{name: "the least of 8 bits", yaml: "int8: -128", want: all{Int8: -128}},
		{name: "less than 8 bits hold", yaml: "int8: -129", mistakes: "1:7: int8: -129 is out of range (-128 to 127) [out-of-range]"},
		{name: "more than 64 bits hold", yaml: "int64: 9223372036854775808", mistakes: "1:8: int64: 9223372036854775808 is out of range (-9223372036854775808 to 9223372036854775807) [out-of-range]"},
		{name: "more than any integer holds", yaml: "uint64: 99999999999999999999", mistakes: "1:9: uint64: 99999999999999999999 is out of range (0 to 18446744073709551615) [out-of-range]"},
		{name: "the most of 64 bits", yaml: "uint64: 18446744073709551615", want: all{Uint64: 1<<64 - 1}},
		{name: "an exponent for a whole number", yaml: "int64: 1e3", mistakes: "1:8: int64: a whole number is expected, not the number 1e3 [wrong-type]"},
		{name: "a whole number for a fraction", yaml: "float: 2", want: all{Float: 2}},
		{name: "a fraction in quotes", yaml: "float: '2.5'", mistakes: `1:8: float: a number is expected, not the text "2.5": remove the quotes [wrong-type]`},
		{name: "infinity", yaml: "float: .inf", mistakes: "1:8: float: a number is expected, not the number .inf [wrong-type]"},
		{name: "a duration", yaml: "duration: 1m30s", want: all{Duration: 90 * time.Second}},
		{name: "a duration without unit", yaml: "duration: 30", mistakes: "1:11: duration: a duration is expected, not the number 30: write it with its unit, as in 500ms, 30s or 1m30s [wrong-type]"},
		{name: "a type that reads itself", yaml: "upper: abc\nuppers: [1.0, b]", want: all{Upper: "ABC", Uppers: []upper{"1.0", "B"}}},
		{name: "a type that refuses", yaml: "uppers: [a, abcd]", want: all{Uppers: []upper{"A", ""}}, mistakes: `1:13: uppers[1]: "abcd" is longer than 3 letters [unknown-value]`},
		{name: "a list for a type that reads itself", yaml: "upper: []", mistakes: "1:8: upper: text is expected, not a list [wrong-type]"},
		{name: "a pointer", yaml: "pointer: x", want: all{Pointer: &text}},
		{name: "null is absent", yaml: "pointer: ~\nbool:\nint8: null", want: all{}},
		{name: "a number for an enumeration", yaml: "location: 1", mistakes: "1:11: location: one of MESH_EXTERNAL, MESH_INTERNAL is expected, not the number 1: write MESH_INTERNAL [wrong-type]"},
		{name: "anything", yaml: "any: {a: [1, x]}", want: all{Any: map[string]any{"a": []any{int64(1), "x"}}}},
		{name: "an unknown field that an alias brings", yaml: "any: &a {upper: x, uper: y}\n<<: *a", want: all{Upper: "X", Any: map[string]any{"upper": "x", "uper": "y"}}, mistakes: `1:20: uper: unknown field "uper"; did you mean "upper"? [unknown-field]`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got all
			mistakes := strings.TrimSuffix(list(decode(t, test.yaml, &got)), "\n")
			if diff := cmp.Diff(test.mistakes, mistakes); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeKeepsDefaults(t *testing.T) {
	got := port{Number: 80, Protocol: "HTTP"}
	if errs := decode(t, "number: x\nname: a\nprotocol: ~\n", &got); len(errs) != 1 {
		t.Errorf("mistakes are %v, want one", errs)
	}
	if want := (port{Number: 80, Protocol: "HTTP", Name: "a"}); got != want {
		t.Errorf("value is %+v, want %+v", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{payments, "a: [x, *y]\n", "{\"a\": 1 \"b\": 2}", "a: &x\n  <<: [*x]", "? [a]\n: b", "a: |\n\tx", "spec: {ports: [{number: '1'}]}", "\"a: b\n---\n", "a: !x y\n...\n%z"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		documents, errs := Parse(data, Limits{Bytes: 1 << 16, Nodes: 10_000})
		if len(documents) > 0 && len(errs) > 0 {
			t.Error("a broken file has documents")
		}
		for _, d := range documents {
			var into any
			found := append(d.Decode(&document{}, options), d.Decode(&into, Options{})...)
			for _, err := range found[:min(len(found), 100)] {
				d.At(err.Path)
				d.Has(err.Path)
				d.String(err.Path)
			}
			errs = append(errs, found...)
		}
		lines := len(splitLines(data))
		for _, err := range errs {
			if err.Line < 1 || err.Line > lines && !strings.ContainsAny(string(data), "\u0085\u2028\u2029") || err.Column < 1 {
				t.Errorf("%v is not in the file of %d lines", err, lines)
			}
			if err.Code == "" || err.Message == "" || strings.Contains(err.Message, "yaml:") || strings.Contains(err.Message, "strictyaml") {
				t.Errorf("%v is not for an operator", err)
			}
		}
	})
}

func FuzzPath(f *testing.F) {
	f.Add("spec", `a.b/c"]`, 3)
	f.Fuzz(func(t *testing.T, first, second string, index int) {
		if max(len(first), len(second)) > clipped || index < 0 {
			return
		}
		var root *path
		text := root.field(first).field(second).item(index).String()
		var got []step
		for rest := text; rest != ""; {
			s, after, ok := nextStep(rest)
			if !ok {
				t.Fatalf("%q is no path from %q", text, rest)
			}
			got, rest = append(got, s), after
		}
		if want := []step{{first, -1}, {second, -1}, {"", index}}; !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read as %+v, want %+v", text, got, want)
		}
	})
}

func BenchmarkParseAndDecode(b *testing.B) {
	const text = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: payments
  labels: {team: pay}
spec:
  hosts: [pay.example.com]
  location: MESH_INTERNAL
  ports:
  - {number: 443, name: https, protocol: HTTPS}
  endpoints:
  - address: 10.0.0.1
    ports: {https: 8443}
  - address: 10.0.0.2
`
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		documents, errs := Parse([]byte(text), Limits{})
		var into document
		if errs = append(errs, documents[0].Decode(&into, options)...); errs != nil {
			b.Fatal(errs)
		}
	}
}

// either is a struct with fields that also reads itself.
type either struct {
	Left  string `yaml:"left"`
	Right string `yaml:"right"`
}

func (e *either) UnmarshalText(text []byte) error {
	left, right, ok := strings.Cut(string(text), "/")
	if !ok {
		return fmt.Errorf("%q has no /", text)
	}
	*e = either{left, right}
	return nil
}

func TestDecodeEitherWay(t *testing.T) {
	const text = `all:
- a/b
- {left: c}
- d
- {lefd: e}
- [f]
-
`
	documents, errs := Parse([]byte(text), Limits{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var got struct {
		All []either `yaml:"all"`
	}
	var mistakes []string
	for _, err := range documents[0].Decode(&got, Options{}) {
		mistakes = append(mistakes, err.Error())
	}
	want := []string{
		`4:3: all[2]: "d" has no /`,
		`5:4: all[3].lefd: unknown field "lefd"; did you mean "left"?`,
		`6:3: all[4]: keys with values are expected, not a list: remove the "- "`,
		`7:2: all[5]: text is expected, not an empty value`,
	}
	if diff := cmp.Diff(want, mistakes); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]either{{"a", "b"}, {"c", ""}, {}, {}, {}, {}}, got.All); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}
