package integration

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// withoutIPv6 as the first argument has this program run another one as on a machine whose kernel has no IPv6
// (ipv6.disable=1): it gets no socket of that family.
const withoutIPv6 = "without-ipv6"

// What the kernel's headers say of seccomp (linux/prctl.h, linux/seccomp.h), and package syscall does not.
const (
	prSetSeccomp      = 22
	prSetNoNewPrivs   = 38
	seccompModeFilter = 2
	seccompAllow      = 0x7fff0000
	seccompErrno      = 0x00050000 // or an errno
	offsetNumber      = 0          // of the system call, in struct seccomp_data
	offsetFirst       = 16         // of its first argument
)

// execWithoutIPv6 becomes another program, or says why it cannot.
func execWithoutIPv6(args []string) error {
	filter := []syscall.SockFilter{
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: offsetNumber},
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: syscall.SYS_SOCKET, Jf: 3},
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: offsetFirst},
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: syscall.AF_INET6, Jf: 1},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: seccompErrno | uint32(syscall.EAFNOSUPPORT)},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: seccompAllow},
	}
	program := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // a filter is a thread's, and that of the one that becomes the program
	if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); err != 0 {
		return fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", err)
	}
	if _, _, err := syscall.RawSyscall(syscall.SYS_PRCTL, prSetSeccomp, seccompModeFilter, uintptr(unsafe.Pointer(&program))); err != 0 {
		return fmt.Errorf("prctl PR_SET_SECCOMP: %w", err)
	}
	return fmt.Errorf("run %s: %w", args[0], syscall.Exec(args[0], args, os.Environ()))
}
