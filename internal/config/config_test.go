package config

import (
	"errors"
	"io/fs"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// files returns a function that reads from a map.
func files(content map[string]string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		data, ok := content[name]
		switch {
		case !ok:
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		case data == "denied":
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
		case data == "folder":
			return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("is a directory")}
		}
		return []byte(data), nil
	}
}

func TestLoadDefaults(t *testing.T) {
	c, err := Load(Sources{ReadFile: files(nil)})
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Entries:               []Folder{"/etc/meshd/entries"},
		XDSListen:             "127.0.0.1:15010",
		AdminListen:           "127.0.0.1:15014",
		StateDir:              "/var/lib/meshd",
		LogLevel:              LogInfo,
		LogFormat:             LogText,
		RescanInterval:        Duration{10 * time.Second},
		MaxFileSize:           16 << 20,
		FirstViewTimeout:      Duration{30 * time.Second},
		DrainTime:             Duration{5 * time.Second},
		MaxConnectionAge:      Duration{4 * time.Hour},
		MaxStreams:            10_000,
		MaxRequestRate:        500,
		LoadReportInterval:    OptionalDuration{10 * time.Second},
		OutboundTrafficPolicy: AllowAny,
	}
	if diff := cmp.Diff(want, c, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	for _, e := range c.Describe() {
		if e.Origin != "default" {
			t.Errorf("%s comes from %q, want default", e.Key, e.Origin)
		}
	}
}

func TestFlagsWinOverEnvironmentOverFileOverDefault(t *testing.T) {
	c, err := Load(Sources{
		ReadFile: files(map[string]string{DefaultFile: `# settings
entries:
- /srv/a
- /srv/b/
log-level: warn
log-format: json
rescan-interval: 1m
drain-time:
admin-listen: off
outbound-traffic-policy: REGISTRY_ONLY
load-report-interval: off
xds-tls-client-ca-file: /etc/ca.pem
`}),
		Environ: []string{"HOME=/root", "MESHD_LOG_LEVEL=debug", "MESHD_LOG_FORMAT=text", "MESHD_XDS_LISTEN=[::]:15010", "MESHD_STATE_DIR=/tmp/a=b", "MESHD_MAX_FILE_SIZE=2048MiB"},
		Flags: map[string][]string{
			"log-level": {"info", "error"}, "first-view-timeout": {"500ms"}, "xds-tls-cert-file": {"a.pem"}, "xds-tls-key-file": {"/etc//a.key"}, "xds-tls-client-ca-file": {""},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Effective{
		{"entries", "/srv/a:/srv/b", DefaultFile + ":3"},
		{"consul", "", "default"},
		{"xds-listen", "[::]:15010", "MESHD_XDS_LISTEN"},
		{"xds-tls-cert-file", "a.pem", "--xds-tls-cert-file"},
		{"xds-tls-key-file", "/etc/a.key", "--xds-tls-key-file"},
		{"xds-tls-client-ca-file", "", "--xds-tls-client-ca-file"},
		{"admin-listen", "off", DefaultFile + ":9"},
		{"state-dir", "/tmp/a=b", "MESHD_STATE_DIR"},
		{"log-level", "error", "--log-level"},
		{"log-format", "text", "MESHD_LOG_FORMAT"},
		{"rescan-interval", "1m0s", DefaultFile + ":7"},
		{"max-file-size", "2GiB", "MESHD_MAX_FILE_SIZE"},
		{"first-view-timeout", "500ms", "--first-view-timeout"},
		{"drain-time", "5s", "default"},
		{"max-connection-age", "4h0m0s", "default"},
		{"max-streams", "10000", "default"},
		{"max-request-rate", "500", "default"},
		{"canary", "off", "default"},
		{"load-report-interval", "off", DefaultFile + ":11"},
		{"outbound-traffic-policy", "registry-only", DefaultFile + ":10"},
	}
	if diff := cmp.Diff(want, c.Describe()); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestEntriesAreAListEverywhere(t *testing.T) {
	for _, test := range []struct {
		name string
		from Sources
		want []Folder
	}{
		{"in the file", Sources{ReadFile: files(map[string]string{DefaultFile: "entries: [/a, b]"})}, []Folder{"/a", "b"}},
		{"in the environment", Sources{Environ: []string{"MESHD_ENTRIES=/a:b"}, ReadFile: files(nil)}, []Folder{"/a", "b"}},
		{"as flags", Sources{Flags: map[string][]string{"entries": {"/a", "b"}}, ReadFile: files(nil)}, []Folder{"/a", "b"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := Load(test.from)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, c.Entries); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhichFileIsRead(t *testing.T) {
	content := map[string]string{DefaultFile: "drain-time: 1s", "/flag": "drain-time: 2s", "/variable": "drain-time: 3s", "/empty": "# nothing\n", "/denied": "denied", "/folder": "folder"}
	for _, test := range []struct {
		name string
		from Sources
		want string
		err  string
	}{
		{"the default", Sources{}, "1s", ""},
		{"that of the variable", Sources{Environ: []string{"MESHD_CONFIG=/variable"}}, "3s", ""},
		{"that of the flag first", Sources{File: "/flag", Environ: []string{"MESHD_CONFIG=/variable"}}, "2s", ""},
		{"an empty one", Sources{File: "/empty"}, "5s", ""},
		{"an absent one of the flag", Sources{File: "/absent"}, "", "/absent: reading the settings: file does not exist"},
		{"an absent one of the variable", Sources{Environ: []string{"MESHD_CONFIG=/absent"}}, "", "/absent: reading the settings: file does not exist"},
		{"one that may not be read", Sources{File: "/denied"}, "", "/denied: reading the settings: permission denied"},
		{"a folder", Sources{File: "/folder"}, "", "/folder: reading the settings: is a directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.from.ReadFile = files(content)
			c, err := Load(test.from)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("Load gives %v, want %s", err, test.err)
				}
				return
			}
			if err != nil || c.DrainTime.String() != test.want {
				t.Errorf("Load gives %v and %v, want a drain time of %s", c, err, test.want)
			}
		})
	}
}

func TestLoadReportsEveryMistake(t *testing.T) {
	for _, test := range []struct {
		name, file, environ, flags, want string
	}{
		{
			"in the file", `
log-levl: info
log-format: xml
xds-listen: 15010
admin-listen: 127.0.0.1:http
rescan-interval: 10
drain-time: 0s
entries: /srv
state-dir: ""
log-format: json
outbound-traffic-policy: ALLOW-ANY
`, "", "", `/etc/meshd/meshd.yaml:2:1: log-levl: unknown field "log-levl"; did you mean "log-level"?
/etc/meshd/meshd.yaml:3:13: log-format: "xml" is none of text, json
/etc/meshd/meshd.yaml:4:13: xds-listen: "15010" is not an address: write host:port, as in 127.0.0.1:15010
/etc/meshd/meshd.yaml:5:15: admin-listen: "127.0.0.1:http" has no port from 0 to 65535: write host:port, as in 127.0.0.1:15010
/etc/meshd/meshd.yaml:6:18: rescan-interval: "10" is not a duration: write it with its unit, as in 500ms, 30s or 1m30s
/etc/meshd/meshd.yaml:7:13: drain-time: 0s is too short: more than 0 is expected
/etc/meshd/meshd.yaml:8:10: entries: a list is expected, not the text "/srv": put "- " before each item
/etc/meshd/meshd.yaml:9:12: state-dir: the path of a folder is expected, not an empty text
/etc/meshd/meshd.yaml:10:1: log-format: "log-format" stands here a second time, first on line 3: keep one of them
/etc/meshd/meshd.yaml:11:26: outbound-traffic-policy: "ALLOW-ANY" is none of allow-any, registry-only; did you mean "allow-any"?`,
		},
		{"in the file's syntax", "log-level: info\n\tlog-format: text\n", "", "", "/etc/meshd/meshd.yaml:2:1: a tab cannot indent: use spaces"},
		{"a second document", "log-level: info\n---\nlog-format: text\n", "", "", `/etc/meshd/meshd.yaml:3:1: the settings are one document, and this is another: remove the "---" before it`},
		{
			"in the environment", "", "MESHD_LOG_LEVEL=inof MESHD_LOGLEVEL=x MESHD_ENTRIES=/a::/b MESHD_WHATEVER=1 MESHD_XDS_LISTEN=off", "",
			`MESHD_ENTRIES: the path of a folder is expected, not an empty text
MESHD_XDS_LISTEN: "off" is not an address: write host:port, as in 127.0.0.1:15010
MESHD_LOG_LEVEL: "inof" is none of trace, debug, info, warn, error; did you mean "info"?
MESHD_LOGLEVEL: no setting has this name; did you mean MESHD_LOG_LEVEL?
MESHD_WHATEVER: no setting has this name; unset it`,
		},
		{"in flags", "", "", "drain-time=soon", `--drain-time: "soon" is not a duration: write it with its unit, as in 500ms, 30s or 1m30s`},
		{"one address twice", "", "MESHD_XDS_LISTEN=127.0.0.1:15014", "", "xds-listen (MESHD_XDS_LISTEN) and admin-listen (default) are both 127.0.0.1:15014: give each a port of its own"},
		{"no folder in the file", "entries: []", "", "", "entries (/etc/meshd/meshd.yaml:1) names no folder, and no Consul is named either: name one of them, or leave the setting out for its default"},
		{"no folder in the environment", "", "MESHD_ENTRIES=", "", "entries (MESHD_ENTRIES) names no folder, and no Consul is named either: name one of them, or leave the setting out for its default"},
		{"a certificate without its key", "xds-tls-cert-file: /a.pem", "", "", "xds-tls-cert-file (/etc/meshd/meshd.yaml:1): a certificate is of no use without its key: set xds-tls-key-file too"},
		{"a key without its certificate", "", "MESHD_XDS_TLS_KEY_FILE=/a.key MESHD_XDS_TLS_CERT_FILE=", "", "xds-tls-key-file (MESHD_XDS_TLS_KEY_FILE): a key is of no use without its certificate: set xds-tls-cert-file too"},
		{"an authority without a certificate", "", "", "xds-tls-client-ca-file=/ca.pem", "xds-tls-client-ca-file (--xds-tls-client-ca-file): clients can show no certificate where meshd has none: set xds-tls-cert-file and xds-tls-key-file too"},
		{"one folder twice", "entries: [/a, /a/]", "", "", "entries (/etc/meshd/meshd.yaml:1) has /a twice: remove one of them"},
	} {
		t.Run(test.name, func(t *testing.T) {
			from := Sources{ReadFile: files(map[string]string{DefaultFile: test.file}), Environ: strings.Fields(test.environ), Flags: map[string][]string{}}
			if key, value, ok := strings.Cut(test.flags, "="); ok {
				from.Flags[key] = []string{value}
			}
			_, err := Load(from)
			if err == nil {
				t.Fatal("Load reports nothing")
			}
			if diff := cmp.Diff(test.want, err.Error()); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	for _, text := range []string{":0", "localhost:15010", "0.0.0.0:1", "[::1]:65535"} {
		if err := new(Address).UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%s is refused: %v", text, err)
		}
	}
	for _, text := range []string{"", "127.0.0.1", "::1:80", "a:65536", "a:-1", "http://a:80", "a b:80"} {
		if err := new(Address).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// TestSettingsFitTheFile holds rows and fields together.
func TestSettingsFitTheFile(t *testing.T) {
	var c Config
	byField := make(map[any]string)
	for _, s := range Settings() {
		byField[s.value(&c).field()] = s.Key
		if !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(s.Key) {
			t.Errorf("%s is not in kebab case", s.Key)
		}
		if s.Help == "" || strings.Count(s.Help, "`") != 2 {
			t.Errorf("the help of %s does not name its value: %q", s.Key, s.Help)
		}
	}
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		tag, ok := v.Type().Field(i).Tag.Lookup("yaml")
		if !ok {
			continue
		}
		field := v.Field(i).Addr().Interface()
		if key, ok := byField[field]; ok && key != tag {
			t.Errorf("%s is %s in the file", key, tag)
		}
		delete(byField, field)
	}
	for _, key := range byField {
		t.Errorf("%s cannot be given in the file: its field has no yaml tag", key)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("entries: [/a]\nlog-level: debug\n", "127.0.0.1:80")
	f.Add("consul: [{tls: {ca-file: a}, guard: off, include: [{meta: a=b}]}, 'https://a:1']", "a:1")
	f.Add("drain-time: !!str 5s\n---\n", "off")
	f.Fuzz(func(t *testing.T, file, address string) {
		c, err := Load(Sources{ReadFile: files(map[string]string{DefaultFile: file}), Flags: map[string][]string{"xds-listen": {address}}})
		if err != nil {
			return
		}
		if c.XDSListen == "" || c.StateDir == "" || c.LogLevel == "" || c.LogFormat == "" || c.RescanInterval.Duration <= 0 || c.DrainTime.Duration <= 0 {
			t.Errorf("a setting is lost: %+v", c)
		}
	})
}

func TestCanaries(t *testing.T) {
	for text, want := range map[string]Canary{
		"off": {}, "3 for 2m": {Nodes: 3, Time: 2 * time.Minute}, "5% for 90s": {Share: 0.05, Time: 90 * time.Second}, "0.5% for 1h": {Share: 0.005, Time: time.Hour},
	} {
		var c Canary
		if err := c.UnmarshalText([]byte(text)); err != nil || c != want {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
		var again Canary
		if err := again.UnmarshalText([]byte(c.String())); err != nil || again != c {
			t.Errorf("%s becomes %s, which is %+v, %v", text, c, again, err)
		}
	}
	for _, text := range []string{"", "3", "3 for", "0 for 2m", "-1 for 2m", "0% for 2m", "101% for 2m", "NaN% for 2m", "x% for 2m", "3 for 0s", "3 for ever", "on"} {
		var c Canary
		if err := c.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken for %+v", text, c)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{"1": 1, "1500": 1500, "512KiB": 512 << 10, "16MiB": 16 << 20, "1024KiB": 1 << 20, "3GiB": 3 << 30} {
		var s, again Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q is %d, %v; want %d", text, s, err, want)
		}
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%q is written as %q, which is %d, %v", text, s, again, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "1.5MiB", "16MB", "MiB", "9223372036854775807GiB", "9223372036854775808"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is the size %d", text, s)
		}
	}
}
