//go:build unix

package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spec says what to start. Standard input, output and error are inherited; any
// other descriptor only if its close-on-exec flag was cleared.
type Spec struct {
	// Path is the file to execute, as [Lookup] returns it: it is not searched.
	Path string

	// Args are the arguments, the command's own name first. Empty stands for Path
	// alone.
	Args []string

	// Env is the whole environment. Of several entries for one name the last
	// counts, and only that is passed on.
	Env []string

	// Dir is the directory to start in; empty is the current one. A relative Path
	// is relative to it.
	Dir string

	// DeathSignal has the kernel kill CMD when we die, however we die. CMD alone:
	// what it started is not told, and CMD is not either if it is a set-user-ID
	// program. On Linux only.
	DeathSignal bool

	// NewGroup makes CMD the leader of a process group of its own.
	NewGroup bool

	// Foreground makes CMD's group, which must be a new one, the foreground group
	// of the terminal that is our standard input and controls our session, before
	// CMD's program runs. If the terminal is closed just then, CMD starts without.
	Foreground bool

	// Restore are signals that we ignore and CMD shall not: for it they have
	// their default.
	Restore []syscall.Signal
}

// Process is a started command with all its descendants. Its methods may be called
// from several goroutines.
type Process struct {
	pid    int
	group  bool // CMD was started as the leader of a group
	exited chan struct{}
	gone   chan struct{}
	stops  chan syscall.Signal

	// suspended is what Suspend has stopped; nil before and after.
	suspended earlier

	// earlier are the descendants that we had before, which are not CMD's.
	earlier earlier

	// mu is held around each reaping, and around each signal to a process number
	// that only an unreaped child keeps from being given to a stranger.
	mu     sync.Mutex
	reaped bool
	status syscall.WaitStatus // valid when known
	known  bool
}

// earlier tells processes that were there before CMD by their numbers, and for each
// when it started, because a number can be given to another process.
type earlier map[int]uint64

// Start starts a command. It returns when the command's program is running, or an
// error with nothing left behind: a [*LookupError] when the file cannot be
// executed, another one when the system could not start any process.
//
// A text file that names no interpreter is run by /bin/sh, as shells, env and nice
// do.
func Start(spec Spec) (*Process, error) {
	if spec.Dir != "" {
		// Told apart here, because the kernel's "not found" for it would look
		// like the command's.
		if info, err := os.Stat(spec.Dir); err != nil {
			return nil, fmt.Errorf("start in another directory: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("start in another directory: %q: %w", spec.Dir, syscall.ENOTDIR)
		}
	}
	p := &Process{
		group:  spec.NewGroup,
		exited: make(chan struct{}),
		gone:   make(chan struct{}),
		stops:  make(chan syscall.Signal, 1),
	}
	started := make(chan error, 1)
	go p.run(spec, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the command and reaps until no child of it is left.
func (p *Process) run(spec Spec, started chan<- error) {
	// The death signal is sent when the *thread* that forked ends. A thread that
	// belongs to this goroutine does not end before the goroutine does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	p.earlier = findEarlier()
	unstick := p.unstick()
	var pid int
	var err error
	restore(spec.Restore, func() { pid, err = forkExec(spec) })
	if spec.Foreground && (errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOTTY)) {
		// The terminal went away. If the file was what could not be read, that
		// comes again.
		spec.Foreground = false
		restore(spec.Restore, func() { pid, err = forkExec(spec) })
	}
	stopped := unstick()
	if err != nil {
		started <- err
		return
	}
	p.pid = pid
	if stopped {
		_ = syscall.Kill(-pid, syscall.SIGTSTP) // it may have ended
	}
	started <- nil
	p.reapAll()
}

// forkExec starts the command on the calling thread.
func forkExec(spec Spec) (int, error) {
	args := spec.Args
	if len(args) == 0 {
		args = []string{spec.Path}
	}
	attr := &syscall.ProcAttr{
		Dir:   spec.Dir,
		Env:   lastOfEach(spec.Env),
		Files: []uintptr{0, 1, 2},
		Sys:   sysProcAttr(spec),
	}
	pid, err := syscall.ForkExec(spec.Path, args, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		path := spec.Path
		if spec.Dir != "" && !strings.HasPrefix(path, "/") {
			path = spec.Dir + "/" + path
		}
		if head, readErr := readHead(path); readErr == nil && isText(head) {
			pid, err = syscall.ForkExec(shell, append([]string{shell, spec.Path}, args[1:]...), attr)
		} else {
			err = fmt.Errorf("%w (a program for another machine, or a damaged file)", err)
		}
	}
	switch {
	case err == nil:
		return pid, nil
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM),
		errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		// Nothing wrong with the file: no process could be made.
		return 0, fmt.Errorf("start %q: %w", spec.Path, err)
	default:
		return 0, &LookupError{File: spec.Path, Code: exitCode(err), Err: err}
	}
}

// lastOfEach drops the entries of environ that a later one for the same name
// overrides: which one a program would see differs from program to program.
func lastOfEach(environ []string) []string {
	last := make(map[string]int, len(environ))
	for i, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		last[name] = i
	}
	out := make([]string, 0, len(last))
	for i, entry := range environ {
		if name, _, _ := strings.Cut(entry, "="); last[name] == i {
			out = append(out, entry)
		}
	}
	return out
}

// reapAll reaps our children until there is none left but the earlier ones.
func (p *Process) reapAll() {
	sure := true
	for {
		var err error
		if sure {
			err = waitForChild()
		}
		more, none := true, false
		for more {
			more, none = p.reapOne()
		}
		if !none {
			none, sure = p.onlyEarlier()
		}
		if none {
			return
		}
		if !sure || err != nil && !errors.Is(err, syscall.ECHILD) {
			// No descriptor was left to look with, or a filter on system calls is
			// in our way. Then look again and again rather than wait.
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// reapOne reaps a child that has ended, if there is one. It reports whether there
// may be more of them, and whether we have no child at all any more.
func (p *Process) reapOne() (more, none bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|waitOptions|stopOptions, nil)
	switch {
	case errors.Is(err, syscall.EINTR):
		return true, false
	case errors.Is(err, syscall.ECHILD):
		// A process hands its children on before it can be reaped itself. So
		// when we have none, there is no descendant that could still become one.
		if !p.reaped { // somebody else has reaped it, or SIGCHLD is ignored
			p.reaped = true
			close(p.exited)
		}
		if p.orphans() {
			return false, false
		}
		close(p.gone)
		return false, true
	case err != nil, pid == 0:
		return false, false
	case status.Stopped():
		if pid == p.pid && !p.reaped {
			p.noteStop(status.StopSignal())
		}
		return true, false
	}
	if pid == p.pid && !p.reaped {
		p.reaped, p.known, p.status = true, true, status
		close(p.exited)
	}
	return true, false
}

// onlyEarlier reports whether CMD and all its descendants have ended though we have
// children, the earlier ones, and whether it is sure of its answer.
func (p *Process) onlyEarlier() (only, sure bool) {
	if len(p.earlier) == 0 {
		return false, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		return false, true
	}
	others, err := p.others()
	if others || err != nil {
		return false, err == nil
	}
	close(p.gone)
	return true, true
}

// Pid returns CMD's process number. After Exited it may belong to a stranger.
func (p *Process) Pid() int { return p.pid }

// Exited is closed when CMD itself has ended and was reaped. What it started may
// still run.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Gone is closed when CMD and every descendant has ended and was reaped; Exited is
// closed then too. The package comment says what it means where there is no
// subreaper.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// ExitCode returns CMD's exit status, or 128+n when signal n ended it. It is -1
// before Exited is closed, and if the status was lost because something else in
// the program waited for children.
func (p *Process) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.known:
		return -1
	case p.status.Signaled():
		return 128 + int(p.status.Signal())
	default:
		return p.status.ExitStatus()
	}
}

// TermSignal returns the signal that ended CMD, or 0 if none did or it has not
// ended.
func (p *Process) TermSignal() syscall.Signal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known || !p.status.Signaled() {
		return 0
	}
	return p.status.Signal()
}

// Status says for people how CMD ended: "exit status 3", "killed by SIGTERM",
// "running" before that, "unknown" if the status was lost.
func (p *Process) Status() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.reaped:
		return "running"
	case !p.known:
		return "unknown"
	case p.status.Signaled():
		name := unix.SignalName(p.status.Signal())
		if name == "" {
			name = fmt.Sprintf("signal %d", int(p.status.Signal()))
		}
		return "killed by " + name
	default:
		return fmt.Sprintf("exit status %d", p.status.ExitStatus())
	}
}

// Signal sends a signal to CMD alone. The error wraps [os.ErrProcessDone] once CMD
// has been reaped.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return fmt.Errorf("signal process %d: %w", p.pid, os.ErrProcessDone)
	}
	if err := syscall.Kill(p.pid, sig); err != nil {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// wakes reports whether a signal asks a process to end in a way that it can only
// follow when it is not stopped. SIGKILL needs no waking.
func wakes(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// killPatience is how long SIGKILL may need before it is worth saying.
const killPatience = 2 * time.Second

// KillUntilGone is [Process.KillAll] without an end: it returns after Gone. What
// cannot be killed is told to say, once.
func (p *Process) KillUntilGone(say func(error)) {
	for said := false; ; said = true {
		ctx, cancel := context.WithTimeout(context.Background(), killPatience)
		err := p.KillAll(ctx)
		cancel()
		if err == nil {
			return
		}
		if !said {
			say(err)
		}
	}
}

// KillAll kills CMD and every descendant, again and again until Gone, because a
// process can start another while we look. It returns nil after Gone, or an error
// that wraps the context's cause and says what is left: a process that is stuck in
// the kernel, or one of another user that we may not kill.
func (p *Process) KillAll(ctx context.Context) error {
	const longest = 50 * time.Millisecond
	const sweeps = 20
	pause := time.Millisecond
	for {
		_, err := p.SignalAll(syscall.SIGKILL)
		for i := 0; i < sweeps && p.killChildren(); i++ {
		}
		timer := time.NewTimer(pause)
		select {
		case <-p.gone:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			left, _ := p.Descendants()
			return errors.Join(fmt.Errorf("kill all: processes %v are left: %w", left, context.Cause(ctx)), err)
		case <-timer.C:
		}
		pause = min(2*pause, longest)
	}
}
