package e2e

import (
	"syscall"
	"testing"
	"time"
)

// slow are settings for a lease whose trust is longer than a busy machine needs
// to start a process.
func slow() settings {
	return settings{"TTL": "1m", "RENEW_EVERY": "1s", "STOP_GRACE": "2s", "SAFETY_MARGIN": "1s", "ON_BUSY": "fail"}
}

func TestARestartedSidecarContinuesItsLease(t *testing.T) {
	t.Parallel()
	const kills = 8
	b := newBench(t, mariadb(t))
	set, dir, at := b.via(slow()), t.TempDir(), newStage(t)
	holder := sidecar(t, dir, set)
	main := execute(t, dir, at.puppet("-exit", "5")...)
	token := tokenIn(t, at.witness())
	cmd := youngest(main.pid())
	for i := range kills {
		if i%2 == 0 {
			b.awaitStatements(renews, 1) // else it is killed as soon as it has said that it carries on
		}
		holder.kill()
		holder = sidecar(t, dir, set)
		holder.awaitOutput("carrying on with the lease")
	}
	b.awaitStatements(renews, 2)
	row, _ := b.row()
	if row.token != token || row.released || !row.held() {
		t.Errorf("after %d restarts the row is %+v; want token %d, held", kills, row, token)
	}
	if now := youngest(main.pid()); now != cmd {
		t.Errorf("CMD was process %d and is %d", cmd, now)
	}
	touch(t, at.curtain())
	main.wantExit(5)
	main.wantNoErrors()
	last := b.awaitFree()
	if n := b.changed(takes); n != 1 || last.token != token || last.owner != row.owner {
		t.Errorf("the lock was taken %d times; its row is %+v, CMD had token %d", n, last, token)
	}
	holder.wantNoErrors()
	t.Logf("%d of %d restarts carried on with token %d; %d renewals, one acquisition, one CMD", kills, kills, token, b.changed(renews))
}

// The lease would go on, but exec has begun to stop CMD when the sidecar comes
// back.
func TestARestartedSidecarDoesNotUndoAStop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		puppet []string
		ends   bool // by itself, when it sees the curtain
	}{
		{"CMD ends in its own time", []string{"-stubborn"}, true},
		{"CMD is killed at its hour", []string{"-stubborn"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			// 4s of trust, then 15s until the kill at the latest, then 5s.
			set := b.via(settings{"TTL": "24s", "RENEW_EVERY": "1s", "STOP_GRACE": "15s", "SAFETY_MARGIN": "5s"})
			if !c.ends {
				set = b.via(settings{"TTL": "15s", "RENEW_EVERY": "1s", "STOP_GRACE": "10s", "SAFETY_MARGIN": "2s"})
			}
			dir, at := t.TempDir(), newStage(t)
			holder := sidecar(t, dir, set)
			main := execute(t, dir, at.puppet(append(c.puppet, "-beat", at.beat())...)...)
			token := tokenIn(t, at.witness())
			holder.kill()
			main.awaitOutput("stopping the command")
			holder = sidecar(t, dir, set)
			holder.awaitOutput("carrying on with the lease")
			b.awaitStatements(renews, 1)
			renewed, _ := b.row()
			running := !main.ended()
			if c.ends {
				if !running {
					t.Error("CMD had ended before the restarted sidecar renewed; the test has shown nothing")
				}
				touch(t, at.curtain())
			}
			main.wantExit(76)
			row := b.awaitFree()
			if row.token != token || renewed.token != token || b.changed(takes) != 1 {
				t.Errorf("CMD had token %d, the row has %d, the lock was taken %d times", token, row.token, b.changed(takes))
			}
			if v := stateIn(t, dir).State; v != "lost" {
				t.Errorf("the verdict is %q; want lost", v)
			}
			t.Logf("renewed again while CMD ran: %t, %s to live; exec ended with 76 all the same, lock released", running, renewed.left.Round(time.Millisecond))
		})
	}
}

func TestASidecarKilledBetweenAcquireAndVerdictRunsMainOnOneToken(t *testing.T) {
	t.Parallel()
	for _, m := range messages()[:2] {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			if m.isNew {
				b.hold("another")
			} else {
				b.hold(lockName)
			}
			// A call may take 5s: the sidecar still waits for its answer when
			// it is killed.
			set := b.via(slow()).with(settings{"RENEW_EVERY": "5s"})
			dir, at := t.TempDir(), newStage(t)
			trap := b.way.DropReply(m.match, 1)
			holder := sidecar(t, dir, set)
			main := execute(t, dir, at.puppet()...)
			_, err := trap.Answered(inTime(t))
			must(t, err)
			holder.kill()
			taken, _ := b.row()
			sidecar(t, dir, set)
			token := tokenIn(t, at.witness())
			touch(t, at.curtain())
			main.wantExit(0)
			row := b.awaitFree()
			if n := b.changed(takes); n != 1 || token != taken.token || row.token != token || row.owner != taken.owner {
				t.Errorf("taken %d times, first as %+v, at last %+v; CMD had token %d", n, taken, row, token)
			}
			t.Logf("taken with token %d before the kill, CMD ran with %d, one acquisition", taken.token, token)
		})
	}
}

func TestASidecarThatComesBackToNoMainReleasesAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(main *proc, at stage)
	}{
		{"CMD has ended", func(main *proc, at stage) { touch(main.t, at.curtain()); main.wantExit(0) }},
		{"exec was killed", func(main *proc, _ stage) { main.kill() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			set, dir, at := b.via(slow()), t.TempDir(), newStage(t)
			holder := sidecar(t, dir, set)
			main := execute(t, dir, at.puppet()...)
			token := tokenIn(t, at.witness())
			holder.kill()
			c.end(main, at)
			before, _ := b.row()
			if !before.held() || before.released {
				t.Fatalf("nobody could release, but the row is %+v", before)
			}
			holder = sidecar(t, dir, set)
			after := b.awaitFree()
			if after.token != token || after.owner != before.owner {
				t.Errorf("released %+v; want token %d of the same owner", after, token)
			}
			next := b.hold(lockName)
			holder.signal(syscall.SIGTERM)
			holder.wantExit(0)
			if n := b.changed(takes); n != 1 {
				t.Errorf("the lock was taken %d times", n)
			}
			t.Logf("released with %s of its life left, the next token is %d after %d", before.left.Round(time.Millisecond), next, token)
		})
	}
}

// Main was restarted while the sidecar was dead. What the sidecar held for the
// old one must not keep the new one out.
func TestANewRequestOfADeadSidecarIsAnsweredAfterTheOldIsSettled(t *testing.T) {
	t.Parallel()
	t.Run("the old one held the lock", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, mariadb(t))
		set, dir, at, again := b.via(slow()), t.TempDir(), newStage(t), newStage(t)
		holder := sidecar(t, dir, set)
		main := execute(t, dir, at.puppet()...)
		token := tokenIn(t, at.witness())
		holder.kill()
		touch(t, at.curtain())
		main.wantExit(0)
		next := execute(t, dir, again.puppet()...)
		awaitRequest(t, dir, stateIn(t, dir).Request)
		sidecar(t, dir, set)
		wantSecond(t, b, next, again, token)
	})
	t.Run("the old one was about to get it", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, mariadb(t))
		b.hold(lockName)
		set, dir, at, again := b.via(slow()).with(settings{"RENEW_EVERY": "5s"}), t.TempDir(), newStage(t), newStage(t)
		trap := b.way.DropReply(takesOld, 1)
		holder := sidecar(t, dir, set)
		main := execute(t, dir, at.puppet()...)
		_, err := trap.Answered(inTime(t))
		must(t, err)
		holder.kill()
		main.kill()
		taken, _ := b.row()
		next := execute(t, dir, again.puppet()...)
		awaitRequest(t, dir, stateIn(t, dir).Request)
		sidecar(t, dir, set)
		wantSecond(t, b, next, again, taken.token)
		if exists(at.witness()) {
			t.Error("the first main ran")
		}
	})
}

func wantSecond(t *testing.T, b *bench, next *proc, at stage, first uint64) {
	t.Helper()
	token := tokenIn(t, at.witness())
	touch(t, at.curtain())
	next.wantExit(0)
	row := b.awaitFree()
	if token <= first || row.token != token {
		t.Errorf("the second main had token %d, the first %d, the row has %d", token, first, row.token)
	}
	must(t, b.way.AwaitAnswered(inTime(t), releases, 2))
	if n, m := b.changed(takes), b.changed(releases); n != 2 || m != 2 {
		t.Errorf("the lock was taken %d times and released %d times; want 2 and 2", n, m)
	}
	t.Logf("the first had token %d, released, the second %d, never busy", first, token)
}
