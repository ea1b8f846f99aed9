package testserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	// startLimit bounds one start, from the first process to the first answer.
	// Usual are 1 to 3 s; a machine that is busy with other tests needs more.
	startLimit = 90 * time.Second

	// stopLimit bounds an orderly stop, after which the server is killed.
	stopLimit = 30 * time.Second

	// portAttempts is how often another port is tried when the one that was
	// free a moment ago is taken.
	portAttempts = 5

	// knockEvery is the pause between two looks whether a server answers yet.
	knockEvery = 20 * time.Millisecond
)

// Options are what a test may want of its server. The zero value is good.
type Options struct {
	// Args are further arguments for mariadbd; they win over ours.
	Args []string
}

// MariaDB is a running MariaDB server of this test. Its methods may be called
// from several goroutines, but starting and stopping from one at a time.
type MariaDB struct {
	binary string
	dir    string // everything of this server; removed by Close
	port   int
	args   []string
	admin  *sql.DB
	names  atomic.Int64 // how many databases have been named

	mu      sync.Mutex
	process *process
}

// StartMariaDB installs and starts a server and returns when it answers. The
// caller must Close it. It fails with a message that says what to install when
// there is no MariaDB on this machine.
func StartMariaDB(ctx context.Context, opts Options) (*MariaDB, error) {
	binary, err := findBinary("mariadbd")
	if err != nil {
		return nil, err
	}
	installer, err := findBinary("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "lockgate-mariadb-")
	if err != nil {
		return nil, fmt.Errorf("start mariadb: %w", err)
	}
	m := &MariaDB{binary: binary, dir: dir, args: opts.Args}
	if err := m.install(ctx, installer); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := m.firstStart(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// NewMariaDB is [StartMariaDB] for a single test: it fails the test when there
// is no server, and closes it when the test ends. A server is worth sharing
// among the tests of a package; start it in TestMain then.
func NewMariaDB(tb testing.TB, opts Options) *MariaDB {
	tb.Helper()
	m, err := StartMariaDB(tb.Context(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := m.Close(); err != nil {
			tb.Error(err)
		}
	})
	return m
}

// findBinary looks where Debian and others keep servers, which is not always
// in the PATH of an ordinary user.
func findBinary(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not on this machine: install the Debian package mariadb-server "+
		"(apt-get install mariadb-server), then run make test again", name)
}

// install makes the folder's data, the same for root and ordinary users.
func (m *MariaDB) install(ctx context.Context, installer string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not done within %s", startLimit))
	defer cancel()
	args := slices.Concat([]string{
		"--no-defaults", "--datadir=" + m.data(), "--tmpdir=" + m.scratch(), "--skip-test-db",
		// Root needs no password, but can come only through our socket.
		"--auth-root-authentication-method=normal",
	}, asRoot(), smallFiles())
	if err := os.Mkdir(m.scratch(), 0o700); err != nil {
		return fmt.Errorf("install a mariadb data folder: %w", err)
	}
	output, err := os.Create(filepath.Join(m.dir, "install.log"))
	if err != nil {
		return fmt.Errorf("install a mariadb data folder: %w", err)
	}
	defer output.Close()
	p, err := startProcess(installer, args, output)
	if err != nil {
		return fmt.Errorf("install a mariadb data folder: %w", err)
	}
	select {
	case <-p.gone:
		err = p.err
	case <-ctx.Done():
		p.killGroup()
		err = context.Cause(ctx)
	}
	if err != nil {
		said, _ := os.ReadFile(output.Name())
		return fmt.Errorf("install a mariadb data folder: %w\n%s", err, said)
	}
	return nil
}

// firstStart finds a port and starts the server on it.
func (m *MariaDB) firstStart(ctx context.Context) error {
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr = "root", "unix", m.Socket()
	config.Logger = &mysql.NopLogger{} // a server that is stopped and restarted is no news
	config.InterpolateParams = true
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return fmt.Errorf("start mariadb: %w", err)
	}
	m.admin = sql.OpenDB(connector)

	for range portAttempts {
		if m.port, err = freePort(); err != nil {
			return fmt.Errorf("start mariadb: %w", err)
		}
		if err = m.Start(ctx); err == nil {
			return nil
		}
		if log, _ := m.ErrorLog(); !strings.Contains(log, "Address already in use") {
			return err
		}
	}
	return err
}

// freePort returns a loopback port that nobody listens on right now.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	return port, listener.Close()
}

// asRoot is what mariadbd wants to hear before it runs as root.
func asRoot() []string {
	if os.Geteuid() != 0 {
		return nil
	}
	return []string{"--user=root"}
}

// smallFiles keeps a server's files small: they are made and removed often.
func smallFiles() []string {
	return []string{"--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M"}
}

// arguments is the whole command line of the server.
func (m *MariaDB) arguments() []string {
	args := []string{
		"--no-defaults", // first, or it is not heard
		"--datadir=" + m.data(),
		"--tmpdir=" + m.scratch(),
		"--socket=" + m.Socket(),
		"--pid-file=" + filepath.Join(m.dir, "pid"),
		"--log-error=" + m.errorLogPath(),
		"--bind-address=127.0.0.1",
		"--port=" + strconv.Itoa(m.port),
		"--skip-name-resolve",
		"--performance-schema=OFF",
		"--max-connections=500",
		"--innodb-log-buffer-size=1M",
		"--innodb-buffer-pool-dump-at-shutdown=OFF",
		"--key-buffer-size=1M",
		"--aria-pagecache-buffer-size=1M",
		"--query-cache-type=OFF",
	}
	return slices.Concat(args, smallFiles(), asRoot(), m.args)
}

// Start starts a stopped server again, with the same data on the same port,
// and returns when it answers.
func (m *MariaDB) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("no answer within %s", startLimit))
	defer cancel()
	if p := m.current(); p != nil && !p.ended() {
		return errors.New("start mariadb: it is running")
	}
	// What it says before it has opened its log belongs there, too.
	output, err := os.OpenFile(m.errorLogPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start mariadb: %w", err)
	}
	defer output.Close()
	p, err := startProcess(m.binary, m.arguments(), output)
	if err != nil {
		return fmt.Errorf("start mariadb: %w", err)
	}
	m.mu.Lock()
	m.process = p
	m.mu.Unlock()
	if err := m.answers(ctx, p); err != nil {
		p.killGroup()
		log, _ := m.ErrorLog()
		return fmt.Errorf("start mariadb: %w\n%s", err, log)
	}
	return nil
}

// answers returns when p answers on its socket and on its port.
func (m *MariaDB) answers(ctx context.Context, p *process) error {
	ticker := time.NewTicker(knockEvery)
	defer ticker.Stop()
	for {
		if err := m.admin.PingContext(ctx); err == nil {
			// It opens the port before the socket; this only makes sure.
			conn, err := net.Dial("tcp", m.Address())
			if err != nil {
				return err
			}
			return conn.Close()
		}
		select {
		case <-ticker.C:
		case <-p.gone:
			return fmt.Errorf("it ended at once: %w", p.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (m *MariaDB) current() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// Stop stops the server in order, as a restart by its owner would, and returns
// when it is gone. Its data stays.
func (m *MariaDB) Stop() error {
	p := m.current()
	if p == nil || p.ended() {
		return nil
	}
	if err := p.handle.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop mariadb: %w", err)
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.gone:
		return nil
	case <-limit.C:
		return errors.Join(fmt.Errorf("stop mariadb: not gone within %s", stopLimit), m.Kill())
	}
}

// Kill ends the server at once, as a crash would, and returns when it is gone.
// Its data stays.
func (m *MariaDB) Kill() error {
	p := m.current()
	if p == nil || p.ended() {
		return nil
	}
	p.killGroup()
	return nil
}

// Restart stops the server in order and starts it again, with the same data on
// the same port.
func (m *MariaDB) Restart(ctx context.Context) error {
	if err := m.Stop(); err != nil {
		return err
	}
	return m.Start(ctx)
}

// Freeze stops the server in mid-thought and returns when it has stopped: it
// keeps its connections and answers nothing, like a machine behind a silent
// partition.
func (m *MariaDB) Freeze() error {
	if err := m.signal("freeze", syscall.SIGSTOP); err != nil {
		return err
	}
	return m.current().stopped()
}

// Thaw lets a frozen server go on.
func (m *MariaDB) Thaw() error { return m.signal("thaw", syscall.SIGCONT) }

func (m *MariaDB) signal(doing string, sig syscall.Signal) error {
	p := m.current()
	if p == nil {
		return fmt.Errorf("%s mariadb: it was never started", doing)
	}
	if err := p.handle.Signal(sig); err != nil {
		return fmt.Errorf("%s mariadb: %w", doing, err)
	}
	return nil
}

// Close ends the server, whatever state it is in, and removes everything that
// it has written. It returns when both are done, and may be called twice.
func (m *MariaDB) Close() error {
	err := m.Kill()
	if m.admin != nil {
		m.admin.Close() // an error is a goodbye that the dead server did not hear
	}
	return errors.Join(err, os.RemoveAll(m.dir))
}

// PID is the server's process id.
func (m *MariaDB) PID() int { return m.current().handle.Pid }

// Dir is the server's folder.
func (m *MariaDB) Dir() string { return m.dir }

// Address is the server's host and port, for a network of "tcp".
func (m *MariaDB) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(m.port)) }

// Socket is the path of the server's Unix socket.
func (m *MariaDB) Socket() string { return filepath.Join(m.dir, "sock") }

func (m *MariaDB) data() string { return filepath.Join(m.dir, "data") }

// scratch is where temporary tables are. It is no shared folder: a server that
// starts removes what it finds there, also what another one is using.
func (m *MariaDB) scratch() string { return filepath.Join(m.dir, "tmp") }

func (m *MariaDB) errorLogPath() string { return filepath.Join(m.dir, "error.log") }

// ErrorLog returns what the server has written to its error log so far.
func (m *MariaDB) ErrorLog() (string, error) {
	log, err := os.ReadFile(m.errorLogPath())
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(log), err
}

// Admin is the server as its root sees it, with no database chosen. It outlives
// restarts and ends with Close.
func (m *MariaDB) Admin() *sql.DB { return m.admin }

// Exec runs statements as root, in order, and fails the test if one fails. It
// may be used in a test's cleanup.
func (m *MariaDB) Exec(tb testing.TB, statements ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), stopLimit)
	defer cancel()
	for _, s := range statements {
		if _, err := m.admin.ExecContext(ctx, s); err != nil {
			tb.Fatalf("%s: %v", s, err)
		}
	}
}

// SetGlobal sets a global variable to an SQL expression for the rest of the
// test. Sessions that exist already keep their own value.
func (m *MariaDB) SetGlobal(tb testing.TB, name, expression string) {
	tb.Helper()
	var before string
	if err := m.admin.QueryRowContext(tb.Context(), "SELECT @@GLOBAL."+name).Scan(&before); err != nil {
		tb.Fatalf("read %s: %v", name, err)
	}
	if _, err := strconv.Atoi(before); err != nil {
		before = Quote(before)
	}
	m.Exec(tb, "SET GLOBAL "+name+" = "+expression)
	tb.Cleanup(func() { m.undo(tb, "SET GLOBAL "+name+" = "+before) })
}

// undo takes back what a test has done to the server, unless the server is
// stopped, and whatever else the test has done to it.
func (m *MariaDB) undo(tb testing.TB, statement string) {
	tb.Helper()
	if p := m.current(); p == nil || p.ended() {
		return
	}
	if err := m.Thaw(); err != nil {
		tb.Error(err)
	}
	m.Exec(tb, statement)
}

// NewDatabase makes an empty database for this test and returns its name. It
// is dropped when the test ends, unless the server is down then.
func (m *MariaDB) NewDatabase(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("lockgate_test_%d", m.names.Add(1))
	m.Exec(tb, "CREATE DATABASE "+name)
	tb.Cleanup(func() { m.undo(tb, "DROP DATABASE "+name) })
	return name
}

// User is an account that a test wants on its server.
type User struct {
	Name     string
	Password string

	// Plugin is how it proves who it is, such as "ed25519"; empty means the
	// server's default, mysql_native_password. The plugin must be loaded.
	Plugin string

	// Require is what a connection must bring, such as "SSL" or "X509"; empty
	// means nothing.
	Require string

	// Grants are what it may do, such as "SELECT, UPDATE ON lockgate_test_1.*".
	Grants []string
}

// NewUser makes an account which may come from any host by TCP, has exactly
// the given rights, and is dropped when the test ends.
func (m *MariaDB) NewUser(tb testing.TB, u User) {
	tb.Helper()
	identified := "IDENTIFIED BY " + Quote(u.Password)
	if u.Plugin != "" {
		identified = "IDENTIFIED VIA " + u.Plugin + " USING PASSWORD(" + Quote(u.Password) + ")"
	}
	account := Quote(u.Name) + "@'%'"
	if u.Require != "" {
		identified += " REQUIRE " + u.Require
	}
	m.Exec(tb, "CREATE USER "+account+" "+identified)
	tb.Cleanup(func() { m.undo(tb, "DROP USER IF EXISTS "+account) })
	for _, grant := range u.Grants {
		m.Exec(tb, "GRANT "+grant+" TO "+account)
	}
}

// Quote returns s as an SQL string for a session in the usual sql_mode.
func Quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}
