package keep

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// replace writes a file so that at every moment, even if the power fails, either the old one is there or the new one.
// It makes the folder if need be.
func replace(path string, data []byte) (err error) {
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
