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
	"path/filepath"
	"reflect"
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
	Entries               []Folder         `yaml:"entries"`
	Consul                []Consul         `yaml:"consul"`
	XDSListen             Address          `yaml:"xds-listen"`
	XDSTLSCertFile        OptionalFile     `yaml:"xds-tls-cert-file"`
	XDSTLSKeyFile         OptionalFile     `yaml:"xds-tls-key-file"`
	XDSTLSClientCAFile    OptionalFile     `yaml:"xds-tls-client-ca-file"`
	AdminListen           OptionalAddress  `yaml:"admin-listen"`
	StateDir              Folder           `yaml:"state-dir"`
	LogLevel              LogLevel         `yaml:"log-level"`
	LogFormat             LogFormat        `yaml:"log-format"`
	RescanInterval        Duration         `yaml:"rescan-interval"`
	MaxFileSize           Size             `yaml:"max-file-size"`
	FirstViewTimeout      Duration         `yaml:"first-view-timeout"`
	DrainTime             Duration         `yaml:"drain-time"`
	MaxConnectionAge      Duration         `yaml:"max-connection-age"`
	LoadReportInterval    OptionalDuration `yaml:"load-report-interval"`
	MaxStreams            Count            `yaml:"max-streams"`
	MaxRequestRate        Count            `yaml:"max-request-rate"`
	Canary                Canary           `yaml:"canary"`
	OutboundTrafficPolicy TrafficPolicy    `yaml:"outbound-traffic-policy"`

	origins map[string]origin // by key
}

// origin is where a setting comes from.
type origin struct {
	name  string                   // as in [Effective]
	place func(path string) string // where a part of it is, such as consul[0].name, for the beginning of a message
}

// from is the origin of what has no parts with places of their own.
func from(name string) origin { return origin{name, func(string) string { return name }} }

func (o origin) String() string { return o.name }

// settings has a row for every setting, in the order of the help. A new setting is
// a field of Config and a row here; its type says what values it takes.
var settings = []Setting{
	{"entries", "/etc/meshd/entries", "`folder` of ServiceEntry and WorkloadEntry files; several may be given", func(c *Config) value { return list[Folder, *Folder]{&c.Entries, string(filepath.ListSeparator)} }},
	{"consul", "", "`address` of a Consul whose services are served: host:port, a URL or unix:///path; several, one a datacenter, may be given", func(c *Config) value { return list[Consul, *Consul]{&c.Consul, ","} }},
	{"xds-listen", "127.0.0.1:15010", "`host:port` at which proxies ask for their resources", func(c *Config) value { return one{&c.XDSListen} }},
	{"xds-tls-cert-file", "", "PEM `file` of the certificate by which proxies know meshd; without one they are spoken to in plain text", func(c *Config) value { return one{&c.XDSTLSCertFile} }},
	{"xds-tls-key-file", "", "PEM `file` of that certificate's private key", func(c *Config) value { return one{&c.XDSTLSKeyFile} }},
	{"xds-tls-client-ca-file", "", "PEM `file` of the authorities of which proxies must have a certificate; without one any may connect", func(c *Config) value { return one{&c.XDSTLSClientCAFile} }},
	{"admin-listen", "127.0.0.1:15014", "`host:port` of status, metrics and health; \"off\" for none", func(c *Config) value { return one{&c.AdminListen} }},
	{"state-dir", "/var/lib/meshd", "`folder` that keeps the last good versions of entries over a restart", func(c *Config) value { return one{&c.StateDir} }},
	{"log-level", "info", "least important `level` that is logged: trace, debug, info, warn or error", func(c *Config) value { return one{&c.LogLevel} }},
	{"log-format", "text", "`format` of the log: text or json", func(c *Config) value { return one{&c.LogFormat} }},
	{"rescan-interval", "10s", "`duration` between two looks at all entries, for changes that the kernel does not report", func(c *Config) value { return one{&c.RescanInterval} }},
	{"max-file-size", "16MiB", "largest `size` of a file of entries, in bytes, KiB, MiB or GiB; a larger one is not read", func(c *Config) value { return one{&c.MaxFileSize} }},
	{"first-view-timeout", "30s", "longest `duration` that proxies wait after a start for registries that are not synced, if others are", func(c *Config) value { return one{&c.FirstViewTimeout} }},
	{"drain-time", "5s", "longest `duration` of a graceful stop", func(c *Config) value { return one{&c.DrainTime} }},
	{"max-connection-age", "4h", "`duration`, give or take a tenth, after which a node is told to connect anew, and goes on to the next replica if there is one", func(c *Config) value { return one{&c.MaxConnectionAge} }},
	{"max-streams", "10000", "most xDS streams at one time, and most connections, a `number`; what is more is refused", func(c *Config) value { return one{&c.MaxStreams} }},
	{"max-request-rate", "500", "most xDS requests a second of one stream, a `number`, where each begun 64 KiB count as one; what comes faster waits", func(c *Config) value { return one{&c.MaxRequestRate} }},
	{"canary", "off", "which nodes a change goes to before all others, and for how long: `NODES for TIME` or SHARE% for TIME, as in \"5% for 2m\"; \"off\" for none", func(c *Config) value { return one{&c.Canary} }},
	{"load-report-interval", "10s", "`duration` between two reports of a node that reports its load; \"off\" takes none", func(c *Config) value { return one{&c.LoadReportInterval} }},
	{"outbound-traffic-policy", "allow-any", "`policy` for destinations outside of the mesh: allow-any or registry-only", func(c *Config) value { return one{&c.OutboundTrafficPolicy} }},
}

// Setting is one setting that can be given as a flag, in the environment and in the
// file.
type Setting struct {
	Key     string // in the file; the flag is --KEY
	Default string // as it would be written in the environment
	Help    string // one line; the word in backquotes names the value

	value func(*Config) value // its field
}

// Settings returns all settings, in the order of the help.
func Settings() []Setting { return slices.Clone(settings) }

// Variable returns the setting's name in the environment.
func (s Setting) Variable() string {
	return prefix + strings.ToUpper(strings.ReplaceAll(s.Key, "-", "_"))
}

// List tells whether the setting takes several values: the flag several times, the
// variable with separators between them, the file a list.
func (s Setting) List() bool { return s.value(new(Config)).list() }

// Split returns the values in a text such as the default: one unless it is a list.
func (s Setting) Split(text string) []string { return s.value(new(Config)).split(text) }

// set gives the setting its values.
func (s Setting) set(c *Config, texts []string, o origin) error {
	c.origins[s.Key] = o
	if err := s.value(c).set(texts); err != nil {
		return fmt.Errorf("%s: %w", o, err)
	}
	return nil
}

// value is a field of Config that is set by text.
type value interface {
	list() bool
	split(text string) []string
	set(texts []string) error
	field() any     // a pointer to it
	String() string // as it would be written in the environment, but for secrets
}

// one is a field with one value.
type one struct{ at encoding.TextUnmarshaler }

func (o one) list() bool                 { return false }
func (o one) split(text string) []string { return []string{text} }
func (o one) field() any                 { return o.at }

// set takes the last text.
func (o one) set(texts []string) error { return o.at.UnmarshalText([]byte(texts[len(texts)-1])) }

func (o one) String() string {
	if s, ok := o.at.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprint(reflect.ValueOf(o.at).Elem())
}

// list is a field with any number of values.
type list[T any, P interface {
	*T
	encoding.TextUnmarshaler
}] struct {
	at        *[]T
	separator string
}

func (l list[T, P]) list() bool { return true }
func (l list[T, P]) field() any { return l.at }

func (l list[T, P]) split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, l.separator)
}

// set replaces all values, and returns the first mistake. One empty text is no value.
func (l list[T, P]) set(texts []string) error {
	if len(texts) == 1 && texts[0] == "" {
		texts = nil
	}
	var first error
	*l.at = make([]T, len(texts))
	for i := range texts {
		if err := P(&(*l.at)[i]).UnmarshalText([]byte(texts[i])); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (l list[T, P]) String() string {
	texts := make([]string, len(*l.at))
	for i, item := range *l.at {
		texts[i] = fmt.Sprint(item)
	}
	return strings.Join(texts, l.separator)
}

// Effective is a setting's value and where it came from.
type Effective struct {
	Key    string
	Value  string // without secrets
	Origin string // --log-level, MESHD_LOG_LEVEL, /etc/meshd/meshd.yaml:3 or default
}

// Describe returns all settings as they are in effect, in the order of the help.
func (c *Config) Describe() []Effective {
	all := make([]Effective, len(settings))
	for i, s := range settings {
		all[i] = Effective{s.Key, s.value(c).String(), c.origins[s.Key].name}
	}
	return all
}

// Change is a setting that is not what it was.
type Change struct {
	Key      string
	Was, Now string // without secrets
	Origin   string // of what it is now
}

// Since returns what is different from an earlier c, in the order of the help. It
// compares secrets too, and tells of them that they are others.
func (c *Config) Since(was *Config) []Change {
	var all []Change
	before, now := was.Describe(), c.Describe()
	for i, s := range settings {
		if reflect.DeepEqual(s.value(was).field(), s.value(c).field()) {
			continue
		}
		change := Change{s.Key, before[i].Value, now[i].Value, now[i].Origin}
		if change.Was == change.Now {
			change.Now += " (with another secret)"
		}
		all = append(all, change)
	}
	return all
}
