// Package holder is the holder's side of the gate directory: requests in,
// verdicts out.
//
// # The room
//
// It stands between the gate, which knows nothing of files, and the gate
// directory, which knows nothing of locks: it finds the request of an exec,
// lets the gate try for the lock while that exec waits, publishes what the gate
// says, and tells the gate when main is gone. A holder that was killed and
// started again finds in the directory what the earlier one had published, and
// carries on.
//
// There are three kinds: [Holder.Sidecar] beside a main that asks by exec,
// [Holder.Unwrapped] beside a main that does not, and [Holder.Stand], which
// leaves its verdict behind for a main that starts later.
package holder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/wallclock"
)

var (
	// ErrNoMain says that no request was ever found within MainTimeout.
	ErrNoMain = errors.New("no main asked for the lock")

	// ErrMainGone is the cause with which an attempt is withdrawn when main
	// ended before the verdict.
	ErrMainGone = errors.New("whoever asked for the lock has gone")
)

// lookEvery is how often the directory is looked at when no event comes;
// soonest is how soon after an event: main.lock comes free just after the event
// that says so.
const (
	lookEvery = 250 * time.Millisecond
	soonest   = time.Millisecond
)

// Config says for whom and how a holder works.
type Config struct {
	Dir  *gatedir.Dir
	Boot string // this boot's id
	Pod  string // the pod's UID; may be empty

	// Owner is the readable part of the owner, such as "cluster/namespace/pod/".
	// The nonce of a request is added to it.
	Owner string

	// Gate has everything but what belongs to one request: the owner, Resume,
	// MaybeTaken and Publish are filled in here.
	Gate gate.Config

	Policy gatedir.Policy

	// MainTimeout ends Sidecar when no request was found for so long. 0 waits
	// for ever.
	MainTimeout time.Duration

	// Once ends Sidecar after its first request is over and main is gone.
	Once bool

	// Observe, when set, is told each status after it was published.
	Observe func(gate.Status)

	Log *slog.Logger
}

// Holder answers requests, one after the other.
type Holder struct {
	Config
	probe *gatedir.Probe
	watch *gatedir.Watcher // of Sidecar; nil before

	// over is the request that was seen to its end last, also when its last
	// word could not be published.
	over string
}

// New returns a holder. It must be closed.
func New(cfg Config) *Holder { return &Holder{Config: cfg, probe: cfg.Dir.Probe()} }

// Close ends what New has started.
func (h *Holder) Close() error {
	if h.watch != nil {
		h.watch.Close()
	}
	return h.probe.Close()
}

// Sidecar answers requests until ctx ends; then it starts nothing new, but a
// lease that is held is held until main is gone. Errors: [ErrNoMain], and
// [gate.ErrPublish] when the directory cannot be written any more.
func (h *Holder) Sidecar(ctx context.Context) error {
	h.watch = h.Dir.Watch()
	deadline := h.Gate.Boot() + h.MainTimeout
	if h.MainTimeout == 0 {
		deadline = 0
	}
	old, found, err := h.unfinished()
	if err != nil {
		return err
	}
	if found {
		// Also when ctx has ended: it is nothing new.
		deadline = 0
		now, err := h.Dir.ReadRequest()
		wanted := err == nil && now.Nonce == old.Nonce
		if err := h.answer(ctx, old); err != nil || h.Once && wanted {
			return err
		}
	}
	for {
		req, ok, err := h.next(ctx, deadline)
		if err != nil || !ok {
			return err
		}
		deadline = 0 // one was found
		h.Log.Info("main asks for the lock", "request", req.Nonce)
		if err := h.answer(ctx, req); err != nil || h.Once || ctx.Err() != nil {
			return err
		}
	}
}

// unfinished returns the request that an earlier holder in this directory was
// at. It may be one that nobody asks for any more: its main is gone, or has gone
// and come back with a new request.
func (h *Holder) unfinished() (req gatedir.Request, found bool, err error) {
	state, readErr := h.Dir.ReadState()
	req = gatedir.Request{Nonce: state.Request, Boot: state.Boot, Pod: state.Pod}
	if errors.Is(readErr, gatedir.ErrNone) || !req.For(h.Boot, h.Pod) {
		// No script shall take a mark for ours that was left before the last
		// boot.
		if err := h.Dir.Unmark(); err != nil {
			return req, false, fmt.Errorf("%w: %w", gate.ErrPublish, err)
		}
	}
	return req, readErr == nil && req.For(h.Boot, h.Pod) && !state.Verdict.Final() && !state.Standing, nil
}

// answer sees one request to its end.
func (h *Holder) answer(ctx context.Context, req gatedir.Request) error {
	gone, stop := h.watchMain(ctx, req)
	defer stop()
	status := h.Serve(ctx, req, gone)
	h.over = req.Nonce
	if errors.Is(status.Err, gate.ErrPublish) {
		return status.Err
	}
	if h.Once {
		select {
		case <-gone:
		case <-ctx.Done():
		}
	}
	return nil
}

// next waits for a request that has no final word yet. It returns none when ctx
// has ended.
func (h *Holder) next(ctx context.Context, deadline time.Duration) (req gatedir.Request, ok bool, err error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-h.watch.C():
		case <-timer.C:
		}
		req, found, answered := h.look()
		if found && !answered {
			return req, true, nil // also when told to stop: it must hear so
		}
		if ctx.Err() != nil {
			return gatedir.Request{}, false, nil
		}
		if found {
			deadline = 0 // there is a main; it may come back with a new request
		}
		if deadline > 0 && h.Gate.Boot() >= deadline {
			return gatedir.Request{}, false, fmt.Errorf("%w within %s", ErrNoMain, h.MainTimeout)
		}
		timer.Reset(lookEvery)
	}
}

// look returns the request in the directory, and whether it has a final word.
func (h *Holder) look() (req gatedir.Request, found, answered bool) {
	req, err := h.Dir.ReadRequest()
	if err != nil || !req.For(h.Boot, h.Pod) {
		return req, false, false
	}
	if req.Nonce == h.over {
		return req, true, true
	}
	if state, err := h.Dir.ReadState(); err == nil && state.Answers(req) {
		return req, true, state.Verdict.Final() || state.Standing
	}
	return req, true, h.isDone(req)
}

// isDone tells whether the exec of a request has said that it is over.
func (h *Holder) isDone(req gatedir.Request) bool {
	done, err := h.Dir.ReadDone()
	return err == nil && done.Request == req.Nonce
}

// watchMain returns a channel that is closed when the main of a request is gone:
// its main.lock is free, or another exec has asked, which it can only with
// main.lock in hand. stop ends the watch.
func (h *Holder) watchMain(ctx context.Context, req gatedir.Request) (gone <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c, ended := make(chan struct{}), make(chan struct{})
	if h.isGone(req) {
		close(c)
		return c, cancel
	}
	go func() {
		defer close(ended)
		timer := time.NewTimer(0)
		defer timer.Stop()
		wait := soonest
		for {
			select {
			case <-ctx.Done():
				return
			case <-h.watch.C():
				wait = soonest
			case <-timer.C:
			}
			if h.isGone(req) {
				close(c)
				return
			}
			timer.Reset(wait)
			wait = min(2*wait, lookEvery)
		}
	}()
	return c, func() {
		cancel()
		<-ended
	}
}

func (h *Holder) isGone(req gatedir.Request) bool {
	if h.probe.Gone() {
		return true
	}
	now, err := h.Dir.ReadRequest()
	return err == nil && now.For(h.Boot, h.Pod) && now.Nonce != req.Nonce
}

// Serve answers one request and returns the final status. gone must be closed
// when main and everything it started has ended; a lease is held until then.
func (h *Holder) Serve(ctx context.Context, req gatedir.Request, gone <-chan struct{}) gate.Status {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-gone:
			cancel(ErrMainGone)
		case <-ctx.Done():
		}
	}()

	select {
	case <-gone:
		cancel(ErrMainGone) // before the first attempt is made
	default:
	}

	s := &served{Holder: h, req: req, lock: h.Gate.Request.Name, owner: owner(h.Owner, req.Nonce)}
	cfg := h.Gate
	cfg.Publish = s.publish
	s.resume(&cfg)
	cfg.Kin = h.kin(req)
	cfg.Request.Name, cfg.Request.Owner = s.lock, s.owner
	if cfg.Resume == nil && h.isDone(req) {
		cancel(ErrMainGone) // nothing is acquired, what may have been is undone
	}
	status := gate.Run(ctx, cfg, func(context.Context, db.Lease) bool {
		<-gone
		return h.succeeded(req)
	})
	cancel(nil)
	<-watching
	return status
}

// kin returns the owner of a lease that was taken in this boot and pod for another
// request, as far as the directory tells. Its holder is not there any more, so its
// lease is no reason to skip: nobody else runs on it.
func (h *Holder) kin(req gatedir.Request) string {
	state, err := h.Dir.ReadState()
	if err != nil || state.Verdict != gatedir.Acquired || !state.Near(req) || state.Answers(req) {
		return ""
	}
	return state.Owner
}

// succeeded tells whether the exec of a request has said that CMD succeeded.
func (h *Holder) succeeded(req gatedir.Request) bool {
	done, err := h.Dir.ReadDone()
	if known := err == nil && done.Request == req.Nonce; known || h.Gate.MinHold == 0 {
		return known && done.Code == 0
	}
	h.Log.Warn("main has not said how it ended, so the lock is not kept from other runs, as MIN_HOLD asks after a success")
	return false
}

// owner makes an owner from its readable part and a nonce, and cuts the former
// where the whole would not fit.
func owner(readable, nonce string) string {
	if room := max(db.MaxOwnerBytes-len(nonce), 0); len(readable) > room {
		readable = readable[:room]
		for !utf8.ValidString(readable) {
			readable = readable[:len(readable)-1]
		}
	}
	return readable + nonce
}

// served is one request being answered.
type served struct {
	*Holder
	req    gatedir.Request
	lock   string
	owner  string
	marked bool // the file "acquired" is there

	standing  bool          // nobody stays behind the verdict
	releasing bool          // Releasing was said
	last      gatedir.State // what was written last
}

// resume takes over what an earlier holder had published on the same request.
func (s *served) resume(cfg *gate.Config) {
	state, err := s.Dir.ReadState()
	if err != nil || !state.Answers(s.req) {
		return
	}
	switch state.Verdict {
	case gatedir.Waiting:
		s.lock, s.owner = state.Lock, state.Owner
		cfg.MaybeTaken = true
	case gatedir.Acquired:
		s.lock, s.owner = state.Lock, state.Owner
		s.marked = s.Dir.IsMarkedAcquired()
		cfg.Resume = &gate.Resume{
			Lease: db.Lease{
				Name: state.Lock, Owner: state.Owner, Run: cfg.Request.Run,
				Token: state.Token, TTL: cfg.Request.TTL,
			},
			Acquired: time.Duration(state.AcquiredBoot),
			StopAt:   time.Duration(state.StopBoot),
			KillAt:   time.Duration(state.KillBoot),
			LeaseEnd: time.Duration(state.EndBoot),
		}
	}
}

// publish writes what the gate says to the files. The file "acquired" goes before
// anything else.
func (s *served) publish(status gate.Status) error {
	err := s.write(status)
	if err == nil && s.Observe != nil {
		s.Observe(status)
	}
	return err
}

func (s *served) write(status gate.Status) error {
	if status.State == gate.Acquired {
		return s.writeAcquired(status)
	}
	unmarked := s.Dir.Unmark()
	s.marked = false
	if status.State == gate.Releasing {
		if s.releasing {
			s.sign() // it drags on
		}
		s.releasing = true
		return unmarked
	}
	if err := s.writeState(s.state(status)); err != nil {
		return errors.Join(unmarked, err)
	}
	if status.State == gate.Skipped {
		return errors.Join(unmarked, s.Dir.MarkSkipped(reason(status)))
	}
	return unmarked
}

// writeAcquired marks before it publishes: CMD may start the moment after, and
// find its way by the file.
func (s *served) writeAcquired(status gate.Status) error {
	fresh := !s.marked
	if fresh {
		if err := s.Dir.MarkAcquired(status.Lease.Token); err != nil {
			// Main may run all the same. The next renewal tries again.
			s.Log.Warn("scripts cannot be told that the lock is held", "err", err)
		}
		s.marked = s.Dir.IsMarkedAcquired()
	}
	err := s.writeState(s.state(status))
	if err != nil && fresh {
		s.marked = false
		return errors.Join(err, s.Dir.Unmark())
	}
	return err
}

func (s *served) writeState(state gatedir.State) error {
	err := s.Dir.WriteState(state)
	if err == nil {
		s.last = state
	}
	return err
}

// sign says the last word again, as a sign of life for who has asked since. The
// main that it was for is gone, so it does not matter if it cannot be written.
func (s *served) sign() {
	if s.last.Request == "" {
		return
	}
	s.last.UpdatedAt, s.last.UpdatedBoot = wallclock.Now(), gatedir.Duration(s.Gate.Boot())
	_ = s.Dir.WriteState(s.last)
}

func (s *served) state(status gate.Status) gatedir.State {
	now, wall := s.Gate.Boot(), wallclock.Now()
	state := gatedir.State{
		Request: s.req.Nonce,
		Boot:    s.Boot,
		Pod:     s.Pod,
		Lock:    s.lock,
		Owner:   s.owner,

		Standing: s.standing,

		UpdatedAt:   wall,
		UpdatedBoot: gatedir.Duration(now),
		Reason:      reason(status),
		Policy:      s.Policy,
	}
	if status.Lease.Owner != "" {
		state.Token = status.Lease.Token
		state.AcquiredAt = wall.Add(status.Acquired - now)
		state.AcquiredBoot = gatedir.Duration(status.Acquired)
		state.EndBoot = gatedir.Duration(status.LeaseEnd)
		state.StopBoot = gatedir.Duration(status.StopAt)
		state.KillBoot = gatedir.Duration(status.KillAt)
	}
	if held := status.Held; held != nil {
		state.Holder = &gatedir.Holder{
			Owner: held.Owner, Run: held.Run,
			Since: wall.Add(-held.Age), Remaining: gatedir.Duration(held.Remaining),
		}
	}
	switch status.State {
	case gate.Waiting:
		state.Verdict = gatedir.Waiting
	case gate.Acquired:
		state.Verdict = gatedir.Acquired
	case gate.Skipped:
		state.Verdict = gatedir.Skipped
	case gate.Busy:
		state.Verdict, state.Code = gatedir.Busy, gatedir.CodeBusy
	case gate.Lost:
		state.Verdict, state.Code = gatedir.Lost, gatedir.CodeLost
	case gate.Released:
		state.Verdict = gatedir.Released
	default:
		state.Verdict = gatedir.Error
		// An attempt that was withdrawn has no code of its own: whoever told us
		// to stop is telling exec, too.
		if !errors.Is(status.Err, gate.ErrWithdrawn) {
			state.Code = gatedir.CodeUnavailable
		}
	}
	return state
}

func reason(status gate.Status) string {
	if status.Err == nil {
		return ""
	}
	return status.Err.Error()
}
