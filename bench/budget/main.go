// Command budget measures every budget of the design on the built binary, prints
// them in one table, and exits 1 when one is over.
//
//	go run ./bench/budget -lockgate bin/lockgate -sized bin/lockgate-linux-amd64 -connect bin/connect
//
// It needs Linux, for /proc, and a MariaDB server that it starts itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/lockgate/lockgate/bench"
	"github.com/lockgate/lockgate/internal/testserver"
)

func main() { os.Exit(bench.Main("budget", run)) }

// errOver says that something costs more than it may.
var errOver = errors.New("over budget")

// line is one line of the table.
type line struct {
	what, measured, budget string
	over                   bool
}

// verdict is a line's last word.
func (l line) verdict() string {
	switch {
	case l.budget == "":
		return "" // only printed
	case l.over:
		return "OVER"
	default:
		return "ok"
	}
}

// meter measures, with a server, on the binaries that it was given.
type meter struct {
	lockgate, sized, connect string

	server  *testserver.MariaDB
	account bench.Account
	dir     string // for gate directories
	runs    int
}

func run(ctx context.Context, out io.Writer, args []string) (err error) {
	m := &meter{}
	flags := flag.NewFlagSet("budget", flag.ContinueOnError)
	flags.StringVar(&m.lockgate, "lockgate", "bin/lockgate", "the binary under test")
	flags.StringVar(&m.sized, "sized", "bin/lockgate-linux-amd64", "the binary whose size counts")
	flags.StringVar(&m.connect, "connect", "bin/connect", "the program that only connects")
	flags.IntVar(&m.runs, "runs", 25, "how often a start is timed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if m.dir, err = os.MkdirTemp("", "lockgate-budget-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(m.dir)) }()
	secure, err := encryption(m.dir)
	if err != nil {
		return err
	}
	if m.server, err = testserver.StartMariaDB(ctx, testserver.Options{Args: secure}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.server.Close()) }()
	if m.account, err = bench.NewAccount(ctx, m.server, "budget"); err != nil {
		return err
	}

	var lines []line
	for _, measure := range []func(context.Context) ([]line, error){m.size, m.messages, m.start, m.holding} {
		some, err := measure(ctx)
		if err != nil {
			return err
		}
		lines = append(lines, some...)
	}
	return report(out, lines)
}

// report prints the table. The error wraps errOver when something is.
func report(out io.Writer, lines []line) error {
	rows := [][]string{{"what", "measured", "budget", ""}}
	over := 0
	for _, l := range lines {
		if l.over {
			over++
		}
		rows = append(rows, []string{l.what, l.measured, l.budget, l.verdict()})
	}
	if err := bench.Table(out, rows...); err != nil {
		return err
	}
	_, err := fmt.Fprint(out, "\nMB are 1,000,000 bytes. Times are min / median / max. Not measured yet, because they do not exist: the\n"+
		"binary with every driver, the image, and the Kubernetes helpers in the binary (its budget includes them).\n")
	if over > 0 {
		return errors.Join(err, fmt.Errorf("%d of %d: %w", over, len(lines), errOver))
	}
	return err
}

// maxBytes is 20 MB. A MB is 1,000,000 bytes here, the smaller of the two that
// go by that name.
const maxBytes = 20_000_000

func (m *meter) size(context.Context) ([]line, error) {
	info, err := os.Stat(m.sized)
	if err != nil {
		return nil, err
	}
	return []line{{
		what:     "binary with MySQL and SQLite, linux/amd64",
		measured: fmt.Sprintf("%.2f MB", float64(info.Size())/1e6),
		budget:   "20 MB",
		over:     info.Size() > maxBytes,
	}}, nil
}
