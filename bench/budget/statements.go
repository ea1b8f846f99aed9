package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockgate/lockgate/bench"
	"github.com/lockgate/lockgate/internal/testserver"
)

// These say what a statement is for.
func setsUp(sql string) bool       { return strings.HasPrefix(sql, "SET ") }
func doesNotSetUp(sql string) bool { return !setsUp(sql) }
func acquires(sql string) bool     { return strings.Contains(sql, "SET token = LAST_INSERT_ID(") }
func renews(sql string) bool       { return strings.Contains(sql, "0 * LAST_INSERT_ID(") }

// environ is that of a holder of the named lock which finds the server at
// address. The forwarder sees nothing of what is encrypted.
func (m *meter) environ(name, address string, more ...string) []string {
	return bench.Environ(append([]string{
		"NAME=" + name, "DB_URL=" + m.account.URL(address), "DB_TLS=disable",
	}, more...)...)
}

// hold takes the named lock and lets it go, past every forwarder: so that the
// table and the name's row are there.
func (m *meter) hold(ctx context.Context, name string) error {
	_, err := bench.Task{
		Name: "lockgate run", Argv: []string{m.lockgate, "run", "--", "true"},
		Env: m.environ(name, m.server.Address(), "ON_BUSY=fail"),
	}.Run(ctx)
	return err
}

// messages counts what a short job costs the server. What is printed is the most
// of several runs.
func (m *meter) messages(ctx context.Context) ([]line, error) {
	const name, runs = "messages", 5
	if err := m.hold(ctx, name); err != nil {
		return nil, err
	}
	way, err := testserver.StartForwarder("tcp", m.server.Address())
	if err != nil {
		return nil, err
	}
	defer way.Close()
	var statements, trips, setUps, connections int
	for range runs {
		way.Forget()
		before := way.Accepted()
		task := bench.Task{
			Name: "lockgate run", Argv: []string{m.lockgate, "run", "--", "true"},
			Env: m.environ(name, way.Address(), "ON_BUSY=fail"),
		}
		if _, err := task.Run(ctx); err != nil {
			return nil, err
		}
		if way.Count(acquires) != 1 {
			return nil, fmt.Errorf("a run has acquired with %d statements of the kind that was expected; are these the statements of today?", way.Count(acquires))
		}
		sets := way.Count(setsUp)
		statements = max(statements, way.Count(doesNotSetUp))
		trips = max(trips, way.Commands()-sets)
		setUps = max(setUps, sets)
		connections = max(connections, way.Accepted()-before)
	}
	return []line{
		{"acquire + release, uncontended: statements", strconv.Itoa(statements), "2", statements != 2},
		{"acquire + release, uncontended: round trips after set-up", strconv.Itoa(trips), "2", trips != 2},
		{"acquire + release, uncontended: SETs in connection set-up", strconv.Itoa(setUps), "1", setUps > 1},
		{"acquire + release, uncontended: connections", strconv.Itoa(connections), "1", connections > 1},
	}, nil
}

// start times how long a process needs from its start to its first statement.
func (m *meter) start(ctx context.Context) ([]line, error) {
	const name = "start"
	if err := m.hold(ctx, name); err != nil {
		return nil, err
	}
	way, err := testserver.StartForwarder("tcp", m.server.Address())
	if err != nil {
		return nil, err
	}
	defer way.Close()
	tasks := []bench.Task{
		{Name: "lockgate run", Argv: []string{m.lockgate, "run", "--", "true"}, Env: m.environ(name, way.Address(), "ON_BUSY=fail")},
		{Name: "connect", Argv: []string{m.connect}, Env: append(bench.Environ(), "DSN="+m.account.DSN(way.Address()))},
	}
	samples := make([]bench.Sample, len(tasks))
	for round := -1; round < m.runs; round++ {
		for i, task := range tasks {
			took, err := firstStatement(ctx, way, task)
			if err != nil {
				return nil, err
			}
			if round >= 0 {
				samples[i] = append(samples[i], took)
			}
		}
	}
	return []line{{
		what: fmt.Sprintf("start to first statement, against a program that only connects (%d pairs)", m.runs),
		measured: fmt.Sprintf("%.2f x (%s against %s)",
			bench.Ratio(samples[0], samples[1]), samples[0], samples[1]),
	}}, nil
}

// firstStatement runs a task and returns how long after its start the forwarder
// saw its first statement that does not set a connection up.
func firstStatement(ctx context.Context, way *testserver.Forwarder, task bench.Task) (time.Duration, error) {
	way.Forget()
	cmd := task.Command(ctx)
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	seen := way.AwaitDelivered(ctx, doesNotSetUp, 1)
	took := time.Since(begin)
	if seen != nil {
		_ = cmd.Process.Kill()
	}
	if err := cmd.Wait(); err != nil && seen == nil {
		seen = err
	}
	if seen != nil {
		return 0, fmt.Errorf("%s: %w", task.Name, seen)
	}
	return took, nil
}
