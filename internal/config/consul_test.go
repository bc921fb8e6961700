package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshd/meshd/internal/strictyaml"
)

// loadConsul loads settings in a file with an environment.
func loadConsul(file string, environ ...string) (*Config, error) {
	return Load(Sources{ReadFile: files(map[string]string{DefaultFile: file}), Environ: environ})
}

func TestConsulEveryKey(t *testing.T) {
	file, err := os.ReadFile("testdata/consul.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := loadConsul(string(file))
	if err != nil {
		t.Fatal(err)
	}
	insecure := true
	want := []Consul{
		{
			Name:      "far",
			Addresses: []ConsulAddress{"https://10.0.0.5:8501", "https://consul.dc2.example/prefix", "unix:///run/consul.sock"},
			TLS: TLS{
				CAFile: "ca.pem", CAPath: "/etc/ssl/consul", CertFile: "cert.pem", KeyFile: "key.pem", ServerName: "server.dc2.consul",
				InsecureSkipVerify: &insecure,
			},
			Token: "5ec2e700-0000-4000-8000-000000000001", Username: "meshd", Password: "12345",
			Datacenter: "dc2", Namespace: "shop", Partition: "east",
			Domain: "mesh.example", MeshNamespace: "shop", DatacenterHosts: DatacenterHostsAlways,
			Include: []Match{{Name: "pay-*"}, {Tag: "public", Meta: "team=pay-?"}}, Exclude: []Match{{Meta: "internal"}},
			Expose: ExposeTagged, EnableTag: "serve-me", TagDelimiters: "=/", MetaPrefix: "mesh.", ZoneMeta: "az",
			Kinds: []Kind{"service", "api-gateway"}, Protocol: "GRPC-WEB", Port: 8080,
			AddressKind: AddressWAN, Guard: Guard{Services: 0.2, Endpoints: 0.75}, Damping: OptionalDuration{30 * time.Second},
			Connections: 6, Watches: 1, SweepInterval: Duration{time.Minute},
		},
		{
			Name: "consul-10-0-0-6-8500", Addresses: []ConsulAddress{"10.0.0.6:8500"}, TokenFile: "/etc/meshd/consul.token",
			Guard: Guard{Off: true},
		},
		{Name: "consul-10-0-0-7-8500", Addresses: []ConsulAddress{"10.0.0.7:8500"}},
	}
	// As values, secrets included, and not as they print.
	if diff := cmp.Diff(want, c.Consul, cmp.Transformer("plain", func(s Secret) string { return string(s) })); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	for _, field := range strictyaml.Fields(reflect.TypeFor[Consul]()) {
		if !strings.Contains(string(file), field.Name+":") {
			t.Errorf("testdata/consul.yaml has no %s", field.Name)
		}
	}
}

func TestConsulIsAListEverywhere(t *testing.T) {
	two := []ConsulAddress{"10.0.0.5:8500", "https://b"}
	for _, test := range []struct {
		name string
		from Sources
		want []ConsulAddress
	}{
		{"not at all, whatever Consul's own variables say", Sources{Environ: []string{"CONSUL_HTTP_ADDR=10.0.0.9:8500", "CONSUL_HTTP_SSL=maybe"}}, nil},
		{"in the file", Sources{ReadFile: files(map[string]string{DefaultFile: "consul: [10.0.0.5:8500, {address: 'https://b/'}]"})}, two},
		{"in the environment", Sources{Environ: []string{"MESHD_CONSUL=10.0.0.5:8500,https://b"}}, two},
		{"as flags", Sources{Flags: map[string][]string{"consul": {"10.0.0.5:8500", "https://b"}}}, two},
		{"an empty variable is none", Sources{Environ: []string{"MESHD_CONSUL="}, ReadFile: files(map[string]string{DefaultFile: "consul: [a:1]"})}, nil},
		{"an empty list is none", Sources{ReadFile: files(map[string]string{DefaultFile: "consul: []"})}, nil},
		{"an element that says nothing", Sources{ReadFile: files(map[string]string{DefaultFile: "consul: [{}]"})}, []ConsulAddress{"127.0.0.1:8500"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.from.ReadFile == nil {
				test.from.ReadFile = files(nil)
			}
			c, err := Load(test.from)
			if err != nil {
				t.Fatal(err)
			}
			var got []ConsulAddress
			for _, consul := range c.Consul {
				got = append(got, consul.Addresses...)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConsulMistakes(t *testing.T) {
	for _, test := range []struct{ name, element, want string }{
		{"an unknown key", "{adress: a:1}", `8: consul[0].adress: unknown field "adress"; did you mean "address"?`},
		{"an unknown key of TLS", "{tls: {cafile: a}}", `14: consul[0].tls.cafile: unknown field "cafile"; did you mean "ca-file"?`},
		{"an unknown key of a condition", "{include: [{names: a}]}", `19: consul[0].include[0].names: unknown field "names"; did you mean "name"?`},
		{"a list for an element", "[a:1]", `7: consul[0]: keys with values are expected, not a list: remove the "- "`},
		{"nothing for an element", "", `6: consul[0]: text is expected, not an empty value`},
		{"no address", `""`, `7: consul[0]: the address of a Consul is expected, not an empty text: write host:port, as in 127.0.0.1:8500`},
		{"a host alone", "10.0.0.5", `7: consul[0]: "10.0.0.5" is not an address: write host:port, as in 127.0.0.1:8500, a URL or unix:///path`},
		{"another scheme", "grpc://a:1", `7: consul[0]: "grpc://a:1" has the scheme grpc: write http, https or unix`},
		{"a URL without a host", "http://:8500", `7: consul[0]: "http://:8500" is not a URL of Consul: write it as in http://consul.example:8500`},
		{"a relative socket", "unix://run/x", `7: consul[0]: "unix://run/x" is not a socket: write the whole path, as in unix:///run/consul/http.sock`},
		{"two addresses in one text", `"a:1,b:1"`, `7: consul[0]: "a:1,b:1" has a blank or a comma in it: write one address for each Consul, as in 127.0.0.1:8500`},
		{"a password in the address", "https://me:hush@a:1", `7: consul[0]: the address has a user in it: write username and password as keys beside the address, or in CONSUL_HTTP_AUTH`},
		{"a token in the address", "https://a:1?token=hush", `7: consul[0]: the address has a query in it: write it without, and tokens and the like as keys beside it`},
		{"address and addresses", "{address: a:1, addresses: [b:1]}", `33: consul[0].addresses: there is an address too: keep one of the two keys`},
		{"an empty list of addresses", "{addresses: []}", `19: consul[0].addresses: the list is empty: name an address, or leave the key out`},
		{"one address twice", "{addresses: [a:1, b:1, a:1]}", `30: consul[0].addresses[2]: a:1 is there twice: remove one of them`},
		{"a name that is no label", "{name: Consul_1}", `14: consul[0].name: "Consul_1" is not a DNS label: write at most 63 lower-case letters, digits and inner hyphens`},
		{"a name that leads out of the state folder", "{name: ..}", `14: consul[0].name: ".." is not a DNS label: write at most 63 lower-case letters, digits and inner hyphens`},
		{"the name of the other registry", "{name: files}", `14: consul[0].name: files is the name of the registry of entries: choose another`},
		{"another word for the scheme", "{scheme: ssl}", `16: consul[0].scheme: "ssl" is none of http, https`},
		{"a scheme that the address denies", "{scheme: https, address: 'http://a:1'}", `16: consul[0].scheme: it is https, and http://a:1 says another: remove the scheme, or the one in the address`},
		{"a scheme with a socket", "{scheme: https, address: 'unix:///a'}", `16: consul[0].scheme: unix:///a is a socket, which is spoken to in plain HTTP: remove the scheme`},
		{"TLS without TLS", "{address: a:1, tls: {ca-file: a}}", `27: consul[0].tls: it is for https, and no address is spoken to so: write scheme: https, or remove tls`},
		{"a certificate alone", "{scheme: https, tls: {cert-file: a}}", `40: consul[0].tls.cert-file: a certificate is of no use without its key: add key-file`},
		{"a key alone", "{scheme: https, tls: {key-file: a}}", `39: consul[0].tls.key-file: a key is of no use without its certificate: add cert-file`},
		{"a word for a truth value", "{tls: {insecure-skip-verify: yes}}", `36: consul[0].tls.insecure-skip-verify: true or false is expected, not the text "yes": write true`},
		{"a token and a file", "{token: hush, token-file: a}", `15: consul[0].token: there is a token-file too: keep one of the two keys`},
		{"a token that is a list", "{token: [hush]}", `15: consul[0].token: text is expected, not a list`},
		{"an empty token", `{token: ""}`, `15: consul[0].token: a text is expected, not an empty one: leave the key out for its default`},
		{"a password alone", "{password: hush}", `18: consul[0].password: a password is of no use without a user: add username`},
		{"a datacenter with a dot", "{datacenter: a.b}", `20: consul[0].datacenter: "a.b" is not a name in Consul: write letters, digits, - and _`},
		{"all namespaces", `{consul-namespace: "*"}`, `26: consul[0].consul-namespace: "*" is not a name in Consul: write letters, digits, - and _`},
		{"a domain with a blank", `{domain: "a b"}`, `16: consul[0].domain: "a b" is not a domain: write DNS labels with dots between them, as in consul or mesh.example`},
		{"a namespace that is no label", "{namespace: a.b}", `19: consul[0].namespace: "a.b" is not a DNS label: write at most 63 lower-case letters, digits and inner hyphens`},
		{"another word for the hosts", "{datacenter-hosts: allways}", `26: consul[0].datacenter-hosts: "allways" is none of auto, always, never; did you mean "always"?`},
		{"a condition that is empty", "{include: [{tag: a}, {}]}", `28: consul[0].include[1]: the condition is empty: say a name, a tag or meta`},
		{"another that is", "{exclude: [{}]}", `18: consul[0].exclude[0]: the condition is empty: say a name, a tag or meta`},
		{"a pattern that does not end", `{include: [{name: "a[b"}]}`, `25: consul[0].include[0].name: "a[b" is not a pattern: close the [ or the range in it, or write \[ for the sign itself`},
		{"a pattern of meta that does not end", `{exclude: [{meta: "a=[b"}]}`, `25: consul[0].exclude[0].meta: "a=[b" is not a pattern: close the [ or the range in it, or write \[ for the sign itself`},
		{"a key of meta that is a pattern", `{include: [{meta: "te*=a"}]}`, `25: consul[0].include[0].meta: "te*=a" is not a condition on meta: write KEY=PATTERN, as in team=pay-*, or KEY for any value; a key is of letters, digits, - and _`},
		{"another word for the exposure", "{expose: none}", `16: consul[0].expose: "none" is none of all, tagged`},
		{"no delimiters", `{tag-delimiters: ""}`, `24: consul[0].tag-delimiters: a text is expected, not an empty one: leave the key out for its default`},
		{"another word for a kind", "{kinds: [services]}", `16: consul[0].kinds[0]: "services" is none of service, server, connect-proxy, mesh-gateway, terminating-gateway, ingress-gateway, api-gateway; did you mean "service"?`},
		{"no kinds", "{kinds: []}", `15: consul[0].kinds: the list is empty: name a kind, or leave the key out for service`},
		{"another word for a protocol", "{protocol: htpp}", `18: consul[0].protocol: "HTPP" is none of HTTP, HTTP2, GRPC, GRPC-WEB, HTTP_PROXY, TCP, TLS, HTTPS, MONGO, MYSQL, REDIS, UDP; did you mean "HTTP"?`},
		{"port 0", "{port: 0}", `14: consul[0].port: "0" is not a whole number from 1 to 65535`},
		{"another word for the addresses", "{address-kind: lann}", `22: consul[0].address-kind: "lann" is none of auto, lan, wan; did you mean "lan"?`},
		{"another word for no guard", "{guard: no}", `15: consul[0].guard: "no" is not a guard: write off, or {services: 30%, endpoints: 50%}`},
		{"no share", "{guard: {services: 0%}}", `26: consul[0].guard.services: "0%" is not a share: write a percentage of more than 0% and at most 100%, as in 30%, or 0.3`},
		{"a share without its sign", "{guard: {endpoints: 30}}", `27: consul[0].guard.endpoints: "30" is not a share: write a percentage of more than 0% and at most 100%, as in 30%, or 0.3`},
		{"damping without a unit", "{damping: 30}", `17: consul[0].damping: "30" is not a duration: write it with its unit, as in 500ms, 30s or 1m30s`},
		{"too few connections", "{connections: 5}", `21: consul[0].connections: "5" is not a whole number from 6 to 10000`},
		{"no watches", "{watches: 0}", `17: consul[0].watches: "0" is not a whole number from 1 to 1000000`},
		{"no sweep", "{sweep-interval: 0s}", `24: consul[0].sweep-interval: 0s is too short: more than 0 is expected`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := loadConsul("consul:\n    - " + test.element)
			if err == nil {
				t.Fatal("Load reports nothing")
			}
			if diff := cmp.Diff(DefaultFile+":2:"+test.want, err.Error()); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConsulsThatDoNotFitTogether(t *testing.T) {
	for _, test := range []struct {
		name string
		from Sources
		want string
	}{
		{
			"in the file", Sources{ReadFile: files(map[string]string{DefaultFile: `consul:
- {address: a:1, datacenter: dc_1}
- {address: "http://a:1", datacenter: DC_1, name: x}
- {address: b:1, datacenter: dc-1}
- c:1
- name: x
`})}, `/etc/meshd/meshd.yaml:3:13: consul[1].address: http://a:1 is asked for the same services by consul[0]: remove one of them, or give each a datacenter
/etc/meshd/meshd.yaml:4:3: consul[2].name: consul[0] and this are both called consul-dc-1: give one of them another name
/etc/meshd/meshd.yaml:6:9: consul[4].name: consul[1] and this are both called x: give one of them another name`,
		},
		{
			"in the environment, beside other mistakes",
			Sources{Environ: []string{"MESHD_CONSUL=a:1,a:1", "MESHD_ENTRIES=/a:/a"}},
			"MESHD_CONSUL: a:1 is asked for the same services by consul[0]: remove one of them, or give each a datacenter\n" +
				"entries (MESHD_ENTRIES) has /a twice: remove one of them",
		},
		{"as flags", Sources{Flags: map[string][]string{"consul": {"a:1", "https://a.1"}}}, "--consul: consul[0] and this are both called consul-a-1: give one of them another name"},
		{"an empty one of several flags", Sources{Flags: map[string][]string{"consul": {"a:1", ""}}}, "--consul: the address of a Consul is expected, not an empty text: write host:port, as in 127.0.0.1:8500"},
		{"too many", Sources{Environ: []string{"MESHD_CONSUL=" + many(256)}}, "MESHD_CONSUL: 256 Consuls are more than 255: remove some"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.from.ReadFile == nil {
				test.from.ReadFile = files(nil)
			}
			_, err := Load(test.from)
			if err == nil {
				t.Fatal("Load reports nothing")
			}
			if diff := cmp.Diff(test.want, err.Error()); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

// many are addresses for MESHD_CONSUL.
func many(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("a:%d", i+1))
	}
	return strings.Join(all, ",")
}

func TestConsulNames(t *testing.T) {
	for _, test := range []struct {
		name, consuls string
		want          []Label
	}{
		{"one", "[{address: a:1, datacenter: dc2}]", []Label{"consul"}},
		{"one of each datacenter", "[{address: a:1, datacenter: dc1}, {address: a:1, datacenter: DC_2}]", []Label{"consul-dc1", "consul-dc-2"}},
		{"by their addresses", "['[::1]:8500', 'https://consul.example/x', 'unix:///run/c.sock']", []Label{"consul-1-8500", "consul-consul-example-x", "consul-run-c-sock"}},
		{"their own", "[{address: a:1, name: near}, {address: b:1, datacenter: dc2, name: far}]", []Label{"near", "far"}},
		{"long", "[a:1, " + strings.Repeat("b", 55) + ".c:1]", []Label{"consul-a-1", "consul-" + Label(strings.Repeat("b", 55))}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := loadConsul("consul: " + test.consuls)
			if err != nil {
				t.Fatal(err)
			}
			var got []Label
			for _, consul := range c.Consul {
				got = append(got, consul.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConsulsOwnVariables(t *testing.T) {
	for _, test := range []struct {
		name, element, environ, want string
	}{
		{"nothing", "{}", "", "127.0.0.1:8500"},
		{"empty ones", "{}", "CONSUL_HTTP_ADDR= CONSUL_HTTP_SSL= CONSUL_HTTP_TOKEN= CONSUL_NAMESPACE=", "127.0.0.1:8500"},
		{
			"all", "{}", "CONSUL_HTTP_ADDR=a:1 CONSUL_HTTP_TOKEN=hush CONSUL_HTTP_TOKEN_FILE=/t CONSUL_HTTP_AUTH=me:hush:hush CONSUL_HTTP_SSL=true " +
				"CONSUL_HTTP_SSL_VERIFY=false CONSUL_CACERT=ca CONSUL_CAPATH=cas CONSUL_CLIENT_CERT=cert CONSUL_CLIENT_KEY=key " +
				"CONSUL_TLS_SERVER_NAME=consul.example:8501 CONSUL_NAMESPACE=Shop CONSUL_PARTITION=east",
			"https://a:1 tls.ca-file=ca tls.ca-path=cas tls.cert-file=cert tls.key-file=key tls.server-name=consul.example tls.insecure-skip-verify=true " +
				"token=hush token-file=/t username=me password=hush:hush consul-namespace=shop partition=east",
		},
		{"a URL", "{}", "CONSUL_HTTP_ADDR=https://a/x", "https://a/x"},
		{"a URL that is not to go back to http", "{}", "CONSUL_HTTP_ADDR=http://a:1 CONSUL_HTTP_SSL=1", "https://a:1"},
		{"a URL that https says, whatever SSL says", "{}", "CONSUL_HTTP_ADDR=https://a:1 CONSUL_HTTP_SSL=0", "https://a:1"},
		{"a socket", "{}", "CONSUL_HTTP_ADDR=unix:///run/c.sock CONSUL_HTTP_SSL=0", "unix:///run/c.sock"},
		{"a host alone", "{}", "CONSUL_HTTP_ADDR=consul.example", "http://consul.example"},
		{"a host alone with https", "{}", "CONSUL_HTTP_ADDR=consul.example CONSUL_HTTP_SSL=t", "https://consul.example"},
		{"SSL for the default", "{}", "CONSUL_HTTP_SSL=TRUE", "https://127.0.0.1:8500"},
		{"SSL for an own address", "b:1", "CONSUL_HTTP_ADDR=a:1 CONSUL_HTTP_SSL=true", "https://b:1"},
		{"SSL does not count for an own URL", "http://b:1", "CONSUL_HTTP_SSL=true", "http://b:1"},
		{"SSL does not count for an own scheme", "{address: b:1, scheme: http}", "CONSUL_HTTP_SSL=true", "b:1"},
		{"an own scheme for the address", "{scheme: https}", "CONSUL_HTTP_ADDR=http://a:1", "https://a:1"},
		{"a user alone", "{}", "CONSUL_HTTP_AUTH=me", "127.0.0.1:8500 username=me"},
		{"an own user has no other's password", "{username: you}", "CONSUL_HTTP_AUTH=me:hush", "127.0.0.1:8500 username=you"},
		{"an own token leaves no token file", "{token: mine}", "CONSUL_HTTP_TOKEN=hush CONSUL_HTTP_TOKEN_FILE=/t", "127.0.0.1:8500 token=mine"},
		{"an own token file leaves no token", "{token-file: /mine}", "CONSUL_HTTP_TOKEN=hush CONSUL_HTTP_TOKEN_FILE=/t", "127.0.0.1:8500 token-file=/mine"},
		{"an own certificate has no other's key", "{scheme: https, tls: {cert-file: a, key-file: b}}", "CONSUL_CLIENT_CERT=c CONSUL_CLIENT_KEY=d", "https://127.0.0.1:8500 tls.cert-file=a tls.key-file=b"},
		{"an own authority leaves no other", "{scheme: https, tls: {ca-path: a}}", "CONSUL_CACERT=b", "https://127.0.0.1:8500 tls.ca-path=a"},
		{"verification is not to be skipped", "{scheme: https, tls: {insecure-skip-verify: false}}", "CONSUL_HTTP_SSL_VERIFY=0", "https://127.0.0.1:8500 tls.insecure-skip-verify=false"},
		{"those of TLS do not need it", "{}", "CONSUL_CACERT=b", "127.0.0.1:8500 tls.ca-file=b"},
		{"an own namespace", "{consul-namespace: mine}", "CONSUL_NAMESPACE=shop CONSUL_PARTITION=east", "127.0.0.1:8500 consul-namespace=mine partition=east"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := loadConsul("consul: ["+test.element+"]", strings.Fields(test.environ)...)
			if err != nil {
				t.Fatal(err)
			}
			got := c.Consul[0]
			text := got.String()
			text = strings.Replace(text, " token="+hidden, " token="+string(got.Token), 1)
			text = strings.Replace(text, " password="+hidden, " password="+string(got.Password), 1)
			if diff := cmp.Diff(test.want, text); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConsulsOwnVariablesThatAreWrong(t *testing.T) {
	_, err := loadConsul("consul: [{scheme: http}]", "CONSUL_HTTP_ADDR=ftp://a", "CONSUL_HTTP_SSL=maybe", "CONSUL_HTTP_SSL_VERIFY=no", "CONSUL_CLIENT_CERT=a", "CONSUL_NAMESPACE=*")
	want := `CONSUL_HTTP_ADDR: "ftp://a" has the scheme ftp: write http, https or unix
CONSUL_HTTP_SSL: "maybe" is neither true nor false: write one of them
CONSUL_HTTP_SSL_VERIFY: "no" is neither true nor false: write one of them
CONSUL_NAMESPACE: "*" is not a name in Consul: write letters, digits, - and _
CONSUL_CLIENT_CERT: a certificate is of no use without its key: set CONSUL_CLIENT_KEY too`
	if err == nil || err.Error() != want {
		t.Errorf("mistakes (-want +got):\n%s", cmp.Diff(want, fmt.Sprint(err)))
	}
	_, err = loadConsul("consul: [{scheme: http}]", "CONSUL_HTTP_ADDR=https://a", "CONSUL_CLIENT_KEY=a")
	want = `CONSUL_CLIENT_KEY: a key is of no use without its certificate: set CONSUL_CLIENT_CERT too
/etc/meshd/meshd.yaml:1:19: consul[0].scheme: it is http, and CONSUL_HTTP_ADDR is https://a: remove the scheme, or say an address`
	if err == nil || err.Error() != want {
		t.Errorf("mistakes (-want +got):\n%s", cmp.Diff(want, fmt.Sprint(err)))
	}
}

func TestSecretsNeverShow(t *testing.T) {
	load := func(token, password string) *Config {
		c, err := loadConsul(fmt.Sprintf("consul: [{address: a:1, datacenter: dc2, token: %s, username: me, password: %s, include: [{name: a, tag: b}], guard: {services: 12.5%%}}]", token, password))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := load("hush", "hushhush")
	want := Effective{"consul", "a:1 token=(secret) username=me password=(secret) datacenter=dc2 include=[{name=a tag=b}] guard={services=12.5%}", DefaultFile + ":1"}
	described := c.Describe()
	i := slices.IndexFunc(described, func(e Effective) bool { return e.Key == "consul" })
	if diff := cmp.Diff(want, described[i]); diff != "" {
		t.Errorf("the setting as it is described (-want +got):\n%s", diff)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(c.Consul), fmt.Sprintf("%+v", *c), fmt.Sprintf("%#v", c.Consul), fmt.Sprintf("%q %x", c.Consul[0].Token, c.Consul[0].Token), string(asJSON)} {
		if strings.Contains(text, "hush") || strings.Contains(text, fmt.Sprintf("%x", "hush")) {
			t.Errorf("a secret shows in %s", text)
		}
	}
	if got := load("hush", "hushhush").Since(c); len(got) > 0 {
		t.Errorf("nothing has changed, and these are told: %v", got)
	}
	for _, other := range []*Config{load("other", "hushhush"), load("hush", "other")} {
		if diff := cmp.Diff([]Change{{"consul", want.Value, want.Value + " (with another secret)", want.Origin}}, other.Since(c)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	}
}

func TestSince(t *testing.T) {
	was, err1 := loadConsul("consul: [a:1]\nlog-level: warn")
	now, err2 := loadConsul("consul: [a:1, {address: b:1, datacenter: dc2}]\nlog-format: text", "MESHD_LOG_LEVEL=debug")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	want := []Change{
		{"consul", "a:1", "a:1 name=consul-a-1,b:1 name=consul-dc2 datacenter=dc2", DefaultFile + ":1"},
		{"log-level", "warn", "debug", "MESHD_LOG_LEVEL"},
	}
	if diff := cmp.Diff(want, now.Since(was)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestDiscover(t *testing.T) {
	for _, test := range []struct {
		name, file, environ string
		addresses           []string
		want                string
		err                 string
	}{
		{"no setting and no variable", "", "", nil, "127.0.0.1:8500", ""},
		{"a variable", "", "CONSUL_HTTP_ADDR=a:1 CONSUL_HTTP_TOKEN=hush", nil, "a:1 token=(secret)", ""},
		{"settings", "consul: [{address: b:1, datacenter: dc2}, c:1]", "CONSUL_HTTP_ADDR=a:1", nil, "b:1 name=consul-dc2 datacenter=dc2,c:1 name=consul-c-1", ""},
		{"addresses", "consul: [b:1]", "CONSUL_HTTP_ADDR=a:1 CONSUL_HTTP_SSL=1", []string{"d:1"}, "https://d:1", ""},
		{"addresses whatever the settings are", "consul: wrong", "MESHD_WHAT=1", []string{"d:1", "e:1"}, "d:1 name=consul-d-1,e:1 name=consul-e-1", ""},
		{"a wrong address", "", "", []string{"d"}, "", `"d" is not an address: write host:port, as in 127.0.0.1:8500, a URL or unix:///path`},
		{"an address twice", "", "", []string{"d:1", "d:1"}, "", "the address of Consul: d:1 is asked for the same services by consul[0]: remove one of them, or give each a datacenter"},
		{"a wrong variable", "", "CONSUL_HTTP_SSL=x", nil, "", `CONSUL_HTTP_SSL: "x" is neither true nor false: write one of them`},
		{"wrong settings", "consul: [{}, 1]", "", nil, "", `/etc/meshd/meshd.yaml:1:14: consul[1]: "1" is not an address: write host:port, as in 127.0.0.1:8500, a URL or unix:///path`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Discover(Sources{ReadFile: files(map[string]string{DefaultFile: test.file}), Environ: strings.Fields(test.environ)}, test.addresses)
			if diff := cmp.Diff(test.err, strings.TrimPrefix(fmt.Sprint(err), "<nil>")); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, (list[Consul, *Consul]{&got, ","}).String()); diff != "" {
				t.Errorf("Consuls (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShares(t *testing.T) {
	for text, want := range map[string]string{"30%": "30%", "0.3": "30%", "100%": "100%", "1": "100%", "0.5%": "0.5%", "33.3%": "33.3%"} {
		var s Share
		if err := s.UnmarshalText([]byte(text)); err != nil || s.String() != want {
			t.Errorf("%q is %s, %v; want %s", text, s, err, want)
		}
	}
	for _, text := range []string{"", "%", "0", "-1%", "101%", "1.1", "NaN", "inf", "a third"} {
		var s Share
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is the share %s", text, s)
		}
	}
}

func TestConsulAloneNeedsNoFolder(t *testing.T) {
	c, err := Load(Sources{Flags: map[string][]string{"entries": {""}, "consul": {"127.0.0.1:8500"}}, ReadFile: files(nil)})
	if err != nil || len(c.Entries) != 0 || len(c.Consul) != 1 {
		t.Errorf("%v, %v", c, err)
	}
}
