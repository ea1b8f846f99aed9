package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/wallclock"
)

// unlocking is one call of unlock.
type unlocking struct {
	*program
	store looker
	cfg   config.Config
	name  string
	token uint64 // 0 asks
	now   bool
}

func (p *program) runUnlock(args []string) int {
	opts, err := parseOptions(args, findSpec("unlock").options)
	if err != nil {
		return p.wrongUsage("unlock: %v", err)
	}
	switch {
	case len(opts.rest) == 0 || opts.rest[0] == "":
		return p.wrongUsage("unlock: which lock? write its name")
	case len(opts.rest) > 1:
		return p.wrongUsage("unlock: unexpected argument %q; one lock at a time", opts.rest[1])
	}
	u := unlocking{program: p, name: opts.rest[0], now: opts.has("now")}
	if opts.has("token") {
		if u.token, err = strconv.ParseUint(opts.values["token"], 10, 64); err != nil || u.token == 0 {
			return p.wrongUsage("unlock: --token %q is not a token; lockgate status shows it", opts.values["token"])
		}
	}
	cfg, boot, code := p.load(config.Unlock)
	if code != 0 {
		return code
	}
	u.cfg = cfg
	store, err := p.openLooker(cfg, boot)
	if err != nil {
		return p.wrongConfig(err)
	}
	u.store = store
	defer store.close()
	if code, err := u.unlock(); err != nil {
		return p.fail(code, err)
	}
	return 0
}

func (u *unlocking) unlock() (code int, err error) {
	row, err := u.look()
	if err != nil {
		return codeOf(err), err
	}
	var table strings.Builder
	writeLocks(&table, []lockState{lockOf(row, wallclock.Now())})
	if _, err := io.WriteString(u.stdout, table.String()); err != nil {
		return gatedir.CodeInternal, err
	}
	switch {
	case u.token == 0:
		if err := u.ask(row); err != nil {
			return gatedir.CodeBusy, err
		}
	case u.token != row.Token:
		return gatedir.CodeBusy, advise(fmt.Errorf("the token of %s is %d and not %d: this is another holder, which was left alone", harmless(u.name), row.Token, u.token),
			"if this holder is meant too: lockgate unlock %s --token %d", word(u.name), row.Token)
	}
	err = again(context.Background(), func(ctx context.Context) error {
		return u.store.Revoke(ctx, u.name, row.Token, u.now)
	})
	if errors.Is(err, db.ErrLost) {
		return gatedir.CodeBusy, advise(fmt.Errorf("%s is not held with token %d any more; nothing was changed", harmless(u.name), row.Token),
			"lockgate status %s shows who has it now", word(u.name))
	}
	if err != nil {
		if !nothingChanged(err) {
			err = advise(err, "lockgate status %s shows whether it was done; if not, do it again", word(u.name))
		}
		return gatedir.CodeUnavailable, err
	}
	return 0, u.tell(row)
}

// nothingChanged tells whether an error of a store says that a call had no effect.
func nothingChanged(err error) bool {
	for _, sure := range []error{db.ErrRefused, db.ErrUnreachable, db.ErrNoTable, db.ErrAgain} {
		if errors.Is(err, sure) {
			return true
		}
	}
	return false
}

// errNotHeld says that there is nobody to take the lock from.
var errNotHeld = errors.New("not held")

func codeOf(err error) int {
	if errors.Is(err, errNotHeld) {
		return gatedir.CodeBusy
	}
	return gatedir.CodeUnavailable
}

// look returns the row of a lock that is taken, else an error, which wraps
// [errNotHeld] when it is not.
func (u *unlocking) look() (db.Row, error) {
	rows, err := u.store.list(u.cfg, u.name)
	switch {
	case err != nil:
		return db.Row{}, err
	case len(rows) == 0:
		err = fmt.Errorf("%s is %w: no lock of this name was ever taken", harmless(u.name), errNotHeld)
	case rows[0].Remaining <= 0:
		err = fmt.Errorf("%s is %w: it is %s", harmless(u.name), errNotHeld, stateOf(rows[0]))
	default:
		return rows[0], nil
	}
	return db.Row{}, advise(err, "there is nothing to do; lockgate status shows all locks")
}

// ask asks the person. The question goes to stderr, where it is seen even when
// stdout goes elsewhere.
func (u *unlocking) ask(row db.Row) error {
	question := "Stop this holder?"
	switch {
	case row.Released:
		question = "Its holder has finished. Free the lock now?"
	case u.now:
		question = "Under a holder that lives, two commands would run until it notices.\n" +
			"Is it certain that " + readable(row.Owner) + " is dead?"
	}
	_, _ = fmt.Fprintf(u.stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(u.stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	case "":
		if err != nil { // nobody sits there
			_, _ = fmt.Fprintln(u.stderr)
			return u.declined("there was no answer")
		}
	}
	return u.declined("you declined")
}

func (u *unlocking) declined(why string) error {
	now := ""
	if u.now {
		now = " --now"
	}
	return advise(fmt.Errorf("%s; nothing was changed", why),
		"in a script, say which holder is meant: lockgate unlock %s --token N%s, with N from lockgate status", word(u.name), now)
}

// tell says what was done and when the lock is free.
func (u *unlocking) tell(was db.Row) error {
	name := harmless(u.name)
	text := name + " is free.\n"
	switch {
	case was.Released:
	case u.now:
		text += "If its holder lives after all, its next renewal is refused, and it stops its command then (one that took the lock by init never renews).\n"
	default:
		// Its holder may have renewed it right before that.
		if rows, err := u.store.list(u.cfg, u.name); err == nil && len(rows) == 1 && rows[0].Token == was.Token {
			was = rows[0]
		}
		if was.Remaining > 0 {
			text = fmt.Sprintf("%s is revoked. At its next renewal the holder is told so, stops its command and lets go.\n"+
				"The lock is free then, and at the latest in %s, at %s.\n"+
				"lockgate status %s shows when it is.\n",
				name, shortly(was.Remaining), stamp(wallclock.Now().Add(was.Remaining)), word(u.name))
		}
	}
	_, err := io.WriteString(u.stdout, text)
	if err != nil {
		return fmt.Errorf("%s was unlocked, but that could not be written: %w", name, err)
	}
	return nil
}

// word is a name as it is written on a shell's command line.
func word(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,=", r)
	}
	if name != "" && name[0] != '-' && strings.IndexFunc(name, func(r rune) bool { return !plain(r) }) < 0 {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}
