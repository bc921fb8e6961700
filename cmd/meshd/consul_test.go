package main

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/config"
	"github.com/meshd/meshd/internal/consulreg"
	"github.com/meshd/meshd/internal/mesh"
)

// TestEverySettingOfConsulArrives gives every setting a value, and looks for an option without one.
func TestEverySettingOfConsulArrives(t *testing.T) {
	insecure := true
	c := config.Consul{
		Name: "far", Addresses: []config.ConsulAddress{"https://a:1"},
		TLS:   config.TLS{CAFile: "ca", CAPath: "cas", CertFile: "cert", KeyFile: "key", ServerName: "server", InsecureSkipVerify: &insecure},
		Token: "token", TokenFile: "token-file", Username: "me", Password: "password",
		Datacenter: "dc2", Namespace: "consul-namespace", Partition: "partition",
		Domain: "domain", MeshNamespace: "mesh-namespace", DatacenterHosts: config.DatacenterHostsNever,
		Include: []config.Match{{Name: "name", Tag: "tag", Meta: "meta"}}, Exclude: []config.Match{{Name: "n", Tag: "t", Meta: "m"}},
		Expose: config.ExposeTagged, EnableTag: "enable", TagDelimiters: "delimiters", MetaPrefix: "meta-prefix", ZoneMeta: "zone-meta",
		Kinds: []config.Kind{"server"}, Protocol: "GRPC-WEB", Port: 80,
		AddressKind: config.AddressWAN, Guard: config.Guard{Off: true, Services: 0.1, Endpoints: 0.2}, Damping: config.OptionalDuration{Duration: 1},
		Connections: 7, Watches: 8, SweepInterval: config.Duration{Duration: 9},
	}
	all := consulRegistries([]config.Consul{{Name: "near"}, c}, "state")
	want := consulRegistry{"far", consulreg.Options{
		Link: consulreg.Link{
			Addresses: []string{"https://a:1"},
			TLS:       consulreg.TLS{CAFile: "ca", CAPath: "cas", CertFile: "cert", KeyFile: "key", ServerName: "server", InsecureSkipVerify: true},
			Token:     "token", TokenFile: "token-file", Username: "me", Password: "password",
			Datacenter: "dc2", Namespace: "consul-namespace", Partition: "partition",
		},
		Rules: consulreg.Rules{
			Datacenter: "dc2", Place: 1, Several: true, Distance: consulreg.Far,
			Domain: "domain", Namespace: "mesh-namespace", DatacenterHosts: consulreg.DatacenterHostsNever,
			Include: []consulreg.Match{{Name: "name", Tag: "tag", Meta: "meta"}}, Exclude: []consulreg.Match{{Name: "n", Tag: "t", Meta: "m"}},
			Expose: consulreg.ExposeTagged, EnableTag: "enable", Delimiters: "delimiters", MetaPrefix: "meta-prefix", ZoneMeta: "zone-meta",
			Kinds: []string{"server"}, Protocol: mesh.GRPCWeb, Port: 80,
		},
		Guard:   consulreg.Guard{Off: true, Services: 0.1, Endpoints: 0.2},
		Damping: 1, Connections: 7, Watches: 8, Sweep: 9 * time.Nanosecond, StateDir: "state/far",
	}}
	if diff := cmp.Diff(want, all[1], cmp.AllowUnexported(consulRegistry{})); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	for _, path := range zeros(reflect.ValueOf(all[1].options), "Options") {
		t.Errorf("%s is zero: is there a setting for it?", path)
	}
	for _, path := range zeros(reflect.ValueOf(c), "Consul") {
		if path != "Consul.Address" && path != "Consul.Scheme" { // which are in Addresses once they are loaded
			t.Errorf("%s has no value in this test", path)
		}
	}
}

// zeros are the exported fields below v that are zero.
func zeros(v reflect.Value, path string) (all []string) {
	switch {
	case v.IsZero():
		return []string{path}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				all = append(all, zeros(v.Field(i), path+"."+f.Name)...)
			}
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			all = append(all, zeros(v.Index(i), path+"["+strconv.Itoa(i)+"]")...)
		}
	}
	return all
}

func TestWhatConsulDoesNotSayIsZero(t *testing.T) {
	got := consulRegistries([]config.Consul{{Name: "consul", Addresses: []config.ConsulAddress{"a:1"}}}, "")
	want := []consulRegistry{{"consul", consulreg.Options{Link: consulreg.Link{Addresses: []string{"a:1"}}}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(consulRegistry{})); diff != "" {
		t.Errorf("registries (-want +got):\n%s", diff)
	}
}

// TestSettingsHaveTheWordsOfTheRegistries compares the lists that config must have for itself.
func TestSettingsHaveTheWordsOfTheRegistries(t *testing.T) {
	if diff := cmp.Diff(consulreg.Kinds(), texts(config.Kinds())); diff != "" {
		t.Errorf("kinds (-consulreg +config):\n%s", diff)
	}
	if diff := cmp.Diff(mesh.ProtocolNames(), texts(config.Protocols())); diff != "" {
		t.Errorf("protocols (-mesh +config):\n%s", diff)
	}
	for key, words := range map[string][]string{"address-kind": {"auto", "lan", "wan"}, "datacenter-hosts": {"auto", "always", "never"}, "expose": {"all", "tagged"}} {
		seen := map[any]string{}
		for _, word := range words {
			rules := consulRegistries(loadConsul(t, key+": "+word), "")[0].options.Rules
			value := [...]any{rules.Distance, rules.DatacenterHosts, rules.Expose}
			if same, ok := seen[value]; ok {
				t.Errorf("%s: %s is the same as %s", key, word, same)
			}
			seen[value] = word
		}
	}
	_, err := config.Load(settingsFile("consul: [{name: " + filesRegistry + "}]"))
	if err == nil || !strings.Contains(err.Error(), "registry of entries") {
		t.Errorf("a Consul may be called %s, as the registry of files is: %v", filesRegistry, err)
	}
}

func settingsFile(text string) config.Sources {
	return config.Sources{ReadFile: func(string) ([]byte, error) { return []byte(text), nil }}
}

func loadConsul(t *testing.T, keys string) []config.Consul {
	t.Helper()
	c, err := config.Load(settingsFile("consul: [{" + keys + "}]"))
	if err != nil {
		t.Fatal(err)
	}
	return c.Consul
}

func TestConsulFlag(t *testing.T) {
	cmd := newServe()
	if err := cmd.ParseFlags([]string{"--consul", "a:1", "--consul", "unix:///b,c"}); err != nil {
		t.Fatal(err)
	}
	if _, err := loadSettings(cmd, ""); err == nil || !strings.Contains(err.Error(), `--consul: "unix:///b,c" has a blank or a comma in it`) {
		t.Errorf("the flag's second value is taken apart: %v", err)
	}
	for line := range strings.Lines(cmd.UsageString()) {
		if strings.Contains(line, "--consul") && (!strings.Contains(line, "--consul address ") || strings.Contains(line, "default")) {
			t.Errorf("the help shows the flag as %s", line)
		}
	}
}
