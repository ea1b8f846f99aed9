package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// waitOptions: children that do not announce their end by SIGCHLD count too.
const waitOptions = syscall.WALL

// BecomeSubreaper makes this process the one to which orphaned descendants fall,
// from now on and until it ends. Pid 1 is that anyway. It is not inherited by
// children.
//
// It returns an error, too, when /proc is missing or belongs to another PID
// namespace: they would fall to us, and we could not find them.
func BecomeSubreaper() error {
	if err := ownProc(); err != nil {
		return fmt.Errorf("become a subreaper: descendants could not be found: %w; mount /proc of this PID namespace", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	return nil
}

func sysProcAttr(spec Spec) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: spec.NewGroup, Foreground: spec.Foreground}
	if spec.DeathSignal {
		attr.Pdeathsig = syscall.SIGKILL
	}
	return attr
}

// waitForChild returns nil when a child has ended and can be reaped, or was stopped.
// It does not reap it, because that must happen under the lock.
func waitForChild() error {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// findEarlier returns the descendants that we have now: what we had started before
// this program took our place. What cannot be read is not among them.
func findEarlier() earlier {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	if errors.Is(err, unix.ECHILD) {
		return nil // as nearly always: that was cheap
	}
	tree, _ := scan(nil)
	e := make(earlier, len(tree))
	for pid, s := range tree {
		e[pid] = s.start
	}
	return e
}

// has reports whether s was there before CMD.
func (e earlier) has(s stat) bool {
	start, ok := e[s.pid]
	return ok && start == s.start
}

// others reports whether we have children that are not earlier ones. As long as a
// descendant of CMD exists, it is one of them or below one.
//
// The lock is held, so a child that is there when we begin to look stays until we have
// looked. The kernel's lists of children are a quick no, and name those that /proc
// hides; but they may miss one while others come, so a yes needs a look at all.
func (p *Process) others() (bool, error) {
	if err := ownProc(); err != nil {
		return false, err
	}
	for _, pid := range listedChildren() {
		if s, err := readStat(pid); err != nil || !p.earlier.has(s) {
			return true, nil
		}
	}
	pids, err := processes()
	if err != nil {
		return false, err
	}
	self := os.Getpid()
	for _, pid := range pids {
		s, err := readStat(pid)
		switch {
		case err == nil:
			if s.parent == self && !p.earlier.has(s) {
				return true, nil
			}
		case ended(err):
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			// Hidden, but we may ask whether it is our child.
			if unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil) == nil {
				return true, nil
			}
		default:
			return false, err
		}
	}
	return false, nil
}

// orphans returns false: descendants that are not our children do not exist without
// a child of ours.
func (p *Process) orphans() bool { return false }

// SignalAll sends a signal to CMD's group, if it was started with one, and to every
// other descendant, each once, and returns how many processes got it. The error
// tells what could not be read or signalled; the others have got the signal all the
// same. A process that is started meanwhile may be missed.
//
// A request to end (TERM, INT, HUP, QUIT) is followed by CONT: a stopped process
// would not act on it before it is continued.
func (p *Process) SignalAll(sig syscall.Signal) (int, error) {
	select {
	case <-p.gone:
		return 0, nil
	default:
	}
	tree, err := scan(p.earlier)
	errs := []error{err}
	n := 0

	group, err := p.signalGroup(tree, sig)
	errs = append(errs, err)
	if group && len(tree) == 0 {
		n++ // /proc tells us nothing, but somebody got it
	}
	for _, d := range tree {
		if d.dead() {
			continue
		}
		if group && d.group == p.pid {
			n++
			continue
		}
		sent, err := p.signalOne(tree, d, sig)
		if sent {
			n++
		}
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// signalGroup signals CMD's group, and reports whether it did. Unlike signals to
// one process after the other, this misses no process that is being forked.
func (p *Process) signalGroup(tree map[int]stat, sig syscall.Signal) (bool, error) {
	if !p.group {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The group's number can be given to a stranger only when CMD and every member
	// has been reaped. We are who reaps CMD and our other children, under the lock.
	if p.reaped && !p.hasMember(tree) {
		return false, nil
	}
	err := syscall.Kill(-p.pid, sig)
	if err == nil && wakes(sig) {
		_ = syscall.Kill(-p.pid, syscall.SIGCONT) // no error counts: they may have ended
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.ESRCH):
		return false, nil
	default:
		return false, fmt.Errorf("signal process group %d: %w", p.pid, err)
	}
}

// killChildren kills our own children but for the earlier ones, and reports whether
// there are any. It is what catches a process that forks and ends faster than scan
// comes round: the one that goes on has been orphaned, so it is ours, and the kernel
// keeps a list of those. A kernel built without that list leaves all to scan.
func (p *Process) killChildren() bool {
	if ownProc() != nil {
		return false
	}
	p.mu.Lock() // so that whoever is on the list stays ours until it was signalled
	defer p.mu.Unlock()
	select {
	case <-p.gone:
		return false // whoever is our child now is not CMD's
	default:
	}
	killed := false
	for _, pid := range listedChildren() {
		if _, ok := p.earlier[pid]; ok {
			if s, err := readStat(pid); err != nil || p.earlier.has(s) {
				continue // if it cannot be read, scan cannot take it for CMD's either
			}
		}
		killed = syscall.Kill(pid, syscall.SIGKILL) == nil || killed
	}
	return killed
}

// listedChildren returns our own children as the kernel lists them, which it does
// not do everywhere.
func listedChildren() []int {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	var pids []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // that thread has ended
		}
		for field := range bytes.FieldsSeq(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid > 1 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// hasMember reports whether one of our own children is in CMD's group. The lock is
// held, so it stays unreaped.
func (p *Process) hasMember(tree map[int]stat) bool {
	self := os.Getpid()
	for pid, d := range tree {
		if d.group != p.pid || d.parent != self {
			continue
		}
		if now, err := readStat(pid); err == nil && now.start == d.start && now.parent == self && now.group == p.pid {
			return true
		}
	}
	return false
}

// signalOne signals one process of the tree, and reports whether it got it. That
// it has ended meanwhile is no error.
func (p *Process) signalOne(tree map[int]stat, d stat, sig syscall.Signal) (bool, error) {
	send := func(sig syscall.Signal) error { return syscall.Kill(d.pid, sig) }
	fd, err := unix.PidfdOpen(d.pid, 0)
	switch {
	case err == nil:
		defer unix.Close(fd)
		send = func(sig syscall.Signal) error {
			err := unix.PidfdSendSignal(fd, sig, nil, 0)
			if errors.Is(err, unix.ENOSYS) {
				err = syscall.Kill(d.pid, sig)
			}
			return err
		}
	case errors.Is(err, unix.ESRCH):
		return false, nil
	default:
		// An old kernel, a filter, no descriptor left. The lock keeps at least
		// our own children's numbers from being reused.
		p.mu.Lock()
		defer p.mu.Unlock()
	}

	// The number may be a stranger's by now: then it started later. And the scan,
	// which is no snapshot, may have taken a number for a parent that was reused
	// while it ran: then the parent is another one by now.
	now, err := readStat(d.pid)
	switch {
	case ended(err), err == nil && now.start != d.start:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("signal process %d: %w", d.pid, err)
	}
	if _, ok := tree[now.parent]; !ok && now.parent != os.Getpid() {
		return false, nil
	}
	err = send(sig)
	if err == nil && wakes(sig) {
		_ = send(syscall.SIGCONT) // no error counts: it may have ended
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.ESRCH):
		return false, nil
	default:
		return false, fmt.Errorf("signal process %d: %w", d.pid, err)
	}
}

// Descendants returns the process numbers of CMD and its descendants that live, in
// no order. The error tells what could not be read; the numbers are then what was
// found all the same.
func (p *Process) Descendants() ([]int, error) {
	tree, err := scan(p.earlier)
	var pids []int
	for pid, d := range tree {
		if !d.dead() {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// stat is what /proc/PID/stat says of a process.
type stat struct {
	pid     int
	state   byte
	parent  int
	group   int
	threads int
	start   uint64 // clock ticks after the boot
}

// dead reports whether the process has ended and only waits for being reaped. One
// whose first thread has ended while others go on looks alike but for their number.
func (s stat) dead() bool {
	return (s.state == 'Z' || s.state == 'X') && s.threads <= 1
}

// scan returns all our descendants, the dead ones included, but never ourselves, and
// not the earlier ones with all that is below them.
func scan(without earlier) (map[int]stat, error) {
	if err := ownProc(); err != nil {
		return nil, fmt.Errorf("find descendants: %w", err)
	}
	pids, err := processes()
	if err != nil {
		return nil, fmt.Errorf("find descendants: %w", err)
	}

	all := make(map[int]stat, len(pids))
	hidden := 0
	var unread error // the last of them is enough to tell why
	for _, pid := range pids {
		s, err := readStat(pid)
		switch {
		case err == nil:
			all[pid] = s
		case ended(err):
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			hidden++
		default:
			unread = fmt.Errorf("find descendants: read process %d: %w", pid, err)
		}
	}
	adopt(all)
	tree := below(all, os.Getpid(), without)
	if hidden > 0 && unread == nil {
		unread = fmt.Errorf("find descendants: %d processes are hidden from us (hidepid)", hidden)
	}
	return tree, unread
}

// processes returns the numbers of all processes that /proc shows.
func processes() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// ownProc returns an error when the numbers in /proc are not those by which we
// signal: it is missing, or was mounted for another PID namespace.
func ownProc() error {
	link, err := os.Readlink("/proc/self")
	if err != nil {
		return err
	}
	if link != strconv.Itoa(os.Getpid()) {
		return errors.New("/proc belongs to another PID namespace")
	}
	return nil
}

// adopt reads again the processes whose parent was not seen: it ended while we
// looked, and they have another one by now.
func adopt(all map[int]stat) {
	for range 3 { // the new parent may end as well; parents that are hidden stay so
		again := false
		for pid, s := range all {
			if _, ok := all[s.parent]; ok || s.parent == 0 {
				continue
			}
			now, err := readStat(pid)
			switch {
			case err != nil:
				if ended(err) {
					delete(all, pid)
				}
			case now.parent != s.parent:
				all[pid] = now
				again = true
			}
		}
		if !again {
			return
		}
	}
}

// below returns the processes of all that descend from root, but not the earlier ones
// with all that is below them.
func below(all map[int]stat, root int, without earlier) map[int]stat {
	children := make(map[int][]int, len(all))
	for pid, s := range all {
		children[s.parent] = append(children[s.parent], pid)
	}
	tree := make(map[int]stat)
	queue := []int{root}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		for _, pid := range children[next] {
			if _, seen := tree[pid]; !seen && pid != root && !without.has(all[pid]) {
				tree[pid] = all[pid]
				queue = append(queue, pid)
			}
		}
	}
	return tree
}

// readStat reads what the kernel says of a process. It makes the three calls itself
// because a process that forks quickly gives us little time.
func readStat(pid int) (stat, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return stat{}, err
	}
	defer unix.Close(fd)
	var text [1024]byte // the kernel's line is at most some 400 bytes
	n, err := unix.Read(fd, text[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, text[:])
	}
	if err != nil {
		return stat{}, err
	}
	return parseStat(text[:n])
}

// ended reports whether an error of readStat means that there is no such process.
func ended(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

// parseStat takes the line of /proc/PID/stat apart.
func parseStat(line []byte) (stat, error) {
	var s stat
	// The second field is the program's name in parentheses, in which blanks and
	// parentheses may occur; no later field has any.
	head, rest, ok := cutLast(line, ')')
	if !ok {
		return s, errors.New("no name in the process's stat line")
	}
	pid, _, ok := bytes.Cut(head, []byte(" ("))
	fields := bytes.Fields(rest)
	// Counted from the third field on: state, ppid, pgrp, …, num_threads (20th),
	// itrealvalue, starttime (22nd).
	if !ok || len(fields) < 20 || len(fields[0]) != 1 {
		return s, errors.New("too few fields in the process's stat line")
	}
	s.state = fields[0][0]
	var errs [5]error
	s.pid, errs[0] = strconv.Atoi(string(pid))
	s.parent, errs[1] = strconv.Atoi(string(fields[1]))
	s.group, errs[2] = strconv.Atoi(string(fields[2]))
	s.threads, errs[3] = strconv.Atoi(string(fields[17]))
	s.start, errs[4] = strconv.ParseUint(string(fields[19]), 10, 64)
	return s, errors.Join(errs[:]...)
}

// cutLast cuts around the last sep.
func cutLast(text []byte, sep byte) (before, after []byte, found bool) {
	i := bytes.LastIndexByte(text, sep)
	if i < 0 {
		return text, nil, false
	}
	return text[:i], text[i+1:], true
}
