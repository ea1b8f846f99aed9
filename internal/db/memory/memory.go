// Package memory is a lock store within one process, for tests.
//
// It keeps the contract of package db with the real time package, so that in a
// testing/synctest bubble its clock is the bubble's. Its mutex is never held
// while anything waits; a call that a test wants to be slow, to fail or to lose
// its answer is made so by [Hooks], outside the mutex.
package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockgate/lockgate/internal/db"
)

// Server is the store that clients share. Make one with [New].
type Server struct {
	mu   sync.Mutex
	rows map[string]*row
}

// row is one lock. It is never removed.
type row struct {
	owner    string
	run      string
	token    uint64
	acquired time.Time
	renewed  time.Time
	expires  time.Time
	released bool
	revoked  bool
}

// New returns a store without locks.
func New() *Server {
	return &Server{rows: make(map[string]*row)}
}

// Op names a method of the store.
type Op string

// The methods that hooks are called for.
const (
	TryAcquire Op = "try acquire"
	Renew      Op = "renew"
	Release    Op = "release"
	Revoke     Op = "revoke"
	List       Op = "list"
)

// Call is one call of a client, as its hooks see it.
type Call struct {
	Op    Op
	Name  string // empty for List
	Owner string // empty for Revoke and List
	Token uint64 // of the lease that was sent; 0 for TryAcquire and List

	// Err is what the store answered; always nil in Hooks.Before.
	Err error
}

// Hooks stand for the network between one client and the store. Each may be
// nil. They are called without any lock held, from the goroutine of the call,
// and may block; one that blocks should end with the context, as the calls of a
// real driver do.
type Hooks struct {
	// Before is called before the store works. An error is what the call
	// returns, and the store never hears of it.
	Before func(ctx context.Context, call Call) error

	// After is called when the store has worked. An error is what the call
	// returns in place of the store's answer, which is lost.
	After func(ctx context.Context, call Call) error
}

// Client is one client of a [Server].
type Client struct {
	server *Server
	hooks  Hooks
}

var (
	_ db.Store = (*Client)(nil)
	_ db.Admin = (*Client)(nil)
)

// Open returns a new client of the store.
func (s *Server) Open(hooks Hooks) *Client {
	return &Client{server: s, hooks: hooks}
}

// do makes one call: the way there, the store's work, the way back.
func (c *Client) do(ctx context.Context, call Call, work func(now time.Time, rows map[string]*row) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %q: %w", call.Op, call.Name, err)
	}
	if c.hooks.Before != nil {
		if err := c.hooks.Before(ctx, call); err != nil {
			return fmt.Errorf("%s %q: %w", call.Op, call.Name, err)
		}
	}
	call.Err = c.server.work(work)
	if c.hooks.After != nil {
		if err := c.hooks.After(ctx, call); err != nil {
			return fmt.Errorf("%s %q: %w", call.Op, call.Name, err)
		}
	}
	if call.Err != nil {
		return fmt.Errorf("%s %q: %w", call.Op, call.Name, call.Err)
	}
	return nil
}

func (s *Server) work(work func(now time.Time, rows map[string]*row) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return work(time.Now(), s.rows)
}

// TryAcquire keeps the contract of [db.Store].
func (c *Client) TryAcquire(ctx context.Context, req db.Request) (db.Lease, error) {
	lease := db.Lease{Name: req.Name, Owner: req.Owner, Run: req.Run, TTL: req.TTL, Life: req.TTL}
	err := c.do(ctx, Call{Op: TryAcquire, Name: req.Name, Owner: req.Owner}, func(now time.Time, rows map[string]*row) error {
		r := rows[req.Name]
		if r == nil {
			r = new(row)
			rows[req.Name] = r
		}
		mine := r.owner == req.Owner
		switch {
		case mine && (r.released || r.revoked):
			return db.ErrLost
		case r.expires.After(now) && !mine && !r.freeFor(req.Run):
			return &db.HeldError{
				Name: req.Name, Owner: r.owner, Run: r.run, Token: r.token,
				Age: now.Sub(r.acquired), Remaining: r.expires.Sub(now), Released: r.released,
			}
		case r.expires.After(now) && mine:
			r.extend(now, req.TTL)
		default:
			*r = row{
				owner: req.Owner, run: req.Run, token: max(r.token+1, uint64(now.UnixMilli())),
				acquired: now, renewed: now, expires: now.Add(req.TTL),
			}
		}
		lease.Token = r.token
		lease.Age = now.Sub(r.acquired)
		return nil
	})
	if err != nil {
		return db.Lease{}, err
	}
	return lease, nil
}

// freeFor says whether the row only keeps runs out of which that is none.
func (r *row) freeFor(run string) bool { return r.released && run != "" && r.run == run }

// Renew keeps the contract of [db.Store].
func (c *Client) Renew(ctx context.Context, lease db.Lease) (db.Lease, error) {
	call := Call{Op: Renew, Name: lease.Name, Owner: lease.Owner, Token: lease.Token}
	err := c.do(ctx, call, func(now time.Time, rows map[string]*row) error {
		r := rows[lease.Name]
		if r == nil || r.owner != lease.Owner || r.token != lease.Token || r.released || r.revoked || !r.expires.After(now) {
			return db.ErrLost
		}
		r.extend(now, lease.TTL)
		lease.Life = lease.TTL
		lease.Age = now.Sub(r.acquired)
		return nil
	})
	if err != nil {
		return db.Lease{}, err
	}
	return lease, nil
}

// extend gives the lease a full TTL from now and never shortens it.
func (r *row) extend(now time.Time, ttl time.Duration) {
	r.renewed = now
	if end := now.Add(ttl); end.After(r.expires) {
		r.expires = end
	}
}

// Release keeps the contract of [db.Store].
func (c *Client) Release(ctx context.Context, lease db.Lease, keep time.Duration) error {
	call := Call{Op: Release, Name: lease.Name, Owner: lease.Owner, Token: lease.Token}
	return c.do(ctx, call, func(now time.Time, rows map[string]*row) error {
		r := rows[lease.Name]
		if r == nil || r.owner != lease.Owner || (lease.Token != 0 && lease.Token != r.token) {
			return db.ErrLost
		}
		if r.released {
			return nil
		}
		r.released = true
		if !r.expires.After(now) {
			return nil // what is free stays free
		}
		r.expires = now
		if end := r.acquired.Add(keep); end.After(now) {
			r.expires = end
		}
		return nil
	})
}

// Revoke keeps the contract of [db.Admin].
func (c *Client) Revoke(ctx context.Context, name string, token uint64, now bool) error {
	return c.do(ctx, Call{Op: Revoke, Name: name, Token: token}, func(at time.Time, rows map[string]*row) error {
		r := rows[name]
		if r == nil || r.token != token || !r.expires.After(at) {
			return db.ErrLost
		}
		r.revoked = true
		if now || r.released {
			r.expires = at
		}
		return nil
	})
}

// List keeps the contract of [db.Admin].
func (c *Client) List(ctx context.Context, names ...string) ([]db.Row, error) {
	var list []db.Row
	err := c.do(ctx, Call{Op: List}, func(now time.Time, rows map[string]*row) error {
		for name, r := range rows {
			if r.token == 0 || (len(names) > 0 && !slices.Contains(names, name)) {
				continue
			}
			list = append(list, db.Row{
				Name: name, Owner: r.owner, Run: r.run, Token: r.token,
				Age: now.Sub(r.acquired), Renewed: now.Sub(r.renewed), Remaining: r.expires.Sub(now),
				Released: r.released, Revoked: r.revoked,
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b db.Row) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Close does nothing: a client starts nothing.
func (c *Client) Close() error { return nil }
