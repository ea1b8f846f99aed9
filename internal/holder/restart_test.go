package holder_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db/memory"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// Here holders are processes, which are killed.

func TestARestartInMidHoldContinuesTheLease(t *testing.T) {
	r := newRig(t)
	start := r.listen(gate.Skip)
	first := start()
	m := r.ask("n")
	state := r.await("n", gatedir.Acquired)
	r.until("the mark", r.dir.IsMarkedAcquired)
	for range 3 {
		first.kill()
		old, err := r.dir.ReadState()
		if err != nil {
			t.Fatal(err)
		}
		first = start()
		r.until("the deadlines move on", func() bool {
			now, err := r.dir.ReadState()
			return err == nil && now.Verdict == gatedir.Acquired && now.StopBoot > old.StopBoot
		})
		now, err := r.dir.ReadState()
		if err != nil || now.Token != state.Token || now.Owner != state.Owner || now.AcquiredBoot != state.AcquiredBoot {
			t.Errorf("the state is %+v, %v; want the lease of %+v", now, err, state)
		}
	}
	r.wantCalls(memory.TryAcquire, "", 1)
	m.leave()
	r.await("n", gatedir.Released)
	r.wantCalls(memory.Release, "n", 1)
	r.wantFree()
}

func TestARestartWhileMainGoesLetsTheLockGo(t *testing.T) {
	r := newRig(t)
	start := r.listen(gate.Skip)
	first := start()
	m := r.ask("n")
	r.await("n", gatedir.Acquired)
	first.kill()
	r.done("n")
	m.leave()
	if !r.held("n") {
		t.Error("the lock is free already")
	}
	start()
	r.await("n", gatedir.Released)
	r.wantCalls(memory.TryAcquire, "", 1)
	r.wantFree()
}

func TestARestartWhileMainIsRestartedAnswersTheNewOne(t *testing.T) {
	r := newRig(t)
	start := r.listen(gate.Skip)
	first := start()
	m := r.ask("old")
	old := r.await("old", gatedir.Acquired)
	first.kill()
	m.leave()
	m = r.ask("new")
	start()
	state := r.await("new", gatedir.Acquired)
	if state.Token <= old.Token {
		t.Errorf("token %d after %d", state.Token, old.Token)
	}
	r.wantCalls(memory.Release, "old", 1)
	m.leave()
	r.await("new", gatedir.Released)
	r.wantFree()
}

func TestARestartWhileWaitingGoesOnWaiting(t *testing.T) {
	r := newRig(t)
	release := r.stranger()
	start := r.listen(gate.Wait)
	first := start()
	m := r.ask("n")
	r.until("an attempt", func() bool { return r.count(memory.TryAcquire, "n") > 0 })
	first.kill()
	attempts := r.count(memory.TryAcquire, "n")
	start()
	r.until("another attempt", func() bool { return r.count(memory.TryAcquire, "n") > attempts })
	release()
	state := r.await("n", gatedir.Acquired)
	if state.Owner != owner+"n" {
		t.Errorf("the owner is %q; want the same", state.Owner)
	}
	m.leave()
	r.await("n", gatedir.Released)
	r.wantFree()
}

// killedWhileTaking starts a holder that is killed when the store has given it
// the lock and before it hears of it.
func killedWhileTaking(t *testing.T) (r *rig, m *main, start func() *process) {
	t.Helper()
	r = newRig(t)
	taken, dead := make(chan struct{}), make(chan struct{})
	first := true
	r.after = func(_ context.Context, call memory.Call) error {
		if call.Op == memory.TryAcquire && first {
			first = false
			close(taken)
			<-dead
		}
		return nil
	}
	start = r.listen(gate.Skip)
	p := start()
	m = r.ask("n")
	<-taken
	p.kill()
	close(dead)
	if state, err := r.dir.ReadState(); err != nil || state.Verdict != gatedir.Waiting || !r.held("n") {
		t.Fatalf("the state is %+v, %v, the lock %+v; want waiting, and the lock held", state, err, r.row())
	}
	return r, m, start
}

func TestARestartWhileTakingFindsItsOwnLock(t *testing.T) {
	r, m, start := killedWhileTaking(t)
	token := r.row().Token
	start()
	if state := r.await("n", gatedir.Acquired); state.Token != token {
		t.Errorf("token %d; want %d, which was taken before", state.Token, token)
	}
	m.leave()
	r.await("n", gatedir.Released)
	r.wantFree()
}

func TestARestartAfterTakingForAMainThatIsGoneUndoesIt(t *testing.T) {
	r, m, start := killedWhileTaking(t)
	m.leave()
	start()
	r.await("n", gatedir.Error)
	r.until("it is undone", func() bool { return !r.held("n") })
	r.wantCalls(memory.TryAcquire, "n", 1)
}

func TestARestartAfterTakingForAnEarlierMainUndoesItAndAnswersTheNewOne(t *testing.T) {
	r, m, start := killedWhileTaking(t)
	token := r.row().Token
	m.leave()
	m = r.ask("new")
	start()
	if state := r.await("new", gatedir.Acquired); state.Token <= token {
		t.Errorf("token %d after %d", state.Token, token)
	}
	m.leave()
	r.await("new", gatedir.Released)
	r.wantFree()
}

func TestHoldersThatDieAtAnyMomentServeEveryMainOnce(t *testing.T) {
	r := newRig(t)
	start := r.listen(gate.Skip)
	p := start()
	dieSometime := func() {
		time.Sleep(rand.N(100 * time.Millisecond))
		p.kill()
		p = start()
	}
	var last uint64
	for i := range 8 {
		m := r.ask(nonce(i))
		dieSometime()
		state := r.await(nonce(i), gatedir.Acquired)
		if state.Token <= last || state.Owner != owner+nonce(i) {
			t.Errorf("main %d has token %d after %d, owner %q", i, state.Token, last, state.Owner)
		}
		last = state.Token
		dieSometime()
		renewals := r.count(memory.Renew, nonce(i))
		r.until("renewals", func() bool { return r.count(memory.Renew, nonce(i)) > renewals })
		if row := r.row(); row.Token != last || !r.held(nonce(i)) {
			t.Errorf("main %d: the lock is %+v; want token %d still", i, row, last)
		}
		m.leave()
		if i%2 == 0 {
			dieSometime()
		}
	}
	r.until("the last release", func() bool { return r.row().Released })
	for i := range 8 {
		if n := r.count(memory.Release, nonce(i)); n == 0 {
			t.Errorf("main %d: the lock was never let go", i)
		}
	}
}
