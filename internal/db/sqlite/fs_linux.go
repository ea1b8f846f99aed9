package sqlite

import (
	"errors"

	"golang.org/x/sys/unix"
)

// fsMagic returns the magic number of the file system that path is on.
func fsMagic(path string) (int64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return int64(st.Type), err
	}
}

// isMountRoot reports whether path itself is mounted, rather than a folder above
// it. It is false on kernels before 5.8 and in sandboxes, which cannot say.
func isMountRoot(path string) (bool, error) {
	for {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &st)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // EPERM is a filter of system calls
			return false, nil
		}
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
	}
}
