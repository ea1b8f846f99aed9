package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// clocked is how a process sees the time.
type clocked struct {
	wrap    []string // in front of the command line
	binary  string
	environ []string
}

// inTimeNamespace runs a program whose boot clock is so far ahead. Who is not root
// is root in a user namespace for it.
func inTimeNamespace(ahead time.Duration) []string {
	args := []string{"unshare", "--time", "--boottime", strconv.Itoa(int(ahead.Seconds())), "--fork", "--kill-child"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	return args
}

func (c clocked) start(t *testing.T, set settings, args ...string) *proc {
	t.Helper()
	line := append(append([]string{}, c.wrap...), append([]string{c.binary}, args...)...)
	return launch(t, exec.Command(line[0], line[1:]...),
		append(append(set.environ(), "XDG_RUNTIME_DIR="+t.TempDir()), c.environ...))
}

// leftSaid is the rest of the holder's lease that a contender's log shows.
func leftSaid(t *testing.T, said string) time.Duration {
	t.Helper()
	for line := range strings.SplitSeq(said, "\n") {
		var record struct {
			Left string `json:"lease_left"`
		}
		if json.Unmarshal([]byte(line), &record) == nil && record.Left != "" {
			left, err := time.ParseDuration(record.Left)
			must(t, err)
			return left
		}
	}
	t.Fatalf("no lease_left in %s", said)
	return 0
}

// Client clocks and zones play no part: whatever two clients think of the time, one
// excludes the other, and sees the rest of its lease as it is.
func TestClocksAndZonesOfClientsPlayNoPart(t *testing.T) {
	t.Parallel()
	const ttl = time.Hour
	normal := func(environ ...string) clocked {
		return clocked{binary: built.lockgate, environ: environ}
	}
	wall := func(ahead string) clocked {
		return clocked{binary: built.wall, environ: []string{"LOCKGATE_TEST_WALL_AHEAD=" + ahead}}
	}
	boot := func(ahead time.Duration) clocked {
		return clocked{binary: built.lockgate, wrap: inTimeNamespace(ahead)}
	}
	far := testserverIn(t, "+09:00")
	stores := map[string]func(*testing.T) string{
		"MariaDB":           database,
		"MariaDB in +09:00": func(t *testing.T) string { return account(t, far, "") },
		"SQLite":            sqliteURL,
	}
	for name, pair := range map[string][2]clocked{
		"zones of two continents":                  {normal("TZ=Pacific/Auckland"), normal("TZ=America/Los_Angeles")},
		"the holder's clock an hour ahead":         {wall("1h"), wall("0s")},
		"the contender's clock an hour ahead":      {wall("0s"), wall("1h")},
		"the holder's clock a day behind":          {wall("-24h"), wall("24h")},
		"the holder's boot clock an hour ahead":    {boot(time.Hour), boot(0)},
		"the contender's boot clock an hour ahead": {normal(), boot(time.Hour)},
	} {
		for store, url := range stores {
			t.Run(name+" on "+store, func(t *testing.T) {
				t.Parallel()
				set := short(url(t)).with(settings{"TTL": ttl.String(), "RENEW_EVERY": "10m"})
				a, b := pair[0], pair[1]
				at := newStage(t)
				holder := a.start(t, set, append([]string{"run", "--"}, at.puppet()...)...)
				awaitFile(t, at.witness())
				token := tokenIn(t, at.witness())

				skips := b.start(t, set, "run", "--", "false")
				skips.wantExit(0)
				left := leftSaid(t, skips.said())
				t.Logf("the contender skips and sees %s left of %s", left, ttl)
				if left > ttl || left < ttl-patience {
					t.Errorf("the contender sees %s left of a lease of %s that was just taken", left, ttl)
				}
				seen := b.start(t, set.with(settings{"LOG_LEVEL": "error"}), "status", "-o", "json", "nightly")
				seen.wantExit(0)
				if left := leftInStatus(t, seen.said()); left > ttl || left < ttl-patience {
					t.Errorf("status shows %s left of a lease of %s that was just taken", left, ttl)
				}

				touch(t, at.curtain())
				holder.wantExit(0)
				next := newStage(t)
				touch(t, next.curtain())
				b.start(t, set, append([]string{"run", "--"}, next.puppet()...)...).wantExit(0)
				if after := tokenIn(t, next.witness()); after <= token {
					t.Errorf("the next token is %d; want more than %d", after, token)
				}
			})
		}
	}
}

// leftInStatus is the rest of the one lease that status shows.
func leftInStatus(t *testing.T, text string) time.Duration {
	t.Helper()
	var shown struct {
		Locks []struct {
			Left float64 `json:"left_seconds"`
		} `json:"locks"`
	}
	if err := json.Unmarshal([]byte(text), &shown); err != nil || len(shown.Locks) != 1 {
		t.Fatalf("status shows %s: %v; want one lock", text, err)
	}
	return time.Duration(shown.Locks[0].Left * float64(time.Second))
}

// testserverIn starts a server in another time zone.
func testserverIn(t *testing.T, zone string) *testserver.MariaDB {
	t.Helper()
	server, err := testserver.StartMariaDB(inTime(t), testserver.Options{Args: []string{"--default-time-zone=" + zone}})
	must(t, err)
	t.Cleanup(func() { must(t, server.Close()) })
	return server
}

// A lease ends when it ends, for a contender with another boot clock as well.
func TestALeaseThatEndsIsFreeForABootClockAnHourAway(t *testing.T) {
	t.Parallel()
	onBothStores(t, func(t *testing.T, url string) {
		set := short(url)
		dead := startContender(t, built.lockgate, set, byRun, true)
		dead.awaitRunning()
		killMarked(t, dead.mark)
		next := newStage(t)
		touch(t, next.curtain())
		p := clocked{binary: built.lockgate, wrap: inTimeNamespace(time.Hour)}.start(t, set.with(settings{"ON_BUSY": "wait"}),
			append([]string{"run", "--"}, next.puppet()...)...)
		p.wantExit(0)
		info, err := os.Stat(next.witness())
		must(t, err)
		if gap := info.ModTime().Sub(dead.lastLife()); gap <= 0 {
			t.Errorf("the next one ran %s before the dead one's last sign of life", -gap)
		}
	})
}
