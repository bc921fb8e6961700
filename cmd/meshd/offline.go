package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/filereg"
	"github.com/meshd/meshd/internal/mesh"
)

// filesRegistry is the name of the registry of files.
const filesRegistry = "files"

// offline is what the daemon would make of files, without a daemon.
type offline struct {
	files, entries int
	view           *mesh.View
}

// readOffline reads files and folders as the daemon does; none stand for those of the daemon that is installed here.
// Findings are problems of the view; the error is that a path cannot be looked at.
func readOffline(paths []string) (offline, error) {
	if len(paths) == 0 {
		settings, err := installedSettings()
		if err != nil {
			return offline{}, err
		}
		paths = folders(settings)
	}
	files, err := filereg.ReadPaths(paths...)
	if err != nil {
		return offline{}, err
	}
	state := filereg.Load(filereg.NewState(filesRegistry), files)
	merged, _ := aggregate.Merge(aggregate.Merged{}, []aggregate.Source{
		{Registry: filesRegistry, Catalog: state.Catalog(), Synced: true},
	})
	return offline{len(files), state.Entries(), merged.View}, nil
}

// nodeProblems are what nodes cannot be given of the view, whatever their capture and namespace.
func (o offline) nodeProblems() []mesh.Problem {
	type place struct {
		code   string
		origin mesh.Origin
	}
	var found []mesh.Problem
	seen := map[place]bool{}
	for _, capture := range []envoy.Capture{envoy.Redirect, envoy.None} {
		var made []*envoy.Snapshot
		for _, namespace := range namespaces(o.view) {
			s := envoy.Translate(nil, o.view, envoy.Scope{Namespace: namespace, Capture: capture}, envoy.Mesh{}, made...)
			made = append(made, s)
			for p := range s.Problems() {
				at := place{p.Code, p.Origin}
				if seen[at] {
					continue
				}
				seen[at] = true
				found = append(found, p)
			}
		}
	}
	return found
}

// namespaces are those of which the nodes may see different services, and the default one.
func namespaces(v *mesh.View) []string {
	all := []string{mesh.DefaultNamespace}
	var last mesh.Key
	for key, s := range v.Services.All() {
		if !s.Export.All || key.Host == last.Host {
			all = append(all, key.Namespace)
			if key.Host == last.Host {
				all = append(all, last.Namespace)
			}
			all = append(all, s.Export.Namespaces...)
		}
		last = key
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// printProblems writes a line for each problem. Those that are no errors say so.
func printProblems(w io.Writer, problems []mesh.Problem) {
	for _, p := range problems {
		if p.Severity != mesh.Error {
			p.Field = p.Severity.String() + ": " + p.Field
			if p.Field == p.Severity.String()+": " {
				p.Field = p.Severity.String()
			}
		}
		fmt.Fprintln(w, p)
	}
}

// summary is one line on what was read and found.
func (o offline) summary(n admin.ProblemCounts) string {
	parts := []string{counted(o.entries, "entry", "entries") + " in " + counted(o.files, "file", "files")}
	for _, c := range []struct {
		n         int
		one, many string
	}{{n.Error, "error", "errors"}, {n.Warning, "warning", "warnings"}, {n.Notice, "notice", "notices"}} {
		if c.n > 0 {
			parts = append(parts, counted(c.n, c.one, c.many))
		}
	}
	if n == (admin.ProblemCounts{}) {
		parts = append(parts, "no problems")
	}
	return strings.Join(parts, ", ")
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}
