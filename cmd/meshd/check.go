package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/admin"
	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/mesh"
)

// checked is what `meshd check -o json` prints.
type checked struct {
	Files    int                 `json:"files"`
	Entries  int                 `json:"entries"` // those that are right
	Counts   admin.ProblemCounts `json:"counts"`  // of the problems
	Problems []mesh.Problem      `json:"problems"`
}

func newCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [PATH...]",
		Short: "Check entry files",
		Long: `check reads files, and folders with all that is below them, as the daemon does, and prints a line for each thing
that is wrong, in order of place:

  FILE:LINE:COLUMN: FIELD: MESSAGE [CODE]

An error means that something is not served as it is written. Warnings and notices say so before the field, and do
not fail the check. Found are also conflicts between entries, and what nodes cannot be given in one way of capture.
No daemon is asked. Without a path, the folders are checked that the daemon's settings name: those of
` + config.DefaultFile + ` and the environment, else /etc/meshd/entries.

Exit codes: 0 no errors, 1 errors, 2 could not check (no such path, wrong flags).`,
		Example: `  meshd check                            # what is installed here
  meshd check entries/ && git commit     # what is about to be
  meshd check -o json entries/ | jq -r '.problems[] | select(.severity == "error") | .code'`,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		read, err := readOffline(paths)
		if err != nil {
			return err
		}
		problems := append(append([]mesh.Problem{}, read.view.Problems...), read.nodeProblems()...)
		slices.SortFunc(problems, mesh.Problem.Compare)
		counts := admin.CountProblems(problems)
		if output.value == "json" {
			err = printJSON(cmd.OutOrStdout(), checked{read.files, read.entries, counts, problems})
		} else {
			printProblems(cmd.OutOrStdout(), problems)
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), read.summary(counts))
		}
		if err == nil && counts.Error > 0 {
			err = errFound
		}
		return err
	}
	return cmd
}
