package filereg

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

// spy is a lookout with the kernel's events, of which a test has read all when it looks.
type spy struct {
	disk
	*lookout
	marks int
}

func newSpy(d disk) *spy {
	s := &spy{disk: d, lookout: &lookout{
		roots: []string{d.path("entries")}, interval: time.Hour, watch: &watch{open: fsnotify.NewWatcher}, named: map[string]bool{},
	}}
	d.t.Cleanup(s.watch.close)
	s.look(nil, time.Now())
	return s
}

// compare looks, and sees to it that everything is found to be as it is. It tells whether all was looked at.
func (s *spy) compare(step string) (whole bool) {
	s.t.Helper()
	s.marks++
	mark := s.path(fmt.Sprintf("mark-%d", s.marks)) // the folder above is watched too
	s.check(os.WriteFile(mark, nil, 0o600))
	s.check(os.Remove(mark))
	for e := range s.watch.kernel.Events {
		s.hear(e)
		if e.Name == mark && e.Has(fsnotify.Remove) {
			break
		}
	}
	before := s.whole
	got := s.look(nil, time.Now())
	want := look(s.roots)
	facts := func(w *walk) []any { return []any{w.files, w.linked, w.folders, w.places} }
	options := cmp.AllowUnexported(stamp{}, fileID{}, folder{}, place{})
	if diff := cmp.Diff(facts(want), facts(got), options); diff != "" {
		s.t.Fatalf("%s: (-want +got)\n%s", step, diff)
	}
	return s.whole != before
}

func TestLookout(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setup func(disk)
		move  func(disk)
		whole bool // all must be looked at
	}{
		{name: "a file that is written to", move: func(d disk) { d.write("entries/pay.yaml", "# other") }},
		{name: "a file that another replaces", move: func(d disk) {
			d.write("entries/pay.yaml.new", "# other")
			d.rename("entries/pay.yaml.new", "entries/pay.yaml")
		}},
		{name: "hidden files, and files of other names", move: func(d disk) {
			d.write("entries/.pay.yaml.swp", "# other")
			d.write("entries/pay.yaml~", "# other")
		}},
		{name: "a file that comes and goes", move: func(d disk) {
			d.write("entries/shop.yaml", "# other")
			d.remove("entries/shop.yaml")
		}},
		{name: "a new file", move: func(d disk) { d.write("entries/shop.yaml", "# other") }, whole: true},
		{name: "a file that is given a hidden name too", move: func(d disk) {
			d.check(os.Link(d.path("entries/pay.yaml"), d.path("entries/.pay.yaml")))
		}, whole: true},
		{name: "a file that is removed", move: func(d disk) { d.remove("entries/pay.yaml") }, whole: true},
		{name: "a new folder", move: func(d disk) { d.write("entries/sub/shop.yaml", "# other") }, whole: true},
		{name: "a folder that becomes unreadable, or would for others than root", setup: func(d disk) { d.mkdir("entries/sub") }, move: func(d disk) {
			d.check(os.Chmod(d.path("entries/sub"), 0))
		}, whole: true},
		{name: "a folder that another replaces", setup: func(d disk) {
			d.write("entries/sub/shop.yaml", "# one")
			d.write("other/shop.yaml", "# other")
		}, move: func(d disk) {
			d.rename("entries/sub", "aside")
			d.rename("other", "entries/sub")
		}, whole: true},
		{name: "the way to the folder", move: func(d disk) {
			d.rename("entries", "aside")
			d.write("entries/shop.yaml", "# other")
		}, whole: true},
		{name: "a link in place of a file", setup: func(d disk) { d.write("store", "# other") }, move: func(d disk) { d.link("../store", "entries/pay.yaml") }, whole: true},
		{name: "a file with a link to it beside it", setup: func(d disk) { d.link("pay.yaml", "entries/shop.yaml") }, move: func(d disk) {
			d.write("entries/pay.yaml", "# other")
		}, whole: true},
		{name: "a file of two names", setup: func(d disk) { d.check(os.Link(d.path("entries/pay.yaml"), d.path("entries/shop.yaml"))) }, move: func(d disk) {
			d.write("entries/pay.yaml", "# other")
		}, whole: true},
		{name: "a folder that a link leads to", setup: func(d disk) {
			d.rename("entries", "v1")
			d.link("v1", "entries")
		}, move: func(d disk) { d.write("v1/pay.yaml", "# other") }, whole: true},
		{name: "a folder in place of a file", move: func(d disk) {
			d.remove("entries/pay.yaml")
			d.mkdir("entries/pay.yaml")
		}, whole: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			if tt.setup != nil {
				tt.setup(d)
			}
			s := newSpy(d)
			tt.move(d)
			if whole := s.compare(tt.name); whole != tt.whole {
				t.Errorf("everything was looked at: %t", whole)
			}
		})
	}
}

func TestLookoutInDoubt(t *testing.T) {
	d := newDisk(t)
	s := newSpy(d)
	if s.compare("nothing") {
		t.Error("everything was looked at though nothing moved")
	}
	s.doubt()
	if !s.compare("doubt") {
		t.Error("not everything was looked at in doubt")
	}
	d.check(os.Link(d.path("entries/pay.yaml"), d.path("pay"))) // of which the kernel says nothing
	d.write("pay", "# other")
	s.whole = s.whole.Add(-s.interval)
	if !s.compare("interval") {
		t.Error("not everything was looked at after the interval")
	}
	d.mkdir("empty") // as when a file system is mounted, of which the kernel says nothing
	s.look(nil, time.Now())
	s.watch.close()
	d.rename("entries", "aside")
	d.rename("empty", "entries")
	before := s.whole
	if s.look([]string{d.path("entries/pay.yaml")}, time.Now()); s.whole == before {
		t.Error("not everything was looked at though the folder is another")
	}
}

// TestLookoutAtRandom moves this and that.
func TestLookoutAtRandom(t *testing.T) {
	d := newDisk(t)
	s := newSpy(d)
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	file := func() string {
		return filepath.Join("entries", one("", "a", "b", "a/c"), one("pay.yaml", "shop.json", "tmp", ".pay.yaml", "x.yml"))
	}
	folder := func() string { return filepath.Join("entries", one("a", "b", "a/c", "a/x.yml")) }
	moves := []func(){ // some of which cannot be made
		func() { _ = os.WriteFile(d.path(file()), fmt.Append(nil, random.Int()), 0o600) },
		func() { _ = os.Rename(d.path(file()), d.path(file())) },
		func() { _ = os.Remove(d.path(file())) },
		func() { _ = os.Chmod(d.path(file()), 0o644) },
		func() { _ = os.Truncate(d.path(file()), 0) },
		func() { _ = os.Mkdir(d.path(folder()), 0o700) },
		func() { _ = os.Rename(d.path(folder()), d.path(folder())) },
		func() {
			switch random.IntN(20) {
			case 0:
				_ = os.RemoveAll(d.path(folder()))
			case 1:
				_ = os.Link(d.path(file()), d.path(file()))
			case 2:
				_ = os.Symlink(filepath.Base(file()), d.path(file()))
			}
		},
	}
	parts := 0
	for i := range 2000 {
		for range 1 + random.IntN(3) {
			moves[random.IntN(len(moves))]()
		}
		if !s.compare(fmt.Sprintf("seed %d, step %d", seed, i)) {
			parts++
		}
		if i%200 == 199 {
			d.remove("entries")
			d.write("entries/pay.yaml", "# anew")
			s.doubt()
			s.look(nil, time.Now())
		}
	}
	if parts < 100 {
		t.Errorf("only %d times not everything was looked at", parts)
	}
}
