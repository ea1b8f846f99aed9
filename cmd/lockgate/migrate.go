package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/gatedir"
)

func (p *program) runMigrate(args []string) int {
	opts, err := parseOptions(args, findSpec("migrate").options)
	if err == nil && len(opts.rest) > 0 {
		err = fmt.Errorf("unexpected argument %q", opts.rest[0])
	}
	if err != nil {
		return p.wrongUsage("migrate: %v", err)
	}
	cfg, boot, code := p.load(config.Migrate)
	if code != 0 {
		return code
	}
	if opts.has("print") {
		cfg.DatabaseIsDefault = false // whose folder is made otherwise
	}
	log, flush := p.logger(cfg)
	store, _, err := openStore(cfg, boot, log)
	if err != nil {
		flush()
		return p.wrongConfig(err)
	}
	defer func() { _ = store.Close() }()
	migrator, ok := store.(db.Migrator)
	if !ok {
		flush()
		return p.wrongConfig(fmt.Errorf("LOCKGATE_DB_URL: a database of kind %q needs no table", cfg.Database.Kind))
	}
	if opts.has("print") {
		flush()
		return p.print(nil, migrator.DDL()+";\n")
	}
	created, err := migrate(migrator, cfg.StartTimeout, log)
	flush()
	switch {
	case err != nil:
		return p.fail(gatedir.CodeUnavailable, err)
	case created:
		return p.print(nil, fmt.Sprintf("created the table %s in %s\n", cfg.Table, cfg.Database))
	default:
		return p.print(nil, fmt.Sprintf("the table %s exists already in %s\n", cfg.Table, cfg.Database))
	}
}

// Pauses between attempts to reach a database: jittered, ever longer.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
)

// migrate creates the table. A database that does not answer is asked again
// until the limit, on the boot clock; one that refuses is not.
func migrate(store db.Migrator, limit time.Duration, log *slog.Logger) (created bool, err error) {
	end := bootclock.Now() + limit
	for attempt, pause := 1, firstPause; ; attempt, pause = attempt+1, min(2*pause, longestPause) {
		created, err = store.Migrate(context.Background())
		if err == nil || errors.Is(err, db.ErrRefused) || errors.Is(err, db.ErrNoTable) {
			return created, err
		}
		wait := pause/2 + rand.N(pause)
		if bootclock.Now()+wait >= end {
			return false, fmt.Errorf("the database could not be used for %s: %w", limit, err)
		}
		log.Warn("the table could not be created, trying again", "attempt", attempt, "wait", wait.Round(time.Millisecond).String(), "err", err)
		time.Sleep(wait)
	}
}
