package bootclock

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays both processes of TestInATimeNamespace.
const roleVar = "BOOTCLOCK_TEST_ROLE"

// ahead is how far the namespace's boot clock is ahead of the host's. Its monotonic
// clock is not.
const ahead = 1000 * time.Hour

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVar) {
	case "":
		os.Exit(m.Run())
	case "enter":
		err = enterTimeNamespace()
	case "inside":
		err = checkTimeNamespace()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestNowIsTheUptimeWithSuspend(t *testing.T) {
	before := Now()
	text, err := os.ReadFile("/proc/uptime") // kept on the boot clock, cut to 10 ms
	after := Now()
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	uptime := time.Duration(seconds * float64(time.Second))
	if uptime < before-11*time.Millisecond || uptime > after+time.Millisecond {
		t.Errorf("Now() = %v, then %v; want the uptime %v between them", before, after, uptime)
	}
}

func TestInATimeNamespaceTheAlarmFollowsTheSameClockAsNow(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVar+"=enter", fmt.Sprintf("%s=%d", hostVar, Now()-HostOffset()))
	cmd.Stderr = t.Output()
	if os.Geteuid() != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		}
	}
	if err := cmd.Run(); err != nil {
		t.Errorf("in a time namespace: %v", err)
	}
}

// hostVar is the host's boot clock before the namespace was made.
const hostVar = "BOOTCLOCK_TEST_HOST"

// enterTimeNamespace makes a time namespace and goes on in a process inside it.
func enterTimeNamespace() error {
	// The namespace is this thread's, and becomes that of what it starts.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
		return fmt.Errorf("this test needs a time namespace: %w", err)
	}
	offsets := fmt.Sprintf("/proc/%d/timens_offsets", unix.Gettid())
	if err := os.WriteFile(offsets, fmt.Appendf(nil, "boottime %d 5", int(ahead/time.Second)), 0); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVar+"=inside")
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

func checkTimeNamespace() error {
	host, err := strconv.ParseInt(os.Getenv(hostVar), 10, 64)
	if err != nil {
		return err
	}
	offset := HostOffset()
	if offset < ahead {
		return fmt.Errorf("HostOffset() = %v; want at least %v", offset, ahead)
	}
	if now := Now(); now < time.Duration(host)+ahead {
		return fmt.Errorf("Now() = %v; want it %v ahead of the host's %v", now, ahead, time.Duration(host))
	}
	if got := Now() - offset; got < time.Duration(host) || got > time.Duration(host)+ahead {
		return fmt.Errorf("Now() - HostOffset() = %v; want the host's time, after %v", got, time.Duration(host))
	}

	a, err := NewAlarm()
	if err != nil {
		return err
	}
	defer a.Close()
	at := Now() + 20*time.Millisecond
	a.Set(at)
	select {
	case <-a.C():
	case <-time.After(time.Minute):
		return errors.New("an alarm 20ms ahead did not fire within a minute: it follows another clock")
	}
	if now := Now(); now < at {
		return fmt.Errorf("an alarm set to %v fired at %v", at, now)
	}
	return nil
}

func TestTheOffsetIsReadFromTheBootClocksLine(t *testing.T) {
	tests := []struct {
		text string
		want time.Duration
	}{
		{"monotonic           0         0\nboottime            0         0\n", 0},
		{"monotonic        1000         1\nboottime          -20        30\n", -20*time.Second + 30},
		{"boottime 7 500000000", 7*time.Second + 500*time.Millisecond},
		{"monotonic 9 9\n", 0},
		{"boottime x 0\n", 0},
		{"boottime 5\n", 0},
		{"", 0},
	}
	for _, test := range tests {
		if got := bootOffset([]byte(test.text)); got != test.want {
			t.Errorf("bootOffset(%q) = %v; want %v", test.text, got, test.want)
		}
	}
}
