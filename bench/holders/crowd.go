package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lockgate/lockgate/bench"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/gate"
)

const (
	// comeAndGo is how many holders acquire or release at the same time. They
	// are here for their renewals.
	comeAndGo = 16

	// lookEvery is how often the server is asked for its connections.
	lookEvery = 250 * time.Millisecond
)

// errLost says that leases were lost.
var errLost = errors.New("leases were lost")

// quiet is the log of ten thousand.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// holder is one holder of the crowd.
type holder struct {
	number int
	leave  chan struct{} // closed when its job is over
	gone   chan struct{} // closed when its gate has ended
	status gate.Status   // read it after gone
}

// crowd has n holders hold their leases for some time.
func (h *hall) crowd(ctx context.Context, n int, length time.Duration) error {
	book := &book{}
	began := time.Now()
	holders, err := h.gather(ctx, n, book)
	if err != nil {
		return err
	}
	defer h.disperse(holders)
	gathered := time.Since(began)

	// Connections of the acquires are kept for up to 4 s. Those are not what
	// this is about.
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	watch, err := h.watchServer(ctx)
	if err != nil {
		return err
	}
	book.open()
	stood, err := pauseAndWatch(ctx, length)
	page := book.close()
	seen, watchErr := watch.end(ctx)
	if err := errors.Join(err, watchErr); err != nil {
		return err
	}
	lost := h.disperse(holders)

	expected := float64(n) * length.Seconds() / renewEvery.Seconds()
	err = bench.Table(h.out,
		[]string{fmt.Sprintf("%d holders for %s, RENEW_EVERY=%s", n, length, renewEvery), ""},
		[]string{"renewals", fmt.Sprintf("%d (%.0f if nobody were early)", len(page.took), expected)},
		[]string{"a renewal, with its connection: p50 / p99 / max", fmt.Sprintf("%s / %s / %s",
			bench.Short(page.took.Median()), bench.Short(page.took.At(0.99)), bench.Short(page.took.At(1)))},
		[]string{"this process stood still, at most", bench.Short(stood) + " (what the machine adds to the figures)"},
		[]string{"errors, each tried again", fmt.Sprintf("%d%s", page.errors, page.example())},
		[]string{"leases lost", fmt.Sprintf("%d (must be 0)", lost)},
		[]string{"connections on the server, at most", fmt.Sprintf("%d", seen.connections)},
		[]string{"commands to the server", fmt.Sprintf("%.0f/s: %.0f/s renewals, each with a SET and a goodbye", seen.statements, float64(len(page.took))/length.Seconds())},
		[]string{"acquiring before, " + fmt.Sprint(comeAndGo) + " at a time", fmt.Sprintf("%s, %.0f/s", bench.Short(gathered), float64(n)/gathered.Seconds())},
	)
	if lost > 0 {
		return errors.Join(err, fmt.Errorf("%d of %d: %w", lost, n, errLost))
	}
	return err
}

// gather has all holders acquire.
func (h *hall) gather(ctx context.Context, n int, book *book) ([]*holder, error) {
	var (
		all     sync.WaitGroup
		mu      sync.Mutex
		holders []*holder
		errs    []error
		numbers = make(chan int)
	)
	for range comeAndGo {
		all.Go(func() {
			for i := range numbers {
				one, err := h.enter(ctx, i, book)
				mu.Lock()
				if err == nil {
					holders = append(holders, one)
				} else {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	all.Wait()
	if len(errs) > 0 {
		h.disperse(holders)
		return nil, fmt.Errorf("%d of %d did not acquire, one of them: %w", len(errs), n, errs[0])
	}
	return holders, nil
}

// enter starts a holder and returns when it holds.
func (h *hall) enter(ctx context.Context, i int, book *book) (*holder, error) {
	store, err := h.open()
	if err != nil {
		return nil, err
	}
	one := &holder{number: i, leave: make(chan struct{}), gone: make(chan struct{})}
	holds := make(chan struct{})
	cfg := config(&timed{Store: store, book: book}, fmt.Sprintf("job-%d", i), fmt.Sprintf("bench/%d", i), func(gate.Status) {})
	go func() {
		defer close(one.gone)
		defer store.Close()
		one.status = gate.Run(ctx, cfg, func(ctx context.Context, _ db.Lease) bool {
			close(holds)
			select {
			case <-one.leave:
				return true
			case <-ctx.Done(): // the lease is lost
				return false
			}
		})
	}()
	select {
	case <-holds:
		return one, nil
	case <-one.gone:
		return nil, fmt.Errorf("%s: %w", one.status.State, one.status.Err)
	}
}

// disperse has all holders release, and returns how many had lost their lease.
// Those that have gone already are counted again.
func (h *hall) disperse(holders []*holder) (lost int) {
	var all sync.WaitGroup
	next := make(chan *holder)
	for range comeAndGo {
		all.Go(func() {
			for one := range next {
				select {
				case <-one.leave:
				default:
					close(one.leave)
				}
				<-one.gone
			}
		})
	}
	for _, one := range holders {
		next <- one
	}
	close(next)
	all.Wait()
	for _, one := range holders {
		if one.status.State != gate.Released || one.status.Err != nil {
			lost++
		}
	}
	return lost
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pauseAndWatch pauses, and returns how long at most this process did not get the
// processor meanwhile: another's work, or a pause of the virtual machine.
func pauseAndWatch(ctx context.Context, d time.Duration) (stood time.Duration, err error) {
	const tick = 10 * time.Millisecond
	for begin, last := time.Now(), time.Now(); last.Sub(begin) < d; {
		if err := pause(ctx, tick); err != nil {
			return stood, err
		}
		now := time.Now()
		stood = max(stood, now.Sub(last)-tick)
		last = now
	}
	return stood, nil
}

// timed is a store that notes its renewals in a book.
type timed struct {
	db.Store
	book *book
}

// Renew keeps the contract of [db.Store].
func (t *timed) Renew(ctx context.Context, lease db.Lease) (db.Lease, error) {
	begin := time.Now()
	lease, err := t.Store.Renew(ctx, lease)
	t.book.note(time.Since(begin), err)
	return lease, err
}

// book is what all holders note their renewals in, while it is open.
type book struct {
	mu     sync.Mutex
	isOpen bool
	page   page
}

// page is what a book says.
type page struct {
	took   bench.Sample // of the renewals that succeeded
	errors int
	last   error
}

func (p page) example() string {
	if p.last == nil {
		return ""
	}
	return ", the last of them: " + p.last.Error()
}

func (b *book) note(took time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.isOpen, errors.Is(err, db.ErrLost): // that is counted at the end
	case err == nil:
		b.page.took = append(b.page.took, took)
	default:
		b.page.errors++
		b.page.last = err
	}
}

func (b *book) open() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.isOpen = true
}

func (b *book) close() page {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.isOpen = false
	return b.page
}

// serverWatch looks at the server.
type serverWatch struct {
	hall  *hall
	quit  chan struct{}
	ended chan struct{}
	begin time.Time
	first int // statements at the begin
	looks int // statements of our own

	connections int
	err         error
}

// seen is what a watch has seen.
type seen struct {
	connections int     // at most, without the watch's own
	statements  float64 // a second
}

// watchServer starts to watch.
func (h *hall) watchServer(ctx context.Context) (*serverWatch, error) {
	w := &serverWatch{hall: h, quit: make(chan struct{}), ended: make(chan struct{}), begin: time.Now()}
	var err error
	if w.first, err = h.counter(ctx, "Questions"); err != nil {
		return nil, err
	}
	go func() {
		defer close(w.ended)
		ticks := time.NewTicker(lookEvery)
		defer ticks.Stop()
		for {
			select {
			case <-w.quit:
				return
			case <-ticks.C:
			}
			n, err := h.counter(ctx, "Threads_connected")
			if err != nil {
				w.err = err
				return
			}
			w.looks++
			w.connections = max(w.connections, n-1)
		}
	}()
	return w, nil
}

// end ends the watch.
func (w *serverWatch) end(ctx context.Context) (seen, error) {
	close(w.quit)
	<-w.ended
	last, err := w.hall.counter(ctx, "Questions")
	took := time.Since(w.begin)
	// The last look at the statements is one of them.
	ours := float64(last - w.first - w.looks - 1)
	return seen{w.connections, ours / took.Seconds()}, errors.Join(w.err, err)
}

// counter reads one of the server's status variables.
func (h *hall) counter(ctx context.Context, name string) (int, error) {
	var variable string
	var n int
	err := h.server.Admin().QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&variable, &n)
	if err != nil {
		return 0, fmt.Errorf("read the server's %s: %w", name, err)
	}
	return n, nil
}
