// Package db is the contract between lockgate and a lock store: what a driver
// promises, in which words, and with which errors.
//
// # The room
//
// This package holds the contract and nothing else. One driver is one
// sub-package (memory, mysql, sqlite, …); dbtest is the suite that proves each
// driver against a real server. Drivers import this package and their own
// library, never each other and never the gate.
//
// # Single attempts
//
// Every method of [Store] is one attempt: it does not sleep, does not retry and
// starts no goroutine that outlives the call. When to try, how long to trust an
// answer and in what order to let go is the gate's business.
//
// # What a driver guarantees
//
//   - At most one live lease per name, as judged by the store's own clock.
//     Times are computed and compared by the store inside the statement; what
//     crosses the wire are durations.
//   - "Free" is decided only by a write on the primary: after a successful
//     TryAcquire exactly one row carries the caller's owner and token.
//   - A lease is judged by the expiry that is stored with it, never by the TTL
//     of a contender.
//   - Tokens of one name only grow: a new token is the greater of the last
//     token + 1 and the store's clock in Unix milliseconds, so that it keeps
//     growing after a fail-over or a restore that lost commits.
//   - Every call is safe to repeat. A repeated TryAcquire of the same owner
//     finds its own lease again, with the same token.
//   - While keep lasts, a released lease keeps out every run but its own: the
//     same run may try again at once, another one has to wait. A run that is
//     empty is the same as none.
//   - A lease that was released is never renewed or acquired by the same owner
//     again, whatever arrives late.
//
// # What it does not guarantee
//
//   - Exclusion across a step of the store's clock, or across a fail-over that
//     loses an acknowledged commit, until the old holder's next renewal.
//   - That an acquire which was delayed in the network costs nobody a TTL: it
//     may take a free lock for an owner that has gone, and then only the TTL
//     frees it. [Store.Release] with token 0 is the remedy while the owner
//     still lives.
//   - Fairness among contenders.
//
// # The life of a row
//
//	           TryAcquire                 Renew
//	(absent) ────────────▶ live ◀────────────────┐
//	                        │ └──────────────────┘
//	          Release       │  Revoke            │ time passes
//	   ┌────────────────────┼───────────┐        ▼
//	   ▼                    ▼           │     expired ── TryAcquire ──▶ live
//	released            revoked ────────┘                (a new token)
//	   │  keep passes,    │ Release, or its expiry
//	   │  or Revoke       │
//	   ▼                  ▼
//	  free ── TryAcquire of another owner ──▶ live (a new token)
//
//	released ── TryAcquire of another owner of its run ──▶ live (a new token)
package db
