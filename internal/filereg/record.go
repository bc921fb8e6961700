package filereg

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/keep"
)

// A record is a state in the form in which it outlives a restart, as JSON. It holds what was read, and not what was made of
// it, so that the rules by which a document stands for a bad one are those of [Load] after a restart too.
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
	for f := range s.files.Values() {
		r.Files = append(r.Files, readingOf(excerpt{file: *f}))
	}
	places := map[*byte]int{} // of readings, by the data that they share if they are one
	for at, h := range s.past.All() {
		data := &h.entry.in.file.Data[0]
		place, there := places[data]
		if !there {
			place = len(r.Past)
			places[data] = place
			r.Past = append(r.Past, readingOf(h.entry.in))
		}
		r.Held = append(r.Held, standing{place, h.entry.origin.Document, text(at.path), at.document})
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
		return nil, keep.ErrDamaged
	}
	var files fileMap
	for _, reading := range r.Files {
		if reading.Path == "" {
			return nil, keep.ErrDamaged
		}
		f := reading.excerpt().file
		files = files.With(filePath(f.Path), &f)
	}
	past := make([][]*document, len(r.Past))
	for i, reading := range r.Past {
		past[i], _ = reading.excerpt().documents(registry) // what this version of meshd cannot read is lost
	}
	before, taken := NewState(registry), map[spot]bool{}
	for _, h := range r.Held {
		at := spot{filePath(h.Path), h.Document}
		if _, there := files.Get(at.path); !there || at.document < 0 || taken[at] || h.Past < 0 || h.Past >= len(past) {
			return nil, keep.ErrDamaged
		}
		taken[at] = true
		for _, d := range past[h.Past] {
			if d.entry != nil && d.origin.Document == h.Number {
				d.entry.single = true
				before.holdings = before.holdings.With(d.identity, &holding{d.entry, at, true})
			}
		}
	}
	before.combine(NewState(registry))
	return before.load(files).dated(r.Since), nil
}

// dated is the state with what is known of when its problems were first there.
func (s *State) dated(since map[symptom]time.Time) *State {
	d := *s
	d.since = since
	return &d
}

const (
	stateName  = "entries.state"
	recordForm = 1 // the version of what [State.record] writes
)

// newKeeper makes the keeper of a registry's states.
func newKeeper(log hclog.Logger, registry string, o Options) *keep.Keeper {
	k := keep.Options{
		Registry: registry, Title: "entries", Form: recordForm, Retry: o.RescanInterval,
		Unread:    "entries that were wrong or out of reach at the start are not served in their last good version",
		Unwritten: "what is served is not affected, but after a restart entries that are wrong or out of reach then may be lost or be older ones",
	}
	if o.StateDir != "" {
		k.Path = filepath.Join(o.StateDir, stateName)
	}
	return keep.New(log, k)
}

// kept is the state that was kept, or an empty one.
func kept(k *keep.Keeper, registry string) *State {
	state := NewState(registry)
	k.Load(func(record []byte) error {
		s, err := restore(registry, record)
		if err == nil {
			state = s
		}
		return err
	})
	return state
}
