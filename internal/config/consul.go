package config

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Consul is one datacenter of Consul whose services are served. Zero values are the
// defaults of the registry unless it says otherwise.
//
// What neither it nor the variables of Consul's own tools (CONSUL_HTTP_TOKEN and the
// like) say is left to the registry.
type Consul struct {
	// Name is the registry's. Loaded, it is not empty, and no other registry has it.
	Name Label `yaml:"name"`
	// Address and Scheme are for the file alone: loaded, Addresses has what they say.
	Address ConsulAddress `yaml:"address"`
	Scheme  Scheme        `yaml:"scheme"`
	// Addresses are tried in order. Loaded, there is one at least, and one without a
	// scheme is spoken to in plain HTTP.
	Addresses []ConsulAddress `yaml:"addresses"`

	TLS       TLS    `yaml:"tls"`
	Token     Secret `yaml:"token"`
	TokenFile Word   `yaml:"token-file"` // wins over Token
	Username  Word   `yaml:"username"`
	Password  Secret `yaml:"password"`

	Datacenter ConsulName `yaml:"datacenter"`       // empty: the agent's
	Namespace  ConsulName `yaml:"consul-namespace"` // Enterprise
	Partition  ConsulName `yaml:"partition"`        // Enterprise

	Domain          Domain          `yaml:"domain"`
	MeshNamespace   Label           `yaml:"namespace"`
	DatacenterHosts DatacenterHosts `yaml:"datacenter-hosts"`

	Include   []Match  `yaml:"include"`
	Exclude   []Match  `yaml:"exclude"`
	Expose    Exposure `yaml:"expose"`
	EnableTag Word     `yaml:"enable-tag"`

	TagDelimiters Word     `yaml:"tag-delimiters"`
	MetaPrefix    Word     `yaml:"meta-prefix"`
	ZoneMeta      Word     `yaml:"zone-meta"`
	Kinds         []Kind   `yaml:"kinds"`
	Protocol      Protocol `yaml:"protocol"`
	Port          Port     `yaml:"port"`

	AddressKind   AddressKind      `yaml:"address-kind"`
	Guard         Guard            `yaml:"guard"`
	Damping       OptionalDuration `yaml:"damping"`
	Connections   Connections      `yaml:"connections"`
	Watches       Watches          `yaml:"watches"`
	SweepInterval Duration         `yaml:"sweep-interval"`
}

// UnmarshalText reads the address, which is all that a flag or a variable says.
func (c *Consul) UnmarshalText(text []byte) error {
	*c = Consul{}
	return c.Address.UnmarshalText(text)
}

// String is the address, followed by what else is said, without secrets.
func (c Consul) String() string {
	addresses := make([]string, 0, 1+len(c.Addresses))
	for _, a := range append(c.Addresses, c.Address) {
		if a != "" {
			addresses = append(addresses, string(a))
		}
	}
	c.Address, c.Addresses = "", nil
	if c.Name == defaultName {
		c.Name = ""
	}
	return strings.Join(append([]string{strings.Join(addresses, "|")}, words(reflect.ValueOf(c), "")...), " ")
}

// words are the fields of a struct that are not zero, as key=value.
func words(v reflect.Value, under string) (all []string) {
	for i := range v.NumField() {
		key, field := under+v.Type().Field(i).Tag.Get("yaml"), reflect.Indirect(v.Field(i))
		if v.Field(i).IsZero() {
			continue
		}
		switch value := field.Interface().(type) {
		case TLS:
			all = append(all, words(field, key+".")...)
		default:
			all = append(all, fmt.Sprint(key, "=", value))
		}
	}
	return all
}

// TLS are the files and names by which Consul and meshd know each other over HTTPS.
type TLS struct {
	CAFile             Word  `yaml:"ca-file"`
	CAPath             Word  `yaml:"ca-path"`
	CertFile           Word  `yaml:"cert-file"`
	KeyFile            Word  `yaml:"key-file"`
	ServerName         Word  `yaml:"server-name"`
	InsecureSkipVerify *bool `yaml:"insecure-skip-verify"` // nil: not said, which is false
}

// Match is a condition on instances. Loaded, at least one part is not empty.
type Match struct {
	Name Pattern     `yaml:"name"`
	Tag  Pattern     `yaml:"tag"`
	Meta MetaPattern `yaml:"meta"`
}

// String is the condition in one line.
func (m Match) String() string { return "{" + strings.Join(words(reflect.ValueOf(m), ""), " ") + "}" }

// Guard says which losses wait to be confirmed: shares of all services, and of the
// endpoints of one.
type Guard struct {
	Off       bool
	Services  Share `yaml:"services"`
	Endpoints Share `yaml:"endpoints"`
}

// UnmarshalText reads "off". Shares are written as a mapping.
func (g *Guard) UnmarshalText(text []byte) error {
	if string(text) != "off" {
		return fmt.Errorf("%q is not a guard: write off, or {services: 30%%, endpoints: 50%%}", text)
	}
	*g = Guard{Off: true}
	return nil
}

// String is "off" or the shares that are said.
func (g Guard) String() string {
	if g.Off {
		return "off"
	}
	return "{" + strings.Join(words(reflect.ValueOf(g), ""), " ") + "}"
}

// ConsulAddress is where a Consul is: host:port, http://HOST[:PORT][/PREFIX], the
// same with https, or unix:///PATH.
type ConsulAddress string

// UnmarshalText reads the address. Its errors do not show what may be a secret.
func (a *ConsulAddress) UnmarshalText(text []byte) error {
	s := string(text)
	scheme, rest, hasScheme := strings.Cut(s, "://")
	switch {
	case s == "":
		return fmt.Errorf("the address of a Consul is expected, not an empty text: write host:port, as in 127.0.0.1:8500")
	case strings.Contains(s, "@"):
		return fmt.Errorf("the address has a user in it: write username and password as keys beside the address, or in CONSUL_HTTP_AUTH")
	case strings.ContainsAny(s, "?#"):
		return fmt.Errorf("the address has a query in it: write it without, and tokens and the like as keys beside it")
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == ',' }):
		return fmt.Errorf("%q has a blank or a comma in it: write one address for each Consul, as in 127.0.0.1:8500", s)
	case scheme == "unix" && hasScheme:
		if !strings.HasPrefix(rest, "/") || len(rest) < 2 {
			return fmt.Errorf("%q is not a socket: write the whole path, as in unix:///run/consul/http.sock", s)
		}
		*a = ConsulAddress(s)
		return nil
	case hasScheme && scheme != "http" && scheme != "https":
		return fmt.Errorf("%q has the scheme %s: write http, https or unix", s, scheme)
	case hasScheme:
		u, err := url.Parse(s)
		if err != nil || u.Hostname() == "" || u.Port() != "" && !portNumber(u.Port()) || strings.HasSuffix(u.Host, ":") {
			return fmt.Errorf("%q is not a URL of Consul: write it as in %s://consul.example:8500", s, scheme)
		}
		*a = ConsulAddress(strings.TrimRight(s, "/"))
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.Contains(host, "/") || !portNumber(port) {
		return fmt.Errorf("%q is not an address: write host:port, as in 127.0.0.1:8500, a URL or unix:///path", s)
	}
	*a = ConsulAddress(s)
	return nil
}

func portNumber(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// scheme is empty for host:port.
func (a ConsulAddress) scheme() string {
	scheme, _, ok := strings.Cut(string(a), "://")
	if !ok {
		return ""
	}
	return scheme
}

// Scheme is how addresses that are no URLs are spoken to.
type Scheme string

// The schemes.
const (
	HTTP  Scheme = "http"
	HTTPS Scheme = "https"
)

// UnmarshalText reads the name of a scheme.
func (s *Scheme) UnmarshalText(text []byte) error { return choose(s, text, HTTP, HTTPS) }

// ConsulName is the name of a datacenter, a namespace or a partition in Consul, in
// lower case, as Consul has it.
type ConsulName string

// UnmarshalText reads the name in any letter case.
func (n *ConsulName) UnmarshalText(text []byte) error {
	if !consulName(string(text)) {
		return fmt.Errorf("%q is not a name in Consul: write letters, digits, - and _", text)
	}
	*n = ConsulName(bytes.ToLower(text))
	return nil
}

func consulName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// Pattern is a text with *, ? and [a-z] in it, as path.Match has it.
type Pattern string

// UnmarshalText reads the pattern.
func (p *Pattern) UnmarshalText(text []byte) error {
	if err := pattern(string(text), string(text)); err != nil {
		return err
	}
	return nonempty(p, text)
}

// MetaPattern is KEY=PATTERN, or KEY for any value.
type MetaPattern string

// UnmarshalText reads the key and the pattern.
func (p *MetaPattern) UnmarshalText(text []byte) error {
	key, value, _ := strings.Cut(string(text), "=")
	if !consulName(key) {
		return fmt.Errorf("%q is not a condition on meta: write KEY=PATTERN, as in team=pay-*, or KEY for any value; a key is of letters, digits, - and _", text)
	}
	*p = MetaPattern(text)
	return pattern(value, string(text))
}

func pattern(p, within string) error {
	if _, err := path.Match(p, ""); err != nil {
		return fmt.Errorf("%q is not a pattern: close the [ or the range in it, or write \\[ for the sign itself", within)
	}
	return nil
}

// DatacenterHosts is whether services have hosts with their datacenter in it too.
type DatacenterHosts string

// The choices. Auto is where there are several Consuls.
const (
	DatacenterHostsAuto   DatacenterHosts = "auto"
	DatacenterHostsAlways DatacenterHosts = "always"
	DatacenterHostsNever  DatacenterHosts = "never"
)

// UnmarshalText reads the name of a choice.
func (d *DatacenterHosts) UnmarshalText(text []byte) error {
	return choose(d, text, DatacenterHostsAuto, DatacenterHostsAlways, DatacenterHostsNever)
}

// Exposure is which instances are served.
type Exposure string

// The exposures.
const (
	ExposeAll    Exposure = "all"
	ExposeTagged Exposure = "tagged" // those with the tag that enables them
)

// UnmarshalText reads the name of an exposure.
func (e *Exposure) UnmarshalText(text []byte) error { return choose(e, text, ExposeAll, ExposeTagged) }

// AddressKind is which addresses of instances are served.
type AddressKind string

// The kinds of addresses. Auto is lan for the agent's own datacenter, and wan for others.
const (
	AddressAuto AddressKind = "auto"
	AddressLAN  AddressKind = "lan"
	AddressWAN  AddressKind = "wan"
)

// UnmarshalText reads the name of a kind.
func (k *AddressKind) UnmarshalText(text []byte) error {
	return choose(k, text, AddressAuto, AddressLAN, AddressWAN)
}

// Kind is a word for what can be served of Consul.
type Kind string

// Kinds are all of these words.
func Kinds() []Kind {
	return []Kind{"service", "server", "connect-proxy", "mesh-gateway", "terminating-gateway", "ingress-gateway", "api-gateway"}
}

// UnmarshalText reads the word.
func (k *Kind) UnmarshalText(text []byte) error { return choose(k, text, Kinds()...) }

// Protocol is the name of a protocol of the mesh, in capitals.
type Protocol string

// Protocols are all of these names.
func Protocols() []Protocol {
	return []Protocol{"HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTP_PROXY", "TCP", "TLS", "HTTPS", "MONGO", "MYSQL", "REDIS", "UDP"}
}

// UnmarshalText reads the name in any letter case.
func (p *Protocol) UnmarshalText(text []byte) error {
	return choose(p, bytes.ToUpper(text), Protocols()...)
}

// Connections is how many connections to Consul there may be at one time.
type Connections int

// UnmarshalText reads the number. With fewer than 6 the registry could not do its work.
func (c *Connections) UnmarshalText(text []byte) error { return whole(c, text, 6, 10_000) }

// Watches is how many services may be watched one by one.
type Watches int

// UnmarshalText reads the number.
func (w *Watches) UnmarshalText(text []byte) error { return whole(w, text, 1, 1_000_000) }

// Names of registries.
const (
	defaultName = "consul"
	filesName   = "files" // of the registry of entries
)

// most is how many Consuls there may be; places among them are counted in a byte.
const most = 255

// complete gives each Consul what the environment says and it does not, its name and
// its addresses, and reports what does not fit together. place begins the message
// about a path such as consul[0].name.
func complete(consuls []Consul, environ []string, place func(path string) string) ([]Consul, []error) {
	if len(consuls) == 0 {
		return nil, nil
	}
	defaults, errs := consulDefaults(environ)
	if len(consuls) > most {
		errs = append(errs, fmt.Errorf("%s: %d Consuls are more than %d: remove some", place("consul"), len(consuls), most))
	}
	all := slices.Clone(consuls)
	for i := range all {
		c, key := &all[i], fmt.Sprintf("consul[%d]", i)
		report := func(path, format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s: %s", place(key+"."+path), fmt.Sprintf(format, args...)))
		}
		c.check(report)
		c.fill(defaults, report)
		if c.Name == "" {
			c.Name = c.registryName(len(all) > 1)
		}
		for j := range all[:i] {
			switch o := &all[j]; {
			case c.overlaps(o):
				report("address", "%s is asked for the same services by consul[%d]: remove one of them, or give each a datacenter", c.Addresses[0], j)
			case o.Name == c.Name:
				report("name", "consul[%d] and this are both called %s: give one of them another name", j, c.Name)
			}
		}
	}
	return all, errs
}

// check reports what is wrong in a Consul's own words.
func (c *Consul) check(report func(path, format string, args ...any)) {
	if c.Name == filesName {
		report("name", "%s is the name of the registry of entries: choose another", filesName)
	}
	switch {
	case c.Address != "" && c.Addresses != nil:
		report("addresses", "there is an address too: keep one of the two keys")
	case c.Addresses != nil && len(c.Addresses) == 0:
		report("addresses", "the list is empty: name an address, or leave the key out")
	}
	for i, a := range c.Addresses {
		if slices.Contains(c.Addresses[:i], a) {
			report(fmt.Sprintf("addresses[%d]", i), "%s is there twice: remove one of them", a)
		}
	}
	if c.Scheme != "" {
		for _, a := range c.own() {
			switch scheme := a.scheme(); {
			case scheme == "unix" && len(c.own()) == 1:
				report("scheme", "%s is a socket, which is spoken to in plain HTTP: remove the scheme", a)
			case scheme != "" && scheme != "unix" && scheme != string(c.Scheme):
				report("scheme", "it is %s, and %s says another: remove the scheme, or the one in the address", c.Scheme, a)
			}
		}
	}
	for _, pair := range []struct {
		path          string
		has, complete bool
		message       string
	}{
		{"tls.cert-file", c.TLS.CertFile != "", c.TLS.KeyFile != "", "a certificate is of no use without its key: add key-file"},
		{"tls.key-file", c.TLS.KeyFile != "", c.TLS.CertFile != "", "a key is of no use without its certificate: add cert-file"},
		{"token", c.Token != "", c.TokenFile == "", "there is a token-file too: keep one of the two keys"},
		{"password", c.Password != "", c.Username != "", "a password is of no use without a user: add username"},
		{"kinds", c.Kinds != nil, len(c.Kinds) > 0, "the list is empty: name a kind, or leave the key out for service"},
	} {
		if pair.has && !pair.complete {
			report(pair.path, "%s", pair.message)
		}
	}
	for _, conditions := range []struct {
		key string
		all []Match
	}{{"include", c.Include}, {"exclude", c.Exclude}} {
		for i, m := range conditions.all {
			if m == (Match{}) {
				report(fmt.Sprintf("%s[%d]", conditions.key, i), "the condition is empty: say a name, a tag or meta")
			}
		}
	}
}

// own are the addresses that a Consul says itself.
func (c *Consul) own() []ConsulAddress {
	if c.Address != "" {
		return append([]ConsulAddress{c.Address}, c.Addresses...)
	}
	return c.Addresses
}

// registryName is the name of a Consul that says none. Where there are several it does
// not depend on their order, so that what is kept over a restart stays with its Consul.
func (c *Consul) registryName(several bool) Label {
	if !several {
		return defaultName
	}
	suffix := string(c.Datacenter)
	if suffix == "" {
		suffix = c.Addresses[0].bare()
	}
	parts := strings.FieldsFunc(strings.ToLower(suffix), func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'z') })
	name := defaultName + "-" + strings.Join(parts, "-")
	return Label(strings.TrimRight(name[:min(len(name), 63)], "-"))
}

// overlaps tells whether two Consuls are asked for the same.
func (c *Consul) overlaps(o *Consul) bool {
	return c.Datacenter == o.Datacenter && c.Namespace == o.Namespace && c.Partition == o.Partition &&
		slices.ContainsFunc(c.Addresses, func(a ConsulAddress) bool {
			return slices.ContainsFunc(o.Addresses, func(b ConsulAddress) bool { return a.bare() == b.bare() })
		})
}

// bare is the address without its scheme.
func (a ConsulAddress) bare() string { return strings.TrimPrefix(string(a), a.scheme()+"://") }

// Discover returns the Consuls to look at without a daemon: those at the addresses, or
// else those of the settings, or else the one that the variables of Consul's own tools
// say, by default at 127.0.0.1:8500. With addresses no setting is looked at.
func Discover(sources Sources, addresses []string) ([]Consul, error) {
	consuls, place := []Consul{{}}, func(string) string { return "the address of Consul" }
	if len(addresses) > 0 {
		if err := (list[Consul, *Consul]{at: &consuls}).set(addresses); err != nil {
			return nil, err
		}
	} else if c, err := Load(sources); err != nil || len(c.Consul) > 0 {
		if err != nil {
			return nil, err
		}
		return c.Consul, nil
	}
	consuls, errs := complete(consuls, sources.Environ, place)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return consuls, nil
}
