package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
)

func optionsOn(t *testing.T, magic func(string) (int64, error)) Options {
	return Options{
		Path: filepath.Join(t.TempDir(), "locks.db"), Create: true, magic: magic,
		Clock: Clock{BootID: "boot", Now: func() time.Duration { return time.Hour }},
	}
}

// firstCall makes one call on a store of its own.
func firstCall(t *testing.T, opts Options) error {
	t.Helper()
	store, err := Open(opts)
	if err != nil {
		t.Fatalf("Open() = %v; want a store", err)
	}
	_, err = store.TryAcquire(t.Context(), db.Request{Name: "job", Owner: "a", TTL: time.Hour})
	if err := store.Close(); err != nil {
		t.Errorf("Close() = %v; want nil", err)
	}
	return err
}

func TestANetworkFileSystemIsRefusedAndNothingIsMade(t *testing.T) {
	for magic, name := range map[int64]string{
		0x6969: "NFS", 0x517B: "SMB", 0xFE534D42: "SMB", 0xFF534D42: "CIFS", 0x65735546: "FUSE", 0x01021997: "9p",
		0x00C36400: "Ceph", 0x5346414F: "AFS", 0x6B414653: "AFS", 0x0BD00BD0: "Lustre", 0x47504653: "GPFS",
		0x73757245: "Coda", 0x01161970: "GFS2", 0x7461636F: "OCFS2",
		-0x00ACB2BE: "CIFS", // 0xFF534D42 in a signed field of 32 bits
	} {
		t.Run(name, func(t *testing.T) {
			opts := optionsOn(t, func(string) (int64, error) { return magic, nil })
			err := firstCall(t, opts)
			if !errors.Is(err, db.ErrRefused) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), opts.Path) {
				t.Errorf("a call on %q on %#x = %v; want ErrRefused, naming it and %s", opts.Path, magic, err, name)
			}
			if _, err := os.Stat(opts.Path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the file exists, %v; want it not made", err)
			}
		})
	}
}

func TestALocalFileSystemIsAccepted(t *testing.T) {
	for _, magic := range []int64{0, 0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1} { // ext4, XFS, Btrfs, tmpfs, overlayfs, ZFS
		if err := firstCall(t, optionsOn(t, func(string) (int64, error) { return magic, nil })); err != nil {
			t.Errorf("a call on %#x = %v; want nil", magic, err)
		}
	}
}

func TestAFileSystemThatCannotBeFoundOutIsRefused(t *testing.T) {
	broken := errors.New("broken")
	err := firstCall(t, optionsOn(t, func(string) (int64, error) { return 0, broken }))
	if !errors.Is(err, db.ErrRefused) || !errors.Is(err, broken) {
		t.Errorf("a call = %v; want ErrRefused and the reason", err)
	}
}

func TestTheFilesOwnFileSystemCountsWhereThereIsAFile(t *testing.T) {
	var asked []string
	opts := optionsOn(t, func(path string) (int64, error) {
		asked = append(asked, path)
		return fsMagic(path)
	})
	for range 2 {
		if err := firstCall(t, opts); err != nil {
			t.Fatalf("a call = %v; want nil", err)
		}
	}
	if len(asked) != 2 || asked[0] != filepath.Dir(opts.Path) || asked[1] != opts.Path {
		t.Errorf("asked about %q; want the folder of the new file, then the file", asked)
	}
}
