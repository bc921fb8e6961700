package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/filereg"
	"github.com/meshd/meshd/internal/strictyaml"
)

// TestYAMLInTheDocsLoads loads every YAML block of the README and the docs: as an entry if it has a kind, else as settings.
// Both kinds are there, and the settings show every key of a Consul.
func TestYAMLInTheDocsLoads(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, settings := 0, ""
	for _, path := range append(paths, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		line := 1
		for i, part := range strings.Split(string(text), "```") {
			if body, yaml := strings.CutPrefix(part, "yaml\n"); i%2 == 1 && yaml {
				// As many empty lines before it as place the block where it stands in the document.
				data := []byte(strings.Repeat("\n", line) + body)
				if strings.Contains("\n"+body, "\nkind:") {
					entries++
					for _, p := range filereg.Load(filereg.NewState("files"), []filereg.File{{Path: path, Data: data}}).Catalog().Problems {
						t.Error(p)
					}
				} else {
					settings += body
					if _, err := config.Load(config.Sources{File: path, ReadFile: func(string) ([]byte, error) { return data, nil }}); err != nil {
						t.Error(err)
					}
				}
			}
			line += strings.Count(part, "\n")
		}
	}
	if entries == 0 {
		t.Error("no entry in the README or the docs; is it found?")
	}
	for _, of := range []reflect.Type{
		reflect.TypeFor[config.Consul](), reflect.TypeFor[config.TLS](), reflect.TypeFor[config.Match](), reflect.TypeFor[config.Guard](),
	} {
		for _, field := range strictyaml.Fields(of) {
			if !strings.Contains(settings, " "+field.Name+": ") && !strings.Contains(settings, " "+field.Name+":\n") {
				t.Errorf("no YAML block in the README or the docs shows %s of consul; add it to the one of README.md", field.Name)
			}
		}
	}
}
