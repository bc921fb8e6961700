package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/docs"
	"github.com/meshd/meshd/internal/filereg"
	"github.com/meshd/meshd/internal/mesh"
)

func TestExcerpt(t *testing.T) {
	long := "ports: [" + strings.Repeat("{number: 80}, ", 20) + "{number: X}]"
	for _, tt := range []struct {
		name, text   string
		line, column int
		want         string
	}{
		{"a line among others", "a: 1\nb: 2\nc: 3\n", 2, 4, "       2 | b: 2\n         |    ^\n"},
		{"the first column", "a: 1\n", 1, 1, "       1 | a: 1\n         | ^\n"},
		{"a fault at the end of a line", "a: [1\n", 1, 6, "       1 | a: [1\n         |      ^\n"},
		{"a column that is not there", "a: 1\n", 1, 80, "       1 | a: 1\n         |     ^\n"},
		{"a line that is not there", "a: 1", 2, 1, ""},
		{"no place", "a: 1", 0, 0, ""},
		{"tabs stay, so that the mark stands under its column whatever their width", "\ta:\t1", 1, 5, "       1 | \ta:\t1\n         | \t  \t^\n"},
		{"a wide character takes two columns", "a: [支払, 1]", 1, 9, "       1 | a: [支払, 1]\n         |           ^\n"},
		{"a full-width letter too", "Ａ: 1", 1, 4, "       1 | Ａ: 1\n         |     ^\n"},
		{"a mark above a letter takes none", "e\u0301: 1", 1, 5, "       1 | e\u0301: 1\n         |    ^\n"},
		{"what would move the cursor or the text is not shown", "a\x1b[2J\u202e: 1", 1, 9, "       1 | a\ufffd[2J\ufffd: 1\n         |         ^\n"},
		{"what is not UTF-8", "a: \xff1", 1, 5, "       1 | a: \ufffd1\n         |     ^\n"},
		{"the ends of lines of Windows", "a: 1\r\nb: 2\r\n", 2, 4, "       2 | b: 2\n         |    ^\n"},
		{"other ends of lines", "a\rb\u0085c\u2028d\u2029e: 5", 5, 4, "       5 | e: 5\n         |    ^\n"},
		{"a mark of the order of bytes counts for nothing", "\ufeffa: 1", 1, 4, "       1 | a: 1\n         |    ^\n"},
		{
			"the beginning of a long line", long, 1, 10,
			"       1 | ports: [{number: 80}, {number: 80}, {number: 80}, {number: 80}, {num…\n         |          ^\n",
		},
		{
			"the end of a long line", long, 1, 298,
			"       1 | …mber: 80}, {number: 80}, {number: X}]\n         |                                    ^\n",
		},
		{
			"the middle of a long line", long, 1, 149,
			"       1 | … 80}, {number: 80}, {number: 80}, {number: 80}, {number: 80}, {numbe…\n         |                                    ^\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sourcesOf([]filereg.File{{Path: "a.yaml", Data: []byte(tt.text)}})
			got := s.excerpt(mesh.Origin{Source: "a.yaml", Line: tt.line, Column: tt.column})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// oddProblems are problems as formats may find them hard to write.
func oddProblems() report {
	at := func(source string, line, column int) mesh.Origin {
		return mesh.Origin{Registry: "files", Source: source, Line: line, Column: column}
	}
	return report{problems: []mesh.Problem{
		{Severity: mesh.Error, Code: "unknown-field", Origin: at("a b/100%,ü.yaml", 3, 5), Field: "spec.prots", Message: "50% of\r\nit: <wrong>, ::error::"},
		{Severity: mesh.Warning, Code: "listener-taken", Origin: at("/etc/meshd/entries/c:d.yaml", 3, 5), Message: "taken"},
		{Severity: mesh.Notice, Code: "file-unsettled", Origin: at("c:d.yaml", 0, 0), Message: "moves"},
		{Severity: mesh.Error, Code: "registry-not-synced", Origin: mesh.Origin{Registry: "files"}, Message: "says nothing"},
		{Severity: mesh.Error, Code: "unknown-field", Origin: at("e.yaml", 1, 0), Field: "x", Message: "once more"},
	}}
}

func TestGitHub(t *testing.T) {
	const want = `::error file=a b/100%25%2Cü.yaml,line=3,col=5,title=unknown-field::spec.prots: 50%25 of%0D%0Ait: <wrong>, ::error::
::warning file=/etc/meshd/entries/c%3Ad.yaml,line=3,col=5,title=listener-taken::taken
::notice file=c%3Ad.yaml,title=file-unsettled::moves
::error title=registry-not-synced::says nothing
::error file=e.yaml,line=1,col=1,title=unknown-field::x: once more
`
	var got bytes.Buffer
	if err := writeGitHub(&got, oddProblems()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSARIF compares with a log that is valid by OASIS' schema, https://docs.oasis-open.org/sarif/sarif/v2.1.0, and leaves
// aside what changes without it.
func TestSARIF(t *testing.T) {
	quoted := func(text string) string {
		var b bytes.Buffer
		if err := printJSON(&b, text); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(b.String())
	}
	var out bytes.Buffer
	if err := writeSARIF(&out, oddProblems()); err != nil {
		t.Fatal(err)
	}
	got := strings.Replace(out.String(), quoted(thisBuild().Version), `"VERSION"`, 1)
	for p := range docs.Problems() {
		got = strings.ReplaceAll(got, quoted(p.Text), `"EXPLANATION"`)
		got = strings.ReplaceAll(got, quoted(p.Meaning()), `"MEANING"`)
	}
	want, err := os.ReadFile("testdata/odd.sarif")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("testdata/odd.sarif (-want +got):\n%s", diff)
	}
}

func TestTerminal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() }) // nothing was written
	if terminal(file) || terminal(new(bytes.Buffer)) {
		t.Error("a file or a buffer is taken for a terminal")
	}
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = pty.Close() }) // nor here
	if !terminal(pty) {
		t.Error("a terminal is not taken for one")
	}
}
