package testserver

import "syscall"

// diesWithParent says that childAttributes lets no server outlive its test.
const diesWithParent = true

// childAttributes has the kernel kill a server whose test binary is gone. The
// kernel watches the thread that started it, see [process].
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
