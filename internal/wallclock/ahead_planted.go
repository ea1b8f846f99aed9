//go:build lockgate_test_wall

package wallclock

import (
	"os"
	"time"
)

// ahead is how far the clock of a test's program is off.
func ahead() time.Duration {
	d, err := time.ParseDuration(os.Getenv("LOCKGATE_TEST_WALL_AHEAD"))
	if err != nil {
		panic("LOCKGATE_TEST_WALL_AHEAD: " + err.Error())
	}
	return d
}
