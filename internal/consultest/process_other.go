//go:build unix && !linux

package consultest

import "syscall"

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopped cannot be seen here.
func (p *process) stopped() bool { return true }
