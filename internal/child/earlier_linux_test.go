package child

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// startEarlier starts a role as a child that is not CMD's. It inherits the lines of
// the others that are made by then. All is dead and reaped
// when the test has ended.
func startEarlier(t *testing.T, l *lines, role ...string) int {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := make([]uintptr, l.fd+1)
	for i := range files {
		files[i] = ^uintptr(0)
	}
	files[0], files[1], files[2], files[l.fd] = 0, 1, 2, uintptr(l.fd)
	pid, err := syscall.ForkExec(self, append([]string{self}, role[1:]...), &syscall.ProcAttr{
		Env: roleEnv(role[0], l.fd), Files: files,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.closeWriter()
	t.Cleanup(func() { // runs when CMD is gone
		for {
			tree, err := scan(nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(tree) == 0 {
				return
			}
			for pid := range tree {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			_, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			time.Sleep(time.Millisecond)
		}
	})
	return pid
}

// wantAlive checks that a process lives.
func wantAlive(t *testing.T, what string, pid int) {
	t.Helper()
	if s, err := readStat(pid); err != nil || s.dead() {
		t.Errorf("%s: %+v, %v; want it alive", what, s, err)
	}
}

// wantHeardNothing ends a listener and checks that it heard nothing before.
func wantHeardNothing(t *testing.T, l *lines, listener int) {
	t.Helper()
	if err := syscall.Kill(listener, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("[SIGUSR2 %d]", listener)
	if got := fmt.Sprint(l.next()); got != want {
		t.Errorf("the bystanders said %s; want %s, and nothing before", got, want)
	}
}

func TestAnEarlierChildAndWhatItStartsAreLeftAlone(t *testing.T) {
	for _, group := range []bool{true, false} {
		t.Run(fmt.Sprintf("with a group %t", group), func(t *testing.T) {
			bystanders := newLines(t)
			earlier := startEarlier(t, bystanders, "later", "listen")
			bystanders.ready()

			l := newLines(t)
			p := startSpec(t, Spec{NewGroup: group}, l, "family")
			for range 3 { // a child in the group, a daemon in a session of its own, and CMD
				l.ready()
			}
			waitForCount(t, p, 3)
			if err := syscall.Kill(earlier, syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			its := bystanders.ready()

			if n, err := p.SignalAll(syscall.SIGUSR1); n != 3 || err != nil {
				t.Errorf("SignalAll() = %d, %v; want 3, nil", n, err)
			}
			if pids := mustDescend(t, p); len(pids) != 3 {
				t.Errorf("Descendants() = %v; want three processes", pids)
			}
			if err := p.KillAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !closed(p.Gone()) {
				t.Error("Gone is not closed after KillAll")
			}
			l.rest() // it has an end: all of CMD's are dead
			if err := p.KillAll(t.Context()); err != nil {
				t.Errorf("KillAll() after Gone = %v; want nil", err)
			}
			wantAlive(t, "the earlier child", earlier)
			wantHeardNothing(t, bystanders, its)
		})
	}
}

func TestWhatAnEarlierChildHadStartedIsLeftAloneAsAnOrphan(t *testing.T) {
	bystanders := newLines(t)
	earlier := startEarlier(t, bystanders, "parent", "listen")
	its := bystanders.ready()
	if other := bystanders.ready(); its == earlier {
		its = other
	}
	l := newLines(t)
	p := startRole(t, l, "wait")
	l.ready()
	if err := syscall.Kill(earlier, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the orphan is ours", func() bool {
		s, err := readStat(its)
		return err == nil && s.parent == os.Getpid()
	})
	if n, err := p.SignalAll(syscall.SIGUSR1); n != 1 || err != nil {
		t.Errorf("SignalAll() = %d, %v; want 1, nil", n, err)
	}
	if err := p.KillAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantHeardNothing(t, bystanders, its)
}

func TestGoneComesThoughAnEarlierChildLives(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	earlier := startEarlier(t, newLines(t), "idle")
	p := startRole(t, newLines(t), "exit", "3")
	<-p.Gone()
	if !closed(p.Exited()) || p.ExitCode() != 3 {
		t.Errorf("Exited is closed: %t, ExitCode() = %d; want true, 3", closed(p.Exited()), p.ExitCode())
	}
	wantAlive(t, "the earlier child", earlier)
	waitFor(t, "the reaper ends", func() bool { return runtime.NumGoroutine() <= goroutines })
}

func TestGoneWaitsForWhatTheCommandLeavesBesideAnEarlierChild(t *testing.T) {
	earlier := startEarlier(t, newLines(t), "idle")
	l := newLines(t)
	p := startRole(t, l, "leave", "wait")
	daemon := l.ready()
	<-p.Exited()
	waitForCount(t, p, 1)
	if pids := mustDescend(t, p); pids[0] != daemon {
		t.Errorf("Descendants() = %v; want %d", pids, daemon)
	}
	if only, sure := p.onlyEarlier(); only || !sure || closed(p.Gone()) {
		t.Fatalf("onlyEarlier() = %t, %t, Gone is closed: %t, while a daemon of CMD lives; want false, true, false",
			only, sure, closed(p.Gone()))
	}
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Gone()
	wantAlive(t, "the earlier child", earlier)
}

func TestAnEarlierChildThatEndsIsReaped(t *testing.T) {
	bystanders := newLines(t)
	before := startEarlier(t, bystanders, "exit", "0")
	waitFor(t, "an earlier child has ended", func() bool {
		s, err := readStat(before)
		return err == nil && s.dead()
	})
	during := startEarlier(t, newLines(t), "idle")
	l := newLines(t)
	p := startRole(t, l, "wait")
	l.ready()
	if err := syscall.Kill(during, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{before, during} {
		waitFor(t, "the earlier child is reaped", func() bool {
			s, err := readStat(pid)
			return ended(err) || err == nil && s.parent != os.Getpid()
		})
	}
	if closed(p.Exited()) {
		t.Error("the end of an earlier child was taken for the command's")
	}
	if err := p.KillAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.ExitCode(); got != 137 {
		t.Errorf("ExitCode() = %d; want 137, the command's own", got)
	}
}

func TestAProcessWithAnEarlierOnesNumberIsNotSpared(t *testing.T) {
	l := newLines(t)
	pid := startEarlier(t, l, "wait")
	l.ready()
	s, err := readStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	same := &Process{earlier: findEarlier(), gone: make(chan struct{})}
	reused := &Process{earlier: earlier{pid: s.start - 1}, gone: make(chan struct{})}
	if others, err := same.others(); others || err != nil {
		t.Errorf("others() = %t, %v beside the earlier child; want false, nil", others, err)
	}
	if n, err := same.SignalAll(syscall.SIGKILL); n != 0 || err != nil || same.killChildren() {
		t.Errorf("SignalAll() = %d, %v, or killChildren killed; want 0, nil, and nobody killed", n, err)
	}
	if others, err := reused.others(); !others || err != nil {
		t.Errorf("others() = %t, %v beside another process; want true, nil", others, err)
	}
	if n, err := reused.SignalAll(syscall.SIGKILL); n != 1 || err != nil {
		t.Errorf("SignalAll() = %d, %v; want 1, nil", n, err)
	}
	l.rest()
}

func TestGoneIsNotMissedWhenNobodyCouldLook(t *testing.T) {
	startEarlier(t, newLines(t), "idle")
	l := newLines(t)
	p := startRole(t, l, "wait")
	l.ready()

	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	err := p.Signal(syscall.SIGKILL)
	if err == nil {
		<-p.Exited()
		only, sure := p.onlyEarlier()
		if only || sure {
			t.Errorf("onlyEarlier() without descriptors = %t, %t; want false, false", only, sure)
		}
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	<-p.Gone()
}
