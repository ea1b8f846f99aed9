package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// way is how a contender is started.
type way string

const (
	byRun     way = "run"
	bySidecar way = "sidecar and exec"
	byPidOne  way = "sidecar and exec as pid 1" // exec in a PID namespace of its own, as in a container
)

// patient are settings with which a machine that is busy with other things can
// be late by a second and more without being taken for a fault: the trust window
// is 4.5s, CMD is killed 0.5s later, the lease ends after 7s.
func patient(url string) settings {
	return short(url).with(settings{
		"TTL": patientTTL.String(), "RENEW_EVERY": patientRenewEvery.String(), "STOP_GRACE": "500ms", "SAFETY_MARGIN": "2s",
	})
}

const (
	patientTTL        = 7 * time.Second
	patientRenewEvery = time.Second
)

// contender is one of two that want the same lock.
type contender struct {
	t       *testing.T
	dir     string
	mark    string // of all its processes
	holder  *proc  // run or sidecar
	wrapper *proc  // run, exec, or the unshare that has started exec as pid 1
	beats   []string
}

// startContender starts one. It returns before the lock is asked for. CMD lives
// until the file "until" is there. A stubborn one and its grandchild, in a
// session of its own, ignore SIGTERM and write down when they live.
func startContender(t *testing.T, binary string, s settings, how way, stubborn bool) *contender {
	t.Helper()
	c := &contender{t: t, dir: t.TempDir(), mark: newMark(t)}
	cmd := []string{"--", built.puppet, "-witness", c.path("witness"), "-until", c.path("until")}
	if stubborn {
		c.beats = []string{c.path("beats"), c.path("grandchild")}
		cmd = append(cmd, "-stubborn", "-beat", c.beats[0], "-stubborn-grandchild", "-grandchild", c.beats[1])
	}
	// What a failed test leaves of a run's private directory goes with our own.
	common := []string{markVar + "=" + c.mark, "XDG_RUNTIME_DIR=" + c.mkdir("runtime")}
	if how == byRun {
		c.holder = launch(t, exec.Command(binary, append([]string{"run"}, cmd...)...), append(s.environ(), common...))
		c.wrapper = c.holder
		return c
	}
	gate := settings{"DIR": c.mkdir("gate"), "LOG_FORMAT": "json", "LOG_LEVEL": "debug"}
	c.holder = launch(t, exec.Command(binary, "sidecar"), append(s.with(gate).environ(), common...))
	args := append([]string{binary, "exec"}, cmd...)
	if how == byPidOne {
		args = append(newNamespace(), args...)
	}
	c.wrapper = launch(t, exec.Command(args[0], args[1:]...), append(gate.environ(), common...))
	return c
}

// newNamespace is the beginning of a command line whose rest becomes pid 1 of a
// PID namespace with a /proc of its own. Who is not root is root in a user
// namespace for it.
func newNamespace() []string {
	args := []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	return args
}

func (c *contender) path(name string) string { return filepath.Join(c.dir, name) }

func (c *contender) mkdir(name string) string {
	c.t.Helper()
	if err := os.Mkdir(c.path(name), 0o700); err != nil {
		c.t.Fatal(err)
	}
	return c.path(name)
}

// awaitRunning waits until CMD, and its grandchild if it has one, live.
func (c *contender) awaitRunning() {
	c.t.Helper()
	awaitFile(c.t, c.path("witness"))
	for _, beats := range c.beats {
		await(c.t, "there are "+beats, func() bool {
			info, err := os.Stat(beats)
			return err == nil && info.Size() > 0
		})
	}
}

// find returns the one living process whose command line is meant.
func (c *contender) find(what string, isMeant func(args []string) bool) (pid int) {
	c.t.Helper()
	var found []int
	for _, pid := range marked(c.mark) {
		if isMeant(commandLine(pid)) {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		c.t.Fatalf("processes %v are %s; want one", found, what)
	}
	return found[0]
}

func commandLine(pid int) []string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
}

// half is the guarding half of a run.
func (c *contender) half() int {
	c.t.Helper()
	return c.find("a guarding half", func(args []string) bool {
		return slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--half-of-run=") })
	})
}

// exec is exec itself, not the unshare that has started it.
func (c *contender) exec() int {
	c.t.Helper()
	return c.find("an exec", func(args []string) bool { return len(args) > 1 && args[1] == "exec" })
}

func (c *contender) grandchild() int {
	c.t.Helper()
	return c.find("a grandchild", func(args []string) bool { return args[0] == built.puppet && !slices.Contains(args, "-witness") })
}

// lastLife is the last sign of life of CMD or its grandchild.
func (c *contender) lastLife() time.Time {
	c.t.Helper()
	var last time.Time
	for _, beats := range c.beats {
		if beat := lastBeat(c.t, beats); beat.After(last) {
			last = beat
		}
	}
	return last
}

// kill kills one process.
func (c *contender) kill(pid int) {
	c.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
}

// freeze stops one process and returns when it stands still.
func (c *contender) freeze(pid int) {
	c.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	await(c.t, fmt.Sprintf("process %d stands still", pid), func() bool {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return strings.Contains(string(line), ") T ")
	})
}

// thaw lets a frozen process go on.
func (c *contender) thaw(pid int) {
	c.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
}

// stopSidecar ends the sidecar, if there is one. It ends only when it has
// nothing more to do.
func (c *contender) stopSidecar() {
	c.t.Helper()
	if c.holder != c.wrapper {
		c.holder.signal(syscall.SIGTERM)
		c.holder.wantExit(0)
	}
}

// wantNothingLeft checks that no process and no private directory is left.
func (c *contender) wantNothingLeft() {
	c.t.Helper()
	await(c.t, "every process is gone", func() bool { return len(marked(c.mark)) == 0 })
	if left, err := os.ReadDir(c.path("runtime")); err != nil || len(left) > 0 {
		c.t.Errorf("%s: %v %v; want it empty", c.path("runtime"), left, err)
	}
}

// pair is two contenders for one lock: A has it and is reached by way of a
// forwarder, B waits for it.
type pair struct {
	t       *testing.T
	server  *testserver.MariaDB
	schema  string
	network *testserver.Forwarder // A's
	a, b    *contender
	first   row       // A's
	fault   time.Time // just before something of A's was killed or frozen or lost its network
}

// startPairs starts n pairs, each in a schema of its own, and returns when every
// A runs its CMD and every B waits.
func startPairs(t *testing.T, n int, binary string, s settings, how way) []*pair {
	t.Helper()
	var pairs []*pair
	var urls []string
	for range n {
		p := &pair{t: t, server: mariadb(t)}
		p.network = testserver.NewForwarder(t, "tcp", p.server.Address())
		url := account(t, p.server, "")
		p.schema = url[strings.LastIndexByte(url, '/')+1:]
		through := strings.Replace(url, p.server.Address(), p.network.Address(), 1)
		p.a = startContender(t, binary, patient(through).with(s), how, true)
		pairs, urls = append(pairs, p), append(urls, url)
	}
	for i, p := range pairs {
		p.a.awaitRunning()
		p.first = p.row()
		// B renews so rarely that whatever moves its row is not B.
		p.b = startContender(t, binary, patient(urls[i]).with(settings{
			"ON_BUSY": "wait", "WAIT_TIMEOUT": "0", "POLL_EVERY": "50ms", "TTL": "10m", "RENEW_EVERY": "2m",
		}), how, false)
	}
	for _, p := range pairs {
		p.b.holder.awaitOutput("waiting for the lock")
	}
	return pairs
}

// row is the lock as the store has it. The server runs on this machine: its
// clock is also the puppets'.
type row struct {
	owner                      string
	token                      uint64
	acquired, renewed, expires int64 // Unix µs
	isReleased                 bool
}

func (p *pair) row() row {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var r row
	err := p.server.Admin().QueryRowContext(ctx, `SELECT owner, token, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', acquired_at), `+
		`TIMESTAMPDIFF(MICROSECOND, '1970-01-01', renewed_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at), `+
		`released_at IS NOT NULL FROM `+p.schema+`.lockgate_locks WHERE name = 'nightly'`).
		Scan(&r.owner, &r.token, &r.acquired, &r.renewed, &r.expires, &r.isReleased)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// wantRenewedPast waits until A's lease was renewed after a moment, and checks
// that it has been A's all the time.
func (p *pair) wantRenewedPast(moment time.Time) {
	p.t.Helper()
	await(p.t, "A's lease is renewed", func() bool {
		r := p.row()
		if r.owner != p.first.owner || r.token != p.first.token || r.isReleased {
			p.t.Fatalf("the row is %+v while A lives; want A's, %+v", r, p.first)
		}
		return r.renewed > moment.UnixMicro()
	})
}

// awaitB waits until B runs its CMD, and returns B's row.
func (p *pair) awaitB() row {
	p.t.Helper()
	p.b.awaitRunning()
	r := p.row()
	if r.owner == p.first.owner || r.token <= p.first.token {
		p.t.Fatalf("B runs under %+v; want another owner and a greater token than A's %+v", r, p.first)
	}
	return r
}

// awaitNobodyConnected waits until A has no connection to the server any more. B
// has none while it holds: it renews too rarely for that.
func (p *pair) awaitNobodyConnected() {
	p.t.Helper()
	await(p.t, "nobody is connected", func() bool {
		var n int
		err := p.server.Admin().QueryRowContext(p.t.Context(),
			"SELECT COUNT(*) FROM information_schema.processlist WHERE user = ?", "u_"+p.schema).Scan(&n)
		if err != nil {
			p.t.Fatal(err)
		}
		return n == 0
	})
}

// gap is the time from the last sign of life of A to B's acquisition. A's CMD
// must have ended, and B must run.
func (p *pair) gap() time.Duration {
	p.t.Helper()
	return time.UnixMicro(p.row().acquired).Sub(p.a.lastLife())
}

// wantLifeAfterFault checks that A's CMD went on after the fault: had it ended
// for another reason, there would be nothing to see.
func (p *pair) wantLifeAfterFault() {
	p.t.Helper()
	if last := p.a.lastLife(); !last.After(p.fault) {
		p.t.Errorf("A was last seen %s before the fault", p.fault.Sub(last))
	}
}

// endB lets B come to its end, which nothing must have disturbed, and checks
// that nothing is left of both.
func (p *pair) endB() {
	p.t.Helper()
	touch(p.t, p.b.path("until"))
	p.b.wrapper.wantExit(0)
	p.b.stopSidecar()
	p.b.wantNothingLeft()
	p.a.wantNothingLeft()
	if r := p.row(); !r.isReleased {
		p.t.Errorf("the row is %+v after B's end; want it released", r)
	}
}

// each does something to all pairs at once.
func each(t *testing.T, pairs []*pair, do func(ctx context.Context, p *pair) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	errs := make([]error, len(pairs))
	var all sync.WaitGroup
	for i, p := range pairs {
		all.Go(func() { errs[i] = do(ctx, p) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// gaps are what these tests measure and print.
type gaps []time.Duration

func (g gaps) String() string {
	positive := 0
	var all []string
	for _, gap := range g {
		if gap > 0 {
			positive++
		}
		all = append(all, fmt.Sprintf("%.1f", float64(gap.Microseconds())/1000))
	}
	return fmt.Sprintf("%d of %d gaps positive, smallest %s; all, in ms: %s",
		positive, len(g), slices.Min(g).Round(time.Millisecond/10), strings.Join(all, " "))
}

// wantPositive prints the gaps and checks that no A and B ever overlapped.
func (g gaps) wantPositive(t *testing.T) {
	t.Helper()
	t.Log(g)
	if slices.Min(g) <= 0 {
		t.Errorf("A lived when B acquired: %s", g)
	}
}
