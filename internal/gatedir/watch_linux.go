package gatedir

import (
	"os"

	"golang.org/x/sys/unix"
)

// sysWatch is an inotify instance.
type sysWatch struct {
	events *os.File
}

// start watches the directory for renames and main.lock for its last close: the
// kernel sends that event when the last descriptor of an open file goes, which
// is when the last of exec, CMD and its descendants has gone.
func (w *Watcher) start(d *Dir) bool {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return false // often the limit on instances for one user
	}
	if _, err := unix.InotifyAddWatch(fd, d.path, unix.IN_MOVED_TO|unix.IN_ONLYDIR); err != nil {
		_ = unix.Close(fd)
		return false
	}
	w.sys.events = os.NewFile(uintptr(fd), "inotify")
	conn, err := w.sys.events.SyscallConn()
	if err != nil {
		_ = w.sys.events.Close()
		return false
	}
	watchMain := func() {
		// It is not there before the first exec. The descriptor is borrowed, so
		// that Close cannot hand its number to another file in between.
		_ = conn.Control(func(fd uintptr) {
			_, _ = unix.InotifyAddWatch(int(fd), d.file(mainLockName), unix.IN_CLOSE)
		})
	}
	watchMain()
	go func() {
		defer close(w.ended)
		buf := make([]byte, 4096)
		for {
			if _, err := w.sys.events.Read(buf); err != nil {
				return // closed
			}
			// It may be a new file by now: made before a request is published,
			// or made anew. For the same one this changes nothing.
			watchMain()
			w.wake()
		}
	}()
	return true
}

func (w *Watcher) interrupt() {
	if w.sys.events != nil {
		_ = w.sys.events.Close()
	}
}
