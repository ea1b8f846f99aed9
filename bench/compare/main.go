// Command compare measures whole processes of lockgate against other ways to the
// same end, in turn, and prints the ratios of their medians.
//
//	go run ./bench/compare -lockgate bin/lockgate -etcd bin/etcd -etcdctl bin/etcdctl
//
// It also runs the benchmark of the MySQL driver, and so needs the go command and
// the module's root as its folder. It exits 1 when a goal is missed by a lot.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockgate/lockgate/bench"
	"github.com/lockgate/lockgate/internal/testserver"
)

func main() { os.Exit(bench.Main("compare", run)) }

// errMissed says that a goal is missed by more than a machine can explain.
var errMissed = errors.New("a goal is missed by a lot")

// comparison is one line of the table.
type comparison struct {
	ours, theirs  string
	sample, other string // min / median / max
	ratio         float64
	goal          bench.Goal
}

// comparer has what the comparisons are made with.
type comparer struct {
	lockgate, etcd, etcdctl string

	runs int
	dir  string
}

func run(ctx context.Context, out io.Writer, args []string) (err error) {
	c := &comparer{}
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.StringVar(&c.lockgate, "lockgate", "bin/lockgate", "the binary under test")
	flags.StringVar(&c.etcd, "etcd", "bin/etcd", "the server of etcd")
	flags.StringVar(&c.etcdctl, "etcdctl", "bin/etcdctl", "its client")
	flags.IntVar(&c.runs, "runs", 40, "how often each process is run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, binary := range []*string{&c.lockgate, &c.etcd, &c.etcdctl} {
		if *binary, err = filepath.Abs(*binary); err != nil {
			return err
		}
	}
	if c.dir, err = os.MkdirTemp("", "lockgate-compare-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()

	var all []comparison
	for _, compare := range []func(context.Context) ([]comparison, error){c.statements, c.onSQLite, c.onServers} {
		some, err := compare(ctx)
		if err != nil {
			return err
		}
		all = append(all, some...)
	}
	return report(out, c.runs, all)
}

// report prints the table. The error wraps errMissed.
func report(out io.Writer, runs int, all []comparison) error {
	rows := [][]string{{"A", "B", "A: min / median / max", "B: min / median / max", "A/B", "goal", ""}}
	missed := 0
	for _, c := range all {
		verdict, failed := c.goal.Judge(c.ratio)
		if failed {
			missed++
		}
		rows = append(rows, []string{
			c.ours, c.theirs, c.sample, c.other,
			fmt.Sprintf("%.2f", c.ratio), fmt.Sprintf("<= %g", float64(c.goal)), verdict,
		})
	}
	if err := bench.Table(out, rows...); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nEach was run %d times, in turn. A/B is the ratio of the medians. Machines differ, and a goal is no\n"+
		"promise: missed by more than three times it is a failure.\n", runs)
	if missed > 0 {
		return errors.Join(err, fmt.Errorf("%d of %d: %w", missed, len(all), errMissed))
	}
	return err
}

// statements runs the driver's own benchmark, several times, each many times
// longer than a process lives.
func (c *comparer) statements(ctx context.Context) ([]comparison, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkAcquireRelease$",
		"-benchtime", "200x", "-count", strconv.Itoa(c.runs), "./internal/db/mysql")
	cmd.Env = bench.Environ()
	said, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, said)
	}
	cycles, bare, err := parse(string(said))
	if err != nil {
		return nil, fmt.Errorf("%w in what the benchmark said:\n%s", err, said)
	}
	return []comparison{{
		ours: "acquire + release on MariaDB", theirs: "two bare UPDATEs, same driver",
		sample: cycles.String(), other: bare.String(), ratio: bench.Ratio(cycles, bare), goal: 1.2,
	}}, nil
}

// parse reads the figures of a benchmark's lines.
func parse(said string) (cycles, bare bench.Sample, err error) {
	for line := range strings.Lines(said) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for _, figure := range []struct {
			unit string
			to   *bench.Sample
		}{{"µs/cycle", &cycles}, {"µs/bare", &bare}} {
			at := slices.Index(fields, figure.unit)
			if at < 1 {
				return nil, nil, fmt.Errorf("no %s", figure.unit)
			}
			us, err := strconv.ParseFloat(fields[at-1], 64)
			if err != nil {
				return nil, nil, err
			}
			*figure.to = append(*figure.to, time.Duration(us*float64(time.Microsecond)))
		}
	}
	if len(cycles) == 0 {
		return nil, nil, errors.New("no figures")
	}
	return cycles, bare, nil
}

// between compares the first of some tasks with each of the others.
func (c *comparer) between(ctx context.Context, goals []bench.Goal, tasks ...bench.Task) ([]comparison, error) {
	samples, err := bench.Interleave(ctx, c.runs, tasks...)
	if err != nil {
		return nil, err
	}
	var all []comparison
	for i, goal := range goals {
		all = append(all, comparison{
			ours: tasks[0].Name, theirs: tasks[i+1].Name,
			sample: samples[0].String(), other: samples[i+1].String(),
			ratio: bench.Ratio(samples[0], samples[i+1]), goal: goal,
		})
	}
	return all, nil
}

// onSQLite compares with flock of util-linux, which is what a crontab has without
// lockgate.
func (c *comparer) onSQLite(ctx context.Context) ([]comparison, error) {
	flock, err := exec.LookPath("flock")
	if err != nil {
		return nil, fmt.Errorf("%w: it is in util-linux", err)
	}
	return c.between(ctx, []bench.Goal{6},
		bench.Task{
			Name: "lockgate run -- true, SQLite", Argv: []string{c.lockgate, "run", "--", "true"},
			Env: bench.Environ("NAME=bench", "ON_BUSY=fail", "DB_URL=sqlite://"+filepath.Join(c.dir, "locks.db")),
		},
		bench.Task{
			Name: "flock FILE true", Argv: []string{flock, filepath.Join(c.dir, "flock"), "true"}, Env: bench.Environ(),
		})
}

// onServers compares with one question to the same server, and with a lock in
// etcd, whose data is beside that server's.
func (c *comparer) onServers(ctx context.Context) (all []comparison, err error) {
	client, err := exec.LookPath("mariadb")
	if err != nil {
		return nil, fmt.Errorf("%w: it is in the Debian package mariadb-client-core", err)
	}
	// A commit is on the disk before it is answered, as in etcd.
	server, err := testserver.StartMariaDB(ctx, testserver.Options{Args: []string{"--innodb-flush-log-at-trx-commit=1"}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	account, err := bench.NewAccount(ctx, server, "compare")
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(server.Address())
	if err != nil {
		return nil, err
	}
	endpoint, stop, err := c.startEtcd(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()

	return c.between(ctx, []bench.Goal{2, 1},
		bench.Task{
			Name: "lockgate run -- true, MariaDB", Argv: []string{c.lockgate, "run", "--", "true"},
			Env: bench.Environ("NAME=bench", "ON_BUSY=fail", "DB_URL="+account.URL(server.Address())),
		},
		bench.Task{
			Name: "mariadb -e 'SELECT 1'",
			// The password by way of the environment, as on the other side.
			Argv: []string{client, "--no-defaults", "--skip-ssl", "--host=" + host, "--port=" + port, "--protocol=tcp",
				"--user=" + account.User, "--database=" + account.Database, "--execute=SELECT 1"},
			Env: append(bench.Environ(), "MYSQL_PWD="+account.Password),
		},
		bench.Task{
			Name: "etcdctl lock NAME true", Argv: []string{c.etcdctl, "--endpoints=" + endpoint, "lock", "bench", "true"},
			Env: bench.Environ(),
		})
}
