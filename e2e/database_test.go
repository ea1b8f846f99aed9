package e2e

import (
	"database/sql"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite" // makes databases of somebody else

	"github.com/lockgate/lockgate/internal/testserver"
)

// stranger listens like a server and is none: it says something to each client
// and then hangs up, or waits for the client to do so.
func stranger(t *testing.T, says string, hangUp bool) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				if _, err := io.WriteString(conn, says); err != nil || hangUp {
					return
				}
				_, _ = io.Copy(io.Discard, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return listener.Addr().String()
}

// sqliteWith makes a database of somebody else.
func sqliteWith(t *testing.T, statements ...string) (url string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "theirs.db")
	pool, err := sql.Open("sqlite", "file:"+path)
	must(t, err)
	for _, s := range statements {
		_, err := pool.ExecContext(inTime(t), s)
		must(t, err)
	}
	must(t, pool.Close())
	return "sqlite://" + path
}

func TestADatabaseThatCannotServeUsIsNamedWithWhatToDo(t *testing.T) {
	t.Parallel()
	// What is refused is refused at once: nobody waits for an hour here.
	const soon, never = "700ms", "1h"
	plain := mariadb(t)
	authority, other := testserver.NewAuthority(t), testserver.NewAuthority(t)
	tomorrow, yesterday := time.Now().Add(24*time.Hour), time.Now().Add(-24*time.Hour)
	secure := func(until time.Time, hosts ...string) *testserver.MariaDB {
		return testserver.NewMariaDB(t, testserver.Options{Args: authority.Args(authority.Server(t, until, hosts...))})
	}
	encrypted, misnamed, expired := secure(tomorrow, "127.0.0.1"), secure(tomorrow, "db.example"), secure(yesterday, "127.0.0.1")
	certified := func() string {
		schema := encrypted.NewDatabase(t)
		encrypted.NewUser(t, testserver.User{Name: "certified", Password: password, Require: "X509", Grants: []string{"ALL ON " + schema + ".*"}})
		return "mysql://certified:" + password + "@" + encrypted.Address() + "/" + schema
	}()
	theirs := other.Client(t)
	verified := func(mode string) settings { return settings{"DB_TLS": mode, "DB_CA_FILE": authority.File} }

	url := account(t, plain, "")
	schema := url[strings.LastIndexByte(url, '/')+1:]
	plain.Exec(t,
		"CREATE TABLE "+schema+".shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL, locked_by VARCHAR(255))",
		"INSERT INTO "+schema+".shedlock VALUES ('nightly', NOW(), 'somebody')")
	unchanged := func(t *testing.T) {
		t.Helper()
		var n int
		must(t, plain.Admin().QueryRowContext(inTime(t), "SELECT COUNT(*) FROM "+schema+".shedlock WHERE locked_by = 'somebody'").Scan(&n))
		if n != 1 {
			t.Error("the table of somebody else was changed")
		}
	}
	at := func(address string) string { return "mysql://u:" + password + "@" + address + "/locks" }
	folder := t.TempDir()

	for _, c := range []struct {
		name  string
		url   string
		start string
		more  settings
		says  []string
		then  func(t *testing.T)
	}{
		{"a table of somebody else", url, never, settings{"DB_TABLE": "shedlock"},
			[]string{"table shedlock is not a lockgate table", "it has no column owner, run, token", "LOCKGATE_DB_TABLE"}, unchanged},
		{"a table of somebody else in SQLite", sqliteWith(t, "CREATE TABLE lockgate_locks (name TEXT PRIMARY KEY, until TEXT)"), never, nil,
			[]string{"is not a lockgate table", "it has no column", "owner", "LOCKGATE_DB_TABLE"}, nil},

		{"no TLS where it is required", url, never, settings{"DB_TLS": "require"}, []string{"the server has no TLS", "LOCKGATE_DB_TLS"}, nil},
		{"no TLS where it is verified", url, never, verified("verify-full"), []string{"the server has no TLS", "LOCKGATE_DB_TLS"}, nil},
		{"an authority that we do not trust", account(t, encrypted, ""), never, settings{"DB_TLS": "verify-ca", "DB_CA_FILE": other.File},
			[]string{"not signed by an authority of LOCKGATE_DB_CA_FILE"}, nil},
		{"an authority that the system does not trust", account(t, encrypted, ""), never, settings{"DB_TLS": "verify-full"},
			[]string{"not signed by an authority of LOCKGATE_DB_CA_FILE", "the system's when that is unset"}, nil},
		{"a certificate for another host", account(t, misnamed, ""), never, verified("verify-full"),
			[]string{"for another host than LOCKGATE_DB_URL names", "LOCKGATE_DB_TLS=verify-ca"}, nil},
		{"a certificate that has expired", account(t, expired, ""), never, verified("verify-ca"),
			[]string{"has expired", "LOCKGATE_DB_TLS"}, nil},
		{"an account that requires a certificate, and none", certified, never, verified("verify-full"),
			[]string{"Access denied", "LOCKGATE_DB_CERT_FILE"}, nil},
		{"an account that requires TLS, and none", certified, never, settings{"DB_TLS": "disable"},
			[]string{"Access denied", "LOCKGATE_DB_TLS"}, nil},
		{"a certificate of ours that the server does not trust", account(t, encrypted, ""), never,
			settings{"DB_TLS": "require", "DB_CERT_FILE": theirs.File, "DB_KEY_FILE": theirs.KeyFile},
			[]string{"LOCKGATE_DB_CERT_FILE, which it may not trust"}, nil},

		{"a name that no server has", at("no-such-server.invalid:3306"), soon, nil, []string{"no-such-server.invalid", "could not be used for 700ms"}, nil},
		{"a server that speaks first and otherwise", at(stranger(t, "220 mail.example ESMTP\r\n", true)), soon, nil,
			[]string{"connect to 127.0.0.1", "no MySQL or MariaDB server"}, nil},
		{"a server that waits after nonsense", at(stranger(t, "HTTP/1.1 400 Bad Request\r\n\r\n", false)), soon, nil, []string{"connect to 127.0.0.1"}, nil},
		{"a server that hangs up at once", at(stranger(t, "", true)), soon, nil, []string{"connect to 127.0.0.1", "no MySQL or MariaDB server"}, nil},
		{"a server that never speaks", at(stranger(t, "", false)), soon, nil, []string{"connect to 127.0.0.1", "no answer within"}, nil},

		{"a folder as a SQLite file", "sqlite://" + folder, never, nil, []string{folder}, nil},
		{"a table of SQLite that we may not create", sqliteWith(t, "CREATE TABLE other (id INTEGER)"), soon, settings{"DB_AUTO_MIGRATE": "false"},
			[]string{"CREATE TABLE IF NOT EXISTS", "lockgate_locks"}, nil},
		{"a SQLite file that we may not create", sqliteURL(t), soon, settings{"DB_AUTO_MIGRATE": "false"},
			[]string{"CREATE TABLE IF NOT EXISTS", "lockgate_locks"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bothWays(t, func(t *testing.T, how way) {
				ran := filepath.Join(t.TempDir(), "ran")
				s := short(c.url).with(settings{"START_TIMEOUT": c.start}).with(c.more)
				startGated(t, how, s, "touch", ran).wantOutcome(t, 69, c.says...)
				if exists(ran) {
					t.Error("CMD has run")
				}
				if c.then != nil {
					c.then(t)
				}
			})
		})
	}
}

func TestAReadOnlyFolderIsRefused(t *testing.T) {
	t.Parallel()
	const never = "1h"
	empty, asUser := unwritable(t)
	full, _ := unwritable(t)
	// One in which a database is already, by somebody who may write.
	must(t, os.Chmod(full, 0o777))
	path := filepath.Join(full, "locks.db")
	start(t, short("sqlite://"+path).with(calm()), "run", "--", "true").wantExit(0)
	must(t, os.Chmod(path, 0o444))
	must(t, os.Chmod(full, 0o555))
	for name, dir := range map[string]string{"without a database": empty, "with a database": full} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(dir, "locks.db")
			s := short("sqlite://" + dir).with(settings{"START_TIMEOUT": never})
			cmd := exec.Command(built.lockgate, "run", "--", "true")
			cmd.SysProcAttr = asUser
			p := launch(t, cmd, append(s.environ(), "XDG_RUNTIME_DIR="))
			p.wantExit(69)
			wantSaid(t, p.said(), dir)
		})
	}
}

func TestAVolumeThatCannotBeReadAtTheStartIsAWrongSetting(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for variable, more := range map[string]settings{
		"DB_PASSWORD_FILE": {"DB_PASSWORD_FILE": missing},
		"DB_CA_FILE":       {"DB_CA_FILE": missing, "DB_TLS": "verify-full"},
		"DB_CERT_FILE":     {"DB_CERT_FILE": missing, "DB_KEY_FILE": missing},
	} {
		for _, command := range []string{"run", "sidecar"} {
			args := []string{command}
			if command == "run" {
				args = append(args, "--", "true")
			}
			s := short("mysql://u@127.0.0.1:1/d").with(settings{"DIR": t.TempDir()}).with(more)
			if command == "run" {
				delete(s, "DIR")
			}
			p := start(t, s, args...)
			p.wantExit(78)
			wantSaid(t, p.said(), "LOCKGATE_"+variable, missing, "no such file")
		}
	}
}

// A holder whose database refuses it has the lease all the same, and the refusal
// may be somebody's mistake that is mended in time.
func TestARefusalInMidHoldIsTriedAgain(t *testing.T) {
	t.Parallel()
	server := mariadb(t)
	for name, c := range map[string]struct{ spoil, mend, says string }{
		"the account is locked":   {"ALTER USER %u ACCOUNT LOCK", "ALTER USER %u ACCOUNT UNLOCK", "locked"},
		"a right is taken":        {"REVOKE UPDATE ON %s.* FROM %u", "GRANT UPDATE ON %s.* TO %u", "denied"},
		"the table is renamed":    {"RENAME TABLE %s.lockgate_locks TO %s.away", "RENAME TABLE %s.away TO %s.lockgate_locks", "CREATE TABLE"},
		"a column is renamed":     {"ALTER TABLE %s.lockgate_locks CHANGE run runs VARCHAR(255) NOT NULL, CHANGE renewed_at at DATETIME(6) NOT NULL", "ALTER TABLE %s.lockgate_locks CHANGE runs run VARCHAR(255) NOT NULL, CHANGE at renewed_at DATETIME(6) NOT NULL", "it has no column run, renewed_at"},
		"the password is another": {"ALTER USER %u IDENTIFIED BY 'x'", "ALTER USER %u IDENTIFIED BY '" + password + "'", "Access denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schema := server.NewDatabase(t)
			user := "refused_" + schema
			server.NewUser(t, testserver.User{Name: user, Password: password, Grants: []string{"SELECT, INSERT, UPDATE, CREATE ON " + schema + ".*"}})
			at := newStage(t)
			p := at.run(t, patient("mysql://"+user+":"+password+"@"+server.Address()+"/"+schema).with(settings{"TTL": "1m"}))
			token := tokenIn(t, at.witness())
			fill := strings.NewReplacer("%u", testserver.Quote(user)+"@'%'", "%s", schema)
			server.Exec(t, fill.Replace(c.spoil), "KILL USER "+testserver.Quote(user))
			p.awaitOutput(c.says)
			if exists(at.curtain()) || p.ended() {
				t.Error("CMD was stopped")
			}
			server.Exec(t, fill.Replace(c.mend))
			awaitRenewal(t, server, schema)
			touch(t, at.curtain())
			p.wantExit(0)
			wantReleased(t, server, schema, token)
			wantSaid(t, p.said())
		})
	}
}
