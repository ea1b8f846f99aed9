package dbtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockgate/lockgate/internal/db"
)

func acquireCases() []testCase {
	return []testCase{
		{"a name never seen is free", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			if lease.Age != 0 {
				b.Errorf("TryAcquire of a free lock has age %s; want 0", lease.Age)
			}
		}},
		{"a token is at least the store's clock", func(b *bench) {
			if b.h.Traits.TokensWithoutTime {
				return
			}
			// An hour of slack: the server's clock may differ from ours.
			floor := uint64(time.Now().Add(-time.Hour).UnixMilli())
			ceiling := uint64(time.Now().Add(time.Hour).UnixMilli())
			lease := b.acquire(b.ask(b.name(), "a"))
			if lease.Token < floor || lease.Token > ceiling {
				b.Errorf("token of a new name = %d; want Unix milliseconds, about %d", lease.Token, floor)
			}
			b.release(lease, 0)
			passed := b.expire()
			next := b.acquire(b.ask(lease.Name, "b"))
			if grown := next.Token - lease.Token; grown < uint64(passed.Milliseconds())/2 {
				b.Errorf("token grew by %d in %s; want Unix milliseconds again", grown, passed)
			}
		}},
		{"the same owner finds its own lease again", func(b *bench) {
			req := b.ask(b.name(), "a")
			first := b.acquire(req)
			for range 20 {
				if again := b.acquire(req); again.Token != first.Token {
					b.Fatalf("TryAcquire by the holder has token %d; want its old one, %d", again.Token, first.Token)
				}
			}
			other, err := b.try(b.open(), req)
			if err != nil || other.Token != first.Token {
				b.Errorf("TryAcquire by the holder's second client = %+v, %v; want token %d", other, err, first.Token)
			}
		}},
		{"acquiring again extends the lease", func(b *bench) {
			req := b.ask(b.name(), "a")
			b.acquire(b.brief(req))
			long, err := b.try(b.store, req)
			if err != nil {
				b.Fatalf("TryAcquire by the holder = %v; want its lease", err)
			}
			b.expire()
			b.held(b.ask(req.Name, "b"))
			b.renew(long)
		}},
		{"acquiring again never shortens the lease", func(b *bench) {
			req := b.ask(b.name(), "a")
			b.acquire(req)
			b.acquire(b.brief(req))
			b.expire()
			b.held(b.ask(req.Name, "b"))
		}},
		{"acquiring again reports the age of the lease", func(b *bench) {
			req := b.ask(b.name(), "a")
			b.acquire(req)
			passed := b.expire()
			if again := b.acquire(req); again.Age < passed/2 {
				b.Errorf("age = %s after %s; want as much", again.Age, passed)
			}
		}},
		{"a lock that another has says who, which run, since when and how long still", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			passed := b.expire()
			held := b.held(b.ask(req.Name, "b"))
			if held.Name != req.Name || held.Owner != req.Owner || held.Run != req.Run || held.Token != lease.Token {
				b.Errorf("TryAcquire of a held lock = %+v; want name, owner, run of %+v and token %d", held, req, lease.Token)
			}
			if held.Age < passed/2 || held.Age > patience {
				b.Errorf("HeldError.Age = %s after %s; want as much", held.Age, passed)
			}
			if held.Remaining > long || held.Remaining < long-patience {
				b.Errorf("HeldError.Remaining = %s; want about %s", held.Remaining, long)
			}
			if held.Released {
				b.Error("HeldError.Released = true of a live lease; want false")
			}
		}},
		{"a contender of the same run is told who holds it, too", func(b *bench) {
			name := b.name()
			first, second := b.ask(name, "a"), b.ask(name, "b")
			second.Run = first.Run
			b.acquire(first)
			if held := b.held(second); held.Run != second.Run || held.Owner != first.Owner {
				b.Errorf("TryAcquire of a lock of the same run = %+v; want owner %q and run %q", held, first.Owner, first.Run)
			}
		}},
		{"a holder without a run is reported without one", func(b *bench) {
			req := b.ask(b.name(), "a")
			req.Run = ""
			b.acquire(req)
			if held := b.held(b.ask(req.Name, "b")); held.Run != "" {
				b.Errorf("HeldError.Run = %q; want none", held.Run)
			}
		}},
		{"asking for a held lock leaves it as it is", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			before := b.held(b.ask(req.Name, "b"))
			for i := range 10 {
				b.held(b.ask(req.Name, fmt.Sprint("b", i)))
			}
			after := b.held(b.ask(req.Name, "b"))
			if after.Remaining > before.Remaining || after.Token != lease.Token || after.Owner != req.Owner {
				b.Errorf("the lock changed from %+v to %+v by being asked for; want no change", before, after)
			}
			b.renew(lease)
		}},
		{"tokens grow over release, expiry and takeover", func(b *bench) {
			name := b.name()
			last := uint64(0)
			grown := func(how string, lease db.Lease) {
				b.Helper()
				if lease.Token <= last {
					b.Errorf("token after %s = %d; want more than %d", how, lease.Token, last)
				}
				last = lease.Token
			}
			for i := range 20 {
				lease := b.acquire(b.ask(name, fmt.Sprint("quick ", i)))
				grown("a release", lease)
				b.release(lease, 0)
			}
			brief := b.brief(b.ask(name, "brief"))
			grown("a release", b.acquire(brief))
			grown("an expiry", b.take(b.store, b.brief(b.ask(name, "next"))))
			b.expire()
			grown("a takeover", b.take(b.store, b.brief(brief)))
			b.expire()
			grown("its own expiry", b.acquire(brief))
		}},
		{"a waiter that only polls notices the expiry", func(b *bench) {
			req := b.ask(b.name(), "a")
			first := b.acquire(b.brief(req))
			second := b.take(b.open(), b.ask(req.Name, "b"))
			if second.Age != 0 {
				b.Errorf("age after a takeover = %s; want 0", second.Age)
			}
			b.wantRenewLost("taken by another", first)
			b.wantReleaseLost("a lease taken by another", first)
			if held := b.held(b.ask(req.Name, "c")); held.Owner != second.Owner || held.Token != second.Token || held.Run != second.Run {
				b.Errorf("holder after a takeover = %+v; want %+v", held, second)
			}
		}},
		{"an expired lease of its own can be acquired again, with a new token", func(b *bench) {
			req := b.brief(b.ask(b.name(), "a"))
			first := b.acquire(req)
			b.expire()
			second := b.acquire(req)
			if second.Token <= first.Token || second.Age != 0 {
				b.Errorf("TryAcquire after its own expiry = %+v; want a new lease, token above %d", second, first.Token)
			}
		}},
		{"the age of a new holder begins with it", func(b *bench) {
			req := b.ask(b.name(), "a")
			b.acquire(b.brief(req))
			passed := b.expire()
			began := time.Now()
			renewed := b.renew(b.acquire(b.ask(req.Name, "b")))
			held := b.held(b.ask(req.Name, "c"))
			if limit := time.Since(began) + passed/2; renewed.Age > limit || held.Age > limit {
				b.Errorf("age by renewal = %s, by HeldError = %s; want at most %s, not the last holder's", renewed.Age, held.Age, limit)
			}
		}},
		{"a contender's TTL does not decide when the lease ends", func(b *bench) {
			live := b.ask(b.name(), "a")
			b.acquire(live)
			for i, ttl := range []time.Duration{max(time.Millisecond, b.h.Traits.MinTTL), 24 * time.Hour} {
				other := b.ask(live.Name, fmt.Sprint("b", i))
				other.TTL = ttl
				b.held(other)
				b.expire()
				b.held(other)
			}
			ended := b.ask(b.name(), "a")
			b.acquire(b.brief(ended))
			b.expire()
			patient := b.ask(ended.Name, "b")
			patient.TTL = 24 * time.Hour
			b.acquire(patient)
		}},
		{"one lock says nothing about another", func(b *bench) {
			b.acquire(b.ask(b.name(), "a"))
			b.acquire(b.ask(b.name(), "a"))
			b.acquire(b.ask(b.name(), "b"))
		}},
	}
}

func renewCases() []testCase {
	return []testCase{
		{"a renewal gives a full TTL from now", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(b.brief(req))
			lease.TTL = long
			renewed, err := b.tryRenew(lease)
			if err != nil {
				b.Fatalf("Renew(%+v) = %v; want a lease", lease, err)
			}
			b.expire()
			if held := b.held(b.ask(req.Name, "b")); held.Remaining < long-patience || held.Remaining > long {
				b.Errorf("HeldError.Remaining after a renewal = %s; want about %s", held.Remaining, long)
			}
			b.renew(renewed)
		}},
		{"a renewal never shortens the lease", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			lease.TTL = b.brief(req).TTL
			b.renew(lease)
			b.expire()
			if held := b.held(b.ask(req.Name, "b")); held.Remaining < long-patience {
				b.Errorf("HeldError.Remaining after a renewal for less = %s; want about %s still", held.Remaining, long)
			}
			b.renew(lease)
		}},
		{"renewals in the same clock tick keep the lease", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			for range 100 {
				lease = b.renew(lease)
			}
		}},
		{"a renewal needs name, owner, token and TTL only", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			b.renew(db.Lease{Name: lease.Name, Owner: lease.Owner, Token: lease.Token, TTL: lease.TTL})
		}},
		{"a renewal reports the age since the lock was acquired", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			passed := b.expire()
			first := b.renew(lease)
			if first.Age < passed/2 || first.Age > patience {
				b.Errorf("age after %s = %s; want as much", passed, first.Age)
			}
			passed = b.expire()
			if second := b.renew(first); second.Age < first.Age+passed/2 {
				b.Errorf("age = %s, then after another %s = %s; want as much more", first.Age, passed, second.Age)
			}
		}},
		{"an expired lease cannot be renewed though nobody took it", func(b *bench) {
			req := b.brief(b.ask(b.name(), "a"))
			lease := b.acquire(req)
			b.expire()
			b.wantRenewLost("that has expired", lease)
			b.wantRenewLost("that has expired", lease)
			b.acquire(b.ask(req.Name, "b"))
		}},
		{"a renewal of a lock never seen is lost and takes nothing", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := undo(req)
			lease.Token = 1
			b.wantRenewLost("of a lock never seen", lease)
			b.acquire(b.ask(req.Name, "b"))
		}},
		{"another owner or another token cannot renew", func(b *bench) {
			lease := b.acquireUsed()
			before := b.held(b.ask(lease.Name, "b"))
			for _, c := range []struct {
				why    string
				change func(*db.Lease)
			}{
				{"with another owner", func(l *db.Lease) { l.Owner += "x" }},
				{"with the owner in capitals", func(l *db.Lease) { l.Owner = strings.ToUpper(l.Owner) }},
				{"with a blank after the owner", func(l *db.Lease) { l.Owner += " " }},
				{"with a greater token", func(l *db.Lease) { l.Token++ }},
				{"with a smaller token", func(l *db.Lease) { l.Token-- }},
				{"with token 0", func(l *db.Lease) { l.Token = 0 }},
			} {
				wrong := lease
				wrong.TTL = 2 * long
				c.change(&wrong)
				b.wantRenewLost(c.why, wrong)
			}
			if after := b.held(b.ask(lease.Name, "b")); after.Remaining > before.Remaining {
				b.Errorf("a refused renewal left %s; want at most %s, as before", after.Remaining, before.Remaining)
			}
			b.renew(lease)
		}},
	}
}

func releaseCases() []testCase {
	return []testCase{
		{"a released lock is free for others at once", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			b.release(lease, 0)
			b.acquire(b.ask(lease.Name, "b"))
		}},
		{"a release needs name, owner and token only", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			b.release(db.Lease{Name: lease.Name, Owner: lease.Owner, Token: lease.Token}, 0)
			b.acquire(b.ask(lease.Name, "b"))
		}},
		{"an owner that released never gets the lock again", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.release(lease, 0)
			b.wantAcquireLost("that released", req)
			b.wantRenewLost("that was released", lease)
			b.acquire(b.ask(req.Name, "b"))
		}},
		{"an owner that released while others are kept out never gets the lock again", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.release(lease, long)
			b.wantAcquireLost("that released", req)
			b.wantRenewLost("that was released", lease)
			b.held(b.ask(req.Name, "b"))
		}},
		{"a released lock that is kept keeps others out and says so", func(b *bench) {
			req := b.brief(b.ask(b.name(), "a"))
			lease := b.acquire(b.ask(req.Name, "a"))
			b.release(lease, long)
			b.expire()
			held := b.held(b.ask(req.Name, "b"))
			if !held.Released || held.Owner != req.Owner || held.Run != req.Run || held.Token != lease.Token {
				b.Errorf("TryAcquire of a released lock that is kept = %+v; want Released by %q", held, req.Owner)
			}
			if held.Remaining > long || held.Remaining < long-patience {
				b.Errorf("HeldError.Remaining = %s; want about %s", held.Remaining, long)
			}
		}},
		{"what is kept after its release is free for its own run, and for no other", func(b *bench) {
			name := b.name()
			first := b.ask(name, "a")
			lease := b.acquire(first)
			b.release(lease, long)

			for _, run := range []string{"", "run of b", first.Run + " ", strings.ToUpper(first.Run), first.Run + "\u0301", first.Run[1:]} {
				other := b.ask(name, "b")
				other.Run = run
				for range 2 { // the second time it may look first
					if held := b.held(other); !held.Released || held.Run != first.Run {
						b.Errorf("TryAcquire of run %q = %+v; want it kept by run %q", run, held, first.Run)
					}
				}
			}
			b.wantAcquireLost("that released", first)

			// From a client that has been refused, and from one that has not.
			for i, store := range []db.Store{b.store, b.open()} {
				next := b.ask(name, fmt.Sprint("next ", i))
				next.Run = first.Run
				took, err := b.try(store, next)
				if err != nil {
					b.Fatalf("TryAcquire of the same run = %v; want a lease", err)
				}
				b.checkLease(took, next)
				if took.Token <= lease.Token || took.Age != 0 {
					b.Errorf("TryAcquire of the same run = %+v; want a new lease, token above %d", took, lease.Token)
				}
				b.wantRenewLost("that was kept and taken by its run", lease)
				b.wantReleaseLost("a lease that was kept and taken by its run", lease)
				if held := b.held(b.ask(name, "b")); held.Released || held.Owner != next.Owner || held.Remaining < long-patience {
					b.Errorf("TryAcquire of another run = %+v; want it held by %q", held, next.Owner)
				}
				lease = b.renew(took)
				b.release(lease, long)
			}
		}},
		{"a live lease is held from its own run, and says which run it is", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			same := b.ask(req.Name, "b")
			same.Run = req.Run
			for range 2 {
				if held := b.held(same); held.Run != req.Run || held.Released || held.Remaining < long-patience {
					b.Errorf("TryAcquire of the same run = %+v; want it held by run %q", held, req.Run)
				}
			}
			b.renew(lease)
		}},
		{"no run is the same as no other", func(b *bench) {
			req := b.ask(b.name(), "a")
			req.Run = ""
			lease := b.acquire(req)
			b.release(lease, long)
			other := b.ask(req.Name, "b")
			other.Run = ""
			for range 2 {
				if held := b.held(other); !held.Released || held.Run != "" {
					b.Errorf("TryAcquire without a run of what is kept without one = %+v; want it kept", held)
				}
			}
			b.held(b.ask(req.Name, "c"))
		}},
		{"a run whose blanks count is compared byte for byte", func(b *bench) {
			req := b.ask(b.name(), "a")
			req.Run += " "
			b.release(b.acquire(req), long)
			same, other := b.ask(req.Name, "b"), b.ask(req.Name, "c")
			same.Run, other.Run = req.Run, strings.TrimRight(req.Run, " ")
			if held := b.held(other); held.Run != req.Run {
				b.Errorf("HeldError.Run = %q; want %q", held.Run, req.Run)
			}
			b.acquire(same)
		}},
		{"keep counts from the acquisition, not from a renewal, and may outlast the TTL", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			passed := b.expire()
			b.release(b.renew(lease), 2*long)
			held := b.held(b.ask(req.Name, "b"))
			if held.Remaining > 2*long-passed/2 || held.Remaining < 2*long-patience {
				b.Errorf("HeldError.Remaining = %s, %s after the acquisition; want %s less that", held.Remaining, passed, 2*long)
			}
		}},
		{"a kept lock comes free at acquired + keep, not at the end of the TTL", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.release(lease, short)
			next := b.take(b.store, b.ask(req.Name, "b"))
			if next.Token <= lease.Token {
				b.Errorf("token after a kept release = %d; want more than %d", next.Token, lease.Token)
			}
		}},
		{"a release after acquired + keep frees at once", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			passed := b.expire()
			b.release(lease, passed/2)
			b.acquire(b.ask(req.Name, "b"))
		}},
		{"a second release is accepted and does not move the end", func(b *bench) {
			freed := b.acquire(b.ask(b.name(), "a"))
			b.release(freed, 0)
			b.release(freed, 0)
			b.release(freed, long)
			b.acquire(b.ask(freed.Name, "b"))

			kept := b.acquire(b.ask(b.name(), "a"))
			b.release(kept, long)
			b.release(kept, 0)
			b.release(kept, 3*long)
			held := b.held(b.ask(kept.Name, "b"))
			if held.Remaining > long || held.Remaining < long-patience {
				b.Errorf("HeldError.Remaining after three releases = %s; want the first one's, about %s", held.Remaining, long)
			}
		}},
		{"a release of another's lock is lost and leaves it as it is", func(b *bench) {
			name := b.name()
			old := b.acquire(b.ask(name, "a"))
			b.release(old, 0)
			lease := b.acquire(b.ask(name, "b"))
			before := b.held(b.ask(name, "c"))
			stranger := undo(b.ask(name, "c"))
			b.wantReleaseLost("another's lock, without a token", stranger)
			stranger.Token = lease.Token
			b.wantReleaseLost("another's lock, with its token", stranger)
			b.wantReleaseLost("an old lease", old)
			b.wantReleaseLost("an old owner's lock, without a token", undo(b.ask(name, "a")))
			after := b.held(b.ask(name, "c"))
			if after.Released || after.Owner != lease.Owner || after.Token != lease.Token || after.Remaining > before.Remaining {
				b.Errorf("the lock changed from %+v to %+v by refused releases; want no change", before, after)
			}
			b.renew(lease)
		}},
		{"an owner that differs in one byte cannot release", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			for _, owner := range []string{strings.ToUpper(lease.Owner), lease.Owner + " ", lease.Owner + "\u0301", lease.Owner[1:]} {
				b.wantReleaseLost("another's lock", db.Lease{Name: lease.Name, Owner: owner, Token: lease.Token})
				b.wantReleaseLost("another's lock", db.Lease{Name: lease.Name, Owner: owner})
			}
			b.renew(lease)
		}},
		{"a release of a lock never seen is lost and makes nothing", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := undo(req)
			b.wantReleaseLost("a lock never seen, without a token", lease)
			lease.Token = 1
			b.wantReleaseLost("a lock never seen", lease)
			b.acquire(req)
		}},
		{"token 0 releases whatever the owner has", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.release(undo(req), 0)
			b.release(undo(req), 0)
			b.wantRenewLost("that was undone", lease)
			b.wantAcquireLost("that undid", req)
			b.acquire(b.ask(req.Name, "b"))
			b.wantReleaseLost("what another took since, without a token", undo(req))
		}},
		{"the wrong token releases nothing", func(b *bench) {
			lease := b.acquireUsed()
			for _, token := range []uint64{lease.Token + 1, lease.Token - 1, 1} {
				wrong := lease
				wrong.Token = token
				b.wantReleaseLost("the wrong token", wrong)
			}
			b.held(b.ask(lease.Name, "b"))
			b.renew(lease)
		}},
		{"a release after the expiry is accepted and keeps nobody out", func(b *bench) {
			for _, token0 := range []bool{false, true} {
				req := b.brief(b.ask(b.name(), "a"))
				lease := b.acquire(req)
				b.expire()
				if token0 {
					lease.Token = 0
				}
				b.release(lease, long)
				b.wantAcquireLost("that released after its expiry", req)
				b.acquire(b.ask(req.Name, "b"))
			}
		}},
	}
}

// lateCases are about calls that were cut short and calls that arrive late.
func lateCases() []testCase {
	return []testCase{
		{"an old lease cannot renew or release a newer one of another owner", func(b *bench) {
			name := b.name()
			old := b.acquire(b.brief(b.ask(name, "a")))
			lease := b.take(b.store, b.ask(name, "b"))
			before := b.held(b.ask(name, "c"))
			old.TTL = 2 * long
			b.wantRenewLost("that another took", old)
			b.wantReleaseLost("a lease that another took", old)
			after := b.held(b.ask(name, "c"))
			if after.Owner != lease.Owner || after.Token != lease.Token || after.Released || after.Remaining > before.Remaining {
				b.Errorf("the lock changed from %+v to %+v by an old lease; want no change", before, after)
			}
			b.renew(lease)
		}},
		{"an old lease cannot renew or release a newer one of the same owner", func(b *bench) {
			req := b.ask(b.name(), "a")
			old := b.acquire(b.brief(req))
			b.expire()
			lease := b.acquire(req)
			b.wantRenewLost("from before the owner's own expiry", old)
			b.wantReleaseLost("a lease from before the owner's own expiry", old)
			b.held(b.ask(req.Name, "b"))
			b.renew(lease)
		}},
		{"a lease from before a takeover and back is old", func(b *bench) {
			req := b.ask(b.name(), "a")
			old := b.acquire(b.brief(req))
			b.take(b.store, b.brief(b.ask(req.Name, "b")))
			lease := b.take(b.store, req)
			b.wantRenewLost("from before a takeover", old)
			b.wantReleaseLost("a lease from before a takeover", old)
			b.renew(lease)
		}},
		{"a context that has ended already is an error without a decision", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			ctx, cancel := context.WithCancel(b.ctx)
			cancel()
			_, acquire := b.store.TryAcquire(ctx, b.ask(lease.Name, "b"))
			_, own := b.store.TryAcquire(ctx, b.ask(lease.Name, "a"))
			_, fresh := b.store.TryAcquire(ctx, b.ask(b.name(), "a"))
			_, renew := b.store.Renew(ctx, lease)
			release := b.store.Release(ctx, lease, 0)
			for call, err := range map[string]error{
				"TryAcquire of a held lock": acquire, "TryAcquire of its own lock": own,
				"TryAcquire of a free lock": fresh, "Renew": renew, "Release": release,
			} {
				if err == nil || decisions(err) != 0 {
					b.Errorf("%s with a cancelled context = %v; want an error that decides nothing", call, err)
				}
			}
		}},
		{"after an acquire of unknown outcome the same owner can take the lock at once", func(b *bench) {
			for i := range 40 {
				req := b.ask(b.name(), "a")
				cut, cutErr := b.cutShort(i, req)
				lease := b.acquire(req)
				if cutErr == nil && cut.Token != lease.Token {
					b.Errorf("token = %d, acquired again = %d; want the same", cut.Token, lease.Token)
				}
				b.renew(lease)
				b.release(lease, 0)
				b.acquire(b.ask(req.Name, "b"))
			}
		}},
		{"after an acquire of unknown outcome token 0 frees the lock", func(b *bench) {
			for i := range 40 {
				req := b.ask(b.name(), "a")
				_, _ = b.cutShort(i, req)
				// The acquire may still be on its way and arrive after a release,
				// so a holder that gives up says it again.
				for {
					if err := b.tryRelease(undo(req), 0); err != nil && !errors.Is(err, db.ErrLost) {
						b.Fatalf("Release with token 0 = %v; want nil or ErrLost", err)
					}
					_, err := b.try(b.store, b.ask(req.Name, "b"))
					if err == nil {
						break
					}
					if !errors.Is(err, db.ErrHeld) || !b.pause() {
						b.Fatalf("TryAcquire after token 0 = %v; want a lease", err)
					}
				}
			}
		}},
		{"a renewal of unknown outcome can be repeated", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			for i := range 40 {
				ctx, cancel := context.WithTimeout(b.ctx, delay(i))
				if _, err := b.store.Renew(ctx, lease); errors.Is(err, db.ErrLost) {
					b.Errorf("Renew cut short = %v; want nil or an unknown outcome", err)
				}
				cancel()
				lease = b.renew(lease)
			}
		}},
		{"a release of unknown outcome can be repeated", func(b *bench) {
			for i := range 40 {
				lease := b.acquire(b.ask(b.name(), "a"))
				ctx, cancel := context.WithTimeout(b.ctx, delay(i))
				if err := b.store.Release(ctx, lease, 0); errors.Is(err, db.ErrLost) {
					b.Errorf("Release cut short = %v; want nil or an unknown outcome", err)
				}
				cancel()
				b.release(lease, 0)
				b.acquire(b.ask(lease.Name, "b"))
			}
		}},
		{"an acquire or a renewal that arrives after the release changes nothing", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.release(lease, 0)
			late := b.open()
			if got, err := b.try(late, req); !errors.Is(err, db.ErrLost) {
				b.Errorf("late TryAcquire = %+v, %v; want ErrLost", got, err)
			}
			err := b.again(func() error {
				_, err := late.Renew(b.ctx, lease)
				return err
			})
			if !errors.Is(err, db.ErrLost) {
				b.Errorf("late Renew = %v; want ErrLost", err)
			}
			if next := b.acquire(b.ask(req.Name, "b")); next.Token <= lease.Token {
				b.Errorf("token after late calls = %d; want more than %d", next.Token, lease.Token)
			}
		}},
		{"a store that lost its callers half-way serves the next call", func(b *bench) {
			for i := range 40 {
				ctx, cancel := context.WithTimeout(b.ctx, delay(i))
				_, _ = b.store.TryAcquire(ctx, b.ask(b.name(), "a"))
				cancel()
				b.acquire(b.ask(b.name(), "b"))
			}
		}},
	}
}

// delay is the i-th limit of a call that is to be cut short: from one that has
// passed before the call begins to one in which most stores answer.
func delay(i int) time.Duration { return time.Duration(i) * 50 * time.Microsecond }

// cutShort makes an attempt with very little time. Its outcome is unknown when
// it returns an error.
func (b *bench) cutShort(i int, req db.Request) (db.Lease, error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, delay(i))
	defer cancel()
	lease, err := b.store.TryAcquire(ctx, req)
	if errors.Is(err, db.ErrHeld) || errors.Is(err, db.ErrLost) {
		b.Errorf("TryAcquire of a free lock, cut short = %v; want nil or an unknown outcome", err)
	}
	return lease, err
}
