package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/dbtest"
	"github.com/lockgate/lockgate/internal/db/sqlite"
)

// contenderFile, in the environment, makes the test binary a contender for the
// lock "job" in that file.
const contenderFile = "LOCKGATE_TEST_SQLITE_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(contenderFile); path != "" {
		if err := contend(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// contend makes one attempt, as a process of its own, and prints what came of
// it.
func contend(path string) error {
	if err := bind(); err != nil {
		return err
	}
	ctx := context.Background()
	store, err := sqlite.Open(sqlite.Options{Path: path, Create: true, Clock: clock()})
	if err != nil {
		return err
	}
	for {
		lease, err := store.TryAcquire(ctx, db.Request{Name: "job", Owner: fmt.Sprint("process ", os.Getpid()), TTL: time.Hour})
		switch {
		case err == nil:
			fmt.Printf("token %d", lease.Token)
		case errors.Is(err, db.ErrAgain):
			continue
		case errors.Is(err, db.ErrHeld):
			fmt.Print("held")
		default:
			return err
		}
		return store.Close()
	}
}

// clock returns the wall clock as if it were the boot clock, which suits the
// processes and goroutines of a test.
func clock() sqlite.Clock {
	return sqlite.Clock{BootID: "this boot", Now: func() time.Duration { return time.Duration(time.Now().UnixNano()) }}
}

// options are those for a new file.
func options(t *testing.T) sqlite.Options {
	return sqlite.Options{Path: filepath.Join(t.TempDir(), "locks.db"), Create: true, Clock: clock()}
}

func open(t *testing.T, opts sqlite.Options) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(opts)
	if err != nil {
		t.Fatalf("Open(%q) = %v; want a store", opts.Path, err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	})
	return store
}

// raw opens the file with nothing of ours in between.
func raw(t *testing.T, path string) *sql.Conn {
	t.Helper()
	pool, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path}).String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), pool.Close()); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func run(t *testing.T, conn *sql.Conn, statement string) {
	t.Helper()
	if _, err := conn.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func ask(owner string) db.Request {
	return db.Request{Name: "job", Owner: owner, Run: "run of " + owner, TTL: time.Hour}
}

func acquire(t *testing.T, store db.Store, req db.Request) db.Lease {
	t.Helper()
	lease, err := store.TryAcquire(t.Context(), req)
	if err != nil {
		t.Fatalf("TryAcquire(%q by %q) = %v; want a lease", req.Name, req.Owner, err)
	}
	return lease
}

func wantError(t *testing.T, what string, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s = %v; want %q", what, err, want)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s = %q; want it to name %q", what, err, word)
		}
	}
}

func wantUndecided(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s = nil; want an error", what)
	}
	for _, sentinel := range []error{db.ErrHeld, db.ErrLost, db.ErrAgain, db.ErrUnreachable, db.ErrRefused, db.ErrNoTable} {
		if errors.Is(err, sentinel) {
			t.Errorf("%s = %v; want an error that decides nothing", what, err)
		}
	}
}

func TestConformance(t *testing.T) {
	opts := options(t)
	dbtest.Exercise(t, dbtest.Harness{
		Open: func(t *testing.T) db.Store {
			store, err := sqlite.Open(opts)
			if err != nil {
				t.Fatalf("Open(%q) = %v; want a store", opts.Path, err)
			}
			return store
		},
		Empty: func(t *testing.T) func() db.Store {
			opts := options(t)
			return func() db.Store { return open(t, opts) }
		},
		Foreign: func(t *testing.T) (func() db.Store, func() string) {
			opts := options(t)
			conn := raw(t, opts.Path)
			run(t, conn, "CREATE TABLE lockgate_locks (name TEXT PRIMARY KEY, token INTEGER, locked_by TEXT)")
			run(t, conn, "INSERT INTO lockgate_locks VALUES ('job', 1, 'somebody')")
			return func() db.Store { return open(t, opts) }, func() string {
				content, err := os.ReadFile(opts.Path)
				if err != nil {
					t.Fatal(err)
				}
				return string(content)
			}
		},
	})
}

func TestAReadOnlyLookMakesNothing(t *testing.T) {
	opts := options(t)
	folder := filepath.Dir(opts.Path)
	files := func() (names []string) {
		t.Helper()
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	_, err := open(t, opts).List(t.Context())
	wantError(t, "List without a file", err, db.ErrNoTable, opts.Path, sqlite.DDL(""))
	missing := opts
	missing.Path = filepath.Join(folder, "missing", "locks.db")
	_, err = open(t, missing).List(t.Context())
	wantError(t, "List without a folder", err, db.ErrNoTable, missing.Path)
	if got := files(); len(got) != 0 {
		t.Errorf("List has made %q; want nothing", got)
	}
	// A database of somebody else, in another journal mode.
	conn := raw(t, opts.Path)
	run(t, conn, "CREATE TABLE other (id INTEGER)")
	_, err = open(t, opts).List(t.Context())
	wantError(t, "List without a table", err, db.ErrNoTable, opts.Path, sqlite.DDL(""))
	var mode string
	if err := conn.QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&mode); err != nil || mode != "delete" {
		t.Errorf("journal mode after List = %q, %v; want still delete", mode, err)
	}
	if got := files(); len(got) != 1 {
		t.Errorf("beside the database is %q; want nothing else", got)
	}
}

func TestMigrateCreatesTheFileThoughAcquiringMayNot(t *testing.T) {
	opts := options(t)
	opts.Create = false
	store := open(t, opts)
	_, err := store.TryAcquire(t.Context(), ask("a"))
	wantError(t, "TryAcquire without a file", err, db.ErrNoTable)
	for _, want := range []bool{true, false} {
		if created, err := store.Migrate(t.Context()); created != want || err != nil {
			t.Errorf("Migrate() = %t, %v; want %t, nil", created, err, want)
		}
	}
	acquire(t, store, ask("a"))
	run(t, raw(t, opts.Path), "DROP TABLE lockgate_locks")
	if created, err := store.Migrate(t.Context()); !created || err != nil {
		t.Errorf("Migrate() after the table went = %t, %v; want true, nil", created, err)
	}
	opts.Path = filepath.Join(filepath.Dir(opts.Path), "missing", "locks.db")
	_, err = open(t, opts).Migrate(t.Context())
	wantError(t, "Migrate without a folder", err, db.ErrRefused, "folder must exist")
}

func TestProcessesThatStartOnANewFileHaveOneWinner(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		path := options(t).Path
		outputs := make([]string, 20)
		var wg sync.WaitGroup
		for i := range outputs {
			wg.Go(func() {
				cmd := exec.CommandContext(t.Context(), binary)
				cmd.Env = append(os.Environ(), contenderFile+"="+path)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("contender %d: %v: %s", i, err, out)
				}
				outputs[i] = string(out)
			})
		}
		wg.Wait()
		winners := 0
		for i, out := range outputs {
			switch {
			case strings.HasPrefix(out, "token "):
				winners++
			case out != "held":
				t.Errorf("contender %d printed %q; want a token or held", i, out)
			}
		}
		if winners != 1 {
			t.Errorf("%d of %d processes hold the lock; want one: %q", winners, len(outputs), outputs)
		}
	}
}

func TestStoresThatOpenANewFileTogetherHaveOneWinner(t *testing.T) {
	for range 3 {
		opts := options(t)
		var wg sync.WaitGroup
		errs := make([]error, 50)
		start := make(chan struct{})
		for i := range errs {
			wg.Go(func() {
				<-start
				store, err := sqlite.Open(opts)
				if err != nil {
					errs[i] = err
					return
				}
				for again := true; again; again = errors.Is(errs[i], db.ErrAgain) {
					_, errs[i] = store.TryAcquire(t.Context(), ask(fmt.Sprint(i)))
				}
				if err := store.Close(); err != nil {
					t.Errorf("Close() = %v; want nil", err)
				}
			})
		}
		close(start)
		wg.Wait()
		winners := 0
		for i, err := range errs {
			if err == nil {
				winners++
			} else if !errors.Is(err, db.ErrHeld) {
				t.Errorf("contender %d: %v; want a lease or ErrHeld", i, err)
			}
		}
		if winners != 1 {
			t.Errorf("%d of %d stores hold the lock; want one", winners, len(errs))
		}
	}
}

// nextBoot is the machine after a restart: another boot id, and a boot clock
// that begins again.
func nextBoot(opts sqlite.Options) sqlite.Options {
	start := time.Now()
	opts.Clock = sqlite.Clock{BootID: "next boot", Now: func() time.Duration { return time.Since(start) }}
	return opts
}

func TestALeaseEndsWithTheBoot(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(t *testing.T, store *sqlite.Store, lease db.Lease) error
	}{
		{"a live lease", func(*testing.T, *sqlite.Store, db.Lease) error { return nil }},
		{"a released lock that is kept", func(t *testing.T, s *sqlite.Store, l db.Lease) error {
			return s.Release(t.Context(), l, 100*time.Hour)
		}},
		{"a revoked lease", func(t *testing.T, s *sqlite.Store, l db.Lease) error {
			return s.Revoke(t.Context(), l.Name, l.Token, false)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := options(t)
			before := open(t, opts)
			old := acquire(t, before, ask("a"))
			if err := c.before(t, before, old); err != nil {
				t.Fatal(err)
			}
			after := open(t, nextBoot(opts))
			lease := acquire(t, after, ask("b"))
			if lease.Token <= old.Token {
				t.Errorf("token after a restart = %d; want more than %d", lease.Token, old.Token)
			}
			_, err := after.TryAcquire(t.Context(), ask("c"))
			wantError(t, "TryAcquire of a lock of this boot", err, db.ErrHeld)
		})
	}
}

func TestALeaseOfAnotherBootCannotBeRenewedOrRevoked(t *testing.T) {
	opts := options(t)
	old := acquire(t, open(t, opts), ask("a"))
	after := open(t, nextBoot(opts))
	_, err := after.Renew(t.Context(), old)
	wantError(t, "Renew of a lease of another boot", err, db.ErrLost)
	err = after.Revoke(t.Context(), old.Name, old.Token, true)
	wantError(t, "Revoke of a lease of another boot", err, db.ErrLost)
}

func TestALeaseOfAnotherBootCanBeReleasedAndStaysFree(t *testing.T) {
	opts := options(t)
	old := acquire(t, open(t, opts), ask("a"))
	after := open(t, nextBoot(opts))
	if err := after.Release(t.Context(), old, 100*time.Hour); err != nil {
		t.Errorf("Release of a lease of another boot = %v; want nil", err)
	}
	_, err := after.TryAcquire(t.Context(), ask("a"))
	wantError(t, "TryAcquire by an owner that released", err, db.ErrLost)
	acquire(t, after, ask("b"))
}

func TestARowOfAnotherBootIsListedAsEnded(t *testing.T) {
	opts := options(t)
	acquire(t, open(t, opts), ask("a"))
	run(t, raw(t, opts.Path), `UPDATE lockgate_locks SET acquired_at = '2020-01-01T00:00:00.000Z'`)
	rows, err := open(t, nextBoot(opts)).List(t.Context())
	if err != nil || len(rows) != 1 {
		t.Fatalf("List() = %+v, %v; want one row", rows, err)
	}
	if row := rows[0]; row.Remaining > 0 || row.Age < 24*time.Hour || row.Renewed < 0 || row.Renewed > time.Hour {
		t.Errorf("List() = %+v; want it ended and its age by the wall clock", row)
	}
}

func TestTokensGrowThoughTheWallClockWentBack(t *testing.T) {
	opts := options(t)
	store := open(t, opts)
	if err := store.Release(t.Context(), acquire(t, store, ask("a")), 0); err != nil {
		t.Fatal(err)
	}
	const future = 9_000_000_000_000_000 // far beyond today's milliseconds
	run(t, raw(t, opts.Path), fmt.Sprintf("UPDATE lockgate_locks SET token = %d", future))
	for i, opts := range []sqlite.Options{opts, nextBoot(opts)} {
		store := open(t, opts)
		lease := acquire(t, store, ask(fmt.Sprint("b", i)))
		if want := uint64(future + 1 + i); lease.Token != want {
			t.Errorf("token = %d; want %d", lease.Token, want)
		}
		if err := store.Release(t.Context(), lease, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTimeInSuspendCounts(t *testing.T) {
	opts := options(t)
	var asleep time.Duration
	now := opts.Clock.Now
	opts.Clock.Now = func() time.Duration { return now() + asleep }
	store := open(t, opts)
	lease := acquire(t, store, ask("a"))
	asleep = lease.TTL
	_, err := store.Renew(t.Context(), lease)
	wantError(t, "Renew after a suspend of its TTL", err, db.ErrLost)
	acquire(t, store, ask("b"))
}

func TestColumnsForPeopleSayWhenInUTC(t *testing.T) {
	opts := options(t)
	store := open(t, opts)
	lease := acquire(t, store, ask("a"))
	conn := raw(t, opts.Path)
	read := func() (acquired, renewed, expires time.Time) {
		t.Helper()
		var at [3]string
		err := conn.QueryRowContext(t.Context(), "SELECT acquired_at, renewed_at, expires_at FROM lockgate_locks").Scan(&at[0], &at[1], &at[2])
		if err != nil {
			t.Fatal(err)
		}
		var times [3]time.Time
		for i, s := range at {
			if times[i], err = time.Parse(time.RFC3339, s); err != nil || !strings.HasSuffix(s, "Z") {
				t.Fatalf("a column for people is %q, %v; want RFC 3339 in UTC", s, err)
			}
		}
		return times[0], times[1], times[2]
	}
	near := func(what string, got, want time.Time) {
		t.Helper()
		if d := got.Sub(want).Abs(); d > 10*time.Minute {
			t.Errorf("%s = %s; want about %s", what, got, want)
		}
	}
	acquired, renewed, expires := read()
	near("acquired_at", acquired, time.Now())
	near("renewed_at", renewed, time.Now())
	near("expires_at", expires, time.Now().Add(time.Hour))

	lease.TTL = 3 * time.Hour
	if _, err := store.Renew(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	_, _, expires = read()
	near("expires_at after a renewal", expires, time.Now().Add(3*time.Hour))
	lease.TTL = time.Second
	if _, err := store.Renew(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	_, _, expires = read()
	near("expires_at after a renewal for less", expires, time.Now().Add(3*time.Hour))
	if err := store.Release(t.Context(), lease, 2*time.Hour); err != nil {
		t.Fatal(err)
	}
	_, _, expires = read()
	near("expires_at after a release that keeps", expires, time.Now().Add(2*time.Hour))
}

func TestOpenNeedsItsOptions(t *testing.T) {
	for name, spoil := range map[string]func(*sqlite.Options){
		"path":    func(o *sqlite.Options) { o.Path = "" },
		"boot id": func(o *sqlite.Options) { o.Clock.BootID = "" },
		"clock":   func(o *sqlite.Options) { o.Clock.Now = nil },
	} {
		opts := options(t)
		spoil(&opts)
		if _, err := sqlite.Open(opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Open without a %s = %v; want an error that names it", name, err)
		}
	}
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	const blob = "this is not a database, whatever else it may be\n"
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, opts *sqlite.Options)
		words []string
	}{
		{"a folder that does not exist", func(_ *testing.T, o *sqlite.Options) {
			o.Path = filepath.Join(filepath.Dir(o.Path), "missing", "locks.db")
		}, []string{"missing", "folder must exist"}},
		{"a folder that is a file", func(t *testing.T, o *sqlite.Options) {
			write(t, o.Path, blob)
			o.Path = filepath.Join(o.Path, "locks.db")
		}, []string{"locks.db"}},
		{"a path that is a folder", func(_ *testing.T, o *sqlite.Options) { o.Path = filepath.Dir(o.Path) }, nil},
		{"a file that is no database", func(t *testing.T, o *sqlite.Options) {
			write(t, o.Path, strings.Repeat(blob, 100))
		}, []string{"locks.db"}},
		{"a table without one of our columns", func(t *testing.T, o *sqlite.Options) {
			run(t, raw(t, o.Path), "CREATE TABLE lockgate_locks (name TEXT PRIMARY KEY, owner TEXT, until TEXT)")
		}, []string{"lockgate_locks", `"run"`}},
		{"another table's name in other letters", func(t *testing.T, o *sqlite.Options) {
			run(t, raw(t, o.Path), "CREATE TABLE Users (id INTEGER PRIMARY KEY, name TEXT)")
			o.Table = "users"
		}, []string{"users", `"owner"`}},
		{"a table in which names may repeat", func(t *testing.T, o *sqlite.Options) {
			run(t, raw(t, o.Path), strings.NewReplacer(" PRIMARY KEY", "", " WITHOUT ROWID", "").Replace(sqlite.DDL("")))
		}, []string{"lockgate_locks", "primary key"}},
		{"a table whose numbers are text", func(t *testing.T, o *sqlite.Options) {
			run(t, raw(t, o.Path), strings.Replace(sqlite.DDL(""), "expires_ns  INTEGER", "expires_ns VARCHAR(20)", 1))
		}, []string{"lockgate_locks", `column "expires_ns" is of the kind TEXT, not INTEGER`, "LOCKGATE_DB_TABLE"}},
		{"a table with a column of somebody else", func(t *testing.T, o *sqlite.Options) {
			run(t, raw(t, o.Path), strings.Replace(sqlite.DDL(""), "(", "(tenant TEXT NOT NULL,", 1))
		}, []string{"lockgate_locks", `its column "tenant" has no default`, "LOCKGATE_DB_TABLE"}},
		{"a table with a rule of somebody else", func(t *testing.T, o *sqlite.Options) {
			run(t, raw(t, o.Path), strings.Replace(sqlite.DDL(""), "(", "(tenant TEXT CHECK (tenant > ''  AND run <> 'run of a'),", 1))
		}, []string{"lockgate_locks", "does not take our rows", "LOCKGATE_DB_TABLE"}},
		{"a view", func(t *testing.T, o *sqlite.Options) {
			conn := raw(t, o.Path)
			run(t, conn, sqlite.DDL("other"))
			run(t, conn, "CREATE VIEW lockgate_locks AS SELECT * FROM other")
		}, []string{"lockgate_locks", "primary key"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := options(t)
			c.spoil(t, &opts)
			store := open(t, opts)
			_, err := store.TryAcquire(t.Context(), ask("a"))
			wantError(t, "TryAcquire", err, db.ErrRefused, c.words...)
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// patch overwrites bytes of a database that nobody has open.
func patch(t *testing.T, path string, offset int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(b, offset)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// closed returns the options of a file with one lock in it that nobody has open.
func closed(t *testing.T) sqlite.Options {
	t.Helper()
	opts := options(t)
	store := open(t, opts)
	lease := acquire(t, store, ask("a"))
	if err := errors.Join(store.Release(t.Context(), lease, 0), store.Close()); err != nil {
		t.Fatal(err)
	}
	return opts
}

func TestAFileThatMayNotBeWrittenIsRefused(t *testing.T) {
	opts := closed(t)
	// Byte 18 is the version a writer must know; SQLite opens a file with one
	// that it does not know for reading only. Unlike the file's mode this binds
	// root, too.
	patch(t, opts.Path, 18, []byte{3})
	store := open(t, opts)
	_, err := store.TryAcquire(t.Context(), ask("b"))
	wantError(t, "TryAcquire on a file that may not be written", err, db.ErrRefused, opts.Path)
	if rows, err := store.List(t.Context()); err != nil || len(rows) != 1 {
		t.Errorf("List() on a file that may not be written = %+v, %v; want one row", rows, err)
	}
}

func TestADamagedFileIsRefused(t *testing.T) {
	opts := closed(t)
	// The second page holds the table; the first, with the schema, is whole.
	patch(t, opts.Path, 4096, bytes.Repeat([]byte{0xEE}, 4096))
	store := open(t, opts)
	_, err := store.TryAcquire(t.Context(), ask("b"))
	wantError(t, "TryAcquire on a damaged file", err, db.ErrRefused, opts.Path)
}

func TestAMissingFileIsNotCreatedUnlessAllowed(t *testing.T) {
	opts := options(t)
	opts.Create = false
	store := open(t, opts)
	_, err := store.TryAcquire(t.Context(), ask("a"))
	wantError(t, "TryAcquire without a file", err, db.ErrNoTable, opts.Path, sqlite.DDL(""))
	if _, err := os.Stat(opts.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file exists, %v; want it not created", err)
	}
	run(t, raw(t, opts.Path), sqlite.DDL(""))
	acquire(t, store, ask("a"))
}

func TestAMissingTableIsNotCreatedUnlessAllowed(t *testing.T) {
	opts := options(t)
	opts.Create = false
	conn := raw(t, opts.Path)
	run(t, conn, "CREATE TABLE other (id INTEGER)")
	store := open(t, opts)
	for name, call := range map[string]func() error{
		"TryAcquire": func() error { _, err := store.TryAcquire(t.Context(), ask("a")); return err },
		"Renew":      func() error { _, err := store.Renew(t.Context(), db.Lease{Name: "job", Token: 1}); return err },
		"Release":    func() error { return store.Release(t.Context(), db.Lease{Name: "job"}, 0) },
		"List":       func() error { _, err := store.List(t.Context()); return err },
	} {
		wantError(t, name+" without a table", call(), db.ErrNoTable, "lockgate_locks", sqlite.DDL(""))
	}
	run(t, conn, sqlite.DDL(""))
	run(t, conn, sqlite.DDL(""))
	acquire(t, store, ask("a"))

	run(t, conn, "DROP TABLE lockgate_locks")
	_, err := store.TryAcquire(t.Context(), ask("a"))
	wantError(t, "TryAcquire after the table went", err, db.ErrNoTable, sqlite.DDL(""))
}

func TestAnyPathAndTableNameWorks(t *testing.T) {
	for _, name := range []string{"a b", "what?mode=memory", "50%", "%41", "a#b", "ö 🔒", `c:\x`, "a&b=c", `quo"te`, ":memory:", "file:x"} {
		t.Run(name, func(t *testing.T) {
			opts := options(t)
			opts.Path = filepath.Join(filepath.Dir(opts.Path), name)
			opts.Table = name
			first, second := open(t, opts), open(t, opts)
			lease := acquire(t, first, ask("a"))
			_, err := second.TryAcquire(t.Context(), ask("b"))
			wantError(t, "TryAcquire of a held lock", err, db.ErrHeld)
			if _, err := first.Renew(t.Context(), lease); err != nil {
				t.Errorf("Renew() = %v; want nil", err)
			}
			if _, err := os.Stat(opts.Path); err != nil {
				t.Errorf("the database is not at its path: %v", err)
			}
		})
	}
}

func TestTablesOfOneFileAreApart(t *testing.T) {
	opts := options(t)
	acquire(t, open(t, opts), ask("a"))
	opts.Table = "others"
	acquire(t, open(t, opts), ask("b"))
}

func TestARelativePathStaysWhereItWas(t *testing.T) {
	opts := options(t)
	t.Chdir(filepath.Dir(opts.Path))
	opts.Path = filepath.Base(opts.Path)
	store := open(t, opts)
	t.Chdir(t.TempDir())
	acquire(t, store, ask("a"))
	if _, err := os.Stat(opts.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a second database in the new folder, %v; want none", err)
	}
}

func TestAWriterInTheWayEndsACallInTime(t *testing.T) {
	t.Parallel() // it mostly waits
	opts := options(t)
	store := open(t, opts)
	lease := acquire(t, store, ask("a"))

	conn := raw(t, opts.Path)
	run(t, conn, "BEGIN IMMEDIATE")
	free := ask("c")
	free.Name = "free"
	_, err := store.TryAcquire(t.Context(), free)
	wantError(t, "TryAcquire while another writes", err, db.ErrAgain)
	_, err = store.Renew(t.Context(), lease)
	wantError(t, "Renew while another writes", err, db.ErrAgain)
	err = store.Release(t.Context(), lease, 0)
	wantError(t, "Release while another writes", err, db.ErrAgain)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = store.Renew(ctx, lease)
	wantUndecided(t, "Renew that its context cut short", err)

	_, err = store.TryAcquire(t.Context(), ask("b"))
	wantError(t, "TryAcquire of a held lock while another writes", err, db.ErrHeld)

	run(t, conn, "ROLLBACK")
	if _, err := store.Renew(t.Context(), lease); err != nil {
		t.Errorf("Renew after the other has gone = %v; want nil", err)
	}
}

func TestAReleaseBetweenAnAcquiresLookAndItsWriteWins(t *testing.T) {
	opts := options(t)
	holder := open(t, opts)
	lease := acquire(t, holder, ask("a"))
	if err := holder.Revoke(t.Context(), lease.Name, lease.Token, true); err != nil {
		t.Fatal(err)
	}
	run(t, raw(t, opts.Path), "UPDATE lockgate_locks SET revoked = 0") // as if it had expired

	// The clock is read between the two.
	now, once := opts.Clock.Now, new(sync.Once)
	opts.Clock.Now = func() time.Duration {
		once.Do(func() {
			if err := holder.Release(t.Context(), lease, 0); err != nil {
				t.Errorf("Release() = %v; want nil", err)
			}
		})
		return now()
	}
	_, err := open(t, opts).TryAcquire(t.Context(), ask("a"))
	wantError(t, "late TryAcquire", err, db.ErrLost)
	acquire(t, holder, ask("b"))
}

func TestACallBehindAStuckOneEndsAtItsLimit(t *testing.T) {
	opts := options(t)
	acquire(t, open(t, opts), ask("made the file"))
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	now := opts.Clock.Now
	opts.Clock.Now = func() time.Duration {
		select {
		case entered <- struct{}{}:
			<-leave // only the first call
		default:
		}
		return now()
	}
	opts.CallLimit = 50 * time.Millisecond
	store := open(t, opts)
	var wg sync.WaitGroup
	wg.Go(func() { _ = store.Release(t.Context(), db.Lease{Name: "job", Owner: "a"}, 0) })
	for len(entered) == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err := store.TryAcquire(t.Context(), ask("b"))
	wantUndecided(t, "TryAcquire behind a stuck call", err)
	wantError(t, "TryAcquire behind a stuck call", err, context.DeadlineExceeded, "50ms")
	close(leave)
	wg.Wait()
}

func TestADatabaseThatOthersReadInAnotherJournalModeIsTakenOverWhenTheyAreDone(t *testing.T) {
	t.Parallel() // it mostly waits
	opts := options(t)
	conn := raw(t, opts.Path)
	run(t, conn, "CREATE TABLE other (id INTEGER)")
	run(t, conn, "BEGIN")
	var n int
	if err := conn.QueryRowContext(t.Context(), "SELECT count(*) FROM other").Scan(&n); err != nil {
		t.Fatal(err)
	}
	store := open(t, opts)
	_, err := store.TryAcquire(t.Context(), ask("a"))
	wantError(t, "TryAcquire while the journal mode cannot be changed", err, db.ErrAgain)
	run(t, conn, "COMMIT")
	acquire(t, store, ask("a"))
	var mode string
	if err := raw(t, opts.Path).QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&mode); err != nil || mode != "wal" {
		t.Errorf("journal mode = %q, %v; want wal", mode, err)
	}
}

func TestAFileWithAnotherNameIsRefused(t *testing.T) {
	opts := options(t)
	store := open(t, opts)
	acquire(t, store, ask("a"))
	other := opts
	other.Path = filepath.Join(t.TempDir(), "other.db")
	if err := os.Link(opts.Path, other.Path); err != nil {
		t.Fatal(err)
	}
	for _, o := range []sqlite.Options{opts, other} {
		_, err := open(t, o).TryAcquire(t.Context(), ask("b"))
		wantError(t, "TryAcquire on "+o.Path, err, db.ErrRefused, o.Path, "another name (hard link)")
	}
	if _, err := os.Stat(other.Path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat the other name's log: %v; want none made", err)
	}
	if err := os.Remove(other.Path); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, opts).TryAcquire(t.Context(), ask("b"))
	wantError(t, "TryAcquire when the other name has gone", err, db.ErrHeld)
}

func TestASymbolicLinkIsTheSameFile(t *testing.T) {
	opts := options(t)
	link := opts
	link.Path = filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(opts.Path, link.Path); err != nil {
		t.Fatal(err)
	}
	// The link makes the file, in the first case.
	for i, from := range []sqlite.Options{link, opts} {
		to := opts
		if i == 1 {
			to = link
		}
		holder := open(t, from)
		lease := acquire(t, holder, ask(fmt.Sprint("a", i)))
		_, err := open(t, to).TryAcquire(t.Context(), ask("b"))
		wantError(t, "TryAcquire on "+to.Path, err, db.ErrHeld)
		if err := holder.Release(t.Context(), lease, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFileThatWasRemovedOrReplacedIsNoticed(t *testing.T) {
	opts := options(t)
	store := open(t, opts)
	lease := acquire(t, store, ask("a"))
	if err := os.Rename(opts.Path, opts.Path+".old"); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(opts.Path + suffix); err != nil {
			t.Fatal(err)
		}
	}
	other := open(t, opts)
	acquire(t, other, ask("b"))
	_, err := store.Renew(t.Context(), lease)
	wantError(t, "Renew after the file was replaced", err, db.ErrLost)
	_, err = store.TryAcquire(t.Context(), ask("c"))
	wantError(t, "TryAcquire after the file was replaced", err, db.ErrHeld)
}

func TestCloseLeavesNothingRunning(t *testing.T) {
	store, err := sqlite.Open(options(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := store.TryAcquire(ctx, ask("a")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := store.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	cancel()
	_, err = store.TryAcquire(t.Context(), ask("a"))
	wantUndecided(t, "TryAcquire after Close", err)

	// The goroutine of database/sql is told to end by Close and ends a moment
	// later, so the test waits; it has no event to wait for.
	deadline := time.Now().Add(time.Minute)
	for {
		var stacks bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(stacks.String(), "database/sql.") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("goroutines after Close:\n%s", &stacks)
		}
		time.Sleep(time.Millisecond)
	}
}
