package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// statusTimeout is how long the daemon may take to answer.
const statusTimeout = 10 * time.Second

func newStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [NODE]",
		Short: "Show what the running daemon has",
		Long: `status asks a running daemon for its registries, the view that it serves, the problems that it found in its input,
and the nodes that are connected, with what each was sent, accepted or rejected of each type. With a node's id it
shows that node alone and in full; with --services, the services.

With --loads it shows how many requests go where, the busiest services first: by what those nodes report that were told
to by meshd bootstrap --load-reports; with a node's id as well, by what that node reports.

Of a registry of Consul it shows by which questions it keeps up, how long ago each was answered and what is wrong
with it; and below HELD BY which instances are served on although Consul says that they are gone, and why it is not
believed. meshd release lets go of them.

Exit codes: 0 shown, 1 the node is not connected (or reports no load), 2 no daemon answers (or wrong flags).`,
		Example: `  meshd status
  meshd status web-1
  meshd status --services
  meshd status --loads
  meshd status -o json | jq '.problems[] | select(.severity == "error")'`,
		Args: cobra.MaximumNArgs(1),
	}
	daemon := daemonFlag(cmd)
	services := cmd.Flags().Bool("services", false, "show the services, and where each comes from")
	loads := cmd.Flags().Bool("loads", false, "show how many requests go where, by what nodes report")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		show, path := showStatus, "/api/v1/status"
		switch {
		case *services && *loads:
			return errors.New("--services and --loads are two things to show; ask for one")
		case *loads:
			show, path = showLoads, "/api/v1/loads"
			if len(args) > 0 {
				path += "?node=" + url.QueryEscape(args[0])
			}
		case *services && len(args) > 0:
			return errors.New("a node and --services are two things to show; ask for one")
		case *services:
			show, path = showServices, "/api/v1/services"
		case len(args) > 0:
			show, path = showNodes, "/api/v1/nodes/"+url.PathEscape(args[0])
		}
		answer, err := daemon.answer(cmd.Context(), path)
		if err != nil {
			return err
		}
		if output.value == "json" {
			_, err := cmd.OutOrStdout().Write(answer)
			return err
		}
		return show(cmd.OutOrStdout(), answer, time.Now())
	}
	return cmd
}

// daemonAt is a flag that says which daemon is asked.
type daemonAt struct{ address address }

// daemonFlag adds --admin to a command.
func daemonFlag(cmd *cobra.Command) *daemonAt {
	d := &daemonAt{}
	cmd.Flags().Var(&d.address, "admin", "where the daemon serves its admin API (default: what its settings say, else 127.0.0.1:15014)")
	return d
}

func (d *daemonAt) given() bool { return d.address != (address{}) }

func (d *daemonAt) at() string { return cmp.Or(d.address.String(), installedDaemon()) }

// installedDaemon is where the daemon that is installed here serves its admin API, as far as its settings can be read.
func installedDaemon() string {
	if settings, err := installedSettings(); err == nil {
		return reachable(string(settings.AdminListen), "15014")
	}
	return reachable("", "15014")
}

// reachable is where a daemon of this machine is reached that listens at an address, or at none on a port.
func reachable(listen, port string) string {
	host := ""
	if listen != "" {
		host, port, _ = net.SplitHostPort(listen) // it is an address, or would not have been loaded
	}
	if host == "" || net.ParseIP(host).IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// answer is what the daemon answers if all is well.
func (d *daemonAt) answer(ctx context.Context, path string) ([]byte, error) {
	status, body, err := d.ask(ctx, http.MethodGet, path)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound && (strings.Contains(path, "/nodes/") || strings.Contains(path, "?node=")):
		return nil, failure{errors.New(strings.TrimSpace(string(body)))}
	case status != http.StatusOK:
		return nil, strange(d.at(), http.MethodGet, path, status)
	}
	return body, nil
}

// ask asks the daemon, or with POST gives it an order.
func (d *daemonAt) ask(ctx context.Context, method, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if status, body, err = ask(ctx, d.at(), method, path); err != nil {
		err = fmt.Errorf("%w; start it with meshd serve, or say with --admin where it is", err)
	}
	return status, body, err
}

// ask makes a request to a daemon's admin API and reads the answer, whatever its status.
func ask(ctx context.Context, daemon, method, path string) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+daemon+path, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		if cause, ok := errors.AsType[*net.OpError](err); ok {
			err = cause.Err // without the URL and the address
		}
		return 0, nil, fmt.Errorf("no daemon answers at %s (%w)", daemon, err)
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(response.Body); err != nil {
		return 0, nil, fmt.Errorf("read the answer of %s: %w", daemon, err)
	}
	return response.StatusCode, body, nil
}

// strange is the error of an answer that a daemon of this version does not give.
func strange(daemon, method, path string, status int) error {
	return fmt.Errorf("%s is no meshd of this version: %s %s: %d %s", daemon, method, path, status, http.StatusText(status))
}

// showStatus writes everything as tables.
func showStatus(out io.Writer, answer []byte, now time.Time) error {
	var s admin.Status
	if err := json.Unmarshal(answer, &s); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	state := "ready"
	if !s.Ready {
		state = "not ready: " + s.Reason
	}
	fmt.Fprintf(w, "meshd %s\t%s, up %s\n", s.Version, state, age(s.Started, now))
	fmt.Fprintf(w, "xDS\t%s\n", s.XDS)
	if v := s.View; v != nil {
		fmt.Fprintf(w, "view\tgeneration %d, %s, %s, digest %s, changed %s ago\n", v.Generation,
			counted(v.Services, "service", "services"), counted(v.Endpoints, "endpoint", "endpoints"), short(v.Digest), age(v.Changed, now))
	}
	if c := s.Canary; c != nil && c.Trying > 0 {
		fmt.Fprintf(w, "canary\tgeneration %d is with %d of %s, all others have %d", c.Trying, len(c.Nodes), counted(c.Of, "node", "nodes"), c.Rest)
		if c.StoppedFor != "" {
			fmt.Fprintf(w, "; it goes no further: %s", c.StoppedFor)
		}
		fmt.Fprintln(w)
	}

	fmt.Fprint(w, "\nREGISTRY\tSYNCED\tSERVICES\tPROBLEMS\tLAST CHANGE\n")
	for _, r := range s.Registries {
		synced, changed := "no", "-"
		if r.Synced {
			synced, changed = "yes", age(r.Published, now)+" ago"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\n", r.Name, synced, r.Services, r.Problems, changed)
	}
	for _, r := range s.Registries {
		if r.Standing != nil {
			showStanding(w, r.Name, r.Standing, now)
		}
	}

	if len(s.Problems) > 0 {
		fmt.Fprint(w, "\nPROBLEM\tFOR\tWHERE AND WHAT\n")
		for _, p := range s.Problems {
			fmt.Fprintf(w, "%s\t%s\t%s\n", p.Severity, age(p.Since, now), p.Problem)
			if p.Serving != "" {
				fmt.Fprintf(w, "\t\tserved instead: %s\n", p.Serving)
			}
		}
	} else {
		fmt.Fprint(w, "\nno problems\n")
	}

	if len(s.Nodes) == 0 {
		fmt.Fprint(w, "\nno nodes are connected\n")
		return w.Flush()
	}
	fmt.Fprint(w, "\nNODE\tSCOPE\tCONNECTED\tCLUSTERS\tENDPOINTS\tLISTENERS\tROUTES\n")
	for _, n := range s.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s", n.ID, scopeText(n.Scope), age(n.Connected, now))
		for _, t := range []string{"clusters", "endpoints", "listeners", "routes"} {
			fmt.Fprintf(w, "\t%s", cell(n, t, now))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// cell says in a word or two how a node stands with a type.
func cell(n admin.Node, typ string, now time.Time) string {
	for _, d := range n.Deliveries {
		switch {
		case d.Type != typ:
		case d.Rejected != nil:
			return "REJECTED " + short(d.Rejected.Version)
		case d.Pending:
			return "sent " + short(d.Sent.Version) + ", " + age(d.Sent.Time, now)
		case d.Accepted == admin.Mark{}:
			return "nothing to send"
		default:
			return "accepted " + short(d.Accepted.Version)
		}
	}
	return "-"
}

// showNodes writes all that is known of the nodes of one id.
func showNodes(out io.Writer, answer []byte, now time.Time) error {
	var all admin.Nodes
	if err := json.Unmarshal(answer, &all); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i, n := range all.Nodes {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "node\t%s\n", n.ID)
		fmt.Fprintf(w, "program\t%s\n", strings.TrimSpace(cmp.Or(n.UserAgent, "unknown")+" "+n.Version))
		if n.Scope.Kind == envoy.GRPC.String() {
			fmt.Fprintf(w, "scope\tnamespace %s, gRPC client\n", n.Scope.Namespace)
		} else {
			fmt.Fprintf(w, "scope\tnamespace %s, capture %s, %s\n", n.Scope.Namespace, n.Scope.Capture, n.Scope.Family)
		}
		if n.Scope.Locality != (mesh.Locality{}) {
			fmt.Fprintf(w, "locality\t%s\n", n.Scope.Locality)
		}
		stream := n.Protocol
		if n.Aggregated {
			stream += ", aggregated"
		}
		fmt.Fprintf(w, "connected\t%s ago from %s (%s)\n", age(n.Connected, now), n.Peer, stream)
		if !n.Throttled.IsZero() {
			fmt.Fprintf(w, "throttled\t%s ago, since it sent more than max-request-rate\n", age(n.Throttled, now))
		}
		if n.Identity != "" {
			fmt.Fprintf(w, "certificate\t%s\n", n.Identity)
		}

		fmt.Fprint(w, "\nTYPE\tASKED FOR\tSENT\tACCEPTED\tREJECTED\n")
		for _, d := range n.Deliveries {
			asked := fmt.Sprint(d.Subscribed, " by name")
			if d.Wildcard {
				asked = "all"
			}
			rejected := "-"
			if d.Rejected != nil {
				rejected = mark(d.Rejected.Mark, now)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", d.Type, asked, mark(d.Sent, now), mark(d.Accepted, now), rejected)
		}
		for _, d := range n.Deliveries {
			if d.Rejected == nil {
				continue
			}
			fmt.Fprintf(w, "\nREJECTED %s\t%s\n", d.Type, d.Rejected.Message)
			for _, r := range d.Rejected.Resources {
				fmt.Fprintf(w, "resource\t%s\n", r+keeps(d.Held, r))
			}
			for _, c := range d.Rejected.Causes {
				fmt.Fprintf(w, "made from\t%s, %s\n", c.Service, cmp.Or(c.Origin.String(), "which is gone"))
			}
		}
	}
	return w.Flush()
}

// keeps says what a node has in place of a resource that it rejects.
func keeps(held []admin.Held, resource string) string {
	for _, h := range held {
		switch {
		case h.Name != resource:
		case h.Last == "":
			return ", held back"
		default:
			return ", held back; it keeps version " + short(h.Last)
		}
	}
	return ""
}

// showServices writes a line for each port of a service.
func showServices(out io.Writer, answer []byte, _ time.Time) error {
	var all admin.Services
	if err := json.Unmarshal(answer, &all); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "SERVICE\tPORT\tPROTOCOL\tRESOLUTION\tENDPOINTS\tFROM\n")
	for _, s := range all.Services {
		for _, p := range s.Ports {
			fmt.Fprintf(w, "%s/%s\t%d\t%s\t%s\t%d\t%s\n", s.Namespace, s.Host, p.Number, cmp.Or(p.Protocol, "any"), s.Resolution, len(s.Endpoints), s.Origin)
		}
	}
	return w.Flush()
}

func mark(m admin.Mark, now time.Time) string {
	if m == (admin.Mark{}) {
		return "-"
	}
	return fmt.Sprintf("%s, %s ago", short(m.Version), age(m.Time, now))
}

// short is as much of a version as people compare.
func short(version string) string { return version[:min(8, len(version))] }

// age is how long ago something was, in its two largest units.
func age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := max(0, now.Sub(t)).Round(time.Second)
	switch {
	case d >= 24*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.String()
}
