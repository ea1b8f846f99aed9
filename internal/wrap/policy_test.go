package wrap_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// goesOn is the policy of ON_LOST=continue.
func goesOn(s *gatedir.State) { s.Policy.OnLost = gatedir.GoOn }

func (r *rig) logged() string {
	r.t.Helper()
	log, err := os.ReadFile(r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(log)
}

func (r *rig) untilLogged(text string) {
	r.t.Helper()
	r.until("the log line "+text, func() bool { return strings.Contains(r.logged(), text) })
}

const unguarded = "goes on without the lock"

func TestACommandThatMayGoOnIsNotStoppedByALoss(t *testing.T) {
	for name, loss := range map[string]func(*rig){
		"the deadlines stand":        func(r *rig) {},
		"the holder says it is lost": func(r *rig) { r.say(gatedir.Lost, goesOn) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, "listen", "cmd")
			r.request()
			r.ready(func() { r.say(gatedir.Acquired, goesOn) })
			killAt := bootclock.Now() + window + grace
			loss(r)
			r.untilLogged(unguarded)
			// Past every deadline it had.
			r.until("the end of the lease", func() bool { return bootclock.Now() > killAt })
			r.signal(syscall.SIGUSR1)
			if got := r.line(nil); got != "cmd user defined signal 1" {
				t.Errorf("the next line is %q; want the command to live and hear USR1, and no TERM", got)
			}
			r.signal(syscall.SIGUSR2)
			r.wantEnd(7, "cmd user defined signal 2")
			_, after, _ := strings.Cut(r.logged(), unguarded)
			lines := strings.Split(strings.TrimSpace(after), "\n")[1:]
			if len(lines) == 0 {
				t.Error("nothing was logged after the loss; want the command's end")
			}
			for _, line := range lines {
				if !strings.Contains(line, "unguarded=true") {
					t.Errorf("a line after the loss does not say that the command is unguarded: %s", line)
				}
			}
		})
	}
}

func TestALockThatIsHeldAgainGuardsTheCommandAgain(t *testing.T) {
	t.Parallel()
	r := start(t, "listen", "cmd")
	r.request()
	r.ready(func() { r.say(gatedir.Acquired, goesOn) })
	r.say(gatedir.Lost, goesOn)
	r.untilLogged(unguarded)
	r.say(gatedir.Acquired, goesOn, far)
	r.untilLogged("the lock is held again")
	r.signal(syscall.SIGUSR2)
	r.wantEnd(7, "cmd user defined signal 2")
	if _, after, _ := strings.Cut(r.logged(), "held again"); strings.Contains(after, "unguarded") {
		t.Errorf("after it was held again the log still says unguarded: %s", after)
	}
}

func TestTheLongestHoldStopsACommandEvenIfItMayGoOn(t *testing.T) {
	for name, policy := range map[string]func(*gatedir.State){"stop": func(*gatedir.State) {}, "continue": goesOn} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, "polite")
			r.request()
			began := bootclock.Now()
			r.ready(func() {
				r.say(gatedir.Acquired, policy, func(s *gatedir.State) {
					s.AcquiredBoot = gatedir.Duration(began)
					s.Policy.MaxHold = gatedir.Duration(window)
					// As the holder counts them: never beyond the longest hold.
					s.StopBoot = gatedir.Duration(began + window)
					s.KillBoot = s.StopBoot + gatedir.Duration(grace)
				})
			})
			if at := time.Duration(r.number("TERM", nil)); at < began+window {
				t.Errorf("TERM came %s early", began+window-at)
			}
			r.wantEnd(gatedir.CodeLost)
			if !strings.Contains(r.logged(), "LOCKGATE_MAX_HOLD") {
				t.Error("the log does not say that it was MAX_HOLD")
			}
		})
	}
}

// standing publishes init's verdict into a new directory.
func standing(t *testing.T, verdict gatedir.Verdict, changes ...func(*gatedir.State)) *rig {
	t.Helper()
	dir, err := gatedir.Open(memoryDir(t))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, nonce: "init's"}
	r.say(verdict, append([]func(*gatedir.State){func(s *gatedir.State) { s.Standing = true }}, changes...)...)
	return r
}

func TestAStandingVerdictIsTakenUpOnce(t *testing.T) {
	t.Parallel()
	s := standing(t, gatedir.Acquired, far)
	first := startConfig(t, execConfig{Dir: s.dir.Path(), Role: "exit", Nonce: "first"}, "3")
	first.nonce = s.nonce // what it names
	first.ready(nil)
	first.wantEnd(3)
	second := startConfig(t, execConfig{Dir: s.dir.Path(), Role: "exit", Nonce: "second"}, "0")
	if got := second.end(); got != gatedir.CodeUnavailable {
		t.Errorf("the second exec ended with %d; want %d", got, gatedir.CodeUnavailable)
	}
	if rest := second.rest(); len(rest) > 0 {
		t.Errorf("the second exec's command ran: %q", rest)
	}
	if !strings.Contains(second.logged(), "has been used already") {
		t.Errorf("the second exec does not say why: %s", second.logged())
	}
}

func TestACommandOnAStandingVerdictIsStoppedInTime(t *testing.T) {
	t.Parallel()
	s := standing(t, gatedir.Acquired)
	state, err := s.dir.ReadState()
	if err != nil {
		t.Fatal(err)
	}
	r := startConfig(t, execConfig{Dir: s.dir.Path(), Role: "polite"})
	r.nonce = s.nonce
	r.ready(nil)
	if at := gatedir.Duration(r.number("TERM", nil)); at < state.StopBoot || at >= state.KillBoot {
		t.Errorf("TERM came at %s; want from %s to %s", time.Duration(at), time.Duration(state.StopBoot), time.Duration(state.KillBoot))
	}
	r.wantEnd(gatedir.CodeLost)
}

func TestAStandingVerdictThatIsNoLockEndsEveryExec(t *testing.T) {
	past := func(s *gatedir.State) { s.StopBoot, s.KillBoot = 1, 2 }
	for name, c := range map[string]struct {
		verdict gatedir.Verdict
		change  func(*gatedir.State)
		code    int
		says    string
	}{
		"skipped":  {gatedir.Skipped, func(*gatedir.State) {}, 9, "skipping"},
		"busy":     {gatedir.Busy, func(s *gatedir.State) { s.Code = gatedir.CodeBusy }, gatedir.CodeBusy, "does not run"},
		"an error": {gatedir.Error, func(s *gatedir.State) { s.Code = gatedir.CodeUnavailable }, gatedir.CodeUnavailable, "does not run"},
		"too old":  {gatedir.Acquired, past, gatedir.CodeUnavailable, "too old to be trusted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := standing(t, c.verdict, c.change)
			for i := range 2 { // main may be restarted
				r := startConfig(t, execConfig{Dir: s.dir.Path(), Role: "exit", Nonce: fmt.Sprint(i)}, "0")
				if got := r.end(); got != c.code {
					t.Errorf("exec %d ended with %d; want %d", i, got, c.code)
				}
				if rest := r.rest(); len(rest) > 0 {
					t.Errorf("the command ran: %q", rest)
				}
				if !strings.Contains(r.logged(), c.says) {
					t.Errorf("exec does not say %q: %s", c.says, r.logged())
				}
			}
		})
	}
}

func TestAStandingVerdictOfAnotherBootOrPodIsVoid(t *testing.T) {
	for name, change := range map[string]func(*gatedir.State){
		"boot": func(s *gatedir.State) { s.Boot = "another" },
		"pod":  func(s *gatedir.State) { s.Pod = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := standing(t, gatedir.Acquired, far, change)
			r := startConfig(t, execConfig{Dir: s.dir.Path(), Role: "exit", VerdictTimeout: window}, "0")
			r.request() // its own
			r.wantEnd(gatedir.CodeUnavailable)
		})
	}
}

// A holder that is still letting go of an earlier lock is there.
func TestAHolderBusyWithAnEarlierRequestIsNotTakenForDead(t *testing.T) {
	t.Parallel()
	r := startConfig(t, execConfig{Role: "exit", VerdictTimeout: window}, "3")
	r.request()
	last := bootclock.Now()
	for first := last; last < first+2*window; {
		r.say(gatedir.Acquired, func(s *gatedir.State) { s.Request = "an earlier one" })
		last = bootclock.Now()
		time.Sleep(window / 20)
	}
	if !r.alive() {
		t.Fatalf("exec has given up: %s", r.logged())
	}
	r.say(gatedir.Acquired, far)
	r.ready(nil)
	r.wantEnd(3)
}

// Such a sidecar would never answer, and it needs its own request.
func TestAnExecBesideASidecarThatDoesNotExpectItIsRefused(t *testing.T) {
	t.Parallel()
	s := standing(t, gatedir.Acquired, far, func(s *gatedir.State) { s.Standing, s.Policy.Unwrapped = false, true })
	if err := s.dir.WriteRequest(gatedir.Request{Nonce: s.nonce, Boot: boot, Pod: pod}); err != nil {
		t.Fatal(err)
	}
	lock, err := s.dir.LockHolder()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	r := startConfig(t, execConfig{Dir: s.dir.Path(), Role: "exit"}, "0")
	if got := r.end(); got != gatedir.CodeConfig {
		t.Errorf("exec ended with %d; want %d", got, gatedir.CodeConfig)
	}
	if !strings.Contains(r.logged(), "LOCKGATE_WRAPPED") {
		t.Errorf("exec does not name the setting: %s", r.logged())
	}
	if req, err := s.dir.ReadRequest(); err != nil || req.Nonce != s.nonce {
		t.Errorf("the request is %+v, %v; want the sidecar's own", req, err)
	}
}

func TestAHolderThatHasGoneIsMissedAndOneThatIsBackIsGreeted(t *testing.T) {
	t.Parallel()
	dir, err := gatedir.Open(memoryDir(t))
	if err != nil {
		t.Fatal(err)
	}
	holder, err := dir.LockHolder()
	if err != nil {
		t.Fatal(err)
	}
	r := startConfig(t, execConfig{Dir: dir.Path(), Role: "listen"}, "cmd")
	r.request()
	r.ready(func() { r.say(gatedir.Acquired, far) })
	holder.Close()
	r.untilLogged("does not run any more")
	holder, err = dir.LockHolder()
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	r.untilLogged("is back")
	r.signal(syscall.SIGUSR2)
	r.wantEnd(7, "cmd user defined signal 2")
	if n := strings.Count(r.logged(), "does not run any more"); n != 1 {
		t.Errorf("the holder was missed %d times; want once", n)
	}
}
