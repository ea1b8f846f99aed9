//go:build lockgate_planted_margin

package config

import (
	"testing"
	"time"
)

func TestThePlantedBuildTakesANegativeMargin(t *testing.T) {
	if got := mustLoad(t, Run, minimal("LOCKGATE_SAFETY_MARGIN=-2s")...).SafetyMargin; got != -2*time.Second {
		t.Errorf("SafetyMargin = %s; want -2s", got)
	}
}
