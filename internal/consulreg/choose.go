package consulreg

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// wanted tells by a service's name and all tags of its instances whether any of these may be served.
func (r *Rules) wanted(name string, tags []string) bool {
	matches := func(m Match) bool { return m.mayMatch(name, tags) }
	switch {
	case name == "",
		name == serverService && !slices.Contains(r.Kinds, serverKind),
		len(r.Include) > 0 && !slices.ContainsFunc(r.Include, matches),
		slices.ContainsFunc(r.Exclude, func(m Match) bool { return m.Tag == "" && m.Meta == "" && matches(m) }),
		r.Expose == ExposeTagged && !slices.ContainsFunc(tags, r.exposes):
		return false
	}
	return true
}

// refusal is the reason why a service is not wanted.
func (r *Rules) refusal(name string) string {
	switch {
	case name == serverService && !slices.Contains(r.Kinds, serverKind):
		return fmt.Sprintf("its kind %q is not one that is served (%s)", serverKind, strings.Join(r.Kinds, ", "))
	case r.Expose == ExposeTagged && len(r.Include)+len(r.Exclude) == 0:
		return fmt.Sprintf("no instance has the tag %s=true", r.EnableTag)
	}
	return "no instance can match what is included, excluded and exposed"
}

// against is the reason why the rules leave an instance out; empty if they do not.
func (r *Rules) against(name string, i *instance) string {
	matches := func(m Match) bool { return m.mayMatch(name, i.Tags) && m.matchesMeta(i.Meta) }
	switch kind := kindOf(name, i.Kind); {
	case !slices.Contains(r.Kinds, kind):
		return fmt.Sprintf("its kind %q is not one that is served (%s)", kind, strings.Join(r.Kinds, ", "))
	case len(r.Include) > 0 && !slices.ContainsFunc(r.Include, matches):
		return "it matches nothing that is included"
	case slices.ContainsFunc(r.Exclude, matches):
		return "it matches something that is excluded"
	case slices.ContainsFunc(i.Tags, r.hides):
		return fmt.Sprintf("its tag %s=false says so", r.EnableTag)
	case r.Expose == ExposeTagged && !slices.ContainsFunc(i.Tags, r.exposes):
		return fmt.Sprintf("it has no tag %s=true", r.EnableTag)
	}
	return ""
}

// Consul's servers are a service of theirs, which Consul does not mark by a kind.
const (
	serverService = "consul"
	serverKind    = "server"
)

// kindOf is a word of [Kinds], or one of Consul's that is not among them.
func kindOf(name, kind string) string {
	switch {
	case name == serverService:
		return serverKind
	case kind == "":
		return "service"
	}
	return kind
}

// mayMatch tells whether a match holds of a service with these tags as far as these say.
func (m Match) mayMatch(name string, tags []string) bool {
	return (m.Name == "" || like(m.Name, name)) &&
		(m.Tag == "" || slices.ContainsFunc(tags, func(tag string) bool { return like(m.Tag, tag) }))
}

func (m Match) matchesMeta(meta map[string]string) bool {
	if m.Meta == "" {
		return true
	}
	key, pattern, ok := strings.Cut(m.Meta, "=")
	value, has := meta[key]
	return has && (!ok || like(pattern, value))
}

// like matches a pattern that [Match.Check] has seen.
func like(pattern, text string) bool {
	ok, err := path.Match(pattern, text)
	return ok && err == nil
}

func (r *Rules) exposes(tag string) bool { return tag == r.EnableTag || r.enables(tag) == "true" }
func (r *Rules) hides(tag string) bool   { return r.enables(tag) == "false" }

// enables is "true" or "false" if a tag says that of EnableTag, in any way to write it.
func (r *Rules) enables(tag string) string {
	enabled, err := strconv.ParseBool(r.valueIn(tag, r.EnableTag))
	if err != nil {
		return ""
	}
	return strconv.FormatBool(enabled)
}

// valueIn is what a tag says of a key, if it is the key, a delimiter and a value. The key may have delimiters in it.
func (r *Rules) valueIn(tag, key string) string {
	rest, ok := strings.CutPrefix(tag, key)
	if before, value, _ := r.cut(rest); ok && before == "" {
		return value
	}
	return ""
}

// cut parts a tag at its first delimiter.
func (r *Rules) cut(tag string) (key, value string, ok bool) {
	at := strings.IndexAny(tag, r.Delimiters)
	if at < 0 {
		return tag, "", false
	}
	_, size := utf8.DecodeRuneInString(tag[at:])
	return tag[:at], tag[at+size:], true
}
