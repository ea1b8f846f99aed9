package gatedir

import (
	"os"
	"time"
)

// pollEvery is how often a watcher says "look again" where the kernel cannot
// tell it about changes.
const pollEvery = 50 * time.Millisecond

// Watcher tells when something in the directory may have changed. A reader looks
// for itself then, and also looks now and then without being told: an event can
// be missing where the directory is shared through something unusual.
type Watcher struct {
	c     chan struct{}
	stop  chan struct{}
	ended chan struct{}
	sys   sysWatch
	pipe  *os.File // instead of sys; see WatchPipe
}

// C gets a value when something was published in the directory, or when
// main.lock may have come free. Several changes can be one value.
func (w *Watcher) C() <-chan struct{} { return w.c }

// Watch starts to watch. Where the kernel has no events to give, the watcher
// ticks instead.
func (d *Dir) Watch() *Watcher {
	w := &Watcher{
		c:     make(chan struct{}, 1),
		stop:  make(chan struct{}),
		ended: make(chan struct{}),
	}
	if !w.start(d) {
		go w.tick()
	}
	return w
}

// WatchPipe returns a watcher that is told by a pipe: each byte that comes, and its
// end, says "look again". It takes the pipe over. It is for two processes that
// know each other: to close a watcher that the kernel tells, the kernel needs 10 ms
// (fsnotify waits for all processors), and as long a process that has one needs to
// end.
func WatchPipe(pipe *os.File) *Watcher {
	w := &Watcher{
		c:     make(chan struct{}, 1),
		stop:  make(chan struct{}),
		ended: make(chan struct{}),
		pipe:  pipe,
	}
	go func() {
		defer close(w.ended)
		buf := make([]byte, 64)
		for {
			_, err := pipe.Read(buf)
			w.wake()
			if err != nil {
				return
			}
		}
	}()
	return w
}

// Ended is closed when whoever writes to the pipe of [WatchPipe] has gone. It is nil
// for another watcher.
func (w *Watcher) Ended() <-chan struct{} {
	if w.pipe == nil {
		return nil
	}
	return w.ended
}

// Close stops watching and returns when the watcher's goroutine has ended.
func (w *Watcher) Close() {
	close(w.stop)
	if w.pipe != nil {
		_ = w.pipe.Close()
	} else {
		w.interrupt()
	}
	<-w.ended
}

func (w *Watcher) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

func (w *Watcher) tick() {
	defer close(w.ended)
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-t.C:
			w.wake()
		}
	}
}
