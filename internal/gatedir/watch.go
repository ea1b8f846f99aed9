package gatedir

import "time"

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

// Close stops watching and returns when the watcher's goroutine has ended.
func (w *Watcher) Close() {
	close(w.stop)
	w.interrupt()
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
