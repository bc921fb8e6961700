package main

import (
	"slices"

	"github.com/meshd/meshd/internal/aggregate"
	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/filereg"
	"github.com/meshd/meshd/internal/mesh"
)

// filesRegistry is the name of the registry of files.
const filesRegistry = "files"

// offline is what the daemon would make of files, without a daemon.
type offline struct {
	files   []filereg.File
	entries int // those that are right
	view    *mesh.View
	crossed []mesh.Problem // what entries say in vain as far as the files tell
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
	return takeOffline(files), nil
}

func takeOffline(files []filereg.File) offline {
	state := filereg.Load(filereg.NewState(filesRegistry), files)
	merged, _ := aggregate.Merge(aggregate.Merged{}, []aggregate.Source{
		{Registry: filesRegistry, Catalog: state.Catalog(), Synced: true},
	})
	return offline{files, state.Entries(), merged.View, state.CrossCheck()}
}

// nodeProblems are what nodes cannot be given of the view, whatever their capture and namespace.
func (o offline) nodeProblems() []mesh.Problem {
	type place struct {
		code   string
		origin mesh.Origin
	}
	var found []mesh.Problem
	seen := map[place]bool{}
	for _, s := range o.snapshots() {
		for p := range s.Problems() {
			at := place{p.Code, p.Origin}
			if seen[at] {
				continue
			}
			seen[at] = true
			found = append(found, p)
		}
	}
	return found
}

// snapshots are what nodes would be sent of the view, of either capture and in each namespace that matters.
func (o offline) snapshots() []*envoy.Snapshot {
	var all []*envoy.Snapshot
	for _, capture := range []envoy.Capture{envoy.Redirect, envoy.None} {
		var made []*envoy.Snapshot
		for _, namespace := range namespaces(o.view) {
			made = append(made, envoy.Translate(nil, o.view, envoy.Scope{Namespace: namespace, Capture: capture}, envoy.Mesh{}, made...))
		}
		all = append(all, made...)
	}
	return all
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
