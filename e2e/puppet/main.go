// Command puppet is what lockgate runs in the end-to-end tests: a command that
// shows when it lives, and that can be told how to behave.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	beats := flag.String("beat", "", "write the wall clock, in µs, into this file, again and again, while alive")
	stubborn := flag.Bool("stubborn", false, "ignore SIGTERM")
	grandchild := flag.String("grandchild", "", "start another puppet in a session of its own that beats into this file")
	witness := flag.String("witness", "", "create this file, which must not exist, with the fencing token in it")
	until := flag.String("until", "", "live until this file exists")
	life := flag.Duration("for", 0, "live this long")
	linger := flag.Duration("linger", 0, "after SIGTERM, live this much longer")
	code := flag.Int("exit", 0, "exit with this code")
	stubbornChild := flag.Bool("stubborn-grandchild", false, "the grandchild ignores SIGTERM")
	heard := flag.String("heard", "", "write each of INT, QUIT, WINCH and USR1 that comes into this file, and go on")
	flag.Parse()

	signals := make(chan os.Signal, 64)
	if *heard != "" {
		signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH, syscall.SIGUSR1)
	}
	if *witness != "" {
		f, err := os.OpenFile(*witness, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		must(err)
		_, err = fmt.Fprintln(f, os.Getenv("LOCKGATE_TOKEN"))
		must(err)
		must(f.Close())
	}
	if *grandchild != "" {
		args := []string{"-beat", *grandchild, "-for", "10m"}
		if *stubbornChild {
			args = append(args, "-stubborn")
		}
		child := exec.Command(os.Args[0], args...)
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		must(child.Start())
	}
	told := make(chan os.Signal, 1)
	switch {
	case *stubborn:
		signal.Ignore(syscall.SIGTERM)
	case *linger > 0:
		signal.Notify(told, syscall.SIGTERM)
	}
	var out *os.File
	if *beats != "" {
		var err error
		out, err = os.OpenFile(*beats, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		must(err)
	}
	var end time.Time
	if *life > 0 {
		end = time.Now().Add(*life)
	}
	every := 2 * time.Millisecond
	if out == nil {
		every = 10 * time.Millisecond // nobody counts its days: leave the machine to the others
	}
	tick := time.NewTicker(every)
	for {
		if out != nil {
			_, err := out.WriteString(strconv.FormatInt(time.Now().UnixMicro(), 10) + "\n")
			must(err)
		}
		if !end.IsZero() && time.Now().After(end) {
			os.Exit(*code)
		}
		if *until != "" {
			if _, err := os.Stat(*until); err == nil {
				os.Exit(*code)
			}
		} else if end.IsZero() {
			os.Exit(*code)
		}
		select {
		case sig := <-signals:
			f, err := os.OpenFile(*heard, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			must(err)
			_, err = fmt.Fprintln(f, sig)
			must(err)
			must(f.Close())
		case <-told:
			end = time.Now().Add(*linger)
		case <-tick.C:
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "puppet:", err)
		os.Exit(99)
	}
}
