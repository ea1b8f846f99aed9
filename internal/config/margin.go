//go:build !lockgate_planted_margin

package config

import "time"

// minSafetyMargin is the smallest SAFETY_MARGIN. Below it the time that a
// SIGKILL needs to take effect is no longer covered.
const minSafetyMargin = 200 * time.Millisecond
