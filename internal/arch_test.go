// Package internal_test holds the architecture in place: who may import whom, which packages are pure, where the process
// environment may be read. The rules are those of docs/architecture.md; each message says what to do.
package internal_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = ".."
	module = "github.com/meshd/meshd/"
)

// ours is the import table: a package, by its path below internal/, and which of ours it may import. A package that is not
// here may not exist.
var ours = map[string][]string{
	"mesh":                   {"pmap"},
	"pmap":                   {},
	"strictyaml":             {},
	"config":                 {"strictyaml"},
	"keep":                   {"mesh"},
	"filereg":                {"mesh", "pmap", "strictyaml", "keep"},
	"consulreg":              {"mesh", "pmap", "keep"},
	"aggregate":              {"mesh", "pmap"},
	"aggregate/registrytest": {"mesh", "aggregate"},
	"envoy":                  {"mesh", "pmap"},
	"xds":                    {"mesh", "pmap", "envoy"},
	"admin":                  {"mesh", "aggregate", "xds"},
	"consultest":             {}, // for tests only
	"integration":            {}, // tests only
}

// theirs says who may import which module that is not ours. The longest prefix counts; a module that is not here may not be
// imported. Commands (package main) may import all of them.
var theirs = map[string][]string{
	"gopkg.in/yaml.v3":                                     {"strictyaml"},
	"github.com/fsnotify/fsnotify":                         {"filereg"},
	"istio.io/api":                                         {"filereg"},
	"github.com/hashicorp/consul":                          {"consulreg", "consultest"},
	"github.com/hashicorp/go-hclog":                        {"keep", "filereg", "consulreg", "aggregate", "xds", "admin"},
	"github.com/envoyproxy/go-control-plane/envoy":         {"envoy", "xds"},
	"github.com/envoyproxy/go-control-plane/envoy/service": {"xds"},
	"github.com/cncf/xds/go":                               {"envoy", "xds"},
	"google.golang.org/grpc":                               {"xds"},
	"google.golang.org/genproto":                           {"xds"},
	"google.golang.org/protobuf":                           {"filereg", "envoy", "xds", "admin"},
	"github.com/prometheus":                                {"admin"},
	"github.com/spf13/cobra":                               {},
	"golang.org/x/sync/errgroup":                           {},
	"golang.org/x/time/rate":                               {"xds"},
	"github.com/google/go-cmp":                             {"aggregate/registrytest"},
	"go.uber.org/goleak":                                   {"aggregate/registrytest"},
}

// pure names the packages that take values and return values: no clock, log, goroutine, file or network.
var pure = []string{"mesh", "pmap", "strictyaml", "config", "envoy"}

// source is one parsed Go file.
type source struct {
	name string // from the root of the tree
	pkg  string // mesh, aggregate/registrytest, cmd/meshd
	test bool
	main bool
	fset *token.FileSet
	file *ast.File
}

// A rule takes a file and returns what is wrong in it.
type rule func(source) []string

var rules = map[string]rule{
	"imports":     imports,
	"purity":      purity,
	"environment": environment,
	"sleep":       sleep,
}

func TestArchitecture(t *testing.T) {
	files := sources(t)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, s := range files {
				for _, finding := range rule(s) {
					t.Error(finding)
				}
			}
		})
	}
}

// TestRulesCatch shows each rule a file that breaks it, and one that does not.
func TestRulesCatch(t *testing.T) {
	for _, tt := range []struct {
		name, rule, path, src string
		want                  int
	}{
		{"mesh may not import envoy", "imports", "internal/mesh/a.go", `import "github.com/meshd/meshd/internal/envoy"`, 1},
		{"mesh may import pmap", "imports", "internal/mesh/a.go", `import "github.com/meshd/meshd/internal/pmap"`, 0},
		{"a test may import what it likes", "imports", "internal/mesh/a_test.go", `import "github.com/meshd/meshd/internal/envoy"`, 0},
		{"an unknown package", "imports", "internal/util/a.go", ``, 1},
		{"an unknown package below a known one", "imports", "internal/xds/cache/a.go", ``, 1},
		{"an unknown module", "imports", "internal/xds/a.go", `import "example.com/cache"`, 1},
		{"yaml outside strictyaml", "imports", "internal/filereg/a.go", `import "gopkg.in/yaml.v3"`, 1},
		{"yaml inside strictyaml", "imports", "internal/strictyaml/a.go", `import "gopkg.in/yaml.v3"`, 0},
		{"service stubs outside xds", "imports", "internal/envoy/a.go", `import "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"`, 1},
		{"resource types in envoy", "imports", "internal/envoy/a.go", `import "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"`, 0},
		{"only the command imports config", "imports", "internal/xds/a.go", `import "github.com/meshd/meshd/internal/config"`, 1},
		{"code in a package for tests", "imports", "internal/integration/a.go", ``, 1},
		{"a pure package that opens files", "purity", "internal/mesh/a.go", `import "os"; var _ = os.Open`, 1},
		{"a pure package that sets signals", "purity", "internal/config/a.go", `import "os/signal"; var _ = signal.Ignore`, 1},
		{"a pure package that logs", "purity", "internal/mesh/a.go", `import "log/slog"; var _ = slog.Info`, 1},
		{"a pure package with a clock, renamed", "purity", "internal/envoy/a.go", `import clock "time"; var _ = clock.Now`, 1},
		{"a pure package with a duration", "purity", "internal/envoy/a.go", `import "time"; const d = 5 * time.Second`, 0},
		{"a pure package with a goroutine", "purity", "internal/pmap/a.go", `func f() { go f() }`, 1},
		{"a pure package with a goroutine of a group", "purity", "internal/pmap/a.go", `import "sync"; func f(g *sync.WaitGroup) { g.Go(nil) }`, 1},
		{"a clock elsewhere", "purity", "internal/xds/a.go", `import "time"; var _ = time.Now`, 0},
		{"an init function", "environment", "internal/xds/a.go", `func init() {}`, 1},
		{"a method named init", "environment", "internal/xds/a.go", `type t int; func (t) init() {}`, 0},
		{"a look at the environment", "environment", "internal/xds/a.go", `import "os"; var x = os.Getenv("X")`, 1},
		{"a look at the environment by the command", "environment", "cmd/meshd/a.go", `import "os"; var x = os.Getenv("X")`, 0},
		{"a print", "environment", "internal/xds/a.go", `import "fmt"; func f() { fmt.Println(1) }`, 1},
		{"a write", "environment", "internal/xds/a.go", `import ("fmt"; "io"); func f(w io.Writer) { fmt.Fprintln(w, 1) }`, 0},
		{"a test that sleeps", "sleep", "internal/xds/a_test.go", `import "time"; func f() { time.Sleep(1) }`, 1},
		{"a test that sleeps on a fake clock", "sleep", "internal/xds/a_test.go", `import ("time"; _ "testing/synctest"); func f() { time.Sleep(1) }`, 0},
		{"an integration test that says why it sleeps", "sleep", "internal/integration/a_test.go", "import \"time\"; func f() {\n\t// Envoy tells nobody.\n\ttime.Sleep(1) }", 0},
		{"an integration test that does not", "sleep", "internal/integration/a_test.go", "import \"time\"; func f() {\n\ttime.Sleep(1) }", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := parse(tt.path, []byte("package a; "+tt.src))
			if err != nil {
				t.Fatal(err)
			}
			if got := rules[tt.rule](s); len(got) != tt.want {
				t.Errorf("%d findings, want %d: %q", len(got), tt.want, got)
			}
		})
	}
}

func imports(s source) []string {
	if s.test || s.main || strings.HasPrefix(s.pkg, "cmd/") {
		return nil
	}
	mayImport, known := ours[s.pkg]
	if !known {
		return []string{fmt.Sprintf("%s: package internal/%s is not in the import table; put its code into a package that is, or add a row to docs/architecture.md and to ours in internal/arch_test.go", s.name, s.pkg)}
	}
	if s.pkg == "integration" {
		return []string{s.name + ": internal/integration holds tests only; rename the file to _test.go or move the code"}
	}
	var found []string
	for _, p := range imported(s) {
		switch {
		case strings.HasPrefix(p, module):
			if !slices.Contains(mayImport, strings.TrimPrefix(p, module+"internal/")) {
				found = append(found, fmt.Sprintf("%s: %s may import of ours only %q, not %s; hand it in as a value or an interface that %s declares, or change the import table in docs/architecture.md and internal/arch_test.go", s.name, s.pkg, mayImport, p, path.Base(s.pkg)))
			}
		case strings.Contains(strings.Split(p, "/")[0], "."):
			owner := ""
			for prefix := range theirs {
				if (p == prefix || strings.HasPrefix(p, prefix+"/")) && len(prefix) > len(owner) {
					owner = prefix
				}
			}
			switch {
			case owner == "":
				found = append(found, fmt.Sprintf("%s: nobody imports %s yet; do without it, or add a row to theirs in internal/arch_test.go and say in docs/architecture.md who may import it", s.name, p))
			case !slices.Contains(theirs[owner], s.pkg):
				found = append(found, fmt.Sprintf("%s: %s may be imported only by %q and commands, not by %s; use what they offer", s.name, owner, theirs[owner], s.pkg))
			}
		}
	}
	return found
}

func purity(s source) []string {
	if s.test || !slices.Contains(pure, s.pkg) {
		return nil
	}
	var found []string
	for _, p := range imported(s) {
		for _, banned := range []string{"log", "os", "net/http", "math/rand", "github.com/hashicorp/go-hclog"} {
			if p == banned || strings.HasPrefix(p, banned+"/") {
				found = append(found, fmt.Sprintf("%s: %s is pure and may not import %s; take the value as an argument, return a problem instead of logging", s.name, s.pkg, p))
			}
		}
	}
	for _, name := range []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"} {
		for _, pos := range uses(s, "time", name) {
			found = append(found, fmt.Sprintf("%s: %s is pure and may not use time.%s; take the time as an argument", pos, s.pkg, name))
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		started := false
		switch n := n.(type) {
		case *ast.GoStmt:
			started = true
		case *ast.SelectorExpr: // sync.WaitGroup's
			started = n.Sel.Name == "Go"
		}
		if started {
			found = append(found, fmt.Sprintf("%s: %s is pure and may not start a goroutine; start it in the package that runs", s.fset.Position(n.Pos()), s.pkg))
		}
		return true
	})
	return found
}

// environment keeps what belongs to a process in the command: its environment, its standard output, its start-up.
func environment(s source) []string {
	if s.test {
		return nil
	}
	var found []string
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
			found = append(found, s.fset.Position(f.Pos()).String()+": no init functions; do it in New or in a variable's value")
		}
	}
	if s.main || strings.HasPrefix(s.pkg, "cmd/") {
		return found
	}
	for _, name := range []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"} {
		for _, pos := range uses(s, "os", name) {
			if s.pkg != "config" && s.pkg != "consultest" { // which finds the program for tests
				found = append(found, pos.String()+": os."+name+" is for cmd/meshd and config; take the value in Options")
			}
		}
	}
	for _, name := range []string{"Print", "Printf", "Println"} {
		for _, pos := range uses(s, "fmt", name) {
			found = append(found, pos.String()+": fmt."+name+" writes to the command's standard output; take an io.Writer or return the text")
		}
	}
	return found
}

// sleep allows time.Sleep in tests under the fake clock of testing/synctest, and in those of real programs with a comment beside it.
func sleep(s source) []string {
	if !s.test || slices.Contains(imported(s), "testing/synctest") {
		return nil
	}
	commented := map[int]bool{}
	for _, g := range s.file.Comments {
		commented[s.fset.Position(g.End()).Line] = true
	}
	var found []string
	for _, pos := range uses(s, "time", "Sleep") {
		if (s.pkg == "integration" || s.pkg == "consulreg") && (commented[pos.Line] || commented[pos.Line-1]) {
			continue
		}
		found = append(found, pos.String()+": a test does not sleep to wait; run it in synctest.Test, or wait for what should happen (in internal/integration and internal/consulreg a sleep is allowed with a comment beside it that says why)")
	}
	return found
}

// imported returns the import paths of a file, in its order.
func imported(s source) []string {
	var paths []string
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser took it for a string
		}
		paths = append(paths, p)
	}
	return paths
}

// uses returns the places where a file uses a name of a standard package, under whatever name it imports the package.
func uses(s source, pkg, name string) []token.Position {
	if !slices.Contains(imported(s), pkg) {
		return nil
	}
	local := pkg
	for _, spec := range s.file.Imports {
		if spec.Path.Value == strconv.Quote(pkg) && spec.Name != nil {
			local = spec.Name.Name
		}
	}
	var found []token.Position
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local {
				found = append(found, s.fset.Position(sel.Pos()))
			}
		}
		return true
	})
	return found
}

// parse parses a file whose name is given from the root of the tree; without src it is read.
func parse(name string, src []byte) (source, error) {
	if src == nil {
		var err error
		if src, err = os.ReadFile(filepath.Join(root, name)); err != nil {
			return source{}, err
		}
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, err
	}
	return source{
		name: name,
		pkg:  strings.TrimPrefix(path.Dir(name), "internal/"),
		test: strings.HasSuffix(name, "_test.go"),
		main: file.Name.Name == "main",
		fset: fset,
		file: file,
	}, nil
}

// sources parses all Go files of cmd/ and internal/, but for those of this package and those in testdata.
func sources(t *testing.T) []source {
	t.Helper()
	var files []source
	for _, top := range []string{"cmd", "internal"} {
		err := fs.WalkDir(os.DirFS(root), top, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(name, ".go") || path.Dir(name) == "internal":
				return nil
			}
			s, err := parse(name, nil)
			files = append(files, s)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	said := map[string]bool{}
	for _, s := range sources(t) {
		comment := strings.TrimSpace(s.file.Doc.Text())
		said[path.Dir(s.name)] = said[path.Dir(s.name)] || len(strings.Fields(comment)) > 4 && strings.Contains(comment, ".")
	}
	for pkg, ok := range said {
		if !ok {
			t.Errorf("%s has no package comment of a sentence; say above the package clause of its main file what it is for, what it promises and who owns its data", pkg)
		}
	}
}

var (
	fenced       = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	markdownLink = regexp.MustCompile(`\]\(<?([^)<>\s]+)`)
)

func TestLinksInTheDocsLeadSomewhere(t *testing.T) {
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join(root, "README.md")
	for _, doc := range append(docs, readme) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Errorf("%v; write it", err)
		}
		for _, link := range markdownLink.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			target, _, _ := strings.Cut(link[1], "#")
			if target == "" || strings.Contains(target, ":") { // within the page, or elsewhere
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), target)); err != nil {
				t.Errorf("%s links to %s, which is not there; mend the link or add the file", doc, link[1])
			}
		}
	}
}

// TestNothingNamesTheMachineItWasMadeOn keeps out what works only where it was written: paths of a work place, and hosts of
// package registries, which everybody sets for themselves. The words are in parts here so as not to be found.
func TestNothingNamesTheMachineItWasMadeOn(t *testing.T) {
	registries := []string{
		"pypi" + ".org", "pythonhosted" + ".org", "proxy.golang" + ".org", "sum.golang" + ".org", "registry.npmjs" + ".org",
		"crates" + ".io", "repo1.maven" + ".org", "repo.maven.apache" + ".org", "deb.debian" + ".org",
	}
	for i, r := range registries {
		registries[i] = regexp.QuoteMeta(r)
	}
	forbidden := regexp.MustCompile(`(^|[^\w.-])/wo` + `rk(/|\s|["'` + "`" + `.,;:)]|$)|` + strings.Join(registries, "|"))
	for _, name := range tracked(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // removed and not yet committed, or a link that a test needs broken
		}
		if bytes.IndexByte(text, 0) >= 0 {
			continue
		}
		for i, line := range strings.Split(string(text), "\n") {
			if word := forbidden.FindString(line); word != "" {
				t.Errorf("%s:%d: %q works only on some machines; write a relative path, or leave the host to the tool's own settings", name, i+1, word)
			}
		}
	}
}

// tracked returns the files of the tree, from its root: those that git knows or would add, or all where there is no git.
func tracked(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, ".git")); err == nil {
		out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
		if err != nil {
			t.Fatalf("git ls-files: %v; run the tests with git, in a checkout that belongs to you", err)
		}
		return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	}
	var names []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (name == ".tools" || name == "bin") {
			return fs.SkipDir
		}
		if err == nil && d.Type().IsRegular() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestTheUnitFitsWhatIsInstalled reads the unit as systemd does, and compares it with the files that it counts on.
func TestTheUnitFitsWhatIsInstalled(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	line := regexp.MustCompile(`^(\[(Unit|Service|Install)\]|[A-Z][A-Za-z]+=.*|#.*|)$`)
	settings := map[string][]string{}
	for i, l := range strings.Split(read("systemd/meshd.service"), "\n") {
		if !line.MatchString(l) {
			t.Errorf("systemd/meshd.service:%d: %q is not a comment, a section or Key=value", i+1, l)
		}
		if key, value, ok := strings.Cut(l, "="); ok && !strings.HasPrefix(l, "#") {
			settings[key] = append(settings[key], value)
		}
	}
	for key, want := range map[string]string{
		"Type":            "notify",
		"User":            "meshd",
		"ExecStart":       "/usr/bin/meshd serve", // scripts/install replaces the path
		"EnvironmentFile": "-/etc/default/meshd",  // scripts/install puts it there
		"StateDirectory":  "meshd",
	} {
		if got := settings[key]; !slices.Equal(got, []string{want}) {
			t.Errorf("systemd/meshd.service: %s is %q, not %q; change scripts/install and this test with it", key, got, want)
		}
	}
	if !strings.Contains(read("systemd/meshd.sysusers"), "\nu meshd ") {
		t.Error("systemd/meshd.sysusers does not make the user meshd, as whom the unit runs; add a line u meshd")
	}
	variable := regexp.MustCompile(`^#?[A-Z_]+=\S+$`)
	for i, l := range strings.Split(read("systemd/meshd.env"), "\n") {
		if l != "" && !strings.HasPrefix(l, "# ") && !variable.MatchString(l) {
			t.Errorf("systemd/meshd.env:%d: %q is neither text after \"# \" nor NAME=value, commented out or not", i+1, l)
		}
	}
}
