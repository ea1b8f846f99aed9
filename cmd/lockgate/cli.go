package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/child"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/logging"
)

// flushLimit is how long the end of the program waits for its last log lines.
const flushLimit = 500 * time.Millisecond

// program is one run of lockgate, with everything it gets from outside.
type program struct {
	args    []string
	environ []string
	stdin   io.Reader
	stdout  io.Writer
	stderr  *os.File
	threads func() // waits for those of run and exec
	signals chan os.Signal
	job     *child.Job // of run and exec

	database config.Kind // of the settings, once they are read
}

// handled are the signals that lockgate acts on, but for those of job control,
// which are for run and exec alone. SIGHUP and SIGINT stay ignored,
// for us and for CMD, if they were when we started, as nohup does it; of the
// others Go cannot tell.
func handled() []os.Signal {
	all := []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
	}
	var sigs []os.Signal
	for _, sig := range all {
		if !signal.Ignored(sig) {
			sigs = append(sigs, sig)
		}
	}
	return sigs
}

// surviveBrokenPipes keeps a reader of our log that went away from ending us: a
// write then returns an error instead. The signal is for who has written, so it
// goes nowhere, and never to CMD.
func surviveBrokenPipes() {
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
}

// spareThreads are threads that exist from the start. Go ends the whole program
// when it needs another one and gets none, because a job has used up the limit
// on processes; and it keeps those that it has.
const spareThreads = 8

// reserveThreads has the runtime make them: a goroutine that is locked to its
// thread has one of its own. The returned function returns when they are there.
func reserveThreads() (wait func()) {
	var ready sync.WaitGroup
	release := make(chan struct{})
	ready.Add(spareThreads)
	for range spareThreads {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		}()
	}
	return sync.OnceFunc(func() {
		ready.Wait()
		close(release)
	})
}

// run runs the command that the arguments name and returns the exit code.
func (p *program) run() int {
	if len(p.args) == 0 {
		return p.wrongUsage("which command?")
	}
	name, args := p.args[0], p.args[1:]
	switch name {
	case "--help", "-h":
		name = helpCommand
	case "--version":
		name = versionCommand
	}
	spec := findSpec(name)
	if spec == nil {
		return p.wrongUsage("there is no command %q; did you mean %s?", name, nearestCommand(name))
	}
	help := spec.wantsHelp(args)
	if help || spec.ordinary {
		p.beOrdinary()
	}
	if help {
		return p.print(nil, spec.help())
	}
	if spec.startsAt {
		p.threads = reserveThreads()
		p.job = child.NewJob(p.signals)
	}
	return spec.run(p, args)
}

// commandName is the command that the arguments name, empty when there is none
// of that name.
func (p *program) commandName() string {
	if len(p.args) > 0 && findSpec(p.args[0]) != nil {
		return p.args[0]
	}
	return ""
}

func isHelp(arg string) bool { return arg == "--help" || arg == "-h" }

func (p *program) print(args []string, text string) int {
	if len(args) > 0 {
		return p.wrongUsage("unexpected argument %q", args[0])
	}
	if _, err := io.WriteString(p.stdout, text); err != nil {
		return p.fail(gatedir.CodeInternal, err)
	}
	return 0
}

// say writes a line for a person who may have no logger yet.
func (p *program) say(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, "lockgate: "+format+"\n", args...)
}

func (p *program) wrongUsage(format string, args ...any) int {
	p.say(format, args...)
	return p.sayNext(gatedir.CodeUsage, nil)
}

// wrongConfig lists everything that is wrong with the settings.
func (p *program) wrongConfig(err error) int {
	if wrong, ok := errors.AsType[*config.Error](err); ok {
		for _, problem := range wrong.Problems {
			p.say("%s", problem)
		}
	} else {
		p.say("%v", err)
	}
	return p.sayNext(gatedir.CodeConfig, err)
}

// load reads the settings of a command, and which boot this is. A code other than
// 0 is the exit code.
func (p *program) load(cmd config.Command) (cfg config.Config, boot string, code int) {
	cfg, err := config.Load(cmd, p.environ)
	if err != nil {
		return cfg, "", p.wrongConfig(err)
	}
	p.database = cfg.Database.Kind
	boot, err = bootclock.BootID()
	if err != nil {
		return cfg, "", p.fail(gatedir.CodeInternal, err)
	}
	return cfg, boot, 0
}

// command splits off CMD from the arguments of run and exec.
func command(args []string) ([]string, error) {
	switch {
	case len(args) > 0 && args[0] == "--":
		args = args[1:]
	case len(args) > 0 && strings.HasPrefix(args[0], "-"):
		return nil, fmt.Errorf("unknown option %q", args[0])
	}
	if len(args) == 0 || args[0] == "" {
		return nil, errors.New("which command shall be run? write it after --")
	}
	return args, nil
}

// logger makes the logger. The returned function writes out what is pending.
func (p *program) logger(cfg config.Config) (log *slog.Logger, flush func()) {
	log, buffer := logging.New(logging.Options{
		Writer:     p.stderr,
		Format:     cfg.LogFormat,
		Level:      cfg.LogLevel,
		IsTerminal: term.IsTerminal(int(p.stderr.Fd())),
		NoColor:    cfg.NoColor,
	})
	return log, func() { buffer.Close(flushLimit) }
}
