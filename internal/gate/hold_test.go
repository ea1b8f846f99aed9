package gate_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/memory"
	"github.com/lockgate/lockgate/internal/gate"
)

// holdAs takes the lock for another owner of a run.
func (r *rig) holdAs(run string, d time.Duration) db.Lease {
	r.t.Helper()
	lease, err := r.server.Open(memory.Hooks{}).TryAcquire(context.Background(),
		db.Request{Name: "nightly", Owner: "b/1", Run: run, TTL: d})
	if err != nil {
		r.t.Fatal(err)
	}
	return lease
}

// keepAlive renews another's lease until stop is called.
func (r *rig) keepAlive(lease db.Lease) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_, _ = r.server.Open(memory.Hooks{}).Renew(context.Background(), lease)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// outage makes every call fail in a stretch of time.
func (r *rig) outage(from, to time.Duration) {
	r.hooks.Before = func(context.Context, memory.Call) error {
		if at := time.Since(r.began); at >= from && at < to {
			return errNet
		}
		return nil
	}
}

func TestTheSameRunIsWaitedFor(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T, r *rig)
	}{
		{"a dead holder of the same run is waited for, though told to skip", func(t *testing.T, r *rig) {
			r.holdAs("job-1", 20*time.Second)
			r.cfg.Request.Run = "job-1"
			status := r.run(t.Context(), sleepFor(time.Second))
			if _, at := r.first(gate.Acquired); status.State != gate.Released || !near(at, 20*time.Second, 100*time.Millisecond) {
				t.Errorf("Run = %+v, acquired after %s; want 20s", status, at)
			}
		}},
		{"a dead holder of the same run is waited for, though told to fail", func(t *testing.T, r *rig) {
			r.holdAs("job-1", 20*time.Second)
			r.cfg.Request.Run, r.cfg.OnBusy = "job-1", gate.Fail
			if status := r.run(t.Context(), sleepFor(time.Second)); status.State != gate.Released {
				t.Errorf("Run = %+v; want released", status)
			}
		}},
		{"one that outlives the wait is waited for until its lease should end", func(t *testing.T, r *rig) {
			r.holdAs("job-1", 20*time.Second)
			r.cfg.Request.Run, r.cfg.WaitTimeout = "job-1", 2*time.Second
			if status := r.run(t.Context(), sleepFor(time.Second)); status.State != gate.Released {
				t.Errorf("Run = %+v; want released: its lease ended after 20s", status)
			}
		}},
		{"one that lives and renews is waited for only so long", func(t *testing.T, r *rig) {
			defer r.keepAlive(r.holdAs("job-1", 20*time.Second))()
			r.cfg.Request.Run, r.cfg.WaitTimeout = "job-1", 2*time.Second
			status := r.run(t.Context(), never(t))
			_, at := r.first(gate.Busy)
			if !errors.Is(status.Err, gate.ErrWaitedTooLong) || at < 21*time.Second || at > 23*time.Second {
				t.Errorf("Run = %+v after %s; want busy after the life it had, 20s, and a poll", status, at)
			}
		}},
		{"the wait is the longer of the two", func(t *testing.T, r *rig) {
			defer r.keepAlive(r.holdAs("job-1", 5*time.Second))()
			r.cfg.Request.Run, r.cfg.WaitTimeout = "job-1", 40*time.Second
			status := r.run(t.Context(), never(t))
			if _, at := r.first(gate.Busy); status.State != gate.Busy || at != 40*time.Second {
				t.Errorf("Run = %+v after %s; want busy after 40s", status, at)
			}
		}},
		{"a wait for another run is not made longer by a holder of our own before", func(t *testing.T, r *rig) {
			own := r.holdAs("job-1", time.Hour)
			r.cfg.Request.Run, r.cfg.OnBusy, r.cfg.WaitTimeout = "job-1", gate.Wait, 30*time.Second
			time.AfterFunc(10*time.Second, func() {
				_ = r.server.Open(memory.Hooks{}).Release(context.Background(), own, 0)
				_, err := r.server.Open(memory.Hooks{}).TryAcquire(context.Background(),
					db.Request{Name: "nightly", Owner: "c/1", Run: "job-2", TTL: time.Hour})
				must(t, err)
			})
			status := r.run(t.Context(), never(t))
			if _, at := r.first(gate.Busy); status.State != gate.Busy || at != 30*time.Second {
				t.Errorf("Run = %+v after %s; want busy after 30s", status, at)
			}
		}},
		{"another run's holder is a reason to skip", func(t *testing.T, r *rig) {
			r.holdAs("job-1", 20*time.Second)
			r.cfg.Request.Run = "job-2"
			if status := r.run(t.Context(), never(t)); status.State != gate.Skipped {
				t.Errorf("Run = %+v; want skipped", status)
			}
		}},
		{"no run equals no run least of all", func(t *testing.T, r *rig) {
			r.holdAs("", 20*time.Second)
			if status := r.run(t.Context(), never(t)); status.State != gate.Skipped {
				t.Errorf("Run = %+v; want skipped", status)
			}
		}},
		{"another run that comes first is a reason to skip after all", func(t *testing.T, r *rig) {
			r.holdAs("job-1", 10*time.Second)
			r.cfg.Request.Run = "job-1"
			time.AfterFunc(9990*time.Millisecond, func() {
				for {
					_, err := r.server.Open(memory.Hooks{}).TryAcquire(context.Background(),
						db.Request{Name: "nightly", Owner: "c/1", Run: "job-2", TTL: time.Minute})
					if err == nil {
						return
					}
					time.Sleep(100 * time.Microsecond)
				}
			})
			status := r.run(t.Context(), never(t))
			if status.State != gate.Skipped || status.Held.Owner != "c/1" {
				t.Errorf("Run = %+v; want skipped for c/1", status)
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.test(t, newRig(t)) })
		})
	}
}

func TestMinHold(t *testing.T) {
	tests := []struct {
		name     string
		succeeds bool
		work     time.Duration
		left     time.Duration // what stays taken
	}{
		{"after a success the lock stays taken", true, 5 * time.Second, 55 * time.Second},
		{"after a failure it is free", false, 5 * time.Second, 0},
		{"a work that took longer keeps nothing", true, 61 * time.Second, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.cfg.MinHold, r.succeeds = time.Minute, test.succeeds
				status := r.run(t.Context(), sleepFor(test.work))
				if status.State != gate.Released || !near(status.Kept, test.left, 10*time.Millisecond) {
					t.Errorf("Run = %+v; want released, kept for %s", status, test.left)
				}
				row := r.row()
				if !row.Released || !near(max(row.Remaining, 0), test.left, 10*time.Millisecond) {
					t.Errorf("row = %+v; want it taken for another %s", row, test.left)
				}
				if said := strings.Contains(r.log.String(), "kept_for"); said != (test.left > 0) {
					t.Errorf("the log says that it is kept: %v", said)
				}
			})
		})
	}
	t.Run("a success after our stop had begun is none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.cfg.MinHold, r.cfg.MaxHold, r.succeeds = 20*time.Second, 20*time.Second, true
			var cause error
			r.run(t.Context(), untilTold(&cause, time.Second))
			if row := r.row(); row.Remaining > 0 {
				t.Errorf("row = %+v; want it free", row)
			}
		})
	})
}

func TestMaxHold(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T, r *rig)
	}{
		{"the work is told to stop at that age, and only then the lock is released", func(t *testing.T, r *rig) {
			r.cfg.MaxHold = 30 * time.Second
			var cause error
			var told time.Duration
			var during db.Row
			status := r.run(t.Context(), func(ctx context.Context, _ db.Lease) {
				<-ctx.Done()
				cause, told = context.Cause(ctx), time.Since(r.began)
				time.Sleep(ttl) // longer than any lease, and than it was given
				during = r.row()
			})
			if !errors.Is(cause, gate.ErrMaxHold) || told != 30*time.Second {
				t.Errorf("told after %s, %v; want 30s, %v", told, cause, gate.ErrMaxHold)
			}
			if during.Released || during.Remaining <= 0 {
				t.Errorf("while the work was ending: %+v; want it held", during)
			}
			if status.State != gate.Lost || !errors.Is(status.Err, gate.ErrMaxHold) || !r.row().Released {
				t.Errorf("Run = %+v, row %+v; want lost for MaxHold, and released", status, r.row())
			}
		}},
		{"no deadline is ever published beyond it", func(t *testing.T, r *rig) {
			r.cfg.MaxHold = 30 * time.Second
			var cause error
			r.run(t.Context(), untilTold(&cause, 0))
			for _, s := range r.published {
				if s.State != gate.Acquired {
					continue
				}
				if latest := s.Acquired + r.cfg.MaxHold; s.StopAt > latest || s.KillAt > latest+grace {
					t.Errorf("stop-at %s, kill-at %s after acquired; want at most %s and %s",
						s.StopAt-s.Acquired, s.KillAt-s.Acquired, r.cfg.MaxHold, r.cfg.MaxHold+grace)
				}
			}
		}},
		{"a work that ends before is not touched", func(t *testing.T, r *rig) {
			r.cfg.MaxHold = 30 * time.Second
			if status := r.run(t.Context(), sleepFor(29*time.Second)); status.State != gate.Released || status.Err != nil {
				t.Errorf("Run = %+v; want released", status)
			}
		}},
		{"it counts from the acquire, also for who carries on", func(t *testing.T, r *rig) {
			r.cfg.MaxHold = 30 * time.Second
			r.cfg.Store = r.server.Open(memory.Hooks{})
			lease, err := r.cfg.Store.TryAcquire(t.Context(), r.cfg.Request)
			must(t, err)
			at := r.boot()
			r.cfg.Resume = &gate.Resume{Lease: lease, Acquired: at - 28*time.Second, StopAt: at + 2*time.Second, KillAt: at + 4*time.Second, LeaseEnd: at + ttl}
			var cause error
			r.run(t.Context(), untilTold(&cause, 0))
			if told := time.Since(r.began); told != 2*time.Second {
				t.Errorf("told after %s; want 2s", told)
			}
		}},
		{"an own lease that is older than that is let go, not run on", func(t *testing.T, r *rig) {
			r.cfg.MaxHold = 30 * time.Second
			r.cfg.Store = r.server.Open(memory.Hooks{})
			req := r.cfg.Request
			req.TTL = time.Hour
			_, err := r.cfg.Store.TryAcquire(t.Context(), req)
			must(t, err)
			time.Sleep(31 * time.Second)
			status := r.run(t.Context(), never(t))
			if status.State != gate.Lost || !errors.Is(status.Err, gate.ErrMaxHold) || !r.row().Released {
				t.Errorf("Run = %+v, row %+v; want lost, and released", status, r.row())
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.test(t, newRig(t)) })
		})
	}
}

func TestALostLeaseDoesNotStopAWorkThatGoesOn(t *testing.T) {
	notStopped := func(t *testing.T, d time.Duration) func(context.Context, db.Lease) {
		return func(ctx context.Context, _ db.Lease) {
			select {
			case <-ctx.Done():
				t.Errorf("the work was stopped: %v", context.Cause(ctx))
			case <-time.After(d):
			}
		}
	}
	tests := []struct {
		name string
		test func(t *testing.T, r *rig)
	}{
		{"revoked: it goes on, and every line says so", func(t *testing.T, r *rig) {
			r.cfg.MinHold, r.succeeds = time.Hour, true
			time.AfterFunc(5*time.Second, func() {
				row := r.row()
				must(t, r.server.Open(memory.Hooks{}).Revoke(context.Background(), "nightly", row.Token, true))
			})
			status := r.run(t.Context(), notStopped(t, 2*time.Minute))
			if status.State != gate.Lost || !errors.Is(status.Err, db.ErrLost) {
				t.Errorf("Run = %+v; want lost", status)
			}
			if row := r.row(); row.Remaining > 0 {
				t.Errorf("row = %+v; want it free: a work without the lock earns no MinHold", row)
			}
			r.wantStates("waiting acquired lost releasing lost")
			_, after, found := strings.Cut(r.log.String(), "goes on without it")
			if !found {
				t.Fatalf("the log does not say that the work goes on")
			}
			lines := strings.Split(strings.TrimSpace(after), "\n")[1:]
			if len(lines) < 3 {
				t.Errorf("%d lines after the loss in two minutes; want to be reminded", len(lines))
			}
			for _, line := range lines {
				if !strings.Contains(line, "unguarded=true") {
					t.Errorf("a line does not say that the work is unguarded: %s", line)
				}
			}
		}},
		{"the store comes back in time: it is held again", func(t *testing.T, r *rig) {
			r.outage(renew/2, stopAt+time.Second)
			status := r.run(t.Context(), notStopped(t, time.Minute))
			if status.State != gate.Released || status.Err != nil {
				t.Errorf("Run = %+v; want released", status)
			}
			r.wantStates("waiting acquired lost acquired releasing released")
			if _, after, _ := strings.Cut(r.log.String(), "held again"); strings.Contains(after, "unguarded") {
				t.Errorf("after it was held again, the log still says unguarded")
			}
		}},
		{"the longest hold stops it all the same", func(t *testing.T, r *rig) {
			r.cfg.MaxHold = 40 * time.Second
			time.AfterFunc(5*time.Second, func() {
				must(t, r.server.Open(memory.Hooks{}).Revoke(context.Background(), "nightly", r.row().Token, true))
			})
			var cause error
			r.run(t.Context(), untilTold(&cause, 0))
			if told := time.Since(r.began); told != 40*time.Second || !errors.Is(cause, gate.ErrMaxHold) {
				t.Errorf("told after %s, %v; want 40s, %v", told, cause, gate.ErrMaxHold)
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.cfg.GoOn = true
				test.test(t, r)
			})
		})
	}
}

func TestTake(t *testing.T) {
	tests := []struct {
		name string
		test func(t *testing.T, r *rig)
	}{
		{"it returns with the lock, which ends by its TTL alone", func(t *testing.T, r *rig) {
			status := r.take(t.Context())
			if status.State != gate.Acquired || time.Since(r.began) > 0 {
				t.Errorf("Take = %+v after %s; want acquired at once", status, time.Since(r.began))
			}
			time.Sleep(ttl - time.Millisecond)
			if row := r.row(); row.Released || row.Remaining <= 0 {
				t.Errorf("just before the TTL: %+v; want it held", row)
			}
			time.Sleep(2 * time.Millisecond)
			if row := r.row(); row.Remaining > 0 {
				t.Errorf("after the TTL: %+v; want it free", row)
			}
			r.wantStates("waiting acquired")
		}},
		{"busy", func(t *testing.T, r *rig) {
			r.hold(time.Minute)
			if status := r.take(t.Context()); status.State != gate.Skipped {
				t.Errorf("Take = %+v; want skipped", status)
			}
		}},
		{"told to stop while it waits: nothing is left held", func(t *testing.T, r *rig) {
			r.hold(time.Minute)
			r.cfg.OnBusy = gate.Wait
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, cancel)
			if status := r.take(ctx); !errors.Is(status.Err, gate.ErrWithdrawn) || time.Since(r.began) != 3*time.Second {
				t.Errorf("Take = %+v after %s; want withdrawn after 3s", status, time.Since(r.began))
			}
		}},
		{"told to stop in the moment of success: what was taken is released", func(t *testing.T, r *rig) {
			ctx, cancel := context.WithCancel(t.Context())
			r.hooks.After = func(_ context.Context, c memory.Call) error {
				if c.Op == memory.TryAcquire {
					cancel()
				}
				return nil
			}
			status := r.take(ctx)
			if !errors.Is(status.Err, gate.ErrWithdrawn) {
				t.Errorf("Take = %+v; want withdrawn", status)
			}
			if row := r.row(); !row.Released || row.Remaining > 0 {
				t.Errorf("row = %+v; want it released", row)
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.test(t, newRig(t)) })
		})
	}
}

func (r *rig) take(ctx context.Context) gate.Status {
	r.t.Helper()
	r.cfg.Store = r.server.Open(r.hooks)
	status := gate.Take(ctx, r.cfg)
	r.t.Log(r.log.String())
	return status
}

// A store that does not answer a release holds up the next request. Whoever made
// that must hear in the meantime that somebody is there.
func TestAReleaseThatDragsOnGivesSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.hooks.Before = func(ctx context.Context, c memory.Call) error {
			if c.Op != memory.Release {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		r.run(t.Context(), sleepFor(time.Second))
		last := time.Duration(-1)
		for i, s := range r.published {
			if s.State != gate.Releasing && s.State != gate.Released {
				continue
			}
			if last >= 0 && r.at[i]-last > 5*time.Second {
				t.Errorf("silent for %s while releasing; want a sign every 5s", r.at[i]-last)
			}
			last = r.at[i]
		}
		if last < 5*time.Second {
			t.Fatalf("the release ended after %s; it was to drag on", last)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestARefusalWhileWaitingIsNotFinal(t *testing.T) {
	for name, c := range map[string]struct {
		mended time.Duration
		want   gate.State
	}{
		"a password is being changed": {10 * time.Second, gate.Released},
		"the right was taken away":    {time.Hour, gate.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.hold(5 * time.Second)
				r.cfg.OnBusy = gate.Wait
				r.hooks.Before = func(context.Context, memory.Call) error {
					if at := time.Since(r.began); at >= 2*time.Second && at < c.mended {
						return db.ErrRefused
					}
					return nil
				}
				status := r.run(t.Context(), sleepFor(0))
				if status.State != c.want {
					t.Errorf("Run = %+v; want %s", status, c.want)
				}
				if c.want == gate.Failed && !errors.Is(status.Err, db.ErrRefused) {
					t.Errorf("Run = %+v; want it to say that it was refused", status)
				}
			})
		})
	}
}

func TestALossSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(r *rig)
		says  string
	}{
		"revoked": {func(r *rig) {
			must(r.t, r.server.Open(memory.Hooks{}).Revoke(context.Background(), "nightly", r.row().Token, false))
		}, "it was revoked"},
		"taken by another": {func(r *rig) {
			must(r.t, r.server.Open(memory.Hooks{}).Revoke(context.Background(), "nightly", r.row().Token, true))
			r.hold(time.Minute)
		}, `held by \"b/1\"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				time.AfterFunc(5*time.Second, func() { c.fault(r) })
				var cause error
				status := r.run(t.Context(), untilTold(&cause, time.Second))
				if !errors.Is(status.Err, db.ErrLost) || !strings.Contains(r.log.String(), c.says) {
					t.Errorf("Run = %+v; want lost, and %q in the log", status, c.says)
				}
				lost, _ := r.first(gate.Lost)
				if !errors.Is(lost.Err, db.ErrLost) {
					t.Errorf("first published %+v; want lost", lost)
				}
			})
		})
	}
	t.Run("the work is told before anything is asked", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			time.AfterFunc(5*time.Second, func() {
				must(r.t, r.server.Open(memory.Hooks{}).Revoke(context.Background(), "nightly", r.row().Token, false))
			})
			asked := time.Duration(-1)
			r.hooks.Before = func(ctx context.Context, c memory.Call) error {
				if c.Op == memory.List && asked < 0 {
					asked = time.Since(r.began)
					<-ctx.Done() // it does not answer
					return context.Cause(ctx)
				}
				return nil
			}
			var told time.Duration
			r.run(t.Context(), func(ctx context.Context, _ db.Lease) {
				<-ctx.Done()
				told = time.Since(r.began)
			})
			if asked < 0 || told != asked {
				t.Errorf("the work was told after %s, the store asked after %s; want both at once", told, asked)
			}
		})
	})
}

// A holder that comes back after everything has ended finds nothing lost.
func TestAWorkThatWasOverBeforeItsHolderCameBackLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.cfg.MinHold, r.succeeds = time.Hour, true
		r.cfg.Store = r.server.Open(memory.Hooks{})
		lease, err := r.cfg.Store.TryAcquire(t.Context(), r.cfg.Request)
		must(t, err)
		at := r.boot()
		r.cfg.Resume = &gate.Resume{Lease: lease, Acquired: at, StopAt: at + stopAt, KillAt: at + stopAt + grace, LeaseEnd: at + ttl}
		time.Sleep(2 * ttl)
		status := r.run(t.Context(), sleepFor(0))
		if status.State != gate.Released || status.Kept != 0 {
			t.Errorf("Run = %+v; want released, and not said to be kept", status)
		}
		r.wantStates("releasing released")
		r.wantNoErrorLog()
		if !strings.Contains(r.log.String(), "too late to keep it") {
			t.Error("the log does not say that MIN_HOLD is not kept")
		}
	})
}
