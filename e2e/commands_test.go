package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/lockgate/lockgate/internal/testserver"
)

// answer is what a command for people has said, and its exit code.
type answer struct {
	code           int
	stdout, stderr string
}

// ask runs a command for people to its end.
func ask(t *testing.T, s settings, stdin string, args ...string) answer {
	t.Helper()
	return askFrom(t, exec.CommandContext(inTime(t), built.lockgate, args...), s.environ(), stdin)
}

func askFrom(t *testing.T, cmd *exec.Cmd, environ []string, stdin string) answer {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	return answer{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// want checks the exit code and what was said. Whatever fails says on its last
// line what to do next.
func (a answer) want(t *testing.T, code int, says ...string) {
	t.Helper()
	if a.code != code {
		t.Errorf("exit code %d; want %d; it said\n%s%s", a.code, code, a.stdout, a.stderr)
	}
	wantSaid(t, a.stdout+a.stderr, says...)
	lines := strings.Split(strings.TrimSuffix(a.stderr, "\n"), "\n")
	if last := lines[len(lines)-1]; (code != 0) != strings.HasPrefix(last, "lockgate: next: ") {
		t.Errorf("the last line with exit code %d is %q", code, last)
	}
}

// onEachStore runs a test on MariaDB and on SQLite.
func onEachStore(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	t.Run("MariaDB", func(t *testing.T) {
		t.Parallel()
		test(t, database(t))
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, sqliteURL(t))
	})
}

// lockReport is the JSON of status.
type lockReport struct {
	Database string `json:"database"`
	Locks    []struct {
		Name   string   `json:"name"`
		State  string   `json:"state"`
		Holder string   `json:"holder"`
		Owner  string   `json:"owner"`
		Run    string   `json:"run"`
		Token  uint64   `json:"token"`
		Left   *float64 `json:"left_seconds"`
	} `json:"locks"`
	ThisPod *struct {
		Verdict string   `json:"verdict"`
		Summary string   `json:"summary"`
		Lock    string   `json:"lock"`
		Token   uint64   `json:"token"`
		StopIn  *float64 `json:"stop_in_seconds"`
		OnLost  string   `json:"on_lost"`
	} `json:"this_pod"`
}

func report(t *testing.T, s settings, names ...string) (r lockReport) {
	t.Helper()
	a := ask(t, s, "", append([]string{"status", "-o", "json"}, names...)...)
	a.want(t, 0)
	if err := json.Unmarshal([]byte(a.stdout), &r); err != nil {
		t.Fatalf("status -o json: %v in\n%s", err, a.stdout)
	}
	return r
}

// looking are the settings of a person who looks at a database.
func looking(url string) settings {
	return settings{"DB_URL": url, "DIR": "/nonexistent", "START_TIMEOUT": "500ms"}
}

func TestUnlockLetsTheHolderEndBeforeTheLockIsFree(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, url string) {
		old, next := newStage(t), newStage(t)
		holder := startRun(t, patient(url), built.puppet, "-witness", old.witness(), "-beat", old.beat(), "-for", "10m", "-linger", "300ms")
		token := tokenIn(t, old.witness())
		contender := startRun(t, patient(url).with(settings{"ON_BUSY": "wait"}), built.puppet, "-witness", next.witness(), "-beat", next.beat())
		contender.awaitOutput("waiting for the lock")

		ask(t, looking(url), "", "unlock", "nightly", "--token", fmt.Sprint(token)).want(t, 0, "nightly is revoked", "at the latest in ")
		holder.wantExit(76)
		contender.wantExit(0)
		ended, began := lastBeat(t, old.beat()), lastBeat(t, next.beat()) // the next one has one beat only
		if !began.After(ended) {
			t.Errorf("the next command began %s before the old one's end", ended.Sub(began))
		}
		if n := tokenIn(t, next.witness()); n <= token {
			t.Errorf("token %d after %d", n, token)
		}
		t.Logf("the next command began %s after the old one's last sign of life", began.Sub(ended))
	})
}

func TestUnlockNowFreesTheLockOfADeadHolderAtOnce(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, url string) {
		set := short(url).with(settings{"TTL": "1h", "RENEW_EVERY": "1s"})
		at := newStage(t)
		old := at.run(t, set)
		token := tokenIn(t, at.witness())
		old.signal(syscall.SIGSTOP)
		fail := set.with(settings{"ON_BUSY": "fail"})
		startRun(t, fail, "true").wantExit(75)

		ask(t, looking(url), "y\n", "unlock", "--now", "nightly").want(t, 0, " is dead? [y/N]", "nightly is free")
		next := newStage(t)
		startRun(t, fail, built.puppet, "-witness", next.witness()).wantExit(0)

		// It was not dead, and comes back.
		old.signal(syscall.SIGCONT)
		old.wantExit(76)
		lock := report(t, looking(url), "nightly").Locks[0]
		if last := tokenIn(t, next.witness()); lock.State != "free" || lock.Token != last || last <= token {
			t.Errorf("after the old holder's late word the lock is %+v; want it free, with token %d, after %d", lock, last, token)
		}
	})
}

func TestUnlockAsksBeforeItStopsAHolder(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, url string) {
		at := newStage(t)
		at.run(t, short(url).with(calm()).with(settings{"CLUSTER": "east", "POD_NAMESPACE": "jobs", "POD_NAME": "nightly-1"}))
		token := tokenIn(t, at.witness())
		look := looking(url)
		unlock := func(stdin string, args ...string) answer {
			return ask(t, look, stdin, append([]string{"unlock", "nightly"}, args...)...)
		}
		for _, stdin := range []string{"n\n", "\n", "no, not yet\n", ""} {
			unlock(stdin).want(t, 75, "east/jobs/nightly-1", fmt.Sprint(token), "Stop this holder? [y/N]", "nothing was changed", "--token N")
		}
		unlock("y\n", "--token", fmt.Sprint(token+1)).want(t, 75, "another holder")
		unlock("y\n", "--token", fmt.Sprint(token-1), "--now").want(t, 75, "another holder")
		ask(t, look, "y\n", "unlock", "never-used").want(t, 75, "not held")
		if state := report(t, look, "nightly").Locks[0].State; state != "held" {
			t.Errorf("the lock is %s; want it held still", state)
		}
		unlock("y\n").want(t, 0, "nightly is revoked")
		if state := report(t, look, "nightly").Locks[0].State; state != "revoked" {
			t.Errorf("the lock is %s; want it revoked", state)
		}
	})
}

func TestAQuestionEndsLikeAnyProgram(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	at := newStage(t)
	at.run(t, short(url).with(calm()))
	tokenIn(t, at.witness())
	stdin, nobody, err := os.Pipe()
	must(t, err)
	defer func() { _, _ = stdin.Close(), nobody.Close() }()
	cmd := exec.Command(built.lockgate, "unlock", "nightly")
	cmd.Stdin = stdin
	p := launch(t, cmd, looking(url).environ())
	p.awaitOutput("nightly ")
	p.signal(syscall.SIGTERM)
	p.wantExit(143)
	if state := report(t, looking(url), "nightly").Locks[0].State; state != "held" {
		t.Errorf("the lock is %s; want it held still", state)
	}
}

func TestAReaderThatHasGoneEndsTheOutputQuietly(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"help"}, {"run", "--help"}, {"config"}, {"status", "nightly"}} {
		url := sqliteURL(t)
		ask(t, looking(url), "", "migrate").want(t, 0)
		reader, stdout, err := os.Pipe()
		must(t, err)
		must(t, reader.Close())
		cmd := exec.Command(built.lockgate, args...)
		cmd.Stdout = stdout
		p := launch(t, cmd, looking(url).environ())
		p.wantExit(128 + int(syscall.SIGPIPE))
		if said := p.said(); said != "" {
			t.Errorf("%q said %q; want nothing", args, said)
		}
		must(t, stdout.Close())
	}
}

func TestStatusOfEveryState(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, url string) {
		set := func(name string) settings {
			return short(url).with(calm()).with(settings{"NAME": name, "RUN": "run-of-" + name, "CLUSTER": "east", "POD_NAMESPACE": "jobs", "POD_NAME": name + "-pod"})
		}
		look := looking(url)
		hold := func(name string) (p *proc, token string) {
			at := newStage(t)
			p = at.run(t, set(name))
			return p, fmt.Sprint(tokenIn(t, at.witness()))
		}
		_, _ = hold("held")
		_, token := hold("revoked")
		ask(t, look, "", "unlock", "revoked", "--token", token).want(t, 0)
		startRun(t, set("kept").with(settings{"MIN_HOLD": "30m"}), "true").wantExit(0)
		startRun(t, set("free"), "true").wantExit(0)
		dead, token := hold("expired")
		killMarked(t, dead.mark)
		dead.wantExit(137)
		ask(t, look, "", "unlock", "expired", "--now", "--token", token).want(t, 0)

		taken := map[string]bool{"held": true, "revoked": true, "kept": true}
		all := report(t, look)
		if len(all.Locks) != 5 || strings.Contains(all.Database, password) || all.ThisPod != nil {
			t.Fatalf("status -o json = %+v", all)
		}
		for i, name := range []string{"expired", "free", "held", "kept", "revoked"} {
			lock := all.Locks[i]
			if lock.Name != name || lock.State != name || lock.Holder != "east/jobs/"+name+"-pod" || !strings.HasPrefix(lock.Owner, lock.Holder+"/") ||
				lock.Run != "run-of-"+name || lock.Token == 0 || (lock.Left != nil) != taken[name] || lock.Left != nil && *lock.Left <= 60 {
				t.Errorf("status -o json: %+v; want %s", lock, name)
			}
		}
		text := ask(t, look, "", "status", "never", "revoked", "kept")
		text.want(t, 0)
		lines := strings.Split(text.stdout, "\n")
		for i, want := range []string{
			"NAME +STATE +HOLDER +SINCE +LEFT +TOKEN +RUN",
			"never +free +- +- +- +- +-",
			`revoked +revoked +east/jobs/revoked-pod +20\S+ \(\S+ ago\) +\S+ +\d+ +run-of-revoked`,
			`kept +kept +east/jobs/kept-pod +20\S+ \(\S+ ago\) +(29m\d+s|30m0s) +\d+ +run-of-kept`,
		} {
			if len(lines) != 5 || !regexp.MustCompile("^"+want+"$").MatchString(lines[i]) {
				t.Errorf("status said\n%s\nwant line %d to match %s", text.stdout, i, want)
			}
		}

		// What is only kept is free at once.
		startRun(t, set("kept").with(settings{"ON_BUSY": "fail", "RUN": "another"}), "true").wantExit(75)
		ask(t, look, "y\n", "unlock", "kept").want(t, 0, "Free the lock now? [y/N]", "kept is free")
		startRun(t, set("kept").with(settings{"ON_BUSY": "fail", "RUN": "another"}), "true").wantExit(0)
	})
}

func TestStatusInTheCommandOfARunShowsThisPod(t *testing.T) {
	t.Parallel()
	s := short(sqliteURL(t)).with(calm())
	p := startRun(t, s, built.lockgate, "status") // it has no database
	p.wantExit(0)
	wantSaid(t, p.said(), "this pod (", "verdict  acquired", "lock     nightly", "until the command is stopped")

	// By name, and as JSON.
	p = startRun(t, s, built.lockgate, "status", "nightly", "-ojson")
	p.wantExit(0)
	wantSaid(t, p.said(), `"locks": null`, `"verdict": "acquired"`)
}

func TestStatusTellsThatACommandGoesOnWithoutItsLock(t *testing.T) {
	t.Parallel()
	url, runtime := database(t), t.TempDir()
	at := newStage(t)
	p := launch(t, exec.Command(built.lockgate, append([]string{"run", "--"}, at.puppet()...)...),
		append(short(url).with(settings{"ON_LOST": "continue", "TTL": "1m"}).environ(), "XDG_RUNTIME_DIR="+runtime))
	token := tokenIn(t, at.witness())
	ask(t, looking(url), "", "unlock", "nightly", "--token", fmt.Sprint(token)).want(t, 0)
	dirs, _ := filepath.Glob(runtime + "/lockgate-*")
	if len(dirs) != 1 {
		t.Fatalf("private directories %q; want one", dirs)
	}
	here := looking(url).with(settings{"DIR": dirs[0]})
	await(t, "the loss is in the state", func() bool {
		pod := report(t, here).ThisPod
		return pod != nil && pod.Verdict == "lost"
	})
	const goesOn = "lost; the command goes on without the lock (LOCKGATE_ON_LOST=continue)"
	pod := report(t, here).ThisPod
	if pod.Summary != goesOn || pod.OnLost != "continue" || pod.Lock != "nightly" || pod.StopIn != nil {
		t.Errorf("this pod is %+v", pod)
	}
	ask(t, here, "", "status").want(t, 0, goesOn, "NAME ", "nightly ")
	touch(t, at.curtain())
	p.wait()
}

func TestCommandsForPeopleWhenTheStoreDoesNotServeThem(t *testing.T) {
	t.Parallel()
	server := mariadb(t)
	schema := server.NewDatabase(t)
	url := func(user, pass, address, database string) string {
		return "mysql://" + user + ":" + pass + "@" + address + "/" + database
	}
	account := func(name string, grants ...string) string {
		server.NewUser(t, testserver.User{Name: name, Password: password, Grants: grants})
		return name
	}
	all := account("a_"+schema, "ALL ON "+schema+".*")
	reader := account("r_"+schema, "SELECT ON "+schema+".*")
	nobody := account("n_"+schema, "USAGE ON *.*")
	there := url(all, password, server.Address(), schema)
	ask(t, looking(there).with(settings{"DB_TABLE": "there"}), "", "migrate").want(t, 0, "created the table there in mysql://")
	held := newStage(t)
	startRun(t, short(there).with(calm()).with(settings{"DB_TABLE": "there"}), held.puppet()...)
	token := fmt.Sprint(tokenIn(t, held.witness()))

	for _, c := range []struct {
		name    string
		url     string
		table   string
		status  string // what status says; empty: it works
		migrate string // the same of migrate
	}{
		{"a closed port", url(all, password, closedPort(t), schema), "there", "see that host and port", "LOCKGATE_START_TIMEOUT says how long"},
		{"a wrong password", url(all, "no-"+password, server.Address(), schema), "there", "check LOCKGATE_DB_USER", "check LOCKGATE_DB_USER"},
		{"an unknown database", url(all, password, server.Address(), "nowhere"), "there", "check LOCKGATE_DB_USER", "check LOCKGATE_DB_USER"},
		{"a user without rights", url(nobody, password, server.Address(), schema), "there", "check LOCKGATE_DB_USER", "check LOCKGATE_DB_USER"},
		{"a user who may only read", url(reader, password, server.Address(), schema), "there", "", ""},
		{"a table that nobody has made", url(reader, password, server.Address(), schema), "missing", "nobody has used mysql://", "lockgate migrate --print"},
		{"a file that is no database", "sqlite://" + script(t, strings.Repeat("no database\n", 100), 0o644), "there", "not a database", "not a database"},
		{"a folder that is missing", "sqlite:///no/such/folder/locks.db", "there", "/no/such/folder", "/no/such/folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			look := looking(c.url).with(settings{"DB_TABLE": c.table})
			if c.status == "" {
				ask(t, look, "", "status").want(t, 0, "nightly ")
				ask(t, look, "", "unlock", "nightly", "--token", token).want(t, 69, "denied", "check LOCKGATE_DB_USER")
				return // migrate has nothing to do, whatever its rights
			}
			for _, args := range [][]string{{"status"}, {"status", "-ojson", "nightly"}, {"unlock", "nightly", "--token", token}} {
				a := ask(t, look, "", args...)
				a.want(t, 69, c.status)
				if a.stdout != "" {
					t.Errorf("%q wrote %q to stdout; want nothing", args, a.stdout)
				}
			}
			ask(t, look, "", "migrate").want(t, 69, c.migrate)
			if c.table == "missing" {
				ask(t, look, "", "status").want(t, 69, "lockgate migrate creates it now") // still nobody has
			}
		})
	}
}

func TestWhoOnlyLooksCreatesNothing(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "locks.db")
	look := looking("sqlite://" + file)
	ask(t, look, "", "status").want(t, 69, "nobody has used sqlite://"+file+" yet", "lockgate migrate creates it now")
	ask(t, look, "y\n", "unlock", "nightly").want(t, 69, "nobody has used")
	ask(t, look.with(settings{"DB_AUTO_MIGRATE": "false"}), "", "status").want(t, 69, "create the table with lockgate migrate")
	a := ask(t, look, "", "migrate", "--print")
	a.want(t, 0, `CREATE TABLE IF NOT EXISTS "lockgate_locks"`)
	ask(t, look, "", "config").want(t, 0)
	if files, err := os.ReadDir(folder); err != nil || len(files) > 0 {
		t.Errorf("%v, %v in the folder; want nothing", files, err)
	}

	// A user's own file, in a folder that nobody has made: only outside containers.
	if exists("/.dockerenv") || exists("/run/.containerenv") {
		ask(t, settings{}, "", "status").want(t, 78, "LOCKGATE_DB_URL ")
		return
	}
	cmd := exec.CommandContext(inTime(t), built.lockgate, "status")
	askFrom(t, cmd, []string{"HOME=" + folder}, "").want(t, 69, "nobody has used", "this machine only")
	if files, err := os.ReadDir(folder); err != nil || len(files) > 0 {
		t.Errorf("%v, %v in the home folder; want nothing", files, err)
	}
}

func TestMigrateCreatesTheTableOnce(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(t *testing.T, url string) {
		// An explicit one is not stopped by this.
		look := looking(url).with(settings{"DB_AUTO_MIGRATE": "false"})
		ask(t, look, "", "migrate").want(t, 0, "created the table lockgate_locks in ")
		ask(t, look, "", "migrate").want(t, 0, "the table lockgate_locks exists already in ")
		a := ask(t, look, "", "status", "-ojson")
		a.want(t, 0, `"locks": []`)
		ask(t, look, "", "status").want(t, 0, "no lock was ever taken")
		startRun(t, short(url).with(settings{"DB_AUTO_MIGRATE": "false"}), "true").wantExit(0)
	})
}

func TestMigratePrintTouchesNothing(t *testing.T) {
	t.Parallel()
	server := mariadb(t)
	schema := server.NewDatabase(t)
	server.NewUser(t, testserver.User{Name: "p_" + schema, Password: password, Grants: []string{"SELECT, INSERT, UPDATE ON " + schema + ".*"}})
	url := "mysql://p_" + schema + ":" + password + "@" + server.Address() + "/" + schema

	printed := ask(t, looking(url), "", "migrate", "--print")
	printed.want(t, 0, "CREATE TABLE IF NOT EXISTS `lockgate_locks`")
	if other := ask(t, looking("mysql://x@"+closedPort(t)+"/x"), "", "migrate", "--print"); other.code != 0 || other.stdout != printed.stdout {
		t.Errorf("migrate --print without a database = %d, %q; want the same", other.code, other.stdout)
	}
	// Who may not create it is told, and what was printed does it.
	ask(t, looking(url), "", "migrate").want(t, 69, "CREATE TABLE", "lockgate migrate --print")
	server.Exec(t, strings.Replace(strings.TrimSuffix(strings.TrimSpace(printed.stdout), ";"), "`lockgate_locks`", schema+".lockgate_locks", 1))
	ask(t, looking(url), "", "migrate").want(t, 0, "exists already")
	startRun(t, short(url), "true").wantExit(0)
}

func TestMigrateWaitsForADatabaseThatStarts(t *testing.T) {
	t.Parallel()
	way := testserver.NewForwarder(t, "tcp", mariadb(t).Address())
	must(t, way.SetMode(testserver.Refuse))
	p := start(t, looking(account(t, mariadb(t), way.Address())).with(settings{"START_TIMEOUT": "1h"}), "migrate")
	p.awaitOutput("trying again")
	must(t, way.SetMode(testserver.Pass))
	p.wantExit(0)
	wantSaid(t, p.said(), "created the table")
}

func TestConfigShowsTheSettingsWithoutSecrets(t *testing.T) {
	t.Parallel()
	secret := script(t, password+"\n", 0o600)
	s := settings{"DB_URL": "mysql://user:" + password + "@" + closedPort(t) + "/jobs", "TTL": "3m"}
	a := ask(t, s, "", "config")
	a.want(t, 0, "LOCKGATE_DB_URL ", "[redacted]", "VARIABLE ", "FROM\n")
	for _, line := range []string{
		`(?m)^LOCKGATE_TTL +3m +environment$`, `(?m)^LOCKGATE_ON_BUSY +skip +default$`,
		`(?m)^LOCKGATE_RENEW_EVERY +30s +default: from LOCKGATE_TTL$`, `(?m)^LOCKGATE_NAME +- +not set$`,
	} {
		if !regexp.MustCompile(line).MatchString(a.stdout) {
			t.Errorf("config said\n%s\nwant a line like %s", a.stdout, line)
		}
	}
	for _, more := range []settings{{"DB_PASSWORD": password}, {"DB_PASSWORD_FILE": secret}} {
		ask(t, settings{"DB_URL": "mysql://user@db/jobs"}.with(more), "", "config").want(t, 0)
	}
	var list []struct{ Name, Value, From string }
	a = ask(t, s, "", "config", "--output=json")
	a.want(t, 0)
	if err := json.Unmarshal([]byte(a.stdout), &list); err != nil || len(list) < 20 || list[1].Name != "LOCKGATE_DB_URL" || list[1].From != "environment" {
		t.Errorf("config -o json = %+v, %v", list, err)
	}
}

func TestCommandsForPeopleListWrongSettings(t *testing.T) {
	t.Parallel()
	wrong := settings{"DB_URL": "mysql://user:" + password + "@", "DB_PASSWORD": password, "DB_TABLE": "a b", "DIR": "here", "TLT": "1m", "START_TIMEOUT": "soon"}
	for _, c := range []struct {
		args  []string
		names []string
	}{
		{[]string{"status"}, []string{"DB_URL", "DB_TABLE", "DIR", "TLT"}},
		{[]string{"unlock", "nightly"}, []string{"DB_URL", "DB_TABLE", "TLT"}},
		{[]string{"migrate"}, []string{"DB_URL", "DB_TABLE", "START_TIMEOUT", "TLT"}},
		{[]string{"migrate", "--print"}, []string{"DB_URL", "DB_TABLE", "START_TIMEOUT", "TLT"}},
		{[]string{"config"}, []string{"DB_URL", "DB_TABLE", "START_TIMEOUT", "DIR", "TLT"}},
	} {
		a := ask(t, wrong, "", c.args...)
		a.want(t, 78, "fix the settings")
		for _, name := range c.names {
			wantSaid(t, a.stderr, "LOCKGATE_"+name+" ")
		}
	}
}

// folderOfNobody is a folder that an ordinary user owns, and how to come as one.
func folderOfNobody(t *testing.T) (dir string, asUser *syscall.SysProcAttr) {
	t.Helper()
	dir, asUser = unwritable(t)
	must(t, os.Chmod(dir, 0o755))
	if c := asUser.Credential; c != nil {
		must(t, os.Chown(dir, int(c.Uid), int(c.Gid)))
	}
	return dir, asUser
}

func TestInstallReplacesACopyThatRuns(t *testing.T) {
	t.Parallel()
	dir, asUser := folderOfNobody(t)
	install := func(binary string) answer {
		cmd := exec.CommandContext(inTime(t), "sh", "-c", `umask 077; exec "$0" install "$1"`, binary, dir)
		cmd.SysProcAttr = asUser
		return askFrom(t, cmd, settings{}.environ(), "")
	}
	copied := filepath.Join(dir, "lockgate")
	install(built.lockgate).want(t, 0, copied+"\n")
	running := launch(t, exec.Command(copied, "run", "--", "sleep", "1000"), short(sqliteURL(t)).with(calm()).environ())
	running.awaitOutput("lock acquired")
	before, err := os.Stat(copied)
	must(t, err)
	install(copied).want(t, 0, copied+"\n") // also by itself
	after, err := os.Stat(copied)
	must(t, err)
	if os.SameFile(before, after) || after.Mode() != 0o555 || running.ended() {
		t.Errorf("the copy has mode %s; want a new file with 0555, and the old one to run on", after.Mode())
	}
	want, err := os.ReadFile(built.lockgate)
	must(t, err)
	if got, err := os.ReadFile(copied); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy is not the same as the original: %v", err)
	}
	askFrom(t, exec.CommandContext(inTime(t), copied, "version"), nil, "").want(t, 0, "lockgate ")
	wantOnly(t, dir, "lockgate")
}

// wantOnly checks what is in a folder.
func wantOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("%q is in %s; want %q", got, dir, names)
	}
}

func TestInstallSaysWhyItCannot(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	ask(t, settings{}, "", "install", missing).want(t, 78, missing, "mount a volume at")
	file := script(t, "", 0o644)
	ask(t, settings{}, "", "install", file).want(t, 78, file, "not a directory")

	closed, asUser := unwritable(t)
	cmd := exec.CommandContext(inTime(t), built.lockgate, "install", closed)
	cmd.SysProcAttr = asUser
	askFrom(t, cmd, nil, "").want(t, 78, "permission denied", "let this user (")

	taken := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(taken, "lockgate", "x"), 0o755))
	ask(t, settings{}, "", "install", taken).want(t, 78, "name another directory")
	wantOnly(t, taken, "lockgate")

	for _, c := range []struct {
		name, options string
		says          []string
	}{
		{"noexec", "noexec", []string{"mounted noexec", "an emptyDir is fine"}},
		{"full", "size=1m", []string{"no space left", "more room"}},
		{"read-only", "ro", []string{"read-only file system", "without readOnly"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// In a mount namespace of its own, of which nothing is left.
			args := []string{"--mount"}
			if os.Geteuid() != 0 {
				args = append(args, "--user", "--map-root-user")
			}
			args = append(args, "sh", "-c", `mount -t tmpfs -o "$1" none "$2" && "$0" install "$2"; code=$?; ls -A "$2"; exit $code`,
				built.lockgate, c.options, t.TempDir())
			a := askFrom(t, exec.CommandContext(inTime(t), "unshare", args...), settings{}.environ(), "")
			a.want(t, 78, c.says...)
			if a.stdout != "" {
				t.Errorf("it left %q", a.stdout)
			}
		})
	}
}

func TestTheExamplesOfHelpWork(t *testing.T) {
	t.Parallel()
	url := database(t)
	help := ask(t, settings{}, "", "--help")
	help.want(t, 0)
	var lines []string
	for line := range strings.Lines(strings.NewReplacer(
		"/tmp/locks.db", filepath.Join(t.TempDir(), "locks.db"), "mysql://user:password@db.example/jobs", url,
	).Replace(help.stdout)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "export ") || strings.HasPrefix(line, "lockgate run --") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 5 {
		t.Fatalf("the examples are %q; want five lines", lines)
	}
	folder, ran, over := jobFolder(t)
	must(t, os.Symlink(built.lockgate, filepath.Join(folder, "lockgate")))
	inShell := func(line string) *proc {
		cmd := exec.Command("sh", "-c", line)
		cmd.Dir = folder
		environ := settings{}.environ()
		environ[0] = "PATH=" + folder + ":" + os.Getenv("PATH")
		return launch(t, cmd, environ)
	}
	first := inShell(lines[0] + "; " + strings.TrimSuffix(lines[1], " &"))
	first.awaitOutput("lock acquired")
	second := inShell(lines[0] + "; " + lines[2])
	second.wantExit(0)
	wantSaid(t, second.said(), "skipping")
	if strings.Contains(second.said(), "nobody else") {
		t.Error("the second one has run")
	}
	touch(t, over)
	inShell(lines[3] + "; " + lines[4]).wantExit(0)
	text, err := os.ReadFile(ran)
	must(t, err)
	if n := strings.Count(string(text), "\n"); n != 1 {
		t.Errorf("the job has run %d times; want once", n)
	}
}
