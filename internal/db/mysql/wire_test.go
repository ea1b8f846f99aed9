package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/testserver"
)

// How the statements begin, for the forwarder.
var (
	acquires = testserver.Containing("UPDATE", "SET token = LAST_INSERT_ID")
	inserts  = testserver.Containing("INSERT INTO")
	renewals = testserver.Containing("UPDATE", "GREATEST(expires_at")
	releases = testserver.Containing("UPDATE", "COALESCE(released_at")
)

// verbs returns the first word of each statement that passed since the last
// Forget.
func verbs(f *testserver.Forwarder) string {
	var all []string
	for _, s := range f.Statements(testserver.Any) {
		verb, _, _ := strings.Cut(s.SQL, " ")
		all = append(all, verb)
	}
	return strings.Join(all, ", ")
}

func TestBudgetOfStatementsAndRoundTrips(t *testing.T) {
	p := newPlace(t, server)
	used(t, open(t, p.options()), "job")
	f := p.forwarded(t)
	store := open(t, p.options())

	var lease db.Lease
	heldByAnother := func() {
		if _, err := store.TryAcquire(t.Context(), ask("job", "c")); !isOnly(err, db.ErrHeld) {
			t.Errorf("TryAcquire = %v; want ErrHeld", err)
		}
	}
	steps := []struct {
		what string
		do   func()
		want string
	}{
		{"connect and acquire a lock used before", func() { lease = acquire(t, store, ask("job", "a")) }, "SET, UPDATE"},
		{"renew", func() { renew(t, store, lease) }, "UPDATE"},
		{"release", func() { release(t, store, lease) }, "UPDATE"},
		{"acquire on the open connection", func() { lease = acquire(t, store, ask("job", "b")) }, "UPDATE"},
		{"acquire what is one's own", func() { acquire(t, store, ask("job", "b")) }, "UPDATE, SELECT, UPDATE"},
		{"ask for a held lock", heldByAnother, "UPDATE, SELECT"},
		{"ask for it again", heldByAnother, "SELECT"},
		{"and again", heldByAnother, "SELECT"},
		{"acquire a lock never seen", func() { acquire(t, store, ask("new", "a")) }, "UPDATE, SELECT, INSERT"},
		{"revoke", func() {
			if err := store.Revoke(t.Context(), "job", lease.Token, false); err != nil {
				t.Errorf("Revoke = %v; want nil", err)
			}
		}, "UPDATE"},
		{"list", func() {
			if rows, err := store.List(t.Context()); err != nil || len(rows) != 2 {
				t.Errorf("List = %+v, %v; want both rows", rows, err)
			}
		}, "SELECT"},
	}
	for _, step := range steps {
		f.Forget()
		step.do()
		if got := verbs(f); got != step.want {
			t.Errorf("%s: statements %s; want %s", step.what, got, step.want)
		}
		if got, want := f.Commands(), len(strings.Fields(step.want)); got != want {
			t.Errorf("%s: %d round trips; want %d", step.what, got, want)
		}
	}
	if n := f.Accepted(); n != 1 {
		t.Errorf("%d connections were made; want 1", n)
	}
}

func TestHeldAttemptsCauseNoErrorOnTheServer(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	before, err := server.ErrorLog()
	if err != nil {
		t.Fatal(err)
	}
	f.Forget()
	const attempts = 100
	for i := range attempts {
		if _, err := store.TryAcquire(t.Context(), ask("job", fmt.Sprint("b", i))); !isOnly(err, db.ErrHeld) {
			t.Errorf("TryAcquire = %v; want ErrHeld", err)
		}
	}
	for _, s := range f.Statements(testserver.Any) {
		if s.Answer.Error != 0 {
			t.Errorf("the server answers %d to %s", s.Answer.Error, s.SQL)
		}
	}
	if n := f.Commands(); n != attempts+1 {
		t.Errorf("%d attempts took %d round trips; want %d, one more for the first", attempts, n, attempts+1)
	}
	if after, err := server.ErrorLog(); err != nil || after != before {
		t.Errorf("the server's log has grown by %q, %v", strings.TrimPrefix(after, before), err)
	}
	renew(t, store, lease)
}

func TestConnectionIsGivenBackWhenRenewingSeldom(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	options := p.options()
	options.CloseAfterCall = true
	store := open(t, options)
	expect := func(after string, accepted int) {
		t.Helper()
		if err := f.AwaitOpen(t.Context(), 0); err != nil {
			t.Errorf("after %s: %v", after, err)
		}
		if n := f.Accepted(); n != accepted {
			t.Errorf("after %s: %d connections so far; want %d", after, n, accepted)
		}
	}

	// The table's creation and a short job are one connection.
	lease := acquire(t, store, ask("job", "a"))
	release(t, store, lease)
	expect("a short job", 1)

	lease = acquire(t, store, ask("job", "b"))
	renew(t, store, lease)
	expect("the first renewal", 2)
	renew(t, store, lease)
	expect("the second renewal", 3)
	release(t, store, lease)
	expect("the release", 4)

	for range 5 {
		acquire(t, store, ask("job", "c"))
	}
	expect("the last of several attempts, by and by", 5)
}

func TestConnectionIsKeptOtherwise(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	for range 5 {
		renew(t, store, lease)
	}
	release(t, store, lease)
	if n := f.Accepted(); n != 1 || len(f.Open()) != 1 {
		t.Errorf("%d connections were made, %d are open; want one and the same", n, len(f.Open()))
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if err := f.AwaitOpen(t.Context(), 0); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

func TestLostReplies(t *testing.T) {
	tests := []struct {
		name string
		trap testserver.Match
		new  bool // a lock never seen
	}{
		{"acquire of a lock used before", acquires, false},
		{"acquire of a lock never seen", inserts, true},
		{"renew", renewals, false},
		{"release", releases, false},
	}
	for _, tt := range tests {
		for _, lose := range []string{"in silence", "by a reset"} {
			t.Run(tt.name+" "+lose, func(t *testing.T) {
				p := newPlace(t, server)
				before := uint64(0)
				if plain := open(t, p.options()); tt.new {
					used(t, plain, "other")
				} else {
					before = used(t, plain, "job").Token
				}
				f := p.forwarded(t)
				store := open(t, p.options())

				set := f.CutReply
				if lose == "in silence" {
					set = f.DropReply
				}
				trap := set(tt.trap, 1)
				// once makes a call whose reply may be lost, and repeats it then.
				lost := 0
				once := func(call func(ctx context.Context) error) {
					t.Helper()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if lose == "in silence" && lost == 0 {
						stop := make(chan struct{})
						defer func() { cancel(); <-stop }()
						go func() {
							defer close(stop)
							if _, err := trap.Answered(ctx); err == nil {
								cancel()
							}
						}()
					}
					err := call(ctx)
					if err == nil {
						return
					}
					if !isOnly(err, nil) {
						t.Errorf("a call whose reply is lost = %v; want an error that decides nothing", err)
					}
					lost++
					if err := call(t.Context()); err != nil {
						t.Errorf("the call repeated = %v; want nil", err)
					}
				}

				var lease db.Lease
				once(func(ctx context.Context) (err error) {
					lease, err = store.TryAcquire(ctx, ask("job", "a"))
					return err
				})
				token := p.token(t, "job")
				if lease.Token != token || token <= before {
					t.Errorf("lease has token %d, the table %d; want one above %d", lease.Token, token, before)
				}
				once(func(ctx context.Context) error {
					_, err := store.Renew(ctx, lease)
					return err
				})
				once(func(ctx context.Context) error { return store.Release(ctx, lease, 0) })
				if lost != 1 {
					t.Errorf("%d replies were lost; want 1", lost)
				}
				if answer, err := trap.Answered(t.Context()); err != nil || answer.Rows != 1 {
					t.Errorf("the lost reply = %+v, %v; want 1 row", answer, err)
				}
				if after := p.token(t, "job"); after != token {
					t.Errorf("token = %d at the end; want still %d", after, token)
				}
				acquire(t, store, ask("job", "b"))
			})
		}
	}
}

// late sends a statement that is held back, and gives up waiting for it.
func late(t *testing.T, f *testserver.Forwarder, match testserver.Match, call func(ctx context.Context) error) *testserver.Trap {
	t.Helper()
	trap := f.HoldBack(match, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	if err := trap.Caught(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !isOnly(err, nil) || !errors.Is(err, context.Canceled) {
		t.Errorf("a call whose statement is held up = %v; want the context's end", err)
	}
	return trap
}

// arrive delivers a late statement and checks that it changes nothing.
func arrive(t *testing.T, trap *testserver.Trap, want testserver.Answer) {
	t.Helper()
	trap.Deliver()
	if got, err := trap.Answered(t.Context()); err != nil || got != want {
		t.Errorf("the late statement is answered %+v, %v; want %+v", got, err, want)
	}
}

func TestLateStatementsChangeNothing(t *testing.T) {
	const duplicate = 1062
	tests := []struct {
		name string
		trap testserver.Match
		want testserver.Answer
		// how the first try of a call is held up, and what follows before it
		// arrives; they return the lease that must stay as it is.
		play func(t *testing.T, p *place, f *testserver.Forwarder, store *Store, trap testserver.Match) (*testserver.Trap, db.Lease)
	}{
		{"acquire of a lock used before, after the release", acquires, testserver.Answer{}, acquireLate},
		{"acquire of a lock never seen, after the release", inserts, testserver.Answer{Error: duplicate}, acquireLate},
		{"renew, after the release", renewals, testserver.Answer{}, renewLate},
		{"renew, after another's acquire", renewals, testserver.Answer{}, func(t *testing.T, p *place, f *testserver.Forwarder, store *Store, m testserver.Match) (*testserver.Trap, db.Lease) {
			trap, _ := renewLate(t, p, f, store, m)
			return trap, acquire(t, store, ask("job", "b"))
		}},
		{"release, after another's acquire", releases, testserver.Answer{}, func(t *testing.T, p *place, f *testserver.Forwarder, store *Store, m testserver.Match) (*testserver.Trap, db.Lease) {
			used(t, store, "job")
			lease := acquire(t, store, ask("job", "a"))
			trap := late(t, f, m, func(ctx context.Context) error { return store.Release(ctx, lease, 0) })
			release(t, store, lease)
			return trap, acquire(t, store, ask("job", "b"))
		}},
		{"release of whatever the owner has, after another's acquire", releases, testserver.Answer{}, func(t *testing.T, p *place, f *testserver.Forwarder, store *Store, m testserver.Match) (*testserver.Trap, db.Lease) {
			used(t, store, "job")
			lease := acquire(t, store, ask("job", "a"))
			lease.Token = 0
			trap := late(t, f, m, func(ctx context.Context) error { return store.Release(ctx, lease, 0) })
			release(t, store, lease)
			return trap, acquire(t, store, ask("job", "b"))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t, server)
			f := p.forwarded(t)
			store := open(t, p.options())
			acquire(t, store, ask("makes the table", "a"))
			trap, lease := tt.play(t, p, f, store, tt.trap)
			before, err := store.List(t.Context(), "job")
			if err != nil || len(before) != 1 {
				t.Fatalf("List() = %+v, %v; want the row", before, err)
			}
			arrive(t, trap, tt.want)
			after, err := store.List(t.Context(), "job")
			if err != nil || len(after) != 1 {
				t.Fatalf("List() = %+v, %v; want the row", after, err)
			}
			a, b := after[0], before[0]
			if a.Owner != lease.Owner || a.Token != lease.Token || a.Released != b.Released || a.Remaining > b.Remaining || a.Renewed < b.Renewed {
				t.Errorf("the row was %+v, is %+v; want no change but of time", b, a)
			}
		})
	}
}

// acquireLate has an acquire held up until after its owner has acquired again,
// and released.
func acquireLate(t *testing.T, p *place, f *testserver.Forwarder, store *Store, m testserver.Match) (*testserver.Trap, db.Lease) {
	if m(store.sql.acquire) {
		used(t, store, "job")
	}
	trap := late(t, f, m, func(ctx context.Context) error {
		_, err := store.TryAcquire(ctx, ask("job", "a"))
		return err
	})
	lease := acquire(t, store, ask("job", "a"))
	release(t, store, lease)
	return trap, lease
}

// renewLate has a renewal held up until after the release.
func renewLate(t *testing.T, p *place, f *testserver.Forwarder, store *Store, m testserver.Match) (*testserver.Trap, db.Lease) {
	lease := acquire(t, store, ask("job", "a"))
	trap := late(t, f, m, func(ctx context.Context) error {
		_, err := store.Renew(ctx, lease)
		return err
	})
	release(t, store, lease)
	return trap, lease
}

func TestUndoneAcquireThatNeverCameLeavesTheLockToOthers(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	store := open(t, p.options())
	free := used(t, store, "job")
	trap := late(t, f, acquires, func(ctx context.Context) error {
		_, err := store.TryAcquire(ctx, ask("job", "a"))
		return err
	})
	undo := db.Lease{Name: "job", Owner: "a"}
	if err := store.Release(t.Context(), undo, 0); !isOnly(err, db.ErrLost) {
		t.Errorf("Release of an acquire that has not arrived = %v; want ErrLost", err)
	}
	// It arrives, takes the lock for an owner that has gone, and is undone by
	// the release that the owner repeats for this reason.
	arrive(t, trap, testserver.Answer{Rows: 1})
	if err := store.Release(t.Context(), undo, 0); err != nil {
		t.Errorf("Release of an acquire that has arrived = %v; want nil", err)
	}
	if lease := acquire(t, store, ask("job", "b")); lease.Token <= free.Token {
		t.Errorf("token = %d; want more than %d", lease.Token, free.Token)
	}
}

func TestResetConnectionsCostCallsAndNotTheLease(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	store.db.SetMaxIdleConns(-1) // a connection for each call, each third reset
	f.ResetEvery(3)
	failed := 0
	for range 12 {
		if _, err := store.Renew(t.Context(), lease); err != nil {
			failed++
			if !isOnly(err, db.ErrUnreachable) {
				t.Errorf("Renew over a connection that is reset = %v; want ErrUnreachable", err)
			}
		}
	}
	if failed != 4 {
		t.Errorf("%d of 12 renewals failed; want 4", failed)
	}
	f.ResetEvery(0)
	renew(t, store, lease)
}

func TestConnectionClosedWhileIdleIsReplacedUnnoticed(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	for range 3 {
		f.Reset()
		if err := f.AwaitOpen(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		renew(t, store, lease)
	}
	if n := f.Accepted(); n != 4 {
		t.Errorf("%d connections were made; want 4", n)
	}
}
