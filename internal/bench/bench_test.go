package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
)

// TestMain is the servers too, as the program itself is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serverCommand {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestEachRowMeasures runs the whole program at a size that takes seconds. Figures must be there and make sense; what they are is
// the machine's affair.
func TestEachRowMeasures(t *testing.T) {
	if testing.Short() {
		t.Skip("builds meshd and runs servers")
	}
	meshd := filepath.Join(t.TempDir(), "meshd")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", meshd, "../../cmd/meshd").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var stdout, stderr bytes.Buffer
	err := benchMain([]string{
		"-meshd", meshd, "-o", "-", "-streams", "10", "-services", "40", "-flat", "20,40", "-flat-streams", "3", "-rounds", "3",
		"-passes", "1", "-rate", "20", "-seconds", "1", "-limit", "1m",
	}, &stdout, &stderr)
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var r result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, &stdout)
	}
	if len(r.Rows) != len(rows) {
		t.Errorf("%d rows, want %d", len(r.Rows), len(rows))
	}
	for i, o := range r.Rows {
		if o.Row != rows[i].name || len(o.Measures) == 0 {
			t.Errorf("row %d is %s with %d measures, want %s with some", i, o.Row, len(o.Measures), rows[i].name)
		}
		bound := false
		for _, m := range o.Measures {
			bound = bound || m.AtMost != nil
			// Of ten streams the pages of memory may come to nothing.
			zero := m.Name == "resources sent" || m.Unit == "KiB"
			if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) || m.Value <= 0 && !zero {
				t.Errorf("%s, %s: %v %s is no sane figure", o.Row, m.Name, m.Value, m.Unit)
			}
			if m.Holds != (m.AtMost == nil || m.Value <= *m.AtMost) {
				t.Errorf("%s, %s: %v %s, and says that it holds: %v", o.Row, m.Name, m.Value, m.Unit, m.Holds)
			}
			if m.Name == "resources sent" && m.Value != 0 {
				t.Errorf("%v resources were sent to streams that had them all", m.Value)
			}
			if !strings.Contains(stderr.String(), "| "+m.Name) {
				t.Errorf("the table does not have %s, %s", o.Row, m.Name)
			}
		}
		if !bound {
			t.Errorf("%s is held to nothing", o.Row)
		}
	}
}

func TestWrongFlagsAreErrors(t *testing.T) {
	for _, args := range []string{"-rows nothing", "-flat 10", "-flat ten,20", "-streams 0", "-rate 50 -seconds 41", "left over", "-services 10001"} {
		if err := benchMain(strings.Fields(args), io.Discard, io.Discard); err == nil {
			t.Errorf("%s: no error", args)
		}
	}
}

// TestResponsesAreReadInPieces reads two messages cut at every place.
func TestResponsesAreReadInPieces(t *testing.T) {
	var message []byte
	message = appendText(message, responseVersion, "v1")
	message = appendBytes(message, responseResources, bytes.Repeat([]byte("a"), 300))
	message = appendBytes(message, responseResources, nil)
	message = appendText(message, responseType, endpointType)
	message = appendText(message, responseRemoved, "gone")
	message = appendText(message, responseNonce, "7")
	framed := append([]byte{0, 0, 0, byte(len(message) >> 8), byte(len(message))}, message...)
	stream := slices.Concat(framed, framed)
	for cut := range stream {
		var seen []response
		var sizes []int
		r := responses{
			resource: func(b []byte) { sizes = append(sizes, len(b)) },
			whole: func(in response) error {
				in.typeURL, in.version, in.nonce = slices.Clone(in.typeURL), slices.Clone(in.version), slices.Clone(in.nonce)
				seen = append(seen, in)
				return nil
			},
		}
		if err := errors.Join(r.take(stream[:cut]), r.take(stream[cut:])); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		one := response{
			size: len(message), typeURL: []byte(endpointType), version: []byte("v1"), nonce: []byte("7"), resources: 2, removed: 1,
		}
		if diff := cmp.Diff([]response{one, one}, seen, cmp.AllowUnexported(response{})); diff != "" {
			t.Fatalf("cut at %d (-want +got):\n%s", cut, diff)
		}
		if diff := cmp.Diff([]int{300, 300}, sizes); diff != "" {
			t.Fatalf("cut at %d, sizes of resources (-want +got):\n%s", cut, diff)
		}
	}
}

// TestMarksAreFound takes no host's name for a mark, though it looks like one.
func TestMarksAreFound(t *testing.T) {
	for _, mark := range []int{1, 109, 9999, 10_000, 123_456, mostMarks - 1} {
		var b []byte
		b = appendText(b, 1, "outbound|80||"+hostOf(109))
		for _, a := range addresses(109, mark) {
			b = appendText(b, 2, a)
			b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), 80)
		}
		if got, ok := findMark(b); got != mark || !ok {
			t.Errorf("found %d, %v in a change with mark %d", got, ok, mark)
		}
	}
	for i := range mostServices {
		b := appendText(nil, 1, hostOf(i))
		for _, a := range addresses(i, 0) {
			b = appendText(b, 2, a)
		}
		if got, ok := findMark(b); ok {
			t.Errorf("found %d in service %d, which has no mark", got, i)
		}
	}
}

// TestRequestsKeepToTheWindow sends more than the server lets, and goes on as it opens the window.
func TestRequestsKeepToTheWindow(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var f fleet
	w, err := dialWire(l.Addr().String(), delta.path, func([]byte) error { return nil }, &f.unsent)
	if err != nil {
		t.Fatal(err)
	}
	defer w.conn.Close()
	received, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer received.Close()
	go func() { _, _ = io.Copy(io.Discard, received) }() // until it is closed

	if err := w.send(make([]byte, 50_000), make([]byte, 50_000)); err != nil {
		t.Fatal(err)
	}
	if got, want := f.unsent.Load(), int64(100_005-65_535); got != want {
		t.Errorf("%d bytes wait, want %d", got, want)
	}
	if err := w.feed(appendWindowUpdate(appendWindowUpdate(nil, 0, 100_000), 1, 10_000)); err != nil {
		t.Fatal(err)
	}
	if got, want := f.unsent.Load(), int64(100_005-65_535-10_000); got != want {
		t.Errorf("%d bytes wait after 10,000 more, want %d", got, want)
	}
	if err := w.feed(appendWindowUpdate(nil, 1, 50_000)); err != nil {
		t.Fatal(err)
	}
	if got := f.unsent.Load(); got != 0 {
		t.Errorf("%d bytes wait, want none", got)
	}
}
