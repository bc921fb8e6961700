package filereg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/pmap"
)

// promised is how long after the last write a change is served, with what a busy machine may add to the promised second.
const promised = 3 * time.Second

// running is a registry that runs until the test ends.
type running struct {
	t         *testing.T
	registry  *Registry
	published chan string // what each catalog says in brief
	stop      func()      // cleanly; also done when the test ends

	mu   sync.Mutex
	all  []string
	last mesh.Catalog
}

// start runs a registry of folders.
func start(t *testing.T, o Options, open func() (*fsnotify.Watcher, error), folders ...string) *running {
	t.Helper()
	r := &running{t: t, registry: New(hclog.NewNullLogger(), "files", folders, o), published: make(chan string, 1000)}
	if open != nil {
		r.registry.open = open
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.registry.Run(ctx, r.publish) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *running) publish(c mesh.Catalog) {
	text := brief(&State{catalog: c})
	if c.Unread {
		text = "unread\n" + text
	}
	r.mu.Lock()
	r.all, r.last = append(r.all, text), c
	r.mu.Unlock()
	r.published <- text
}

// await waits until this is published, and nothing but this and what is allowed meanwhile.
func (r *running) await(want string, allowed ...string) {
	r.t.Helper()
	deadline := time.After(promised)
	for {
		select {
		case got := <-r.published:
			if got == want {
				return
			}
			if !slices.Contains(allowed, got) {
				r.t.Fatalf("published:\n%s\nwant:\n%s", got, want)
			}
		case <-deadline:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("not published within %s:\n%s\nbut:\n%q", promised, want, r.all)
		}
	}
}

// still sees to it that nothing is published for as long as it takes to believe something.
func (r *running) still() {
	r.t.Helper()
	select {
	case got := <-r.published:
		r.t.Fatalf("published:\n%s", got)
	case <-time.After(2 * (r.registry.options.Debounce + r.registry.options.Settle)):
	}
}

// disk does to files what programs do.
type disk struct {
	t      *testing.T
	folder string
}

func newDisk(t *testing.T) disk {
	d := disk{t, t.TempDir()}
	d.write("entries/pay.yaml", entryText("pay", "192.0.2.1"))
	return d
}

func (d disk) path(name string) string { return filepath.Join(d.folder, name) }

func (d disk) check(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d disk) mkdir(name string) { d.t.Helper(); d.check(os.MkdirAll(d.path(name), 0o755)) }

func (d disk) write(name, text string) {
	d.t.Helper()
	d.mkdir(filepath.Dir(name))
	d.check(os.WriteFile(d.path(name), []byte(text), 0o644))
}

func (d disk) rename(from, to string) { d.t.Helper(); d.check(os.Rename(d.path(from), d.path(to))) }
func (d disk) remove(name string)     { d.t.Helper(); d.check(os.RemoveAll(d.path(name))) }

// link makes a link, in place of one that is there.
func (d disk) link(target, name string) {
	d.t.Helper()
	d.mkdir(filepath.Dir(name))
	d.check(os.Symlink(target, d.path(name)+".new"))
	d.rename(name+".new", name)
}

// slowly writes a file with a pause after each line.
func (d disk) slowly(name, text string, flags int, pause time.Duration) {
	d.t.Helper()
	f, err := os.OpenFile(d.path(name), flags, 0o644)
	d.check(err)
	for line := range strings.Lines(text) {
		_, err := io.WriteString(f, line)
		d.check(err)
		<-time.After(pause)
	}
	d.check(f.Close())
}

// TestSave saves a file in the ways that programs do. Nothing may be published but what was there before and what is
// there in the end, which is "pay" at another address if nothing else is said.
func TestSave(t *testing.T) {
	const file, nothing = "entries/pay.yaml", "(nothing)"
	after := entryText("pay", "192.0.2.2")
	for _, tt := range []struct {
		name  string
		setup func(disk)
		save  func(disk)
		was   string
		want  string
	}{
		{name: "write in place", save: func(d disk) { d.write(file, after) }},
		{name: "truncate then write slowly", save: func(d disk) {
			two := after + "---\n" + entryText("shop", "192.0.2.7")
			d.slowly(file, two, os.O_WRONLY|os.O_TRUNC, 60*time.Millisecond)
		}, want: "pay 192.0.2.2\nshop 192.0.2.7"},
		{name: "append slowly", save: func(d disk) {
			d.slowly(file, "---\n"+entryText("shop", "192.0.2.7"), os.O_WRONLY|os.O_APPEND, 60*time.Millisecond)
		}, want: "pay 192.0.2.1\nshop 192.0.2.7"},
		{name: "rename over", save: func(d disk) {
			d.write("elsewhere", after)
			d.rename("elsewhere", file)
		}},
		{name: "rename over, again and again", save: func(d disk) {
			for range 20 {
				d.write("entries/sed1a2b3", after)
				d.rename("entries/sed1a2b3", file)
				<-time.After(20 * time.Millisecond)
			}
		}},
		{name: "vim with a backup", save: func(d disk) {
			d.write("entries/.pay.yaml.swp", "b0VIM")
			d.write("entries/4913", "")
			d.remove("entries/4913")
			d.rename(file, file+"~")
			<-time.After(50 * time.Millisecond)
			d.write(file, after)
			d.remove(file + "~")
			d.remove("entries/.pay.yaml.swp")
		}},
		{name: "vim without a backup", save: func(d disk) {
			d.write("entries/.pay.yaml.swp", "b0VIM")
			d.write(file+"~", entryText("pay", "192.0.2.1"))
			d.write(file, after)
			d.remove("entries/.pay.yaml.swp")
		}},
		{name: "emacs", save: func(d disk) {
			d.check(os.Symlink("user@host.1234:5678", d.path("entries/.#pay.yaml")))
			d.write("entries/#pay.yaml#", "half")
			d.rename(file, file+"~")
			d.write(file, after)
			d.remove("entries/#pay.yaml#")
			d.remove("entries/.#pay.yaml")
		}},
		{name: "VS Code", save: func(d disk) { d.slowly(file, after, os.O_WRONLY|os.O_TRUNC, 0) }},
		{name: "cp -r", save: func(d disk) {
			d.write("new/deep/shop.yaml", entryText("shop", "192.0.2.7"))
			d.check(os.CopyFS(d.path("entries/new"), os.DirFS(d.path("new"))))
		}, want: "pay 192.0.2.1\nshop 192.0.2.7"},
		{name: "rsync", save: func(d disk) {
			d.write("entries/.pay.yaml.Xy12Zw", after)
			old := time.Now().Add(-time.Hour)
			d.check(os.Chtimes(d.path("entries/.pay.yaml.Xy12Zw"), old, old))
			d.rename("entries/.pay.yaml.Xy12Zw", file)
		}},
		{name: "rsync --inplace", save: func(d disk) {
			d.slowly(file, after, os.O_WRONLY, 20*time.Millisecond)
			old := time.Now().Add(-time.Hour)
			d.check(os.Chtimes(d.path(file), old, old))
		}},
		{name: "git checkout", save: func(d disk) {
			d.remove(file)
			<-time.After(50 * time.Millisecond)
			d.write(file, after)
		}},
		{name: "a file that is a link, written in its place", setup: func(d disk) {
			d.write("store/pay", entryText("pay", "192.0.2.1"))
			d.remove(file)
			d.link("../store/pay", file)
		}, save: func(d disk) { d.write("store/pay", after) }},
		{name: "a file that is a link, to another file", setup: func(d disk) {
			d.write("store/pay", entryText("pay", "192.0.2.1"))
			d.remove(file)
			d.link("../store/pay", file)
		}, save: func(d disk) {
			d.write("store/pay2", after)
			d.link("../store/pay2", file)
		}},
		{name: "a folder that is a link, to another folder", setup: func(d disk) {
			d.rename("entries", "v1")
			d.link("v1", "entries")
		}, save: func(d disk) {
			d.write("v2/pay.yaml", after)
			d.link("v2", "entries")
		}},
		{name: "a folder below a link, which leads elsewhere", setup: func(d disk) {
			d.mkdir("etc-v1")
			d.rename("entries", "etc-v1/entries")
			d.link("etc-v1", "current")
			d.link("current/entries", "entries")
		}, save: func(d disk) {
			d.write("etc-v2/entries/pay.yaml", after)
			d.link("etc-v2", "current")
		}},
		{name: "a swap of ..data", setup: func(d disk) {
			d.write("entries/..v1/pay.yaml", entryText("pay", "192.0.2.1"))
			d.link("..v1", "entries/..data")
			d.link("..data/pay.yaml", file)
		}, save: func(d disk) {
			d.write("entries/..v2/pay.yaml", after)
			d.link("..v2", "entries/..data")
			d.remove("entries/..v1")
		}},
		{name: "a new folder with files in it", save: func(d disk) {
			d.write("aside/a/b/shop.json", `{"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": {"name": "shop"}, "spec": {"hosts": ["shop.mesh.internal"], "resolution": "STATIC"}}`)
			d.rename("aside/a", "entries/a")
		}, want: "pay 192.0.2.1\nshop"},
		{name: "a file in a folder below that is renamed", setup: func(d disk) {
			d.mkdir("entries/old")
			d.rename(file, "entries/old/pay.yaml")
		}, save: func(d disk) {
			d.rename("entries/old", "entries/new")
			d.write("entries/new/pay.yaml", after)
		}},
		{name: "hidden files and backups", save: func(d disk) {
			for _, name := range []string{".hidden.yaml", "pay.yaml~", "pay.yaml.bak", "pay.yaml.rpmnew", ".git/pay.yaml", "4913", "README.md", "pay"} {
				d.write("entries/"+name, entryText("shop", "192.0.2.7"))
			}
			d.write(file, after)
		}},
		{name: "a file that is moved", save: func(d disk) {
			d.rename(file, "entries/zzz.yml")
			d.write("entries/zzz.yml", after)
		}},
		{name: "a file that is removed", save: func(d disk) { d.remove(file) }, want: nothing},
		{name: "a folder below that is removed", setup: func(d disk) {
			d.write("entries/sub/shop.yaml", entryText("pay", "192.0.2.1"))
			d.rename(file, "entries/other.yaml")
			d.write("entries/other.yaml", entryText("other", "192.0.2.5"))
		}, save: func(d disk) { d.remove("entries/sub") }, was: "other 192.0.2.5\npay 192.0.2.1", want: "other 192.0.2.5"},
		{name: "chmod and touch, then a write", save: func(d disk) {
			d.check(os.Chmod(d.path(file), 0o600))
			d.check(os.Chtimes(d.path(file), time.Time{}, time.Now()))
			d.write(file, after)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			d.write("entries/stays/keep.yaml", "# so that the folder is never empty\n")
			if tt.setup != nil {
				tt.setup(d)
			}
			o := quick
			o.Settle = 150 * time.Millisecond // longer than the pauses of those that write slowly
			r := start(t, o, nil, d.path("entries"))
			r.await(cmp.Or(tt.was, "pay 192.0.2.1"))
			tt.save(d)
			r.await(strings.TrimPrefix(cmp.Or(tt.want, "pay 192.0.2.2"), nothing))
			r.still()
		})
	}
}

// quick lets tests wait less.
var quick = Options{RescanInterval: time.Hour, Debounce: 20 * time.Millisecond, Settle: 80 * time.Millisecond, EmptySettle: 300 * time.Millisecond}

func TestAChangeIsPublishedSoon(t *testing.T) {
	d := newDisk(t)
	r := start(t, Options{}, nil, d.path("entries"))
	r.await("pay 192.0.2.1")
	d.write("entries/pay.yaml", entryText("pay", "192.0.2.2"))
	written := time.Now()
	r.await("pay 192.0.2.2")
	if took := time.Since(written); took < 300*time.Millisecond {
		t.Errorf("published after %s; nothing may be believed so soon", took)
	}
}

func TestFolders(t *testing.T) {
	const one = "pay 192.0.2.1"
	for _, tt := range []struct {
		name string
		run  func(d disk, r *running)
	}{
		{"a folder that vanishes keeps what it held, until it is back", func(d disk, r *running) {
			r.await(one)
			d.rename("entries", "aside")
			r.await(one + "\n! folder-missing, serving what it held")
			d.write("aside/pay.yaml", entryText("pay", "192.0.2.2"))
			d.rename("aside", "entries")
			r.await("pay 192.0.2.2", one)
			d.write("entries/pay.yaml", entryText("pay", "192.0.2.3"))
			r.await("pay 192.0.2.3")
		}},
		{"a folder that is renamed and back at once is still watched", func(d disk, r *running) {
			r.await(one)
			d.rename("entries", "aside")
			d.rename("aside", "entries")
			r.still()
			d.write("entries/pay.yaml", entryText("pay", "192.0.2.2"))
			r.await("pay 192.0.2.2")
		}},
		{"a folder with another, empty one in its place, as when it is unmounted", func(d disk, r *running) {
			r.await(one)
			d.mkdir("empty")
			d.rename("entries", "aside")
			d.rename("empty", "entries")
			r.await(one+"\n! folder-replaced, serving what it held", one+"\n! folder-missing, serving what it held")
			r.still()
			d.write("entries/none.yaml", "# meant so")
			r.await("", one)
		}},
		{"a folder below with another, empty one in its place", func(d disk, r *running) {
			r.await(one)
			d.write("entries/sub/shop.yaml", entryText("shop", "192.0.2.7"))
			r.await(one + "\nshop 192.0.2.7")
			d.mkdir("empty")
			d.rename("entries/sub", "aside")
			d.rename("empty", "entries/sub")
			r.await(one + "\nshop 192.0.2.7\n! folder-replaced, serving what it held")
			d.remove("entries/sub")
			r.await(one, one+"\nshop 192.0.2.7")
		}},
		{"a folder that is emptied counts as empty after a while", func(d disk, r *running) {
			r.await(one)
			d.remove("entries/pay.yaml")
			r.await(one + "\n! folder-empty, serving what it held")
			r.await("", one)
		}},
		{"a folder that is emptied and filled again", func(d disk, r *running) {
			r.await(one)
			d.remove("entries/pay.yaml")
			r.await(one + "\n! folder-empty, serving what it held")
			d.write("entries/pay.yaml", entryText("pay", "192.0.2.2"))
			r.await("pay 192.0.2.2", one)
		}},
		{"a folder that becomes a file", func(d disk, r *running) {
			r.await(one)
			d.rename("entries", "aside")
			d.write("entries", "text")
			r.await(one+"\n! folder-unreadable, serving what it held", one+"\n! folder-missing, serving what it held")
		}},
		{"a file that cannot be read keeps what it gave", func(d disk, r *running) {
			r.await(one)
			d.link("pay.yaml", "entries/pay.yaml") // to itself: the kernel gives up
			r.await(one + "\n! file-unreadable, serving what it gave last: ServiceEntry default/pay")
			d.remove("entries/pay.yaml")
			d.write("entries/pay.yaml", entryText("pay", "192.0.2.2"))
			r.await("pay 192.0.2.2")
		}},
		{"a file that is too large keeps what it gave", func(d disk, r *running) {
			r.await(one)
			d.write("entries/pay.yaml", entryText("pay", "192.0.2.2")+strings.Repeat("#", 10_000))
			r.await(one + "\n! file-unreadable, serving what it gave last: ServiceEntry default/pay")
		}},
		{"an empty file keeps what it gave", func(d disk, r *running) {
			r.await(one)
			d.write("entries/pay.yaml", "")
			r.await(one + "\n! file-empty, serving what it gave last: ServiceEntry default/pay")
			d.write("entries/pay.yaml", "# meant so\n")
			r.await("")
		}},
		{"a link back to the folder is not followed for ever", func(d disk, r *running) {
			r.await(one)
			d.link("..", "entries/sub/back")
			d.write("entries/sub/shop.yaml", entryText("shop", "192.0.2.7"))
			r.await(one + "\nshop 192.0.2.7")
		}},
		{"a pipe is no file", func(d disk, r *running) {
			r.await(one)
			d.check(syscall.Mkfifo(d.path("entries/pipe.yaml"), 0o600))
			d.write("entries/pay.yaml", entryText("pay", "192.0.2.2"))
			r.await("pay 192.0.2.2")
		}},
		{"reload looks at once and reads all again", func(d disk, r *running) {
			r.await(one)
			r.registry.Reload()
			r.registry.Reload()
			r.still()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			o := quick
			o.MaxFileBytes = 10_000
			tt.run(d, start(t, o, nil, d.path("entries")))
		})
	}
}

func TestAFolderThatIsNotThereYet(t *testing.T) {
	d := disk{t, t.TempDir()}
	r := start(t, quick, nil, d.path("etc/meshd/entries"))
	r.await("unread\n! folder-missing")
	d.write("etc/meshd/entries/pay.yaml", entryText("pay", "192.0.2.1"))
	r.await("pay 192.0.2.1", "")
}

func TestSeveralFolders(t *testing.T) {
	d := newDisk(t)
	d.write("more/pay.yaml", entryText("pay", "192.0.2.2"))
	d.write("more/shop.yaml", entryText("shop", "192.0.2.7"))
	r := start(t, quick, nil, d.path("more"), d.path("entries"), d.path("entries"))
	r.await("pay 192.0.2.1\nshop 192.0.2.7\n! duplicate-entry")
	d.remove("entries")
	r.await("pay 192.0.2.1\nshop 192.0.2.7\n! folder-missing, serving what it held\n! duplicate-entry")
	d.write("more/shop.yaml", entryText("shop", "192.0.2.8"))
	r.await("pay 192.0.2.1\nshop 192.0.2.8\n! folder-missing, serving what it held\n! duplicate-entry")
}

func TestThousandsOfFilesAtOnce(t *testing.T) {
	d := newDisk(t)
	r := start(t, quick, nil, d.path("entries"))
	r.await("pay 192.0.2.1")
	const n = 3000
	for i := range n {
		d.write(fmt.Sprintf("entries/%d/service-%d.yaml", i%10, i), entryText(fmt.Sprintf("service-%d", i), "192.0.2.9"))
	}
	d.remove("entries/pay.yaml")
	deadline := time.After(30 * time.Second)
	for services := 0; services != n; {
		select {
		case text := <-r.published:
			services = strings.Count(text, "192.0.2.9")
			if strings.Contains(text, "pay 192.0.2.1") {
				services = 0
			}
		case <-deadline:
			t.Fatalf("%d of %d services", services, n)
		}
	}
}

// TestWithoutTheKernelsHelp takes away inotify in the ways in which it can be missing.
func TestWithoutTheKernelsHelp(t *testing.T) {
	const one, two = "pay 192.0.2.1", "pay 192.0.2.2"
	rescanning := quick
	rescanning.RescanInterval = 100 * time.Millisecond
	change := func(d disk) {
		d.write("entries/sub/pay.yaml", entryText("pay", "192.0.2.2"))
		d.remove("entries/pay.yaml")
	}
	t.Run("no inotify at all", func(t *testing.T) {
		d := newDisk(t)
		none := func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") }
		r := start(t, rescanning, none, d.path("entries"))
		r.await(one + "\n! not-watched")
		change(d)
		r.await(two+"\n! not-watched", one+"\n! not-watched\n! duplicate-entry", two+"\n! not-watched\n! duplicate-entry")
	})
	t.Run("no more watches", func(t *testing.T) {
		d := newDisk(t)
		closed := func() (*fsnotify.Watcher, error) {
			w, err := fsnotify.NewWatcher()
			if err == nil {
				err = w.Close()
			}
			return w, err
		}
		r := start(t, rescanning, closed, d.path("entries"))
		r.await(one + "\n! not-watched")
		change(d)
		r.await(two + "\n! not-watched")
	})
	t.Run("events lost, and a watcher that fails", func(t *testing.T) {
		d := newDisk(t)
		watchers := make(chan *fsnotify.Watcher, 10)
		seen := func() (*fsnotify.Watcher, error) {
			w, err := fsnotify.NewWatcher()
			watchers <- w
			return w, err
		}
		o := quick
		o.RescanInterval = 200 * time.Millisecond // after which another watcher may be opened
		r := start(t, o, seen, d.path("entries"))
		r.await(one)
		w := <-watchers
		w.Errors <- fsnotify.ErrEventOverflow
		d.write("entries/pay.yaml", entryText("pay", "192.0.2.2"))
		r.await(two)
		w.Errors <- errors.New("input/output error")
		<-watchers // another one
		d.write("entries/pay.yaml", entryText("pay", "192.0.2.1"))
		r.await(one)
	})
}

func TestReadPaths(t *testing.T) {
	d := newDisk(t)
	d.write("entries/sub/shop.json", "{}")
	d.write("entries/.hidden.yaml", "{}")
	d.write("entries/notes.txt", "text")
	d.write("template", "# named")
	files, err := ReadPaths(d.path("template"), d.path("entries"), d.path("entries/pay.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		name, err := filepath.Rel(d.folder, f.Path)
		if err != nil || f.Err != nil {
			t.Fatal(err, f.Err)
		}
		got = append(got, name)
	}
	if want := []string{"entries/pay.yaml", "entries/sub/shop.json", "template"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	if _, err := ReadPaths(d.path("missing")); err == nil {
		t.Error("a path that is not there is no error")
	}
}

// TestExamples loads the examples: they have no mistakes, not even ones to note.
func TestExamples(t *testing.T) {
	files, err := ReadPaths("../../examples/entries")
	if err != nil {
		t.Fatal(err)
	}
	state := Load(NewState("examples"), files)
	for _, p := range state.Catalog().Problems {
		t.Errorf("%s", p)
	}
	if state.Catalog().Services.Len() < 4 {
		t.Errorf("%d services", state.Catalog().Services.Len())
	}
}

// TestTree shows a tree what looks find, at times of the test's choosing.
func TestTree(t *testing.T) {
	const pay, shop, other = "entries/pay.yaml", "entries/shop.yaml", "entries/other.yaml"
	const glance, came = 50 * time.Millisecond, 1000 // added to the version of a file of which the kernel has said that it came
	var (
		o    = Options{Settle: 300 * time.Millisecond, Glance: glance, MaxDelay: time.Second, EmptySettle: 2 * time.Second, MaxFileBytes: 1000}
		long = time.Now().Add(-time.Hour)
	)
	// seen is what a look finds: files by name, of a version each.
	type seen map[string]int
	type step struct {
		after  time.Duration // since the step before
		seen   seen
		files  string // those that count
		codes  string // of the problems
		settle bool   // whether another look is asked for
	}
	const settle = 300 * time.Millisecond
	const half = glance / 2
	var on []step // pay is written on and on
	for i := range 20 {
		on = append(on, step{settle, seen{pay: 2 + i, shop: 1}, "pay shop", "", true})
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"a new file counts once a second look finds it as it was", []step{
			{0, seen{pay: 1}, "pay", "", false},
			{time.Second, seen{pay: 1, shop: 1}, "pay", "", true},
			{settle / 2, seen{pay: 1, shop: 1}, "pay", "", true},
			{settle / 2, seen{pay: 1, shop: 1}, "pay shop", "", false},
		}},
		{"a file that is gone for a moment stays", []step{
			{0, seen{pay: 1, shop: 1}, "pay shop", "", false},
			{time.Second, seen{shop: 1}, "pay shop", "", true},
			{settle / 2, seen{pay: 1, shop: 1}, "pay shop", "", false},
			{time.Second, seen{shop: 1}, "pay shop", "", true},
			{settle, seen{shop: 1}, "shop", "", false},
		}},
		{"a file is not gone while others move, though not for ever", []step{
			{0, seen{pay: 1, shop: 1}, "pay shop", "", false},
			{time.Second, seen{shop: 2}, "pay shop", "", true},
			{settle, seen{shop: 3}, "pay shop", "", true},
			{settle, seen{shop: 4}, "pay shop", "", true},
			{patience, seen{shop: 5}, "shop", "file-unsettled", true},
		}},
		{"a file that is written on and on is a notice after a while", append(
			[]step{{0, seen{pay: 1, shop: 1}, "pay shop", "", false}}, append(slices.Clone(on[:17]),
				step{settle, seen{pay: 100, shop: 1}, "pay shop", "file-unsettled", true},
				step{settle, seen{pay: 100, shop: 1}, "pay shop", "", false})...)},
		{"a folder that is removed and filled again, file by file", []step{
			{0, seen{pay: 1, shop: 1}, "pay shop", "", false},
			{time.Second, nil, "pay shop", "folder-missing", false},
			{time.Hour, seen{other: 1}, "pay shop", "", true},
			{settle, seen{other: 1, shop: 2}, "other pay shop", "", true},
			{settle, seen{other: 1, shop: 2, pay: 2}, "other pay shop", "", true},
			{settle, seen{other: 1, shop: 2, pay: 2}, "other pay shop", "", false},
		}},
		{"a folder that has been emptied counts as empty after a longer while", []step{
			{0, seen{pay: 1, shop: 1}, "pay shop", "", false},
			{time.Second, seen{}, "pay shop", "folder-empty", true},
			{time.Second, seen{}, "pay shop", "folder-empty", true},
			{time.Second, seen{}, "pay shop", "", true},
			{settle, seen{}, "", "", false},
		}},
		{"a file that came counts after a glance", []step{
			{0, seen{pay: 1}, "pay", "", false},
			{time.Second, seen{pay: 1, shop: came + 1}, "pay", "", true},
			{half, seen{pay: 1, shop: came + 1}, "pay", "", true},
			{half, seen{pay: 1, shop: came + 1}, "pay shop", "", false},
		}},
		{"a file that came counts after two glances while others come, and they go on waiting", []step{
			{0, seen{pay: 1}, "pay", "", false},
			{time.Second, seen{pay: 1, shop: came + 1}, "pay", "", true},
			{half, seen{pay: came + 2, shop: came + 1}, "pay", "", true},
			{half, seen{pay: came + 3, shop: came + 1}, "pay", "", true},
			{half, seen{pay: came + 4, shop: came + 1}, "pay", "", true},
			{half, seen{pay: came + 5, shop: came + 1}, "pay shop", "", true},
			{half, seen{pay: came + 5, shop: came + 1, other: came + 1}, "pay shop", "", true},
			{half, seen{pay: came + 6, shop: came + 1, other: came + 1}, "pay shop", "", true},
			{half, seen{pay: came + 7, shop: came + 1, other: came + 1}, "pay shop", "", true},
			{half, seen{pay: came + 8, shop: came + 1, other: came + 1}, "pay shop", "", true},
			{half, seen{pay: came + 9, shop: came + 1, other: came + 1}, "other pay shop", "", true},
		}},
		{"files that came within a glance of one another count together", []step{
			{0, seen{pay: 1}, "pay", "", false},
			{time.Second, seen{pay: 1, shop: came + 1}, "pay", "", true},
			{glance, seen{pay: 1, shop: came + 1, other: came + 1}, "pay", "", true},
			{glance, seen{pay: 1, shop: came + 1, other: came + 1}, "other pay shop", "", false},
		}},
		{"a file that came and is another at each look does not count", []step{
			{0, seen{pay: 1}, "pay", "", false},
			{time.Second, seen{pay: 1, shop: came + 1}, "pay", "", true},
			{glance, seen{pay: 1, shop: came + 2}, "pay", "", true},
			{glance, seen{pay: 1, shop: came + 3}, "pay", "", true},
			{glance, seen{pay: 1, shop: came + 4}, "pay", "", true},
			{glance, seen{pay: 1, shop: came + 4}, "pay shop", "", false},
		}},
		{"a file that is written to while others come counts once it has settled", []step{
			{0, seen{pay: 1}, "pay", "", false},
			{time.Second, seen{pay: 1, shop: 1, other: came + 1}, "pay", "", true},
			{2 * glance, seen{pay: 1, shop: 2, other: came + 2}, "pay", "", true},
			{2 * glance, seen{pay: 1, shop: 2, other: came + 3}, "pay", "", true},
			{2 * glance, seen{pay: 1, shop: 2, other: came + 3}, "other pay", "", true},
			{glance, seen{pay: 1, shop: 2, other: came + 3}, "other pay", "", true},
			{glance, seen{pay: 1, shop: 2, other: came + 3}, "other pay shop", "", false},
		}},
		{"a file that comes and is then written to counts once it has settled", []step{
			{0, seen{pay: 1}, "pay", "", false},
			{time.Second, seen{pay: 1, shop: came + 1}, "pay", "", true},
			{half, seen{pay: 1, shop: 2}, "pay", "", true},
			{2 * glance, seen{pay: 1, shop: 2}, "pay", "", true},
			{settle - 2*glance, seen{pay: 1, shop: 2}, "pay shop", "", false},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := newTree("files", []string{"entries"}, o)
			now := time.Now()
			for i, s := range tt.steps {
				now = now.Add(s.after)
				w := &walk{files: map[string]stamp{}, folders: map[string]folder{"entries": {id: fileID{1, 1}, files: len(s.seen)}}}
				if s.seen == nil {
					w.folders["entries"] = folder{err: fs.ErrNotExist}
				}
				for name, version := range s.seen {
					e := fsnotify.Event{Name: name, Op: fsnotify.Write}
					if version > came {
						e.Op = fsnotify.Create
					}
					tree.hear(e)
					w.files[name] = stamp{id: fileID{1, 2}, size: int64(version), modified: long.UnixNano()}
				}
				tree.read = func(path string, _ int64) (File, stamp) { return File{Path: path}, w.files[path] }
				files, problems, again := tree.advance(w, now)
				var names, codes []string
				for f := range files.Values() {
					names = append(names, strings.TrimSuffix(filepath.Base(f.Path), ".yaml"))
				}
				for _, p := range problems {
					codes = append(codes, p.Code)
				}
				if got := strings.Join(names, " "); got != s.files {
					t.Errorf("step %d: files %q, want %q", i+1, got, s.files)
				}
				if got := strings.Join(codes, " "); got != s.codes {
					t.Errorf("step %d: problems %q, want %q", i+1, got, s.codes)
				}
				if unsettled := !again.IsZero(); unsettled != s.settle {
					t.Errorf("step %d: another look is asked for: %t", i+1, !s.settle)
				}
			}
		})
	}
}

// BenchmarkFolder reads a folder of files: all of it at the start, and after that when nothing has changed, by looking
// at all, or at one file.
func BenchmarkFolder(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		folder := b.TempDir()
		for i := range n {
			name := filepath.Join(folder, fmt.Sprintf("service-%d.yaml", i))
			if err := os.WriteFile(name, []byte(entryText(fmt.Sprintf("service-%d", i), "192.0.2.1")), 0o644); err != nil {
				b.Fatal(err)
			}
		}
		o := New(hclog.NewNullLogger(), "files", nil, Options{}).options
		later := time.Now().Add(time.Minute) // all has settled by then
		b.Run(fmt.Sprintf("start/%d", n), func(b *testing.B) {
			for b.Loop() {
				files, _, _ := newTree("files", []string{folder}, o).advance(look([]string{folder}), later)
				NewState("files").load(files)
			}
		})
		b.Run(fmt.Sprintf("look/%d", n), func(b *testing.B) {
			t := newTree("files", []string{folder}, o)
			files, _, _ := t.advance(look([]string{folder}), later)
			state := NewState("files").load(files)
			for b.Loop() {
				files, _, _ := t.advance(look([]string{folder}), later)
				state = state.load(files)
			}
		})
		b.Run(fmt.Sprintf("look-at-one/%d", n), func(b *testing.B) {
			t, w := newTree("files", []string{folder}, o), look([]string{folder})
			files, _, _ := t.advance(w, later)
			state := NewState("files").load(files)
			one := map[string]bool{filepath.Join(folder, "service-1.yaml"): true}
			for b.Loop() {
				if !w.again(one) {
					b.Fatal("one is not enough")
				}
				files, _, _ := t.advance(w, later)
				state = state.load(files)
			}
		})
	}
}

// TestHowSoon saves files in ways that show that a file is complete, which is believed at once, and in ways that do not,
// where it must stand for a while first.
func TestHowSoon(t *testing.T) {
	const file, settle = "entries/pay.yaml", time.Second
	after := entryText("pay", "192.0.2.2")
	run := func(d disk, name string, args ...string) {
		d.t.Helper()
		c := exec.Command(name, args...)
		c.Dir = d.folder
		if out, err := c.CombinedOutput(); err != nil {
			d.t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	// halves writes a file in two halves, of which the first could stand for itself, with something done between them.
	halves := func(d disk, name string, between func()) {
		f, err := os.OpenFile(d.path(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		d.check(err)
		_, err = f.WriteString(entryText("pay", "192.0.2.222"))
		d.check(err)
		between()
		<-time.After(settle / 4)
		_, err = f.WriteString("---\n" + after)
		d.check(err)
		d.check(f.Truncate(0))
		_, err = f.WriteAt([]byte(after), 0)
		d.check(err)
		d.check(f.Close())
	}
	for _, tt := range []struct {
		name  string
		setup func(disk)
		save  func(disk)
		soon  bool
	}{
		{name: "rename over", save: func(d disk) {
			d.write("pay.new", after)
			d.rename("pay.new", file)
		}, soon: true},
		{name: "rename over, within the folder", save: func(d disk) {
			d.write("entries/pay.yaml.tmp", after)
			d.rename("entries/pay.yaml.tmp", file)
		}, soon: true},
		{name: "rename of a new file", save: func(d disk) {
			d.write("pay.new", after)
			d.rename("pay.new", "entries/another.yaml")
		}, soon: true},
		{name: "rename of what was written slowly", save: func(d disk) {
			d.slowly("entries/.pay.yaml.swp", after, os.O_WRONLY|os.O_CREATE, 20*time.Millisecond)
			d.rename("entries/.pay.yaml.swp", file)
		}, soon: true},
		{name: "rsync", save: func(d disk) {
			const temporary = "entries/.pay.yaml.Xy12Zw"
			d.write(temporary, after)
			old := time.Now().Add(-time.Hour)
			d.check(os.Chtimes(d.path(temporary), old, old))
			d.check(os.Chmod(d.path(temporary), 0o644))
			d.rename(temporary, file)
		}, soon: true},
		{name: "mv", save: func(d disk) {
			d.write("pay.new", after)
			run(d, "mv", "pay.new", file)
		}, soon: true},
		{name: "sed -i", save: func(d disk) { run(d, "sed", "-i", "s/192.0.2.1/192.0.2.2/", file) }, soon: true},
		{name: "a hard link in its place", save: func(d disk) {
			d.write("store/pay", after)
			d.check(os.Link(d.path("store/pay"), d.path("entries/.new")))
			d.rename("entries/.new", file)
		}, soon: true},
		{name: "a link to a file that was there", setup: func(d disk) { d.write("store/pay", after) }, save: func(d disk) {
			d.link("../store/pay", file)
		}, soon: true},
		{name: "a swap of ..data", setup: func(d disk) {
			d.write("entries/..v1/pay.yaml", entryText("pay", "192.0.2.1"))
			d.write("entries/..v2/pay.yaml", after)
			d.link("..v1", "entries/..data")
			d.link("..data/pay.yaml", file)
		}, save: func(d disk) { d.link("..v2", "entries/..data") }, soon: true},
		{name: "a folder that is a link, to another folder", setup: func(d disk) {
			d.rename("entries", "v1")
			d.link("v1", "entries")
			d.write("v2/pay.yaml", after)
		}, save: func(d disk) { d.link("v2", "entries") }, soon: true},

		{name: "write in place", save: func(d disk) { d.write(file, after) }},
		{name: "a new file, in place", save: func(d disk) { d.write("entries/another.yaml", after) }},
		{name: "cp -p", save: func(d disk) {
			d.write("pay.new", after)
			run(d, "cp", "-p", "pay.new", file)
		}},
		{name: "vim, which writes a new file", save: func(d disk) {
			d.rename(file, file+"~")
			d.write(file, after)
			d.check(os.Chmod(d.path(file), 0o600))
			d.remove(file + "~")
		}},
		{name: "in halves", save: func(d disk) { halves(d, file, func() {}) }},
		{name: "in halves, a chmod between them", save: func(d disk) {
			halves(d, file, func() { d.check(os.Chmod(d.path(file), 0o644)) })
		}},
		{name: "a new file in halves, a chmod between them", save: func(d disk) {
			halves(d, "entries/another.yaml", func() { d.check(os.Chmod(d.path("entries/another.yaml"), 0o644)) })
		}},
		{name: "a file made anew in halves, times set between them", save: func(d disk) {
			d.remove(file)
			halves(d, file, func() {
				old := time.Now().Add(-time.Hour)
				d.check(os.Chtimes(d.path(file), old, old))
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			d.write("entries/stays/keep.yaml", "# so that the folder is never empty\n")
			if tt.setup != nil {
				tt.setup(d)
			}
			r := start(t, Options{Settle: settle, MaxDelay: 2 * settle}, nil, d.path("entries"))
			r.await("pay 192.0.2.1")
			<-time.After(200 * time.Millisecond) // so that the save is the first event for a while
			tt.save(d)
			saved := time.Now()
			want := []string{"pay 192.0.2.2", "pay 192.0.2.1\n! duplicate-entry", "pay 192.0.2.2\n! duplicate-entry"}
			if got := <-r.published; !slices.Contains(want, got) {
				t.Fatalf("published:\n%s", got)
			}
			if took := time.Since(saved); tt.soon != (took < settle*3/4) {
				t.Errorf("published after %s", took)
			}
		})
	}
}

// TestFilesDoNotWaitForOthers renames files into place all the time. Meanwhile one more comes so, and another is written in its place.
func TestFilesDoNotWaitForOthers(t *testing.T) {
	t.Parallel()
	const settle = time.Second
	d := newDisk(t)
	replace := func(name, address string) {
		d.write("new/"+name, entryText(name, address))
		d.rename("new/"+name, "entries/"+name+".yaml")
	}
	replace("shop", "192.0.2.1")
	r := start(t, Options{Settle: settle, MaxDelay: 5 * settle}, nil, d.path("entries"))
	r.await("pay 192.0.2.1\nshop 192.0.2.1")
	i := 0
	// busy renames until this is among what is served, or for so long, and returns how long that was.
	busy := func(want string, limit time.Duration) time.Duration {
		began := time.Now()
		next := time.NewTicker(20 * time.Millisecond)
		defer next.Stop()
		for time.Since(began) < limit {
			select {
			case <-next.C:
				i++
				replace(fmt.Sprintf("busy-%d", i%50), fmt.Sprintf("198.51.100.%d", i%250))
			case got := <-r.published:
				if strings.Contains(got, "192.0.2.222") {
					t.Fatalf("published, half written:\n%s", got)
				}
				if slices.Contains(strings.Split(got, "\n"), want) {
					return time.Since(began)
				}
			}
		}
		return limit
	}
	busy("", settle/2)
	replace("shop", "192.0.2.2")
	if took := busy("shop 192.0.2.2", 3*settle); took > settle*3/4 {
		t.Errorf("a file that was renamed into place is published after %s", took)
	}
	f, err := os.OpenFile(d.path("entries/pay.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	d.check(err)
	for _, part := range []string{entryText("pay", "192.0.2.222"), "# more\n", "# and more\n", "# and more\n"} {
		_, err := f.WriteString(part)
		d.check(err)
		busy("", settle/2)
	}
	_, err = f.WriteAt([]byte(entryText("pay", "192.0.2.233")), 0)
	d.check(errors.Join(err, f.Close()))
	if took := busy("pay 192.0.2.233", 3*settle); took < settle || took == 3*settle {
		t.Errorf("a file that was written in its place is published after %s", took)
	}
}

// BenchmarkSteady is how long it takes until files that are renamed into place, 50 a second, are published, in a folder
// of 2,000, and what it costs: go test -bench Steady -benchtime 500x.
func BenchmarkSteady(b *testing.B) {
	folder := b.TempDir()
	path := func(i int) string { return filepath.Join(folder, fmt.Sprintf("service-%d.yaml", i)) }
	text := func(i, at int) []byte {
		return []byte(entryText(fmt.Sprintf("service-%d", i), fmt.Sprintf("192.0.%d.%d", at/200, at%200+1)))
	}
	const n = 2000
	for i := range n {
		if err := os.WriteFile(path(i), text(i, 0), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	type publication struct {
		services pmap.Map[mesh.Key, *mesh.Service]
		at       time.Time
	}
	published := make(chan publication, 100_000)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	r := New(hclog.NewNullLogger(), "files", []string{folder}, Options{StateDir: b.TempDir()})
	go func() { done <- r.Run(ctx, func(c mesh.Catalog) { published <- publication{c.Services, time.Now()} }) }()
	last := (<-published).services
	began := map[string]time.Time{} // by service and address
	next := time.NewTicker(20 * time.Millisecond)
	defer next.Stop()
	used, start := cpuTime(b), time.Now()
	for i := 0; b.Loop(); i++ {
		<-next.C
		name := path(i % n)
		err := errors.Join(os.WriteFile(name+".new", text(i%n, i/n+1), 0o644), os.Rename(name+".new", name))
		if err != nil {
			b.Fatal(err)
		}
		began[fmt.Sprintf("service-%d.mesh.internal 192.0.%d.%d", i%n, (i/n+1)/200, (i/n+1)%200+1)] = time.Now()
	}
	b.ReportMetric(float64(cpuTime(b)-used)/float64(time.Since(start)), "processors")
	var took []time.Duration
	for len(began) > 0 {
		p := <-published
		for key, s := range p.services.All() {
			if was, _ := last.Get(key); was != s {
				change := key.Host.String() + " " + s.Endpoints[0].Address.String()
				took = append(took, p.at.Sub(began[change]))
				delete(began, change)
			}
		}
		last = p.services
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "median-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(0, "ns/op")
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRename is how long it takes until a file that is renamed into place, or written in it, is published, in a
// folder of 2,000: go test -bench Rename -benchtime 30x.
func BenchmarkRename(b *testing.B) {
	folder := b.TempDir()
	for i := range 2000 {
		name := filepath.Join(folder, fmt.Sprintf("service-%d.yaml", i))
		if err := os.WriteFile(name, []byte(entryText(fmt.Sprintf("service-%d", i), "192.0.2.1")), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	for _, rename := range []string{"renamed", "in-place"} {
		b.Run(rename, func(b *testing.B) {
			published := make(chan mesh.Catalog, 1000)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error)
			r := New(hclog.NewNullLogger(), "files", []string{folder}, Options{StateDir: b.TempDir()})
			go func() { done <- r.Run(ctx, func(c mesh.Catalog) { published <- c }) }()
			<-published
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				<-time.After(200*time.Millisecond + time.Duration(i%50)*time.Millisecond)
				name := filepath.Join(folder, "service-1000.yaml")
				text := []byte(entryText("service-1000", fmt.Sprintf("192.0.2.%d", i%200+2)))
				var err error
				if rename == "renamed" {
					err = errors.Join(os.WriteFile(name+".new", text, 0o644), os.Rename(name+".new", name))
				} else {
					err = os.WriteFile(name, text, 0o644)
				}
				if err != nil {
					b.Fatal(err)
				}
				saved := time.Now()
				<-published
				took = append(took, time.Since(saved))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "median-ms")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
			b.ReportMetric(0, "ns/op")
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
