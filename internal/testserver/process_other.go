//go:build !linux

package testserver

import "syscall"

// diesWithParent says that childAttributes lets no server outlive its test.
const diesWithParent = false

// childAttributes keeps a terminal's Ctrl-C from the server, so that the test
// decides when it ends. Nothing here can end it with a killed test binary.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped hopes that p has stopped; there is no portable way to know.
func (p *process) stopped() error { return nil }
