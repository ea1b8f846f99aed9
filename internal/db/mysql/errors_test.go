package mysql

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/testserver"
)

var sentinels = []error{db.ErrHeld, db.ErrLost, db.ErrAgain, db.ErrUnreachable, db.ErrRefused, db.ErrNoTable}

// isOnly reports whether err wraps want and no other decision; a want of nil
// asks for an error that decides nothing.
func isOnly(err, want error) bool {
	for _, s := range sentinels {
		if errors.Is(err, s) != errors.Is(want, s) {
			return false
		}
	}
	return err != nil
}

// decidesNothing reports whether the lease may still be ours after err: the
// statement may not have been sent, or its outcome is unknown.
func decidesNothing(err error) bool { return isOnly(err, nil) || isOnly(err, db.ErrUnreachable) }

func TestErrorsAreReadByTheirNumber(t *testing.T) {
	tests := []struct {
		number uint16
		state  string
		want   error // nil: unknown
	}{
		{1205, "HY000", db.ErrAgain},
		{1213, "40001", db.ErrAgain},
		{1614, "XA102", db.ErrAgain},
		{1020, "HY000", db.ErrAgain},
		{3101, "40000", db.ErrAgain},
		{9999, "40001", db.ErrAgain}, // whatever else says "serialization failure"

		{1044, "42000", db.ErrRefused},
		{1045, "28000", db.ErrRefused},
		{1046, "3D000", db.ErrRefused},
		{1049, "42000", db.ErrRefused},
		{1130, "HY000", db.ErrRefused},
		{1142, "42000", db.ErrRefused},
		{1143, "42000", db.ErrRefused},
		{1227, "42000", db.ErrRefused},
		{1251, "08004", db.ErrRefused},
		{1275, "HY000", db.ErrRefused},
		{1698, "28000", db.ErrRefused},
		{1054, "42S22", db.ErrRefused},
		{1146, "42S02", db.ErrNoTable},

		{1040, "08004", nil}, // too many connections
		{1203, "42000", nil}, // of this user
		{1226, "42000", nil},
		{1129, "HY000", nil}, // somebody else of our host may have caused it
		{1317, "70100", nil}, // interrupted
		{1047, "08S01", nil},
		{1053, "08S01", nil},
		{1290, "HY000", nil},
		{1792, "25006", nil},
		{1836, "HY000", nil},
		{1874, "HY000", nil},
		{1105, "HY000", nil}, // "unknown error"
		{0, "", nil},
	}
	store := open(t, Options{Target: func() (Target, error) { return Target{}, nil }, CallLimit: patience})
	for _, tt := range tests {
		// The text says the opposite: it must not matter.
		answer := &driver.MySQLError{Number: tt.number, Message: "Deadlock found; access denied; read-only"}
		copy(answer.SQLState[:], tt.state)
		err := store.translate(t.Context(), answer)
		if !isOnly(err, tt.want) || !errors.Is(err, answer) {
			t.Errorf("translate(%d) = %v; want %v and the server's words", tt.number, err, tt.want)
		}
	}
}

func TestAnswerCountsThoughTheContextHasEnded(t *testing.T) {
	store := open(t, Options{Target: func() (Target, error) { return Target{}, nil }, CallLimit: patience})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := store.translate(ctx, &driver.MySQLError{Number: 1213})
	if !isOnly(err, db.ErrAgain) {
		t.Errorf("translate(1213) = %v; want %v", err, db.ErrAgain)
	}
}

func TestEndOfTheContextIsTheCauseAndDecidesNothing(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	why := errors.New("kubelet said so")

	ctx, cancel := context.WithCancelCause(t.Context())
	trap := f.HoldBack(testserver.Containing("UPDATE"), 1)
	done := make(chan error, 1)
	go func() {
		_, err := store.Renew(ctx, lease)
		done <- err
	}()
	if err := trap.Caught(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel(why)
	err := <-done
	if !isOnly(err, nil) || !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
		t.Errorf("Renew cut short = %v; want %v and %v", err, why, context.Canceled)
	}
	// The connection whose statement nobody waits for is closed at once.
	if err := f.AwaitOpen(t.Context(), 0); err != nil {
		t.Error(err)
	}
	trap.Deliver()
	renew(t, store, lease)
}

func TestRefusals(t *testing.T) {
	p := newPlace(t, server)
	open(t, p.options()) // closed unused
	acquire(t, open(t, p.options()), ask("job", "a"))

	without := func(name string, grants ...string) Target {
		target := p.target
		target.User = name + "_" + p.target.Database
		p.server.NewUser(t, testserver.User{Name: target.User, Password: target.Password, Grants: grants})
		return target
	}
	change := func(change func(*Target)) Target {
		target := p.target
		change(&target)
		return target
	}
	tests := []struct {
		name   string
		target Target
		says   string
	}{
		{"wrong password", change(func(t *Target) { t.Password = "wrong" }), "Access denied"},
		{"unknown user", change(func(t *Target) { t.User = "nobody" }), "Access denied"},
		{"unknown database", change(func(t *Target) { t.Database += "x" }), ""},
		{"no database", change(func(t *Target) { t.Database = "" }), "No database selected"},
		{"unknown TLS mode", change(func(t *Target) { t.TLS = "maybe" }), `TLS mode "maybe"`},
		{"TLS that the server has not", change(func(t *Target) { t.TLS = TLSRequire }), "TLS"},
		{"no right to the database", without("no"), ""},
		{"read only", without("ro", "SELECT ON "+p.target.Database+".*"), "UPDATE command denied"},
		{"no right to a column", without("co", "SELECT (name), UPDATE (name) ON "+p.table()), "command denied"},
	}
	for _, tt := range tests {
		options := p.options()
		options.Target = func() (Target, error) { return tt.target, nil }
		store := open(t, options)
		_, err := store.TryAcquire(t.Context(), ask("job", "a"))
		if !isOnly(err, db.ErrRefused) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: TryAcquire = %v; want ErrRefused and %q", tt.name, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), p.target.Password) {
			t.Errorf("%s: the error contains the password", tt.name)
		}
	}
}

func TestARightThatIsGrantedAgainIsFound(t *testing.T) {
	p := newPlace(t, server)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	account := testserver.Quote(p.target.User) + "@'%'"
	server.Exec(t, "REVOKE UPDATE ON "+p.target.Database+".* FROM "+account)
	store.db.SetMaxIdleConns(-1) // the open session keeps the right
	if _, err := store.Renew(t.Context(), lease); !isOnly(err, db.ErrRefused) {
		t.Errorf("Renew without the right = %v; want ErrRefused", err)
	}
	store.db.SetMaxIdleConns(1)
	if _, err := store.Renew(t.Context(), lease); !isOnly(err, db.ErrRefused) {
		t.Errorf("Renew without the right = %v; want ErrRefused", err)
	}
	server.Exec(t, "GRANT UPDATE ON "+p.target.Database+".* TO "+account)
	renew(t, store, lease)
}

func TestErrorOfTheTargetIsTheCalls(t *testing.T) {
	missing := errors.New("no password file yet")
	p := newPlace(t, server)
	options := p.options()
	fail := true
	options.Target = func() (Target, error) {
		if fail {
			return Target{}, missing
		}
		return p.target, nil
	}
	store := open(t, options)
	if _, err := store.TryAcquire(t.Context(), ask("job", "a")); !isOnly(err, db.ErrUnreachable) || !errors.Is(err, missing) {
		t.Errorf("TryAcquire = %v; want %v", err, missing)
	}
	fail = false
	acquire(t, store, ask("job", "a"))
}

func TestATableThatIsNotOursIsRefusedAndLeftAlone(t *testing.T) {
	ours := columnsOf(t)
	const like = " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
	tests := []struct {
		name, columns string
		says          string
		works         bool // one that the server accepts, so that only Migrate looks
	}{
		{"columns are missing", "name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL",
			"it has no column owner, run, token, acquired_at, renewed_at, expires_at, released_at, revoked_at", false},
		{"a column is missing", strings.Replace(ours, "renewed_at", "touched_at", 1), "it has no column renewed_at", false},
		{"a column is too narrow", strings.Replace(ours, "VARCHAR(512)", "VARCHAR(3)", 1), "column owner is too narrow, 3 instead of 512", false},
		{"a column has no default", "tenant INT NOT NULL, " + ours, "its column tenant has no default", false},
		{"a column cannot be empty", strings.Replace(ours, "released_at DATETIME(6)     NULL", "released_at DATETIME(6) NOT NULL", 1),
			"column released_at cannot be NULL", false},
		{"a column is of another type", strings.Replace(ours, "token       BIGINT UNSIGNED", "token DATE", 1), "column token is a date, not a bigint", false},
		{"a time is coarse", strings.Replace(ours, "expires_at  DATETIME(6)", "expires_at DATETIME", 1), "column expires_at is too narrow, 0 instead of 6", true},
		{"names may repeat", strings.Replace(ours, "PRIMARY KEY (name)", "KEY (name)", 1), "its primary key is not the column name", true},
		{"names of two letter cases are one", strings.Replace(ours, "name        VARCHAR(255)", "name VARCHAR(255) COLLATE utf8mb4_general_ci", 1),
			"column name is compared by utf8mb4_general_ci, not by utf8mb4_bin", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t, server)
			server.Exec(t, "CREATE TABLE "+p.table()+" ("+tt.columns+")"+like)
			store := open(t, p.options())
			calls := map[string]error{}
			_, calls["Migrate"] = store.Migrate(t.Context())
			if !tt.works {
				_, calls["TryAcquire"] = store.TryAcquire(t.Context(), ask("job", "an owner"))
			}
			for call, err := range calls {
				if !isOnly(err, db.ErrRefused) {
					t.Errorf("%s = %v; want ErrRefused", call, err)
					continue
				}
				for _, want := range []string{"table " + DefaultTable + " is not a lockgate table", tt.says, "LOCKGATE_DB_TABLE"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s = %q; want it to say %q", call, err, want)
					}
				}
			}
			var rows int
			if err := server.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+p.table()).Scan(&rows); err != nil || rows != 0 {
				t.Errorf("the table has %d rows, %v; want none", rows, err)
			}
		})
	}
}

func TestATableWithAColumnMoreIsOurs(t *testing.T) {
	p := newPlace(t, server)
	server.Exec(t, "CREATE TABLE "+p.table()+" ("+columnsOf(t)+", note TEXT NULL, seen INT NOT NULL DEFAULT 0) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
	store := open(t, p.options())
	if created, err := store.Migrate(t.Context()); created || err != nil {
		t.Errorf("Migrate = %t, %v; want false, nil", created, err)
	}
	acquire(t, store, ask("job", "a"))
}

func TestMigrateSaysWhatItMayNotDo(t *testing.T) {
	p := newPlace(t, server)
	reader := &place{p.server, p.target}
	reader.target.User = "no_create_" + p.target.Database
	server.NewUser(t, testserver.User{Name: reader.target.User, Password: reader.target.Password, Grants: []string{
		"SELECT, INSERT, UPDATE ON " + p.target.Database + ".*",
	}})
	stranger := &place{p.server, p.target}
	stranger.target.User = "other_" + p.target.Database
	server.NewUser(t, testserver.User{Name: stranger.target.User, Password: reader.target.Password, Grants: []string{
		"SELECT, INSERT, UPDATE, CREATE ON " + p.target.Database + ".other",
	}})
	store := open(t, reader.options())
	created, err := store.Migrate(t.Context())
	paste := strings.Join(strings.Fields(store.DDL()), " ")
	if created || !isOnly(err, db.ErrNoTable) || !strings.HasSuffix(err.Error(), paste) {
		t.Errorf("Migrate without the right to = %t, %v; want ErrNoTable and the DDL, ready to paste", created, err)
	}
	// Told not to create in passing, but asked to: it does.
	options := p.options()
	options.Create = false
	if created, err := open(t, options).Migrate(t.Context()); !created || err != nil {
		t.Errorf("Migrate = %t, %v; want true, nil", created, err)
	}
	if created, err := store.Migrate(t.Context()); created || err != nil {
		t.Errorf("Migrate without the right to, of a table that is there = %t, %v; want false, nil", created, err)
	}
	if created, err := open(t, stranger.options()).Migrate(t.Context()); created || err == nil || !(isOnly(err, db.ErrRefused) || isOnly(err, db.ErrNoTable)) {
		t.Errorf("Migrate of a table that is hidden from us = %t, %v; want a refusal", created, err)
	}
}

// columnsOf is what stands between the parentheses of the DDL.
func columnsOf(t *testing.T) string {
	t.Helper()
	ddl, err := DDL("x")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(ddl, "(")
	columns, _, _ := strings.Cut(rest, "\n) ENGINE")
	return columns
}

func TestMissingTable(t *testing.T) {
	p := newPlace(t, server)
	reader := &place{p.server, p.target}
	reader.target.User = "no_create_" + p.target.Database
	server.NewUser(t, testserver.User{Name: reader.target.User, Password: reader.target.Password, Grants: []string{
		"SELECT, INSERT, UPDATE ON " + p.target.Database + ".*",
	}})
	must := reader.options()
	must.Create = false

	stores := map[string]*Store{"that may not create it": open(t, reader.options()), "that was told not to": open(t, must)}
	ddl, err := DDL(DefaultTable)
	if err != nil {
		t.Fatal(err)
	}
	paste := strings.Join(strings.Fields(ddl), " ")
	lease := db.Lease{Name: "job", Owner: "a", Token: 1, TTL: long}
	for who, store := range stores {
		_, acquireErr := store.TryAcquire(t.Context(), ask("job", "a"))
		_, renewErr := store.Renew(t.Context(), lease)
		_, listErr := store.List(t.Context())
		for call, err := range map[string]error{
			"TryAcquire": acquireErr, "Renew": renewErr, "Release": store.Release(t.Context(), lease, 0),
			"Revoke": store.Revoke(t.Context(), "job", 1, false), "List": listErr,
		} {
			if !isOnly(err, db.ErrNoTable) || !strings.HasSuffix(err.Error(), paste) {
				t.Errorf("%s of one %s = %v; want ErrNoTable and the DDL, ready to paste", call, who, err)
			}
		}
	}
	// A failure is not remembered, and only acquiring creates.
	creator := open(t, p.options())
	if _, err := creator.Renew(t.Context(), lease); !isOnly(err, db.ErrNoTable) {
		t.Errorf("Renew without a table = %v; want ErrNoTable", err)
	}
	acquire(t, creator, ask("job", "a"))
	for who, store := range stores {
		if _, err := store.TryAcquire(t.Context(), ask("job", "b")); !isOnly(err, db.ErrHeld) {
			t.Errorf("TryAcquire of one %s, with the table = %v; want ErrHeld", who, err)
		}
	}
}

func TestTableCreatedByManyAtOnce(t *testing.T) {
	p := newPlace(t, server)
	const clients = 16
	errs := make(chan error)
	for i := range clients {
		store := open(t, p.options())
		go func() {
			_, err := store.TryAcquire(t.Context(), ask("job", string(rune('a'+i))))
			errs <- err
		}()
	}
	winners := 0
	for range clients {
		switch err := <-errs; {
		case err == nil:
			winners++
		case !isOnly(err, db.ErrHeld) && !isOnly(err, db.ErrAgain):
			t.Errorf("TryAcquire = %v; want a lease, ErrHeld or ErrAgain", err)
		}
	}
	if winners != 1 {
		t.Errorf("%d of %d hold the lock; want 1", winners, clients)
	}
}

func TestReadOnlyServerIsNeitherHeldNorFinal(t *testing.T) {
	p := newPlace(t, server)
	f := p.forwarded(t)
	store := open(t, p.options())
	free := used(t, store, "free")
	lease := acquire(t, store, ask("held", "a"))

	t.Run("while it is", func(t *testing.T) {
		server.SetGlobal(t, "read_only", "1")
		accepted := f.Accepted()
		_, acquireErr := store.TryAcquire(t.Context(), ask(free.Name, "b"))
		_, heldErr := store.TryAcquire(t.Context(), ask(lease.Name, "b"))
		_, newErr := store.TryAcquire(t.Context(), ask("new", "b"))
		_, renewErr := store.Renew(t.Context(), lease)
		for call, err := range map[string]error{
			"TryAcquire of a free lock": acquireErr, "TryAcquire of a held lock": heldErr, "TryAcquire of a new lock": newErr,
			"Renew": renewErr, "Release": store.Release(t.Context(), lease, 0),
		} {
			if !isOnly(err, nil) || !strings.Contains(err.Error(), "read-only") {
				t.Errorf("%s on a read-only server = %v; want an error that says so and decides nothing", call, err)
			}
		}
		// The first call used the old connection, every later one looked again
		// where the name leads to.
		if err := f.AwaitOpen(t.Context(), 0); err != nil {
			t.Error(err)
		}
		if n := f.Accepted() - accepted; n != 4 {
			t.Errorf("5 calls made %d connections; want 4", n)
		}
	})
	renew(t, store, lease)
	acquire(t, store, ask(free.Name, "b"))
}

func TestStrangersRowLockCostsATryAndNotTheLease(t *testing.T) {
	p := newPlace(t, server)
	store := open(t, p.options())
	lease := acquire(t, store, ask("job", "a"))
	stranger, err := server.Admin().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Rollback() }()
	if _, err := stranger.ExecContext(t.Context(), "UPDATE "+p.table()+" SET run = 'theirs'"); err != nil {
		t.Fatal(err)
	}

	// The lock wait of a second ends first, or the context does.
	if _, err := store.Renew(t.Context(), lease); !isOnly(err, db.ErrAgain) {
		t.Errorf("Renew of a row that a stranger has locked = %v; want ErrAgain", err)
	}
	if _, err := store.TryAcquire(t.Context(), ask("job", "b")); !isOnly(err, db.ErrAgain) {
		t.Errorf("TryAcquire of a row that a stranger has locked = %v; want ErrAgain", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := store.Renew(ctx, lease); !isOnly(err, nil) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Renew with little time = %v; want the context's end", err)
	}
	if err := stranger.Rollback(); err != nil {
		t.Fatal(err)
	}
	renew(t, store, lease)
}
