package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/lockgate/lockgate/internal/testserver"
)

// That no goroutine is left after a gate's Run is tested where Run is: each test
// of internal/gate runs in a bubble that fails if one is.

// The server counts connections that ended without a goodbye, and shows those
// that have not ended.
func TestNoConnectionIsLeftOnTheServer(t *testing.T) {
	t.Parallel()
	server, err := testserver.StartMariaDB(inTime(t), testserver.Options{})
	must(t, err)
	t.Cleanup(func() { // after the databases were dropped
		pid := server.PID()
		must(t, server.Close())
		if exists(server.Dir()) || exists(fmt.Sprintf("/proc/%d", pid)) {
			t.Errorf("the test's own server has left %s or process %d", server.Dir(), pid)
		}
	})
	most, total, rude := 0, 0, 0
	for _, how := range []way{byRun, bySidecar} {
		b := newBench(t, server)
		s := b.past(calm())
		lives := func() int {
			n := 0
			must(t, server.Admin().QueryRowContext(inTime(t), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = ?", "u_"+b.schema).Scan(&n))
			most = max(most, n)
			return n
		}
		aborted := func() (n int) {
			var name string
			must(t, server.Admin().QueryRowContext(inTime(t), "SHOW GLOBAL STATUS LIKE 'Aborted_clients'").Scan(&name, &n))
			return n
		}
		opened := func() (n int) {
			var name string
			must(t, server.Admin().QueryRowContext(inTime(t), "SHOW GLOBAL STATUS LIKE 'Connections'").Scan(&name, &n))
			return n
		}
		before, first := aborted(), opened()
		wantNone := func(after string, g gated) {
			t.Helper()
			if g.holder != g.main {
				g.holder.signal(syscall.SIGTERM)
				g.holder.wantExit(0)
			}
			await(t, "no connection after "+after, func() bool { return lives() == 0 })
			if n := aborted() - before; n > 0 {
				t.Errorf("%s, after %s: %d connections ended without a goodbye", how, after, n)
			}
		}

		g := startGated(t, how, s, "sh", "-c", "exit 3")
		g.main.wantExit(3)
		wantNone("a command that failed", g)

		at := newStage(t)
		g = startGated(t, how, s, at.puppet()...)
		tokenIn(t, at.witness())
		other := startGated(t, how, s, "true")
		other.main.wantExit(0)
		wantNone("a skip", gated{main: other.main, holder: other.main})
		if other.holder != other.main {
			other.holder.signal(syscall.SIGTERM)
			other.holder.wantExit(0)
		}
		// It renews once a minute, and does not keep a connection for that.
		await(t, "no connection between renewals", func() bool { return lives() == 0 })
		touch(t, at.curtain())
		g.main.wantExit(0)
		wantNone("a long command", g)

		at = newStage(t)
		g = startGated(t, how, b.past(settings{"TTL": "1m"}), at.puppet("-linger", "1s")...) // renews all the time
		tokenIn(t, at.witness())
		if n := lives(); n > 1 {
			t.Errorf("a holder has %d connections; want 1", n)
		}
		g.main.signal(syscall.SIGTERM)
		g.main.wantExit(0)
		wantNone("a command that was told to stop", g)
		total, rude = total+opened()-first, rude+aborted()-before
	}
	t.Logf("%d connections made, at most %d at a time, none left, %d ended without a goodbye", total, most, rude)
}

// A daemon gets away from its parents: it has a session of its own, its parent
// has ended and so has its parent's parent.
func TestNoDescendantOfCMDIsLeft(t *testing.T) {
	t.Parallel()
	const daemon = `(setsid sh -c '"$0" -stubborn -beat "$1" -for 10m & "$0" -for 10m & exit' "$0" "$1" &); `
	for _, c := range []struct {
		name string
		end  string // how CMD ends once the daemon lives
		told syscall.Signal
		want int
	}{
		{"CMD ends", `exec "$0" -until "$2" -exit 3`, 0, 3},
		{"CMD kills itself", `"$0" -until "$2"; kill -KILL $$`, 0, 137},
		{"CMD is told to stop", `exec "$0" -until "$2"-never`, syscall.SIGTERM, 143},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bothWays(t, func(t *testing.T, how way) {
				beats, end := filepath.Join(t.TempDir(), "beats"), filepath.Join(t.TempDir(), "end")
				g := startGated(t, how, short(sqliteURL(t)).with(calm()),
					"sh", "-c", daemon+c.end, built.puppet, beats, end)
				awaitFile(t, beats)
				lived := len(marked(g.main.mark))
				touch(t, end)
				if c.told != 0 {
					g.main.signal(c.told)
				}
				g.main.wantExit(c.want)
				left := marked(g.main.mark)
				t.Logf("%d processes lived, %d are left", lived, len(left))
				if len(left) > 0 {
					t.Errorf("processes %v are left", left)
				}
			})
		})
	}
	t.Run("the lock is lost", func(t *testing.T) {
		t.Parallel()
		bothWays(t, func(t *testing.T, how way) {
			b := newBench(t, mariadb(t))
			beats := filepath.Join(t.TempDir(), "beats")
			g := startGated(t, how, b.past(settings{"TTL": "1m"}), "sh", "-c", daemon+`exec "$0" -stubborn -for 10m`, built.puppet, beats)
			awaitFile(t, beats)
			lived := len(marked(g.main.mark))
			b.server.Exec(t, "UPDATE "+b.schema+".lockgate_locks SET revoked_at = UTC_TIMESTAMP(6)")
			g.main.wantExit(76)
			left := marked(g.main.mark)
			t.Logf("%d processes lived, %d are left", lived, len(left))
			if len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	})
}

func TestCMDInheritsNoFileButMainLock(t *testing.T) {
	t.Parallel()
	// The shell lists its own files, by a process that has others.
	const list = `(exec ls -l /proc/$$/fd > "$0"); exit 3`
	file := filepath.Join(t.TempDir(), "plain")
	launch(t, exec.Command("sh", "-c", list, file), settings{}.environ()).wantExit(3)
	plain := filesListed(t, file) // what the tests themselves have inherited
	bothWays(t, func(t *testing.T, how way) {
		file := filepath.Join(t.TempDir(), "list")
		startGated(t, how, short(sqliteURL(t)).with(calm()), "sh", "-c", list, file).main.wantExit(3)
		files := filesListed(t, file)
		t.Logf("CMD's files: %v; without lockgate: %v", files, plain)
		locks := 0
		for fd, target := range files {
			switch _, usual := plain[fd]; {
			case usual:
			case fd >= 60 && strings.HasSuffix(target, "/main.lock"):
				locks++
			default:
				t.Errorf("CMD has file %d, %s", fd, target)
			}
		}
		if locks != 1 {
			t.Errorf("CMD has main.lock %d times; want once", locks)
		}
		for fd := range plain {
			if _, ok := files[fd]; !ok {
				t.Errorf("CMD has no file %d", fd)
			}
		}
	})
}

// filesListed reads what ls says of a folder of open files.
func filesListed(t *testing.T, list string) map[int]string {
	t.Helper()
	text, err := os.ReadFile(list)
	must(t, err)
	files := map[int]string{}
	for line := range strings.Lines(string(text)) {
		if left, target, ok := strings.Cut(strings.TrimSpace(line), " -> "); ok {
			fd, err := strconv.Atoi(left[strings.LastIndexByte(left, ' ')+1:])
			must(t, err)
			files[fd] = target
		}
	}
	return files
}

// usage is what a process has of the kernel.
type usage struct {
	files   []string
	threads int
	rssKB   int
}

func usageOf(t *testing.T, pid int) usage {
	t.Helper()
	var u usage
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	for _, e := range entries {
		if target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); err == nil {
			name, _, _ := strings.Cut(target, "[") // the number of a socket or pipe
			u.files = append(u.files, name)
		}
	}
	slices.Sort(u.files)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		switch fields[0] {
		case "Threads:":
			u.threads, _ = strconv.Atoi(fields[1])
		case "VmRSS:":
			u.rssKB, _ = strconv.Atoi(fields[1])
		}
	}
	return u
}

func filesIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	return names
}

func TestASidecarDoesNotGrow(t *testing.T) {
	t.Parallel()
	const warm, cycles = 10, 100
	for _, c := range []struct {
		name string
		url  func(t *testing.T) string
	}{{"MariaDB", database}, {"SQLite", sqliteURL}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			holder := sidecar(t, dir, short(c.url(t)).with(settings{"TTL": "1m", "RENEW_EVERY": "5s"}))
			done := 0
			serve := func(n int) usage {
				for range n {
					done++
					execute(t, dir, "sh", "-c", "exit 3").wantExit(3)
				}
				await(t, "the last word", func() bool {
					return strings.Count(holder.output(), `"lock released"`) == done && stateIn(t, dir).State == "released"
				})
				return usageOf(t, holder.pid())
			}
			before := serve(warm)
			shared := filesIn(t, dir)
			after := serve(cycles)
			await(t, "the same number of open files as before", func() bool { // one may just be looked at
				after = usageOf(t, holder.pid())
				return len(after.files) <= len(before.files)
			})
			t.Logf("%d open files after %d requests, %d after %d more; %d threads, then %d; %d KiB resident, then %d",
				len(before.files), warm, len(after.files), cycles, before.threads, after.threads, before.rssKB, after.rssKB)
			if !slices.Equal(before.files, after.files) {
				t.Errorf("open files: %q after %d requests, %q after %d more", before.files, warm, after.files, cycles)
			}
			// Threads come and go as the runtime likes, but not with requests.
			if after.threads > before.threads+cycles/10 {
				t.Errorf("%d threads after %d requests, %d after %d more", before.threads, warm, after.threads, cycles)
			}
			if now := filesIn(t, dir); !maps.Equal(shared, now) {
				t.Errorf("the gate directory has %v; want %v as before", now, shared)
			}
			holder.signal(syscall.SIGTERM)
			holder.wantExit(0)
		})
	}
}

func TestNoPrivateDirectoryOfRunIsLeft(t *testing.T) {
	t.Parallel()
	s := short(sqliteURL(t))
	occupy(t, s)
	free := short(sqliteURL(t)).with(calm())
	for _, c := range []struct {
		name string
		s    settings
		cmd  string
		act  func(t *testing.T, p *proc)
		want int
	}{
		{"CMD succeeds", free.with(settings{"NAME": "a"}), "exit 0", nil, 0},
		{"CMD fails", free.with(settings{"NAME": "b"}), "exit 3", nil, 3},
		{"CMD is killed", free.with(settings{"NAME": "c"}), "kill -KILL $$", nil, 137},
		{"skipped", s, "exit 0", nil, 0},
		{"busy", s.with(settings{"ON_BUSY": "fail"}), "exit 0", nil, 75},
		{"told to stop while it waits", s.with(settings{"ON_BUSY": "wait"}), "exit 0", func(_ *testing.T, p *proc) {
			p.awaitOutput("waiting for the lock")
			p.signal(syscall.SIGTERM)
		}, 143},
		{"told to stop while CMD runs", free.with(settings{"NAME": "d"}), "exec sleep 1000", func(_ *testing.T, p *proc) {
			p.awaitOutput("lock is held, starting the command")
			p.signal(syscall.SIGTERM)
		}, 143},
		{"killed while CMD runs", free.with(settings{"NAME": "e"}), "exec sleep 1000", func(t *testing.T, p *proc) {
			p.awaitOutput("lock is held, starting the command")
			half := children(p.pid())[0]
			p.kill() // the other half looks whether this one has ended, when it ends itself
			must(t, syscall.Kill(half, syscall.SIGTERM))
			await(t, "the other half has ended", func() bool { return len(marked(p.mark)) == 0 })
		}, 137},
		{"no store", settings{"NAME": "f", "DB_URL": "sqlite:///no/such/folder/locks.db"}, "exit 0", nil, 69},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			runtime := t.TempDir()
			p := launch(t, exec.Command(built.lockgate, "run", "--", "sh", "-c", c.cmd), append(c.s.environ(), "XDG_RUNTIME_DIR="+runtime))
			if c.act != nil {
				c.act(t, p)
			}
			p.wantExit(c.want)
			if left := filesIn(t, runtime); len(left) > 0 {
				t.Errorf("%v is left", left)
			}
		})
	}
	t.Run("where there is no folder for it", func(t *testing.T) {
		t.Parallel()
		environ := slices.DeleteFunc(free.with(settings{"NAME": "g"}).environ(), func(entry string) bool {
			return strings.HasPrefix(entry, "XDG_RUNTIME_DIR=")
		})
		file := filepath.Join(t.TempDir(), "dir")
		launch(t, exec.Command(built.lockgate, "run", "--", "sh", "-c", `echo "$LOCKGATE_DIR" > "$0"`, file), environ).wantExit(0)
		text, err := os.ReadFile(file)
		must(t, err)
		if dir := strings.TrimSpace(string(text)); !strings.Contains(dir, "/lockgate-") || exists(dir) {
			t.Errorf("the private directory was %q, and is there: %v", dir, exists(dir))
		}
	})
}
