package gatedir

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func TestASecondHolderIsRefusedUntilTheFirstIsDead(t *testing.T) {
	d := open(t)
	if d.HolderLives() {
		t.Error("HolderLives() without a holder")
	}
	first := play(t, -1, "hold", d.path)
	first.want("ok")
	if !d.HolderLives() {
		t.Error("HolderLives() = false while there is one")
	}
	play(t, -1, "hold", d.path).want("taken")
	if _, err := d.LockHolder(); !errors.Is(err, ErrTaken) {
		t.Errorf("LockHolder() = %v; want ErrTaken", err)
	}
	first.kill()
	if d.HolderLives() {
		t.Error("HolderLives() = true after SIGKILL")
	}
	f, err := d.LockHolder()
	if err != nil {
		t.Fatalf("LockHolder() after SIGKILL of the first: %v", err)
	}
	play(t, -1, "hold", d.path).want("taken")
	f.Close()
	play(t, -1, "hold", d.path).want("ok")
}

func TestALockFileThatItsMakerCouldNotFinishIsRepaired(t *testing.T) {
	// A maker with a umask that was killed before it could open the file to all.
	for name, lock := range map[string]func(*Dir) error{
		mainLockName: func(d *Dir) error {
			l, err := d.LockMain(t.Context())
			if err == nil {
				err = l.Close()
			}
			return err
		},
		holderLockName: func(d *Dir) error {
			f, err := d.LockHolder()
			if err == nil {
				err = f.Close()
			}
			return err
		},
	} {
		d := open(t)
		if err := os.WriteFile(d.file(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := lock(d); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(d.file(name)); err != nil || info.Mode() != 0o644 {
			t.Errorf("the mode of %s is %v, %v; want 0644", name, info.Mode(), err)
		}
	}
}

// mainRole starts a process that has main.lock and a child that inherited it.
func mainRole(t *testing.T, d *Dir, args ...string) (p *proc, fd, child int) {
	t.Helper()
	p = play(t, -1, "main", append([]string{d.path}, args...)...)
	var words []string
	for range 2 { // the child says "ready"
		if line := p.next(); line != "ready" {
			words = strings.Fields(line)
		}
	}
	if len(words) != 3 {
		t.Fatalf("the role said %q; want main, a descriptor, a process", words)
	}
	var err1, err2 error
	fd, err1 = strconv.Atoi(words[1])
	child, err2 = strconv.Atoi(words[2])
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return p, fd, child
}

func killProcess(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestMainLockIsFreeOnlyWhenAllThatInheritedItAreGone(t *testing.T) {
	d := open(t)
	probe := d.Probe()
	defer probe.Close()
	if !probe.Gone() {
		t.Error("Gone() = false where no main ever was")
	}
	main, fd, child := mainRole(t, d)
	if fd < minMainFD {
		t.Errorf("main.lock is inherited at %d; want %d or more", fd, minMainFD)
	}
	if probe.Gone() {
		t.Error("Gone() = true while main lives")
	}
	main.kill()
	if probe.Gone() {
		t.Error("Gone() = true while main's child lives")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.LockMain(over); !errors.Is(err, ErrTaken) {
		t.Errorf("LockMain() = %v while main's child lives; want ErrTaken", err)
	}
	killProcess(t, child)
	l, err := d.LockMain(t.Context()) // waits for the child's end
	if err != nil {
		t.Fatal(err)
	}
	if probe.Gone() {
		t.Error("Gone() = true while we have main.lock")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if !probe.Gone() {
		t.Error("Gone() = false after the last end")
	}
}

func TestMainLockIsInheritedWhereFewFilesMayBeOpen(t *testing.T) {
	d := open(t)
	main, fd, child := mainRole(t, d, "40")
	if fd < 10 || fd >= 40 {
		t.Errorf("with at most 40 files main.lock is inherited at %d; want the highest that is free", fd)
	}
	main.kill()
	probe := d.Probe()
	defer probe.Close()
	if probe.Gone() {
		t.Error("Gone() = true while main's child lives")
	}
	killProcess(t, child)
	eventually(t, "main is gone", probe.Gone)
}

func TestHoldersThatProbeDoNotKeepMainOut(t *testing.T) {
	d := open(t)
	stop := make(chan struct{})
	var probing sync.WaitGroup
	for range 2 {
		probing.Go(func() {
			p := d.Probe()
			defer p.Close()
			for {
				select {
				case <-stop:
					return
				default:
					p.Gone()
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 20 {
		l, err := d.LockMain(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	probing.Wait()
}

func TestAProbeSeesAMainLockThatWasMadeAnew(t *testing.T) {
	d := open(t)
	probe := d.Probe()
	defer probe.Close()
	l, err := d.LockMain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if probe.Gone() {
		t.Error("Gone() = true while we have main.lock")
	}
	// Somebody has cleared the directory: the lock that we have still counts,
	// and so does the one that the next exec makes.
	if err := os.Remove(d.file(mainLockName)); err != nil {
		t.Fatal(err)
	}
	if probe.Gone() {
		t.Error("Gone() = true while we have the removed main.lock")
	}
	second, err := d.LockMain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if probe.Gone() {
		t.Error("Gone() = true while we have the new main.lock")
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if !probe.Gone() {
		t.Error("Gone() = false after the last end")
	}
}

func TestInDoubtMainIsNotGone(t *testing.T) {
	d := open(t)
	if err := os.Symlink("nowhere", d.file(mainLockName)); err != nil {
		t.Fatal(err)
	}
	probe := d.Probe()
	defer probe.Close()
	if probe.Gone() {
		t.Error("Gone() = true though main.lock cannot be opened")
	}
}
