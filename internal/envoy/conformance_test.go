package envoy_test

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/filereg"
	"github.com/meshd/meshd/internal/mesh"
)

var update = flag.Bool("update", false, "write the outcomes that are meshd's own: expect.meshd.json and *.txtar")

// notYet are the cases that meshd does not serve yet, each with what it takes.
var notYet = map[string]string{}

// TestConformance loads each case's files and compares what its node gets with what Istio gives it. Where meshd deviates on
// purpose, expect.meshd.json is its own outcome and deviation.md says why.
func TestConformance(t *testing.T) {
	cases, err := filepath.Glob("testdata/conformance/[0-9]*")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, dir := range cases {
		name := filepath.Base(dir)
		t.Run(name, func(t *testing.T) {
			for _, variant := range []string{"", ".none"} {
				expect := filepath.Join(dir, "expect"+variant+".json")
				if _, err := os.Stat(expect); errors.Is(err, fs.ErrNotExist) {
					continue
				}
				node, settings := readNode(t, dir, variant)
				got := factsOf(translate(t, filepath.Join(dir, "input"), node, settings))
				if name != "000-empty" {
					got = got.without(readFacts(t, "testdata/conformance/000-empty/expect"+variant+".json"))
				}
				want := readFacts(t, expect)
				own := filepath.Join(dir, "expect"+variant+".meshd.json")
				if _, err := os.Stat(filepath.Join(dir, "deviation.md")); err == nil {
					if cmp.Equal(want, got) {
						t.Errorf("meshd does what Istio does; remove deviation.md")
					}
					if *update {
						write(t, own, got)
					}
					want = readFacts(t, own)
				}
				diff := cmp.Diff(want, got)
				if why, ok := notYet[name]; ok {
					if diff == "" && variant == "" {
						t.Errorf("passes; take it off the list of what is not served yet (%s)", why)
					}
					continue
				}
				if diff != "" {
					t.Errorf("%s (-want +got):\n%s", expect, diff)
				}
			}
		})
	}
	for name := range notYet {
		if !slices.Contains(cases, "testdata/conformance/"+name) {
			t.Errorf("%s is listed as not served yet, and is no case", name)
		}
	}
}

// translate is what a node gets of the entries in a folder.
func translate(t *testing.T, folder string, node *corev3.Node, settings envoy.Mesh) *envoy.Snapshot {
	t.Helper()
	files, err := filereg.ReadPaths(folder)
	if err != nil {
		t.Fatal(err)
	}
	catalog := filereg.Load(filereg.NewState("files"), files).Catalog()
	for _, p := range catalog.Problems {
		if p.Severity == mesh.Error {
			t.Log(p)
		}
	}
	merged, _ := aggregate.Merge(aggregate.Merged{}, []aggregate.Source{{Registry: "files", Catalog: catalog, Synced: true}})
	scope, err := envoy.ScopeOf(node)
	if err != nil {
		t.Fatal(err)
	}
	return envoy.Translate(nil, merged.View, scope, settings)
}

// readNode is the usual node of the cases, with what a case's node.json and mesh.yaml say.
func readNode(t *testing.T, dir, variant string) (*corev3.Node, envoy.Mesh) {
	node := &corev3.Node{}
	if b, err := os.ReadFile(filepath.Join(dir, "node.json")); err == nil {
		if err := protojson.Unmarshal(b, node); err != nil {
			t.Fatal(err)
		}
	}
	if node.Id == "" {
		node.Id = "sidecar~192.0.2.100~vm1.default~default.svc.cluster.local"
	}
	if variant == ".none" {
		metadata := &corev3.Node{}
		if err := protojson.Unmarshal([]byte(`{"metadata": {"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE"}}`), metadata); err != nil {
			t.Fatal(err)
		}
		node.Metadata = metadata.Metadata
	}
	var settings envoy.Mesh
	if b, err := os.ReadFile(filepath.Join(dir, "mesh.yaml")); err == nil && strings.Contains(string(b), "REGISTRY_ONLY") {
		settings.Outbound = envoy.RegistryOnly
	}
	return node, settings
}

func readFacts(t *testing.T, path string) (f facts) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return f
}

func write(t *testing.T, path string, v any) {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
