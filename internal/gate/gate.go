package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/wallclock"
)

// OnBusy is what to do when somebody else has the lock.
type OnBusy string

// The three policies.
const (
	Skip OnBusy = "skip" // give up at once, and call it a success
	Wait OnBusy = "wait" // try again until WaitTimeout
	Fail OnBusy = "fail" // give up at once
)

// State is where a gate stands; see the package comment.
type State string

// The states. Skipped, Busy, Failed, Lost and Released are final.
const (
	Waiting   State = "waiting"
	Acquired  State = "acquired"
	Skipped   State = "skipped"
	Busy      State = "busy"
	Failed    State = "failed"
	Lost      State = "lost"
	Releasing State = "releasing"
	Released  State = "released"
)

var (
	// ErrUntrusted is the cause with which the work's context ends when the
	// lease could not be renewed in time.
	ErrUntrusted = errors.New("lease could not be renewed in time")

	// ErrStalled is ErrUntrusted where no renewal had gone wrong: we were not
	// there, because we were frozen, starved, or killed and started again late.
	ErrStalled = fmt.Errorf("%w: lockgate did not run when it was time", ErrUntrusted)

	// ErrNotTold is part of ErrUntrusted where the store had renewed, but the new
	// deadline could not be published.
	ErrNotTold = errors.New("publish the new deadline")

	// ErrMaxHold is the cause with which the work's context ends when the lock
	// has been held for MaxHold.
	ErrMaxHold = errors.New("lock was held for the longest time allowed")

	// ErrWithdrawn is the error of an attempt that was given up because its
	// context ended: nobody waits for the lock any more.
	ErrWithdrawn = errors.New("attempt withdrawn")

	// ErrWaitedTooLong is the error of Busy when WaitTimeout has passed.
	ErrWaitedTooLong = errors.New("waited too long")

	// ErrUnusable is the error of Failed when the store gave no answer on the
	// lock for StartTimeout.
	ErrUnusable = errors.New("store could not be used")

	// ErrPublish is the error of Failed when the verdict could not be published.
	ErrPublish = errors.New("verdict could not be published")
)

// Limits of what the gate waits for, apart from the settings.
const (
	maxWaitingSilence = 4 * time.Second        // "waiting" is published at least this often
	heartbeat         = time.Second            // clocks are looked at at least this often while holding
	clockJump         = time.Second            // a step of the wall clock that asks for a renewal
	minPause          = 50 * time.Millisecond  // between tries after an error
	maxPause          = 2 * time.Second        // the same, after many errors
	againPause        = 20 * time.Millisecond  // after the store has asked for another try
	settleLimit       = 10 * time.Second       // for a release, or for undoing an acquire
	repeatLogEvery    = 15 * time.Second       // the same trouble is logged again this often
	minCall           = 100 * time.Millisecond // a store call is given at least this long
	whyLimit          = time.Second            // for asking why the lease is lost
	resumeGrace       = 20 * time.Millisecond  // for a work that is over to say so
)

// Config says what a gate guards and by which policy. Durations must have been
// checked; see the settings.
type Config struct {
	Store   db.Store
	Request db.Request

	// OnBusy is the policy towards a holder of another run. One of the same run,
	// which is the dead or dying process that this one replaces, is always
	// waited for: the longer of WaitTimeout and the rest of its lease plus
	// PollEvery.
	OnBusy       OnBusy
	WaitTimeout  time.Duration // 0 waits for ever
	PollEvery    time.Duration // between tries while waiting; jittered
	StartTimeout time.Duration // a store that cannot be reached is retried this long

	RenewEvery   time.Duration
	StopGrace    time.Duration // what the work is given between stop-at and kill-at
	SafetyMargin time.Duration // from kill-at to the end of the lease
	MinHold      time.Duration // after a success the lock stays taken until this age; 0 for none
	MaxHold      time.Duration // at this age the work is stopped; 0 for no limit
	GoOn         bool          // a lease that is lost does not stop the work
	CallLimit    time.Duration // for each store call

	// LockWait is how long the store may keep a call waiting after its caller
	// has gone. An acquire of unknown outcome can take effect this long.
	LockWait time.Duration

	// Kin is an owner that is waited for as one of the same run is: a holder
	// that was here before us and is dead. Empty for none.
	Kin string

	// Resume is a lease that an earlier holder of the same request had
	// published. Run then carries on with it and never acquires.
	Resume *Resume

	// MaybeTaken says that an earlier holder of the same request may have
	// sent an acquire whose outcome nobody knows.
	MaybeTaken bool

	// Boot reads the boot clock.
	Boot func() time.Duration

	// Publish tells others where the gate stands. It is called from Run's
	// goroutine only, and must not block. Acquired is published again with each
	// renewal. The work is not started, and a deadline not moved, unless
	// Publish accepted it.
	Publish func(Status) error

	Log *slog.Logger
}

// Resume is a lease in mid-hold. Times are readings of the boot clock.
type Resume struct {
	Lease                    db.Lease
	Acquired                 time.Duration
	StopAt, KillAt, LeaseEnd time.Duration
}

// Status is where a gate stands and why. Times are readings of the boot clock.
type Status struct {
	State State
	Lease db.Lease // from Acquired on

	Acquired                 time.Duration
	StopAt, KillAt, LeaseEnd time.Duration

	Held *db.HeldError // who has the lock: Waiting (when known), Skipped, Busy
	Kept time.Duration // Released: how long the lock stays taken, because of MinHold
	Err  error         // why: Busy, Failed, Lost; after Released, why the release is not confirmed
}

// Run tries for the lock, runs work while it holds, and lets go when work has
// returned. It returns the final status, which it has also published, except
// for Failed with [ErrPublish].
//
// The end of ctx withdraws an attempt (Failed with [ErrWithdrawn]). It does not
// touch a lease: once the work runs, only its return ends the hold. The work's
// context does not end with ctx but, with [ErrUntrusted] or [db.ErrLost] as its
// cause, when the lease is not to be trusted any more (unless GoOn is set), and
// with [ErrMaxHold]; the work is then expected to end what it guards and return.
// What work returns says whether it has succeeded, which is what MinHold is
// about.
func Run(ctx context.Context, cfg Config, work func(ctx context.Context, lease db.Lease) (succeeded bool)) Status {
	g := newGate(cfg)
	var h hold
	if cfg.Resume != nil {
		h = resume(*cfg.Resume)
		g.log.Info("carrying on with the lease", "token", h.lease.Token)
	} else {
		status, ok := g.acquire(ctx)
		if status.State == Acquired {
			if h, ok = g.open(status); !ok {
				status = Status{State: Failed, Err: ErrPublish}
			}
		}
		if !ok {
			return g.giveUp(ctx, status)
		}
	}
	return g.keep(ctx, h, work)
}

// Take tries for the lock like [Run], and when it has it returns at once: the
// lease is neither renewed nor released, its TTL ends it. The end of ctx
// withdraws the attempt also when the lock has just been taken; it is released
// then.
func Take(ctx context.Context, cfg Config) Status {
	g := newGate(cfg)
	status, ok := g.acquire(ctx)
	if status.State == Acquired {
		if _, ok = g.open(status); !ok {
			status = Status{State: Failed, Err: ErrPublish}
		} else if ctx.Err() != nil {
			g.unclear, g.unclearAt = true, g.now()
			status, ok = Status{State: Failed, Err: fmt.Errorf("%w: %w", ErrWithdrawn, context.Cause(ctx))}, false
		}
	}
	if !ok {
		return g.giveUp(ctx, status)
	}
	return status
}

func newGate(cfg Config) *gate {
	g := &gate{Config: cfg, log: cfg.Log.With("lock", cfg.Request.Name), start: time.Now(), boot0: cfg.Boot()}
	if cfg.MaybeTaken {
		g.unclear, g.unclearAt = true, g.now()
	}
	return g
}

// gate is one Run or Take. It belongs to one goroutine.
type gate struct {
	Config
	log   *slog.Logger
	start time.Time     // monotonic
	boot0 time.Duration // boot clock at start

	// unclear says that an acquire was sent at unclearAt whose outcome nobody
	// knows; it may still take effect.
	unclear   bool
	unclearAt time.Duration

	trouble trouble
}

// now is the boot clock, or the monotonic clock where that one is ahead: the
// stricter of the two. Both count from the same reading at the start.
func (g *gate) now() time.Duration {
	return max(g.Boot(), g.boot0+time.Since(g.start))
}

// hold is a lease that is held, or was.
type hold struct {
	lease    db.Lease
	acquired time.Duration
	stopAt   time.Duration
	killAt   time.Duration
	end      time.Duration
}

func resume(r Resume) hold {
	return hold{lease: r.Lease, acquired: r.Acquired, stopAt: r.StopAt, killAt: r.KillAt, end: r.LeaseEnd}
}

// window is the trust that a lease deserves which was asked for at t0.
func (g *gate) window(lease db.Lease, t0, acquired time.Duration) hold {
	end := t0 + lease.Life
	killAt := end - g.SafetyMargin
	stopAt := killAt - g.StopGrace
	if g.MaxHold > 0 {
		stopAt = min(stopAt, acquired+g.MaxHold)
		killAt = min(killAt, stopAt+g.StopGrace)
	}
	return hold{lease: lease, acquired: acquired, end: end, killAt: killAt, stopAt: stopAt}
}

// heldEnough tells whether a lock that was acquired then has been held for
// MaxHold.
func (g *gate) heldEnough(acquired time.Duration) bool {
	return g.MaxHold > 0 && g.now() >= acquired+g.MaxHold
}

func (h hold) status(s State, err error) Status {
	return Status{
		State: s, Lease: h.lease, Err: err,
		Acquired: h.acquired, StopAt: h.stopAt, KillAt: h.killAt, LeaseEnd: h.end,
	}
}

// acquire tries until there is a verdict. A status of Acquired is not published
// yet and carries the window.
func (g *gate) acquire(ctx context.Context) (status Status, ok bool) {
	var (
		began     = g.now()
		bad       streak
		held      *db.HeldError
		announced string
		until     time.Duration // when to stop waiting for the holder of our own run
	)
	enough := func(now time.Duration) bool {
		return g.WaitTimeout > 0 && now-began >= g.WaitTimeout && now >= until
	}
	for {
		if err := g.Publish(Status{State: Waiting, Held: held}); err != nil {
			g.log.Error("publish verdict", "err", err)
			return Status{State: Failed, Err: fmt.Errorf("%w: %w", ErrPublish, err)}, false
		}
		if ctx.Err() != nil {
			return Status{State: Failed, Err: fmt.Errorf("%w: %w", ErrWithdrawn, context.Cause(ctx))}, false
		}
		t0 := g.now()
		lease, err := g.tryAcquire(ctx)
		now := g.now()
		var pause time.Duration
		switch {
		case err == nil:
			h := g.window(lease, t0, t0-lease.Age)
			if now < h.stopAt {
				return h.status(Acquired, nil), true
			}
			if g.heldEnough(h.acquired) {
				// Ours since before a restart, and for too long already.
				g.unclear, g.unclearAt = true, t0
				return Status{State: Lost, Err: ErrMaxHold}, false
			}
			// The answer took so long that nothing is left to trust. The lock is
			// ours all the same: asking again extends it.
			g.unclear, g.unclearAt = true, t0
			err = fmt.Errorf("acquire %q: the answer took %s", g.Request.Name, now-t0)
			pause = g.troubled(&bad, now, err)

		case errors.Is(err, db.ErrHeld):
			bad, g.trouble = streak{}, trouble{}
			held, _ = errors.AsType[*db.HeldError](err)
			if held == nil {
				held = &db.HeldError{Name: g.Request.Name}
			}
			ourRun := g.Request.Run != "" && held.Run == g.Request.Run || g.Kin != "" && held.Owner == g.Kin
			who := fmt.Sprint(held.Owner, held.Token)
			switch {
			case !ourRun:
				until = 0
			case who != announced:
				until = now + held.Remaining + g.PollEvery
			}
			switch {
			case ourRun && !enough(now): // wait, whatever the policy
			case ourRun, g.OnBusy == Wait && enough(now):
				return Status{State: Busy, Held: held,
					Err: fmt.Errorf("%w, %s: %w", ErrWaitedTooLong, rounded(now-began), err)}, false
			case g.OnBusy == Skip:
				return Status{State: Skipped, Held: held, Err: err}, false
			case g.OnBusy == Fail:
				return Status{State: Busy, Held: held, Err: err}, false
			}
			if who != announced {
				announced = who
				attrs := heldAttrs(held)
				if ourRun {
					attrs = append(attrs, "reason", "it belongs to the same run as we do", "run", held.Run)
				}
				g.log.Info("waiting for the lock", attrs...)
			}
			// Also look at the moment the holder's lease should end.
			pause = min(jitter(g.PollEvery), max(held.Remaining+time.Millisecond, jitter(minPause)))
			if g.WaitTimeout > 0 {
				pause = min(pause, max(began+g.WaitTimeout, until)-now)
			}

		case errors.Is(err, db.ErrAgain) && held != nil && !enough(now):
			// A crowd of waiters gets in each other's way. That is no outage.
			bad = streak{}
			pause = jitter(g.PollEvery)

		case errors.Is(err, db.ErrLost):
			return Status{State: Lost, Err: err}, false

		// Who was served before is not refused for good: a password is being
		// changed, in the database and in our file, but not at one stroke.
		case errors.Is(err, db.ErrRefused) && held == nil:
			return Status{State: Failed, Err: err}, false

		default:
			if ctx.Err() != nil {
				continue // withdrawn; said above
			}
			pause = g.troubled(&bad, now, err)
		}
		if bad.count > 0 {
			left := g.StartTimeout - (now - bad.since)
			if left <= 0 {
				return Status{State: Failed, Err: fmt.Errorf("%w for %s: %w", ErrUnusable, g.StartTimeout, err)}, false
			}
			pause = min(pause, left)
		}
		g.pause(ctx, pause, held)
	}
}

// streak is a row of attempts that the store did not answer as asked.
type streak struct {
	count int
	since time.Duration
}

// troubled notes an error after which the next try is made, and returns how
// long to wait for that.
func (g *gate) troubled(bad *streak, now time.Duration, err error) time.Duration {
	if bad.count == 0 {
		bad.since = now
	}
	bad.count++
	pause := retryPause(bad.count, err)
	if g.trouble.worthSaying(now, err) {
		g.log.Warn("store call went wrong, trying again", "err", err, "attempt", bad.count, "wait", rounded(pause))
	}
	return pause
}

// tryAcquire makes one attempt and keeps account of whether its outcome is
// known.
func (g *gate) tryAcquire(ctx context.Context) (db.Lease, error) {
	t0 := g.now()
	cctx, cancel := g.limit(ctx, g.CallLimit)
	defer cancel()
	lease, err := g.Store.TryAcquire(cctx, g.Request)
	switch {
	case err == nil:
	case errors.Is(err, db.ErrHeld), errors.Is(err, db.ErrLost), errors.Is(err, db.ErrAgain),
		errors.Is(err, db.ErrUnreachable), errors.Is(err, db.ErrRefused), errors.Is(err, db.ErrNoTable):
		// This attempt took nothing. An earlier one may still be under way.
	default:
		g.unclear, g.unclearAt = true, t0
	}
	return lease, err
}

// open publishes a lease that was just acquired.
func (g *gate) open(status Status) (hold, bool) {
	h := hold{
		lease: status.Lease, acquired: status.Acquired,
		stopAt: status.StopAt, killAt: status.KillAt, end: status.LeaseEnd,
	}
	if err := g.Publish(status); err != nil {
		g.log.Error("publish verdict", "err", err)
		g.unclear, g.unclearAt = true, g.now()
		return h, false
	}
	g.log.Info("lock acquired", "token", h.lease.Token, "owner", h.lease.Owner, "ttl", h.lease.Life)
	return h, true
}

// giveUp publishes a verdict that is not Acquired and undoes what may have been
// taken. The verdict goes first: whoever waits for it must not wait for a store
// that does not answer.
func (g *gate) giveUp(ctx context.Context, status Status) Status {
	withdrawn := errors.Is(status.Err, ErrWithdrawn)
	switch {
	case withdrawn:
		g.log.Info("attempt withdrawn", "reason", context.Cause(ctx))
	case status.State == Skipped:
		g.log.Info("lock is busy, skipping", heldAttrs(status.Held)...)
	case status.State == Busy:
		g.log.Error("lock is busy, giving up", append(heldAttrs(status.Held), "waited", rounded(g.now()-g.boot0))...)
	default:
		g.log.Error("no lock", "err", status.Err)
	}
	if !errors.Is(status.Err, ErrPublish) {
		if err := g.Publish(status); err != nil {
			g.log.Error("publish verdict", "err", err)
			status = Status{State: Failed, Err: fmt.Errorf("%w: %w", ErrPublish, err)}
		}
	}
	if g.unclear {
		g.undo(ctx, status)
	}
	return status
}

// undo takes back whatever this owner may have. An acquire that was sent can
// take effect until one call limit plus the store's lock wait has passed, so it
// is undone again until then. The verdict is said again at each try, as a sign of
// life for who has a new request already.
func (g *gate) undo(ctx context.Context, verdict Status) {
	base := context.WithoutCancel(ctx)
	began := g.now()
	settled := g.unclearAt + g.CallLimit + g.LockWait
	lease := db.Lease{Name: g.Request.Name, Owner: g.Request.Owner, Run: g.Request.Run, TTL: g.Request.TTL}
	for failures := 0; ; {
		asked := g.now()
		if failures > 0 && !errors.Is(verdict.Err, ErrPublish) {
			_ = g.Publish(verdict) // it has been said
		}
		cctx, cancel := g.limit(base, g.CallLimit)
		err := g.Store.Release(cctx, lease, 0)
		cancel()
		now := g.now()
		sure := err == nil || errors.Is(err, db.ErrLost)
		switch {
		case err == nil:
			// The row now says that this owner has finished: nothing that
			// arrives later can take it for this owner.
			g.log.Info("attempt undone")
			return
		case sure && asked >= settled:
			return
		case now-began >= settleLimit && now >= settled:
			g.log.Warn("attempt may not be undone; if it took the lock, the TTL frees it", "err", err)
			return
		}
		pause := againPause
		if !sure {
			failures++
			pause = retryPause(failures, err)
		} else if left := settled - now; left > 0 {
			pause = min(left, 10*againPause)
		}
		g.pause(base, pause, nil)
	}
}

// keep renews while the work runs, and lets go when it has returned.
func (g *gate) keep(ctx context.Context, h hold, work func(context.Context, db.Lease) bool) Status {
	wctx, stopWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWork(nil)
	// cctx is the context of renewals: when the work has returned, the next
	// thing is the release, and a renewal under way must not hold it up.
	cctx, stopCalls := context.WithCancel(context.WithoutCancel(ctx))
	defer stopCalls()
	returned := make(chan struct{})
	succeeded := false
	go func() {
		defer close(returned)
		defer stopCalls()
		succeeded = work(wctx, h.lease)
	}()

	r := renewer{gate: g, hold: h, guarded: g.log, next: g.now() + g.renewPause()}
	if g.Resume != nil {
		r.next = g.now()
	}
	r.skew = g.wallSkew()
	timer := time.NewTimer(0)
	defer timer.Stop()
	if g.Resume != nil {
		// The work may have been over before we came. Then nothing is lost,
		// however late we are.
		select {
		case <-returned:
			return g.letGo(ctx, r.hold, r.lost, succeeded)
		case <-time.After(resumeGrace):
		}
	}
	for {
		timer.Reset(r.sleep())
		select {
		case <-returned:
			return g.letGo(ctx, r.hold, r.lost, succeeded)
		case <-timer.C:
		}
		if cctx.Err() != nil {
			continue
		}
		if cause := r.step(cctx); cause != nil {
			stopWork(cause)
		}
		if r.unexplained { // the work was told before anything else is asked
			r.unexplained = false
			r.askWhy(cctx)
		}
	}
}

// renewer keeps one lease alive.
type renewer struct {
	*gate
	hold        hold
	next        time.Duration // when to renew
	failures    int
	lost        error         // why the lease is not trusted any more
	stopped     bool          // the work was told to stop, which is never undone
	final       bool          // the store said "not yours": no more renewals
	unexplained bool          // why it did has not been asked
	remind      time.Duration // when to say again that the work goes on without the lock
	guarded     *slog.Logger  // the logger of a work that is guarded
	skew        time.Duration // wall clock − boot clock, at the last look
}

// sleep is how long nothing needs to be done.
func (r *renewer) sleep() time.Duration {
	now := r.now()
	until := now + heartbeat
	if !r.final {
		until = min(until, r.next)
	}
	if r.lost == nil {
		until = min(until, r.hold.stopAt)
	}
	if r.goesOn() && r.MaxHold > 0 {
		until = min(until, r.hold.acquired+r.MaxHold)
	}
	return max(until-now, 0)
}

// step looks at the clocks and renews when it is time. It returns why the work
// must stop, once.
func (r *renewer) step(ctx context.Context) error {
	if cause := r.expire(); cause != nil {
		return cause
	}
	// Since the last look only: a clock that is being slewed drifts a little each
	// time, for ever.
	skew := r.wallSkew()
	if by := skew - r.skew; by.Abs() >= clockJump {
		r.log.Warn("clock jumped, renewing at once", "by", rounded(by))
		r.next = r.now()
	}
	r.skew = skew
	if r.final || r.now() < r.next {
		return nil
	}
	return r.renew(ctx)
}

// goesOn tells whether the lease is lost and the work goes on all the same.
func (r *renewer) goesOn() bool { return r.lost != nil && !r.stopped }

// expire ends the trust when stop-at has passed. It returns why the work must
// stop.
func (r *renewer) expire() error {
	switch {
	case r.stopped:
		return nil
	case r.heldEnough(r.hold.acquired):
		return r.lose(ErrMaxHold)
	case r.lost != nil:
		if now := r.now(); now >= r.remind {
			r.remind = now + max(r.RenewEvery, repeatLogEvery)
			r.log.Warn("the work goes on without the lock", "token", r.hold.lease.Token, "err", r.lost)
		}
		return nil
	case r.now() < r.hold.stopAt:
		return nil
	case r.trouble.err != nil:
		return r.lose(fmt.Errorf("%w: %w", ErrUntrusted, r.trouble.err))
	}
	return r.lose(ErrStalled)
}

// lose ends the trust. It returns the cause when the work must stop for it.
func (r *renewer) lose(cause error) error {
	again := r.lost != nil
	r.lost = cause
	r.stopped = !r.GoOn || errors.Is(cause, ErrMaxHold)
	switch {
	case errors.Is(cause, ErrMaxHold):
		r.log.Error("held for the longest time allowed, stopping the work", "token", r.hold.lease.Token, "max_hold", r.MaxHold)
	case r.stopped:
		r.log.Error("lock is lost, stopping the work", "token", r.hold.lease.Token, "err", cause)
	case !again:
		// From now on every line says so.
		r.log = r.guarded.With("unguarded", true)
		r.remind = r.now() + max(r.RenewEvery, repeatLogEvery)
		r.log.Error("lock is lost, and the work goes on without it, as ON_LOST=continue asks: others may run now",
			"token", r.hold.lease.Token, "err", cause)
	}
	if err := r.Publish(r.hold.status(Lost, cause)); err != nil {
		r.log.Error("publish verdict", "err", err)
	}
	if !r.stopped {
		return nil
	}
	return cause
}

func (r *renewer) renew(ctx context.Context) error {
	t0 := r.now()
	limit := r.CallLimit
	if r.lost == nil {
		limit = min(limit, max(r.hold.stopAt-t0, minCall))
	}
	cctx, cancel := r.limit(ctx, limit)
	lease, err := r.Store.Renew(cctx, r.hold.lease)
	cancel()
	if ctx.Err() != nil {
		return nil // the work has returned; whatever came of this, it is released next
	}
	// The deadlines that the others know must not have passed meanwhile: what
	// was guarded has been told to stop, and that is not undone.
	if cause := r.expire(); cause != nil && err == nil {
		r.extend(lease, t0)
		return cause
	} else if cause != nil {
		r.final = errors.Is(err, db.ErrLost)
		r.retry(err)
		return cause
	}
	switch {
	case err == nil && r.stopped:
		r.extend(lease, t0) // kept for the release; the others' deadlines stay
	case err == nil && t0+lease.Life-r.SafetyMargin-r.StopGrace <= r.now():
		r.extend(lease, t0) // too late an answer to trust it
	case err == nil:
		h := r.window(lease, t0, r.hold.acquired)
		if err := r.Publish(h.status(Acquired, nil)); err != nil {
			r.retry(fmt.Errorf("%w: %w", ErrNotTold, err))
			return nil
		}
		r.hold = h
		if r.lost != nil {
			r.lost, r.log = nil, r.guarded
			r.log.Warn("lock is held again; nobody had taken it", "token", h.lease.Token)
		}
		r.renewed(t0)
	case errors.Is(err, db.ErrLost):
		r.final = true
		if !r.stopped {
			r.unexplained = true
			return r.lose(err)
		}
	default:
		r.retry(err)
	}
	return nil
}

// askWhy finds out for people why the store has said "not yours": somebody has
// unlocked it, or we came too late and another has it. Nothing depends on it.
func (r *renewer) askWhy(ctx context.Context) {
	admin, ok := r.Store.(db.Admin)
	if !ok {
		return
	}
	cctx, cancel := r.limit(ctx, min(r.CallLimit, whyLimit))
	rows, err := admin.List(cctx, r.Request.Name)
	cancel()
	if err != nil || len(rows) != 1 {
		return
	}
	row, lease := rows[0], r.hold.lease
	var why string
	switch {
	case row.Owner != lease.Owner || row.Token != lease.Token:
		why = fmt.Sprintf("it is held by %q since %s", row.Owner, rounded(row.Age))
	case row.Revoked:
		why = "it was revoked, as lockgate unlock does"
	case row.Released:
		why = "it was released"
	case row.Remaining <= 0:
		why = fmt.Sprintf("it ended %s ago, and was not renewed in time", rounded(-row.Remaining))
	default:
		return
	}
	r.lost = fmt.Errorf("%w: %s", r.lost, why)
	r.log.Warn("why the lock is lost", "token", lease.Token, "reason", why)
	if err := r.Publish(r.hold.status(Lost, r.lost)); err != nil {
		r.log.Error("publish verdict", "err", err)
	}
}

// extend notes that the store keeps the lease for us, although nobody trusts it
// any more: as long as the work has not returned, nobody else shall have it.
func (r *renewer) extend(lease db.Lease, t0 time.Duration) {
	r.hold.end = t0 + lease.Life
	r.renewed(t0)
}

func (r *renewer) renewed(t0 time.Duration) {
	if r.failures > 0 {
		r.log.Info("renewed again", "token", r.hold.lease.Token, "attempt", r.failures+1)
	}
	r.failures = 0
	r.trouble = trouble{}
	r.next = t0 + r.renewPause()
}

func (r *renewer) retry(err error) {
	now := r.now()
	r.failures++
	// The nearer the end of the trust, the more often.
	pause := min(retryPause(r.failures, err), max(r.RenewEvery/4, minPause))
	if r.lost == nil {
		pause = min(pause, max((r.hold.stopAt-now)/4, minPause))
	}
	r.next = now + pause
	if !r.stopped && r.trouble.worthSaying(now, err) {
		r.log.Warn("renewal went wrong, trying again", "token", r.hold.lease.Token,
			"err", err, "attempt", r.failures, "wait", rounded(pause), "trusted_for", rounded(max(r.hold.stopAt-now, 0)))
	}
}

// letGo releases, once the work has returned.
func (g *gate) letGo(ctx context.Context, h hold, lost error, succeeded bool) Status {
	if err := g.Publish(h.status(Releasing, lost)); err != nil {
		g.log.Warn("publish verdict", "err", err)
	}
	keep := time.Duration(0)
	if succeeded && lost == nil {
		keep = g.MinHold
	}
	err := g.release(ctx, h, lost, keep)
	state, cause := Released, error(nil)
	if lost != nil {
		state, cause = Lost, lost
	}
	held := rounded(g.now() - h.acquired)
	kept := max(keep-held, 0)
	switch {
	case err == nil && kept > 0 && g.now() >= h.end:
		kept = 0 // what has ended stays free
		g.log.Warn("lock released too late to keep it from other runs, as MIN_HOLD asks", "token", h.lease.Token, "held", held)
	case err == nil && kept > 0:
		g.log.Info("lock released, and kept from other runs", "token", h.lease.Token, "held", held,
			"kept_for", rounded(kept), "until", wallclock.Now().Add(kept).Format(time.RFC3339))
	case err == nil:
		g.log.Info("lock released", "token", h.lease.Token, "held", held)
	case errors.Is(err, db.ErrLost):
		g.log.Warn("nothing left to release", "token", h.lease.Token, "err", err)
	default:
		g.log.Error("lock not released; the TTL frees it", "token", h.lease.Token, "err", err)
	}
	if cause == nil {
		cause = err
	}
	status := h.status(state, cause)
	if err == nil {
		status.Kept = kept
	}
	if err := g.Publish(status); err != nil {
		g.log.Error("publish verdict", "err", err)
	}
	return status
}

// release tells the store that the lease has ended. It tries for settleLimit or
// until the lease has ended anyway, whichever is first: a dead database must
// not hold up a finished job. Each try is a sign of life for who has a new request
// already.
func (g *gate) release(ctx context.Context, h hold, lost error, keep time.Duration) error {
	base := context.WithoutCancel(ctx)
	began := g.now()
	limit := max(min(began+settleLimit, h.end), began+minCall)
	for failures := 0; ; {
		now := g.now()
		if failures > 0 {
			_ = g.Publish(h.status(Releasing, lost)) // it has been said
		}
		cctx, cancel := g.limit(base, min(g.CallLimit, max(limit-now, minCall)))
		err := g.Store.Release(cctx, h.lease, keep)
		cancel()
		if err == nil || errors.Is(err, db.ErrLost) || g.now() >= limit {
			return err
		}
		failures++
		pause := retryPause(failures, err)
		if g.trouble.worthSaying(g.now(), err) {
			g.log.Warn("release went wrong, trying again", "token", h.lease.Token, "err", err, "attempt", failures)
		}
		g.pause(base, min(pause, max(limit-g.now(), 0)), nil)
	}
}

// pause waits, or returns early when ctx ends. While it waits for long it says
// so again, so that whoever waits for the verdict sees that somebody is there.
func (g *gate) pause(ctx context.Context, d time.Duration, held *db.HeldError) {
	for d > 0 {
		slice := min(d, maxWaitingSilence)
		t := time.NewTimer(slice)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if d -= slice; d > 0 && held != nil {
			if err := g.Publish(Status{State: Waiting, Held: held}); err != nil {
				return // the next attempt says it
			}
		}
	}
}

// limit bounds a store call and names the limit in its cause.
func (g *gate) limit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("no answer within %s", d))
}

// wallSkew is how far the wall clock is ahead of the boot clock. It changes when
// somebody sets the clock, and after a pause of the machine.
func (g *gate) wallSkew() time.Duration {
	return time.Duration(wallclock.Now().UnixNano()) - g.Boot()
}

// renewPause is RenewEvery, at most a tenth less, so that ten thousand holders
// that started at the same stroke do not go on renewing at the same stroke.
func (g *gate) renewPause() time.Duration {
	return g.RenewEvery - rand.N(g.RenewEvery/10+1)
}

// jitter is d give or take a tenth.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// retryPause is the pause after so many errors in a row, of which err is the
// last. A store that asks for another try gets it soon.
func retryPause(failures int, err error) time.Duration {
	first, most := minPause, maxPause
	if errors.Is(err, db.ErrAgain) {
		first, most = againPause/2, 10*againPause
	}
	return jitter(min(first<<min(failures-1, 6), most))
}

// trouble remembers what was said, so that the same trouble is not said at every
// attempt.
type trouble struct {
	err  error // the latest
	said string
	at   time.Duration // when it was said
}

func (t *trouble) worthSaying(now time.Duration, err error) bool {
	t.err = err
	if text := err.Error(); text != t.said || now-t.at >= repeatLogEvery {
		t.said, t.at = text, now
		return true
	}
	return false
}

func heldAttrs(h *db.HeldError) []any {
	var kept []any
	if h.Released {
		kept = []any{"kept", "its run has ended, MIN_HOLD keeps the lock taken"}
	}
	return append([]any{
		"holder", h.Owner, "held_for", rounded(h.Age),
		"since", wallclock.Now().Add(-h.Age).Format(time.RFC3339),
		"lease_left", rounded(h.Remaining),
	}, kept...)
}

// rounded is a duration as people want to read it.
func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
