package main

import (
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/envoy"
)

// settingsFlags adds a flag for each of the daemon's settings, and one for the file, whose name it returns.
func settingsFlags(cmd *cobra.Command) *string {
	file := cmd.Flags().String("config", config.DefaultFile, "`file` of settings, which may be absent if it is not named here; \"\" for none")
	for _, s := range config.Settings() {
		if s.List() {
			cmd.Flags().StringArray(s.Key, s.Split(s.Default), s.Help)
		} else {
			cmd.Flags().String(s.Key, s.Default, s.Help)
		}
	}
	return file
}

// loadSettings gives the daemon's settings by its flags, the environment and the file.
func loadSettings(cmd *cobra.Command, file string) (*config.Config, error) {
	from := config.Sources{Environ: os.Environ(), ReadFile: os.ReadFile, Flags: map[string][]string{}}
	for _, s := range config.Settings() {
		flag := cmd.Flags().Lookup(s.Key)
		switch list, ok := flag.Value.(interface{ GetSlice() []string }); {
		case !flag.Changed:
		case ok:
			from.Flags[s.Key] = list.GetSlice()
		default:
			from.Flags[s.Key] = []string{flag.Value.String()}
		}
	}
	chooseFile(cmd, &from, file)
	return config.Load(from)
}

// chooseFile makes settings be read from the file of --config, if that is given; "" is none.
func chooseFile(cmd *cobra.Command, from *config.Sources, file string) {
	switch {
	case !cmd.Flags().Changed("config"):
	case file == "":
		from.Environ = slices.DeleteFunc(from.Environ, func(v string) bool { return strings.HasPrefix(v, "MESHD_CONFIG=") })
		from.ReadFile = func(string) ([]byte, error) { return nil, fs.ErrNotExist }
	default:
		from.File = file
	}
}

// installedSettings are those of the daemon that is installed here, but for its flags.
func installedSettings() (*config.Config, error) {
	return config.Load(config.Sources{Environ: os.Environ(), ReadFile: os.ReadFile})
}

// review logs what is different in the settings since the start, none of which takes effect.
func review(log hclog.Logger, settings *config.Config, load func() (*config.Config, error)) {
	now, err := load()
	if err != nil {
		log.Error("the settings are wrong now; those of the start stay in effect", "error", err)
		return
	}
	for _, s := range now.Since(settings) {
		log.Warn("a setting has changed; restart to have it", "setting", s.Key, "in-effect", s.Was, "then", s.Now, "from", s.Origin)
	}
}

func newLogger(c *config.Config, w io.Writer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "meshd", Output: w, Level: hclog.LevelFromString(string(c.LogLevel)), JSONFormat: c.LogFormat == config.LogJSON,
	})
}

func folders(c *config.Config) []string {
	var paths []string
	for _, f := range c.Entries {
		paths = append(paths, string(f))
	}
	return paths
}

func meshSettings(p config.TrafficPolicy) envoy.Mesh {
	if p == config.RegistryOnly {
		return envoy.Mesh{Outbound: envoy.RegistryOnly}
	}
	return envoy.Mesh{Outbound: envoy.AllowAny}
}
