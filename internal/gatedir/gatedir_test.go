package gatedir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func sample() State {
	at := time.Date(2024, 2, 29, 12, 0, 0, 5, time.UTC)
	return State{
		Request: "n1", Boot: "boot", Pod: "pod", Verdict: Acquired,
		Lock: "nightly <&> Ä", Owner: "a/b/c/n1", Token: 1<<63 + 5,
		UpdatedAt: at, AcquiredAt: at.Add(-time.Minute),
		UpdatedBoot: Duration(90 * time.Second), AcquiredBoot: Duration(30 * time.Second),
		EndBoot: Duration(3 * time.Minute), StopBoot: Duration(2 * time.Minute), KillBoot: Duration(150*time.Second + 1),
		Holder: &Holder{Owner: "x", Run: "r", Since: at, Remaining: Duration(time.Millisecond)},
		Reason: "because", Code: 75,
		Policy: Policy{StopGrace: Duration(10 * time.Second), SkipExitCode: 3},
	}
}

func TestWhatIsPublishedIsReadBack(t *testing.T) {
	d := open(t)
	state := sample()
	req := Request{Nonce: "n1", Boot: "boot", Pod: "pod"}
	done := Done{Request: "n1", Code: 143}
	if err := errors.Join(d.WriteState(state), d.WriteRequest(req), d.WriteDone(done)); err != nil {
		t.Fatal(err)
	}
	state.Version, req.Version = Version, Version
	if got, err := d.ReadState(); err != nil || !reflect.DeepEqual(got, state) {
		t.Errorf("ReadState() = %+v, %v; want %+v", got, err, state)
	}
	if got, err := d.ReadRequest(); err != nil || got != req {
		t.Errorf("ReadRequest() = %+v, %v; want %+v", got, err, req)
	}
	if got, err := d.ReadDone(); err != nil || got != done {
		t.Errorf("ReadDone() = %+v, %v; want %+v", got, err, done)
	}
	wantNames(t, d, doneName, requestName, stateName)

	// Each is replaced as a whole.
	if err := d.WriteState(State{Request: "n2", Boot: "boot", Verdict: Skipped}); err != nil {
		t.Fatal(err)
	}
	want := State{Version: Version, Request: "n2", Boot: "boot", Verdict: Skipped}
	if got, err := d.ReadState(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ReadState() = %+v, %v; want %+v", got, err, want)
	}
}

func TestMarksComeAndGo(t *testing.T) {
	d := open(t)
	if d.IsMarkedAcquired() {
		t.Error("IsMarkedAcquired() in an empty directory")
	}
	if err := errors.Join(d.Unmark(), d.MarkAcquired(42), d.MarkSkipped("held by x")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{acquiredName: "42\n", skippedName: "held by x\n"} {
		if got, err := os.ReadFile(d.file(name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}
	if !d.IsMarkedAcquired() {
		t.Error("IsMarkedAcquired() is false; want true")
	}
	if err := d.Unmark(); err != nil || d.IsMarkedAcquired() {
		t.Errorf("Unmark() = %v, and it is marked: %t", err, d.IsMarkedAcquired())
	}
	wantNames(t, d)
}

func TestEveryFileCanBeReadByOthersWhateverTheUmask(t *testing.T) {
	for _, umask := range []string{"0", "077", "777"} {
		d := open(t)
		p := play(t, nobody(), "publish under a umask", d.path, umask)
		p.end()
		if !p.cmd.ProcessState.Success() {
			t.Fatalf("umask %s: %v", umask, p.cmd.ProcessState)
		}
		wantNames(t, d, acquiredName, doneName, holderLockName, mainLockName, requestName, skippedName, stateName)
		for _, name := range names(t, d) {
			if info, err := os.Stat(d.file(name)); err != nil || info.Mode() != 0o644 {
				t.Errorf("umask %s: the mode of %s is %v, %v; want 0644", umask, name, info.Mode(), err)
			}
		}
	}
}

func TestAReaderNeverSeesHalfAFile(t *testing.T) {
	d := open(t)
	publish := func(reason string) {
		if err := d.WriteState(State{Request: "n", Boot: "b", Verdict: Waiting, Reason: reason, Owner: reason}); err != nil {
			t.Error(err)
		}
	}
	publish("")
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				publish(strings.Repeat("x", i%2*20_000))
			}
		}
	})
	seen := map[int]int{}
	for len(seen) < 2 || seen[0]+seen[20_000] < 500 {
		s, err := d.ReadState()
		if err != nil || s.Reason != s.Owner {
			t.Errorf("ReadState() = %d and %d bytes, %v", len(s.Reason), len(s.Owner), err)
			break
		}
		seen[len(s.Reason)]++
	}
	close(stop)
	writer.Wait()
}

// strange lists what may stand in place of a file and is none.
func strange(t *testing.T) map[string]func(path string) error {
	text := func(s string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(s), 0o644) }
	}
	elsewhere := filepath.Join(t.TempDir(), "good")
	good := `{"version":1,"request":"n","nonce":"n","boot":"b","state":"waiting"}`
	if err := text(good)(elsewhere); err != nil {
		t.Fatal(err)
	}
	return map[string]func(path string) error{
		"nothing":             func(string) error { return nil },
		"an empty file":       text(""),
		"half a file":         text(good[:len(good)-1]),
		"two files":           text(good + good),
		"binary":              text("\x00\xff\xfe{"),
		"null":                text("null"),
		"a list":              text("[1]"),
		"a string":            text(`"waiting"`),
		"wrong types":         text(`{"version":"1","request":1,"nonce":2,"boot":3}`),
		"a file too large":    text(good + strings.Repeat(" ", maxFileBytes)),
		"a pipe":              func(path string) error { return syscall.Mkfifo(path, 0o666) },
		"a directory":         func(path string) error { return os.Mkdir(path, 0o755) },
		"a link":              func(path string) error { return os.Symlink(elsewhere, path) },
		"a link to nothing":   func(path string) error { return os.Symlink("nothing", path) },
		"a link to itself":    func(path string) error { return os.Symlink(path, path) },
		"a link to a pipe":    func(path string) error { return os.Symlink("/dev/stdin", path) },
		"a listening program": listen(t),
	}
}

func listen(t *testing.T) func(path string) error {
	return func(path string) error {
		// The path may be too long for a socket, a link to its folder is not.
		short, err := os.MkdirTemp("", "")
		if err != nil {
			return err
		}
		t.Cleanup(func() { os.RemoveAll(short) })
		if err := os.Symlink(filepath.Dir(path), short+"/d"); err != nil {
			return err
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short + "/d/" + filepath.Base(path)})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}
}

func TestWhatIsNoFileReadsAsNothing(t *testing.T) {
	for name, put := range strange(t) {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			if err := errors.Join(put(d.file(stateName)), put(d.file(requestName)), put(d.file(doneName))); err != nil {
				t.Fatal(err)
			}
			if got, err := d.ReadState(); !errors.Is(err, ErrNone) {
				t.Errorf("ReadState() = %+v, %v; want ErrNone", got, err)
			}
			if got, err := d.ReadRequest(); !errors.Is(err, ErrNone) {
				t.Errorf("ReadRequest() = %+v, %v; want ErrNone", got, err)
			}
			if name == "null" {
				return // an empty word about no request, which is none either
			}
			if got, err := d.ReadDone(); !errors.Is(err, ErrNone) && got.Request != "" {
				t.Errorf("ReadDone() = %+v, %v; want ErrNone", got, err)
			}
		})
	}
}

func TestALockThatIsNoFileBlocksNobody(t *testing.T) {
	for name, put := range strange(t) {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			if err := errors.Join(put(d.file(holderLockName)), put(d.file(mainLockName))); err != nil {
				t.Fatal(err)
			}
			// Whether it can be taken is not the question.
			if f, err := d.LockHolder(); err == nil {
				f.Close()
			}
			if l, err := d.LockMain(t.Context()); err == nil {
				l.Close()
			}
			d.HolderLives()
			p := d.Probe()
			p.Gone()
			p.Close()
		})
	}
}

func TestAStateThatExecCouldMisreadIsNone(t *testing.T) {
	for name, change := range map[string]func(map[string]any){
		"without a version":            func(m map[string]any) { delete(m, "version") },
		"without a request":            func(m map[string]any) { delete(m, "request") },
		"a nonce longer than an owner": func(m map[string]any) { m["request"] = strings.Repeat("n", 600) },
		"without a verdict":            func(m map[string]any) { delete(m, "state") },
		"an unknown verdict":           func(m map[string]any) { m["state"] = "perhaps" },
		"held without deadlines":       func(m map[string]any) { delete(m, "stop_at"); delete(m, "kill_at") },
		"held, killed before stopped":  func(m map[string]any) { m["kill_at"] = "1m" },
		"a duration without a unit":    func(m map[string]any) { m["stop_at"] = "12" },
		"a duration as a number":       func(m map[string]any) { m["stop_at"] = 12 },
		"a negative token":             func(m map[string]any) { m["token"] = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			state := sample()
			state.Version = Version
			text, err := json.Marshal(state)
			if err != nil {
				t.Fatal(err)
			}
			var m map[string]any
			if err := json.Unmarshal(text, &m); err != nil {
				t.Fatal(err)
			}
			m["token"] = 5 // survives being a float
			before, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parseState(before); err != nil {
				t.Fatalf("parseState before the change: %v", err)
			}
			change(m)
			after, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := parseState(after); !errors.Is(err, ErrNone) {
				t.Errorf("parseState(%s) = %+v, %v; want ErrNone", after, got, err)
			}
		})
	}
}

func TestARequestThatNoHolderCouldServeIsNone(t *testing.T) {
	for name, req := range map[string]Request{
		"another version": {Version: 2, Nonce: "n"},
		"no version":      {Nonce: "n"},
		"no nonce":        {Version: Version},
		"a long nonce":    {Version: Version, Nonce: strings.Repeat("n", 600)},
	} {
		d := open(t)
		if err := d.publishJSON(requestName, req); err != nil {
			t.Fatal(err)
		}
		if got, err := d.ReadRequest(); !errors.Is(err, ErrNone) {
			t.Errorf("%s: ReadRequest() = %+v, %v; want ErrNone", name, got, err)
		}
	}
}

func TestAnotherVersionSaysWhichRequestItAnswers(t *testing.T) {
	d := open(t)
	const text = `{"version":2,"request":"n","boot":"b","pod":"p","state":{"new":"shape"},"stop_at":[7]}`
	if err := d.publish(stateName, []byte(text)); err != nil {
		t.Fatal(err)
	}
	got, err := d.ReadState()
	if want := (State{Version: 2, Request: "n", Boot: "b", Pod: "p"}); !errors.Is(err, ErrVersion) || got != want {
		t.Errorf("ReadState() = %+v, %v; want %+v, ErrVersion", got, err, want)
	}
	if !got.Answers(Request{Nonce: "n", Boot: "b", Pod: "p"}) || got.Answers(Request{Nonce: "m", Boot: "b", Pod: "p"}) {
		t.Error("Answers() does not tell its request from another")
	}
}

func TestARequestAndItsAnswerBelongToOneBootAndPod(t *testing.T) {
	tests := []struct {
		name                  string
		nonce, boot, pod      string // of the request
		forIt, sameNonceState bool   // the holder is of boot b, pod p
	}{
		{"the same", "n", "b", "p", true, true},
		{"another boot", "n", "c", "p", false, false},
		{"another pod", "n", "b", "q", false, false},
		{"a request without a pod", "n", "b", "", true, true},
		{"no boot", "n", "", "p", false, false},
	}
	for _, tt := range tests {
		req := Request{Nonce: tt.nonce, Boot: tt.boot, Pod: tt.pod}
		if got := req.For("b", "p"); got != tt.forIt {
			t.Errorf("%s: For() = %t; want %t", tt.name, got, tt.forIt)
		}
		if got := (State{Request: "n", Boot: "b", Pod: "p"}).Answers(req); got != tt.sameNonceState {
			t.Errorf("%s: Answers() = %t; want %t", tt.name, got, tt.sameNonceState)
		}
		if (State{Request: "m", Boot: "b", Pod: "p"}).Answers(req) {
			t.Errorf("%s: a state about another nonce answers", tt.name)
		}
	}
	if (Request{Boot: "b"}).For("b", "") {
		t.Error("a request without a nonce is for somebody")
	}
	if !(Request{Nonce: "n", Boot: "b", Pod: "q"}).For("b", "") {
		t.Error("a holder that knows no pod is for none")
	}
	if !(State{Request: "n", Boot: "b"}).Answers(Request{Nonce: "n", Boot: "b", Pod: "q"}) {
		t.Error("a state without a pod answers none")
	}
}

func TestOnlyFinalVerdictsAreFinal(t *testing.T) {
	for v, want := range map[Verdict]bool{
		Waiting: false, Acquired: false, Skipped: true, Busy: true, Error: true, Lost: true, Released: true, "": false,
	} {
		if got := v.Final(); got != want {
			t.Errorf("%q.Final() = %t; want %t", v, got, want)
		}
	}
}

func TestNoDirectoryIsAnError(t *testing.T) {
	path := t.TempDir()
	file := filepath.Join(path, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := Open(filepath.Join(path, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open(missing) = %v, %v; want ErrNotExist", d, err)
	}
	if d, err := Open(file); err == nil {
		t.Errorf("Open(file) = %v, nil; want an error", d)
	}
	if err := (&Dir{path: filepath.Join(path, "none")}).Check("test"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check() of a directory that went = %v; want ErrNotExist", err)
	}
}

func TestCheckFindsADirectoryThatCannotBeWritten(t *testing.T) {
	d := open(t)
	play(t, nobody(), "check", d.path).want("ok")
	wantNames(t, d)
	play(t, nobody(), "check with little space", d.path).want("full")
	wantNames(t, d)
	if err := os.Chmod(d.path, 0o555); err != nil {
		t.Fatal(err)
	}
	play(t, nobody(), "check", d.path).want("refused")
	wantNames(t, d)
}

func TestAFailedPublicationLeavesTheFileAsItWas(t *testing.T) {
	d := open(t)
	if err := d.WriteDone(Done{Request: "n", Code: 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.file(requestName), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.file(requestName)+"/x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteRequest(Request{Nonce: "n"}); err == nil {
		t.Error("WriteRequest() over a directory = nil; want an error")
	}
	wantNames(t, d, doneName, requestName) // and no temporary file
	if got, err := d.ReadDone(); err != nil || got.Code != 1 {
		t.Errorf("ReadDone() = %+v, %v; want code 1", got, err)
	}
}

func TestWhatAKilledWriterLeftIsNoHindrance(t *testing.T) {
	d := open(t)
	tmp := d.file("." + requestName + ".tmp")
	for name, put := range map[string]func() error{
		"half a file": func() error { return os.WriteFile(tmp, []byte(`{"ver`), 0o600) },
		"unreadable":  func() error { return os.WriteFile(tmp, nil, 0) },
		"a link":      func() error { return os.Symlink("/dev/full", tmp) },
		"a pipe":      func() error { return syscall.Mkfifo(tmp, 0o600) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if err := d.WriteRequest(Request{Nonce: name}); err != nil {
			t.Errorf("%s: WriteRequest() = %v", name, err)
		}
		if got, err := d.ReadRequest(); err != nil || got.Nonce != name {
			t.Errorf("%s: ReadRequest() = %+v, %v", name, got, err)
		}
		wantNames(t, d, requestName)
	}
}

func TestTwoUsersShareAStickyDirectory(t *testing.T) {
	exec, holder := -1, -1 // one user, if we can be no other
	if os.Getuid() == 0 {
		exec, holder = 1000, 10001
	}
	d := open(t)
	e, h := play(t, exec, "exec side", d.path), play(t, holder, "holder side", d.path)
	e.want("ok")
	h.want("ok")
	wantNames(t, d, doneName, holderLockName, mainLockName, requestName, stateName)
	for name, uid := range map[string]int{
		mainLockName: exec, requestName: exec, doneName: exec, holderLockName: holder, stateName: holder,
	} {
		info, err := os.Stat(d.file(name))
		if err != nil {
			t.Fatal(err)
		}
		if uid < 0 {
			uid = os.Getuid()
		}
		if got := int(info.Sys().(*syscall.Stat_t).Uid); got != uid {
			t.Errorf("%s belongs to %d; want %d", name, got, uid)
		}
	}
}

func FuzzParseState(f *testing.F) {
	state := sample()
	state.Version = Version
	for _, verdict := range []Verdict{Waiting, Acquired, Skipped, Busy, Error, Lost, Released} {
		state.Verdict = verdict
		text, err := json.Marshal(state)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"version":2,"request":"n"}`))
	f.Add([]byte(`{"version":1,"request":"n","state":"waiting","updated_at":"9999-12-31T23:59:59+23:59"}`))
	f.Add([]byte(`{"version":1,"request":"\ud800","boot":"\u0000","state":"lost","stop_at":"-2562047h47m16.854775808s"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseState(data)
		switch {
		case errors.Is(err, ErrNone):
			if got != (State{}) {
				t.Errorf("ErrNone comes with %+v", got)
			}
			return
		case errors.Is(err, ErrVersion):
			if got != (State{Version: got.Version, Request: got.Request, Boot: got.Boot, Pod: got.Pod}) || got.Version == Version {
				t.Errorf("ErrVersion comes with %+v", got)
			}
			return
		case err != nil:
			t.Fatalf("parseState() = %v; want ErrNone or ErrVersion", err)
		}
		req := Request{Nonce: got.Request, Boot: got.Boot, Pod: got.Pod}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := parseState(text)
		if err != nil || !again.Answers(req) {
			t.Fatalf("%s reads as %+v, %v; want an answer to %+v", text, again, err, req)
		}
		if again.Verdict != got.Verdict || again.Token != got.Token || again.Policy != got.Policy ||
			again.StopBoot != got.StopBoot || again.KillBoot != got.KillBoot || again.UpdatedBoot != got.UpdatedBoot {
			t.Errorf("%s reads as %+v; want %+v", text, again, got)
		}
	})
}
