//go:build unix

package child

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Job is this program as a shell with job control sees it: something that it can
// stop, continue, and put into the foreground or background of a terminal. There
// is at most one in a program.
type Job struct {
	signals chan os.Signal
	ignored []syscall.Signal // by us from now on, and not before
	stops   bool             // SIGTSTP was not ignored when we started
}

// NewJob makes the program handle the signals of job control, from now on and
// until it ends. SIGTSTP and SIGCONT are sent to signals. SIGTTIN and SIGTTOU are
// ignored: with "stty tostop" the log of a program in the background would
// otherwise stop it, and were SIGTTOU caught, each write would be tried again for
// ever (tty_ioctl(4), and the kernel's tty_check_change). What was ignored
// already stays so, for us and for what we start.
func NewJob(signals chan os.Signal) *Job {
	before := ignoredNow()
	j := &Job{signals: signals, stops: !slices.Contains(before, syscall.SIGTSTP)}
	signal.Notify(signals, syscall.SIGCONT)
	if j.stops {
		signal.Notify(signals, syscall.SIGTSTP)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTTIN, syscall.SIGTTOU} {
		if !slices.Contains(before, sig) {
			signal.Ignore(sig)
			j.ignored = append(j.ignored, sig)
		}
	}
	return j
}

// Ignored returns the signals that we ignore only since [NewJob]: see
// [Spec.Restore].
func (j *Job) Ignored() []syscall.Signal { return j.ignored }

// Stop stops this program as the terminal's stop key would, and returns when it
// was continued. With group, the other members of its process group are stopped
// too, by SIGTSTP. It returns at once if nobody could continue us: SIGTSTP was
// ignored when we started, we are the first process of a container, or our group
// is orphaned, which means that no shell looks after it; the kernel makes no
// difference (credentials(7), setpgid(2), signal(7)).
//
// A SIGTSTP that comes while it works is not sent to signals.
func (j *Job) Stop(group bool) {
	if !j.stops {
		return
	}
	signal.Ignore(syscall.SIGTSTP) // the group's is not for us
	if group {
		_ = syscall.Kill(0, syscall.SIGTSTP) // we may always signal ourselves
	}
	stopSelf()
	signal.Notify(j.signals, syscall.SIGTSTP)
}

// restore undoes the ignoring of signals while start runs, because a program
// inherits what is ignored. The signals are caught meanwhile, which is not
// inherited: were they left to their default, a write of ours could stop us.
func restore(sigs []syscall.Signal, start func()) {
	if len(sigs) == 0 {
		start()
		return
	}
	all := make([]os.Signal, len(sigs))
	for i, sig := range sigs {
		all[i] = sig
	}
	signal.Notify(make(chan os.Signal, 1), all...)
	defer signal.Ignore(all...)
	start()
}

// Terminal is the terminal that controls our session, as our standard input.
type Terminal struct{ fd int }

// OwnTerminal returns the controlling terminal if both standard input and standard
// output are it, and nil otherwise.
func OwnTerminal() *Terminal {
	for _, fd := range []int{0, 1} {
		// Only the controlling terminal tells its foreground group.
		if _, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil {
			return nil
		}
	}
	return &Terminal{fd: 0}
}

// HasTerminal reports whether our session has a controlling terminal at all.
func HasTerminal() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// Foreground returns the process group in the terminal's foreground, or 0 if there
// is none or the terminal has been closed.
func (t *Terminal) Foreground() int {
	group, err := foregroundGroup(t.fd)
	if err != nil {
		return 0
	}
	return group
}

// Give puts a process group into the terminal's foreground. SIGTTOU must be ignored
// (see [NewJob]), or we must be in the foreground ourselves.
func (t *Terminal) Give(group int) error {
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
}

// KeyboardGroup returns the process group that gets the keys of our controlling
// terminal, as far as standard input, output or error tell; 0 if none does.
func KeyboardGroup() int {
	for fd := range 3 {
		if group, err := foregroundGroup(fd); err == nil {
			return group
		}
	}
	return 0
}

// SignalGroup sends a signal to CMD's process group, if it was started with one, else
// to CMD alone. The error wraps [os.ErrProcessDone] once CMD has been reaped.
func (p *Process) SignalGroup(sig syscall.Signal) error {
	if !p.group {
		return p.Signal(sig)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return fmt.Errorf("signal process group %d: %w", p.pid, os.ErrProcessDone)
	}
	if err := syscall.Kill(-p.pid, sig); err != nil {
		return fmt.Errorf("signal process group %d: %w", p.pid, err)
	}
	return nil
}

// GroupIsGone reports whether a process group has no member any more.
func GroupIsGone(group int) bool {
	return group > 1 && errors.Is(syscall.Kill(-group, 0), syscall.ESRCH)
}

// Stops gets a signal when that has stopped CMD itself. One that nobody has
// received is replaced by the next.
func (p *Process) Stops() <-chan syscall.Signal { return p.stops }

// noteStop tells that CMD was stopped. The lock is held, so there is one sender.
func (p *Process) noteStop(sig syscall.Signal) {
	select {
	case <-p.stops:
	default:
	}
	p.stops <- sig
}
