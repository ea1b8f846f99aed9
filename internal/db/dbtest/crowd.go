package dbtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lockgate/lockgate/internal/db"
)

// contenders is how many clients compete in the cases below.
const contenders = 20

func competeCases() []testCase {
	return []testCase{
		{"one of many contenders gets a name never seen", func(b *bench) {
			crowd := newCrowd(b)
			for round := range 10 {
				crowd.race(b.name(), round)
			}
		}},
		{"one of many contenders gets a name that was used before", func(b *bench) {
			crowd := newCrowd(b)
			name := b.name()
			last := uint64(0)
			for round := range 15 {
				lease := crowd.race(name, round)
				if lease.Token <= last {
					b.Errorf("token of round %d = %d; want more than %d", round, lease.Token, last)
				}
				last = lease.Token
				b.release(lease, 0)
			}
		}},
		{"one of many contenders gets a lock whose holder died", func(b *bench) {
			crowd := newCrowd(b)
			for round := range 3 {
				req := b.ask(b.name(), fmt.Sprint("dead ", round))
				dead := b.acquire(b.brief(req))
				b.expire()
				if lease := crowd.race(req.Name, round); lease.Token <= dead.Token {
					b.Errorf("token = %d; want more than the dead holder's %d", lease.Token, dead.Token)
				}
			}
		}},
		{"contenders that wait get the lock one after the other", func(b *bench) {
			crowd := newCrowd(b)
			name := b.name()
			var inside atomic.Int32
			var mu sync.Mutex
			var tokens []uint64
			crowd.each(func(i int, store db.Store) error {
				req := b.ask(name, fmt.Sprint("waiter ", i))
				for {
					lease, err := store.TryAcquire(b.ctx, req)
					if errors.Is(err, db.ErrHeld) || errors.Is(err, db.ErrAgain) {
						if !b.pause() {
							return fmt.Errorf("waited in vain: %w", err)
						}
						continue
					}
					if err != nil {
						return fmt.Errorf("acquire: %w", err)
					}
					if n := inside.Add(1); n != 1 {
						b.Errorf("%d hold the lock at once; want one", n)
					}
					mu.Lock()
					tokens = append(tokens, lease.Token)
					mu.Unlock()
					if _, err := store.Renew(b.ctx, lease); err != nil && !errors.Is(err, db.ErrAgain) {
						return fmt.Errorf("renew: %w", err)
					}
					inside.Add(-1)
					for {
						err := store.Release(b.ctx, lease, 0)
						if !errors.Is(err, db.ErrAgain) || !b.pause() {
							return err
						}
					}
				}
			})
			if len(tokens) != contenders || !slices.IsSorted(tokens) || len(slices.Compact(slices.Clone(tokens))) != len(tokens) {
				b.Errorf("tokens in the order of holding = %d; want %d that only grow", tokens, contenders)
			}
		}},
		{"many clients of one owner share one lease", func(b *bench) {
			crowd := newCrowd(b)
			for range 5 {
				req := b.ask(b.name(), "a")
				tokens := make([]uint64, contenders)
				crowd.each(func(i int, store db.Store) error {
					lease, err := b.try(store, req)
					tokens[i] = lease.Token
					return err
				})
				if slices.Min(tokens) != slices.Max(tokens) {
					b.Errorf("tokens of one owner = %d; want one", tokens)
				}
			}
		}},
		{"one client serves several goroutines", func(b *bench) {
			var wg sync.WaitGroup
			for i := range contenders {
				req := b.ask(b.name(), fmt.Sprint(i))
				wg.Go(func() {
					lease, err := b.try(b.store, req)
					if err != nil {
						b.Errorf("TryAcquire(%q) = %v; want a lease", req.Name, err)
						return
					}
					if _, err := b.tryRenew(lease); err != nil {
						b.Errorf("Renew(%q) = %v; want a lease", req.Name, err)
					}
					if err := b.tryRelease(lease, 0); err != nil {
						b.Errorf("Release(%q) = %v; want nil", req.Name, err)
					}
				})
			}
			wg.Wait()
		}},
	}
}

// crowd is a number of clients that act at the same time.
type crowd struct {
	*bench
	stores []db.Store
}

func newCrowd(b *bench) *crowd {
	c := &crowd{bench: b}
	for range contenders {
		c.stores = append(c.stores, b.open())
	}
	return c
}

// each runs act once for every client, all starting together, and reports
// errors.
func (c *crowd) each(act func(i int, store db.Store) error) {
	c.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, store := range c.stores {
		wg.Go(func() {
			<-start
			if err := act(i, store); err != nil {
				c.Errorf("contender %d: %v", i, err)
			}
		})
	}
	close(start)
	wg.Wait()
}

// race lets all clients ask for one lock and returns the only lease.
func (c *crowd) race(name string, round int) db.Lease {
	c.Helper()
	leases := make([]db.Lease, len(c.stores))
	helds := make([]*db.HeldError, len(c.stores))
	c.each(func(i int, store db.Store) error {
		lease, err := c.try(store, c.ask(name, fmt.Sprintf("%d of round %d", i, round)))
		if held, ok := errors.AsType[*db.HeldError](err); ok {
			helds[i] = held
			return nil
		}
		leases[i] = lease
		return err
	})
	won := slices.DeleteFunc(leases, func(l db.Lease) bool { return l == db.Lease{} })
	if len(won) != 1 {
		c.Fatalf("round %d: %d contenders hold %q; want one: %+v", round, len(won), name, won)
	}
	for i, held := range helds {
		if held != nil && (held.Owner != won[0].Owner || held.Token != won[0].Token || held.Released) {
			c.Errorf("contender %d was told %+v; want the holder %q with token %d", i, held, won[0].Owner, won[0].Token)
		}
	}
	return won[0]
}

func nameCases() []testCase {
	return []testCase{
		{"names are compared byte for byte", func(b *bench) {
			// All of these are different names, though a collation might say
			// otherwise; the common part keeps them apart from other runs.
			for _, name := range []string{
				"job", "JOB", "Job", "jób", "jo\u0301b", "jöb", "joeb", "ĵob", "ｊｏｂ",
				"job.", "job..", "job ", " job", "job  ", "job\t", "job\u00a0", "job\u200b",
				"straße", "strasse", "STRASSE", "ŉ", "ʼn", "İ", "i", "I", "ı",
				"🔒", "🔓", "👩‍💻", "👩💻", "日本", "日夲", "か", "が", "カ",
				"job'", "job''", `job"`, `job""`, "job`", "job``", `job\`, `job\\`, `job\'`, `\0`, `\n`,
				"j%", "%", "j_b", "_", "j?b", "job;--", "'; DROP TABLE lockgate_locks; --", "$1", ":name", "@a",
				"job/1", "job:1", "job#1", "job?x=1", "job&x", "0", "00", "0.0", "1e0", "1", "NULL", "null", "true",
			} {
				name += "|" + b.id
				lease := b.acquire(b.ask(name, "a"))
				if held := b.held(b.ask(name, "b")); held.Name != name || held.Token != lease.Token {
					b.Errorf("holder of %q = %+v; want that name and token %d", name, held, lease.Token)
				}
				b.renew(lease)
			}
		}},
		{"the end of a name counts", func(b *bench) {
			for _, end := range []string{"", ".", "..", " ", "  ", "\t", "\u00a0", "\u0301", "é", "e\u0301", "'", `"`, `\`, "%", "_", "🔒", "\u200b"} {
				name := "dbtest " + b.id + end
				lease := b.acquire(b.ask(name, "a"))
				if held := b.held(b.ask(name, "b")); held.Name != name {
					b.Errorf("HeldError.Name = %q; want %q", held.Name, name)
				}
				b.renew(lease)
			}
		}},
		{"names of the greatest length differ in their last byte", func(b *bench) {
			for _, fill := range []string{"x", "é", "🔒"} {
				base := "dbtest " + b.id
				for len(base)+len(fill) < db.MaxNameBytes {
					base += fill
				}
				base += strings.Repeat(".", db.MaxNameBytes-1-len(base))
				for _, end := range []string{"a", "b", "A"} {
					name := base + end
					if len(name) != db.MaxNameBytes {
						b.Fatalf("the test's name has %d bytes; want %d", len(name), db.MaxNameBytes)
					}
					b.release(b.acquire(b.ask(name, "first")), 0)
					lease := b.acquire(b.ask(name, "second"))
					if held := b.held(b.ask(name, "b")); held.Name != name {
						b.Errorf("HeldError.Name = %q; want %q", held.Name, name)
					}
					b.renew(lease)
				}
			}
		}},
		{"owner and run come back unchanged, whatever is in them", func(b *bench) {
			for _, text := range []string{
				"o'brien", `say "hi"`, "back`tick", `c:\users\ann\`, `\'`, "100%", "_", "a/b/c", "ünï cødé", "e\u0301", "日本 🔒", "x; --", "${HOME}", "{json: 1}", " both ends ",
			} {
				req := b.ask(b.name(), text)
				req.Owner, req.Run = text+b.id, text
				lease := b.acquire(req)
				held := b.held(b.ask(req.Name, "b"))
				if held.Owner != req.Owner || held.Run != req.Run {
					b.Errorf("holder = %q, run %q; want %q, run %q", held.Owner, held.Run, req.Owner, req.Run)
				}
				lease = b.renew(lease)
				b.release(lease, 0)
			}
		}},
		{"owner and run of the greatest length come back whole", func(b *bench) {
			for _, fill := range []string{"x", "é", "🔒"} {
				req := b.ask(b.name(), "")
				req.Owner = fillTo(fill, db.MaxOwnerBytes)
				req.Run = fillTo(fill, db.MaxRunBytes)
				lease := b.acquire(req)
				held := b.held(b.ask(req.Name, "b"))
				if held.Owner != req.Owner || held.Run != req.Run {
					b.Errorf("holder = %q, run %q; want all %d and %d bytes", held.Owner, held.Run, len(req.Owner), len(req.Run))
				}
				other := lease
				other.Owner = other.Owner[:len(other.Owner)-1] + "-"
				b.wantRenewLost("of an owner that differs in its last byte", other)
				b.renew(lease)
				b.release(lease, 0)
			}
		}},
		{"owners are compared byte for byte", func(b *bench) {
			req := b.ask(b.name(), "ann")
			b.acquire(req)
			for _, owner := range []string{"ANN", "ann ", " ann", "ánn", "ann.", "an", "ann%", "an_"} {
				b.held(b.ask(req.Name, owner))
			}
		}},
	}
}

// fillTo returns a string of exactly n bytes, of as many fills as fit.
func fillTo(fill string, n int) string {
	s := strings.Repeat(fill, n/len(fill))
	return s + strings.Repeat("z", n-len(s))
}
