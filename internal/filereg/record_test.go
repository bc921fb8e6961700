package filereg

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// restarted is the state after a restart, which must be the one before it.
func restarted(t rapid.TB, s *State) *State {
	t.Helper()
	t.Helper()
	record, err := s.record()
	if err != nil {
		t.Fatal(err)
	}
	after, err := restore(s.registry, record)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(describe(s.Catalog()), describe(after.Catalog())); diff != "" {
		t.Errorf("after a restart (-before +after):\n%s", diff)
	}
	if s.Entries() != after.Entries() {
		t.Errorf("%d entries after a restart, %d before", after.Entries(), s.Entries())
	}
	again, err := after.record()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(record, again) {
		t.Errorf("another record after a restart:\n%s\nbefore:\n%s", again, record)
	}
	return after
}

func TestAStateOutlivesARestartInFull(t *testing.T) {
	written := time.Date(2026, 1, 31, 12, 0, 0, 7, time.Local)
	good := File{Path: "a\xff.yaml", Data: []byte("# \xf0\x9f\x98\x80 <&>\u2028\n" + entryText("pay", "192.0.2.1")), Written: written}
	other := File{Path: "b.yaml", Data: []byte(entryText("shop", "192.0.2.7"))}
	state := Load(NewState("files"), []File{good, other})
	bad := good
	bad.Data = []byte("\xff\xfe\x00 not text")
	state = restarted(t, Load(state, []File{bad, {Path: "b.yaml", Err: errors.New("input/output error")}}))
	if got, want := brief(state), "pay 192.0.2.1\nshop 192.0.2.7\n! not-utf8, serving what it gave last: ServiceEntry default/pay\n! file-unreadable, serving what it gave last: ServiceEntry default/shop"; got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	state = Load(state, []File{{Path: good.Path, Data: []byte(entryText("pay", "192.0.2.300"))}, other})
	if got := state.Catalog().Problems[0].Serving; got != "its version of 2026-01-31 12:00:00" {
		t.Errorf("serving %q", got)
	}
	restarted(t, NewState("files"))
	restarted(t, Load(state, nil))
}

// TestTheRecordHoldsNoMoreThanIsServed edits a large file again and again, so that each document is of a version of its own.
func TestTheRecordHoldsNoMoreThanIsServed(t *testing.T) {
	const n = 50
	state := NewState("files")
	size := 0
	for bad := range n + 1 {
		var texts []string
		for i := range n {
			address := fmt.Sprintf("192.0.2.%d", 100+bad)
			if i < bad {
				address = "192.0.2.300"
			}
			texts = append(texts, entryText(fmt.Sprintf("service-%d", i), address))
		}
		file := strings.Join(texts, "---\n")
		size = len(file)
		state = restarted(t, Load(state, []File{{Path: "a.yaml", Data: []byte(file)}}))
		if state.Entries() != n {
			t.Fatalf("%d entries, want %d", state.Entries(), n)
		}
	}
	record, err := state.record()
	if err != nil {
		t.Fatal(err)
	}
	if most := 4 * size; len(record) > most {
		t.Errorf("the record has %d bytes, want at most %d", len(record), most)
	}
}

// TestEachPartIsReadAsInItsFile checks that documents can be told apart however they are written.
func TestEachPartIsReadAsInItsFile(t *testing.T) {
	a, b := entryText("pay", "192.0.2.1"), entryText("shop", "192.0.2.7")
	flow := `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: vm}, spec: {address: 192.0.2.9}}`
	for name, text := range map[string]string{
		"one":                      a,
		"a mark before":            "---\n" + a,
		"a mark of byte order":     "\ufeff" + a + "---\n" + b,
		"comments":                 "# one\n---\n# two\n" + a + "# three\n---\n# four\n---\n# five\n" + b,
		"empty ones":               "---\n---\n" + a + "---\n---\n---\n" + b + "---\n",
		"marks with content":       "--- " + flow + "\n--- # text\n" + a,
		"ends":                     a + "...\n---\n" + b + "... # text\n--- " + flow + "\n...\n# text\n",
		"Windows":                  strings.ReplaceAll(a+"---\n"+b, "\n", "\r\n"),
		"old Macs":                 strings.ReplaceAll(a+"---\n"+b, "\n", "\r"),
		"a line separator":         "# \u2028---\n" + a + "---\n" + b,
		"a directive":              "%YAML 1.1\n---\n" + a + "---\n" + b,
		"a mark in a block scalar": strings.Replace(a, "metadata:", "metadata: &x", 1) + "---\n" + strings.Replace(b, "{name: shop}", "{name: shop, annotations: {a: \"x\n ---\n y\"}}", 1),
		"lists":                    "---\n" + a + "---\napiVersion: v1\nkind: List\nitems:\n- " + flow + "\n- " + strings.ReplaceAll(b, "\n", "\n  ") + "\n---\n" + strings.Replace(a, "{name: pay}", "{name: pay2}", 1),
		"longer dashes":            "# ----\n" + strings.Replace(a, "spec:", "#\n----: x\nspec:", 1) + "---\n" + b,
	} {
		t.Run(name, func(t *testing.T) {
			whole := excerpt{file: File{Path: "a", Data: []byte(text)}}
			documents, mistakes := whole.documents("files")
			if len(mistakes) > 0 || len(documents) == 0 {
				t.Fatalf("%d documents, %v", len(documents), mistakes)
			}
			for _, d := range documents {
				if d.entry == nil {
					continue
				}
				alone, mistakes := d.entry.alone().in.documents("files")
				var same int
				for _, o := range alone {
					if o.entry != nil && o.identity == d.identity && o.origin == d.origin {
						same++
					}
				}
				if same != 1 || len(mistakes) > 0 {
					t.Errorf("%s at %s is not to be found in\n%s%v", d.identity, d.origin, d.entry.in.file.Data, mistakes)
				}
			}
		})
	}
}

// FuzzRestore gives records that nobody wrote.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(`{"files": [{"path": "a", "data": "a: b"}], "past": [{"path": "b", "data": ["AA=="], "lines": 2, "first": 1}], "held": [{"past": 0, "number": 0, "path": "a", "document": 0}]}`))
	f.Add([]byte(`{"files": [], "held": [{"past": 7}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := restore("files", data); err == nil {
			sound(t, s)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	const n = 10_000
	files := make([]File, n)
	for i := range files {
		files[i] = File{Path: fmt.Sprintf("entries/%05d.yaml", i), Data: []byte(entryText(fmt.Sprintf("service-%d", i), "192.0.2.1"))}
	}
	state := Load(NewState("files"), files)
	record, err := state.record()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := state.record(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(record)), "record-bytes")
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := restore("files", record); err != nil {
				b.Fatal(err)
			}
		}
	})
}
