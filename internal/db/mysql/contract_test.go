package mysql

import (
	"testing"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/dbtest"
)

func TestContract(t *testing.T) {
	p := newPlace(t, server)
	dbtest.Exercise(t, dbtest.Harness{Open: func(t *testing.T) db.Store { return open(t, p.options()) }})
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
			dbtest.Exercise(t, dbtest.Harness{Open: func(t *testing.T) db.Store {
				store := open(t, options)
				if tt.fresh {
					store.db.SetMaxIdleConns(-1)
				}
				return store
			}})
		})
	}
}
