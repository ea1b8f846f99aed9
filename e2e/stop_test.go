package e2e

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// gated is one CMD under a lock, in either way.
type gated struct {
	main   *proc // has CMD's exit code
	holder *proc // renews; the same as main for run
	dir    string
}

// startGated starts CMD under a lock.
func startGated(t *testing.T, how way, set settings, command ...string) gated {
	t.Helper()
	if how == byRun {
		p := startRun(t, set, command...)
		return gated{main: p, holder: p}
	}
	dir := t.TempDir()
	return gated{holder: sidecar(t, dir, set), main: execute(t, dir, command...), dir: dir}
}

// terminate sends SIGTERM to all there is, as kubelet may.
func (g gated) terminate() {
	if g.holder != g.main {
		g.holder.signal(syscall.SIGTERM)
	}
	g.main.signal(syscall.SIGTERM)
}

// wantEnd checks both exit codes.
func (g gated) wantEnd(code int) {
	g.main.t.Helper()
	g.main.wantExit(code)
	if g.holder != g.main {
		g.holder.wantExit(0)
	}
}

func TestTheLockIsHeldUntilACommandThatWasToldToStopHasEnded(t *testing.T) {
	t.Parallel()
	const linger = 8 * time.Second // more than STOP_GRACE, and than TTL
	for _, how := range []way{byRun, bySidecar} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			lease := settings{"TTL": "5s", "RENEW_EVERY": "500ms", "STOP_GRACE": "500ms", "SAFETY_MARGIN": "500ms"}
			at, second := newStage(t), newStage(t)
			a := startGated(t, how, b.via(lease), at.puppet("-linger", linger.String(), "-exit", "7", "-beat", at.beat())...)
			token := tokenIn(t, at.witness())
			touch(t, second.curtain()) // B ends after its first sign of life
			other := second.run(t, b.past(lease).with(settings{"ON_BUSY": "wait"}), "-beat", second.beat())
			other.awaitOutput("waiting for the lock")

			before := b.changed(renews)
			told := time.Now()
			a.terminate()
			a.wantEnd(7)
			other.wantExit(0)

			last, first := lastBeat(t, at.beat()), lastBeat(t, second.beat())
			if gap := first.Sub(last); gap <= 0 {
				t.Errorf("B ran %s before A's command had ended", -gap)
			}
			// Without renewals the lease would have ended after the TTL.
			renewals := b.changed(renews) - before
			if last.Sub(told) < linger || renewals < 3 {
				t.Errorf("A's command lived for %s and there were %d renewals; want %s and at least 3", last.Sub(told), renewals, linger)
			}
			if next := tokenIn(t, second.witness()); next <= token {
				t.Errorf("token %d after %d", next, token)
			}
			a.main.wantNoErrors()
			a.holder.wantNoErrors()
			t.Logf("%s: told to stop, CMD lived for %s, %d renewals, exit code 7; B ran %s after its end",
				how, last.Sub(told).Round(time.Millisecond), renewals, first.Sub(last).Round(time.Millisecond))
		})
	}
}

// moment is a moment before CMD has started. It brings the store to it, and
// returns what waits for a gate to come to it and what looks at the store when the
// gate has ended.
type moment func(t *testing.T, b *bench) (come func(gated), look func())

func lockIsBusy(t *testing.T, b *bench) (come func(gated), look func()) {
	at := newStage(t)
	other := at.run(t, b.past(slow()))
	token := tokenIn(t, at.witness())
	return func(g gated) { g.holder.awaitOutput("waiting for the lock") }, func() {
		if row, _ := b.row(); row.token != token || row.released || !row.held() {
			t.Errorf("the other's row is %+v; want token %d, held", row, token)
		}
		touch(t, at.curtain())
		other.wantExit(0)
		other.wantNoErrors()
	}
}

func storeIsSilent(t *testing.T, b *bench) (come func(gated), look func()) {
	must(t, b.way.SetMode(testserver.Blackhole))
	return func(gated) { must(t, b.way.AwaitAccepted(inTime(t), 1)) }, func() {}
}

func answerIsLost(t *testing.T, b *bench) (come func(gated), look func()) {
	trap := b.way.DropReply(takesOld, 1)
	return func(gated) {
		_, err := trap.Answered(inTime(t))
		must(t, err)
		if row, _ := b.row(); !row.held() {
			t.Fatalf("the lock was not taken: %+v", row)
		}
	}, func() {}
}

func TestToldToStopBeforeTheCommandHasStarted(t *testing.T) {
	t.Parallel()
	together := func(_ *testing.T, g gated) { g.terminate() }
	execFirst := func(_ *testing.T, g gated) {
		g.main.signal(syscall.SIGTERM)
		g.main.wait()
		g.holder.awaitOutput("attempt withdrawn")
		g.holder.signal(syscall.SIGTERM)
	}
	sidecarFirst := func(t *testing.T, g gated) {
		g.holder.signal(syscall.SIGTERM)
		await(t, "the sidecar has given up", func() bool { return stateIn(t, g.dir).State == "error" })
		g.main.signal(syscall.SIGTERM)
	}
	for _, c := range []struct {
		name string
		how  way
		when moment
		tell func(*testing.T, gated)
	}{
		{"run, while the lock is busy", byRun, lockIsBusy, together},
		{"sidecar and exec, while the lock is busy", bySidecar, lockIsBusy, together},
		{"exec then sidecar, while the lock is busy", bySidecar, lockIsBusy, execFirst},
		{"sidecar then exec, while the lock is busy", bySidecar, lockIsBusy, sidecarFirst},
		// These take the 10s for which an acquire is undone at most.
		{"run, while the store does not answer", byRun, storeIsSilent, together},
		{"sidecar and exec, while the store does not answer", bySidecar, storeIsSilent, together},
		{"run, when the lock is taken and the answer lost", byRun, answerIsLost, together},
		{"sidecar and exec, when the lock is taken and the answer lost", bySidecar, answerIsLost, together},
		{"exec then sidecar, when the lock is taken and the answer lost", bySidecar, answerIsLost, execFirst},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			first := b.hold(lockName)
			at := newStage(t)
			come, look := c.when(t, b)
			// A call may take 5s, so an answer is still awaited when the signal
			// comes.
			g := startGated(t, c.how, b.via(slow()).with(settings{"ON_BUSY": "wait", "RENEW_EVERY": "5s"}), at.puppet()...)
			come(g)
			c.tell(t, g)
			g.wantEnd(143)
			look()
			b.wantFree()
			if exists(at.witness()) {
				t.Error("CMD ran")
			}
			next := b.hold(lockName)
			t.Logf("%s: 143, CMD never ran, the lock is free: token %d after %d", c.name, next, first)
		})
	}
}

// A sidecar can be restarted alone. Then exec, which nobody has told anything,
// has no verdict and never will.
func TestAnExecWhoseSidecarAloneWasToldToStopGetsNoVerdict(t *testing.T) {
	t.Parallel()
	b := newBench(t, mariadb(t))
	other, at := newStage(t), newStage(t)
	other.run(t, b.past(slow()))
	tokenIn(t, other.witness())
	g := startGated(t, bySidecar, b.via(slow()).with(settings{"ON_BUSY": "wait"}), at.puppet()...)
	g.holder.awaitOutput("waiting for the lock")
	g.holder.signal(syscall.SIGTERM)
	g.wantEnd(69)
	if exists(at.witness()) {
		t.Error("CMD ran")
	}
}

// Many starts, each told to stop at a moment of its own: before lockgate can hear
// it, while it asks, when CMD has just started.
func TestToldToStopAtAnyMomentOfTheStart(t *testing.T) {
	t.Parallel()
	const starts = 60
	for _, how := range []way{byRun, bySidecar} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			b.hold(lockName)
			// Where run has its private folder; none may be left.
			private := t.TempDir()
			set, dir, witnesses := b.via(slow()), t.TempDir(), t.TempDir()
			begin := func(witness string) *proc {
				command := []string{built.puppet, "-witness", witness, "-for", "10m"}
				if how == byRun {
					return launch(t, exec.Command(built.lockgate, append([]string{"run", "--"}, command...)...),
						append(set.environ(), "XDG_RUNTIME_DIR="+private))
				}
				return execute(t, dir, command...)
			}
			var holder *proc
			if how == bySidecar {
				holder = sidecar(t, dir, set)
			}
			ran, before := 0, 0
			var whole time.Duration // of a start, as it was last seen
			for i := range starts {
				witness := filepath.Join(witnesses, strconv.Itoa(i))
				began := time.Now()
				p := begin(witness)
				if i%10 == 0 {
					tokenIn(t, witness)
					whole = time.Since(began)
				} else {
					<-time.After(rand.N(whole * 5 / 4)) // no event: the moment is what is tried
				}
				p.signal(syscall.SIGTERM)
				p.wantExit(143)
				if exists(witness) {
					ran++
				} else {
					before++
				}
				if how == byRun {
					b.wantFree()
				}
			}
			if ran == 0 || before == 0 {
				t.Errorf("CMD had started in %d of %d starts; the moments were not spread", ran, starts)
			}
			if holder != nil {
				b.awaitFree()
				holder.signal(syscall.SIGTERM)
				holder.wantExit(0)
			}
			b.wantFree()
			b.hold(lockName)
			left, err := os.ReadDir(private)
			must(t, err)
			if len(left) > 0 {
				t.Errorf("%d private folders are left: %v", len(left), left)
			}
			t.Logf("%s: %d starts, all ended with 143, %d before CMD had started, %d after, %d acquisitions, none left held",
				how, starts, before, ran, b.changed(takes))
		})
	}
}
