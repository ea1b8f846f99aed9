package gate_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/memory"
	"github.com/lockgate/lockgate/internal/gate"
)

// The settings of the rig: stop-at is 7s, kill-at 9s, the end 10s after a call
// was sent.
const (
	ttl    = 10 * time.Second
	renew  = 2 * time.Second
	grace  = 2 * time.Second
	margin = time.Second
	stopAt = ttl - margin - grace
)

var errNet = errors.New("connection reset")

// rig is one gate in a bubble, with a record of what it published.
type rig struct {
	t      *testing.T
	server *memory.Server
	hooks  memory.Hooks
	cfg    gate.Config
	began  time.Time
	ahead  time.Duration // of the boot clock

	mu        sync.Mutex
	published []gate.Status
	at        []time.Duration
	refuse    func(gate.Status) error
	succeeds  bool // what the work returns
	log       bytes.Buffer
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, server: memory.New(), began: time.Now()}
	r.cfg = gate.Config{
		Request:      db.Request{Name: "nightly", Owner: "a/1", TTL: ttl},
		OnBusy:       gate.Skip,
		WaitTimeout:  time.Minute,
		PollEvery:    time.Second,
		StartTimeout: 30 * time.Second,
		RenewEvery:   renew,
		StopGrace:    grace,
		SafetyMargin: margin,
		CallLimit:    renew,
		LockWait:     time.Second,
		Boot:         r.boot,
		Publish:      r.publish,
		Log:          slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	return r
}

// boot starts far from zero, as real ones do.
func (r *rig) boot() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return 1000*time.Hour + time.Since(r.began) + r.ahead
}

func (r *rig) jump(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead += d
}

func (r *rig) publish(s gate.Status) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		if err := r.refuse(s); err != nil {
			return err
		}
	}
	r.published = append(r.published, s)
	r.at = append(r.at, time.Since(r.began))
	return nil
}

func (r *rig) run(ctx context.Context, work func(context.Context, db.Lease)) gate.Status {
	r.t.Helper()
	if r.cfg.Store == nil {
		r.cfg.Store = r.server.Open(r.hooks)
	}
	status := gate.Run(ctx, r.cfg, func(ctx context.Context, lease db.Lease) bool {
		work(ctx, lease)
		return r.succeeds
	})
	r.t.Log(r.log.String())
	return status
}

// states returns what was published, repetitions left out.
func (r *rig) states() string {
	var words []string
	for _, s := range r.published {
		if n := len(words); n == 0 || words[n-1] != string(s.State) {
			words = append(words, string(s.State))
		}
	}
	return strings.Join(words, " ")
}

// first returns when a state was first published.
func (r *rig) first(state gate.State) (gate.Status, time.Duration) {
	r.t.Helper()
	for i, s := range r.published {
		if s.State == state {
			return s, r.at[i]
		}
	}
	r.t.Fatalf("%s was never published; %s", state, r.states())
	return gate.Status{}, 0
}

func (r *rig) row() db.Row {
	r.t.Helper()
	rows, err := r.server.Open(memory.Hooks{}).List(context.Background(), "nightly")
	if err != nil || len(rows) == 0 {
		r.t.Fatalf("no row: %v", err)
	}
	return rows[0]
}

// hold takes the lock for another owner.
func (r *rig) hold(d time.Duration) db.Lease {
	r.t.Helper()
	lease, err := r.server.Open(memory.Hooks{}).TryAcquire(context.Background(),
		db.Request{Name: "nightly", Owner: "b/1", TTL: d})
	if err != nil {
		r.t.Fatal(err)
	}
	return lease
}

func (r *rig) wantNoErrorLog() {
	r.t.Helper()
	if strings.Contains(r.log.String(), "level=ERROR") {
		r.t.Errorf("an error was logged:\n%s", r.log.String())
	}
}

func (r *rig) wantStates(want string) {
	r.t.Helper()
	if got := r.states(); got != want {
		r.t.Errorf("published %q; want %q", got, want)
	}
}

func sleepFor(d time.Duration) func(context.Context, db.Lease) {
	return func(context.Context, db.Lease) { time.Sleep(d) }
}

// untilTold returns when the lease is not trusted any more, and what it takes
// to end the work after that.
func untilTold(cause *error, after time.Duration) func(context.Context, db.Lease) {
	return func(ctx context.Context, _ db.Lease) {
		<-ctx.Done()
		*cause = context.Cause(ctx)
		time.Sleep(after)
	}
}

func never(t *testing.T) func(context.Context, db.Lease) {
	return func(context.Context, db.Lease) { t.Error("the work ran") }
}

func near(got, want, tolerance time.Duration) bool { return (got - want).Abs() <= tolerance }

func TestRun(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T, r *rig)
	}{
		{"a free lock is held while the work runs and free after it", func(t *testing.T, r *rig) {
			var during db.Row
			status := r.run(t.Context(), func(context.Context, db.Lease) {
				time.Sleep(5 * ttl)
				during = r.row()
			})
			if status.State != gate.Released || status.Err != nil {
				t.Errorf("Run = %+v; want released", status)
			}
			if during.Released || during.Remaining < ttl-renew-time.Second {
				t.Errorf("at the end of the work: %+v; want it renewed", during)
			}
			if row := r.row(); !row.Released || row.Token != status.Lease.Token {
				t.Errorf("after: %+v; want it released by its own token", row)
			}
			r.wantStates("waiting acquired releasing released")
			r.wantNoErrorLog()
		}},
		{"it renews once in each interval and not more", func(t *testing.T, r *rig) {
			calls := 0
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.Renew {
					calls++
				}
				return nil
			}
			r.run(t.Context(), sleepFor(100*renew))
			if calls < 99 || calls > 112 {
				t.Errorf("%d renewals in 100 intervals", calls)
			}
		}},
		{"busy and told to skip", func(t *testing.T, r *rig) {
			r.hold(time.Minute)
			status := r.run(t.Context(), never(t))
			if status.State != gate.Skipped || status.Held == nil || status.Held.Owner != "b/1" {
				t.Errorf("Run = %+v; want skipped with the holder", status)
			}
			r.wantStates("waiting skipped")
			r.wantNoErrorLog()
		}},
		{"busy and told to fail", func(t *testing.T, r *rig) {
			r.hold(time.Minute)
			r.cfg.OnBusy = gate.Fail
			if status := r.run(t.Context(), never(t)); status.State != gate.Busy || !errors.Is(status.Err, db.ErrHeld) {
				t.Errorf("Run = %+v; want busy", status)
			}
		}},
		{"a waiter runs as soon as the holder's lease has ended", func(t *testing.T, r *rig) {
			r.hold(20 * time.Second)
			r.cfg.OnBusy, r.cfg.PollEvery = gate.Wait, 7*time.Second
			status := r.run(t.Context(), sleepFor(0))
			_, at := r.first(gate.Acquired)
			if status.State != gate.Released || !near(at, 20*time.Second, 100*time.Millisecond) {
				t.Errorf("Run = %+v, acquired after %s; want 20s", status, at)
			}
		}},
		{"a waiter runs within a poll of the release", func(t *testing.T, r *rig) {
			lease := r.hold(time.Hour)
			r.cfg.OnBusy = gate.Wait
			time.AfterFunc(10*time.Second, func() {
				_ = r.server.Open(memory.Hooks{}).Release(context.Background(), lease, 0)
			})
			r.run(t.Context(), sleepFor(0))
			if _, at := r.first(gate.Acquired); at < 10*time.Second || at > 12*time.Second {
				t.Errorf("acquired after %s; want 10s to 12s", at)
			}
		}},
		{"waiting ends at the timeout, not before", func(t *testing.T, r *rig) {
			r.hold(time.Hour)
			r.cfg.OnBusy = gate.Wait
			status := r.run(t.Context(), never(t))
			if _, at := r.first(gate.Busy); !errors.Is(status.Err, gate.ErrWaitedTooLong) || at != time.Minute {
				t.Errorf("Run = %+v after %s; want busy after 1m", status, at)
			}
		}},
		{"a timeout of 0 waits for ever", func(t *testing.T, r *rig) {
			r.hold(24 * time.Hour)
			r.cfg.OnBusy, r.cfg.WaitTimeout = gate.Wait, 0
			if status := r.run(t.Context(), sleepFor(0)); status.State != gate.Released {
				t.Errorf("Run = %+v; want released", status)
			}
		}},
		{"the wait timeout does not end the hold", func(t *testing.T, r *rig) {
			r.cfg.OnBusy, r.cfg.WaitTimeout = gate.Wait, 3*time.Second
			if status := r.run(t.Context(), sleepFor(time.Hour)); status.State != gate.Released {
				t.Errorf("Run = %+v; want released", status)
			}
		}},
		{"a waiter says who holds the lock once for each holder, and that it still waits every 5s", func(t *testing.T, r *rig) {
			r.hold(time.Hour)
			r.cfg.OnBusy, r.cfg.PollEvery = gate.Wait, 30*time.Second
			r.run(t.Context(), never(t))
			if n := strings.Count(r.log.String(), "waiting for the lock"); n != 1 {
				t.Errorf("said %d times that it waits; want once", n)
			}
			if !strings.Contains(r.log.String(), "holder=b/1") {
				t.Errorf("the holder was not named:\n%s", r.log.String())
			}
			for i, at := range r.at[1:] {
				if gap := at - r.at[i]; gap > 5*time.Second {
					t.Errorf("silent for %s", gap)
				}
			}
		}},
		{"a store that cannot be reached is retried until the start timeout", func(t *testing.T, r *rig) {
			r.hooks.Before = func(context.Context, memory.Call) error { return errNet }
			status := r.run(t.Context(), never(t))
			_, at := r.first(gate.Failed)
			if !errors.Is(status.Err, gate.ErrUnusable) || !errors.Is(status.Err, errNet) || at != 30*time.Second {
				t.Errorf("Run = %+v after %s; want unreachable after 30s", status, at)
			}
		}},
		{"a store that comes up late is one attempt", func(t *testing.T, r *rig) {
			r.hooks.Before = func(context.Context, memory.Call) error {
				if time.Since(r.began) < 20*time.Second {
					return errNet
				}
				return nil
			}
			if status := r.run(t.Context(), sleepFor(0)); status.State != gate.Released {
				t.Errorf("Run = %+v; want released", status)
			}
			r.wantNoErrorLog()
		}},
		{"an outage while waiting counts from its own beginning", func(t *testing.T, r *rig) {
			r.hold(50 * time.Second)
			r.cfg.OnBusy, r.cfg.StartTimeout = gate.Wait, 9*time.Second
			r.hooks.Before = func(context.Context, memory.Call) error {
				if s := time.Since(r.began) % (10 * time.Second); s > 4*time.Second {
					return errNet
				}
				return nil
			}
			if status := r.run(t.Context(), sleepFor(0)); status.State != gate.Released {
				t.Errorf("Run = %+v; want released", status)
			}
		}},
		{"a store that refuses us is not asked again", func(t *testing.T, r *rig) {
			calls := 0
			r.hooks.Before = func(context.Context, memory.Call) error { calls++; return db.ErrRefused }
			status := r.run(t.Context(), never(t))
			if status.State != gate.Failed || !errors.Is(status.Err, db.ErrRefused) || calls != 1 {
				t.Errorf("Run = %+v after %d calls; want one", status, calls)
			}
		}},
		{"a missing table that somebody creates meanwhile is no failure", func(t *testing.T, r *rig) {
			r.hooks.Before = func(context.Context, memory.Call) error {
				if time.Since(r.began) < 10*time.Second {
					return db.ErrNoTable
				}
				return nil
			}
			if status := r.run(t.Context(), sleepFor(0)); status.State != gate.Released {
				t.Errorf("Run = %+v; want released", status)
			}
		}},
		{"a store that asks for another try gets it at once", func(t *testing.T, r *rig) {
			calls := 0
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if calls++; calls%3 != 0 {
					return db.ErrAgain
				}
				return nil
			}
			status := r.run(t.Context(), sleepFor(0))
			if _, at := r.first(gate.Acquired); status.State != gate.Released || at > 200*time.Millisecond {
				t.Errorf("Run = %+v, acquired after %s", status, at)
			}
		}},
		{"a waiter in a crowd is not cut off from the store", func(t *testing.T, r *rig) {
			r.hold(20 * time.Second)
			r.cfg.OnBusy, r.cfg.StartTimeout = gate.Wait, 3*time.Second
			calls := 0
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if calls++; c.Op == memory.TryAcquire && calls > 1 && time.Since(r.began) < 25*time.Second {
					return db.ErrAgain
				}
				return nil
			}
			if status := r.run(t.Context(), sleepFor(0)); status.State != gate.Released {
				t.Errorf("Run = %+v; want released", status)
			}
			r.wantNoErrorLog()
		}},
		{"a waiter in a crowd waits no longer than it was told", func(t *testing.T, r *rig) {
			r.hold(time.Hour)
			r.cfg.OnBusy, r.cfg.StartTimeout = gate.Wait, 3*time.Second
			calls := 0
			r.hooks.Before = func(context.Context, memory.Call) error {
				if calls++; calls > 1 {
					return db.ErrAgain
				}
				return nil
			}
			r.run(t.Context(), never(t))
			if took := time.Since(r.began); took < time.Minute || took > time.Minute+5*time.Second {
				t.Errorf("gave up after %s; want soon after a minute", took)
			}
		}},
		{"a lost reply to an acquire costs one token", func(t *testing.T, r *rig) {
			before := r.hold(time.Second)
			time.Sleep(2 * time.Second)
			calls := 0
			r.hooks.After = func(_ context.Context, c memory.Call) error {
				if calls++; calls == 1 {
					return errNet
				}
				return nil
			}
			status := r.run(t.Context(), sleepFor(0))
			row := r.row()
			if status.State != gate.Released || row.Token != status.Lease.Token || row.Token <= before.Token {
				t.Errorf("Run = %+v, row %+v", status, row)
			}
		}},
		{"whoever gives up undoes an acquire of unknown outcome", func(t *testing.T, r *rig) {
			r.cfg.StartTimeout = 3 * time.Second
			r.hooks.After = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.TryAcquire {
					return errNet
				}
				return nil
			}
			if status := r.run(t.Context(), never(t)); status.State != gate.Failed {
				t.Errorf("Run = %+v; want failed", status)
			}
			if row := r.row(); !row.Released || row.Remaining > 0 {
				t.Errorf("row %+v; want it free", row)
			}
		}},
		{"an acquire that takes effect after it was given up is undone", func(t *testing.T, r *rig) {
			late := &lateStore{Store: r.server.Open(memory.Hooks{}), delay: renew + r.cfg.LockWait - 10*time.Millisecond}
			r.cfg.Store, r.cfg.StartTimeout = late, time.Second
			if status := r.run(t.Context(), never(t)); status.State != gate.Failed {
				t.Errorf("Run = %+v; want failed", status)
			}
			late.wait()
			if row := r.row(); !row.Released || row.Remaining > 0 {
				t.Errorf("row %+v; want it free", row)
			}
		}},
		{"an acquire of an earlier holder that takes effect late is undone", func(t *testing.T, r *rig) {
			late := &lateStore{Store: r.server.Open(memory.Hooks{}), delay: renew}
			_, _ = late.TryAcquire(canceled(), r.cfg.Request)
			r.cfg.MaybeTaken = true
			if status := r.run(canceled(), never(t)); !errors.Is(status.Err, gate.ErrWithdrawn) {
				t.Errorf("Run = %+v; want withdrawn", status)
			}
			late.wait()
			if row := r.row(); !row.Released {
				t.Errorf("row %+v; want it free", row)
			}
		}},
		{"an attempt that never reached the store has nothing to undo", func(t *testing.T, r *rig) {
			r.cfg.StartTimeout = 3 * time.Second
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.Release {
					t.Error("an undo was tried")
				}
				return db.ErrUnreachable
			}
			status := r.run(t.Context(), never(t))
			if took := time.Since(r.began); status.State != gate.Failed || took != 3*time.Second {
				t.Errorf("Run = %+v after %s; want failed after 3s", status, took)
			}
		}},
		{"an attempt that nobody waits for any more takes nothing", func(t *testing.T, r *rig) {
			r.hooks.Before = func(context.Context, memory.Call) error { t.Error("the store was called"); return nil }
			if status := r.run(canceled(), never(t)); !errors.Is(status.Err, gate.ErrWithdrawn) {
				t.Errorf("Run = %+v; want withdrawn", status)
			}
		}},
		{"a withdrawn attempt ends at once, in mid-call", func(t *testing.T, r *rig) {
			ctx, cancel := context.WithCancel(t.Context())
			r.hooks.Before = func(ctx context.Context, c memory.Call) error {
				if c.Op == memory.TryAcquire {
					cancel()
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			status := r.run(ctx, never(t))
			if _, at := r.first(gate.Failed); !errors.Is(status.Err, gate.ErrWithdrawn) || at != 0 {
				t.Errorf("Run = %+v after %s; want withdrawn at once", status, at)
			}
		}},
		{"a told-to-stop holder keeps its lease until the work has returned", func(t *testing.T, r *rig) {
			ctx, cancel := context.WithCancel(t.Context())
			var told error
			r.run(ctx, func(wctx context.Context, _ db.Lease) {
				cancel()
				time.Sleep(3 * ttl)
				told = wctx.Err()
				if row := r.row(); row.Released || row.Remaining <= 0 {
					t.Errorf("row %+v; want it held", row)
				}
			})
			if told != nil {
				t.Errorf("the work was told to stop: %v", told)
			}
			r.wantStates("waiting acquired releasing released")
		}},
		{"a slow store cannot stretch the trust window", func(t *testing.T, r *rig) {
			// The answers take 1.5s; from the fourth renewal on there are none.
			calls := 0
			var sent time.Duration
			r.hooks.Before = func(context.Context, memory.Call) error {
				if calls++; calls <= 4 {
					sent = r.boot()
				}
				return nil
			}
			r.hooks.After = func(ctx context.Context, c memory.Call) error {
				if c.Op != memory.Release {
					select {
					case <-ctx.Done():
					case <-time.After(1500 * time.Millisecond):
					}
				}
				if calls > 4 && c.Op == memory.Renew {
					return errNet
				}
				return nil
			}
			var cause error
			r.run(t.Context(), untilTold(&cause, 0))
			lost, at := r.first(gate.Lost)
			if !errors.Is(cause, gate.ErrUntrusted) || lost.StopAt != sent+stopAt {
				t.Errorf("told %v with stop-at %s after the last good call was sent; want %s", cause, lost.StopAt-sent, stopAt)
			}
			if over := 1000*time.Hour + at - lost.StopAt; over < 0 || over > 10*time.Millisecond {
				t.Errorf("told %s after stop-at", over)
			}
		}},
		{"an answer that comes when nothing is left to trust is no lock", func(t *testing.T, r *rig) {
			r.cfg.CallLimit = time.Minute
			calls := 0
			r.hooks.After = func(_ context.Context, c memory.Call) error {
				if calls++; calls == 1 {
					time.Sleep(stopAt)
				}
				return nil
			}
			r.run(t.Context(), sleepFor(0))
			s, at := r.first(gate.Acquired)
			if calls < 3 || s.StopAt-1000*time.Hour <= at {
				t.Errorf("ready at %s with stop-at %s after %d calls", at, s.StopAt-1000*time.Hour, calls)
			}
		}},
		{"renewals that fail for less than the window cost nothing", func(t *testing.T, r *rig) {
			var token uint64
			calls := 0
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				calls++
				if s := time.Since(r.began); c.Op == memory.Renew && (s > 5*time.Second && s < 9*time.Second || calls%3 == 0) {
					return errNet
				}
				return nil
			}
			status := r.run(t.Context(), func(ctx context.Context, l db.Lease) {
				token = l.Token
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Errorf("told to stop: %v", context.Cause(ctx))
				}
			})
			if status.State != gate.Released || status.Lease.Token != token {
				t.Errorf("Run = %+v; want released", status)
			}
			r.wantNoErrorLog()
		}},
		{"a store that does not answer is given up in time", func(t *testing.T, r *rig) {
			r.hooks.Before = func(ctx context.Context, c memory.Call) error {
				if c.Op != memory.TryAcquire {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return nil
			}
			var cause error
			status := r.run(t.Context(), untilTold(&cause, grace))
			if _, at := r.first(gate.Lost); at != stopAt || !errors.Is(cause, gate.ErrUntrusted) {
				t.Errorf("told %v after %s; want after %s", cause, at, stopAt)
			}
			if status.State != gate.Lost {
				t.Errorf("Run = %+v; want lost", status)
			}
		}},
		{"a lost lock stays lost, but nobody else gets it while the work has not ended", func(t *testing.T, r *rig) {
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.Renew && time.Since(r.began) < stopAt+time.Second {
					return errNet
				}
				return nil
			}
			var cause error
			status := r.run(t.Context(), func(ctx context.Context, l db.Lease) {
				untilTold(&cause, 5*ttl)(ctx, l)
				if row := r.row(); row.Remaining <= 0 || row.Released {
					t.Errorf("row %+v; want it held", row)
				}
			})
			if status.State != gate.Lost || !errors.Is(cause, gate.ErrUntrusted) {
				t.Errorf("Run = %+v, told %v; want lost", status, cause)
			}
			if row := r.row(); !row.Released {
				t.Errorf("row %+v; want it released", row)
			}
			r.wantStates("waiting acquired lost releasing lost")
		}},
		{"not yours is final and immediate", func(t *testing.T, r *rig) {
			renewals := 0
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.Renew {
					renewals++
				}
				return nil
			}
			var cause error
			status := r.run(t.Context(), func(ctx context.Context, l db.Lease) {
				_ = r.server.Open(memory.Hooks{}).Revoke(ctx, l.Name, l.Token, false)
				untilTold(&cause, 3*renew)(ctx, l)
			})
			if _, at := r.first(gate.Lost); at > renew || !errors.Is(cause, db.ErrLost) || renewals != 1 {
				t.Errorf("told %v after %s and %d renewals; want at the first", cause, at, renewals)
			}
			if status.State != gate.Lost || !r.row().Released {
				t.Errorf("Run = %+v, row %+v; want lost, and free", status, r.row())
			}
		}},
		{"the old holder touches nothing of the next one's", func(t *testing.T, r *rig) {
			var next db.Lease
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.Renew {
					return errNet
				}
				return nil
			}
			status := r.run(t.Context(), func(context.Context, db.Lease) {
				time.Sleep(2 * ttl) // frozen
				next = r.hold(time.Minute)
			})
			row := r.row()
			if status.State != gate.Lost || row.Owner != "b/1" || row.Token != next.Token || row.Released {
				t.Errorf("Run = %+v, row %+v; want the next holder's row as it was", status, row)
			}
		}},
		{"a suspend longer than the lease is a loss at once", func(t *testing.T, r *rig) {
			var cause error
			time.AfterFunc(3*time.Second, func() { r.jump(time.Minute) })
			r.run(t.Context(), untilTold(&cause, 0))
			if _, at := r.first(gate.Lost); !errors.Is(cause, gate.ErrUntrusted) || at > 4*time.Second {
				t.Errorf("told %v after %s; want within a second of 3s", cause, at)
			}
		}},
		{"a short suspend is a renewal at once", func(t *testing.T, r *rig) {
			r.cfg.Request.TTL, r.cfg.RenewEvery = time.Minute, 15*time.Second
			var renewed []time.Duration
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.Renew {
					renewed = append(renewed, time.Since(r.began))
				}
				return nil
			}
			time.AfterFunc(3*time.Second, func() { r.jump(5 * time.Second) })
			r.run(t.Context(), sleepFor(6*time.Second))
			if len(renewed) != 1 || renewed[0] > 4*time.Second {
				t.Errorf("renewed at %v; want once, within a second of 3s", renewed)
			}
		}},
		{"the work does not start when the verdict cannot be published", func(t *testing.T, r *rig) {
			r.refuse = func(s gate.Status) error {
				if s.State == gate.Acquired {
					return errors.New("no space left")
				}
				return nil
			}
			status := r.run(t.Context(), never(t))
			if !errors.Is(status.Err, gate.ErrPublish) || !r.row().Released {
				t.Errorf("Run = %+v, row %+v; want failed, and free", status, r.row())
			}
		}},
		{"a deadline that cannot be published is not moved", func(t *testing.T, r *rig) {
			seen := 0
			r.refuse = func(s gate.Status) error {
				if s.State == gate.Acquired {
					if seen++; seen > 1 {
						return errors.New("no space left")
					}
				}
				return nil
			}
			var cause error
			r.run(t.Context(), untilTold(&cause, 0))
			if _, at := r.first(gate.Lost); at != stopAt || !errors.Is(cause, gate.ErrUntrusted) ||
				!strings.Contains(cause.Error(), "no space left") {
				t.Errorf("told %v after %s; want at the published %s, and why", cause, at, stopAt)
			}
		}},
		{"a restarted holder carries on with the same token", func(t *testing.T, r *rig) {
			lease, err := r.server.Open(memory.Hooks{}).TryAcquire(t.Context(), r.cfg.Request)
			if err != nil {
				t.Fatal(err)
			}
			r.cfg.Resume = resumed(r, lease)
			time.Sleep(stopAt - time.Second)
			status := r.run(t.Context(), sleepFor(time.Minute))
			if status.State != gate.Released || status.Lease.Token != lease.Token {
				t.Errorf("Run = %+v; want released with token %d", status, lease.Token)
			}
			r.wantStates("acquired releasing released")
		}},
		{"a restarted holder does not undo a stop that has begun", func(t *testing.T, r *rig) {
			lease, err := r.server.Open(memory.Hooks{}).TryAcquire(t.Context(), r.cfg.Request)
			if err != nil {
				t.Fatal(err)
			}
			r.cfg.Resume = resumed(r, lease)
			time.Sleep(stopAt + 500*time.Millisecond)
			var cause error
			status := r.run(t.Context(), untilTold(&cause, 2*ttl))
			if status.State != gate.Lost || !errors.Is(cause, gate.ErrUntrusted) {
				t.Errorf("Run = %+v, told %v; want lost", status, cause)
			}
			r.wantStates("lost releasing lost")
			if row := r.row(); !row.Released || row.Token != lease.Token {
				t.Errorf("row %+v; want it kept for the work and then released", row)
			}
		}},
		{"a restarted holder whose lease another has does not acquire", func(t *testing.T, r *rig) {
			lease, err := r.server.Open(memory.Hooks{}).TryAcquire(t.Context(), r.cfg.Request)
			if err != nil {
				t.Fatal(err)
			}
			r.cfg.Resume = resumed(r, lease)
			time.Sleep(ttl)
			r.hold(time.Hour)
			var cause error
			status := r.run(t.Context(), untilTold(&cause, 0))
			if row := r.row(); status.State != gate.Lost || row.Owner != "b/1" || row.Released {
				t.Errorf("Run = %+v, row %+v; want lost, the row another's", status, row)
			}
		}},
		{"a release that does not get through is tried again", func(t *testing.T, r *rig) {
			calls := 0
			r.hooks.Before = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.Release {
					if calls++; calls < 4 {
						return errNet
					}
				}
				return nil
			}
			if status := r.run(t.Context(), sleepFor(0)); status.Err != nil || !r.row().Released {
				t.Errorf("Run = %+v, row %+v; want released", status, r.row())
			}
			r.wantNoErrorLog()
		}},
		{"a dead store holds up the end for at most 10s, or the rest of the lease", func(t *testing.T, r *rig) {
			for _, life := range []time.Duration{ttl / 2, 10 * ttl} {
				r.cfg.Request.TTL, r.cfg.Request.Owner, r.cfg.Store = life, "a/"+life.String(), nil
				r.cfg.StopGrace, r.cfg.SafetyMargin = life/4, life/8
				r.hooks.Before = func(ctx context.Context, c memory.Call) error {
					if c.Op == memory.Release {
						<-ctx.Done()
						return context.Cause(ctx)
					}
					return nil
				}
				var ended time.Time
				status := r.run(t.Context(), func(context.Context, db.Lease) { ended = time.Now() })
				if took := time.Since(ended); took > min(life, 10*time.Second) || took < min(life, 10*time.Second)/2 {
					t.Errorf("the release of a lease of %s held up the end for %s", life, took)
				}
				if status.State != gate.Released || status.Err == nil {
					t.Errorf("Run = %+v; want released, not confirmed", status)
				}
				time.Sleep(life)
			}
		}},
		{"a renewal under way does not hold up the release", func(t *testing.T, r *rig) {
			r.hooks.Before = func(ctx context.Context, c memory.Call) error {
				if c.Op == memory.Renew {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return nil
			}
			r.run(t.Context(), sleepFor(renew+100*time.Millisecond))
			if _, at := r.first(gate.Released); at != renew+100*time.Millisecond {
				t.Errorf("released after %s; want when the work has returned", at)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tt.test(t, newRig(t)) })
		})
	}
}

func resumed(r *rig, lease db.Lease) *gate.Resume {
	now := r.boot()
	return &gate.Resume{
		Lease: lease, Acquired: now,
		StopAt: now + stopAt, KillAt: now + stopAt + grace, LeaseEnd: now + ttl,
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// lateStore is a store whose acquires take effect only after their caller has
// given up: the statement waits in the server.
type lateStore struct {
	db.Store
	delay time.Duration
	under sync.WaitGroup
}

func (s *lateStore) TryAcquire(ctx context.Context, req db.Request) (db.Lease, error) {
	s.under.Go(func() {
		time.Sleep(s.delay)
		_, _ = s.Store.TryAcquire(context.WithoutCancel(ctx), req)
	})
	<-ctx.Done()
	return db.Lease{}, context.Cause(ctx)
}

func (s *lateStore) wait() { s.under.Wait() }
