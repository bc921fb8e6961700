package main

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// cpuTime is the processor time that a process has used, user and system. Unlike /proc/PID/stat, which counts ticks of 10 ms,
// the clock of a process is exact.
func cpuTime(pid int) (time.Duration, error) {
	var t syscall.Timespec
	clock := ^pid<<3 | 2 // clock_getcpuclockid(3); 2 is CPUCLOCK_SCHED
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, errno)
	}
	return time.Duration(t.Nano()), nil
}

// attributes make a server end with us.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
