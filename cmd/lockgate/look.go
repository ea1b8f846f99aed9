package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/db"
)

// What the commands share that a person types: status, unlock, migrate.

// againTries is how often a call is made that the store asks to make again. The
// store has waited for others by itself before it asks.
const againTries = 4

// again makes a call until the store does not ask for another try.
func again(ctx context.Context, call func(context.Context) error) error {
	for try := 1; ; try++ {
		err := call(ctx)
		if !errors.Is(err, db.ErrAgain) || try == againTries {
			return err
		}
		time.Sleep(50*time.Millisecond + rand.N(100*time.Millisecond))
	}
}

// beOrdinary gives signals back the meaning that they have for any program: a
// person who presses Ctrl-C, and a pipe whose reader has gone, end us. Nothing
// is held here that had to be given back.
func (p *program) beOrdinary() {
	signal.Reset(append(handled(), syscall.SIGPIPE)...)
	for {
		select {
		case sig := <-p.signals:
			if n, ok := sig.(syscall.Signal); ok && n != syscall.SIGWINCH {
				_ = syscall.Kill(os.Getpid(), n) // it came a moment ago
			}
		default:
			return
		}
	}
}

// looker is a store for who only looks at locks or takes them away.
type looker struct {
	db.Admin
	close func()
}

// openLooker opens the store that the settings name and creates nothing in it:
// no table, no file, no folder. The error is one of the settings.
func (p *program) openLooker(cfg config.Config, boot string) (looker, error) {
	log, flush := p.logger(cfg)
	defer flush()
	cfg.AutoMigrate = false
	if cfg.DatabaseIsDefault {
		log.Warn("no database is set; these are the locks of this user on this machine only",
			"database", cfg.Database, "setting", "LOCKGATE_DB_URL")
		cfg.DatabaseIsDefault = false // which would make the folder
	}
	store, _, err := openStore(cfg, boot, log)
	if err != nil {
		return looker{}, err
	}
	admin, ok := store.(db.Admin)
	if !ok {
		_ = store.Close()
		return looker{}, fmt.Errorf("LOCKGATE_DB_URL: a database of kind %q cannot be looked at", cfg.Database.Kind)
	}
	return looker{Admin: admin, close: func() { _ = store.Close() }}, nil
}

// list returns the rows of the given names, or all.
func (l looker) list(cfg config.Config, names ...string) (rows []db.Row, err error) {
	err = again(context.Background(), func(ctx context.Context) (err error) {
		rows, err = l.List(ctx, names...)
		return err
	})
	return rows, neverUsed(cfg, err)
}

// missingError says that there is no table, in words for who only looks. It
// wraps [db.ErrNoTable].
type missingError struct{ database, table string }

func (e *missingError) Error() string {
	return fmt.Sprintf("nobody has used %s yet: there is no table %s", e.database, e.table)
}

func (e *missingError) Unwrap() error { return db.ErrNoTable }

// neverUsed says of a table, or a file, that is missing what that means.
func neverUsed(cfg config.Config, err error) error {
	noFolder := cfg.DatabaseIsDefault && errors.Is(err, fs.ErrNotExist)
	if !errors.Is(err, db.ErrNoTable) && !noFolder {
		return err
	}
	next := "create the table with lockgate migrate, or see that LOCKGATE_DB_URL and LOCKGATE_DB_TABLE are right"
	if cfg.AutoMigrate {
		next = "lockgate run and sidecar create the table when they first take a lock, lockgate migrate creates it now; " +
			"or see that LOCKGATE_DB_URL and LOCKGATE_DB_TABLE are right"
	}
	return advise(&missingError{cfg.Database.String(), cfg.Table}, "%s", next)
}

// readable is the part of an owner that is for people: all but the nonce.
func readable(owner string) string {
	if i := strings.LastIndexByte(owner, '/'); i > 0 {
		owner = owner[:i]
	}
	return harmless(owner)
}

// harmless is a text from a database as it may go to a terminal.
func harmless(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// shortly is a duration as people read it: no more than two units.
func shortly(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d.Round(time.Second) < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	default:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// stamp is a time as people and programs read it, with its offset from UTC.
func stamp(t time.Time) string { return t.Format(time.RFC3339) }
