package wrap_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/lockgate/lockgate/internal/gatedir"
)

func TestTheCommandDiesWithExec(t *testing.T) {
	t.Parallel()
	r := start(t, "deaf")
	r.request()
	r.say(gatedir.Acquired, far)
	r.ready(nil)
	r.signal(syscall.SIGKILL)
	if code := r.end(); code != 137 {
		t.Errorf("exec ended with %d; want 137", code)
	}
	if rest := r.rest(); len(rest) > 0 { // waits for the command's end
		t.Errorf("the command said %q", rest)
	}
	r.until("main.lock is free", r.dir.Probe().Gone)
}

func TestMainLockStaysWithWhatOutlivesExec(t *testing.T) {
	t.Parallel()
	r := start(t, "leave", "wait")
	r.request()
	r.say(gatedir.Acquired, far)
	daemon := 0
	for range 2 {
		if line := r.line(nil); strings.HasPrefix(line, "ready ") {
			if _, err := fmt.Sscanf(line, "ready %d", &daemon); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.signal(syscall.SIGKILL)
	r.end()
	// The command dies with exec, its daemon does not.
	probe := r.dir.Probe()
	defer probe.Close()
	if probe.Gone() {
		t.Error("main.lock is free while a daemon of the command lives")
	}
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.until("main.lock is free", probe.Gone)
}

func TestAnExecThatIsOnItsWayOutIsWaitedFor(t *testing.T) {
	t.Parallel()
	first := start(t, "exit", "0")
	first.request()
	second := startConfig(t, execConfig{Dir: first.dir.Path(), Nonce: "second", Role: "exit"}, "0")
	second.until("the second exec tries for main.lock", func() bool {
		files := fmt.Sprintf("/proc/%d/fd", second.cmd.Process.Pid)
		entries, err := os.ReadDir(files)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if link, _ := os.Readlink(files + "/" + e.Name()); link == first.dir.Path()+"/main.lock" {
				return true
			}
		}
		return false
	})
	first.request() // it is still the first one's
	first.signal(syscall.SIGTERM)
	second.request()
	second.say(gatedir.Acquired, far)
	second.ready(nil)
	if code := first.end(); code != 143 {
		t.Errorf("the first exec ended with %d; want 143", code)
	}
	second.wantEnd(0)
}
