package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockgate/lockgate/bench"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/gate"
)

// rounds is how often the rush is repeated, each time on a fresh name.
const rounds = 5

// errWinners says that the contenders have not exactly one winner.
var errWinners = errors.New("not exactly one winner")

// rush has n contenders arrive within one second for one name, and as many
// clients that only ask one question, in turn.
func (h *hall) rush(ctx context.Context, n int) error {
	var ours, theirs, verdicts, answers bench.Sample
	var broken []error
	for round := range rounds {
		last, each, err := h.contend(ctx, n, fmt.Sprintf("rush-%d", round))
		if err != nil {
			broken = append(broken, err)
		}
		ours, verdicts = append(ours, last), append(verdicts, each...)
		last, each, err = h.ask(ctx, n)
		if err != nil {
			return errors.Join(append(broken, err)...)
		}
		theirs, answers = append(theirs, last), append(answers, each...)
	}
	won := fmt.Sprintf("exactly 1 in each of %d rounds", rounds)
	if len(broken) > 0 {
		won = fmt.Sprintf("WRONG in %d of %d rounds", len(broken), rounds)
	}
	if _, err := fmt.Fprintln(h.out); err != nil {
		return err
	}
	err := bench.Table(h.out,
		[]string{fmt.Sprintf("%d within one second for one name", n), "contenders", "clients that SELECT 1", "ratio"},
		[]string{"winners", won, "", ""},
		[]string{"first arrival to last verdict: min / median / max", ours.String(), theirs.String(), fmt.Sprintf("%.2f", bench.Ratio(ours, theirs))},
		[]string{"each one's wait: p50", bench.Short(verdicts.Median()), bench.Short(answers.Median()), fmt.Sprintf("%.2f", bench.Ratio(verdicts, answers))},
		[]string{"each one's wait: p99", bench.Short(verdicts.At(0.99)), bench.Short(answers.At(0.99)), fmt.Sprintf("%.2f", float64(verdicts.At(0.99))/float64(answers.At(0.99)))},
	)
	return errors.Join(append(broken, err)...)
}

// arrive calls act n times within one second, each on a goroutine of its own, and
// returns the time until the last has returned, and what each has taken.
func arrive(n int, act func(i int)) (last time.Duration, each bench.Sample) {
	each = make(bench.Sample, n)
	var all sync.WaitGroup
	begin := time.Now()
	for i := range n {
		all.Go(func() {
			at := time.Second * time.Duration(i) / time.Duration(n)
			time.Sleep(at - time.Since(begin))
			arrived := time.Now()
			act(i)
			each[i] = time.Since(arrived)
		})
	}
	all.Wait()
	return time.Since(begin), each
}

// contend has n contenders try for one name. The winner holds it until everybody
// has a verdict.
func (h *hall) contend(ctx context.Context, n int, name string) (last time.Duration, each bench.Sample, err error) {
	var (
		mu       sync.Mutex
		outcomes = map[gate.State]int{}
		errs     []error
		over     = make(chan struct{})
		winners  sync.WaitGroup
	)
	last, each = arrive(n, func(i int) {
		store, err := h.open()
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			return
		}
		// The verdict: whichever comes first.
		verdict := make(chan gate.Status, 1)
		winners.Go(func() {
			defer store.Close()
			cfg := config(store, name, fmt.Sprintf("%s/%d", name, i), func(gate.Status) {})
			status := gate.Run(ctx, cfg, func(ctx context.Context, lease db.Lease) bool {
				verdict <- gate.Status{State: gate.Acquired, Lease: lease}
				select {
				case <-over:
					return true
				case <-ctx.Done():
					return false
				}
			})
			select {
			case verdict <- status:
			default: // it was a winner, and has said so
			}
		})
		status := <-verdict
		mu.Lock()
		defer mu.Unlock()
		outcomes[status.State]++
		if status.State != gate.Acquired && status.State != gate.Skipped {
			errs = append(errs, status.Err)
		}
	})
	close(over)
	winners.Wait()
	if outcomes[gate.Acquired] != 1 || outcomes[gate.Skipped] != n-1 {
		err = fmt.Errorf("%q: %w: %v", name, errWinners, outcomes)
		if len(errs) > 0 {
			err = fmt.Errorf("%w; one of them: %w", err, errs[0])
		}
	}
	return last, each, err
}

// ask has n clients connect and ask one question.
func (h *hall) ask(ctx context.Context, n int) (last time.Duration, each bench.Sample, err error) {
	var mu sync.Mutex
	last, each = arrive(n, func(int) {
		pool, failed := sql.Open("mysql", h.account.DSN(h.server.Address()))
		if failed == nil {
			var one int
			failed = errors.Join(pool.QueryRowContext(ctx, "SELECT 1").Scan(&one), pool.Close())
		}
		if failed != nil {
			mu.Lock()
			defer mu.Unlock()
			err = fmt.Errorf("ask one question: %w", failed)
		}
	})
	return last, each, err
}
