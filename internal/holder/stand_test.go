package holder_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/memory"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/holder"
)

// stand is one init.
func (r *rig) stand(ctx context.Context, nonce string, changes ...func(*holder.Config)) gate.Status {
	r.t.Helper()
	cfg := config(r.log)
	cfg.Dir, cfg.Gate.Store = r.dir, r.store()
	for _, change := range changes {
		change(&cfg)
	}
	h := holder.New(cfg)
	defer h.Close()
	return h.Stand(ctx, nonce)
}

func (r *rig) wantState(nonce string, verdict gatedir.Verdict, standing bool) gatedir.State {
	r.t.Helper()
	state, err := r.dir.ReadState()
	if err != nil || state.Request != nonce || state.Verdict != verdict || state.Standing != standing {
		r.t.Fatalf("the state is %+v, %v; want %s for %q, standing: %t", state, err, verdict, nonce, standing)
	}
	return state
}

func TestInitLeavesAVerdictThatStands(t *testing.T) {
	r := newRig(t)
	status := r.stand(t.Context(), "i")
	if status.State != gate.Acquired || !r.held("i") {
		t.Fatalf("Stand = %+v, row %+v; want acquired", status, r.row())
	}
	state := r.wantState("i", gatedir.Acquired, true)
	if state.Token != status.Lease.Token || state.StopBoot <= 0 || !r.dir.IsMarkedAcquired() {
		t.Errorf("the state is %+v; want token %d, deadlines and the mark", state, status.Lease.Token)
	}
	if _, err := r.dir.ReadRequest(); !errors.Is(err, gatedir.ErrNone) {
		t.Errorf("ReadRequest = %v; want none: init has asked nobody", err)
	}
	r.wantCalls(memory.Renew, "", 0)
	r.wantCalls(memory.Release, "", 0)
}

func TestInitThatFindsTheLockBusy(t *testing.T) {
	r := newRig(t)
	r.stranger()
	if status := r.stand(t.Context(), "i"); status.State != gate.Skipped {
		t.Errorf("Stand = %+v; want skipped", status)
	}
	r.wantState("i", gatedir.Skipped, true)
	if status := r.stand(t.Context(), "j", func(c *holder.Config) { c.Gate.OnBusy = gate.Fail }); status.State != gate.Busy {
		t.Errorf("Stand = %+v; want busy", status)
	}
	r.wantState("j", gatedir.Busy, true)
}

func TestInitToldToStopLeavesNothingHeld(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	r.after = func(_ context.Context, call memory.Call) error {
		if call.Op == memory.TryAcquire {
			cancel()
		}
		return nil
	}
	if status := r.stand(ctx, "i"); !errors.Is(status.Err, gate.ErrWithdrawn) {
		t.Errorf("Stand = %+v; want withdrawn", status)
	}
	r.wantFree()
	if state := r.wantState("i", gatedir.Error, true); state.Code != 0 {
		t.Errorf("the verdict's code is %d; want none", state.Code)
	}
	if r.dir.IsMarkedAcquired() {
		t.Error("the mark is still there")
	}
}

func TestARestartedInitCarriesOnUnlessMainHasStarted(t *testing.T) {
	t.Run("it was killed after it had the lock", func(t *testing.T) {
		r := newRig(t)
		first := r.stand(t.Context(), "i")
		second := r.stand(t.Context(), "j")
		if second.State != gate.Acquired || second.Lease.Token != first.Lease.Token {
			t.Errorf("Stand = %+v; want acquired with token %d", second, first.Lease.Token)
		}
		r.wantState("i", gatedir.Acquired, true)
	})
	t.Run("it was killed before it knew whether it had the lock", func(t *testing.T) {
		r := newRig(t)
		store := r.server.Open(memory.Hooks{})
		lease, err := store.TryAcquire(t.Context(), db.Request{Name: name, Owner: owner + "i", TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		r.put("i", gatedir.Waiting, func(s *gatedir.State) { s.Standing = true })
		if status := r.stand(t.Context(), "j"); status.State != gate.Acquired || status.Lease.Token != lease.Token {
			t.Errorf("Stand = %+v; want acquired with token %d", status, lease.Token)
		}
	})
	t.Run("main has taken it up", func(t *testing.T) {
		r := newRig(t)
		r.stand(t.Context(), "i")
		m := r.ask("i")
		defer m.leave()
		// Its lease is nobody else's, so it is no reason to call the job done.
		ctx, cancel := context.WithCancel(t.Context())
		r.after = func(_ context.Context, call memory.Call) error {
			if call.Owner == owner+"j" && r.count(memory.TryAcquire, "j") > 1 {
				cancel() // it has waited, and asked again
			}
			return nil
		}
		if status := r.stand(ctx, "j"); !errors.Is(status.Err, gate.ErrWithdrawn) {
			t.Errorf("Stand = %+v; want it to wait until it is told to stop", status)
		}
	})
}

// A sidecar in the same directory leaves init's lease alone: init's owner is
// another, and main runs on it already.
func TestASidecarDoesNotCarryOnWithInitsLease(t *testing.T) {
	r := newRig(t)
	r.stand(t.Context(), "i")
	s := r.sidecar()
	m := r.ask("i") // exec has taken it up
	m.leave()
	m = r.ask("own") // and, restarted, asks the sidecar
	// It waits for what is left of it, as for a holder of the same run.
	r.await("own", gatedir.Waiting)
	r.until("another try", func() bool { return r.count(memory.TryAcquire, "own") > 1 })
	m.leave()
	s.cancel()
	s.wantEnd(nil)
	r.wantCalls(memory.Renew, "i", 0)
	r.wantCalls(memory.Release, "i", 0)
}

// ownRequest is a request that a holder has made itself.
func (r *rig) ownRequest(nonce string) {
	r.t.Helper()
	if err := r.dir.WriteRequest(gatedir.Request{Nonce: nonce, Boot: boot, Pod: pod, ByHolder: true}); err != nil {
		r.t.Fatal(err)
	}
}

// unwrapped starts a holder beside a main that does not ask.
func (r *rig) unwrapped(nonce string, changes ...func(*holder.Config)) *sidecar {
	r.t.Helper()
	return r.start(context.Background(), func(ctx context.Context, h *holder.Holder) error { return h.Unwrapped(ctx, nonce) }, changes...)
}

func TestAnUntouchedMainGetsTheLockAtOnceAndUntilThePodEnds(t *testing.T) {
	r := newRig(t)
	s := r.unwrapped("u")
	r.await("u", gatedir.Acquired)
	r.until("the mark", r.dir.IsMarkedAcquired)
	r.until("renewals", func() bool { return r.count(memory.Renew, "u") > 3 })
	told := time.Now()
	s.cancel()
	s.wantEnd(nil)
	if lag := time.Since(told); lag < time.Second {
		t.Errorf("the lock was let go %s after the signal; main may live longer than that", lag)
	}
	r.wantFree()
	r.wantState("u", gatedir.Released, false)
	if r.dir.IsMarkedAcquired() {
		t.Error("the mark is still there")
	}
	r.wantCalls(memory.Release, "u", 1)
}

func TestAnUntouchedMainsHolderRenewsWhileMainEnds(t *testing.T) {
	r := newRig(t)
	s := r.unwrapped("u")
	r.await("u", gatedir.Acquired)
	s.cancel()
	before := r.count(memory.Renew, "u")
	r.until("renewals after the signal", func() bool { return r.count(memory.Renew, "u") > before+3 })
	if !r.held("u") {
		t.Errorf("the row is %+v; want it held while main ends", r.row())
	}
	s.wantEnd(nil)
}

func TestAnUntouchedMainIsToldThatTheLockIsBusy(t *testing.T) {
	r := newRig(t)
	r.stranger()
	s := r.unwrapped("u")
	r.await("u", gatedir.Skipped)
	// It stays, for one that exited would be restarted.
	select {
	case err := <-s.result:
		t.Fatalf("the holder has ended: %v", err)
	case <-time.After(10 * renew):
	}
	s.cancel()
	s.wantEnd(nil)
	r.wantCalls(memory.TryAcquire, "u", 1)
}

func TestAWaitForAnUntouchedMainEndsWithThePod(t *testing.T) {
	r := newRig(t)
	r.stranger()
	s := r.unwrapped("u", func(c *holder.Config) { c.Gate.OnBusy = gate.Wait })
	r.until("a second try", func() bool { return r.count(memory.TryAcquire, "u") > 1 })
	s.cancel()
	s.wantEnd(nil)
	if state := r.wantState("u", gatedir.Error, false); state.Code != 0 {
		t.Errorf("code %d; want none", state.Code)
	}
}

func TestARestartedHolderOfAnUntouchedMainCarriesOn(t *testing.T) {
	t.Run("with the lease", func(t *testing.T) {
		r := newRig(t)
		store := r.server.Open(memory.Hooks{})
		lease, err := store.TryAcquire(t.Context(), db.Request{Name: name, Owner: owner + "u", TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		r.ownRequest("u")
		at := gatedir.Duration(clock())
		r.put("u", gatedir.Acquired, func(s *gatedir.State) {
			s.Token, s.AcquiredBoot = lease.Token, at
			s.EndBoot = at + gatedir.Duration(ttl)
			s.StopBoot, s.KillBoot = s.EndBoot-gatedir.Duration(2*time.Second), s.EndBoot-gatedir.Duration(time.Second)
		})
		s := r.unwrapped("v")
		r.until("a renewal", func() bool { return r.count(memory.Renew, "u") > 0 })
		r.wantCalls(memory.TryAcquire, "", 0)
		s.cancel()
		s.wantEnd(nil)
		r.wantFree()
	})
	t.Run("with a verdict that is final, without another try", func(t *testing.T) {
		for _, verdict := range []gatedir.Verdict{gatedir.Lost, gatedir.Skipped, gatedir.Released} {
			r := newRig(t)
			r.ownRequest("u")
			r.put("u", verdict)
			s := r.unwrapped("v")
			select {
			case err := <-s.result:
				t.Fatalf("%s: the holder has ended: %v", verdict, err)
			case <-time.After(5 * renew):
			}
			s.cancel()
			s.wantEnd(nil)
			r.wantNoCalls()
		}
	})
	t.Run("but not with a request of another boot", func(t *testing.T) {
		r := newRig(t)
		r.put("u", gatedir.Acquired, func(s *gatedir.State) { s.Boot, s.StopBoot, s.KillBoot = "another", 1, 2 })
		if err := r.dir.MarkAcquired(7); err != nil {
			t.Fatal(err)
		}
		r.stranger()
		s := r.unwrapped("v")
		r.await("v", gatedir.Skipped)
		if r.dir.IsMarkedAcquired() {
			t.Error("a mark of another boot is still there")
		}
		s.cancel()
		s.wantEnd(nil)
	})
}

// An exec that should not be there overwrites the request. The restarted holder is
// the same owner all the same.
func TestARestartedHolderOfAnUntouchedMainIsNotLedAstrayByAnExec(t *testing.T) {
	for name, change := range map[string]func(r *rig){
		"the request is an exec's": func(r *rig) { r.request("an exec's") },
		"the request is gone": func(r *rig) {
			if err := os.Remove(filepath.Join(r.dir.Path(), "request")); err != nil {
				r.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			unwrapped := func(c *holder.Config) { c.Policy.Unwrapped = true }
			first := r.unwrapped("u", unwrapped)
			r.await("u", gatedir.Acquired)
			// It was killed: what it had published is there, and its lease.
			state, err := r.dir.ReadState()
			if err != nil {
				t.Fatal(err)
			}
			row := r.row()
			first.cancel()
			first.wantEnd(nil)
			again := newRig(t)
			lease, err := again.server.Open(memory.Hooks{}).TryAcquire(t.Context(), db.Request{Name: "nightly", Owner: row.Owner, TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			state.Token = lease.Token
			if err := again.dir.WriteState(state); err != nil {
				t.Fatal(err)
			}
			again.request("u")
			change(again)
			s := again.unwrapped("v", unwrapped)
			again.until("a renewal", func() bool { return again.count(memory.Renew, "u") > 0 })
			again.wantCalls(memory.TryAcquire, "", 0)
			s.cancel()
			s.wantEnd(nil)
			again.wantFree()
		})
	}
	t.Run("an exec was there first", func(t *testing.T) {
		r := newRig(t)
		r.request("an exec's")
		s := r.unwrapped("u", func(c *holder.Config) { c.Policy.Unwrapped = true })
		r.await("u", gatedir.Acquired)
		s.cancel()
		s.wantEnd(nil)
	})
}

func TestALostLeaseOfAnUntouchedMainIsSaidAndKept(t *testing.T) {
	r := newRig(t)
	s := r.unwrapped("u")
	state := r.await("u", gatedir.Acquired)
	if err := r.server.Open(memory.Hooks{}).Revoke(t.Context(), name, state.Token, false); err != nil {
		t.Fatal(err)
	}
	lost := r.await("u", gatedir.Lost)
	if r.dir.IsMarkedAcquired() || !strings.Contains(lost.Reason, "lost") {
		t.Errorf("state %+v; want a reason, and no mark", lost)
	}
	// Main is not known to have ended, so the lock is not given away.
	r.wantCalls(memory.Release, "u", 0)
	s.cancel()
	s.wantEnd(nil)
	r.wantFree()
}

func TestASuccessOfMainKeepsTheLock(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		kept bool
	}{"success": {0, true}, "failure": {1, false}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.sidecar(func(c *holder.Config) { c.Gate.MinHold = time.Hour })
			m := r.ask("n")
			r.await("n", gatedir.Acquired)
			if err := r.dir.WriteDone(gatedir.Done{Request: "n", Code: c.code}); err != nil {
				t.Fatal(err)
			}
			m.leave()
			r.await("n", gatedir.Released)
			if row := r.row(); row.Remaining > 0 != c.kept || !row.Released {
				t.Errorf("row %+v; want it released, kept: %t", row, c.kept)
			}
			s.cancel()
			s.wantEnd(nil)
		})
	}
	t.Run("no word of exec is no success", func(t *testing.T) {
		r := newRig(t)
		r.sidecar(func(c *holder.Config) { c.Gate.MinHold = time.Hour })
		m := r.ask("n")
		r.await("n", gatedir.Acquired)
		m.leave()
		r.await("n", gatedir.Released)
		r.wantFree()
	})
}

// Whoever asks while the sidecar is being told to stop is not left without a word.
func TestARequestThatComesWithTheSignalIsAnswered(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := r.ask("n")
	defer m.leave()
	s := r.sidecarContext(ctx)
	s.wantEnd(nil)
	if state := r.wantState("n", gatedir.Error, false); state.Code != 0 {
		t.Errorf("code %d; want none: the holder was told to stop", state.Code)
	}
	r.wantCalls(memory.TryAcquire, "", 0)
}
