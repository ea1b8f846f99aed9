package gatedir

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// wantWake waits for the watcher's word.
func wantWake(t *testing.T, w *Watcher) {
	t.Helper()
	select {
	case <-w.C():
	case <-time.After(patience):
		t.Fatal("the watcher never said a word")
	}
}

func TestEveryPublicationWakes(t *testing.T) {
	d := open(t)
	w := d.Watch()
	defer w.Close()
	for name, publish := range map[string]func() error{
		"request":  func() error { return d.WriteRequest(Request{Nonce: "n"}) },
		"state":    func() error { return d.WriteState(State{Request: "n"}) },
		"done":     func() error { return d.WriteDone(Done{}) },
		"acquired": func() error { return d.MarkAcquired(1) },
	} {
		if err := publish(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wantWake(t, w)
	}
}

func TestWithoutEventsTheWatcherTicks(t *testing.T) {
	w := (&Dir{path: filepath.Join(t.TempDir(), "none")}).Watch()
	for range 3 {
		wantWake(t, w)
	}
	w.Close()
}

func TestAWatcherLeavesNoGoroutine(t *testing.T) {
	d := open(t)
	before := runtime.NumGoroutine()
	for range 20 {
		w, ticking := d.Watch(), (&Dir{path: d.path + "/none"}).Watch()
		w.Close()
		ticking.Close()
	}
	eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}
