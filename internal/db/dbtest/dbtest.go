// Package dbtest is the conformance suite of the store contract: one set of
// cases that every driver passes, each against a real store.
//
// A case is named by the behaviour that it proves, uses lock names of its own,
// and judges time by the store's clock alone: to let a lease expire it waits
// until a second lease, taken later for the same time, has come free. Nothing
// in it depends on how fast the machine is. A bug found in one driver becomes a
// case here, and so a case for all.
package dbtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
)

// Harness is what the suite needs from a driver's test.
type Harness struct {
	// Open returns a new client of the one store under test, so that several
	// clients compete for the same locks. The suite closes it. It ends the
	// test when it cannot.
	Open func(t *testing.T) db.Store

	// Empty makes a place without a table, and without a file if that holds
	// the table, and returns what opens clients of it, which may create it. For
	// drivers that are a [db.Migrator].
	Empty func(t *testing.T) (open func() db.Store)

	// Foreign makes a place in which the table's name is taken by another, which
	// has a row and not our columns. It returns what opens clients of it and what
	// reads the whole table and its definition. For the same drivers.
	Foreign func(t *testing.T) (open func() db.Store, dump func() string)

	// Traits are the allowed differences of this driver.
	Traits Traits
}

// Traits are the differences from the contract that a driver declares. The zero
// value has none.
type Traits struct {
	// MinTTL is the shortest life the store can grant a lease; 0 means that a
	// millisecond will do.
	MinTTL time.Duration

	// TokensWithoutTime says that tokens only grow and are not at least the
	// store's clock in Unix milliseconds.
	TokensWithoutTime bool
}

const (
	// long is a TTL that outlasts every case, however slow the machine.
	long = time.Hour

	// short is a TTL that a case waits out. No case needs such a lease to be
	// still alive at its next step.
	short = 150 * time.Millisecond

	// patience limits a case, to end a run that hangs.
	patience = time.Minute

	// pollEvery is the pause between two tries of a case that waits.
	pollEvery = 5 * time.Millisecond
)

// Exercise proves that the store behind h keeps the contract of package db. The
// cases about [db.Admin] run when the store implements it.
func Exercise(t *testing.T, h Harness) {
	t.Helper()
	group := func(name string, cases []testCase) {
		t.Run(name, func(t *testing.T) {
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) { c.run(newBench(t, h)) })
			}
		})
	}
	group("acquire", acquireCases())
	group("renew", renewCases())
	group("release", releaseCases())
	group("late", lateCases())
	group("names", nameCases())
	group("compete", competeCases())

	probe := h.Open(t)
	_, admin := probe.(db.Admin)
	_, migrator := probe.(db.Migrator)
	if err := probe.Close(); err != nil {
		t.Errorf("Close() of an unused store = %v; want nil", err)
	}
	if admin {
		group("admin", adminCases())
	}
	if migrator {
		group("migrate", migrateCases())
	}
}

// testCase is one behaviour and the code that proves it.
type testCase struct {
	name string
	run  func(b *bench)
}

// bench is one case's place of work: a context that ends, one client opened in
// advance, and helpers that end the case when the store surprises them.
type bench struct {
	*testing.T
	ctx   context.Context
	h     Harness
	store db.Store
	id    string // unique to this case in this run, because servers outlive runs
	count int
}

func newBench(t *testing.T, h Harness) *bench {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	b := &bench{T: t, ctx: ctx, h: h, id: rand.Text()}
	b.store = b.open()
	return b
}

// open returns a new client, closed when the case ends.
func (b *bench) open() db.Store {
	b.Helper()
	return b.closed(b.h.Open(b.T))
}

// closed closes a client when the case ends.
func (b *bench) closed(store db.Store) db.Store {
	b.Helper()
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Errorf("Close() = %v; want nil", err)
		}
	})
	return store
}

// name returns a lock name that nobody has used.
func (b *bench) name() string {
	b.count++
	return fmt.Sprintf("dbtest %s %d", b.id, b.count)
}

// ask returns a request for name by an owner of that label, unique to this
// case, for a long time.
func (b *bench) ask(name, owner string) db.Request {
	return db.Request{Name: name, Owner: "test/" + b.id + "/" + owner, Run: "run of " + owner, TTL: long}
}

// brief returns the request with a TTL that can be waited out.
func (b *bench) brief(req db.Request) db.Request {
	req.TTL = max(short, b.h.Traits.MinTTL)
	return req
}

// again repeats call while the store asks for that, and checks that an error is
// one decision at most.
func (b *bench) again(call func() error) error {
	b.Helper()
	for {
		err := call()
		if n := decisions(err); n > 1 {
			b.Errorf("error %v wraps %d of the sentinels; want at most one", err, n)
		}
		if !errors.Is(err, db.ErrAgain) || !b.pause() {
			return err
		}
	}
}

// pause waits a little, and says false when the case has run out of time.
func (b *bench) pause() bool {
	select {
	case <-b.ctx.Done():
		return false
	case <-time.After(pollEvery):
		return true
	}
}

// try makes an attempt that may fail.
func (b *bench) try(store db.Store, req db.Request) (lease db.Lease, err error) {
	b.Helper()
	err = b.again(func() error {
		lease, err = store.TryAcquire(b.ctx, req)
		return err
	})
	return lease, err
}

// acquire takes a lock that must be free or the owner's own.
func (b *bench) acquire(req db.Request) db.Lease {
	b.Helper()
	lease, err := b.try(b.store, req)
	if err != nil {
		b.Fatalf("TryAcquire(%q by %q) = %v; want a lease", req.Name, req.Owner, err)
	}
	b.checkLease(lease, req)
	return lease
}

// acquireUsed takes a lock that others have had, so that its token and the one
// before it are neither 0 nor 1.
func (b *bench) acquireUsed() db.Lease {
	b.Helper()
	name := b.name()
	for _, owner := range []string{"first", "second"} {
		b.release(b.acquire(b.ask(name, owner)), 0)
	}
	return b.acquire(b.ask(name, "a"))
}

// checkLease checks what is true of every lease that a request brought.
func (b *bench) checkLease(lease db.Lease, req db.Request) {
	b.Helper()
	if lease.Name != req.Name || lease.Owner != req.Owner || lease.Run != req.Run || lease.TTL != req.TTL {
		b.Errorf("TryAcquire(%+v) = %+v; want the lease of that request", req, lease)
	}
	if lease.Token == 0 {
		b.Errorf("TryAcquire(%q) has token 0; want a token", req.Name)
	}
	b.checkLife(lease)
	if lease.Age < 0 || lease.Age > patience {
		b.Errorf("TryAcquire(%q) has age %s; want one within this case", req.Name, lease.Age)
	}
}

func (b *bench) checkLife(lease db.Lease) {
	b.Helper()
	if lease.Life <= 0 || lease.Life > lease.TTL {
		b.Errorf("lease %q has life %s; want more than 0 and at most its TTL %s", lease.Name, lease.Life, lease.TTL)
	}
}

// held asks for a lock that another must have, and returns who has it.
func (b *bench) held(req db.Request) *db.HeldError {
	b.Helper()
	lease, err := b.try(b.store, req)
	if !errors.Is(err, db.ErrHeld) {
		b.Fatalf("TryAcquire(%q by %q) = %+v, %v; want ErrHeld", req.Name, req.Owner, lease, err)
	}
	if lease != (db.Lease{}) {
		b.Errorf("TryAcquire(%q) returned lease %+v with an error; want none", req.Name, lease)
	}
	held, ok := errors.AsType[*db.HeldError](err)
	if !ok {
		b.Fatalf("TryAcquire(%q) = %v (%T); want a *db.HeldError", req.Name, err, err)
	}
	return held
}

// take polls until the lock has come free, as a waiter does.
func (b *bench) take(store db.Store, req db.Request) db.Lease {
	b.Helper()
	for {
		lease, err := b.try(store, req)
		if err == nil {
			b.checkLease(lease, req)
			return lease
		}
		if !errors.Is(err, db.ErrHeld) {
			b.Fatalf("TryAcquire(%q by %q) = %v; want a lease or ErrHeld", req.Name, req.Owner, err)
		}
		if !b.pause() {
			b.Fatalf("%q did not come free for %q: %v", req.Name, req.Owner, err)
		}
	}
}

// expire returns when a lease taken or renewed before this call for a brief
// time has expired by the store's clock, without touching it: it waits for one
// that was taken after it. It returns the time that certainly has passed.
func (b *bench) expire() time.Duration {
	b.Helper()
	name := b.name()
	first := b.acquire(b.brief(b.ask(name, "witness")))
	b.take(b.store, b.ask(name, "watcher"))
	return first.Life
}

func (b *bench) tryRenew(lease db.Lease) (renewed db.Lease, err error) {
	b.Helper()
	err = b.again(func() error {
		renewed, err = b.store.Renew(b.ctx, lease)
		return err
	})
	return renewed, err
}

// renew extends a lease that must be live.
func (b *bench) renew(lease db.Lease) db.Lease {
	b.Helper()
	renewed, err := b.tryRenew(lease)
	if err != nil {
		b.Fatalf("Renew(%+v) = %v; want a lease", lease, err)
	}
	if renewed.Name != lease.Name || renewed.Owner != lease.Owner || renewed.Token != lease.Token || renewed.TTL != lease.TTL {
		b.Errorf("Renew(%+v) = %+v; want the same lease", lease, renewed)
	}
	b.checkLife(renewed)
	return renewed
}

// wantRenewLost checks that the lease cannot be renewed.
func (b *bench) wantRenewLost(why string, lease db.Lease) {
	b.Helper()
	got, err := b.tryRenew(lease)
	if !errors.Is(err, db.ErrLost) {
		b.Errorf("Renew of a lease %s = %+v, %v; want ErrLost", why, got, err)
	}
}

// wantAcquireLost checks that the owner is told that it lost the lock.
func (b *bench) wantAcquireLost(why string, req db.Request) {
	b.Helper()
	got, err := b.try(b.store, req)
	if !errors.Is(err, db.ErrLost) {
		b.Errorf("TryAcquire by an owner %s = %+v, %v; want ErrLost", why, got, err)
	}
}

func (b *bench) tryRelease(lease db.Lease, keep time.Duration) error {
	b.Helper()
	return b.again(func() error { return b.store.Release(b.ctx, lease, keep) })
}

// release gives a lease back, which must be accepted.
func (b *bench) release(lease db.Lease, keep time.Duration) {
	b.Helper()
	if err := b.tryRelease(lease, keep); err != nil {
		b.Fatalf("Release(%+v, %s) = %v; want nil", lease, keep, err)
	}
}

// wantReleaseLost checks that the lease cannot be released.
func (b *bench) wantReleaseLost(why string, lease db.Lease) {
	b.Helper()
	if err := b.tryRelease(lease, 0); !errors.Is(err, db.ErrLost) {
		b.Errorf("Release of %s = %v; want ErrLost", why, err)
	}
}

// undo is the lease that means "whatever this owner has".
func undo(req db.Request) db.Lease {
	return db.Lease{Name: req.Name, Owner: req.Owner, Run: req.Run, TTL: req.TTL}
}

// decisions counts the sentinels that err wraps.
func decisions(err error) int {
	n := 0
	for _, sentinel := range []error{db.ErrHeld, db.ErrLost, db.ErrAgain, db.ErrUnreachable, db.ErrRefused, db.ErrNoTable} {
		if errors.Is(err, sentinel) {
			n++
		}
	}
	return n
}
