package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/holder"
	"github.com/lockgate/lockgate/internal/wrap"
)

func (p *program) runSidecar(args []string) int {
	if len(args) > 0 {
		return p.wrongUsage("unexpected argument %q", args[0])
	}
	c, code := p.hold(config.Sidecar)
	if code != 0 {
		return code
	}
	defer c.close()
	log := c.log
	dir, lock, code := p.holdDir(c.cfg)
	if code != 0 {
		return code
	}
	defer func() { _ = lock.Close() }()
	ctx, _, stop := p.untilToldToStop(func(sig os.Signal) {
		log.Info("told to stop; a lock that is held stays held until main has ended", "signal", sig.String())
	})
	defer stop()

	c.told.failed = func(s gate.Status) { p.logNext(log, ownCode(s), lossOf(c.cfg, s)) }
	how := c.on(dir)
	how.MainTimeout, how.Once = c.cfg.MainTimeout, c.cfg.SidecarKind == config.Plain
	h := holder.New(how)
	defer func() { _ = h.Close() }()
	var err error
	if c.cfg.Wrapped {
		log.Info("ready, waiting for lockgate exec to ask for the lock", "dir", dir.Path())
		err = h.Sidecar(ctx)
	} else {
		log.Info("asking for the lock for a main that is not run by lockgate exec", "dir", dir.Path())
		err = h.Unwrapped(ctx, newNonce())
	}
	switch {
	case errors.Is(err, holder.ErrNoMain):
		log.Error("no main asked for the lock", "err", err, "dir", dir.Path(), "setting", "LOCKGATE_MAIN_TIMEOUT")
		p.logNext(log, gatedir.CodeConfig, advise(err, "see that main is started with lockgate exec, on the same gate directory, "+
			"and that this container is a native sidecar: an init container with restartPolicy: Always"))
		return gatedir.CodeConfig
	case errors.Is(err, gate.ErrPublish):
		log.Error("the gate directory cannot be written any more", "err", err, "setting", "LOCKGATE_DIR")
		p.logNext(log, gatedir.CodeConfig, err)
		return gatedir.CodeConfig
	case err != nil:
		log.Error("sidecar", "err", err)
		p.logNext(log, gatedir.CodeInternal, err)
		return gatedir.CodeInternal
	}
	return 0
}

// holdDir opens the gate directory for a holder, and locks it. A code other than 0
// is the exit code.
func (p *program) holdDir(cfg config.Config) (dir *gatedir.Dir, lock io.Closer, code int) {
	dir, err := gatedir.Open(cfg.Dir)
	if err != nil {
		return nil, nil, p.wrongDir(err)
	}
	lock, err = dir.LockHolder()
	if errors.Is(err, gatedir.ErrTaken) {
		p.say("LOCKGATE_DIR: another lockgate sidecar or init uses %s; stop it, or give each a directory of its own", dir.Path())
		return nil, nil, p.sayNext(gatedir.CodeConfig, advise(err, "give each pod a gate directory of its own"))
	}
	if err != nil {
		return nil, nil, p.wrongDir(err)
	}
	if err := dir.Check("holder"); err != nil {
		_ = lock.Close()
		return nil, nil, p.wrongDir(err)
	}
	return dir, lock, 0
}

// untilToldToStop returns a context that ends when a signal asks us to stop, and
// what that signal was, 0 before. stop ends the watch.
func (p *program) untilToldToStop(say func(os.Signal)) (ctx context.Context, signal func() syscall.Signal, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case sig := <-p.signals:
				if n, stops := wrap.StopSignal(sig); stops && ctx.Err() == nil {
					say(sig)
					cancel(&toldToStopError{syscall.Signal(n)})
				}
			}
		}
	}()
	signal = func() syscall.Signal {
		if told, ok := errors.AsType[*toldToStopError](context.Cause(ctx)); ok {
			return told.signal
		}
		return 0
	}
	return ctx, signal, func() {
		close(quit)
		<-ended
		cancel(nil)
	}
}

// toldToStop is the cause with which a holder's context ends.
type toldToStopError struct{ signal syscall.Signal }

func (e *toldToStopError) Error() string { return fmt.Sprintf("told to stop by signal %s", e.signal) }

func (p *program) wrongDir(err error) int {
	p.say("LOCKGATE_DIR: %v", err)
	return p.sayNext(gatedir.CodeConfig, advise(err, "set LOCKGATE_DIR to a directory that sidecar and main share and may both write: in a pod, a volume mounted in both containers"))
}
