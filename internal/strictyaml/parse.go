package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Limits say how much is read. A zero stands for the default.
type Limits struct {
	Bytes int // of a file; 4 MiB
	Depth int // levels of lists and mappings within each other; 64
	Nodes int // values of one document, with its aliases expanded; 200,000
}

func (l Limits) orDefault() Limits {
	for _, limit := range []struct {
		value     *int
		otherwise int
	}{{&l.Bytes, 4 << 20}, {&l.Depth, 64}, {&l.Nodes, 200_000}} {
		if *limit.value == 0 {
			*limit.value = limit.otherwise
		}
	}
	return l
}

// Parse splits a file into its documents, YAML or JSON. Documents without content
// are left out. A mistake in the syntax breaks the whole file, since nothing after
// it can be trusted: there are errors then and no documents. All other mistakes
// are their document's own; [Document.Decode] returns them.
func Parse(data []byte, limits Limits) ([]*Document, []Error) {
	limits = limits.orDefault()
	if len(data) > limits.Bytes {
		return nil, []Error{{Position{1, 1}, "", CodeTooLarge, fmt.Sprintf("the file has %d bytes, at most %d are read: split it", len(data), limits.Bytes)}}
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if err, ok := unreadable(data); ok {
		return nil, []Error{err}
	}
	var documents []*Document
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for index := 0; ; index++ {
		root, err := next(decoder)
		switch {
		case errors.Is(err, io.EOF):
			return documents, nil
		case err != nil:
			return nil, []Error{syntaxError(data, err)}
		case !null(root):
			documents = append(documents, inspect(index, root, limits))
		}
	}
}

// next returns the content of the next document. The parser panics at some inputs.
func next(decoder *yaml.Decoder) (root *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("panic")
		}
	}()
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	return document.Content[0], nil
}

// unreadable finds the first character that cannot be in YAML.
func unreadable(data []byte) (Error, bool) {
	if utf16(data) {
		return Error{Position{1, 1}, "", CodeNotUTF8, "the file is UTF-16: save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"}, true
	}
	for i := 0; i < len(data); {
		r, size := rune(data[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(data[i:])
		}
		at := func() Position { return endOf(data[:i]) }
		switch {
		case r == utf8.RuneError && size == 1:
			return Error{at(), "", CodeNotUTF8, fmt.Sprintf("the byte 0x%02X is not UTF-8: save the file as UTF-8 (iconv -t UTF-8)", data[i])}, true
		case r == 0:
			return Error{at(), "", CodeSyntax, "a zero byte: the file is not text, or was not written to its end"}, true
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85, r == 0xfffe, r == 0xffff:
			return Error{at(), "", CodeSyntax, fmt.Sprintf("the control character U+%04X cannot be in YAML: remove it", r)}, true
		}
		i += size
	}
	return Error{}, false
}

// utf16 tells whether data begins with the mark of UTF-16, or with two Latin
// letters in it.
func utf16(data []byte) bool {
	return bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) ||
		len(data) >= 4 && (data[0] == 0 && data[2] == 0 || data[1] == 0 && data[3] == 0)
}

// endOf returns the position after data.
func endOf(data []byte) Position {
	lines := splitLines(data)
	last := lines[len(lines)-1]
	return Position{len(lines), utf8.RuneCount(last) + 1}
}

// splitLines splits data after each LF, CRLF and CR. The last line is the one
// without an end; it may be empty.
func splitLines(data []byte) [][]byte {
	var lines [][]byte
	start := 0
	for i, c := range data {
		if c == '\n' || c == '\r' && !bytes.HasPrefix(data[i+1:], []byte("\n")) {
			lines = append(lines, data[start:i+1])
			start = i + 1
		}
	}
	return append(lines, data[start:])
}
