package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A shell can start processes and then have lockgate take its place. They are
// lockgate's children then, and none of CMD's.

// inShell starts a shell, by a name such as "sh", that is to exec lockgate.
func inShell(t *testing.T, s settings, shell, script string) *proc {
	t.Helper()
	return launch(t, exec.Command(shell, "-c", script), append(s.environ(), "XDG_RUNTIME_DIR="+t.TempDir()))
}

// throughShell starts lockgate as a shell's last step: sidecar and exec, or run.
func throughShell(t *testing.T, how way, s settings, shell, before, command string) *proc {
	t.Helper()
	lockgate := before + " exec " + built.lockgate
	if how == byRun {
		return inShell(t, s, shell, lockgate+" run -- "+command)
	}
	dir := t.TempDir()
	holder := sidecar(t, dir, s)
	t.Cleanup(func() {
		holder.signal(syscall.SIGTERM)
		holder.wantExit(0)
	})
	return inShell(t, settings{"DIR": dir, "LOG_FORMAT": "json"}, shell, lockgate+" exec -- "+command)
}

func TestAFilterOfTheOutputEndsByItself(t *testing.T) {
	t.Parallel()
	for _, how := range []way{byRun, bySidecar} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "out.gz")
			p := throughShell(t, how, short(sqliteURL(t)), "bash", "exec > >(gzip > "+out+") 2>&1;", "seq 1000")
			p.wantExit(0)
			p.said() // to the end of gzip, which has the shell's own standard error

			data, err := os.ReadFile(out)
			must(t, err)
			unzip, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				t.Fatalf("what gzip has written, %d bytes: %v", len(data), err)
			}
			text, err := io.ReadAll(unzip)
			must(t, err)
			n := 0
			lines := bufio.NewScanner(bytes.NewReader(text))
			for lines.Scan() {
				if lines.Text() == strconv.Itoa(n+1) { // the others are log lines
					n++
				}
			}
			if n != 1000 {
				t.Errorf("gzip has %d lines of CMD's; want 1000, in order:\n%s", n, text)
			}
		})
	}
}

func TestWhatTheShellHasStartedOutlivesLockgate(t *testing.T) {
	t.Parallel()
	for _, how := range []way{byRun, bySidecar} {
		for _, skipped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s skipped %t", how, skipped), func(t *testing.T) {
				t.Parallel()
				set := short(sqliteURL(t))
				if skipped {
					set = set.with(settings{"ON_BUSY": "skip"})
					at := newStage(t)
					other := at.run(t, set)
					tokenIn(t, at.witness())
					defer func() {
						touch(t, at.curtain())
						other.wantExit(0)
					}()
				}
				dir := t.TempDir()
				pidFile, ran := filepath.Join(dir, "pid"), filepath.Join(dir, "ran")
				p := throughShell(t, how, set, "sh", "sleep 1000 & echo $! > "+pidFile+";", "touch "+ran)
				p.wantExit(0)
				if exists(ran) == skipped {
					t.Errorf("CMD has run: %t; want %t", exists(ran), !skipped)
				}

				text, err := os.ReadFile(pidFile)
				must(t, err)
				pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
				must(t, err)
				if left := marked(p.mark); len(left) != 1 || left[0] != pid {
					t.Fatalf("processes %v live; want %d, which the shell has started", left, pid)
				}
				must(t, syscall.Kill(pid, syscall.SIGKILL))
			})
		}
	}
}
