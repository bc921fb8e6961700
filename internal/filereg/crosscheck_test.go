package filereg

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// TestCrossCheck checks the entries of testdata/crosscheck.txtar, whose folders are cases, and compares what is found with
// the golden file.
func TestCrossCheck(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/crosscheck.txtar")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string][]File{}
	var order []string
	for _, f := range archive.Files {
		name, _, _ := strings.Cut(f.Name, "/")
		if cases[name] == nil {
			order = append(order, name)
		}
		cases[name] = append(cases[name], File{Path: f.Name, Data: f.Data})
	}
	var got strings.Builder
	for _, name := range order {
		fmt.Fprintf(&got, "# %s\n", name)
		for _, p := range Load(NewState("files"), cases[name]).CrossCheck() {
			fmt.Fprintf(&got, "%s %s\n", p.Severity, p)
		}
	}
	golden(t, "testdata/crosscheck.golden", got.String())
}

// TestCrossCheckOfTheExamples finds nothing, and neither does it in what comes of nothing.
func TestCrossCheckOfTheExamples(t *testing.T) {
	files, err := ReadPaths("../../examples/entries")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	if problems := Load(NewState("files"), files).CrossCheck(); len(problems) > 0 {
		t.Errorf("problems are %v", problems)
	}
	if problems := NewState("files").CrossCheck(); len(problems) > 0 {
		t.Errorf("problems without files are %v", problems)
	}
}

// TestCrossCheckOfManyInOneFile finds the place of each of them, and reads the file once for all of them.
func TestCrossCheckOfManyInOneFile(t *testing.T) {
	const count = 2000
	var list strings.Builder
	list.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for i := range count {
		fmt.Fprintf(&list, "- {apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w%d}, spec: {address: 192.0.2.1, labels: {app: a}}}\n", i)
	}
	path := filepath.Join(t.TempDir(), "list.yaml")
	if err := os.WriteFile(path, []byte(list.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := ReadPaths(path)
	if err != nil {
		t.Fatal(err)
	}
	problems := Load(NewState("files"), files).CrossCheck()
	var lines []int
	for _, p := range problems {
		lines = append(lines, p.Origin.Line)
	}
	var want []int
	for i := range count {
		want = append(want, i+4)
	}
	if diff := gocmp.Diff(want, lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
