package sqlite_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/dbtest"
	"github.com/lockgate/lockgate/internal/db/sqlite"
)

// clock returns the clock of a machine that booted when the test began.
func clock() sqlite.Clock {
	start := time.Now()
	return sqlite.Clock{BootID: "this boot", Now: func() time.Duration { return time.Since(start) }}
}

func TestConformance(t *testing.T) {
	opts := sqlite.Options{Path: filepath.Join(t.TempDir(), "locks.db"), Create: true, Clock: clock()}
	dbtest.Exercise(t, dbtest.Harness{
		Open: func(t *testing.T) db.Store {
			store, err := sqlite.Open(t.Context(), opts)
			if err != nil {
				t.Fatalf("Open(%q) = %v; want a store", opts.Path, err)
			}
			return store
		},
	})
}
