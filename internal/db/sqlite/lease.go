package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/wallclock"
)

// statements are the SQL for one table. In all of them @boot and @now are the
// clock, and a row is live while boot = @boot AND expires_ns > @now.
type statements struct {
	read, take, renew, release, revoke string
}

// until is the time for people that lies that many nanoseconds ahead.
func until(ns string) string {
	return fmt.Sprintf("strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now', ((%s) / 1000000000.0) || ' seconds')", ns)
}

func newStatements(table string) statements {
	t := quote(table)
	renewed := "max(expires_ns, @now + @ttl)"
	released := "max(@now, acquired_ns + @keep)"
	// The first release decides the end, and what is free stays free.
	keeps := "released OR boot <> @boot OR expires_ns <= @now"
	return statements{
		read: "SELECT " + rowColumns + " FROM " + t + " WHERE name = @name",

		take: "INSERT INTO " + t + ` (name, owner, run, token, boot, acquired_ns, renewed_ns, expires_ns,
			released, revoked, acquired_at, renewed_at, expires_at)
			VALUES (@name, @owner, @run, @ms, @boot, @now, @now, @now + @ttl, 0, 0,
			` + until("0") + `, ` + until("0") + `, ` + until("@ttl") + `)
			ON CONFLICT (name) DO UPDATE SET
			owner = excluded.owner, run = excluded.run, token = max(token + 1, excluded.token), boot = excluded.boot,
			acquired_ns = excluded.acquired_ns, renewed_ns = excluded.renewed_ns, expires_ns = excluded.expires_ns,
			released = 0, revoked = 0,
			acquired_at = excluded.acquired_at, renewed_at = excluded.renewed_at, expires_at = excluded.expires_at
			WHERE (boot <> @boot OR expires_ns <= @now OR (released AND run = @run AND run <> ''))
			AND NOT (owner = @owner AND (released OR revoked))
			RETURNING token`,

		renew: "UPDATE " + t + ` SET renewed_ns = max(renewed_ns, @now), renewed_at = ` + until("0") + `,
			expires_ns = ` + renewed + `, expires_at = ` + until(renewed+" - @now") + `
			WHERE name = @name AND owner = @owner AND token = @token
			AND boot = @boot AND expires_ns > @now AND NOT released AND NOT revoked
			RETURNING acquired_ns`,

		release: "UPDATE " + t + ` SET released = 1,
			expires_ns = CASE WHEN ` + keeps + ` THEN expires_ns ELSE ` + released + ` END,
			expires_at = CASE WHEN ` + keeps + ` THEN expires_at ELSE ` + until(released+" - @now") + ` END
			WHERE name = @name AND owner = @owner AND (token = @token OR @token = 0)
			RETURNING 1`,

		revoke: "UPDATE " + t + ` SET revoked = 1,
			expires_ns = CASE WHEN @at_once OR released THEN @now ELSE expires_ns END,
			expires_at = CASE WHEN @at_once OR released THEN ` + until("0") + ` ELSE expires_at END
			WHERE name = @name AND token = @token AND boot = @boot AND expires_ns > @now
			RETURNING 1`,
	}
}

const rowColumns = "name, owner, run, token, boot, acquired_ns, renewed_ns, expires_ns, released, revoked, acquired_at, renewed_at"

// row is a lock as it is stored.
type row struct {
	name, owner, run           string
	token                      int64
	boot                       string
	acquired, renewed, expires time.Duration // on the boot clock of that boot
	released, revoked          bool
	acquiredAt, renewedAt      string
}

// fields are where rowColumns go.
func (r *row) fields() []any {
	return []any{
		&r.name, &r.owner, &r.run, &r.token, &r.boot, (*int64)(&r.acquired), (*int64)(&r.renewed), (*int64)(&r.expires),
		&r.released, &r.revoked, &r.acquiredAt, &r.renewedAt,
	}
}

// TryAcquire keeps the contract of [db.Store].
func (s *Store) TryAcquire(ctx context.Context, req db.Request) (db.Lease, error) {
	lease := db.Lease{Name: req.Name, Owner: req.Owner, Run: req.Run, TTL: req.TTL}
	what := change
	if s.opts.Create {
		what = create
	}
	err := s.do(ctx, what, func(ctx context.Context) error {
		// Those who only wait read and never write; what they read decides
		// nothing but that it is not yet their turn.
		r, found, err := s.read(ctx, req.Name)
		if err != nil {
			return err
		}
		if found {
			if err := s.refusal(r, req); err != nil {
				return err
			}
			if r.owner == req.Owner && s.live(r) {
				lease.Token = uint64(r.token)
				err := s.renew(ctx, &lease)
				if !errors.Is(err, db.ErrLost) {
					return err
				}
				// It ended between the two: for the write to decide.
			}
		}
		now := s.opts.Clock.Now()
		var token int64
		taken, err := queryRow(ctx, s.conn, s.statements.take, []any{
			sql.Named("name", req.Name), sql.Named("owner", req.Owner), sql.Named("run", req.Run),
			sql.Named("ms", wallclock.Now().UnixMilli()), sql.Named("boot", s.opts.Clock.BootID),
			sql.Named("now", int64(now)), sql.Named("ttl", int64(req.TTL)),
		}, &token)
		if err != nil {
			return err
		}
		if taken {
			lease.Token, lease.Life = uint64(token), req.TTL
			return nil
		}
		if r, found, err = s.read(ctx, req.Name); err != nil {
			return err
		}
		if found {
			if err := s.refusal(r, req); err != nil {
				return err
			}
		}
		// What kept us out has come free since.
		return db.ErrAgain
	})
	if err != nil {
		return db.Lease{}, fmt.Errorf("acquire %q: %w", req.Name, err)
	}
	return lease, nil
}

// Renew keeps the contract of [db.Store].
func (s *Store) Renew(ctx context.Context, lease db.Lease) (db.Lease, error) {
	err := s.do(ctx, change, func(ctx context.Context) error { return s.renew(ctx, &lease) })
	if err != nil {
		return db.Lease{}, fmt.Errorf("renew %q: %w", lease.Name, err)
	}
	return lease, nil
}

// renew extends the lease and sets its life and age.
func (s *Store) renew(ctx context.Context, lease *db.Lease) error {
	now := s.opts.Clock.Now()
	var acquired int64
	found, err := queryRow(ctx, s.conn, s.statements.renew, []any{
		sql.Named("name", lease.Name), sql.Named("owner", lease.Owner), sql.Named("token", int64(lease.Token)),
		sql.Named("boot", s.opts.Clock.BootID), sql.Named("now", int64(now)), sql.Named("ttl", int64(lease.TTL)),
	}, &acquired)
	if err != nil {
		return err
	}
	if !found {
		return db.ErrLost
	}
	lease.Life = lease.TTL
	lease.Age = now - time.Duration(acquired)
	return nil
}

// Release keeps the contract of [db.Store].
func (s *Store) Release(ctx context.Context, lease db.Lease, keep time.Duration) error {
	return s.change(ctx, "release", lease.Name, func() (string, []any) {
		return s.statements.release, []any{
			sql.Named("name", lease.Name), sql.Named("owner", lease.Owner), sql.Named("token", int64(lease.Token)),
			sql.Named("boot", s.opts.Clock.BootID), sql.Named("now", int64(s.opts.Clock.Now())), sql.Named("keep", int64(keep)),
		}
	})
}

// Revoke keeps the contract of [db.Admin].
func (s *Store) Revoke(ctx context.Context, name string, token uint64, now bool) error {
	return s.change(ctx, "revoke", name, func() (string, []any) {
		return s.statements.revoke, []any{
			sql.Named("name", name), sql.Named("token", int64(token)), sql.Named("at_once", now),
			sql.Named("boot", s.opts.Clock.BootID), sql.Named("now", int64(s.opts.Clock.Now())),
		}
	})
}

// change runs a statement that finds its row, or else the lease is lost. The
// statement is made when the connection is ready, so that its clock is fresh.
func (s *Store) change(ctx context.Context, verb, name string, statement func() (string, []any)) error {
	err := s.do(ctx, change, func(ctx context.Context) error {
		text, args := statement()
		var one int
		found, err := queryRow(ctx, s.conn, text, args, &one)
		if err == nil && !found {
			err = db.ErrLost
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s %q: %w", verb, name, err)
	}
	return nil
}

// List keeps the contract of [db.Admin].
func (s *Store) List(ctx context.Context, names ...string) ([]db.Row, error) {
	query := "SELECT " + rowColumns + " FROM " + quote(s.opts.Table)
	var args []any
	if len(names) > 0 {
		query += " WHERE name IN (?" + strings.Repeat(", ?", len(names)-1) + ")"
		for _, name := range names {
			args = append(args, name)
		}
	}
	query += " ORDER BY name"
	var list []db.Row
	err := s.do(ctx, look, func(ctx context.Context) error {
		rows, err := s.conn.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var r row
			if err := rows.Scan(r.fields()...); err != nil {
				return err
			}
			list = append(list, s.show(r))
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	return list, nil
}

func (s *Store) read(ctx context.Context, name string) (r row, found bool, err error) {
	found, err = queryRow(ctx, s.conn, s.statements.read, []any{sql.Named("name", name)}, r.fields()...)
	return r, found, err
}

// live says whether the row keeps others out.
func (s *Store) live(r row) bool {
	return r.boot == s.opts.Clock.BootID && r.expires > s.opts.Clock.Now()
}

// refusal returns why that owner cannot have the lock, or nil.
func (s *Store) refusal(r row, req db.Request) error {
	now := s.opts.Clock.Now()
	switch {
	case r.owner == req.Owner && (r.released || r.revoked):
		return db.ErrLost
	case r.owner != req.Owner && r.released && req.Run != "" && r.run == req.Run:
		return nil // what is kept after its release is not kept from its own run
	case r.owner != req.Owner && r.boot == s.opts.Clock.BootID && r.expires > now:
		return &db.HeldError{
			Name: r.name, Owner: r.owner, Run: r.run, Token: uint64(r.token),
			Age: max(0, now-r.acquired), Remaining: r.expires - now, Released: r.released,
		}
	}
	return nil
}

// show returns the row as an operator sees it. One of another boot has ended,
// and only the wall clock knows when it began.
func (s *Store) show(r row) db.Row {
	shown := db.Row{
		Name: r.name, Owner: r.owner, Run: r.run, Token: uint64(r.token),
		Released: r.released, Revoked: r.revoked,
	}
	if r.boot == s.opts.Clock.BootID {
		now := s.opts.Clock.Now()
		shown.Age, shown.Renewed, shown.Remaining = max(0, now-r.acquired), max(0, now-r.renewed), r.expires-now
		return shown
	}
	shown.Age, shown.Renewed = sinceWall(r.acquiredAt), sinceWall(r.renewedAt)
	return shown
}

// sinceWall is how long ago that was by the wall clock; 0 when it cannot say.
func sinceWall(at string) time.Duration {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return 0
	}
	return max(0, time.Since(t))
}
