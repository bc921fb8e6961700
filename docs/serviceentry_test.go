package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/meshd/meshd/docs"
)

// TestEveryFieldIsInTheTable compares serviceentry.md with Istio's schema.
func TestEveryFieldIsInTheTable(t *testing.T) {
	page := read(t, "serviceentry.md")
	for _, m := range []protoreflect.ProtoMessage{&networking.ServiceEntry{}, &networking.ServicePort{}, &networking.WorkloadEntry{}, &networking.WorkloadSelector{}} {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			name := fields.Get(i).JSONName()
			if !regexp.MustCompile("(?m)^\\| `([a-zA-Z]+(\\[\\])?\\.)?" + name + "(\\[\\])?(\\.labels)?`").MatchString(page) {
				t.Errorf("serviceentry.md has no row for %s of %s", name, fields.Get(i).Parent().Name())
			}
		}
	}
}

// TestLinksLeadSomewhere looks at codes of problems, headings, files and conformance cases.
func TestLinksLeadSomewhere(t *testing.T) {
	codes := map[string]bool{}
	for p := range docs.Problems() {
		codes[p.Code] = true
	}
	for _, name := range []string{"serviceentry.md", "consul.md", "architecture.md", "../README.md"} {
		page := read(t, name)
		anchors := headings(page)
		for _, m := range regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`).FindAllStringSubmatch(page, -1) {
			path, anchor := m[1], strings.TrimPrefix(m[2], "#")
			if strings.Contains(path, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), path)); path != "" && err != nil {
				t.Errorf("%s: %v", name, err)
			}
			switch {
			case anchor == "":
			case filepath.Base(path) == "problems.md" && !codes[anchor]:
				t.Errorf("%s: there is no problem %s", name, anchor)
			case path == "" && !anchors[anchor]:
				t.Errorf("%s: there is no heading %s", name, anchor)
			}
		}
	}
	for _, m := range regexp.MustCompile(`\((\d{3})[ ,);]|, (\d{3})\)`).FindAllStringSubmatch(read(t, "serviceentry.md"), -1) {
		number := m[1] + m[2]
		if found, err := filepath.Glob("../internal/envoy/testdata/conformance/" + number + "-*"); err != nil || len(found) == 0 {
			t.Errorf("serviceentry.md: there is no conformance case %s", number)
		}
	}
}

// headings are the anchors that GitHub gives a page's headings.
func headings(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		text := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(text, " ", "-")] = true
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
