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
