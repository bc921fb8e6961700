package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// version and commit are set when a release is built (-ldflags -X main.version=…).
var version, commit string

// build is what `meshd version -o json` prints.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`       // the Go release that it was built with
	EnvoyAPI string `json:"envoyAPI"` // of go-control-plane: the Envoy release whose API it speaks
	Platform string `json:"platform"`
}

// thisBuild tells what this binary is, by its build flags and else by what the Go tool wrote into it.
func thisBuild() build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), EnvoyAPI: "unknown", Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && b.Commit == "" {
				b.Commit = s.Value
			}
		}
		for _, d := range info.Deps {
			if d.Path == "github.com/envoyproxy/go-control-plane/envoy" {
				b.EnvoyAPI = d.Version
			}
		}
	}
	if b.Version == "" {
		b.Version = "unknown"
	}
	if b.Commit == "" {
		b.Commit = "unknown"
	}
	return b
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print which meshd this is",
		Long:  "version prints meshd's version and commit, the Go release that built it, and the release of Envoy's API that it speaks.",
		Example: `  meshd version
  meshd version -o json | jq -r .version`,
		Args: cobra.NoArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b := thisBuild()
		if output.value == "json" {
			return printJSON(cmd.OutOrStdout(), b)
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "meshd\t%s\ncommit\t%s\nGo\t%s\nEnvoy API\t%s\nplatform\t%s\n", b.Version, b.Commit, b.Go, b.EnvoyAPI, b.Platform)
		return w.Flush()
	}
	return cmd
}
