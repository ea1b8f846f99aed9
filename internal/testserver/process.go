package testserver

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is one running server process.
type process struct {
	handle *os.Process
	gone   chan struct{} // closed once it has ended and was reaped
	err    error         // how it ended; read it after gone
}

// startProcess starts path as a process group of its own, its output going to
// a file, and reaps it when it ends. The goroutine that does both keeps its
// thread until then: the kernel's "kill it when its parent dies" means the
// parent's thread, and Go gives up threads as it likes.
func startProcess(path string, args []string, output *os.File) (*process, error) {
	p := &process{gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Command(path, args...)
		cmd.Stdout, cmd.Stderr = output, output
		cmd.SysProcAttr = childAttributes()
		err := cmd.Start()
		p.handle = cmd.Process
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.gone)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// killGroup ends the process and everything that it has started, whatever state
// they are in, and returns when the process is reaped.
func (p *process) killGroup() {
	if !p.ended() {
		// An error means that it ended just now.
		_ = syscall.Kill(-p.handle.Pid, syscall.SIGKILL)
	}
	<-p.gone
}

// ended reports whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}
