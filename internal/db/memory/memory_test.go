package memory_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/dbtest"
	"github.com/lockgate/lockgate/internal/db/memory"
)

func TestConformance(t *testing.T) {
	server := memory.New()
	dbtest.Exercise(t, dbtest.Harness{
		Open: func(*testing.T) db.Store { return server.Open(memory.Hooks{}) },
	})
}

// errNetwork is what hooks return in these tests.
var errNetwork = errors.New("network")

func TestAnAcquireWhoseAnswerIsLostIsFoundAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.New()
		lost := true
		client := server.Open(memory.Hooks{After: func(_ context.Context, call memory.Call) error {
			if call.Op != memory.TryAcquire || call.Err != nil {
				t.Errorf("After(%+v); want an acquire that worked", call)
			}
			if lost {
				return errNetwork
			}
			return nil
		}})
		req := db.Request{Name: "job", Owner: "a", TTL: time.Minute}
		if lease, err := client.TryAcquire(t.Context(), req); !errors.Is(err, errNetwork) || lease != (db.Lease{}) {
			t.Fatalf("TryAcquire whose answer is lost = %+v, %v; want %v", lease, err, errNetwork)
		}
		token := uint64(time.Now().UnixMilli())
		time.Sleep(10 * time.Second)
		lost = false
		lease, err := client.TryAcquire(t.Context(), req)
		if err != nil || lease.Token != token || lease.Age != 10*time.Second || lease.Life != time.Minute {
			t.Errorf("TryAcquire again = %+v, %v; want token %d, 10s old", lease, err, token)
		}
	})
}

func TestACallThatNeverArrivesChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.New()
		client := server.Open(memory.Hooks{Before: func(context.Context, memory.Call) error { return errNetwork }})
		if _, err := client.TryAcquire(t.Context(), db.Request{Name: "job", Owner: "a", TTL: time.Minute}); !errors.Is(err, errNetwork) {
			t.Errorf("TryAcquire = %v; want %v", err, errNetwork)
		}
		if rows, err := server.Open(memory.Hooks{}).List(t.Context()); err != nil || len(rows) != 0 {
			t.Errorf("List() = %+v, %v; want no rows", rows, err)
		}
	})
}

func TestASlowCallIsWorkedOnWhenItArrivesAndHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memory.New()
		slow := server.Open(memory.Hooks{Before: func(ctx context.Context, _ memory.Call) error {
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		fast := server.Open(memory.Hooks{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := slow.TryAcquire(t.Context(), db.Request{Name: "job", Owner: "slow", TTL: time.Minute})
			if held, ok := errors.AsType[*db.HeldError](err); !ok || held.Owner != "fast" || held.Age != time.Minute || held.Remaining != time.Minute {
				t.Errorf("TryAcquire that takes a minute = %v; want it held by fast, half of its time left", err)
			}
		})
		synctest.Wait()
		if _, err := fast.TryAcquire(t.Context(), db.Request{Name: "job", Owner: "fast", TTL: 2 * time.Minute}); err != nil {
			t.Errorf("TryAcquire beside a slow call = %v; want a lease", err)
		}
		wg.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := slow.Release(ctx, db.Lease{Name: "job", Owner: "fast"}, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release that took too long = %v; want %v", err, context.DeadlineExceeded)
		}
	})
}
