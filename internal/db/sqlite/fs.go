package sqlite

import (
	"fmt"
	"os"
	"syscall"

	"github.com/lockgate/lockgate/internal/db"
)

// checkOneName refuses a database file that can be reached by two names.
//
// SQLite keeps what it has committed lately, and its locks on that, in files
// whose names are the database's with -wal and -shm behind it. By another name
// there are others, and so another holder. Symbolic links do no harm: SQLite
// follows them first.
func checkOneName(path string, file os.FileInfo) error {
	if stat, ok := file.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
		return fmt.Errorf("%s has another name (hard link), under which locks would not exclude: %w", path, db.ErrRefused)
	}
	mounted, err := isMountRoot(path)
	if err != nil {
		return fmt.Errorf("find out how %s is mounted: %w: %w", path, err, db.ErrRefused)
	}
	if mounted {
		return fmt.Errorf("%s is mounted by itself, so its locks would not exclude: mount the folder that it is in, not the file: %w", path, db.ErrRefused)
	}
	return nil
}

// networkFS returns the name of the network or shared-disk file system with
// that statfs magic number, and "" for any other.
//
// On these SQLite's locks and its shared memory do not reach across machines,
// or not reliably, so two machines could both hold a lock. FUSE is among them
// because the kernel does not say what is behind it.
func networkFS(magic int64) string {
	switch uint32(magic) { // some are negative where the kernel's field is 32 bits wide
	case 0x6969:
		return "NFS"
	case 0x517B, 0xFE534D42:
		return "SMB"
	case 0xFF534D42:
		return "CIFS"
	case 0x65735546:
		return "FUSE"
	case 0x01021997:
		return "9p"
	case 0x00C36400:
		return "Ceph"
	case 0x5346414F, 0x6B414653:
		return "AFS"
	case 0x0BD00BD0:
		return "Lustre"
	case 0x47504653:
		return "GPFS"
	case 0x73757245:
		return "Coda"
	case 0x564C:
		return "NCP"
	case 0x01161970:
		return "GFS2"
	case 0x7461636F:
		return "OCFS2"
	case 0x19830326:
		return "BeeGFS"
	case 0x20030528:
		return "OrangeFS"
	case 0xAAD7AAEA:
		return "PanFS"
	case 0x786F4256:
		return "VirtualBox shared folder"
	case 0xBACBACBC:
		return "VMware shared folder"
	}
	return ""
}
