package e2e

import (
	"testing"

	"github.com/lockgate/lockgate/internal/testserver"
)

// message is one message of a holder to its store.
type message struct {
	name  string
	match testserver.Match
	isNew bool // the lock was never taken before
	take  bool // it is the one that takes the lock
	last  bool // it is the one that releases
}

func messages() []message {
	return []message{
		{name: "acquire of a new name", match: takesNew, isNew: true, take: true},
		{name: "acquire", match: takesOld, take: true},
		{name: "renewal", match: renews},
		{name: "release", match: releases, last: true},
	}
}

// play has A take the lock, renew it and release it while something happens to
// one of its messages, and returns A's row after its end.
func (m message) play(t *testing.T, b *bench, trap func() *testserver.Trap) (*testserver.Trap, rowState) {
	t.Helper()
	var before uint64
	if m.isNew {
		b.hold("another")
	} else {
		before = b.hold(lockName)
	}
	caught := trap()
	at := newStage(t)
	a := at.run(t, b.via(settings{"ON_BUSY": "fail"}))
	token := tokenIn(t, at.witness())
	if !m.last {
		if err := caught.Caught(inTime(t)); err != nil {
			t.Fatal(err)
		}
	}
	// A holds the lock, whatever happened: nobody else can get it.
	second := newStage(t)
	second.run(t, b.past(settings{"ON_BUSY": "fail"})).wantExit(75)
	// A later renewal says that A has got over it.
	b.awaitStatements(renews, 1)
	touch(t, at.curtain())
	if err := caught.Caught(inTime(t)); err != nil {
		t.Fatal(err)
	}
	a.wantExit(0)
	a.wantNoErrors()

	row, ok := b.row()
	switch {
	case !ok:
		t.Fatal("there is no row")
	case row.token != token || token <= before:
		t.Errorf("the row has token %d, CMD had %d, the last one was %d", row.token, token, before)
	case !row.released || row.held():
		t.Errorf("the lock is not free after A's end: %+v", row)
	}
	if n := b.changed(takes); n != 1 {
		t.Errorf("%d statements took the lock; want 1", n)
	}
	return caught, row
}

func TestALostReplyCostsNothing(t *testing.T) {
	t.Parallel()
	for _, m := range messages() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			trap, row := m.play(t, b, func() *testserver.Trap { return b.way.DropReply(m.match, 1) })
			answer, err := trap.Answered(inTime(t))
			if err != nil {
				t.Fatal(err)
			}
			if answer.Error != 0 || answer.Rows != 1 {
				t.Errorf("the swallowed answer was %+v; want one row changed", answer)
			}
			next := b.hold(lockName)
			if next <= row.token {
				t.Errorf("token %d after %d", next, row.token)
			}
			t.Logf("%s: the reply was lost, one acquisition, token %d, then %d", m.name, row.token, next)
		})
	}
}

func TestALateMessageChangesNothingAfterTheRelease(t *testing.T) {
	t.Parallel()
	for _, m := range messages() {
		t.Run(m.name+", nobody in between", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			trap, before := m.play(t, b, func() *testserver.Trap { return b.way.HoldBack(m.match, 1) })
			answer := deliver(t, trap)
			if !m.last && answer.Error == 0 && answer.Rows != 0 {
				t.Errorf("the late %s was answered %+v", m.name, answer)
			}
			after, _ := b.row()
			if after.owner != before.owner || after.token != before.token || after.expiresAt != before.expiresAt || !after.released {
				t.Errorf("the late %s made %+v of %+v", m.name, after, before)
			}
			next := b.hold(lockName)
			if next <= before.token {
				t.Errorf("token %d after %d", next, before.token)
			}
			t.Logf("%s: delivered late, answered %+v, token %d stayed, then %d", m.name, answer, before.token, next)
		})
		t.Run(m.name+", another holds by then", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			trap, before := m.play(t, b, func() *testserver.Trap { return b.way.HoldBack(m.match, 1) })
			at := newStage(t)
			other := at.run(t, b.past(settings{"ON_BUSY": "fail"}))
			token := tokenIn(t, at.witness())
			answer := deliver(t, trap)
			if answer.Error == 0 && answer.Rows != 0 {
				t.Errorf("the late %s was answered %+v", m.name, answer)
			}
			after, _ := b.row()
			if after.owner == before.owner || after.token != token || token <= before.token || after.released || !after.held() {
				t.Errorf("the late %s made %+v of the row; want it to be of another owner, with token %d", m.name, after, token)
			}
			touch(t, at.curtain())
			other.wantExit(0)
			other.wantNoErrors()
			t.Logf("%s: delivered to another's lease, answered %+v, its token %d stayed", m.name, answer, token)
		})
	}
}

// deliver delivers what was held back and returns the answer.
func deliver(t *testing.T, trap *testserver.Trap) testserver.Answer {
	t.Helper()
	trap.Deliver()
	answer, err := trap.Answered(inTime(t))
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// An acquire that is still under way when A gives up. A undoes it until one call
// limit and the server's lock wait have passed since its last try.
func TestAnAcquireThatOutlivesItsAttemptIsUndone(t *testing.T) {
	t.Parallel()
	for _, m := range messages()[:2] {
		t.Run(m.name+", before the undoing starts", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			a, trap := m.giveUp(t, b)
			answer := deliver(t, trap)
			if answer.Error != 0 || answer.Rows != 1 {
				t.Errorf("the late acquire was answered %+v; want it to take the lock", answer)
			}
			if err := b.way.SetMode(testserver.Pass); err != nil {
				t.Fatal(err)
			}
			m.wantUndone(t, b, a)
		})
		t.Run(m.name+", while it undoes", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			a, trap := m.giveUp(t, b)
			if err := b.way.SetMode(testserver.Pass); err != nil {
				t.Fatal(err)
			}
			// The first undoing finds nothing to undo.
			if err := b.way.AwaitAnswered(inTime(t), releases, 1); err != nil {
				t.Fatal(err)
			}
			answer := deliver(t, trap)
			if answer.Error != 0 || answer.Rows != 1 {
				t.Errorf("the late acquire was answered %+v; want it to take the lock", answer)
			}
			m.wantUndone(t, b, a)
		})
	}
	t.Run("later than that, it is free when its TTL is over", func(t *testing.T) {
		// Design, section 9: this is what an acquire that was delivered very
		// late may cost.
		t.Parallel()
		m := messages()[1]
		b := newBench(t, mariadb(t))
		a, trap := m.giveUp(t, b)
		if err := b.way.SetMode(testserver.Pass); err != nil {
			t.Fatal(err)
		}
		a.wantExit(69)
		b.wantFree()
		answer := deliver(t, trap)
		row, _ := b.row()
		if answer.Rows != 1 || !row.held() || row.released {
			t.Fatalf("the late acquire was answered %+v, and the row is %+v; want an orphan", answer, row)
		}
		next := b.holdAs(settings{"ON_BUSY": "wait"})
		if next <= row.token {
			t.Errorf("token %d after %d", next, row.token)
		}
		t.Logf("an orphan, with %s to live, was followed by token %d after %d", row.left, next, row.token)
	})
}

// giveUp has A give up with exit code 69 while one acquire of it is held back and
// the store cannot be reached otherwise.
func (m message) giveUp(t *testing.T, b *bench) (*proc, *testserver.Trap) {
	t.Helper()
	if m.isNew {
		b.hold("another")
	} else {
		b.hold(lockName)
	}
	trap := b.way.HoldBack(m.match, 1)
	// A call may take 2s, so the undoing goes on for 3s after the last try.
	a := newStage(t).run(t, b.via(settings{
		"TTL": "8s", "RENEW_EVERY": "2s", "STOP_GRACE": "600ms", "SAFETY_MARGIN": "1s", "START_TIMEOUT": "500ms",
	}))
	if err := trap.Caught(inTime(t)); err != nil {
		t.Fatal(err)
	}
	if err := b.way.SetMode(testserver.Refuse); err != nil {
		t.Fatal(err)
	}
	a.awaitOutput("no lock")
	return a, trap
}

func (m message) wantUndone(t *testing.T, b *bench, a *proc) {
	t.Helper()
	a.wantExit(69)
	row, ok := b.row()
	if !ok || !row.released || row.held() {
		t.Fatalf("the late acquire was not undone: %+v", row)
	}
	next := b.hold(lockName)
	if next <= row.token {
		t.Errorf("token %d after %d", next, row.token)
	}
	t.Logf("%s: taken with token %d after A had given up, undone, then %d", m.name, row.token, next)
}
