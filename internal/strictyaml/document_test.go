package strictyaml

import (
	"slices"
	"testing"
)

const payments = `
kind: ServiceEntry
metadata:
  name: payments
  labels:
    app.kubernetes.io/name: pay
    "a]\"b": x
spec:
  export_to: ["."]
  ports: &ports
  - {number: 443, protocol: HTTPS}
  - number: 80
  more: *ports
  nothing:
  base: &base
    weight: 1
  merged:
    <<: *base
`

func TestDocumentFindsPaths(t *testing.T) {
	documents, errs := Parse([]byte(payments), Limits{})
	if len(documents) != 1 || errs != nil {
		t.Fatalf("Parse gives %d documents and %v", len(documents), errs)
	}
	d := documents[0]
	for _, test := range []struct {
		path, at string
		has      bool
		text     string
	}{
		{"", "2:1", true, ""},
		{"kind", "2:7", true, "ServiceEntry"},
		{"metadata.name", "4:9", true, "payments"},
		{`metadata.labels["app.kubernetes.io/name"]`, "6:29", true, "pay"},
		{`metadata.labels["a]\"b"]`, "7:14", true, "x"},
		{"spec.exportTo[0]", "9:15", true, "."},
		{"spec.export_to[0]", "9:15", true, "."},
		{"spec.ports[0].protocol", "11:29", true, "HTTPS"},
		{"spec.ports[1].number", "12:13", true, "80"},
		{"spec.more[1].number", "12:13", true, "80"},
		{"spec.merged.weight", "16:13", true, "1"},
		{"spec.ports[1].protocol", "12:5", false, ""},
		{"spec.ports[2].number", "10:10", false, ""},
		{"spec.nothing", "14:11", false, ""},
		{"spec.hosts[0]", "9:3", false, ""},
		{"kind.x[0]", "2:7", false, ""},
		{"status", "2:1", false, ""},
		{"spec[", "9:3", false, ""},
		{"spec..ports", "9:3", false, ""},
		{`spec["ports"`, "9:3", false, ""},
	} {
		text, ok := d.String(test.path)
		if at := d.At(test.path).String(); at != test.at || d.Has(test.path) != test.has || text != test.text || ok != (text != "") {
			t.Errorf("%q stands at %s (has %t, text %q), want %s (has %t, text %q)", test.path, at, d.Has(test.path), text, test.at, test.has, test.text)
		}
	}
}

func TestBrokenDocumentsCanBeIdentified(t *testing.T) {
	const cycles = "kind: ServiceEntry\na: &a\n  <<: [*a, *a]\n  b: *a\n"
	documents, _ := Parse([]byte(cycles), Limits{})
	if kind, _ := documents[0].String("kind"); kind != "ServiceEntry" {
		t.Errorf("kind is %q, want ServiceEntry", kind)
	}
	if documents[0].Has("a.missing") {
		t.Error("a missing key is found")
	}
	if at := documents[0].At("a.b.b.b.b").String(); at != "2:4" {
		t.Errorf("a.b.b.b.b stands at %s, want 2:4", at)
	}
}

func TestItemsAreDocuments(t *testing.T) {
	const list = `
# a document of its own
---
kind: List
common: &common {region: eu}
items:
- kind: A
  name: one
  place: *common
- kind: B
  kind: C
  size: big
-
- text
- {kind: D, size: 1, place: !x {region: eu}}
`
	documents, errs := Parse([]byte(list), Limits{})
	if len(documents) != 1 || errs != nil {
		t.Fatalf("Parse gives %d documents and %v", len(documents), errs)
	}
	d := documents[0]
	items := d.Items("items")
	if len(items) != 5 {
		t.Fatalf("%d items, want 5", len(items))
	}
	type item struct {
		Kind  string `yaml:"kind"`
		Name  string `yaml:"name"`
		Size  int    `yaml:"size"`
		Place struct {
			Region string `yaml:"region"`
		} `yaml:"place"`
	}
	for i, want := range []struct {
		kind, at string
		errs     []string
	}{
		{"A", "7:3", nil},
		{"B", "10:3", []string{
			`11:3: kind: "kind" stands here a second time, first on line 10: keep one of them`,
			`12:9: size: a whole number is expected, not the text "big"`,
		}},
		{"", "13:2", []string{"13:2: keys with values are expected, not an empty value"}},
		{"", "14:3", []string{`14:3: keys with values are expected, not the text "text"`}},
		{"D", "15:3", []string{`15:29: place: the tag !x means nothing here: remove it, or put text that begins with "!" in quotes`}},
	} {
		var got item
		var texts []string
		for _, e := range items[i].Decode(&got, Options{}) {
			texts = append(texts, e.Error())
		}
		kind, _ := items[i].String("kind")
		if kind != want.kind || items[i].Position().String() != want.at || !slices.Equal(texts, want.errs) {
			t.Errorf("item %d is of kind %q, at %s, with\n%q\nwant %q, at %s, with\n%q", i, kind, items[i].Position(), texts, want.kind, want.at, want.errs)
		}
		if i == 0 && got.Place.Region != "eu" {
			t.Error("an alias for what stands outside of the item is not followed")
		}
	}
	if d.Items("kind") != nil || d.Items("missing") != nil {
		t.Error("what is no list has items")
	}
}

func TestItemsOfABrokenDocument(t *testing.T) {
	for name, text := range map[string]string{
		"cycle": "items:\n- a: &a\n    b: *a\n- c: d\n",
		"large": "items: [{a: 1}, {a: 2}, {a: 3}, {a: 4}]\n",
		"bomb":  "items: [{a: &a {x: 1, y: 1}}, {b: [*a, *a, *a]}]\n",
	} {
		documents, _ := Parse([]byte(text), Limits{Nodes: 8})
		if len(documents) != 1 || documents[0].Items("items") != nil {
			t.Errorf("%s: there are items", name)
		}
		if errs := documents[0].Decode(new(map[string]any), Options{}); len(errs) == 0 {
			t.Errorf("%s: there is no mistake", name)
		}
	}
}
