package consultest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// attributes make the process end with ours.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped tells whether all threads of the process have stopped, or ended. A signal is only on its way when it was sent.
func (p *process) stopped() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil {
		panic(err) // the pattern is good
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		// The state follows the name, which may have any character in it.
		if i := bytes.LastIndexByte(text, ')'); !bytes.HasPrefix(text[i+1:], []byte(" T")) && !bytes.HasPrefix(text[i+1:], []byte(" Z")) {
			return false
		}
	}
	return true
}
