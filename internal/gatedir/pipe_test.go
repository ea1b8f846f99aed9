package gatedir_test

import (
	"os"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/gatedir"
)

func TestAWatcherIsToldByAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	watch := gatedir.WatchPipe(r)
	for _, what := range []struct {
		name string
		do   func() error
	}{
		{"a byte", func() error { _, err := w.Write([]byte{'.'}); return err }},
		{"another", func() error { _, err := w.Write([]byte{'.'}); return err }},
		{"the end of the writer", w.Close},
	} {
		if err := what.do(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-watch.C():
		case <-time.After(time.Minute):
			t.Fatalf("%s says nothing", what.name)
		}
	}
	select {
	case <-watch.Ended():
	case <-time.After(time.Minute):
		t.Fatal("the writer has gone, and the watcher does not say so")
	}
	watch.Close()
}

func TestAWatcherOfAPipeCanBeClosedWhileNothingComes(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		gatedir.WatchPipe(r).Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Fatal("Close does not return")
	}
}
