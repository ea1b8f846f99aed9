package mysql

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/testserver"
)

// server is the one that the tests of this package share.
var server *testserver.MariaDB

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	flag.Parse()
	if fuzz := flag.Lookup("test.fuzz"); fuzz.Value.String() != "" {
		// Each of its workers comes here, too. Fuzz targets need no server, and
		// its start would take all the time that they are given.
		return m.Run()
	}
	started, err := testserver.StartMariaDB(context.Background(), testserver.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer started.Close()
	server = started
	return m.Run()
}

const (
	// patience is a call limit that no call is to meet.
	patience = time.Minute

	// long is a TTL that outlasts every test.
	long = time.Hour
)

// place is a database of this test, and an account that has the usual rights.
type place struct {
	server *testserver.MariaDB
	target Target
}

func newPlace(t *testing.T, s *testserver.MariaDB) *place {
	t.Helper()
	database := s.NewDatabase(t)
	p := &place{s, Target{
		Address: s.Address(), User: "of_" + database, Password: `it's a "pass\word"`, Database: database,
	}}
	s.NewUser(t, testserver.User{Name: p.target.User, Password: p.target.Password, Grants: []string{
		"SELECT, INSERT, UPDATE, CREATE ON " + database + ".*",
	}})
	return p
}

// options are for a store that creates its table and connects to where the
// target leads now.
func (p *place) options() Options {
	target := p.target
	return Options{
		Target:    func() (Target, error) { return target, nil },
		Create:    true,
		CallLimit: patience,
		LockWait:  time.Second,
	}
}

// forwarded has connections pass through a forwarder from now on.
func (p *place) forwarded(t *testing.T) *testserver.Forwarder {
	t.Helper()
	f := testserver.NewForwarder(t, "tcp", p.server.Address())
	p.target.Address = f.Address()
	return f
}

// table is the lock table as root names it.
func (p *place) table() string { return p.target.Database + "." + DefaultTable }

// token is what is in the table.
func (p *place) token(t *testing.T, name string) uint64 {
	t.Helper()
	var token uint64
	if err := p.server.Admin().QueryRowContext(t.Context(), "SELECT token FROM "+p.table()+" WHERE name = ?", name).Scan(&token); err != nil {
		t.Fatal(err)
	}
	return token
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	store, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	})
	return store
}

func ask(name, owner string) db.Request {
	return db.Request{Name: name, Owner: owner, Run: "run of " + owner, TTL: long}
}

func acquire(t *testing.T, store *Store, req db.Request) db.Lease {
	t.Helper()
	lease, err := store.TryAcquire(t.Context(), req)
	if err != nil {
		t.Fatalf("TryAcquire(%q by %q) = %v; want a lease", req.Name, req.Owner, err)
	}
	return lease
}

func renew(t *testing.T, store *Store, lease db.Lease) {
	t.Helper()
	if _, err := store.Renew(t.Context(), lease); err != nil {
		t.Errorf("Renew(%q) = %v; want a lease", lease.Name, err)
	}
}

func release(t *testing.T, store *Store, lease db.Lease) {
	t.Helper()
	if err := store.Release(t.Context(), lease, 0); err != nil {
		t.Fatalf("Release(%q) = %v; want nil", lease.Name, err)
	}
}

// used makes a lock that was held before and is free.
func used(t *testing.T, store *Store, name string) db.Lease {
	t.Helper()
	lease := acquire(t, store, ask(name, "first"))
	release(t, store, lease)
	return lease
}
