package bootclock

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Alarm tells when the boot clock reaches a point. After a suspend that went past
// the point it fires on waking. Its methods may be called from several goroutines.
type Alarm struct {
	file *os.File
	conn syscall.RawConn
	c    chan struct{}
	done chan struct{}
}

// NewAlarm returns an alarm that is not set. It must be closed.
func NewAlarm() (*Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a timer on the boot clock: %w", err)
	}
	file := os.NewFile(uintptr(fd), "timerfd")
	// Only a descriptor that the runtime polls accepts a deadline. One that it
	// does not would make Read fail at once instead of waiting.
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		file.Close()
		return nil, fmt.Errorf("poll a timer on the boot clock: %w", err)
	}
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("use a timer on the boot clock: %w", err)
	}
	a := &Alarm{
		file: file,
		conn: conn,
		c:    make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	go a.wait()
	return a, nil
}

// Set makes the alarm fire when the boot clock reaches at, in place of any earlier
// setting. A point in the past fires at once; 0 sets nothing. After Close it does
// nothing.
func (a *Alarm) Set(at time.Duration) {
	if at < 0 {
		at = 1 // as long past as any other, and not "nothing"
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	// The descriptor is borrowed, so that Close cannot hand its number to another
	// file in between. The call itself can fail only for arguments that we do not
	// make.
	_ = a.conn.Control(func(fd uintptr) {
		_ = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil)
	})
}

// C returns the channel on which each expiry is sent, always the same one. It
// holds one: expiries that nobody has received yet become one. A setting that was
// replaced just as it expired may still be sent, so the receiver looks at [Now].
// The channel is never closed.
func (a *Alarm) C() <-chan struct{} { return a.c }

// Close ends the alarm and what it started. Later calls do nothing.
func (a *Alarm) Close() {
	_ = a.file.Close() // nothing was written
	<-a.done
}

// wait passes expiries on until the file is closed.
func (a *Alarm) wait() {
	defer close(a.done)
	var count [8]byte
	for {
		if _, err := a.file.Read(count[:]); err != nil {
			return // closed; a timer without TFD_TIMER_CANCEL_ON_SET has no other
		}
		select {
		case a.c <- struct{}{}:
		default:
		}
	}
}
