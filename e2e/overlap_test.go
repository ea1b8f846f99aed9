package e2e

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// blackHole swallows the network of every A, at any moment between two renewals
// or in the middle of one.
func blackHole(t *testing.T, pairs []*pair) {
	t.Helper()
	each(t, pairs, func(ctx context.Context, p *pair) error {
		if err := p.network.AwaitAnswered(ctx, testserver.Any, p.network.Count(testserver.Any)+1); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(rand.N(patientRenewEvery)):
		}
		p.fault = time.Now()
		return p.network.SetMode(testserver.Blackhole)
	})
}

// gapsAfterABlackHole has n As lose their network in mid-hold, and returns how
// long before B's acquisition each had ended, and the exit codes of the As.
func gapsAfterABlackHole(t *testing.T, n int, binary string, s settings, how way) (g gaps, codes []int) {
	t.Helper()
	pairs := startPairs(t, n, binary, s, how)
	blackHole(t, pairs)
	for _, p := range pairs {
		p.awaitB()
	}
	for _, p := range pairs {
		codes = append(codes, p.a.wrapper.wait())
		p.a.stopSidecar()
		p.wantLifeAfterFault()
		g = append(g, p.gap())
		p.endB()
	}
	return g, codes
}

func TestMainIsDeadBeforeAnotherAcquires(t *testing.T) {
	t.Parallel()
	for _, how := range []way{byRun, bySidecar, byPidOne} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			var all gaps
			for range 2 {
				g, codes := gapsAfterABlackHole(t, 10, built.lockgate, nil, how)
				if slices.ContainsFunc(codes, func(code int) bool { return code != 76 }) {
					t.Errorf("A ended with %d; want 76 everywhere", codes)
				}
				all = append(all, g...)
			}
			all.wantPositive(t)
		})
	}
}

// It is the test above with a fault planted. If this cannot see that A outlives
// its lease, the test above cannot either.
func TestAMainThatOutlivesItsLeaseIsSeen(t *testing.T) {
	t.Parallel()
	for _, how := range []way{byRun, bySidecar} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			g, _ := gapsAfterABlackHole(t, 4, built.planted, settings{"SAFETY_MARGIN": "-2s"}, how)
			t.Logf("with a SAFETY_MARGIN of -2s: %s", g)
			if slices.Max(g) > 0 {
				t.Errorf("with a SAFETY_MARGIN of -2s: %s; want none", g)
			}
		})
	}
}
