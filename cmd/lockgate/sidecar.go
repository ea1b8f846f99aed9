package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/holder"
	"github.com/lockgate/lockgate/internal/wrap"
)

// errToldToStop is the cause with which the sidecar's context ends.
var errToldToStop = errors.New("told to stop")

func (p *program) runSidecar(args []string) int {
	if len(args) > 0 {
		return p.wrongUsage("unexpected argument %q", args[0])
	}
	cfg, boot, code := p.load(config.Sidecar)
	if code != 0 {
		return code
	}
	dir, err := gatedir.Open(cfg.Dir)
	if err != nil {
		return p.wrongDir(err)
	}
	lock, err := dir.LockHolder()
	if errors.Is(err, gatedir.ErrTaken) {
		p.say("LOCKGATE_DIR: another lockgate sidecar uses %s; stop it, or give each a directory of its own", dir.Path())
		return gatedir.CodeConfig
	}
	if err != nil {
		return p.wrongDir(err)
	}
	defer func() { _ = lock.Close() }()
	if err := dir.Check("holder"); err != nil {
		return p.wrongDir(err)
	}

	log, flush := p.logger(cfg)
	defer flush()
	store, wait, err := openStore(cfg, boot, log)
	if err != nil {
		return p.wrongConfig(err)
	}
	defer func() { _ = store.Close() }()

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case sig := <-p.signals:
				if _, stops := wrap.StopSignal(sig); stops && ctx.Err() == nil {
					log.Info("told to stop; a lock that is held stays held until main has ended", "signal", sig.String())
					cancel(fmt.Errorf("%w by signal %s", errToldToStop, sig))
				}
			}
		}
	}()
	defer func() {
		close(quit)
		<-ended
	}()

	h := holder.New(holder.Config{
		Dir:         dir,
		Boot:        boot,
		Pod:         cfg.PodUID,
		Owner:       readableOwner(cfg, p.environ),
		Gate:        gateConfig(cfg, store, wait, log),
		Policy:      policy(cfg),
		MainTimeout: cfg.MainTimeout,
		Once:        cfg.SidecarKind == config.Plain,
		Log:         log,
	})
	defer func() { _ = h.Close() }()
	log.Info("ready, waiting for lockgate exec to ask for the lock", "dir", dir.Path())
	err = h.Sidecar(ctx)
	switch {
	case errors.Is(err, holder.ErrNoMain):
		log.Error("no main asked for the lock; is main started with lockgate exec, on the same gate directory, "+
			"and is this container a native sidecar (an init container with restartPolicy: Always)?",
			"err", err, "dir", dir.Path(), "setting", "LOCKGATE_MAIN_TIMEOUT")
		return gatedir.CodeConfig
	case errors.Is(err, gate.ErrPublish):
		log.Error("the gate directory cannot be written any more", "err", err, "setting", "LOCKGATE_DIR")
		return gatedir.CodeConfig
	case err != nil:
		log.Error("sidecar", "err", err)
		return gatedir.CodeInternal
	}
	return 0
}

func (p *program) wrongDir(err error) int {
	p.say("LOCKGATE_DIR: %v; mount a volume that this container and main share, writable for both", err)
	return gatedir.CodeConfig
}
