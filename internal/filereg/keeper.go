package filereg

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/meshd/meshd/internal/mesh"
)

// keeper keeps the newest state on disk, so that a restart begins where the process before it ended, however that ended. It
// has a goroutine of its own, since a disk may take its time. Of two processes that keep theirs in one folder the
// last to write wins: each file is whole, but it may be the other's.
type keeper struct {
	log      hclog.Logger
	registry string
	path     string // of the file; empty: nothing is kept
	write    func(path string, data []byte) error
	retry    time.Duration // after which to try again what has failed

	next     chan *State       // to be kept; the newest wins
	outcome  chan outcome      // of the last try, if it is another one than before
	kept     [sha256.Size]byte // the checksum of the record on disk
	unusable []mesh.Problem    // what was wrong with the file at the start
	aside    string            // where that file is now; empty: there was none, or somebody has taken care of it
}

// outcome is how it went to write a state.
type outcome struct{ failure error }

const (
	stateName = "entries.state"

	// Between two writes lies at least this, and so much more if they take long that they cost little of a processor.
	betweenSaves = time.Second
	costOfSaves  = 20
)

func newKeeper(log hclog.Logger, registry string, o Options) *keeper {
	k := &keeper{
		log: log, registry: registry, write: replaceFile, retry: o.RescanInterval,
		next: make(chan *State, 1), outcome: make(chan outcome, 1),
	}
	if o.StateDir != "" {
		k.path = filepath.Join(o.StateDir, stateName)
	}
	return k
}

// load returns the state that was kept, and an empty one if there is none that can be used; that one is put aside.
func (k *keeper) load() *State {
	if k.path == "" {
		return NewState(k.registry)
	}
	removeLeftovers(k.path)
	state, err := k.read()
	switch {
	case err == nil:
		return state
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // which writing to it finds too
		return NewState(k.registry)
	}
	remedy := "remove it"
	if aside := k.path + ".bad"; os.Rename(k.path, aside) == nil {
		k.aside = aside
		remedy = fmt.Sprintf("it is put aside as %s; remove that once you have seen it", aside)
	}
	k.unusable = []mesh.Problem{k.problem("state-unreadable", fmt.Sprintf(
		"cannot be used: %s; entries that were wrong or out of reach at the start are not served in their last good version; %s", reason(err), remedy))}
	return NewState(k.registry)
}

func (k *keeper) read() (*State, error) {
	file, err := os.ReadFile(k.path)
	if err != nil {
		return nil, err
	}
	record, err := unpack(file)
	if err != nil {
		return nil, err
	}
	state, err := restore(k.registry, record)
	if err == nil {
		k.kept = sha256.Sum256(record)
	}
	return state, err
}

// problems are those of keeping states, given how it went last.
func (k *keeper) problems(last outcome) []mesh.Problem {
	if k.aside != "" {
		if _, err := os.Lstat(k.aside); errors.Is(err, fs.ErrNotExist) {
			k.unusable, k.aside = nil, ""
		}
	}
	if last.failure == nil {
		return k.unusable
	}
	return append(k.unusable[:len(k.unusable):len(k.unusable)], k.problem("state-not-saved", fmt.Sprintf(
		"cannot be written: %s; what is served is not affected, but after a restart entries that are wrong or out of reach then may be lost or be older ones; make room for it, or let the user as which meshd runs write to its folder", cause(last.failure))))
}

func (k *keeper) problem(code, message string) mesh.Problem {
	return mesh.Problem{Severity: mesh.Warning, Code: code, Origin: mesh.Origin{Registry: k.registry, Source: k.path}, Message: message}
}

// cause is an error without the names of files, some of which are never the same.
func cause(err error) error {
	if number := syscall.Errno(0); errors.As(err, &number) {
		return number
	}
	return err
}

// keep hands over a state, which is written soon.
func (k *keeper) keep(s *State) {
	if k.path == "" {
		return
	}
	select {
	case <-k.next: // it is out of date
	default:
	}
	k.next <- s
}

// run writes what is handed over until next is closed; then it writes the last of it and returns. Once ctx has ended it
// does not wait any more.
func (k *keeper) run(ctx context.Context) {
	var due *State    // what could not be written yet
	var failure error // as it was told last
	for open := true; open; {
		var s *State
		var again <-chan time.Time
		if due != nil {
			again = time.After(k.retry)
		}
		select {
		case s, open = <-k.next:
			if open {
				due = s
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
		if fmt.Sprint(err) != fmt.Sprint(failure) {
			failure = err
			select {
			case <-k.outcome:
			default:
			}
			k.outcome <- outcome{err}
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(betweenSaves, costOfSaves*time.Since(start))):
		}
	}
	if due != nil {
		k.log.Warn("the last state could not be saved", "file", k.path, "error", failure)
	}
}

// save writes a state, unless it is on disk already.
func (k *keeper) save(s *State) error {
	record, err := s.record()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(record)
	if sum == k.kept {
		return nil
	}
	file, err := pack(record)
	if err != nil {
		return err
	}
	if err := k.write(k.path, file); err != nil {
		return err
	}
	k.kept = sum
	return nil
}

// replaceFile writes a file so that at every moment, even if the power fails, either the old one is there or the new one.
// It makes the folder if need be.
func replaceFile(path string, data []byte) (err error) {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, filepath.Base(path)+leftover)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // it is of no use, and may be gone
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncFolder(folder)
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) {
		err = nil // the file system knows no such thing
	}
	return errors.Join(err, f.Close())
}

// leftover is how the names of files end that are not written yet.
const leftover = ".*.new"

// removeLeftovers removes what processes have left that were killed while they wrote.
func removeLeftovers(path string) {
	names, _ := filepath.Glob(path + leftover) // a folder that cannot be read is found when it is written to
	for _, name := range names {
		if info, err := os.Lstat(name); err == nil && time.Since(info.ModTime()) > time.Minute {
			_ = os.Remove(name) // it does no harm
		}
	}
}
