package keep

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A file is one line that says what it is, the version of its form, and the checksum of all that follows: a record, packed
// by gzip (tail -n +2 FILE | zcat shows it).
const (
	heading     = "meshd %s %d sha256:%s\n"
	headingSize = 200 // at most
)

// ErrDamaged is what is wrong with a record that nobody can have meant.
var ErrDamaged = errors.New("it is damaged")

// pack makes the file that holds a record.
func pack(o Options, record []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(record); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return slices.Concat(fmt.Appendf(nil, heading, o.Title, o.Form, checksum(b.Bytes())), b.Bytes()), nil
}

// unpack takes the record out of its file. The error says what is wrong with the file.
func unpack(o Options, file []byte) ([]byte, error) {
	end := bytes.IndexByte(file[:min(len(file), headingSize)], '\n') + 1
	line, rest := string(file[:end]), file[end:]
	var title, sum string
	var form int
	if _, err := fmt.Sscanf(line, heading, &title, &form, &sum); err != nil || title != o.Title {
		return nil, errors.New("it is no state of meshd's, or its beginning is lost")
	}
	switch {
	case form > o.Form:
		return nil, fmt.Errorf("a later version of meshd has written it (form %d; this one knows %d)", form, o.Form)
	case checksum(rest) != sum || form != o.Form || line != fmt.Sprintf(heading, title, form, sum):
		return nil, ErrDamaged
	}
	r, err := gzip.NewReader(bytes.NewReader(rest))
	if err != nil {
		return nil, ErrDamaged
	}
	record, err := io.ReadAll(r)
	if err != nil {
		return nil, ErrDamaged
	}
	return record, nil
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
