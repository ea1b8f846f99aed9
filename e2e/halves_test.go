package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// halfPairs is how many pairs each test of a half takes.
const halfPairs = 3

// TestNoOverlapWhenOneHalfIsKilledOrFrozen takes the two processes that guard a
// CMD, one after the other, and kills it, or freezes it until B could long have
// acquired and lets it go on.
func TestNoOverlapWhenOneHalfIsKilledOrFrozen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		how   way
		fault func(p *pair)               // comes first, to each pair
		check func(t *testing.T, p *pair) // then A ends, and B acquires
	}{
		{
			name: "the sidecar is killed: exec stops CMD in time", how: bySidecar,
			fault: func(p *pair) { p.a.kill(p.a.holder.pid()) },
			check: func(_ *testing.T, p *pair) {
				p.a.wrapper.wantExit(76)
				p.awaitB()
				p.wantLifeAfterFault()
			},
		},
		{
			name: "the sidecar is frozen: exec stops CMD in time, and the thawed one touches nothing", how: bySidecar,
			fault: func(p *pair) { p.a.freeze(p.a.holder.pid()) },
			check: thawedTouchesNothing,
		},
		{
			name: "run's holding process is killed: the other stops CMD in time", how: byRun,
			fault: func(p *pair) { p.a.kill(p.a.holder.pid()) },
			check: func(_ *testing.T, p *pair) {
				p.awaitB()
				p.wantLifeAfterFault()
			},
		},
		{
			name: "run's holding process is frozen: the other stops CMD in time, and the thawed one touches nothing", how: byRun,
			fault: func(p *pair) { p.a.freeze(p.a.holder.pid()) },
			check: thawedTouchesNothing,
		},
		{
			name: "exec is killed: what outlives it keeps the lock", how: bySidecar,
			fault: func(p *pair) { p.a.kill(p.a.exec()) },
			check: survivorKeepsTheLock,
		},
		{
			name: "exec as pid 1 is killed: all ends with it, then B acquires", how: byPidOne,
			fault: func(p *pair) { p.a.kill(p.a.exec()) },
			check: func(_ *testing.T, p *pair) {
				p.a.wrapper.wait() // unshare's own code says nothing
				p.awaitB()
				p.a.stopSidecar()
			},
		},
		{
			name: "run's guarding process is killed: the other kills what is left, then releases", how: byRun,
			fault: func(p *pair) { p.a.kill(p.a.half()) },
			check: func(_ *testing.T, p *pair) {
				p.a.wrapper.wantExit(137)
				p.awaitB()
			},
		},
		{
			name: "exec is frozen: the sidecar renews, and nothing is stopped", how: bySidecar,
			fault: func(p *pair) { p.a.freeze(p.a.exec()) },
			check: nothingIsStopped,
		},
		{
			name: "exec as pid 1 is frozen: the sidecar renews, and nothing is stopped", how: byPidOne,
			fault: func(p *pair) { p.a.freeze(p.a.exec()) },
			check: nothingIsStopped,
		},
		{
			name: "run's guarding process is frozen: the other renews, and nothing is stopped", how: byRun,
			fault: func(p *pair) { p.a.freeze(p.a.half()) },
			check: nothingIsStopped,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			pairs := startPairs(t, halfPairs, built.lockgate, nil, tc.how)
			for _, p := range pairs {
				time.Sleep(rand.N(patientRenewEvery / halfPairs)) // at any moment between two renewals
				p.fault = time.Now()
				tc.fault(p)
			}
			var g gaps
			for _, p := range pairs {
				tc.check(t, p)
				g = append(g, p.gap())
				p.endB()
			}
			g.wantPositive(t)
		})
	}
}

// thawedTouchesNothing lets a holder go on that was frozen until B had the lock.
func thawedTouchesNothing(t *testing.T, p *pair) {
	t.Helper()
	before := p.awaitB()
	p.network.Forget()
	p.a.thaw(p.a.holder.pid())
	p.a.wrapper.wantExit(76)
	p.a.stopSidecar()
	p.wantLifeAfterFault()
	// A renewal that was cut short by the release has no answer; it is over when
	// its connection is.
	p.awaitNobodyConnected()
	if after := p.row(); after != before {
		t.Errorf("B's row is %+v after A's thaw; want %+v as before", after, before)
	}
	answered := 0
	for _, s := range p.network.Statements(testserver.Any) {
		if !s.Answered {
			continue
		}
		answered++
		if s.Answer.Error != 0 || s.Answer.Rows != 0 {
			t.Errorf("the thawed holder's %s was answered with %+v; want no row", s.SQL, s.Answer)
		}
	}
	if answered == 0 {
		t.Error("the thawed holder has said nothing to the store; this test expects its late word")
	}
}

// survivorKeepsTheLock sees that the kernel ends CMD with its exec, that the
// grandchild outlives both, and that the lock is A's for as long.
func survivorKeepsTheLock(t *testing.T, p *pair) {
	t.Helper()
	grandchild := p.a.grandchild()
	p.a.wrapper.wantExit(137)
	await(t, "CMD ends with its exec", func() bool { return len(marked(p.a.mark)) == 2 }) // the sidecar, the grandchild
	p.wantRenewedPast(p.fault.Add(patientTTL))
	killed := time.Now()
	if exists(p.b.path("witness")) {
		t.Error("B runs while a process of A's lives")
	}
	p.a.kill(grandchild)
	p.awaitB()
	p.a.stopSidecar()
	if last := p.a.lastLife(); last.Before(p.fault.Add(patientTTL)) {
		t.Errorf("the grandchild was last seen %s before it was killed", killed.Sub(last))
	}
}

// nothingIsStopped freezes exec, or run's guarding half, for longer than the
// lease, which the holder renews meanwhile, and sees CMD end when it likes.
func nothingIsStopped(t *testing.T, p *pair) {
	t.Helper()
	p.wantRenewedPast(p.fault.Add(patientTTL))
	if p.a.holder == p.a.wrapper {
		p.a.thaw(p.a.half())
	} else {
		p.a.thaw(p.a.exec())
	}
	// It has looked at its clock, had it wanted to stop something, when the
	// lease was renewed some more.
	p.wantRenewedPast(time.Now().Add(patientRenewEvery))
	ending := time.Now()
	touch(t, p.a.path("until"))
	p.a.wrapper.wantExit(0)
	p.awaitB()
	p.a.stopSidecar()
	if last := p.a.lastLife(); last.Before(ending) {
		t.Errorf("CMD was last seen %s before it was told to end", ending.Sub(last))
	}
}

// A frozen guarding half cannot see that the lease is lost. The holding one of a
// run acts in its place; a sidecar cannot reach into exec's container.
func TestNoOverlapWhenRunsGuardIsFrozenInAnOutage(t *testing.T) {
	t.Parallel()
	pairs := startPairs(t, halfPairs, built.lockgate, nil, byRun)
	for _, p := range pairs {
		p.a.freeze(p.a.half())
	}
	blackHole(t, pairs)
	var g gaps
	for _, p := range pairs {
		p.awaitB()
		p.a.wrapper.wantExit(76)
		p.wantLifeAfterFault()
		g = append(g, p.gap())
		p.endB()
	}
	g.wantPositive(t)
}
