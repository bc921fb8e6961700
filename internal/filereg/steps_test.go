package filereg

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

// TestLoadByStepsIsLoadFromNothing edits files at random. Each state is compared with one that is made from nothing but the files and
// the earlier versions that are served, and so is the state that follows from either.
func TestLoadByStepsIsLoadFromNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := NewState("files")
		files := map[string]File{}
		for range rapid.IntRange(1, 15).Draw(t, "steps") {
			for range rapid.IntRange(1, 2).Draw(t, "edits") {
				f := drawFile(t)
				if files[f.Path] = f; rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
					delete(files, f.Path)
				}
			}
			var all []File
			for _, f := range files {
				all = append(all, f)
			}
			scratch := Load(restarted(t, state), all)
			state = Load(state, all)
			for _, of := range []*State{scratch, restarted(t, state)} {
				if d := gocmp.Diff(describe(of.Catalog()), describe(state.Catalog())); d != "" {
					t.Fatalf("(-from nothing +by steps):\n%s", d)
				}
				if d := gocmp.Diff(indexed(of), indexed(state)); d != "" {
					t.Fatalf("indexes (-from nothing +by steps):\n%s", d)
				}
			}
			if again := Load(state, slices.Clone(all)); again != state {
				t.Fatal("the same files give another state")
			}
		}
	})
}

// drawFile is a file of some documents, or one that says nothing.
func drawFile(t *rapid.T) File {
	f := File{Path: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "path")}
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0:
		f.Err = errors.New("input/output error")
	case 1:
		f.Data = []byte(rapid.SampledFrom([]string{"", " \n", "# nothing\n", "a: [\n"}).Draw(t, "text"))
	default:
		texts := rapid.SliceOfN(rapid.Custom(drawDocument), 1, 3).Draw(t, "documents")
		text := strings.Join(texts, "---\n")
		if rapid.Bool().Draw(t, "list") {
			text = listText(texts...)
		}
		f.Data = []byte(text)
	}
	return f
}

// drawDocument is a document of which others of the same name or host may be.
func drawDocument(t *rapid.T) string {
	one := func(of ...string) string { return rapid.SampledFrom(of).Draw(t, "word") }
	host, address := one("pay", "shop"), one("192.0.2.1", "192.0.2.2", "192.0.2.300")
	text := entryText(host, address)
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		text = strings.Replace(text, fmt.Sprintf("endpoints: [{address: %q}]", address), one(
			"workloadSelector: {labels: {app: pay}}", "workloadSelector: {labels: {app: pay, version: v1}}", "workloadSelector: {labels: {}}"), 1)
	case 1:
		text = fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s}\nspec: {address: %s, labels: {app: %s, version: %s}}\n",
			host, address, one("pay", "shop"), one("v1", "v2"))
	}
	return strings.NewReplacer(rapid.SampledFrom([][]string{
		nil, nil, nil,
		{"{name: " + host + "}", "{name: " + one("pay", "shop", "pay2") + "}"},
		{"{name: " + host + "}", "{name: " + host + ", namespace: shop}"},
		{"{name: " + host + "}", "{labels: {a: b}}"},
		{"kind: ", "kind: x"},
		{"kind: ServiceEntry", "kind: Gateway"},
		{"STATIC", "DNS"},
	}).Draw(t, "replace")...).Replace(text)
}

// indexed is what a state finds things by.
func indexed(s *State) (all []string) {
	all = append(all, groups(s.named)...)
	all = append(all, groups(s.definitions)...)
	all = append(all, groups(s.workloads)...)
	all = append(all, groups(s.selectors)...)
	for about := range s.findings.All() {
		all = append(all, fmt.Sprint(about))
	}
	return all
}

func groups[K pmap.Key[K], L pmap.Key[L], V comparable](x index[K, L, V]) (all []string) {
	for k, group := range x.groups.All() {
		for l := range group.All() {
			all = append(all, fmt.Sprintf("%T %v: %v", x, k, l))
		}
	}
	return all
}

// TestALookAtSomeIsALookAtAll moves files at random, as a tree sees it that is told which files these may be, and one that is not.
func TestALookAtSomeIsALookAtAll(t *testing.T) {
	const root = "entries"
	paths := []string{"entries/a.yaml", "entries/b.yaml", "entries/c.yaml"}
	o := New(hclog.NewNullLogger(), "files", nil, Options{}).options
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000_000, 0)
		files := map[string]stamp{}
		read := func(path string, _ int64) (File, stamp) {
			f, s := File{Path: path, Data: fmt.Append(nil, files[path])}, files[path]
			if s.size == 1 {
				f = File{Path: path, Err: errors.New("input/output error")}
			}
			return f, s
		}
		all, some := newTree("files", []string{root}, o), newTree("files", []string{root}, o)
		all.read, some.read = read, read
		inode := uint64(0)
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(rapid.SampledFrom([]time.Duration{5, 50, 150, 300, 1000, 2000, 5000}).Draw(t, "after") * time.Millisecond)
			doubt, named := step == 0, map[string]bool{}
			for range rapid.IntRange(0, 2).Draw(t, "moves") {
				path := rapid.SampledFrom(paths).Draw(t, "path")
				s, was := files[path]
				at := now.Add(-time.Millisecond).UnixNano()
				switch rapid.IntRange(0, 4).Draw(t, "move") {
				case 0:
					delete(files, path)
				case 1:
					files[path] = stamp{s.id, rapid.Int64Range(0, 2).Draw(t, "size"), at, at}
				default:
					inode++
					files[path] = stamp{fileID{1, inode}, rapid.Int64Range(0, 2).Draw(t, "size"), at - 1, at}
				}
				if _, is := files[path]; is != was {
					doubt = true
				}
				named[path] = true
				op := rapid.SampledFrom([]fsnotify.Op{fsnotify.Create, fsnotify.Write, fsnotify.Chmod}).Draw(t, "event")
				for _, tree := range []*tree{all, some} {
					tree.hear(fsnotify.Event{Name: path, Op: op})
				}
			}
			f := folder{id: fileID{1, 0}, files: len(files)}
			if rapid.IntRange(0, 19).Draw(t, "missing") == 0 {
				files, f, doubt = map[string]stamp{}, folder{err: fs.ErrNotExist}, true
			}
			for _, path := range some.unsettled {
				named[path] = true
			}
			if doubt || rapid.IntRange(0, 19).Draw(t, "doubt") == 0 {
				named = nil
			}
			tell := func(tree *tree, named map[string]bool) string {
				w := &walk{files: files, folders: map[string]folder{root: f}, named: named}
				believed, problems, again := tree.advance(w, now)
				slices.SortFunc(problems, mesh.Problem.Compare)
				slices.Sort(tree.unsettled)
				var text strings.Builder
				for path, f := range believed.All() {
					fmt.Fprintf(&text, "%s %q %v\n", path, f.Data, f.Err)
				}
				fmt.Fprintln(&text, problems, again, tree.unsettled)
				return text.String()
			}
			if d := gocmp.Diff(tell(all, nil), tell(some, named)); d != "" {
				t.Fatalf("step %d (-all +some):\n%s", step, d)
			}
		}
	})
}
