package bootclock

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the boot, suspended time included. It only grows.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Every kernel that runs a Go program has this clock. Should one not,
		// an invented time would let work run past its lease.
		panic(fmt.Sprintf("read the boot clock: %v", err)) //nolint:forbidigo // see above
	}
	return time.Duration(ts.Nano())
}

// HostOffset returns what [Now] is ahead of the host's boot clock, which may be
// negative. It is 0 outside a time namespace, and where it cannot be read.
//
// Stores that several namespaces of one machine share keep Now() - HostOffset().
// The offset of a process never changes, so it is read once, when the store is
// opened.
func HostOffset() time.Duration {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	return bootOffset(text)
}

// bootOffset finds the boot clock's line in the text of timens_offsets: the
// clock's name, seconds, nanoseconds.
func bootOffset(text []byte) time.Duration {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		// Kernels print the name; what is written there may be the number.
		if len(fields) != 3 || string(fields[0]) != "boottime" && string(fields[0]) != "7" {
			continue
		}
		sec, err1 := strconv.ParseInt(string(fields[1]), 10, 64)
		nsec, err2 := strconv.ParseInt(string(fields[2]), 10, 64)
		if err1 != nil || err2 != nil {
			return 0
		}
		return time.Duration(sec)*time.Second + time.Duration(nsec)
	}
	return 0
}

// BootID returns a text that is the same for every process of this boot and
// different after the next one. It is never empty when the error is nil.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	id := string(bytes.TrimSpace(text))
	if id == "" {
		return "", fmt.Errorf("read the boot id: it is empty")
	}
	return id, nil
}
