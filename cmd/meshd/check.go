package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/mesh"
)

func newCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [PATH...]",
		Short: "Check entry files",
		Long: `check reads files, and folders with all that is below them, as the daemon does, and prints a line for each thing
that is wrong, in order of place:

  FILE:LINE:COLUMN: FIELD: MESSAGE [CODE]

An error means that something is not served as it is written. Warnings and notices say so before the field, and do
not fail the check unless --fail-on says so. Found are also conflicts between entries, what is selected or exported in
vain, and what nodes cannot be given in one way of capture. On a terminal the line of the file follows, with a mark
under the column. What a code means, with an example and the remedy, is in docs/problems.md.

With --envoy an Envoy looks at what nodes would be given, whatever their capture and namespace: what it rejects is an
error with its own words, at the entry that it comes from. The Envoy is the one that --envoy=PATH names, else the one
that the variable ENVOY does, else the one on the PATH. It is not started but for that.

-o json prints one object for programs, -o github the annotations that GitHub shows beside the changed lines of a
pull request, and -o sarif a log for GitHub's code scanning and for editors.

No daemon is asked. Without a path, the folders are checked that the daemon's settings name: those of
` + config.DefaultFile + ` and the environment, else /etc/meshd/entries.

Exit codes: 0 nothing that --fail-on names, 1 something, 2 could not check (no such path, no Envoy, wrong flags).`,
		Example: `  meshd check                            # what is installed here
  meshd check entries/ && git commit     # what is about to be
  meshd check --envoy entries/           # would my Envoys take it?
  meshd check -o github --fail-on warning entries/
  meshd check -o json entries/ | jq -r '.problems[] | select(.severity == "error") | .code'`,
	}
	output := outputFlag(cmd, "github", "sarif")
	failOn := choice{"error", []string{"error", "warning", "notice", "never"}}
	cmd.Flags().Var(&failOn, "fail-on", "the least bad problem that fails the check")
	excerpt := choice{"auto", []string{"auto", "always", "never"}}
	cmd.Flags().Var(&excerpt, "excerpt", "whether to print lines of the files too, as text; auto: on a terminal")
	program := ""
	cmd.Flags().StringVar(&program, "envoy", "", "let an Envoy look at what nodes would be given: the one at `PATH`, else $ENVOY, else envoy")
	cmd.Flags().Lookup("envoy").NoOptDefVal = anyEnvoy
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if program != "" {
			found, err := findEnvoy(program, paths)
			if err != nil {
				return err
			}
			program = found
		}
		read, err := readOffline(paths)
		if err != nil {
			return err
		}
		stdout := cmd.OutOrStdout()
		problems := slices.Concat(read.view.Problems, read.crossed, read.nodeProblems())
		if program != "" {
			rejected, err := rejections(cmd.Context(), program, read.snapshots())
			if err != nil {
				return err
			}
			problems = append(problems, rejected...)
		}
		slices.SortFunc(problems, mesh.Problem.Compare)
		r := report{read, problems, excerpt.value == "always" || excerpt.value == "auto" && terminal(stdout)}
		if err := reportFormats[output.value](stdout, r); err != nil {
			return err
		}
		if output.value != "json" && output.value != "sarif" {
			fmt.Fprintln(cmd.ErrOrStderr(), r.summary())
		}
		if r.fails(failOn.value) {
			return errFound
		}
		return nil
	}
	return cmd
}

// fails tells whether there is a problem that is as bad as a word says.
func (r report) fails(on string) bool {
	least := map[string]mesh.Severity{"error": mesh.Error, "warning": mesh.Warning, "notice": mesh.Notice}
	severity, ever := least[on]
	return ever && slices.ContainsFunc(r.problems, func(p mesh.Problem) bool { return p.Severity >= severity })
}

// summary is one line on what was read and found.
func (r report) summary() string {
	parts := []string{counted(r.entries, "entry", "entries") + " in " + counted(len(r.files), "file", "files")}
	n := r.counts()
	for _, c := range []struct {
		n         int
		one, many string
	}{{n.Error, "error", "errors"}, {n.Warning, "warning", "warnings"}, {n.Notice, "notice", "notices"}} {
		if c.n > 0 {
			parts = append(parts, counted(c.n, c.one, c.many))
		}
	}
	if len(r.problems) == 0 {
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
