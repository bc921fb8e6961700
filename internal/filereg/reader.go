package filereg

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/meshd/meshd/internal/mesh"
	"github.com/meshd/meshd/internal/strictyaml"
)

// reader reads one document and collects what is wrong with it. An error refuses the document.
type reader struct {
	doc      *strictyaml.Document
	origin   mesh.Origin
	problems []mesh.Problem
	refused  bool
	mistakes []strictyaml.Error // what could not be decoded
	services string             // see named
}

func (r *reader) refuse(code, path, format string, args ...any) {
	r.add(mesh.Error, code, path, format, args...)
}

func (r *reader) warn(code, path, format string, args ...any) {
	r.add(mesh.Warning, code, path, format, args...)
}

func (r *reader) notice(code, path, format string, args ...any) {
	r.add(mesh.Notice, code, path, format, args...)
}

// add records a finding, but for one that only follows from what could not be decoded.
func (r *reader) add(severity mesh.Severity, code, path, format string, args ...any) {
	if r.lost(path) {
		return
	}
	r.refused = r.refused || severity == mesh.Error
	r.problems = append(r.problems, r.problem(severity, code, path, r.doc.At(path), fmt.Sprintf(format, args...)))
}

// lost tells whether nothing can be said of a field, since it, what it is part of, or a part of it could not be decoded,
// or was misspelt.
func (r *reader) lost(path string) bool {
	for _, m := range r.mistakes {
		if within(path, m.Path) || within(m.Path, path) {
			return true
		}
		parent, name := split(path)
		if in, written := split(m.Path); m.Code == strictyaml.CodeUnknownField && in == parent && strictyaml.Suggest(written, []string{name}) != "" {
			return true
		}
	}
	return false
}

// split parts the last name from a path.
func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)], path[i+1:]
}

// within tells whether path is that of outer or of a part of it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

func (r *reader) problem(severity mesh.Severity, code, path string, at strictyaml.Position, message string) mesh.Problem {
	p := mesh.Problem{Severity: severity, Code: code, Origin: r.origin, Field: path, Message: message, Services: r.named()}
	p.Origin.Line, p.Origin.Column = at.Line, at.Column
	return p
}

// named are the services that the document defines, or would if it were right, as a problem has them.
func (r *reader) named() string {
	kind, _ := r.doc.String("kind")
	if r.services != "" || kind != kindService {
		return r.services
	}
	namespace, _ := r.doc.String("metadata.namespace")
	if namespace == "" {
		namespace = mesh.DefaultNamespace
	}
	var all []string
	for i := range len(r.doc.Items("spec.hosts")) {
		if host, ok := r.doc.String(fmt.Sprintf("spec.hosts[%d]", i)); ok {
			all = append(all, namespace+"/"+host)
		}
	}
	r.services = strings.Join(all, " ")
	return r.services
}

// at is the origin of a field.
func (r *reader) at(path string) mesh.Origin {
	o, p := r.origin, r.doc.At(path)
	o.Line, o.Column = p.Line, p.Column
	return o
}

// field is the path of a key of the mapping at path.
func field(path, key string) string {
	plain := func(r rune) bool {
		return r == '_' || r == '-' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
	}
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !plain(r) }) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	return path + "." + key
}
