package main

import "golang.org/x/sys/unix"

// isNoExec tells whether a directory is mounted so that nothing in it can be
// executed: ST_NOEXEC in f_flags, statfs(2), which has the value of MS_NOEXEC.
func isNoExec(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && int64(stat.Flags)&unix.MS_NOEXEC != 0
}
