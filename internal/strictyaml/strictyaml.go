// Package strictyaml decodes YAML and JSON into Go values, strictly, and knows
// where everything stands.
//
// Operators write YAML by hand, and a typo that is silently ignored loses a
// setting. So a field that is not known, a key given twice, a number where text
// belongs and text where a number belongs are all errors, and each error says
// where it stands (line, column and field path), what is wrong, and what to
// write instead, in words that need neither Go nor this parser's source. All
// mistakes of a document are reported, not the first.
//
// [Parse] splits a file into documents; [Document.Decode] fills a Go value from
// one of them; [Document.At] says where a path stands, for those who validate
// the value afterwards. A document belongs to its caller and does not change; it
// may be read from several goroutines.
//
// Input is not trusted: size, nesting and the growth of aliases are limited, and
// no input makes this package panic.
package strictyaml

import "fmt"

// Codes of errors. They are stable: operators filter by them.
const (
	CodeSyntax       = "yaml-syntax"   // not YAML
	CodeNotUTF8      = "not-utf8"      // bytes that are not UTF-8
	CodeTooLarge     = "too-large"     // more bytes or values than the limits allow
	CodeTooDeep      = "too-deep"      // nested deeper than the limits allow
	CodeAliasBomb    = "alias-bomb"    // aliases expand to more than the limits allow
	CodeAliasCycle   = "alias-cycle"   // an alias inside of what it stands for
	CodeUnknownTag   = "unknown-tag"   // a tag such as !include
	CodeUnknownField = "unknown-field" // a key that no field has
	CodeDuplicateKey = "duplicate-key" // a key given twice in one mapping
	CodeWrongType    = "wrong-type"    // text for a number, a list for a mapping
	CodeOutOfRange   = "out-of-range"  // a number that its field cannot hold
	CodeUnknownValue = "unknown-value" // a word that is none of those that the field takes
)

// Position is a place in a file. Lines and columns count from 1, columns in
// characters.
type Position struct{ Line, Column int }

// String returns the position as line:column.
func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Line, p.Column) }

func (p Position) compare(q Position) int {
	if p.Line != q.Line {
		return p.Line - q.Line
	}
	return p.Column - q.Column
}

// Error is one mistake in a file.
type Error struct {
	Position
	Path    string // such as spec.ports[1].protocol; empty: the document
	Code    string // one of the Code constants
	Message string // one sentence without place and path, with the remedy
}

// Error returns the mistake with its place and path.
func (e Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s: %s", e.Position, e.Message)
	}
	return fmt.Sprintf("%s: %s: %s", e.Position, e.Path, e.Message)
}
