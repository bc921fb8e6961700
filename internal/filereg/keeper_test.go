package filereg

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
)

// keeping is what lets tests wait less, with a folder for the state.
func (d disk) keeping() Options {
	o := quick
	o.StateDir = d.path("state")
	o.RescanInterval = 200 * time.Millisecond // after which a write that has failed is tried again
	return o
}

// kept waits until this is on disk, in brief.
func (d disk) kept(want string) {
	d.t.Helper()
	var got string
	for deadline := time.Now().Add(promised); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		file, err := os.ReadFile(d.path("state/" + stateName))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		d.check(err)
		record, err := unpack(file)
		d.check(err)
		state, err := restore("files", record)
		d.check(err)
		if got = brief(state); got == want {
			return
		}
	}
	d.t.Fatalf("kept:\n%s\nwant:\n%s", got, want)
}

// since is when the only problem was first there.
func (r *running) since() time.Time {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last.Problems) != 1 {
		r.t.Fatalf("problems %v, want one", r.last.Problems)
	}
	return r.last.Problems[0].Since
}

func TestAProblemIsAsOldAfterARestart(t *testing.T) {
	d := newDisk(t)
	r := start(t, d.keeping(), nil, d.path("entries"))
	r.await("pay 192.0.2.1")
	info, err := os.Stat(d.path("entries/pay.yaml"))
	d.check(err)
	problem := "\n! invalid-address, serving its version of " + info.ModTime().Format(time.DateTime)
	d.write("entries/pay.yaml", entryText("pay", "192.0.2.300"))
	r.await("pay 192.0.2.1" + problem)
	first := r.since()
	if first.IsZero() {
		t.Error("the problem does not say since when")
	}
	d.write("entries/pay.yaml", "# moved down\n"+entryText("pay", "192.0.2.300"))
	d.write("entries/shop.yaml", entryText("shop", "192.0.2.7"))
	r.await("pay 192.0.2.1\nshop 192.0.2.7"+problem, "pay 192.0.2.1"+problem)
	if got := r.since(); !got.Equal(first) {
		t.Errorf("a line further down, it is there since %s, before since %s", got, first)
	}
	r.stop()
	r = start(t, d.keeping(), nil, d.path("entries"))
	r.await("pay 192.0.2.1\nshop 192.0.2.7" + problem)
	if got := r.since(); !got.Equal(first) {
		t.Errorf("after a restart it is there since %s, before since %s", got, first)
	}
}

// TestRestart changes files while nothing runs. What is published first is what an uninterrupted run would have given.
func TestRestart(t *testing.T) {
	const (
		file = "entries/pay.yaml"
		one  = "pay 192.0.2.1\nshop 192.0.2.7"
	)
	bad := entryText("pay", "192.0.2.300")
	for _, tt := range []struct {
		name  string
		while func(disk) // nothing runs
		want  string
		then  func(disk, *running)
	}{
		{name: "nothing has changed", while: func(disk) {}, want: one},
		{name: "a document has become wrong", while: func(d disk) { d.write(file, bad) }, want: one + "\n! invalid-address, serving its version of TIME", then: func(d disk, r *running) {
			d.write(file, entryText("pay", "192.0.2.2"))
			r.await("pay 192.0.2.2\nshop 192.0.2.7")
		}},
		{name: "the syntax of a file has broken", while: func(d disk) { d.write(file, "a: [") }, want: one + "\n! yaml-syntax, serving what it gave last: ServiceEntry default/pay"},
		{name: "a file has been emptied, as by a crash", while: func(d disk) { d.write(file, "") }, want: one + "\n! file-empty, serving what it gave last: ServiceEntry default/pay"},
		{name: "a file cannot be read", while: func(d disk) { d.link("pay.yaml", file) }, want: one + "\n! file-unreadable, serving what it gave last: ServiceEntry default/pay"},
		{name: "the folder is missing", while: func(d disk) { d.rename("entries", "aside") }, want: one + "\n! folder-missing, serving what it held", then: func(d disk, r *running) {
			d.write("aside/pay.yaml", entryText("pay", "192.0.2.2"))
			d.rename("aside", "entries")
			r.await("pay 192.0.2.2\nshop 192.0.2.7", one)
		}},
		{name: "the folder is empty, as before it is mounted", while: func(d disk) {
			d.rename("entries", "aside")
			d.mkdir("entries")
		}, want: one + "\n! folder-replaced, serving what it held", then: func(d disk, r *running) {
			r.still()
			d.write("entries/none.yaml", "# meant so")
			r.await("", one)
		}},
		{name: "all files were removed, which nobody saw", while: func(d disk) {
			d.remove(file)
			d.remove("entries/sub/shop.yaml")
		}, want: one + "\n! folder-replaced, serving what it held\n! folder-replaced, serving what it held", then: func(d disk, r *running) {
			r.still()
		}},
		{name: "the folder has become a file", while: func(d disk) {
			d.rename("entries", "aside")
			d.write("entries", "text")
		}, want: one + "\n! folder-unreadable, serving what it held"},
		{name: "a folder below is empty, as before it is mounted", while: func(d disk) { d.remove("entries/sub/shop.yaml") }, want: one + "\n! folder-replaced, serving what it held", then: func(d disk, r *running) {
			d.remove("entries/sub")
			r.await("pay 192.0.2.1", one)
		}},
		{name: "a file has been removed", while: func(d disk) { d.remove(file) }, want: "shop 192.0.2.7"},
		{name: "a folder below has been removed", while: func(d disk) { d.remove("entries/sub") }, want: "pay 192.0.2.1"},
		{name: "a document has been removed", while: func(d disk) { d.write(file, "# none\n") }, want: "shop 192.0.2.7"},
		{name: "a file has changed", while: func(d disk) { d.write(file, entryText("pay", "192.0.2.2")) }, want: "pay 192.0.2.2\nshop 192.0.2.7"},
		{name: "a document has moved and become wrong", while: func(d disk) {
			d.remove(file)
			d.write("entries/other.yaml", bad)
		}, want: one + "\n! invalid-address, serving its version of TIME"},
	} {
		for _, end := range []string{"stopped", "killed"} {
			t.Run(tt.name+", "+end, func(t *testing.T) {
				t.Parallel()
				d := newDisk(t)
				d.write("entries/sub/shop.yaml", entryText("shop", "192.0.2.7"))
				o := d.keeping()
				r := start(t, o, nil, d.path("entries"))
				r.await(one)
				if end == "stopped" {
					r.stop()
				} else { // what is on disk is all that is left
					d.kept(one)
					d.check(os.CopyFS(d.path("copy"), os.DirFS(d.path("state"))))
					o.StateDir = d.path("copy")
					r.stop()
				}
				info, err := os.Stat(d.path(file))
				d.check(err)
				tt.while(d)
				r = start(t, o, nil, d.path("entries"))
				r.await(strings.ReplaceAll(tt.want, "TIME", info.ModTime().Format(time.DateTime)))
				if tt.then != nil {
					tt.then(d, r)
				}
			})
		}
	}
}

func TestRestartsInARow(t *testing.T) {
	d := newDisk(t)
	o := d.keeping()
	run := func(text, want string) {
		t.Helper()
		d.write("entries/pay.yaml", text)
		r := start(t, o, nil, d.path("entries"))
		defer r.stop()
		got := <-r.published
		if got, _, _ = strings.Cut(got, ", serving"); got != want {
			t.Errorf("published first:\n%s\nwant:\n%s", got, want)
		}
	}
	shop := "---\n" + entryText("shop", "192.0.2.7")
	run(entryText("pay", "192.0.2.1")+shop, "pay 192.0.2.1\nshop 192.0.2.7")
	run(entryText("pay", "192.0.2.300")+shop, "pay 192.0.2.1\nshop 192.0.2.7\n! invalid-address")
	run("---\n"+entryText("pay", "192.0.2.301")+strings.Replace(shop, "2.7", "2.8", 1), "pay 192.0.2.1\nshop 192.0.2.8\n! invalid-address")
	run("a: [", "pay 192.0.2.1\nshop 192.0.2.8\n! yaml-syntax")
	run("", "pay 192.0.2.1\nshop 192.0.2.8\n! file-empty")
	run(entryText("pay", "192.0.2.300"), "pay 192.0.2.1\n! invalid-address")
	run(entryText("pay", "192.0.2.3"), "pay 192.0.2.3")
}

func TestAFolderThatIsNoLongerAskedForIsGone(t *testing.T) {
	d := newDisk(t)
	d.write("more/shop.yaml", entryText("shop", "192.0.2.7"))
	r := start(t, d.keeping(), nil, d.path("entries"), d.path("more"))
	r.await("pay 192.0.2.1\nshop 192.0.2.7")
	r.stop()
	r = start(t, d.keeping(), nil, d.path("more"))
	r.await("shop 192.0.2.7")
}

func TestAStateThatCannotBeUsed(t *testing.T) {
	record, err := Load(NewState("files"), []File{{Path: "x", Data: []byte(entryText("x", "192.0.2.9"))}}).record()
	if err != nil {
		t.Fatal(err)
	}
	good, err := pack(record)
	if err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(d disk, path string){
		"damaged":   func(d disk, path string) { d.write(path, string(good[:90])+"?"+string(good[91:])) },
		"empty":     func(d disk, path string) { d.write(path, "") },
		"something": func(d disk, path string) { d.write(path, strings.Repeat("x", 1000)) },
		"later":     func(d disk, path string) { d.write(path, strings.Replace(string(good), " 1 ", " 2 ", 1)) },
		"a folder":  func(d disk, path string) { d.mkdir(path) },
		"no record": func(d disk, path string) { file, err := pack([]byte("[]")); d.check(err); d.write(path, string(file)) },
		"no readings": func(d disk, path string) {
			file, err := pack([]byte(`{"held": [{"past": 1}]}`))
			d.check(err)
			d.write(path, string(file))
		},
		"to itself": func(d disk, path string) { d.link(stateName, path) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			put(d, "state/"+stateName)
			r := start(t, d.keeping(), nil, d.path("entries"))
			r.await("pay 192.0.2.1\n! state-unreadable")
			d.kept("pay 192.0.2.1")
			if _, err := os.Lstat(d.path("state/" + stateName + ".bad")); err != nil {
				t.Error(err)
			}
			d.remove("state/" + stateName + ".bad")
			r.await("pay 192.0.2.1")
		})
	}
}

func TestAStateThatCannotBeWritten(t *testing.T) {
	d := newDisk(t)
	d.write("state", "a file where the folder should be")
	r := start(t, d.keeping(), nil, d.path("entries"))
	r.await("pay 192.0.2.1\n! state-not-saved", "pay 192.0.2.1")
	d.write("entries/pay.yaml", entryText("pay", "192.0.2.2"))
	r.await("pay 192.0.2.2\n! state-not-saved")
	d.remove("state")
	r.await("pay 192.0.2.2")
	d.kept("pay 192.0.2.2")
}

// TestKeeper has a disk of the test's own.
func TestKeeper(t *testing.T) {
	state := func(address string) *State {
		return Load(NewState("files"), []File{{Path: "a", Data: []byte(entryText("pay", address))}})
	}
	run := func(t *testing.T, write func(string, []byte) error) *keeper {
		k := newKeeper(hclog.NewNullLogger(), "files", Options{StateDir: t.TempDir(), RescanInterval: time.Millisecond})
		if write != nil {
			k.write = write
		}
		if s := k.load(); s.Entries() != 0 || len(k.problems(outcome{})) != 0 {
			t.Fatalf("a state and problems from nowhere: %v", k.problems(outcome{}))
		}
		var done sync.WaitGroup
		done.Go(func() { k.run(t.Context()) })
		t.Cleanup(func() { close(k.next); done.Wait() })
		return k
	}
	t.Run("a full disk is a problem until there is room", func(t *testing.T) {
		var full atomic.Bool
		full.Store(true)
		k := run(t, func(path string, data []byte) error {
			if full.Load() {
				return fmt.Errorf("write: %w", &fs.PathError{Op: "write", Path: path + ".1234", Err: syscall.ENOSPC})
			}
			return replaceFile(path, data)
		})
		k.keep(state("192.0.2.1"))
		problems := k.problems(<-k.outcome)
		if len(problems) != 1 || problems[0].Severity != mesh.Warning || problems[0].Code != "state-not-saved" || !strings.Contains(problems[0].Message, "no space left on device") || strings.Contains(problems[0].Message, "1234") {
			t.Fatalf("problems %v", problems)
		}
		full.Store(false)
		if last := <-k.outcome; last.failure != nil {
			t.Errorf("still fails: %v", last.failure)
		}
	})
	t.Run("what is on disk already is not written", func(t *testing.T) {
		writes := make(chan []byte, 10)
		k := run(t, func(_ string, data []byte) error { writes <- data; return nil })
		k.keep(state("192.0.2.1"))
		first := <-writes
		k.keep(state("192.0.2.1"))
		<-time.After(betweenSaves + betweenSaves/2) // until it must have been looked at
		k.keep(state("192.0.2.2"))
		if second := <-writes; len(writes) > 0 || bytes.Equal(first, second) {
			t.Error("the same state was written twice")
		}
	})
	t.Run("the newest state is the one that is written", func(t *testing.T) {
		var writes atomic.Int64
		k := newKeeper(hclog.NewNullLogger(), "files", Options{StateDir: t.TempDir()})
		k.write = func(path string, data []byte) error { writes.Add(1); return replaceFile(path, data) }
		var done sync.WaitGroup
		done.Go(func() { k.run(t.Context()) })
		for i := range 200 {
			k.keep(state(fmt.Sprintf("192.0.2.%d", i+1)))
		}
		close(k.next)
		done.Wait()
		if got := brief(k.load()); got != "pay 192.0.2.200" || writes.Load() > 3 {
			t.Errorf("%q was written last, of %d", got, writes.Load())
		}
	})
	t.Run("what a killed process left is removed", func(t *testing.T) {
		d := disk{t, t.TempDir()}
		old := stateName + ".123.new"
		d.write(old, "half")
		d.write(stateName+".124.new", "another process is at it")
		d.check(os.Chtimes(d.path(old), time.Time{}, time.Now().Add(-time.Hour)))
		newKeeper(hclog.NewNullLogger(), "files", Options{StateDir: d.folder}).load()
		left, err := filepath.Glob(d.path("*"))
		d.check(err)
		if len(left) != 1 || !strings.HasSuffix(left[0], ".124.new") {
			t.Errorf("left: %q", left)
		}
	})
	t.Run("nothing is kept without a folder", func(t *testing.T) {
		k := newKeeper(hclog.NewNullLogger(), "files", Options{})
		k.keep(k.load())
		close(k.next)
		k.run(t.Context())
	})
}
