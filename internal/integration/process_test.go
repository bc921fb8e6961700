package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a condition may take to come about on a slow and busy machine, and pollEvery how often it is looked at.
const (
	patience  = 30 * time.Second
	pollEvery = 20 * time.Millisecond
)

// eventually waits until a condition holds, which says what is missing as long as it does not.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		if t.Failed() {
			t.Fatalf("gave up waiting for %s: %v", what, err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		}
		// What runs outside this process tells us nothing by itself; this is the one place that waits for it.
		time.Sleep(pollEvery)
	}
}

// process is a program that a test has started. It ends at the end of the test at the latest; when it ends unasked the test
// fails. What it writes is logged when the test has failed, and stays in the folder of go test -artifacts.
type process struct {
	t    *testing.T
	name string
	log  string
	cmd  *exec.Cmd

	done chan struct{} // closed when it has ended

	mu    sync.Mutex
	asked bool // to end
}

func startProcess(t *testing.T, name, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, log: filepath.Join(t.ArtifactDir(), name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := errors.Join(p.cmd.Start(), log.Close()); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	go func() {
		defer close(p.done)
		err := p.cmd.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.asked {
			t.Errorf("%s ended by itself: %v", name, err)
		}
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if strings.Contains(tail(p.log, 1<<20), "WARNING: DATA RACE") {
			t.Errorf("%s has a data race", name)
		}
		if t.Failed() {
			t.Logf("the end of %s's log:\n%s", name, tail(p.log, 16<<10))
		}
	})
	return p
}

// signal sends a signal that will end the process; whether and when it does is to be seen from done.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
	select {
	case <-p.done:
	default:
		if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			p.t.Errorf("sending %s to %s: %v", s, p.name, err)
		}
	}
}

// stop ends the process as its supervisor would and gives its exit code.
func (p *process) stop(within time.Duration) int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(within):
		p.t.Fatalf("%s did not end within %s of SIGTERM", p.name, within)
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill ends the process without giving it a chance to tidy up.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

func tail(path string, limit int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-limit):])
}

// output runs a command to its end and gives what it wrote to standard output.
func output(t *testing.T, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", fmt.Sprint(append([]string{filepath.Base(program)}, args...)), err, stderr.Bytes())
	}
	return out
}
