package gatedir

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// dupInheritable duplicates fd to a descriptor of at least low that survives an
// exec. Where the limit on open files is lower than that, the highest that is
// free is taken.
func dupInheritable(fd, low int) (int, error) {
	for {
		high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, low)
		if err == nil || low <= 3 {
			return high, err
		}
		if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EMFILE) {
			return 0, err
		}
		low--
	}
}
