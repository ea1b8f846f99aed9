package main

import (
	"log/slog"

	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/holder"
)

// holding is what every command that takes a lock needs.
type holding struct {
	*program
	cfg   config.Config
	boot  string
	store db.Store
	gate  gate.Config
	told  *told
	log   *slog.Logger
	flush func()
}

// hold reads the settings of such a command and opens what it needs. It must be
// closed. A code other than 0 is the exit code.
func (p *program) hold(cmd config.Command) (h *holding, code int) {
	cfg, boot, code := p.load(cmd)
	if code != 0 {
		return nil, code
	}
	log, flush := p.logger(cfg)
	store, wait, err := openStore(cfg, boot, log)
	if err != nil {
		flush()
		return nil, p.wrongConfig(err)
	}
	return &holding{
		program: p, cfg: cfg, boot: boot, store: store,
		gate: gateConfig(cfg, store, wait, log), told: newTold(cfg, log),
		log: log, flush: flush,
	}, 0
}

func (h *holding) close() {
	h.told.close()
	_ = h.store.Close()
	h.flush()
}

// on is how to hold on a gate directory.
func (h *holding) on(dir *gatedir.Dir) holder.Config {
	return holder.Config{
		Dir:     dir,
		Boot:    h.boot,
		Pod:     h.cfg.PodUID,
		Owner:   h.owner(),
		Gate:    h.gate,
		Policy:  policy(h.cfg),
		Observe: h.told.observe,
		Log:     h.log,
	}
}

func (h *holding) owner() string { return readableOwner(h.cfg, h.environ) }
