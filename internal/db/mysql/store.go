package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockgate/lockgate/internal/db"
)

// keepIdle is how long an unused connection is kept with CloseAfterCall: long
// enough for a short job to release over the connection that acquired.
const keepIdle = 2 * time.Second

// Options say where the table is and how to treat the server.
type Options struct {
	// Target is called for every new connection. Its error is that of the call
	// which needs the connection.
	Target func() (Target, error)

	// Table is the lock table, TABLE or SCHEMA.TABLE; empty is DefaultTable.
	Table string

	// Create has TryAcquire create the table when it is missing.
	Create bool

	// CallLimit bounds each call as a whole, whatever it does; > 0.
	CallLimit time.Duration

	// LockWait is how long the server may wait for another's row lock before
	// it says ErrAgain, in whole seconds, rounded up; 0 leaves it to the server.
	LockWait time.Duration

	// CloseAfterCall gives the connection back after Renew and Release, and 2
	// to 4 s after any other call that was the last one; for a holder that
	// renews seldom. Without it one connection is kept.
	CloseAfterCall bool
}

// Store is the lock table of one database. Its methods may be called from
// several goroutines; they take turns.
type Store struct {
	db         *sql.DB
	table      string
	sql        statements
	create     bool
	limit      time.Duration
	closeAfter bool

	turn chan struct{} // holds a value while a call runs, and for good after Close

	// looksFirst are the names that were held by another when last asked for.
	// It belongs to the call that has its turn.
	looksFirst map[string]struct{}

	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the running call
	closed chan struct{}
}

var (
	_ db.Store    = (*Store)(nil)
	_ db.Admin    = (*Store)(nil)
	_ db.Migrator = (*Store)(nil)
)

// errClosed is why a call ends when the store is closed under it.
var errClosed = errors.New("the store is closed")

// Open returns a store. It does not connect; the error says which option is
// wrong.
func Open(opts Options) (*Store, error) {
	if opts.Target == nil {
		return nil, errors.New("open mysql store: no target")
	}
	if opts.CallLimit <= 0 {
		return nil, fmt.Errorf("open mysql store: call limit %s is not positive", opts.CallLimit)
	}
	if opts.Table == "" {
		opts.Table = DefaultTable
	}
	table, err := quoteTable(opts.Table)
	if err != nil {
		return nil, fmt.Errorf("open mysql store: %w", err)
	}
	pool := sql.OpenDB(&connector{target: opts.Target, limit: opts.CallLimit, setUp: setUpStatement(opts.LockWait)})
	pool.SetMaxOpenConns(1)
	pool.SetMaxIdleConns(1)
	if opts.CloseAfterCall {
		pool.SetConnMaxIdleTime(keepIdle)
	}
	return &Store{
		db:         pool,
		table:      opts.Table,
		sql:        newStatements(table),
		create:     opts.Create,
		limit:      opts.CallLimit,
		closeAfter: opts.CloseAfterCall,
		turn:       make(chan struct{}, 1),
		closed:     make(chan struct{}),
		looksFirst: make(map[string]struct{}),
	}, nil
}

// TryAcquire keeps the contract of [db.Store]. It also returns [db.ErrRefused]
// for a name, owner or run that the table cannot hold.
func (s *Store) TryAcquire(ctx context.Context, req db.Request) (db.Lease, error) {
	var lease db.Lease
	err := s.call(ctx, func(ctx context.Context) error {
		if err := errors.Join(checkName(req.Name), checkOwner(req.Owner), checkRun(req.Run)); err != nil {
			return fmt.Errorf("%w: %w", db.ErrRefused, err)
		}
		var err error
		lease, err = s.acquire(ctx, req)
		if s.create && isNumber(err, errNoSuchTable) {
			if err := s.createTable(ctx); err != nil {
				return err
			}
			lease, err = s.acquire(ctx, req)
		}
		if errors.Is(err, db.ErrHeld) {
			s.looksFirst[req.Name] = struct{}{}
		} else if err == nil {
			delete(s.looksFirst, req.Name)
		}
		return err
	})
	if err != nil {
		return db.Lease{}, fmt.Errorf("acquire %q: %w", req.Name, err)
	}
	return lease, nil
}

// acquire takes the lock if it is free, and finds out why not otherwise. The
// lease means nothing when there is an error.
func (s *Store) acquire(ctx context.Context, req db.Request) (db.Lease, error) {
	name, owner, run, ttl := mark(req.Name), mark(req.Owner), mark(req.Run), req.TTL.Microseconds()
	if _, waits := s.looksFirst[req.Name]; waits {
		row, err := s.look(ctx, name)
		if err == nil && row.Owner != req.Owner && row.Remaining > 0 && !freeFor(req, row) {
			return db.Lease{}, heldBy(req, row)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return db.Lease{}, err
		}
		// Anything else is for the write to decide.
	}
	done, err := s.exec(ctx, keepOpen, s.sql.acquire, ttl, owner, run, name, run, owner)
	if err != nil || done.rows == 1 {
		return newLease(req, uint64(done.id), 0), err
	}
	row, err := s.look(ctx, name)
	if errors.Is(err, sql.ErrNoRows) {
		done, err = s.exec(ctx, keepOpen, s.sql.insert, name, owner, run, ttl)
		if !isNumber(err, errDuplicateKey) {
			return newLease(req, uint64(done.id), 0), err
		}
		row, err = s.look(ctx, name) // of whoever was first
		if errors.Is(err, sql.ErrNoRows) {
			return db.Lease{}, fmt.Errorf("%w: there is a row that cannot be seen, perhaps not yet on a replica", db.ErrAgain)
		}
	}
	if err != nil {
		return db.Lease{}, err
	}
	return s.judge(ctx, req, row)
}

// judge says why the lock with that row was not free, and extends the lease
// when it is our own, from a call whose answer was lost or from before a
// restart.
func (s *Store) judge(ctx context.Context, req db.Request, row db.Row) (db.Lease, error) {
	if row.Owner != req.Owner {
		return db.Lease{}, heldBy(req, row)
	}
	if row.Released || row.Revoked {
		return db.Lease{}, db.ErrLost
	}
	done, err := s.exec(ctx, keepOpen, s.sql.renew, req.TTL.Microseconds(), mark(req.Name), mark(req.Owner), row.Token)
	if err == nil && done.rows == 0 {
		err = fmt.Errorf("%w: our lease ended just now", db.ErrAgain)
	}
	return newLease(req, row.Token, done.id), err
}

// freeFor says whether the row keeps only other runs out.
func freeFor(req db.Request, row db.Row) bool {
	return row.Released && req.Run != "" && row.Run == req.Run
}

func heldBy(req db.Request, row db.Row) error {
	if freeFor(req, row) {
		row.Remaining = 0 // it was released between the write and the look
	}
	return &db.HeldError{
		Name: req.Name, Owner: row.Owner, Run: row.Run, Token: row.Token,
		Age: max(row.Age, 0), Remaining: max(row.Remaining, 0), Released: row.Released,
	}
}

func newLease(req db.Request, token uint64, ageMicroseconds int64) db.Lease {
	return db.Lease{
		Name: req.Name, Owner: req.Owner, Run: req.Run, Token: token,
		TTL: req.TTL, Life: req.TTL.Truncate(time.Microsecond), Age: microseconds(ageMicroseconds),
	}
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// look reads a row without deciding anything by it. The error wraps
// [sql.ErrNoRows] when there is none.
func (s *Store) look(ctx context.Context, name string) (db.Row, error) {
	var row db.Row
	var age, remaining int64
	err := s.with(ctx, keepOpen, func(conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, s.sql.look, name).
			Scan(&row.Owner, &row.Run, &row.Token, &row.Released, &row.Revoked, &age, &remaining)
	})
	row.Owner, row.Run = unmark(row.Owner), unmark(row.Run)
	row.Age, row.Remaining = microseconds(age), microseconds(remaining)
	return row, err
}

// createTable creates the missing table, or says why it stays missing.
func (s *Store) createTable(ctx context.Context) error {
	_, err := s.exec(ctx, keepOpen, s.sql.create)
	if errors.Is(err, db.ErrRefused) {
		return s.mayNotCreate(err)
	}
	return err
}

func (s *Store) mayNotCreate(err error) error {
	return s.noTable(fmt.Errorf("we may not create it: %v", err)) //nolint:errorlint // one decision: no table
}

// Renew keeps the contract of [db.Store].
func (s *Store) Renew(ctx context.Context, lease db.Lease) (db.Lease, error) {
	err := s.call(ctx, func(ctx context.Context) error {
		if errors.Join(checkName(lease.Name), checkOwner(lease.Owner)) != nil {
			return db.ErrLost // nobody can have had it
		}
		done, err := s.exec(ctx, giveBack, s.sql.renew,
			lease.TTL.Microseconds(), mark(lease.Name), mark(lease.Owner), lease.Token)
		if err == nil && done.rows == 0 {
			err = db.ErrLost
		}
		lease.Life = lease.TTL.Truncate(time.Microsecond)
		lease.Age = microseconds(done.id)
		return err
	})
	if err != nil {
		return db.Lease{}, fmt.Errorf("renew %q: %w", lease.Name, err)
	}
	return lease, nil
}

// Release keeps the contract of [db.Store]. A lease that has expired or was
// revoked stays free, whatever keep says.
func (s *Store) Release(ctx context.Context, lease db.Lease, keep time.Duration) error {
	err := s.call(ctx, func(ctx context.Context) error {
		if errors.Join(checkName(lease.Name), checkOwner(lease.Owner)) != nil {
			return db.ErrLost // nobody can have had it
		}
		done, err := s.exec(ctx, giveBack, s.sql.release,
			keep.Microseconds(), mark(lease.Name), mark(lease.Owner), lease.Token, lease.Token)
		if err == nil && done.rows == 0 {
			err = db.ErrLost
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("release %q: %w", lease.Name, err)
	}
	return nil
}

// Revoke keeps the contract of [db.Admin].
func (s *Store) Revoke(ctx context.Context, name string, token uint64, now bool) error {
	statement := s.sql.revoke
	if now {
		statement = s.sql.end
	}
	err := s.call(ctx, func(ctx context.Context) error {
		if checkName(name) != nil {
			return db.ErrLost // nobody can have had it
		}
		done, err := s.exec(ctx, giveBack, statement, mark(name), token)
		if err == nil && done.rows == 0 {
			err = db.ErrLost
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("revoke %q: %w", name, err)
	}
	return nil
}

// List keeps the contract of [db.Admin].
func (s *Store) List(ctx context.Context, names ...string) ([]db.Row, error) {
	var list []db.Row
	err := s.call(ctx, func(ctx context.Context) error {
		return s.with(ctx, giveBack, func(conn *sql.Conn) (err error) {
			list, err = s.list(ctx, conn, names)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	// The marks of names that end in a blank can put them out of order.
	slices.SortFunc(list, func(a, b db.Row) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (s *Store) list(ctx context.Context, conn *sql.Conn, names []string) ([]db.Row, error) {
	var wanted []any
	for _, name := range names {
		if checkName(name) == nil {
			wanted = append(wanted, mark(name))
		}
	}
	if len(names) > 0 && len(wanted) == 0 {
		return nil, nil
	}
	rows, err := conn.QueryContext(ctx, s.sql.listOf(len(wanted)), wanted...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []db.Row
	for rows.Next() {
		var r db.Row
		var age, renewed, remaining int64
		if err := rows.Scan(&r.Name, &r.Owner, &r.Run, &r.Token, &r.Released, &r.Revoked, &age, &renewed, &remaining); err != nil {
			return nil, err
		}
		r.Name, r.Owner, r.Run = unmark(r.Name), unmark(r.Owner), unmark(r.Run)
		r.Age, r.Renewed, r.Remaining = microseconds(age), microseconds(renewed), microseconds(remaining)
		list = append(list, r)
	}
	return list, rows.Err()
}

// Close ends a call that is under way, whose outcome is then unknown, and every
// connection. It may be called twice, and always returns nil.
func (s *Store) Close() error {
	s.mu.Lock()
	select {
	case <-s.closed:
		s.mu.Unlock()
		return nil
	default:
	}
	close(s.closed)
	if s.cancel != nil {
		s.cancel(errClosed)
	}
	s.mu.Unlock()
	s.turn <- struct{}{} // until the last call has ended
	_ = s.db.Close()     // an error is a goodbye that was not heard
	return nil
}

// call runs the statements of one call within its limit, when it is its turn.
func (s *Store) call(ctx context.Context, work func(ctx context.Context) error) error {
	ctx, cancelLimit := context.WithTimeoutCause(ctx, s.limit, limitError(s.limit))
	defer cancelLimit()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if ctx.Err() != nil {
		return s.translate(ctx, ctx.Err())
	}
	select {
	case s.turn <- struct{}{}:
	case <-s.closed:
		return errClosed
	case <-ctx.Done():
		return s.translate(ctx, ctx.Err())
	}
	defer func() { <-s.turn }()
	if !s.begin(cancel) {
		return errClosed
	}
	return s.explainTable(ctx, work(ctx))
}

// begin lets Close cancel the call that has its turn; false after Close.
func (s *Store) begin(cancel context.CancelCauseFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return false
	default:
		s.cancel = cancel
		return true
	}
}

// afterwards is what becomes of a connection after a statement.
type afterwards bool

const (
	keepOpen afterwards = false
	giveBack afterwards = true // with CloseAfterCall
)

// result is what the server said to a statement that writes.
type result struct {
	rows int64 // matched
	id   int64 // LAST_INSERT_ID of the statement
}

func (s *Store) exec(ctx context.Context, then afterwards, statement string, args ...any) (result, error) {
	var done result
	err := s.with(ctx, then, func(conn *sql.Conn) error {
		r, err := conn.ExecContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		if done.rows, err = r.RowsAffected(); err != nil {
			return err
		}
		done.id, err = r.LastInsertId()
		return err
	})
	return done, err
}

// with runs one statement on a connection, and translates its error.
func (s *Store) with(ctx context.Context, then afterwards, statement func(*sql.Conn) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return notSent(s.translate(ctx, err))
	}
	err = statement(conn)
	if spoilsConnection(err) || (s.closeAfter && then == giveBack) {
		// database/sql closes a connection that is said to be bad.
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	// An error means that it is closed already.
	_ = conn.Close()
	return s.translate(ctx, err)
}
