package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/lockgate/lockgate/internal/gatedir"
)

// installedMode lets every user run the copy, and nobody change it.
const installedMode = 0o555

func (p *program) runInstall(args []string) int {
	opts, err := parseOptions(args, nil)
	if err != nil {
		return p.wrongUsage("install: %v", err)
	}
	switch {
	case len(opts.rest) == 0 || opts.rest[0] == "":
		return p.wrongUsage("install: into which directory?")
	case len(opts.rest) > 1:
		return p.wrongUsage("install: unexpected argument %q", opts.rest[1])
	}
	self, err := selfPath()
	if err != nil {
		return p.fail(gatedir.CodeInternal, fmt.Errorf("find our own binary: %w", err))
	}
	path, err := install(self, opts.rest[0])
	if err != nil {
		return p.fail(gatedir.CodeConfig, adviseOnDir(err, opts.rest[0]))
	}
	return p.print(nil, path+"\n")
}

// errNoExec says that nothing in a directory can be executed.
var errNoExec = errors.New("it is mounted noexec, so that nothing in it can be executed")

// install copies a binary to dir/lockgate, which appears whole or not at all,
// and returns its path. One that runs is not written to: its name goes over to
// the new one.
func install(binary, dir string) (path string, err error) {
	path = filepath.Join(dir, "lockgate")
	in, err := os.Open(binary)
	if err != nil {
		return "", fmt.Errorf("read our own binary: %w", err)
	}
	defer in.Close()
	if info, err := os.Stat(dir); err != nil {
		return "", err
	} else if !info.IsDir() {
		return "", fmt.Errorf("%s: %w", dir, syscall.ENOTDIR)
	}
	if isNoExec(dir) {
		return "", fmt.Errorf("%s: %w", dir, errNoExec)
	}
	out, err := os.CreateTemp(dir, ".lockgate-*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(out.Name())
		}
	}()
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Chmod(installedMode) // whatever the umask
	}
	if err == nil {
		err = out.Sync() // a full disk may say so only here
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return "", err
	}
	if err := os.Rename(out.Name(), path); err != nil {
		return "", err
	}
	return path, nil
}

// adviseOnDir says what to do about a directory into which nothing can be
// installed.
func adviseOnDir(err error, dir string) error {
	dir = strings.TrimSpace(harmless(dir))
	switch {
	case errors.Is(err, errNoExec):
		return advise(err, "mount something there from which programs can be run: an emptyDir is fine, a mount with noexec is not")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return advise(err, "mount a volume at %s, such as an emptyDir, or name a directory that exists", dir)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return advise(err, "let this user (%d) write to %s: mount an emptyDir there, without readOnly", os.Getuid(), dir)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return advise(err, "give the volume at %s more room: the binary needs %s; an emptyDir without a sizeLimit is fine", dir, sizeOfSelf())
	}
	return advise(err, "see that files can be written and renamed in %s, or name another directory", dir)
}

func sizeOfSelf() string {
	self, err := selfPath()
	if err == nil {
		if info, err := os.Stat(self); err == nil {
			return fmt.Sprintf("%d MB", info.Size()>>20+1)
		}
	}
	return "some 30 MB"
}
