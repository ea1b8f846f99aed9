package child

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stopOptions: a child that was stopped is told too.
const stopOptions = syscall.WUNTRACED

// ignoredNow returns the signals that this process ignores. Go cannot tell for
// most of them.
func ignoredNow() []syscall.Signal {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte("SigIgn:"))
		if !ok {
			continue
		}
		mask, err := strconv.ParseUint(string(bytes.TrimSpace(rest)), 16, 64)
		if err != nil {
			return nil
		}
		var sigs []syscall.Signal
		for n := range 64 {
			if mask&(1<<n) != 0 {
				sigs = append(sigs, syscall.Signal(n+1))
			}
		}
		return sigs
	}
	return nil
}

// stopSelf stops this process by SIGTSTP, which the caller has had Go ignore. The
// signal goes to the calling thread, so that the call returns either after the
// process was continued, or because the kernel has dropped it: of a signal to the
// process, another thread might take notice later. os/signal cannot give a signal
// its default back once it was caught, so the kernel is asked.
func stopSelf() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// struct sigaction, all zero: the default. It is at most this long anywhere.
	var action [8]uint64
	const maskBytes = 8
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGTSTP),
		uintptr(unsafe.Pointer(&action)), 0, maskBytes, 0, 0); errno != 0 { //nolint:gosec // it outlives the call, and is long enough
		return
	}
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTSTP) // it is our own thread
}

func foregroundGroup(fd int) (int, error) {
	group, err := unix.IoctlGetUint32(fd, unix.TIOCGPGRP)
	return int(group), err
}

// Orphaned reports whether nobody could continue a process group if it were stopped:
// no member has a parent outside of it in the same session.
func Orphaned(group int) bool {
	pids, err := processes()
	if err != nil {
		return false
	}
	for _, pid := range pids {
		s, err := readStat(pid)
		if err != nil || s.group != group || s.dead() || s.parent <= 1 {
			continue
		}
		of, err1 := unix.Getpgid(s.parent)
		session, err2 := unix.Getsid(s.parent)
		own, err3 := unix.Getsid(pid)
		if err1 == nil && err2 == nil && err3 == nil && of != group && session == own {
			return false
		}
	}
	return true
}

// halted reports whether a process executes nothing because it was stopped.
func (s stat) halted() bool {
	switch s.state {
	case 'T', 't':
		return true
	case 'Z': // its first thread has ended; the others go on
		return s.threads > 1 && threadsHalted(s.pid)
	default:
		return false
	}
}

// threadsHalted reports whether all threads of a process have stopped or ended.
func threadsHalted(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // that thread has ended
		}
		if s, err := parseStat(text); err != nil || !bytes.ContainsRune([]byte("TtZX"), rune(s.state)) {
			return false
		}
	}
	return true
}

// Halted reports whether CMD itself is stopped now.
func (p *Process) Halted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := readStat(p.pid)
	return !p.reaped && err == nil && s.halted()
}

// HasGroup reports whether CMD or a descendant that lives is in a process group.
func (p *Process) HasGroup(group int) bool {
	tree, _ := scan(p.earlier)
	for _, d := range tree {
		if d.group == group && !d.dead() {
			return true
		}
	}
	return false
}

// Suspend stops CMD's group and every other descendant by SIGSTOP, and returns nil
// when none of them executes anything any more. It gives up after limit, and its
// error says what still runs. Whoever was stopped before, outside of CMD's group, is
// left out of it, and of [Process.Resume]. The two are for one goroutine.
func (p *Process) Suspend(limit time.Duration) error {
	const longest = 10 * time.Millisecond
	end := time.Now().Add(limit)
	p.suspended = make(earlier)
	for pause := time.Millisecond; ; pause = min(2*pause, longest) {
		tree, err := scan(p.earlier)
		errs := []error{err}
		// The group first: that misses no process that is being forked.
		_, err = p.signalGroup(tree, syscall.SIGSTOP)
		errs = append(errs, err)
		var running []int
		for _, d := range tree {
			if d.dead() || d.halted() {
				continue
			}
			// One that waits in the kernel stops before it comes back from there.
			if start, told := p.suspended[d.pid]; !told || start != d.start || d.state != 'D' {
				running = append(running, d.pid)
			}
			if up, ok := tree[d.parent]; ok && !up.dead() && !up.halted() && up.state != 'D' {
				continue // after its parent, which may be a shell that looks for stopped jobs
			}
			sent, err := p.signalOne(tree, d, syscall.SIGSTOP)
			if sent {
				p.suspended[d.pid] = d.start
			}
			errs = append(errs, err)
		}
		if len(running) == 0 {
			return errors.Join(errs...)
		}
		if time.Now().After(end) {
			return errors.Join(append(errs, fmt.Errorf("suspend: processes %v still run", running))...)
		}
		time.Sleep(pause)
	}
}

// Resume continues CMD's group and what [Process.Suspend] has stopped. Children come
// before their parents, so that a shell among them does not see them stopped.
func (p *Process) Resume() error {
	tree, err := scan(p.earlier)
	errs := []error{err}
	var told []stat
	for _, d := range tree {
		if start, ok := p.suspended[d.pid]; ok && start == d.start && (!p.group || d.group != p.pid) {
			told = append(told, d)
		}
	}
	slices.SortFunc(told, func(a, b stat) int { return cmp.Compare(b.start, a.start) })
	for _, d := range told {
		_, err := p.signalOne(tree, d, syscall.SIGCONT)
		errs = append(errs, err)
	}
	p.suspended = nil
	_, err = p.signalGroup(tree, syscall.SIGCONT)
	return errors.Join(append(errs, err)...)
}

// stopSignal returns the signal that has stopped a child of ours, 0 if none has or if
// that was asked for by a wait before. It takes nothing away from a later wait.
func stopSignal(pid int) syscall.Signal {
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil); err != nil || info.Signo == 0 {
		return 0
	}
	// si_pid, si_uid and si_status follow the first three numbers, aligned as a
	// pointer is (sigaction(2), and siginfo_t in Linux' uapi/asm-generic/siginfo.h).
	const word = unsafe.Sizeof(uintptr(0))
	const first = (3*4 + word - 1) / word * word
	return syscall.Signal(*(*int32)(unsafe.Add(unsafe.Pointer(&info), first+2*4))) //nolint:gosec // within info
}

// unstick continues a child that is stopped before it executes its program, from now
// on until the returned function is called. We wait for it meanwhile, which no signal
// but SIGKILL interrupts (CLONE_VFORK, clone(2)), so we could not stop ourselves, and
// the shell continues us only once we have. The terminal's stop signal comes to it
// with ours as long as it is in our group, after its fork; then nothing is lost. In a
// group of its own in the foreground it alone gets it: end reports that it shall be
// stopped again.
func (p *Process) unstick() (end func() (again bool)) {
	quit, ended := make(chan struct{}), make(chan struct{})
	again := false
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond): // seldom: a start is quicker
			}
			pids, _ := processes()
			for _, pid := range pids {
				// It cannot be reaped meanwhile, for that is done later.
				if s, err := readStat(pid); err == nil && s.parent == os.Getpid() && s.halted() && !p.earlier.has(s) {
					// Its program may run by now, and have been stopped because
					// it is not in the foreground. That comes again by itself.
					again = again || s.group == pid && stopSignal(pid) == syscall.SIGTSTP
					_ = syscall.Kill(pid, syscall.SIGCONT)
				}
			}
		}
	}()
	return func() bool {
		close(quit)
		<-ended
		return again
	}
}
