package main

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/width"

	"github.com/meshd/meshd/internal/filereg"
	"github.com/meshd/meshd/internal/mesh"
)

// sources are the lines of files, by path.
type sources map[string][]string

func sourcesOf(files []filereg.File) sources {
	all := sources{}
	for _, f := range files {
		all[f.Path] = lines(string(f.Data))
	}
	return all
}

// lineEnds are those of YAML 1.1, by which our parser counts.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

// lines splits a file. A mark of the order of bytes at its beginning counts for nothing.
func lines(text string) []string {
	return strings.Split(lineEnds.Replace(strings.TrimPrefix(text, "\ufeff")), "\n")
}

// excerptWidth is how many columns of a line are shown, so that all of it fits into a terminal of 80.
const excerptWidth = 68

// excerpt is the line at a place, with a mark under its column; empty if there is none.
func (s sources) excerpt(at mesh.Origin) string {
	all := s[at.Source]
	if at.Line < 1 || at.Line > len(all) || at.Column < 1 {
		return ""
	}
	line := []rune(all[at.Line-1])
	column := min(at.Column-1, len(line)) // from 0; a fault may be that the line ends
	begin, end := window(line, column)
	var text, under strings.Builder
	if begin > 0 {
		text.WriteString("…")
		under.WriteString(" ")
	}
	for i, r := range line[begin:end] {
		if !unicode.IsGraphic(r) && r != '\t' {
			r = unicode.ReplacementChar // what it could do to a terminal, it should not
		}
		text.WriteRune(r)
		switch {
		case begin+i >= column:
		case r == '\t': // as wide as the one above it
			under.WriteRune(r)
		default:
			under.WriteString(strings.Repeat(" ", columns(r)))
		}
	}
	if end < len(line) {
		text.WriteString("…")
	}
	return fmt.Sprintf("%8d | %s\n%8s | %s^\n", at.Line, strings.TrimRight(text.String(), " \t"), "", under.String())
}

// window is the part of a line that is shown: all of it if it fits, else what stands around the column.
func window(line []rune, column int) (begin, end int) {
	wide := func(part []rune) (n int) {
		for _, r := range part {
			n += columns(r)
		}
		return n
	}
	if wide(line) <= excerptWidth {
		return 0, len(line)
	}
	for begin = column; begin > 0 && wide(line[begin-1:column]) <= excerptWidth/2; begin-- {
	}
	for end = column; end < len(line) && wide(line[begin:end+1]) <= excerptWidth; end++ {
	}
	return begin, end
}

// columns is how many columns of a terminal a character takes. A tab counts as eight.
func columns(r rune) int {
	switch k := width.LookupRune(r).Kind(); {
	case r == '\t':
		return 8
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case k == width.EastAsianWide || k == width.EastAsianFullwidth:
		return 2
	}
	return 1
}
