package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockgate/lockgate/bench"
	"github.com/lockgate/lockgate/internal/testserver"
)

const (
	// maxResident is the resident memory of a holder, in KiB as the kernel
	// counts it.
	maxResident = 14 << 10

	// seldom and often are renewal intervals, one on each side of the one from
	// which on a connection is not kept between calls.
	seldom, often = 10 * time.Second, time.Second

	// renewals are waited for at each interval.
	seldomRenewals, oftenRenewals = 3, 20

	// lookEvery is how often memory and connections are looked at.
	lookEvery = 2 * time.Millisecond

	// slack is for the time from the acquire's answer until we know of it.
	slack = 100 * time.Millisecond
)

// holding measures holders in mid-hold, all at the same time.
func (m *meter) holding(ctx context.Context) ([]line, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // one that has failed ends the others
	measures := []func(context.Context) ([]line, error){
		func(ctx context.Context) ([]line, error) { return m.resident(ctx, "resident-sidecar", m.startSidecar) },
		func(ctx context.Context) ([]line, error) { return m.resident(ctx, "resident-run", m.startRun) },
		func(ctx context.Context) ([]line, error) { return m.traffic(ctx, "seldom", seldom, seldomRenewals) },
		func(ctx context.Context) ([]line, error) { return m.traffic(ctx, "often", often, oftenRenewals) },
	}
	lines, errs := make([][]line, len(measures)), make([]error, len(measures))
	var all sync.WaitGroup
	for i, measure := range measures {
		all.Go(func() {
			if lines[i], errs[i] = measure(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	for i := 1; i < len(lines); i++ {
		lines[0] = append(lines[0], lines[i]...)
	}
	return lines[0], errors.Join(errs...)
}

// job is a job that runs under a lock, until it is told to end.
type job struct {
	holder *exec.Cmd     // the process that talks to the store
	log    *bytes.Buffer // of the holder; read it after end
	main   *exec.Cmd     // nil where that is the same process
	input  io.Closer     // its end is the job's
}

func newJob(holder *exec.Cmd) *job {
	j := &job{holder: holder, log: new(bytes.Buffer)}
	holder.Stderr = j.log
	return j
}

// end ends the job and waits for the holder's end.
func (j *job) end() error {
	err := j.input.Close()
	if j.main == nil {
		return errors.Join(err, j.holder.Wait())
	}
	err = errors.Join(err, j.main.Wait())
	// A native sidecar stays until it is told to go.
	return errors.Join(err, j.holder.Process.Signal(os.Interrupt), j.holder.Wait())
}

// startRun starts a lockgate run of a job that lives as long as its input.
func (m *meter) startRun(ctx context.Context, env []string) (*job, error) {
	j := newJob(bench.Task{Argv: []string{m.lockgate, "run", "--", "cat"}, Env: env}.Command(ctx))
	var err error
	if j.input, err = j.holder.StdinPipe(); err != nil {
		return nil, err
	}
	return j, j.holder.Start()
}

// startSidecar starts the two containers of a pod, as two processes.
func (m *meter) startSidecar(ctx context.Context, env []string) (*job, error) {
	dir, err := os.MkdirTemp(m.dir, "gate-")
	if err != nil {
		return nil, err
	}
	j := newJob(bench.Task{Argv: []string{m.lockgate, "sidecar"}, Env: append(env, "LOCKGATE_DIR="+dir)}.Command(ctx))
	j.main = bench.Task{Argv: []string{m.lockgate, "exec", "--", "cat"}, Env: bench.Environ("DIR=" + dir)}.Command(ctx)
	if j.input, err = j.main.StdinPipe(); err != nil {
		return nil, err
	}
	if err := j.holder.Start(); err != nil {
		return nil, err
	}
	return j, j.main.Start()
}

// resident measures a holder's memory with the settings that most have: those by
// default, but that it renews more often, so that it has done so several times.
func (m *meter) resident(ctx context.Context, name string, start func(context.Context, []string) (*job, error)) ([]line, error) {
	if err := m.hold(ctx, name); err != nil {
		return nil, err
	}
	j, err := start(ctx, bench.Environ("NAME="+name, "DB_URL="+m.account.URL(m.server.Address()),
		"ON_BUSY=fail", "RENEW_EVERY="+seldom.String()))
	if err != nil {
		return nil, err
	}
	pid := j.holder.Process.Pid
	before, err := m.encrypted(ctx)
	if err != nil {
		return nil, err
	}
	// Changes of the row: it is acquired, then renewed.
	changes, most, last := 0, 0, ""
	looks := time.NewTicker(50 * lookEvery)
	defer looks.Stop()
	for changes < 1+seldomRenewals+1 { // the first look finds what hold has left
		select {
		case <-looks.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		now, err := m.renewedAt(ctx, name)
		if err != nil {
			return nil, err
		}
		if now != last {
			last = now
			changes++
		}
		kib, err := residentKiB(pid)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		most = max(most, kib)
	}
	if err := j.end(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if after, err := m.encrypted(ctx); err != nil || after <= before {
		return nil, errors.Join(fmt.Errorf("%s: its connections were not encrypted, so this is not what it costs by default", name), err)
	}
	return []line{{
		what:     fmt.Sprintf("resident memory, %s, TLS: most, up to renewal %d", strings.Replace(name, "resident-", "lockgate ", 1), seldomRenewals),
		measured: fmt.Sprintf("%.1f MiB", float64(most)/1024),
		budget:   "14 MiB",
		over:     most > maxResident,
	}}, nil
}

// renewedAt is when a lock was renewed last, by the server.
func (m *meter) renewedAt(ctx context.Context, name string) (at string, err error) {
	err = m.server.Admin().QueryRowContext(ctx,
		"SELECT CAST(renewed_at AS CHAR) FROM "+m.account.Database+".lockgate_locks WHERE name = ?", name).Scan(&at)
	return at, err
}

// encrypted is how many connections the server has encrypted.
func (m *meter) encrypted(ctx context.Context) (n int, err error) {
	var variable string
	err = m.server.Admin().QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Ssl_finished_accepts'").Scan(&variable, &n)
	return n, err
}

// residentKiB is the resident memory of a process; see proc_pid_status(5).
func residentKiB(pid int) (int, error) {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("read resident memory: %w", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kib, err := strconv.Atoi(number)
	if err != nil {
		return 0, fmt.Errorf("read resident memory of process %d, which may have ended: %w", pid, err)
	}
	return kib, nil
}

// traffic counts what a holder costs the server while it holds.
func (m *meter) traffic(ctx context.Context, name string, every time.Duration, renewals int) ([]line, error) {
	if err := m.hold(ctx, name); err != nil {
		return nil, err
	}
	way, err := testserver.StartForwarder("tcp", m.server.Address())
	if err != nil {
		return nil, err
	}
	defer way.Close()
	j, err := m.startRun(ctx, m.environ(name, way.Address(), "ON_BUSY=fail", "RENEW_EVERY="+every.String()))
	if err != nil {
		return nil, err
	}
	if err := way.AwaitAnswered(ctx, acquires, 1); err != nil {
		return nil, err
	}
	// From here on the intervals are counted; the first has begun a bit earlier.
	begin := time.Now()
	watch := watcher{way: way}
	if err := watch.until(ctx, renewals); err != nil {
		return nil, err
	}
	held := time.Since(begin)
	// Whatever it is, but the acquire.
	statements := way.Count(doesNotSetUp) - way.Count(acquires)
	if err := j.end(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}

	// Each pause is at most a tenth shorter than RENEW_EVERY. A holder also
	// renews when it sees that the machine was paused, and says so.
	jumps := bytes.Count(j.log.Bytes(), []byte("clock jumped, renewing at once"))
	allowed := int((held+slack)/(every-every/10)) + jumps
	why := "one each, at most a tenth early"
	if jumps > 0 {
		why += fmt.Sprintf("; the clock jumped %d times", jumps)
	}
	what := fmt.Sprintf("while holding, RENEW_EVERY=%s: ", every)
	lines := []line{
		{
			what:     what + "statements",
			measured: fmt.Sprintf("%d in %s", statements, bench.Short(held)),
			budget:   fmt.Sprintf("%d (%s)", allowed, why),
			over:     statements > allowed,
		},
		{what + "connections at once, at most", strconv.Itoa(watch.most), "1", watch.most > 1},
	}
	if every >= seldom {
		lines = append(lines, line{
			what:     what + "pauses between calls with no connection open",
			measured: fmt.Sprintf("%d of %d", watch.closed, watch.pauses),
			budget:   "all",
			over:     watch.closed < watch.pauses,
		})
	}
	return lines, nil
}

// watcher looks at a holder's connections.
type watcher struct {
	way    *testserver.Forwarder
	most   int // connections at once
	pauses int // between the calls
	closed int // pauses in which there was no connection
}

// until watches until there were so many renewals.
func (w *watcher) until(ctx context.Context, renewals int) error {
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	seen, counted := 0, false
	for w.pauses = 1; ; {
		select {
		case <-looks.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		open := len(w.way.Open())
		if n := w.way.Count(renews); n > seen {
			seen, counted = n, false
			if n >= renewals {
				return nil
			}
			w.pauses++
		}
		w.most = max(w.most, open)
		if open == 0 && !counted {
			counted = true
			w.closed++
		}
	}
}
