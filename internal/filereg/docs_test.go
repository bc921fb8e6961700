package filereg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEntriesInTheDocsLoad loads every YAML block of the README and the docs that is an entry. Others are settings, which
// config loads.
func TestEntriesInTheDocsLoad(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, path := range append(paths, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		line := 1
		for i, part := range strings.Split(string(text), "```") {
			if body, yaml := strings.CutPrefix(part, "yaml\n"); i%2 == 1 && yaml && strings.Contains("\n"+body, "\nkind:") {
				blocks++
				// As many empty lines before it as place the block where it stands in the document.
				data := strings.Repeat("\n", line) + body
				for _, p := range Load(NewState("files"), []File{{Path: path, Data: []byte(data)}}).Catalog().Problems {
					t.Error(p)
				}
			}
			line += strings.Count(part, "\n")
		}
	}
	if blocks == 0 {
		t.Error("no entry in the README or the docs; is it found?")
	}
}
