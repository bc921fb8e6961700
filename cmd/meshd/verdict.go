package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/meshd/meshd/internal/envoy"
	"github.com/meshd/meshd/internal/mesh"
)

// anyEnvoy is what --envoy says if it says nothing: $ENVOY, or the envoy on the PATH.
const anyEnvoy = "envoy"

// findEnvoy is the program that --envoy means. What stands after it may have been meant as its value.
func findEnvoy(said string, paths []string) (string, error) {
	if said == anyEnvoy {
		said = cmp.Or(os.Getenv("ENVOY"), said)
		if len(paths) > 0 && filepath.Base(paths[0]) == "envoy" {
			if info, err := os.Stat(paths[0]); err == nil && info.Mode().IsRegular() {
				return "", fmt.Errorf("%s is no file of entries; to check with it, write --envoy=%[1]s", paths[0])
			}
		}
	}
	path, err := exec.LookPath(said)
	if err != nil {
		return "", fmt.Errorf("no Envoy to check with: %w; say where it is: --envoy=PATH, or ENVOY=PATH in the environment", err)
	}
	return path, nil
}

// enoughRejections are found of the nodes of a kind. Each takes some starts of Envoy, and what comes after is often of one cause.
const enoughRejections = 10

// jury asks an Envoy what it thinks of resources.
type jury struct {
	envoy string // the program
	dir   string // for its configuration
}

// rejection is what an Envoy will not take, and its words.
type rejection struct {
	what  envoy.Standalone
	words string
}

// rejections are the problems that an Envoy finds with what nodes would be given.
func rejections(ctx context.Context, program string, of []*envoy.Snapshot) ([]mesh.Problem, error) {
	dir, err := os.MkdirTemp("", "meshd-check-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the configuration of Envoy: %w", err)
	}
	found, err := jury{program, dir}.judge(ctx, of)
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return nil, err
	}
	return found, nil
}

// judge finds what an Envoy rejects of snapshots. What several of them have is a problem once.
func (j jury) judge(ctx context.Context, snapshots []*envoy.Snapshot) ([]mesh.Problem, error) {
	switch words, err := j.ask(ctx, nil); {
	case err != nil:
		return nil, err
	case words != "":
		return nil, fmt.Errorf("%s cannot be used: it does not even take an empty configuration: %s", j.envoy, words)
	}
	var problems []mesh.Problem
	looked, known := map[[envoy.Types]mesh.Digest]bool{}, map[string]bool{}
	id := func(a envoy.Standalone) string { return fmt.Sprint(a.Type, " ", a.Name, " ", a.Versions) }
	for _, s := range snapshots {
		if looked[s.Versions] {
			continue
		}
		looked[s.Versions] = true
		all, err := s.Standalone()
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(a envoy.Standalone) bool { return known[id(a)] })
		rejected, err := j.sift(ctx, all)
		if err != nil {
			return nil, err
		}
		for _, r := range rejected {
			known[id(r.what)] = true
			problems = append(problems, r.problem(s))
		}
	}
	return problems, nil
}

// sift finds what an Envoy rejects. It stops at the first thing that it does not like and often does not name it; so the one
// is searched for with which a list of resources begins to be rejected.
func (j jury) sift(ctx context.Context, all []envoy.Standalone) (rejected []rejection, err error) {
	for good := 0; len(rejected) < enoughRejections; {
		words, err := j.ask(ctx, all)
		if err != nil || words == "" || len(all) == 0 {
			return rejected, err
		}
		bad := len(all) // as many are rejected, with these words; the first good ones are not
		for bad-good > 1 {
			middle := good + (bad-good)/2
			w, err := j.ask(ctx, all[:middle])
			switch {
			case err != nil:
				return nil, err
			case w == "":
				good = middle
			default:
				bad, words = middle, w
			}
		}
		rejected = append(rejected, rejection{all[bad-1], words})
		all = slices.Delete(slices.Clone(all), bad-1, bad)
	}
	return rejected, nil
}

// ask has an Envoy look at resources. It answers with its complaint, if it has one; the error is that it could not be asked.
func (j jury) ask(ctx context.Context, of []envoy.Standalone) (complaint string, err error) {
	// As over xDS: binary, and fields that are newer than this Envoy are no mistake.
	file := filepath.Join(j.dir, "envoy.pb")
	config, err := proto.Marshal(envoy.StaticBootstrap(of))
	if err != nil {
		return "", fmt.Errorf("encode the configuration of Envoy: %w", err)
	}
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return "", fmt.Errorf("write the configuration of Envoy: %w", err)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, j.envoy, "--mode", "validate", "-c", file, "--allow-unknown-static-fields", "--disable-hot-restart",
		"--log-level", "critical", "--log-format", "%v")
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	if err == nil {
		return "", nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || !exit.Exited() {
		return "", fmt.Errorf("run %s: %w", j.envoy, err)
	}
	words := strings.Join(strings.Fields(strings.ToValidUTF8(said.String(), "")), " ")
	words = strings.TrimPrefix(words, "error initializing configuration '"+file+"': ")
	return cmp.Or(words, err.Error()), nil
}

// problem traces a rejection to the entry that it comes from, which is that of the service whose host Envoy names, else the
// first.
func (r rejection) problem(s *envoy.Snapshot) mesh.Problem {
	p := mesh.Problem{Severity: mesh.Error, Code: "envoy-rejected"}
	named := false
	var keys []string
	for _, key := range r.what.Services {
		keys = append(keys, key.String())
		service, ok := s.View.Services.Get(key)
		if names := strings.Contains(r.words, key.Host.String()); ok && (p.Origin == (mesh.Origin{}) || names && !named) {
			p.Origin, named = service.Origin, names
		}
	}
	p.Services = strings.Join(keys, " ")
	of := "what every node is given"
	if len(keys) > 0 {
		of = "made of " + strings.Join(keys[:min(len(keys), 3)], ", ")
		if more := len(keys) - 3; more > 0 {
			of += fmt.Sprintf(" and %d more", more)
		}
	}
	p.Message = fmt.Sprintf("Envoy rejects %s %q (%s; for nodes with capture %s in namespace %s): %q; change what it objects to, or run an Envoy that knows it",
		strings.TrimSuffix(r.what.Type.String(), "s"), r.what.Name, of, s.Scope.Capture, s.Scope.Namespace, r.words)
	return p
}
