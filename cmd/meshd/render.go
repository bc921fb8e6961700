package main

import (
	"encoding/json"
	"slices"

	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/xds"
)

func newRender() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "render --node-id ID [PATH...]",
		Short: "Print what a node would be sent",
		Long: `render reads files and folders as the daemon does, and prints the Envoy resources that this node would be sent, as
one JSON object:

  {"clusters": [...], "endpoints": [...], "listeners": [...], "routes": [...]}

The resources are in order of name and their fields are those of Envoy's documentation, in alphabetical order: the same input
gives the same bytes. Problems go to standard error as from meshd check. No daemon is asked. Without a path, the folders
are read that meshd check would check.

Exit codes: 0 no errors, 1 errors in the entries (the rest is printed), 2 could not render (no such path, a node that
the daemon would refuse, wrong flags).`,
		Example: `  meshd render --node-id web-1 entries/
  meshd render --node-id shop-1 --grpc entries/
  meshd render --node-id web-1 --capture redirect --type listeners entries/ | jq -r '.listeners[].name'
  diff <(meshd render --node-id web-1 old/) <(meshd render --node-id web-1 new/)`,
	}
	var node nodeFlags
	node.register(cmd)
	only := choice{}
	for t := range envoy.Types {
		only.words = append(only.words, t.String())
	}
	cmd.Flags().Var(&only, "type", "print resources of this type only")
	only.complete(cmd, "type")
	policy := policyFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		_, scope, err := node.scope()
		if err != nil {
			return err
		}
		read, err := readOffline(paths)
		if err != nil {
			return err
		}
		snapshot := read.snapshot(scope, config.TrafficPolicy(policy.value))
		resources, err := rendered(snapshot, only.value)
		if err != nil {
			return err
		}
		if err := printJSON(cmd.OutOrStdout(), resources); err != nil {
			return err
		}
		problems := problemsFor(snapshot)
		printProblems(cmd.ErrOrStderr(), problems)
		if admin.CountProblems(problems).Error > 0 {
			return errFound
		}
		return nil
	}
	return cmd
}

// policyFlag adds --outbound-traffic-policy to a command.
func policyFlag(cmd *cobra.Command) *choice {
	c := &choice{string(config.AllowAny), []string{string(config.AllowAny), string(config.RegistryOnly)}}
	cmd.Flags().Var(c, "outbound-traffic-policy", "what the daemon's setting of this name says")
	c.complete(cmd, "outbound-traffic-policy")
	return c
}

// snapshot is what the nodes of a scope would be sent.
func (o offline) snapshot(scope envoy.Scope, policy config.TrafficPolicy) *envoy.Snapshot {
	return envoy.Translate(nil, o.view, scope, meshSettings(policy))
}

// problemsFor are those of a snapshot and of its view, in order of place.
func problemsFor(s *envoy.Snapshot) []mesh.Problem {
	problems := slices.AppendSeq(slices.Clone(s.View.Problems), s.Problems())
	slices.SortFunc(problems, mesh.Problem.Compare)
	return problems
}

// rendered is a snapshot's resources by type, or those of one type.
func rendered(s *envoy.Snapshot, only string) (map[string][]json.RawMessage, error) {
	out := map[string][]json.RawMessage{}
	for t := range envoy.Types {
		if only != "" && only != t.String() {
			continue
		}
		all := []json.RawMessage{}
		for r := range s.Resources[t].Values() {
			m, err := r.Message()
			if err != nil {
				return nil, err
			}
			text, err := protoJSON(m)
			if err != nil {
				return nil, err
			}
			all = append(all, text)
		}
		out[t.String()] = all
	}
	return out, nil
}

// nodeResources are what a server would send to the node of a description.
func nodeResources(server *xds.Server, policy config.TrafficPolicy, description string) (r admin.Resources, err error) {
	n, err := describedNode(description)
	if err != nil {
		return r, err
	}
	scope, err := envoy.ScopeOf(n)
	if err != nil {
		return r, err
	}
	snapshot := server.Snapshot(scope)
	resources, err := rendered(snapshot, "")
	return admin.Resources{
		Generation: snapshot.View.Generation, Digest: snapshot.View.Digest.String(), Scope: admin.ScopeOf(scope),
		OutboundTrafficPolicy: string(policy), Resources: resources,
	}, err
}
