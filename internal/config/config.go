// Package config is the daemon's own settings: what they are, their defaults, and
// how flags, environment and file combine. A flag wins over the environment, the
// environment over the file, the file over the default.
//
// A typo must not lose a setting: unknown keys in the file and unknown MESHD_
// variables are errors. [Load] reports all that is wrong, one line each, with its
// place. It opens nothing and looks at no process by itself: cmd/meshd hands in the
// flags, the environment and the means to read the file.
package config

import (
	"encoding"
	"fmt"
	"slices"
	"strings"
)

// DefaultFile is read when neither --config nor MESHD_CONFIG names a file. It need
// not exist.
const DefaultFile = "/etc/meshd/meshd.yaml"

// Config is the effective settings, as [Load] returns them. It is not changed
// afterwards.
//
// It is also the schema of the file. A field with a row in settings can be given as
// a flag and in the environment too; one without, such as a list of objects, in the
// file only.
type Config struct {
	Entries               []Folder        `yaml:"entries"`
	XDSListen             Address         `yaml:"xds-listen"`
	AdminListen           OptionalAddress `yaml:"admin-listen"`
	StateDir              Folder          `yaml:"state-dir"`
	LogLevel              LogLevel        `yaml:"log-level"`
	LogFormat             LogFormat       `yaml:"log-format"`
	RescanInterval        Duration        `yaml:"rescan-interval"`
	MaxFileSize           Size            `yaml:"max-file-size"`
	FirstViewTimeout      Duration        `yaml:"first-view-timeout"`
	DrainTime             Duration        `yaml:"drain-time"`
	OutboundTrafficPolicy TrafficPolicy   `yaml:"outbound-traffic-policy"`

	origins map[string]string // by key
}

// settings has a row for every setting, in the order of the help. A new setting is
// a field of Config and a row here; its type says what values it takes.
var settings = []Setting{
	{"entries", "/etc/meshd/entries", "`folder` of ServiceEntry and WorkloadEntry files; several may be given", func(c *Config) any { return &c.Entries }},
	{"xds-listen", "127.0.0.1:15010", "`host:port` at which proxies ask for their resources", func(c *Config) any { return &c.XDSListen }},
	{"admin-listen", "127.0.0.1:15014", "`host:port` of status, metrics and health; \"off\" for none", func(c *Config) any { return &c.AdminListen }},
	{"state-dir", "/var/lib/meshd", "`folder` that keeps the last good versions of entries over a restart", func(c *Config) any { return &c.StateDir }},
	{"log-level", "info", "least important `level` that is logged: trace, debug, info, warn or error", func(c *Config) any { return &c.LogLevel }},
	{"log-format", "text", "`format` of the log: text or json", func(c *Config) any { return &c.LogFormat }},
	{"rescan-interval", "10s", "`duration` between two looks at all entries, for changes that the kernel does not report", func(c *Config) any { return &c.RescanInterval }},
	{"max-file-size", "16MiB", "largest `size` of a file of entries, in bytes, KiB, MiB or GiB; a larger one is not read", func(c *Config) any { return &c.MaxFileSize }},
	{"first-view-timeout", "30s", "longest `duration` that proxies wait after a start for registries that are not synced, if others are", func(c *Config) any { return &c.FirstViewTimeout }},
	{"drain-time", "5s", "longest `duration` of a graceful stop", func(c *Config) any { return &c.DrainTime }},
	{"outbound-traffic-policy", "allow-any", "`policy` for destinations outside of the mesh: allow-any or registry-only", func(c *Config) any { return &c.OutboundTrafficPolicy }},
}

// Setting is one setting that can be given as a flag, in the environment and in the
// file.
type Setting struct {
	Key     string // in the file; the flag is --KEY
	Default string // as it would be written in the environment
	Help    string // one line; the word in backquotes names the value

	value func(*Config) any // its field: an encoding.TextUnmarshaler or a *[]Folder
}

// Settings returns all settings, in the order of the help.
func Settings() []Setting { return slices.Clone(settings) }

// Variable returns the setting's name in the environment.
func (s Setting) Variable() string {
	return prefix + strings.ToUpper(strings.ReplaceAll(s.Key, "-", "_"))
}

// List tells whether the setting takes several values: the flag several times, the
// variable a list with colons, the file a list.
func (s Setting) List() bool {
	_, ok := s.value(new(Config)).(*[]Folder)
	return ok
}

// set gives the setting its values. Unless it is a list the last one counts.
func (s Setting) set(c *Config, texts []string, origin string) error {
	var err error
	switch field := s.value(c).(type) {
	case *[]Folder:
		folders := make([]Folder, len(texts))
		for i := range texts {
			if err == nil {
				err = folders[i].UnmarshalText([]byte(texts[i]))
			}
		}
		*field = folders
	case encoding.TextUnmarshaler:
		err = field.UnmarshalText([]byte(texts[len(texts)-1]))
	}
	c.origins[s.Key] = origin
	if err != nil {
		return fmt.Errorf("%s: %w", origin, err)
	}
	return nil
}

// Effective is a setting's value and where it came from.
type Effective struct {
	Key    string
	Value  string
	Origin string // --log-level, MESHD_LOG_LEVEL, /etc/meshd/meshd.yaml:3 or default
}

// Describe returns all settings as they are in effect, in the order of the help.
func (c *Config) Describe() []Effective {
	all := make([]Effective, len(settings))
	for i, s := range settings {
		all[i] = Effective{s.Key, text(s.value(c)), c.origins[s.Key]}
	}
	return all
}
