package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lockgate/lockgate/internal/child"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/wrap"
)

// halfOption makes exec the guarding half of a run: what follows is the nonce of
// the request that the holding half has made already, and the descriptor of the
// pipe on which that half says that there is news.
const halfOption = "--half-of-run="

func (p *program) runExec(args []string) int {
	nonce, news, half := parseHalf(args)
	if half {
		args = args[1:]
	} else {
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
	job := &wrap.Job{Control: p.job, Terminal: child.OwnTerminal(), Group: syscall.Getpgrp()}
	if half {
		job.Group, job.Holder = holdingHalf(dir)
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
			p.threads()
			return config.ChildEnv(p.environ, lock, token)
		},
		Signals: p.signals,
		Job:     job,
		Quiet:   half,
		Failed: func(code int, hint string) {
			if hint != "" {
				p.logNext(log, code, advise(errNoVerdict, "%s", hint))
			} else if !half || code != gatedir.CodeUnavailable && code != gatedir.CodeBusy && code != gatedir.CodeLost && code != gatedir.CodeConfig {
				p.logNext(log, code, nil) // else the other half says it, who knows why
			}
		},
		Watch: news,
		Log:   log,
	})
}

// errNoVerdict is what a hint of the exec side is about.
var errNoVerdict = errors.New("no verdict")

// parseHalf reads the option that makes exec a guarding half. news is nil when there
// is no such pipe, as when somebody wrote the option by hand.
func parseHalf(args []string) (nonce string, news *gatedir.Watcher, half bool) {
	if len(args) == 0 {
		return "", nil, false
	}
	text, half := strings.CutPrefix(args[0], halfOption)
	if !half {
		return "", nil, false
	}
	nonce, number, _ := strings.Cut(text, ",")
	var stat unix.Stat_t
	fd, err := strconv.Atoi(number)
	if err != nil || fd <= 2 || unix.Fstat(fd, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nonce, nil, true
	}
	unix.CloseOnExec(fd) // it is not for CMD
	return nonce, gatedir.WatchPipe(os.NewFile(uintptr(fd), "news")), true
}

// holdingHalf returns the process group of the half that holds the lock, which is our
// parent while it lives, and how to signal it.
func holdingHalf(dir *gatedir.Dir) (group int, signal func(syscall.Signal) bool) {
	pid := os.Getppid()
	// In this order: if it lives now, it was our parent before.
	group, err := syscall.Getpgid(pid)
	if !dir.HolderLives() || err != nil {
		return 0, func(syscall.Signal) bool { return false }
	}
	return group, func(sig syscall.Signal) bool {
		return os.Getppid() == pid && syscall.Kill(pid, sig) == nil
	}
}

// lookup finds CMD, before anything is asked for. A code other than 0 is the
// exit code.
func (p *program) lookup(name string) (path string, code int) {
	path, err := child.Lookup(name, p.environ)
	if err == nil {
		return path, 0
	}
	if lookup, ok := errors.AsType[*child.LookupError](err); ok {
		return "", p.fail(lookup.Code, err)
	}
	return "", p.fail(gatedir.CodeInternal, err)
}

// newNonce names a request as no other ever is.
func newNonce() string {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails; see its documentation
	return hex.EncodeToString(nonce)
}
