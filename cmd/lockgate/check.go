package main

import (
	"errors"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// runCheck answers a probe or a script: 0 only while the lock is held and the
// deadline is ahead; with --verdict, 0 once there is a verdict. Else 1, and a
// line that says why.
func (p *program) runCheck(args []string) int {
	verdict := false
	for _, arg := range args {
		if arg != "--verdict" {
			return p.wrongUsage("check: unexpected argument %q", arg)
		}
		verdict = true
	}
	if err := p.check(verdict); err != nil {
		p.say("check: %v", err)
		return 1
	}
	return 0
}

func (p *program) check(verdict bool) error {
	cfg, err := config.Load(config.Check, p.environ)
	if err != nil {
		return err
	}
	boot, err := bootclock.BootID()
	if err != nil {
		return err
	}
	dir, err := gatedir.Open(cfg.Dir)
	if err != nil {
		return err
	}
	state, err := dir.ReadState()
	if errors.Is(err, gatedir.ErrNone) {
		return errors.New("there is no verdict yet")
	}
	if err != nil {
		return err
	}
	if req := (gatedir.Request{Nonce: state.Request, Boot: boot, Pod: cfg.PodUID}); !state.Answers(req) {
		return errors.New("there is no verdict of this boot and pod yet")
	}
	held := state.Verdict == gatedir.Acquired
	switch {
	case verdict && (held || state.Verdict.Final()):
		return nil
	case verdict:
		return errors.New("there is no verdict yet: waiting for the lock")
	case !held:
		return errors.New("the lock is not held: " + string(state.Verdict))
	case !dir.IsMarkedAcquired():
		return errors.New("the lock is being let go")
	case bootclock.Now() >= time.Duration(state.StopBoot):
		return errors.New("the lock was not renewed in time")
	}
	return nil
}
