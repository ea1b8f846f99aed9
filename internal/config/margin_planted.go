//go:build lockgate_planted_margin

package config

import "time"

// minSafetyMargin in this build lets a test plant a fault: with a negative
// margin CMD outlives the lease, and the test that looks for that must see it.
// No release is built with this tag.
const minSafetyMargin = -time.Hour
