//go:build unix && !linux

package child

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

const waitOptions = 0

// BecomeSubreaper does nothing: this system has no subreapers.
func BecomeSubreaper() error { return nil }

func sysProcAttr(spec Spec) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: spec.NewGroup, Foreground: spec.Foreground}
}

// waitForChild returns after a while: waiting without reaping is not to be relied
// on here.
func waitForChild() error {
	time.Sleep(20 * time.Millisecond)
	return nil
}

// findEarlier returns nil: nobody can be found here, and nobody but CMD's group is
// signalled.
func findEarlier() earlier { return nil }

// others is never called, as nobody is known to be earlier.
func (p *Process) others() (bool, error) { return true, nil }

// orphans reports whether CMD's group still has members, which are nobody's children
// here once their parent has ended.
func (p *Process) orphans() bool {
	return p.group && syscall.Kill(-p.pid, 0) == nil
}

// SignalAll sends a signal to CMD's group, or to CMD if it was started without one,
// and returns 1 if anybody got it: the others cannot be found here.
//
// A request to end (TERM, INT, HUP, QUIT) is followed by CONT: a stopped process
// would not act on it before it is continued.
func (p *Process) SignalAll(sig syscall.Signal) (int, error) {
	select {
	case <-p.gone:
		return 0, nil
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	target := -p.pid
	if !p.group {
		if p.reaped {
			return 0, nil
		}
		target = p.pid
	}
	err := syscall.Kill(target, sig)
	if err == nil && wakes(sig) {
		_ = syscall.Kill(target, syscall.SIGCONT) // no error counts: they may have ended
	}
	switch {
	case err == nil:
		return 1, nil
	case errors.Is(err, syscall.ESRCH), errors.Is(err, syscall.EPERM) && p.reaped: // only the dead are left
		return 0, nil
	default:
		return 0, fmt.Errorf("signal process %d: %w", target, err)
	}
}

// killChildren leaves all to SignalAll.
func (p *Process) killChildren() bool { return false }

// Descendants returns [errors.ErrUnsupported].
func (p *Process) Descendants() ([]int, error) {
	return nil, fmt.Errorf("find descendants: %w", errors.ErrUnsupported)
}
