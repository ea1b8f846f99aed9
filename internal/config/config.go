// Package config reads the environment once into one checked value.
//
// Every setting is an environment variable that starts with LOCKGATE_; the
// list, with defaults and meanings, is [Settings]. [Load] takes the environment
// as a list and reads nothing else of the process; the only files it touches
// are those that DB_URL_FILE and DB_PASSWORD_FILE name, and the two marker
// files of a container.
//
// # Which command reads what
//
// sidecar, init and run check every setting that means something to them. exec
// reads DIR, VERDICT_TIMEOUT, POD_UID, LOG_FORMAT and LOG_LEVEL, check reads DIR
// and POD_UID: what they must follow beyond that travels in the verdict. status,
// unlock and migrate read what leads to the database, config reads everything
// and needs nothing. A setting that a command does not read may be present (one
// envFrom often serves all containers) and is not looked at, good or bad. A
// LOCKGATE_ name that is no setting at all is refused by every command.
//
// # Empty values
//
// A variable that is set to nothing is an error, not a default: it is nearly
// always a template that found no value. The names that the downward API fills
// (CLUSTER, POD_…, NODE_NAME) may be empty.
package config

import (
	"log/slog"
	"strings"
	"time"
)

// Prefix starts the name of every setting.
const Prefix = "LOCKGATE_"

// Command is a command of lockgate that reads settings.
type Command string

// The commands.
const (
	Sidecar Command = "sidecar"
	Init    Command = "init"
	Run     Command = "run"
	Exec    Command = "exec"
	Check   Command = "check"
	Status  Command = "status"
	Unlock  Command = "unlock"
	Migrate Command = "migrate"
	Show    Command = "config"
)

// OnBusy is what a contender does that finds the lock busy.
type OnBusy string

// The values of ON_BUSY.
const (
	Skip OnBusy = "skip"
	Wait OnBusy = "wait"
	Fail OnBusy = "fail"
)

// OnLost is what happens to CMD when the lock is lost.
type OnLost string

// The values of ON_LOST.
const (
	Stop     OnLost = "stop"
	Continue OnLost = "continue"
)

// SidecarKind is the kind of container that a sidecar is.
type SidecarKind string

// The values of SIDECAR.
const (
	Native SidecarKind = "native"
	Plain  SidecarKind = "plain"
)

// The values of LOG_FORMAT.
const (
	LogAuto = "auto"
	LogJSON = "json"
	LogText = "text"
)

// callLimitMax is the longest a single store call may take. RENEW_EVERY can be
// minutes; a call that has not answered after this long will not.
const callLimitMax = 5 * time.Second

// Config is every setting, checked. Fields of settings that the command does
// not read are zero, except LogFormat and LogLevel, which then have their
// defaults.
type Config struct {
	Name string // the lock, after expansion

	OnBusy       OnBusy
	Run          string        // the run that this process belongs to; may be empty
	WaitTimeout  time.Duration // 0 waits for ever
	PollEvery    time.Duration
	StartTimeout time.Duration

	TTL          time.Duration
	RenewEvery   time.Duration
	StopGrace    time.Duration // 0 kills at once
	SafetyMargin time.Duration
	MinHold      time.Duration // 0 for none
	MaxHold      time.Duration // 0 for none
	OnLost       OnLost

	SkipExitCode int // 0 to 125

	Wrapped        bool // main runs under lockgate exec
	SidecarKind    SidecarKind
	MainTimeout    time.Duration
	VerdictTimeout time.Duration
	Dir            string // absolute
	DirIsSet       bool   // somebody chose Dir; otherwise it is the default

	// Who we are, for people; each may be empty.
	Cluster, PodNamespace, PodName, PodUID, NodeName string

	// TerminationLog is the file for the holder's one line. When nobody chose
	// it, TerminationLogIsSet is false, and the file is written only if it is
	// there.
	TerminationLog      string
	TerminationLogIsSet bool

	LogFormat string // LogAuto, LogJSON or LogText
	LogLevel  slog.Level
	NoColor   bool // NO_COLOR is set to something, or TERM is dumb

	Database    Database
	Table       string
	AutoMigrate bool

	// DatabaseIsDefault says that nobody named a database and that the SQLite
	// file in the user's state folder was chosen. Its folder may not exist.
	DatabaseIsDefault bool

	// InsideLock is the name of the lock that an outer lockgate holds around
	// us, empty when there is none.
	InsideLock string
}

// CallLimit is the longest a single store call may take: RenewEvery, but no
// more than 5s; 5s also for a command that renews nothing.
func (c Config) CallLimit() time.Duration {
	if c.RenewEvery == 0 {
		return callLimitMax
	}
	return min(c.RenewEvery, callLimitMax)
}

// Error is everything that is wrong with the settings.
type Error struct {
	// Problems has one line for each problem: the variable, what is wrong with
	// it, and what to do. No line contains a secret.
	Problems []string
}

// Error returns the problems, one on each line.
func (e *Error) Error() string { return strings.Join(e.Problems, "\n") }
