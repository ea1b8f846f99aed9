package config

import (
	"slices"
	"strings"
	"testing"
)

// What does not go together is refused with both names in it, also when one of
// the two is only a default.
func TestSettingsThatContradictEachOtherAreRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		cmd   Command
		set   string // with blanks between
		names []string
	}{
		"a longest hold below the shortest":                 {Run, "MAX_HOLD=1m MIN_HOLD=2m", []string{"MAX_HOLD", "MIN_HOLD"}},
		"a longest hold below the shortest, kept by config": {Show, "MAX_HOLD=1m MIN_HOLD=2m", []string{"MAX_HOLD", "MIN_HOLD"}},
		"init with a shortest hold":                         {Init, "MIN_HOLD=2m", []string{"MIN_HOLD", "TTL"}},
		"unwrapped init with a shortest hold":               {Init, "WRAPPED=false ON_BUSY=wait MIN_HOLD=2m", []string{"MIN_HOLD", "TTL"}},
		"unwrapped with a shortest hold":                    {Sidecar, "WRAPPED=false MIN_HOLD=2m", []string{"MIN_HOLD", "WRAPPED"}},
		"unwrapped with a longest hold":                     {Sidecar, "WRAPPED=false MAX_HOLD=2m", []string{"MAX_HOLD", "WRAPPED"}},
		"unwrapped init with a longest hold":                {Init, "WRAPPED=false ON_BUSY=fail MAX_HOLD=2m", []string{"MAX_HOLD", "WRAPPED"}},
		"unwrapped sidecar told to fail":                    {Sidecar, "WRAPPED=false ON_BUSY=fail", []string{"ON_BUSY", "WRAPPED"}},
		"unwrapped init told to skip":                       {Init, "WRAPPED=false ON_BUSY=skip", []string{"ON_BUSY", "WRAPPED"}},
		"unwrapped init that skips by default":              {Init, "WRAPPED=false", []string{"ON_BUSY", "by default", "WRAPPED"}},
		"unwrapped plain sidecar":                           {Sidecar, "WRAPPED=false SIDECAR=plain", []string{"SIDECAR", "WRAPPED", "in this version"}},
		"unwrapped and going on after a loss":               {Sidecar, "WRAPPED=false ON_LOST=continue", []string{"ON_LOST", "WRAPPED"}},
		"a poll longer than the wait":                       {Sidecar, "POLL_EVERY=2m WAIT_TIMEOUT=1m", []string{"POLL_EVERY", "WAIT_TIMEOUT"}},
		"a wait shorter than the default poll":              {Init, "WAIT_TIMEOUT=500ms", []string{"POLL_EVERY", "by default", "WAIT_TIMEOUT"}},
		"renewals too rare":                                 {Sidecar, "RENEW_EVERY=40s", []string{"RENEW_EVERY", "TTL", "STOP_GRACE", "SAFETY_MARGIN"}},
		"init with nothing of the lease left":               {Init, "STOP_GRACE=2m", []string{"STOP_GRACE", "SAFETY_MARGIN", "TTL"}},
		"a hold too short to do anything":                   {Run, "MAX_HOLD=1ms", []string{"MAX_HOLD", "1s"}},
		"a hold longer than any lease":                      {Run, "MIN_HOLD=10000h", []string{"MIN_HOLD", "720h"}},
		"a negative hold":                                   {Run, "MIN_HOLD=-1s", []string{"MIN_HOLD"}},
		"a termination log that is no path":                 {Sidecar, "TERMINATION_LOG=log", []string{"TERMINATION_LOG", "absolute"}},
		"a run that cannot be printed":                      {Run, "RUN=a\x01", []string{"RUN", "printable"}},
		"a run that is too long":                            {Run, "RUN=" + strings.Repeat("x", 256), []string{"RUN", "255"}},
		"a word for what to do after a loss":                {Run, "ON_LOST=abort", []string{"ON_LOST", "stop or continue"}},
		"a word for whether main is wrapped":                {Sidecar, "WRAPPED=no-way", []string{"WRAPPED", "true or false"}},
		"verify-full with a misspelled mode":                {Run, "DB_TLS=verify_full", []string{"DB_TLS", "write "}},
	} {
		t.Run(name, func(t *testing.T) {
			var environ []string
			for kv := range strings.SplitSeq(c.set, " ") {
				environ = append(environ, Prefix+kv)
			}
			got := problems(t, c.cmd, minimal(environ...)...)
			if len(got) != 1 {
				t.Fatalf("problems = %q; want one", got)
			}
			for _, word := range c.names {
				if !strings.Contains(got[0], word) {
					t.Errorf("problem %q does not name %s", got[0], word)
				}
			}
		})
	}
}

func TestWhatGoesTogetherIsAccepted(t *testing.T) {
	for name, c := range map[string]struct {
		cmd Command
		set string
	}{
		"equal holds":                          {Run, "MIN_HOLD=1m MAX_HOLD=1m"},
		"no longest hold":                      {Run, "MIN_HOLD=1m MAX_HOLD=0"},
		"unwrapped, waits":                     {Sidecar, "WRAPPED=false ON_BUSY=wait"},
		"unwrapped, a script looks at skipped": {Sidecar, "WRAPPED=false ON_BUSY=skip"},
		"unwrapped init that waits":            {Init, "WRAPPED=false ON_BUSY=wait"},
		"unwrapped init that fails":            {Init, "WRAPPED=false ON_BUSY=fail"},
		"init with a longest hold":             {Init, "MAX_HOLD=1m"},
		"init never renews":                    {Init, "RENEW_EVERY=2m"},
		"a wait for ever":                      {Sidecar, "WAIT_TIMEOUT=0 POLL_EVERY=10m"},
		"run does not ask about wrapping":      {Run, "WRAPPED=x SIDECAR=x MAIN_TIMEOUT=x"},
	} {
		t.Run(name, func(t *testing.T) {
			var environ []string
			for kv := range strings.SplitSeq(c.set, " ") {
				environ = append(environ, Prefix+kv)
			}
			mustLoad(t, c.cmd, minimal(environ...)...)
		})
	}
}

func TestStatusUnlockAndMigrateNeedOnlyTheDatabase(t *testing.T) {
	for _, cmd := range []Command{Status, Unlock, Migrate} {
		got := mustLoad(t, cmd, "LOCKGATE_DB_URL=mysql://job@db.example/locks", "LOCKGATE_TTL=nonsense", "LOCKGATE_LOCK=outer")
		if got.Name != "" || got.Database.Kind != MySQL || got.Table == "" || got.CallLimit() != callLimitMax {
			t.Errorf("%s: settings = %+v; want the database, its table and a limit for calls", cmd, got)
		}
		if got := mustLoad(t, cmd, "HOME=/home/me"); !got.DatabaseIsDefault {
			t.Errorf("%s: without a database there is no default; want run's", cmd)
		}
	}
	for _, cmd := range []Command{Sidecar, Init} {
		if got := problems(t, cmd, "HOME=/home/me", "LOCKGATE_NAME=x"); len(got) != 1 || !strings.Contains(got[0], "DB_URL is not set") {
			t.Errorf("%s: problems = %q; want one about DB_URL", cmd, got)
		}
	}
}

func TestRunLeavesTheTerminationLogOfMainAlone(t *testing.T) {
	for cmd, want := range map[Command]string{Sidecar: "/dev/termination-log", Init: "/dev/termination-log", Run: ""} {
		if got := mustLoad(t, cmd, minimal()...); got.TerminationLog != want || got.TerminationLogIsSet {
			t.Errorf("%s: termination log %q, chosen: %v; want %q by default", cmd, got.TerminationLog, got.TerminationLogIsSet, want)
		}
	}
}

func TestExplainSaysWhereEachValueCameFrom(t *testing.T) {
	environ := []string{
		"LOCKGATE_NAME=${TEAM}-x", "TEAM=blue", "LOCKGATE_DB_URL=mysql://u:s3cr3t@h/d", "LOCKGATE_TTL=1m",
		"LOCKGATE_STOP_GRACE=5s", "LOCKGATE_POD_NAME=", "HOME=/home/me",
	}
	got, err := Explain(environ)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]string{
		"NAME":            {"blue-x", `environment: "${TEAM}-x"`},
		"DB_URL":          {"mysql://u:[redacted]@h:3306/d", "environment"},
		"DB_PASSWORD":     {"", "not set"},
		"TTL":             {"1m", "environment"},
		"RENEW_EVERY":     {"10s", "default: from LOCKGATE_TTL"},
		"STOP_GRACE":      {"5s", "environment"},
		"SAFETY_MARGIN":   {"5s", "default: from LOCKGATE_TTL"},
		"ON_BUSY":         {"skip", "default"},
		"POD_NAME":        {"", "environment, empty"},
		"TERMINATION_LOG": {"/dev/termination-log", "default, where it is writable"},
	}
	seen := 0
	for _, e := range got {
		if w, ok := want[strings.TrimPrefix(e.Name, Prefix)]; ok {
			seen++
			if e.Value != w[0] || e.From != w[1] {
				t.Errorf("%s = %q from %q; want %q from %q", e.Name, e.Value, e.From, w[0], w[1])
			}
		}
		if strings.Contains(e.Value+e.From, "s3cr3t") {
			t.Errorf("%s shows the password: %+v", e.Name, e)
		}
	}
	if seen != len(want) {
		t.Errorf("%d of %d settings were explained", seen, len(want))
	}
	names := func(list []Effective) (names []string) {
		for _, e := range list {
			names = append(names, e.Name)
		}
		return names
	}
	for _, s := range Settings() {
		if slices.Contains(names(got), s.Name) != s.Supported {
			t.Errorf("%s: explained %v; want %v", s.Name, !s.Supported, s.Supported)
		}
	}
}

func TestExplainHidesSecretsWhereverTheyComeFrom(t *testing.T) {
	got, err := Explain([]string{"LOCKGATE_DB_URL=mysql://u@h/d", "LOCKGATE_DB_PASSWORD=s3cr3t"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range got {
		if strings.Contains(e.Value, "s3cr3t") {
			t.Errorf("%s = %q; want no secret", e.Name, e.Value)
		}
		if e.Name == varPassword && e.Value != redacted {
			t.Errorf("%s = %q; want %q", e.Name, e.Value, redacted)
		}
	}
}

func TestExplainShowsWhatIsSetAlsoWhenItIsWrong(t *testing.T) {
	got, err := Explain([]string{
		"LOCKGATE_NAME=x", "LOCKGATE_DB_URL=mysql://u:s3cr3t/@h/d", "LOCKGATE_DB_PASSWORD=s3cr3t", "LOCKGATE_TTL=120", "LOCKGATE_LISTEN=:9",
	})
	if err == nil {
		t.Fatal("Explain found nothing wrong")
	}
	want := map[string][2]string{
		"NAME": {"x", "environment"}, "DB_URL": {redacted, "environment: wrong"}, "DB_PASSWORD": {redacted, "environment"},
		"TTL": {"120", "environment: wrong"}, "ON_BUSY": {"skip", "default"}, "LISTEN": {":9", "environment: wrong"},
	}
	for _, e := range got {
		if w, ok := want[strings.TrimPrefix(e.Name, Prefix)]; ok && (e.Value != w[0] || e.From != w[1]) {
			t.Errorf("%s = %q from %q; want %q from %q", e.Name, e.Value, e.From, w[0], w[1])
		}
		delete(want, strings.TrimPrefix(e.Name, Prefix))
		if strings.Contains(e.Value, "s3cr3t") {
			t.Errorf("%s shows the password: %+v", e.Name, e)
		}
	}
	if len(want) > 0 {
		t.Errorf("not shown: %v", want)
	}
}

func TestAnUnknownNameThatIsLikeNoneGetsNoSuggestion(t *testing.T) {
	for name, want := range map[string]string{
		"LOCKGATE_FOO": "nor like one", "LOCKGATE_NAEM": "did you mean LOCKGATE_NAME?", "LOCKGATE_LOKC_NAME": "is not a setting",
		"LOCKGATE_PASSWORD": "did you mean LOCKGATE_DB_PASSWORD?", "LOCKGATE_MAXHOLD": "did you mean LOCKGATE_MAX_HOLD?",
	} {
		got := problems(t, Run, minimal(name+"=1")...)
		if len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%s: problems = %q; want one with %q", name, got, want)
		}
	}
}
