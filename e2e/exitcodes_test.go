package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// Every account of these tests has this password, and nothing may ever show it.
const password = "s3cret"

// bothWays runs a test on run, and on sidecar and exec.
func bothWays(t *testing.T, test func(t *testing.T, how way)) {
	t.Helper()
	for _, how := range []way{byRun, bySidecar} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			test(t, how)
		})
	}
}

// wantOutcome checks the exit code and what was said, by both halves.
func (g gated) wantOutcome(t *testing.T, code int, says ...string) {
	t.Helper()
	g.main.wantExit(code)
	t.Logf("exit %d", g.main.wait())
	wantSaid(t, g.main.said(), says...)
	if g.holder == g.main {
		return
	}
	g.holder.signal(syscall.SIGTERM)
	g.holder.wantExit(0) // every outcome but wrong settings is exec's
	wantSaid(t, g.holder.said())
}

func wantSaid(t *testing.T, text string, says ...string) {
	t.Helper()
	for _, want := range says {
		if !strings.Contains(text, want) {
			t.Errorf("said %s; want %q in it", text, want)
		}
	}
	if strings.Contains(text, password) {
		t.Errorf("said %s; that has the password in it", text)
	}
}

// occupy has somebody else hold the lock until the test ends.
func occupy(t *testing.T, s settings) {
	t.Helper()
	other := start(t, s.with(settings{"POD_NAME": "other-pod", "ON_BUSY": "fail"}).with(calm()), "run", "--", "sleep", "1000")
	other.awaitOutput("lock acquired")
}

// calm is a lease that no stall of a busy machine can end.
func calm() settings { return settings{"TTL": "1h", "RENEW_EVERY": "1m"} }

// script writes an executable file.
func script(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodesOfCMDArePassedOn(t *testing.T) {
	t.Parallel()
	shell := func(text string) []string { return []string{"sh", "-c", text} }
	for _, c := range []struct {
		name string
		cmd  []string
		want int
	}{
		{"0", shell("exit 0"), 0},
		{"3", shell("exit 3"), 3},
		{"one of lockgate's own", shell("exit 76"), 76},
		{"255", shell("exit 255"), 255},
		{"killed by TERM", shell("kill -TERM $$"), 143},
		{"killed by KILL", shell("kill -KILL $$"), 137},
		{"killed by SEGV", shell("kill -SEGV $$"), 139},
		{"0, with lockgate's variables", shell(`test "$LOCKGATE_LOCK" = nightly && test "$LOCKGATE_TOKEN" -gt 0 && test -z "$LOCKGATE_DB_URL"`), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, how way) {
				startGated(t, how, short(sqliteURL(t)).with(calm()), c.cmd...).wantOutcome(t, c.want)
			})
		})
	}
}

func TestACommandThatCannotBeRunIsFoundOutBeforeAnythingIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		cmd  string
		want int
	}{
		{"no such command", "no-such-command", 127},
		{"no such file", "/no/such/file", 127},
		{"no such interpreter", script(t, "#!/no/such/shell\n", 0o755), 127},
		{"not executable", script(t, "#!/bin/sh\n", 0o644), 126},
		{"a directory", t.TempDir(), 126},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Run("run", func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "locks.db")
				startGated(t, byRun, short("sqlite://"+file), c.cmd).wantOutcome(t, c.want, c.cmd)
				if exists(file) {
					t.Error("the store was opened")
				}
			})
			t.Run("exec", func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				start(t, settings{"DIR": dir}, "exec", "--", c.cmd).wantExit(c.want)
				if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
					t.Errorf("%v, %v in the gate directory; want nothing", files, err)
				}
			})
		})
	}
}

func TestExitCodesWhenToldToStopBeforeCMDHasStarted(t *testing.T) {
	t.Parallel()
	// A shell ignores some of these for what it starts in the background. Go
	// gives its children the default for signals that it is notified of.
	notified := make(chan os.Signal, 1)
	signal.Notify(notified, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	t.Cleanup(func() { signal.Stop(notified) })

	s := short(sqliteURL(t)).with(settings{"ON_BUSY": "wait", "POLL_EVERY": "1s"})
	occupy(t, s)
	for _, c := range []struct {
		sig  syscall.Signal
		want int
	}{
		{syscall.SIGTERM, 143}, {syscall.SIGINT, 130}, {syscall.SIGHUP, 129}, {syscall.SIGQUIT, 131},
	} {
		t.Run(c.sig.String(), func(t *testing.T) {
			bothWays(t, func(t *testing.T, how way) {
				ran := filepath.Join(t.TempDir(), "ran")
				g := startGated(t, how, s, "touch", ran)
				g.holder.awaitOutput("waiting for the lock")
				g.main.signal(c.sig)
				g.wantOutcome(t, c.want)
				if exists(ran) {
					t.Error("CMD has run")
				}
			})
			t.Run("exec without a sidecar", func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				p := start(t, settings{"DIR": dir}, "exec", "--", "touch", filepath.Join(dir, "ran"))
				awaitFile(t, filepath.Join(dir, "request"))
				p.signal(c.sig)
				p.wantExit(c.want)
				if exists(filepath.Join(dir, "ran")) {
					t.Error("CMD has run")
				}
			})
		})
	}
}

// The half of run that runs CMD is a process of its own, which cannot handle
// signals from its first moment on. Here it is frozen as early as can be.
func TestASignalThatComesWhileRunStarts(t *testing.T) {
	t.Parallel()
	notified := make(chan os.Signal, 1)
	signal.Notify(notified, syscall.SIGQUIT)
	t.Cleanup(func() { signal.Stop(notified) })
	s := short(sqliteURL(t)).with(settings{"ON_BUSY": "wait", "POLL_EVERY": "1s"})
	occupy(t, s)
	const tries = 20
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGUSR1} {
		young := 0
		for range tries {
			runtime := t.TempDir()
			p := launch(t, exec.Command(built.lockgate, "run", "--", "true"), append(s.environ(), "XDG_RUNTIME_DIR="+runtime))
			half := firstChild(t, p.pid())
			_ = syscall.Kill(half, syscall.SIGSTOP)
			if asked, _ := filepath.Glob(runtime + "/*/request"); len(asked) == 0 {
				young++
			}
			p.signal(sig)
			await(t, "the signal has been taken", func() bool { return taken(p.pid(), sig) })
			_ = syscall.Kill(half, syscall.SIGCONT)
			if sig == syscall.SIGQUIT {
				p.wantExit(131)
				continue
			}
			// It is CMD's, and there is no CMD yet.
			await(t, "the request", func() bool {
				asked, _ := filepath.Glob(runtime + "/*/request")
				return len(asked) > 0 || p.ended()
			})
			p.signal(syscall.SIGTERM)
			p.wantExit(143)
		}
		t.Logf("%s: %d of %d came before the other half had asked for the lock", sig, young, tries)
		if young == 0 {
			t.Error("no signal came early enough; this test shows nothing")
		}
	}
}

// firstChild waits for a process's first child, as busily as it can.
func firstChild(t *testing.T, pid int) int {
	t.Helper()
	limit := time.Now().Add(patience)
	for time.Now().Before(limit) {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			if child, _, ok := strings.Cut(string(text), " "); ok {
				n, err := strconv.Atoi(child)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
	}
	t.Fatalf("process %d has no child", pid)
	return 0
}

// taken tells whether a process has no such signal pending.
func taken(pid int, sig syscall.Signal) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "ShdPnd:"); ok {
			pending, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && pending&(1<<(sig-1)) == 0
		}
	}
	return true
}

func TestExitCodesWhenTheLockIsBusy(t *testing.T) {
	t.Parallel()
	s := short(sqliteURL(t))
	occupy(t, s)
	for _, c := range []struct {
		name string
		more settings
		want int
		says string
	}{
		{"skip", settings{}, 0, "skipping"},
		{"skip with a code", settings{"SKIP_EXIT_CODE": "7"}, 7, "skipping"},
		{"fail", settings{"ON_BUSY": "fail"}, 75, "held by"},
		{"waited too long", settings{"ON_BUSY": "wait", "WAIT_TIMEOUT": "300ms"}, 75, "waited too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, how way) {
				ran := filepath.Join(t.TempDir(), "ran")
				startGated(t, how, s.with(c.more), "touch", ran).wantOutcome(t, c.want, c.says, "other-pod/")
				if exists(ran) {
					t.Error("CMD has run")
				}
			})
		})
	}
}

// closedPort is an address that nobody listens on, and nobody else will while
// the test runs: the port is taken.
func closedPort(t *testing.T) string {
	t.Helper()
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	inet, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		t.Fatalf("the socket's name is a %T", name)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(inet.Port))
}

func TestExitCodesWhenTheStoreDoesNotServeUs(t *testing.T) {
	t.Parallel()
	server := testserver.NewMariaDB(t, testserver.Options{})
	hole := testserver.NewForwarder(t, "tcp", server.Address())
	if err := hole.SetMode(testserver.Blackhole); err != nil {
		t.Fatal(err)
	}
	schema := server.NewDatabase(t)
	url := func(user, pass, address, database string) string {
		return "mysql://" + user + ":" + pass + "@" + address + "/" + database
	}
	server.NewUser(t, testserver.User{Name: "all", Password: password, Grants: []string{"ALL ON *.*"}})
	server.NewUser(t, testserver.User{Name: "no_create", Password: password, Grants: []string{"SELECT, INSERT, UPDATE ON " + schema + ".*"}})
	server.NewUser(t, testserver.User{Name: "ordinary", Password: password, Grants: []string{"ALL ON " + schema + ".*"}})
	server.NewUser(t, testserver.User{Name: "reader", Password: password, Grants: []string{"SELECT ON " + schema + ".*"}})

	ordinary := url("ordinary", password, server.Address(), schema)
	startGated(t, byRun, short(ordinary).with(calm()).with(settings{"DB_TABLE": "there"}), "true").wantOutcome(t, 0)

	// What is refused is refused at once: nobody waits for an hour here.
	const soon, never = "700ms", "1h"
	for _, c := range []struct {
		name  string
		url   string
		table string
		start string
		says  []string
	}{
		{"a closed port", url("ordinary", password, closedPort(t), schema), "t", soon, []string{"refused"}},
		{"no answer", url("ordinary", password, hole.Address(), schema), "t", soon, []string{"could not be used for 700ms"}},
		{"a wrong password", url("ordinary", "no-"+password, server.Address(), schema), "t", never, []string{"Access denied", "ordinary"}},
		{"an unknown database", url("all", password, server.Address(), "nowhere"), "t", never, []string{"nowhere"}},
		{"a database of others", url("ordinary", password, server.Address(), "mysql"), "t", never, []string{"denied"}},
		{"a table that we may not create", url("no_create", password, server.Address(), schema), "missing", soon,
			[]string{"CREATE TABLE IF NOT EXISTS `missing`", "expires_at"}},
		{"a table that we may not write", url("reader", password, server.Address(), schema), "there", never, []string{"denied"}},
		{"a file that is no database", "sqlite://" + script(t, strings.Repeat("no database\n", 100), 0o644), "t", never, []string{"not a database"}},
		{"a folder that is missing", "sqlite:///no/such/folder/locks.db", "t", never, []string{"/no/such/folder"}},
		{"a read-only server", ordinary, "there", soon, []string{"read-only"}}, // the last one
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "a read-only server" {
				server.SetGlobal(t, "read_only", "1")
			} else {
				t.Parallel()
			}
			bothWays(t, func(t *testing.T, how way) {
				ran := filepath.Join(t.TempDir(), "ran")
				s := short(c.url).with(settings{"DB_TABLE": c.table, "START_TIMEOUT": c.start})
				startGated(t, how, s, "touch", ran).wantOutcome(t, 69, c.says...)
				if exists(ran) {
					t.Error("CMD has run")
				}
			})
		})
	}
}

func TestExitCodeWhenTheLockIsLost(t *testing.T) {
	t.Parallel()
	t.Run("revoked", func(t *testing.T) {
		bothWays(t, func(t *testing.T, how way) {
			url := database(t)
			g := startGated(t, how, short(url).with(settings{"TTL": "1m"}), "sleep", "1000")
			g.holder.awaitOutput("lock acquired")
			mariadb(t).Exec(t, "UPDATE "+url[strings.LastIndexByte(url, '/')+1:]+".lockgate_locks SET revoked_at = UTC_TIMESTAMP(6)")
			g.wantOutcome(t, 76, "stopping the command")
		})
	})
	t.Run("not renewed in time", func(t *testing.T) {
		bothWays(t, func(t *testing.T, how way) {
			network := testserver.NewForwarder(t, "tcp", mariadb(t).Address())
			g := startGated(t, how, short(account(t, mariadb(t), network.Address())), "sleep", "1000")
			g.holder.awaitOutput("lock acquired")
			if err := network.SetMode(testserver.Blackhole); err != nil {
				t.Fatal(err)
			}
			g.wantOutcome(t, 76, "stopping the command")
		})
	})
}

func TestWrongSettingsAreAllListedAndExitWith78(t *testing.T) {
	t.Parallel()
	many := settings{
		"DB_URL": "mysql://user:" + password + "@", "DB_PASSWORD": password, "TTL": "soon", "ON_BUSY": "perhaps",
		"TLT": "2m", "MAX_HOLD": "1ms", "SKIP_EXIT_CODE": "300", "DIR": "gate", "LOG_LEVEL": "loud",
	}
	for _, c := range []struct {
		name string
		args []string
		s    settings
		want int
		says []string
	}{
		{"run", []string{"run", "--", "true"}, many, 78, // it has a directory of its own
			[]string{"NAME", "DB_URL", "TTL", "ON_BUSY", "TLT", "MAX_HOLD", "SKIP_EXIT_CODE", "LOG_LEVEL"}},
		{"sidecar", []string{"sidecar"}, many, 78,
			[]string{"NAME", "DB_URL", "TTL", "ON_BUSY", "TLT", "MAX_HOLD", "SKIP_EXIT_CODE", "DIR", "LOG_LEVEL"}},
		{"exec", []string{"exec", "--", "true"}, many, 78, []string{"TLT", "DIR", "LOG_LEVEL"}},
		{"check", []string{"check"}, many, 1, []string{"TLT", "DIR"}},
		{"run, durations that do not fit", []string{"run", "--", "true"},
			settings{"NAME": "n", "DB_URL": "sqlite:///tmp/x.db", "TTL": "10s", "RENEW_EVERY": "9s"}, 78, []string{"RENEW_EVERY", "TTL"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, c.s, c.args...)
			p.wantExit(c.want)
			said := p.said()
			wantSaid(t, said)
			for _, name := range c.says {
				if !strings.Contains(said, "LOCKGATE_"+name+" ") {
					t.Errorf("said %s; want LOCKGATE_%s in it", said, name)
				}
			}
			t.Logf("%d problems in %d lines", len(c.says), strings.Count(said, "\n"))
		})
	}
	for _, url := range []string{
		"user:" + password + "@host/db", "mysql:/user:" + password + "@host/db", "mysql://" + password,
		"mysql://user:" + password + "@host:port/db", "mysql://user:" + password + "@host", "mysql://user:" + password + "/x@host/db",
		"mysql://user:" + password + "%zz@host/db", "mysql://user:" + password + " @host/db", "jdbc:mysql://host/db?password=" + password,
		"postgres://user:" + password + "@host/db", "oracle://user:" + password + "@host/db", "sqlite://" + password, password,
	} {
		t.Run(strings.ReplaceAll(url, password, "PASSWORD"), func(t *testing.T) {
			t.Parallel()
			p := start(t, settings{"NAME": "n", "DB_URL": url}, "run", "--", "true")
			p.wantExit(78)
			wantSaid(t, p.said(), "LOCKGATE_DB_URL ")
		})
	}
	t.Run("run inside of the same lock", func(t *testing.T) {
		t.Parallel()
		s := short(sqliteURL(t)).with(calm())
		// CMD has no database, so it gets one of its own.
		startGated(t, byRun, s, "env", "LOCKGATE_DB_URL="+s["DB_URL"], built.lockgate, "run", "--", "true").
			wantOutcome(t, 78, "already inside this lock")
	})
}

func TestAGateDirectoryThatCannotBeUsedExitsWith78(t *testing.T) {
	t.Parallel()
	file := script(t, "", 0o644)
	full := short(sqliteURL(t))
	for _, c := range []struct{ name, dir string }{
		{"missing", filepath.Join(t.TempDir(), "missing")},
		{"a file", file},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, args := range [][]string{{"sidecar"}, {"exec", "--", "true"}} {
				p := start(t, full.with(settings{"DIR": c.dir}), args...)
				p.wantExit(78)
				wantSaid(t, p.said(), "LOCKGATE_DIR", c.dir)
			}
		})
	}
	t.Run("unwritable", func(t *testing.T) {
		t.Parallel()
		dir, asUser := unwritable(t)
		for _, args := range [][]string{{"sidecar"}, {"exec", "--", "true"}} {
			cmd := exec.Command(built.lockgate, args...)
			cmd.SysProcAttr = asUser
			p := launch(t, cmd, full.with(settings{"DIR": dir, "DB_URL": "sqlite:///nowhere/locks.db"}).environ())
			p.wantExit(78)
			wantSaid(t, p.said(), "permission denied")
		}
	})
}

// unwritable makes a directory, and says as whom to come who may not write it.
func unwritable(t *testing.T) (dir string, asUser *syscall.SysProcAttr) {
	t.Helper()
	parent, err := os.MkdirTemp("", "lockgate-e2e-dir-") // t.TempDir cannot be reached by others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(parent, "gate")
	if err := os.Mkdir(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	asUser = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		asUser.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	return dir, asUser
}

func TestASecondOneOnTheSameGateDirectoryExitsWith78(t *testing.T) {
	t.Parallel()
	dir := settings{"DIR": t.TempDir()}
	s := short(sqliteURL(t)).with(calm()).with(dir)
	first := start(t, s, "sidecar")
	main := start(t, dir, "exec", "--", "sleep", "1000")
	first.awaitOutput("lock acquired")

	sidecar := start(t, s, "sidecar")
	exec := start(t, dir, "exec", "--", "true")
	sidecar.wantExit(78)
	wantSaid(t, sidecar.said(), "another lockgate sidecar")
	exec.wantExit(78)
	wantSaid(t, exec.said(), "another lockgate exec")

	// The first ones do not care.
	if first.ended() || main.ended() {
		t.Error("the first pair has ended")
	}
	start(t, dir, "check").wantExit(0)
}

func TestExitCodesOfExecWithoutAVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// state makes the state file from the request that exec has published.
		state func(nonce, boot string) string
		want  int
		says  string
	}{
		{"no sidecar", nil, 69, "no verdict came"},
		{"a state that cannot be read", func(nonce, boot string) string { return `{"version":1,"request":"` + nonce }, 69, "no verdict came"},
		{"a state for another request", func(_, boot string) string {
			return `{"version":99,"request":"other","boot":"` + boot + `","state":"acquired"}`
		}, 69, "no verdict came"},
		{"a state of another boot", func(nonce, _ string) string {
			return `{"version":99,"request":"` + nonce + `","boot":"other","state":"acquired"}`
		}, 69, "no verdict came"},
		{"a state of an unknown version", func(nonce, boot string) string {
			return `{"version":99,"request":"` + nonce + `","boot":"` + boot + `","state":"acquired"}`
		}, 78, "another version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			timeout := "1h"
			if c.want == 69 {
				timeout = "700ms"
			}
			ran := filepath.Join(dir, "ran")
			p := start(t, settings{"DIR": dir, "VERDICT_TIMEOUT": timeout}, "exec", "--", "touch", ran)
			if c.state != nil {
				awaitFile(t, filepath.Join(dir, "request"))
				var request struct{ Nonce, Boot string }
				data, err := os.ReadFile(filepath.Join(dir, "request"))
				if err == nil {
					err = json.Unmarshal(data, &request)
				}
				if err != nil {
					t.Fatal(err)
				}
				publish(t, filepath.Join(dir, "state.json"), c.state(request.Nonce, request.Boot))
			}
			p.wantExit(c.want)
			wantSaid(t, p.said(), c.says)
			if exists(ran) {
				t.Error("CMD has run")
			}
		})
	}
}

// publish writes a file at once.
func publish(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestAWrongCommandLineExitsWith64(t *testing.T) {
	t.Parallel()
	s := short(sqliteURL(t)).with(settings{"DIR": t.TempDir()})
	for _, args := range [][]string{
		{}, {"start"}, {"--nonsense"}, {""},
		{"run"}, {"run", "--"}, {"run", "--", ""}, {"run", "--nonsense", "--", "true"},
		{"exec"}, {"exec", "--"}, {"exec", "-x", "true"},
		{"sidecar", "now"}, {"check", "now"}, {"check", "--verdict", "now"}, {"version", "now"},
		{"init", "now"}, {"install"}, {"install", "/x", "/y"}, {"status", "--all"}, {"status", "-oxml"}, {"status", ""},
		{"unlock"}, {"unlock", "a", "b"}, {"unlock", "a", "--yes"}, {"unlock", "a", "--token", "b"}, {"unlock", "a", "--token"},
		{"migrate", "now"}, {"config", "-o"}, {"completion"}, {"completion", "tcsh"}, {"help", "start"}, {"help", "run", "now"},
	} {
		t.Run(fmt.Sprintf("%q", args), func(t *testing.T) {
			t.Parallel()
			p := start(t, s, args...)
			p.wantExit(64)
			wantSaid(t, p.said(), "lockgate: next: see: lockgate ")
		})
	}
}

func TestExitCodesOfTheOtherCommands(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"version"}, "lockgate "}, {[]string{"--version"}, "lockgate "},
		{[]string{"help"}, "usage:"}, {[]string{"--help"}, "usage:"}, {[]string{"-h"}, "usage:"},
		{[]string{"help", "run"}, "usage:"}, {[]string{"run", "--help"}, "usage:"}, {[]string{"sidecar", "-h"}, "usage:"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			p := start(t, settings{"NONSENSE": "x"}, c.args...) // they read no settings
			p.wantExit(0)
			wantSaid(t, p.said(), c.says)
		})
	}
	t.Run("a fault of our own", func(t *testing.T) {
		t.Parallel()
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer full.Close()
		cmd := exec.Command(built.lockgate, "version")
		cmd.Stdout = full
		launch(t, cmd, nil).wantExit(70)
	})
}

func TestExitCodesOfSidecar(t *testing.T) {
	t.Parallel()
	s := short(sqliteURL(t)).with(calm())
	t.Run("told to stop before anything was asked", func(t *testing.T) {
		t.Parallel()
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			p := start(t, s.with(settings{"DIR": t.TempDir()}), "sidecar")
			p.awaitOutput("ready, waiting for lockgate exec")
			p.signal(sig)
			p.wantExit(0)
		}
	})
	t.Run("nobody asked", func(t *testing.T) {
		t.Parallel()
		p := start(t, s.with(settings{"DIR": t.TempDir(), "MAIN_TIMEOUT": "300ms"}), "sidecar")
		p.wantExit(78)
		wantSaid(t, p.said(), "LOCKGATE_MAIN_TIMEOUT")
	})
	for _, code := range []string{"0", "3"} {
		t.Run("plain, main has ended with "+code, func(t *testing.T) {
			t.Parallel()
			g := startGated(t, bySidecar, s.with(settings{"NAME": "plain" + code, "SIDECAR": "plain"}), "sh", "-c", "exit "+code)
			g.holder.wantExit(0) // by itself
			g.wantOutcome(t, int(code[0]-'0'))
		})
	}
}

func TestExitCodesOfCheck(t *testing.T) {
	t.Parallel()
	dir := settings{"DIR": t.TempDir()}
	check := func(held, verdict int) {
		t.Helper()
		start(t, dir, "check").wantExit(held)
		start(t, dir, "check", "--verdict").wantExit(verdict)
	}
	s := short(sqliteURL(t)).with(settings{"ON_BUSY": "wait", "TTL": "12s"})
	check(1, 1) // nothing is there

	over := filepath.Join(t.TempDir(), "over")
	other := start(t, s.with(calm()), "run", "--", built.puppet, "-until", over)
	other.awaitOutput("lock acquired")
	sidecar := start(t, s.with(dir), "sidecar")
	end := filepath.Join(t.TempDir(), "end")
	main := start(t, dir, "exec", "--", built.puppet, "-until", end)
	sidecar.awaitOutput("waiting for the lock")
	check(1, 1)

	touch(t, over)
	main.awaitOutput("starting the command")
	check(0, 0)

	touch(t, end)
	main.wantExit(0)
	sidecar.awaitOutput("lock released")
	check(1, 0)

	// A killed sidecar cannot take back what it has published, but it is not
	// believed for longer than the lease is.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	start(t, dir, "exec", "--", "sleep", "1000").awaitOutput("starting the command")
	sidecar.signal(syscall.SIGKILL)
	sidecar.wantExit(137)
	for ctx.Err() == nil && start(t, dir, "check").wait() == 0 {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	if !exists(filepath.Join(dir["DIR"], "acquired")) {
		t.Error("the file acquired has gone; this test shows nothing")
	}
	check(1, 0)
}
