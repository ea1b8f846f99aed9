package holder_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/memory"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/holder"
)

func mainTimeout(d time.Duration) func(*holder.Config) {
	return func(cfg *holder.Config) { cfg.MainTimeout = d }
}

func once(cfg *holder.Config) { cfg.Once = true }

func onBusy(policy gate.OnBusy) func(*holder.Config) {
	return func(cfg *holder.Config) { cfg.Gate.OnBusy = policy }
}

func TestNothingIsTakenForAMainThatNeverAsks(t *testing.T) {
	for what, prepare := range map[string]func(*rig) error{
		"no request":   func(*rig) error { return nil },
		"another boot": func(r *rig) error { return r.dir.WriteRequest(gatedir.Request{Nonce: "n", Boot: "old", Pod: pod}) },
		"another pod":  func(r *rig) error { return r.dir.WriteRequest(gatedir.Request{Nonce: "n", Boot: boot, Pod: "old"}) },
		"no nonce":     func(r *rig) error { return r.dir.WriteRequest(gatedir.Request{Boot: boot, Pod: pod}) },
		"a nonce too long for an owner": func(r *rig) error {
			return r.dir.WriteRequest(gatedir.Request{Nonce: strings.Repeat("n", 600), Boot: boot, Pod: pod})
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			m := r.takeMain()
			defer m.leave()
			if err := prepare(r); err != nil {
				t.Fatal(err)
			}
			r.sidecar(mainTimeout(50 * time.Millisecond)).wantEnd(holder.ErrNoMain)
			r.wantNoCalls()
			if state, err := r.dir.ReadState(); !errors.Is(err, gatedir.ErrNone) {
				t.Errorf("ReadState() = %+v, %v; want none", state, err)
			}
		})
	}
}

func TestAMainThatHasAskedOnceMayTakeItsTime(t *testing.T) {
	r := newRig(t)
	m := r.ask("first")
	r.put("first", gatedir.Skipped)
	r.sidecar(mainTimeout(time.Nanosecond))
	m.leave()
	m = r.ask("second")
	r.await("second", gatedir.Acquired)
	m.leave()
	r.await("second", gatedir.Released)
}

func TestARequestWithoutAPodIsAnswered(t *testing.T) {
	r := newRig(t)
	m := r.takeMain()
	defer m.leave()
	if err := r.dir.WriteRequest(gatedir.Request{Nonce: "n", Boot: boot}); err != nil {
		t.Fatal(err)
	}
	r.sidecar()
	if state := r.await("n", gatedir.Acquired); !state.Answers(gatedir.Request{Nonce: "n", Boot: boot}) {
		t.Errorf("%+v is no answer", state)
	}
}

func TestTheLockIsHeldFromTheVerdictUntilMainIsGone(t *testing.T) {
	r := newRig(t)
	// What the files say when each word is out, and what the store says then.
	type moment struct {
		marked, held bool
		verdict      gatedir.Verdict
	}
	var mu sync.Mutex
	moments := map[gate.State]moment{}
	s := r.sidecar(func(cfg *holder.Config) {
		cfg.Observe = func(status gate.Status) {
			state, _ := r.dir.ReadState()
			mu.Lock()
			defer mu.Unlock()
			moments[status.State] = moment{r.dir.IsMarkedAcquired(), r.held("n"), state.Verdict}
		}
	})
	m := r.ask("n")
	first := r.await("n", gatedir.Acquired)
	r.until("the mark", r.dir.IsMarkedAcquired)

	now := gatedir.Duration(clock())
	if !r.held("n") || first.Token != r.row().Token || first.Owner != owner+"n" || first.Lock != name {
		t.Errorf("the state is %+v, the lock %+v; want them to agree", first, r.row())
	}
	if first.EndBoot-first.KillBoot != gatedir.Duration(time.Second) || first.KillBoot-first.StopBoot != gatedir.Duration(time.Second) ||
		first.EndBoot > now+gatedir.Duration(ttl) || first.AcquiredBoot > now || first.UpdatedBoot > now {
		t.Errorf("the times in %+v do not add up at %v", first, now)
	}
	if want := (gatedir.Policy{StopGrace: gatedir.Duration(time.Second), SkipExitCode: 9}); first.Policy != want {
		t.Errorf("the policy is %+v; want %+v", first.Policy, want)
	}
	if text, err := os.ReadFile(filepath.Join(r.dir.Path(), "acquired")); err != nil || strings.TrimSpace(string(text)) == "" {
		t.Errorf("acquired has %q, %v; want the token", text, err)
	}
	r.until("the deadlines move on", func() bool {
		state, err := r.dir.ReadState()
		return err == nil && state.Verdict == gatedir.Acquired && state.Token == first.Token && state.StopBoot > first.StopBoot
	})
	renewals := r.count(memory.Renew, "n")
	r.until("more renewals", func() bool { return r.count(memory.Renew, "n") > renewals+3 })
	// A done alone is not main's end.
	r.done("n")
	renewals = r.count(memory.Renew, "n")
	r.until("more renewals", func() bool { return r.count(memory.Renew, "n") > renewals+3 })
	r.wantCalls(memory.Release, "", 0)

	m.leave()
	r.await("n", gatedir.Released)
	r.wantFree()
	r.wantCalls(memory.TryAcquire, "n", 1)
	r.wantCalls(memory.Release, "n", 1)
	s.cancel()
	s.wantEnd(nil)
	if got, want := s.states(), []gate.State{gate.Waiting, gate.Acquired, gate.Releasing, gate.Released}; !slices.Equal(got, want) {
		t.Errorf("published %v; want %v", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	for state, want := range map[gate.State]moment{
		gate.Waiting:   {false, false, gatedir.Waiting},
		gate.Acquired:  {true, true, gatedir.Acquired},
		gate.Releasing: {false, true, gatedir.Acquired}, // the mark goes before anything else
		gate.Released:  {false, false, gatedir.Released},
	} {
		if moments[state] != want {
			t.Errorf("at %s: marked, held, verdict are %v; want %v", state, moments[state], want)
		}
	}
}

func TestTheMarkIsThereBeforeMainMayRunAndGoneBeforeTheEnd(t *testing.T) {
	r := newRig(t)
	r.sidecar()
	stop := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// Only what holds for the whole time between two equal looks counts.
			before, err1 := r.dir.ReadState()
			marked := r.dir.IsMarkedAcquired()
			after, err2 := r.dir.ReadState()
			if err1 == nil && err2 == nil && before == after && marked && before.Verdict.Final() {
				t.Errorf("marked while the state is %+v", before)
				return
			}
		}
	})
	for i := range 30 {
		m := r.ask(nonce(i))
		r.await(nonce(i), gatedir.Acquired)
		if !r.dir.IsMarkedAcquired() {
			t.Error("main may run, and the mark is not there")
		}
		m.leave()
		r.await(nonce(i), gatedir.Released)
	}
	close(stop)
	looking.Wait()
}

func TestEveryOutcomeIsTold(t *testing.T) {
	refuse := func(err error) func(*rig) {
		return func(r *rig) {
			r.before = func(_ context.Context, call memory.Call) error {
				if call.Op == memory.TryAcquire {
					return err
				}
				return nil
			}
		}
	}
	busy := func(r *rig) { r.stranger() }
	for what, tt := range map[string]struct {
		prepare func(*rig)
		change  func(*holder.Config)
		verdict gatedir.Verdict
		code    int
	}{
		"busy, and told to skip":    {busy, onBusy(gate.Skip), gatedir.Skipped, 0},
		"busy, and told to fail":    {busy, onBusy(gate.Fail), gatedir.Busy, gatedir.CodeBusy},
		"busy for too long":         {busy, func(cfg *holder.Config) { cfg.Gate.OnBusy, cfg.Gate.WaitTimeout = gate.Wait, renew }, gatedir.Busy, gatedir.CodeBusy},
		"refused by the store":      {refuse(db.ErrRefused), onBusy(gate.Skip), gatedir.Error, gatedir.CodeUnavailable},
		"unreachable":               {refuse(errors.New("no route")), func(cfg *holder.Config) { cfg.Gate.StartTimeout, cfg.Gate.CallLimit = renew, renew }, gatedir.Error, gatedir.CodeUnavailable},
		"over before it was begun":  {refuse(db.ErrLost), onBusy(gate.Skip), gatedir.Lost, gatedir.CodeLost},
		"no table, and none we may": {refuse(db.ErrNoTable), func(cfg *holder.Config) { cfg.Gate.StartTimeout = renew }, gatedir.Error, gatedir.CodeUnavailable},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			tt.prepare(r)
			r.sidecar(tt.change)
			m := r.ask("n")
			defer m.leave()
			state := r.await("n", tt.verdict)
			if state.Code != tt.code || state.Reason == "" || state.Token != 0 || r.dir.IsMarkedAcquired() {
				t.Errorf("the state is %+v, marked %t; want code %d, a reason, no token and no mark",
					state, r.dir.IsMarkedAcquired(), tt.code)
			}
			if held := state.Holder; (held != nil) != (tt.verdict == gatedir.Skipped || tt.verdict == gatedir.Busy) ||
				held != nil && (held.Owner != "stranger" || held.Remaining <= 0) {
				t.Errorf("the other holder is %+v", held)
			}
			skipped := filepath.Join(r.dir.Path(), "skipped")
			if tt.verdict == gatedir.Skipped {
				var text []byte
				r.until("skipped", func() bool { text, _ = os.ReadFile(skipped); return len(text) > 0 })
				if !strings.Contains(string(text), "stranger") {
					t.Errorf("skipped has %q; want who holds the lock", text)
				}
			} else if _, err := os.Lstat(skipped); err == nil {
				t.Error("skipped is there")
			}
			if row := r.row(); row.Owner != "stranger" && row.Owner != "" {
				t.Errorf("the lock is %+v; want it not taken", row)
			}
		})
	}
}

func TestWhoIsToldToWaitIsToldWhoHoldsTheLock(t *testing.T) {
	r := newRig(t)
	release := r.stranger()
	r.sidecar(onBusy(gate.Wait))
	m := r.ask("n")
	first := r.await("n", gatedir.Waiting)
	r.until("the holder's name", func() bool {
		state, err := r.dir.ReadState()
		return err == nil && state.Verdict == gatedir.Waiting && state.Holder != nil &&
			state.Holder.Owner == "stranger" && state.UpdatedBoot > first.UpdatedBoot
	})
	release()
	if state := r.await("n", gatedir.Acquired); state.Holder != nil {
		t.Errorf("the state names %+v while the lock is ours", state.Holder)
	}
	m.leave()
	r.await("n", gatedir.Released)
	r.wantFree()
}

func TestAMainThatIsGoneBeforeTheVerdictIsForgotten(t *testing.T) {
	t.Run("while somebody else holds the lock", func(t *testing.T) {
		r := newRig(t)
		r.stranger()
		r.sidecar(onBusy(gate.Wait))
		m := r.ask("n")
		r.await("n", gatedir.Waiting)
		m.leave()
		r.await("n", gatedir.Error)
	})
	t.Run("before the holder looks", func(t *testing.T) {
		r := newRig(t)
		r.ask("n").leave()
		r.sidecar()
		r.await("n", gatedir.Error)
		r.wantCalls(memory.TryAcquire, "", 0)
	})
	t.Run("while the answer is on its way", func(t *testing.T) {
		r := newRig(t)
		taken := make(chan struct{})
		r.after = func(ctx context.Context, call memory.Call) error {
			if call.Op == memory.TryAcquire {
				close(taken)
				return block(ctx)
			}
			return nil
		}
		r.sidecar()
		m := r.ask("n")
		<-taken
		if !r.held("n") {
			t.Error("the lock is not taken")
		}
		m.leave()
		r.await("n", gatedir.Error)
		r.until("it is undone", func() bool { return !r.held("n") })
	})
}

func TestEachOfManyQuickRestartsGetsItsOwnVerdict(t *testing.T) {
	r := newRig(t)
	r.sidecar()
	var last uint64
	for i := range 50 {
		m := r.ask(nonce(i))
		state := r.await(nonce(i), gatedir.Acquired)
		if state.Token <= last || state.Owner != owner+nonce(i) {
			t.Errorf("start %d: token %d after %d, owner %q", i, state.Token, last, state.Owner)
		}
		last = state.Token
		m.leave() // and comes back at once
	}
	r.await(nonce(49), gatedir.Released)
	r.wantFree()
}

func TestAMainThatComesBackBeforeAnyVerdictIsAnsweredInTheEnd(t *testing.T) {
	r := newRig(t)
	r.sidecar()
	for i := range 50 {
		r.ask(nonce(i)).leave()
	}
	m := r.ask("last")
	r.await("last", gatedir.Acquired)
	for i := range 50 {
		if r.held(nonce(i)) {
			t.Errorf("the lock is held for start %d, which has gone", i)
		}
	}
	m.leave()
	r.await("last", gatedir.Released)
}

func TestARequestWithAnotherNonceIsTheEndOfTheEarlierMain(t *testing.T) {
	r := newRig(t)
	r.sidecar()
	m := r.ask("first")
	first := r.await("first", gatedir.Acquired)
	// The next exec had main.lock before the holder could see it free.
	r.request("second")
	second := r.await("second", gatedir.Acquired)
	if second.Token <= first.Token || !r.held("second") {
		t.Errorf("token %d after %d, the lock is %+v; want a new lease", second.Token, first.Token, r.row())
	}
	r.wantCalls(memory.Release, "first", 1)
	m.leave()
	r.await("second", gatedir.Released)
}

func TestAVoidRequestIsNobodysEnd(t *testing.T) {
	r := newRig(t)
	r.sidecar()
	m := r.ask("n")
	r.await("n", gatedir.Acquired)
	if err := r.dir.WriteRequest(gatedir.Request{Nonce: "other", Boot: boot, Pod: "another"}); err != nil {
		t.Fatal(err)
	}
	renewals := r.count(memory.Renew, "n")
	r.until("more renewals", func() bool { return r.count(memory.Renew, "n") > renewals+3 })
	if !r.held("n") {
		t.Error("the lock is not held any more")
	}
	m.leave()
	r.await("n", gatedir.Released)
}

func TestALostLockIsToldAtOnceAndKeptFromOthersNoLonger(t *testing.T) {
	r := newRig(t)
	s := r.sidecar()
	m := r.ask("n")
	state := r.await("n", gatedir.Acquired)
	if err := r.server.Open(memory.Hooks{}).Revoke(t.Context(), name, state.Token, false); err != nil {
		t.Fatal(err)
	}
	lost := r.await("n", gatedir.Lost)
	if lost.Code != gatedir.CodeLost || lost.Token != state.Token || lost.Reason == "" || r.dir.IsMarkedAcquired() {
		t.Errorf("the state is %+v, marked %t; want code 76, the token, a reason, no mark", lost, r.dir.IsMarkedAcquired())
	}
	r.wantCalls(memory.Release, "", 0) // main is still there
	m.leave()
	r.until("the release", func() bool { return r.count(memory.Release, "n") == 1 })
	m = r.ask("next")
	if next := r.await("next", gatedir.Acquired); next.Token <= state.Token {
		t.Errorf("token %d after %d", next.Token, state.Token)
	}
	m.leave()
	r.await("next", gatedir.Released)
	if slices.Contains(s.states()[:3], gate.Released) {
		t.Errorf("published %v", s.states())
	}
}

func TestWhoIsToldToStopWhileHoldingHoldsUntilMainIsGone(t *testing.T) {
	r := newRig(t)
	s := r.sidecar()
	m := r.ask("n")
	r.await("n", gatedir.Acquired)
	s.cancel()
	renewals := r.count(memory.Renew, "n")
	r.until("more renewals", func() bool { return r.count(memory.Renew, "n") > renewals+5 })
	if !r.held("n") || !r.dir.IsMarkedAcquired() {
		t.Errorf("the lock is %+v, marked %t; want it held", r.row(), r.dir.IsMarkedAcquired())
	}
	m.leave()
	s.wantEnd(nil)
	r.await("n", gatedir.Released)
	r.wantFree()
}

func TestWhoIsToldToStopWithoutALeaseLeavesNothing(t *testing.T) {
	t.Run("while it waits", func(t *testing.T) {
		r := newRig(t)
		release := r.stranger()
		s := r.sidecar(onBusy(gate.Wait))
		m := r.ask("n")
		defer m.leave()
		r.await("n", gatedir.Waiting)
		s.cancel()
		s.wantEnd(nil)
		r.await("n", gatedir.Error)
		release()
		r.wantFree()
	})
	t.Run("while an acquire is under way", func(t *testing.T) {
		r := newRig(t)
		taken := make(chan struct{})
		r.after = func(ctx context.Context, call memory.Call) error {
			if call.Op == memory.TryAcquire {
				close(taken)
				return block(ctx)
			}
			return nil
		}
		s := r.sidecar()
		m := r.ask("n")
		defer m.leave()
		<-taken
		s.cancel()
		s.wantEnd(nil)
		r.await("n", gatedir.Error)
		r.wantFree()
		r.wantCalls(memory.TryAcquire, "n", 1)
	})
	t.Run("before a request is looked at", func(t *testing.T) {
		r := newRig(t)
		m := r.ask("n")
		defer m.leave()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.sidecarContext(ctx).wantEnd(nil)
		r.wantNoCalls()
	})
	t.Run("while it has nothing to do", func(t *testing.T) {
		r := newRig(t)
		s := r.sidecar()
		s.cancel()
		s.wantEnd(nil)
		r.wantNoCalls()
	})
}

// takeOver puts a lease into the store and the state as an earlier holder has
// left them.
func (r *rig) takeOver(nonce string, stopIn time.Duration) gatedir.State {
	r.t.Helper()
	lease, err := r.server.Open(memory.Hooks{}).TryAcquire(r.t.Context(), db.Request{Name: name, Owner: owner + nonce, TTL: ttl})
	if err != nil {
		r.t.Fatal(err)
	}
	now := clock()
	state := r.put(nonce, gatedir.Acquired, func(s *gatedir.State) {
		s.Token = lease.Token
		s.AcquiredBoot = gatedir.Duration(now)
		s.StopBoot, s.KillBoot = gatedir.Duration(now+stopIn), gatedir.Duration(now+stopIn+time.Second)
		s.EndBoot = gatedir.Duration(now + stopIn + 2*time.Second)
	})
	if err := r.dir.MarkAcquired(lease.Token); err != nil {
		r.t.Fatal(err)
	}
	return state
}

func TestARestartedHolderThatIsToldToStopHoldsUntilMainIsGone(t *testing.T) {
	r := newRig(t)
	m := r.ask("n")
	state := r.takeOver("n", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := r.sidecarContext(ctx)
	r.until("renewals", func() bool { return r.count(memory.Renew, "n") > 2 })
	if !r.held("n") || r.row().Token != state.Token {
		t.Errorf("the lock is %+v; want token %d", r.row(), state.Token)
	}
	m.leave()
	s.wantEnd(nil)
	r.wantFree()
	r.wantCalls(memory.TryAcquire, "", 0)
}

func TestARestartedHolderThatIsToldToStopUndoesWhatMayHaveBeenTaken(t *testing.T) {
	r := newRig(t)
	m := r.ask("n")
	defer m.leave()
	if _, err := r.server.Open(memory.Hooks{}).TryAcquire(t.Context(), db.Request{Name: name, Owner: owner + "n", TTL: ttl}); err != nil {
		t.Fatal(err)
	}
	r.put("n", gatedir.Waiting)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.sidecarContext(ctx).wantEnd(nil)
	r.await("n", gatedir.Error)
	r.wantFree()
	r.wantCalls(memory.TryAcquire, "", 0)
}

func TestAStopThatHadBegunIsNotUndoneByARestart(t *testing.T) {
	r := newRig(t)
	m := r.ask("n")
	state := r.takeOver("n", 0)
	r.sidecar()
	lost := r.await("n", gatedir.Lost)
	if lost.Token != state.Token || lost.StopBoot != state.StopBoot || r.dir.IsMarkedAcquired() {
		t.Errorf("the state is %+v, marked %t; want the old deadlines, and no mark", lost, r.dir.IsMarkedAcquired())
	}
	m.leave()
	r.until("the release", func() bool { return r.count(memory.Release, "n") == 1 })
	r.wantFree()
}

func TestARequestThatIsOverIsNeverAcquiredForAgain(t *testing.T) {
	for _, verdict := range []gatedir.Verdict{gatedir.Skipped, gatedir.Busy, gatedir.Error, gatedir.Lost, gatedir.Released} {
		t.Run(string(verdict), func(t *testing.T) {
			r := newRig(t)
			m := r.ask("n")
			r.put("n", verdict)
			r.sidecar()
			m.leave()
			m = r.ask("next")
			r.await("next", gatedir.Acquired)
			m.leave()
			r.await("next", gatedir.Released)
			r.wantCalls(memory.TryAcquire, "n", 0)
			r.wantCalls(memory.Release, "n", 0)
		})
	}
	for what, prepare := range map[string]func(*rig){
		"done, and never answered": func(*rig) {},
		"done, while a holder was at it": func(r *rig) {
			if _, err := r.server.Open(memory.Hooks{}).TryAcquire(t.Context(), db.Request{Name: name, Owner: owner + "n", TTL: ttl}); err != nil {
				t.Fatal(err)
			}
			r.put("n", gatedir.Waiting)
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			m := r.ask("n") // which has main.lock for a moment longer
			r.done("n")
			prepare(r)
			r.sidecar()
			if what == "done, while a holder was at it" {
				r.await("n", gatedir.Error)
				r.until("it is undone", func() bool { return !r.held("n") })
			}
			m.leave()
			m = r.ask("next")
			r.await("next", gatedir.Acquired)
			m.leave()
			r.await("next", gatedir.Released)
			r.wantCalls(memory.TryAcquire, "n", 0)
		})
	}
}

func TestWhatAnEarlierHolderLeftIsSettledBeforeTheNewRequest(t *testing.T) {
	t.Run("a lease", func(t *testing.T) {
		r := newRig(t)
		old := r.takeOver("old", time.Hour)
		m := r.ask("new")
		r.sidecar()
		if state := r.await("new", gatedir.Acquired); state.Token <= old.Token {
			t.Errorf("token %d after %d", state.Token, old.Token)
		}
		r.wantCalls(memory.TryAcquire, "old", 0)
		r.wantCalls(memory.Release, "old", 1)
		m.leave()
		r.await("new", gatedir.Released)
	})
	t.Run("an attempt", func(t *testing.T) {
		r := newRig(t)
		if _, err := r.server.Open(memory.Hooks{}).TryAcquire(t.Context(), db.Request{Name: name, Owner: owner + "old", TTL: ttl}); err != nil {
			t.Fatal(err)
		}
		r.put("old", gatedir.Waiting)
		m := r.ask("new")
		r.sidecar() // told to skip, but nobody else has it
		r.await("new", gatedir.Acquired)
		r.wantCalls(memory.TryAcquire, "old", 0)
		m.leave()
		r.await("new", gatedir.Released)
	})
	t.Run("a lease, and its main is gone for good", func(t *testing.T) {
		r := newRig(t)
		m := r.ask("old")
		r.takeOver("old", time.Hour)
		m.leave()
		r.sidecar()
		r.await("old", gatedir.Released)
		r.wantFree()
	})
	t.Run("a lease, and the request cannot be read", func(t *testing.T) {
		r := newRig(t)
		m := r.ask("old")
		r.takeOver("old", time.Hour)
		if err := os.Remove(filepath.Join(r.dir.Path(), "request")); err != nil {
			t.Fatal(err)
		}
		r.sidecar()
		r.until("renewals", func() bool { return r.count(memory.Renew, "old") > 2 })
		if !r.held("old") {
			t.Error("the lock was let go while main lives")
		}
		m.leave()
		r.await("old", gatedir.Released)
	})
	t.Run("a mark of another boot", func(t *testing.T) {
		r := newRig(t)
		r.put("old", gatedir.Acquired, func(s *gatedir.State) { s.Boot = "old"; s.StopBoot = 1; s.KillBoot = 1 })
		if err := r.dir.MarkAcquired(1); err != nil {
			t.Fatal(err)
		}
		r.sidecar()
		r.until("the mark has gone", func() bool { return !r.dir.IsMarkedAcquired() })
		r.wantNoCalls()
	})
	t.Run("a skip of this boot stays told", func(t *testing.T) {
		r := newRig(t)
		r.ask("n")
		r.put("n", gatedir.Skipped)
		if err := r.dir.MarkSkipped("busy"); err != nil {
			t.Fatal(err)
		}
		s := r.sidecar()
		s.cancel()
		s.wantEnd(nil)
		if _, err := os.Lstat(filepath.Join(r.dir.Path(), "skipped")); err != nil {
			t.Error(err)
		}
	})
}

func TestAVerdictThatIsOutIsKeptThoughScriptsCannotBeTold(t *testing.T) {
	r := newRig(t)
	undo := make(chan func(), 1)
	r.before = func(_ context.Context, call memory.Call) error {
		if call.Op == memory.TryAcquire {
			undo <- r.obstruct(".acquired.tmp")
		}
		return nil
	}
	s := r.sidecar()
	m := r.ask("n")
	r.await("n", gatedir.Acquired)
	// Main may be running by now.
	r.until("renewals", func() bool { return r.count(memory.Renew, "n") > 3 })
	if !r.held("n") || r.dir.IsMarkedAcquired() {
		t.Errorf("the lock is %+v, marked %t; want it held and not marked", r.row(), r.dir.IsMarkedAcquired())
	}
	(<-undo)()
	r.until("the mark", r.dir.IsMarkedAcquired)
	m.leave()
	r.await("n", gatedir.Released)
	r.wantFree()
	s.cancel()
	s.wantEnd(nil)
}

func TestADirectoryThatCannotBeWrittenInMidHoldMovesNoDeadline(t *testing.T) {
	r := newRig(t)
	s := r.sidecar()
	m := r.ask("n")
	r.await("n", gatedir.Acquired)
	r.until("the mark", r.dir.IsMarkedAcquired)
	undo := r.obstruct(".state.json.tmp")
	stood, err := r.dir.ReadState()
	if err != nil {
		t.Fatal(err)
	}
	renewals := r.count(memory.Renew, "n")
	r.until("more renewals", func() bool { return r.count(memory.Renew, "n") > renewals+3 })
	if now, err := r.dir.ReadState(); err != nil || now.StopBoot < stood.StopBoot {
		t.Errorf("the state is %+v, %v; want the deadlines of %+v", now, err, stood)
	}
	undo()
	r.until("the deadlines move on", func() bool {
		now, err := r.dir.ReadState()
		return err == nil && now.StopBoot > stood.StopBoot
	})
	// Again, and until main has gone: the lock is let go all the same, once.
	undo = r.obstruct(".state.json.tmp")
	m.leave()
	r.until("the release", func() bool { return r.count(memory.Release, "n") > 0 })
	r.until("the mark has gone", func() bool { return !r.dir.IsMarkedAcquired() })
	r.wantFree()
	r.until("the last word", func() bool { return slices.Contains(s.states(), gate.Releasing) })
	undo()
	m = r.ask("next")
	r.await("next", gatedir.Acquired)
	r.wantCalls(memory.Release, "n", 1)
	m.leave()
	r.await("next", gatedir.Released)
}

func TestALastWordThatCannotBePublishedIsNotGoneAfterForEver(t *testing.T) {
	r := newRig(t)
	r.sidecar()
	m := r.ask("n")
	r.await("n", gatedir.Acquired)
	r.obstruct(".state.json.tmp")
	m.leave()
	r.until("the release", func() bool { return r.count(memory.Release, "n") > 0 })
	// The holder looks at the directory when something happens in it.
	for i := range 20 {
		r.done(nonce(i))
		time.Sleep(5 * time.Millisecond)
	}
	r.wantCalls(memory.Release, "n", 1)
}

func TestADirectoryThatCannotBeWrittenAtAllEndsTheHolder(t *testing.T) {
	r := newRig(t)
	r.obstruct(".state.json.tmp")
	m := r.ask("n")
	defer m.leave()
	r.sidecar().wantEnd(gate.ErrPublish)
	r.wantCalls(memory.TryAcquire, "", 0)
}

func TestAVerdictThatCannotBePublishedIsUndone(t *testing.T) {
	r := newRig(t)
	r.before = func(_ context.Context, call memory.Call) error {
		if call.Op == memory.TryAcquire {
			r.obstruct(".state.json.tmp")
		}
		return nil
	}
	m := r.ask("n")
	defer m.leave()
	r.sidecar().wantEnd(gate.ErrPublish)
	r.wantCalls(memory.TryAcquire, "n", 1)
	r.wantFree()
	if r.dir.IsMarkedAcquired() {
		t.Error("marked, though nothing is held")
	}
}

func TestALostLockIsToldThoughTheMarkCannotBeRemoved(t *testing.T) {
	r := newRig(t)
	r.before = func(_ context.Context, call memory.Call) error {
		if call.Op == memory.TryAcquire {
			r.obstruct("acquired")
		}
		return nil
	}
	r.sidecar()
	m := r.ask("n")
	state := r.await("n", gatedir.Acquired)
	if err := r.server.Open(memory.Hooks{}).Revoke(t.Context(), name, state.Token, false); err != nil {
		t.Fatal(err)
	}
	r.await("n", gatedir.Lost)
	m.leave()
}

func TestOnceEndsAfterTheFirstRequestWhenMainIsGone(t *testing.T) {
	t.Run("after a release", func(t *testing.T) {
		r := newRig(t)
		s := r.sidecar(once)
		m := r.ask("n")
		r.await("n", gatedir.Acquired)
		m.leave()
		s.wantEnd(nil)
		r.await("n", gatedir.Released)
	})
	t.Run("after a skip", func(t *testing.T) {
		r := newRig(t)
		r.stranger()
		s := r.sidecar(once)
		m := r.ask("n")
		r.await("n", gatedir.Skipped)
		select {
		case err := <-s.result:
			t.Fatalf("Sidecar() = %v while main is there", err)
		default:
		}
		m.leave()
		s.wantEnd(nil)
	})
	t.Run("after a restart in mid-hold", func(t *testing.T) {
		r := newRig(t)
		m := r.ask("n")
		r.takeOver("n", time.Hour)
		s := r.sidecar(once)
		r.until("renewals", func() bool { return r.count(memory.Renew, "n") > 2 })
		m.leave()
		s.wantEnd(nil)
		r.wantFree()
	})
	t.Run("not after what an earlier holder left", func(t *testing.T) {
		r := newRig(t)
		r.takeOver("old", time.Hour)
		m := r.ask("n")
		s := r.sidecar(once)
		r.await("n", gatedir.Acquired)
		m.leave()
		s.wantEnd(nil)
		r.await("n", gatedir.Released)
	})
}

func TestTheOwnerFitsAndIsText(t *testing.T) {
	for what, readable := range map[string]string{
		"short":              owner,
		"empty":              "",
		"long":               strings.Repeat("x", 600),
		"long, two bytes":    "x" + strings.Repeat("ä", 300),
		"long, three bytes":  "xy" + strings.Repeat("€", 300),
		"long, four bytes":   "xyz" + strings.Repeat("🔒", 300),
		"as long as may be ": strings.Repeat("x", db.MaxOwnerBytes-len("n")),
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.sidecar(func(cfg *holder.Config) { cfg.Owner = readable })
			m := r.ask("n")
			state := r.await("n", gatedir.Acquired)
			got := r.row().Owner
			if got != state.Owner || len(got) > db.MaxOwnerBytes || !utf8.ValidString(got) || !strings.HasSuffix(got, "n") ||
				!strings.HasPrefix(readable, strings.TrimSuffix(got, "n")) {
				t.Errorf("the owner is %q, %d bytes", got, len(got))
			}
			if len(readable) > db.MaxOwnerBytes && len(got) <= db.MaxOwnerBytes-4 || len(readable) < db.MaxOwnerBytes && got != readable+"n" {
				t.Errorf("the owner has %d bytes of %d; want as much as fits", len(got), len(readable))
			}
			m.leave()
		})
	}
}

func TestServeMakesNoAttemptForAMainThatIsGone(t *testing.T) {
	r := newRig(t)
	cfg := config(r.log)
	cfg.Dir, cfg.Gate.Store = r.dir, r.store()
	h := holder.New(cfg)
	defer h.Close()
	gone := make(chan struct{})
	close(gone)
	status := h.Serve(t.Context(), gatedir.Request{Nonce: "n", Boot: boot}, gone)
	if status.State != gate.Failed || !errors.Is(status.Err, holder.ErrMainGone) {
		t.Errorf("Serve() = %+v; want ErrMainGone", status)
	}
	r.wantCalls(memory.TryAcquire, "", 0)
}

func TestNothingIsLeftWhenAHolderHasEnded(t *testing.T) {
	r := newRig(t)
	before := runtime.NumGoroutine()
	for i := range 5 {
		s := r.sidecar()
		m := r.ask(nonce(i))
		r.await(nonce(i), gatedir.Acquired)
		if i%2 == 0 {
			s.cancel()
		}
		m.leave()
		r.await(nonce(i), gatedir.Released)
		s.cancel()
		s.wantEnd(nil)
	}
	r.until("the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}
