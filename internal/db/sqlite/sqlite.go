// Package sqlite keeps locks in a SQLite file, for one machine.
//
// A lease is bound to the machine's boot: it is measured on the boot clock,
// which also runs while the machine is suspended and which nobody can set, and
// a lease of another boot is free, because whatever held it has ended with that
// boot. The wall clock only gives tokens and the columns for people.
//
// # Why a clock that is passed in is safe
//
// SQLite has no boot clock, so each statement gets a reading that was taken
// right before it, and the statement may then wait for other writers. An old
// reading is always on the safe side. A lease looks younger than it is, so what
// has expired since is not taken. A lease that is given ends at that reading +
// TTL, which is later than the caller believes, because the caller counts from
// before the call. And a renewal whose lease has ended since the reading
// changes a row that, as the same statement proves, nobody has taken.
//
// # Waiting for other processes
//
// Each method is one statement, or a read and then a write, outside any
// transaction: so a write never starts from an old snapshot, which SQLite would
// refuse at once and for ever. Readers wait for nobody. Writers, each of which
// takes well under a millisecond, wait for one another inside SQLite, no longer
// than the call's context and limit allow.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Clock is the machine's boot clock.
type Clock struct {
	// BootID is different after each boot, and the same for every process
	// of one; never empty.
	BootID string

	// Now returns the time since boot, the time in suspend included. Every
	// process of the machine must read the same clock.
	Now func() time.Duration
}

// Options say which file, and how.
type Options struct {
	// Path is the database file. Its folder must exist, and is what containers
	// that share it must mount.
	Path string

	// Table is the table of locks; [DefaultTable] when empty.
	Table string

	// Create has TryAcquire create the file and the table when they are
	// missing. The file's folder is never created.
	Create bool

	// Clock is required.
	Clock Clock

	// CallLimit is the longest that a call may take; 0 sets no limit besides
	// the call's context.
	CallLimit time.Duration

	// magic stands in for fsMagic in tests.
	magic func(path string) (int64, error)
}

// maxBusy is how long a statement waits for other writers before the call ends
// with db.ErrAgain.
const maxBusy = time.Second

// Store is a lock store in one file. It keeps one connection, which is opened
// anew when a call failed or when the file was replaced.
type Store struct {
	opts       Options
	statements statements

	slot   chan struct{} // holds one element while a call uses what follows
	pool   *sql.DB       // nil without a connection
	conn   *sql.Conn     // the only one of pool
	file   os.FileInfo   // what conn has open
	ready  bool          // conn was prepared for writing
	closed bool

	created bool // the call that has the slot has created the table
}

var (
	_ db.Store    = (*Store)(nil)
	_ db.Admin    = (*Store)(nil)
	_ db.Migrator = (*Store)(nil)
)

// Open returns the store of that file. It touches no file: an attempt to acquire
// makes what is still missing, and each call returns [db.ErrRefused] where trying again does not
// help: a missing folder, a network file system, a file that is mounted by
// itself or has a hard link, a file or table that is not ours, no permission.
// The error says which option is missing.
func Open(opts Options) (*Store, error) {
	if opts.Path == "" || opts.Clock.BootID == "" || opts.Clock.Now == nil {
		return nil, errors.New("open lock database: path, boot id and clock are required")
	}
	path, err := filepath.Abs(opts.Path)
	if err != nil {
		return nil, fmt.Errorf("open lock database %s: %w", opts.Path, err)
	}
	opts.Path = path
	opts.Table = tableOr(opts.Table)
	if opts.magic == nil {
		opts.magic = fsMagic
	}
	return &Store{opts: opts, statements: newStatements(opts.Table), slot: make(chan struct{}, 1)}, nil
}

// Close ends the connection, after the calls that are under way. A call after
// it fails.
func (s *Store) Close() error {
	s.slot <- struct{}{}
	defer func() { <-s.slot }()
	s.closed = true
	if err := s.disconnect(); err != nil {
		return fmt.Errorf("close lock database %s: %w", s.opts.Path, err)
	}
	return nil
}

// purpose is what a call needs the database for.
type purpose int

const (
	look   purpose = iota // makes nothing and changes nothing
	change                // changes a row, which needs a table
	create                // makes file and table when they are missing
)

// do runs work with the connection to itself and within the limits of a call,
// and translates its error.
func (s *Store) do(ctx context.Context, what purpose, work func(ctx context.Context) error) error {
	if limit := s.opts.CallLimit; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s: %w", limit, context.DeadlineExceeded))
		defer cancel()
	}
	select {
	case s.slot <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.slot }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.created = false
	err := s.connect(ctx, what)
	if err == nil {
		err = work(ctx)
	}
	return s.translate(ctx, err)
}

// translate turns an error into the contract's words, by SQLite's result code,
// and drops the connection when it may not be as it should be.
func (s *Store) translate(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, db.ErrHeld), errors.Is(err, db.ErrLost), errors.Is(err, db.ErrAgain):
		return err
	case ctx.Err() != nil:
		return errors.Join(context.Cause(ctx), s.disconnect())
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff { // the rest says more exactly where
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA:
			return fmt.Errorf("%s: %w: %w", s.opts.Path, err, db.ErrAgain)
		case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH,
			sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
			err = fmt.Errorf("%s: %w: %w", s.opts.Path, err, db.ErrRefused)
		case sqlite3.SQLITE_ERROR:
			// A statement that does not fit the database: ask the schema why.
			if s.conn != nil {
				if why := checkTable(ctx, s.conn, s.opts.Path, s.opts.Table); why != nil {
					err = why
				}
			}
			err = fmt.Errorf("%s: %w", s.opts.Path, err)
		case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH:
			err = fmt.Errorf("%s: %w: %w", notOurs(s.opts.Path, s.opts.Table, "it does not take our rows"), err, db.ErrRefused)
		default:
			err = fmt.Errorf("%s: %w", s.opts.Path, err)
		}
	}
	return errors.Join(err, s.disconnect())
}

// connect opens the file and makes it ready, unless that is done. Its error is
// SQLite's or in the contract's words.
func (s *Store) connect(ctx context.Context, what purpose) error {
	if s.closed {
		return fmt.Errorf("%s: %w", s.opts.Path, sql.ErrConnDone)
	}
	if s.ready {
		// Somebody who removes or replaces the file leaves us with one that
		// no other process will ever open, and so with a lock of our own.
		if file, err := os.Stat(s.opts.Path); err == nil && os.SameFile(file, s.file) {
			return nil
		}
	}
	if err := s.disconnect(); err != nil {
		return err
	}
	if err := s.checkPlace(what); err != nil {
		return err
	}
	connector, err := sqlite.NewConnector(s.dsn(what))
	if err != nil {
		return err
	}
	s.pool = sql.OpenDB(connector)
	s.pool.SetMaxOpenConns(1)
	if s.conn, err = s.pool.Conn(ctx); err != nil {
		return err
	}
	if s.file, err = os.Stat(s.opts.Path); err != nil {
		return err
	}
	if what == look {
		// Not even the journal mode is changed; so the next call that writes
		// connects again.
		return checkTable(ctx, s.conn, s.opts.Path, s.opts.Table)
	}
	if err := s.prepare(ctx, what); err != nil {
		return err
	}
	s.ready = true
	return nil
}

// checkPlace refuses a place where a lock would not exclude.
func (s *Store) checkPlace(what purpose) error {
	place := s.opts.Path
	file, err := os.Stat(place)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing:
		place = filepath.Dir(place)
		if _, err := os.Stat(place); errors.Is(err, fs.ErrNotExist) && what == look {
			return s.noFile()
		} else if err != nil {
			return fmt.Errorf("%s: %w: its folder must exist: %w", s.opts.Path, err, db.ErrRefused)
		}
	case err != nil:
		return fmt.Errorf("%w: %w", err, db.ErrRefused)
	case file.Mode().IsRegular():
		if err := checkOneName(place, file); err != nil {
			return err
		}
	}
	magic, err := s.opts.magic(place)
	if err != nil {
		return fmt.Errorf("find out the file system of %s: %w: %w", place, err, db.ErrRefused)
	}
	if name := networkFS(magic); name != "" {
		return fmt.Errorf("%s is on %s: SQLite locks work on a local disk only: %w", s.opts.Path, name, db.ErrRefused)
	}
	if missing && what != create {
		return s.noFile()
	}
	return nil
}

func (s *Store) noFile() error {
	return fmt.Errorf("%s: %w: %w; this creates it: %s", s.opts.Path, fs.ErrNotExist, db.ErrNoTable, DDL(s.opts.Table))
}

// dsn is the file as the driver wants it. Only what needs no lock on the file
// is set here, because the driver sets it without our context.
func (s *Store) dsn(what purpose) string {
	mode := "rw"
	if what == create {
		mode = "rwc"
	}
	query := url.Values{
		"mode":          {mode},
		"_busy_timeout": {strconv.FormatInt(s.busy().Milliseconds(), 10)},
		"_error_rc":     {"1"}, // no message of another call
	}
	return (&url.URL{Scheme: "file", Path: s.opts.Path, RawQuery: query.Encode()}).String()
}

// busy is half of a call's limit, so that a call which could not write says
// db.ErrAgain rather than that its outcome is unknown.
func (s *Store) busy() time.Duration {
	if limit := s.opts.CallLimit; limit > 0 {
		return min(maxBusy, limit/2)
	}
	return maxBusy
}

// prepare makes the file a WAL database with our table. Where that is so
// already, it only reads.
func (s *Store) prepare(ctx context.Context, what purpose) error {
	err := checkTable(ctx, s.conn, s.opts.Path, s.opts.Table)
	if err != nil && (!errors.Is(err, db.ErrNoTable) || what != create) {
		return err // a database that is not ours is left as it is
	}
	if err := s.walMode(ctx); err != nil {
		return err
	}
	// What a crash of the machine can undo then are commits of a boot that has
	// ended, whose leases are free; a process's death undoes nothing.
	if _, err := s.conn.ExecContext(ctx, "PRAGMA synchronous = NORMAL"); err != nil {
		return fmt.Errorf("set synchronous: %w", err)
	}
	if err == nil {
		return nil
	}
	return s.createTable(ctx)
}

// createTable creates the table unless another was faster. After an error the
// connection is closed, which undoes what was begun.
func (s *Store) createTable(ctx context.Context) error {
	if _, err := s.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("create table %q: %w", s.opts.Table, err)
	}
	err := checkTable(ctx, s.conn, s.opts.Path, s.opts.Table)
	missing := errors.Is(err, db.ErrNoTable)
	if missing {
		_, err = s.conn.ExecContext(ctx, DDL(s.opts.Table))
	}
	if err == nil {
		_, err = s.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		return fmt.Errorf("create table %q: %w", s.opts.Table, err)
	}
	s.created = missing
	return nil
}

// walMode turns on write-ahead logging. SQLite does not wait for others when it
// changes the journal mode, so this does: when fifty processes start on a new
// file, one changes it and the rest find it changed.
func (s *Store) walMode(ctx context.Context) error {
	var mode string
	_, err := queryRow(ctx, s.conn, "PRAGMA journal_mode", nil, &mode)
	if err != nil {
		return fmt.Errorf("read journal mode: %w", err)
	}
	patience := time.NewTimer(s.busy())
	defer patience.Stop()
	for mode != "wal" {
		_, err := queryRow(ctx, s.conn, "PRAGMA journal_mode = WAL", nil, &mode)
		if err == nil {
			break
		}
		if e, ok := errors.AsType[*sqlite.Error](err); !ok || e.Code()&0xff != sqlite3.SQLITE_BUSY {
			return fmt.Errorf("set journal mode: %w", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience.C:
			return fmt.Errorf("set journal mode: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if mode != "wal" {
		return fmt.Errorf("%s cannot use write-ahead logging, only %q: %w", s.opts.Path, mode, db.ErrRefused)
	}
	return nil
}

// DDL keeps the contract of [db.Migrator].
func (s *Store) DDL() string { return DDL(s.opts.Table) }

// Migrate keeps the contract of [db.Migrator].
func (s *Store) Migrate(ctx context.Context) (created bool, err error) {
	err = s.do(ctx, look, func(ctx context.Context) error {
		return checkTable(ctx, s.conn, s.opts.Path, s.opts.Table)
	})
	if errors.Is(err, db.ErrNoTable) {
		err = s.do(ctx, create, func(context.Context) error { created = s.created; return nil })
	}
	if err != nil {
		return false, fmt.Errorf("migrate: %w", err)
	}
	return created, nil
}

// disconnect closes the connection, if there is one.
func (s *Store) disconnect() error {
	if s.pool == nil {
		return nil
	}
	var err error
	if s.conn != nil {
		err = s.conn.Close()
	}
	err = errors.Join(err, s.pool.Close())
	s.pool, s.conn, s.file, s.ready = nil, nil, nil, false
	return err
}

// queryRow runs a statement that returns one row or none, to its very end: only
// there SQLite commits it and says whether that worked.
func queryRow(ctx context.Context, conn *sql.Conn, statement string, args []any, dest ...any) (found bool, err error) {
	rows, err := conn.QueryContext(ctx, statement, args...)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for rows.Next() {
		found = true
		if err := rows.Scan(dest...); err != nil {
			return false, err
		}
	}
	if err := rows.Err(); err != nil {
		return false, err
	}
	return found, rows.Close()
}
