package integration

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// meshdBinary is set by TestMain.
var meshdBinary string

const (
	// redirectNode is a node in Istio's form, for which connections are redirected if nothing else is said.
	redirectNode = "sidecar~10.77.0.1~vm1.default~default.svc.cluster.local"

	// stopWithin is how long meshd may take to end when told to.
	stopWithin = 10 * time.Second
)

// Where meshd listens. These are not ports that a client's end of a connection may be given, so that they are there for a
// daemon that starts again.
const (
	xdsAddress   = "127.0.0.1:15010"
	adminAddress = "127.0.0.1:15014"
)

// daemon is meshd serve, which a test may end and start again with the same folders and addresses.
type daemon struct {
	*process
	entries string // the folder
	state   string
	config  string // a file, empty at first: what /etc/meshd of this machine says is not for us
	starts  int
	tls     *tls.Config // of the tests themselves; nil: xDS is in plain text
}

// newMeshd makes a daemon for a copy of the folders in testdata, to be started.
func newMeshd(t *testing.T, testdata ...string) *daemon {
	t.Helper()
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d := &daemon{
		entries: filepath.Join(dir, "entries"), state: filepath.Join(dir, "state"), config: filepath.Join(dir, "meshd.yaml"),
	}
	for _, folder := range []string{d.entries, d.state} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(d.config, []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, source := range testdata {
		if err := os.CopyFS(d.entries, os.DirFS(filepath.Join("testdata", source))); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// start starts the daemon (again) and waits until it says that it is ready.
func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.starts++
	d.process = startProcess(t, fmt.Sprintf("meshd-%d", d.starts), meshdBinary, "serve", "--config", d.config,
		"--entries", d.entries, "--xds-listen", xdsAddress, "--admin-listen", adminAddress, "--state-dir", d.state, "--log-level", "debug")
	eventually(t, "meshd's readiness", func() error {
		_, err := httpGet("http://" + adminAddress + "/-/ready")
		return err
	})
}

// configure writes the file of settings, which the next start reads.
func (d *daemon) configure(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(d.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// write saves an entry file as a careful program does: whole, or not at all.
func (d *daemon) write(t *testing.T, name, text string) {
	t.Helper()
	temporary := filepath.Join(filepath.Dir(d.entries), "saving")
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(d.entries, name)); err != nil {
		t.Fatal(err)
	}
}

func (d *daemon) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.entries, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// edit replaces text in an entry file.
func (d *daemon) edit(t *testing.T, name string, oldnew ...string) {
	t.Helper()
	text := d.read(t, name)
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(text, oldnew[i]) {
			t.Fatalf("%s holds no %q", name, oldnew[i])
		}
	}
	d.write(t, name, strings.NewReplacer(oldnew...).Replace(text))
}

func (d *daemon) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(d.entries, name)); err != nil {
		t.Fatal(err)
	}
}

// overwrite saves an entry file in place, where it may be read before it is whole.
func (d *daemon) overwrite(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.entries, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// get reads from the daemon's API.
func (d *daemon) get(path string, answer any) error {
	body, err := httpGet("http://" + adminAddress + path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, answer)
}

// problem finds one that holds all of these texts, as JSON.
func (d *daemon) problem(texts ...string) (string, error) {
	var answer struct{ Problems []json.RawMessage }
	if err := d.get("/api/v1/problems", &answer); err != nil {
		return "", err
	}
	for _, p := range answer.Problems {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(string(p), text) }) {
			return string(p), nil
		}
	}
	return "", nil
}

// awaitProblem waits until meshd shows a problem with all of these texts, and so has seen what is wrong.
func (d *daemon) awaitProblem(t *testing.T, texts ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("a problem with %q", texts), func() error {
		p, err := d.problem(texts...)
		if err == nil && p == "" {
			err = errors.New("there is none")
		}
		return err
	})
}

// awaitNoProblem waits until there is none left with all of these texts.
func (d *daemon) awaitNoProblem(t *testing.T, texts ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("no problem with %q", texts), func() error {
		p, err := d.problem(texts...)
		if err == nil && p != "" {
			err = errors.New(p)
		}
		return err
	})
}

// requireAccepted waits until meshd too says that its one node has taken all that it was sent, and fails if that was
// refused.
func (d *daemon) requireAccepted(t *testing.T) {
	t.Helper()
	eventually(t, "meshd's word that its node is in step", func() error {
		var answer struct {
			Nodes []struct {
				ID         string
				UserAgent  string
				Deliveries []struct {
					Type           string
					Sent, Accepted struct{ Version string }
					Rejected       json.RawMessage
					Pending        bool
				}
			}
		}
		if err := d.get("/api/v1/nodes", &answer); err != nil {
			return err
		}
		if n := len(answer.Nodes); n != 1 {
			return fmt.Errorf("%d nodes are connected", n)
		}
		if n := len(answer.Nodes[0].Deliveries); n != 4 {
			return fmt.Errorf("%d types are delivered", n)
		}
		for _, y := range answer.Nodes[0].Deliveries {
			if len(y.Rejected) > 0 {
				t.Fatalf("meshd says that the node has refused %s: %s", y.Type, y.Rejected)
			}
			// Who reconnects with what is right already is sent nothing, and has accepted it all the same.
			if y.Pending || y.Accepted.Version == "" || y.Sent.Version != "" && y.Sent.Version != y.Accepted.Version {
				return fmt.Errorf("%s: sent %q, accepted %q", y.Type, y.Sent.Version, y.Accepted.Version)
			}
		}
		return nil
	})
}

// protocol is the variant of xDS that Envoy is told to speak.
type protocol string

const (
	delta           protocol = "delta"
	stateOfTheWorld protocol = "sotw"
)

// bootstrap is what `meshd bootstrap` prints for a node, with more flags if there are any.
func (d *daemon) bootstrap(t *testing.T, c capture, p protocol, flags ...string) []byte {
	t.Helper()
	id, metadata := nodeOf(c)
	args := append([]string{"bootstrap", "--node-id", id, "--xds", xdsAddress, "--metadata", metadata}, flags...)
	text := string(output(t, meshdBinary, args...))
	if p == stateOfTheWorld {
		const delta, sotw = "DELTA_GRPC", "GRPC"
		if !strings.Contains(text, delta) {
			t.Fatalf("meshd bootstrap does not choose %s:\n%s", delta, text)
		}
		text = strings.ReplaceAll(text, delta, sotw)
	}
	return []byte(text)
}

// nodeOf gives the id and metadata of the node whose connections are captured like this.
func nodeOf(c capture) (id, metadata string) {
	if c == redirect {
		return redirectNode, `{"meshd": {"capture": "redirect"}}`
	}
	return "vm1", `{"meshd": {"capture": "none"}}`
}
