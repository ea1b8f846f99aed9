//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The keys that make a terminal signal its foreground process group.
const (
	ctrlC         = "\x03"
	ctrlBackslash = "\x1c"
	ctrlZ         = "\x1a"
)

// pty is a pseudo-terminal and the program that leads its session. The test sits in
// front of it.
type pty struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	mark   string
	done   chan struct{} // closed when the leader has ended

	mu      sync.Mutex
	changed chan struct{}
	screen  bytes.Buffer
	seen    int // what await has looked past
}

// newPty starts a program as the leader of a session on a terminal of its own.
func newPty(t *testing.T, environ []string, name string, args ...string) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	must(t, err)
	p := &pty{t: t, master: master, done: make(chan struct{}), changed: make(chan struct{}), mark: newMark(t)}
	var number uint32
	p.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0) })
	p.control(func(fd int) (err error) {
		number, err = unix.IoctlGetUint32(fd, unix.TIOCGPTN)
		return err
	})
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	p.cmd = exec.Command(name, args...)
	p.cmd.Env = slices.Concat(environ, []string{markVar + "=" + p.mark})
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, p.cmd.Start())
	must(t, slave.Close())
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		p.read()
	}()
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		killMarked(t, p.mark)
		<-p.done
		_ = master.Close()
		<-drained
		if t.Failed() {
			t.Logf("on the terminal:\n%s", p.text())
		}
	})
	return p
}

// newShell starts an interactive shell with job control.
func newShell(t *testing.T, s settings) *pty {
	t.Helper()
	environ := append(s.environ(), "XDG_RUNTIME_DIR="+t.TempDir(), "lockgate="+built.lockgate, "puppet="+built.puppet, "TERM=vt100")
	p := newPty(t, environ, "bash", "--norc", "--noprofile", "--noediting", "-i")
	// Without an echo, what is on the screen was written by a program.
	p.say("stty -echo; PS1=; PS2=; set -o pipefail")
	p.say("echo r''eady")
	p.await("ready\r\n")
	return p
}

func (p *pty) control(f func(fd int) error) {
	p.t.Helper()
	conn, err := p.master.SyscallConn()
	must(p.t, err)
	var result error
	must(p.t, conn.Control(func(fd uintptr) { result = f(int(fd)) }))
	must(p.t, result)
}

func (p *pty) read() {
	buf := make([]byte, 4096)
	for {
		n, err := p.master.Read(buf)
		p.mu.Lock()
		p.screen.Write(buf[:n])
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return // closed, or everybody on the other side has ended
		}
	}
}

// text is all that was written to the terminal.
func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.screen.String()
}

// say types a line.
func (p *pty) say(format string, args ...any) {
	p.t.Helper()
	p.press(fmt.Sprintf(format, args...) + "\n")
}

// press types keys.
func (p *pty) press(keys string) {
	p.t.Helper()
	_, err := p.master.WriteString(keys)
	must(p.t, err)
}

// await waits until something was written after what was awaited before, and returns
// what was written up to and with it.
func (p *pty) await(text string) string {
	p.t.Helper()
	limit := time.After(patience)
	for {
		p.mu.Lock()
		rest, changed := p.screen.String()[p.seen:], p.changed
		if i := strings.Index(rest, text); i >= 0 {
			p.seen += i + len(text)
			p.mu.Unlock()
			return rest[:i+len(text)]
		}
		p.mu.Unlock()
		select {
		case <-changed:
		case <-limit:
			p.t.Fatalf("nobody wrote %q to the terminal", text)
		}
	}
}

// foreground is the process group to which the terminal's keys go.
func (p *pty) foreground() int {
	p.t.Helper()
	var group uint32
	p.control(func(fd int) (err error) {
		group, err = unix.IoctlGetUint32(fd, unix.TIOCGPGRP)
		return err
	})
	return int(group)
}

// wantCode has the shell say how the last command ended. It does only when it has the
// terminal, and with it our lines, again.
func (p *pty) wantCode(code int) {
	p.t.Helper()
	p.say("echo ended: $?.")
	p.await("ended: ")
	if got := p.await("."); got != fmt.Sprint(code)+"." {
		p.t.Errorf("the command ended with %s want %d", got, code)
	}
	p.wantShell()
}

// wantShell checks that the terminal is the shell's.
func (p *pty) wantShell() {
	p.t.Helper()
	if group := p.foreground(); group != p.cmd.Process.Pid {
		p.t.Errorf("process group %d is in the foreground; want the shell's, %d", group, p.cmd.Process.Pid)
	}
}

// stops presses Ctrl-Z and waits until the shell says that the job is stopped.
func (p *pty) stops() {
	p.t.Helper()
	p.press(ctrlZ)
	p.awaitStopped()
}

func (p *pty) awaitStopped() {
	p.t.Helper()
	p.await("Stopped")
	p.say("echo sh''ell")
	p.await("shell\r\n")
	p.wantShell()
}

// process waits for a process that was started from this terminal, by the first of its
// arguments.
func (p *pty) process(args ...string) int {
	p.t.Helper()
	first := []byte(strings.Join(args, "\x00"))
	found := 0
	await(p.t, strings.Join(args, " ")+" runs", func() bool {
		for _, pid := range marked(p.mark) {
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && bytes.HasPrefix(args, first) {
				found = pid
				return true
			}
		}
		return false
	})
	return found
}

// stateOf is the state of a process as ps shows it.
func stateOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return string(stat[bytes.LastIndexByte(stat, ')')+2])
}

// holding and guarding are the two halves of a run.
func (p *pty) holding() int {
	p.t.Helper()
	return p.process(built.lockgate, "run", "")
}

func (p *pty) guarding() int {
	p.t.Helper()
	return p.process(built.lockgate, "exec", "--half-of-run=")
}
