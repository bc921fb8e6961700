package consultest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// process is a program that a test has started, with a process group of its own.
type process struct {
	cmd   *exec.Cmd
	asked bool          // to end
	done  chan struct{} // closed when it has ended
	err   error         // how it ended; to be read after done
}

func startProcess(program, log string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = attributes()
	if err := errors.Join(p.cmd.Start(), out.Close()); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ended tells whether the process has ended, and how.
func (p *process) ended() (bool, error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

// send sends a signal to the process and those that it has started.
func (p *process) send(s syscall.Signal) {
	if ended, _ := p.ended(); !ended {
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may end at any moment, which is as good
	}
}

// signal sends a signal that ends the process.
func (p *process) signal(s syscall.Signal) {
	p.asked = true
	p.send(s)
}

// kill ends the process and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}
