// Package wallclock is the clock on the wall: what people read, and nothing else.
//
// # The room
//
// No lock is judged by this clock. It is for the times in logs and files, for the
// greater part of SQLite's tokens, and to notice that somebody has set it. So the
// program asks for it in this one place, and a test builds a program whose clock is
// an hour off and finds that nothing but what people read has changed.
package wallclock

import "time"

// Now is the time of day, as this machine has it.
func Now() time.Time { return time.Now().Add(ahead()) }
