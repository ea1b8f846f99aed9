package gatedir

import (
	"os"
	"syscall"
	"testing"
)

func TestCheckFindsADiskThatIsFullOrReadOnly(t *testing.T) {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		// Where users may make namespaces, they are root in them.
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	for role, want := range map[string]string{"check a full disk": "full", "check a read-only disk": "refused"} {
		d := open(t)
		playWith(t, attr, role, d.path).want(want)
		wantNames(t, d)
	}
}
