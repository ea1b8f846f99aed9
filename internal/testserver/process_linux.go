package testserver

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// diesWithParent says that childAttributes lets no server outlive its test.
const diesWithParent = true

// childAttributes has the kernel kill a server whose test binary is gone. The
// kernel watches the thread that started it, see [process].
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// stopped returns once every thread of p has stopped. A signal returns before
// that: threads on other processors go on for a moment, long enough to answer.
func (p *process) stopped() error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.handle.Pid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for the server to stop: %w", err)
		}
		if info.Signo == int32(unix.SIGCHLD) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-p.gone:
			return fmt.Errorf("the server has ended: %w", p.err)
		}
	}
}
