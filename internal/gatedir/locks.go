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
// use 3 to 9 for themselves and would lose it there.
const minMainFD = 100

// LockHolder takes holder.lock until the file is closed or the process ends.
// [ErrTaken] when another holder uses the directory.
func (d *Dir) LockHolder() (*os.File, error) {
	f, err := openLock(d.file(holderLockName))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", holderLockName, err)
	}
	if err := flock(f, syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", holderLockName, err)
	}
	return f, nil
}

// HolderLives tells whether a process holds holder.lock.
func (d *Dir) HolderLives() bool {
	f, err := os.OpenFile(d.file(holderLockName), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
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
	f, err := openLock(d.file(mainLockName))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", mainLockName, err)
	}
	for {
		err = flock(f, syscall.LOCK_EX)
		if !errors.Is(err, ErrTaken) {
			break
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", mainLockName, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", mainLockName, err)
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
// closing is no event for a [Watcher].
type Probe struct {
	dir  *Dir
	file *os.File
}

// Probe returns a probe of main.lock.
func (d *Dir) Probe() *Probe { return &Probe{dir: d} }

// Gone tells whether exec, CMD and all its descendants that kept the lock are
// gone. It takes the lock shared, without waiting, and gives it back at once.
// In doubt it says no.
func (p *Probe) Gone() bool {
	if p.file == nil {
		f, err := os.OpenFile(p.dir.file(mainLockName), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		if err != nil {
			// Nobody removes the file, so without one no exec was ever here.
			return errors.Is(err, fs.ErrNotExist)
		}
		p.file = f
	}
	if flock(p.file, syscall.LOCK_SH) != nil {
		return false
	}
	_ = syscall.Flock(int(p.file.Fd()), syscall.LOCK_UN)
	return true
}

// Close ends the probe.
func (p *Probe) Close() error {
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}

// openLock opens a lock file, which may be another user's, and makes it if it
// is missing.
func openLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue // somebody was quicker
		}
		if err != nil {
			return nil, err
		}
		if err := f.Chmod(0o644); err != nil {
			_ = f.Close()
			return nil, err
		}
		return f, nil
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
