package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a server in a process of its own.
type process struct {
	cmd     *exec.Cmd
	address string
	admin   string    // of meshd
	in      io.Writer // of our own servers
	out     *bufio.Reader
	exited  chan struct{}
	status  error // once it has exited
	output  *tail
}

// tail keeps the end of what a server says.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-16<<10):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// startOwn runs this program as a server.
func startOwn(executable string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(executable, append([]string{serverCommand}, args...)...), output: &tail{}}
	p.cmd.Stderr, p.cmd.SysProcAttr = p.output, attributes()
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.start(); err != nil {
		return nil, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return nil, errors.Join(p.wrong(err), p.stop())
	}
	p.address = strings.TrimSpace(line)
	return p, nil
}

// startMeshd runs meshd and waits until it says where it listens.
func startMeshd(program, entries, state string) (*process, error) {
	p := &process{output: &tail{}}
	p.cmd = exec.Command(program, "serve", "--config=", "--entries="+entries, "--state-dir="+state,
		"--xds-listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--log-format=json", "--drain-time=1s")
	p.cmd.SysProcAttr = attributes()
	log := &firstAddresses{tail: p.output, found: make(chan struct{})}
	p.cmd.Stderr = log
	if err := p.start(); err != nil {
		return nil, err
	}
	select {
	case <-log.found:
		p.address, p.admin = log.XDS, log.Admin
		return p, nil
	case <-p.exited:
		return nil, p.wrong(errors.New("it does not say where it listens"))
	}
}

// firstAddresses reads meshd's log until it has said where it listens.
type firstAddresses struct {
	*tail
	XDS, Admin string
	found      chan struct{}
}

func (a *firstAddresses) Write(b []byte) (int, error) {
	if a.XDS == "" {
		for line := range bytes.Lines(b) { // hclog writes whole lines
			if json.Unmarshal(line, a) == nil && a.XDS != "" {
				close(a.found)
				break
			}
		}
	}
	return a.tail.Write(b)
}

// start starts the process. It ends with the thread that has started it, which therefore waits for it.
func (p *process) start() error {
	p.exited = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.status = p.cmd.Wait()
			close(p.exited)
		}
	}()
	return <-started
}

// wrong adds to an error what the server has said.
func (p *process) wrong(err error) error {
	select {
	case <-p.exited:
		err = fmt.Errorf("%w; it has ended: %w", err, cmp.Or(p.status, errors.New("in order")))
	case <-time.After(3 * time.Second): // that a process ends is often seen first by its connections
	}
	return fmt.Errorf("%s: %w\n%s", p.cmd, err, p.output)
}

// stop ends the process.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	late := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() }) // it may have just ended
	defer late.Stop()
	<-p.exited
	return nil
}

// tell sends a line to one of our own servers and returns the time that it answers with.
func (p *process) tell(format string, args ...any) (time.Time, error) {
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return time.Time{}, p.wrong(err)
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return time.Time{}, p.wrong(err)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return time.Time{}, p.wrong(errors.New(line))
	}
	return time.Unix(0, ns), nil
}

func (p *process) cpu() (time.Duration, error) { return cpuTime(p.cmd.Process.Pid) }

// Lines of /proc/PID/status.
const (
	resident     = "VmRSS"
	peakResident = "VmHWM"
)

// memory is a line of the process' status, in KiB.
func (p *process) memory(line string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, line+":"); ok {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, fmt.Errorf("no %s of %s", line, p.cmd)
}

// resetPeak makes the peak begin anew.
func (p *process) resetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0)
}

// quiet waits until a process does next to nothing, and returns its processor time by then.
func (p *process) quiet(limit time.Duration) (time.Duration, error) {
	const look, calm = 25 * time.Millisecond, 4
	last, err := p.cpu()
	end := time.Now().Add(limit)
	for still := 0; err == nil && still < calm; {
		time.Sleep(look)
		var now time.Duration
		if now, err = p.cpu(); now-last < look/50 {
			still++
		} else {
			still = 0
		}
		last = now
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("%s does not come to rest in %s", p.cmd, limit)
		}
	}
	return last, err
}

// profile writes a CPU profile to a folder from now until the function is called that it returns. meshd's own has a length: it
// should not be longer than what is measured.
func (p *process) profile(folder, name string, length time.Duration) (stop func() error, err error) {
	if folder == "" {
		return func() error { return nil }, nil
	}
	name = filepath.Join(folder, name+".pprof")
	if p.admin == "" {
		if _, err := p.tell("profile %s", name); err != nil {
			return nil, err
		}
		return func() error { _, err := p.tell("profiled"); return err }, nil
	}
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.admin, max(1, int(length.Seconds())))
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- download(request, name) }()
	return func() error { return <-done }, nil
}

func download(request *http.Request, name string) error {
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

// busy is how much processor time the machine has spent on anything, by /proc/stat.
func busy() (time.Duration, error) {
	const tick = 10 * time.Millisecond
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	sum := int64(0)
	for i, word := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // cpu; idle and waiting; guests, who are in user
			continue
		}
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * tick, nil
}
