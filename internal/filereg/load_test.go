package filereg

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/mesh"
)

var update = flag.Bool("update", false, "rewrite the golden files; review the difference")

// TestLoad loads the entries of testdata/load/*.txtar and compares the services and problems with the archive's file "want".
func TestLoad(t *testing.T) {
	archives, err := filepath.Glob("testdata/load/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var files []File
			var want string
			for _, f := range archive.Files {
				if f.Name == "want" {
					want = string(f.Data)
				} else {
					files = append(files, File{Path: f.Name, Data: f.Data})
				}
			}
			got := describe(Load(NewState("files"), files).Catalog())
			if *update {
				archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool { return f.Name == "want" })
				archive.Files = append(archive.Files, txtar.File{Name: "want", Data: []byte(got)})
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("services and problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRejected loads what Istio refuses: each document must be refused. The messages are in testdata/reject.golden, for
// people to read.
func TestRejected(t *testing.T) {
	inputs, err := filepath.Glob("testdata/reject/*/input.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	var got strings.Builder
	for _, name := range inputs {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		id := filepath.Base(filepath.Dir(name))
		state := Load(NewState("files"), []File{{Path: id, Data: data}})
		if state.Entries() != 0 || worst(state.Catalog().Problems) != mesh.Error {
			t.Errorf("%s is not refused", id)
		}
		for _, p := range state.Catalog().Problems {
			fmt.Fprintf(&got, "%s %s\n", p.Severity, p)
		}
	}
	golden(t, "testdata/reject.golden", got.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func worst(problems []mesh.Problem) (worst mesh.Severity) {
	for _, p := range problems {
		worst = max(worst, p.Severity)
	}
	return worst
}

// describe writes a catalog for people to read and for tests to compare.
func describe(c mesh.Catalog) string {
	var b strings.Builder
	for s := range c.Services.Values() {
		fmt.Fprintf(&b, "%s %s %s", s.Key, s.Resolution, s.Location)
		if s.Export.All {
			b.WriteString(" everywhere")
		} else {
			fmt.Fprintf(&b, " in %v", s.Export.Namespaces)
		}
		for _, more := range []struct {
			is   bool
			text string
		}{
			{!s.Created.IsZero(), "created " + s.Created.Format(time.RFC3339)},
			{len(s.Labels) > 0, fmt.Sprint("labels ", s.Labels)},
			{s.Selector != "", "selector " + s.Selector},
			{len(s.SubjectAltNames) > 0, fmt.Sprint("names ", s.SubjectAltNames)},
			{s.Distribution != 0, fmt.Sprint("distribution ", s.Distribution)},
			{s.Connect != 0, fmt.Sprint("connect ", s.Connect)},
		} {
			if more.is {
				b.WriteString(" " + more.text)
			}
		}
		fmt.Fprintf(&b, " @%s\n", s.Origin)
		for _, o := range s.Joined {
			fmt.Fprintf(&b, "  joined @%s\n", o)
		}
		for _, a := range s.Addresses {
			fmt.Fprintf(&b, "  address %s\n", a)
		}
		for _, p := range s.Ports {
			fmt.Fprintf(&b, "  port %d %s", p.Number, p.Name)
			for _, protocol := range p.Protocols() {
				b.WriteString(" " + cmp.Or(protocol.String(), "(sniffed)"))
			}
			if p.Target != 0 {
				fmt.Fprintf(&b, " target %d", p.Target)
			}
			fmt.Fprintf(&b, " @%s\n", p.Origin)
		}
		for _, e := range s.Endpoints {
			fmt.Fprintf(&b, "  endpoint %s %v weight %d", e.Address, e.Ports, e.Weight)
			if e.Locality != (mesh.Locality{}) {
				fmt.Fprintf(&b, " locality %s", e.Locality)
			}
			if e.Network != "" {
				fmt.Fprintf(&b, " network %s", e.Network)
			}
			if len(e.Labels) > 0 {
				fmt.Fprintf(&b, " labels %v", e.Labels)
			}
			if e.ServiceAccount != "" {
				fmt.Fprintf(&b, " account %s", e.ServiceAccount)
			}
			fmt.Fprintf(&b, " @%s\n", e.Origin)
		}
	}
	for _, p := range c.Problems {
		fmt.Fprintf(&b, "%s %s\n", p.Severity, p)
		if p.Serving != "" {
			fmt.Fprintf(&b, "  serving %s\n", p.Serving)
		}
	}
	return b.String()
}

// entryText is a ServiceEntry of one HTTP port with an endpoint.
func entryText(name, endpoint string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s}
spec:
  hosts: [%s.mesh.internal]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: %q}]
`, name, name, endpoint)
}

// listText is a List of entries.
func listText(items ...string) string {
	var text strings.Builder
	text.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for _, i := range items {
		text.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(i), "\n", "\n  ") + "\n")
	}
	return text.String()
}

// brief is the services with their endpoints, and the codes of the problems with what is served for them.
func brief(s *State) string {
	var lines []string
	for v := range s.Catalog().Services.Values() {
		words := []string{strings.TrimSuffix(v.Host.String(), ".mesh.internal")}
		for _, e := range v.Endpoints {
			words = append(words, e.Address.String())
		}
		lines = append(lines, strings.Join(words, " "))
	}
	for _, p := range s.Catalog().Problems {
		line := "! " + p.Code
		if p.Serving != "" {
			line += ", serving " + p.Serving
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// TestQuarantine goes through edits: each step gives files, by name, and what is served then.
func TestQuarantine(t *testing.T) {
	const separator = "---\n"
	good1, good2, bad := entryText("pay", "192.0.2.1"), entryText("pay", "192.0.2.2"), entryText("pay", "192.0.2.300")
	shop, shop2 := entryText("shop", "192.0.2.7"), entryText("shop", "192.0.2.8")
	nameless := strings.Replace(good2, "{name: pay}", "{labels: {a: b}}", 1)
	misspelt := strings.Replace(good2, "kind: ServiceEntry", "kind: ServceEntry", 1)
	const syntax = "a: [\n"
	type files map[string]string
	type step struct {
		files files
		want  string
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"a document that becomes wrong keeps its last good version until it is mended", []step{
			{files{"a": good1}, "pay 192.0.2.1"},
			{files{"a": bad}, "pay 192.0.2.1\n! invalid-address, serving its last good version"},
			{files{"a": bad + separator + shop}, "pay 192.0.2.1\nshop 192.0.2.7\n! invalid-address, serving its last good version"},
			{files{"a": good2}, "pay 192.0.2.2"},
		}},
		{"a document that was never right gives nothing", []step{
			{files{"a": bad}, "! invalid-address"},
		}},
		{"one bad document costs only itself", []step{
			{files{"a": good1 + separator + shop}, "pay 192.0.2.1\nshop 192.0.2.7"},
			{files{"a": bad + separator + shop2}, "pay 192.0.2.1\nshop 192.0.2.8\n! invalid-address, serving its last good version"},
		}},
		{"a bad document that is removed is gone", []step{
			{files{"a": good1 + separator + shop}, "pay 192.0.2.1\nshop 192.0.2.7"},
			{files{"a": bad + separator + shop}, "pay 192.0.2.1\nshop 192.0.2.7\n! invalid-address, serving its last good version"},
			{files{"a": shop}, "shop 192.0.2.7"},
		}},
		{"a file whose syntax breaks keeps all that it gave", []step{
			{files{"a": good1 + separator + shop, "b": entryText("other", "192.0.2.9")}, "other 192.0.2.9\npay 192.0.2.1\nshop 192.0.2.7"},
			{files{"a": syntax, "b": entryText("other", "192.0.2.10")}, "other 192.0.2.10\npay 192.0.2.1\nshop 192.0.2.7\n! yaml-syntax, serving what it gave last: ServiceEntry default/pay, ServiceEntry default/shop"},
			{files{"a": syntax + " ", "b": entryText("other", "192.0.2.10")}, "other 192.0.2.10\npay 192.0.2.1\nshop 192.0.2.7\n! yaml-syntax, serving what it gave last: ServiceEntry default/pay, ServiceEntry default/shop"},
			{files{"b": entryText("other", "192.0.2.10")}, "other 192.0.2.10"},
		}},
		{"a broken file keeps what stood for its bad documents too", []step{
			{files{"a": good1}, "pay 192.0.2.1"},
			{files{"a": bad}, "pay 192.0.2.1\n! invalid-address, serving its last good version"},
			{files{"a": syntax}, "pay 192.0.2.1\n! yaml-syntax, serving what it gave last: ServiceEntry default/pay"},
			{files{"a": bad}, "pay 192.0.2.1\n! invalid-address, serving its last good version"},
		}},
		{"an empty file keeps what it gave, one with a comment does not", []step{
			{files{"a": good1}, "pay 192.0.2.1"},
			{files{"a": ""}, "pay 192.0.2.1\n! file-empty, serving what it gave last: ServiceEntry default/pay"},
			{files{"a": " \n"}, "pay 192.0.2.1\n! file-empty, serving what it gave last: ServiceEntry default/pay"},
			{files{"a": "# nothing here\n"}, ""},
			{files{"a": ""}, ""},
		}},
		{"a document that no longer says which it is keeps its place", []step{
			{files{"a": shop + separator + good1}, "pay 192.0.2.1\nshop 192.0.2.7"},
			{files{"a": shop2 + separator + nameless}, "pay 192.0.2.1\nshop 192.0.2.8\n! missing-field, serving its last good version"},
			{files{"a": shop2 + separator + misspelt}, "pay 192.0.2.1\nshop 192.0.2.8\n! unknown-kind, serving its last good version"},
			{files{"a": shop2 + separator + good2}, "pay 192.0.2.2\nshop 192.0.2.8"},
		}},
		{"a nameless document put before others takes nothing from them", []step{
			{files{"a": good1 + separator + shop}, "pay 192.0.2.1\nshop 192.0.2.7"},
			{files{"a": nameless + separator + good2 + separator + shop2}, "pay 192.0.2.2\nshop 192.0.2.8\n! missing-field"},
		}},
		{"a document that moves to another file is the same one, even if it is wrong there", []step{
			{files{"a": good1 + separator + shop}, "pay 192.0.2.1\nshop 192.0.2.7"},
			{files{"a": shop, "b": bad}, "pay 192.0.2.1\nshop 192.0.2.7\n! invalid-address, serving its last good version"},
			{files{"b": bad}, "pay 192.0.2.1\n! invalid-address, serving its last good version"},
			{files{"b": good2}, "pay 192.0.2.2"},
		}},
		{"of two documents of one name the first in order of path stands", []step{
			{files{"b": good1}, "pay 192.0.2.1"},
			{files{"a": good2, "b": good1}, "pay 192.0.2.2\n! duplicate-entry"},
			{files{"a": bad, "b": good1}, "pay 192.0.2.2\n! invalid-address, serving its last good version\n! duplicate-entry"},
			{files{"b": good1}, "pay 192.0.2.1"},
		}},
		{"a document that is right elsewhere is not held back by a bad one of its name", []step{
			{files{"b": good1}, "pay 192.0.2.1"},
			{files{"a": bad, "b": good2}, "pay 192.0.2.2\n! invalid-address"},
			{files{"a": bad}, "pay 192.0.2.2\n! invalid-address, serving its last good version"},
		}},
		{"a bad document beside a right one of its name stays without effect while others change", []step{
			{files{"a": bad + separator + good1}, "pay 192.0.2.1\n! invalid-address"},
			{files{"a": bad + separator + good1, "b": shop}, "pay 192.0.2.1\nshop 192.0.2.7\n! invalid-address"},
			{files{"a": bad + separator + good1, "b": good2}, "pay 192.0.2.1\n! invalid-address\n! duplicate-entry"},
		}},
		{"several versions of one file", []step{
			{files{"a": good1 + separator + shop + separator + entryText("more", "192.0.2.20")}, "more 192.0.2.20\npay 192.0.2.1\nshop 192.0.2.7"},
			{files{"a": bad + separator + shop2 + separator + entryText("more", "192.0.2.21")}, "more 192.0.2.21\npay 192.0.2.1\nshop 192.0.2.8\n! invalid-address, serving its last good version"},
			{files{"a": separator + separator + bad + separator + strings.Replace(shop2, "STATIC", "STATIK", 1) + separator + entryText("more", "192.0.2.22")}, "more 192.0.2.22\npay 192.0.2.1\nshop 192.0.2.8\n! invalid-address, serving its last good version\n! unknown-value, serving its last good version"},
			{files{"a": syntax}, "more 192.0.2.22\npay 192.0.2.1\nshop 192.0.2.8\n! yaml-syntax, serving what it gave last: ServiceEntry default/pay, ServiceEntry default/shop, ServiceEntry default/more"},
			{files{"a": "", "b": bad}, "more 192.0.2.22\npay 192.0.2.1\nshop 192.0.2.8\n! file-empty, serving what it gave last: ServiceEntry default/pay, ServiceEntry default/shop, ServiceEntry default/more\n! invalid-address"},
			{files{"b": bad}, "pay 192.0.2.1\n! invalid-address, serving its last good version"},
		}},
		{"an item of a list is a document of its own", []step{
			{files{"a": entryText("first", "192.0.2.20") + separator + listText(good1, shop)}, "first 192.0.2.20\npay 192.0.2.1\nshop 192.0.2.7"},
			{files{"a": entryText("first", "192.0.2.21") + separator + listText(bad, shop2)}, "first 192.0.2.21\npay 192.0.2.1\nshop 192.0.2.8\n! invalid-address, serving its last good version"},
			{files{"a": entryText("first", "192.0.2.21") + separator + listText(bad, nameless)}, "first 192.0.2.21\npay 192.0.2.1\nshop 192.0.2.8\n! invalid-address, serving its last good version\n! missing-field, serving its last good version"},
			{files{"a": listText(bad, shop)}, "pay 192.0.2.1\nshop 192.0.2.7\n! invalid-address, serving its last good version"},
			{files{"a": listText(bad, shop) + "more: true\n"}, "pay 192.0.2.1\nshop 192.0.2.7\n! unknown-field, serving what it gave last: ServiceEntry default/pay, ServiceEntry default/shop"},
			{files{"a": bad + separator + shop}, "pay 192.0.2.1\nshop 192.0.2.7\n! invalid-address, serving its last good version"},
			{files{"a": listText(good2)}, "pay 192.0.2.2"},
			{files{"a": listText(good2) + separator + bad + separator + listText(shop)}, "pay 192.0.2.2\nshop 192.0.2.7\n! invalid-address"},
			{files{"a": strings.Replace(listText(), "items:", "items: []", 1)}, ""},
		}},
		{"a document becomes of a kind that is not served", []step{
			{files{"a": good1}, "pay 192.0.2.1"},
			{files{"a": "apiVersion: v1\nkind: ConfigMap\n"}, "! unknown-kind"},
		}},
	} {
		run := func(t *testing.T, between func(rapid.TB, *State) *State) {
			state := NewState("files")
			for i, s := range tt.steps {
				var in []File
				for path, text := range s.files {
					in = append(in, File{Path: path, Data: []byte(text)})
				}
				state = Load(state, in)
				if got := brief(state); got != s.want {
					t.Fatalf("step %d:\n%s\nwant:\n%s\nproblems: %v", i+1, got, s.want, state.Catalog().Problems)
				}
				state = between(t, state)
			}
		}
		t.Run(tt.name, func(t *testing.T) { run(t, func(_ rapid.TB, s *State) *State { return s }) })
		t.Run(tt.name+", with a restart after each step", func(t *testing.T) { run(t, restarted) })
	}
}

func TestAFileThatCannotBeReadKeepsWhatItGave(t *testing.T) {
	good := File{Path: "a.yaml", Data: []byte(entryText("pay", "192.0.2.1"))}
	first := Load(NewState("files"), []File{good})
	second := Load(first, []File{{Path: "a.yaml", Err: errors.New("input/output error")}})
	const want = "pay 192.0.2.1\n! file-unreadable, serving what it gave last: ServiceEntry default/pay"
	if got := brief(second); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if third := Load(second, []File{good}); third.Catalog().Services != first.Catalog().Services {
		t.Error("the services are not the same ones as before the failure")
	}
}

func TestTheVersionThatIsServedIsNamedByItsTime(t *testing.T) {
	written := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	state := Load(NewState("files"), []File{{Path: "a", Data: []byte(entryText("pay", "192.0.2.1")), Written: written}})
	state = Load(state, []File{{Path: "a", Data: []byte(entryText("pay", "192.0.2.300"))}})
	const want = "its version of 2026-01-31 12:00:00"
	if got := state.Catalog().Problems[0].Serving; got != want {
		t.Errorf("serving %q, want %q", got, want)
	}
}

func TestWhatDoesNotChangeIsShared(t *testing.T) {
	workload := func(address string) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm}\nspec: {address: %q, labels: {app: fleet}}\n", address)
	}
	selecting := strings.Replace(entryText("fleet", "x"), `endpoints: [{address: "x"}]`, "workloadSelector: {labels: {app: fleet}}", 1)
	files := func(pay, vm string) []File {
		return []File{
			{Path: "fleet.yaml", Data: []byte(selecting)},
			{Path: "pay.yaml", Data: []byte(entryText("pay", pay))},
			{Path: "shop.yaml", Data: []byte(entryText("shop", "192.0.2.7"))},
			{Path: "vm.yaml", Data: []byte(workload(vm))},
		}
	}
	service := func(s *State, name string) *mesh.Service {
		t.Helper()
		host, err := mesh.ParseHost(name + ".mesh.internal")
		if err != nil {
			t.Fatal(err)
		}
		v, ok := s.Catalog().Services.Get(mesh.Key{Host: host, Namespace: "default"})
		if !ok {
			t.Fatalf("no service %s", name)
		}
		return v
	}
	first := Load(NewState("files"), files("192.0.2.1", "192.0.2.100"))
	if again := Load(first, files("192.0.2.1", "192.0.2.100")); again != first {
		t.Error("the same files give another state")
	}
	for _, tt := range []struct {
		name    string
		files   []File
		changed []string
	}{
		{"an endpoint", files("192.0.2.2", "192.0.2.100"), []string{"pay"}},
		{"a selected workload", files("192.0.2.1", "192.0.2.101"), []string{"fleet"}},
		{"a comment at the end", append(files("192.0.2.1", "192.0.2.100")[:3], File{Path: "vm.yaml", Data: []byte(workload("192.0.2.100") + "# here\n")}), nil},
		{"a problem", append(files("192.0.2.1", "192.0.2.100"), File{Path: "z.yaml", Data: []byte("a: [")}), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := Load(first, tt.files)
			for _, name := range []string{"fleet", "pay", "shop"} {
				if same, want := service(first, name) == service(next, name), !slices.Contains(tt.changed, name); same != want {
					t.Errorf("%s keeps its pointer: %t, want %t", name, same, want)
				}
			}
			if same := first.Catalog().Services == next.Catalog().Services; same != (len(tt.changed) == 0) {
				t.Errorf("the catalog's services are the same ones: %t", same)
			}
		})
	}
}

func TestTheOrderOfFilesDoesNotMatter(t *testing.T) {
	files := []File{
		{Path: "a", Data: []byte(entryText("pay", "192.0.2.1"))},
		{Path: "b", Data: []byte(entryText("pay", "192.0.2.2"))},
		{Path: "c", Data: []byte(strings.Replace(entryText("more", "192.0.2.3"), "more.mesh", "pay.mesh", 1))},
		{Path: "d", Data: []byte(strings.Replace(entryText("evenmore", "192.0.2.4"), "evenmore.mesh", "pay.mesh", 1))},
	}
	want := describe(Load(NewState("files"), files).Catalog())
	for range 4 {
		files = append(files[1:], files[0])
		if diff := gocmp.Diff(want, describe(Load(NewState("files"), files).Catalog())); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestEnumerationsHaveTheSchemasNumbers(t *testing.T) {
	for _, r := range []mesh.Resolution{mesh.ResolutionNone, mesh.Static, mesh.DNS, mesh.DNSRoundRobin, mesh.DynamicDNS} {
		text := strings.Replace(entryText("pay", "192.0.2.1"), "STATIC", r.String(), 1)
		for _, p := range Load(NewState("files"), []File{{Path: "a", Data: []byte(text)}}).Catalog().Problems {
			if strings.Contains(p.Message, "resolution ") && !strings.Contains(p.Message, "resolution "+r.String()) {
				t.Errorf("%s is taken for another: %s", r, p)
			}
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, pattern := range []string{"testdata/reject/*/input.yaml", "../../examples/entries/*.yaml", "../../examples/entries/*/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data, []byte(entryText("pay", "192.0.2.1")))
		}
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		state := Load(NewState("files"), []File{{Path: "a", Data: a}})
		sound(t, state)
		before := state.Entries()
		state = Load(state, []File{{Path: "a", Data: a}, {Path: "b", Data: b}})
		sound(t, state)
		if state.Entries() < before {
			t.Errorf("%d entries after a file was added, %d before", state.Entries(), before)
		}
		restarted(t, state)
		state = Load(state, []File{{Path: "a", Data: b}, {Path: "b", Data: a}})
		sound(t, state)
		restarted(t, state)
	})
}

// sound checks what must hold of every state.
func sound(t *testing.T, s *State) {
	c := s.Catalog()
	if !slices.IsSortedFunc(c.Problems, mesh.Problem.Compare) {
		t.Error("the problems are not sorted")
	}
	for _, p := range c.Problems {
		if p.Code == "" || p.Message == "" || p.Origin.Source == "" || strings.Contains(p.Message, "v1alpha3") && !strings.Contains(p.Message, "networking.istio.io") {
			t.Errorf("not a problem to show: %+v", p)
		}
	}
	for key, v := range c.Services.All() {
		if key != v.Key || v.Digest() == (mesh.Digest{}) {
			t.Errorf("%s is not sealed", key)
		}
		if _, err := mesh.ParseHost(key.Host.String()); err != nil || !mesh.IsLabel(key.Namespace) {
			t.Errorf("%s cannot be a key", key)
		}
		for i, p := range v.Ports {
			if p.Number == 0 || slices.ContainsFunc(v.Ports[:i], func(q mesh.Port) bool { return q.Number == p.Number }) {
				t.Errorf("%s has port %d twice, or none", key, p.Number)
			}
		}
		for _, e := range v.Endpoints {
			if len(e.Ports) != len(v.Ports) || e.Weight == 0 || e.Address == (mesh.Address{}) {
				t.Errorf("%s has an endpoint that cannot be: %+v", key, e)
			}
			if kindOfAddress(e.Address)&(resolutions[v.Resolution].written|resolutions[v.Resolution].selected) == 0 {
				t.Errorf("%s has resolution %s and an endpoint at %s", key, v.Resolution, e.Address)
			}
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		files := make([]File, n)
		for i := range files {
			files[i] = File{Path: fmt.Sprintf("entries/%05d.yaml", i), Data: []byte(entryText(fmt.Sprintf("service-%d", i), "192.0.2.1"))}
		}
		b.Run(fmt.Sprintf("all/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Load(NewState("files"), files)
			}
		})
		b.Run(fmt.Sprintf("one/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			state := Load(NewState("files"), files)
			for i := 0; b.Loop(); i++ {
				f := files[n/2]
				f.Data = []byte(entryText(fmt.Sprintf("service-%d", n/2), fmt.Sprintf("192.0.2.%d", i%250)))
				state = state.load(state.files.With(filePath(f.Path), &f))
			}
		})
	}
}
