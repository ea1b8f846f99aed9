package gatedir

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is also every process that the tests start: with roleVar set
// it plays that role, on the directory in its first argument. A role answers on
// standard output and ends when standard input does, so that none outlives its
// test.
const roleVar = "GATEDIR_TEST_ROLE"

// patience bounds every wait of a test. It is no measure of anything: a wait
// that runs into it is a failure.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		if err := playRole(role, &Dir{path: os.Args[1]}, os.Args[2:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func playRole(role string, d *Dir, args []string) error {
	switch role {
	case "check":
		return answer(d.Check("test"))
	case "check with little space": // a limit of its own, which any user can set
		signal.Ignore(syscall.SIGXFSZ)
		limit := syscall.Rlimit{Cur: 1024, Max: 1024}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			return err
		}
		return answer(d.Check("test"))
	case "publish under a umask":
		mask, err := strconv.ParseInt(args[0], 8, 32)
		if err != nil {
			return err
		}
		syscall.Umask(int(mask))
		return publishAll(d)
	case "hold": // holder.lock
		if _, err := d.LockHolder(); err != nil {
			return answer(err)
		}
		fmt.Println("ok")
		return untilEOF()
	case "main": // main.lock, and start a process that inherits it
		return playMain(d, args)
	case "inherit": // whatever is open, and keep it
		fmt.Println("ready")
		return untilEOF()
	case "exec side":
		return playExecSide(d)
	case "holder side":
		return playHolderSide(d)
	default:
		return playSystemRole(role, d)
	}
}

// answer says what became of something.
func answer(err error) error {
	switch {
	case err == nil:
		fmt.Println("ok")
	case errors.Is(err, ErrTaken):
		fmt.Println("taken")
	case errors.Is(err, syscall.EFBIG), errors.Is(err, syscall.ENOSPC):
		fmt.Println("full")
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EROFS):
		fmt.Println("refused")
	default:
		return err
	}
	return nil
}

func untilEOF() error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func publishAll(d *Dir) error {
	lock, err := d.LockMain(context.Background())
	if err != nil {
		return err
	}
	defer lock.Close()
	held, err := d.LockHolder()
	if err != nil {
		return err
	}
	defer held.Close()
	return errors.Join(d.WriteRequest(Request{Nonce: "n", Boot: "b"}), d.WriteDone(Done{Request: "n"}),
		d.WriteState(State{Request: "n", Boot: "b", Verdict: Waiting}), d.MarkAcquired(1), d.MarkSkipped("why"))
}

// playMain takes main.lock, says at which descriptor, and starts a process that
// inherits it.
func playMain(d *Dir, args []string) error {
	if len(args) > 0 { // a limit on open files
		n, err := strconv.ParseUint(args[0], 10, 32)
		if err != nil {
			return err
		}
		limit := syscall.Rlimit{Cur: n, Max: n}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
	}
	lock, err := d.LockMain(context.Background())
	if err != nil {
		return err
	}
	pid, err := syscall.ForkExec(self(), []string{"inherit", d.path}, &syscall.ProcAttr{
		Env:   []string{roleVar + "=inherit"},
		Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return err
	}
	fmt.Println("main", lock.high, pid)
	return untilEOF()
}

// playExecSide and playHolderSide go through the protocol, each looking for the
// other's next file as long as it takes.
func playExecSide(d *Dir) error {
	for round := range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		lock, err := d.LockMain(ctx)
		cancel()
		if err != nil {
			return err
		}
		req := Request{Nonce: "round " + strconv.Itoa(round), Boot: "b", Pod: "p"}
		if err := errors.Join(d.Check("exec"), d.WriteRequest(req)); err != nil {
			return err
		}
		state, err := await(func() (State, bool) {
			s, err := d.ReadState()
			return s, err == nil && s.Answers(req) && s.Verdict == Acquired
		})
		if err != nil || !d.HolderLives() {
			return fmt.Errorf("the verdict is %v, %w; the holder lives: %t", state, err, d.HolderLives())
		}
		if err := d.WriteDone(Done{Request: req.Nonce, Code: round}); err != nil {
			return err
		}
		if err := lock.Close(); err != nil {
			return err
		}
		if _, err := await(func() (State, bool) {
			s, err := d.ReadState()
			return s, err == nil && s.Answers(req) && s.Verdict == Released
		}); err != nil {
			return err
		}
	}
	fmt.Println("ok")
	return nil
}

func playHolderSide(d *Dir) error {
	held, err := d.LockHolder()
	if err != nil {
		return err
	}
	defer held.Close()
	probe := d.Probe()
	defer probe.Close()
	for round := range 2 {
		req, err := await(func() (Request, bool) {
			r, err := d.ReadRequest()
			return r, err == nil && r.Nonce == "round "+strconv.Itoa(round)
		})
		if err != nil {
			return err
		}
		if probe.Gone() {
			return errors.New("main is gone before there was a verdict")
		}
		state := State{
			Request: req.Nonce, Boot: "b", Pod: "p", Verdict: Acquired, Token: 7,
			StopBoot: Duration(time.Hour), KillBoot: Duration(time.Hour),
		}
		if err := errors.Join(d.Check("holder"), d.WriteState(state), d.MarkAcquired(7)); err != nil {
			return err
		}
		if _, err := await(func() (bool, bool) { return true, probe.Gone() }); err != nil {
			return err
		}
		done, err := d.ReadDone()
		if err != nil || done != (Done{Request: req.Nonce, Code: round}) {
			return fmt.Errorf("done is %v, %w", done, err)
		}
		state.Verdict = Released
		if err := errors.Join(d.Unmark(), d.WriteState(state)); err != nil {
			return err
		}
	}
	fmt.Println("ok")
	return nil
}

// await asks again and again until there is an answer.
func await[T any](ask func() (T, bool)) (T, error) {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if v, ok := ask(); ok || time.Now().After(end) {
			if !ok {
				return v, errors.New("it never came to that")
			}
			return v, nil
		}
	}
}

// self is the test binary. The link can be followed by any user; the folder
// that the binary is in may be closed to others.
func self() string {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	path, _ := os.Executable()
	return path
}

// proc is a process that plays a role.
type proc struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
	ended bool
}

// play starts a role. uid -1 is our own user.
func play(t *testing.T, uid int, role string, args ...string) *proc {
	t.Helper()
	return playWith(t, credential(uid), role, args...)
}

// credential makes a process another user's; nil for -1.
func credential(uid int) *syscall.SysProcAttr {
	if uid < 0 {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
}

func playWith(t *testing.T, attr *syscall.SysProcAttr, role string, args ...string) *proc {
	t.Helper()
	p := &proc{t: t, cmd: exec.Command(self(), args...)}
	// With the race detector a process waits a second before it ends, unless told.
	p.cmd.Env = append(os.Environ(), roleVar+"="+role, "GORACE=atexit_sleep_ms=0")
	p.cmd.SysProcAttr = attr
	p.cmd.Stderr = t.Output()
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.lines = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end() })
	return p
}

// next returns the next line that the role says.
func (p *proc) next() string {
	p.t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil {
		p.t.Fatalf("waiting for %s: %q, %v", p.cmd.Args, line, err)
	}
	return strings.TrimSpace(line)
}

func (p *proc) want(line string) {
	p.t.Helper()
	if got := p.next(); got != line {
		p.t.Errorf("%s said %q; want %q", p.cmd.Args, got, line)
	}
}

// end lets the role end, and waits for it.
func (p *proc) end() {
	if !p.ended {
		p.ended = true
		p.in.Close()
		_ = p.cmd.Wait()
	}
}

// kill ends the role by SIGKILL. Its standard input stays open for whatever it
// has started.
func (p *proc) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.cmd.Process.Wait(); err != nil {
		p.t.Fatal(err)
	}
}

// open returns a gate directory such as a shared volume is: anybody may write
// in it, and nobody may remove another's file.
func open(t *testing.T) *Dir {
	t.Helper()
	path := t.TempDir()
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil { // others may pass
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func names(t *testing.T, d *Dir) []string {
	t.Helper()
	entries, err := os.ReadDir(d.path)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	slices.Sort(list)
	return list
}

func wantNames(t *testing.T, d *Dir, want ...string) {
	t.Helper()
	if got := names(t, d); !slices.Equal(got, want) {
		t.Errorf("the directory has %q; want %q", got, want)
	}
}

// eventually polls for what sends no event.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if _, err := await(func() (bool, bool) { return true, ok() }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// nobody is an ordinary user when the tests run as root, and ourselves if not.
func nobody() int {
	if os.Getuid() == 0 {
		return 65534
	}
	return -1
}
