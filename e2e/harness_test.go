package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// patience bounds every wait of a test. It is no measure of anything: a wait
// that runs into it is a failure.
const patience = 2 * time.Minute

// settings are environment variables without the prefix.
type settings map[string]string

// with returns a copy with more settings.
func (s settings) with(more settings) settings {
	out := maps.Clone(s)
	maps.Copy(out, more)
	return out
}

func (s settings) environ() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "USER=tester", "TMPDIR=" + os.TempDir(),
		"XDG_RUNTIME_DIR=" + built.runtime}
	for k, v := range s {
		env = append(env, "LOCKGATE_"+k+"="+v)
	}
	return env
}

// short are settings for a lease that a test can outlive: the trust window is
// 2.4s, CMD is killed 0.6s later, the lease ends after 4s.
func short(url string) settings {
	return settings{
		"NAME": "nightly", "DB_URL": url, "LOG_FORMAT": "json", "LOG_LEVEL": "debug",
		"TTL": "4s", "RENEW_EVERY": "700ms", "STOP_GRACE": "600ms", "SAFETY_MARGIN": "1s",
		"POLL_EVERY": "50ms", "START_TIMEOUT": "1m", "WAIT_TIMEOUT": "2m",
	}
}

// database makes a fresh schema on the shared server, and an ordinary user for
// it.
func database(t *testing.T) (url string) {
	t.Helper()
	return account(t, mariadb(t), "")
}

// account makes a fresh schema on a server and returns its URL for an ordinary
// user, by way of address if that is not empty.
func account(t *testing.T, server *testserver.MariaDB, address string) string {
	t.Helper()
	schema := server.NewDatabase(t)
	user := testserver.User{Name: "u_" + schema, Password: "s3cret", Grants: []string{"ALL ON " + schema + ".*"}}
	server.NewUser(t, user)
	if address == "" {
		address = server.Address()
	}
	return "mysql://" + user.Name + ":" + user.Password + "@" + address + "/" + schema
}

// sqliteURL names a fresh SQLite file.
func sqliteURL(t *testing.T) string {
	return "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
}

// proc is a process under test.
type proc struct {
	t    *testing.T
	cmd  *exec.Cmd
	mark string // in the environment of it and of all that it started
	done chan struct{}

	drained chan struct{} // closed when nobody can write to the log any more

	mu      sync.Mutex
	changed chan struct{}
	log     bytes.Buffer
}

// start starts lockgate. Whatever happens, it and all that it started are dead
// when the test has ended.
func start(t *testing.T, s settings, args ...string) *proc {
	t.Helper()
	return launch(t, exec.Command(built.lockgate, args...), s.environ())
}

// launch starts any command as a process under test. It gets a mark of its own
// unless environ has one.
func launch(t *testing.T, cmd *exec.Cmd, environ []string) *proc {
	t.Helper()
	p := &proc{t: t, cmd: cmd, done: make(chan struct{}), changed: make(chan struct{}), drained: make(chan struct{})}
	if p.mark = markOf(environ); p.mark == "" {
		p.mark = newMark(t)
		environ = append(environ, markVar+"="+p.mark)
	}
	cmd.Env = environ
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Stderr == nil {
		cmd.Stderr = w
	}
	if cmd.Stdout == nil {
		cmd.Stdout = w
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	go p.read(r)
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		if !p.ended() {
			killMarked(t, p.mark)
		}
		<-p.done
		if t.Failed() {
			t.Logf("%s\n%s", strings.Join(cmd.Args, " "), p.output())
		}
	})
	return p
}

func (p *proc) read(r *os.File) {
	defer close(p.drained)
	defer func() { _ = r.Close() }()
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		p.mu.Lock()
		p.log.Write(line)
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *proc) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// said waits for the end and returns all that the process and what it started
// have written.
func (p *proc) said() string {
	p.t.Helper()
	p.wait()
	select {
	case <-p.drained:
	case <-time.After(patience):
		p.t.Fatalf("something holds the output of %s open", strings.Join(p.cmd.Args, " "))
	}
	return p.output()
}

// awaitOutput waits until the process has written text.
func (p *proc) awaitOutput(text string) {
	p.t.Helper()
	limit := time.After(patience)
	for {
		p.mu.Lock()
		found, changed := strings.Contains(p.log.String(), text), p.changed
		p.mu.Unlock()
		if found {
			return
		}
		select {
		case <-changed:
		case <-limit:
			p.t.Fatalf("%s never wrote %q", strings.Join(p.cmd.Args, " "), text)
		}
	}
}

// wait waits for the end and returns the exit code, 128+n for signal n.
func (p *proc) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", strings.Join(p.cmd.Args, " "))
	}
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// wantExit waits for the end and checks the exit code.
func (p *proc) wantExit(code int) {
	p.t.Helper()
	if got := p.wait(); got != code {
		p.t.Errorf("%s ended with %d; want %d", strings.Join(p.cmd.Args, " "), got, code)
	}
}

func (p *proc) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *proc) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
}

// pid is the process's number.
func (p *proc) pid() int { return p.cmd.Process.Pid }

// children returns the numbers of a process's children.
func children(pid int) []int {
	var out []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat")); err == nil {
			fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
			if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
				out = append(out, n)
			}
		}
	}
	return out
}

// markVar marks a process under test and all that it starts, however far they
// get away from it: lockgate and its CMD hand their environment on.
const markVar = "LOCKGATE_E2E_MARK"

// newMark returns a mark whose processes are dead when the test has ended.
func newMark(t *testing.T) string {
	t.Helper()
	mark := rand.Text()
	t.Cleanup(func() { killMarked(t, mark) })
	return mark
}

func markOf(environ []string) string {
	for _, entry := range environ {
		if mark, ok := strings.CutPrefix(entry, markVar+"="); ok {
			return mark
		}
	}
	return ""
}

// marked returns the processes with a mark that live.
func marked(mark string) []int {
	var out []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // empty of a dead one
		if err == nil && bytes.Contains(environ, []byte(markVar+"="+mark+"\x00")) {
			out = append(out, pid)
		}
	}
	return out
}

// killMarked kills the processes with a mark, until there is none.
func killMarked(t *testing.T, mark string) {
	t.Helper()
	limit := time.Now().Add(patience)
	for {
		left := marked(mark)
		if len(left) == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Errorf("processes %v cannot be killed", left)
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(time.Millisecond)
	}
}

// await polls a condition for which there is no event.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: it never came to that", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// awaitFile waits until a file exists.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	await(t, path+" exists", func() bool { return exists(path) })
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// lastBeat returns the last sign of life in a puppet's beat file.
func lastBeat(t *testing.T, path string) time.Time {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(data))
	if len(lines) == 0 {
		t.Fatalf("%s: no sign of life", path)
	}
	us, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(us)
}
