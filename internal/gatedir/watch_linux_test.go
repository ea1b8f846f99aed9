package gatedir

import (
	"os"
	"runtime"
	"testing"
)

// wantNoWake fails when the watcher has said something.
func wantNoWake(t *testing.T, w *Watcher, why string) {
	t.Helper()
	runtime.Gosched()
	select {
	case <-w.C():
		t.Fatalf("the watcher woke, although %s", why)
	default:
	}
}

func TestTheLastCloseOfMainLockWakes(t *testing.T) {
	for _, firstMain := range []bool{true, false} {
		d := open(t)
		if !firstMain {
			// The lock file is there from the start.
			l, err := d.LockMain(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
		}
		w := d.Watch()
		defer w.Close()
		probe := d.Probe()
		defer probe.Close()

		main, _, child := mainRole(t, d)
		// As exec does; the watcher learns of a new main.lock by it.
		if err := d.WriteRequest(Request{Nonce: "n"}); err != nil {
			t.Fatal(err)
		}
		wantWake(t, w)
		if probe.Gone() {
			t.Fatal("Gone() = true while main lives")
		}
		main.kill()
		for range 100 {
			probe.Gone()
			wantNoWake(t, w, "main's child still has main.lock")
		}
		killProcess(t, child)
		wantWake(t, w)
		eventually(t, "main is gone", probe.Gone)
	}
}

func TestReadingAndProbingWakeNobody(t *testing.T) {
	d := open(t)
	if err := publishAll(d); err != nil {
		t.Fatal(err)
	}
	probe := d.Probe()
	defer probe.Close()
	probe.Gone()
	w := d.Watch()
	defer w.Close()
	for range 2000 {
		_, err1 := d.ReadState()
		_, err2 := d.ReadRequest()
		_, err3 := d.ReadDone()
		if err1 != nil || err2 != nil || err3 != nil || !probe.Gone() || !d.IsMarkedAcquired() || d.HolderLives() {
			t.Fatalf("ReadState, ReadRequest, ReadDone: %v, %v, %v", err1, err2, err3)
		}
		wantNoWake(t, w, "nobody has published anything")
	}
	// It would have woken.
	if err := d.WriteDone(Done{}); err != nil {
		t.Fatal(err)
	}
	wantWake(t, w)
}

func TestTheNextMainLockWakesTooWhenTheFirstWasRemoved(t *testing.T) {
	d := open(t)
	w := d.Watch()
	defer w.Close()
	for range 2 {
		l, err := d.LockMain(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.WriteRequest(Request{Nonce: "n"}); err != nil {
			t.Fatal(err)
		}
		wantWake(t, w)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantWake(t, w)
		if err := os.Remove(d.file(mainLockName)); err != nil {
			t.Fatal(err)
		}
		// What the removal itself has caused is over after the next event.
		if err := d.WriteDone(Done{}); err != nil {
			t.Fatal(err)
		}
		wantWake(t, w)
		for len(w.C()) > 0 {
			<-w.C()
		}
	}
}

func TestNothingStaysOpen(t *testing.T) {
	d := open(t)
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round := func() {
		w := d.Watch()
		if err := publishAll(d); err != nil { // takes and gives back both locks
			t.Fatal(err)
		}
		over := d.Probe()
		over.Gone()
		if _, err := d.ReadState(); err != nil {
			t.Fatal(err)
		}
		f, err := d.LockHolder()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.LockHolder(); err == nil {
			t.Error("LockHolder() twice = nil; want ErrTaken")
		}
		f.Close()
		if err := over.Close(); err != nil {
			t.Error(err)
		}
		w.Close()
	}
	round() // whatever is made once is made
	before := files()
	for range 10 {
		round()
	}
	if after := files(); after > before {
		t.Errorf("%d files are open; want %d, as before", after, before)
	}
}
