package bootclock

import (
	"sync"
	"time"
)

// recheck is how late an alarm can be after a suspend: Go's timer stands still
// meanwhile, so the clock is looked at again at least this often.
const recheck = time.Second

// Alarm tells when the boot clock reaches a point. After a suspend that went past
// the point it fires within a second of waking. Its methods may be called from
// several goroutines.
type Alarm struct {
	set   chan time.Duration
	c     chan struct{}
	stop  chan struct{}
	done  chan struct{}
	close sync.Once
}

// NewAlarm returns an alarm that is not set. It must be closed.
func NewAlarm() (*Alarm, error) {
	a := &Alarm{
		set:  make(chan time.Duration),
		c:    make(chan struct{}, 1),
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
	go a.wait()
	return a, nil
}

// Set makes the alarm fire when the boot clock reaches at, in place of any earlier
// setting. A point in the past fires at once; 0 sets nothing. After Close it does
// nothing.
func (a *Alarm) Set(at time.Duration) {
	select {
	case a.set <- at:
	case <-a.done:
	}
}

// C returns the channel on which each expiry is sent, always the same one. It
// holds one: expiries that nobody has received yet become one. A setting that was
// replaced just as it expired may still be sent, so the receiver looks at [Now].
// The channel is never closed.
func (a *Alarm) C() <-chan struct{} { return a.c }

// Close ends the alarm and what it started. Later calls do nothing.
func (a *Alarm) Close() {
	a.close.Do(func() { close(a.stop) })
	<-a.done
}

func (a *Alarm) wait() {
	defer close(a.done)
	var at time.Duration // 0: nothing is set
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	for {
		select {
		case <-a.stop:
			return
		case at = <-a.set:
		case <-timer.C:
		}
		if at != 0 && Now() >= at {
			at = 0
			select {
			case a.c <- struct{}{}:
			default:
			}
		}
		pause := recheck
		if at != 0 {
			pause = min(pause, at-Now())
		}
		timer.Reset(pause)
	}
}
