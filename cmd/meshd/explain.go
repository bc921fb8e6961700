package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
)

func newExplain() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain HOST|NAMESPACE/HOST [PATH...]",
		Short: "Tell all about one host: why does a request to it not arrive?",
		Long: `explain tells all about a host: what is suspect about it first, then which documents and registries define it, which
of them wins and why the others lost; its ports, addresses and endpoints, and from which line each comes; the Envoy
resources that lead to it; and which nodes are given them and took them. Of a host that several namespaces have it
tells which one each node means.

The running daemon is asked. With paths no daemon is asked: the files and folders are read as the daemon would, and
instead of the nodes that are connected those are told of that there may be.

Of a host that is not there it says which one may be meant, which wildcard covers it, and what was refused that names it.

Exit codes: 0 explained, 1 no service has the host, 2 no daemon answers (no such path, wrong flags).`,
		Example: `  meshd explain pay.mesh.internal
  meshd explain shop/pay.mesh.internal
  meshd explain pay.mesh.internal entries/          # of files, without a daemon
  meshd explain pay.mesh.internal -o json | jq -r '.nodes[] | select(.state != "accepted") | .id'`,
		Args: cobra.MinimumNArgs(1),
	}
	daemon := daemonFlag(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		h, namespace, err := admin.ParseService(args[0])
		if err != nil {
			return err
		}
		var x admin.Explanation
		switch paths := args[1:]; {
		case len(paths) > 0 && daemon.given():
			return errors.New("paths and --admin are two things to ask; give one")
		case len(paths) > 0:
			x, err = explainOffline(paths, h, namespace)
		default:
			x, err = explainDaemon(cmd.Context(), daemon, args[0])
		}
		if err != nil {
			return err
		}
		if output.value == "json" {
			err = printJSON(cmd.OutOrStdout(), x)
		} else {
			err = showExplanation(cmd.OutOrStdout(), x, time.Now())
		}
		if err == nil && len(x.Services) == 0 {
			err = failure{fmt.Errorf("no service has the host %q", args[0])}
		}
		return err
	}
	return cmd
}

// explainOffline explains a host by files alone.
func explainOffline(paths []string, h mesh.Host, namespace string) (admin.Explanation, error) {
	read, err := readOffline(paths)
	if err != nil {
		return admin.Explanation{}, err
	}
	namespaces := map[string]bool{mesh.DefaultNamespace: true}
	for s := range read.view.OfHost(h) {
		namespaces[s.Namespace] = true
		for _, n := range s.Export.Namespaces {
			namespaces[n] = true
		}
	}
	var made []*envoy.Snapshot
	for _, n := range slices.Sorted(maps.Keys(namespaces)) {
		for capture := range envoy.CaptureNames() {
			made = append(made, envoy.Translate(nil, read.view, envoy.Scope{Namespace: n, Capture: envoy.Capture(capture)}, envoy.Mesh{}, made...))
		}
	}
	return admin.Facts{View: read.view, Problems: slices.Concat(read.crossed, read.nodeProblems()), Sights: envoy.Sights(h, made), Near: strictyaml.Suggest}.Explain(h, namespace), nil
}

// explainDaemon has the daemon explain a host.
func explainDaemon(ctx context.Context, daemon *daemonAt, service string) (x admin.Explanation, err error) {
	status, body, err := daemon.ask(ctx, http.MethodGet, "/api/v1/explain?host="+url.QueryEscape(service))
	switch {
	case err != nil:
		return x, err
	case status == http.StatusBadRequest || status == http.StatusServiceUnavailable:
		return x, fmt.Errorf("%s: %s", daemon.at(), strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, &x); err != nil || x.Host == "" {
		return x, strange(daemon.at(), http.MethodGet, "/api/v1/explain", status)
	}
	return x, nil
}

// showExplanation writes an explanation for people.
func showExplanation(out io.Writer, x admin.Explanation, now time.Time) error {
	w := &sections{Writer: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	if len(x.Services) == 0 {
		w.list("SIMILAR", x.Near)
		w.list("COVERED BY THE WILDCARD", x.Wildcards)
		w.problems("PROBLEMS WITH WHAT NAMES IT", x.Problems, now)
		w.problems("IT MAY STAND IN WHAT CANNOT BE READ", x.Unread, now)
		return w.Flush()
	}
	w.list("SUSPECT", x.Suspects)
	for _, s := range x.Services {
		w.service(s)
	}
	w.problems("PROBLEMS", x.Problems, now)
	for _, s := range x.Seen {
		w.sight(s)
	}
	w.nodes(x.Nodes)
	return w.Flush()
}

// sections writes titles and below them rows of cells.
type sections struct {
	*tabwriter.Writer
	begun bool
}

func (w *sections) title(format string, args ...any) {
	if w.begun {
		fmt.Fprintln(w)
	}
	w.begun = true
	fmt.Fprintf(w, format+"\n", args...)
}

func (w *sections) row(cells ...string) {
	fmt.Fprintf(w, "  %s\n", strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (w *sections) list(title string, of []string) {
	if len(of) > 0 {
		w.title("%s", title)
	}
	for _, s := range of {
		w.row(s)
	}
}

func (w *sections) problems(title string, of []admin.Problem, now time.Time) {
	if len(of) > 0 {
		w.title("%s", title)
	}
	for _, p := range of {
		since := ""
		if !p.Since.IsZero() {
			since = " for " + age(p.Since, now)
		}
		w.row(p.Severity+since, p.Problem.String())
		if p.Serving != "" {
			w.row("", "served instead: "+p.Serving)
		}
	}
}

func (w *sections) service(s admin.ExplainedService) {
	export := strings.Join(s.ExportTo, ", ")
	w.title("%s/%s  resolution %s, %s, exported to %s", s.Namespace, s.Host, s.Resolution, s.Location, cmp.Or(export, "nobody"))
	for _, d := range s.Definitions {
		w.row(d.Role, d.Origin.String(), fmt.Sprintf("%q of %s", d.Origin.Name, d.Origin.Registry))
	}
	for _, a := range s.Addresses {
		w.row("address", a)
	}
	fmt.Fprintln(w)
	w.row("PORT", "NAME", "PROTOCOL", "FROM")
	for _, p := range s.Ports {
		w.row(fmt.Sprint(p.Number), p.Name, cmp.Or(p.Protocol, "any"), p.Origin.String())
	}
	fmt.Fprintln(w)
	if len(s.Endpoints) == 0 {
		words := map[string]string{"NONE": "endpoints: the address that the application dials", "DYNAMIC_DNS": "endpoints: what the name in the request resolves to"}
		w.row(cmp.Or(words[s.Resolution], "no endpoints"))
		return
	}
	w.row("ENDPOINT", "PORTS", "HEALTH", "WEIGHT", "LOCALITY", "FROM")
	for _, e := range s.Endpoints {
		var ports []string
		for _, p := range s.Ports {
			if n, ok := e.Ports[p.Name]; ok {
				ports = append(ports, fmt.Sprint(p.Name, ":", n))
			}
		}
		w.row(e.Address, cmp.Or(strings.Join(ports, " "), "-"), e.Health, fmt.Sprint(e.Weight), cmp.Or(e.Locality.String(), "-"), e.Origin.String())
	}
}

// sight writes what some nodes are given.
func (w *sections) sight(s admin.Sight) {
	scopes := make([]string, len(s.Scopes))
	for i, c := range s.Scopes {
		scopes[i] = scopeText(c)
	}
	slices.Sort(scopes)
	to := "nodes"
	if len(s.Nodes) > 0 {
		to = counted(len(s.Nodes), "node", "nodes")
	}
	to += " of scope " + strings.Join(slices.Compact(scopes), ", ")
	if len(s.Resources) == 0 {
		w.title("NOTHING IS GIVEN TO %s", to)
		return
	}
	w.title("GIVEN TO %s, for %s", to, cmp.Or(s.Service, "what they serve themselves"))
	for _, r := range s.Resources {
		switch r.Type {
		case "listeners":
			w.row("listener", r.Name, listenerText(r))
		case "routes":
			for _, v := range r.VirtualHosts {
				w.row("virtual host", v.Name, "of route "+r.Name+": "+strings.Join(v.Domains, ", "))
			}
		case "clusters":
			w.row("cluster", r.Name)
		default:
			w.row(r.Type, r.Name)
		}
	}
}

// listenerText says what a listener takes for the service, and where it leads.
func listenerText(r admin.Resource) string {
	var words []string
	if len(r.Routes) > 0 {
		words = append(words, "by route "+strings.Join(r.Routes, ", "))
	}
	if len(r.ServerNames) > 0 {
		words = append(words, "for TLS to "+strings.Join(r.ServerNames, ", "))
	}
	if len(r.Ranges) > 0 {
		words = append(words, "for connections to "+strings.Join(r.Ranges, ", "))
	}
	return strings.Join(words, "; ")
}

func scopeText(s admin.Scope) string {
	if s.Kind == envoy.GRPC.String() {
		return s.Namespace + " " + s.Kind
	}
	return s.Namespace + " " + s.Capture
}

// nodes writes a row for each node, those that are not well first.
func (w *sections) nodes(of []admin.NodeState) {
	const most = 20
	if len(of) == 0 {
		return
	}
	of = slices.Clone(of)
	slices.SortStableFunc(of, func(a, b admin.NodeState) int {
		return cmp.Compare(slices.Index(admin.NodeStates(), b.State), slices.Index(admin.NodeStates(), a.State))
	})
	w.title("NODES")
	w.row("NODE", "SCOPE", "MEANS", "STATE")
	for _, n := range of[:min(most, len(of))] {
		state := strings.ReplaceAll(n.State, "-", " ")
		if n.State == admin.StateRejected {
			state = "REJECTED"
		}
		if len(n.NotAsked) > 0 && n.State != admin.StateNotAsked {
			state += "; has not asked for " + strings.Join(n.NotAsked, ", ")
		}
		w.row(n.ID, scopeText(n.Scope), cmp.Or(n.Service, "-"), state)
		for _, r := range n.Rejections {
			w.row("", "", "", strings.TrimSpace(r.Type+" "+strings.Join(r.Resources, ", "))+": "+strings.TrimSpace(r.Message))
		}
	}
	if more := len(of) - most; more > 0 {
		w.row(fmt.Sprintf("and %d more, which -o json shows", more))
	}
}
