package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lockgate/lockgate/internal/testserver"
)

// lockName is the lock of [short].
const lockName = "nightly"

// These say which statements take, renew and release a lock. A new name is taken
// by an INSERT, an existing one by an UPDATE.
func takesOld(text string) bool { return strings.Contains(text, "SET token = LAST_INSERT_ID(") }
func takesNew(text string) bool { return strings.Contains(text, "INSERT INTO ") }
func takes(text string) bool    { return takesOld(text) || takesNew(text) }
func renews(text string) bool   { return strings.Contains(text, "0 * LAST_INSERT_ID(") }
func releases(text string) bool { return strings.Contains(text, "released_at = COALESCE(") }

// bench is a fresh schema on a server, with a forwarder on the way to it.
type bench struct {
	t      *testing.T
	server *testserver.MariaDB
	way    *testserver.Forwarder
	url    string // by way of the forwarder
	schema string
}

func newBench(t *testing.T, server *testserver.MariaDB) *bench {
	t.Helper()
	way := testserver.NewForwarder(t, "tcp", server.Address())
	url := account(t, server, way.Address())
	return &bench{t: t, server: server, way: way, url: url, schema: path.Base(url)}
}

// via are short settings for a holder whose path is the forwarder, which sees
// what is not encrypted.
func (b *bench) via(more settings) settings {
	return short(b.url).with(settings{"DB_TLS": "disable"}).with(more)
}

// past are the same for one that goes past the forwarder.
func (b *bench) past(more settings) settings {
	return b.via(settings{"DB_URL": strings.Replace(b.url, b.way.Address(), b.server.Address(), 1)}).with(more)
}

// inTime ends with the test, or when patience does.
func inTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// rowState is a lock's row as the server has it.
type rowState struct {
	owner     string
	token     uint64
	released  bool
	expiresAt string // the server's UTC
	left      time.Duration
}

// held says whether nobody else could take the lock.
func (r rowState) held() bool { return r.left > 0 }

// row reads the lock's row; ok is false when there is none yet.
func (b *bench) row() (r rowState, ok bool) {
	b.t.Helper()
	var us int64
	err := b.server.Admin().QueryRowContext(inTime(b.t), "SELECT owner, token, released_at IS NOT NULL, "+
		"CAST(expires_at AS CHAR), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) "+
		"FROM "+b.schema+".lockgate_locks WHERE name = ?", lockName).
		Scan(&r.owner, &r.token, &r.released, &r.expiresAt, &us)
	if e, isServer := errors.AsType[*mysql.MySQLError](err); errors.Is(err, sql.ErrNoRows) || isServer && e.Number == 1146 {
		return rowState{}, false
	}
	if err != nil {
		b.t.Fatal(err)
	}
	r.left = time.Duration(us) * time.Microsecond
	return r, true
}

// wantFree checks that the lock was released, or never taken.
func (b *bench) wantFree() {
	b.t.Helper()
	if r, ok := b.row(); ok && (!r.released || r.held()) {
		b.t.Errorf("the lock is not free: %+v", r)
	}
}

// awaitFree waits until the lock was released.
func (b *bench) awaitFree() rowState {
	b.t.Helper()
	var r rowState
	await(b.t, "the lock is released", func() bool {
		var ok bool
		r, ok = b.row()
		return ok && r.released && !r.held()
	})
	return r
}

// awaitStatements waits until the server has answered n more statements.
func (b *bench) awaitStatements(match testserver.Match, n int) {
	b.t.Helper()
	if err := b.way.AwaitAnswered(inTime(b.t), match, b.answered(match)+n); err != nil {
		b.t.Fatal(err)
	}
}

// answered counts the statements that the server has answered.
func (b *bench) answered(match testserver.Match) (n int) {
	for _, s := range b.way.Statements(match) {
		if s.Answered {
			n++
		}
	}
	return n
}

// changed counts the statements that have changed a row.
func (b *bench) changed(match testserver.Match) (n int) {
	for _, s := range b.way.Statements(match) {
		if s.Answered && s.Answer.Error == 0 && s.Answer.Rows > 0 {
			n++
		}
	}
	return n
}

// hold takes a lock, which must be free, releases it and returns its token. The
// first one makes the table.
func (b *bench) hold(name string) uint64 {
	b.t.Helper()
	return b.holdAs(settings{"NAME": name, "ON_BUSY": "fail"})
}

func (b *bench) holdAs(set settings) uint64 {
	b.t.Helper()
	at := newStage(b.t)
	touch(b.t, at.curtain())
	at.run(b.t, b.past(set)).wantExit(0)
	return tokenIn(b.t, at.witness())
}

// tokenIn returns the token that a puppet has written into its witness file.
func tokenIn(t *testing.T, witness string) uint64 {
	t.Helper()
	var token uint64
	await(t, witness+" has a token", func() bool {
		data, err := os.ReadFile(witness)
		if err != nil || !strings.HasSuffix(string(data), "\n") {
			return false
		}
		token, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", witness, err)
		}
		return true
	})
	return token
}

// stage is where a puppet plays: the files by which a test and it meet.
type stage struct{ dir string }

func newStage(t *testing.T) stage {
	t.Helper()
	return stage{t.TempDir()}
}

func (s stage) witness() string { return filepath.Join(s.dir, "witness") }
func (s stage) curtain() string { return filepath.Join(s.dir, "curtain") }
func (s stage) beat() string    { return filepath.Join(s.dir, "beat") }

// puppet is a command that leaves its token as a witness, fails if there is one
// already, and lives until the curtain falls.
func (s stage) puppet(more ...string) []string {
	return append([]string{built.puppet, "-witness", s.witness(), "-until", s.curtain()}, more...)
}

// run starts lockgate run with a puppet.
func (s stage) run(t *testing.T, set settings, more ...string) *proc {
	t.Helper()
	return startRun(t, set, s.puppet(more...)...)
}

// startRun starts lockgate run. What it leaves of its private directory when it
// is killed goes with the test.
func startRun(t *testing.T, set settings, command ...string) *proc {
	t.Helper()
	return launch(t, exec.Command(built.lockgate, append([]string{"run", "--"}, command...)...),
		append(set.environ(), "XDG_RUNTIME_DIR="+t.TempDir()))
}

// sidecar starts a sidecar on a gate directory.
func sidecar(t *testing.T, dir string, set settings) *proc {
	t.Helper()
	return start(t, set.with(settings{"DIR": dir}), "sidecar")
}

// execute starts an exec on a gate directory. It has no settings but its own.
func execute(t *testing.T, dir string, command ...string) *proc {
	t.Helper()
	return start(t, settings{"DIR": dir, "LOG_FORMAT": "json", "LOG_LEVEL": "debug"},
		append([]string{"exec", "--"}, command...)...)
}

// gateState is what a script sees in a gate directory's state.json.
type gateState struct {
	Request string `json:"request"`
	State   string `json:"state"`
	Token   uint64 `json:"token"`
}

// stateIn reads a gate directory's state.
func stateIn(t *testing.T, dir string) (s gateState) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "state.json"))
	must(t, err)
	must(t, json.Unmarshal(data, &s))
	return s
}

// awaitRequest waits for a request other than the one named.
func awaitRequest(t *testing.T, dir, old string) {
	t.Helper()
	var r struct {
		Nonce string `json:"nonce"`
	}
	await(t, "another request", func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "request"))
		return err == nil && json.Unmarshal(data, &r) == nil && r.Nonce != old
	})
}

// kill kills a process as it is and waits for its end.
func (p *proc) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	if code := p.wait(); code != 128+int(syscall.SIGKILL) {
		p.t.Errorf("%s ended with %d before it was killed", strings.Join(p.cmd.Args, " "), code)
	}
}

// freeze stops a process and returns when it stands still.
func (p *proc) freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	await(p.t, "the process stands still", func() bool {
		stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid()), "stat"))
		return strings.Contains(string(stat), ") T ")
	})
}

// awaitMore waits until the process has written text more than n times.
func (p *proc) awaitMore(text string, n int) {
	p.t.Helper()
	await(p.t, "more than "+strconv.Itoa(n)+" times "+text, func() bool {
		return p.ended() || strings.Count(p.output(), text) > n
	})
	if strings.Count(p.output(), text) <= n {
		p.t.Fatalf("%s ended and did not write %q again", strings.Join(p.cmd.Args, " "), text)
	}
}

// record is a line of a log.
type record struct {
	Level string `json:"level"`
	Msg   string `json:"msg"`
	Err   string `json:"err"`
}

// records returns the log lines of a level. Of a process that has ended these
// are all there are.
func (p *proc) records(level string) []record {
	p.t.Helper()
	text := p.output()
	if p.ended() {
		text = p.said()
	}
	var found []record
	for line := range strings.Lines(text) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			p.t.Errorf("%s wrote something else than a log line: %q", strings.Join(p.cmd.Args, " "), line)
		} else if r.Level == level {
			found = append(found, r)
		}
	}
	return found
}

// wantNoErrors checks that nothing was logged as an error.
func (p *proc) wantNoErrors() {
	p.t.Helper()
	for _, r := range p.records("ERROR") {
		p.t.Errorf("%s logged an error: %s (%s)", strings.Join(p.cmd.Args, " "), r.Msg, r.Err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
