package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/meshd/meshd/docs"
	"github.com/meshd/meshd/internal/filereg"
	"github.com/meshd/meshd/internal/strictyaml"
)

// TestProblemsAreExplained reads docs/problems.md: each section has its parts, and its example has the problem that it is an
// example of.
func TestProblemsAreExplained(t *testing.T) {
	for p := range docs.Problems() {
		t.Run(p.Code, func(t *testing.T) {
			severities, _, ok := strings.Cut(strings.TrimPrefix(p.Text, "*"), ".* ")
			if !ok || !strings.HasPrefix(p.Text, "*") {
				t.Fatal("it does not begin with the severity, as in *Error.*")
			}
			if meaning := p.Meaning(); len(meaning) < 20 || !strings.HasSuffix(meaning, ".") {
				t.Errorf("the first sentence does not say what the code means: %q", meaning)
			}
			if !strings.Contains(p.Text, "\n\n**Remedy:** ") {
				t.Error("there is no remedy")
			}
			example, tried := exampleOf(p.Text)
			switch {
			case !tried && !strings.Contains(p.Text, "["+p.Code+"]\n```\n"):
				t.Error("there is no example, indented by four spaces, and no line that has the code in a block of text")
			case tried:
				want := strings.Split(strings.ToLower(severities), " or ")
				var found []string
				for _, text := range []string{example, completed(t, example)} {
					r := takeOffline([]filereg.File{{Path: "example.yaml", Data: []byte(text)}})
					for _, f := range slices.Concat(r.view.Problems, r.crossed, r.nodeProblems()) {
						if f.Code == p.Code && slices.Contains(want, f.Severity.String()) {
							return
						}
						found = append(found, fmt.Sprint(f.Severity, " ", f))
					}
				}
				t.Errorf("the example has not this problem, but\n%s", strings.Join(found, "\n"))
			}
		})
	}
}

// exampleOf is the first block that is indented.
func exampleOf(text string) (example string, ok bool) {
	for line := range strings.Lines(text) {
		code, indented := strings.CutPrefix(line, "    ")
		switch {
		case indented:
			example += code
		case example != "":
			return example, true
		}
	}
	return example, example != ""
}

// completed gives the documents of an example what they leave out. It is the example itself if that is no YAML.
func completed(t *testing.T, example string) string {
	documents, _ := strictyaml.Parse([]byte(example), strictyaml.Limits{})
	var all []string
	for i, d := range documents {
		var given map[string]any
		if len(d.Decode(&given, strictyaml.Options{})) > 0 {
			return example
		}
		spec := map[string]any{
			"hosts": []string{"pay.mesh.internal"},
			"ports": []any{map[string]any{"number": 80, "name": "http", "protocol": "HTTP"}},
		}
		if given["kind"] == "WorkloadEntry" {
			spec = map[string]any{}
		}
		whole := map[string]any{"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry"}
		maps.Copy(whole, given)
		whole["metadata"] = over(map[string]any{"name": fmt.Sprint("pay-", i)}, given["metadata"])
		whole["spec"] = over(spec, given["spec"])
		text, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	return strings.Join(all, "\n---\n")
}

// over is a mapping with what another has instead.
func over(m map[string]any, other any) map[string]any {
	given, _ := other.(map[string]any)
	maps.Copy(m, given)
	return m
}
