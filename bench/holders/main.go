// Command holders has ten thousand holders renew their leases on one MariaDB, and a
// thousand contenders ask for one name within a second.
//
//	go run ./bench/holders -holders 10000 -hold 3m -contenders 1000
//
// One process plays them all, because ten thousand processes would not fit on the
// machines that run this. But each holder has its own store, and so its own
// connections, and its own gate with the policy by default, as in a pod. It exits
// 1 when a lease is lost, or when the contenders have not exactly one winner.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/lockgate/lockgate/bench"
	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/mysql"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/testserver"
)

func main() { os.Exit(bench.Main("holders", run)) }

// The settings that lockgate has by default.
const (
	ttl          = 2 * time.Minute
	renewEvery   = ttl / 6
	callLimit    = 5 * time.Second
	stopGrace    = 10 * time.Second
	safetyMargin = 5 * time.Second
	startTimeout = time.Minute
	lockWait     = time.Second
)

// maxConnections is what the server allows. It is no measure of anything: what
// the holders need is printed.
const maxConnections = 4000

// hall is where the holders meet: the server, and who may use it.
type hall struct {
	server  *testserver.MariaDB
	account bench.Account
	out     io.Writer
}

func run(ctx context.Context, out io.Writer, args []string) (err error) {
	flags := flag.NewFlagSet("holders", flag.ContinueOnError)
	holders := flags.Int("holders", 10_000, "how many hold a lease at the same time")
	length := flags.Duration("hold", 3*time.Minute, "for how long all of them hold")
	contenders := flags.Int("contenders", 1000, "how many ask for one name within a second")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("read the limit on open files: %w", err)
	}
	if files.Cur < maxConnections+100 {
		return fmt.Errorf("%d open files are allowed, %d are needed: ulimit -n %d", files.Cur, maxConnections+100, maxConnections+100)
	}
	h := &hall{out: out}
	h.server, err = testserver.StartMariaDB(ctx, testserver.Options{Args: []string{
		"--max-connections=" + strconv.Itoa(maxConnections),
		"--open-files-limit=" + strconv.Itoa(maxConnections+2000),
		"--back-log=" + strconv.Itoa(*contenders), // all of them may knock at once
		"--innodb-flush-log-at-trx-commit=1",      // as by default
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.server.Close()) }()
	if h.account, err = bench.NewAccount(ctx, h.server, "holders"); err != nil {
		return err
	}
	var allowed int
	if err := h.server.Admin().QueryRowContext(ctx, "SELECT @@max_connections").Scan(&allowed); err != nil {
		return err
	}
	if allowed < maxConnections {
		return fmt.Errorf("the server allows %d connections, %d are needed: ulimit -n %d", allowed, maxConnections, maxConnections+2000)
	}
	return errors.Join(h.crowd(ctx, *holders, *length), h.rush(ctx, *contenders))
}

// open opens a store as lockgate does, for a holder with the settings by default.
func (h *hall) open() (*mysql.Store, error) {
	target := mysql.Target{
		Address: h.server.Address(), User: h.account.User, Password: h.account.Password,
		Database: h.account.Database, TLS: mysql.TLSPrefer,
	}
	return mysql.Open(mysql.Options{
		Target: func() (mysql.Target, error) { return target, nil },
		Create: true, CallLimit: callLimit, LockWait: lockWait, CloseAfterCall: true,
	})
}

// config is a gate's configuration, as lockgate makes it from the settings by
// default.
func config(store db.Store, name, owner string, publish func(gate.Status)) gate.Config {
	return gate.Config{
		Store:        store,
		Request:      db.Request{Name: name, Owner: owner, TTL: ttl},
		OnBusy:       gate.Skip,
		StartTimeout: startTimeout,
		PollEvery:    time.Second,
		RenewEvery:   renewEvery,
		StopGrace:    stopGrace,
		SafetyMargin: safetyMargin,
		CallLimit:    callLimit,
		LockWait:     lockWait,
		Boot:         bootclock.Now,
		Publish:      func(s gate.Status) error { publish(s); return nil },
		Log:          quiet(),
	}
}
