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
	c, code := p.hold(config.Init)
	if code != 0 {
		return code
	}
	defer c.close()
	log := c.log
	var dir *gatedir.Dir
	if !p.needsNoDir(c.cfg) {
		d, lock, code := p.holdDir(c.cfg)
		if code != 0 {
			return code
		}
		defer func() { _ = lock.Close() }()
		dir = d
	}
	ctx, signal, stop := p.untilToldToStop(func(sig os.Signal) {
		log.Info("told to stop", "signal", sig.String())
	})
	defer stop()

	var status gate.Status
	if dir == nil {
		c.gate.Request.Owner = c.owner() + newNonce()
		c.gate.Publish = func(s gate.Status) error {
			c.told.observe(s)
			return nil
		}
		status = gate.Take(ctx, c.gate)
	} else {
		h := holder.New(c.on(dir))
		defer func() { _ = h.Close() }()
		status = h.Stand(ctx, newNonce())
	}
	if n := signal(); n != 0 && errors.Is(status.Err, gate.ErrWithdrawn) {
		return gatedir.CodeSignal + int(n)
	}
	if status.State == gate.Acquired {
		log.Info("held from here on without a renewal; the TTL frees the lock", "lock", c.cfg.Name, "ttl", c.cfg.TTL)
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
