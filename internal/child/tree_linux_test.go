package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mappedVar is set for a first process whose users are all the same one.
const mappedVar = "CHILD_TEST_MAPPED"

func playSystemRole(role string, args []string) {
	switch role {
	case "guard": // start the role in args under a death signal, and wait
		fd, _ := strconv.Atoi(os.Getenv(lineVar))
		self, _ := os.Executable()
		_, err := Start(Spec{
			Path:        self,
			Args:        append([]string{self}, args[1:]...),
			Env:         roleEnv(args[0], fd),
			DeathSignal: true,
			NewGroup:    true,
		})
		if err != nil {
			say("%v", err)
			os.Exit(98)
		}
		// Threads that end must not be taken for our end.
		for range 20 {
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread() // and the thread ends with the goroutine
			}()
			<-done
		}
		say("ready %d", os.Getpid())
		forever()
	case "family": // a child in our group, a daemon, and ourselves
		spawn([]string{"listen"}, nil)
		spawn([]string{"middle", "listen"}, &syscall.SysProcAttr{Setsid: true})
		playRole("listen", nil)
	case "killer": // of all its own descendants
		playKiller()
	case "filtered": // without pidfds, as in old kernels and some sandboxes
		playFiltered()
	case "headless": // goes on without its first thread
		loseFirstThread()
		say("ready %d", os.Getpid())
		forever()
	case "spawner": // of sleepers in sessions of their own, quickly
		for i := 0; ; i++ {
			spawnSleeper()
			if i == 20 {
				say("ready %d", os.Getpid())
			}
		}
	case "runner": // is always another process by the time one looks
		fd, _ := strconv.Atoi(os.Getenv(lineVar))
		runAway(uintptr(fd), []byte("ready 0\n"), []byte("escaped\n"))
	case "later": // start the role in args whenever USR1 comes
		asked := make(chan os.Signal, 16)
		signal.Notify(asked, syscall.SIGUSR1)
		say("ready %d", os.Getpid())
		for range asked {
			spawn(args, nil)
		}
	case "first": // the first process of a PID namespace
		playFirst()
	default:
		fmt.Fprintln(os.Stderr, "no such role:", role)
		os.Exit(98)
	}
}

func playKiller() {
	fd, _ := strconv.Atoi(os.Getenv(lineVar))
	self, _ := os.Executable()
	p, err := Start(Spec{Path: self, Env: roleEnv("idle", fd)})
	if err != nil {
		say("%v", err)
		os.Exit(98)
	}
	n, err := p.SignalAll(syscall.SIGKILL)
	if err != nil {
		say("%v", err)
	}
	<-p.Gone()
	say("killed %d", n)
}

// playFirst plays the first process of a new PID namespace that still has the old
// one's /proc.
func playFirst() {
	fd, _ := strconv.Atoi(os.Getenv(lineVar))
	self, _ := os.Executable()
	check := func(ok bool, format string, args ...any) {
		if !ok {
			fmt.Fprintf(os.Stderr, format+"\n", args...)
			os.Exit(1)
		}
	}
	start := func(group bool, role ...string) *Process {
		p, err := Start(Spec{
			Path: self, Args: append([]string{self}, role[1:]...), Env: roleEnv(role[0], fd), NewGroup: group,
		})
		check(err == nil, "start %q: %v", role, err)
		return p
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()

	check(os.Getpid() == 1, "our number is %d; want 1", os.Getpid())

	// With another namespace's /proc only the group is known, and that is said.
	err := BecomeSubreaper()
	check(err != nil && strings.Contains(err.Error(), "another PID namespace"),
		"BecomeSubreaper() with another /proc: %v; want it said", err)
	p := start(true, "idle")
	n, err := p.SignalAll(syscall.SIGKILL)
	check(n == 1 && err != nil, "SignalAll() with another /proc = %d, %v; want 1 and an error", n, err)
	<-p.Gone()
	check(p.ExitCode() == 137, "ExitCode() = %d; want 137", p.ExitCode())

	err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	check(err == nil, "make the mounts private: %v", err)
	err = unix.Mount("none", "/proc", "tmpfs", 0, "")
	check(err == nil, "mount something else at /proc: %v", err)
	err = BecomeSubreaper()
	check(errors.Is(err, os.ErrNotExist), "BecomeSubreaper() without /proc: %v; want not found", err)
	err = unix.Unmount("/proc", 0)
	check(err == nil, "unmount it: %v", err)
	err = unix.Mount("proc", "/proc", "proc", 0, "")
	check(err == nil, "mount /proc: %v", err)
	err = BecomeSubreaper()
	check(err == nil, "BecomeSubreaper() = %v; want nil", err)

	// Daemons fall to us, and a child that we had before is left alone.
	earlier, err := syscall.ForkExec(self, []string{self}, &syscall.ProcAttr{
		Env: roleEnv("idle", fd), Files: []uintptr{0, 1, 2},
	})
	check(err == nil, "start an earlier child: %v", err)
	p = start(true, "leave", "idle")
	<-p.Exited()
	check(p.ExitCode() == 0, "ExitCode() = %d; want 0", p.ExitCode())
	check(!closed(p.Gone()), "Gone is closed while a daemon lives")
	err = p.KillAll(context.Background())
	check(err == nil && closed(p.Gone()), "KillAll() = %v; want nil and Gone", err)
	s, err := readStat(earlier)
	check(err == nil && !s.dead(), "the earlier child: %+v, %v; want it alive", s, err)
	_ = syscall.Kill(earlier, syscall.SIGKILL)
	_, err = syscall.Wait4(earlier, nil, 0, nil)
	check(err == nil, "reap the earlier child: %v", err)

	if os.Getuid() != 0 || os.Getenv(mappedVar) != "" {
		return // only one user exists here
	}
	// Processes of another user, seen and unseen.
	const nobody = 65534
	p = start(false, "idle")
	check(syscall.Setgroups(nil) == nil && syscall.Setgid(nobody) == nil, "leave group 0, which sees everything")
	err = syscall.Setresuid(nobody, nobody, 0)
	check(err == nil, "become nobody: %v", err)
	n, err = p.SignalAll(syscall.SIGKILL)
	check(n == 0 && errors.Is(err, syscall.EPERM), "SignalAll() to another user's = %d, %v; want 0, EPERM", n, err)
	err = p.KillAll(over)
	check(errors.Is(err, context.Canceled) && strings.Contains(err.Error(), fmt.Sprint(p.Pid())),
		"KillAll() of another user's = %v; want the context's error and process %d", err, p.Pid())

	check(syscall.Setresuid(0, 0, 0) == nil, "become root")
	err = unix.Mount("proc", "/proc", "proc", unix.MS_REMOUNT, "hidepid=1")
	check(err == nil, "hide processes: %v", err)
	check(syscall.Setresuid(nobody, nobody, 0) == nil, "become nobody")
	_, err = p.Descendants()
	check(err != nil && strings.Contains(err.Error(), "hidden"), "Descendants() with hidepid: %v; want it said", err)
	others, err := p.others()
	check(others && err == nil, "others() with hidepid = %t, %v; want true, nil", others, err)

	// KillAll goes on until it can.
	killed := make(chan error, 1)
	go func() { killed <- p.KillAll(context.Background()) }()
	time.Sleep(10 * time.Millisecond) // for a round or two in vain, or it tells less
	check(!closed(p.Exited()), "nobody has killed root's process")
	check(syscall.Setresuid(0, 0, 0) == nil, "become root")
	err = <-killed
	check(err == nil, "KillAll() = %v; want nil", err)
}

func playFiltered() {
	refuse := func(call uint32) []unix.SockFilter {
		return []unix.SockFilter{
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		}
	}
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the call's number
	filter = append(filter, refuse(unix.SYS_PIDFD_OPEN)...)
	filter = append(filter, refuse(unix.SYS_PIDFD_SEND_SIGNAL)...)
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		say("no new privileges: %v", err)
	}
	_, _, errno := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	_, err := unix.PidfdOpen(os.Getpid(), 0)
	if errno != 0 || !errors.Is(err, unix.ENOSYS) {
		say("the filter: %v; then pidfd_open: %v", errno, err)
	}

	if err := BecomeSubreaper(); err != nil {
		say("%v", err)
	}
	fd, _ := strconv.Atoi(os.Getenv(lineVar))
	self, _ := os.Executable()
	p, err := Start(Spec{Path: self, Args: []string{self, "idle"}, Env: roleEnv("leave", fd)})
	if err != nil {
		say("%v", err)
		os.Exit(98)
	}
	<-p.Exited()
	for !closed(p.Gone()) { // the process in between may be there still
		if _, err := p.SignalAll(syscall.SIGKILL); err != nil {
			say("%v", err)
		}
		time.Sleep(time.Millisecond)
	}
	say("killed")
}

func loseFirstThread() {
	for {
		for range 10 {
			go func() {
				runtime.LockOSThread()
				if unix.Gettid() == os.Getpid() {
					_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
				}
				time.Sleep(time.Millisecond) // keeps this thread from the others
			}()
		}
		time.Sleep(time.Millisecond)
		if s, err := readStat(os.Getpid()); err == nil && s.state == 'Z' {
			return
		}
	}
}

func spawnSleeper() {
	_, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "60"}, &syscall.ProcAttr{
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if errors.Is(err, syscall.EAGAIN) {
		time.Sleep(10 * time.Millisecond)
	}
}

// runAway forks, goes on in the child and ends the parent, 200,000 times; the 100th
// says that it is ready, and the last that it escaped. After the first fork the Go runtime is not to be relied on,
// so nothing but system calls is made.
//
//go:norace
func runAway(fd uintptr, ready, escaped []byte) {
	for i := range 200_000 {
		pid, _, errno := syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
		if pid != 0 && errno == 0 {
			for {
				syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		if i == 100 {
			syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&ready[0])), uintptr(len(ready)))
		}
	}
	syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(&escaped[0])), uintptr(len(escaped)))
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

func TestGoneWaitsForWhatTheCommandLeaves(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "leave", "wait")
	grandchild := l.ready()
	<-p.Exited()
	if got := p.ExitCode(); got != 0 {
		t.Errorf("ExitCode() = %d; want 0", got)
	}
	if pids, err := p.Descendants(); err != nil || len(pids) != 1 || pids[0] != grandchild {
		// The process in between may just be ending.
		waitFor(t, "the daemon alone", func() bool {
			pids, err = p.Descendants()
			return err == nil && len(pids) == 1 && pids[0] == grandchild
		})
	}
	if closed(p.Gone()) {
		t.Fatal("Gone is closed while a descendant lives")
	}
	if err := syscall.Kill(grandchild, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.Gone()
	if rest := l.rest(); rest != "" {
		t.Errorf("the roles said %q; want nothing", rest)
	}
}

func TestSignalAllReachesTheGroupAndEveryDaemonOnce(t *testing.T) {
	for _, group := range []bool{true, false} {
		t.Run(fmt.Sprintf("with a group %t", group), func(t *testing.T) {
			l := newLines(t)
			p := startSpec(t, Spec{NewGroup: group}, l, "family")
			want := map[string]bool{}
			for range 3 { // a child in the group, a daemon, and the command
				want[strconv.Itoa(l.ready())] = true
			}
			waitForCount(t, p, 3)
			if n, err := p.SignalAll(syscall.SIGUSR1); n != 3 || err != nil {
				t.Errorf("SignalAll() = %d, %v; want 3, nil", n, err)
			}
			heard := map[string]bool{}
			for range 3 {
				words := l.next()
				if words[0] != "SIGUSR1" || heard[words[1]] || !want[words[1]] {
					t.Errorf("heard %q; want SIGUSR1 once from each of %v", words, want)
				}
				heard[words[1]] = true
			}
			if n, err := p.SignalAll(syscall.SIGUSR2); n != 3 || err != nil {
				t.Errorf("SignalAll() = %d, %v; want 3, nil", n, err)
			}
			<-p.Gone()
			if rest := l.rest(); strings.Contains(rest, "SIGUSR1") || strings.Count(rest, "SIGUSR2") != 3 {
				t.Errorf("then heard %q; want SIGUSR2 three times", rest)
			}
		})
	}
}

func TestSignalAllReachesAGroupWhoseLeaderHasEnded(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "parent", "wait")
	l.ready()
	l.ready()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if n, err := p.SignalAll(syscall.SIGTERM); n != 1 || err != nil {
		t.Errorf("SignalAll() = %d, %v; want 1, nil", n, err)
	}
	<-p.Gone()
}

func TestSignalAllReachesNeitherOurselvesNorStrangers(t *testing.T) {
	l := newLines(t)
	startRole(t, l, "listen", "killer")
	// A bystander, and a killer in the same group whose command is in it too.
	bystander := l.ready()
	if words := l.next(); strings.Join(words, " ") != "killed 1" {
		t.Errorf("the killer said %q; want it alive and one process killed", words)
	}
	if err := syscall.Kill(bystander, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(l.next(), " "), fmt.Sprintf("SIGUSR2 %d", bystander); got != want {
		t.Errorf("next line = %q; want %q from the bystander", got, want)
	}
}

func TestKillAllEndsADaemonThatIgnoresTERM(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "leave", "deaf")
	daemon := l.ready()
	<-p.Exited()
	waitForCount(t, p, 1)
	if n, err := p.SignalAll(syscall.SIGTERM); n != 1 || err != nil {
		t.Errorf("SignalAll(TERM) = %d, %v; want 1, nil", n, err)
	}
	if err := syscall.Kill(daemon, 0); err != nil || closed(p.Gone()) {
		t.Fatalf("the daemon has ended (%v), Gone is %t; want it alive", err, closed(p.Gone()))
	}
	if err := p.KillAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !closed(p.Gone()) {
		t.Error("Gone is not closed after KillAll")
	}
	if err := syscall.Kill(daemon, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the daemon after KillAll: %v; want it reaped", err)
	}
}

func TestAStoppedProcessEnds(t *testing.T) {
	for _, role := range [][]string{{"stopped"}, {"leave", "stopped"}} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			t.Run(fmt.Sprintf("%s by %s", strings.Join(role, " "), unix.SignalName(sig)), func(t *testing.T) {
				l := newLines(t)
				p := startRole(t, l, role...)
				pid := l.ready()
				waitFor(t, "the process stops", func() bool {
					s, err := readStat(pid)
					return err == nil && s.state == 'T'
				})
				if sig == syscall.SIGKILL {
					if err := p.KillAll(t.Context()); err != nil {
						t.Fatal(err)
					}
				} else if _, err := p.SignalAll(sig); err != nil {
					t.Fatal(err)
				}
				<-p.Gone()
			})
		}
	}
}

func TestAProcessWithoutItsFirstThreadIsAlive(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "leave", "headless")
	pid := l.ready()
	waitForCount(t, p, 1)
	if got := mustDescend(t, p); got[0] != pid {
		t.Errorf("Descendants() = %v; want %d", got, pid)
	}
	if n, err := p.SignalAll(syscall.SIGTERM); n != 1 || err != nil {
		t.Errorf("SignalAll() = %d, %v; want 1, nil", n, err)
	}
	<-p.Gone()
}

func TestDaemonsAreReachedWithoutPidfds(t *testing.T) {
	l := newLines(t)
	startRole(t, l, "filtered")
	if got, want := l.rest(), "killed\n"; got != want {
		t.Errorf("the filtered process said %q; want %q", got, want)
	}
}

func TestANumberThatMayBeAStrangersIsNotSignalled(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "parent", "wait")
	parent, child := p.Pid(), l.ready()
	if other := l.ready(); child == parent {
		child = other
	}
	tree, err := scan(nil)
	if err != nil || len(tree) != 2 {
		t.Fatalf("scan() = %v, %v; want two processes", tree, err)
	}
	reused := tree[child]
	reused.start--
	tests := []struct {
		name string
		tree map[int]stat
		d    stat
		sent bool
	}{
		{"another process has the number now", tree, reused, false},
		{"its parent is not one of ours", map[int]stat{child: tree[child]}, tree[child], false},
		{"as it was scanned", tree, tree[child], true},
		{"our own child", map[int]stat{}, tree[parent], true},
	}
	for _, test := range tests {
		if sent, err := p.signalOne(test.tree, test.d, 0); sent != test.sent || err != nil {
			t.Errorf("%s: signalOne() = %t, %v; want %t, nil", test.name, sent, err, test.sent)
		}
	}
}

func TestAProcessOrphanedDuringTheScanIsFound(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "wait")
	l.ready()
	ended := 1 << 30 // no process has this number
	s, err := readStat(p.Pid())
	if err != nil {
		t.Fatal(err)
	}
	before := s
	before.parent = ended
	all := map[int]stat{
		p.Pid():   before,
		ended + 1: {pid: ended + 1, parent: ended},
	}
	adopt(all)
	if got := all[p.Pid()]; len(all) != 1 || got.parent != s.parent || got.start != s.start {
		t.Errorf("adopt() left %+v; want %+v alone", all, s)
	}
}

func TestKillAllEndsWhatForksQuickly(t *testing.T) {
	for _, role := range []string{"spawner", "runner"} {
		t.Run(role, func(t *testing.T) {
			l := newLines(t)
			p := startRole(t, l, role)
			l.ready()
			if err := p.KillAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			if rest := l.rest(); strings.Contains(rest, "escaped") {
				t.Errorf("the roles said %q; want them killed before", rest)
			}
		})
	}
}

func TestKillAllKillsEvenWhenItHasNoTimeToWait(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "daemonize", "deaf")
	l.ready()
	l.ready()
	cause := errors.New("no time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := p.KillAll(ctx); err != nil && !errors.Is(err, cause) {
		t.Errorf("KillAll() = %v; want nil or %v", err, cause)
	}
	<-p.Gone()
}

func TestTheCommandDiesWithUs(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "guard", "deaf")
	pids := []int{l.ready(), l.ready()}
	if pids[0] != p.Pid() && pids[1] != p.Pid() {
		t.Fatalf("%v are ready; want %d among them", pids, p.Pid())
	}
	if n := len(mustDescend(t, p)); n != 2 {
		t.Fatalf("%d processes; want the guard and its command", n)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if rest := l.rest(); rest != "" {
		t.Errorf("the roles said %q; want nothing", rest)
	}
	<-p.Gone() // nobody but the kernel has killed the command
}

func TestAThousandOrphansAreReaped(t *testing.T) {
	l := newLines(t)
	p := startRole(t, l, "many", "1000")
	l.ready()
	waitFor(t, "no zombie is left", func() bool {
		tree, err := scan(nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(tree) == 1 && tree[p.Pid()].pid == p.Pid()
	})
	if closed(p.Exited()) {
		t.Error("the end of an orphan was taken for the command's")
	}
	if err := p.KillAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.ExitCode(); got != 137 {
		t.Errorf("ExitCode() = %d; want 137, the command's own", got)
	}
}

func TestNothingIsLeftAfterGone(t *testing.T) {
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round := func() {
		l := newLines(t)
		p := startRole(t, l, "daemonize", "deaf")
		l.ready()
		l.ready()
		if _, err := p.SignalAll(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := p.KillAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.closeWriter()
		l.file.Close()
	}
	round() // whatever is made once is made
	goroutines, before := runtime.NumGoroutine(), files()
	for range 5 {
		round()
	}
	waitFor(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
	if after := files(); after > before {
		t.Errorf("%d descriptors are open; want %d, as before", after, before)
	}
	tree, err := scan(nil)
	if len(tree) != 0 || err != nil {
		t.Errorf("scan() = %v, %v; want nothing", tree, err)
	}
}

func TestAsTheFirstProcessOfAPIDNamespace(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := newLines(t)
	cmd := exec.Command(self)
	cmd.Env = roleEnv("first", l.fd)
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.Env = append(cmd.Env, mappedVar+"=1")
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if err := cmd.Run(); err != nil {
		t.Errorf("the first process: %v", err)
	}
}

func TestParseStatSurvivesAnyProgramName(t *testing.T) {
	tail := " 7 30 30 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 5 0 98765 1 2"
	want := stat{pid: 42, state: 'S', parent: 7, group: 30, threads: 5, start: 98765}
	for _, name := range []string{"sh", "a b", "a) R 1 1 1", "((", "))", "", "x\ny", ") Z 9 9 9 9"} {
		got, err := parseStat([]byte("42 (" + name + ") S" + tail + "\n"))
		if err != nil || got != want {
			t.Errorf("parseStat of a program called %q = %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, line := range []string{"", "42", "42 (sh", "42 (sh) S 1 2 3", "42 (sh) S x" + tail[2:]} {
		if got, err := parseStat([]byte(line)); err == nil {
			t.Errorf("parseStat(%q) = %+v; want an error", line, got)
		}
	}
}

func TestOnlyProcessesBelowUsAreDescendants(t *testing.T) {
	all := map[int]stat{}
	for _, s := range []stat{
		{pid: 1, parent: 0}, {pid: 10, parent: 1}, // we are 10
		{pid: 11, parent: 10}, {pid: 12, parent: 11}, {pid: 5, parent: 12}, // ours
		{pid: 20, parent: 1}, {pid: 21, parent: 20}, {pid: 22, parent: 99}, // strangers
		{pid: 30, parent: 31}, {pid: 31, parent: 30}, // torn by reused numbers
	} {
		all[s.pid] = s
	}
	got := below(all, 10, nil)
	if len(got) != 3 || got[11].pid != 11 || got[12].pid != 12 || got[5].pid != 5 {
		t.Errorf("below(10) = %v; want 5, 11, 12", got)
	}
}

// waitForCount waits until n processes of p live: daemons get rid of the
// process in between on their own time.
func waitForCount(t *testing.T, p *Process, n int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d descendants", n), func() bool { return len(mustDescend(t, p)) == n })
}

func mustDescend(t *testing.T, p *Process) []int {
	t.Helper()
	pids, err := p.Descendants()
	if err != nil {
		t.Fatal(err)
	}
	return pids
}
