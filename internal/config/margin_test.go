//go:build !lockgate_planted_margin

package config

import (
	"strings"
	"testing"
	"time"
)

func TestTheSafetyMarginCoversAKill(t *testing.T) {
	for _, value := range []string{"199ms", "0", "-2s"} {
		got := problems(t, Run, minimal("LOCKGATE_SAFETY_MARGIN="+value)...)
		if len(got) != 1 || !strings.Contains(got[0], "LOCKGATE_SAFETY_MARGIN") || !strings.Contains(got[0], "at least 200ms") {
			t.Errorf("SAFETY_MARGIN=%s: problems = %q; want one that says at least 200ms", value, got)
		}
	}
	if got := mustLoad(t, Run, minimal("LOCKGATE_SAFETY_MARGIN=200ms")...).SafetyMargin; got != 200*time.Millisecond {
		t.Errorf("SafetyMargin = %s; want 200ms", got)
	}
}
