package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/admin"
)

func newRelease() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release REGISTRY",
		Short: "Let go of instances that are served on although Consul says that they are gone",
		Long: `release tells the running daemon that a registry's source is right: the instances that the registry holds are gone.

A registry of Consul holds instances, serves them on that is, when Consul says that they are gone in a way in which a
Consul that is ill says it too: many at once, the last one of a service, soon after a failure, with an index that went
back, or to a token that sees less than before. It asks Consul to confirm that by a consistent read, and lets go by
itself as soon as Consul does. So what stays held is held because Consul cannot answer that read, having no leader for
example, or because the token does not see everything.

Read meshd status first: below HELD BY it says what is held, for how long, and why. Then
- if Consul fails, or its token sees less than it should: cure that. Do not release; the registry finds out by itself
  what is gone.
- if the instances run: do not release. Nodes would lose them, until Consul lists them again.
- if they are really gone and Consul cannot confirm it soon, since it stays ill, or since its token is to see less from
  now on: release.

All that the registry holds is let go of at once, with what it does not believe yet and is about to ask for. What
Consul lists, now or later, is served in any case.

Exit codes: 0 released, or nothing was held; 1 there is no such registry, or it never holds anything, as that of files;
2 no daemon answers, or the registry does not take the order (or wrong flags).`,
		Example: `  meshd status             # what is held, and why?
  meshd release consul
  meshd release consul-dc2 -o json | jq .released`,
		Args: cobra.ExactArgs(1),
	}
	daemon := daemonFlag(cmd)
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == "" {
			return errors.New("the name of the registry is empty; meshd status shows those that there are")
		}
		r, err := release(cmd.Context(), daemon, args[0])
		out := cmd.OutOrStdout()
		switch {
		case err != nil:
			return err
		case output.value == "json":
			return printJSON(out, r)
		case r.Released == 0:
			_, err = fmt.Fprintf(out, "%s holds nothing\n", r.Registry)
		default:
			_, err = fmt.Fprintf(out, "released %s of %s\n", counted(r.Released, "instance", "instances"), r.Registry)
		}
		return err
	}
	return cmd
}

// release has the daemon release what a registry holds.
func release(ctx context.Context, daemon *daemonAt, registry string) (r admin.Release, err error) {
	path := "/api/v1/registries/" + url.PathEscape(registry) + "/release"
	status, body, err := daemon.ask(ctx, http.MethodPost, path)
	if err != nil {
		return r, err
	}
	said := strings.TrimSpace(string(body))
	switch {
	case status == http.StatusConflict, status == http.StatusNotFound && strings.Contains(said, strconv.Quote(registry)): // and not just any page
		return r, failure{errors.New(said)}
	case status == http.StatusServiceUnavailable:
		return r, fmt.Errorf("%s: %s", daemon.at(), said)
	}
	if err := json.Unmarshal(body, &r); err != nil || r.Registry == "" {
		return r, strange(daemon.at(), http.MethodPost, path, status)
	}
	return r, nil
}
