package sqlite_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lockgate/lockgate/internal/db"
)

// boundFrom and boundTo, in the environment of a contender, are a file or folder
// and the place at which it also appears, for that process alone.
const (
	boundFrom = "LOCKGATE_TEST_SQLITE_BOUND_FROM"
	boundTo   = "LOCKGATE_TEST_SQLITE_BOUND_TO"
)

// bind makes the contender's mount, if it is to have one.
func bind() error {
	from, to := os.Getenv(boundFrom), os.Getenv(boundTo)
	if from == "" {
		return nil
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount(from, to, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	return nil
}

// contendBound runs a contender for the lock in the file path, in a mount
// namespace in which from appears at to, as a container would see it.
func contendBound(t *testing.T, from, to, path string) string {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), boundFrom+"="+from, boundTo+"="+to, contenderFile+"="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		// Where users may make namespaces, they are root in them.
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatalf("start a contender: %v", err)
	}
	return string(out)
}

// The log and the shared memory of SQLite are files beside the database, by its
// name: two containers that mount the file alone would each have their own.
func TestAFileThatIsMountedItselfIsRefused(t *testing.T) {
	opts := options(t)
	acquire(t, open(t, opts), ask("a"))
	to := filepath.Join(t.TempDir(), "mounted.db")
	write(t, to, "")
	out := contendBound(t, opts.Path, to, to)
	for _, word := range []string{to, "mount the folder that it is in", db.ErrRefused.Error()} {
		if !strings.Contains(out, word) {
			t.Errorf("a contender on a mounted file says %q; want %q in it", out, word)
		}
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(to + suffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat %s: %v; want none made", to+suffix, err)
		}
	}
	// Nor through a symbolic link.
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(to, link); err != nil {
		t.Fatal(err)
	}
	if out := contendBound(t, opts.Path, to, link); !strings.Contains(out, db.ErrRefused.Error()) {
		t.Errorf("a contender on a link to a mounted file says %q; want %q in it", out, db.ErrRefused)
	}
}

func TestAFileInAFolderThatIsMountedExcludes(t *testing.T) {
	opts := options(t)
	store := open(t, opts)
	lease := acquire(t, store, ask("a"))
	to := t.TempDir()
	path := filepath.Join(to, filepath.Base(opts.Path))
	if out := contendBound(t, filepath.Dir(opts.Path), to, path); out != "held" {
		t.Errorf("a contender in a mounted folder says %q; want held", out)
	}
	if err := store.Release(t.Context(), lease, 0); err != nil {
		t.Fatal(err)
	}
	if out := contendBound(t, filepath.Dir(opts.Path), to, path); !strings.HasPrefix(out, "token ") {
		t.Errorf("a contender in a mounted folder says %q; want a token", out)
	}
	_, err := store.TryAcquire(t.Context(), ask("b"))
	wantError(t, "TryAcquire of what a contender in a mounted folder has", err, db.ErrHeld)
}
