package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/meshd/meshd/internal/strictyaml"
)

const (
	prefix       = "MESHD_"
	fileVariable = prefix + "CONFIG" // names the file
)

// Sources are where settings come from.
type Sources struct {
	File     string                            // by --config; empty if it is not given
	Flags    map[string][]string               // the values of the flags that were given, by key
	Environ  []string                          // as os.Environ returns it
	ReadFile func(name string) ([]byte, error) // as os.ReadFile
}

// Load returns the effective settings, or an error with one line for each mistake.
// The file may be absent unless --config or MESHD_CONFIG names it.
func Load(sources Sources) (*Config, error) {
	c := &Config{origins: make(map[string]origin)}
	environment := variables(sources.Environ)
	var errs []error
	for _, s := range settings {
		errs = append(errs, s.set(c, s.Split(s.Default), from("default")))
	}
	name, required := fileOf(sources.File, environment)
	errs = append(errs, c.read(name, required, sources.ReadFile)...)
	for _, s := range settings {
		if value, ok := environment[s.Variable()]; ok {
			errs = append(errs, s.set(c, s.Split(value), from(s.Variable())))
		}
		if values := sources.Flags[s.Key]; len(values) > 0 {
			errs = append(errs, s.set(c, values, from("--"+s.Key)))
		}
	}
	errs = append(errs, unknown(environment)...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c.Consul, errs = complete(c.Consul, sources.Environ, c.origins["consul"].place)
	if err := errors.Join(append(errs, c.contradiction())...); err != nil {
		return nil, err
	}
	return c, nil
}

// variables returns those of the environment's variables that are ours.
func variables(environ []string) map[string]string {
	ours := make(map[string]string)
	for _, variable := range environ {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, prefix) {
			ours[name] = value
		}
	}
	return ours
}

// unknown reports the variables that are no settings.
func unknown(environment map[string]string) []error {
	known := []string{fileVariable}
	for _, s := range settings {
		known = append(known, s.Variable())
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		if slices.Contains(known, name) {
			continue
		}
		hint := "unset it"
		if near := strictyaml.Suggest(name, known); near != "" {
			hint = "did you mean " + near + "?"
		}
		errs = append(errs, fmt.Errorf("%s: no setting has this name; %s", name, hint))
	}
	return errs
}

// fileOf returns the file's name, and whether somebody has asked for it.
func fileOf(flag string, environment map[string]string) (name string, required bool) {
	if flag != "" {
		return flag, true
	}
	if name := environment[fileVariable]; name != "" {
		return name, true
	}
	return DefaultFile, false
}

// read takes the settings from the file.
func (c *Config) read(name string, required bool, readFile func(string) ([]byte, error)) []error {
	data, err := readFile(name)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return nil
	}
	if err != nil {
		if cause, ok := errors.AsType[*fs.PathError](err); ok {
			err = cause.Err
		}
		return []error{fmt.Errorf("%s: reading the settings: %w", name, err)}
	}
	documents, mistakes := strictyaml.Parse(data, strictyaml.Limits{})
	for i, d := range documents {
		if i > 0 {
			mistakes = append(mistakes, strictyaml.Error{Position: d.Position(), Message: "the settings are one document, and this is another: remove the \"---\" before it"})
			continue
		}
		mistakes = append(mistakes, d.Decode(c, strictyaml.Options{})...)
		for _, s := range settings {
			if d.Has(s.Key) {
				c.origins[s.Key] = origin{fmt.Sprintf("%s:%d", name, d.At(s.Key).Line), func(path string) string {
					return fmt.Sprintf("%s:%s: %s", name, d.At(path), path)
				}}
			}
		}
	}
	errs := make([]error, len(mistakes))
	for i, mistake := range mistakes {
		errs[i] = fmt.Errorf("%s:%w", name, mistake)
	}
	return errs
}

// contradiction reports settings that are right by themselves but not together.
func (c *Config) contradiction() error {
	if c.XDSListen == Address(c.AdminListen) && !strings.HasSuffix(string(c.XDSListen), ":0") {
		return fmt.Errorf("xds-listen (%s) and admin-listen (%s) are both %s: give each a port of its own", c.origins["xds-listen"], c.origins["admin-listen"], c.XDSListen)
	}
	if len(c.Entries) == 0 && len(c.Consul) == 0 {
		return fmt.Errorf("entries (%s) names no folder, and no Consul is named either: name one of them, or leave the setting out for its default", c.origins["entries"])
	}
	for i, f := range c.Entries {
		if slices.Contains(c.Entries[:i], f) {
			return fmt.Errorf("entries (%s) has %s twice: remove one of them", c.origins["entries"], f)
		}
	}
	const cert, key, clientCA = "xds-tls-cert-file", "xds-tls-key-file", "xds-tls-client-ca-file"
	switch {
	case c.XDSTLSCertFile != "" && c.XDSTLSKeyFile == "":
		return fmt.Errorf("%s (%s): a certificate is of no use without its key: set %s too", cert, c.origins[cert], key)
	case c.XDSTLSKeyFile != "" && c.XDSTLSCertFile == "":
		return fmt.Errorf("%s (%s): a key is of no use without its certificate: set %s too", key, c.origins[key], cert)
	case c.XDSTLSClientCAFile != "" && c.XDSTLSCertFile == "":
		return fmt.Errorf("%s (%s): clients can show no certificate where meshd has none: set %s and %s too", clientCA, c.origins[clientCA], cert, key)
	}
	return nil
}
