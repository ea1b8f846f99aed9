package mysql

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockgate/lockgate/internal/db"
)

// crowd is how many clients contend in the tests below.
const crowd = 64

func openCrowd(t *testing.T, p *place) []*Store {
	t.Helper()
	acquire(t, open(t, p.options()), ask("makes the table", "a"))
	stores := make([]*Store, crowd)
	for i := range stores {
		stores[i] = open(t, p.options())
	}
	return stores
}

func TestStormOnLocksUsedBefore(t *testing.T) {
	for _, isolation := range []string{"REPEATABLE-READ", "SERIALIZABLE"} {
		t.Run(isolation, func(t *testing.T) {
			const locks, holds = 4, 40
			p := newPlace(t, server)
			server.SetGlobal(t, "tx_isolation", "'"+isolation+"'")
			stores := openCrowd(t, p)
			var inside [locks]atomic.Int32
			var mu sync.Mutex
			var tokens [locks][]uint64
			var again, held atomic.Int64
			var wg sync.WaitGroup
			for i, store := range stores {
				wg.Go(func() {
					for round := 0; ; round++ {
						lock := (i + round) % locks
						mu.Lock()
						enough := len(tokens[lock]) >= holds
						mu.Unlock()
						if enough {
							return
						}
						req := ask(fmt.Sprint("lock ", lock), fmt.Sprintf("%d in round %d", i, round))
						lease, err := store.TryAcquire(t.Context(), req)
						if errors.Is(err, db.ErrHeld) {
							held.Add(1)
							continue
						}
						if errors.Is(err, db.ErrAgain) {
							again.Add(1)
							continue
						}
						if err != nil {
							t.Errorf("TryAcquire = %v; want a lease, ErrHeld or ErrAgain", err)
							return
						}
						if n := inside[lock].Add(1); n != 1 {
							t.Errorf("%d hold lock %d at once; want 1", n, lock)
						}
						mu.Lock()
						tokens[lock] = append(tokens[lock], lease.Token)
						mu.Unlock()
						if _, err := store.Renew(t.Context(), lease); err != nil && !errors.Is(err, db.ErrAgain) {
							t.Errorf("Renew = %v; want a lease or ErrAgain", err)
						}
						inside[lock].Add(-1)
						for err = db.ErrAgain; errors.Is(err, db.ErrAgain); {
							err = store.Release(t.Context(), lease, 0)
						}
						if err != nil {
							t.Errorf("Release = %v; want nil", err)
						}
					}
				})
			}
			wg.Wait()
			for lock, all := range tokens {
				if !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != len(all) {
					t.Errorf("tokens of lock %d in the order of holding = %d; want them growing", lock, all)
				}
			}
			t.Logf("%d times held, %d times again", held.Load(), again.Load())
		})
	}
}

func TestStormOnLocksNeverSeen(t *testing.T) {
	const locks = 50
	p := newPlace(t, server)
	stores := openCrowd(t, p)
	var again atomic.Int64
	for lock := range locks {
		var winners atomic.Int32
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i, store := range stores {
			wg.Go(func() {
				<-start
				err := db.ErrAgain
				for ; errors.Is(err, db.ErrAgain); again.Add(1) {
					_, err = store.TryAcquire(t.Context(), ask(fmt.Sprint("new ", lock), fmt.Sprint(i)))
				}
				again.Add(-1)
				switch {
				case err == nil:
					winners.Add(1)
				case !isOnly(err, db.ErrHeld):
					t.Errorf("TryAcquire = %v; want a lease, ErrHeld or ErrAgain", err)
				}
			})
		}
		close(start)
		wg.Wait()
		if n := winners.Load(); n != 1 {
			t.Errorf("%d of %d have a lock never seen; want 1", n, crowd)
		}
	}
	t.Logf("%d times again", again.Load())
}
