package holder_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/memory"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/holder"
)

const (
	// patience bounds every wait of a test. It is no measure of anything: a
	// wait that runs into it is a failure.
	patience = 2 * time.Minute

	boot  = "this boot"
	pod   = "this pod"
	name  = "nightly"
	owner = "cluster/namespace/pod/"

	// A lease that no test outlives, renewed quickly.
	ttl   = time.Hour
	renew = 20 * time.Millisecond
)

// roleVar makes the test binary a holder of its own, which can be killed. Its
// store is the test's, by way of a socket.
const roleVar = "HOLDER_TEST_HOLDER"

func TestMain(m *testing.M) {
	if text := os.Getenv(roleVar); text != "" {
		time.AfterFunc(2*patience, func() { os.Exit(97) }) // a forgotten one ends some time
		if err := playHolder(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// clock stands for the boot clock: the same in all processes of a test.
func clock() time.Duration { return time.Duration(time.Now().UnixNano()) }

// config is a holder's, all but its store and directory.
func config(log *slog.Logger) holder.Config {
	return holder.Config{
		Boot: boot, Pod: pod, Owner: owner,
		Gate: gate.Config{
			Request:      db.Request{Name: name, TTL: ttl},
			OnBusy:       gate.Skip,
			PollEvery:    renew,
			StartTimeout: patience,
			RenewEvery:   renew,
			StopGrace:    time.Second,
			SafetyMargin: time.Second,
			CallLimit:    10 * time.Second,
			Boot:         clock,
			Log:          log,
		},
		Policy: gatedir.Policy{StopGrace: gatedir.Duration(time.Second), SkipExitCode: 9},
		Log:    log,
	}
}

// rig is a gate directory, a store and what a test's holders ask of it. The test
// itself is exec.
type rig struct {
	t      *testing.T
	dir    *gatedir.Dir
	server *memory.Server
	log    *slog.Logger

	// before and after are what the network does to a call; set them before a
	// holder starts.
	before, after func(ctx context.Context, call memory.Call) error

	mu    sync.Mutex
	calls []memory.Call // as the store has worked on them
}

func newRig(t *testing.T) *rig {
	t.Helper()
	// In memory, as a pod's gate directory is, where there is such a place: a
	// busy disk keeps a rename waiting for seconds.
	path, err := os.MkdirTemp("/dev/shm", "holder-test-")
	if err != nil {
		path = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	dir, err := gatedir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{
		t: t, dir: dir, server: memory.New(),
		log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// store is one client of the rig's store.
func (r *rig) store() *memory.Client {
	return r.server.Open(memory.Hooks{
		Before: func(ctx context.Context, call memory.Call) error {
			if r.before != nil {
				return r.before(ctx, call)
			}
			return nil
		},
		After: func(ctx context.Context, call memory.Call) error {
			r.mu.Lock()
			r.calls = append(r.calls, call)
			r.mu.Unlock()
			if r.after != nil {
				return r.after(ctx, call)
			}
			return nil
		},
	})
}

// count says how often a call was worked on, for one owner's nonce or for all.
func (r *rig) count(op memory.Op, nonce string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, call := range r.calls {
		if call.Op == op && (nonce == "" || call.Owner == owner+nonce) {
			n++
		}
	}
	return n
}

func (r *rig) wantCalls(op memory.Op, nonce string, want int) {
	r.t.Helper()
	if got := r.count(op, nonce); got != want {
		r.t.Errorf("%s for %q was worked on %d times; want %d", op, nonce, got, want)
	}
}

func (r *rig) wantNoCalls() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) > 0 {
		r.t.Errorf("the store was asked for %+v; want nothing", r.calls)
	}
}

// until polls for what sends no event.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("never came: %s", what)
		}
	}
}

// row is the lock as the store sees it.
func (r *rig) row() db.Row {
	r.t.Helper()
	rows, err := r.server.Open(memory.Hooks{}).List(context.Background(), name)
	if err != nil || len(rows) > 1 {
		r.t.Fatalf("List() = %+v, %v", rows, err)
	}
	if len(rows) == 0 {
		return db.Row{}
	}
	return rows[0]
}

// held tells whether the lock is held for a request.
func (r *rig) held(nonce string) bool {
	row := r.row()
	return row.Owner == owner+nonce && !row.Released && row.Remaining > 0
}

func (r *rig) wantFree() {
	r.t.Helper()
	if row := r.row(); row.Remaining > 0 {
		r.t.Errorf("the lock is %+v; want it free", row)
	}
}

// stranger takes the lock for somebody else, and returns how to give it back.
func (r *rig) stranger() (release func()) {
	r.t.Helper()
	store := r.server.Open(memory.Hooks{})
	lease, err := store.TryAcquire(r.t.Context(), db.Request{Name: name, Owner: "stranger", TTL: ttl})
	if err != nil {
		r.t.Fatal(err)
	}
	return func() {
		if err := store.Release(context.Background(), lease, 0); err != nil {
			r.t.Error(err)
		}
	}
}

// await waits for a state on a request and returns it.
func (r *rig) await(nonce string, verdict gatedir.Verdict) gatedir.State {
	r.t.Helper()
	var state gatedir.State
	r.until(fmt.Sprintf("%s for %s", verdict, nonce), func() bool {
		var err error
		state, err = r.dir.ReadState()
		return err == nil && state.Request == nonce && state.Verdict == verdict
	})
	return state
}

// put publishes a state as an earlier holder has left it.
func (r *rig) put(nonce string, verdict gatedir.Verdict, changes ...func(*gatedir.State)) gatedir.State {
	r.t.Helper()
	state := gatedir.State{
		Version: gatedir.Version, Request: nonce, Boot: boot, Pod: pod, Verdict: verdict,
		Lock: name, Owner: owner + nonce, UpdatedBoot: gatedir.Duration(clock()),
	}
	for _, change := range changes {
		change(&state)
	}
	if err := r.dir.WriteState(state); err != nil {
		r.t.Fatal(err)
	}
	return state
}

// main is an exec and all that it started.
type main struct {
	t    *testing.T
	lock *os.File
}

// takeMain takes main.lock as exec does, but at a descriptor that the holders
// which the test starts do not inherit.
func (r *rig) takeMain() *main {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir.Path(), "main.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		r.t.Fatal(err)
	}
	r.until("main.lock", func() bool {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			r.t.Fatal(err)
		}
		return err == nil
	})
	m := &main{t: r.t, lock: f}
	r.t.Cleanup(m.leave)
	return m
}

// ask is an exec that starts: it takes main.lock and asks.
func (r *rig) ask(nonce string) *main {
	r.t.Helper()
	m := r.takeMain()
	r.request(nonce)
	return m
}

func (r *rig) request(nonce string) {
	r.t.Helper()
	if err := r.dir.WriteRequest(gatedir.Request{Nonce: nonce, Boot: boot, Pod: pod}); err != nil {
		r.t.Fatal(err)
	}
}

// leave is main's end.
func (m *main) leave() { m.lock.Close() }

func (r *rig) done(nonce string) {
	r.t.Helper()
	if err := r.dir.WriteDone(gatedir.Done{Request: nonce}); err != nil {
		r.t.Fatal(err)
	}
}

// obstruct makes it impossible, for any user, to publish a file, and returns how
// to make it possible again.
func (r *rig) obstruct(file string) (undo func()) {
	r.t.Helper()
	path := filepath.Join(r.dir.Path(), file)
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o755); err != nil {
		r.t.Error(err)
	}
	return func() {
		if err := os.RemoveAll(path); err != nil {
			r.t.Error(err)
		}
	}
}

// sidecar is a holder in this process.
type sidecar struct {
	t      *testing.T
	cancel context.CancelFunc
	result chan error

	mu   sync.Mutex
	seen []gate.Status
}

// sidecar starts a holder, with changes to its settings.
func (r *rig) sidecar(changes ...func(*holder.Config)) *sidecar {
	r.t.Helper()
	return r.sidecarContext(context.Background(), changes...)
}

func (r *rig) sidecarContext(ctx context.Context, changes ...func(*holder.Config)) *sidecar {
	r.t.Helper()
	return r.start(ctx, func(ctx context.Context, h *holder.Holder) error { return h.Sidecar(ctx) }, changes...)
}

// start starts a holder of one kind.
func (r *rig) start(ctx context.Context, kind func(context.Context, *holder.Holder) error, changes ...func(*holder.Config)) *sidecar {
	r.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	s := &sidecar{t: r.t, cancel: cancel, result: make(chan error, 1)}
	cfg := config(r.log)
	cfg.Dir, cfg.Gate.Store = r.dir, r.store()
	for _, change := range changes {
		change(&cfg)
	}
	observe := cfg.Observe
	cfg.Observe = func(status gate.Status) {
		s.mu.Lock()
		s.seen = append(s.seen, status)
		s.mu.Unlock()
		if observe != nil {
			observe(status)
		}
	}
	h := holder.New(cfg)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := kind(ctx, h)
		s.result <- errors.Join(err, h.Close())
	}()
	r.t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			r.t.Error("the holder does not end")
		}
	})
	return s
}

// wait waits for the holder's end.
func (s *sidecar) wait() error {
	s.t.Helper()
	select {
	case err := <-s.result:
		return err
	case <-time.After(patience):
		s.t.Fatal("the holder does not end")
		return nil
	}
}

func (s *sidecar) wantEnd(want error) {
	s.t.Helper()
	if err := s.wait(); !errors.Is(err, want) {
		s.t.Errorf("Sidecar() = %v; want %v", err, want)
	}
}

// states are what was published, in order and without repetitions.
func (s *sidecar) states() []gate.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []gate.State
	for _, status := range s.seen {
		states = append(states, status.State)
	}
	return slices.Compact(states)
}

// process is a holder in a process of its own.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
}

// processConfig is what a test tells it.
type processConfig struct {
	Dir, Socket string
	OnBusy      gate.OnBusy
}

// listen serves the rig's store on a socket, which every started holder uses.
func (r *rig) listen(policy gate.OnBusy) (start func() *process) {
	r.t.Helper()
	server := rpc.NewServer()
	if err := server.RegisterName("Store", &Served{store: r.store()}); err != nil {
		r.t.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "lg") // a socket's path must be short
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { os.RemoveAll(folder) })
	listener, err := (&net.ListenConfig{}).Listen(r.t.Context(), "unix", folder+"/s")
	if err != nil {
		r.t.Fatal(err)
	}
	var serving sync.WaitGroup
	r.t.Cleanup(func() { listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { server.ServeConn(conn) })
		}
	})
	text, err := json.Marshal(processConfig{Dir: r.dir.Path(), Socket: folder + "/s", OnBusy: policy})
	if err != nil {
		r.t.Fatal(err)
	}
	return func() *process {
		r.t.Helper()
		p := &process{t: r.t, cmd: exec.Command(self())}
		p.cmd.Env = append(os.Environ(), roleVar+"="+string(text), "GORACE=atexit_sleep_ms=0")
		p.cmd.Stderr = r.t.Output()
		if err := p.cmd.Start(); err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(p.kill)
		return p
	}
}

// kill ends the holder as nothing can be kept from doing.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func playHolder(text string) error {
	var pc processConfig
	if err := json.Unmarshal([]byte(text), &pc); err != nil {
		return err
	}
	dir, err := gatedir.Open(pc.Dir)
	if err != nil {
		return err
	}
	client, err := rpc.Dial("unix", pc.Socket)
	if err != nil {
		return err
	}
	cfg := config(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	cfg.Dir, cfg.Gate.Store, cfg.Gate.OnBusy = dir, &remote{client}, pc.OnBusy
	h := holder.New(cfg)
	return errors.Join(h.Sidecar(context.Background()), h.Close())
}

func self() string {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	path, _ := os.Executable()
	return path
}

// Served is the rig's store for holders in other processes.
type Served struct{ store db.Store }

// Call and Answer cross the socket.
type Call struct {
	Request db.Request
	Lease   db.Lease
}

// Answer is what the store said. Words of an error are their numbers in words.
type Answer struct {
	Lease db.Lease
	Word  int
	Held  *db.HeldError
	Text  string
}

func words() []error {
	return []error{nil, db.ErrHeld, db.ErrLost, db.ErrAgain, db.ErrRefused, db.ErrNoTable, errors.New("unknown outcome")}
}

func (a *Answer) set(lease db.Lease, err error) error {
	a.Lease = lease
	if err != nil {
		a.Text = err.Error()
		a.Word = len(words()) - 1
		for i, word := range words() {
			if word != nil && errors.Is(err, word) {
				a.Word = i
			}
		}
		a.Held, _ = errors.AsType[*db.HeldError](err)
	}
	return nil
}

func (s *Served) TryAcquire(c Call, a *Answer) error {
	return a.set(s.store.TryAcquire(context.Background(), c.Request))
}

func (s *Served) Renew(c Call, a *Answer) error {
	return a.set(s.store.Renew(context.Background(), c.Lease))
}

func (s *Served) Release(c Call, a *Answer) error {
	return a.set(db.Lease{}, s.store.Release(context.Background(), c.Lease, 0))
}

// remote is a store at the other end of the socket.
type remote struct{ client *rpc.Client }

func (r *remote) call(ctx context.Context, method string, c Call) (db.Lease, error) {
	var a Answer
	call := r.client.Go("Store."+method, c, &a, make(chan *rpc.Call, 1))
	select {
	case <-ctx.Done():
		return db.Lease{}, ctx.Err()
	case <-call.Done:
	}
	switch {
	case call.Error != nil:
		return db.Lease{}, call.Error
	case a.Held != nil:
		return db.Lease{}, a.Held
	case a.Word != 0:
		return db.Lease{}, fmt.Errorf("%s: %w", a.Text, words()[a.Word])
	}
	return a.Lease, nil
}

func (r *remote) TryAcquire(ctx context.Context, req db.Request) (db.Lease, error) {
	return r.call(ctx, "TryAcquire", Call{Request: req})
}

func (r *remote) Renew(ctx context.Context, lease db.Lease) (db.Lease, error) {
	return r.call(ctx, "Renew", Call{Lease: lease})
}

func (r *remote) Release(ctx context.Context, lease db.Lease, _ time.Duration) error {
	_, err := r.call(ctx, "Release", Call{Lease: lease})
	return err
}

func (r *remote) Close() error { return r.client.Close() }

// block makes a call wait for the end of its context, as a network does that
// has gone silent.
func block(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("nothing heard: %w", ctx.Err())
}

func nonce(i int) string { return "nonce" + strconv.Itoa(i) }
