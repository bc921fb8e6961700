package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/meshd/meshd/internal/strictyaml"
)

// TestSettingsInTheDocsLoad loads every YAML block of the README and the docs that is no entry, and looks for every key of a
// Consul among them.
func TestSettingsInTheDocsLoad(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, path := range append(paths, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		line := 1
		for i, part := range strings.Split(string(text), "```") {
			if body, yaml := strings.CutPrefix(part, "yaml\n"); i%2 == 1 && yaml && !strings.Contains("\n"+body, "\nkind:") {
				all.WriteString(body)
				// As many empty lines before it as place the block where it stands in the document.
				data := strings.Repeat("\n", line) + body
				if _, err := Load(Sources{File: path, ReadFile: files(map[string]string{path: data})}); err != nil {
					t.Error(err)
				}
			}
			line += strings.Count(part, "\n")
		}
	}
	for _, of := range []reflect.Type{reflect.TypeFor[Consul](), reflect.TypeFor[TLS](), reflect.TypeFor[Match](), reflect.TypeFor[Guard]()} {
		for _, field := range strictyaml.Fields(of) {
			if !strings.Contains(all.String(), " "+field.Name+": ") && !strings.Contains(all.String(), " "+field.Name+":\n") {
				t.Errorf("no YAML block in the README or the docs shows %s of consul; add it to the one of README.md", field.Name)
			}
		}
	}
}
