//go:build linux

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
		{"in a pipeline", " | (trap '' INT; exec cat)"}, // it gets the key too
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, at := newShell(t, lasting(t)), newStage(t)
			file := filepath.Join(at.dir, "heard")
			p.say(`"$lockgate" run -- %s%s`, strings.Join(at.puppet("-heard", file, "-exit", "4"), " "), c.rest)
			awaitFile(t, at.witness())
			p.press(ctrlC)
			heard(t, file, "interrupt")
			if c.rest == "" {
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
			p.wantCode(4)
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

// A shell that runs a command waits for it, so both have to be told, as they are
// without lockgate.
func TestCtrlCInAPipelineEndsAScriptAndWhatItRuns(t *testing.T) {
	t.Parallel()
	for name, rest := range map[string]string{
		"output to a pipe":  " | cat",
		"input from a file": " </dev/null",
		"output to a file":  " >/dev/null",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := lasting(t)
			p, at := newShell(t, s), newStage(t)
			p.say(`"$lockgate" run -- bash -c '%s; exit 0'%s`, strings.Join(at.puppet(), " "), rest)
			awaitFile(t, at.witness())
			p.press(ctrlC)
			p.wantCode(130)
			start(t, s.with(settings{"ON_BUSY": "fail"}), "run", "--", "true").wantExit(0)
		})
	}
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
	for _, file := range []string{s.beat(), s.beat() + "-grandchild"} {
		await(p.t, "a sign of life in "+file, func() bool {
			info, err := os.Stat(file)
			return err == nil && info.Size() > 0
		})
	}
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
			p.say(`"$lockgate" run -- %s%s`, at.family(), c.rest)
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
			p.wantCode(0)
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
				p.wantCode(76)
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

// ON_LOST=continue says that the command's work is worth more than the lock.
func TestAJobThatGoesOnWithoutTheLockIsContinuedAfterItsLease(t *testing.T) {
	t.Parallel()
	s := short(sqliteURL(t))
	p, at, second := newShell(t, s.with(settings{"ON_LOST": "continue"})), newStage(t), newStage(t)
	p.say(`"$lockgate" run -- %s`, at.family())
	pids := at.members(p)
	p.stops()
	other := second.run(t, s.with(settings{"ON_BUSY": "wait"}))
	awaitFile(t, second.witness())
	wantStates(t, true, pids)
	p.say("fg")
	p.await("goes on without the lock")
	at.awaitBeats(t)
	wantStates(t, false, pids)
	touch(t, at.curtain())
	touch(t, second.curtain())
	p.wantCode(0)
	other.wantExit(0)
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
	p.say(`"$lockgate" run -- sh -c 'echo err""or >&2; stty -echo < /dev/tty && echo m""ode; echo o""ut' | cat`)
	p.await("error\r\n")
	p.await("out\r\n")
	p.await(`"lock released"`)
	p.wantCode(0)
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

func TestAnInteractiveShellAsCMDHasJobControlOfItsOwn(t *testing.T) {
	t.Parallel()
	p, at := newShell(t, lasting(t)), newStage(t)
	p.say(`"$lockgate" run -- bash --norc --noprofile --noediting -i`)
	inner := p.process("bash", "--norc", "--noprofile", "--noediting", "-i")
	await(t, "the inner shell has the terminal", func() bool {
		inner = p.foreground()
		return inner != p.cmd.Process.Pid && stateOf(inner) == "S" && inner != p.holding()
	})
	p.say("stty -echo; PS1=; echo in''ner")
	p.await("inner\r\n")
	p.say("%s", strings.Join(at.puppet(), " "))
	job := p.process(at.puppet()...)
	await(t, "the inner job has the terminal", func() bool { return p.foreground() == job })
	p.press(ctrlZ)
	p.await("Stopped")
	wantStates(t, true, []int{job})
	wantStates(t, false, []int{p.holding(), p.guarding(), inner})
	p.say("echo in''ner")
	p.await("inner\r\n")

	// While all is stopped from outside, what the inner shell has stopped stays so.
	must(t, syscall.Kill(p.holding(), syscall.SIGTSTP))
	p.awaitStopped()
	wantStates(t, true, []int{p.holding(), inner, job})
	p.say("fg")
	await(t, "the inner shell has the terminal", func() bool { return p.foreground() == inner && stateOf(inner) == "S" })
	wantStates(t, true, []int{job})
	p.say("fg")
	await(t, "the inner job has the terminal", func() bool { return p.foreground() == job && stateOf(job) == "S" })
	p.press(ctrlC)
	p.say("echo in''ner $?")
	p.await("inner 130\r\n")
	p.say("exit 9")
	p.wantCode(9)
}

// An inner job that had the terminal gets it again, and its shell has not seen that it
// was stopped.
func TestAnInnerForegroundJobGetsTheTerminalBack(t *testing.T) {
	t.Parallel()
	p := newShell(t, lasting(t))
	p.say(`"$lockgate" run -- bash --norc --noprofile --noediting -i`)
	p.await("bash-") // its prompt
	p.say(`PS1=; sh -c 'echo a""sk; read x; echo "got $x"'; echo inner $?`)
	p.await("ask\r\n")
	job := p.foreground()
	must(t, syscall.Kill(p.holding(), syscall.SIGTSTP))
	p.awaitStopped()
	wantStates(t, true, []int{job})
	p.say("fg")
	await(t, "the inner job has the terminal", func() bool { return p.foreground() == job })
	p.say("hello")
	p.await("got hello\r\n")
	p.await("inner 0\r\n")
	p.say("exit 9")
	p.wantCode(9)
}

func TestLockgateUnderLockgateIsStoppedAndContinued(t *testing.T) {
	t.Parallel()
	p, at := newShell(t, lasting(t)), newStage(t)
	p.say(`"$lockgate" run -- env LOCKGATE_NAME=inner LOCKGATE_DB_URL=%s "$lockgate" run -- %s`, sqliteURL(t), at.family())
	pids := at.members(p)
	await(t, "CMD has the terminal", func() bool { return p.foreground() == pids[0] })
	p.stops()
	wantStates(t, true, append(pids, p.holding()))
	p.say("fg")
	at.awaitBeats(t)
	await(t, "CMD has the terminal", func() bool { return p.foreground() == pids[0] })
	p.press(ctrlC)
	p.wantCode(130)
}

// Nobody could continue what leads its session, as the first process of a container
// with a terminal does, or what a program that knows no job control has started.
func TestWhatNobodyCouldContinueIsNotStopped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		how  way
		via  []string
	}{
		{"run leads the session", byRun, nil},
		{"exec leads the session", bySidecar, nil},
		{"a script leads the session", byRun, []string{"sh", "-c", `"$@"; exit $?`, "sh"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, at, dir := lasting(t), newStage(t), t.TempDir()
			args := []string{built.lockgate, "run", "--"}
			if c.how == bySidecar {
				holder := sidecar(t, dir, s)
				defer func() {
					holder.signal(syscall.SIGTERM)
					holder.wantExit(0)
				}()
				args[1], s = "exec", settings{"DIR": dir}
			}
			args = append(append(c.via, args...), at.puppet("-beat", at.beat(), "-grandchild", at.beat()+"-grandchild", "-exit", "3")...)
			p := newPty(t, append(s.environ(), "XDG_RUNTIME_DIR="+dir), args[0], args[1:]...)
			pids := at.members(p)
			await(t, "CMD has the terminal", func() bool { return p.foreground() == pids[0] })
			for range 3 {
				p.press(ctrlZ)
				p.await("^Z")
				at.awaitBeats(t)
			}
			must(t, syscall.Kill(p.process(slices.Concat([]string{built.lockgate}, args[len(c.via)+1:])...), syscall.SIGTSTP))
			at.awaitBeats(t)
			await(t, "CMD has the terminal", func() bool { return p.foreground() == pids[0] })
			touch(t, at.curtain())
			<-p.done
			if code := p.cmd.ProcessState.ExitCode(); code != 3 {
				t.Errorf("it ended with %d; want 3", code)
			}
		})
	}
}

func TestExecOnATerminal(t *testing.T) {
	t.Parallel()
	t.Run("CMD reads, is stopped and continued", func(t *testing.T) {
		t.Parallel()
		dir, at := t.TempDir(), newStage(t)
		sidecar(t, dir, lasting(t))
		p := newShell(t, settings{"DIR": dir})
		p.say(`"$lockgate" exec -- sh -c 'echo a""sk; read x; echo "got $x"; '%q`, "exec "+at.family())
		p.await("ask\r\n")
		p.say("hello")
		p.await("got hello\r\n")
		pids := at.members(p)
		p.stops()
		wantStates(t, true, append(pids, p.process(built.lockgate, "exec", "")))
		p.say("fg")
		at.awaitBeats(t)
		await(t, "CMD has the terminal", func() bool { return p.foreground() == pids[0] })
		p.press(ctrlC)
		p.wantCode(130)
	})
	t.Run("a script around it has the terminal when CMD has ended", func(t *testing.T) {
		t.Parallel()
		dir, at := t.TempDir(), newStage(t)
		sidecar(t, dir, lasting(t))
		p := newShell(t, settings{"DIR": dir})
		job := filepath.Join(at.dir, "job.sh")
		must(t, os.WriteFile(job, []byte(`"$lockgate" exec -- sh -c 'exit 3'; echo code $?; read x; echo got $x`), 0o644))
		p.say("sh %s", job)
		p.await("code 3\r\n")
		p.say("hello")
		p.await("got hello")
		p.wantCode(0)
	})
	t.Run("it is continued after its lease", func(t *testing.T) {
		t.Parallel()
		s, dir, at, second := short(sqliteURL(t)), t.TempDir(), newStage(t), newStage(t)
		holder := sidecar(t, dir, s)
		p := newShell(t, settings{"DIR": dir})
		p.say(`"$lockgate" exec -- %s`, at.family())
		at.members(p)
		p.stops()
		stopped := time.Now()
		holder.kill()
		other := second.run(t, s.with(settings{"ON_BUSY": "wait"}))
		awaitFile(t, second.witness())
		p.say("fg")
		p.wantCode(76)
		for _, file := range []string{at.beat(), at.beat() + "-grandchild"} {
			if last := lastBeat(t, file); last.After(stopped) {
				t.Errorf("%s: a sign of life %s after the stop", file, last.Sub(stopped))
			}
		}
		touch(t, second.curtain())
		other.wantExit(0)
	})
}

func TestClosingTheTerminalEndsCMDAndReleasesTheLock(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped before: %v", stopped), func(t *testing.T) {
			t.Parallel()
			s := lasting(t)
			p, at := newShell(t, s), newStage(t)
			p.say(`"$lockgate" run -- %s`, at.family())
			at.members(p)
			if stopped {
				p.stops()
			}
			must(t, p.master.Close())
			await(t, "all have ended", func() bool { return len(marked(p.mark)) == 0 })
			start(t, s.with(settings{"ON_BUSY": "fail"}), "run", "--", "true").wantExit(0)
		})
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, set, redirect string
		want                bool
	}{
		{"on a terminal", "", "", true},
		{"in a pipeline", "", " 2>&1 | cat", false},
		{"standard output alone in a pipeline", "", " | cat", true},
		{"NO_COLOR", "NO_COLOR=1 ", "", false},
		{"TERM=dumb", "TERM=dumb ", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newShell(t, lasting(t).with(settings{"LOG_FORMAT": "auto"}))
			p.say(`%s"$lockgate" run -- true%s`, c.set, c.redirect)
			p.await("lock acquired")
			p.await("lock released")
			p.wantCode(0)
			if got := strings.Contains(p.text(), "\x1b["); got != c.want {
				t.Errorf("colours in the log: %v; want %v", got, c.want)
			}
		})
	}
}

func TestAStoppedJobThatIsContinuedInTimeIsRenewedAgain(t *testing.T) {
	t.Parallel()
	const ttl, stop = 10 * time.Second, 2 * time.Second // several renewals are left out
	p, at := newShell(t, short(sqliteURL(t)).with(settings{"TTL": ttl.String()})), newStage(t)
	p.say(`"$lockgate" run -- %s`, at.family())
	pids := at.members(p)
	p.stops()
	stopped := time.Now()
	<-time.After(stop) // no event: nothing happens
	p.say("fg")
	await(t, "CMD outlives the lease that it had", func() bool { return lastBeat(t, at.beat()).After(stopped.Add(ttl)) })
	wantStates(t, false, pids)
	touch(t, at.curtain())
	p.wantCode(0)
}

func TestCtrlZAtAnyMomentOfTheStart(t *testing.T) {
	t.Parallel()
	const starts = 40
	p := newShell(t, lasting(t))
	var whole time.Duration // of a start, as it was first seen
	for i := range starts {
		at := newStage(t)
		began := time.Now()
		// CMD starts nobody: a Go program that is stopped just then waits for its
		// child, which was stopped too, and never stops, with lockgate or without.
		p.say(`"$lockgate" run -- %s`, strings.Join(at.puppet(), " "))
		await(t, "the job has the terminal", func() bool { return p.foreground() != p.cmd.Process.Pid })
		if i == 0 {
			awaitFile(t, at.witness())
			whole = time.Since(began)
		} else {
			<-time.After(rand.N(whole)) // no event: the moment is what is tried
		}
		p.stops()
		for _, pid := range marked(p.mark) {
			args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.HasPrefix(string(args), built.puppet) {
				wantStates(t, true, []int{pid})
			}
		}
		p.say("fg")
		awaitFile(t, at.witness())
		touch(t, at.curtain())
		p.wantCode(0)
	}
}

// What a command ignores from its start it has from lockgate's parent.
func TestTheSignalsThatCMDIgnores(t *testing.T) {
	t.Parallel()
	const show = "grep SigIgn /proc/self/status"
	ignores := func(p *pty, command string) uint64 {
		p.t.Helper()
		p.say("%s", command)
		p.await("SigIgn:\t")
		mask, err := strconv.ParseUint(strings.TrimSpace(p.await("\n")), 16, 64)
		must(p.t, err)
		p.wantCode(0)
		return mask
	}
	const (
		tstp = 1 << (syscall.SIGTSTP - 1)
		ttin = 1 << (syscall.SIGTTIN - 1)
		ttou = 1 << (syscall.SIGTTOU - 1)
	)
	for _, c := range []struct {
		name, before, after string
		more                uint64 // than without lockgate
	}{
		{"on the terminal", "", "", 0},
		{"on the terminal, by a parent that ignores them", "trap '' TSTP TTIN TTOU; ", "", 0},
		// It would be stopped where nobody could bring it to the foreground.
		{"in a pipeline", "", " | cat", ttin | ttou},
		{"in a pipeline, by a parent that ignores them", "trap '' TSTP TTIN TTOU; ", " | cat", 0},
		{"without a terminal", "setsid -w ", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newShell(t, lasting(t))
			line := func(lockgate string) string {
				return "(" + c.before + lockgate + show + c.after + ")"
			}
			want := ignores(p, line("")) | c.more
			if got := ignores(p, line(`"$lockgate" run -- `)); got != want {
				t.Errorf("CMD ignores %#x; want %#x (of them TSTP %#x, TTIN %#x, TTOU %#x)", got, want, tstp, ttin, ttou)
			}
		})
	}
}
