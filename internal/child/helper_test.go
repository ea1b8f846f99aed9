//go:build unix

package child

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also every program that the tests run: with roleVar set it
// plays that role, with its arguments after the program's name. Roles write lines
// to the descriptor in lineVar, which all of them inherit: its end of file is the
// end of the last one.
const (
	roleVar = "CHILD_TEST_ROLE"
	lineVar = "CHILD_TEST_LINES"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		// A forgotten role ends some time.
		time.AfterFunc(2*time.Minute, func() { os.Exit(97) })
		playRole(role, os.Args[1:])
		os.Exit(0)
	}
	if err := BecomeSubreaper(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func playRole(role string, args []string) {
	switch role {
	case "exit": // with the code in args[0]
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	case "die": // by the signal in args[0]
		number, _ := strconv.Atoi(args[0])
		_ = syscall.Kill(os.Getpid(), syscall.Signal(number))
		forever()
	case "wait": // and say so
		say("ready %d", os.Getpid())
		forever()
	case "idle": // and say nothing
		forever()
	case "deaf": // to TERM
		signal.Ignore(syscall.SIGTERM)
		say("ready %d", os.Getpid())
		forever()
	case "listen": // and name what is heard, until USR2; once ready, start the role in args
		heard := make(chan os.Signal, 16)
		signal.Notify(heard, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
		say("ready %d", os.Getpid())
		if len(args) > 0 {
			spawn(args, nil)
		}
		for sig := range heard {
			say("%s %d", unix.SignalName(sig.(syscall.Signal)), os.Getpid())
			if sig == syscall.SIGUSR2 {
				return
			}
		}
	case "stopped":
		say("ready %d", os.Getpid())
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		forever()
	case "parent": // of the role in args; then wait
		spawn(args, nil)
		say("ready %d", os.Getpid())
		forever()
	case "leave": // a daemon with the role in args, and end
		spawn(append([]string{"middle"}, args...), &syscall.SysProcAttr{Setsid: true})
	case "daemonize": // the role in args, and wait
		spawn(append([]string{"middle"}, args...), &syscall.SysProcAttr{Setsid: true})
		say("ready %d", os.Getpid())
		forever()
	case "middle":
		spawn(args, &syscall.SysProcAttr{Setsid: true})
	case "many": // short-lived orphans, args[0] of them; then wait
		cmd := exec.Command("/bin/sh", "-c", `i=0; while [ $i -lt `+args[0]+` ]; do (: & ); i=$((i+1)); done`)
		if err := cmd.Run(); err != nil {
			say("%v", err)
			os.Exit(98)
		}
		say("ready %d", os.Getpid())
		forever()
	case "print": // what we were started with
		dir, _ := os.Getwd()
		say("%q %s %s", os.Args, os.Getenv("A"), dir)
	default:
		playSystemRole(role, args)
	}
}

func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

// say writes one line for the test.
func say(format string, args ...any) {
	fd, err := strconv.Atoi(os.Getenv(lineVar))
	if err != nil {
		fmt.Fprintln(os.Stderr, "no descriptor for lines:", err)
		os.Exit(98)
	}
	_, _ = syscall.Write(fd, fmt.Appendf(nil, format+"\n", args...))
}

// spawn starts another role, which inherits the lines, and does not wait for it.
func spawn(role []string, attr *syscall.SysProcAttr) {
	fd, _ := strconv.Atoi(os.Getenv(lineVar))
	files := make([]uintptr, fd+1)
	for i := range files {
		files[i] = ^uintptr(0)
	}
	files[0], files[1], files[2], files[fd] = 0, 1, 2, uintptr(fd)
	self, _ := os.Executable()
	_, err := syscall.ForkExec(self, append([]string{self}, role[1:]...), &syscall.ProcAttr{
		Env:   roleEnv(role[0], fd),
		Files: files,
		Sys:   attr,
	})
	if err != nil {
		say("spawn: %v", err)
		os.Exit(98)
	}
}

func roleEnv(role string, fd int) []string {
	return lastOfEach(append(os.Environ(), roleVar+"="+role, lineVar+"="+strconv.Itoa(fd),
		"GORACE=atexit_sleep_ms=0")) // or every role takes a second to end
}

// lines is what the roles of one test say.
type lines struct {
	t    *testing.T
	read *bufio.Reader
	file *os.File
	fd   int // the writing end, which is inherited
	open bool
}

func newLines(t *testing.T) *lines {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// A copy of its own, without close-on-exec.
	fd, err := syscall.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	// A role that hangs fails its test before it ends by itself.
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	l := &lines{t: t, read: bufio.NewReader(r), file: r, fd: fd, open: true}
	t.Cleanup(func() { l.closeWriter(); r.Close() })
	return l
}

// closeWriter leaves the writing end to the roles alone.
func (l *lines) closeWriter() {
	if l.open {
		l.open = false
		syscall.Close(l.fd)
	}
}

// next returns the next line's words.
func (l *lines) next() []string {
	l.t.Helper()
	line, err := l.read.ReadString('\n')
	if err != nil {
		l.t.Fatalf("waiting for a line: %v", err)
	}
	return strings.Fields(line)
}

// ready waits until a role says that it is ready, and returns its process number.
func (l *lines) ready() int {
	l.t.Helper()
	words := l.next()
	if len(words) != 2 || words[0] != "ready" {
		l.t.Fatalf("next line = %q; want ready PID", words)
	}
	pid, err := strconv.Atoi(words[1])
	if err != nil {
		l.t.Fatal(err)
	}
	return pid
}

// rest waits for the end of every role and returns what they still said.
func (l *lines) rest() string {
	l.t.Helper()
	l.closeWriter()
	text, err := io.ReadAll(l.read)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

// startRole starts a role as CMD, in a group of its own, and ends it with the test.
func startRole(t *testing.T, l *lines, role ...string) *Process {
	t.Helper()
	return startSpec(t, Spec{NewGroup: true}, l, role...)
}

func startSpec(t *testing.T, spec Spec, l *lines, role ...string) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec.Path, spec.Args = self, append([]string{self}, role[1:]...)
	spec.Env = append(roleEnv(role[0], l.fd), spec.Env...)
	p, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	l.closeWriter()
	t.Cleanup(func() {
		// The test's own context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.KillAll(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

// closed reports whether c is closed now.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// waitFor polls for what sends no event.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 30_000 {
		if ok() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("never came: %s", what)
}
