//go:build unix

package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestTheExitCodeIsWhatAShellWouldReport(t *testing.T) {
	tests := []struct {
		name   string
		role   []string
		code   int
		signal syscall.Signal
		status string
	}{
		{"success", []string{"exit", "0"}, 0, 0, "exit status 0"},
		{"a code", []string{"exit", "3"}, 3, 0, "exit status 3"},
		{"the greatest code", []string{"exit", "255"}, 255, 0, "exit status 255"},
		{"a code that looks like a signal's", []string{"exit", "143"}, 143, 0, "exit status 143"},
		{"ended by TERM", []string{"die", "15"}, 143, syscall.SIGTERM, "killed by SIGTERM"},
		{"ended by KILL", []string{"die", "9"}, 137, syscall.SIGKILL, "killed by SIGKILL"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := startRole(t, newLines(t), test.role...)
			<-p.Exited()
			if got := p.ExitCode(); got != test.code {
				t.Errorf("ExitCode() = %d; want %d", got, test.code)
			}
			if got := p.TermSignal(); got != test.signal {
				t.Errorf("TermSignal() = %v; want %v", got, test.signal)
			}
			if got := p.Status(); got != test.status {
				t.Errorf("Status() = %q; want %q", got, test.status)
			}
			<-p.Gone()
		})
	}
}

func TestARunningCommandHasNoExitCode(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "wait")
	if pid := l.ready(); pid != p.Pid() {
		t.Errorf("Pid() = %d; want %d", p.Pid(), pid)
	}
	if p.ExitCode() != -1 || p.TermSignal() != 0 || p.Status() != "running" {
		t.Errorf("of a running command: code %d, signal %v, status %q; want -1, none, running",
			p.ExitCode(), p.TermSignal(), p.Status())
	}
	if closed(p.Exited()) || closed(p.Gone()) {
		t.Error("Exited or Gone is closed while the command runs")
	}
}

func TestTheCommandGetsItsArgumentsEnvironmentAndDirectory(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l := newLines(t)
	p := startSpec(t, Spec{Dir: dir, Env: []string{"A=first", "A=last"}}, l, "print", "a b", "")
	<-p.Gone()
	self, _ := os.Executable()
	want := fmt.Sprintf("%q last %s\n", []string{self, "a b", ""}, dir)
	if got := l.rest(); got != want {
		t.Errorf("the command saw %swant %s", got, want)
	}
}

func TestOnlyDescriptorsMeantForItAreInherited(t *testing.T) {
	r, w, err := os.Pipe() // close-on-exec, as everything Go opens
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l := newLines(t)
	startRole(t, l, "wait")
	l.ready() // over a descriptor that was meant for it
	w.Close()
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("reading the other pipe = %d, %v; want its end, because the command does not have it", n, err)
	}
}

func TestAStartThatFailsLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("\x7fELF\x00\x00junk"), 0o755); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		spec Spec
		code int // 0: not a LookupError
		is   error
	}{
		{"no such file", Spec{Path: filepath.Join(dir, "none")}, 127, os.ErrNotExist},
		{"not executable", Spec{Path: plain}, 126, os.ErrPermission},
		{"a directory", Spec{Path: dir}, 126, os.ErrPermission},
		{"no program", Spec{Path: junk}, 126, syscall.ENOEXEC},
		{"no such directory to start in", Spec{Path: "/bin/sh", Dir: filepath.Join(dir, "none")}, 0, os.ErrNotExist},
		{"a file to start in", Spec{Path: "/bin/sh", Dir: plain}, 0, syscall.ENOTDIR},
		{"too many arguments", Spec{Path: "/bin/sh", Args: []string{"sh", strings.Repeat("x", 1<<22)}}, 126, syscall.E2BIG},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, err := Start(test.spec)
			if p != nil || !errors.Is(err, test.is) {
				t.Fatalf("Start() = %v, %v; want nil and %v", p, err, test.is)
			}
			code := 0
			if lookup, ok := errors.AsType[*LookupError](err); ok {
				code = lookup.Code
			}
			if code != test.code {
				t.Errorf("Start() failed with code %d (%v); want %d", code, err, test.code)
			}
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
				t.Errorf("a child is left: Wait4() = %d, %v", pid, err)
			}
		})
	}
}

func TestAScriptWithoutInterpreterLineIsRunByTheShell(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "script")
	if err := os.WriteFile(path, []byte(`test "$1 $2" = "a b c" && exit 7`+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []Spec{
		{Path: path, Args: []string{"name", "a b", "c"}},
		{Path: "./script", Args: []string{"name", "a b", "c"}, Dir: dir},
	} {
		p, err := Start(spec)
		if err != nil {
			t.Fatal(err)
		}
		<-p.Gone()
		if got := p.ExitCode(); got != 7 {
			t.Errorf("ExitCode() of %s in %q = %d; want 7", spec.Path, spec.Dir, got)
		}
	}
}

func TestASignalToTheCommandDoesNotReachItsChildren(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "parent", "listen")
	pids := []int{l.ready(), l.ready()}
	grandchild := pids[0]
	if grandchild == p.Pid() {
		grandchild = pids[1]
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if got := p.ExitCode(); got != 143 {
		t.Errorf("ExitCode() = %d; want 143", got)
	}
	// It hears this one only, in the order of the signals.
	if err := syscall.Kill(grandchild, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	if got, want := l.rest(), fmt.Sprintf("SIGUSR2 %d\n", grandchild); got != want {
		t.Errorf("the grandchild heard %q; want %q", got, want)
	}
	<-p.Gone()
}

func TestACommandThatHasEndedCannotBeSignalled(t *testing.T) {
	p := startRole(t, newLines(t), "exit", "0")
	<-p.Exited()
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal() = %v; want os.ErrProcessDone", err)
	}
	<-p.Gone()
	if n, err := p.SignalAll(syscall.SIGTERM); n != 0 || err != nil {
		t.Errorf("SignalAll() = %d, %v; want 0, nil", n, err)
	}
	if err := p.KillAll(t.Context()); err != nil {
		t.Errorf("KillAll() = %v; want nil", err)
	}
}

func TestSignalsWhileTheCommandEndsReachItOrNobody(t *testing.T) {
	p := startRole(t, newLines(t), "exit", "0")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				if err := p.Signal(0); errors.Is(err, os.ErrProcessDone) {
					return
				} else if err != nil {
					t.Errorf("Signal() = %v; want nil or os.ErrProcessDone", err)
					return
				}
				if _, err := p.SignalAll(0); err != nil {
					t.Errorf("SignalAll() = %v; want nil", err)
					return
				}
			}
		})
	}
	all.Wait()
	if !closed(p.Exited()) {
		t.Error("os.ErrProcessDone before Exited")
	}
}
