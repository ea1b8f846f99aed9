package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strings"

	"github.com/lockgate/lockgate/internal/child"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/wrap"
)

// halfOption makes exec the guarding half of a run: the nonce of the request
// that the holding half has made already follows.
const halfOption = "--half-of-run="

func (p *program) runExec(args []string) int {
	nonce, half := "", false
	if len(args) > 0 {
		if nonce, half = strings.CutPrefix(args[0], halfOption); half {
			args = args[1:]
		}
	}
	if !half {
		nonce = newNonce()
	}
	argv, err := command(args)
	if err != nil {
		return p.wrongUsage("exec: %v", err)
	}
	path, code := p.lookup(argv[0])
	if code != 0 {
		return code
	}
	cfg, boot, code := p.load(config.Exec)
	if code != 0 {
		return code
	}
	dir, err := gatedir.Open(cfg.Dir)
	if err != nil {
		return p.wrongDir(err)
	}
	if half {
		// The half that ends last removes the private directory.
		defer func() {
			if !dir.HolderLives() {
				_ = os.RemoveAll(dir.Path())
			}
		}()
	}
	log, flush := p.logger(cfg)
	defer flush()
	return wrap.Run(wrap.Config{
		Dir:            dir,
		Nonce:          nonce,
		Boot:           boot,
		Pod:            cfg.PodUID,
		VerdictTimeout: cfg.VerdictTimeout,
		Spec:           child.Spec{Path: path, Args: argv, NewGroup: true, DeathSignal: true},
		Env: func(lock string, token uint64) []string {
			return config.ChildEnv(p.environ, lock, token)
		},
		Signals: p.signals,
		Quiet:   half,
		Log:     log,
	})
}

// lookup finds CMD, before anything is asked for. A code other than 0 is the
// exit code.
func (p *program) lookup(name string) (path string, code int) {
	path, err := child.Lookup(name, p.environ)
	if err == nil {
		return path, 0
	}
	p.say("%v", err)
	if lookup, ok := errors.AsType[*child.LookupError](err); ok {
		return "", lookup.Code
	}
	return "", gatedir.CodeInternal
}

// newNonce names a request as no other ever is.
func newNonce() string {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails; see its documentation
	return hex.EncodeToString(nonce)
}
