package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// nowhere is the probe of a machine that is no container.
func nowhere(string) bool { return false }

// mustLoad loads for a machine that is no container.
func mustLoad(t *testing.T, cmd Command, environ ...string) Config {
	t.Helper()
	c, err := load(cmd, environ, nowhere)
	if err != nil {
		t.Fatalf("load(%s, %q) = %v; want no error", cmd, environ, err)
	}
	return c
}

// problems loads and returns what was reported.
func problems(t *testing.T, cmd Command, environ ...string) []string {
	t.Helper()
	c, err := load(cmd, environ, nowhere)
	if err == nil {
		return nil
	}
	e, ok := err.(*Error)
	if !ok {
		t.Fatalf("load(%s, %q) = %T; want *Error", cmd, environ, err)
	}
	if len(e.Problems) == 0 || c != (Config{}) {
		t.Fatalf("load(%s, %q) = %+v, %q; want the zero Config and at least one problem", cmd, environ, c, e.Problems)
	}
	for _, p := range e.Problems {
		if !strings.HasPrefix(p, Prefix) || strings.Contains(p, "\n") {
			t.Errorf("problem %q: want one line that starts with a variable", p)
		}
	}
	return e.Problems
}

// minimal is what a sidecar or run must be told.
func minimal(more ...string) []string {
	return append([]string{"LOCKGATE_NAME=nightly", "LOCKGATE_DB_URL=mysql://job@db.example/locks"}, more...)
}

func TestDefaultsAreThoseOfTheDocumentation(t *testing.T) {
	got := mustLoad(t, Sidecar, minimal()...)
	want := Config{
		Name: "nightly", OnBusy: Skip,
		WaitTimeout: 5 * time.Minute, PollEvery: time.Second, StartTimeout: time.Minute,
		TTL: 2 * time.Minute, RenewEvery: 20 * time.Second, StopGrace: 10 * time.Second, SafetyMargin: 5 * time.Second,
		OnLost: Stop, Wrapped: true, TerminationLog: "/dev/termination-log",
		SidecarKind: Native, MainTimeout: 10 * time.Minute, VerdictTimeout: 2 * time.Minute, Dir: "/lockgate",
		LogFormat: LogAuto, LogLevel: slog.LevelInfo,
		Table: "lockgate_locks", AutoMigrate: true,
		Database: got.Database,
	}
	if got != want {
		t.Errorf("defaults = %+v; want %+v", got, want)
	}
	if got.Database.Kind != MySQL {
		t.Errorf("Database.Kind = %q; want %q", got.Database.Kind, MySQL)
	}
}

func TestEverySettingReachesItsField(t *testing.T) {
	got := mustLoad(t, Sidecar, minimal(
		"LOCKGATE_ON_BUSY=wait", "LOCKGATE_WAIT_TIMEOUT=0", "LOCKGATE_POLL_EVERY=50ms", "LOCKGATE_START_TIMEOUT=3s",
		"LOCKGATE_TTL=10s", "LOCKGATE_RENEW_EVERY=1s", "LOCKGATE_STOP_GRACE=0", "LOCKGATE_SAFETY_MARGIN=300ms",
		"LOCKGATE_SKIP_EXIT_CODE=125", "LOCKGATE_SIDECAR=plain", "LOCKGATE_MAIN_TIMEOUT=4s", "LOCKGATE_VERDICT_TIMEOUT=6s",
		"LOCKGATE_DIR=/gate", "LOCKGATE_CLUSTER=west", "LOCKGATE_POD_NAMESPACE=ns", "LOCKGATE_POD_NAME=pod",
		"LOCKGATE_POD_UID=uid", "LOCKGATE_NODE_NAME=node", "LOCKGATE_LOG_FORMAT=text", "LOCKGATE_LOG_LEVEL=WARN",
		"LOCKGATE_RUN=job-1", "LOCKGATE_MIN_HOLD=7s", "LOCKGATE_MAX_HOLD=8s", "LOCKGATE_ON_LOST=continue", "LOCKGATE_WRAPPED=1",
		"LOCKGATE_TERMINATION_LOG=/t", "LOCKGATE_DB_TABLE=t_1", "LOCKGATE_DB_AUTO_MIGRATE=false", "LOCKGATE_DB_TLS=require", "NO_COLOR=1", "LOCKGATE_LOCK=outer")...)
	want := Config{
		Name: "nightly", OnBusy: Wait,
		WaitTimeout: 0, PollEvery: 50 * time.Millisecond, StartTimeout: 3 * time.Second,
		TTL: 10 * time.Second, RenewEvery: time.Second, StopGrace: 0, SafetyMargin: 300 * time.Millisecond,
		SkipExitCode: 125, SidecarKind: Plain, MainTimeout: 4 * time.Second, VerdictTimeout: 6 * time.Second,
		Run: "job-1", MinHold: 7 * time.Second, MaxHold: 8 * time.Second, OnLost: Continue, Wrapped: true,
		TerminationLog: "/t", TerminationLogIsSet: true,
		Dir: "/gate", DirIsSet: true, Cluster: "west", PodNamespace: "ns", PodName: "pod", PodUID: "uid", NodeName: "node",
		LogFormat: LogText, LogLevel: slog.LevelWarn, NoColor: true,
		Table: "t_1", AutoMigrate: false, InsideLock: "outer",
		Database: got.Database,
	}
	if got != want {
		t.Errorf("load = %+v; want %+v", got, want)
	}
}

func TestDerivedDurationsFollowTheTTL(t *testing.T) {
	for _, c := range []struct {
		ttl                  string
		renew, grace, margin time.Duration
	}{
		{"2s", 2 * time.Second / 6, 500 * time.Millisecond, 250 * time.Millisecond},
		{"30s", 5 * time.Second, 7500 * time.Millisecond, 3750 * time.Millisecond},
		{"40s", 40 * time.Second / 6, 10 * time.Second, 5 * time.Second},
		{"720h", 120 * time.Hour, 10 * time.Second, 5 * time.Second},
	} {
		got := mustLoad(t, Run, minimal("LOCKGATE_TTL="+c.ttl)...)
		if got.RenewEvery != c.renew || got.StopGrace != c.grace || got.SafetyMargin != c.margin {
			t.Errorf("TTL %s: renew %s, grace %s, margin %s; want %s, %s, %s",
				c.ttl, got.RenewEvery, got.StopGrace, got.SafetyMargin, c.renew, c.grace, c.margin)
		}
	}
}

func TestCallLimitIsTheRenewalsIntervalButNeverLong(t *testing.T) {
	for renew, want := range map[time.Duration]time.Duration{
		300 * time.Millisecond: 300 * time.Millisecond,
		5 * time.Second:        5 * time.Second,
		time.Hour:              5 * time.Second,
	} {
		if got := (Config{RenewEvery: renew}).CallLimit(); got != want {
			t.Errorf("CallLimit with RenewEvery %s = %s; want %s", renew, got, want)
		}
	}
}

// Each case is one thing that is wrong, and what the only problem must say.
func TestOneWrongSettingIsOneProblemThatHelps(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		name    string
		environ []string // in place of or beyond minimal; NAME= alone removes
		want    []string
	}{
		{"a bare number", []string{"LOCKGATE_TTL=90"}, []string{"LOCKGATE_TTL", `"90"`, "90s"}},
		{"days", []string{"LOCKGATE_TTL=2d"}, []string{"LOCKGATE_TTL", "48h"}},
		{"weeks", []string{"LOCKGATE_WAIT_TIMEOUT=1w"}, []string{"LOCKGATE_WAIT_TIMEOUT", "168h"}},
		{"an ISO 8601 duration", []string{"LOCKGATE_TTL=PT1M30S"}, []string{"LOCKGATE_TTL", "1m30s"}},
		{"an ISO 8601 duration in days", []string{"LOCKGATE_TTL=P1D"}, []string{"LOCKGATE_TTL", "24h"}},
		{"no duration at all", []string{"LOCKGATE_TTL=soon"}, []string{"LOCKGATE_TTL", `"soon"`, "90s"}},
		{"a duration beyond what fits", []string{"LOCKGATE_TTL=9999999999h"}, []string{"LOCKGATE_TTL"}},
		{"a number beyond what fits", []string{"LOCKGATE_TTL=99999999999999999999"}, []string{"LOCKGATE_TTL"}},
		{"the longest duration of Go", []string{"LOCKGATE_RENEW_EVERY=2562047h"}, []string{"LOCKGATE_RENEW_EVERY", "at most 720h"}},
		{"a TTL that is too short", []string{"LOCKGATE_TTL=1999ms"}, []string{"LOCKGATE_TTL", "at least 2s"}},
		{"a TTL that is too long", []string{"LOCKGATE_TTL=720h1s"}, []string{"LOCKGATE_TTL", "at most 720h"}},
		{"a negative TTL", []string{"LOCKGATE_TTL=-1m"}, []string{"LOCKGATE_TTL", "at least 2s"}},
		{"a renewal without pause", []string{"LOCKGATE_RENEW_EVERY=0"}, []string{"LOCKGATE_RENEW_EVERY", "at least 50ms"}},
		{"a negative grace", []string{"LOCKGATE_STOP_GRACE=-1s"}, []string{"LOCKGATE_STOP_GRACE", "at least 0s"}},
		{"a negative wait", []string{"LOCKGATE_WAIT_TIMEOUT=-1s"}, []string{"LOCKGATE_WAIT_TIMEOUT", "at least 0s"}},
		{"polling without pause", []string{"LOCKGATE_POLL_EVERY=0s"}, []string{"LOCKGATE_POLL_EVERY", "at least 10ms"}},
		{"no time to start", []string{"LOCKGATE_START_TIMEOUT=0"}, []string{"LOCKGATE_START_TIMEOUT", "longer than nothing"}},
		{"no time for main", []string{"LOCKGATE_MAIN_TIMEOUT=0"}, []string{"LOCKGATE_MAIN_TIMEOUT", "longer than nothing"}},
		{"no time for a verdict", []string{"LOCKGATE_VERDICT_TIMEOUT=-1ns"}, []string{"LOCKGATE_VERDICT_TIMEOUT", "longer than nothing"}},
		{"years of waiting", []string{"LOCKGATE_WAIT_TIMEOUT=8761h"}, []string{"LOCKGATE_WAIT_TIMEOUT", "at most 8760h"}},

		{"renewals too rare for the default TTL", []string{"LOCKGATE_RENEW_EVERY=50s"},
			[]string{"LOCKGATE_RENEW_EVERY (50s)", "1m45s", "LOCKGATE_TTL (2m by default)", "LOCKGATE_STOP_GRACE (10s by default)", "LOCKGATE_SAFETY_MARGIN (5s by default)"}},
		{"a grace that eats the lease", []string{"LOCKGATE_STOP_GRACE=1m"},
			[]string{"LOCKGATE_RENEW_EVERY (20s by default)", "LOCKGATE_STOP_GRACE (1m)"}},
		{"a grace longer than the lease", []string{"LOCKGATE_STOP_GRACE=3m"}, []string{"LOCKGATE_STOP_GRACE (3m)", "LOCKGATE_SAFETY_MARGIN (5s by default)", "LOCKGATE_TTL (2m by default)"}},
		{"a margin that eats the lease", []string{"LOCKGATE_SAFETY_MARGIN=1m", "LOCKGATE_TTL=1m"},
			[]string{"LOCKGATE_SAFETY_MARGIN (1m)", "LOCKGATE_TTL (1m)"}},
		{"polls rarer than the wait", []string{"LOCKGATE_POLL_EVERY=6m"},
			[]string{"LOCKGATE_POLL_EVERY (6m)", "LOCKGATE_WAIT_TIMEOUT (5m by default)"}},
		{"a wait shorter than the default poll", []string{"LOCKGATE_WAIT_TIMEOUT=500ms"},
			[]string{"LOCKGATE_POLL_EVERY (1s by default)", "LOCKGATE_WAIT_TIMEOUT (500ms)"}},

		{"a word for what to do when busy", []string{"LOCKGATE_ON_BUSY=Skip"}, []string{"LOCKGATE_ON_BUSY", `"Skip"`, "skip, wait or fail"}},
		{"a kind of sidecar", []string{"LOCKGATE_SIDECAR=init"}, []string{"LOCKGATE_SIDECAR", "native or plain"}},
		{"a format", []string{"LOCKGATE_LOG_FORMAT=tint"}, []string{"LOCKGATE_LOG_FORMAT", "auto, json or text"}},
		{"a level", []string{"LOCKGATE_LOG_LEVEL=warn+1"}, []string{"LOCKGATE_LOG_LEVEL", "debug, info, warn or error"}},
		{"a boolean", []string{"LOCKGATE_DB_AUTO_MIGRATE=yes"}, []string{"LOCKGATE_DB_AUTO_MIGRATE", "true or false"}},
		{"an exit code that is no number", []string{"LOCKGATE_SKIP_EXIT_CODE=zero"}, []string{"LOCKGATE_SKIP_EXIT_CODE", "whole number"}},
		{"an exit code beyond int", []string{"LOCKGATE_SKIP_EXIT_CODE=99999999999999999999"}, []string{"LOCKGATE_SKIP_EXIT_CODE", "whole number"}},
		{"an exit code of a signal", []string{"LOCKGATE_SKIP_EXIT_CODE=126"}, []string{"LOCKGATE_SKIP_EXIT_CODE", "0 to 125"}},
		{"a negative exit code", []string{"LOCKGATE_SKIP_EXIT_CODE=-1"}, []string{"LOCKGATE_SKIP_EXIT_CODE", "0 to 125"}},
		{"a table with a quote", []string{"LOCKGATE_DB_TABLE=a`b"}, []string{"LOCKGATE_DB_TABLE", "letters"}},
		{"a table that starts with a digit", []string{"LOCKGATE_DB_TABLE=1a"}, []string{"LOCKGATE_DB_TABLE", "digit"}},
		{"a relative gate directory", []string{"LOCKGATE_DIR=gate"}, []string{"LOCKGATE_DIR", "absolute"}},
		{"a cluster with a newline", []string{"LOCKGATE_CLUSTER=a\nb"}, []string{"LOCKGATE_CLUSTER", "printable"}},
		{"a pod name that is too long", []string{"LOCKGATE_POD_NAME=" + long}, []string{"LOCKGATE_POD_NAME", "253"}},

		{"no name", []string{"-LOCKGATE_NAME"}, []string{"LOCKGATE_NAME is not set", "LOCKGATE_NAME="}},
		{"an empty name", []string{"LOCKGATE_NAME="}, []string{"LOCKGATE_NAME is set to nothing"}},
		{"a name of blanks", []string{"LOCKGATE_NAME= "}, []string{"LOCKGATE_NAME", "blank"}},
		{"a name with a newline at its end", []string{"LOCKGATE_NAME=nightly\n"}, []string{"LOCKGATE_NAME", "U+000A", "byte 8"}},
		{"a name with a no-break space", []string{"LOCKGATE_NAME=a\u00a0b"}, []string{"LOCKGATE_NAME", "U+00A0", "byte 2"}},
		{"a name that is not UTF-8", []string{"LOCKGATE_NAME=a\xff"}, []string{"LOCKGATE_NAME", "UTF-8", "byte 2"}},
		{"a name that is too long", []string{"LOCKGATE_NAME=" + long}, []string{"LOCKGATE_NAME", "256", "255"}},
		{"a name that becomes too long", []string{"LOCKGATE_NAME=${X}${X}", "X=" + long[:128]}, []string{"LOCKGATE_NAME", "256"}},
		{"a name that expands to nothing", []string{"LOCKGATE_NAME=${X}", "X="}, []string{"LOCKGATE_NAME", "empty once it is expanded"}},
		{"a name with an unset variable", []string{"LOCKGATE_NAME=a-${TENANT}"}, []string{"LOCKGATE_NAME", "${TENANT}", "not set"}},
		{"a name with an open brace", []string{"LOCKGATE_NAME=a-${TENANT"}, []string{"LOCKGATE_NAME", "without its }"}},
		{"a name with a shell default", []string{"LOCKGATE_NAME=${A:-b}"}, []string{"LOCKGATE_NAME", "${A:-b}", "names no variable"}},
		{"a name made of a secret", []string{"LOCKGATE_NAME=${LOCKGATE_DB_URL}"}, []string{"LOCKGATE_NAME", "${LOCKGATE_DB_URL}"}},
		{"the lock we are in", []string{"LOCKGATE_LOCK=nightly"}, []string{"LOCKGATE_NAME", "LOCKGATE_LOCK", "already inside this lock"}},
		{"the lock we are in, by expansion", []string{"LOCKGATE_LOCK=nightly", "LOCKGATE_NAME=${A}ly", "A=night"}, []string{"already inside this lock"}},

		{"a misspelled name", []string{"LOCKGATE_LOKC_NAME=x"}, []string{"LOCKGATE_LOKC_NAME is not a setting", "did you mean LOCKGATE_"}},
		{"a unit in the name", []string{"LOCKGATE_TTL_SECONDS=9"}, []string{"did you mean LOCKGATE_TTL?"}},
		{"a forgotten DB_", []string{"LOCKGATE_PASSWORD=hunter2"}, []string{"did you mean LOCKGATE_DB_PASSWORD?"}},
		{"two swapped letters", []string{"LOCKGATE_NAEM=x"}, []string{"did you mean LOCKGATE_NAME?"}},
		{"a port, as if it were a setting", []string{"LOCKGATE_DB_PORT=3306"}, []string{"LOCKGATE_DB_PORT is not a setting"}},
		{"nothing after the prefix", []string{"LOCKGATE_=x"}, []string{"LOCKGATE_ is not a setting"}},
		{"a very long name", []string{"LOCKGATE_" + long + "=x"}, []string{"is not a setting"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			environ := minimal()
			for _, kv := range c.environ {
				if name, ok := strings.CutPrefix(kv, "-"); ok {
					environ = slices.DeleteFunc(environ, func(e string) bool { return strings.HasPrefix(e, name+"=") })
					continue
				}
				environ = append(environ, kv)
			}
			got := problems(t, Sidecar, environ...)
			if len(got) != 1 {
				t.Fatalf("problems(%q) = %q; want one", c.environ, got)
			}
			for _, w := range c.want {
				if !strings.Contains(got[0], w) {
					t.Errorf("problem = %q; want it to contain %q", got[0], w)
				}
			}
		})
	}
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	got := problems(t, Sidecar,
		"LOCKGATE_TTL=90", "LOCKGATE_ON_BUSY=maybe", "LOCKGATE_NAME=${NOPE}", "LOCKGATE_DB_URL=mysql://h/d",
		"LOCKGATE_DB_TLS=yes", "LOCKGATE_SKIP_EXIT_CODE=300", "LOCKGATE_NMAE=x", "LOCKGATE_MIN_HOLD=1", "LOCKGATE_DIR=x", "LOCKGATE_CLUSTER=\x01")
	for _, name := range []string{"TTL", "ON_BUSY", "NAME", "DB_URL", "DB_TLS", "SKIP_EXIT_CODE", "NMAE", "MIN_HOLD", "DIR", "CLUSTER"} {
		n := 0
		for _, p := range got {
			if strings.HasPrefix(p, Prefix+name+" ") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d problems about %s in %q; want 1", n, name, got)
		}
	}
	if len(got) != 10 {
		t.Errorf("%d problems; want 10: %q", len(got), got)
	}
}

func TestProblemsNameVariablesAndNeverGo(t *testing.T) {
	for _, f := range fields() {
		for _, p := range problems(t, Sidecar, minimal(f.name+"=\x01?")...) {
			for _, word := range []string{"field", "time.Duration", "config.", "strconv", "parse error", "env:"} {
				if strings.Contains(p, word) {
					t.Errorf("%s: problem %q contains %q", f.name, p, word)
				}
			}
		}
	}
}

func TestEverySettingEmptyIsReportedForEachThatMatters(t *testing.T) {
	var environ []string
	for _, f := range fields() {
		environ = append(environ, f.name+"=")
	}
	for _, cmd := range []Command{Sidecar, Init, Run, Show} {
		var want []string
		for _, f := range fields() {
			if !f.emptyOK && slices.Contains(f.by, cmd) {
				want = append(want, f.name)
			}
		}
		var got []string
		for _, p := range problems(t, cmd, environ...) {
			name, _, _ := strings.Cut(p, " ")
			if strings.Contains(p, "are both set") {
				continue
			}
			got = append(got, name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s with every setting empty complains about %q; want %q", cmd, got, want)
		}
	}
}

func TestTheDownwardAPIMayBeEmpty(t *testing.T) {
	mustLoad(t, Sidecar, minimal("LOCKGATE_CLUSTER=", "LOCKGATE_POD_NAMESPACE=", "LOCKGATE_POD_NAME=",
		"LOCKGATE_POD_UID=", "LOCKGATE_NODE_NAME=", "LOCKGATE_RUN=")...)
}

func TestWhatDoesNothingYetIsRefusedEvenAtItsDefault(t *testing.T) {
	for _, kv := range []string{
		"LISTEN=off", "LISTEN=", "DB_LAYOUT=lockgate", "DB_TIME_ZONE=UTC",
	} {
		name, _, _ := strings.Cut(kv, "=")
		got := problems(t, Run, minimal(Prefix+kv)...)
		if len(got) != 1 || !strings.HasPrefix(got[0], Prefix+name+" ") ||
			!strings.Contains(got[0], "is not supported by this version yet; unset it") {
			t.Errorf("%s: problems = %q; want one that says it is not supported yet", kv, got)
		}
	}
}

func TestWhatKubernetesAndTestsInjectIsNoError(t *testing.T) {
	mustLoad(t, Sidecar, minimal(
		"LOCKGATE_PORT=tcp://10.0.0.1:443", "LOCKGATE_SERVICE_HOST=10.0.0.1", "LOCKGATE_SERVICE_PORT=443",
		"LOCKGATE_SERVICE_PORT_HTTPS=443", "LOCKGATE_PORT_443_TCP=tcp://10.0.0.1:443", "LOCKGATE_PORT_443_TCP_ADDR=10.0.0.1",
		"LOCKGATE_PORT_443_TCP_PORT=443", "LOCKGATE_PORT_443_TCP_PROTO=tcp", "LOCKGATE_PORT_53_UDP=udp://10.0.0.1:53",
		"LOCKGATE_MY_DB_PORT=tcp://10.0.0.1:443", "LOCKGATE_MY_DB_SERVICE_HOST=10.0.0.1", "LOCKGATE_MY_DB_SERVICE_PORT=443",
		"LOCKGATE_MY_DB_SERVICE_PORT_METRICS=9", "LOCKGATE_MY_DB_PORT_443_TCP=tcp://10.0.0.1:443",
		"LOCKGATE_MY_DB_PORT_443_TCP_ADDR=10.0.0.1", "LOCKGATE_MY_DB_PORT_443_TCP_PORT=443", "LOCKGATE_MY_DB_PORT_443_TCP_PROTO=tcp",
		"LOCKGATE_TOKEN=7", "LOCKGATE_LOCK=other", "LOCKGATE_TEST_X=1", "LOCKGATE_E2E_X=1", "NOT_LOCKGATE_X=1", "LOCKGATEX=1")...)
}

func TestNoSettingLooksLikeWhatKubernetesInjects(t *testing.T) {
	for _, s := range Settings() {
		if ours(s.Name, "tcp://10.0.0.1:1") {
			t.Errorf("%s would never be missed when a Service injects it", s.Name)
		}
	}
}

func TestExecAndCheckLookOnlyAtWhatTheyUse(t *testing.T) {
	shared := []string{
		"LOCKGATE_NAME=", "LOCKGATE_TTL=90", "LOCKGATE_ON_BUSY=maybe", "LOCKGATE_DB_URL=what", "LOCKGATE_MIN_HOLD=1m",
		"LOCKGATE_DIR=/gate", "LOCKGATE_POD_UID=uid", "LOCKGATE_LOCK=outer",
	}
	exec := append(slices.Clone(shared), "LOCKGATE_VERDICT_TIMEOUT=3s", "LOCKGATE_LOG_LEVEL=debug", "LOCKGATE_LOG_FORMAT=json")
	got := mustLoad(t, Exec, exec...)
	want := Config{Dir: "/gate", DirIsSet: true, PodUID: "uid", VerdictTimeout: 3 * time.Second, LogFormat: LogJSON, LogLevel: slog.LevelDebug, InsideLock: "outer"}
	if got != want {
		t.Errorf("load(exec) = %+v; want %+v", got, want)
	}
	check := append(slices.Clone(shared), "LOCKGATE_VERDICT_TIMEOUT=x", "LOCKGATE_LOG_LEVEL=x", "LOCKGATE_LOG_FORMAT=x")
	got = mustLoad(t, Check, check...)
	want = Config{Dir: "/gate", DirIsSet: true, PodUID: "uid", LogFormat: LogAuto, LogLevel: slog.LevelInfo, InsideLock: "outer"}
	if got != want {
		t.Errorf("load(check) = %+v; want %+v", got, want)
	}
	for _, cmd := range []Command{Exec, Check} {
		if got := problems(t, cmd, "LOCKGATE_DRI=/gate", "LOCKGATE_DIR="); len(got) != 2 {
			t.Errorf("%s: problems = %q; want one about DRI and one about DIR", cmd, got)
		}
		if got := mustLoad(t, cmd); got.Dir != "/lockgate" {
			t.Errorf("%s: Dir = %q; want the default", cmd, got.Dir)
		}
	}
	if got := problems(t, Exec, "LOCKGATE_VERDICT_TIMEOUT=0"); len(got) != 1 {
		t.Errorf("problems = %q; want one about VERDICT_TIMEOUT", got)
	}
}

func TestNameExpansion(t *testing.T) {
	vars := map[string]string{"A": "x", "EMPTY": "", "NESTED": "${A}", "_b1": "y"}
	for raw, want := range map[string]string{
		"plain":        "plain",
		"${A}":         "x",
		"a-${A}-${A}":  "a-x-x",
		"${_b1}":       "y",
		"$A $ $$ $":    "$A $ $$ $",
		"$${A}":        "${A}",
		"$$${A}":       "$${A}",
		"$${A}-${A}":   "${A}-x",
		"${EMPTY}a":    "a",
		"${NESTED}":    "${A}",
		"$(A)":         "$(A)",
		"}{":           "}{",
		"größe-${A}-世": "größe-x-世",
	} {
		got, err := expandName(raw, func(v string) (string, bool) { s, ok := vars[v]; return s, ok })
		if got != want || err != nil {
			t.Errorf("expandName(%q) = %q, %v; want %q", raw, got, err, want)
		}
	}
}

func TestSettingsAreDocumentedAndRead(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Settings() {
		if !strings.HasPrefix(s.Name, Prefix) || s.Doc == "" || seen[s.Name] || len(s.Commands) == 0 {
			t.Errorf("setting %+v: want a prefix, a meaning, a command, and only once", s)
		}
		seen[s.Name] = true
		got := problems(t, Sidecar, minimal(s.Name+"=")...)
		refused := len(got) > 0 && strings.Contains(got[0], "is not supported")
		if refused == s.Supported {
			t.Errorf("%s: Supported = %v, but problems = %q", s.Name, s.Supported, got)
		}
	}
	for _, name := range []string{"NAME", "DB_URL", "TTL", "LISTEN", "DIR"} {
		if !seen[Prefix+name] {
			t.Errorf("Settings() lacks %s", name)
		}
	}
}

// What Settings shows as a default has to be one.
func TestShownDefaultsAreAccepted(t *testing.T) {
	for _, f := range fields() {
		if f.fallback == "" {
			continue
		}
		a := mustLoad(t, Sidecar, minimal()...)
		b := mustLoad(t, Sidecar, minimal(f.name+"="+f.fallback)...)
		a.Database, b.Database = Database{}, Database{}
		b.DirIsSet = a.DirIsSet
		if a != b {
			t.Errorf("%s=%s changes the settings from %+v to %+v", f.name, f.fallback, a, b)
		}
	}
}

func TestChildEnvHandsOverTheTokenAndNotTheDatabase(t *testing.T) {
	environ := []string{
		"PATH=/bin", "LOCKGATE_DB_URL=secret", "LOCKGATE_DB_PASSWORD=secret", "LOCKGATE_TOKEN=1", "LOCKGATE_LOCK=outer",
		"LOCKGATE_NAME=nightly", "EMPTY=", "odd", "LOCKGATE_TOKEN=2",
	}
	before := slices.Clone(environ)
	got := ChildEnv(environ, "a=b", math.MaxUint64)
	want := []string{"PATH=/bin", "LOCKGATE_NAME=nightly", "EMPTY=", "odd", "LOCKGATE_TOKEN=18446744073709551615", "LOCKGATE_LOCK=a=b"}
	if !slices.Equal(got, want) {
		t.Errorf("ChildEnv = %q; want %q", got, want)
	}
	if !slices.Equal(environ, before) {
		t.Errorf("ChildEnv changed its argument to %q", environ)
	}
}

func TestTheDefaultDatabase(t *testing.T) {
	for _, c := range []struct {
		name    string
		cmd     Command
		exists  string // a file that exists
		environ []string
		path    string // the default, or
		problem string // what is wrong
	}{
		{"in the home folder", Run, "", []string{"HOME=/home/a b"}, "/home/a b/.local/state/lockgate/locks.db", ""},
		{"in the state folder", Run, "", []string{"HOME=/home/a", "XDG_STATE_HOME=/st?te"}, "/st?te/lockgate/locks.db", ""},
		{"a relative state folder is ignored", Run, "", []string{"HOME=/home/a", "XDG_STATE_HOME=x"}, "/home/a/.local/state/lockgate/locks.db", ""},
		{"not without a home", Run, "", nil, "", "without HOME"},
		{"not for a sidecar", Sidecar, "", []string{"HOME=/home/a"}, "", "LOCKGATE_DB_URL=mysql://"},
		{"not in Kubernetes", Run, "", []string{"HOME=/home/a", "KUBERNETES_SERVICE_HOST=10.0.0.1"}, "", "container"},
		{"not in Docker", Run, "/.dockerenv", []string{"HOME=/home/a"}, "", "container"},
		{"not in Podman", Run, "/run/.containerenv", []string{"HOME=/home/a"}, "", "container"},
		{"not with a password for another", Run, "", []string{"HOME=/home/a", "LOCKGATE_DB_PASSWORD=p"}, "", "LOCKGATE_DB_PASSWORD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			environ := append([]string{"LOCKGATE_NAME=n"}, c.environ...)
			got, err := load(c.cmd, environ, func(path string) bool { return path == c.exists })
			if c.problem != "" {
				if err == nil || !strings.HasPrefix(err.Error(), "LOCKGATE_DB_URL is not set") || !strings.Contains(err.Error(), c.problem) {
					t.Errorf("load = %v; want that DB_URL is not set, with %q", err, c.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			target, err := got.Database.Resolve()
			want := Target{Kind: SQLite, Path: c.path}
			if target != want || err != nil || !got.DatabaseIsDefault || got.Database.Kind != SQLite {
				t.Errorf("Resolve = %+v, %v (default %v); want %+v", target, err, got.DatabaseIsDefault, want)
			}
		})
	}
}

func TestLoadProbesTheRealContainerFiles(t *testing.T) {
	_, errDocker := os.Lstat("/.dockerenv")
	_, errPodman := os.Lstat("/run/.containerenv")
	inside := errDocker == nil || errPodman == nil
	c, err := Load(Run, []string{"LOCKGATE_NAME=n", "HOME=" + t.TempDir()})
	if (err != nil) != inside || c.DatabaseIsDefault == inside {
		t.Errorf("Load = %+v, %v; want a default exactly outside containers (inside one: %v)", c, err, inside)
	}
}

func TestURLs(t *testing.T) {
	for raw, want := range map[string]Target{
		"mysql://u@h/d":                           {Kind: MySQL, User: "u", Address: "h:3306", Database: "d"},
		"MySQL://u@h:3307/d":                      {Kind: MySQL, User: "u", Address: "h:3307", Database: "d"},
		"mariadb://u:p@db.example.org./d":         {Kind: MySQL, User: "u", Password: "p", Address: "db.example.org.:3306", Database: "d"},
		"mysql://u:a%2Fb%3F%23%40%3A%25%20+é@h/d": {Kind: MySQL, User: "u", Password: "a/b?#@:% +é", Address: "h:3306", Database: "d"},
		"mysql://u%40corp:p:q@r@h:1/d%2Fe":        {Kind: MySQL, User: "u@corp", Password: "p:q@r", Address: "h:1", Database: "d/e"},
		"mysql://u@[::1]/d":                       {Kind: MySQL, User: "u", Address: "[::1]:3306", Database: "d"},
		"mysql://u@[2001:db8::1]:65535/d":         {Kind: MySQL, User: "u", Address: "[2001:db8::1]:65535", Database: "d"},
		"mysql://u@10.0.0.1/d":                    {Kind: MySQL, User: "u", Address: "10.0.0.1:3306", Database: "d"},
		"mysql://u@my_host/d":                     {Kind: MySQL, User: "u", Address: "my_host:3306", Database: "d"},
		"mysql://h/d":                             {Kind: MySQL, Address: "h:3306", Database: "d"},
		"mysql://:p@h/d":                          {Kind: MySQL, Password: "p", Address: "h:3306", Database: "d"},
		"sqlite:///var/lib/locks.db":              {Kind: SQLite, Path: "/var/lib/locks.db"},
		"sqlite:///a%20b/%3F%23%25.db":            {Kind: SQLite, Path: "/a b/?#%.db"},
		"sqlite:///a//b/../locks.db":              {Kind: SQLite, Path: "/a/locks.db"},
	} {
		got, err := parseURL(raw)
		if got != want || err != nil {
			t.Errorf("parseURL(%q) = %#v, %v; want %#v", raw, plain(got), err, plain(want))
		}
	}
}

// plain shows a target with its password, which it hides itself.
func plain(t Target) [6]string {
	return [6]string{string(t.Kind), t.Address, t.User, t.Password, t.Database, t.Path}
}

func TestWrongURLsSayWhatToDo(t *testing.T) {
	for raw, want := range map[string]string{
		"mysql://u@h":                "names no database",
		"mysql://u@h/":               "names no database",
		"mysql://u@h/a/b":            "more than one /",
		"mysql://u@/d":               "names no host",
		"mysql:///d":                 "names no host",
		"mysql://u@h:0/d":            "port",
		"mysql://u@h:65536/d":        "port",
		"mysql://u@h:/d":             "port",
		"mysql://u@h:x/d":            "port",
		"mysql://u@h:+1/d":           "port",
		"mysql://u@::1/d":            "brackets",
		"mysql://u@[::1/d":           "brackets",
		"mysql://u@[1.2.3.4]/d":      "brackets",
		"mysql://u@[::1]3306/d":      "brackets",
		"mysql://u@tcp(h:3306)/d":    "malformed",
		"mysql://u@-h/d":             "malformed",
		"mysql://u:p/w@h/d":          "percent-encode",
		"mysql://u:p#w@h/d":          "percent-encode",
		"mysql://u:p?w@h/d":          "percent-encode",
		"mysql://u:p%w@h/d":          "%25",
		"mysql://u@h/d%":             "%25",
		"mysql://u@h/d?tls=true":     "LOCKGATE_DB_TLS",
		"mysql://u@h/d#x":            "#",
		"mysql://u@h/%00":            "cannot be printed",
		"mysql://u:p w@h/d":          "blank",
		"mysql://u@h/d\n":            "cannot be printed",
		"jdbc:mysql://h/d":           "JDBC",
		"u:p@tcp(h:3306)/d":          "not a URL",
		"h":                          "not a URL",
		"http://h/d":                 "unknown scheme",
		"sqlite:///":                 "folder",
		"sqlite:///a/":               "folder",
		"sqlite://a.db":              "three slashes",
		"sqlite://":                  "three slashes",
		"sqlite:a.db":                "absolute path",
		"sqlite::memory:":            "absolute path",
		"sqlite:///a.db?mode=memory": "no parameters",
		"sqlite:///a%":               "%25",
		"sqlite:///a%00":             "cannot be printed",
		"postgres://u@h/d":           "postgres://, which is not supported by this version yet",
		"redis://h":                  "redis://, which is not supported by this version yet",
		"mongodb://h":                "not supported by this version yet",
		"zookeeper://h":              "not supported by this version yet",
		"etcd://h":                   "not supported by this version yet",
		"kube://ns":                  "not supported by this version yet",
	} {
		got, err := parseURL(raw)
		if err == nil || !strings.Contains(err.Error(), want) || got != (Target{}) {
			t.Errorf("parseURL(%q) = %v, %v; want an error with %q", raw, plain(got), err, want)
		}
	}
}

func TestUserAndPasswordBesideTheURL(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pw, empty, big := file("pw", " hunter2 \r\n"), file("empty", "\n"), file("big", strings.Repeat("x", maxSecretBytes+1))
	urlFile := file("url", "mysql://u:hunter2@h/d\n")
	missing := filepath.Join(dir, "missing")
	for _, c := range []struct {
		name    string
		environ []string
		want    Target
		problem []string
	}{
		{"user and password", []string{"URL=mysql://h/d", "USER=u", "PASSWORD=hunter2"}, Target{User: "u", Password: "hunter2"}, nil},
		{"the same user twice", []string{"URL=mysql://u@h/d", "USER=u"}, Target{User: "u"}, nil},
		{"the password from a file, without its newline", []string{"URL=mysql://u@h/d", "PASSWORD_FILE=" + pw}, Target{User: "u", Password: " hunter2 "}, nil},
		{"the URL from a file", []string{"URL_FILE=" + urlFile}, Target{User: "u", Password: "hunter2"}, nil},
		{"no user", []string{"URL=mysql://h/d"}, Target{}, []string{"LOCKGATE_DB_URL names no user", "LOCKGATE_DB_USER"}},
		{"two users", []string{"URL=mysql://u@h/d", "USER=v"}, Target{}, []string{"LOCKGATE_DB_USER and LOCKGATE_DB_URL"}},
		{"two passwords", []string{"URL=mysql://u:hunter2@h/d", "PASSWORD=hunter2"}, Target{}, []string{"LOCKGATE_DB_URL", "LOCKGATE_DB_PASSWORD"}},
		{"a password in URL and file", []string{"URL=mysql://u:hunter2@h/d", "PASSWORD_FILE=" + pw}, Target{}, []string{"LOCKGATE_DB_URL", "LOCKGATE_DB_PASSWORD_FILE"}},
		{"a password and its file", []string{"URL=mysql://u@h/d", "PASSWORD=hunter2", "PASSWORD_FILE=" + pw}, Target{}, []string{"LOCKGATE_DB_PASSWORD and LOCKGATE_DB_PASSWORD_FILE"}},
		{"a URL and its file", []string{"URL=mysql://u@h/d", "URL_FILE=" + urlFile}, Target{}, []string{"LOCKGATE_DB_URL and LOCKGATE_DB_URL_FILE"}},
		{"a missing file", []string{"URL=mysql://u@h/d", "PASSWORD_FILE=" + missing}, Target{}, []string{"LOCKGATE_DB_PASSWORD_FILE (" + missing + ")", "no such file"}},
		{"a missing URL file", []string{"URL_FILE=" + missing}, Target{}, []string{"LOCKGATE_DB_URL_FILE (" + missing + ")", "no such file"}},
		{"an empty file", []string{"URL=mysql://u@h/d", "PASSWORD_FILE=" + empty}, Target{}, []string{"LOCKGATE_DB_PASSWORD_FILE", "is empty"}},
		{"a file that is too long", []string{"URL=mysql://u@h/d", "PASSWORD_FILE=" + big}, Target{}, []string{"LOCKGATE_DB_PASSWORD_FILE", "longer than"}},
		{"a folder", []string{"URL=mysql://u@h/d", "PASSWORD_FILE=" + dir}, Target{}, []string{"LOCKGATE_DB_PASSWORD_FILE", "not a regular file"}},
		{"a password for SQLite", []string{"URL=sqlite:///a", "PASSWORD=hunter2"}, Target{}, []string{"LOCKGATE_DB_PASSWORD means nothing"}},
		{"encryption for SQLite", []string{"URL=sqlite:///a", "TLS=require"}, Target{}, []string{"LOCKGATE_DB_TLS"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			environ := []string{"LOCKGATE_NAME=n"}
			for _, kv := range c.environ {
				environ = append(environ, dbPrefix+kv)
			}
			if c.problem != nil {
				got := problems(t, Sidecar, environ...)
				if len(got) != 1 || strings.Contains(got[0], "hunter2") {
					t.Fatalf("problems = %q; want one, without the secret", got)
				}
				for _, w := range c.problem {
					if !strings.Contains(got[0], w) {
						t.Errorf("problem = %q; want it to contain %q", got[0], w)
					}
				}
				return
			}
			c.want.Kind, c.want.Address, c.want.Database, c.want.TLS = MySQL, "h:3306", "d", TLSPrefer
			got, err := mustLoad(t, Sidecar, environ...).Database.Resolve()
			if got != c.want || err != nil {
				t.Errorf("Resolve = %v, %v; want %v", plain(got), err, plain(c.want))
			}
		})
	}
}

func TestARotationIsFoundByTheNextResolve(t *testing.T) {
	dir := t.TempDir()
	urlFile, pwFile := filepath.Join(dir, "url"), filepath.Join(dir, "pw")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(urlFile, "mysql://u@h/d")
	write(pwFile, "one")
	d := mustLoad(t, Run, "LOCKGATE_NAME=n", "LOCKGATE_DB_URL_FILE="+urlFile, "LOCKGATE_DB_PASSWORD_FILE="+pwFile).Database
	write(urlFile, "mysql://v@h2/d\n")
	write(pwFile, "two\n")
	got, err := d.Resolve()
	want := Target{Kind: MySQL, User: "v", Password: "two", Address: "h2:3306", Database: "d", TLS: TLSPrefer}
	if got != want || err != nil {
		t.Errorf("Resolve = %v, %v; want %v", plain(got), err, plain(want))
	}
	write(urlFile, "sqlite:///a")
	if _, err := d.Resolve(); err == nil {
		t.Error("Resolve accepts a SQLite file with the password of a server")
	}
	if err := os.Remove(urlFile); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resolve(); err == nil || !strings.Contains(err.Error(), "LOCKGATE_DB_URL_FILE") {
		t.Errorf("Resolve without its file = %v; want an error that names LOCKGATE_DB_URL_FILE", err)
	}
}

func TestTheKindOfDatabaseDoesNotChangeWhileWeRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "url")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mysql://u@h/d")
	d := mustLoad(t, Run, "LOCKGATE_NAME=n", "LOCKGATE_DB_URL_FILE="+path).Database
	write("sqlite:///a")
	if _, err := d.Resolve(); err == nil || !strings.Contains(err.Error(), "start lockgate again") {
		t.Errorf("Resolve = %v; want that the kind has changed", err)
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	c := mustLoad(t, Sidecar, "LOCKGATE_NAME=n", "LOCKGATE_DB_URL=mysql://u@h/d", "LOCKGATE_DB_PASSWORD=hunter2")
	inURL := mustLoad(t, Sidecar, "LOCKGATE_NAME=n", "LOCKGATE_DB_URL=mysql://u:hunter2@h/d").Database
	target, err := c.Database.Resolve()
	if err != nil || target.Password != "hunter2" {
		t.Fatalf("Resolve = %v, %v; want the password", plain(target), err)
	}
	// A struct that holds it in a field that fmt may not call methods on.
	hidden := struct{ d Database }{c.Database}
	var out bytes.Buffer
	for _, v := range []any{c, &c, c.Database, &c.Database, inURL, target, &target, hidden, []any{target}, map[string]any{"t": target}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
	}
	for _, secret := range []string{"hunter2", "68756e74657232", "68 75 6e"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the output contains %q", secret)
		}
	}
	if want := "mysql://u:[redacted]@h:3306/d"; !strings.Contains(out.String(), want) {
		t.Errorf("the output lacks %q", want)
	}
}

func TestALaterValueOfAVariableWins(t *testing.T) {
	if got := mustLoad(t, Run, minimal("LOCKGATE_NAME=second")...).Name; got != "second" {
		t.Errorf("Name = %q; want the later one, as for a process that is started with both", got)
	}
}

func FuzzExpandNameTakesValuesAsTheyAre(f *testing.F) {
	for _, s := range []string{"", "a", "$", "$$", "${", "$${", "$$${", "${A}", "$${A}", "a}b", "${A", "$$$${A}${A}", "\xff${"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, raw, value string) {
		lookup := func(v string) (string, bool) { return value, v == "A" }
		// Escaped text comes out as it was.
		escaped := strings.ReplaceAll(raw, "${", "$${")
		if got, err := expandName(escaped, lookup); got != raw || err != nil {
			t.Errorf("expandName(%q) = %q, %v; want %q", escaped, got, err, raw)
		}
		// Values are not expanded again, and what stands beside them stays.
		// (A $ before ${A} would escape it.)
		around := strings.TrimRight(escaped, "$")
		if got, err := expandName(around+"${A}"+escaped, lookup); err != nil || got != strings.TrimRight(raw, "$")+value+raw {
			t.Errorf("expandName(%q) = %q, %v; want %q between its neighbours", around+"${A}"+escaped, got, err, value)
		}
		// Without ${ there is nothing to do.
		if got, err := expandName(raw, lookup); !strings.Contains(raw, "${") && (got != raw || err != nil) {
			t.Errorf("expandName(%q) = %q, %v; want it unchanged", raw, got, err)
		}
	})
}

func FuzzParseURLGivesBackWhatWasEncoded(f *testing.F) {
	f.Add("u", "p", "d", uint16(3306))
	f.Add("u@corp", "a/b?#@:% +é\x00\xff", "d/e", uint16(1))
	f.Add("", "", "%", uint16(65535))
	f.Add("a:b", "", "@", uint16(99))
	f.Fuzz(func(t *testing.T, user, password, db string, port uint16) {
		raw := fmt.Sprintf("mysql://%s:%s@h:%d/%s", encode(user), encode(password), port, encode(db))
		got, err := parseURL(raw)
		if port == 0 || db == "" || firstUnprintable(db) >= 0 || firstUnprintable(user) >= 0 {
			if err == nil {
				t.Errorf("parseURL(%q) = %v; want an error", raw, plain(got))
			}
			return
		}
		want := Target{Kind: MySQL, Address: fmt.Sprintf("h:%d", port), User: user, Password: password, Database: db}
		if got != want || err != nil {
			t.Errorf("parseURL(%q) = %v, %v; want %v", raw, plain(got), err, plain(want))
		}
		// Encoding less does as well, and so does a password beside the URL.
		less := fmt.Sprintf("mysql://%s:%s@h:%d/%s", escape(user), escape(password), port, escape(db))
		if got, err := parseURL(less); got != want || err != nil {
			t.Errorf("parseURL(%q) = %v, %v; want %v", less, plain(got), err, plain(want))
		}
		printsWithoutItsPassword(t, got)
	})
}

func FuzzWhatParsesPrintsWithoutItsPassword(f *testing.F) {
	for _, s := range []string{
		"mysql://u:p@h/d", "MariaDB://u:p:q@[::1]:1/d", "mysql://u:%40%2f@H_1/%64", "mysql://:p@h/d", "mysql://u:p@@h/d", "mysql://%5Bredacted%5D:[redacted]@h/d",
		"mysql://u:@h/d", "mysql://u%3Ap@h/d", "sqlite:///a%20b", "sqlite:////..//a", "mysql://u:é@h./d",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if got, err := parseURL(raw); err == nil {
			printsWithoutItsPassword(t, got)
		}
	})
}

// printsWithoutItsPassword checks that what is printed is the same for every
// password, and is read again as the same place.
func printsWithoutItsPassword(t *testing.T, target Target) {
	t.Helper()
	other := target
	if target.Password != "" {
		other.Password = "another"
	}
	if a, b := target.String(), other.String(); a != b {
		t.Errorf("String() = %q with one password, %q with another; want the same", a, b)
	}
	want := target
	want.Password = ""
	shown := target.String()
	if target.Password != "" {
		shown = strings.Replace(shown, ":"+redacted+"@", "@", 1)
	}
	if again, err := parseURL(shown); err != nil || again != want {
		t.Errorf("parseURL(%q) = %v, %v; want %v", shown, plain(again), err, plain(want))
	}
}

func FuzzSQLitePathIsGivenBack(f *testing.F) {
	for _, s := range []string{"a", "/", "a b/c", "?#%", "..", "a/../b", "//a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := parseURL("sqlite:///" + encode(name))
		if err != nil {
			return
		}
		if want := filepath.Join("/", name); got.Path != want {
			t.Errorf("parseURL of %q = %q; want %q", name, got.Path, want)
		}
		again, err := parseURL(got.String())
		if again != got || err != nil && got.Path != "/" {
			t.Errorf("parseURL(%q) = %v, %v; want %v", got.String(), plain(again), err, plain(got))
		}
	})
}

// encode percent-encodes every byte.
func encode(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02X", s[i])
	}
	return b.String()
}

func FuzzAWrongURLNeverShowsItsSecret(f *testing.F) {
	const secret = "S3CRET"
	for _, s := range []string{"", "mysql://u:|@h/d?x", "mysql://u:|/x@h/d", "|", "|://h", "mysql://|", "sqlite://|", "redis://:|@h", "u:|@tcp(h)/d", "jdbc:|", "mysql://u:|%@h/d"} {
		before, after, _ := strings.Cut(s, "|")
		f.Add(before, after)
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		// The variable that holds a password shows nothing of it, whatever is
		// wrong with it and wherever it stands.
		raw := before + secret + after
		_, err := load(Sidecar, []string{"LOCKGATE_NAME=n", "LOCKGATE_DB_URL=" + raw, "LOCKGATE_DB_PASSWORD=" + secret}, nowhere)
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("load with DB_URL=%q = %v", raw, err)
		}
	})
}

func FuzzLoadNeverPanicsAndAlwaysNamesAVariable(f *testing.F) {
	for _, s := range Settings() {
		f.Add(s.Name, "1")
		f.Add(s.Name, "")
	}
	f.Add("LOCKGATE_X_PORT_1_TCP", "x")
	f.Fuzz(func(t *testing.T, name, value string) {
		for _, cmd := range []Command{Sidecar, Run, Exec, Check} {
			_, err := load(cmd, minimal(name+"="+value), nowhere)
			if err == nil {
				continue
			}
			for _, p := range err.(*Error).Problems {
				if !strings.Contains(p, Prefix) || strings.ContainsAny(p, "\n\r") {
					t.Errorf("%s=%q: problem %q; want one line that names a variable", name, value, p)
				}
			}
		}
	})
}

func TestDistanceCountsTypingErrors(t *testing.T) {
	for pair, want := range map[[2]string]int{
		{"NAME", "NAME"}: 0, {"NAEM", "NAME"}: 1, {"NAM", "NAME"}: 1, {"NAMEE", "NAME"}: 1, {"", "TTL"}: 3, {"TTL", ""}: 3, {"ABC", "XYZ"}: 3,
	} {
		if got := Distance(pair[0], pair[1]); got != want {
			t.Errorf("Distance(%q, %q) = %d; want %d", pair[0], pair[1], got, want)
		}
	}
	// Each setting with one letter missing leads back to itself.
	l := loader{fields: fields()}
	for _, name := range slices.Sorted(maps.Keys(map[string]bool{"TTL": true, "ON_BUSY": true, "DB_URL": true, "SAFETY_MARGIN": true, "POLL_EVERY": true})) {
		for i := range name {
			typo := Prefix + name[:i] + name[i+1:]
			if got := l.nearest(typo); got != Prefix+name {
				t.Errorf("nearest(%s) = %s; want %s", typo, got, Prefix+name)
			}
		}
	}
}
