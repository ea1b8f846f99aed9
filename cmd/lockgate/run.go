package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/child"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/holder"
	"github.com/lockgate/lockgate/internal/wrap"
)

// runRun is a holder and, as a process of its own, an exec on a private gate
// directory. So the two guard each other as in a pod: if either is killed or
// frozen, the other sees to it that CMD does not outlive the lease.
func (p *program) runRun(args []string) int {
	argv, err := command(args)
	if err != nil {
		return p.wrongUsage("run: %v", err)
	}
	if _, code := p.lookup(argv[0]); code != 0 {
		return code
	}
	c, code := p.hold(config.Run)
	if code != 0 {
		return code
	}
	defer c.close()
	log := c.log
	dir, err := privateDir(p.environ)
	if err != nil {
		return p.fail(gatedir.CodeConfig, err)
	}
	defer func() { _ = os.RemoveAll(dir.Path()) }()
	lock, err := dir.LockHolder()
	if err != nil {
		return p.wrongDir(err)
	}
	defer func() { _ = lock.Close() }()

	signal.Notify(p.signals, wrap.AskToStop)
	r := &runner{program: p, dir: dir, log: log, again: make(chan syscall.Signal, 1)}
	if code, err := r.start(argv); err != nil {
		log.Error("cannot start", "err", err)
		return code
	}
	sweep(filepath.Dir(dir.Path())) // while the half starts
	watch := make(chan gate.Status, 1)
	how := c.on(dir)
	how.Observe = func(s gate.Status) {
		r.wake()
		c.told.observe(s)
		replace(watch, s)
	}
	h := holder.New(how)
	defer func() { _ = h.Close() }()

	guarded := make(chan error, 1)
	go func() { guarded <- r.guard(watch, lastMoment(c.cfg)) }()
	// The guarding half ends an attempt by ending, so this context never does.
	status := h.Serve(context.Background(), gatedir.Request{Nonce: r.nonce, Boot: c.boot}, r.half.Gone())
	if errors.Is(status.Err, gate.ErrPublish) {
		_ = r.half.Signal(syscall.SIGTERM) // it waits for a verdict that cannot come
	}
	if err := <-guarded; err != nil {
		log.Warn("not everything could be looked after", "err", err)
	}
	code = r.code(status)
	if sig := r.half.TermSignal(); sig != 0 {
		log.Error("the half of lockgate that ran the command was killed, and the rest with it", "signal", sig.String())
	}
	if failed(status) || code == gatedir.CodeInternal && !r.saidDone() {
		p.logNext(log, code, lossOf(c.cfg, status))
	}
	return code
}

// lastMoment returns when the holding half kills what the guarding half should have
// killed: a little after kill-at. A command that goes on without the lock has no
// kill-at but that of MAX_HOLD; 0 is never.
func lastMoment(cfg config.Config) func(gate.Status) time.Duration {
	late := cfg.SafetyMargin / 2
	return func(s gate.Status) time.Duration {
		switch {
		case cfg.OnLost != config.Continue:
			return s.KillAt + late
		case cfg.MaxHold > 0:
			return s.Acquired + cfg.MaxHold + cfg.StopGrace + late
		default:
			return 0
		}
	}
}

// runner is the holding half's view of the guarding half.
type runner struct {
	*program
	dir   *gatedir.Dir
	log   *slog.Logger
	nonce string
	half  *child.Process
	news  *os.File            // what is written to it wakes the half
	early syscall.Signal      // came before the half could handle it; see pass
	again chan syscall.Signal // gets what shall be passed on later
	asked bool                // to stop, by somebody else than the guarding half
}

// start starts the guarding half.
func (r *runner) start(argv []string) (code int, err error) {
	// What a dead exec half leaves becomes ours, so that it can be killed
	// before the lock is released.
	if err := child.BecomeSubreaper(); err != nil {
		return gatedir.CodeInternal, err
	}
	select {
	case sig := <-r.signals:
		if n, stops := wrap.StopSignal(sig); stops {
			return gatedir.CodeSignal + n, fmt.Errorf("told to stop by signal %s", sig)
		}
		if sig == syscall.SIGTSTP {
			r.again <- syscall.SIGTSTP // it has room for one
		}
	default:
	}
	self, err := selfPath()
	if err != nil {
		return gatedir.CodeInternal, err
	}
	listen, news, inherited, err := inheritablePipe()
	if err != nil {
		return gatedir.CodeInternal, fmt.Errorf("start the guarding half: %w", err)
	}
	defer func() { _ = listen.Close() }()
	r.news = news
	r.nonce = newNonce()
	env := slices.DeleteFunc(slices.Clone(r.environ), func(kv string) bool {
		return strings.HasPrefix(kv, config.Prefix+"DB_") || strings.HasPrefix(kv, config.Prefix+"DIR=")
	})
	r.half, err = child.Start(child.Spec{
		Path:     self,
		Args:     append([]string{os.Args[0], "exec", fmt.Sprintf("%s%s,%d", halfOption, r.nonce, inherited), "--"}, argv...),
		Env:      append(env, config.Prefix+"DIR="+r.dir.Path()),
		NewGroup: true,
		Restore:  r.job.Ignored(),
	})
	if err != nil {
		return gatedir.CodeInternal, fmt.Errorf("start the guarding half: %w", err)
	}
	r.threads()
	return 0, nil
}

// inheritablePipe returns a pipe and the descriptor at which a child inherits its
// reading end. (os.File.Fd would make that a blocking one.)
func inheritablePipe() (r, w *os.File, inherited uintptr, err error) {
	r, w, err = os.Pipe()
	if err != nil {
		return nil, nil, 0, err
	}
	conn, err := r.SyscallConn()
	if err == nil {
		var failed error
		err = conn.Control(func(fd uintptr) {
			inherited = fd
			_, failed = unix.FcntlInt(fd, unix.F_SETFD, 0)
		})
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, nil, 0, errors.Join(err, r.Close(), w.Close())
	}
	return r, w, inherited, nil
}

// wake tells the guarding half that there is news in the directory. It does not
// wait: a pipe that is full has news enough, and one without a reader needs none.
func (r *runner) wake() {
	if conn, err := r.news.SyscallConn(); err == nil {
		_ = conn.Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), []byte{'.'})
			return true
		})
	}
}

// guard passes signals on to the guarding half, and takes over where that half
// does not do its work: it KILLs what a dead one leaves, and everything when
// kill-at has passed by late. It ends when all that was started is gone.
func (r *runner) guard(watch <-chan gate.Status, lastMoment func(gate.Status) time.Duration) error {
	defer returnTerminal(child.OwnTerminal()) // found out now, used at the end
	alarm, err := bootclock.NewAlarm()
	if err != nil {
		r.killAll()
		return err
	}
	defer alarm.Close()
	for {
		select {
		case <-r.half.Gone():
			return nil
		case <-r.half.Exited():
			r.killAll()
			return nil
		case <-alarm.C():
			r.killAll()
			return nil
		case s := <-watch:
			if s.State == gate.Acquired {
				alarm.Set(lastMoment(s))
			}
		case sig := <-r.signals:
			switch n, ok := sig.(syscall.Signal); {
			case n == wrap.AskToStop:
				r.stop()
			case ok:
				r.pass(n)
			}
		case n := <-r.again:
			r.pass(n)
		case sig := <-r.half.Stops():
			// The terminal's stop signal was meant for our group, in which that half
			// was for a moment when it was made, and it did not handle it yet. We have
			// got it too, and pass it on in time.
			if sig != syscall.SIGSTOP {
				_ = r.half.Signal(syscall.SIGCONT)
			}
		}
	}
}

// stop stops this half, now that CMD and all its descendants are stopped. Of a stop
// that the terminal has told to CMD alone, our group is told too. The renewals go on
// by themselves: their timers are overdue then.
func (r *runner) stop() {
	r.job.Stop(!r.asked)
	r.asked = false
	_ = r.half.Signal(syscall.SIGCONT) // it may have ended
}

// killAll kills all that is left until it is gone. The lock stays held as long as
// something lives.
func (r *runner) killAll() {
	r.half.KillUntilGone(func(err error) {
		r.log.Error("the command does not end, not even by SIGKILL", "err", err)
	})
}

// youngHalf is how soon it is looked again whether the half has come of age.
const youngHalf = 10 * time.Millisecond

// pass hands a signal on to the guarding half. A half that has not asked for
// the lock yet may be so young that the kernel's defaults still apply to it:
// most of them are what we want, for no CMD is there yet.
func (r *runner) pass(n syscall.Signal) {
	if req, err := r.dir.ReadRequest(); err != nil || req.Nonce != r.nonce {
		switch n {
		case syscall.SIGQUIT: // it would print its stacks and exit with 2
			r.early, n = n, syscall.SIGTERM
		case syscall.SIGUSR1, syscall.SIGUSR2: // they would end it
			return
		case syscall.SIGTSTP: // it would stop it, and not us
			time.AfterFunc(youngHalf, func() {
				select {
				case r.again <- n:
				default: // it is being told already, or has ended
				}
			})
			return
		}
	}
	switch n {
	case syscall.SIGTSTP:
		r.asked = true
	case syscall.SIGCONT:
		r.asked = false // that half had reasons not to stop
	}
	_ = r.half.Signal(n) // it may have ended just now
}

// code is run's exit code: the guarding half's, unless that did not end by
// itself.
func (r *runner) code(status gate.Status) int {
	code := r.half.ExitCode()
	crashed := code == runtimeCrash && !r.saidDone()
	switch {
	case errors.Is(status.Err, gate.ErrPublish):
		return gatedir.CodeConfig
	case status.State == gate.Lost && (crashed || r.half.TermSignal() != 0):
		return gatedir.CodeLost
	case crashed:
		return gatedir.CodeInternal
	case r.early != 0 && code == gatedir.CodeSignal+int(syscall.SIGTERM):
		return gatedir.CodeSignal + int(r.early)
	default:
		return code
	}
}

// saidDone tells whether the guarding half has said that CMD is over.
func (r *runner) saidDone() bool {
	done, err := r.dir.ReadDone()
	return err == nil && done.Request == r.nonce
}

// runtimeCrash is the code with which Go's runtime ends a program. CMD may end
// with it too, and then the guarding half has said so.
const runtimeCrash = 2

// replace puts s into a channel of one place, instead of what nobody has taken.
// There is one sender.
func replace[T any](c chan T, s T) {
	select {
	case <-c:
	default:
	}
	c <- s
}

// returnTerminal gives the terminal to our group when everybody in its foreground has
// ended. The guarding half does that as a rule, but it may have been killed.
func returnTerminal(t *child.Terminal) {
	if t != nil && child.GroupIsGone(t.Foreground()) {
		_ = t.Give(syscall.Getpgrp()) // if it fails, it is not ours to give
	}
}

// privateDir makes a gate directory that only this user can see, in memory
// where there is such a place.
func privateDir(environ []string) (*gatedir.Dir, error) {
	var tried []error
	for _, parent := range privateParents(environ) {
		path, err := os.MkdirTemp(parent, privatePrefix)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		dir, err := gatedir.Open(path)
		if err == nil {
			err = dir.Check("holder")
		}
		if err == nil {
			return dir, nil
		}
		_ = os.RemoveAll(path)
		tried = append(tried, err)
	}
	return nil, advise(fmt.Errorf("no place for a private directory: %w", errors.Join(tried...)), "set TMPDIR to a directory that can be written")
}

// privatePrefix starts the name of a private directory; the rest are digits.
const privatePrefix = "lockgate-"

// forgotten is how old a private directory is at least that nobody uses. A younger
// one may be about to be used.
const forgotten = time.Minute

// sweep removes the private directories of runs whose two halves were both killed.
// What is not quite like one of ours is left alone.
func sweep(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, entry := range entries {
		digits, ours := strings.CutPrefix(entry.Name(), privatePrefix)
		if !ours || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		info, err := entry.Info()
		if err != nil || info.Mode() != fs.ModeDir|0o700 || time.Since(info.ModTime()) < forgotten {
			continue
		}
		dir, err := gatedir.Open(filepath.Join(parent, entry.Name()))
		if err != nil || dir.HolderLives() {
			continue
		}
		if _, err := dir.ReadState(); err != nil {
			continue
		}
		probe := dir.Probe()
		if probe.Gone() {
			_ = os.RemoveAll(dir.Path()) // another user's cannot be
		}
		_ = probe.Close()
	}
}

func privateParents(environ []string) []string {
	var runtimeDir string
	tmp := "/tmp"
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case name == "XDG_RUNTIME_DIR":
			runtimeDir = value
		case name == "TMPDIR" && value != "":
			tmp = value
		}
	}
	parents := []string{"/dev/shm", tmp}
	if filepath.IsAbs(runtimeDir) {
		parents = append([]string{runtimeDir}, parents...)
	}
	return parents
}

// selfPath is how to start this program again. The link in /proc leads to it
// even after its file was replaced or removed.
func selfPath() (string, error) {
	const link = "/proc/self/exe"
	if _, err := os.Stat(link); err == nil {
		return link, nil
	}
	return os.Executable()
}
