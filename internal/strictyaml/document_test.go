package strictyaml

import "testing"

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
