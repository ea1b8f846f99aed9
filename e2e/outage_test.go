package e2e

import (
	"net"
	"strings"
	"testing"

	"github.com/lockgate/lockgate/internal/testserver"
)

// holding is somebody who holds a lock over outages that are shorter than the
// trust, which is 58s.
type holding struct {
	*bench
	name   string
	at     stage
	holder *proc   // renews
	procs  []*proc // all there are; the first has CMD's exit code
	token  uint64
	cmd    int // CMD's process
}

// holdings starts one holder of each kind: run and sidecar, with a connection
// that is kept between renewals and with one that is not. first is called before
// each start.
func holdings(t *testing.T, server *testserver.MariaDB, kept, seldom string, first func(*bench)) []*holding {
	t.Helper()
	var all []*holding
	for _, kind := range []struct {
		name, renewEvery string
		pod              bool
	}{
		{name: "run, connection kept", renewEvery: kept},
		{name: "run, connection not kept", renewEvery: seldom},
		{name: "sidecar, connection kept", renewEvery: kept, pod: true},
	} {
		h := &holding{bench: newBench(t, server), name: kind.name, at: newStage(t)}
		first(h.bench)
		set := h.via(settings{"TTL": "1m", "RENEW_EVERY": kind.renewEvery, "STOP_GRACE": "1s", "SAFETY_MARGIN": "1s"})
		if kind.pod {
			dir := t.TempDir()
			h.holder = sidecar(t, dir, set)
			main := execute(t, dir, h.at.puppet()...)
			h.procs = []*proc{main, h.holder}
		} else {
			h.holder = h.at.run(t, set)
			h.procs = []*proc{h.holder}
		}
		all = append(all, h)
	}
	for _, h := range all {
		h.token = tokenIn(t, h.at.witness())
		h.cmd = youngest(h.procs[0].pid())
	}
	return all
}

// youngest follows a chain of children to its end.
func youngest(pid int) int {
	for {
		next := children(pid)
		if len(next) != 1 {
			return pid
		}
		pid = next[0]
	}
}

// wantUnharmed lets CMD end and checks that the outage has cost nothing.
func (h *holding) wantUnharmed(t *testing.T) {
	t.Helper()
	if now := youngest(h.procs[0].pid()); now != h.cmd {
		t.Errorf("%s: CMD was process %d and is %d", h.name, h.cmd, now)
	}
	touch(t, h.at.curtain())
	h.procs[0].wantExit(0)
	row := h.awaitFree()
	if row.token != h.token {
		t.Errorf("%s: the row has token %d, CMD had %d", h.name, row.token, h.token)
	}
	if n := h.changed(takes); n != 1 {
		t.Errorf("%s: the lock was taken %d times", h.name, n)
	}
	warnings := 0
	for _, p := range h.procs {
		p.wantNoErrors()
		warnings += len(p.records("WARN"))
	}
	t.Logf("%s: CMD ran to its end, one process, one token, %d renewals, %d connections, %d warnings, no error",
		h.name, h.changed(renews), h.way.Accepted(), warnings)
}

// The same holders live through all of it, one thing after the other.
//
//nolint:tparallel // that is why its parts are not parallel
func TestAnOutageShorterThanTheTrustCostsNothing(t *testing.T) {
	t.Parallel()
	server := testserver.NewMariaDB(t, testserver.Options{})
	// It holds for connections that are made from now on.
	server.Exec(t, "SET GLOBAL wait_timeout = 3")
	all := holdings(t, server, "4s", "10s", func(b *bench) {
		b.way.ResetEvery(3)
		untilReset(t, b, 3) // the first of all connections is reset
	})
	for _, h := range all {
		h.way.ResetEvery(0)
	}

	ok := t.Run("an idle limit of 3s on the server", func(t *testing.T) {
		for _, h := range all {
			h.awaitStatements(renews, 1)
			// Both kinds need a connection for each renewal, for the server has
			// ended the one that was kept. Three went before the first that was
			// good, which acquired.
			renewals := h.changed(renews)
			if n := h.way.Accepted(); n < 3+1+renewals {
				t.Errorf("%s: %d connections for %d renewals; the idle limit has done nothing", h.name, n-4, renewals)
			}
			if n := strings.Count(h.holder.output(), "renewal went wrong"); n != 0 {
				t.Errorf("%s: %d warnings about connections that were only idle", h.name, n)
			}
		}
		server.Exec(t, "SET GLOBAL wait_timeout = 28800")
	})
	for _, outage := range []struct {
		name       string
		hurt, mend func(*testing.T)
	}{
		{
			"the server is stopped and started",
			func(t *testing.T) { must(t, server.Stop()) },
			func(t *testing.T) { must(t, server.Start(inTime(t))) },
		},
		{
			"the server crashes and is started",
			func(t *testing.T) { must(t, server.Kill()) },
			func(t *testing.T) { must(t, server.Start(inTime(t))) },
		},
		{
			"the server is frozen",
			func(t *testing.T) { must(t, server.Freeze()) },
			func(t *testing.T) { must(t, server.Thaw()) },
		},
		{
			"the server is read-only",
			func(t *testing.T) { server.Exec(t, "SET GLOBAL read_only = 1") },
			func(t *testing.T) { server.Exec(t, "SET GLOBAL read_only = 0") },
		},
		{
			"every third connection is reset",
			func(t *testing.T) {
				for _, h := range all {
					h.way.Reset()
					h.way.ResetEvery(3)
					untilReset(t, h.bench, 3)
				}
			},
			func(*testing.T) {},
		},
	} {
		ok = ok && t.Run(outage.name, func(t *testing.T) {
			wrong, again := make([]int, len(all)), make([]int, len(all))
			for i, h := range all {
				wrong[i] = strings.Count(h.holder.output(), "renewal went wrong")
				again[i] = strings.Count(h.holder.output(), "renewed again")
			}
			outage.hurt(t)
			for i, h := range all {
				h.holder.awaitMore("renewal went wrong", wrong[i])
			}
			outage.mend(t)
			for i, h := range all {
				h.holder.awaitMore("renewed again", again[i])
			}
		})
	}
	if ok {
		for _, h := range all {
			h.wantUnharmed(t)
		}
	}
}

// untilReset makes connections until the next one is due to be reset.
func untilReset(t *testing.T, b *bench, every int) {
	t.Helper()
	for n := b.way.Accepted(); (n+1)%every != 0; n++ {
		conn, err := net.Dial("tcp", b.way.Address())
		must(t, err)
		must(t, b.way.AwaitAccepted(inTime(t), n+1))
		must(t, conn.Close())
	}
}
