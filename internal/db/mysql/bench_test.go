package mysql

import (
	"database/sql"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/testserver"
)

// BenchmarkAcquireRelease measures an uncontended acquire and release against
// two bare autocommit UPDATEs of one row, in turn, over connections that are set
// up alike. It reports the ratio of the two, which a noisy machine leaves alone.
func BenchmarkAcquireRelease(b *testing.B) {
	schema := server.NewDatabase(b)
	target := Target{Address: server.Address(), User: "bench", Password: "bench", Database: schema}
	server.NewUser(b, testserver.User{Name: target.User, Password: target.Password, Grants: []string{"ALL ON " + schema + ".*"}})
	server.Exec(b,
		"CREATE TABLE "+schema+".bare (name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, n BIGINT UNSIGNED NOT NULL) ENGINE = InnoDB",
		"INSERT INTO "+schema+".bare VALUES ('bench', 0)")
	options := Options{
		Target: func() (Target, error) { return target, nil }, Create: true, CallLimit: patience, LockWait: time.Second,
	}
	store, err := Open(options)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	pool := sql.OpenDB(&connector{target: options.Target, limit: patience, setUp: setUpStatement(options.LockWait)})
	b.Cleanup(func() { _ = pool.Close() })
	pool.SetMaxOpenConns(1)

	cycle := func() {
		lease, err := store.TryAcquire(b.Context(), db.Request{Name: "bench", Owner: "bench/" + time.Now().String(), TTL: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		if err := store.Release(b.Context(), lease, 0); err != nil {
			b.Fatal(err)
		}
	}
	bare := func() {
		for range 2 {
			if _, err := pool.ExecContext(b.Context(), "UPDATE bare SET n = n + 1 WHERE name = ?", "bench"); err != nil {
				b.Fatal(err)
			}
		}
	}
	cycle()
	bare()
	var ours, theirs time.Duration
	for b.Loop() {
		start := time.Now()
		cycle()
		middle := time.Now()
		bare()
		ours += middle.Sub(start)
		theirs += time.Since(middle)
	}
	b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "µs/cycle")
	b.ReportMetric(float64(theirs.Microseconds())/float64(b.N), "µs/bare")
	b.ReportMetric(float64(ours)/float64(theirs), "ratio")
}
