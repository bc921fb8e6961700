package filereg

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A record is a state in the form in which it outlives a restart: one line that says what it is, and then JSON, packed
// by gzip (tail -n +2 FILE | zcat shows it). It holds what was read, and not what was made of it, so that the rules by
// which a document stands for a bad one are those of [Load] after a restart too.
//
// There is no more in it than in memory: each file as it was read last, and of what is served of earlier versions the
// single documents.
type record struct {
	Files []reading  `json:"files"`
	Past  []reading  `json:"past,omitempty"`
	Held  []standing `json:"held,omitempty"`

	Since map[symptom]time.Time `json:"since,omitempty"`
}

// reading is a file as it was read once, or a part of it.
type reading struct {
	Path    text      `json:"path"`
	Written time.Time `json:"written,omitzero"`
	Data    text      `json:"data,omitempty"`
	Error   string    `json:"error,omitempty"`
	Lines   int       `json:"lines,omitempty"` // before the part
	First   int       `json:"first,omitempty"` // the number of its first document
}

// standing is a document of the past that is served at a place where the document is bad now, or cannot be read.
type standing struct {
	Past     int  `json:"past"`   // which reading it is of
	Number   int  `json:"number"` // of the document in that file
	Path     text `json:"path"`
	Document int  `json:"document"`
}

// text is text in JSON, even if it is not UTF-8: then it is a list of one, in base64.
type text string

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal([][]byte{[]byte(t)})
}

func (t *text) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("[")) {
		return json.Unmarshal(data, (*string)(t))
	}
	var list [][]byte
	err := json.Unmarshal(data, &list)
	if err == nil && len(list) != 1 {
		err = errors.New("text in base64 must be a list of one")
	}
	if err == nil {
		*t = text(list[0])
	}
	return err
}

// record writes the state as JSON. The same state gives the same bytes.
func (s *State) record() ([]byte, error) {
	r := record{Since: s.since}
	current := make(map[*entry]bool, len(s.holdings))
	for _, src := range s.sources {
		r.Files = append(r.Files, readingOf(excerpt{file: src.file}))
		for _, d := range src.documents {
			current[d.entry] = true
		}
	}
	var held []holding
	for _, h := range s.holdings {
		if !current[h.entry] {
			held = append(held, h)
		}
	}
	slices.SortFunc(held, func(a, b holding) int {
		return cmp.Or(strings.Compare(a.path, b.path), cmp.Compare(a.document, b.document), a.entry.origin.Compare(b.entry.origin))
	})
	places := map[*byte]int{} // of readings, by the data that they share if they are one
	for _, h := range held {
		data := &h.entry.in.file.Data[0]
		place, there := places[data]
		if !there {
			place = len(r.Past)
			places[data] = place
			r.Past = append(r.Past, readingOf(h.entry.in))
		}
		r.Held = append(r.Held, standing{place, h.entry.origin.Document, text(h.path), h.document})
	}
	return json.Marshal(r)
}

func readingOf(x excerpt) reading {
	r := reading{Path: text(x.file.Path), Written: x.file.Written, Data: text(x.file.Data), Lines: x.lines, First: x.first}
	if x.file.Err != nil {
		r.Error = reason(x.file.Err)
	}
	return r
}

func (r reading) excerpt() excerpt {
	x := excerpt{file: File{Path: string(r.Path), Data: []byte(r.Data)}, lines: r.Lines, first: r.First}
	if !r.Written.IsZero() {
		x.file.Written = r.Written.Local()
	}
	if r.Error != "" {
		x.file.Err = errors.New(r.Error)
	}
	return x
}

// restore makes a state of what [State.record] wrote.
func restore(registry string, data []byte) (*State, error) {
	var r record
	if json.Unmarshal(data, &r) != nil {
		return nil, errDamaged
	}
	before := NewState(registry)
	before.holdings = make(map[identity]holding, len(r.Held))
	past := make([][]*document, len(r.Past))
	for i, reading := range r.Past {
		past[i], _ = reading.excerpt().documents(registry) // what this version of meshd cannot read is lost
	}
	for _, h := range r.Held {
		if h.Past < 0 || h.Past >= len(past) {
			return nil, errDamaged
		}
		for _, d := range past[h.Past] {
			if d.entry != nil && d.origin.Document == h.Number {
				d.entry.single = true
				before.holdings[d.identity] = holding{d.entry, string(h.Path), h.Document}
			}
		}
	}
	var files []File
	for _, reading := range r.Files {
		if reading.Path == "" {
			return nil, errDamaged
		}
		files = append(files, reading.excerpt().file)
	}
	state := NewState(registry)
	if len(files) > 0 {
		state = Load(before, files)
	}
	return state.dated(r.Since), nil
}

// dated is the state with what is known of when its problems were first there.
func (s *State) dated(since map[symptom]time.Time) *State {
	d := *s
	d.since = since
	return &d
}

// The first line of a record: what it is, the version of its form, and the checksum of all that follows.
const (
	heading     = "meshd entries %d sha256:%s\n"
	headingSize = 200 // at most
	form        = 1
)

// pack makes the file that holds a record.
func pack(record []byte) ([]byte, error) {
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
	return slices.Concat(fmt.Appendf(nil, heading, form, checksum(b.Bytes())), b.Bytes()), nil
}

// unpack takes the record out of its file. The error says what is wrong with the file.
func unpack(file []byte) ([]byte, error) {
	end := bytes.IndexByte(file[:min(len(file), headingSize)], '\n') + 1
	line, rest := string(file[:end]), file[end:]
	var version int
	var sum string
	if _, err := fmt.Sscanf(line, heading, &version, &sum); err != nil {
		return nil, errors.New("it is no state of meshd's, or its beginning is lost")
	}
	switch {
	case version > form:
		return nil, fmt.Errorf("a later version of meshd has written it (form %d; this one knows %d)", version, form)
	case checksum(rest) != sum || version != form || line != fmt.Sprintf(heading, version, sum):
		return nil, errDamaged
	}
	r, err := gzip.NewReader(bytes.NewReader(rest))
	if err != nil {
		return nil, errDamaged
	}
	record, err := io.ReadAll(r)
	if err != nil {
		return nil, errDamaged
	}
	return record, nil
}

var errDamaged = errors.New("it is damaged")

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
