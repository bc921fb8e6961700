// Command meshd serves ServiceEntry files and the services of Consul to Envoys over xDS. Each subcommand has a file of its
// own; serve.go puts the daemon together, and is the place to begin to read.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshd/meshd/internal/strictyaml"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// The exit codes. Every command that could not do what it was asked for ends with exitUnable, but for the daemon,
// which ends with exitFound when it fails.
const (
	exitFound  = 1 // did it, and found errors
	exitUnable = 2 // wrong flags, no such file, no daemon there
)

// failure is an error that ends the process with exitFound. One without text has been reported already.
type failure struct{ error }

var errFound = failure{errors.New("")}

func run(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	if err.Error() != "" {
		fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
	}
	if _, ok := errors.AsType[failure](err); ok {
		return exitFound
	}
	return exitUnable
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "meshd",
		Short: "Istio's ServiceEntry for machines without Kubernetes",
		Long: `meshd reads ServiceEntry and WorkloadEntry documents from folders, and services from Consul, and serves them
over xDS to the Envoys of your machines. It shows what every proxy was given, from which line of which file or
which instance of Consul, and whether the proxy took it.`,
		Example: `  meshd check /etc/meshd/entries           # are the entries right?
  meshd serve                              # run the daemon
  meshd serve --consul 127.0.0.1:8500      # with the services of Consul
  meshd bootstrap --node-id web-1 >e.json  # what an Envoy must be told
  envoy -c e.json                          # run it
  meshd status                             # what does everybody have?
  meshd tail --node-id web-1               # what is a node sent, as it changes?`,
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(suggestFlag)
	root.AddCommand(newServe(), newCheck(), newRender(), newDiff(), newExplain(), newDiscover(), newSchema(), newBootstrap(), newStatus(), newTail(), newRelease(), newVersion())
	return root
}

// suggestFlag adds to the error of a flag what may have been meant.
func suggestFlag(cmd *cobra.Command, err error) error {
	hint := "see " + cmd.CommandPath() + " --help"
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := strictyaml.Suggest(name, names); near != "" {
			hint = "did you mean --" + near + "?"
		}
	}
	return fmt.Errorf("%w; %s", err, hint)
}

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	words []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.words, "|") }

func (c *choice) Set(s string) error {
	if slices.Contains(c.words, s) {
		c.value = s
		return nil
	}
	return fmt.Errorf("it is one of %s", strings.Join(c.words, ", "))
}

// complete makes shells complete the flag of this name.
func (c *choice) complete(cmd *cobra.Command, flag string) { completeWords(cmd, flag, c.words) }

// choices is a flag that takes a few words, one at a time.
type choices struct{ values, words []string }

func (c *choices) String() string { return strings.Join(c.values, ",") }
func (c *choices) Type() string   { return strings.Join(c.words, "|") }

func (c *choices) Set(s string) error {
	one := choice{words: c.words}
	if err := one.Set(s); err != nil {
		return err
	}
	c.values = append(c.values, s)
	return nil
}

func (c *choices) complete(cmd *cobra.Command, flag string) { completeWords(cmd, flag, c.words) }

func completeWords(cmd *cobra.Command, flag string, words []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // there is such a flag
	}
}

// outputFlag adds -o text|json to a command, and more if there are more ways to print.
func outputFlag(cmd *cobra.Command, more ...string) *choice {
	c := &choice{"text", append([]string{"text", "json"}, more...)}
	cmd.Flags().VarP(c, "output", "o", "what to print: text for people, json for programs")
	c.complete(cmd, "output")
	return c
}

// printJSON writes v for programs and people.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
