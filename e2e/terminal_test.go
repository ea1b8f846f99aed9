//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockgate/lockgate/internal/testserver"
)

// lasting are settings for a lock of the test's own that no stop of a test outlives.
func lasting(t *testing.T) settings { return short(sqliteURL(t)).with(calm()) }

func TestACommandReadsTheTerminal(t *testing.T) {
	t.Parallel()
	p := newShell(t, lasting(t))
	p.say(`"$lockgate" run -- sh -c 'echo a""sk; read x; echo "got $x"; exit 5'`)
	p.await("ask\r\n")
	p.say("hello")
	p.await("got hello\r\n")
	p.wantCode(5)
}

// heard returns what a puppet has heard, once it has heard the last thing.
func heard(t *testing.T, file, last string) []string {
	t.Helper()
	var lines []string
	await(t, "CMD hears "+last, func() bool {
		text, err := os.ReadFile(file)
		lines = strings.Split(strings.TrimSpace(string(text)), "\n")
		return err == nil && lines[len(lines)-1] == last
	})
	return lines
}

func TestEachKeyReachesCMDOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, rest string }{
		{"on the terminal", ""},
		{"in a pipeline", " | cat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, at := newShell(t, lasting(t)), newStage(t)
			file := filepath.Join(at.dir, "heard")
			p.say(`"$lockgate" run -- %s%s; echo ${PIPESTATUS[0]} codes`, strings.Join(at.puppet("-heard", file, "-exit", "4"), " "), c.rest)
			awaitFile(t, at.witness())
			if c.rest != "" {
				// The other end of the pipe would end.
				p.await("starting the command")
			}
			p.press(ctrlC)
			if c.rest == "" {
				heard(t, file, "interrupt")
				p.press(ctrlBackslash)
				heard(t, file, "quit")
			}
			p.control(func(fd int) error {
				return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 90})
			})
			heard(t, file, "window changed")
			// Whatever lockgate has passed on, it has before this one.
			must(t, syscall.Kill(p.holding(), syscall.SIGUSR1))
			got := heard(t, file, "user defined signal 1")
			want := []string{"interrupt", "quit", "window changed", "user defined signal 1"}
			if c.rest != "" {
				want = slices.Delete(want, 1, 2)
			}
			if !slices.Equal(got, want) {
				t.Errorf("CMD heard %q; want %q", got, want)
			}
			touch(t, at.curtain())
			p.await("4 codes")
			p.wantShell()
		})
	}
}

func TestCtrlCEndsACommandThatDoesNotHandleIt(t *testing.T) {
	t.Parallel()
	s := lasting(t)
	p, at := newShell(t, s), newStage(t)
	p.say(`"$lockgate" run -- %s`, strings.Join(at.puppet(), " "))
	awaitFile(t, at.witness())
	p.press(ctrlC)
	p.wantCode(130)
	start(t, s.with(settings{"ON_BUSY": "fail"}), "run", "--", "true").wantExit(0)
}

func TestCtrlCWhileWaitingLeavesNothing(t *testing.T) {
	t.Parallel()
	s := lasting(t)
	first, at := newStage(t), newStage(t)
	other := first.run(t, s)
	awaitFile(t, first.witness())
	p := newShell(t, s.with(settings{"ON_BUSY": "wait"}))
	p.say(`"$lockgate" run -- %s`, strings.Join(at.puppet(), " "))
	p.await("waiting for the lock")
	p.press(ctrlC)
	p.wantCode(130)
	touch(t, first.curtain())
	other.wantExit(0)
	start(t, s.with(settings{"ON_BUSY": "fail"}), "run", "--", "true").wantExit(0)
	if exists(at.witness()) {
		t.Error("CMD ran")
	}
}

// family is a job that lives on a stage: a puppet, and another that has left its
// session.
func (s stage) family() string {
	return strings.Join(s.puppet("-beat", s.beat(), "-grandchild", s.beat()+"-grandchild"), " ")
}

// members are the process numbers of a family: CMD and its grandchild.
func (s stage) members(p *pty) []int {
	p.t.Helper()
	awaitFile(p.t, s.beat()+"-grandchild")
	awaitFile(p.t, s.beat())
	return []int{p.process(s.puppet()...), p.process(built.puppet, "-beat", s.beat()+"-grandchild")}
}

// wantStates checks that all members of a family are stopped, or that none is.
func wantStates(t *testing.T, stopped bool, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if state := stateOf(pid); (state == "T") != stopped {
			t.Errorf("process %d is in state %q; want it stopped: %v", pid, state, stopped)
		}
	}
}

// awaitBeats waits for signs of life after now.
func (s stage) awaitBeats(t *testing.T) {
	t.Helper()
	now := time.Now()
	for _, file := range []string{s.beat(), s.beat() + "-grandchild"} {
		await(t, "a sign of life in "+file, func() bool { return lastBeat(t, file).After(now) })
	}
}

func TestAStoppedJobCarriesOnWhenItIsContinued(t *testing.T) {
	t.Parallel()
	ctrlZ := func(p *pty, _ int) { p.press(ctrlZ) }
	for _, c := range []struct {
		name, rest string
		stop       func(p *pty, cmd int)
		again      string // the shell's word that continues it
	}{
		{"Ctrl-Z and fg", "", ctrlZ, "fg"},
		{"Ctrl-Z and bg, then fg", "", ctrlZ, "bg"},
		{"Ctrl-Z and fg in a pipeline", " | cat", ctrlZ, "fg"},
		{"lockgate is told to stop", "", func(p *pty, _ int) { must(p.t, syscall.Kill(p.holding(), syscall.SIGTSTP)) }, "fg"},
		{"CMD alone is told to stop", "", func(p *pty, cmd int) { must(p.t, syscall.Kill(cmd, syscall.SIGTSTP)) }, "fg"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, at := newShell(t, lasting(t)), newStage(t)
			p.say(`"$lockgate" run -- %s%s; echo ${PIPESTATUS[0]} codes`, at.family(), c.rest)
			pids := at.members(p)
			wantStates(t, false, pids)
			c.stop(p, pids[0])
			p.awaitStopped()
			wantStates(t, true, append(pids, p.holding()))
			p.say("%s", c.again)
			at.awaitBeats(t)
			wantStates(t, false, append(pids, p.holding()))
			if c.again == "bg" {
				p.wantShell()
				p.say("fg")
			}
			if c.rest == "" {
				await(t, "CMD has the terminal", func() bool { return p.foreground() == pids[0] })
			}
			// The same process ends well: a puppet fails if its witness is there.
			touch(t, at.curtain())
			await(t, "the shell has the terminal again", func() bool { return p.foreground() == p.cmd.Process.Pid })
			p.say("echo $?.")
			p.await("0.")
			if n := strings.Count(p.text(), `"lock acquired"`); n != 1 {
				t.Errorf("the lock was acquired %d times; want once", n)
			}
		})
	}
}

func TestAJobThatIsContinuedAfterItsLeaseNeverRunsAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, rest, again string }{
		{"by fg", "", "fg"},
		{"by bg", "", "bg"},
		{"by fg in a pipeline", " | cat", "fg"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := short(sqliteURL(t))
			p, at, second := newShell(t, s), newStage(t), newStage(t)
			p.say(`"$lockgate" run -- %s%s`, at.family(), c.rest)
			pids := at.members(p)
			p.stops()
			stopped := time.Now()
			wantStates(t, true, pids)
			other := second.run(t, s.with(settings{"ON_BUSY": "wait"}), "-beat", second.beat())
			awaitFile(t, second.witness())
			p.say("%s", c.again)
			await(t, "CMD has ended", func() bool { return stateOf(pids[0]) == "" && stateOf(pids[1]) == "" })
			if c.again == "fg" {
				p.say("echo ${PIPESTATUS[0]} codes")
				p.await("76 codes")
			}
			for _, file := range []string{at.beat(), at.beat() + "-grandchild"} {
				if last := lastBeat(t, file); last.After(stopped) {
					t.Errorf("%s: a sign of life %s after the stop", file, last.Sub(stopped))
				}
			}
			touch(t, second.curtain())
			other.wantExit(0)
			other.wantNoErrors()
		})
	}
}

// The command is not continued, even if somebody else than the shell does.
func TestAStoppedJobIsKilledBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	s := short(sqliteURL(t))
	p, at, second := newShell(t, s), newStage(t), newStage(t)
	p.say(`"$lockgate" run -- %s`, at.family())
	at.members(p)
	p.stops()
	second.run(t, s.with(settings{"ON_BUSY": "wait"}))
	awaitFile(t, second.witness())
	for _, pid := range marked(p.mark) {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(string(args), built.puppet) {
			t.Errorf("process %d is left while somebody else has the lock: %q", pid, args)
		}
	}
	p.wantShell()
	p.say("fg")
	p.wantCode(76)
}

func TestCtrlZWhileWaitingStopsLockgate(t *testing.T) {
	t.Parallel()
	s := lasting(t)
	first, at := newStage(t), newStage(t)
	other := first.run(t, s)
	awaitFile(t, first.witness())
	p := newShell(t, s.with(settings{"ON_BUSY": "wait"}))
	p.say(`"$lockgate" run -- %s`, strings.Join(at.puppet("-exit", "6"), " "))
	p.await("waiting for the lock")
	p.stops()
	wantStates(t, true, []int{p.holding()})
	touch(t, first.curtain())
	other.wantExit(0)
	p.say("fg")
	awaitFile(t, at.witness())
	touch(t, at.curtain())
	p.wantCode(6)
}

// A script of the shell's is in our process group: the keys go to CMD's alone, but
// it is the script that the shell waits for.
func TestCtrlZStopsTheScriptAroundLockgate(t *testing.T) {
	t.Parallel()
	p, at := newShell(t, lasting(t)), newStage(t)
	job := filepath.Join(at.dir, "job.sh")
	must(t, os.WriteFile(job, []byte(`"$lockgate" run -- `+at.family()+"\n"), 0o644))
	p.say("sh %s", job)
	pids := at.members(p)
	p.stops()
	wantStates(t, true, pids)
	p.say("fg")
	at.awaitBeats(t)
	touch(t, at.curtain())
	p.wantCode(0)
}

func TestSIGSTOPOfCMDStopsNobodyElse(t *testing.T) {
	t.Parallel()
	p, at := newShell(t, lasting(t)), newStage(t)
	p.say(`"$lockgate" run -- %s`, at.family())
	pids := at.members(p)
	must(t, syscall.Kill(pids[0], syscall.SIGSTOP))
	await(t, "CMD is stopped", func() bool { return stateOf(pids[0]) == "T" })
	must(t, syscall.Kill(p.holding(), syscall.SIGUSR1)) // heard while it is stopped
	wantStates(t, false, []int{p.holding(), pids[1]})
	must(t, syscall.Kill(pids[0], syscall.SIGKILL))
	p.wantCode(137)
}

func TestOutputComesThroughInTheBackgroundOfATerminalWithTostop(t *testing.T) {
	t.Parallel()
	p := newShell(t, lasting(t))
	p.say("stty tostop")
	p.say(`"$lockgate" run -- sh -c 'echo err""or >&2; stty -echo < /dev/tty && echo m""ode; echo o""ut' | cat; echo ${PIPESTATUS[0]} codes`)
	p.await("error\r\n")
	p.await("out\r\n")
	p.await(`"lock released"`)
	p.await("0 codes")
}

// What lockgate logs while CMD has the terminal is written in its background.
func TestTheLogComesThroughWhileCMDHasATerminalWithTostop(t *testing.T) {
	t.Parallel()
	s := short(sqliteURL(t))
	p := newShell(t, s)
	p.say("stty tostop")
	p.say(`"$lockgate" run -- sh -c 'echo a""sk; read x; exit 3'`)
	p.await("ask\r\n")
	p.say("go")
	p.await(`"the command has ended"`) // from the guarding half, whose group is never in the foreground
	p.wantCode(3)
}

func TestACommandThatReadsTheTerminalInAPipelineIsToldThatItCannot(t *testing.T) {
	t.Parallel()
	p := newShell(t, lasting(t))
	p.say(`"$lockgate" run -- sh -c 'head -c1; echo "r""ead: $?"' | cat`)
	p.await("read: 1")
	p.wantCode(0)
}

func TestABackgroundJobGetsTheTerminalFromFgOnly(t *testing.T) {
	t.Parallel()
	t.Run("while it runs", func(t *testing.T) {
		t.Parallel()
		p, at := newShell(t, lasting(t)), newStage(t)
		p.say(`"$lockgate" run -- %s &`, strings.Join(at.puppet(), " "))
		awaitFile(t, at.witness())
		p.say("echo sh''ell")
		p.await("shell\r\n")
		p.wantShell()
		p.say("fg")
		cmd := p.process(at.puppet()...)
		await(t, "CMD has the terminal", func() bool { return p.foreground() != p.cmd.Process.Pid && p.foreground() != p.holding() })
		await(t, "CMD has the terminal", func() bool { g, err := syscall.Getpgid(cmd); return err == nil && p.foreground() == g })
		p.press(ctrlC)
		p.wantCode(130)
	})
	t.Run("when it reads", func(t *testing.T) {
		t.Parallel()
		p := newShell(t, lasting(t))
		p.say(`"$lockgate" run -- sh -c 'read x; echo "got $x"; exit 5' &`)
		await(t, "the job is stopped", func() bool { return stateOf(p.holding()) == "T" })
		p.wantShell()
		p.say("jobs")
		p.await("Stopped")
		p.say("fg")
		cmd := p.process("sh", "-c", "read")
		await(t, "CMD has the terminal", func() bool { return p.foreground() != p.cmd.Process.Pid && stateOf(cmd) == "S" })
		await(t, "CMD has the terminal", func() bool { return p.foreground() != p.holding() })
		p.say("hello")
		p.await("got hello\r\n")
		p.wantCode(5)
	})
}

func TestTheTerminalIsGivenBackHoweverCMDEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(b *bench, cmd, half int)
		code int
	}{
		{"CMD is killed", func(b *bench, cmd, _ int) { must(b.t, syscall.Kill(cmd, syscall.SIGKILL)) }, 137},
		{"the guarding half is killed", func(b *bench, _, half int) { must(b.t, syscall.Kill(half, syscall.SIGKILL)) }, 137},
		{"the guarding half is frozen, and all is killed at kill-at", func(b *bench, _, half int) {
			must(b.t, syscall.Kill(half, syscall.SIGSTOP))
			must(b.t, b.way.SetMode(testserver.Blackhole))
		}, 76},
		{"CMD does not end when it is told to", func(b *bench, _, _ int) { must(b.t, b.way.SetMode(testserver.Blackhole)) }, 76},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			p, at := newShell(t, b.via(nil)), newStage(t)
			// A group that is dead stays in the foreground of this one's terminal, if
			// nobody takes it away: the script's shell has no job control.
			job := filepath.Join(at.dir, "job.sh")
			must(t, os.WriteFile(job, []byte(`"$lockgate" run -- `+strings.Join(at.puppet("-stubborn"), " ")+"\necho code $?; read x; echo got $x\n"), 0o644))
			p.say("sh %s", job)
			awaitFile(t, at.witness())
			cmd := p.process(at.puppet()...)
			await(t, "CMD has the terminal", func() bool { return p.foreground() == cmd })
			c.end(b, cmd, p.guarding())
			p.await(fmt.Sprintf("code %d\r\n", c.code))
			if script := p.process("sh", job); p.foreground() != script {
				t.Errorf("process group %d is in the foreground; want the job's, %d", p.foreground(), script)
			}
			p.say("hello")
			p.await("got hello")
			p.wantCode(0)
		})
	}
}
