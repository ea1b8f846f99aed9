package main

import (
	"errors"
	"io/fs"
	"os"

	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/holder"
)

// runInit takes the lock in an init container and leaves it to its TTL. For a main
// under lockgate exec the verdict stands in the gate directory; for another one the
// exit code is all there is.
func (p *program) runInit(args []string) int {
	if len(args) > 0 {
		return p.wrongUsage("unexpected argument %q", args[0])
	}
	cfg, boot, code := p.load(config.Init)
	if code != 0 {
		return code
	}
	var dir *gatedir.Dir
	if !p.needsNoDir(cfg) {
		d, lock, code := p.holdDir(cfg)
		if code != 0 {
			return code
		}
		defer func() { _ = lock.Close() }()
		dir = d
	}
	log, flush := p.logger(cfg)
	defer flush()
	store, wait, err := openStore(cfg, boot, log)
	if err != nil {
		return p.wrongConfig(err)
	}
	defer func() { _ = store.Close() }()
	ctx, signal, stop := p.untilToldToStop(func(sig os.Signal) {
		log.Info("told to stop", "signal", sig.String())
	})
	defer stop()
	told := newTold(cfg, log)
	defer told.close()

	var status gate.Status
	if config := gateConfig(cfg, store, wait, log); dir == nil {
		config.Request.Owner = readableOwner(cfg, p.environ) + newNonce()
		config.Publish = func(s gate.Status) error {
			told.observe(s)
			return nil
		}
		status = gate.Take(ctx, config)
	} else {
		h := holder.New(holder.Config{
			Dir:     dir,
			Boot:    boot,
			Pod:     cfg.PodUID,
			Owner:   readableOwner(cfg, p.environ),
			Gate:    config,
			Policy:  policy(cfg),
			Observe: told.observe,
			Log:     log,
		})
		defer func() { _ = h.Close() }()
		status = h.Stand(ctx, newNonce())
	}
	if n := signal(); n != 0 && errors.Is(status.Err, gate.ErrWithdrawn) {
		return gatedir.CodeSignal + int(n)
	}
	if status.State == gate.Acquired {
		log.Info("held from here on without a renewal; the TTL frees the lock", "lock", cfg.Name, "ttl", cfg.TTL)
	}
	code = ownCode(status)
	if failed(status) {
		p.logNext(log, code, status.Err)
	}
	return code
}

// needsNoDir tells whether there is no gate directory and nobody needs one: main
// does not look into it, and no one has named it.
func (p *program) needsNoDir(cfg config.Config) bool {
	if cfg.Wrapped || cfg.DirIsSet {
		return false
	}
	_, err := os.Stat(cfg.Dir)
	return errors.Is(err, fs.ErrNotExist)
}
