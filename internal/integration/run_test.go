package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/consul/api"
)

// startScript starts what a target of make does, with the meshd of these tests, and waits until it says what to try.
func startScript(t *testing.T, name string) *process {
	t.Helper()
	for _, folder := range []string{"scripts", "examples"} { // go test is to know that the result depends on these
		if err := filepath.WalkDir(filepath.Join(repository(), folder), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				_, err = os.ReadFile(path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := readSources(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RUN_MESHD", meshdBinary)
	t.Setenv("TMPDIR", t.TempDir())
	p := startProcess(t, name, filepath.Join(repository(), "scripts", name))
	p.awaitSaid(t, "Ctrl-C stops everything")
	return p
}

// awaitSaid waits until the process has written a text.
func (p *process) awaitSaid(t *testing.T, text string) {
	t.Helper()
	eventually(t, p.name+" to say "+text, func() error {
		if said := tail(p.log, 1<<20); !strings.Contains(said, text) {
			return fmt.Errorf("it has said\n%s", said)
		}
		return nil
	})
}

// interrupt is Ctrl-C: the script ends well and leaves nothing behind.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	p.signal(syscall.SIGINT)
	<-p.done
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("%s ended with code %d", p.name, code)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("%s has left %v (%v)", p.name, left, err)
	}
	for _, address := range []string{"127.0.0.1:8000", "127.0.0.1:8500", xdsAddress, adminAddress, "127.0.0.1:18081"} {
		listen(t, address).Close()
	}
}

// awaitHellos asks for a host on port 8000 until these answer, all of them and no others.
func awaitHellos(t *testing.T, host string, names ...string) {
	t.Helper()
	call := caller{call: func(context.Context) (string, error) { return hello(host) }, close: func() {}}
	awaitAnswers(t, host, call, names...)
}

// hello gives the name of the upstream that answers.
func hello(host string) (string, error) {
	req, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:8000/", nil)
	if err != nil {
		return "", err
	}
	req.Host = host
	resp, err := adminClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	name, _, _ := strings.Cut(strings.TrimPrefix(string(body), "hello from "), ",")
	if resp.StatusCode != http.StatusOK {
		return "", errors.Join(err, fmt.Errorf("%s: %s", resp.Status, body))
	}
	return name, err
}

// TestMakeRun runs what make run does.
func TestMakeRun(t *testing.T) {
	p := startScript(t, "run")
	awaitHellos(t, "hello.mesh.internal", "a", "b")
	requireReaches(t, "the echo", echoOnPort9000(), "echo: hello")
	p.interrupt(t)
}

// TestMakeRunConsul runs what make run-consul does, and what it says to try.
func TestMakeRunConsul(t *testing.T) {
	t.Setenv("RUN_CONSUL_AWAY", "2")
	p := startScript(t, "run-consul")
	awaitHellos(t, "hello.service.consul", "a", "b")
	requireReaches(t, "the echo", echoOnPort9000(), "echo: hello")
	for _, row := range []string{"echo.service.consul +9000 +TCP +1\n", "hello.service.consul +8000 +HTTP +2\n"} {
		if shown := output(t, meshdBinary, "discover", "--consul", "127.0.0.1:8500"); !regexp.MustCompile(row).Match(shown) {
			t.Errorf("meshd discover shows no %q:\n%s", row, shown)
		}
	}

	client, err := api.NewClient(&api.Config{Address: "127.0.0.1:8500", Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	change := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	change(client.Agent().EnableServiceMaintenance("hello-a", ""))
	awaitHellos(t, "hello.service.consul", "b")
	change(client.Agent().DisableServiceMaintenance("hello-a"))
	awaitHellos(t, "hello.service.consul", "a", "b")

	file := regexp.MustCompile(`cat (.*/consul\.pid)`).FindStringSubmatch(tail(p.log, 1<<20))
	if file == nil {
		t.Fatalf("it does not say how to kill Consul:\n%s", tail(p.log, 1<<20))
	}
	pid, err := strconv.Atoi(strings.TrimSpace(tail(file[1], 20)))
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	change(err)
	p.awaitSaid(t, "Consul has ended")
	awaitHellos(t, "hello.service.consul", "a", "b")
	p.awaitSaid(t, "Consul is back")
	change(client.Agent().ServiceDeregister("hello-b"))
	awaitHellos(t, "hello.service.consul", "a")
	p.interrupt(t)
}

// echoOnPort9000 calls the echo of the scripts, and gives its answer.
func echoOnPort9000() caller {
	return caller{close: func() {}, call: func(ctx context.Context) (string, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:9000")
		if err != nil {
			return "", err
		}
		defer conn.Close()
		var line [1]string
		err = exchange(ctx, conn, line[:])
		return strings.TrimSpace(line[0]), err
	}}
}
