package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/mysql"
	"github.com/lockgate/lockgate/internal/db/sqlite"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// lockWait is how long MySQL may keep a statement waiting for a row that a
// stranger's transaction has locked. It is the shortest that the server allows.
const lockWait = time.Second

// closeAfterCall is the renewal interval from which on a connection is not kept
// between calls: ten thousand holders must not need ten thousand connections.
const closeAfterCall = 10 * time.Second

// openStore opens the store that the settings name. It makes no connection: a
// database that cannot be reached or refuses us is an outcome, and no fault in
// the settings, and a sidecar must live to tell it.
func openStore(cfg config.Config, boot string, log *slog.Logger) (store db.Store, wait time.Duration, err error) {
	target, err := cfg.Database.Resolve()
	if err != nil {
		return nil, 0, err
	}
	switch target.Kind {
	case config.MySQL:
		store, err = mysql.Open(mysql.Options{
			Target: func() (mysql.Target, error) {
				t, err := cfg.Database.Resolve()
				return mysql.Target{
					Network: "tcp", Address: t.Address, User: t.User, Password: t.Password,
					Database: t.Database,
					TLS:      string(t.TLS), Authorities: t.Authorities, Certificate: t.Certificate,
				}, err
			},
			Table:          cfg.Table,
			Create:         cfg.AutoMigrate,
			CallLimit:      cfg.CallLimit(),
			LockWait:       lockWait,
			CloseAfterCall: cfg.RenewEvery >= closeAfterCall,
		})
		return store, lockWait, err
	case config.SQLite:
		if cfg.DatabaseIsDefault {
			if err := os.MkdirAll(filepath.Dir(target.Path), 0o700); err != nil {
				return nil, 0, advise(fmt.Errorf("make the folder of the default database: %w", err), "set LOCKGATE_DB_URL, or XDG_STATE_HOME to a folder that you may write")
			}
			log.Warn("no database is set; this lock excludes this user's processes on this machine only",
				"database", cfg.Database, "setting", "LOCKGATE_DB_URL")
		}
		offset := bootclock.HostOffset()
		store, err = sqlite.Open(sqlite.Options{
			Path:      target.Path,
			Table:     cfg.Table,
			Create:    cfg.AutoMigrate,
			CallLimit: cfg.CallLimit(),
			Clock: sqlite.Clock{
				BootID: boot,
				Now:    func() time.Duration { return bootclock.Now() - offset },
			},
		})
		return store, 0, err
	default:
		return nil, 0, fmt.Errorf("database of kind %q", target.Kind)
	}
}

// gateConfig is the part of a gate's configuration that comes from the settings.
func gateConfig(cfg config.Config, store db.Store, wait time.Duration, log *slog.Logger) gate.Config {
	return gate.Config{
		Store:        store,
		Request:      db.Request{Name: cfg.Name, Run: cfg.Run, TTL: cfg.TTL},
		OnBusy:       gate.OnBusy(cfg.OnBusy),
		WaitTimeout:  cfg.WaitTimeout,
		PollEvery:    cfg.PollEvery,
		StartTimeout: cfg.StartTimeout,
		RenewEvery:   cfg.RenewEvery,
		StopGrace:    cfg.StopGrace,
		SafetyMargin: cfg.SafetyMargin,
		MinHold:      cfg.MinHold,
		MaxHold:      cfg.MaxHold,
		GoOn:         cfg.OnLost == config.Continue,
		CallLimit:    cfg.CallLimit(),
		LockWait:     wait,
		Boot:         bootclock.Now,
		Log:          log,
	}
}

func policy(cfg config.Config) gatedir.Policy {
	p := gatedir.Policy{
		StopGrace:    gatedir.Duration(cfg.StopGrace),
		SkipExitCode: cfg.SkipExitCode,
		MaxHold:      gatedir.Duration(cfg.MaxHold),
		Unwrapped:    !cfg.Wrapped,
	}
	if cfg.OnLost == config.Continue {
		p.OnLost = gatedir.GoOn
	}
	return p
}

// readableOwner says for people who a holder is: cluster/namespace/pod/ in
// Kubernetes, host/user/pid/ elsewhere.
func readableOwner(cfg config.Config, environ []string) string {
	parts := []string{cfg.Cluster, cfg.PodNamespace, cfg.PodName}
	if cfg.PodNamespace == "" && cfg.Cluster != "" {
		parts[1] = "-" // or the cluster would be taken for the namespace
	}
	if cfg.PodName == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		user := strconv.Itoa(os.Getuid())
		for _, entry := range environ {
			if name, ok := strings.CutPrefix(entry, "USER="); ok && name != "" {
				user = name
			}
		}
		parts = []string{host, user, strconv.Itoa(os.Getpid())}
	}
	var b strings.Builder
	for _, part := range parts {
		if part != "" {
			b.WriteString(strings.ToValidUTF8(part, "?") + "/")
		}
	}
	return b.String()
}
