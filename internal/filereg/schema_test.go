package filereg

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/tools/txtar"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
)

const schemaFile = "../../examples/schema.json"

// beyondSchemas are the rejected inputs in which a schema can see nothing wrong: no two items of a list may have the same
// name or number, and "." is the entry's own namespace.
var beyondSchemas = []string{"023-port-name-twice", "024-port-number-twice", "061-export-twice"}

func TestSchemaFileIsUpToDate(t *testing.T) { golden(t, schemaFile, string(Schema())) }

// TestSchemaDescribesWhatThereIs finds rows of the table that no field has.
func TestSchemaDescribesWhatThereIs(t *testing.T) {
	there := map[string][]strictyaml.Field{"metadata": strictyaml.Fields(reflect.TypeFor[metadata]())}
	there["service"] = strictyaml.Fields(reflect.TypeFor[networking.ServiceEntry]())
	for structure, name := range structNames {
		there[name] = strictyaml.Fields(structure)
	}
	for name, rows := range fieldsOf {
		fields, known := there[name]
		if !known {
			t.Errorf("there is nothing that is called %s", name)
		}
		for row, m := range rows {
			if !slices.ContainsFunc(fields, func(f strictyaml.Field) bool { return f.Name == row }) {
				t.Errorf("%s has no field %s", name, row)
			}
			if !strings.HasSuffix(m.text, ".") {
				t.Errorf("what is said of %s.%s is no sentence: %q", name, row, m.text)
			}
		}
	}
	if len(resolutionTexts) != len(resolutions) {
		t.Errorf("%d resolutions are explained, and there are %d", len(resolutionTexts), len(resolutions))
	}
}

// TestSchemaAgreesWithTheRules shows the schema all entries that there are: it takes what is served, and whatever it refuses
// is refused.
func TestSchemaAgreesWithTheRules(t *testing.T) {
	s := compiled(t)
	served, seen := 0, 0
	for name, data := range entryFiles(t) {
		for i, doc := range parsed(data) {
			seen++
			one := load(t, doc)
			err := s.Validate(doc)
			switch {
			case err == nil:
			case worst(one.Catalog().Problems) != mesh.Error && one.Entries() > 0:
				t.Errorf("document %d of %s is served, and the schema refuses it:\n%v", i, name, err)
			}
			if one.Entries() > 0 {
				served++
			}
		}
	}
	if served < 200 {
		t.Errorf("only %d of %d documents are served; are the inputs found?", served, seen)
	}
}

// load loads a document that was decoded, which is JSON then.
func load(t *testing.T, doc any) *State {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return Load(NewState("files"), []File{{Path: "one.json", Data: text}})
}

// TestSchemaRefuses shows the schema what is rejected.
func TestSchemaRefuses(t *testing.T) {
	s := compiled(t)
	inputs, err := filepath.Glob("testdata/reject/*/input.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	var passed []string
	for _, name := range inputs {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		refused := false
		for _, doc := range parsed(data) {
			refused = refused || s.Validate(doc) != nil
		}
		if !refused {
			passed = append(passed, filepath.Base(filepath.Dir(name)))
		}
	}
	if !slices.Equal(passed, beyondSchemas) {
		t.Errorf("the schema sees nothing wrong in %q, and should in all but %q", passed, beyondSchemas)
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", text); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// parsed are the documents of a file as a YAML reader of an editor has them; none if it is no YAML.
func parsed(data []byte) (all []any) {
	documents, _ := strictyaml.Parse(data, strictyaml.Limits{})
	for _, d := range documents {
		var value any
		if len(d.Decode(&value, strictyaml.Options{})) == 0 {
			all = append(all, value)
		}
	}
	return all
}

// entryFiles are all files of entries in the tree.
func entryFiles(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, folder := range []string{"../../examples/entries", "testdata/reject", "testdata/load", "../envoy/testdata"} {
		found := map[string][]byte{}
		err := fs.WalkDir(os.DirFS(folder), ".", func(name string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			path := filepath.Join(folder, name)
			switch filepath.Ext(name) {
			case ".yaml":
				if filepath.Base(name) == "mesh.yaml" {
					return nil // the settings of a case
				}
				found[path], err = os.ReadFile(path)
			case ".txtar":
				archive, failed := txtar.ParseFile(path)
				if failed != nil {
					return failed
				}
				for _, f := range archive.Files {
					if isEntryName(f.Name) {
						found[path+"/"+f.Name] = f.Data
					}
				}
			}
			return err
		})
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(found), err)
		}
		maps.Copy(all, found)
	}
	return all
}

// TestExamplesNameTheSchema looks for the comment in each document, since editors look for it in each.
func TestExamplesNameTheSchema(t *testing.T) {
	want, err := filepath.Abs(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	files, err := ReadPaths("../../examples/entries")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		for i, part := range (excerpt{file: f}).parts() {
			_, rest, _ := strings.Cut("\n"+string(part.file.Data), "\n# yaml-language-server: $schema=")
			name, _, _ := strings.Cut(rest, "\n")
			if got, err := filepath.Abs(filepath.Join(filepath.Dir(f.Path), name)); err != nil || got != want {
				t.Errorf("document %d of %s names the schema %q, which is %s, and not %s: %v", i, f.Path, name, got, want, err)
			}
		}
	}
}
