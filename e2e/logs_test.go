package e2e

import (
	"bytes"
	"errors"
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
	// open returns the writing end.
	open func(t *testing.T) *os.File
}

func drains() []drain {
	return []drain{{"a full pipe", fullPipe}, {"a pipe without a reader", brokenPipe}}
}

// fullPipe returns a pipe that takes not one byte more, and checks in the end
// that it never did.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	must(t, w.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	filled, err := w.Write(make([]byte, 4<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a pipe took %d bytes, %v; want it full", filled, err)
	}
	must(t, syscall.SetNonblock(int(w.Fd()), false)) // as a container's pipes are
	t.Cleanup(func() {                               // when the processes have ended
		_ = w.Close()
		text, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || len(text) != filled || bytes.Count(text, []byte{0}) != filled {
			t.Errorf("%d bytes came out of a pipe with %d, %v; it was not full all the time", len(text), filled, err)
		}
	})
	return w
}

// brokenPipe returns a pipe whose reader has gone: a write to it is an EPIPE, and
// a SIGPIPE to who writes.
func brokenPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	must(t, r.Close())
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// startDeaf starts CMD under the lock, every standard output and error of
// lockgate, and so of CMD, going into a drain.
func startDeaf(t *testing.T, how way, set settings, to drain, command ...string) gated {
	t.Helper()
	start := func(set settings, args ...string) *proc {
		cmd := exec.Command(built.lockgate, args...)
		out := to.open(t)
		cmd.Stdout, cmd.Stderr = out, out
		return launch(t, cmd, set.environ())
	}
	command = append([]string{"--"}, command...)
	if how == byRun {
		p := start(set, append([]string{"run"}, command...)...)
		return gated{main: p, holder: p}
	}
	dir := t.TempDir()
	return gated{
		dir:    dir,
		holder: start(set.with(settings{"DIR": dir}), "sidecar"),
		main:   start(settings{"DIR": dir, "LOG_LEVEL": "debug"}, append([]string{"exec"}, command...)...),
	}
}

// Nobody takes what is logged, and the lock lives on for longer than its TTL;
// then everything ends as if somebody had.
func TestLogsThatNobodyTakesDoNotStopRenewals(t *testing.T) {
	t.Parallel()
	for _, to := range drains() {
		for _, how := range []way{byRun, bySidecar} {
			t.Run(to.name+", "+string(how), func(t *testing.T) {
				t.Parallel()
				const wanted = 14 // at 700 ms each: more than twice the TTL of 4 s
				b, at := newBench(t, mariadb(t)), newStage(t)
				g := startDeaf(t, how, b.via(nil), to, at.puppet("-exit", "7")...)
				token := tokenIn(t, at.witness())
				began := time.Now()
				b.awaitStatements(renews, wanted)
				held := time.Since(began)
				if r, ok := b.row(); !ok || !r.held() || r.token != token {
					t.Errorf("the row is %+v; want it held with token %d", r, token)
				}
				renewed := b.changed(renews)

				touch(t, at.curtain())
				g.main.wantExit(7)
				if r := b.awaitFree(); r.token != token {
					t.Errorf("token %d was released; want %d", r.token, token)
				}
				if g.holder != g.main {
					g.holder.signal(syscall.SIGTERM)
					g.holder.wantExit(0)
				}
				t.Logf("%d renewals in %s, %.1f times the TTL; released; exit codes passed on", renewed, held.Round(time.Millisecond), held.Seconds()/4)
				if renewed < wanted || held < 8*time.Second {
					t.Errorf("%d renewals in %s; want %d in more than 8s", renewed, held, wanted)
				}
			})
		}
	}
}

func TestLogsThatNobodyTakesDoNotDelayAStop(t *testing.T) {
	t.Parallel()
	const times = 3
	for _, to := range drains() {
		for _, how := range []way{byRun, bySidecar} {
			t.Run(to.name+", "+string(how), func(t *testing.T) {
				t.Parallel()
				type game struct {
					b    *bench
					a    gated
					b2   *proc
					dir  string
					at   stage
					next stage
				}
				var games []game
				for range times {
					g := game{b: newBench(t, mariadb(t)), dir: t.TempDir(), at: newStage(t), next: newStage(t)}
					g.a = startDeaf(t, how, g.b.via(nil), to, g.at.puppet("-stubborn", "-beat", g.at.beat(),
						"-stubborn-grandchild", "-grandchild", filepath.Join(g.dir, "grandchild"))...)
					games = append(games, g)
				}
				for i := range games {
					g := &games[i]
					tokenIn(t, g.at.witness())
					awaitFile(t, filepath.Join(g.dir, "grandchild"))
					g.b2 = g.next.run(t, g.b.past(settings{"ON_BUSY": "wait"}).with(calm()))
					g.b2.awaitOutput("waiting for the lock")
					g.b.awaitStatements(renews, 1)
					must(t, g.b.way.SetMode(testserver.Blackhole))
				}
				var all gaps
				for _, g := range games {
					tokenIn(t, g.next.witness())
					acquired := g.b.acquiredAt()
					g.a.main.wantExit(76)
					last := lastBeat(t, g.at.beat())
					if grandchild := lastBeat(t, filepath.Join(g.dir, "grandchild")); grandchild.After(last) {
						last = grandchild
					}
					all = append(all, acquired.Sub(last))
					touch(t, g.next.curtain())
					g.b2.wantExit(0)
					if g.a.holder != g.a.main {
						g.a.holder.signal(syscall.SIGTERM)
						g.a.holder.wantExit(0)
					}
				}
				all.wantPositive(t)
			})
		}
	}
}

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
			var readers []*os.File
			to := drain{open: func(t *testing.T) *os.File {
				r, w, err := os.Pipe()
				must(t, err)
				t.Cleanup(func() { _, _ = r.Close(), w.Close() })
				readers = append(readers, r)
				return w
			}}
			g := startDeaf(t, how, b.via(nil), to, at.puppet("-exit", "7")...)
			token := tokenIn(t, at.witness())
			for _, r := range readers {
				must(t, r.Close())
			}
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
