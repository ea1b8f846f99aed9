package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/sqlite"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// outcome is what a command has said and how it ended.
type outcome struct {
	code           int
	stdout, stderr string
}

// next is the last line of stderr, empty when there is none.
func (o outcome) next() string {
	lines := strings.Split(strings.TrimSuffix(o.stderr, "\n"), "\n")
	return lines[len(lines)-1]
}

// lockgate runs a command in this process.
func lockgate(t *testing.T, environ []string, stdin string, args ...string) outcome {
	t.Helper()
	return lockgateAsked(t, environ, strings.NewReader(stdin), args...)
}

func lockgateAsked(t *testing.T, environ []string, stdin io.Reader, args ...string) outcome {
	t.Helper()
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	var stdout bytes.Buffer
	p := &program{args: args, environ: environ, stdin: stdin, stdout: &stdout, stderr: stderr}
	code := p.run()
	said, err := os.ReadFile(stderr.Name())
	if err != nil {
		t.Fatal(err)
	}
	return outcome{code, stdout.String(), string(said)}
}

func (o outcome) want(t *testing.T, code int, says ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d; want %d", o.code, code)
	}
	for _, text := range says {
		if !strings.Contains(o.stdout+o.stderr, text) {
			t.Errorf("%q is not in\n%s%s", text, o.stdout, o.stderr)
		}
	}
	if (code != 0) != strings.HasPrefix(o.next(), "lockgate: next: ") {
		t.Errorf("the last line of exit code %d is %q", code, o.next())
	}
}

func TestParseOptions(t *testing.T) {
	known := []option{outputOption(), {name: "token", value: "N"}, {name: "now"}}
	for _, c := range []struct {
		args string
		want string // options by name, then what is left; or an error
	}{
		{"", "map[] []"},
		{"a b", "map[] [a b]"},
		{"-o json", "map[output:json] []"},
		{"-ojson a", "map[output:json] [a]"},
		{"a -o=json b", "map[output:json] [a b]"},
		{"--output json", "map[output:json] []"},
		{"--output=text", "map[output:text] []"},
		{"a --now --token 5", "map[now: token:5] [a]"},
		{"--token=5 -- --now", "map[token:5] [--now]"},
		{"-", "map[] [-]"},
		{"-o", "option --output needs a value"},
		{"-oxml", `"xml" is not one of: text, json`},
		{"--output=", `"" is not one of: text, json`},
		{"--now=yes", "option --now takes no value"},
		{"--now --now", "option --now is given twice"},
		{"--nwo", `unknown option "--nwo"; known are: -o, --output text|json; --token N; --now; -h, --help`},
		{"-x", `unknown option "-x"`},
		{"--outputjson", `unknown option "--outputjson"`},
		{"--token", "option --token needs a value: N"},
	} {
		p, err := parseOptions(strings.Fields(c.args), known)
		got := fmt.Sprint(p.values, p.rest)
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && !strings.Contains(got, c.want) {
			t.Errorf("parseOptions(%q) = %s; want %s", c.args, got, c.want)
		}
	}
}

func TestHelpOfEveryCommand(t *testing.T) {
	name := regexp.MustCompile(`LOCKGATE_[A-Z_]+`)
	for _, s := range specs() {
		t.Run(s.name, func(t *testing.T) {
			help := lockgate(t, []string{"LOCKGATE_NONSENSE=1"}, "", "help", s.name) // it reads no settings
			help.want(t, 0, "usage:\n  lockgate "+s.name, "exit codes:", "for example:\n")
			for _, o := range s.options {
				help.want(t, 0, o.shown())
			}
			for _, flag := range []string{"--help", "-h"} {
				if got := lockgate(t, nil, "", s.name, flag); got.code != 0 || got.stdout != help.stdout {
					t.Errorf("lockgate %s %s = %d, %q; want the same as lockgate help %s", s.name, flag, got.code, got.stdout, s.name)
				}
			}
			var listed, want []string
			settings := map[string]bool{}
			for _, set := range config.Settings() {
				settings[set.Name] = true
				if set.Supported && s.reads != "" && slices.Contains(set.Commands, s.reads) {
					want = append(want, set.Name)
				}
			}
			for _, found := range name.FindAllString(help.stdout, -1) {
				if settings[found] && !slices.Contains(listed, found) {
					listed = append(listed, found)
				}
			}
			slices.Sort(listed)
			slices.Sort(want)
			if !slices.Equal(listed, want) {
				t.Errorf("the settings in help are %q; want %q", listed, want)
			}
			for line := range strings.Lines(help.stdout) {
				long := len([]rune(line)) > helpWidth+1
				if long && !slices.Contains(s.examples, strings.TrimSpace(line)) {
					t.Errorf("this line is too wide: %s", line)
				}
			}
		})
	}
}

func TestGeneralHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"help", "help"}, {"--help", "--help"}} {
		got := lockgate(t, nil, "", args...)
		got.want(t, 0, "usage:\n")
	}
	help := lockgate(t, nil, "", "--help")
	for _, s := range specs() {
		help.want(t, 0, "  "+s.name+" ", s.short)
		if !slices.Contains(groups(), s.group) {
			t.Errorf("%s is in no group", s.name)
		}
	}
}

func TestHelpOfRunIsNotThatOfItsCommand(t *testing.T) {
	for _, c := range []struct {
		args []string
		want bool
	}{
		{[]string{"--help"}, true},
		{[]string{"-h", "--", "ls"}, true},
		{[]string{"--", "ls", "--help"}, false},
		{[]string{"--", "--help"}, false},
		{[]string{"ls", "--help"}, false},
		{[]string{"", "--help"}, false},
		{nil, false},
	} {
		for _, name := range []string{"run", "exec"} {
			if got := findSpec(name).wantsHelp(c.args); got != c.want {
				t.Errorf("wantsHelp of lockgate %s %q = %t; want %t", name, c.args, got, c.want)
			}
		}
	}
}

func TestAWrongCommandLineSaysWhatIsRight(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
		next string
	}{
		{"", "which command?", "see: lockgate --help"},
		{"statsu", `there is no command "statsu"; did you mean status?`, "see: lockgate --help"},
		{"ulnock nightly", "did you mean unlock?", "see: lockgate --help"},
		{"help migrat", "did you mean migrate?", "see: lockgate --help"},
		{"help run now", `unexpected argument "now"`, "see: lockgate --help"},
		{"status -x", "known are: -o, --output text|json", "see: lockgate help status"},
		{"unlock", "which lock?", "see: lockgate help unlock"},
		{"unlock a b", `unexpected argument "b"`, "see: lockgate help unlock"},
		{"unlock a --token x", "not a token", "see: lockgate help unlock"},
		{"unlock a --token 0", "not a token", "see: lockgate help unlock"},
		{"unlock a --yes", "known are: --token N; --now", "see: lockgate help unlock"},
		{"migrate now", `unexpected argument "now"`, "see: lockgate help migrate"},
		{"config now", `unexpected argument "now"`, "see: lockgate help config"},
		{"config -o yaml", `"yaml" is not one of`, "see: lockgate help config"},
		{"install", "into which directory?", "see: lockgate help install"},
		{"install a b", `unexpected argument "b"`, "see: lockgate help install"},
		{"completion", "for which shell?", "see: lockgate help completion"},
		{"completion tcsh", "bash, zsh and fish", "see: lockgate help completion"},
		{"completion bash zsh", `unexpected argument "zsh"`, "see: lockgate help completion"},
	} {
		got := lockgate(t, nil, "", strings.Fields(c.args)...)
		got.want(t, gatedir.CodeUsage, c.says)
		if got.next() != "lockgate: next: "+c.next {
			t.Errorf("lockgate %s: last line %q; want %q", c.args, got.next(), c.next)
		}
	}
}

func TestNextFitsTheFailure(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("acquire: %w", err) }
	for _, c := range []struct {
		command string
		kind    config.Kind
		code    int
		err     error
		want    string // empty: nothing is to be done
	}{
		{"run", config.MySQL, 0, nil, ""},
		{"run", config.MySQL, 3, nil, ""},
		{"run", config.MySQL, 143, nil, ""},
		{"run", config.MySQL, 64, nil, "lockgate help run"},
		{"", config.MySQL, 64, nil, "lockgate --help"},
		{"run", config.MySQL, 69, wrap(db.ErrRefused), "LOCKGATE_DB_USER"},
		{"run", config.SQLite, 69, wrap(db.ErrRefused), "local disk"},
		{"run", config.MySQL, 69, wrap(db.ErrUnreachable), "host and port"},
		{"run", config.MySQL, 69, wrap(db.ErrNoTable), "lockgate migrate"},
		{"migrate", config.MySQL, 69, wrap(db.ErrNoTable), "lockgate migrate --print"},
		{"run", config.MySQL, 69, wrap(db.ErrAgain), "long transaction"},
		{"run", config.SQLite, 69, wrap(context.DeadlineExceeded), "long transaction"},
		{"run", config.SQLite, 69, errors.New("disk I/O error"), "disk"},
		{"run", config.MySQL, 69, wrap(gate.ErrUnusable), "LOCKGATE_START_TIMEOUT"},
		{"exec", "", 69, nil, "log of the sidecar"},
		{"run", config.MySQL, 70, nil, "lockgate version"},
		{"run", config.MySQL, 75, wrap(db.ErrHeld), "lockgate status"},
		{"run", config.MySQL, 76, wrap(gate.ErrUntrusted), "LOCKGATE_TTL"},
		{"run", config.MySQL, 75, wrap(gate.ErrWaitedTooLong), "LOCKGATE_WAIT_TIMEOUT"},
		{"run", config.MySQL, 76, wrap(gate.ErrMaxHold), "LOCKGATE_MAX_HOLD"},
		{"run", config.MySQL, 76, wrap(db.ErrLost), "lockgate status"},
		{"run", config.MySQL, 78, wrap(gate.ErrPublish), "full"},
		{"run", config.MySQL, 78, nil, "lockgate config"},
		{"run", config.MySQL, 126, nil, "PATH"},
		{"run", config.MySQL, 127, nil, "PATH"},
		{"unlock", config.MySQL, 75, wrap(advise(errors.New("x"), "do %s", "this")), "do this"},
	} {
		p := &program{args: []string{c.command}, database: c.kind}
		got := p.next(c.code, c.err)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("next of %s, %q, code %d, %v = %q; want %q in it", c.command, c.kind, c.code, c.err, got, c.want)
		}
	}
}

// table is a SQLite file with locks in every state, by their names.
func table(t *testing.T) (environ []string, store *sqlite.Store) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "locks.db")
	boot, err := bootclock.BootID()
	if err != nil {
		t.Fatal(err)
	}
	store, err = sqlite.Open(sqlite.Options{
		Path: file, Create: true,
		Clock: sqlite.Clock{BootID: boot, Now: func() time.Duration { return bootclock.Now() - bootclock.HostOffset() }},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	take := func(name, run string, ttl time.Duration) db.Lease {
		t.Helper()
		lease, err := store.TryAcquire(t.Context(), db.Request{Name: name, Owner: "east/jobs/pod-1/n0nce", Run: run, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	take("held", "job-7", time.Hour)
	check(store.Revoke(t.Context(), "revoked", take("revoked", "", time.Hour).Token, false))
	check(store.Release(t.Context(), take("kept", "", time.Hour), 2*time.Hour))
	check(store.Release(t.Context(), take("free", "job-6", time.Hour), 0))
	take("expired", "", time.Nanosecond)
	return []string{"LOCKGATE_DB_URL=sqlite://" + file, "LOCKGATE_DIR=" + t.TempDir()}, store
}

func TestStatusShowsEachState(t *testing.T) {
	environ, store := table(t)
	rows, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	states := []string{"expired", "free", "held", "kept", "revoked"}

	text := lockgate(t, environ, "", "status")
	text.want(t, 0)
	lines := strings.Split(strings.TrimSuffix(text.stdout, "\n"), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "NAME ") || !strings.HasSuffix(lines[0], " RUN") {
		t.Fatalf("status said\n%s\nwant a heading and five locks", text.stdout)
	}
	const since = ` \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d) \(\S+ ago\) +`
	for i, pattern := range []string{
		`^expired +expired +east/jobs/pod-1 +` + since + `- +%d +-$`,
		`^free +free +- +- +- +%d +-$`,
		`^held +held +east/jobs/pod-1 +` + since + `(59m\d+s|1h0m) +%d +job-7$`,
		`^kept +kept +east/jobs/pod-1 +` + since + `(1h59m|2h0m) +%d +-$`,
		`^revoked +revoked +east/jobs/pod-1 +` + since + `(59m\d+s|1h0m) +%d +-$`,
	} {
		want := fmt.Sprintf(pattern, rows[i].Token)
		if !regexp.MustCompile(want).MatchString(lines[i+1]) {
			t.Errorf("line %q; want it to match %s", lines[i+1], want)
		}
	}

	asJSON := lockgate(t, environ, "", "status", "-ojson")
	asJSON.want(t, 0)
	var report struct {
		Database string
		Locks    []map[string]any
		ThisPod  any `json:"this_pod"`
	}
	if err := json.Unmarshal([]byte(asJSON.stdout), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Locks) != 5 || !strings.HasPrefix(report.Database, "sqlite://") || report.ThisPod != nil {
		t.Fatalf("status -o json said %s", asJSON.stdout)
	}
	for i, lock := range report.Locks {
		left, taken := lock["left_seconds"].(float64)
		age, _ := lock["age_seconds"].(float64)
		since, err := time.Parse(time.RFC3339Nano, fmt.Sprint(lock["since"]))
		if lock["state"] != states[i] || lock["owner"] != "east/jobs/pod-1/n0nce" || lock["holder"] != "east/jobs/pod-1" ||
			lock["token"] != float64(rows[i].Token) || err != nil || since.After(time.Now()) || age <= 0 || age > 3600 ||
			taken != slices.Contains([]string{"held", "kept", "revoked"}, states[i]) || taken && left < 1800 {
			t.Errorf("lock %d of status -o json is %v", i, lock)
		}
	}

	named := lockgate(t, environ, "", "status", "never used", "kept", "kept")
	named.want(t, 0)
	if lines := strings.Split(named.stdout, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[1], "never used  free ") || !strings.HasPrefix(lines[2], "kept ") {
		t.Errorf("status of names said\n%s", named.stdout)
	}
	lockgate(t, environ, "", "status", "").want(t, 64)
}

func TestStatusShowsWhatCannotBePrintedInQuotes(t *testing.T) {
	environ, store := table(t)
	_, err := store.TryAcquire(t.Context(), db.Request{Name: "bell\a", Owner: "a\x1b[2J/nonce", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got := lockgate(t, environ, "", "status", "bell\a")
	got.want(t, 0, `"bell\a"`, `"a\x1b[2J"`)
}

func TestUnlockAsksAndTellsWhatItDid(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  []string
		stdin string
		code  int
		says  []string
		state string // afterwards
	}{
		{"yes", []string{"held"}, "y\n", 0, []string{"Stop this holder? [y/N]", "held is revoked", "at the latest in "}, "revoked"},
		{"yes in words, at the end of the input", []string{"held"}, "YES", 0, nil, "revoked"},
		{"no", []string{"held"}, "n\n", 75, []string{"you declined"}, "held"},
		{"an empty line", []string{"held"}, "\n", 75, []string{"you declined"}, "held"},
		{"something else", []string{"held"}, "yesterday\n", 75, []string{"you declined"}, "held"},
		{"nobody there", []string{"held"}, "", 75, []string{"there was no answer", "--token N"}, "held"},
		{"now, yes", []string{"held", "--now"}, "y\n", 0, []string{"east/jobs/pod-1 is dead?", "held is free"}, "expired"},
		{"now, no", []string{"--now", "held"}, "n\n", 75, []string{"--token N --now"}, "held"},
		{"revoked already", []string{"revoked"}, "y\n", 0, []string{"revoked is revoked"}, "revoked"},
		{"revoked already, now", []string{"revoked", "--now"}, "y\n", 0, []string{"revoked is free"}, "expired"},
		{"kept", []string{"kept"}, "y\n", 0, []string{"Free the lock now?", "kept is free"}, "free"},
		{"kept, now", []string{"kept", "--now"}, "y\n", 0, []string{"kept is free"}, "free"},
		{"free", []string{"free"}, "y\n", 75, []string{"free is not held: it is free"}, "free"},
		{"expired", []string{"expired"}, "y\n", 75, []string{"not held"}, "expired"},
		{"unknown", []string{"unknown"}, "y\n", 75, []string{"not held: no lock of this name"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			environ, store := table(t)
			before, _ := store.List(t.Context())
			got := lockgate(t, environ, c.stdin, append([]string{"unlock"}, c.args...)...)
			got.want(t, c.code, c.says...)
			rows, err := store.List(t.Context())
			if err != nil || len(rows) != len(before) {
				t.Fatalf("List() = %v, %v; want %d rows", rows, err, len(before))
			}
			name := c.args[len(c.args)-1]
			if strings.HasPrefix(name, "-") {
				name = c.args[0]
			}
			for _, r := range rows {
				want := r.Name
				if r.Name == name {
					want = c.state
				}
				if got := stateOf(r); got != want {
					t.Errorf("%s is %s afterwards; want %s", r.Name, got, want)
				}
			}
		})
	}
}

func TestUnlockWithATokenDoesNotAsk(t *testing.T) {
	for _, name := range []string{"held", "kept"} {
		environ, store := table(t)
		rows, err := store.List(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		wrong := lockgate(t, environ, "y\n", "unlock", name, "--token", fmt.Sprint(rows[0].Token+1))
		wrong.want(t, 75, "another holder", fmt.Sprint("--token ", rows[0].Token))
		right := lockgate(t, environ, "n\n", "unlock", name, "--token", fmt.Sprint(rows[0].Token))
		right.want(t, 0)
		if strings.Contains(right.stderr, "[y/N]") {
			t.Errorf("it asked: %s", right.stderr)
		}
	}
}

// slowAnswer is a person who says yes after something has happened.
type slowAnswer struct{ meanwhile func() }

func (a slowAnswer) Read(p []byte) (int, error) {
	a.meanwhile()
	return copy(p, "y\n"), nil
}

func TestUnlockStopsNobodyButTheHolderThatItHasShown(t *testing.T) {
	for _, now := range []bool{false, true} {
		environ, store := table(t)
		rows, err := store.List(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		old := rows[0]
		args := []string{"unlock", "held"}
		if now {
			args = append(args, "--now")
		}
		got := lockgateAsked(t, environ, slowAnswer{func() {
			if err := store.Release(t.Context(), db.Lease{Name: "held", Owner: old.Owner, Token: old.Token}, 0); err != nil {
				t.Error(err)
			}
			if _, err := store.TryAcquire(t.Context(), db.Request{Name: "held", Owner: "other/1", TTL: time.Hour}); err != nil {
				t.Error(err)
			}
		}}, args...)
		got.want(t, 75, "not held with token "+fmt.Sprint(old.Token)+" any more", "lockgate status held")
		if rows, err = store.List(t.Context(), "held"); err != nil || stateOf(rows[0]) != "held" || rows[0].Owner != "other/1" {
			t.Errorf("afterwards %+v, %v; want it held by the other one", rows, err)
		}
	}
}

func TestACallIsMadeAgainWhenTheStoreAsksForIt(t *testing.T) {
	for _, c := range []struct {
		answers []error // in turn; the last one stays
		want    error
		calls   int
	}{
		{[]error{nil}, nil, 1},
		{[]error{db.ErrAgain, nil}, nil, 2},
		{[]error{db.ErrAgain, db.ErrRefused}, db.ErrRefused, 2},
		{[]error{db.ErrUnreachable}, db.ErrUnreachable, 1},
		{[]error{db.ErrAgain}, db.ErrAgain, againTries},
	} {
		calls := 0
		err := again(t.Context(), func(context.Context) error {
			calls++
			return c.answers[min(calls, len(c.answers))-1]
		})
		if !errors.Is(err, c.want) || calls != c.calls {
			t.Errorf("again with %v = %v after %d calls; want %v after %d", c.answers, err, calls, c.want, c.calls)
		}
	}
}

func TestWordIsReadBackByAShell(t *testing.T) {
	for _, name := range []string{"nightly", "a b", "it's", `"$HOME"`, "-x", "", "ä;ls", "a/b:c"} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+word(name)).Output()
		if err != nil || string(out) != name {
			t.Errorf("a shell reads word(%q) as %q, %v", name, out, err)
		}
	}
}

func TestShortly(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                     "0s",
		0:                                "0s",
		1240 * time.Millisecond:          "1.2s",
		90*time.Second + time.Nanosecond: "1m30s",
		59*time.Minute + 59*time.Second:  "59m59s",
		2*time.Hour + 3*time.Minute:      "2h3m",
		50 * time.Hour:                   "2d2h",
	} {
		if got := shortly(d); got != want {
			t.Errorf("shortly(%d) = %s; want %s", d, got, want)
		}
	}
}

func TestBashCompletes(t *testing.T) {
	script := filepath.Join(t.TempDir(), "completion")
	if err := os.WriteFile(script, []byte(lockgate(t, nil, "", "completion", "bash").stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"target-dir/", "target-file"} {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		line string // its last word is completed
		want string
	}{
		{"lockgate sta", "status"},
		{"lockgate un", "unlock"},
		{"lockgate i", "init install"},
		{"lockgate --v", "--version"},
		{"lockgate nothing-like-it", ""},
		{"lockgate unlock --t", "--token"},
		{"lockgate unlock nightly --n", "--now"},
		{"lockgate status -o j", "json"},
		{"lockgate status nightly --output ", "text json"},
		{"lockgate migrate --p", "--print"},
		{"lockgate completion f", "fish"},
		{"lockgate help unl", "unlock"},
		{"lockgate install target-", "target-dir"},
		{"lockgate run -- mkfif", "mkfifo"},
		{"lockgate exec -- mkfif", "mkfifo"},
		{"lockgate run mkfif", "mkfifo"},
		{"lockgate run --h", "--help"},
		{"lockgate run -- ls target-f", "target-file"},
		{"lockgate run ls target-f", "target-file"},
	} {
		words := strings.Split(c.line, " ")
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, word(w))
		}
		ask := fmt.Sprintf(`source "$1"; cd "$2"; COMP_WORDS=(%s); COMP_CWORD=%d; _lockgate; echo "${COMPREPLY[*]}"; complete -p lockgate >/dev/null`,
			strings.Join(quoted, " "), len(words)-1)
		out, err := exec.CommandContext(t.Context(), "bash", "--norc", "-c", ask, "bash", script, dir).CombinedOutput()
		// A command can be in two folders of PATH; bash shows it once.
		got := strings.Join(slices.Compact(strings.Fields(string(out))), " ")
		if err != nil || got != c.want {
			t.Errorf("bash completes %q to %q, %v; want %q", c.line, got, err, c.want)
		}
	}
}

func TestEveryShellsCompletionKnowsAllCommands(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := lockgate(t, nil, "", "completion", shell)
		script.want(t, 0)
		for _, s := range specs() {
			script.want(t, 0, s.name)
			for _, o := range s.options {
				script.want(t, 0, o.name)
			}
		}
	}
}

func TestTheStateOfThisPodInWords(t *testing.T) {
	const now = time.Hour
	stop, late := gatedir.Duration(now+time.Minute), gatedir.Duration(now-time.Second)
	goOn := gatedir.Policy{OnLost: gatedir.GoOn}
	for _, c := range []struct {
		name  string
		state gatedir.State
		ended bool
		want  string
	}{
		{"waiting", gatedir.State{Verdict: gatedir.Waiting}, false, "waiting for the lock"},
		{"held", gatedir.State{Verdict: gatedir.Acquired, StopBoot: stop, KillBoot: stop}, false, "acquired"},
		{"held, ended", gatedir.State{Verdict: gatedir.Acquired, StopBoot: stop, KillBoot: stop}, true, "about to be released"},
		{"late", gatedir.State{Verdict: gatedir.Acquired, StopBoot: late, KillBoot: stop}, false, "not renewed in time; the command is being stopped"},
		{"lost", gatedir.State{Verdict: gatedir.Lost}, false, "lost; the command is being stopped"},
		{"lost, ended", gatedir.State{Verdict: gatedir.Lost}, true, "lost; the command has ended"},
		{"late, goes on", gatedir.State{Verdict: gatedir.Acquired, StopBoot: late, KillBoot: stop, Policy: goOn}, false, "goes on without the lock"},
		{"lost, goes on", gatedir.State{Verdict: gatedir.Lost, Policy: goOn}, false, "lost; the command goes on without the lock (LOCKGATE_ON_LOST=continue)"},
		{"lost, went on, ended", gatedir.State{Verdict: gatedir.Lost, Policy: goOn}, true, "lost; the command has ended"},
		{"skipped", gatedir.State{Verdict: gatedir.Skipped}, false, "skipped"},
		{"busy", gatedir.State{Verdict: gatedir.Busy}, false, "busy"},
		{"error", gatedir.State{Verdict: gatedir.Error}, false, "error"},
		{"released", gatedir.State{Verdict: gatedir.Released}, true, "released"},
	} {
		pod := podOf("/gate", c.state, c.ended, now)
		if !strings.Contains(pod.Summary, c.want) || (pod.StopIn != nil) != (c.state.Verdict == gatedir.Acquired) {
			t.Errorf("%s: %q, stop in %v; want %q", c.name, pod.Summary, pod.StopIn, c.want)
		}
	}
}
