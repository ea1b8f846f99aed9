// Package gate decides when to try for a lock, how long to trust it, and in what
// order to let go.
//
// # The room
//
// All policy about time is here, and nothing else: no SQL, no files, no
// processes. The gate sees only the contract of package db; what it decides it
// tells through [Config.Publish], and what it guards is one function, the work.
//
// # The states
//
//	                ┌────────────── busy, and told to wait ─────────────┐
//	                ▼                                                   │
//	Run ──────▶ waiting ── try ──┬── busy: skip ────────▶ skipped       │
//	                ▲            ├── busy: fail, or waited too long ──▶ busy
//	                │            ├── refused, or unreachable too long ▶ failed
//	                └─ unclear ──┤
//	                             └── ours
//	                                  │
//	                                  ▼
//	                              acquired ◀──┐ renewed
//	                                  │ │ └───┘
//	                work has returned │ │ not renewed by stop-at, "not yours",
//	                                  │ │ or held for MaxHold
//	                                  │ ▼
//	                                  │ lost ── work has returned ─┐
//	                                  ▼                            ▼
//	                              releasing ──────────────────▶ released
//
// # The trust window
//
// t0 is read before a call is sent. After a success
//
//	end     = t0 + the life granted
//	kill at = end − SafetyMargin
//	stop at = kill at − StopGrace
//
// and with MaxHold
//
//	stop at ≤ acquired + MaxHold
//	kill at ≤ stop at + StopGrace
//
// so a slow answer cannot stretch the window, and work that is told to stop at
// stop-at and is killed at kill-at is dead SafetyMargin before anyone else can
// acquire. Both the monotonic and the boot clock measure the window and the
// stricter decides: Go's timers and monotonic time stand still while a machine
// is suspended. The store's clock decides expiry; no time of one clock is ever
// compared with a time of another.
//
// # Guarantees
//
//   - The work starts only with stop-at ahead.
//   - The lease is renewed until the work has returned, and only then released.
//     Renewing ends only by release, by the store's "not yours", or with the
//     process.
//   - A renewal that fails leaves the outcome unknown and is tried again until
//     stop-at; only the store's "not yours" is final.
//   - A deadline that has been published and has passed is never moved.
//   - Whoever gives up with an acquire of unknown outcome undoes it.
//   - A holder of the same run is never a reason to skip or to fail at once.
//
// With GoOn the work is not told of a loss, and lost becomes acquired again, with
// deadlines ahead, when the store renews after all. [Take] is the upper half of the
// picture alone: it ends with acquired.
//
// # What it does not guarantee
//
// That the work stops: its context ends, and what it does then is its own
// affair. The exec side watches the same deadlines by itself and kills.
package gate
