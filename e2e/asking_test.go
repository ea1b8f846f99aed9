package e2e

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

func TestNothingIsTakenForAMainThatNeverAsks(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"native", "plain"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			holder := sidecar(t, t.TempDir(), b.via(settings{"MAIN_TIMEOUT": "1s", "SIDECAR": kind}))
			holder.wantExit(78)
			if n := len(holder.records("ERROR")); n != 1 || !strings.Contains(holder.output(), "no main asked for the lock") {
				t.Errorf("%d errors were logged; want one that says what is missing", n)
			}
			if n := b.way.Count(takes); n != 0 {
				t.Errorf("%d statements would have taken the lock", n)
			}
			if _, ok := b.row(); ok {
				t.Error("the lock has a row")
			}
			t.Logf("%s: 78 at MAIN_TIMEOUT; %d connections, %d statements, %d that take the lock",
				kind, b.way.Accepted(), b.way.Count(testserver.Any), b.way.Count(takes))
		})
	}
}

// B waits for the lock all the time. It must not have to wait for the TTL of a
// lease that nobody wants any more, nor for a lost answer.
func TestAnExecThatIsGoneBeforeItsVerdictLeavesNothing(t *testing.T) {
	t.Parallel()
	// Whoever waits for the lost answer waits this long.
	const callLimit = 5 * time.Second
	t.Run("killed while the answer to the acquire is under way", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, mariadb(t))
		b.hold(lockName)
		dir, at, second := t.TempDir(), newStage(t), newStage(t)
		trap := b.way.DropReply(takesOld, 1)
		holder := sidecar(t, dir, b.via(slow()).with(settings{"RENEW_EVERY": callLimit.String()}))
		main := execute(t, dir, at.puppet()...)
		_, err := trap.Answered(inTime(t))
		must(t, err)
		taken, _ := b.row()
		touch(t, second.curtain())
		other := second.run(t, b.past(settings{"ON_BUSY": "wait"}))
		other.awaitOutput("waiting for the lock")
		gone := time.Now()
		main.kill()
		next := tokenIn(t, second.witness())
		waited := time.Since(gone)
		other.wantExit(0)
		if next <= taken.token || waited >= callLimit {
			t.Errorf("B got token %d after %d, %s after exec had gone", next, taken.token, waited)
		}
		wantQuiet(t, holder, at)
		t.Logf("taken with %s to live, exec killed, B held it %s later", taken.left.Round(time.Millisecond), waited.Round(time.Millisecond))
	})
	t.Run("killed while the lock is busy", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, mariadb(t))
		dir, at, first := t.TempDir(), newStage(t), newStage(t)
		other := first.run(t, b.past(slow()))
		token := tokenIn(t, first.witness())
		holder := sidecar(t, dir, b.via(slow()).with(settings{"ON_BUSY": "wait"}))
		main := execute(t, dir, at.puppet()...)
		holder.awaitOutput("waiting for the lock")
		main.kill()
		holder.awaitOutput("attempt withdrawn")
		asked := b.way.Count(takes)
		touch(t, first.curtain())
		other.wantExit(0)
		next := b.hold(lockName)
		wantQuiet(t, holder, at)
		if n, m := b.changed(takes), b.way.Count(takes)-asked; n != 0 || m != 0 {
			t.Errorf("for a main that had gone the lock was taken %d times and asked for %d times", n, m)
		}
		t.Logf("asked %d times while exec lived and never after it was killed; tokens %d, %d are of others", asked, token, next)
	})
}

// wantQuiet ends a sidecar whose main never ran.
func wantQuiet(t *testing.T, holder *proc, at stage) {
	t.Helper()
	holder.signal(syscall.SIGTERM)
	holder.wantExit(0)
	holder.wantNoErrors()
	if exists(at.witness()) {
		t.Error("CMD ran")
	}
}

// kubelet can restart main before the sidecar has looked again whether the old
// one is gone.
func TestEveryRestartOfExecGetsItsOwnVerdict(t *testing.T) {
	t.Parallel()
	const starts = 50
	for _, c := range []struct {
		name string
		// end ends a main that runs.
		end func(main *proc, at stage)

		// blind has the sidecar look only when the next main has asked.
		blind bool
	}{
		{"CMD ends by itself", func(main *proc, at stage) { touch(main.t, at.curtain()); main.wantExit(0) }, false},
		{"exec is killed", func(main *proc, _ stage) { main.kill() }, false},
		{"exec is killed and the sidecar does not see it", func(main *proc, _ stage) { main.kill() }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			dir := t.TempDir()
			holder := sidecar(t, dir, b.via(slow()))
			var (
				last    uint64
				nonces  = map[string]bool{}
				ended   time.Time
				longest time.Duration
				quick   int
			)
			for i := range starts {
				at := newStage(t)
				main := execute(t, dir, at.puppet()...)
				if i > 0 {
					pause := time.Since(ended)
					longest = max(longest, pause)
					if pause < 150*time.Millisecond {
						quick++
					}
					if c.blind {
						awaitRequest(t, dir, stateIn(t, dir).Request)
						holder.signal(syscall.SIGCONT)
					}
				}
				token := tokenIn(t, at.witness())
				state := stateIn(t, dir)
				if token <= last || state.State != "acquired" || state.Token != token || nonces[state.Request] {
					t.Fatalf("start %d has token %d after %d, in the state %+v", i, token, last, state)
				}
				last, nonces[state.Request] = token, true
				if c.blind {
					holder.freeze()
				}
				c.end(main, at)
				ended = time.Now()
			}
			holder.signal(syscall.SIGCONT)
			b.awaitFree()
			holder.signal(syscall.SIGTERM)
			holder.wantExit(0)
			holder.wantNoErrors()
			if n, m := b.changed(takes), b.changed(releases); n != starts || m != starts || len(nonces) != starts {
				t.Errorf("%d starts had %d nonces, took the lock %d times and released it %d times", starts, len(nonces), n, m)
			}
			t.Logf("%s: %d starts, %d nonces, growing tokens, as many acquisitions and releases; restarted after %s at most, %d of %d within 150ms",
				c.name, starts, len(nonces), longest.Round(100*time.Microsecond), quick, starts-1)
		})
	}
}

// The first of each two starts is killed at a moment of its own: before it asks,
// while it waits, when CMD has just started.
func TestAnExecAfterOneThatWasKilledGetsItsOwnVerdict(t *testing.T) {
	t.Parallel()
	const pairs = 25
	b := newBench(t, mariadb(t))
	dir := t.TempDir()
	holder := sidecar(t, dir, b.via(slow()))
	var last uint64
	var whole time.Duration // of a start, as it was last seen
	ran := 0
	for i := range pairs {
		killed := newStage(t)
		if i > 0 {
			main := execute(t, dir, killed.puppet()...)
			<-time.After(rand.N(whole * 5 / 4)) // no event: the moment is what is tried
			main.kill()
			if exists(killed.witness()) {
				ran++
			}
		}
		at := newStage(t)
		began := time.Now()
		main := execute(t, dir, at.puppet()...)
		token := tokenIn(t, at.witness())
		whole = time.Since(began)
		if token <= last {
			t.Fatalf("token %d after %d", token, last)
		}
		last = token
		touch(t, at.curtain())
		main.wantExit(0)
	}
	b.awaitFree()
	holder.signal(syscall.SIGTERM)
	holder.wantExit(0)
	holder.wantNoErrors()
	t.Logf("%d starts after one that was killed, %d of those when CMD ran already: all got the lock, %d acquisitions", pairs-1, ran, b.changed(takes))
}

func TestAPlainSidecarEndsWithItsFirstRequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		set  settings
		cmd  int // CMD's exit code
		code int // exec's
		// play has main come to its end.
		play func(t *testing.T, b *bench, main *proc, at stage)
		errs int // what the sidecar says as an error
	}{
		{name: "CMD ends", play: func(t *testing.T, _ *bench, _ *proc, at stage) { tokenIn(t, at.witness()); touch(t, at.curtain()) }},
		{
			name: "CMD fails", cmd: 7, code: 7,
			play: func(t *testing.T, _ *bench, _ *proc, at stage) { tokenIn(t, at.witness()); touch(t, at.curtain()) },
		},
		{
			name: "exec is killed", code: 137,
			play: func(t *testing.T, _ *bench, main *proc, at stage) {
				tokenIn(t, at.witness())
				main.signal(syscall.SIGKILL)
			},
		},
		{
			name: "the release fails", set: settings{"TTL": "3s", "RENEW_EVERY": "500ms", "STOP_GRACE": "500ms", "SAFETY_MARGIN": "500ms"},
			play: func(t *testing.T, b *bench, _ *proc, at stage) {
				tokenIn(t, at.witness())
				must(t, b.way.SetMode(testserver.Refuse))
				b.way.Reset()
				touch(t, at.curtain())
			},
			errs: 1,
		},
		{name: "skipped", set: settings{"ON_BUSY": "skip", "SKIP_EXIT_CODE": "9", "NAME": "busy"}, code: 9},
		{name: "busy", set: settings{"ON_BUSY": "fail", "NAME": "busy"}, code: 75, errs: 1},
		{name: "no table, and it may not make one", set: settings{"DB_TABLE": "absent", "DB_AUTO_MIGRATE": "false", "START_TIMEOUT": "100ms"}, code: 69, errs: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			other := newStage(t)
			other.run(t, b.past(slow()).with(settings{"NAME": "busy"}))
			tokenIn(t, other.witness())
			dir, at := t.TempDir(), newStage(t)
			holder := sidecar(t, dir, b.via(slow()).with(settings{"SIDECAR": "plain"}).with(c.set))
			main := execute(t, dir, at.puppet("-exit", strconv.Itoa(c.cmd))...)
			if c.play != nil {
				c.play(t, b, main, at)
			}
			main.wantExit(c.code)
			holder.wantExit(0)
			if n := len(holder.records("ERROR")); n != c.errs {
				t.Errorf("the sidecar logged %d errors; want %d", n, c.errs)
			}
			if c.errs == 0 && c.set == nil {
				b.wantFree()
			}
			t.Logf("%s: exec ended with %d, the plain sidecar with 0, %d errors logged", c.name, c.code, c.errs)
		})
	}
}

func TestANativeSidecarStaysUntilItIsToldToStop(t *testing.T) {
	t.Parallel()
	b := newBench(t, mariadb(t))
	dir := t.TempDir()
	holder := sidecar(t, dir, b.via(slow()))
	var tokens []uint64
	for range 3 {
		at := newStage(t)
		main := execute(t, dir, at.puppet()...)
		tokens = append(tokens, tokenIn(t, at.witness()))
		touch(t, at.curtain())
		main.wantExit(0)
		b.awaitFree()
	}
	await(t, "the state is final", func() bool { return stateIn(t, dir).State == "released" })
	if holder.ended() {
		t.Error("the sidecar has ended by itself")
	}
	holder.signal(syscall.SIGTERM)
	holder.wantExit(0)
	holder.wantNoErrors()
	t.Logf("three requests, tokens %v, then 0 on SIGTERM", tokens)
}
