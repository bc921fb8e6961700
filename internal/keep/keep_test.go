package keep

import (
	"bytes"
	"context"
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
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
)

// keeperAt keeps text at a path.
func keeperAt(path string) *Keeper {
	return New(hclog.NewNullLogger(), Options{
		Registry: "files", Path: path, Title: "text", Form: 1, Retry: time.Minute, Unread: "text is lost", Unwritten: "text may be lost",
	})
}

func record(text string) Record { return func() ([]byte, error) { return []byte(text), nil } }

// loaded is the text that was kept, or "none".
func loaded(k *Keeper) string {
	text := "none"
	k.Load(func(record []byte) error { text = string(record); return nil })
	return text
}

// written is what a keeper that is closed leaves.
func written(t *testing.T, k *Keeper, texts ...string) string {
	t.Helper()
	ended, end := context.WithCancel(t.Context())
	end()
	for _, text := range texts {
		k.Keep(record(text))
	}
	k.Close()
	k.Run(ended)
	return loaded(keeperAt(k.options.Path))
}

func codes(k *Keeper) (out []string) {
	for _, p := range k.Problems() {
		out = append(out, p.Code)
	}
	return out
}

func TestWhatWasKeptIsLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "text.state")
	k := keeperAt(path)
	if got := loaded(k); got != "none" || len(k.Problems()) > 0 {
		t.Errorf("from nowhere: %q, %v", got, k.Problems())
	}
	if got := written(t, k, "one", "two"); got != "two" {
		t.Errorf("kept %q, want the newest", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want a file that nobody else reads", info, err)
	}
}

func TestNothingIsKeptWithoutAPath(t *testing.T) {
	if got := written(t, keeperAt(""), "one"); got != "none" {
		t.Errorf("kept %q", got)
	}
}

func TestAFileThatCannotBeUsed(t *testing.T) {
	good, err := pack(keeperAt("").options, []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(data string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(data), 0o600) }
	}
	for name, tt := range map[string]struct {
		put  func(path string) error
		read error
		want string // what is wrong with it
	}{
		"damaged":         {put: write(string(good[:90]) + "?" + string(good[91:])), want: "it is damaged"},
		"empty":           {put: write(""), want: "it is no state of meshd's, or its beginning is lost"},
		"something":       {put: write(strings.Repeat("x", 1000)), want: "it is no state of meshd's, or its beginning is lost"},
		"of another kind": {put: write(strings.Replace(string(good), " text ", " entries ", 1)), want: "it is no state of meshd's, or its beginning is lost"},
		"later":           {put: write(strings.Replace(string(good), " 1 ", " 2 ", 1)), want: "a later version of meshd has written it (form 2; this one knows 1)"},
		"a folder":        {put: func(path string) error { return os.Mkdir(path, 0o700) }, want: "is a directory"},
		"to itself":       {put: func(path string) error { return os.Symlink(path, path) }, want: "too many levels of symbolic links"},
		"not understood":  {put: write(string(good)), read: errors.New("it is of no use"), want: "it is of no use"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "text.state")
			if err := tt.put(path); err != nil {
				t.Fatal(err)
			}
			k := keeperAt(path)
			if k.Load(func([]byte) error { return tt.read }) {
				t.Fatal("it was taken")
			}
			want := []mesh.Problem{{
				Severity: mesh.Warning, Code: "state-unreadable", Origin: mesh.Origin{Registry: "files", Source: path},
				Message: "cannot be used: " + tt.want + "; text is lost; it is put aside as " + path + ".bad; remove that once you have seen it",
			}}
			if d := cmp.Diff(want, k.Problems()); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
			if got := written(t, k, "one"); got != "one" {
				t.Errorf("kept %q after it", got)
			}
			if err := os.RemoveAll(path + ".bad"); err != nil {
				t.Fatal(err)
			}
			if got := k.Problems(); len(got) > 0 {
				t.Errorf("after it was removed: %v", got)
			}
		})
	}
}

// TestADiskOfItsOwn has disks that fail and count, and a clock to wait by.
func TestADiskOfItsOwn(t *testing.T) {
	run := func(t *testing.T, write func(string, []byte) error) *Keeper {
		k := keeperAt(filepath.Join(t.TempDir(), "text.state"))
		k.write = write
		var done sync.WaitGroup
		done.Go(func() { k.Run(t.Context()) })
		t.Cleanup(func() { k.Close(); done.Wait() })
		return k
	}
	for name, test := range map[string]func(*testing.T){
		"a full disk is a problem until there is room": func(t *testing.T) {
			var full atomic.Bool
			full.Store(true)
			tries := 0
			k := run(t, func(path string, _ []byte) error {
				tries++
				if full.Load() {
					return fmt.Errorf("write: %w", &fs.PathError{Op: "write", Path: fmt.Sprint(path, tries), Err: syscall.ENOSPC})
				}
				return nil
			})
			k.Keep(record("one"))
			<-k.Changed()
			want := []mesh.Problem{{
				Severity: mesh.Warning, Code: "state-not-saved", Origin: mesh.Origin{Registry: "files", Source: k.options.Path},
				Message: "cannot be written: no space left on device; text may be lost; make room for it, or let the user as which meshd runs write to its folder",
			}}
			if d := cmp.Diff(want, k.Problems()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			full.Store(false)
			<-k.Changed()
			if got := codes(k); len(got) > 0 {
				t.Errorf("still there: %q", got)
			}
		},
		"what is on disk already is not written": func(t *testing.T) {
			var writes []string
			k := run(t, func(_ string, data []byte) error {
				text, err := unpack(keeperAt("").options, data)
				writes = append(writes, string(text))
				return err
			})
			for _, text := range []string{"one", "one", "two"} {
				k.Keep(record(text))
				time.Sleep(2 * betweenWrites)
			}
			synctest.Wait()
			if d := cmp.Diff([]string{"one", "two"}, writes); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		},
		"a disk that is slow is left alone for longer": func(t *testing.T) {
			var writes []time.Time
			k := run(t, func(string, []byte) error {
				writes = append(writes, time.Now())
				time.Sleep(betweenWrites)
				return nil
			})
			for i := range 40 {
				k.Keep(record(fmt.Sprint(i)))
				time.Sleep(betweenWrites)
			}
			synctest.Wait()
			if len(writes) != 2 || writes[1].Sub(writes[0]) < costOfWrites*betweenWrites {
				t.Errorf("written at %v", writes)
			}
		},
		"a record that cannot be made is not on disk": func(t *testing.T) {
			k := run(t, func(string, []byte) error { return nil })
			k.Keep(func() ([]byte, error) { return nil, errors.New("no words for it") })
			<-k.Changed()
			if got := codes(k); len(got) != 1 || got[0] != "state-not-saved" {
				t.Errorf("problems %q", got)
			}
			k.Keep(record("one"))
			<-k.Changed()
			if got := codes(k); len(got) > 0 {
				t.Errorf("still there: %q", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

func TestWhatAKilledProcessLeftIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text.state")
	old, others := path+".123.new", path+".124.new" // which another process is about to write
	for _, name := range []string{old, others} {
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	loaded(keeperAt(path))
	left, err := filepath.Glob(path + "*")
	if d := cmp.Diff([]string{others}, left); d != "" || err != nil {
		t.Errorf("left (-want +got):\n%s%v", d, err)
	}
}

func TestADamagedFileIsNeverTakenForAnother(t *testing.T) {
	o := keeperAt("").options
	file, err := pack(o, []byte(`{"files": [{"path": "a"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, damaged []byte) {
		if got, err := unpack(o, damaged); err == nil {
			t.Errorf("%s: taken for\n%s", what, got)
		}
	}
	for i := range file {
		try(fmt.Sprintf("cut off after %d bytes", i), file[:i])
		for bit := range 8 {
			damaged := bytes.Clone(file)
			damaged[i] ^= 1 << bit
			try(fmt.Sprintf("bit %d of byte %d", bit, i), damaged)
		}
	}
	try("something after it", append(bytes.Clone(file), '\n'))
}

// TestTheFormOfAFileStays reads what an earlier meshd has written.
func TestTheFormOfAFileStays(t *testing.T) {
	const file = "meshd text 1 sha256:a735fb1976b5498917851b8265fa686ca3a69dfc98eb1b725dfbb24023c0f193\n" +
		"\x1f\x8b\b\x00\x00\x00\x00\x00\x04\xff\x00\x03\x00\xfc\xffone\x01\x00\x00\xff\xff\xf1\x86lz\x03\x00\x00\x00"
	if got, err := unpack(keeperAt("").options, []byte(file)); err != nil || string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
}

func BenchmarkPack(b *testing.B) {
	o := keeperAt("").options
	text := bytes.Repeat([]byte("a line of a record, as long as they are\n"), 100_000)
	file, err := pack(o, text)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("pack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := pack(o, text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unpack", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := unpack(o, file); err != nil {
				b.Fatal(err)
			}
		}
	})
}
