package wrap

import (
	"os"
	"syscall"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/child"
)

// On a terminal, CMD's process group is a job of ours as lockgate is a job of the
// shell.
//
// When standard input and output are the terminal, CMD's group is put into its
// foreground, but only while our own group is there: then the shell has lent it
// to us. The keys reach CMD's group, each once, and none reaches us. When CMD has
// ended, or before we stop, our group gets the terminal back.
//
// Otherwise the terminal is left alone. Ctrl-C reaches lockgate, which passes it on.
//
// While lockgate is stopped nobody renews. So a stop of CMD (Ctrl-Z, or a read in
// the background) and a request to stop ourselves come to the same: first CMD and
// every descendant is stopped, then lockgate. Whoever is continued looks at kill-at
// before CMD is.
//
// The guarding half of a run is not the shell's job, the holding half is. It asks that
// half to stop and stays awake itself, so what is stopped is killed at kill-at, even
// if it is continued by somebody else.

// Job is lockgate as a job of a shell.
type Job struct {
	Control *child.Job

	// Terminal may be lent to CMD; nil if it may not.
	Terminal *child.Terminal

	// Group is the process group that the shell handles.
	Group int

	// Holder sends a signal to the holding half of a run, whose group that is,
	// and reports whether that half lives; 0 sends nothing. It is nil if this
	// process is the job itself. SIGIO asks the holding half to stop itself; it
	// sends SIGCONT when it was continued.
	Holder func(syscall.Signal) bool
}

// AskToStop is the signal by which the guarding half asks the holding one to stop
// itself: one that nobody else sends, as its default is to end the process.
const AskToStop = syscall.SIGIO

// suspendLimit is how long stopping everything may take, in which nothing else is
// done. It never reaches past stop-at.
const suspendLimit = time.Second

// lend says what CMD finds when it starts, and reports whether that is the terminal.
func (w *wrapper) lend(spec *child.Spec) bool {
	if w.Job == nil {
		return false
	}
	t := w.Job.Terminal
	if t == nil && child.HasTerminal() {
		// CMD stays in the background for good, and a shell does not know of it. So
		// it inherits that we ignore SIGTTIN and SIGTTOU: a read of the terminal
		// is an error (EIO) and a write comes through, also with "stty tostop".
		// By default either would stop CMD, and as nothing could ever bring it to
		// the foreground, it would stop again whenever it was continued.
		return false
	}
	spec.Restore = w.Job.Control.Ignored()
	if t == nil || t.Foreground() != w.Job.Group {
		return false // a read stops CMD and then us, as the shell expects of a job
	}
	spec.Foreground = true
	return true
}

// pause stops lockgate before CMD has started. With ended, a signal has ended the
// waiting, with this exit code.
func (w *wrapper) pause() (code int, ended bool) {
	if w.Job == nil {
		return 0, false
	}
	if w.Job.Holder == nil {
		w.Job.Control.Stop(false)
		return 0, false
	}
	if !w.Job.Holder(AskToStop) {
		return 0, false
	}
	// CMD must not start while nobody renews.
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case sig := <-w.Signals:
			if n, stops := StopSignal(sig); stops {
				return n, true
			}
			if sig == syscall.SIGCONT {
				return 0, false
			}
		case <-look.C:
			if !w.Job.Holder(0) {
				return 0, false
			}
		}
	}
}

// control acts on the signals of job control, and reports whether sig is one.
func (s *supervisor) control(sig os.Signal) bool {
	switch sig {
	case syscall.SIGTSTP:
		s.suspend(false)
	case syscall.SIGCONT:
		if s.suspended {
			s.resume()
		} else {
			s.offer()
		}
	default:
		return false
	}
	return true
}

// halted acts when a signal has stopped CMD itself. SIGSTOP is no job control:
// whoever sent it has meant CMD alone.
func (s *supervisor) halted(sig syscall.Signal) {
	if s.Job == nil || s.suspended || s.left || !s.p.Halted() {
		return
	}
	switch sig {
	case syscall.SIGTSTP:
		if s.stopped {
			s.carryOn() // it has been told to end, and shall have its grace for that
			return
		}
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if s.stopped {
			return // continued, it would do the same again; SIGKILL is on its way
		}
		t := s.Job.Terminal
		if s.offer() || t != nil && t.Foreground() == s.p.Pid() {
			s.carryOn() // the shell has lent us the terminal since
			return
		}
		if child.Orphaned(s.Job.Group) {
			s.strand(sig)
			return
		}
	default:
		return
	}
	s.suspend(true)
}

// strand acts when CMD was stopped because it is not in the foreground, and nobody
// can bring it there. The kernel does this to stopped groups that are orphaned
// (_exit(2)): ours is not, because it has us.
func (s *supervisor) strand(sig syscall.Signal) {
	s.Log.Error("the command wants the terminal, but runs in its background, and no shell can change that",
		"lock", s.state.Lock, "signal", sig.String())
	if s.stranded {
		return // continued once more, it would do the same again
	}
	s.stranded = true
	if _, err := s.p.SignalAll(syscall.SIGHUP); err != nil {
		s.Log.Warn("not everything could be told to end", "err", err)
	}
}

// carryOn continues CMD's group.
func (s *supervisor) carryOn() {
	if err := s.p.Resume(); err != nil {
		s.Log.Warn("not everything could be continued", "err", err)
	}
}

// suspend stops CMD and every descendant, and then lockgate. With group the other
// members of lockgate's process group are stopped too: the terminal told CMD's
// alone.
func (s *supervisor) suspend(group bool) {
	if s.Job == nil || s.suspended || s.stopped || s.left || s.killing != nil {
		return // what has begun is seen to its end
	}
	limit := suspendLimit
	if !s.goesOn {
		limit = min(limit, s.stopAt-bootclock.Now())
	}
	if err := s.p.Suspend(limit); err != nil {
		// It could outlive the lease, so nothing is stopped.
		s.Log.Error("cannot stop everything that the command has started, so the command goes on", "lock", s.state.Lock, "err", err)
		s.carryOn()
		return
	}
	s.takeBack()
	s.suspended = true
	if s.Job.Holder == nil {
		s.Job.Control.Stop(group)
		s.resume()
	} else if !s.Job.Holder(AskToStop) {
		s.resume() // no shell knows of us any more
	}
}

// resume continues what suspend has stopped, unless that must not run any more.
func (s *supervisor) resume() {
	s.suspended = false
	if s.expire() {
		return
	}
	s.offer()
	s.look()
	s.act() // a stop that is due begins before anything is continued
	s.carryOn()
}

// expire kills what is stopped, without continuing it, once it must not run any more,
// and reports whether that is so.
func (s *supervisor) expire() bool {
	if s.killing != nil {
		return true
	}
	if s.goesOn || bootclock.Now() < s.killAt {
		return false
	}
	s.follow() // the holder may have moved the deadlines on before it was stopped
	if bootclock.Now() < s.killAt {
		return false
	}
	s.stopped = true
	s.Log.Error("the lock has ended while the command was stopped, killing it", "lock", s.state.Lock, "token", s.state.Token)
	s.kill()
	return true
}

// offer puts CMD into the foreground of a terminal that the shell has lent us, and
// reports whether it did. No signal need tell of that: a shell may bring a job that
// runs to the foreground without a word.
func (s *supervisor) offer() bool {
	if s.Job == nil || s.Job.Terminal == nil || s.left || s.suspended {
		return false
	}
	t := s.Job.Terminal
	if t.Foreground() != s.Job.Group {
		return false
	}
	group := s.p.Pid()
	if s.front != 0 && s.p.HasGroup(s.front) {
		group = s.front
	}
	if err := t.Give(group); err != nil {
		s.Log.Debug("cannot give the terminal to the command", "err", err)
		return false
	}
	s.lent = true
	return true
}

// takeBack gives the terminal that we have lent to CMD back to our group, but not one
// that is somebody else's by now. A group among CMD's that had it, as a shell's job
// has, gets it again later.
func (s *supervisor) takeBack() {
	if !s.lent {
		return
	}
	s.lent = false
	t := s.Job.Terminal
	group := t.Foreground()
	if group == 0 || group == s.Job.Group ||
		group != s.p.Pid() && !s.p.HasGroup(group) && !child.GroupIsGone(group) {
		return
	}
	s.front = group
	if err := t.Give(s.Job.Group); err != nil {
		s.Log.Debug("cannot give the terminal back", "err", err) // the shell has ended, or closed it
	}
}
