// Package wrap is the exec side of the gate: it asks for the lock on behalf of
// one command, runs the command only on a verdict, and stops it in time.
//
// # The room
//
// It sees the gate directory, the child and the boot clock, and never the store:
// all that it knows about the lock is what the holder publishes. It watches the
// deadlines by itself. If nobody moves them on, because the holder was killed,
// is frozen or cannot reach the store, the command is stopped all the same,
// before anyone else can acquire.
//
// # The order
//
//	take main.lock → publish a request → wait for the verdict → start CMD
//	→ CMD has ended → stop what it left behind → publish done → give main.lock up
package wrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/child"
	"github.com/lockgate/lockgate/internal/gatedir"
)

const (
	// lockLimit is how long exec tries for main.lock.
	lockLimit = 2 * time.Second

	// lookEvery is how often the state is looked at when no event comes.
	lookEvery = 500 * time.Millisecond

	// signalLag is how long a signal of our own may take after the holder's: the
	// containers of a pod are told to stop one after the other, up to 2s apart.
	signalLag = 3 * time.Second
)

// Config says what to run, and where the gate directory is.
type Config struct {
	Dir   *gatedir.Dir
	Nonce string // of this start; fresh
	Boot  string // this boot's id
	Pod   string // the pod's UID; may be empty

	// VerdictTimeout is how old the last sign of a holder may be while exec
	// waits for its verdict.
	VerdictTimeout time.Duration

	// Spec is CMD, but for its environment.
	Spec child.Spec

	// Env returns CMD's environment, once the lock and its token are known.
	Env func(lock string, token uint64) []string

	// Signals are passed on to CMD. Before CMD has started they end the waiting.
	Signals <-chan os.Signal

	// Job is lockgate as a job of a shell; nil without job control.
	Job *Job

	// Quiet leaves out the lines that a holder in the same process tree logs
	// too.
	Quiet bool

	// Watch tells when the holder may have published something. Run closes it. nil
	// stands for the directory's own.
	Watch *gatedir.Watcher

	// Failed, when set, is told of a code that is our own and means that something
	// went wrong, and what to do about it where that is not what it usually is. It
	// is called as the last thing.
	Failed func(code int, hint string)

	Log *slog.Logger
}

// Run runs CMD under the lock and returns the exit code for the process: CMD's
// own, 128+n when signal n ended it or ended the waiting, or one of the codes of
// package gatedir.
func Run(cfg Config) int {
	w := &wrapper{Config: cfg, watch: cfg.Watch}
	if w.watch == nil {
		w.watch = cfg.Dir.Watch()
	}
	defer w.watch.Close()
	code := w.exec()
	if !w.expected && cfg.Failed != nil {
		cfg.Failed(code, w.hint)
	}
	return code
}

// exec is Run.
func (w *wrapper) exec() int {
	cfg := w.Config
	if err := child.BecomeSubreaper(); err != nil {
		w.Log.Error("cannot look after what the command would start", "err", err)
		return gatedir.CodeInternal
	}
	lctx, cancel := context.WithTimeout(context.Background(), lockLimit)
	lock, err := cfg.Dir.LockMain(lctx)
	cancel()
	if err != nil {
		if errors.Is(err, gatedir.ErrTaken) {
			err = fmt.Errorf("another lockgate exec, or something it started, still runs in %s", cfg.Dir.Path())
		}
		w.Log.Error("cannot ask for the lock", "err", err, "setting", "LOCKGATE_DIR")
		return gatedir.CodeConfig
	}
	defer func() { _ = lock.Close() }()

	w.request = gatedir.Request{Nonce: cfg.Nonce, Boot: cfg.Boot, Pod: cfg.Pod}
	if code, ok := w.claim(); !ok {
		return code
	}
	if err := cfg.Dir.WriteRequest(w.request); err != nil {
		w.Log.Error("cannot ask for the lock; sidecar and main must both be able to write the directory",
			"err", err, "setting", "LOCKGATE_DIR")
		return gatedir.CodeConfig
	}
	w.Log.Log(context.Background(), w.level(slog.LevelInfo), "asking the sidecar for the lock", "dir", cfg.Dir.Path())
	code, ok := w.wait()
	if ok {
		code = w.run()
	}
	if err := cfg.Dir.WriteDone(gatedir.Done{Request: w.request.Nonce, Code: code}); err != nil {
		// The holder sees main.lock come free all the same.
		w.Log.Warn("cannot publish the end", "err", err)
	}
	return code
}

// wrapper is one Run. It belongs to one goroutine.
type wrapper struct {
	Config
	watch   *gatedir.Watcher
	request gatedir.Request

	hint     string // what to do about a failure; empty for the usual
	expected bool   // the exit code is CMD's, a skip's or a signal's, and no failure

	state  gatedir.State // the verdict that CMD runs on
	stopAt time.Duration
	killAt time.Duration
}

// wait waits for the verdict. With ok CMD may run; else code is exec's own.
func (w *wrapper) wait() (code int, ok bool) {
	sign := bootclock.Now()     // the last sign of a holder
	var withdrawn time.Duration // when the holder was first seen to have withdrawn; 0 before
	var unreadable error        // why the state could not be read
	dead := false               // whoever would give the verdict
	ended := w.watch.Ended()
	look := time.NewTimer(0)
	defer look.Stop()
	for {
		select {
		case <-ended:
			ended, dead = nil, true // it may have said something before
		case sig := <-w.Signals:
			if n, stops := StopSignal(sig); stops {
				w.Log.Info("told to stop before the command had started", "signal", sig.String())
				w.expected = true
				return gatedir.CodeSignal + n, false
			}
			if sig == syscall.SIGTSTP {
				if n, ended := w.pause(); ended {
					w.expected = true
					return gatedir.CodeSignal + n, false
				}
				sign = bootclock.Now() // the holder was stopped too
			}
			continue
		case <-w.watch.C():
		case <-look.C:
		}
		look.Reset(lookEvery)
		state, err := w.Dir.ReadState()
		now := bootclock.Now()
		switch {
		case errors.Is(err, gatedir.ErrVersion) && state.Answers(w.request):
			w.Log.Error("the holder is another version of lockgate; use the same for both containers", "err", err)
			return gatedir.CodeConfig, false
		case err == nil && state.Answers(w.request):
			if state.Verdict == gatedir.Error && state.Code == 0 {
				// The holder was told to stop. If so are we, that decides the
				// exit code.
				if withdrawn == 0 {
					withdrawn = now
				}
				if now-withdrawn < signalLag {
					continue
				}
			}
			if state.Verdict.Final() || state.Verdict == gatedir.Acquired && !dead {
				return w.verdict(state, now)
			}
			sign = w.signOf(state, sign, now)
		case err == nil && state.Near(w.request) && w.isUnexpected(state):
			return gatedir.CodeConfig, false
		case err == nil && state.Near(w.request):
			// It is still busy with an earlier request.
			sign = w.signOf(state, sign, now)
		case err != nil && !errors.Is(err, gatedir.ErrNone) && !errors.Is(err, gatedir.ErrVersion):
			unreadable = err
		}
		if dead {
			w.Log.Error("no verdict came: the process that holds the lock has ended")
			return gatedir.CodeUnavailable, false
		}
		if now-sign > w.VerdictTimeout {
			w.noVerdict(now-sign, unreadable)
			return gatedir.CodeUnavailable, false
		}
	}
}

// signOf is the later of two signs of a holder's life: one known, and the one that
// a state is. A time that has not come yet would be a sign for ever.
func (w *wrapper) signOf(state gatedir.State, known, now time.Duration) time.Duration {
	if at := time.Duration(state.UpdatedBoot); at <= now {
		return max(known, at)
	}
	return known
}

func (w *wrapper) noVerdict(silent time.Duration, unreadable error) {
	attrs := []any{"dir", w.Dir.Path(), "silent_for", silent.Round(time.Second)}
	if unreadable != nil {
		attrs = append(attrs, "err", unreadable)
	}
	w.Log.Error("no verdict came; is the lockgate sidecar running, with the same gate directory?", attrs...)
}

// level is the level of a line that a holder in the same process tree logs too.
func (w *wrapper) level(alone slog.Level) slog.Level {
	if w.Quiet {
		return slog.LevelDebug
	}
	return alone
}

// verdict judges a final word, or an acquired lock.
func (w *wrapper) verdict(state gatedir.State, now time.Duration) (code int, ok bool) {
	ctx := context.Background()
	switch state.Verdict {
	case gatedir.Acquired:
		w.state = state
		w.stopAt, w.killAt = time.Duration(state.StopBoot), time.Duration(state.KillBoot)
		if now >= w.stopAt {
			w.Log.Error("the verdict came too late to be trusted", "lock", state.Lock, "token", state.Token)
			return gatedir.CodeLost, false
		}
		w.Log.Log(ctx, w.level(slog.LevelInfo), "lock is held, starting the command", "lock", state.Lock, "token", state.Token)
		return 0, true
	case gatedir.Skipped:
		w.Log.Log(ctx, w.level(slog.LevelInfo), "lock is busy, skipping", "lock", state.Lock, "reason", state.Reason)
		w.expected = true
		return state.Policy.SkipExitCode, false
	default:
		w.Log.Log(ctx, w.level(slog.LevelError), "the command does not run", "lock", state.Lock, "outcome", string(state.Verdict), "reason", state.Reason)
		if state.Code == gatedir.CodeUnavailable {
			w.hint = "the sidecar's log says what to do about it"
		}
		if state.Code < 1 || state.Code > 255 {
			return gatedir.CodeUnavailable, false // whatever it is, it is no success
		}
		return state.Code, false
	}
}

// run starts CMD and sees it to its end.
func (w *wrapper) run() int {
	alarm, err := bootclock.NewAlarm()
	if err != nil {
		w.Log.Error("cannot watch the deadline", "err", err)
		return gatedir.CodeInternal
	}
	defer alarm.Close()
	spec := w.Spec
	spec.Env = w.Env(w.state.Lock, w.state.Token)
	// A signal that came meanwhile: this is the last moment at which CMD need
	// not run at all.
	for pending := true; pending; {
		select {
		case sig := <-w.Signals:
			if n, stops := StopSignal(sig); stops {
				w.expected = true
				return gatedir.CodeSignal + n
			}
			if sig == syscall.SIGTSTP {
				if n, ended := w.pause(); ended {
					w.expected = true
					return gatedir.CodeSignal + n
				}
			}
		default:
			pending = false
		}
	}
	// All this has taken time, and we may have been frozen.
	if held, reason := w.follow(); !held || bootclock.Now() >= w.stopAt {
		w.Log.Error("the lock is not held any more, the command does not run",
			"lock", w.state.Lock, "token", w.state.Token, "reason", reason)
		return gatedir.CodeLost
	}
	lent := w.lend(&spec)
	p, err := child.Start(spec)
	if err != nil {
		if lent {
			_ = w.Job.Terminal.Give(w.Job.Group) // the child may have had it for a moment
		}
		w.Log.Error("cannot start the command", "err", err)
		if refused, ok := errors.AsType[*child.LookupError](err); ok {
			return refused.Code
		}
		return gatedir.CodeInternal
	}
	s := &supervisor{
		wrapper: w, p: p, alarm: alarm, grace: time.Duration(w.state.Policy.StopGrace),
		goesOn: w.state.Policy.OnLost == gatedir.GoOn, guarded: w.Log, lent: lent,
	}
	if longest := w.state.Policy.MaxHold; longest > 0 {
		s.maxAt = time.Duration(w.state.AcquiredBoot + longest)
	}
	return s.supervise()
}

// follow takes over deadlines that the holder has moved on. It returns false,
// and the holder's reason, when the holder says that the lock is not held any
// more.
func (w *wrapper) follow() (held bool, reason string) {
	state, err := w.Dir.ReadState()
	switch {
	case err != nil || !state.Answers(w.request):
		return true, "" // the deadlines stand
	case state.Verdict != gatedir.Acquired:
		return false, state.Reason
	case state.Token != w.state.Token:
		return true, "" // another lease says nothing about ours
	}
	w.stopAt = max(w.stopAt, time.Duration(state.StopBoot))
	w.killAt = max(w.killAt, time.Duration(state.KillBoot))
	return true, ""
}

// supervisor sees one started CMD to its end.
type supervisor struct {
	*wrapper
	p     *child.Process
	alarm *bootclock.Alarm
	grace time.Duration
	maxAt time.Duration // MAX_HOLD has passed then; 0 for never

	goesOn    bool         // a lock that is lost does not stop CMD
	unguarded bool         // it is lost, and CMD goes on
	missed    int          // how often in a row the holder was not there
	guarded   *slog.Logger // the logger while it is not

	stopped bool          // lockgate's own stop has begun; it is never undone
	sweepAt time.Duration // CMD has ended: what it left is killed then; 0 before
	killing chan struct{} // closed when KILL has done its work; nil before

	// See terminal.go.
	left      bool // CMD has ended
	suspended bool // it and all else is stopped until lockgate is continued
	lent      bool // the terminal is CMD's
	front     int  // the group that had it when it was taken back; 0 before
	stranded  bool // CMD was told that it will not get it
}

func (s *supervisor) supervise() int {
	exited := s.p.Exited()
	look := time.NewTimer(lookEvery)
	defer look.Stop()
	s.arm()
	for {
		select {
		case <-s.p.Gone():
			if s.killing != nil {
				<-s.killing
			}
			if exited != nil {
				s.ended()
			}
			if s.stopped {
				return gatedir.CodeLost
			}
			s.expected = true
			return s.p.ExitCode()
		case <-exited:
			exited = nil
			s.ended()
			s.sweep()
		case sig := <-s.Signals:
			if !s.control(sig) {
				s.pass(sig)
			}
		case sig := <-s.p.Stops():
			s.halted(sig)
		case <-s.watch.C():
			s.look()
		case <-look.C:
			look.Reset(lookEvery)
			s.offer()
			s.look()
			s.lookAtHolder()
		case <-s.alarm.C():
		}
		s.act()
		s.arm()
	}
}

// look follows the holder: its deadlines, and its word that the lock is lost. A
// stop that has begun is not undone.
func (s *supervisor) look() {
	if s.stopped || s.suspended {
		return
	}
	held, reason := s.follow()
	switch {
	case !held && s.maxed():
		s.stop(reasonMaxHold)
	case !held:
		s.lose("the lock is lost: " + reason)
	case s.unguarded && bootclock.Now() < s.stopAt:
		s.unguarded = false
		s.Log = s.guarded
		s.Log.Warn("the lock is held again", "lock", s.state.Lock, "token", s.state.Token)
	}
}

// lookAtHolder says when the holder has gone, and when it is back. Nothing is done
// about it: the deadlines stand, and it may come back before they pass.
func (s *supervisor) lookAtHolder() {
	const sure = 2 // one that is being started again may be back by then
	if s.Dir.HolderLives() {
		if s.missed >= sure {
			s.Log.Info("the holder of the lock is back", "lock", s.state.Lock, "token", s.state.Token)
		}
		s.missed = 0
		return
	}
	if s.missed++; s.missed == sure && !s.stopped && !s.state.Standing {
		s.Log.Warn("the holder of the lock does not run any more; the command is stopped in time unless that comes back",
			"lock", s.state.Lock, "token", s.state.Token, "stopped_in", (s.stopAt - bootclock.Now()).Round(time.Millisecond))
	}
}

const (
	reasonMaxHold = "the lock has been held for the longest time allowed, LOCKGATE_MAX_HOLD"
	reasonLate    = "the lock could not be renewed in time"
)

// maxed tells whether MAX_HOLD has passed.
func (s *supervisor) maxed() bool { return s.maxAt > 0 && bootclock.Now() >= s.maxAt }

// lose stops CMD, unless it is to go on without the lock.
func (s *supervisor) lose(why string) {
	if !s.goesOn {
		s.stop(why)
		return
	}
	if s.unguarded {
		return
	}
	s.unguarded = true
	s.Log = s.guarded.With("unguarded", true) // every line from now on says so
	s.Log.Log(context.Background(), s.level(slog.LevelError), "the command goes on without the lock, as LOCKGATE_ON_LOST=continue asks: another may run now",
		"lock", s.state.Lock, "token", s.state.Token, "reason", why)
}

// act does what the clock asks for.
func (s *supervisor) act() {
	now := bootclock.Now()
	if s.suspended {
		s.expire()
		return
	}
	if !s.stopped && !s.unguarded && now >= s.stopAt {
		s.look() // we may have been frozen while the deadlines were moved on
	}
	switch {
	case s.stopped:
	case s.maxed():
		s.stop(reasonMaxHold)
	case now >= s.stopAt:
		s.lose(reasonLate)
	}
	tooLate := now >= s.killAt && (s.stopped || !s.goesOn)
	if s.killing == nil && (tooLate || s.sweepAt > 0 && now >= s.sweepAt) {
		s.kill()
	}
}

// arm sets the alarm to the next moment at which act has something to do.
func (s *supervisor) arm() {
	var at time.Duration // 0 is never
	add := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	if s.stopped || !s.goesOn {
		add(s.killAt)
	}
	if !s.stopped && !s.unguarded && !s.suspended {
		add(s.stopAt)
	}
	if !s.stopped && !s.suspended && s.maxAt > 0 {
		add(s.maxAt)
	}
	if s.sweepAt > 0 {
		add(s.sweepAt)
	}
	if s.killing != nil {
		at = 0
	}
	s.alarm.Set(at)
}

// stop is lockgate's own stop: TERM for CMD and everything that it started, KILL
// after the grace or at kill-at, whichever is first.
func (s *supervisor) stop(why string) {
	s.stopped = true
	now := bootclock.Now()
	if s.goesOn {
		s.killAt = now + s.grace // the lease's own end has no say
	}
	if now < s.killAt { // else a process that is stopped would be continued by it
		s.term()
	}
	s.killAt = min(s.killAt, now+s.grace)
	s.Log.Error("stopping the command", "lock", s.state.Lock, "token", s.state.Token,
		"reason", why, "killed_in", (s.killAt - now).Round(time.Millisecond))
}

func (s *supervisor) term() int {
	n, err := s.p.SignalAll(syscall.SIGTERM)
	if err != nil {
		s.Log.Warn("not everything could be told to stop", "err", err)
	}
	return n
}

// kill sends KILL until everything is gone. It works on a goroutine of its own,
// for a process that the kernel cannot end must not make us deaf.
func (s *supervisor) kill() {
	s.killing = make(chan struct{})
	log := s.Log
	go func() {
		defer close(s.killing)
		s.p.KillUntilGone(func(err error) {
			log.Error("the command does not end, not even by SIGKILL", "err", err)
		})
	}()
}

func (s *supervisor) ended() {
	s.left, s.suspended = true, false
	s.takeBack()
	level := slog.LevelInfo
	if s.p.ExitCode() == 0 {
		level = slog.LevelDebug // as everybody expects
	}
	s.Log.Log(context.Background(), level, "the command has ended", "lock", s.state.Lock, "code", s.p.ExitCode())
}

// sweep stops what CMD left behind.
func (s *supervisor) sweep() {
	if s.stopped {
		return // it has been told already
	}
	s.sweepAt = bootclock.Now() + s.grace
	if n := s.term(); n > 0 {
		s.Log.Warn("the command has ended and left processes behind, stopping them", "processes", n)
	}
}

// pass hands a signal to CMD alone, as kubelet would. One that the keyboard has sent
// to lockgate is for the whole job, as without lockgate: a shell that runs a command
// waits for it, and would not end if that was not told.
func (s *supervisor) pass(sig os.Signal) {
	n, ok := sig.(syscall.Signal)
	if !ok {
		return
	}
	send := s.p.Signal
	if (n == syscall.SIGINT || n == syscall.SIGQUIT) && s.Job != nil && s.Job.Group > 0 && child.KeyboardGroup() == s.Job.Group {
		send = s.p.SignalGroup
	}
	if err := send(n); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.Log.Warn("cannot pass a signal on", "signal", sig.String(), "err", err)
	}
}

// StopSignal tells whether a signal asks a process to stop, and its number.
func StopSignal(sig os.Signal) (int, bool) {
	n, ok := sig.(syscall.Signal)
	if !ok {
		return 0, false
	}
	switch n {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		return int(n), true
	default:
		return 0, false
	}
}
