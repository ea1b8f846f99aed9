package bootclock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns a time that counts suspended time too and only grows. It starts at
// an arbitrary point that is the same for every process of this boot.
func Now() time.Duration {
	// On this system CLOCK_MONOTONIC counts while the machine sleeps; the clock
	// that Go's timers use does not.
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("read the boot clock: %v", err))
	}
	return time.Duration(ts.Nano())
}

// HostOffset returns 0: this system has no time namespaces.
func HostOffset() time.Duration { return 0 }

// BootID returns a text that is the same for every process of this boot and
// different after the next one. It is never empty when the error is nil.
func BootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	if id == "" {
		return "", fmt.Errorf("read the boot id: it is empty")
	}
	return id, nil
}
