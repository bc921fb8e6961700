// Package keep keeps a registry's newest state on disk, so that a restart begins where the process before it ended,
// however that ended.
//
// It promises that at every moment the file is whole, that what is damaged is never taken for a state, and that handing a
// state over never waits for the disk. What a record says is the registry's alone; of the file the [Keeper] is the only
// owner: of two that have one path the last to write wins, so that each file is whole, but may be the other's.
package keep

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
)

// Options say what is kept, and where.
type Options struct {
	Registry string        // whose state it is
	Path     string        // of the file; its folder is made if need be. Empty: nothing is kept
	Title    string        // what the records are, in the first line of the file: one word
	Form     int           // the version of their form, from 1; a file of another one is not read
	Retry    time.Duration // after which to try again what has failed; 10 s by default

	// Unread and Unwritten say what an operator loses by a file that cannot be used, and by one that cannot be written.
	Unread, Unwritten string
}

// Record makes the record of a state, the same one for the same state. It is called by the keeper's goroutine, once or more.
type Record func() ([]byte, error)

// Keeper keeps the newest record of those that it is handed. [New] makes one. Load, Keep, Close and Problems are for one
// goroutine, the registry's, and Run for another.
type Keeper struct {
	log     hclog.Logger
	options Options
	write   func(path string, data []byte) error

	next     chan Record       // to be kept; the newest wins
	changed  chan struct{}     // one slot: failure is another one
	kept     [sha256.Size]byte // the checksum of the record on disk; Load's, and then Run's
	unusable []mesh.Problem    // what was wrong with the file at the start
	aside    string            // where that file is now; empty: there was none, or somebody has taken care of it

	mu      sync.Mutex
	failure error // of the last try to write
}

// Between two writes lies at least this, and so much more if they take long that they cost little of a processor.
const (
	betweenWrites = time.Second
	costOfWrites  = 20
)

// New makes a keeper. It does not look at its file yet.
func New(log hclog.Logger, o Options) *Keeper {
	o.Retry = cmp.Or(o.Retry, 10*time.Second)
	return &Keeper{log: log, options: o, write: replace, next: make(chan Record, 1), changed: make(chan struct{}, 1)}
}

// Load gives read the record that was kept, and tells whether there is one that read takes; its error says what is wrong
// with it, as [ErrDamaged] does. A file that cannot be used is put aside, and a problem. Load comes before Run.
func (k *Keeper) Load(read func(record []byte) error) bool {
	if k.options.Path == "" {
		return false
	}
	removeLeftovers(k.options.Path)
	err := k.load(read)
	switch {
	case err == nil:
		return true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // which writing to it finds too
		return false
	}
	remedy := "remove it"
	if aside := k.options.Path + ".bad"; os.Rename(k.options.Path, aside) == nil {
		k.aside = aside
		remedy = fmt.Sprintf("it is put aside as %s; remove that once you have seen it", aside)
	}
	k.unusable = []mesh.Problem{k.problem("state-unreadable",
		fmt.Sprintf("cannot be used: %s; %s; %s", reason(err), k.options.Unread, remedy))}
	return false
}

func (k *Keeper) load(read func([]byte) error) error {
	file, err := os.ReadFile(k.options.Path)
	if err != nil {
		return err
	}
	record, err := unpack(k.options, file)
	if err != nil {
		return err
	}
	if err := read(record); err != nil {
		return err
	}
	k.kept = sha256.Sum256(record)
	return nil
}

// reason is an error without the name of the file, which the problem has, and with what helps.
func reason(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	if errors.Is(err, fs.ErrPermission) {
		return err.Error() + "; let the user as which meshd runs read it"
	}
	return err.Error()
}

// Keep hands over a state, which is written soon.
func (k *Keeper) Keep(r Record) {
	if k.options.Path == "" {
		return
	}
	select {
	case <-k.next: // it is out of date
	default:
	}
	k.next <- r
}

// Close says that no more is handed over, so that Run returns once it has written the last of it.
func (k *Keeper) Close() { close(k.next) }

// Run writes what is handed over, and tries again what has failed, until [Keeper.Close]; then it writes the last of it and
// returns. Once ctx has ended it does not wait between writes any more.
func (k *Keeper) Run(ctx context.Context) {
	var due Record // what could not be written yet
	for open := true; open; {
		var r Record
		var again <-chan time.Time
		if due != nil {
			again = time.After(k.options.Retry)
		}
		select {
		case r, open = <-k.next:
			if open {
				due = r
			}
		case <-again:
		}
		if due == nil {
			continue
		}
		start := time.Now()
		err := k.save(due)
		if err == nil {
			due = nil
		}
		k.went(err)
		select {
		case <-ctx.Done():
		case <-time.After(max(betweenWrites, costOfWrites*time.Since(start))):
		}
	}
	if due != nil {
		k.log.Warn("the last state could not be saved", "file", k.options.Path, "error", k.last())
	}
}

// save writes a record, unless it is on disk already.
func (k *Keeper) save(r Record) error {
	record, err := r()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(record)
	if sum == k.kept {
		return nil
	}
	file, err := pack(k.options, record)
	if err != nil {
		return err
	}
	if err := k.write(k.options.Path, file); err != nil {
		return err
	}
	k.kept = sum
	return nil
}

// went notes how the last try went, and tells of it if that is news.
func (k *Keeper) went(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if fmt.Sprint(err) == fmt.Sprint(k.failure) {
		return
	}
	k.failure = err
	select {
	case k.changed <- struct{}{}:
	default: // it is about to be seen
	}
}

func (k *Keeper) last() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure
}

// Changed has a value when Problems are others than before. That a file that was put aside has been removed is seen only
// by asking for them.
func (k *Keeper) Changed() <-chan struct{} { return k.changed }

// Problems are those of the file as they are now.
func (k *Keeper) Problems() []mesh.Problem {
	if k.aside != "" {
		if _, err := os.Lstat(k.aside); errors.Is(err, fs.ErrNotExist) {
			k.unusable, k.aside = nil, ""
		}
	}
	failure := k.last()
	if failure == nil {
		return k.unusable
	}
	return append(slices.Clip(k.unusable), k.problem("state-not-saved", fmt.Sprintf(
		"cannot be written: %s; %s; make room for it, or let the user as which meshd runs write to its folder", cause(failure), k.options.Unwritten)))
}

func (k *Keeper) problem(code, message string) mesh.Problem {
	return mesh.Problem{Severity: mesh.Warning, Code: code, Origin: mesh.Origin{Registry: k.options.Registry, Source: k.options.Path}, Message: message}
}

// cause is an error without the names of files, some of which are never the same.
func cause(err error) error {
	if number := syscall.Errno(0); errors.As(err, &number) {
		return number
	}
	return err
}
