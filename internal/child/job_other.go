//go:build unix && !linux

package child

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const stopOptions = syscall.WUNTRACED

// ignoredNow returns nil: Go cannot tell, and there is nothing to read it from.
func ignoredNow() []syscall.Signal { return nil }

// stopSelf stops this process, whether or not anybody could continue it.
func stopSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

func foregroundGroup(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.TIOCGPGRP) }

// Orphaned returns false: it cannot be told here.
func Orphaned(int) bool { return false }

// Halted returns true: it cannot be told here that CMD was continued meanwhile.
func (p *Process) Halted() bool { return true }

// HasGroup reports whether a process group is CMD's, as the others cannot be found.
func (p *Process) HasGroup(group int) bool { return p.group && group == p.pid }

// Suspend stops CMD's group by SIGSTOP; the others cannot be found here.
func (p *Process) Suspend(time.Duration) error {
	_, err := p.SignalAll(syscall.SIGSTOP)
	return err
}

// Resume continues what [Process.Suspend] has stopped.
func (p *Process) Resume() error {
	_, err := p.SignalAll(syscall.SIGCONT)
	return err
}

// unstick does nothing: Go does not wait for a child's program in the kernel here.
func (p *Process) unstick() (end func() (again bool)) { return func() bool { return false } }
