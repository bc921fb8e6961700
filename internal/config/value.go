package config

import (
	"fmt"
	"math"
	"net"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/meshd/meshd/internal/strictyaml"
)

// Folder is the path of a folder. Loaded, it is not empty.
type Folder string

// UnmarshalText reads the path.
func (f *Folder) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return fmt.Errorf("the path of a folder is expected, not an empty text")
	}
	*f = Folder(filepath.Clean(string(text)))
	return nil
}

// Address is where a server listens: host:port. Without a host it is every
// interface, and with port 0 any free port.
type Address string

// UnmarshalText reads the address.
func (a *Address) UnmarshalText(text []byte) error {
	host, port, err := net.SplitHostPort(string(text))
	if err != nil || strings.ContainsAny(host, "/ ") {
		return fmt.Errorf("%q is not an address: write host:port, as in 127.0.0.1:15010", text)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q has no port from 0 to 65535: write host:port, as in 127.0.0.1:15010", text)
	}
	*a = Address(text)
	return nil
}

// OptionalAddress is an address, or empty for a server that is switched off.
type OptionalAddress string

// UnmarshalText reads an address, "off" or nothing.
func (a *OptionalAddress) UnmarshalText(text []byte) error {
	if s := string(text); s == "" || s == "off" {
		*a = ""
		return nil
	}
	return (*Address)(a).UnmarshalText(text)
}

// String returns the address or "off".
func (a OptionalAddress) String() string {
	if a == "" {
		return "off"
	}
	return string(a)
}

// Duration is a time span. Loaded, it is longer than 0.
type Duration struct{ time.Duration }

// UnmarshalText reads a number with its unit, such as 1m30s.
func (d *Duration) UnmarshalText(text []byte) error {
	span, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration: write it with its unit, as in 500ms, 30s or 1m30s", text)
	}
	if span <= 0 {
		return fmt.Errorf("%s is too short: more than 0 is expected", text)
	}
	d.Duration = span
	return nil
}

// Size is a number of bytes, more than 0.
type Size int64

// units are what sizes are given in, the largest first.
var units = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// UnmarshalText reads a whole number with its unit, such as 16MiB; without a unit it is bytes.
func (s *Size) UnmarshalText(text []byte) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(string(text), u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n <= 0 || n > math.MaxInt64/u.bytes {
			break
		}
		*s = Size(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q is not a size: write a whole number of bytes, KiB, MiB or GiB, as in 512KiB or 16MiB", text)
}

// String is the size in the largest unit in which it is a whole number.
func (s Size) String() string {
	for _, u := range units {
		if int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return "" // units ends with bytes
}

// LogLevel is how important a line must be to be logged.
type LogLevel string

// The levels, from the least important.
const (
	LogTrace LogLevel = "trace"
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

// UnmarshalText reads the name of a level.
func (l *LogLevel) UnmarshalText(text []byte) error {
	return choose(l, text, LogTrace, LogDebug, LogInfo, LogWarn, LogError)
}

// LogFormat is how a line of the log is written.
type LogFormat string

// The formats.
const (
	LogText LogFormat = "text" // for people
	LogJSON LogFormat = "json" // an object on each line
)

// UnmarshalText reads the name of a format.
func (f *LogFormat) UnmarshalText(text []byte) error { return choose(f, text, LogText, LogJSON) }

// TrafficPolicy is what a proxy does with a destination that no entry knows.
type TrafficPolicy string

// The policies; meshConfig.outboundTrafficPolicy.mode in Istio, whose names are
// taken too.
const (
	AllowAny     TrafficPolicy = "allow-any"     // let it pass
	RegistryOnly TrafficPolicy = "registry-only" // refuse it
)

// UnmarshalText reads the name of a policy.
func (p *TrafficPolicy) UnmarshalText(text []byte) error {
	switch name := string(text); name {
	case "ALLOW_ANY", "REGISTRY_ONLY":
		text = []byte(strings.ToLower(strings.ReplaceAll(name, "_", "-")))
	}
	return choose(p, text, AllowAny, RegistryOnly)
}

// choose sets choice to the one among names that text is.
func choose[T ~string](choice *T, text []byte, names ...T) error {
	words := make([]string, len(names))
	for i, name := range names {
		if string(text) == string(name) {
			*choice = name
			return nil
		}
		words[i] = string(name)
	}
	hint := ""
	if near := strictyaml.Suggest(string(text), words); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	return fmt.Errorf("%q is none of %s%s", text, strings.Join(words, ", "), hint)
}

// text returns what a field of Config holds, as it would be written in the
// environment.
func text(field any) string {
	switch field := field.(type) {
	case *[]Folder:
		paths := make([]string, len(*field))
		for i, f := range *field {
			paths[i] = string(f)
		}
		return strings.Join(paths, string(filepath.ListSeparator))
	case fmt.Stringer:
		return field.String()
	}
	return fmt.Sprint(reflect.ValueOf(field).Elem())
}
