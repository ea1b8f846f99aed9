package child

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// states counts the descendants that live by whether they are stopped. Stopped is
// also who waits in the kernel for a child to execute a program, which has been
// stopped before it did: it stops as soon as it could go on.
func states(t *testing.T, p *Process) (halted, running int) {
	t.Helper()
	tree, err := scan(p.earlier)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range tree {
		switch {
		case d.dead():
		case d.halted(), d.state == 'D':
			halted++
		default:
			running++
		}
	}
	return halted, running
}

func TestSuspendStopsEveryDescendantAndResumeContinuesThem(t *testing.T) {
	for _, c := range []struct {
		name  string
		role  []string
		ready int // how many say so
	}{
		{"CMD alone", []string{"wait"}, 1},
		{"a child and a daemon", []string{"family"}, 3},
		{"a process whose first thread has ended", []string{"headless"}, 1},
		{"CMD starts others all the time", []string{"spawner"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLines(t)
			p := startRole(t, l, c.role...)
			for range c.ready {
				l.ready()
			}
			for range 5 {
				if err := p.Suspend(time.Minute); err != nil {
					t.Fatalf("Suspend() = %v", err)
				}
				halted, running := states(t, p)
				if running > 0 || halted < c.ready {
					t.Errorf("after Suspend %d descendants run and %d are stopped; want 0 and at least %d", running, halted, c.ready)
				}
				if err := p.Resume(); err != nil {
					t.Fatalf("Resume() = %v", err)
				}
				waitFor(t, "all run", func() bool {
					halted, _ := states(t, p)
					return halted == 0
				})
			}
		})
	}
}

func TestWhatWasStoppedBeforeStaysStopped(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "daemonize", "stopped")
	l.ready()
	l.ready()
	waitFor(t, "the daemon stops itself", func() bool {
		halted, _ := states(t, p)
		return halted == 1
	})
	if err := p.Suspend(time.Minute); err != nil {
		t.Fatalf("Suspend() = %v", err)
	}
	if err := p.Resume(); err != nil {
		t.Fatalf("Resume() = %v", err)
	}
	waitFor(t, "CMD runs", func() bool { return !p.Halted() })
	if halted, _ := states(t, p); halted != 1 {
		t.Errorf("%d descendants are stopped; want the one that was before", halted)
	}
}

func TestStopsTellsWhichSignalHasStoppedCMD(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "daemonize", "stopped") // the stop of another is not told
	l.ready()
	l.ready()
	for _, sig := range []syscall.Signal{syscall.SIGTSTP, syscall.SIGSTOP, syscall.SIGTTIN, syscall.SIGTTOU} {
		if err := p.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got := <-p.Stops(); got != sig {
			t.Errorf("<-Stops() = %v; want %v", got, sig)
		}
		if !p.Halted() {
			t.Errorf("Halted() = false after %v", sig)
		}
		if err := p.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "CMD runs", func() bool { return !p.Halted() })
	}
	if closed(p.Exited()) {
		t.Error("CMD that was stopped and continued is taken for ended")
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if code := p.ExitCode(); code != 137 {
		t.Errorf("ExitCode() = %d; want 137", code)
	}
}

func TestWhichSignalHasStoppedAChild(t *testing.T) {
	// In a group of its own with us as its parent, which is not orphaned.
	for _, sig := range []syscall.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGSTOP} {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		if got := stopSignal(pid); got != 0 {
			t.Errorf("stopSignal of a child that runs = %v; want none", got)
		}
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); stopSignal(pid) == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		for range 2 { // nothing is taken away
			if got := stopSignal(pid); got != sig {
				t.Errorf("stopSignal = %v; want %v", got, sig)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
