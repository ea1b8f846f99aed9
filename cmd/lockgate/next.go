package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// advisedError is an error that knows what to do about it better than a table by
// exit codes could.
type advisedError struct {
	err  error
	next string
}

func (e *advisedError) Error() string { return e.err.Error() }
func (e *advisedError) Unwrap() error { return e.err }

func advise(err error, format string, args ...any) error {
	return &advisedError{err: err, next: fmt.Sprintf(format, args...)}
}

// fail says what went wrong and, on the last line, what to do next. It returns
// the code.
func (p *program) fail(code int, err error) int {
	text := strings.Join(strings.Fields(err.Error()), " ") // one line, whatever a library says
	if name := p.commandName(); name != "" && !strings.HasPrefix(text, name+" ") && !strings.HasPrefix(text, name+":") {
		text = name + ": " + text
	}
	p.say("%s", text)
	return p.sayNext(code, err)
}

// sayNext writes the last line of a failure and returns its code.
func (p *program) sayNext(code int, err error) int {
	if next := p.next(code, err); next != "" {
		p.say("next: %s", next)
	}
	return code
}

// logNext is sayNext where there is a logger. It is information, but shall be seen
// by who wants errors alone.
func (p *program) logNext(log *slog.Logger, code int, err error) {
	ctx := context.Background()
	level := slog.LevelInfo
	if !log.Enabled(ctx, level) {
		level = slog.LevelError
	}
	if next := p.next(code, err); next != "" {
		log.Log(ctx, level, "what to do next", "next", next, "code", code)
	}
}

// lossOf is the error of a final status, with another advice where the command was
// not stopped.
func lossOf(cfg config.Config, s gate.Status) error {
	if s.State == gate.Lost && cfg.OnLost == config.Continue && !errors.Is(s.Err, gate.ErrMaxHold) {
		return advise(s.Err, "the command went on without the lock, as LOCKGATE_ON_LOST=continue asks: see whether another has run meanwhile")
	}
	if s.State == gate.Lost && !cfg.Wrapped {
		return advise(s.Err, "main must not run on: see that it has lockgate check as its liveness probe; lockgate status shows who has the lock now")
	}
	return s.Err
}

// next says what a person does about an exit code of lockgate's own and the
// error that led to it, which may be nil when it is not known. It is empty for
// a code that asks for nothing.
func (p *program) next(code int, err error) string {
	if advised, ok := errors.AsType[*advisedError](err); ok {
		return advised.next
	}
	switch code {
	case gatedir.CodeUsage:
		if name := p.commandName(); name != "" && name != helpCommand {
			return "see: lockgate help " + name
		}
		return "see: lockgate --help"
	case gatedir.CodeUnavailable:
		return p.nextOfStore(err)
	case gatedir.CodeInternal:
		return "this should not happen; report it together with the lines above and the output of: lockgate version"
	case gatedir.CodeBusy:
		if errors.Is(err, gate.ErrWaitedTooLong) {
			return "lockgate status shows who has the lock; to wait longer, set LOCKGATE_WAIT_TIMEOUT"
		}
		return "lockgate status shows who has the lock; to wait for it, set LOCKGATE_ON_BUSY=wait"
	case gatedir.CodeLost:
		switch {
		case errors.Is(err, gate.ErrStalled):
			return "see what kept lockgate from running (Ctrl-Z, a frozen or overloaded machine, a restart that came late); a longer LOCKGATE_TTL gives it more time"
		case errors.Is(err, gate.ErrNotTold):
			return "see that the gate directory that the line above names is there, can be written and is not full"
		case errors.Is(err, gate.ErrUntrusted):
			return "see why the database could not be reached; to get over longer outages, set a longer LOCKGATE_TTL"
		case errors.Is(err, gate.ErrMaxHold):
			return "see why the command took so long, or allow it more with LOCKGATE_MAX_HOLD"
		}
		return "the command was stopped in mid-work: see what it left; lockgate status shows who has the lock now"
	case gatedir.CodeConfig:
		if errors.Is(err, gate.ErrPublish) {
			return "see that the volume at LOCKGATE_DIR can be written and is not full"
		}
		if p.commandName() == "config" {
			return "fix the settings that the lines above name"
		}
		return "fix the settings above; lockgate config shows them all"
	case notExecutable, notFound:
		return "see that the command is there and may be executed (without a / in it, it is looked for in PATH), and that its arguments stand behind it as words of their own"
	}
	return ""
}

// What shells end with, and we too, when CMD cannot be started.
const (
	notExecutable = 126
	notFound      = 127
)

// nextOfStore is next for what stands between us and the table, or, in exec,
// between us and the sidecar.
func (p *program) nextOfStore(err error) string {
	file := p.database == config.SQLite
	patience := ""
	switch config.Command(p.commandName()) {
	case config.Run, config.Sidecar, config.Init, config.Migrate: // they try again by themselves
		patience = "; LOCKGATE_START_TIMEOUT says how long lockgate waits for it"
	}
	switch {
	case p.commandName() == string(config.Exec):
		return "see that the sidecar runs and that both containers mount the same volume at LOCKGATE_DIR; then read the log of the sidecar"
	case errors.Is(err, db.ErrNoTable) && p.commandName() == string(config.Migrate):
		return "have somebody who may create tables run what lockgate migrate --print shows"
	case errors.Is(err, db.ErrNoTable):
		return "create the table with lockgate migrate; what that does, lockgate migrate --print shows"
	case errors.Is(err, db.ErrRefused) && file:
		return "see that the path in LOCKGATE_DB_URL is right, on a local disk, and that this user may read and write the file and its folder"
	case errors.Is(err, db.ErrRefused):
		return "check LOCKGATE_DB_USER, LOCKGATE_DB_PASSWORD, the database in LOCKGATE_DB_URL and what else the line above names, " +
			"and that this user may SELECT, INSERT and UPDATE; lockgate config shows what is set"
	case errors.Is(err, db.ErrAgain), file && errors.Is(err, context.DeadlineExceeded):
		return "something keeps the table locked: look for a long transaction on it, then try again"
	case file:
		return "see that the file in LOCKGATE_DB_URL is a lock database and its disk is well, then try again"
	case errors.Is(err, db.ErrUnreachable):
		return "see that host and port in LOCKGATE_DB_URL are right, that the server takes one more connection, and that nothing (a firewall, a network policy) stands between" + patience
	}
	return "see whether the database of LOCKGATE_DB_URL is well, then try again" + patience
}
