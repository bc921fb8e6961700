package filereg

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
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
		if got = brief(kept(newKeeper(hclog.NewNullLogger(), "files", d.keeping()), "files")); got == want {
			return
		}
	}
	d.t.Fatalf("kept:\n%s\nwant:\n%s", got, want)
}

// keep keeps a record, as a process that has ended would have.
func (d disk) keep(record string) {
	d.t.Helper()
	ended, end := context.WithCancel(d.t.Context())
	end()
	k := newKeeper(hclog.NewNullLogger(), "files", d.keeping())
	k.Keep(func() ([]byte, error) { return []byte(record), nil })
	k.Close()
	k.Run(ended)
	if problems := k.Problems(); len(problems) > 0 {
		d.t.Fatal(problems)
	}
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
	for name, put := range map[string]func(disk){
		"damaged":     func(d disk) { d.write("state/"+stateName, "") },
		"no record":   func(d disk) { d.keep("[]") },
		"no readings": func(d disk) { d.keep(`{"held": [{"past": 1}]}`) },
		"no path":     func(d disk) { d.keep(`{"files": [{}]}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			put(d)
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
