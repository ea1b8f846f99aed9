package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readmeSettings returns the names in the README's table, which is made from the
// program's own list.
func readmeSettings(t *testing.T) []string {
	t.Helper()
	f, err := os.Open("../README.md")
	must(t, err)
	defer f.Close()
	row := regexp.MustCompile("^\\| `([A-Z_]+)` \\|")
	var names []string
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		inside = inside && lines.Text() != "<!-- /settings -->" || strings.HasPrefix(lines.Text(), "<!-- settings:")
		if m := row.FindStringSubmatch(lines.Text()); inside && m != nil {
			names = append(names, m[1])
		}
	}
	if len(names) < 30 {
		t.Fatalf("the README's table has %d settings: %q", len(names), names)
	}
	return names
}

// A variable that is set to nothing is nearly always a template that found no
// value. Only what the downward API fills may be empty.
func TestEverySettingThatIsSetToNothingIsNamed(t *testing.T) {
	t.Parallel()
	mayBeEmpty := []string{"RUN", "CLUSTER", "POD_NAMESPACE", "POD_NAME", "POD_UID", "NODE_NAME"}
	base := short(sqliteURL(t)).with(settings{"DIR": t.TempDir(), "MAIN_TIMEOUT": "10ms"})
	for _, name := range readmeSettings(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, base.with(settings{"DIR": t.TempDir()}).with(settings{name: ""}), "sidecar")
			p.wantExit(78)
			said := p.said()
			if slices.Contains(mayBeEmpty, name) {
				wantSaid(t, said, "no main asked for the lock") // so far it came
				return
			}
			wantSaid(t, said, "LOCKGATE_"+name+" ", "nothing")
		})
	}
}

func TestAbsurdSettingsAreNamedWithTheirValue(t *testing.T) {
	t.Parallel()
	base := short(sqliteURL(t)).with(settings{"DIR": t.TempDir()})
	for _, c := range []struct{ name, value, says string }{
		{"NAME", strings.Repeat("x", 256), "255"},
		{"NAME", " x", "blank"},
		{"NAME", "a\nb", "printed"},
		{"NAME", "${NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE"},
		{"NAME", "${LOCKGATE_DB_URL}", "for everybody to read"},
		{"TTL", "1ms", "at least 2s"}, {"TTL", "0", "at least 2s"}, {"TTL", "-2m", "at least"}, {"TTL", "1000000h", "at most"},
		{"TTL", "120", "120s"}, {"TTL", "PT2M", "2m"}, {"TTL", "1d", "24h"}, {"TTL", "soon", "2m"},
		{"RENEW_EVERY", "1us", "at least"}, {"RENEW_EVERY", "1h", "LOCKGATE_TTL"},
		{"STOP_GRACE", "-1s", "at least"}, {"STOP_GRACE", "1h", "LOCKGATE_TTL"},
		{"SAFETY_MARGIN", "1ms", "200ms"},
		{"MIN_HOLD", "-1s", "at least"}, {"MIN_HOLD", "99999h", "at most"},
		{"MAX_HOLD", "1ms", "at least 1s"},
		{"ON_BUSY", "retry", "skip, wait or fail"}, {"ON_BUSY", "SKIP", "skip, wait or fail"},
		{"ON_LOST", "ignore", "stop or continue"},
		{"SKIP_EXIT_CODE", "126", "0 to 125"}, {"SKIP_EXIT_CODE", "-1", "0 to 125"}, {"SKIP_EXIT_CODE", "zero", "whole number"},
		{"WRAPPED", "perhaps", "true or false"},
		{"SIDECAR", "native-ish", "native or plain"},
		{"POLL_EVERY", "1ns", "at least"}, {"POLL_EVERY", "1h", "LOCKGATE_WAIT_TIMEOUT"},
		{"WAIT_TIMEOUT", "-1s", "at least"}, {"START_TIMEOUT", "0", "longer than nothing"},
		{"MAIN_TIMEOUT", "0", "longer than nothing"}, {"VERDICT_TIMEOUT", "0s", "longer than nothing"},
		{"DIR", "relative", "absolute"}, {"TERMINATION_LOG", "relative", "absolute"},
		{"DB_TABLE", "locks; DROP TABLE x", "letters, digits and underscores"}, {"DB_TABLE", strings.Repeat("t", 65), "1 to 64"},
		{"DB_AUTO_MIGRATE", "maybe", "true or false"}, {"DB_TLS", "on", "disable"},
		{"DB_URL_FILE", "/no/such/file", "LOCKGATE_DB_URL"}, {"DB_PASSWORD", "x", "SQLite"},
		{"DB_LAYOUT", "shedlock", "not supported"}, {"DB_TIME_ZONE", "UTC", "not supported"}, {"LISTEN", ":9000", "not supported"},
		{"CLUSTER", strings.Repeat("c", 200), "128"}, {"POD_NAMESPACE", "a\x01b", "printable"}, {"RUN", strings.Repeat("r", 256), "255"},
		{"LOG_FORMAT", "xml", "auto, json or text"}, {"LOG_LEVEL", "loud", "debug, info, warn or error"},
		{"LOKC_NAME", "x", "did you mean"}, {"PASSWORD", "x", "LOCKGATE_DB_PASSWORD"}, {"NAMEE", "x", "LOCKGATE_NAME"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			t.Parallel()
			p := start(t, base.with(settings{c.name: c.value}), "sidecar")
			p.wantExit(78)
			wantSaid(t, p.said(), "LOCKGATE_"+c.name, c.says)
		})
	}
}

func TestWhatAServiceCalledLockgateInjectsIsNoError(t *testing.T) {
	t.Parallel()
	startRun(t, short(sqliteURL(t)).with(settings{
		"PORT": "tcp://10.96.0.7:9000", "SERVICE_HOST": "10.96.0.7", "SERVICE_PORT": "9000", "SERVICE_PORT_HTTP": "9000",
		"PORT_9000_TCP": "tcp://10.96.0.7:9000", "PORT_9000_TCP_PROTO": "tcp", "PORT_9000_TCP_PORT": "9000", "PORT_9000_TCP_ADDR": "10.96.0.7",
		"DB_PORT": "tcp://10.96.0.7:3306", "DB_SERVICE_HOST": "10.96.0.7", "X_PORT_443_TCP": "tcp://10.96.0.7:443",
	}), "true").wantExit(0)
}

// onSmallDisk is the beginning of a command line that runs a script with a file
// system of its own at $1. Who is not root is root in a user namespace for it.
func onSmallDisk(t *testing.T, dir, script string) *exec.Cmd {
	t.Helper()
	args := []string{"--mount", "--fork", "--kill-child"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	return exec.Command("unshare", append(args, "sh", "-c", `mount -t tmpfs -o size=64k none "$1" && `+script, "sh", dir, built.lockgate)...)
}

func TestAFullGateDirectoryIsAWrongSetting(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"sidecar", "init", "exec -- touch /dev/null"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := launch(t, onSmallDisk(t, dir, `{ cat /dev/zero >"$1/fill" 2>/dev/null; exec "$2" `+command+`; }`),
				short(sqliteURL(t)).with(settings{"DIR": dir}).environ())
			p.wantExit(78)
			wantSaid(t, p.said(), "no space left on device", "LOCKGATE_DIR")
		})
	}
}

// When the deadlines cannot be moved on any more, CMD is stopped before they pass.
func TestAGateDirectoryThatFillsUpInMidHoldStopsCMDInTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := newStage(t)
	p := launch(t, onSmallDisk(t, dir, `
		{ "$2" sidecar & sidecar=$!
		"$2" exec -- sh -c 'cat /dev/zero >"$0/fill" 2>/dev/null; : >'"'`+at.witness()+`'"'; exec sleep 1000' "$1"
		code=$?; kill $sidecar; wait $sidecar; exit $code; }`),
		short(sqliteURL(t)).with(settings{"DIR": dir}).environ())
	awaitFile(t, at.witness())
	p.wantExit(76)
	wantSaid(t, p.said(), "no space left on device", "stopping the command")
}

func TestAStateOfAnotherPodIsNoVerdict(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	p := start(t, settings{"DIR": dir, "POD_UID": "mine", "VERDICT_TIMEOUT": "700ms"}, "exec", "--", "touch", ran)
	awaitFile(t, filepath.Join(dir, "request"))
	var request struct{ Nonce, Boot string }
	data, err := os.ReadFile(filepath.Join(dir, "request"))
	must(t, err)
	must(t, json.Unmarshal(data, &request))
	publish(t, filepath.Join(dir, "state.json"), `{"version":1,"request":"`+request.Nonce+`","boot":"`+request.Boot+
		`","pod":"another","state":"acquired","stop_at":"1000000h","kill_at":"1000001h","token":1}`)
	p.wantExit(69)
	wantSaid(t, p.said(), "no verdict came")
	if exists(ran) {
		t.Error("CMD has run on another pod's verdict")
	}
}

func TestSettingsThatDoNotGoTogetherNameBoth(t *testing.T) {
	t.Parallel()
	base := short(sqliteURL(t)).with(settings{"DIR": t.TempDir()})
	for _, c := range []struct {
		command string
		set     settings
		names   []string
	}{
		{"sidecar", settings{"WRAPPED": "false", "ON_BUSY": "fail"}, []string{"ON_BUSY", "WRAPPED"}},
		{"sidecar", settings{"WRAPPED": "false", "MAX_HOLD": "1h"}, []string{"MAX_HOLD", "WRAPPED"}},
		{"sidecar", settings{"WRAPPED": "false", "MIN_HOLD": "1h"}, []string{"MIN_HOLD", "WRAPPED"}},
		{"sidecar", settings{"WRAPPED": "false", "ON_LOST": "continue"}, []string{"ON_LOST", "WRAPPED"}},
		{"sidecar", settings{"WRAPPED": "false", "SIDECAR": "plain"}, []string{"SIDECAR", "WRAPPED"}},
		{"init", settings{"WRAPPED": "false"}, []string{"ON_BUSY", "WRAPPED"}},
		{"init", settings{"WRAPPED": "false", "ON_BUSY": "skip"}, []string{"ON_BUSY", "WRAPPED"}},
		{"init", settings{"MIN_HOLD": "1h"}, []string{"MIN_HOLD", "TTL"}},
		{"sidecar", settings{"MIN_HOLD": "2h", "MAX_HOLD": "1h"}, []string{"MIN_HOLD", "MAX_HOLD"}},
		{"sidecar", settings{"POLL_EVERY": "3m"}, []string{"POLL_EVERY", "WAIT_TIMEOUT"}},
		{"sidecar", settings{"RENEW_EVERY": "2s"}, []string{"RENEW_EVERY", "TTL", "STOP_GRACE", "SAFETY_MARGIN"}},
		{"sidecar", settings{"DB_PASSWORD": "x"}, []string{"DB_PASSWORD", "DB_URL"}},
		{"sidecar", settings{"DB_URL_FILE": "/x"}, []string{"DB_URL", "DB_URL_FILE"}},
		{"sidecar", settings{"DB_URL": "mysql://u@h/d", "DB_PASSWORD": "x", "DB_PASSWORD_FILE": "/x"}, []string{"DB_PASSWORD", "DB_PASSWORD_FILE"}},
		{"sidecar", settings{"DB_URL": "mysql://u@h/d", "DB_USER": "v"}, []string{"DB_USER", "DB_URL"}},
		{"sidecar", settings{"DB_URL": "mysql://u@h/d", "DB_CA_FILE": "/etc/passwd"}, []string{"DB_CA_FILE", "DB_TLS"}},
		{"sidecar", settings{"DB_URL": "mysql://u@h/d", "DB_CERT_FILE": "/etc/passwd"}, []string{"DB_CERT_FILE", "DB_KEY_FILE"}},
	} {
		t.Run(c.command+" "+strings.Join(c.names, " "), func(t *testing.T) {
			t.Parallel()
			p := start(t, base.with(c.set), c.command)
			p.wantExit(78)
			for _, name := range c.names {
				wantSaid(t, p.said(), "LOCKGATE_"+name)
			}
			wantNext(t, p.said())
		})
	}
}
