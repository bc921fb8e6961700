package strictyaml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mistakes returns all that is wrong with data when it is decoded into anything.
func mistakes(data string, limits Limits) string {
	documents, errs := Parse([]byte(data), limits)
	for _, d := range documents {
		var into any
		errs = append(errs, d.Decode(&into, Options{})...)
	}
	return list(errs)
}

func list(errs []Error) string {
	var b strings.Builder
	for _, err := range errs {
		fmt.Fprintf(&b, "%s [%s]\n", err, err.Code)
	}
	return b.String()
}

func TestSyntaxErrors(t *testing.T) {
	for _, test := range []struct{ name, yaml, want string }{
		{"a line indented too far", "a: 1\nb: 2\n  c: 3\n", `3:4: a ":" is not expected here`},
		{"a line indented too far, with CRLF", "a: 1\r\nb: 2\r\n  c: 3\r\n", `3:4: a ":" is not expected here`},
		{"text that holds a colon", "a: b: c: d\n", `1:5: a ":" is not expected here`},
		{"a key between two levels", "spec:\n  hosts: [a]\n ports: []\n", "3:2: this line does not fit the mapping"},
		{"a key between two levels after comments", "hosts:\n  - a\n\n # x\n\n ports: 3\nx: 1\ny: 2\n", "6:2: this line does not fit the mapping"},
		{"an item's second key too far left", "spec:\n  ports:\n  - number: 1\n   name: x\n", "4:4: this line does not fit the mapping"},
		{"an item too far left", "spec:\n  ports:\n    - a: 1\n   - b: 2\n", "4:4: this line does not fit the mapping"},
		{"a key after a list", "- a\nb: c\n", "2:1: this line does not fit the list"},
		{"an item after a mapping", "b: c\n- a\n", "2:1: this line does not fit the mapping"},
		{"text after a closed quote", "x: 1\na: \"b\" c\n", "2:1: this line does not fit the mapping"},
		{"an apostrophe in single quotes", "a: 'it's'\n", "1:1: this line does not fit the mapping"},
		{"a tab as indentation", "spec:\n\thosts: x\n", "2:1: a tab cannot indent: use spaces"},
		{"a tab after spaces", "spec:\n  \thosts: x\n", "2:3: a tab cannot indent"},
		{"a tab on a later line", "spec:\n  hosts: x\n\tports: y\n", "3:1: a tab cannot indent"},
		{"a tab in a block of text", "a: |\n  x\n\ty\n", "3:1: a tab cannot indent"},
		{"a tab on an empty line", "a: b\n\t\nc: d\n", "2:1: a tab cannot indent"},
		{"a double quote never closed", "\na: \"x\" #\nb: \"y\nc: d\n", "3:4: the quote opened here is never closed"},
		{"a single quote open at the document's end", "a: 'x\n---\nb: 1", "1:4: the quote opened here is never closed"},
		{"a wildcard host without quotes", "hosts: [a, *.example.com]\n", `1:12: text cannot begin with "*" or "&"`},
		{"an alias without anchor", "x: '*foo'\nh: *foo\n", "2:4: this is an alias, and no anchor"},
		{"text that begins with @", "h: @x\n", "1:4: text cannot begin with this character"},
		{"text that begins with a backtick", "a: b\nh: `x`\n", "2:4: text cannot begin with this character"},
		{"a directive in the middle", "a: b\n%x\n", `2:1: a line that begins with "%"`},
		{"a version directive", "%YAML 1.2\n---\na: b\n", "1:1: this version of YAML is not known"},
		{"a word that is no key", "a: 1\nfoo\nb: 2\n", "2:1: this is neither a key"},
		{"a list never closed", "a: [x, y\nb: c\n", `1:4: the list opened here lacks a ","`},
		{"a mapping never closed", "x:\n  a: {x: 1\nb: 2\n", `2:6: the mapping opened here lacks a ","`},
		{"a bracket too many", "b: c\na: ]\n", "2:4: a value is expected here"},
		{"a list on its key's line", "a: - b\n", `1:4: a "- " is not expected here`},
		{"a question mark", "a: ? b\n", `1:4: a "? " is not expected here`},
		{"content after the end", "a: 1\n...\nb: 2\n", "3:1: the document has ended before this line"},
		{"a backslash in double quotes", `a: "C:\dir"`, "1:7: in double quotes a backslash begins an escape"},
		{"a surrogate escape", `a: "\ud83d"`, "1:5: this escape stands for no character"},
		{"an open tag", "a: !<x b\n", "1:4: this is not a tag"},
		{"text after a block's mark", "a: > x\n", `1:4: after "|" or ">" only`},
		{"JSON without a comma", "{\n\t\"a\": 1\n\t\"b\": 2\n}", "3:2: this is not JSON"},
		{"JSON with the wrong bracket", "{\"a\": [1,\n 2}", "2:3: this is not JSON"},
		{"a mistake in the second document", "a: 1\n---\nb: 2\n c: 3\n", `4:3: a ":" is not expected here`},
		{"a zero byte", "a: 1\nb: \x00", "2:4: a zero byte"},
		{"a control character", "a: é\a", "1:5: the control character U+0007"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := mistakes(test.yaml, Limits{})
			if !strings.HasPrefix(got, test.want) || !strings.HasSuffix(got, "[yaml-syntax]\n") {
				t.Errorf("mistakes are\n%swant\n%s... [yaml-syntax]", got, test.want)
			}
		})
	}
}

func TestParseRefusesWhatIsTooMuchOrNotText(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a: &a [x, x, x, x, x, x, x, x, x]\n")
	for _, c := range "bcdefghi" {
		fmt.Fprintf(&bomb, "%c: &%c [*%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c, *%[3]c]\n", c, c, c-1)
	}
	for _, test := range []struct {
		name, yaml string
		limits     Limits
		want       string
	}{
		{"a file over the limit", "a: 12345", Limits{Bytes: 5}, "1:1: the file has 8 bytes, at most 5 are read: split it [too-large]\n"},
		{"a byte that is not UTF-8", "a: 1\nb: \xe9", Limits{}, "2:4: the byte 0xE9 is not UTF-8: save the file as UTF-8 (iconv -t UTF-8) [not-utf8]\n"},
		{"UTF-16 with its mark", "\xff\xfea\x00", Limits{}, "1:1: the file is UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8) [not-utf8]\n"},
		{"UTF-16 without its mark", "a\x00:\x00 \x001\x00", Limits{}, "1:1: the file is UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8) [not-utf8]\n"},
		{"lists deeper than the limit", "a: [[[1]]]", Limits{Depth: 3}, "1:6: a[0][0]: lists and mappings are nested more than 3 levels deep [too-deep]\n"},
		{"lists deeper than the parser goes", "a:\n  " + strings.Repeat("[", 20000), Limits{}, "2:1: lists and mappings are nested too deep [too-deep]\n"},
		{"more values than the limit", "a: [1, 2, 3, 4]", Limits{Nodes: 4}, "1:11: a[2]: the document has more than 4 values: split it [too-large]\n"},
		{"a bomb of aliases", bomb.String(), Limits{}, "6:12: f[1]: with its aliases (*name) the document grows to more than 200000 values: write the values out, or use fewer aliases [alias-bomb]\n"},
		{"an alias within itself", "a: &x [1, *x]", Limits{}, "1:11: a[1]: *x stands inside of what it stands for: write the value out [alias-cycle]\n"},
		{"a merge within itself", "a: &x\n  <<: *x", Limits{}, "2:7: a[\"<<\"]: *x stands inside of what it stands for: write the value out [alias-cycle]\n"},
		{"a merge of text", "a:\n  <<: b", Limits{}, "2:7: a[\"<<\"]: \"<<\" merges mappings, such as *name or [*name, *other]; this is something else [wrong-type]\n"},
		{"a tag of one's own", "a: !include b.yaml\nb: !!binary eA==", Limits{}, `1:4: a: the tag !include means nothing here: remove it, or put text that begins with "!" in quotes [unknown-tag]` + "\n" +
			`2:4: b: the tag !!binary means nothing here: remove it, or put text that begins with "!" in quotes [unknown-tag]` + "\n"},
		{"a list as document", "- a", Limits{}, "1:1: keys with values are expected, not a list: remove the \"- \" [wrong-type]\n"},
		{"text as document", "a:b", Limits{}, "1:1: keys with values are expected, not the text \"a:b\": put a space after the \":\" [wrong-type]\n"},
		{"a template", "a: {{ .x }}", Limits{}, "1:5: a: a key must be text, not keys with values: put text that begins with { or [ in quotes [wrong-type]\n"},
		{"a value without key", "~: x", Limits{}, "1:1: there is no key before the \":\" [wrong-type]\n"},
		{"a key twice, and another twice", "a: 1\nb:\n  c: 1\n  \"c\": 2\na: 2\n", Limits{}, `4:3: b.c: "c" stands here a second time, first on line 3: keep one of them [duplicate-key]` + "\n" +
			`5:1: a: "a" stands here a second time, first on line 1: keep one of them [duplicate-key]` + "\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, mistakes(test.yaml, test.limits)); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseAccepts(t *testing.T) {
	for _, test := range []struct {
		name, yaml string
		want       any
	}{
		{"a mark of UTF-8", "\ufeffa: 1", map[string]any{"a": int64(1)}},
		{"CRLF", "a: 1\r\nb: x\r\n", map[string]any{"a": int64(1), "b": "x"}},
		{"JSON indented by tabs", "{\n\t\"a\":\t[1, 2.5, true, null],\n\t\"b\": {\"c\": \"x\"}\n}\n", map[string]any{"a": []any{int64(1), 2.5, true, nil}, "b": map[string]any{"c": "x"}}},
		{"aliases and merges, in which what is written wins", "a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc:\n  <<: [*a, *b]\n  y: 3\nd: *b", map[string]any{
			"a": map[string]any{"x": int64(1), "y": int64(1)},
			"b": map[string]any{"x": int64(2), "z": int64(2)},
			"c": map[string]any{"x": int64(1), "y": int64(3), "z": int64(2)},
			"d": map[string]any{"x": int64(2), "z": int64(2)},
		}},
		{"numbers in every notation", "a: 0x10\nb: +5\nc: 1e3\nd: 18446744073709551615", map[string]any{"a": int64(16), "b": int64(5), "c": 1e3, "d": 18446744073709551615.0}},
		{"dates and YAML 1.1's booleans as text", "a: 2026-01-31\nb: yes\nc: on", map[string]any{"a": "2026-01-31", "b": "yes", "c": "on"}},
		{"YAML's own tags", "a: !!str 5\nb: !!int \"5\"\nc: !!seq []", map[string]any{"a": "5", "b": int64(5), "c": []any{}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			documents, errs := Parse([]byte(test.yaml), Limits{})
			if len(documents) != 1 || errs != nil {
				t.Fatalf("Parse gives %d documents and %v, want 1 and none", len(documents), errs)
			}
			var got any
			if errs := documents[0].Decode(&got, Options{}); errs != nil {
				t.Fatalf("Decode: %v", errs)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseLeavesEmptyDocumentsOutButCountsThem(t *testing.T) {
	type found struct {
		Index    int
		Position string
	}
	for _, test := range []struct {
		name, yaml string
		want       []found
	}{
		{"no content", "", nil},
		{"only comments", "# a\n# b\n", nil},
		{"only a separator", "---\n", nil},
		{"empty ones around", "---\n# nothing\n---\na: 1\n---\nnull\n--- \nb: 2\n---\n", []found{{1, "4:1"}, {3, "8:1"}}},
		{"the first without separator", "# c\na: 1\n---\nb: 2\n", []found{{0, "2:1"}, {1, "4:1"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			documents, errs := Parse([]byte(test.yaml), Limits{})
			if errs != nil {
				t.Fatalf("Parse: %v", errs)
			}
			var got []found
			for _, d := range documents {
				got = append(got, found{d.Index(), d.Position().String()})
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("documents (-want +got):\n%s", diff)
			}
		})
	}
}
