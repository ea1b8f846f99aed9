package testserver

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// server is the one that the tests of this package share.
var server *MariaDB

// onlyServer has the test binary start a server, print its address and wait to
// be killed.
const onlyServer = "TESTSERVER_ONLY_SERVER"

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	started, err := StartMariaDB(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer started.Close()
	if os.Getenv(onlyServer) != "" {
		fmt.Println(started.Address(), started.Dir())
		select {}
	}
	server = started
	return m.Run()
}

// open returns a client with one connection at most.
func open(t *testing.T, address, user, password, database string) *sql.DB {
	t.Helper()
	config := mysql.NewConfig()
	config.Net, config.Addr, config.User, config.Passwd, config.DBName = "tcp", address, user, password, database
	config.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	return db
}

// account makes a database with one empty table, and a user who may use it.
func account(t *testing.T, s *MariaDB) (user, password, database string) {
	t.Helper()
	database = s.NewDatabase(t)
	user, password = "user_of_"+database, `it's a "pass\word"`
	s.NewUser(t, User{Name: user, Password: password, Grants: []string{"SELECT, INSERT ON " + database + ".*"}})
	s.Exec(t, "CREATE TABLE "+database+".seen (id INT PRIMARY KEY)")
	return user, password, database
}

func rows(t *testing.T, s *MariaDB, database string) int {
	t.Helper()
	var n int
	if err := s.Admin().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+database+".seen").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestServerKeepsDataAndPortOverARestart(t *testing.T) {
	s := NewMariaDB(t, Options{Args: []string{"--max-connections=77"}})
	user, password, database := account(t, s)
	address := s.Address()
	client := open(t, address, user, password, database)
	if _, err := client.ExecContext(t.Context(), "INSERT INTO seen VALUES (1)"); err != nil {
		t.Fatal(err)
	}

	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("a stopped server accepts connections")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var limit int
	if err := client.QueryRowContext(t.Context(), "SELECT @@max_connections").Scan(&limit); err != nil {
		t.Fatal(err)
	}
	if limit != 77 {
		t.Errorf("max_connections = %d; want the 77 of Options.Args", limit)
	}
	if n := rows(t, s, database); n != 1 || s.Address() != address {
		t.Errorf("after a restart: %d rows at %s; want 1 at %s", n, s.Address(), address)
	}

	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rows(t, s, database); n != 1 {
		t.Errorf("after a crash: %d rows; want 1", n)
	}
}

func TestTakenPortIsNoticed(t *testing.T) {
	s := NewMariaDB(t, Options{})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = s.Start(t.Context())
	// The words by which the first start knows that another port may help.
	if err == nil || !strings.Contains(err.Error(), "Address already in use") {
		t.Errorf("Start on a taken port = %v; want an error that says so", err)
	}
}

func TestFrozenServerAnswersOnlyWhenThawed(t *testing.T) {
	user, password, database := account(t, server)
	client := open(t, server.Address(), user, password, database)
	if err := client.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it may be frozen already
		if err := server.Freeze(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := client.ExecContext(ctx, "INSERT INTO seen VALUES (1)")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("statement to a frozen server = %v; want %v", err, context.DeadlineExceeded)
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := client.PingContext(t.Context()); err != nil {
		t.Errorf("ping of a thawed server: %v", err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	s, err := StartMariaDB(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	pid := s.PID()
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d after Close: %v; want %v", pid, err, syscall.ESRCH)
	}
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder after Close: %v; want %v", err, os.ErrNotExist)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close = %v; want nil", err)
	}
}

func TestUserHasOnlyTheGivenRights(t *testing.T) {
	user, password, database := account(t, server)
	client := open(t, server.Address(), user, password, database)
	if _, err := client.ExecContext(t.Context(), "INSERT INTO seen VALUES (1)"); err != nil {
		t.Error(err)
	}
	_, err := client.ExecContext(t.Context(), "CREATE TABLE other (id INT)")
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) || refused.Number != 1142 {
		t.Errorf("CREATE TABLE without the right = %v; want error 1142", err)
	}
}

func TestGlobalIsSetBackAfterTheTest(t *testing.T) {
	read := func() (mode string, wait int) {
		if err := server.Admin().QueryRowContext(t.Context(), "SELECT @@GLOBAL.sql_mode, @@GLOBAL.lock_wait_timeout").Scan(&mode, &wait); err != nil {
			t.Fatal(err)
		}
		return mode, wait
	}
	mode, wait := read()
	t.Run("test", func(t *testing.T) {
		server.SetGlobal(t, "sql_mode", "'ANSI_QUOTES'")
		server.SetGlobal(t, "lock_wait_timeout", "7")
		if mode, wait := read(); mode != "ANSI_QUOTES" || wait != 7 {
			t.Errorf("globals = %q, %d; want ANSI_QUOTES, 7", mode, wait)
		}
	})
	if m, w := read(); m != mode || w != wait {
		t.Errorf("globals after the test = %q, %d; want %q, %d", m, w, mode, wait)
	}
}

func TestMissingBinaryNamesThePackage(t *testing.T) {
	_, err := findBinary("no-such-mariadbd")
	if err == nil {
		t.Fatal("findBinary found what does not exist")
	}
	for _, want := range []string{"no-such-mariadbd", "mariadb-server", "make test"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

// On other systems a server outlives a test binary that is killed.
func TestServerDiesWithItsTestBinary(t *testing.T) {
	if !diesWithParent {
		return
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), onlyServer+"=1")
	cmd.Stderr = t.Output()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
	defer os.RemoveAll(dir)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The connection ends with the server. It would stay open otherwise.
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	cmd.Wait() // it was killed
}
