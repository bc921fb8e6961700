//go:build unix && !linux

package main

import (
	"errors"
	"syscall"
	"time"
)

// cpuTime cannot be seen here.
func cpuTime(int) (time.Duration, error) {
	return 0, errors.New("bench measures on Linux only")
}

func attributes() *syscall.SysProcAttr { return nil }
