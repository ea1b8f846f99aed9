package bootclock

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestNowNeverGoesBack(t *testing.T) {
	last := Now()
	if last <= 0 {
		t.Fatalf("Now() = %v; want a time since the boot", last)
	}
	for range 1000 {
		now := Now()
		if now < last {
			t.Fatalf("Now() = %v after %v", now, last)
		}
		last = now
	}
}

func TestTheBootIDStaysTheSame(t *testing.T) {
	first, err := BootID()
	if err != nil || first == "" {
		t.Fatalf("BootID() = %q, %v; want a text", first, err)
	}
	if second, err := BootID(); second != first || err != nil {
		t.Errorf("BootID() = %q, %v; want %q again", second, err, first)
	}
}

func newAlarm(t *testing.T) *Alarm {
	t.Helper()
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func TestAnAlarmFiresWhenItsTimeHasCome(t *testing.T) {
	a := newAlarm(t)
	for range 5 {
		at := Now() + 10*time.Millisecond
		a.Set(at)
		<-a.C()
		if now := Now(); now < at {
			t.Errorf("fired at %v; want %v or later", now, at)
		}
	}
}

func TestAnAlarmInThePastFiresAtOnce(t *testing.T) {
	a := newAlarm(t)
	for _, at := range []time.Duration{Now(), Now() - time.Hour, 1, -1, -time.Hour} {
		a.Set(at)
		<-a.C()
	}
}

func TestASettingReplacesTheOneBefore(t *testing.T) {
	a, later := newAlarm(t), newAlarm(t)

	a.Set(Now() + time.Hour)
	a.Set(Now() + time.Millisecond)
	<-a.C()

	for _, second := range []time.Duration{0, Now() + time.Hour} {
		var first time.Duration
		for {
			first = Now() + 50*time.Millisecond
			a.Set(first)
			a.Set(second)
			if Now() < first {
				break
			}
			select { // we were too slow, and it may have fired rightly
			case <-a.C():
			default:
			}
		}
		later.Set(first + 20*time.Millisecond)
		<-later.C()
		select {
		case <-a.C():
			t.Errorf("an alarm set to %v and then to %v fired at the first", first, second)
		default:
		}
	}
}

func TestAClosedAlarmDoesNothing(t *testing.T) {
	a := newAlarm(t)
	a.Close()
	a.Set(1)
	a.Close()
	select {
	case <-a.C():
		t.Error("it fired")
	default:
	}
}

func TestAnAlarmThatNobodyReceivesCanBeClosed(t *testing.T) {
	later := newAlarm(t)
	for range 10 {
		a := newAlarm(t)
		for range 3 { // more than the channel holds
			at := Now() + time.Millisecond
			a.Set(at)
			later.Set(at + time.Millisecond)
			<-later.C()
		}
		a.Close()
		<-a.C()
		select {
		case <-a.C():
			t.Error("the expiries that nobody received have not become one")
		default:
		}
	}
}

func TestAnAlarmMayBeSetAndClosedAtTheSameTime(t *testing.T) {
	for range 50 {
		a := newAlarm(t)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 20 {
					a.Set(Now() + time.Microsecond)
				}
			})
		}
		all.Go(a.Close)
		all.Wait()
	}
}

func TestCloseEndsTheAlarmsGoroutine(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		a := newAlarm(t)
		a.Set(Now() + time.Hour)
		a.Close()
		select {
		case <-a.done:
		default:
			t.Error("Close has not waited for it")
		}
	}
	// It has said that it is done, and only has to leave.
	for runtime.NumGoroutine() > before {
		runtime.Gosched()
	}
}
