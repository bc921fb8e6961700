package config

import (
	"fmt"
	"math"
	"net"
	"path/filepath"
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

// OptionalFile is the path of a file, or empty for none.
type OptionalFile string

// UnmarshalText reads the path, or nothing.
func (f *OptionalFile) UnmarshalText(text []byte) error {
	*f = ""
	if len(text) > 0 {
		*f = OptionalFile(filepath.Clean(string(text)))
	}
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

// OptionalDuration is a time span, or 0 for what is switched off.
type OptionalDuration struct{ time.Duration }

// UnmarshalText reads a duration or "off".
func (d *OptionalDuration) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		d.Duration = 0
		return nil
	}
	return (*Duration)(d).UnmarshalText(text)
}

// String returns the time span or "off".
func (d OptionalDuration) String() string {
	if d.Duration == 0 {
		return "off"
	}
	return d.Duration.String()
}

// Canary is which nodes a change goes to before all others, and for how long. Loaded, either all is 0, which is off, or Time and
// one of the others are not.
type Canary struct {
	Nodes int
	Share float64 // of all nodes, up to 1
	Time  time.Duration
}

// UnmarshalText reads "off", "3 for 2m" or "5% for 2m".
func (c *Canary) UnmarshalText(text []byte) error {
	*c = Canary{}
	if string(text) == "off" {
		return nil
	}
	who, how, _ := strings.Cut(string(text), " for ")
	var d Duration
	share, percent := strings.CutSuffix(who, "%")
	var err error
	if percent {
		c.Share, err = strconv.ParseFloat(share, 64)
		c.Share /= 100
	} else {
		c.Nodes, err = strconv.Atoi(who)
	}
	if err == nil {
		err = d.UnmarshalText([]byte(how))
	}
	if c.Time = d.Duration; err != nil || c.Nodes < 0 || c.Nodes == 0 && !(c.Share > 0 && c.Share <= 1) {
		return fmt.Errorf("%q is not a canary: write a number of nodes or a share of them, and a time, as in \"3 for 2m\" or \"5%% for 2m\", or off", text)
	}
	return nil
}

// String is the text that is read.
func (c Canary) String() string {
	switch {
	case c.Time == 0:
		return "off"
	case c.Nodes > 0:
		return fmt.Sprintf("%d for %s", c.Nodes, c.Time)
	}
	return fmt.Sprintf("%g%% for %s", c.Share*100, c.Time)
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

// Word is a text that is not empty.
type Word string

// UnmarshalText reads the text.
func (w *Word) UnmarshalText(text []byte) error { return nonempty(w, text) }

// Secret is a text that nobody must see: it prints as "(secret)". Convert it to string
// where it is used.
type Secret string

const hidden = "(secret)"

// UnmarshalText reads the secret.
func (s *Secret) UnmarshalText(text []byte) error { return nonempty(s, text) }

// String hides the secret, as do the other ways to print it.
func (s Secret) String() string { return hidden }

// GoString hides the secret.
func (s Secret) GoString() string { return hidden }

// MarshalText hides the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

func nonempty[T ~string](into *T, text []byte) error {
	if len(text) == 0 {
		return fmt.Errorf("a text is expected, not an empty one: leave the key out for its default")
	}
	*into = T(text)
	return nil
}

// Label is a DNS label in lower case.
type Label string

// UnmarshalText reads the label.
func (l *Label) UnmarshalText(text []byte) error {
	if !isLabel(string(text)) {
		return fmt.Errorf("%q is not a DNS label: write at most 63 lower-case letters, digits and inner hyphens", text)
	}
	*l = Label(text)
	return nil
}

func isLabel(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// Domain is a DNS name in lower case, without a dot at its end.
type Domain string

// UnmarshalText reads the name.
func (d *Domain) UnmarshalText(text []byte) error {
	name := strings.ToLower(strings.TrimSuffix(string(text), "."))
	for label := range strings.SplitSeq(name, ".") {
		if !isLabel(label) || len(name) > 200 { // hosts are longer than it and at most 253
			return fmt.Errorf("%q is not a domain: write DNS labels with dots between them, as in consul or mesh.example", text)
		}
	}
	*d = Domain(name)
	return nil
}

// Port is a port number. Loaded, it is not 0 if it is given.
type Port uint16

// UnmarshalText reads the number.
func (p *Port) UnmarshalText(text []byte) error { return whole(p, text, 1, math.MaxUint16) }

// Count is a number of things, more than 0.
type Count int

// UnmarshalText reads the number.
func (c *Count) UnmarshalText(text []byte) error { return whole(c, text, 1, 1_000_000) }

func whole[T ~int | ~uint16](into *T, text []byte, least, most int) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not a whole number from %d to %d", text, least, most)
	}
	*into = T(n)
	return nil
}

// Share is a part of a whole: more than 0, at most 1.
type Share float64

// UnmarshalText reads a percentage or a fraction.
func (s *Share) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(string(text), "%")
	f, err := strconv.ParseFloat(number, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f > 0 && f <= 1) { // no number compares with NaN
		return fmt.Errorf("%q is not a share: write a percentage of more than 0%% and at most 100%%, as in 30%%, or 0.3", text)
	}
	*s = Share(f)
	return nil
}

// String is the percentage.
func (s Share) String() string { return strconv.FormatFloat(100*float64(s), 'g', 6, 64) + "%" }
