package config

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// consulVariables are those of Consul's own tools, as DefaultConfig and NewClient of
// github.com/hashicorp/consul/api read them. An empty one says nothing.
var consulVariables = []struct {
	name string
	read func(c *Consul, text string) error
}{
	{"CONSUL_HTTP_ADDR", func(c *Consul, text string) error {
		if _, _, err := net.SplitHostPort(text); err != nil && !strings.ContainsAny(text, "/:") && text != "" {
			text = string(HTTP) + "://" + text // a host alone is at the scheme's own port
		}
		c.Addresses = make([]ConsulAddress, 1)
		return c.Addresses[0].UnmarshalText([]byte(text))
	}},
	{"CONSUL_HTTP_TOKEN", func(c *Consul, text string) error { return c.Token.UnmarshalText([]byte(text)) }},
	{"CONSUL_HTTP_TOKEN_FILE", func(c *Consul, text string) error { return c.TokenFile.UnmarshalText([]byte(text)) }},
	{"CONSUL_HTTP_AUTH", func(c *Consul, text string) error {
		user, password, _ := strings.Cut(text, ":")
		c.Username, c.Password = Word(user), Secret(password)
		return nil
	}},
	{"CONSUL_HTTP_SSL", func(c *Consul, text string) error {
		on, err := truth(text)
		if on {
			c.Scheme = HTTPS
		}
		return err
	}},
	{"CONSUL_HTTP_SSL_VERIFY", func(c *Consul, text string) error {
		verify, err := truth(text)
		skip := !verify
		c.TLS.InsecureSkipVerify = &skip
		return err
	}},
	{"CONSUL_CACERT", func(c *Consul, text string) error { return c.TLS.CAFile.UnmarshalText([]byte(text)) }},
	{"CONSUL_CAPATH", func(c *Consul, text string) error { return c.TLS.CAPath.UnmarshalText([]byte(text)) }},
	{"CONSUL_CLIENT_CERT", func(c *Consul, text string) error { return c.TLS.CertFile.UnmarshalText([]byte(text)) }},
	{"CONSUL_CLIENT_KEY", func(c *Consul, text string) error { return c.TLS.KeyFile.UnmarshalText([]byte(text)) }},
	{"CONSUL_TLS_SERVER_NAME", func(c *Consul, text string) error {
		if host, _, err := net.SplitHostPort(text); err == nil {
			text = host
		}
		return c.TLS.ServerName.UnmarshalText([]byte(text))
	}},
	{"CONSUL_NAMESPACE", func(c *Consul, text string) error { return c.Namespace.UnmarshalText([]byte(text)) }},
	{"CONSUL_PARTITION", func(c *Consul, text string) error { return c.Partition.UnmarshalText([]byte(text)) }},
}

func truth(text string) (bool, error) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false: write one of them", text)
	}
	return b, nil
}

// consulDefaults are what the variables say, and what is wrong with them.
func consulDefaults(environ []string) (Consul, []error) {
	values := make(map[string]string)
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	var c Consul
	var errs []error
	for _, v := range consulVariables {
		if values[v.name] == "" {
			continue
		}
		if err := v.read(&c, values[v.name]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.name, err))
		}
	}
	switch {
	case c.TLS.CertFile != "" && c.TLS.KeyFile == "":
		errs = append(errs, errors.New("CONSUL_CLIENT_CERT: a certificate is of no use without its key: set CONSUL_CLIENT_KEY too"))
	case c.TLS.KeyFile != "" && c.TLS.CertFile == "":
		errs = append(errs, errors.New("CONSUL_CLIENT_KEY: a key is of no use without its certificate: set CONSUL_CLIENT_CERT too"))
	}
	return c, errs
}

// fill gives a Consul what it does not say itself. What only makes sense together is
// taken together: a user's password is not another user's.
func (c *Consul) fill(defaults Consul, report func(path, format string, args ...any)) {
	ownTLS := c.TLS != TLS{}
	c.locate(defaults, report)
	if ownTLS && !c.overTLS() {
		report("tls", "it is for https, and no address is spoken to so: write scheme: https, or remove tls")
	}
	if c.Token == "" && c.TokenFile == "" {
		c.Token, c.TokenFile = defaults.Token, defaults.TokenFile
	}
	if c.Username == "" && c.Password == "" {
		c.Username, c.Password = defaults.Username, defaults.Password
	}
	if c.TLS.CAFile == "" && c.TLS.CAPath == "" {
		c.TLS.CAFile, c.TLS.CAPath = defaults.TLS.CAFile, defaults.TLS.CAPath
	}
	if c.TLS.CertFile == "" && c.TLS.KeyFile == "" {
		c.TLS.CertFile, c.TLS.KeyFile = defaults.TLS.CertFile, defaults.TLS.KeyFile
	}
	if c.TLS.ServerName == "" {
		c.TLS.ServerName = defaults.TLS.ServerName
	}
	if c.TLS.InsecureSkipVerify == nil {
		c.TLS.InsecureSkipVerify = defaults.TLS.InsecureSkipVerify
	}
	if c.Namespace == "" {
		c.Namespace = defaults.Namespace
	}
	if c.Partition == "" {
		c.Partition = defaults.Partition
	}
}

// locate makes the addresses what they are spoken to as. A URL that the element says
// is meant so; CONSUL_HTTP_SSL turns that of CONSUL_HTTP_ADDR into one with https.
func (c *Consul) locate(defaults Consul, report func(path, format string, args ...any)) {
	addresses, scheme := c.own(), c.Scheme
	if scheme == "" {
		scheme = defaults.Scheme
	}
	borrowed := len(addresses) == 0
	if borrowed {
		addresses = []ConsulAddress{"127.0.0.1:8500"}
		if len(defaults.Addresses) > 0 {
			addresses = defaults.Addresses
		}
		if c.Scheme == HTTP && addresses[0].scheme() == "https" {
			report("scheme", "it is http, and CONSUL_HTTP_ADDR is %s: remove the scheme, or say an address", addresses[0])
		}
	}
	c.Address, c.Scheme, c.Addresses = "", "", make([]ConsulAddress, len(addresses))
	for i, a := range addresses {
		c.Addresses[i] = a
		if scheme == HTTPS && (a.scheme() == "" || a.scheme() == "http" && borrowed) {
			c.Addresses[i] = "https://" + ConsulAddress(a.bare())
		}
	}
}

// overTLS tells whether one of the addresses is spoken to in https.
func (c *Consul) overTLS() bool {
	return slices.ContainsFunc(c.Addresses, func(a ConsulAddress) bool { return a.scheme() == "https" })
}
