//go:build unix

package child

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLookupFindsACommandAsShellsDo(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	const script = "#!/bin/sh\n"
	write("a/tool", script, 0o755)
	write("b/tool", script, 0o755)
	write("a/plain", script, 0o644)
	write("b/plain", script, 0o755)
	write("a/locked", script, 0o644)
	write("a/dir/x", script, 0o755)
	write("b/dir", script, 0o755)
	write("here", script, 0o755)
	write("a/text", "echo hello\n", 0o755)
	write("a/empty", "", 0o755)
	write("a/spaced", "#! \t/bin/sh -e\n", 0o755)
	write("a/orphan", "#!/no/such/interpreter -x\n", 0o755)
	write("a/crlf", "#!/bin/sh\r\n", 0o755)
	write("a/dirscript", "#!"+root+"\n", 0o755)
	if err := os.Symlink("tool", "a/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", "a/dangling"); err != nil {
		t.Fatal(err)
	}

	const noPath = "\x00"
	tests := []struct {
		name string
		file string
		path string
		want string
		code int
	}{
		{"the first folder wins", "tool", "a:b", "a/tool", 0},
		{"a folder that does not exist is passed over", "tool", "none:b", "b/tool", 0},
		{"a folder that is a file is passed over", "tool", "here:b", "b/tool", 0},
		{"a trailing slash is not doubled", "tool", "a/", "a/tool", 0},
		{"an absolute folder", "tool", root + "/b", root + "/b/tool", 0},
		{"a later executable one is preferred", "plain", "a:b", "b/plain", 0},
		{"not executable anywhere", "locked", "a:b", "", 126},
		{"a directory in PATH is passed over", "dir", "a:b", "b/dir", 0},
		{"only a directory in PATH", "dir", "a", "", 127},
		{"not found", "nosuch", "a:b", "", 127},
		{"an empty element is the current directory", "here", "a:", "./here", 0},
		{"an empty PATH is the current directory", "here", "", "./here", 0},
		{"an empty PATH is nothing else", "tool", "", "", 127},
		{"no PATH is the system's", "sh", noPath, "/bin/sh", 0},
		{"a slash means no search", "a/tool", "b", "a/tool", 0},
		{"a leading dot", "./a/tool", "b", "./a/tool", 0},
		{"an absolute name", root + "/a/tool", "", root + "/a/tool", 0},
		{"a slash, not found", "./tool", "a:b", "", 127},
		{"a slash, below a file", "here/tool", "a", "", 127},
		{"a slash, not executable", "./a/locked", "a", "", 126},
		{"a slash, a directory", "./a", "a", "", 126},
		{"a trailing slash", "a/", "a", "", 126},
		{"a link", "link", "a", "a/link", 0},
		{"a dangling link", "dangling", "a", "", 127},
		{"a device", "/dev/null", "", "", 126},
		{"the empty name", "", "a:b", "", 127},
		{"a script without interpreter line", "text", "a", "a/text", 0},
		{"an empty script", "empty", "a", "a/empty", 0},
		{"an interpreter with blanks and arguments", "spaced", "a", "a/spaced", 0},
		{"an interpreter that is missing", "orphan", "a:b", "", 127},
		{"an interpreter that is missing, by path", "./a/orphan", "", "", 127},
		{"an interpreter with a carriage return", "crlf", "a", "", 127},
		{"an interpreter that is a directory", "dirscript", "a", "", 126},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			environ := []string{"PATH=/overridden", "XPATH=/x", "PATH=" + test.path, "A=b"}
			if test.path == noPath {
				environ = []string{"XPATH=/x"}
			}
			got, err := Lookup(test.file, environ)
			if test.code == 0 {
				if err != nil {
					t.Fatalf("Lookup(%q) with PATH=%s: %v; want %s", test.file, test.path, err, test.want)
				}
				if strings.HasSuffix(test.want, "/sh") { // wherever this system has it
					if filepath.Base(got) != "sh" {
						t.Errorf("Lookup(%q) without PATH = %s; want a system folder's", test.file, got)
					}
				} else if got != test.want {
					t.Errorf("Lookup(%q) with PATH=%s = %s; want %s", test.file, test.path, got, test.want)
				}
				return
			}
			lookup, ok := errors.AsType[*LookupError](err)
			if !ok {
				t.Fatalf("Lookup(%q) with PATH=%s = %s, %v; want a *LookupError", test.file, test.path, got, err)
			}
			if lookup.Code != test.code || lookup.File != test.file || got != "" {
				t.Errorf("Lookup(%q) with PATH=%s = %q, code %d for %q (%v); want code %d",
					test.file, test.path, got, lookup.Code, lookup.File, err, test.code)
			}
		})
	}
}
