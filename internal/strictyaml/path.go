package strictyaml

import (
	"strconv"
	"strings"
)

// step leads from a value to one inside of it: by key, or, in a list, by index.
type step struct {
	key   string
	index int // -1: by key
}

// path is the way from the document to a value; nil is the document itself. Its
// text is made only when there is a mistake to report.
type path struct {
	parent *path
	step
}

func (p *path) field(key string) *path { return &path{p, step{key, -1}} }
func (p *path) item(index int) *path   { return &path{p, step{"", index}} }

func (p *path) String() string {
	var b strings.Builder
	p.write(&b)
	return b.String()
}

func (p *path) write(b *strings.Builder) {
	if p == nil {
		return
	}
	p.parent.write(b)
	switch {
	case p.index >= 0:
		b.WriteString("[" + strconv.Itoa(p.index) + "]")
	case !plain(p.key):
		b.WriteString("[" + strconv.Quote(clip(p.key)) + "]")
	case b.Len() > 0:
		b.WriteString("." + p.key)
	default:
		b.WriteString(p.key)
	}
}

// plain tells whether key can stand in a path without brackets.
func plain(key string) bool {
	return key != "" && len(key) <= clipped && !strings.ContainsFunc(key, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// nextStep splits the first step from the text of a path. It is false at the
// path's end, and where the text is no path.
func nextStep(text string) (s step, rest string, ok bool) {
	if !strings.HasPrefix(text, "[") {
		text = strings.TrimPrefix(text, ".")
		end := strings.IndexAny(text, ".[")
		if end < 0 {
			end = len(text)
		}
		return step{text[:end], -1}, text[end:], end > 0
	}
	if quoted, err := strconv.QuotedPrefix(text[1:]); err == nil {
		key, _ := strconv.Unquote(quoted)
		rest, ok = strings.CutPrefix(text[1+len(quoted):], "]")
		return step{key, -1}, rest, ok
	}
	digits, rest, ok := strings.Cut(text[1:], "]")
	index, err := strconv.Atoi(digits)
	return step{"", index}, rest, ok && err == nil && index >= 0
}
