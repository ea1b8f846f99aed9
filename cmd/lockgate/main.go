// Command lockgate lets a command run only while it holds a named lock in a
// database.
//
// # The room
//
// Arguments, environment, signals and exit codes, and the wiring of the other
// rooms. Nothing is decided here that they could decide.
package main

import (
	"os"
	"os/signal"
)

// version is set by the linker.
var version = "dev"

func main() {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, handled()...)
	surviveBrokenPipes()
	p := &program{
		args:    os.Args[1:],
		environ: os.Environ(),
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		signals: signals,
	}
	os.Exit(p.run())
}
