package testserver

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// path is a client whose way to the server leads through a forwarder.
type path struct {
	*Forwarder
	client   *sql.DB
	database string
}

func newPath(t *testing.T) path {
	t.Helper()
	user, password, database := account(t, server)
	f := NewForwarder(t, "tcp", server.Address())
	return path{f, open(t, f.Address(), user, password, database), database}
}

// insert runs the statement that all of these tests run.
func (p path) insert(ctx context.Context) error {
	_, err := p.client.ExecContext(ctx, "INSERT INTO seen VALUES (1)")
	return err
}

var inserts = Containing("INSERT", "seen")

// brief is long enough for nothing to happen that must not happen.
func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestForwarderCountsAndLogs(t *testing.T) {
	p := newPath(t)
	if err := p.insert(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.insert(t.Context()); err == nil {
		t.Fatal("a duplicate key was accepted")
	}
	if _, err := p.client.ExecContext(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	want := []Statement{
		{Connection: 1, SQL: "INSERT INTO seen VALUES (1)", Delivered: true, Answered: true, Answer: Answer{Rows: 1}},
		{Connection: 1, SQL: "INSERT INTO seen VALUES (1)", Delivered: true, Answered: true, Answer: Answer{Error: 1062}},
		{Connection: 1, SQL: "SELECT 1", Delivered: true, Answered: true},
	}
	got := p.Statements(Any)
	if len(got) != len(want) {
		t.Fatalf("Statements = %+v; want %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("statement %d = %+v; want %+v", i, got[i], want[i])
		}
	}
	if n := p.Count(inserts); n != 2 {
		t.Errorf("Count(INSERT) = %d; want 2", n)
	}
	if n := p.Commands(); n != 3 {
		t.Errorf("Commands = %d; want 3", n)
	}

	// A prepared statement is two round trips, and one that nobody waits for.
	p.Forget()
	var id int
	if err := p.client.QueryRowContext(t.Context(), "SELECT id FROM seen WHERE id = ?", 1).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if got := p.Statements(Any); len(got) != 1 || got[0].SQL != "SELECT id FROM seen WHERE id = ?" {
		t.Errorf("Statements = %+v; want the prepared one", got)
	}
	if n := p.Commands(); n < 2 {
		t.Errorf("Commands = %d; want prepare and execute at least", n)
	}

	p.client.Close()
	if err := p.AwaitOpen(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if n := p.Accepted(); n != 1 {
		t.Errorf("Accepted = %d; want 1", n)
	}
}

func TestWaitForAStatementIsAnEvent(t *testing.T) {
	p := newPath(t)
	answered := make(chan error, 1)
	go func() { answered <- p.AwaitAnswered(t.Context(), inserts, 1) }()
	if err := p.insert(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := p.AwaitDelivered(t.Context(), inserts, 1); err != nil {
		t.Error(err)
	}
	if err := p.AwaitDelivered(brief(t), inserts, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("AwaitDelivered(2) after one = %v; want the context's end", err)
	}
}

func TestBlackholeSwallowsOpenAndNewConnections(t *testing.T) {
	p := newPath(t)
	if err := p.client.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.SetMode(Blackhole); err != nil {
		t.Fatal(err)
	}
	for _, connection := range []string{"open", "new"} {
		if err := p.insert(brief(t)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("insert on the %s connection = %v; want no answer", connection, err)
		}
	}
	if p.Accepted() != 2 {
		t.Errorf("Accepted = %d; want 2", p.Accepted())
	}
	// The client has given both up. The server must not know yet.
	if err := p.AwaitOpen(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if n := sessions(t, p.database); n != 1 {
		t.Errorf("%d sessions on the server; want the one whose end it has not heard of", n)
	}
	if err := p.SetMode(Pass); err != nil {
		t.Fatal(err)
	}
	if n := rows(t, server, p.database); n != 0 {
		t.Errorf("%d rows came out of the black hole; want 0", n)
	}
	if err := p.insert(t.Context()); err != nil {
		t.Errorf("insert after the black hole: %v", err)
	}
}

// sessions is how many sessions the server keeps in a database.
func sessions(t *testing.T, database string) int {
	t.Helper()
	var n int
	const query = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = ?"
	if err := server.Admin().QueryRowContext(t.Context(), query, database).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOneConnectionCanBeSwallowedAlone(t *testing.T) {
	p := newPath(t)
	p.client.SetMaxOpenConns(2)
	first, err := p.client.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := p.client.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	p.Open()[0].Blackhole()
	if err := first.PingContext(brief(t)); err == nil {
		t.Error("the swallowed connection was answered")
	}
	if err := second.PingContext(t.Context()); err != nil {
		t.Errorf("the other connection: %v", err)
	}
}

func TestRefusedAndOpenAgainAtTheSameAddress(t *testing.T) {
	p := newPath(t)
	address := p.Address()
	if err := p.SetMode(Refuse); err != nil {
		t.Fatal(err)
	}
	if err := p.insert(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("insert = %v; want %v", err, syscall.ECONNREFUSED)
	}
	if err := p.SetMode(Pass); err != nil {
		t.Fatal(err)
	}
	if err := p.insert(t.Context()); err != nil {
		t.Error(err)
	}
	if p.Address() != address {
		t.Errorf("Address = %s; want %s still", p.Address(), address)
	}
}

func TestResetIsSeenAsReset(t *testing.T) {
	p := newPath(t)
	for _, ending := range []string{"by ResetEvery", "by Reset"} {
		if ending == "by ResetEvery" {
			p.ResetEvery(1)
		}
		conn, err := net.Dial("tcp", p.Address())
		if err == nil {
			defer conn.Close()
			if ending == "by Reset" {
				if err := p.AwaitOpen(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				p.Reset()
			}
			buf := make([]byte, 1024)
			for err == nil {
				_, err = conn.Read(buf)
			}
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection reset %s = %v; want %v", ending, err, syscall.ECONNRESET)
		}
		p.ResetEvery(0)
	}
}

func TestEveryNthConnectionIsReset(t *testing.T) {
	p := newPath(t)
	p.client.SetMaxIdleConns(-1) // a new connection for every statement
	p.ResetEvery(3)
	var failed []int
	for i := 1; i <= 6; i++ {
		if err := p.client.PingContext(t.Context()); err != nil {
			failed = append(failed, i)
		}
	}
	if len(failed) != 2 || failed[0] != 3 || failed[1] != 6 {
		t.Errorf("pings %v failed; want 3 and 6", failed)
	}
}

func TestDelayHoldsUpBothDirections(t *testing.T) {
	p := newPath(t)
	if err := p.client.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	const there, back = 30 * time.Millisecond, 40 * time.Millisecond
	p.SetDelay(there, back)
	start := time.Now()
	if err := p.insert(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < there+back {
		t.Errorf("a round trip took %s; want at least %s", took, there+back)
	}
}

func TestTraps(t *testing.T) {
	tests := []struct {
		name     string
		set      func(f *Forwarder) *Trap
		silent   bool // the client waits in vain, rather than being cut off
		executed bool
	}{
		{"dropped reply", func(f *Forwarder) *Trap { return f.DropReply(inserts, 2) }, true, true},
		{"cut reply", func(f *Forwarder) *Trap { return f.CutReply(inserts, 2) }, false, true},
		{"cut request", func(f *Forwarder) *Trap { return f.CutRequest(inserts, 2) }, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPath(t)
			trap := tt.set(p.Forwarder)
			if _, err := p.client.ExecContext(t.Context(), "INSERT INTO seen VALUES (7), (8)"); err != nil {
				t.Fatalf("the first of two statements: %v", err)
			}
			ctx := t.Context()
			if tt.silent {
				ctx = brief(t)
			}
			err := p.insert(ctx)
			if silent := errors.Is(err, context.DeadlineExceeded); err == nil || silent != tt.silent {
				t.Errorf("insert = %v; want silence %t", err, tt.silent)
			}
			if err := trap.Caught(t.Context()); err != nil {
				t.Error(err)
			}
			want := 2
			if tt.executed {
				want = 3
				answer, err := trap.Answered(t.Context())
				if err != nil || answer.Rows != 1 {
					t.Errorf("Answered = %+v, %v; want 1 row", answer, err)
				}
			}
			if n := rows(t, server, p.database); n != want {
				t.Errorf("%d rows; want %d", n, want)
			}
			if err := p.client.PingContext(t.Context()); err != nil {
				t.Errorf("a new connection afterwards: %v", err)
			}
		})
	}
}

func TestHeldBackStatementIsDelivered(t *testing.T) {
	for _, gone := range []bool{false, true} {
		p := newPath(t)
		trap := p.HoldBack(inserts, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- p.insert(ctx) }()
		if err := trap.Caught(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := trap.Answered(brief(t)); err == nil {
			t.Error("the statement was answered before it was delivered")
		}
		if gone {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("insert = %v; want %v", err, context.Canceled)
			}
			p.client.Close()
			if err := p.AwaitOpen(t.Context(), 0); err != nil {
				t.Error(err)
			}
		}
		if n := rows(t, server, p.database); n != 0 {
			t.Errorf("%d rows before Deliver; want 0", n)
		}
		trap.Deliver()
		answer, err := trap.Answered(t.Context())
		if err != nil || answer != (Answer{Rows: 1}) {
			t.Errorf("Answered = %+v, %v; want 1 row", answer, err)
		}
		if !gone {
			if err := <-done; err != nil {
				t.Errorf("insert of a client that has waited: %v", err)
			}
		}
		if n := rows(t, server, p.database); n != 1 {
			t.Errorf("%d rows after Deliver; want 1", n)
		}
	}
}

func TestStoppedServerEndsItsConnections(t *testing.T) {
	s := NewMariaDB(t, Options{})
	user, password, database := account(t, s)
	f := NewForwarder(t, "tcp", s.Address())
	client := open(t, f.Address(), user, password, database)
	if err := client.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := f.AwaitOpen(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

func TestForwarderReachesAUnixSocket(t *testing.T) {
	f := NewForwarder(t, "unix", server.Socket())
	client := open(t, f.Address(), "root", "", "")
	if err := client.PingContext(t.Context()); err != nil {
		t.Error(err)
	}
}
