package mysql

import (
	"strings"
	"testing"

	"github.com/lockgate/lockgate/internal/db"
)

func TestTableNames(t *testing.T) {
	tests := []struct {
		table, want string // empty means refused
	}{
		{"lockgate_locks", "`lockgate_locks`"},
		{"ops.locks", "`ops`.`locks`"},
		{"my-app.lock-table", "`my-app`.`lock-table`"},
		{"L0CKS$", "`L0CKS$`"},
		{strings.Repeat("x", 64), "`" + strings.Repeat("x", 64) + "`"},
		{strings.Repeat("x", 65), ""},
		{"", ""},
		{"a.b.c", ""},
		{".locks", ""},
		{"ops.", ""},
		{"lo cks", ""},
		{"locks`; DROP TABLE x; --", ""},
		{"schlösser", ""},
		{"locks\n", ""},
	}
	for _, tt := range tests {
		got, err := quoteTable(tt.table)
		if (err != nil) != (tt.want == "") || got != tt.want {
			t.Errorf("quoteTable(%q) = %q, %v; want %q", tt.table, got, err, tt.want)
		}
		if _, err := DDL(tt.table); (err != nil) != (tt.want == "") {
			t.Errorf("DDL(%q) has error %v; want one: %t", tt.table, err, tt.want == "")
		}
	}
}

func FuzzTextComesBackAsItWasStored(f *testing.F) {
	for _, text := range []string{"", "job", "job ", "job  ", " ", "␠", "job␠", "job ␠", "job ␠␠", "job␠ "} {
		f.Add(text, text+" ")
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		if got := unmark(mark(one)); got != one {
			t.Errorf("unmark(mark(%q)) = %q", one, got)
		}
		// What the server takes for equal: text that differs in blanks at its end.
		same := strings.TrimRight(mark(one), " ") == strings.TrimRight(mark(other), " ")
		if same != (one == other) {
			t.Errorf("%q and %q are stored as %q and %q", one, other, mark(one), mark(other))
		}
	})
}

func TestWhatTheTableCannotHoldIsRefused(t *testing.T) {
	p := newPlace(t, server)
	store := open(t, p.options())
	full := strings.Repeat("x", db.MaxNameBytes)
	tests := []struct {
		what string
		req  db.Request
	}{
		{"no name", db.Request{Owner: "a"}},
		{"no owner", db.Request{Name: "n"}},
		{"a name that is too long", db.Request{Name: full + "x", Owner: "a"}},
		{"a name with a blank that leaves no room for its mark", db.Request{Name: full[1:] + " ", Owner: "a"}},
		{"an owner that is too long", db.Request{Name: "n", Owner: strings.Repeat("x", db.MaxOwnerBytes+1)}},
		{"a run that is too long", db.Request{Name: "n", Owner: "a", Run: full + "x"}},
		{"a name that is not text", db.Request{Name: "n\xff", Owner: "a"}},
		{"an owner that is not text", db.Request{Name: "n", Owner: "a\xc3"}},
	}
	for _, tt := range tests {
		tt.req.TTL = long
		if lease, err := store.TryAcquire(t.Context(), tt.req); !isOnly(err, db.ErrRefused) {
			t.Errorf("TryAcquire with %s = %+v, %v; want ErrRefused", tt.what, lease, err)
		}
	}
	lease := db.Lease{Name: "n\xff", Owner: "a", Token: 1, TTL: long}
	if _, err := store.Renew(t.Context(), lease); !isOnly(err, db.ErrLost) {
		t.Errorf("Renew of what nobody can have = %v; want ErrLost", err)
	}
	if err := store.Release(t.Context(), lease, 0); !isOnly(err, db.ErrLost) {
		t.Errorf("Release of what nobody can have = %v; want ErrLost", err)
	}
	if err := store.Revoke(t.Context(), lease.Name, 1, true); !isOnly(err, db.ErrLost) {
		t.Errorf("Revoke of what nobody can have = %v; want ErrLost", err)
	}
	if rows, err := store.List(t.Context(), lease.Name); err != nil || len(rows) != 0 {
		t.Errorf("List of what nobody can have = %+v, %v; want none", rows, err)
	}
}

func TestTableInAnotherSchema(t *testing.T) {
	p := newPlace(t, server)
	options := p.options()
	options.Table = p.target.Database + ".my-locks"
	p.target.Database = ""
	options.Target = func() (Target, error) { return p.target, nil }
	store := open(t, options)
	lease := acquire(t, store, ask("job", "a"))
	renew(t, store, lease)
	release(t, store, lease)
}

func TestDDLCanBeAppliedByHandAndTwice(t *testing.T) {
	p := newPlace(t, server)
	server.SetGlobal(t, "sql_mode", "'ANSI_QUOTES,TRADITIONAL'")
	ddl, err := DDL(p.table())
	if err != nil {
		t.Fatal(err)
	}
	server.Exec(t, ddl, ddl)
	options := p.options()
	options.Create = false
	acquire(t, open(t, options), ask("job", "a"))
}

func TestOpenRefusesWrongOptionsWithoutConnecting(t *testing.T) {
	target := func() (Target, error) {
		t.Error("Open asks for the target")
		return Target{}, nil
	}
	tests := []struct {
		name string
		o    Options
		ok   bool
	}{
		{"all that is needed", Options{Target: target, CallLimit: patience}, true},
		{"no target", Options{CallLimit: patience}, false},
		{"no limit", Options{Target: target}, false},
		{"no such table name", Options{Target: target, CallLimit: patience, Table: "a b"}, false},
	}
	for _, tt := range tests {
		store, err := Open(tt.o)
		if (err == nil) != tt.ok {
			t.Errorf("Open with %s = %v; want ok %t", tt.name, err, tt.ok)
		}
		if store != nil {
			store.Close()
		}
	}
}
