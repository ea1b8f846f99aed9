package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caarlos0/env/v11"
)

// Limits of durations. A lease that outlives its dead holder by more than a
// month protects nothing that the TTL is for, and databases count intervals in
// microseconds: neither our sums nor theirs come near an overflow below this.
const (
	minTTL = 2 * time.Second
	maxTTL = 30 * 24 * time.Hour

	// minRenewEvery is also the shortest limit of a store call; below it even a
	// healthy database in the same room would time out.
	minRenewEvery = 50 * time.Millisecond
	minPollEvery  = 10 * time.Millisecond

	// minMaxHold leaves CMD the time to do something before it is stopped.
	minMaxHold = time.Second

	// maxWait bounds every other duration.
	maxWait = 365 * 24 * time.Hour
)

// Limits of what becomes part of an owner. Those of Kubernetes are its own; all
// of them together with a nonce stay below the 512 bytes of an owner.
const (
	maxClusterBytes   = 128
	maxLabelBytes     = 63
	maxSubdomainBytes = 253
	maxUIDBytes       = 128
	maxRunBytes       = 255 // what every store keeps unchanged
)

// defaultTerminationLog is where kubelet looks unless the container says
// otherwise (terminationMessagePath).
const defaultTerminationLog = "/dev/termination-log"

// Load reads the settings of one command from a list of NAME=value, as
// os.Environ returns it. The error is an [*Error] that lists every problem.
func Load(cmd Command, environ []string) (Config, error) {
	return load(cmd, environ, func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	})
}

// load is Load with the question whether a file exists left to the caller.
func load(cmd Command, environ []string, exists func(string) bool) (Config, error) {
	l := loader{
		cmd:    cmd,
		vars:   toMap(environ),
		exists: exists,
		fields: fields(),
		bad:    map[string]bool{},
	}
	l.refuseUnknown()
	use := l.usable()
	var s settings
	l.parse(&s, use)
	c := Config{
		Dir:        s.Dir,
		PodUID:     s.PodUID,
		LogFormat:  string(s.LogFormat),
		LogLevel:   slog.Level(s.LogLevel),
		NoColor:    l.vars["NO_COLOR"] != "" || l.vars["TERM"] == "dumb",
		InsideLock: l.vars[LockVar],
	}
	l.checkDir(s.Dir)
	l.word(varPodUID, s.PodUID, maxUIDBytes)
	c.DirIsSet = l.isSet(varDir)
	switch cmd {
	case Exec:
		c.VerdictTimeout = s.VerdictTimeout
		l.within(varVerdictTimeout, s.VerdictTimeout, time.Nanosecond, maxWait)
	case Status, Unlock, Migrate:
		l.store(&c, s)
		c.StartTimeout = s.StartTimeout
		l.within(varStartTimeout, s.StartTimeout, time.Nanosecond, maxWait)
	case Sidecar, Init, Run, Show:
		l.store(&c, s)
		l.holder(&c, s)
	}
	if len(l.problems) > 0 {
		return Config{}, &Error{Problems: l.problems}
	}
	return c, nil
}

// toMap is the environment by name; of several entries for one the last counts.
func toMap(environ []string) map[string]string { return env.ToMap(environ) }

// Variables that the checks name.
const (
	varName           = Prefix + "NAME"
	varWaitTimeout    = Prefix + "WAIT_TIMEOUT"
	varPollEvery      = Prefix + "POLL_EVERY"
	varStartTimeout   = Prefix + "START_TIMEOUT"
	varTTL            = Prefix + "TTL"
	varRenewEvery     = Prefix + "RENEW_EVERY"
	varStopGrace      = Prefix + "STOP_GRACE"
	varSafetyMargin   = Prefix + "SAFETY_MARGIN"
	varOnBusy         = Prefix + "ON_BUSY"
	varRun            = Prefix + "RUN"
	varMinHold        = Prefix + "MIN_HOLD"
	varMaxHold        = Prefix + "MAX_HOLD"
	varOnLost         = Prefix + "ON_LOST"
	varWrapped        = Prefix + "WRAPPED"
	varSidecar        = Prefix + "SIDECAR"
	varTerminationLog = Prefix + "TERMINATION_LOG"
	varSkipExitCode   = Prefix + "SKIP_EXIT_CODE"
	varMainTimeout    = Prefix + "MAIN_TIMEOUT"
	varVerdictTimeout = Prefix + "VERDICT_TIMEOUT"
	varDir            = Prefix + "DIR"
	varCluster        = Prefix + "CLUSTER"
	varPodNamespace   = Prefix + "POD_NAMESPACE"
	varPodName        = Prefix + "POD_NAME"
	varPodUID         = Prefix + "POD_UID"
	varNodeName       = Prefix + "NODE_NAME"
	varTable          = dbPrefix + "TABLE"
	varTLS            = dbPrefix + "TLS"
	varCAFile         = dbPrefix + "CA_FILE"
	varCertFile       = dbPrefix + "CERT_FILE"
	varKeyFile        = dbPrefix + "KEY_FILE"
	varURL            = dbPrefix + "URL"
	varURLFile        = dbPrefix + "URL_FILE"
	varUser           = dbPrefix + "USER"
	varPassword       = dbPrefix + "PASSWORD"
	varPasswordFile   = dbPrefix + "PASSWORD_FILE"
)

// loader collects what is wrong while it works.
type loader struct {
	cmd      Command
	vars     map[string]string
	exists   func(string) bool
	fields   []field
	problems []string
	bad      map[string]bool // variables that a problem was reported for
}

// problem reports what is wrong with a variable; the text follows its name.
func (l *loader) problem(name, format string, args ...any) {
	l.bad[name] = true
	l.problems = append(l.problems, name+" "+fmt.Sprintf(format, args...))
}

// fine says that nothing was reported for any of the variables, so that a check
// of how they relate makes sense.
func (l *loader) fine(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return l.bad[n] })
}

func (l *loader) isSet(name string) bool {
	_, ok := l.vars[name]
	return ok
}

// usable returns the variables that this command reads and that can be parsed,
// having reported those that cannot.
func (l *loader) usable() map[string]string {
	use := map[string]string{}
	for _, f := range l.fields {
		value, set := l.vars[f.name]
		switch {
		case !set || !slices.Contains(f.by, l.cmd):
		case value == "" && f.emptyOK:
		case f.later:
			l.problem(f.name, "is not supported by this version yet; unset it")
		case value == "" && (f.name == varName || f.name == varURL):
			l.problem(f.name, "is set to nothing; give it a value")
		case value == "" && f.fallback != "":
			l.problem(f.name, "is set to nothing; unset it to get the default %s, or give it a value", f.fallback)
		case value == "":
			l.problem(f.name, "is set to nothing; unset it, or give it a value")
		default:
			use[f.name] = value
		}
	}
	return use
}

// parse fills s from the usable variables and the defaults.
func (l *loader) parse(s *settings, use map[string]string) {
	err := env.ParseWithOptions(s, env.Options{Environment: use, Prefix: Prefix, FuncMap: parsers()})
	if err == nil {
		return
	}
	all := []error{err}
	if agg, ok := errors.AsType[env.AggregateError](err); ok {
		all = agg.Errors
	}
	for _, err := range all {
		p, ok := errors.AsType[env.ParseError](err)
		if !ok {
			l.problems = append(l.problems, "read the settings: "+err.Error())
			continue
		}
		// env names the Go field, which means nothing to who set the variable.
		i := slices.IndexFunc(l.fields, func(f field) bool { return f.goName == p.Name })
		l.problem(l.fields[i].name, "is %s: %v", quote(use[l.fields[i].name]), p.Err)
	}
}

// store checks and fills what leads to the table of locks.
func (l *loader) store(c *Config, s settings) {
	l.database(c, s)
	c.Table, c.AutoMigrate = s.DBTable, s.DBAutoMigrate
	if l.fine(varTable) && !isTableName(s.DBTable) {
		l.problem(varTable, "is %s: a table's name is 1 to 64 letters, digits and underscores, with no digit first", quote(s.DBTable))
	}
}

// holder checks and fills what the commands that take locks read beyond that.
func (l *loader) holder(c *Config, s settings) {
	c.Name = l.lockName(s.Name)
	c.OnBusy, c.SkipExitCode = s.OnBusy, s.SkipExitCode
	c.Wrapped, c.SidecarKind, c.OnLost = s.Wrapped, s.Sidecar, s.OnLost
	c.Run = s.Run
	l.word(varRun, s.Run, maxRunBytes)
	if l.fine(varSkipExitCode) && (s.SkipExitCode < 0 || s.SkipExitCode > 125) {
		l.problem(varSkipExitCode, "is %d: write a number from 0 to 125; shells use the others for signals", s.SkipExitCode)
	}
	c.WaitTimeout, c.PollEvery, c.StartTimeout = s.WaitTimeout, s.PollEvery, s.StartTimeout
	c.MainTimeout, c.VerdictTimeout = s.MainTimeout, s.VerdictTimeout
	l.within(varWaitTimeout, s.WaitTimeout, 0, maxWait)
	l.within(varPollEvery, s.PollEvery, minPollEvery, maxWait)
	l.within(varStartTimeout, s.StartTimeout, time.Nanosecond, maxWait)
	l.within(varMainTimeout, s.MainTimeout, time.Nanosecond, maxWait)
	l.within(varVerdictTimeout, s.VerdictTimeout, time.Nanosecond, maxWait)
	if l.fine(varPollEvery, varWaitTimeout) && s.WaitTimeout != 0 && s.PollEvery > s.WaitTimeout {
		l.problem(varPollEvery, "(%s) is longer than %s (%s), so that nobody would ever ask again; make it shorter",
			l.told(varPollEvery, s.PollEvery), varWaitTimeout, l.told(varWaitTimeout, s.WaitTimeout))
	}
	l.lease(c, s)
	l.hold(c, s)
	l.unwrapped(c)
	l.terminationLog(c, s)

	c.Cluster, c.PodNamespace, c.PodName, c.NodeName = s.Cluster, s.PodNamespace, s.PodName, s.NodeName
	l.word(varCluster, s.Cluster, maxClusterBytes)
	l.word(varPodNamespace, s.PodNamespace, maxLabelBytes)
	l.word(varPodName, s.PodName, maxSubdomainBytes)
	l.word(varNodeName, s.NodeName, maxSubdomainBytes)
}

// word checks a name that becomes part of the owner, which others read.
func (l *loader) word(name, value string, maxBytes int) {
	switch {
	case !l.fine(name):
	case len(value) > maxBytes:
		l.problem(name, "has %d bytes; the longest has %d", len(value), maxBytes)
	case firstUnprintable(value) >= 0:
		l.problem(name, "is %s: use printable characters", quote(value))
	}
}

// lease checks and fills the durations of the lease, and how they relate.
func (l *loader) lease(c *Config, s settings) {
	l.within(varTTL, s.TTL, minTTL, maxTTL)
	c.TTL = s.TTL
	derive := func(name string, value, fallback, least time.Duration) time.Duration {
		if !l.isSet(name) {
			return fallback
		}
		l.within(name, value, least, maxTTL)
		return value
	}
	c.RenewEvery = derive(varRenewEvery, s.RenewEvery, s.TTL/6, minRenewEvery)
	c.StopGrace = derive(varStopGrace, s.StopGrace, min(10*time.Second, s.TTL/4), 0)
	c.SafetyMargin = derive(varSafetyMargin, s.SafetyMargin,
		max(min(5*time.Second, s.TTL/8), minSafetyMargin), minSafetyMargin)

	if !l.fine(varTTL, varRenewEvery, varStopGrace, varSafetyMargin) {
		return
	}
	trust := c.TTL - c.StopGrace - c.SafetyMargin
	if trust <= 0 {
		l.problem(varStopGrace, "(%s) and %s (%s) together leave nothing of the %s (%s); make them shorter or the TTL longer",
			l.told(varStopGrace, c.StopGrace), varSafetyMargin, l.told(varSafetyMargin, c.SafetyMargin), varTTL, l.told(varTTL, c.TTL))
	} else if l.cmd != Init && 3*c.RenewEvery > trust {
		l.problem(varRenewEvery, "(%s) does not fit three times into the time that a lease is trusted, which is %s: %s (%s) less %s (%s) and %s (%s); make the first shorter or the TTL longer",
			l.told(varRenewEvery, c.RenewEvery), short(trust),
			varTTL, l.told(varTTL, c.TTL),
			varStopGrace, l.told(varStopGrace, c.StopGrace),
			varSafetyMargin, l.told(varSafetyMargin, c.SafetyMargin))
	}
}

// hold checks and fills how long a lock is held at least and at most.
func (l *loader) hold(c *Config, s settings) {
	c.MinHold, c.MaxHold = s.MinHold, s.MaxHold
	l.within(varMinHold, s.MinHold, 0, maxTTL)
	if s.MaxHold != 0 {
		l.within(varMaxHold, s.MaxHold, minMaxHold, maxWait)
	}
	if l.fine(varMinHold, varMaxHold) && c.MaxHold != 0 && c.MaxHold < c.MinHold {
		l.problem(varMaxHold, "(%s) is shorter than %s (%s), so that no hold could satisfy both; make it longer, or 0 for no limit",
			short(c.MaxHold), varMinHold, short(c.MinHold))
	}
	if l.cmd == Init && l.fine(varMinHold) && c.MinHold != 0 {
		l.problem(varMinHold, "means nothing to init, because nobody tells it that main succeeded; unset it: the lock is held for %s (%s) anyway",
			varTTL, l.told(varTTL, c.TTL))
	}
}

// unwrapped refuses what needs somebody around main.
func (l *loader) unwrapped(c *Config) {
	if c.Wrapped || l.cmd == Run || !l.fine(varWrapped) {
		return
	}
	const setting = varWrapped + "=false"
	if l.fine(varMinHold) && c.MinHold != 0 && l.cmd != Init {
		l.problem(varMinHold, "does not go with %s, because nobody tells lockgate that main succeeded; unset it", setting)
	}
	if l.fine(varMaxHold) && c.MaxHold != 0 {
		l.problem(varMaxHold, "does not go with %s, because nobody would stop main; unset it, and set activeDeadlineSeconds on the Job", setting)
	}
	if l.fine(varOnLost) && c.OnLost == Continue {
		l.problem(varOnLost, "is continue, which does not go with %s: main's liveness probe decides; unset it, and leave that probe out", setting)
	}
	switch {
	case !l.fine(varOnBusy):
	case l.cmd == Init && c.OnBusy == Skip:
		l.problem(varOnBusy, "(%s) does not go with %s in init: main would run without the lock; set it to wait or fail", l.toldWord(varOnBusy, string(c.OnBusy)), setting)
	case l.cmd != Init && c.OnBusy == Fail:
		l.problem(varOnBusy, "is fail, which does not go with %s: a sidecar cannot fail the pod; set it to wait, or to skip for a main that looks at the files", setting)
	}
	if l.fine(varSidecar) && c.SidecarKind == Plain && l.cmd != Init {
		l.problem(varSidecar, "is plain, which does not go with %s in this version: it could not see when main has ended; use a native sidecar, or run main under lockgate exec", setting)
	}
}

// terminationLog fills where the holder's one line goes. What is main's own is
// left alone: run is main, and so it has no default.
func (l *loader) terminationLog(c *Config, s settings) {
	c.TerminationLog, c.TerminationLogIsSet = s.TerminationLog, s.TerminationLog != ""
	switch {
	case !l.fine(varTerminationLog):
	case c.TerminationLogIsSet && !filepath.IsAbs(s.TerminationLog):
		l.problem(varTerminationLog, "is %s: write an absolute path", quote(s.TerminationLog))
	case !c.TerminationLogIsSet && l.cmd != Run:
		c.TerminationLog = defaultTerminationLog
	}
}

// toldWord is told for a setting that is a word.
func (l *loader) toldWord(name, value string) string {
	if l.isSet(name) {
		return value
	}
	return value + " by default"
}

// told is a duration as a message shows it, with a word when nobody set it.
func (l *loader) told(name string, d time.Duration) string {
	if l.isSet(name) {
		return short(d)
	}
	return short(d) + " by default"
}

// within checks a duration that was parsed. Both ends are allowed.
func (l *loader) within(name string, d, least, most time.Duration) {
	switch {
	case !l.fine(name):
	case d < least && least == time.Nanosecond:
		l.problem(name, "is %s: it must be longer than nothing", short(d))
	case d < least:
		l.problem(name, "is %s: it must be at least %s", short(d), short(least))
	case d > most:
		l.problem(name, "is %s: it must be at most %s", short(d), short(most))
	}
}

func (l *loader) lockName(raw string) string {
	if !l.fine(varName) {
		return ""
	}
	if !l.isSet(varName) && l.cmd == Show {
		return ""
	}
	if !l.isSet(varName) {
		l.problem(varName, "is not set; give the lock a name, for example %s=nightly-report", varName)
		return ""
	}
	name, err := expandName(raw, func(v string) (string, bool) {
		value, ok := l.vars[v]
		return value, ok
	})
	if err == nil {
		err = checkName(name)
	}
	if err != nil {
		l.problem(varName, "%v", err)
		return ""
	}
	if inside, ok := l.vars[LockVar]; ok && inside == name && l.cmd != Show {
		l.problem(varName, "is %s, and %s says that we are already inside this lock: waiting for it would never end; use another name, or call the command without lockgate", quote(name), LockVar)
		return ""
	}
	return name
}

func (l *loader) checkDir(dir string) {
	if l.fine(varDir) && !filepath.IsAbs(dir) {
		l.problem(varDir, "is %s: write an absolute path, because sidecar and main may have different working folders", quote(dir))
	}
}

// isTableName keeps to what every database takes without argument.
func isTableName(s string) bool {
	for i, r := range s {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 64
}

// maxQuoted bounds how much of a wrong value a message repeats.
const maxQuoted = 60

// quote is a wrong value as a message shows it.
func quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(s[:maxQuoted], ""))
	}
	return fmt.Sprintf("%q", s)
}

// firstUnprintable returns the byte offset of the first rune that is not
// printable UTF-8, or -1.
func firstUnprintable(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size <= 1 {
				return i
			}
		}
		if !unicode.IsPrint(r) {
			return i
		}
	}
	return -1
}
