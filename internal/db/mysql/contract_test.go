package mysql

import (
	"errors"
	"testing"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/dbtest"
)

func TestContract(t *testing.T) {
	p := newPlace(t, server)
	dbtest.Exercise(t, harness(func(t *testing.T) db.Store { return open(t, p.options()) }))
}

// harness adds to a way to open clients the places to migrate.
func harness(openStore func(t *testing.T) db.Store) dbtest.Harness {
	return dbtest.Harness{
		Open: openStore,
		Empty: func(t *testing.T) func() db.Store {
			p := newPlace(t, server)
			return func() db.Store { return open(t, p.options()) }
		},
		Foreign: func(t *testing.T) (func() db.Store, func() string) {
			p := newPlace(t, server)
			server.Exec(t,
				"CREATE TABLE "+p.table()+" (name VARCHAR(64) PRIMARY KEY, token BIGINT UNSIGNED, locked_by TEXT)",
				"INSERT INTO "+p.table()+" VALUES ('job', 1, 'somebody')")
			return func() db.Store { return open(t, p.options()) }, func() string {
				var rows, name, definition string
				admin := server.Admin()
				if err := errors.Join(
					admin.QueryRowContext(t.Context(), "SELECT GROUP_CONCAT(CONCAT_WS('|', name, token, locked_by)) FROM "+p.table()).Scan(&rows),
					admin.QueryRowContext(t.Context(), "SHOW CREATE TABLE "+p.table()).Scan(&name, &definition),
				); err != nil {
					t.Fatal(err)
				}
				return rows + "\n" + definition
			}
		},
	}
}

// Each case is as many oddities at once as can be combined, because the suite
// waits for many leases to end.
func TestContractOnOddServers(t *testing.T) {
	type globals map[string]string
	tests := []struct {
		name    string
		globals globals
		adjust  func(*Options)
		fresh   bool // a new connection for every statement, as behind a multiplexing proxy
	}{
		{
			name: "every statement on a new connection, odd SQL, far east",
			globals: globals{
				"sql_mode": "'ORACLE,ANSI_QUOTES,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION,HIGH_NOT_PRECEDENCE," +
					"PIPES_AS_CONCAT,IGNORE_SPACE,PAD_CHAR_TO_FULL_LENGTH,TIME_ROUND_FRACTIONAL,EMPTY_STRING_IS_NULL'",
				"time_zone": "'+09:00'",
			},
			fresh: true,
		},
		{
			name: "all assignments at once, strict, serializable, no autocommit, far west",
			globals: globals{
				"sql_mode":     "'TRADITIONAL,STRICT_ALL_TABLES,SIMULTANEOUS_ASSIGNMENT'",
				"tx_isolation": "'SERIALIZABLE'",
				"autocommit":   "0",
				"time_zone":    "'-11:30'",
			},
			adjust: func(o *Options) { o.LockWait = 0 },
		},
		{
			name: "given back after each call, lenient, read committed, safe updates",
			globals: globals{
				"sql_mode":         "''",
				"tx_isolation":     "'READ-COMMITTED'",
				"sql_safe_updates": "1",
			},
			adjust: func(o *Options) { o.CloseAfterCall = true },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlace(t, server)
			for name, expression := range tt.globals {
				server.SetGlobal(t, name, expression)
			}
			options := p.options()
			if tt.adjust != nil {
				tt.adjust(&options)
			}
			dbtest.Exercise(t, harness(func(t *testing.T) db.Store {
				store := open(t, options)
				if tt.fresh {
					store.db.SetMaxIdleConns(-1)
				}
				return store
			}))
		})
	}
}
