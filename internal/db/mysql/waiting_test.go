package mysql

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/testserver"
)

// looks begin the statement that asks who has a lock.
var looks = testserver.Containing("SELECT owner, run")

// poll has each store ask once for the lock that is held, all at the same time.
func poll(t *testing.T, stores []*Store) {
	t.Helper()
	var wg sync.WaitGroup
	for i, store := range stores {
		wg.Go(func() {
			err := db.ErrAgain
			for errors.Is(err, db.ErrAgain) {
				_, err = store.TryAcquire(t.Context(), ask("job", fmt.Sprint("waiter ", i)))
			}
			if !isOnly(err, db.ErrHeld) {
				t.Errorf("TryAcquire = %v; want ErrHeld", err)
			}
		})
	}
	wg.Wait()
}

func openWaiters(t *testing.T, p *place, n int) []*Store {
	t.Helper()
	stores := make([]*Store, n)
	for i := range stores {
		stores[i] = open(t, p.options())
	}
	return stores
}

// An UPDATE that finds its row taken locks it all the same. Enough of them, and
// the holder's own statements wait until they time out.
func TestWaitersOnlyReadWhileTheLockIsHeld(t *testing.T) {
	const waiters, rounds = 100, 5
	p := newPlace(t, server)
	holder := open(t, p.options())
	lease := acquire(t, holder, ask("job", "holder"))
	f := p.forwarded(t)
	stores := openWaiters(t, p, waiters)
	poll(t, stores)
	for range rounds {
		f.Forget()
		poll(t, stores)
		if reads, all := f.Count(looks), f.Count(testserver.Any); reads != waiters || all != waiters {
			t.Errorf("%d polls of a held lock: %d statements, %d of them look; want %d that look", waiters, all, reads, waiters)
		}
		renew(t, holder, lease)
	}
	release(t, holder, lease)
}

// Everybody asks again without a pause, and whoever has the lock keeps it until
// it was asked for a few times by each of the others.
func TestAHandoverCostsNoMoreThanOneWriteOfEachWaiter(t *testing.T) {
	const waiters, handovers, refusals = 100, 10, 5 * 100
	p := newPlace(t, server)
	f := p.forwarded(t)
	acquire(t, open(t, p.options()), ask("makes the table", "a"))
	stores := openWaiters(t, p, waiters)
	var taken, inside, refused, again, holderAgain atomic.Int64
	var wg sync.WaitGroup
	for i, store := range stores {
		wg.Go(func() {
			for round := 0; taken.Load() < handovers; round++ {
				lease, err := store.TryAcquire(t.Context(), ask("job", fmt.Sprintf("%d in round %d", i, round)))
				switch {
				case errors.Is(err, db.ErrHeld):
					refused.Add(1)
					continue
				case errors.Is(err, db.ErrAgain):
					again.Add(1)
					continue
				case err != nil:
					t.Errorf("TryAcquire = %v; want a lease, ErrHeld or ErrAgain", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d have the lock at once; want 1", n)
				}
				for until := refused.Load() + refusals; refused.Load() < until && taken.Load() < handovers; {
					if _, err := store.Renew(t.Context(), lease); errors.Is(err, db.ErrAgain) {
						holderAgain.Add(1)
					} else if err != nil {
						t.Errorf("Renew = %v; want a lease or ErrAgain", err)
						taken.Store(handovers) // or the rest would wait for ever
						return
					}
				}
				taken.Add(1)
				inside.Add(-1)
				for err = db.ErrAgain; errors.Is(err, db.ErrAgain); {
					if err = store.Release(t.Context(), lease, 0); errors.Is(err, db.ErrAgain) {
						holderAgain.Add(1)
					}
				}
				if err != nil {
					t.Errorf("Release = %v; want nil", err)
				}
			}
		})
	}
	wg.Wait()
	reads, writes := f.Count(looks), f.Count(acquires)+f.Count(inserts)
	t.Logf("%d handovers: %d refusals; %d looks, %d attempts to take; ErrAgain %d times for waiters, %d for holders",
		taken.Load(), refused.Load(), reads, writes, again.Load(), holderAgain.Load())
	// At the start each has sent an UPDATE and perhaps an INSERT.
	if limit := waiters*(int(taken.Load())+2) + int(again.Load()); writes > limit {
		t.Errorf("%d attempts to take the lock; want at most %d", writes, limit)
	}
}

func TestWhoWasToldThatALockIsHeldLooksFirst(t *testing.T) {
	tests := []struct {
		name string
		then func(t *testing.T, p *place, holder *Store, lease db.Lease) // after the refusal
		want string                                                      // the statements of the next attempt
		err  error                                                       // nil: a lease
	}{
		{"still held", func(*testing.T, *place, *Store, db.Lease) {}, "SELECT", db.ErrHeld},
		{"released", func(t *testing.T, _ *place, holder *Store, lease db.Lease) { release(t, holder, lease) }, "SELECT, UPDATE", nil},
		{"released and kept", func(t *testing.T, _ *place, holder *Store, lease db.Lease) {
			if err := holder.Release(t.Context(), lease, long); err != nil {
				t.Fatal(err)
			}
		}, "SELECT", db.ErrHeld},
		{"kept, but not from our own run", func(t *testing.T, _ *place, holder *Store, lease db.Lease) {
			release(t, holder, lease)
			ours := ask("job", "c")
			ours.Run = ask("job", "b").Run
			if err := holder.Release(t.Context(), acquire(t, holder, ours), long); err != nil {
				t.Fatal(err)
			}
		}, "SELECT, UPDATE", nil},
		{"revoked", func(t *testing.T, _ *place, holder *Store, lease db.Lease) {
			if err := holder.Revoke(t.Context(), "job", lease.Token, true); err != nil {
				t.Fatal(err)
			}
		}, "SELECT, UPDATE", nil},
		{"expired", func(t *testing.T, p *place, _ *Store, _ db.Lease) {
			server.Exec(t, "UPDATE "+p.table()+" SET expires_at = UTC_TIMESTAMP(6)")
		}, "SELECT, UPDATE", nil},
		{"gone", func(t *testing.T, p *place, _ *Store, _ db.Lease) {
			server.Exec(t, "DELETE FROM "+p.table())
		}, "SELECT, UPDATE, SELECT, INSERT", nil},
		{"our own meanwhile", func(t *testing.T, _ *place, holder *Store, lease db.Lease) {
			release(t, holder, lease)
			acquire(t, holder, ask("job", "b"))
		}, "SELECT, UPDATE, SELECT, UPDATE", nil},
		{"our own and released meanwhile", func(t *testing.T, _ *place, holder *Store, lease db.Lease) {
			release(t, holder, lease)
			release(t, holder, acquire(t, holder, ask("job", "b")))
		}, "SELECT, UPDATE, SELECT", db.ErrLost},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t, server)
			holder := open(t, p.options())
			lease := acquire(t, holder, ask("job", "a"))
			f := p.forwarded(t)
			store := open(t, p.options())
			if _, err := store.TryAcquire(t.Context(), ask("job", "b")); !isOnly(err, db.ErrHeld) {
				t.Fatalf("TryAcquire = %v; want ErrHeld", err)
			}
			tt.then(t, p, holder, lease)
			f.Forget()
			_, err := store.TryAcquire(t.Context(), ask("job", "b"))
			if tt.err == nil && err != nil || tt.err != nil && !isOnly(err, tt.err) {
				t.Errorf("TryAcquire = %v; want %v", err, tt.err)
			}
			if got := verbs(f); got != tt.want {
				t.Errorf("statements %s; want %s", got, tt.want)
			}
			// Another lock has its own first attempt.
			f.Forget()
			acquire(t, store, ask("other", "b"))
			if got := verbs(f); got != "UPDATE, SELECT, INSERT" {
				t.Errorf("statements for a lock not asked for before: %s; want UPDATE, SELECT, INSERT", got)
			}
		})
	}
}

func TestALockThatLooksFreeAndIsTakenFirstIsHeld(t *testing.T) {
	p := newPlace(t, server)
	holder := open(t, p.options())
	lease := acquire(t, holder, ask("job", "a"))
	f := p.forwarded(t)
	store := open(t, p.options())
	if _, err := store.TryAcquire(t.Context(), ask("job", "b")); !isOnly(err, db.ErrHeld) {
		t.Fatalf("TryAcquire = %v; want ErrHeld", err)
	}
	release(t, holder, lease)
	trap := f.HoldBack(acquires, 1)
	done := make(chan error, 1)
	go func() {
		_, err := store.TryAcquire(t.Context(), ask("job", "b"))
		done <- err
	}()
	if err := trap.Caught(t.Context()); err != nil {
		t.Fatal(err)
	}
	acquire(t, holder, ask("job", "c")) // between the look and the write
	trap.Deliver()
	if held, ok := errors.AsType[*db.HeldError](<-done); !ok || held.Owner != "c" {
		t.Errorf("TryAcquire = %v; want it held by c", held)
	}
}

func TestALeaseThatIsReleasedBetweenTheWriteAndTheLookIsFreeForItsRun(t *testing.T) {
	p := newPlace(t, server)
	holder := open(t, p.options())
	lease := acquire(t, holder, ask("job", "a"))
	f := p.forwarded(t)
	store := open(t, p.options())
	same := ask("job", "b")
	same.Run = lease.Run
	trap := f.HoldBack(looks, 1)
	done := make(chan error, 1)
	go func() {
		_, err := store.TryAcquire(t.Context(), same)
		done <- err
	}()
	if err := trap.Caught(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := holder.Release(t.Context(), lease, long); err != nil {
		t.Fatal(err)
	}
	trap.Deliver()
	// Nobody is to wait for the end of what is not kept from it.
	if held, ok := errors.AsType[*db.HeldError](<-done); !ok || held.Remaining != 0 {
		t.Errorf("TryAcquire = %+v; want it held for another 0s", held)
	}
	acquire(t, store, same)
}
