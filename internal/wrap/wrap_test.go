package wrap_test

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/gatedir"
)

func TestTheCommandsCodeIsPassedThrough(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, 1, 76, 255} {
		r := start(t, "exit", strconv.Itoa(code))
		r.request()
		r.say(gatedir.Acquired, far)
		r.ready(nil)
		r.wantEnd(code)
	}
}

func TestTheCommandGetsTheEnvironmentOfItsLock(t *testing.T) {
	t.Parallel()
	r := start(t, "environment")
	r.request()
	r.say(gatedir.Acquired, far)
	// What is not in this list was not passed on, whatever exec's own has.
	want := []string{"GORACE=atexit_sleep_ms=0", "LOCK=nightly", "TOKEN=42", roleVar + "=environment"}
	var got []string
	for range want {
		got = append(got, r.line(nil))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the environment is %q; want %q", got, want)
	}
	r.wantEnd(0)
}

func TestOnlyAWordOnThisRequestCounts(t *testing.T) {
	t.Parallel()
	garbage := func(text string) func(*rig) {
		return func(r *rig) {
			path := r.dir.Path() + "/garbage"
			if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Rename(path, r.dir.Path()+"/state.json")); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	changed := func(change func(*gatedir.State)) func(*rig) {
		return func(r *rig) { r.say(gatedir.Acquired, far, change) }
	}
	words := map[string]func(*rig){
		"another request":            changed(func(s *gatedir.State) { s.Request = "another" }),
		"another boot":               changed(func(s *gatedir.State) { s.Boot = "another" }),
		"another pod":                changed(func(s *gatedir.State) { s.Pod = "another" }),
		"no word at all":             garbage(""),
		"a malformed word":           garbage(`{"version":1,"request":"nonce","boot":"this boot","state":"skipped"`),
		"another version for others": garbage(`{"version":7,"request":"another","boot":"this boot"}`),
	}
	t.Run("before the verdict", func(t *testing.T) {
		r := start(t, "exit", "3")
		r.request()
		for _, word := range words {
			word(r)
			// Exec has looked at it when it is deaf to this one too.
			r.say(gatedir.Waiting)
		}
		if !r.alive() {
			t.Error("exec has ended without a verdict")
		}
		for _, word := range words {
			word(r)
		}
		r.say(gatedir.Acquired, far)
		r.ready(nil)
		r.wantEnd(3)
	})
	words["another token"] = changed(func(s *gatedir.State) { s.Token++ })
	for name, word := range words {
		t.Run(name+" moves no deadline", func(t *testing.T) {
			t.Parallel()
			r := start(t, "polite")
			r.request()
			r.ready(func() { r.say(gatedir.Acquired, patient) })
			word(r)
			r.number("TERM", nil)
			r.wantEnd(gatedir.CodeLost)
		})
	}
}

func TestAVerdictThatComesBeforeExecLooksIsFound(t *testing.T) {
	t.Parallel()
	// A holder that was told the nonce by other means answers at once.
	dir, err := gatedir.Open(memoryDir(t))
	if err != nil {
		t.Fatal(err)
	}
	early := &rig{t: t, dir: dir, nonce: "nonce"}
	early.say(gatedir.Acquired, far)
	r := startConfig(t, execConfig{Dir: dir.Path(), Role: "exit"}, "4")
	r.ready(nil)
	r.wantEnd(4)
}

func TestWaitingKeepsExecAndSilenceEndsIt(t *testing.T) {
	t.Parallel()
	r := startConfig(t, execConfig{Role: "exit", VerdictTimeout: window}, "0")
	r.request()
	last := bootclock.Now()
	for first := last; last < first+2*window; {
		r.say(gatedir.Waiting)
		last = bootclock.Now()
		time.Sleep(window / 20)
	}
	if !r.alive() {
		t.Error("exec has ended though the holder said that it waits")
	}
	r.wantEnd(gatedir.CodeUnavailable)
	if silent := bootclock.Now() - last; silent < window-window/10 {
		t.Errorf("exec ended after a silence of %s; want %s", silent, window)
	}
}

func TestOnlyAFreshWordIsASignOfTheHolder(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{
		"an old word said again and again": 0,
		"a word from the future":           time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startConfig(t, execConfig{Role: "exit", VerdictTimeout: window / 2}, "0")
			r.request()
			now := bootclock.Now()
			r.until("exec's end", func() bool {
				r.say(gatedir.Waiting, func(s *gatedir.State) { s.UpdatedBoot = gatedir.Duration(now + ahead) })
				return !r.alive()
			})
			r.wantEnd(gatedir.CodeUnavailable)
		})
	}
	t.Run("no word ever", func(t *testing.T) {
		t.Parallel()
		startConfig(t, execConfig{Role: "exit", VerdictTimeout: time.Millisecond}, "0").wantEnd(gatedir.CodeUnavailable)
	})
}

func TestEachVerdictHasItsCode(t *testing.T) {
	t.Parallel()
	code := func(code int) func(*gatedir.State) { return func(s *gatedir.State) { s.Code = code } }
	for name, tt := range map[string]struct {
		say  func(*rig)
		want int
	}{
		"skipped":                         {func(r *rig) { r.say(gatedir.Skipped) }, 9},
		"skipped is a success by default": {func(r *rig) { r.say(gatedir.Skipped, func(s *gatedir.State) { s.Policy.SkipExitCode = 0 }) }, 0},
		"busy":                            {func(r *rig) { r.say(gatedir.Busy, code(75)) }, 75},
		"error":                           {func(r *rig) { r.say(gatedir.Error, code(69)) }, 69},
		"lost":                            {func(r *rig) { r.say(gatedir.Lost, code(76)) }, 76},
		"released":                        {func(r *rig) { r.say(gatedir.Released) }, 69},
		"an error without a code":         {func(r *rig) { r.say(gatedir.Error) }, 69},
		"a code that would be a success":  {func(r *rig) { r.say(gatedir.Error, code(256)) }, 69},
		"a deadline that has passed": {func(r *rig) {
			r.say(gatedir.Acquired, far, func(s *gatedir.State) { s.StopBoot = gatedir.Duration(bootclock.Now()) })
		}, gatedir.CodeLost},
		"another version": {func(r *rig) {
			path := r.dir.Path() + "/new"
			text := `{"version":2,"request":"nonce","boot":"this boot","pod":"this pod","state":"acquired"}`
			if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Rename(path, r.dir.Path()+"/state.json")); err != nil {
				r.t.Fatal(err)
			}
		}, gatedir.CodeConfig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, "exit", "0")
			r.request()
			tt.say(r)
			r.wantEnd(tt.want) // and the command has said nothing
		})
	}
}

func TestASignalBeforeTheVerdictEndsExecAndNothingRan(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		r := start(t, "exit", "0")
		r.request()
		r.say(gatedir.Waiting)
		r.signal(syscall.SIGUSR1) // asks for nothing
		r.signal(sig)
		r.wantEnd(128 + int(sig))
	}
}

func TestASignalBetweenVerdictAndStartEndsExecAndNothingRan(t *testing.T) {
	t.Parallel()
	r := startConfig(t, execConfig{Role: "exit", SlowEnv: true}, "0")
	r.request()
	r.say(gatedir.Acquired)
	if line := r.line(nil); line != "slow" {
		t.Fatalf("exec said %q; want that it is slow", line)
	}
	r.signal(syscall.SIGUSR1) // asks for nothing
	r.signal(syscall.SIGTERM)
	r.say(gatedir.Acquired, far)
	r.wantEnd(143)
}

func TestACommandThatIsReadyTooLateDoesNotStart(t *testing.T) {
	t.Parallel()
	soon := func(s *gatedir.State) { s.StopBoot = gatedir.Duration(bootclock.Now() + window) }
	for name, tt := range map[string]struct {
		meanwhile func(*rig)
		want      int
	}{
		"nobody has moved the deadline": {func(*rig) {}, gatedir.CodeLost},
		"the lock was lost meanwhile":   {func(r *rig) { r.say(gatedir.Lost) }, gatedir.CodeLost},
		"the deadline was moved on":     {func(r *rig) { r.say(gatedir.Acquired, far) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startConfig(t, execConfig{Role: "exit", SlowEnv: true}, "0")
			r.request()
			r.say(gatedir.Acquired, far, soon)
			if line := r.line(nil); line != "slow" {
				t.Fatalf("exec said %q; want that it is slow", line)
			}
			tt.meanwhile(r)
			if tt.want == 0 {
				r.ready(nil)
			}
			r.wantEnd(tt.want)
		})
	}
}

func TestACommandThatCannotBeExecuted(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		path string
		want int
	}{
		"went":                    {t.TempDir() + "/none", 127},
		"may not be executed":     {script(t, "#!/bin/sh\n", 0o644), 126},
		"is no program":           {script(t, "\x7fELF\x00", 0o755), 126},
		"has lost its interpeter": {script(t, "#!/no/such/program\n", 0o755), 127},
		"became a directory":      {t.TempDir(), 126},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startConfig(t, execConfig{Path: tt.path})
			r.request()
			r.say(gatedir.Acquired, far)
			r.wantEnd(tt.want)
		})
	}
}

func TestSignalsAreForTheCommandAlone(t *testing.T) {
	t.Parallel()
	r := start(t, "family")
	r.request()
	r.say(gatedir.Acquired, far, patient)
	r.ready(nil)
	r.ready(nil)
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR2} {
		r.signal(sig)
		if got, want := r.line(nil), "cmd "+sig.String(); got != want {
			t.Errorf("the next line is %q; want %q", got, want)
		}
	}
	// The child has heard nothing of all this; it is told to stop because the
	// command left it behind.
	r.wantEnd(7, "child "+syscall.SIGTERM.String())
}

func TestASignalsDeathIsPassedThrough(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		r := start(t, "wait")
		r.request()
		r.say(gatedir.Acquired, far)
		pid := r.ready(nil)
		if sig == syscall.SIGKILL {
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
		} else {
			r.signal(sig)
		}
		r.wantEnd(128 + int(sig))
	}
}

func TestACommandWhoseDeadlinesMoveOnRunsOn(t *testing.T) {
	t.Parallel()
	r := start(t, "listen", "cmd")
	r.request()
	r.ready(r.renew)
	for end := bootclock.Now() + 2*window; bootclock.Now() < end; time.Sleep(window / 20) {
		r.renew()
	}
	r.signal(syscall.SIGUSR1)
	if got := r.line(r.renew); got != "cmd "+syscall.SIGUSR1.String() {
		t.Errorf("the command said %q", got)
	}
	r.renew()
	r.signal(syscall.SIGUSR2)
	if got := r.line(r.renew); got != "cmd "+syscall.SIGUSR2.String() {
		t.Errorf("the command said %q", got)
	}
	r.wantEnd(7)
}

func TestACommandWhoseDeadlinesStandIsStoppedAndThenKilled(t *testing.T) {
	t.Parallel()
	r := start(t, "deaf")
	r.request()
	var stopAt, killAt time.Duration
	r.ready(func() {
		stopAt = bootclock.Now() + window
		killAt = stopAt + grace
		r.say(gatedir.Acquired, func(s *gatedir.State) {
			s.StopBoot, s.KillBoot = gatedir.Duration(stopAt), gatedir.Duration(killAt)
		})
	})
	if told := time.Duration(r.number("TERM", nil)); told < stopAt {
		t.Errorf("TERM came %s before stop-at", stopAt-told)
	}
	r.wantEnd(gatedir.CodeLost)
	if now := bootclock.Now(); now < killAt {
		t.Errorf("KILL came %s before kill-at", killAt-now)
	}
}

func TestOurStopIsNoSuccessWhateverTheCommandSays(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*rig){
		"the deadline passed":   func(*rig) {},
		"the lock was lost":     func(r *rig) { r.say(gatedir.Lost) },
		"the lock was released": func(r *rig) { r.say(gatedir.Released) },
		"an error":              func(r *rig) { r.say(gatedir.Error) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, "polite")
			r.request()
			r.ready(func() { r.say(gatedir.Acquired, patient) })
			if name != "the deadline passed" {
				r.say(gatedir.Acquired, far)
			}
			stop(r)
			r.number("TERM", nil)
			r.wantEnd(gatedir.CodeLost)
		})
	}
}

func TestALostLockStopsAtOnceAndKillsAfterTheGrace(t *testing.T) {
	t.Parallel()
	r := start(t, "deaf")
	r.request()
	r.say(gatedir.Acquired, far)
	r.ready(nil)
	lost := bootclock.Now()
	r.say(gatedir.Lost)
	r.number("TERM", nil)
	r.wantEnd(gatedir.CodeLost) // though kill-at is hours away
	if took := bootclock.Now() - lost; took < grace {
		t.Errorf("it was killed after %s; want %s of grace", took, grace)
	}
}

func TestKillAtIsKeptWhenTheGraceIsLonger(t *testing.T) {
	t.Parallel()
	long := func(s *gatedir.State) { s.Policy.StopGrace = gatedir.Duration(time.Hour) }
	r := start(t, "deaf")
	r.request()
	r.ready(func() { r.say(gatedir.Acquired, long) })
	r.say(gatedir.Lost)
	r.number("TERM", nil)
	r.wantEnd(gatedir.CodeLost)
}

func TestAStopIsNotUndone(t *testing.T) {
	t.Parallel()
	r := start(t, "deaf")
	r.request()
	r.ready(r.renew)
	r.number("TERM", nil)
	r.say(gatedir.Acquired, far)
	r.wantEnd(gatedir.CodeLost)
}

func TestAStopReachesEverythingThatTheCommandStarted(t *testing.T) {
	t.Parallel()
	r := start(t, "leave", "deaf") // the command does not react either
	r.request()
	r.say(gatedir.Acquired, far)
	heard := []string{strings.Fields(r.line(nil))[0], strings.Fields(r.line(nil))[0]}
	slices.Sort(heard)
	if !slices.Equal(heard, []string{"cmd", "ready"}) {
		t.Fatalf("heard %q; want the command and its daemon", heard)
	}
	r.say(gatedir.Lost)
	r.number("TERM", nil) // the daemon, in another session
	r.wantEnd(gatedir.CodeLost)
}

func TestAFrozenExecWhoseDeadlinesWereMovedOnDoesNotStop(t *testing.T) {
	t.Parallel()
	r := start(t, "listen", "cmd")
	r.request()
	r.ready(r.renew)
	r.signal(syscall.SIGSTOP)
	last, err := r.dir.ReadState()
	if err != nil {
		t.Fatal(err)
	}
	for bootclock.Now() < time.Duration(last.KillBoot) {
		time.Sleep(window / 20)
	}
	r.say(gatedir.Acquired, far)
	r.signal(syscall.SIGUSR1)
	r.signal(syscall.SIGCONT)
	// It has looked at the clock when it passes a signal on; then once more.
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGUSR2} {
		if sig != syscall.SIGUSR1 {
			r.signal(sig)
		}
		if got, want := r.line(nil), "cmd "+sig.String(); got != want {
			t.Errorf("the next line is %q; want %q", got, want)
		}
	}
	r.wantEnd(7)
}

func TestAFrozenExecWhoseDeadlinesStoodStopsOnWaking(t *testing.T) {
	t.Parallel()
	r := start(t, "deaf")
	r.request()
	r.ready(r.renew)
	r.signal(syscall.SIGSTOP)
	last, err := r.dir.ReadState()
	if err != nil {
		t.Fatal(err)
	}
	for bootclock.Now() < time.Duration(last.KillBoot) {
		time.Sleep(window / 20)
	}
	r.signal(syscall.SIGCONT)
	if code := r.end(); code != gatedir.CodeLost {
		t.Errorf("exec ended with %d; want %d", code, gatedir.CodeLost)
	}
	// TERM and KILL went out together; what it said of the first is its affair.
	for _, line := range r.rest() {
		if !strings.HasPrefix(line, "TERM ") {
			t.Errorf("the command said %q", line)
		}
	}
}

func TestWhatTheCommandLeavesIsStoppedAndThenKilled(t *testing.T) {
	t.Parallel()
	for _, daemon := range []string{"polite", "deaf"} {
		t.Run(daemon, func(t *testing.T) {
			t.Parallel()
			r := start(t, "leave", daemon)
			r.request()
			if daemon == "polite" {
				r.say(gatedir.Acquired, far, patient)
			} else {
				r.say(gatedir.Acquired, far)
			}
			pids := map[string]int{}
			for range 2 {
				words := strings.Fields(r.line(nil))
				pids[words[0]], _ = strconv.Atoi(words[1])
			}
			before := bootclock.Now()
			r.signal(syscall.SIGUSR2)
			r.number("TERM", nil)
			r.wantEnd(5)
			if took := bootclock.Now() - before; daemon == "deaf" && took < grace {
				t.Errorf("the daemon was killed after %s; want %s of grace", took, grace)
			}
			// Reaped: nothing has its number.
			if err := syscall.Kill(pids["ready"], 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("the daemon %d: %v; want it reaped", pids["ready"], err)
			}
		})
	}
}

func TestASecondExecIsRefused(t *testing.T) {
	t.Parallel()
	first := start(t, "listen", "cmd")
	first.request()
	first.say(gatedir.Acquired, far)
	first.ready(nil)
	before := time.Now()
	second := startConfig(t, execConfig{Dir: first.dir.Path(), Nonce: "second", Role: "exit"}, "0")
	if code := second.end(); code != gatedir.CodeConfig {
		t.Errorf("the second exec ended with %d; want %d", code, gatedir.CodeConfig)
	}
	if took := time.Since(before); took < 2*time.Second {
		t.Errorf("the second exec tried for %s; want 2s", took)
	}
	if rest := second.rest(); len(rest) > 0 {
		t.Errorf("the second command said %q; want it not to run", rest)
	}
	first.request() // it is still the first one's
	if done, err := first.dir.ReadDone(); !errors.Is(err, gatedir.ErrNone) {
		t.Errorf("done is %+v, %v; want none", done, err)
	}
	first.signal(syscall.SIGUSR2)
	first.line(nil)
	first.wantEnd(7)
}

func TestARestartedExecAsksAnew(t *testing.T) {
	t.Parallel()
	first := start(t, "exit", "1")
	first.request()
	first.say(gatedir.Acquired, far)
	first.ready(nil)
	first.wantEnd(1)
	// The old verdict, its deadline still ahead, is not the new one's.
	second := startConfig(t, execConfig{Dir: first.dir.Path(), Nonce: "second", Role: "exit", VerdictTimeout: window / 2}, "0")
	second.request()
	second.wantEnd(gatedir.CodeUnavailable)
}

func TestADirectoryThatCannotBeWrittenIsAWrongSetting(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	if err := os.MkdirAll(dir+"/request/full", 0o755); err != nil {
		t.Fatal(err)
	}
	r := startConfig(t, execConfig{Dir: dir, Role: "exit"}, "0")
	if code := r.end(); code != gatedir.CodeConfig {
		t.Errorf("exec ended with %d; want %d", code, gatedir.CodeConfig)
	}
	if rest := r.rest(); len(rest) > 0 {
		t.Errorf("the command said %q; want it not to run", rest)
	}
}
