package db

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// MaxNameBytes is the longest lock name that every driver stores unchanged.
const MaxNameBytes = 255

// MaxOwnerBytes is the longest owner that every driver stores unchanged.
const MaxOwnerBytes = 512

// MaxRunBytes is the longest run that every driver stores unchanged.
const MaxRunBytes = 255

// The decisions a caller makes. A driver returns errors that wrap at most one
// of them; an error that wraps none leaves the outcome of the call unknown (its
// answer was lost, or did not come in time) and may be retried.
var (
	// ErrHeld says that somebody else has the lock. TryAcquire returns it
	// wrapped in a [HeldError], which says who.
	ErrHeld = errors.New("lock is held")

	// ErrLost says that the lease is not the caller's any more: released,
	// revoked, expired or taken by another. It is final.
	ErrLost = errors.New("lease is lost")

	// ErrAgain says that the store undid the call and asks for another try at
	// once (a deadlock, a lock wait that ran out, a certification conflict).
	// Nothing was changed.
	ErrAgain = errors.New("store asks to try again")

	// ErrUnreachable says that there is no connection to the store, so that the
	// call was never sent. Nothing was changed.
	ErrUnreachable = errors.New("store was not reached")

	// ErrRefused says that the store answered and will not serve us as we are
	// (credentials, permission, unknown database, a table of that name that is
	// not ours). Trying again does not help. Nothing was changed.
	ErrRefused = errors.New("store refused")

	// ErrNoTable says that the lock table is missing and was not created. The
	// message contains the statement that creates it. Somebody may create it
	// meanwhile, so trying again can help. Nothing was changed.
	ErrNoTable = errors.New("lock table is missing")
)

// HeldError says who has a lock that TryAcquire could not take. It wraps
// [ErrHeld].
type HeldError struct {
	Name  string
	Owner string
	Run   string // the holder's run, empty when it has none
	Token uint64

	// Age is how long ago the holder acquired, by the store's clock.
	Age time.Duration

	// Remaining is how long the lock stays taken if nobody renews it, by the
	// store's clock; 0 when it has come free for the caller in the meantime.
	Remaining time.Duration

	// Released says that the holder has finished and that its lock stays taken
	// only because Release was told to keep it, from every run but its own.
	Released bool
}

func (e *HeldError) Error() string {
	if e.Released {
		return fmt.Sprintf("lock %q is kept after the run of %q, which has ended, for another %s",
			e.Name, e.Owner, e.Remaining.Round(time.Millisecond))
	}
	return fmt.Sprintf("lock %q is held by %q, since %s, for another %s",
		e.Name, e.Owner, e.Age.Round(time.Millisecond), e.Remaining.Round(time.Millisecond))
}

// Unwrap returns [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// Request asks for a lock.
type Request struct {
	Name  string        // 1 to MaxNameBytes bytes, compared byte for byte
	Owner string        // 1 to MaxOwnerBytes bytes, unique to one request of one holder
	Run   string        // the run the owner belongs to; empty equals no run, not even another empty one
	TTL   time.Duration // life of the lease without a renewal; > 0
}

// Lease is a lock that is, or was, ours.
type Lease struct {
	Name  string
	Owner string
	Run   string
	Token uint64        // fencing token; 0 in a Release means "whatever this owner has"
	TTL   time.Duration // the life that was asked for; Renew asks for it again

	// Life is what every client of the store grants the lease, counted from
	// the moment the store worked on the call. It is rounded down and may be
	// less than TTL.
	Life time.Duration

	// Age is the time since the lease was acquired, by the store's clock, at
	// the call that returned it.
	Age time.Duration
}

// Store is one lock store. Its methods may be called from several goroutines.
// Each honours its context's end promptly; a call that was cut short has an
// unknown outcome.
type Store interface {
	// TryAcquire makes one attempt to take the lock.
	//
	// A lock that is free (released, expired or never seen) is taken, with a
	// new token. One that is kept after its release is free for another owner
	// of the same run, and for nobody else; a live lease of the same run is as
	// taken as any. A live lease of the same owner is extended and returned
	// with its old token. Errors: one that wraps [ErrHeld] (always a [*HeldError])
	// when another owner has it; [ErrLost] when this owner had it and it was
	// released or revoked; [ErrAgain], [ErrUnreachable], [ErrRefused],
	// [ErrNoTable]; any other leaves the outcome unknown.
	TryAcquire(ctx context.Context, req Request) (Lease, error)

	// Renew extends a live lease to a full TTL from now, never shorter than it
	// was, and returns it with its age. Errors: [ErrLost], which is final, when
	// it is not ours, released, revoked or expired (taken by another or not);
	// [ErrAgain], [ErrUnreachable], [ErrRefused], [ErrNoTable]; any other
	// leaves the outcome unknown. The lease needs Name, Owner, Token and TTL.
	Renew(ctx context.Context, lease Lease) (Lease, error)

	// Release marks the lease released: the lock is free at the later of now
	// and acquired + keep, and for another owner of the same run now. A lease with token 0 stands for whatever this owner
	// has. Nil also when this owner's row was released already (its end then
	// stays as it was) or had been revoked or had expired without being taken.
	// [ErrLost] when the row is another's or there is none; nothing was changed
	// then. The lease needs Name, Owner and Token.
	Release(ctx context.Context, lease Lease, keep time.Duration) error

	// Close ends every connection and returns when what it started has ended.
	Close() error
}

// Row is a lock as an operator sees it.
type Row struct {
	Name      string
	Owner     string
	Run       string
	Token     uint64
	Age       time.Duration // since it was acquired, by the store's clock
	Renewed   time.Duration // since it was last renewed, by the store's clock
	Remaining time.Duration // until it ends; 0 or negative when it has ended
	Released  bool
	Revoked   bool
}

// Admin is what an operator may ask of a store. It is an optional ability of a
// driver.
type Admin interface {
	// Revoke refuses the holder's next renewal, so that it stops its work and
	// releases; only then, or at its expiry, the lock is free. With now it is
	// free at once, and so is, with now or without, one that is only kept after
	// its release: nobody is left to be asked. A row is never deleted. [ErrLost]
	// when the named token is not what keeps others from that name.
	Revoke(ctx context.Context, name string, token uint64, now bool) error

	// List returns the rows of the given names, or all, in the order of their
	// names. Names without a row are left out. It changes nothing and makes
	// nothing: [ErrNoTable] when there is no table, or nothing to hold one.
	List(ctx context.Context, names ...string) ([]Row, error)
}

// Migrator is what creates a store's table. It is an optional ability of a
// driver.
type Migrator interface {
	// DDL returns the statement that creates the table.
	DDL() string

	// Migrate creates the table, and the file that holds it, when it is
	// missing, whatever the driver was told about creating it; created says
	// whether it was this call that did. Errors: [ErrNoTable] when it is missing
	// and we may not create it; [ErrRefused] when a table of that name has other
	// columns, which is then left as it is; [ErrAgain], [ErrUnreachable]; any
	// other leaves the outcome unknown.
	Migrate(ctx context.Context) (created bool, err error)
}
