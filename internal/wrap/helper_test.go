package wrap_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/child"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/wrap"
)

// The test binary is also exec and the command that exec runs: with roleVar set
// it plays that role. The test itself is the holder. Exec and the commands
// write lines to exec's standard output, which all of them inherit: its end of
// file is the end of the last one.
const (
	roleVar = "WRAP_TEST_ROLE"
	execVar = "WRAP_TEST_EXEC" // an execConfig
)

const (
	// patience bounds every wait of a test. It is no measure of anything: a
	// wait that runs into it is a failure.
	patience = 2 * time.Minute

	// window is how far ahead a holder keeps the deadline that it moves on. A
	// machine that stands still for longer fails a test.
	window = 3 * time.Second

	// grace is from TERM to KILL: long enough to say that TERM was heard.
	grace = 2 * time.Second

	boot  = "this boot"
	pod   = "this pod"
	token = 42
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		time.AfterFunc(2*patience, func() { os.Exit(97) }) // a forgotten role ends some time
		os.Exit(play(role, os.Args[1:]))
	}
	// These tests wait rather than compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// execConfig is what a test tells its exec.
type execConfig struct {
	Dir, Nonce     string
	VerdictTimeout time.Duration
	Path           string // of CMD
	Args           []string
	Role           string // that CMD plays
	SlowEnv        bool   // making the environment takes until stop-at has passed
}

func play(role string, args []string) int {
	switch role {
	case "exec":
		return playExec()
	case "exit": // with the code in args[0]
		say("ready %d", os.Getpid())
		code, _ := strconv.Atoi(args[0])
		return code
	case "wait":
		say("ready %d", os.Getpid())
		select {}
	case "polite": // ends well when told to stop
		heard := notify(syscall.SIGTERM)
		say("ready %d", os.Getpid())
		<-heard
		say("TERM %d", bootclock.Now())
		return 0
	case "deaf": // hears TERM, and goes on
		heard := notify(syscall.SIGTERM)
		say("ready %d", os.Getpid())
		for range heard {
			say("TERM %d", bootclock.Now())
		}
	case "listen": // says what it hears, until USR2
		heard := notify(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
		say("ready %d", os.Getpid())
		for sig := range heard {
			say("%s %s", args[0], sig)
			if sig == syscall.SIGUSR2 || args[0] == "child" && sig == syscall.SIGTERM {
				return 7
			}
		}
	case "family": // listens, and has a child in its group
		spawn(nil, "listen", "child")
		return play("listen", []string{"cmd"})
	case "leave": // a daemon of another session, when told by USR2
		heard := notify(syscall.SIGUSR2)
		spawn(&syscall.SysProcAttr{Setsid: true}, args[0])
		say("cmd %d", os.Getpid())
		<-heard
		return 5
	case "environment":
		for _, entry := range os.Environ() {
			say("%s", entry)
		}
	default:
		say("no such role: %s", role)
		return 98
	}
	return 0
}

func playExec() int {
	var cfg execConfig
	if err := json.Unmarshal([]byte(os.Getenv(execVar)), &cfg); err != nil {
		say("%v", err)
		return 98
	}
	dir, err := gatedir.Open(cfg.Dir)
	if err != nil {
		say("%v", err)
		return 98
	}
	return wrap.Run(wrap.Config{
		Dir: dir, Nonce: cfg.Nonce, Boot: boot, Pod: pod,
		VerdictTimeout: cfg.VerdictTimeout,
		Spec:           child.Spec{Path: cfg.Path, Args: cfg.Args, NewGroup: true, DeathSignal: true},
		Env: func(lock string, token uint64) []string {
			if cfg.SlowEnv {
				state, _ := dir.ReadState()
				say("slow")
				for bootclock.Now() < time.Duration(state.StopBoot) {
					time.Sleep(time.Millisecond)
				}
			}
			return []string{
				roleVar + "=" + cfg.Role, "GORACE=atexit_sleep_ms=0",
				"LOCK=" + lock, fmt.Sprint("TOKEN=", token),
			}
		},
		Signals: notify(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2),
		Log:     slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

func notify(sigs ...os.Signal) <-chan os.Signal {
	c := make(chan os.Signal, 16)
	signal.Notify(c, sigs...)
	return c
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// spawn starts a role and does not wait for it.
func spawn(attr *syscall.SysProcAttr, role string, args ...string) {
	_, err := syscall.ForkExec(self(), append([]string{role}, args...), &syscall.ProcAttr{
		Env:   []string{roleVar + "=" + role, "GORACE=atexit_sleep_ms=0"},
		Files: []uintptr{0, 1, 2},
		Sys:   attr,
	})
	if err != nil {
		say("spawn %s: %v", role, err)
		os.Exit(98)
	}
}

func self() string {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	path, _ := os.Executable()
	return path
}

// rig is the holder's side of one exec.
type rig struct {
	t     *testing.T
	dir   *gatedir.Dir
	nonce string
	cmd   *exec.Cmd
	log   string
	lines chan string // closed when all have ended
	ended chan struct{}
}

// start starts an exec of a command that plays a role.
func start(t *testing.T, role string, args ...string) *rig {
	t.Helper()
	return startConfig(t, execConfig{Role: role}, args...)
}

func startConfig(t *testing.T, cfg execConfig, args ...string) *rig {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = memoryDir(t)
	}
	if cfg.Nonce == "" {
		cfg.Nonce = "nonce"
	}
	if cfg.VerdictTimeout == 0 {
		cfg.VerdictTimeout = patience
	}
	if cfg.Path == "" {
		cfg.Path = self()
	}
	cfg.Args = append([]string{cfg.Role}, args...)
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := gatedir.Open(cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	rig := &rig{
		t: t, dir: dir, nonce: cfg.Nonce, cmd: exec.Command(self()), log: filepath.Join(memoryDir(t), "log"),
		lines: make(chan string, 64), ended: make(chan struct{}),
	}
	rig.cmd.Env = append(os.Environ(), roleVar+"=exec", execVar+"="+string(text), "GORACE=atexit_sleep_ms=0")
	// A file, for waiting for exec must not wait for what inherits its output.
	log, err := os.Create(rig.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	rig.cmd.Stdout, rig.cmd.Stderr = w, log
	if err := rig.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		defer close(rig.ended)
		_ = rig.cmd.Wait()
	}()
	go func() {
		defer close(rig.lines)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			rig.lines <- s.Text()
		}
	}()
	t.Cleanup(rig.cleanUp)
	return rig
}

// memoryDir makes a directory in memory, as a pod's gate directory is, where
// there is such a place: a busy disk keeps a rename waiting for seconds.
func memoryDir(t *testing.T) string {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "wrap-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	return path
}

// cleanUp ends what a failed test leaves. A lost verdict ends everything in its
// time, also what exec alone can find.
func (r *rig) cleanUp() {
	select {
	case <-r.ended:
	default:
		_ = r.cmd.Process.Signal(syscall.SIGCONT)
		r.say(gatedir.Lost)
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-r.ended:
		case <-time.After(patience):
			_ = r.cmd.Process.Kill()
			<-r.ended
		}
	}
	for range r.lines {
	}
	if r.t.Failed() {
		log, _ := os.ReadFile(r.log)
		r.t.Logf("exec's log:\n%s", log)
	}
}

// request waits for exec's request.
func (r *rig) request() {
	r.t.Helper()
	r.until("the request", func() bool {
		req, err := r.dir.ReadRequest()
		return err == nil && req.Nonce == r.nonce
	})
	req, err := r.dir.ReadRequest()
	if want := (gatedir.Request{Version: gatedir.Version, Nonce: r.nonce, Boot: boot, Pod: pod}); err != nil || req != want {
		r.t.Fatalf("the request is %+v, %v; want %+v", req, err, want)
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

// say publishes a verdict, with changes to what a holder would say.
func (r *rig) say(verdict gatedir.Verdict, changes ...func(*gatedir.State)) {
	r.t.Helper()
	now := bootclock.Now()
	s := gatedir.State{
		Request: r.nonce, Boot: boot, Pod: pod, Verdict: verdict, Lock: "nightly", Owner: "holder",
		UpdatedBoot: gatedir.Duration(now), Reason: "so says the test",
		Policy: gatedir.Policy{StopGrace: gatedir.Duration(grace), SkipExitCode: 9},
	}
	if verdict == gatedir.Acquired {
		s.Token = token
		s.StopBoot, s.KillBoot = gatedir.Duration(now+window), gatedir.Duration(now+window+grace)
	}
	for _, change := range changes {
		change(&s)
	}
	if err := r.dir.WriteState(s); err != nil {
		r.t.Error(err)
	}
}

// far puts the deadlines where no test comes to.
func far(s *gatedir.State) {
	s.StopBoot, s.KillBoot = gatedir.Duration(bootclock.Now()+time.Hour), gatedir.Duration(bootclock.Now()+2*time.Hour)
}

// patient leaves a command all the time that it needs to stop by itself.
func patient(s *gatedir.State) {
	s.KillBoot = s.StopBoot + gatedir.Duration(time.Hour)
	s.Policy.StopGrace = gatedir.Duration(time.Hour)
}

// line returns the next line, while the holder does what it is told meanwhile.
func (r *rig) line(meanwhile func()) string {
	r.t.Helper()
	limit := time.After(patience)
	for {
		again := make(<-chan time.Time)
		if meanwhile != nil {
			meanwhile()
			again = time.After(window / 20)
		}
		select {
		case line, ok := <-r.lines:
			if !ok {
				r.t.Fatal("all have ended without a word")
			}
			return line
		case <-again:
		case <-limit:
			r.t.Fatal("no word came")
		}
	}
}

// ready waits until a command says that it is ready, and returns its number.
func (r *rig) ready(meanwhile func()) int {
	r.t.Helper()
	return r.number("ready", meanwhile)
}

// number waits for a line with a word and a number, and returns the latter.
func (r *rig) number(word string, meanwhile func()) int {
	r.t.Helper()
	line := r.line(meanwhile)
	text, ok := strings.CutPrefix(line, word+" ")
	n, err := strconv.Atoi(text)
	if !ok || err != nil {
		r.t.Fatalf("the next line is %q; want %s and a number", line, word)
	}
	return n
}

// renew is a holder that moves the deadlines on.
func (r *rig) renew() { r.say(gatedir.Acquired) }

// signal sends a signal to exec.
func (r *rig) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.t.Fatal(err)
	}
}

// wantEnd waits until exec and everything it started has ended, and checks
// exec's code, what was still said, and the word that exec has left.
func (r *rig) wantEnd(code int, lines ...string) {
	r.t.Helper()
	if got := r.end(); got != code {
		r.t.Errorf("exec ended with %d; want %d", got, code)
	}
	if got := strings.Join(r.rest(), "\n"); got != strings.Join(lines, "\n") {
		r.t.Errorf("then the commands said %q; want %q", got, lines)
	}
	if done, err := r.dir.ReadDone(); err != nil || done != (gatedir.Done{Request: r.nonce, Code: code}) {
		r.t.Errorf("done is %+v, %v; want code %d for %s", done, err, code, r.nonce)
	}
	if probe := r.dir.Probe(); !probe.Gone() {
		r.t.Error("main.lock is not free")
	}
}

// end waits for exec's end and returns its code, 128+n for signal n.
func (r *rig) end() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.t.Fatal("exec does not end")
	}
	status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// rest waits for the end of all and returns what they still said.
func (r *rig) rest() []string {
	r.t.Helper()
	var rest []string
	limit := time.After(patience)
	for {
		select {
		case line, ok := <-r.lines:
			if !ok {
				return rest
			}
			rest = append(rest, line)
		case <-limit:
			r.t.Fatal("something still runs")
		}
	}
}

// alive tells whether exec has not ended.
func (r *rig) alive() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// script writes a file that may or may not be executable.
func script(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cmd")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}
