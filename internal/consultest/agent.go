package consultest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// ManagementToken is the secret of the token that may do all, where ACLs are on.
const ManagementToken = "7e577e57-0000-4000-8000-000000000001"

// patience is how long an agent may take to become ready on a slow and busy machine.
const patience = 90 * time.Second

// Mode is what an agent is.
type Mode uint8

// The modes. A Dev agent keeps its catalog in memory, so that a restart loses it, and writes its answers with indentation. A Server
// keeps its catalog in its data directory. A Client has none and needs JoinLAN.
const (
	Dev Mode = iota
	Server
	Client
)

func (m Mode) String() string { return [...]string{"dev", "server", "client"}[m] }

// Options say what agent to start. Empty fields have the defaults that stand beside them.
type Options struct {
	// Program is the Consul to run. Empty: the one of $CONSUL, else the one on PATH, else the one that make consul has built.
	Program    string
	Mode       Mode
	Datacenter string // "dc1"
	Node       string // "agent"; must be unique among those that are joined, by default the mode and a number
	DataDir    string // a temporary one
	// ACL turns ACLs on, with default deny. The agent itself and what the [Agent]'s methods do have the [ManagementToken].
	ACL bool
	// HTTPS opens a port for HTTPS (and with it HTTP/2) as well, with a certificate of a CA of its own.
	HTTPS   bool
	JoinLAN *Agent
	JoinWAN *Agent
	// Config is more configuration, HCL or JSON. It wins over all else.
	Config string
}

// Agent is a Consul agent that runs as a child process. Its methods end the test if they fail, and so belong in the test's
// goroutine. They talk to it by plain HTTP.
type Agent struct {
	Addr      string // of HTTP, HOST:PORT
	HTTPSAddr string // of HTTPS, HOST:PORT; empty without Options.HTTPS
	CAFile    string // of the CA of the certificate; empty without Options.HTTPS
	Token     string // ManagementToken; empty without Options.ACL
	LogFile   string

	t       testing.TB
	o       Options
	args    []string
	ports   ports
	dir     string
	http    *http.Client
	client  *api.Client
	process *process // nil before the first start
}

// Start starts an agent and waits until it is ready. It ends with the test.
func Start(t testing.TB, o Options) *Agent {
	t.Helper()
	for attempt := 1; ; attempt++ {
		a := prepare(t, o)
		a.configure(nil)
		a.start()
		err := a.ready()
		if err == nil {
			return a
		}
		// Another program may have taken a port since we looked.
		if attempt == 3 || !strings.Contains(a.log(), "address already in use") {
			t.Fatalf("starting Consul: %v\n%s", err, a.log())
		}
		a.Kill()
	}
}

// StartServers starts so many servers of one datacenter, which elect a leader among them. The options' mode and node are theirs
// to fill in. With two of them, the death of one leaves the other without a leader.
func StartServers(t testing.TB, n int, o Options) []*Agent {
	t.Helper()
	agents := make([]*Agent, n)
	for i := range agents {
		o.Mode, o.Node, o.DataDir = Server, fmt.Sprintf("server-%d", i+1), ""
		agents[i] = prepare(t, o)
	}
	for _, a := range agents {
		a.configure(agents)
		a.start()
	}
	for _, a := range agents {
		a.Ready()
	}
	return agents
}

func prepare(t testing.TB, o Options) *Agent {
	t.Helper()
	a := &Agent{t: t, o: o, dir: t.TempDir(), ports: freePorts(t)}
	a.o.Datacenter = cmp.Or(o.Datacenter, "dc1")
	a.o.Node = cmp.Or(o.Node, fmt.Sprintf("%s-%d", o.Mode, a.ports.http))
	a.o.DataDir = cmp.Or(o.DataDir, filepath.Join(a.dir, "data"))
	a.LogFile = filepath.Join(t.ArtifactDir(), "consul-"+a.o.Node+".log")
	a.Addr = local(a.ports.http)
	if o.ACL {
		a.Token = ManagementToken
	}
	a.http = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 64, MaxIdleConnsPerHost: 64}}
	client, err := api.NewClient(&api.Config{Address: a.Addr, Scheme: "http", Token: a.Token, HttpClient: a.http})
	if err != nil {
		t.Fatal(err)
	}
	a.client = client
	t.Cleanup(func() {
		a.http.CloseIdleConnections()
		if a.process == nil {
			return
		}
		if ended, err := a.process.ended(); ended && !a.process.asked {
			t.Errorf("Consul %s ended by itself: %v", a.o.Node, err)
		}
		a.Kill()
		if t.Failed() {
			t.Logf("the end of the log of Consul %s (%s):\n%s", a.o.Node, a.LogFile, a.log())
		}
	})
	return a
}

// configure writes the agent's configuration. The peers are the servers that elect a leader, none if this is the only one.
func (a *Agent) configure(peers []*Agent) {
	a.t.Helper()
	file := map[string]any{
		"datacenter":           a.o.Datacenter,
		"node_name":            a.o.Node,
		"bind_addr":            "127.0.0.1",
		"client_addr":          "127.0.0.1",
		"log_level":            "warn",
		"disable_update_check": true,
		"disable_remote_exec":  true,
		"retry_interval":       "200ms",
		"retry_interval_wan":   "200ms",
		"performance":          map[string]any{"raft_multiplier": 1},
	}
	ports := map[string]int{
		"http": a.ports.http, "https": -1, "grpc": -1, "grpc_tls": -1, "dns": -1,
		"server": a.ports.server, "serf_lan": a.ports.lan, "serf_wan": a.ports.wan,
	}
	file["ports"] = ports
	a.args = []string{"agent", "-config-file", filepath.Join(a.dir, "consul.json")}
	switch a.o.Mode {
	case Dev:
		a.args = append(a.args, "-dev")
	case Server:
		file["server"], file["data_dir"] = true, a.o.DataDir
		if a.o.JoinLAN == nil {
			file["bootstrap_expect"] = max(1, len(peers))
		}
	case Client:
		if a.o.JoinLAN == nil {
			a.t.Fatal("consultest: a client agent needs Options.JoinLAN")
		}
		file["data_dir"] = a.o.DataDir
		delete(ports, "serf_wan")
	}
	var lan []string
	for _, p := range append(peers, a.o.JoinLAN) {
		if p != nil && p != a {
			lan = append(lan, local(p.ports.lan))
		}
	}
	if len(lan) > 0 {
		file["retry_join"] = lan
	}
	if a.o.JoinWAN != nil {
		file["retry_join_wan"] = []string{local(a.o.JoinWAN.ports.wan)}
	}
	if a.o.ACL {
		file["acl"] = map[string]any{
			"enabled": true, "default_policy": "deny",
			"tokens": map[string]any{"initial_management": ManagementToken, "agent": ManagementToken},
		}
	}
	if a.o.HTTPS {
		cert := newCertificate(a.t, a.dir)
		a.HTTPSAddr, a.CAFile = local(a.ports.https), cert.ca
		ports["https"] = a.ports.https
		file["tls"] = map[string]any{"https": map[string]any{"cert_file": cert.cert, "key_file": cert.key}}
	}
	text, err := json.MarshalIndent(file, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(a.dir, "consul.json"), text, 0o600)
	}
	if err == nil && a.o.Config != "" {
		more := filepath.Join(a.dir, "more.hcl")
		a.args = append(a.args, "-config-file", more)
		err = os.WriteFile(more, []byte(a.o.Config), 0o600)
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// Datacenter is the agent's.
func (a *Agent) Datacenter() string { return a.o.Datacenter }

// Node is the name of the agent's own node.
func (a *Agent) Node() string { return a.o.Node }

// Client is a client of the agent with its token. It lives as long as the test.
func (a *Agent) Client() *api.Client { return a.client }

// TLS is the configuration of a client that trusts the agent's certificate.
func (a *Agent) TLS() *tls.Config {
	a.t.Helper()
	return trust(a.t, a.CAFile)
}

func (a *Agent) start() {
	a.t.Helper()
	p, err := startProcess(program(a.t, a.o.Program), a.LogFile, a.args...)
	if err != nil {
		a.t.Fatalf("starting Consul: %v", err)
	}
	a.process = p
}

// Kill ends the agent without giving it a chance to tidy up, and waits until it is gone.
func (a *Agent) Kill() {
	a.t.Helper()
	a.process.kill()
	a.http.CloseIdleConnections()
}

// Terminate asks the agent to end, as its supervisor would, and waits until it has.
func (a *Agent) Terminate() {
	a.t.Helper()
	a.process.signal(syscall.SIGTERM)
	select {
	case <-a.process.done:
	case <-time.After(patience):
		a.t.Fatalf("Consul %s did not end within %s of SIGTERM", a.o.Node, patience)
	}
	a.http.CloseIdleConnections()
}

// Restart starts the agent again after [Agent.Kill] or [Agent.Terminate], or kills it first, with the same data and ports. It
// does not wait until it is ready.
func (a *Agent) Restart() {
	a.t.Helper()
	a.Kill()
	a.start()
}

// Pause stops the agent in its tracks: its ports are open, but nobody answers.
func (a *Agent) Pause() {
	a.process.send(syscall.SIGSTOP)
	for !a.process.stopped() {
		time.Sleep(time.Millisecond)
	}
}

// Resume ends a [Agent.Pause].
func (a *Agent) Resume() { a.process.send(syscall.SIGCONT) }

// Ready waits until the agent answers, knows a leader and has Consul's own service in its catalog, and until those that it
// was to join are there.
func (a *Agent) Ready() {
	a.t.Helper()
	if err := a.ready(); err != nil {
		a.t.Fatal(err)
	}
}

func (a *Agent) ready() error {
	deadline := time.Now().Add(patience)
	for {
		err := a.check()
		if err == nil {
			return nil
		}
		if ended, why := a.process.ended(); ended {
			return fmt.Errorf("the Consul %s ended: %w", a.o.Node, errors.Join(why, err))
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the Consul %s is not ready after %s: %w", a.o.Node, patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// check tells what is missing before the agent is ready.
func (a *Agent) check() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	consistent := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	leader, err := a.client.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return err
	}
	if leader == "" {
		return errors.New("no leader")
	}
	nodes, _, err := a.client.Catalog().Nodes(consistent)
	if err != nil {
		return err
	}
	there := false
	for _, n := range nodes {
		there = there || n.Node == a.o.Node
	}
	if !there {
		return errors.New("its own node is not in the catalog")
	}
	services, _, err := a.client.Catalog().Services(consistent)
	if err != nil {
		return err
	}
	if _, ok := services["consul"]; !ok {
		return errors.New("the service consul is not in the catalog")
	}
	if a.o.JoinWAN != nil {
		there := (&api.QueryOptions{Datacenter: a.o.JoinWAN.o.Datacenter}).WithContext(ctx)
		if _, _, err := a.client.Catalog().Services(there); err != nil {
			return err
		}
		back := (&api.QueryOptions{Datacenter: a.o.Datacenter}).WithContext(ctx)
		if _, _, err := a.o.JoinWAN.client.Catalog().Services(back); err != nil {
			return err
		}
	}
	return nil
}

// log is the end of the agent's log.
func (a *Agent) log() string {
	text, err := os.ReadFile(a.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-16<<10):]))
}

// program finds the Consul to run: the one that is named, the one on PATH, the one that is built in the tree.
func program(t testing.TB, named string) string {
	t.Helper()
	if named = cmp.Or(named, os.Getenv("CONSUL")); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			t.Fatalf("no Consul: %v; unset CONSUL and run make consul", err)
		}
		return path
	}
	if path, err := exec.LookPath("consul"); err == nil {
		return path
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no Consul: it is not on PATH, and this is no folder of meshd's; name it in Options.Program")
		}
		dir = filepath.Dir(dir)
	}
	path, err := exec.LookPath(filepath.Join(dir, ".tools", "consul", "consul"))
	if err != nil {
		t.Fatalf("no Consul: %v; run make consul", err)
	}
	return path
}

func local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
