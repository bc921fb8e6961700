package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"meshd": main}) }

// TestScripts runs testdata/script. Beyond testscript's own commands these are known:
//
//	exits CODE COMMAND...            runs the command, which must end with this exit code
//	daemon NAME [VAR=VALUE] ARG...   starts meshd serve on free ports, which $XDS and $ADMIN tell; NAME.log is what it logs
//	signal NAME SIGNAL               sends it a signal: TERM, INT, HUP or KILL
//	ends NAME CODE                   waits until it has ended, with an exit code or by a signal
//	await FILE REGEXP                waits until the file says so
//	await-url URL REGEXP             waits until the page says so, which comes after its status code
//	socket                           stands for the service manager: $NOTIFY_SOCKET, and notify.log for what it is told
//	occupy VAR                       listens on an address until the end of the script
//	connect NODE [REASON]            connects as a node that takes its clusters and rejects its listeners, if there is a reason
//	backend VAR                      serves gRPC on a free port of 127.0.0.1, which $VAR tells, until the end of the script
//	call BOOTSTRAP TARGET            calls xds:///TARGET with gRPC's own xDS client, which stays connected
//	certify FOLDER NAME...           makes ca.pem, and for each name a certificate of it, NAME.pem and NAME.key
//	mutate FILE OLD NEW              replaces text in a file, as a careful editor does
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Values[daemonsKey{}] = map[string]*daemon{}
			e.Setenv("ENVOY", envoyBinary())
			examples, err := filepath.Abs("../../examples/entries")
			e.Setenv("EXAMPLES", examples)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "daemon": startDaemon, "signal": signalDaemon, "ends": awaitEnd, "await": awaitFile, "await-url": awaitURL,
			"socket": openSocket, "occupy": occupy, "connect": connect, "mutate": mutate,
			"backend": startBackend, "call": callByXDS, "certify": certify,
		},
	})
}

func envoyBinary() string {
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	path, err := filepath.Abs("../../.tools/envoy/envoy")
	if err != nil {
		panic(err) // there is a working directory
	}
	return path
}

// patience is how long anything may take on a slow and busy machine.
const patience = 20 * time.Second

// eventually waits until done is nil.
func eventually(ts *testscript.TestScript, what string, done func() error) {
	deadline := time.After(patience)
	for {
		err := done()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			ts.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func want(ts *testscript.TestScript, neg bool, args []string, least int, usage string) {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "exits CODE COMMAND...")
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, not %s", code, args[0])
	}
}

type daemonsKey struct{}

// daemon is a running meshd serve.
type daemon struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

func startDaemon(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1, "daemon NAME [VAR=VALUE] ARG...")
	d := &daemon{log: ts.MkAbs(args[0] + ".log"), ended: make(chan struct{})}
	ts.Value(daemonsKey{}).(map[string]*daemon)[args[0]] = d
	command, environ := []string{"serve"}, append(os.Environ(), "NOTIFY_SOCKET="+ts.Getenv("NOTIFY_SOCKET"))
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "-") || !strings.Contains(a, "=") {
			command = append(command, a)
		} else {
			environ = append(environ, a)
		}
	}
	for _, flag := range []string{"--xds-listen", "--admin-listen"} {
		if !slices.Contains(command, flag) {
			command = append(command, flag, "127.0.0.1:0")
		}
	}
	if !slices.Contains(command, "--state-dir") {
		command = append(command, "--state-dir", "state")
	}
	log, err := os.Create(d.log)
	ts.Check(err)
	d.cmd = exec.Command("meshd", command...)
	d.cmd.Dir, d.cmd.Env, d.cmd.Stderr = ts.MkAbs("."), environ, log
	err = d.cmd.Start()
	ts.Check(errors.Join(err, log.Close()))
	go func() {
		defer close(d.ended)
		_ = d.cmd.Wait() // ends says how
	}()
	ts.Defer(func() {
		_ = d.cmd.Process.Kill() // it may have ended
		<-d.ended
	})
	where := regexp.MustCompile(`starting.*admin"?[=:]"?(off|[0-9.]+:[0-9]+).* ?"?xds"?[=:]"?([0-9.]+:[0-9]+)|starting.*xds=([0-9.]+:[0-9]+) admin=(off|[0-9.]+:[0-9]+)`)
	eventually(ts, "the daemon listens", func() error {
		select {
		case <-d.ended:
			ts.Fatalf("the daemon has ended:\n%s", ts.ReadFile(d.log))
		default:
		}
		m := where.FindStringSubmatch(ts.ReadFile(d.log))
		if m == nil {
			return errors.New("no line in its log")
		}
		ts.Setenv("ADMIN", m[1]+m[4])
		ts.Setenv("XDS", m[2]+m[3])
		return nil
	})
}

func running(ts *testscript.TestScript, name string) *daemon {
	d := ts.Value(daemonsKey{}).(map[string]*daemon)[name]
	if d == nil {
		ts.Fatalf("there is no daemon %s", name)
	}
	return d
}

func signalDaemon(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "signal NAME SIGNAL")
	s, ok := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}[args[1]]
	if !ok {
		ts.Fatalf("no signal %s", args[1])
	}
	ts.Check(running(ts, args[0]).cmd.Process.Signal(s))
}

func awaitEnd(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "ends NAME CODE")
	d := running(ts, args[0])
	select {
	case <-d.ended:
	case <-time.After(patience):
		ts.Fatalf("the daemon has not ended within %s:\n%s", patience, ts.ReadFile(d.log))
	}
	if how := strings.TrimPrefix(d.cmd.ProcessState.String(), "exit status "); how != args[1] {
		ts.Fatalf("the daemon has ended with %s, not %s:\n%s", how, args[1], ts.ReadFile(d.log))
	}
}

func awaitFile(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "await FILE REGEXP")
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	eventually(ts, "await "+args[0], func() error {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && !re.Match(text) {
			err = fmt.Errorf("no %s in\n%s", re, text)
		}
		return err
	})
}

func awaitURL(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "await-url URL REGEXP")
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	eventually(ts, "await-url "+args[0], func() error {
		resp, err := http.Get(args[0])
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if text := fmt.Sprintf("%d\n%s", resp.StatusCode, body); err == nil && !re.MatchString(text) {
			err = fmt.Errorf("no %s in %s", re, text)
		}
		return err
	})
}

func openSocket(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 0, "socket")
	// The script's own folder may be too deep for the name of a socket.
	dir, err := os.MkdirTemp("", "meshd")
	ts.Check(err)
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	ts.Check(err)
	log, err := os.Create(ts.MkAbs("notify.log"))
	ts.Check(err)
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			fmt.Fprintf(log, "%s\n", buf[:n])
		}
	})
	ts.Defer(func() {
		conn.Close()
		reading.Wait()
		ts.Check(errors.Join(log.Close(), os.RemoveAll(dir)))
	})
	ts.Setenv("NOTIFY_SOCKET", path)
}

func occupy(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1, "occupy VAR")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	ts.Setenv(args[0], l.Addr().String())
}

func mutate(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 3, "mutate FILE OLD NEW")
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s holds no %q", args[0], args[1])
	}
	path := ts.MkAbs(args[0])
	ts.Check(os.WriteFile(path+".new", []byte(strings.ReplaceAll(text, args[1], args[2])), 0o644))
	ts.Check(os.Rename(path+".new", path))
}

func connect(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1, "connect NODE [REASON]")
	ctx, cancel := context.WithCancel(context.Background())
	reason := ""
	if len(args) > 1 {
		reason = args[1]
	}
	n, err := dialNode(ctx, ts.Getenv("XDS"), args[0], reason)
	if err != nil {
		cancel()
		ts.Fatalf("%v", err)
	}
	ts.Defer(func() {
		cancel()
		n.wait()
	})
}

func startBackend(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1, "backend VAR")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	stop := serveHealth(l)
	ts.Defer(stop)
	ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

func callByXDS(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2, "call BOOTSTRAP TARGET")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := callHealth(ctx, []byte(ts.ReadFile(args[0])), args[1])
	ts.Check(err)
	ts.Defer(func() { conn.Close() })
}
