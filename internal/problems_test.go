package internal_test

import (
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/meshd/meshd/docs"
)

// TestEveryCodeIsExplained compares the codes of problems in the source with the page that explains them.
func TestEveryCodeIsExplained(t *testing.T) {
	codes, complaints := codesOf(sources(t))
	for _, c := range complaints {
		t.Error(c)
	}
	if len(codes) < 50 {
		t.Errorf("only %d codes in the source; are they found?", len(codes))
	}
	explained := map[string]bool{}
	last := ""
	for p := range docs.Problems() {
		switch {
		case explained[p.Code]:
			t.Errorf("docs/problems.md explains %s twice; keep one", p.Code)
		case p.Code < last:
			t.Errorf("docs/problems.md: %s stands after %s; keep the alphabetical order", p.Code, last)
		}
		explained[p.Code], last = true, p.Code
		if codes[p.Code] == "" {
			t.Errorf("docs/problems.md explains %s, which no problem has; remove the section, or mend the code's spelling", p.Code)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		if !explained[code] {
			t.Errorf("%s: docs/problems.md does not explain %s; add a section with its meaning, an example and the remedy", codes[code], code)
		}
	}
}

// taker is a function that is given a code, known by its package, its name and its number of parameters.
type taker struct {
	pkg, name string
	params    int
	variadic  bool // besides, any number of them
}

// codesOf finds the codes of problems, with where each is said first, and where one is given in a way that hides it.
//
// A code is what is given for a field named Code, or to a parameter named code: text, a constant whose name begins with
// Code, or somebody else's field or parameter of these names. Constants that are named so and hold text are all codes.
func codesOf(files []source) (codes map[string]string, complaints []string) {
	codes = map[string]string{}
	note := func(s source, e ast.Expr) bool {
		code, ok := codeText(e)
		if ok && codes[code] == "" {
			codes[code] = s.fset.Position(e.Pos()).String()
		}
		return ok || isCode(nameOf(e))
	}
	files = slices.DeleteFunc(slices.Clone(files), func(s source) bool { return s.test })
	takers := map[taker][]int{} // which of the parameters it may be; methods of several types may have one name
	for _, s := range files {
		ast.Inspect(s.file, func(n ast.Node) bool { return takesCode(s.pkg, n, takers) })
	}
	for _, s := range files {
		hidden := func(at ast.Expr) {
			complaints = append(complaints, s.fset.Position(at.Pos()).String()+": this test cannot see which code this is; write it as text, or as a constant whose name begins with Code")
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.KeyValueExpr:
				if nameOf(x.Key) == "Code" && !note(s, x.Value) {
					hidden(x.Value)
				}
			case *ast.ValueSpec:
				for i, name := range x.Names {
					if isCode(name.Name) && i < len(x.Values) {
						note(s, x.Values[i])
					}
				}
			case *ast.CallExpr:
				var taking, seen bool
				for of, places := range takers {
					if of.pkg == s.pkg && of.name == nameOf(x.Fun) && (of.params == len(x.Args) || of.params < len(x.Args) && of.variadic) {
						for _, i := range places {
							taking, seen = true, note(s, x.Args[i]) || seen
						}
					}
				}
				if taking && !seen {
					hidden(x)
				}
			}
			return true
		})
	}
	return codes, complaints
}

var codeForm = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)

// codeText is the code that an expression is, if it is text.
func codeText(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	code, _ := strconv.Unquote(lit.Value) // the parser took it for a string
	return code, codeForm.MatchString(code)
}

// isCode tells whether something of this name holds a code.
func isCode(name string) bool { return name == "code" || strings.HasPrefix(name, "Code") }

// takesCode notes a function that has a parameter named code.
func takesCode(pkg string, n ast.Node, takers map[taker][]int) bool {
	note := func(name string, f *ast.FuncType) {
		t := taker{pkg: pkg, name: name}
		var places []int
		for _, field := range f.Params.List {
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				t.variadic = true
				break
			}
			for _, p := range field.Names {
				if p.Name == "code" && nameOf(field.Type) == "string" {
					places = append(places, t.params)
				}
				t.params++
			}
		}
		if len(places) > 0 {
			takers[t] = append(takers[t], places...)
		}
	}
	switch x := n.(type) {
	case *ast.FuncDecl:
		note(x.Name.Name, x.Type)
	case *ast.AssignStmt:
		for i, right := range x.Rhs {
			if f, ok := right.(*ast.FuncLit); ok && len(x.Lhs) == len(x.Rhs) {
				note(nameOf(x.Lhs[i]), f.Type)
			}
		}
	}
	return true
}

// nameOf is the last name of a name.
func nameOf(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

// TestCodesAreFound shows how codes may be written.
func TestCodesAreFound(t *testing.T) {
	for _, tt := range []struct {
		name, src, want string
		complaints      int
	}{
		{"a field", `var p = P{Code: "a-b"}`, "a-b", 0},
		{"a constant", `const CodeX = "a-b"; var p = P{1, CodeX}`, "a-b", 0},
		{"a parameter", `func refuse(path, code string) P { return P{Code: code} }; var p = refuse("", "a-b")`, "a-b", 0},
		{"a method", `func (r R) refuse(code, path string) {}; func f(r R) { r.refuse("a-b", "") }`, "a-b", 0},
		{"a function within a function", `func f() { keep := func(path, code string) {}; keep("", "a-b") }`, "a-b", 0},
		{"one that is handed on", `func f(e E) P { return P{Code: e.Code} }`, "", 0},
		{"another constant", `const x = "a-b"; var p = P{Code: x}`, "", 1},
		{"one that is put together", `func warn(code string) {}; func f(s string) { warn("a-" + s) }`, "", 1},
		{"two methods of one name", `func (r R) problem(n int, code string) {}; func (k K) problem(code, text string) {}; func f(r R, k K) { r.problem(1, "a-b"); k.problem("c-d", "some text") }`, "a-b c-d", 0},
		{"a code of something else", `func f(code int) {}; func g() { f(2) }`, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := parse("internal/mesh/a.go", []byte("package a; "+tt.src))
			if err != nil {
				t.Fatal(err)
			}
			codes, complaints := codesOf([]source{s})
			if got := strings.Join(slices.Sorted(maps.Keys(codes)), " "); got != tt.want || len(complaints) != tt.complaints {
				t.Errorf("codes are %q, want %q; %d complaints, want %d: %q", got, tt.want, len(complaints), tt.complaints, complaints)
			}
		})
	}
}
