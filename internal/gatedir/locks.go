package gatedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// ErrTaken says that another process has the lock.
var ErrTaken = errors.New("taken by another process")

// minMainFD is the lowest descriptor at which CMD inherits main.lock. Scripts
// use 3 to 9 for themselves and would lose it there, and shells keep theirs from
// 10 up. It is below 64, because a table of open files has that many places to
// begin with, and to enlarge one that threads share the kernel waits for all
// processors (expand_fdtable in Linux' fs/file.c), which takes 10 ms.
const minMainFD = 60

// probePatience is how long a lock is tried for that others probe: a probe takes it
// for a moment.
const probePatience = 300 * time.Millisecond

// LockHolder takes holder.lock until the file is closed or the process ends.
// [ErrTaken] when another holder uses the directory.
func (d *Dir) LockHolder() (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probePatience)
	defer cancel()
	return d.lock(ctx, holderLockName)
}

// lock takes a lock, which others may probe, until the file is closed. It tries until
// ctx ends; then it returns [ErrTaken].
func (d *Dir) lock(ctx context.Context, name string) (*os.File, error) {
	f, err := openLock(d.file(name))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	for {
		err = flock(f, syscall.LOCK_EX)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, ErrTaken) {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
				continue
			}
		}
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
}

// HolderLives tells whether a process holds holder.lock.
func (d *Dir) HolderLives() bool {
	f, err := openRead(d.file(holderLockName))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return errors.Is(flock(f, syscall.LOCK_SH), ErrTaken)
}

// MainLock is main.lock in the hands of exec. A process that exec starts
// inherits it, and it is free only when all that inherited it have ended.
type MainLock struct {
	file *os.File
	high int
}

// LockMain takes main.lock. It tries until ctx ends, because holders probe the
// lock and an earlier exec may be on its way out; then it returns [ErrTaken].
func (d *Dir) LockMain(ctx context.Context) (*MainLock, error) {
	f, err := d.lock(ctx, mainLockName)
	if err != nil {
		return nil, err
	}
	high, err := dupInheritable(int(f.Fd()), minMainFD)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", mainLockName, err)
	}
	return &MainLock{file: f, high: high}, nil
}

// Close gives the lock up for this process; descendants that inherited it keep
// it.
func (l *MainLock) Close() error {
	return errors.Join(syscall.Close(l.high), l.file.Close())
}

// Probe looks whether main is gone. It keeps the file open, so that its own
// closing is no event for a [Watcher]. It belongs to one goroutine at a time.
type Probe struct {
	dir  *Dir
	file *os.File
	info fs.FileInfo // of file
}

// Probe returns a probe of main.lock.
func (d *Dir) Probe() *Probe { return &Probe{dir: d} }

// Gone tells whether exec, CMD and all its descendants that kept the lock are
// gone. It takes the lock shared, without waiting, and gives it back at once.
// In doubt it says no.
func (p *Probe) Gone() bool {
	if p.file != nil && !isFree(p.file) {
		return false
	}
	// Somebody may have cleared the directory since: then the next exec makes
	// another file.
	now, err := os.Lstat(p.dir.file(mainLockName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true // no exec was ever here, or it is another file that is free
	case err != nil:
		return false
	case p.file != nil && os.SameFile(now, p.info):
		return true
	}
	return p.reopen() == nil && isFree(p.file)
}

// reopen opens the file that has the name now.
func (p *Probe) reopen() error {
	f, err := openRead(p.dir.file(mainLockName))
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	_ = p.Close()
	p.file, p.info = f, info
	return nil
}

// Close ends the probe.
func (p *Probe) Close() error {
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}

// isFree tells whether nobody has the lock, without keeping it.
func isFree(f *os.File) bool {
	if flock(f, syscall.LOCK_SH) != nil {
		return false
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	return true
}

// openRead opens what the other side may have made, whatever it is, without
// waiting and without following a link.
func openRead(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
}

// openLock opens a lock file, which may be another user's, and makes it if it
// is missing.
func openLock(path string) (*os.File, error) {
	for {
		f, err := openRead(path)
		if err == nil {
			openToAll(f)
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue // somebody was quicker
		}
		if err != nil {
			return nil, err
		}
		openToAll(f)
		return f, nil
	}
}

// openToAll lets the other side open a lock file of ours: the umask may have
// taken bits away, also from one whose maker was killed just then. Only its
// owner can do it, and for another's there is nothing to do.
func openToAll(f *os.File) {
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Mode().Perm() != 0o644 {
		_ = f.Chmod(0o644)
	}
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrTaken
		default:
			return err
		}
	}
}
