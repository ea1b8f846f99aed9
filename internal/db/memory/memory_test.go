package memory_test

import (
	"testing"

	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/db/dbtest"
	"github.com/lockgate/lockgate/internal/db/memory"
)

func TestConformance(t *testing.T) {
	server := memory.New()
	dbtest.Exercise(t, dbtest.Harness{
		Open: func(*testing.T) db.Store { return server.Open(memory.Hooks{}) },
	})
}
