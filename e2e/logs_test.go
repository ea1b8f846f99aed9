package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// drain is where a process's output goes that nobody takes.
type drain struct {
	name string

	// open returns the writing end, and what is to be done to it when CMD runs.
	open func(t *testing.T) (w *os.File, later func())
}

func drains() []drain {
	return []drain{
		{"a full pipe", func(t *testing.T) (*os.File, func()) {
			t.Helper()
			w, fill := unread(t)
			fill()
			return w, func() {}
		}},
		{"a pipe that fills up", unread},
		{"a pipe without a reader", brokenPipe},
	}
}

// unread returns a pipe from which nobody reads, and a function that fills it to
// its last byte. In the end it checks that nobody has written since.
func unread(t *testing.T) (w *os.File, fill func()) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	must(t, syscall.SetNonblock(int(w.Fd()), false)) // as a container's pipes are
	const filling = 0
	t.Cleanup(func() { // when the processes have ended
		_ = w.Close()
		text, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || len(text) == 0 || text[len(text)-1] != filling {
			t.Errorf("%d bytes came out of the pipe, %v; want the filling last", len(text), err)
		}
	})
	return w, func() {
		t.Helper()
		// Opened anew, so that the others' writes still wait.
		again, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		must(t, err)
		defer func() { _ = syscall.Close(again) }()
		for block := make([]byte, 64<<10); len(block) > 0; {
			_, err := syscall.Write(again, block)
			switch {
			case errors.Is(err, syscall.EAGAIN):
				block = block[:len(block)/2] // down to the last byte
			case err != nil && !errors.Is(err, syscall.EINTR):
				t.Fatal(err)
			}
		}
	}
}

// brokenPipe returns a pipe whose reader has gone: a write to it is an EPIPE, and
// a SIGPIPE to who writes.
func brokenPipe(t *testing.T) (w *os.File, later func()) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	must(t, r.Close())
	t.Cleanup(func() { _ = w.Close() })
	return w, func() {}
}

// deaf is a CMD under a lock whose output, and lockgate's, goes into drains.
type deaf struct {
	gated
	later []func()
}

// startDeaf starts CMD under the lock. Each process of lockgate gets a drain of
// its own as standard output and error.
func startDeaf(t *testing.T, how way, set settings, to drain, command ...string) deaf {
	t.Helper()
	var d deaf
	start := func(set settings, args ...string) *proc {
		cmd := exec.Command(built.lockgate, args...)
		out, later := to.open(t)
		d.later = append(d.later, later)
		cmd.Stdout, cmd.Stderr = out, out
		return launch(t, cmd, set.environ())
	}
	command = append([]string{"--"}, command...)
	if how == byRun {
		d.main = start(set, append([]string{"run"}, command...)...)
		d.holder = d.main
		return d
	}
	d.dir = t.TempDir()
	d.holder = start(set.with(settings{"DIR": d.dir}), "sidecar")
	d.main = start(settings{"DIR": d.dir, "LOG_LEVEL": "debug"}, append([]string{"exec"}, command...)...)
	return d
}

// close does what is to be done to the drains when CMD runs.
func (d deaf) close() {
	for _, later := range d.later {
		later()
	}
}

// forEachDrain calls start for each kind of drain and each way. What it starts
// runs at the same time: these tests only wait.
func forEachDrain[T any](start func(name string, to drain, how way) T) []T {
	var all []T
	for _, to := range drains() {
		for _, how := range []way{byRun, bySidecar} {
			all = append(all, start(to.name+", "+string(how), to, how))
		}
	}
	return all
}

// Nobody takes what is logged, and the lock lives on for longer than its TTL;
// then everything ends as if somebody had.
func TestLogsThatNobodyTakesDoNotStopRenewals(t *testing.T) {
	t.Parallel()
	const ttl, wanted = 6 * time.Second, 20 // at some 670 ms each: more than twice the TTL
	type hold struct {
		name  string
		b     *bench
		at    stage
		g     deaf
		token uint64
		began time.Time
	}
	holds := forEachDrain(func(name string, to drain, how way) *hold {
		h := &hold{name: name, b: newBench(t, mariadb(t)), at: newStage(t)}
		h.g = startDeaf(t, how, h.b.via(settings{"TTL": ttl.String()}), to, h.at.puppet("-exit", "7")...)
		return h
	})
	for _, h := range holds {
		h.token = tokenIn(t, h.at.witness())
		h.began = time.Now()
		h.g.close()
	}
	for _, h := range holds {
		must(t, h.b.way.AwaitAnswered(inTime(t), renews, wanted))
		held, renewed := time.Since(h.began), h.b.changed(renews)
		if r, ok := h.b.row(); !ok || !r.held() || r.token != h.token {
			t.Errorf("%s: the row is %+v; want it held with token %d", h.name, r, h.token)
		}
		touch(t, h.at.curtain())
		h.g.main.wantExit(7)
		if r := h.b.awaitFree(); r.token != h.token {
			t.Errorf("%s: token %d was released; want %d", h.name, r.token, h.token)
		}
		if h.g.holder != h.g.main {
			h.g.holder.signal(syscall.SIGTERM)
			h.g.holder.wantExit(0)
		}
		t.Logf("%s: %d renewals in %s, %.1f times the TTL; released; CMD's exit code passed on",
			h.name, renewed, held.Round(time.Millisecond), held.Seconds()/ttl.Seconds())
		if renewed < wanted || held < 2*ttl {
			t.Errorf("%s: %d renewals in %s; want %d in more than %s", h.name, renewed, held, wanted, 2*ttl)
		}
	}
}

func TestLogsThatNobodyTakesDoNotDelayAStop(t *testing.T) {
	t.Parallel()
	const times = 2
	// A margin that a busy machine does not use up: the question is not whether
	// a stop takes milliseconds, but whether it waits for a reader.
	lease := settings{"TTL": "7s", "SAFETY_MARGIN": "3500ms"}
	type game struct {
		name     string
		b        *bench
		at, next stage
		first    deaf
		second   *proc
	}
	var games []*game
	for range times {
		games = append(games, forEachDrain(func(name string, to drain, how way) *game {
			g := &game{name: name, b: newBench(t, mariadb(t)), at: newStage(t), next: newStage(t)}
			g.first = startDeaf(t, how, g.b.via(lease), to, g.at.puppet("-stubborn", "-beat", g.at.beat(),
				"-stubborn-grandchild", "-grandchild", g.at.grandchild())...)
			return g
		})...)
	}
	for _, g := range games {
		tokenIn(t, g.at.witness())
		awaitFile(t, g.at.grandchild())
		g.first.close()
		g.second = g.next.run(t, g.b.past(settings{"ON_BUSY": "wait"}).with(calm()))
	}
	for _, g := range games {
		g.second.awaitOutput("waiting for the lock")
		must(t, g.b.way.AwaitAnswered(inTime(t), renews, 1))
		must(t, g.b.way.SetMode(testserver.Blackhole))
	}
	var all gaps
	for _, g := range games {
		tokenIn(t, g.next.witness())
		acquired := g.b.acquiredAt()
		g.first.main.wantExit(76)
		last := lastBeat(t, g.at.beat())
		if grandchild := lastBeat(t, g.at.grandchild()); grandchild.After(last) {
			last = grandchild
		}
		all = append(all, acquired.Sub(last))
		if !acquired.After(last) {
			t.Errorf("%s: A lived for %s after B had acquired", g.name, last.Sub(acquired))
		}
		touch(t, g.next.curtain())
		g.second.wantExit(0)
		if g.first.holder != g.first.main {
			g.first.holder.signal(syscall.SIGTERM)
			g.first.holder.wantExit(0)
		}
	}
	all.wantPositive(t)
}

func (s stage) grandchild() string { return filepath.Join(s.dir, "grandchild") }

// acquiredAt is when the lock was acquired, by the server's clock, which is the
// puppets' as well.
func (b *bench) acquiredAt() time.Time {
	b.t.Helper()
	var us int64
	must(b.t, b.server.Admin().QueryRowContext(inTime(b.t), "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', acquired_at) "+
		"FROM "+b.schema+".lockgate_locks WHERE name = ?", lockName).Scan(&us))
	return time.UnixMicro(us)
}

// A reader that goes in mid-hold is what a restart of a container runtime, or
// the end of a "| head", looks like.
func TestAReaderOfTheLogThatGoesEndsNothing(t *testing.T) {
	t.Parallel()
	for _, how := range []way{byRun, bySidecar} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			b, at := newBench(t, mariadb(t)), newStage(t)
			to := drain{open: func(t *testing.T) (*os.File, func()) {
				t.Helper()
				r, w, err := os.Pipe()
				must(t, err)
				t.Cleanup(func() { _, _ = r.Close(), w.Close() })
				return w, func() { must(t, r.Close()) }
			}}
			g := startDeaf(t, how, b.via(settings{"TTL": "30s"}), to, at.puppet("-exit", "7")...)
			token := tokenIn(t, at.witness())
			g.close()
			// Trouble makes it log: the server is away for a moment.
			b.awaitStatements(renews, 1)
			before := b.way.Accepted()
			b.way.Reset()
			must(t, b.way.AwaitAccepted(inTime(t), before+1))
			b.awaitStatements(renews, 2)

			// And so does a signal to the sidecar.
			if g.holder != g.main {
				g.holder.signal(syscall.SIGTERM)
				b.awaitStatements(renews, 2)
			}
			touch(t, at.curtain())
			g.main.wantExit(7)
			if g.holder != g.main {
				g.holder.wantExit(0)
			}
			if r := b.awaitFree(); r.token != token {
				t.Errorf("token %d was released; want %d", r.token, token)
			}
		})
	}
}

// What CMD makes of a broken pipe is its own affair, and as it would be without
// lockgate.
func TestCMDHasTheUsualSIGPIPE(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, how way) {
		yes := startDeaf(t, how, short(sqliteURL(t)).with(calm()), drain{open: brokenPipe}, "sh", "-c", "echo x; exit 3")
		if code := yes.main.wait(); code != 128+int(syscall.SIGPIPE) {
			t.Errorf("CMD that writes into a broken pipe ended with %s; want 128 and SIGPIPE", strconv.Itoa(code))
		}
	})
}
