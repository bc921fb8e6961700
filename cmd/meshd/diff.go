package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// resourcesTimeout is how long the daemon may take to answer with all resources of a node, which it makes for the occasion.
const resourcesTimeout = time.Minute

func newDiff() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff --node-id ID {OLD | --from HOST:PORT} NEW",
		Short: "Print what would change for a node",
		Long: `diff reads OLD and NEW, each a file or a folder, as the daemon does, and prints in what the Envoy resources differ that
the node would be sent: by type and name, + for what is new, - for what is gone, ~ for what is another, with the
fields of what is new or another. Items of lists are known by their name, address, locality or match.

With --from, what the running daemon has takes the place of OLD. That is the merge of all its registries, so that what
it has from elsewhere than files is missing from NEW and shown as gone. The node is the one that the flags describe,
whether one of that id is connected or not; the daemon's outbound traffic policy holds for both sides.

What is wrong in NEW is said on standard error as from meshd check, and is missing from NEW; a running daemon would
serve the last good version of such a document instead.

Exit codes: 0 nothing changes, 1 something does, 2 could not compare (no such path, no daemon answers, a node that the
daemon would refuse, wrong flags).`,
		Example: `  git worktree add ../main main && meshd diff --node-id web-1 ../main/entries entries
  meshd diff --node-id web-1 --from 127.0.0.1:15014 entries/ --summary
  meshd diff --node-id web-1 old/ new/ -o json | jq -r '.differences[] | select(.change == "removed") | .name'`,
		Args: cobra.MaximumNArgs(2),
	}
	var node nodeFlags
	node.register(cmd)
	policy := policyFlag(cmd)
	var daemon address
	cmd.Flags().Var(&daemon, "from", "compare with what the daemon has that serves its admin API here")
	summary := cmd.Flags().Bool("summary", false, "print names and counts only")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		fromDaemon := daemon != address{}
		switch {
		case fromDaemon && len(paths) != 1:
			return errors.New("with --from it is one path that is compared with the daemon, NEW")
		case fromDaemon && cmd.Flags().Changed("outbound-traffic-policy"):
			return errors.New("with --from the daemon's own outbound traffic policy holds; leave --outbound-traffic-policy out")
		case !fromDaemon && len(paths) != 2:
			return errors.New("it is two paths that are compared, OLD and NEW, or one with the daemon that --from names")
		}
		n, scope, err := node.scope()
		if err != nil {
			return err
		}
		was := admin.Resources{OutboundTrafficPolicy: policy.value}
		if fromDaemon {
			was, err = daemonResources(cmd.Context(), daemon.String(), n)
		} else {
			was.Resources, _, err = offlineResources(paths[0], scope, was.OutboundTrafficPolicy)
		}
		if err != nil {
			return err
		}
		is, problems, err := offlineResources(paths[len(paths)-1], scope, was.OutboundTrafficPolicy)
		if err != nil {
			return err
		}
		c, err := compare(was.Resources, is)
		if err != nil {
			return err
		}
		c.Node = n.Id
		if *summary {
			c.abridge()
		}
		printProblems(cmd.ErrOrStderr(), problems)
		if output.value == "json" {
			err = printJSON(cmd.OutOrStdout(), c)
		} else {
			err = c.print(cmd.OutOrStdout())
		}
		if err == nil && len(c.Differences) > 0 {
			err = errFound
		}
		return err
	}
	return cmd
}

// offlineResources are what nodes of a scope would be sent of a file or folder, and what is wrong with it.
func offlineResources(path string, scope envoy.Scope, policy string) (map[string][]json.RawMessage, []mesh.Problem, error) {
	read, err := readOffline([]string{path})
	if err != nil {
		return nil, nil, err
	}
	snapshot := read.snapshot(scope, config.TrafficPolicy(policy))
	resources, err := rendered(snapshot, "")
	return resources, problemsFor(snapshot), err
}

// daemonResources are what a daemon would send to a node.
func daemonResources(ctx context.Context, daemon string, n *corev3.Node) (r admin.Resources, err error) {
	const path = "/api/v1/resources"
	description, err := protojson.Marshal(n)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, resourcesTimeout)
	defer cancel()
	status, body, err := ask(ctx, daemon, http.MethodGet, path+"?node="+url.QueryEscape(string(description)))
	switch {
	case err != nil:
		return r, fmt.Errorf("%w; start it with meshd serve, or say with --from where it is", err)
	case status == http.StatusBadRequest || status == http.StatusServiceUnavailable:
		return r, fmt.Errorf("%s: %s", daemon, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, &r); err != nil || r.Resources == nil {
		return r, strange(daemon, http.MethodGet, path, status)
	}
	return r, nil
}

// comparison is what `meshd diff -o json` prints.
type comparison struct {
	Node        string       `json:"node"`
	Added       int          `json:"added"`
	Removed     int          `json:"removed"`
	Changed     int          `json:"changed"`
	Differences []difference `json:"differences"` // by type, then name
}

// difference is one resource that is another, or only on one side.
type difference struct {
	Type   string            `json:"type"`
	Name   string            `json:"name"`
	Change change            `json:"change"`
	Old    json.RawMessage   `json:"old,omitempty"`    // what is removed
	New    json.RawMessage   `json:"new,omitempty"`    // what is added
	Fields []fieldDifference `json:"fields,omitempty"` // of what is changed
}

// abridge leaves names and counts.
func (c *comparison) abridge() {
	for i, d := range c.Differences {
		c.Differences[i] = difference{Type: d.Type, Name: d.Name, Change: d.Change}
	}
}

// compare finds out in what the resources of two sides, by type, differ.
func compare(was, is map[string][]json.RawMessage) (comparison, error) {
	c := comparison{Differences: []difference{}}
	for t := range envoy.Types {
		before, err := byName(was[t.String()])
		if err != nil {
			return c, err
		}
		after, err := byName(is[t.String()])
		if err != nil {
			return c, err
		}
		for _, name := range union(before, after) {
			d := difference{Type: t.String(), Name: name}
			old, had := before[name]
			new, has := after[name]
			switch {
			case !had:
				d.Change, d.New = added, new.text
				c.Added++
			case !has:
				d.Change, d.Old = removed, old.text
				c.Removed++
			default:
				if d.Fields = fieldDifferences(old.fields, new.fields); len(d.Fields) == 0 {
					continue
				}
				d.Change = changed
				c.Changed++
			}
			c.Differences = append(c.Differences, d)
		}
	}
	return c, nil
}

// rawResource is a resource as JSON.
type rawResource struct {
	text   json.RawMessage
	fields map[string]any
}

// byName are resources of one type by their names. A load assignment has that of its cluster.
func byName(resources []json.RawMessage) (map[string]rawResource, error) {
	out := make(map[string]rawResource, len(resources))
	for _, text := range resources {
		r := rawResource{text: text}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&r.fields); err != nil {
			return nil, fmt.Errorf("read a resource: %w", err)
		}
		name, ok := r.fields["name"].(string)
		if !ok {
			name, _ = r.fields["cluster_name"].(string)
		}
		out[name] = r
	}
	return out, nil
}

// print writes a comparison for people.
func (c *comparison) print(out io.Writer) error {
	w := bufio.NewWriter(out)
	last := ""
	for _, d := range c.Differences {
		if d.Type != last {
			last = d.Type
			fmt.Fprintln(w, d.Type)
		}
		fmt.Fprintf(w, "  %s %s\n", d.Change.sign(), d.Name)
		if d.New != nil {
			for _, line := range leaves("      ", d.New) {
				fmt.Fprintln(w, line)
			}
		}
		for _, f := range d.Fields {
			for _, line := range f.lines() {
				fmt.Fprintln(w, "      "+line)
			}
		}
	}
	if len(c.Differences) == 0 {
		fmt.Fprintf(w, "nothing changes for %s\n", c.Node)
	} else {
		fmt.Fprintf(w, "for %s: %d added, %d removed, %d changed\n", c.Node, c.Added, c.Removed, c.Changed)
	}
	return w.Flush()
}
