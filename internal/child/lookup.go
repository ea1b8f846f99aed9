//go:build unix

package child

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The exit codes with which shells report a command that they cannot start.
const (
	codeCannotRun = 126 // found, but not executable
	codeNotFound  = 127
)

// defaultPath is searched when the environment has no PATH, as shells do.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// shell runs the scripts that do not name an interpreter.
const shell = "/bin/sh"

// LookupError says why a command cannot be started. [Lookup] returns no other
// error; [Start] returns it when the kernel refuses the file.
type LookupError struct {
	File string
	Code int // what a shell would exit with: 127 when not found, 126 when it cannot be run
	Err  error
}

func (e *LookupError) Error() string { return fmt.Sprintf("run %q: %v", e.File, e.Err) }

// Unwrap returns the reason.
func (e *LookupError) Unwrap() error { return e.Err }

// Lookup finds the file that the command name file stands for, as shells do.
//
// A name with a slash is taken as it is, relative to the current directory. Any
// other is searched in the PATH of environ, in which the last entry counts; an
// empty element is the current directory, and without PATH the usual system
// folders are searched. Directories are passed over, and a file that may not be
// executed is the answer only when no later one may.
//
// The file's first line is looked at too: a missing interpreter is "not found"
// already here. What only the kernel can tell (a binary for another machine) is
// left to [Start]. The error is always a [*LookupError].
func Lookup(file string, environ []string) (string, error) {
	fail := func(code int, err error) (string, error) {
		return "", &LookupError{File: file, Code: code, Err: err}
	}
	if file == "" {
		return fail(codeNotFound, errors.New("the name is empty"))
	}
	if strings.Contains(file, "/") {
		if err := executable(file); err != nil {
			return fail(exitCode(err), err)
		}
		if err := interpretable(file); err != nil {
			return fail(exitCode(err), err)
		}
		return file, nil
	}

	var refused error
	for dir := range strings.SplitSeq(searchPath(environ), ":") {
		if dir == "" {
			dir = "."
		}
		path := strings.TrimSuffix(dir, "/") + "/" + file
		err := executable(path)
		switch {
		case err == nil:
			if err := interpretable(path); err != nil {
				return fail(exitCode(err), fmt.Errorf("%s: %w", path, err))
			}
			return path, nil
		case errors.Is(err, syscall.EISDIR), exitCode(err) == codeNotFound:
		case refused == nil:
			refused = fmt.Errorf("%s: %w", path, err)
		}
	}
	if refused != nil {
		return fail(codeCannotRun, refused)
	}
	return fail(codeNotFound, errors.New("no such command in PATH"))
}

// searchPath returns the PATH that environ sets.
func searchPath(environ []string) string {
	for _, entry := range slices.Backward(environ) {
		if path, ok := strings.CutPrefix(entry, "PATH="); ok {
			return path
		}
	}
	return defaultPath
}

// executable returns nil when path is a file that we may execute.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return errors.Unwrap(err) // the caller names the path
	}
	if info.IsDir() {
		return syscall.EISDIR
	}
	if !info.Mode().IsRegular() {
		return syscall.EACCES
	}
	// Asked of the kernel, which also knows the mount's noexec.
	err = unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
	if err == nil || errors.Is(err, syscall.EACCES) {
		return err
	}
	if info.Mode()&0o111 == 0 { // the call may be filtered in a container
		return syscall.EACCES
	}
	return nil
}

// interpretable returns an error when path is a script whose interpreter cannot be
// run. What cannot be read is given the benefit of the doubt: executing needs no
// permission to read.
func interpretable(path string) error {
	head, err := readHead(path)
	if err != nil {
		return nil
	}
	if script, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ := bytes.Cut(script, []byte("\n"))
		fields := bytes.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
		if len(fields) == 0 {
			return nil // the kernel refuses it, and [Start] says so
		}
		interpreter := string(fields[0])
		if !strings.HasPrefix(interpreter, "/") {
			return nil // relative to the directory it will be started in
		}
		if err := executable(interpreter); err != nil {
			return fmt.Errorf("its interpreter %q: %w", interpreter, err)
		}
		return nil
	}
	if isText(head) {
		if err := executable(shell); err != nil {
			return fmt.Errorf("it has no #! line, and %s: %w", shell, err)
		}
	}
	return nil
}

// readHead returns the first bytes of a file, as many as the kernel looks at.
func readHead(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	head := make([]byte, 256)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return head[:n], nil
}

// isText reports whether a file that starts with head can be a shell script: its
// first line has no NUL, which every format of binaries has early on. An empty
// file is an empty script.
func isText(head []byte) bool {
	line, _, _ := bytes.Cut(head, []byte("\n"))
	return bytes.IndexByte(line, 0) < 0
}

// exitCode returns the shell's exit code for the reason why a file cannot be run.
func exitCode(err error) int {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return codeNotFound
	}
	return codeCannotRun
}
