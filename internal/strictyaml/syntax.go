package strictyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// syntax is what we say for one of the parser's complaints.
type syntax struct {
	complaint string // how the parser's text begins
	place     place
	marks     string // the characters of which one is at fault; none: the line is
	message   string
}

// place says how to find the fault from the line that the parser names.
type place int

const (
	onLine  place = iota // on that line
	zeroed               // on that line, which is counted from 0
	opening              // that line has the bracket that is never closed
	within               // that line begins the mapping or list in which the fault is
	tab                  // that line, or a later one, has the tab
	alias                // the parser names no line, but the alias
)

const (
	tabMessage       = "a tab cannot indent: use spaces"
	quoteMessage     = "the quote opened here is never closed"
	escapeMessage    = "in double quotes a backslash begins an escape, and this is not one: write \\\\ for a backslash, or use single quotes"
	tagMessage       = "this is not a tag: put text that begins with \"!\" in quotes"
	directiveMessage = "a line that begins with \"%\" is not taken here: remove it, or put the text in quotes"
	scalarMessage    = "after \"|\" or \">\" only -, + or an indentation from 1 to 9 may follow, and the text begins on the next line"
)

// complaints are all that the parser has, and what they mean to the operator.
var complaints = []syntax{
	{"mapping values are not allowed", zeroed, ":", "a \":\" is not expected here: check the indentation, and put text that holds \": \" in quotes"},
	{"block sequence entries are not allowed", zeroed, "-", "a \"- \" is not expected here: begin a list on a line of its own"},
	{"mapping keys are not allowed", zeroed, "?", "a \"? \" is not expected here: put the text in quotes"},
	{"could not find expected ':'", zeroed, "", "this is neither a key, for it lacks a \":\", nor part of the value before: write key: value, or check the indentation"},
	{"found character that cannot start any token", zeroed, "@`%\t", "text cannot begin with this character: put the text in quotes"},
	{"found a tab character", tab, "", tabMessage},
	{"did not find expected alphabetic or numeric character", zeroed, "*&", "text cannot begin with \"*\" or \"&\", which are for aliases and anchors: put the text in quotes"},
	{"unknown anchor", alias, "", "this is an alias, and no anchor of that name stands before it: put text that begins with \"*\" in quotes"},
	{"found unexpected end of stream", zeroed, "\"'", quoteMessage},
	{"found unexpected document indicator", zeroed, "\"'", quoteMessage},
	{"found unknown escape character", zeroed, "\\", escapeMessage},
	{"did not find expected hexdecimal number", zeroed, "\\", escapeMessage},
	{"found invalid Unicode character escape code", zeroed, "\\", "this escape stands for no character: write the character itself"},
	{"found an indentation indicator equal to 0", zeroed, "|>", scalarMessage},
	{"did not find expected comment or line break", zeroed, "|>", scalarMessage},
	{"found unknown directive name", zeroed, "", directiveMessage},
	{"could not find expected directive name", zeroed, "", directiveMessage},
	{"found unexpected non-alphabetical character", zeroed, "", directiveMessage},
	{"did not find expected digit or '.' character", zeroed, "", directiveMessage},
	{"found extremely long version number", zeroed, "", directiveMessage},
	{"did not find expected version number", zeroed, "", directiveMessage},
	{"found duplicate %", onLine, "", directiveMessage},
	{"found incompatible YAML document", onLine, "", "this version of YAML is not known: remove the line that begins with %YAML"},
	{"did not find expected whitespace", zeroed, "!%", tagMessage},
	{"did not find the expected '>'", zeroed, "!", tagMessage},
	{"did not find expected '!'", zeroed, "!", tagMessage},
	{"did not find expected tag URI", zeroed, "!", tagMessage},
	{"did not find URI escaped octet", zeroed, "!", tagMessage},
	{"found an incorrect", zeroed, "!", tagMessage},
	{"found undefined tag handle", onLine, "!", tagMessage},
	{"did not find expected ',' or ']'", opening, "[", "the list opened here lacks a \",\" between two items, or its \"]\""},
	{"did not find expected ',' or '}'", opening, "{", "the mapping opened here lacks a \",\" between two values, or its \"}\""},
	{"did not find expected node content", onLine, "]},", "a value is expected here: there is a comma or bracket too many, or a bracket is never closed"},
	{"did not find expected key", within, "", "this line does not fit the mapping that it is in: check its indentation, and quotes that end too early"},
	{"did not find expected '-' indicator", within, "", "this line does not fit the list that it is in: check its indentation, and begin items with \"- \""},
	{"did not find expected <document start>", onLine, "", "the document has ended before this line: begin another one with \"---\", or check the brackets before it"},
	{"", within, "", "this cannot be read as YAML: check the indentation, the quotes and the brackets of this line"},
}

// syntaxError says in our words, and with a better place, why the parser refused
// data.
func syntaxError(data []byte, refusal error) Error {
	// The parser takes a mark on its line 0 for none, and then names the line of
	// another: an empty line before all prevents that.
	complaint, line := complaintOf(io.MultiReader(strings.NewReader("\n"), bytes.NewReader(data)))
	if complaint == "" {
		complaint, line = split(refusal)
	}
	if strings.HasPrefix(complaint, "exceeded max depth") {
		return Error{Position{max(1, line-1), 1}, "", CodeTooDeep, "lists and mappings are nested too deep"}
	}
	row := meaning(complaint)
	at := refused{data, splitLines(data), row}.locate(complaint, line)
	switch offset, ok := brokenJSON(data); {
	case ok && row.place == opening:
		at, row.message = offset, "this is not JSON: here or just before, a comma, quote or bracket is missing or too many"
	case at < len(data) && data[at] == '\t':
		row.message = tabMessage
	}
	return Error{endOf(data[:at]), "", CodeSyntax, row.message}
}

// meaning returns the row of a complaint.
func meaning(complaint string) syntax {
	return complaints[slices.IndexFunc(complaints, func(row syntax) bool { return strings.HasPrefix(complaint, row.complaint) })]
}

// refused is text and what the parser's complaint about it means.
type refused struct {
	data  []byte
	lines [][]byte
	syntax
}

// locate returns the offset of the fault, given the complaint and the line that
// the parser named.
func (r refused) locate(complaint string, line int) int {
	switch r.place {
	case zeroed:
		line--
	case within:
		line = r.firstBroken(line)
	case tab:
		line += max(0, slices.IndexFunc(r.lines[min(line-1, len(r.lines)):], func(text []byte) bool {
			return bytes.ContainsRune(indentOf(text), '\t')
		}))
	case alias:
		return r.alias(complaint)
	}
	line = min(max(1, line), len(r.lines))
	start, text := len(bytes.Join(r.lines[:line-1], nil)), r.lines[line-1]
	indent := indentOf(text)
	switch last := bytes.LastIndexAny(text, r.marks); {
	case r.place == tab:
		return start + max(0, bytes.IndexByte(indent, '\t'))
	case last < 0:
		return start + len(indent)
	case r.place == opening:
		return start + last
	default:
		return r.mark(start, start+len(text), start+last)
	}
}

// tries limits how much is parsed again to find a place.
const tries, triedBytes = 50, 64 << 10

// breaks tells whether the parser complains in the same way about the data up to
// end.
func (r refused) breaks(end int) bool {
	complaint, _ := complaintOf(bytes.NewReader(r.data[:min(end, len(r.data))]))
	return complaint != "" && meaning(complaint).message == r.message
}

// mark returns the offset of the mark from start to end that, with the character
// after it, breaks the text, or otherwise if none is seen to.
func (r refused) mark(start, end, otherwise int) int {
	broken := false
	for at, tried := start, 0; at < min(end, triedBytes) && tried < tries; at++ {
		if strings.IndexByte(r.marks, r.data[at]) < 0 {
			continue
		}
		tried++
		was := broken
		if broken = r.breaks(at + 2); broken && !was {
			otherwise = at
		}
	}
	return otherwise
}

// firstBroken returns the first line, not before from, with which the text breaks.
// The parser reads on for three words at most before it complains.
func (r refused) firstBroken(from int) int {
	reader := lineReader{lines: r.lines}
	complaintOf(&reader)
	line := max(from, reader.read)
	for range 8 {
		earlier := line - 1
		for earlier > 0 && len(bytes.TrimSpace(r.lines[earlier-1])) == 0 {
			earlier--
		}
		if earlier < from || !r.breaks(len(bytes.Join(r.lines[:earlier], nil))) {
			break
		}
		line = earlier
	}
	return line
}

// alias returns the offset of the alias that has no anchor before it.
func (r refused) alias(complaint string) int {
	name := "*" + strings.TrimSuffix(strings.TrimPrefix(complaint, "unknown anchor '"), "' referenced")
	first := max(0, bytes.Index(r.data, []byte(name)))
	for at, tried := first, 0; at < triedBytes && tried < tries; tried++ {
		if r.breaks(at + len(name)) {
			return at
		}
		next := bytes.Index(r.data[at+1:], []byte(name))
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return first
}

// brokenJSON returns the offset at which data, which looks like JSON, is not.
func brokenJSON(data []byte) (int, bool) {
	object, ok := bytes.CutPrefix(bytes.TrimSpace(data), []byte("{"))
	if !ok || !bytes.HasPrefix(bytes.TrimSpace(object), []byte("\"")) {
		return 0, false
	}
	var value json.RawMessage
	var broken *json.SyntaxError
	if !errors.As(json.NewDecoder(bytes.NewReader(data)).Decode(&value), &broken) || broken.Offset == 0 {
		return 0, false
	}
	return int(broken.Offset) - 1, true
}

// complaintOf returns what the parser complains about first, and the line that it
// names; "" if nothing.
func complaintOf(reader io.Reader) (complaint string, line int) {
	decoder := yaml.NewDecoder(reader)
	for {
		switch _, err := next(decoder); {
		case errors.Is(err, io.EOF):
			return "", 0
		case err != nil:
			return split(err)
		}
	}
}

// split takes the parser's error apart: "yaml: line 3: did not find expected key".
func split(refusal error) (complaint string, line int) {
	complaint = strings.TrimPrefix(refusal.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(complaint, "line "); ok {
		digits, rest, _ := strings.Cut(rest, ": ")
		line, _ = strconv.Atoi(digits)
		return rest, line
	}
	return complaint, 1
}

// lineReader gives a line at a time and counts them.
type lineReader struct {
	lines [][]byte
	read  int    // lines given, or begun to be given
	rest  []byte // of the line begun
}

func (r *lineReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if r.read == len(r.lines) {
			return 0, io.EOF
		}
		r.rest = r.lines[r.read]
		r.read++
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func indentOf(line []byte) []byte {
	return line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
}
