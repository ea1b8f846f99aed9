package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/testserver"
)

// onBothStores runs a test on MariaDB and on SQLite.
func onBothStores(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for name, url := range map[string]func(*testing.T) string{"MariaDB": database, "SQLite": sqliteURL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, url(t))
		})
	}
}

// The replacement of a pod whose sidecar and main were both killed belongs to the
// same Job. It must run main, once the dead one's lease has ended, and not call
// the job done.
func TestAReplacementOfTheSameRunWaitsForTheDeadOneAndRuns(t *testing.T) {
	t.Parallel()
	onBothStores(t, func(t *testing.T, url string) {
		dead := startContender(t, built.lockgate, short(url).with(settings{"RUN": "job-R"}), bySidecar, true)
		dead.awaitRunning()
		killMarked(t, dead.mark) // sidecar, exec, CMD and its grandchild

		other := newStage(t)
		s := other.run(t, short(url).with(settings{"RUN": "job-S", "SKIP_EXIT_CODE": "0"}))
		same := newStage(t)
		touch(t, same.curtain())
		r := same.run(t, short(url).with(settings{"RUN": "job-R"}))

		s.wantExit(0)
		if exists(other.witness()) {
			t.Error("the contender of another run has run; want it to skip")
		}
		wantSaid(t, s.said(), "skipping")
		r.wantExit(0)
		last := dead.lastLife()
		if !exists(same.witness()) {
			t.Fatal("the contender of the same run has not run")
		}
		info, err := os.Stat(same.witness())
		must(t, err)
		gap := info.ModTime().Sub(last)
		t.Logf("run S skipped with 0; run R ran %s after the dead one's last sign of life", gap)
		if gap <= 0 {
			t.Errorf("the replacement ran %s before the dead one's last sign of life", -gap)
		}
		wantSaid(t, r.said(), "waiting for the lock", "it belongs to the same run as we do")
	})
}

// A replacement must not wait for ever, nor be counted as a success.
func TestAReplacementGivesUpOnAHolderOfItsRunThatLives(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	at := newStage(t)
	alive := at.run(t, short(url).with(settings{"RUN": "job-R"}))
	awaitFile(t, at.witness())
	for _, policy := range []string{"skip", "fail", "wait"} {
		p := startRun(t, short(url).with(settings{"RUN": "job-R", "ON_BUSY": policy, "WAIT_TIMEOUT": "1s"}), "false")
		p.wantExit(75)
		wantSaid(t, p.said(), "waited too long")
	}
	if alive.ended() {
		t.Error("the holder has ended")
	}
}

func TestMinHoldKeepsOtherRunsOutAfterASuccessOnly(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, how way) {
		onBothStores(t, func(t *testing.T, url string) {
			set := short(url).with(calm()).with(settings{"MIN_HOLD": "30m", "RUN": "job-R"})
			startGated(t, how, set, "sh", "-c", "exit 3").wantOutcome(t, 3)
			// After a failure nobody is kept out.
			startGated(t, how, set.with(settings{"RUN": "job-S", "ON_BUSY": "fail", "MIN_HOLD": "0"}), "true").wantOutcome(t, 0)
			kept := startGated(t, how, set.with(settings{"ON_BUSY": "fail"}), "true")
			kept.wantOutcome(t, 0)
			wantSaid(t, kept.holder.said(), "kept from other runs")
			// After a success another run is, and its own is not.
			startGated(t, how, set.with(settings{"RUN": "job-S", "ON_BUSY": "fail"}), "true").wantOutcome(t, 75)
			startGated(t, how, set.with(settings{"RUN": "", "ON_BUSY": "skip", "SKIP_EXIT_CODE": "9"}), "true").wantOutcome(t, 9)
			startGated(t, how, set.with(settings{"ON_BUSY": "fail"}), "true").wantOutcome(t, 0)
		})
	})
}

func TestANestedRunOnItsOwnLockIsRefused(t *testing.T) {
	t.Parallel()
	set := short(sqliteURL(t)).with(calm())
	ran := filepath.Join(t.TempDir(), "ran")
	for _, command := range []string{"run", "sidecar", "init"} {
		args := []string{"env", "LOCKGATE_NAME=nightly", "LOCKGATE_DB_URL=" + set["DB_URL"], built.lockgate, command}
		if command == "run" {
			args = append(args, "--", "touch", ran)
		}
		p := startRun(t, set, args...)
		p.wantExit(78)
		wantSaid(t, p.said(), "LOCKGATE_LOCK", "already inside this lock")
	}
	if exists(ran) {
		t.Error("the nested command ran")
	}
	// Another lock inside is what people do.
	p := startRun(t, set, "env", "LOCKGATE_NAME=inner", "LOCKGATE_DB_URL="+set["DB_URL"], built.lockgate, "run", "--", "touch", ran)
	p.wantExit(0)
	if !exists(ran) {
		t.Error("the command inside of another lock did not run")
	}
}

// MAX_HOLD: CMD is stopped first, the lock is released after.
func TestMaxHoldStopsCMDAndThenReleases(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, how way) {
		url := database(t)
		a := startContender(t, built.lockgate, patient(url).with(settings{"MAX_HOLD": "2s", "STOP_GRACE": "1s"}), how, true)
		a.awaitRunning()
		b := newStage(t)
		touch(t, b.curtain())
		waiter := b.run(t, patient(url).with(settings{"ON_BUSY": "wait"}))
		waiter.wantExit(0)
		a.wrapper.wantExit(76)
		info, err := os.Stat(b.witness())
		must(t, err)
		gap := info.ModTime().Sub(a.lastLife())
		t.Logf("exit 76; the next one ran %s after the stopped one's last sign of life", gap)
		if gap <= 0 {
			t.Errorf("the next one ran %s before the stopped one's last sign of life", -gap)
		}
		wantSaid(t, a.wrapper.said(), "LOCKGATE_MAX_HOLD")
		if how == bySidecar {
			a.stopSidecar()
		}
	})
}

// ON_LOST=continue: CMD goes on, and every line and status say so.
func TestACommandThatMayGoOnGoesOnLoudly(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, how way) {
		b := newBench(t, mariadb(t))
		a := startContender(t, built.lockgate, b.via(settings{"ON_LOST": "continue"}), how, false)
		a.awaitRunning()
		must(t, b.way.SetMode(testserver.Blackhole))
		for _, p := range []*proc{a.holder, a.wrapper} {
			p.awaitOutput("without")
		}
		// Another one runs now: that is what was asked for.
		other := newStage(t)
		touch(t, other.curtain())
		other.run(t, b.past(settings{"ON_BUSY": "wait"})).wantExit(0)
		if a.wrapper.ended() {
			t.Error("CMD was stopped")
		}
		must(t, b.way.SetMode(testserver.Pass))
		a.holder.awaitOutput("lease is lost") // the store's word
		touch(t, a.path("until"))
		a.wrapper.wantExit(0)
		if how == bySidecar {
			a.stopSidecar()
		}
		wantSaid(t, a.holder.said(), "see whether another has run meanwhile")
		if said := a.holder.said(); strings.Contains(said, "was stopped in mid-work") {
			t.Errorf("it says that the command was stopped: %s", said)
		}
		for _, p := range []*proc{a.holder, a.wrapper} {
			_, after, _ := strings.Cut(p.said(), "without")
			_, after, _ = strings.Cut(after, "\n")
			for line := range strings.SplitSeq(strings.TrimSpace(after), "\n") {
				if strings.Contains(line, `"lock"`) && !strings.Contains(line, `"unguarded":true`) {
					t.Errorf("a line after the loss does not say it: %s", line)
				}
			}
		}
	})
}

// startIn starts lockgate in a directory of the gate with its settings.
func startIn(t *testing.T, dir string, set settings, args ...string) *proc {
	t.Helper()
	return start(t, set.with(settings{"DIR": dir}), args...)
}

func TestAMainThatIsNotWrappedIsGatedByItsProbes(t *testing.T) {
	t.Parallel()
	onBothStores(t, func(t *testing.T, url string) {
		dir := t.TempDir()
		probe := func(args ...string) int {
			return startIn(t, dir, settings{}, append([]string{"check"}, args...)...).wait()
		}
		if code := probe(); code != 1 {
			t.Errorf("before there is a sidecar, check exits %d; want 1", code)
		}
		set := short(url).with(settings{"WRAPPED": "false"})
		s := sidecar(t, dir, set)
		awaitFile(t, filepath.Join(dir, "acquired"))
		await(t, "the startup probe succeeds", func() bool { return probe() == 0 && probe("--verdict") == 0 })
		token := tokenIn(t, filepath.Join(dir, "acquired"))
		if state := stateIn(t, dir); state.State != "acquired" || state.Token != token {
			t.Errorf("state.json says %+v; want acquired with token %d", state, token)
		}
		// Somebody else skips, and its scripts can see it.
		other := t.TempDir()
		o := sidecar(t, other, set)
		awaitFile(t, filepath.Join(other, "skipped"))
		if exists(filepath.Join(other, "acquired")) {
			t.Error("both files are there")
		}
		if code := startIn(t, other, settings{}, "check").wait(); code != 1 {
			t.Errorf("check of the one that skips exits %d; want 1", code)
		}
		if code := startIn(t, other, settings{}, "check", "--verdict").wait(); code != 0 {
			t.Errorf("check --verdict of the one that skips exits %d; want 0", code)
		}
		o.signal(syscall.SIGTERM)
		o.wantExit(0)
		// A sidecar that is killed carries on with the same token.
		s.kill()
		s = sidecar(t, dir, set)
		s.awaitOutput("carrying on with the lease")
		await(t, "the liveness probe succeeds", func() bool { return probe() == 0 })
		// It is renewed until SIGTERM, and free soon after.
		wait := newStage(t)
		touch(t, wait.curtain())
		w := wait.run(t, short(url).with(settings{"ON_BUSY": "wait"}))
		w.awaitOutput("waiting for the lock")
		s.signal(syscall.SIGTERM)
		s.wantExit(0)
		w.wantExit(0)
		if exists(filepath.Join(dir, "acquired")) {
			t.Error("the mark is still there")
		}
		if next := tokenIn(t, wait.witness()); next <= token {
			t.Errorf("the next token is %d; want more than %d", next, token)
		}
		wantSaid(t, s.said(), "lock released")
		if code := probe(); code != 1 {
			t.Errorf("after the end check exits %d; want 1", code)
		}
	})
}

// The liveness probe of main fails before anyone else can have the lock.
func TestTheProbeOfAMainThatIsNotWrappedFailsInTime(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(b *bench, s *proc){
		"the database cannot be reached": func(b *bench, _ *proc) { must(b.t, b.way.SetMode(testserver.Blackhole)) },
		"the sidecar is frozen":          func(_ *bench, s *proc) { s.freeze() },
		"the sidecar is killed":          func(_ *bench, s *proc) { s.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, mariadb(t))
			dir := t.TempDir()
			s := sidecar(t, dir, b.via(settings{"WRAPPED": "false"}))
			awaitFile(t, filepath.Join(dir, "acquired"))
			other := newStage(t)
			touch(t, other.curtain())
			w := other.run(t, b.past(settings{"ON_BUSY": "wait"}))
			w.awaitOutput("waiting for the lock")
			fault(b, s)
			await(t, "the probe fails", func() bool {
				return startIn(t, dir, settings{}, "check").wait() == 1
			})
			if r, _ := b.row(); exists(other.witness()) || !r.held() {
				t.Errorf("when the probe failed, the row was %+v, another had run: %v; want it still held", r, exists(other.witness()))
			}
			w.wantExit(0)
		})
	}
}

func TestAScriptInMainFindsItsWayByTheFiles(t *testing.T) {
	t.Parallel()
	const script = `
		cd "$1"
		until [ -e acquired ] || [ -e skipped ]; do sleep 0.05; done
		[ -e acquired ] || { echo "skipped: $(cat skipped)"; exit 0; }
		echo "token $(cat acquired)"`
	url := sqliteURL(t)
	runMain := func(dir string) string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, "sh", "-c", script, "main", dir).CombinedOutput()
		must(t, err)
		return string(out)
	}
	a, b := t.TempDir(), t.TempDir()
	set := short(url).with(calm()).with(settings{"WRAPPED": "false", "POD_NAME": "other-pod"})
	sidecar(t, a, set)
	if out := runMain(a); !strings.HasPrefix(out, "token 1") {
		t.Errorf("main says %q; want its token", out)
	}
	sidecar(t, b, set)
	if out := runMain(b); !strings.HasPrefix(out, "skipped: ") || !strings.Contains(out, "other-pod") {
		t.Errorf("main says %q; want that it is skipped, and for whom", out)
	}
}

// initAndExec are the users of two containers. Only root can play both.
func initAndExec(t *testing.T) (init, main *syscall.Credential) {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil, nil // one user for both
	}
	return &syscall.Credential{Uid: 10001, Gid: 10001}, &syscall.Credential{Uid: 1000, Gid: 1000}
}

// gateVolume is a directory as kubelet makes it for an emptyDir.
func gateVolume(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lockgate-volume-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	return dir
}

func launchAs(t *testing.T, who *syscall.Credential, set settings, args ...string) *proc {
	t.Helper()
	cmd := exec.Command(built.lockgate, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: who}
	return launch(t, cmd, set.environ())
}

func TestInitThenExecRunsOnceOnTheStandingVerdict(t *testing.T) {
	t.Parallel()
	b := newBench(t, mariadb(t))
	dir := gateVolume(t)
	one, two := initAndExec(t)
	launchAs(t, one, b.via(settings{"DIR": dir}).with(calm()), "init").wantExit(0)
	before, _ := b.row()
	stage := gateVolume(t)
	script := `echo "$LOCKGATE_TOKEN" >>"$0/ran"; id -u >"$0/uid"`
	run := func() *proc {
		return launchAs(t, two, settings{"DIR": dir, "LOG_FORMAT": "json"}, "exec", "--", "sh", "-c", script, stage)
	}
	run().wantExit(0)
	if token := tokenIn(t, filepath.Join(stage, "ran")); token != before.token {
		t.Errorf("main ran with token %d; want %d", token, before.token)
	}
	for range 2 {
		again := run()
		again.wantExit(69)
		wantSaid(t, again.said(), "has been used already")
	}
	data, err := os.ReadFile(filepath.Join(stage, "ran"))
	must(t, err)
	if n := strings.Count(string(data), "\n"); n != 1 {
		t.Errorf("main ran %d times; want once", n)
	}
	// Nobody releases: the TTL does.
	if after, _ := b.row(); after.released || after.expiresAt != before.expiresAt {
		t.Errorf("the row is %+v; want it as init has left it, %+v", after, before)
	}
}

func TestAMainOfInitIsStoppedBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, mariadb(t))
	dir := gateVolume(t)
	one, two := initAndExec(t)
	set := patient(b.url).with(settings{"DIR": dir})
	launchAs(t, one, set, "init").wantExit(0)
	stage := gateVolume(t)
	beat := filepath.Join(stage, "beat")
	main := launchAs(t, two, settings{"DIR": dir}, "exec", "--", built.puppet, "-beat", beat, "-stubborn", "-until", filepath.Join(stage, "never"))
	other := newStage(t)
	touch(t, other.curtain())
	next := other.run(t, patient(b.url).with(settings{"ON_BUSY": "wait"}))
	main.wantExit(76)
	next.wantExit(0)
	info, err := os.Stat(other.witness())
	must(t, err)
	gap := info.ModTime().Sub(lastBeat(t, beat))
	t.Logf("the next one ran %s after main's last sign of life", gap)
	if gap <= 0 {
		t.Errorf("the next one ran %s before main's last sign of life", -gap)
	}
}

func TestInitAloneGatesByItsExitCode(t *testing.T) {
	t.Parallel()
	onBothStores(t, func(t *testing.T, url string) {
		set := short(url).with(settings{"WRAPPED": "false"})
		alone := func(more settings) *proc { return start(t, set.with(more), "init") }
		alone(settings{"ON_BUSY": "fail"}).wantExit(0)
		busy := alone(settings{"ON_BUSY": "fail"})
		busy.wantExit(75)
		wantSaid(t, busy.said(), "lock is busy")
		alone(settings{"ON_BUSY": "wait", "WAIT_TIMEOUT": "100ms"}).wantExit(75)
		// The lease ends by itself; then the one that waits has it.
		alone(settings{"ON_BUSY": "wait"}).wantExit(0)
		// One that is told to stop while it waits leaves nothing, and is no success.
		stopped := alone(settings{"ON_BUSY": "wait"})
		stopped.awaitOutput("waiting for the lock")
		stopped.signal(syscall.SIGTERM)
		stopped.wantExit(143)
		refused := alone(nil)
		refused.wantExit(78)
		wantSaid(t, refused.said(), "LOCKGATE_ON_BUSY", "LOCKGATE_WRAPPED=false")
	})
}

func TestASkippingInitLetsMainEndAsASkip(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	dir := t.TempDir()
	occupy(t, short(url))
	set := short(url).with(settings{"SKIP_EXIT_CODE": "9"})
	startIn(t, dir, set, "init").wantExit(0)
	main := execute(t, dir, "touch", filepath.Join(dir, "ran"))
	main.wantExit(9)
	if exists(filepath.Join(dir, "ran")) {
		t.Error("main ran")
	}
}

func TestAnInitThatWasKilledIsStartedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, mariadb(t))
	dir := t.TempDir()
	set := b.via(settings{"DIR": dir}).with(calm())
	b.hold("other") // there is a table
	for range 3 {
		trap := b.way.HoldBack(takes, 1)
		first := start(t, set, "init")
		must(t, trap.Caught(inTime(t)))
		first.kill()
		trap.Deliver()
		_, err := trap.Answered(inTime(t))
		must(t, err)
	}
	again := start(t, set, "init")
	again.wantExit(0)
	execute(t, dir, "true").wantExit(0)
}

func TestTheTerminationLogHasOneLine(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	read := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		must(t, err)
		return string(data)
	}
	file := filepath.Join(t.TempDir(), "log")
	set := short(url).with(calm()).with(settings{"TERMINATION_LOG": file})
	startRun(t, set, "true").wantExit(0)
	if got := read(file); !strings.HasPrefix(got, `outcome=released lock="nightly" token=`) || strings.Count(got, "\n") != 1 {
		t.Errorf("after a run: %q", got)
	}
	occupy(t, short(url).with(settings{"POD_NAMESPACE": "theirs"}))
	dir := t.TempDir()
	s := sidecar(t, dir, set.with(settings{"POD_NAME": "me", "POD_NAMESPACE": "ours"}))
	main := execute(t, dir, "false")
	main.wantExit(0)
	s.signal(syscall.SIGTERM)
	s.wantExit(0)
	got := read(file)
	for _, want := range []string{`outcome=skipped lock="nightly" holder="theirs/other-pod/`, "since=", "lease_left="} {
		if !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("after a skip: %q; want one line with %q", got, want)
		}
	}
	// A holder from elsewhere under the same name is worth a warning, once.
	if n := strings.Count(s.said(), "the holder is in another namespace"); n != 1 {
		t.Errorf("warned of a holder in another namespace %d times; want once", n)
	}
	// exec runs in main's container, whose log is main's own.
	main = start(t, settings{"DIR": dir, "TERMINATION_LOG": filepath.Join(dir, "exec's")}, "exec", "--", "true")
	main.signal(syscall.SIGTERM)
	main.wait()
	if exists(filepath.Join(dir, "exec's")) {
		t.Error("exec has written a termination log")
	}
}

func TestExitCodesOfInit(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	occupy(t, short(url).with(settings{"NAME": "busy"}))
	for _, c := range []struct {
		name string
		set  settings
		args []string
		want int
		says string
	}{
		{"free", nil, nil, 0, "held from here on without a renewal"},
		{"busy, skip", settings{"NAME": "busy"}, nil, 0, "skipping"},
		{"busy, skip, with a code for exec", settings{"NAME": "busy", "SKIP_EXIT_CODE": "9"}, nil, 0, "skipping"},
		{"busy, fail", settings{"NAME": "busy", "ON_BUSY": "fail"}, nil, 75, "LOCKGATE_ON_BUSY=wait"},
		{"busy, waited", settings{"NAME": "busy", "ON_BUSY": "wait", "WAIT_TIMEOUT": "100ms"}, nil, 75, "LOCKGATE_WAIT_TIMEOUT"},
		{"not reached", settings{"DB_URL": "mysql://u@127.0.0.1:1/d", "START_TIMEOUT": "100ms"}, nil, 69, "LOCKGATE_DB_URL"},
		{"wrong settings", settings{"TTL": "1"}, nil, 78, "LOCKGATE_TTL"},
		{"no directory", settings{"DIR": "/no/such/directory"}, nil, 78, "LOCKGATE_DIR"},
		{"wrong command line", nil, []string{"now"}, 64, "lockgate help init"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			set := short(url).with(settings{"DIR": t.TempDir()}).with(c.set)
			p := start(t, set, append([]string{"init"}, c.args...)...)
			p.wantExit(c.want)
			wantSaid(t, p.said(), c.says)
			if c.want != 0 {
				wantNext(t, p.said())
			}
		})
	}
}

// wantNext checks that the last line says what to do next.
func wantNext(t *testing.T, said string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "next: ") && !strings.Contains(last, `"next":"`) {
		t.Errorf("the last line does not say what to do next: %s", last)
	}
}

func TestTheLastLineOfAFailedRunSaysWhatToDo(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	occupy(t, short(url).with(settings{"NAME": "busy"}))
	for _, c := range []struct {
		name string
		set  settings
		args []string
		want int
	}{
		{"busy", settings{"NAME": "busy", "ON_BUSY": "fail"}, []string{"true"}, 75},
		{"not reached", settings{"DB_URL": "mysql://u@127.0.0.1:1/d", "START_TIMEOUT": "100ms"}, []string{"true"}, 69},
		{"held for too long", settings{"MAX_HOLD": "1s"}, []string{"sleep", "1000"}, 76},
		{"wrong settings", settings{"TTL": "1"}, []string{"true"}, 78},
		{"no command", nil, nil, 64},
		{"not found", nil, []string{"no-such-command"}, 127},
		{"a folder", nil, []string{"/"}, 126},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, format := range []string{"json", "text"} {
				p := startRun(t, short(url).with(settings{"LOG_FORMAT": format, "LOG_LEVEL": "info"}).with(c.set), c.args...)
				p.wantExit(c.want)
				said := p.said()
				if format == "text" {
					said = strings.ReplaceAll(said, "next=", "next: ")
				}
				wantNext(t, said)
			}
		})
	}
	dir := t.TempDir()
	s := sidecar(t, dir, short(url).with(settings{"NAME": "busy", "ON_BUSY": "fail"}))
	main := execute(t, dir, "true")
	main.wantExit(75)
	wantNext(t, main.said())
	s.awaitOutput(`"next":"`)
	// Where nothing is wrong, nothing is to be done.
	for _, command := range []string{"exit 0", "exit 3", "kill -TERM $$"} {
		p := startRun(t, short(url), "sh", "-c", command)
		p.wait()
		if said := p.said(); strings.Contains(said, `"next"`) {
			t.Errorf("after %q it says what to do: %s", command, said)
		}
	}
}

// Nobody can give the verdict any more: the guarding half does not wait for it.
func TestAGuardingHalfWhoseHolderIsKilledBeforeTheVerdictEnds(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	occupy(t, short(url))
	p := startContender(t, built.lockgate, short(url).with(settings{"ON_BUSY": "wait", "VERDICT_TIMEOUT": "1h"}), byRun, false)
	p.holder.awaitOutput("waiting for the lock")
	await(t, "the guarding half has asked", func() bool { return len(marked(p.mark)) == 2 })
	p.holder.kill()
	p.wantNothingLeft()
	if exists(p.path("witness")) {
		t.Error("CMD has run")
	}
}

func TestAnExecBesideAnUnwrappedSidecarIsToldSo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set := short(sqliteURL(t)).with(settings{"WRAPPED": "false"})
	// Before the sidecar has started, and after.
	early := execute(t, dir, "false")
	awaitFile(t, filepath.Join(dir, "request"))
	s := sidecar(t, dir, set)
	early.wantExit(78)
	awaitFile(t, filepath.Join(dir, "acquired"))
	token := tokenIn(t, filepath.Join(dir, "acquired"))
	late := execute(t, dir, "false")
	late.wantExit(78)
	wantSaid(t, late.said(), "LOCKGATE_WRAPPED")
	// And a restarted sidecar carries on as if nothing had been.
	s.kill()
	s = sidecar(t, dir, set)
	s.awaitOutput("carrying on with the lease")
	if again := tokenIn(t, filepath.Join(dir, "acquired")); again != token {
		t.Errorf("the token is %d; want %d", again, token)
	}
}

// What two killed halves leave is removed by the next run; what is in use is not.
func TestARunRemovesWhatAKilledOneHasLeft(t *testing.T) {
	t.Parallel()
	runtime := t.TempDir()
	long := time.Now().Add(-time.Hour)
	url := sqliteURL(t)
	inRuntime := func(set settings, command ...string) *proc {
		return launch(t, exec.Command(built.lockgate, append([]string{"run", "--"}, command...)...),
			append(set.environ(), "XDG_RUNTIME_DIR="+runtime))
	}
	only := func() string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(runtime, "*"))
		must(t, err)
		if len(found) != 1 {
			t.Fatalf("%s has %q; want one", runtime, found)
		}
		return found[0]
	}
	at := newStage(t)
	killed := inRuntime(short(url).with(settings{"NAME": "killed"}), at.puppet()...)
	awaitFile(t, at.witness())
	left := only()
	killMarked(t, killed.mark)
	must(t, os.Chtimes(left, long, long))

	second := newStage(t)
	lives := inRuntime(short(url).with(settings{"NAME": "lives"}), second.puppet()...)
	awaitFile(t, second.witness())
	used := only()
	if used == left {
		t.Fatalf("%s is still there", left)
	}
	must(t, os.Chtimes(used, long, long))
	others := filepath.Join(runtime, "lockgate-of-somebody")
	must(t, os.Mkdir(others, 0o700))
	must(t, os.Chtimes(others, long, long))
	inRuntime(short(url).with(settings{"NAME": "third"}), "true").wantExit(0)
	if !exists(used) || !exists(others) {
		t.Errorf("in use: %v, of somebody: %v; want both still there", exists(used), exists(others))
	}
	touch(t, second.curtain())
	lives.wantExit(0)
}
