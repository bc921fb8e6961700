package envoy_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/meshd/meshd/internal/envoy"
)

// TestTranslation reads testdata/*.txtar: entries and a node in, resources in full out. -update writes them anew; review
// what changes.
func TestTranslation(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			node, folder := &corev3.Node{Id: "vm1"}, t.TempDir()
			var want strings.Builder
			kept := *archive
			kept.Files = nil
			for _, f := range archive.Files {
				switch {
				case f.Name == "node.json":
					if err := protojson.Unmarshal(f.Data, node); err != nil {
						t.Fatal(err)
					}
				case strings.HasSuffix(f.Name, ".yaml"):
					if err := os.WriteFile(filepath.Join(folder, f.Name), f.Data, 0o644); err != nil {
						t.Fatal(err)
					}
				default:
					want.WriteString("-- " + f.Name + " --\n" + string(f.Data))
					continue
				}
				kept.Files = append(kept.Files, f)
			}
			snapshot := translate(t, folder, node, envoy.Mesh{})
			var resources []txtar.File
			for typ := range envoy.Types {
				for name, r := range snapshot.Resources[typ].All() {
					if len(r.Services) > 0 { // what every node has stands in testdata/conformance/000-empty
						resources = append(resources, txtar.File{Name: typ.String() + " " + string(name), Data: readable(t, r)})
					}
				}
			}
			got := string(txtar.Format(&txtar.Archive{Files: resources}))
			if *update {
				kept.Files = append(kept.Files, resources...)
				if err := os.WriteFile(path, txtar.Format(&kept), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(want.String(), got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// readable is a resource as JSON whose bytes are always the same, which protojson's own are not.
func readable(t *testing.T, r *envoy.Resource) []byte {
	m, err := r.Message()
	if err != nil {
		t.Fatal(err)
	}
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
