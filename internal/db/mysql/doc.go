// Package mysql keeps locks in a table of MySQL (5.7 and later) or MariaDB
// (10.3 and later).
//
// # The table
//
// One row is one lock, see [DDL]. It is never deleted. Times are DATETIME(6) in
// UTC, because a TIMESTAMP passes through the time zone of the session. They
// are made and compared by the server inside the statement, from
// UTC_TIMESTAMP(6); what crosses the wire are durations.
//
// Text is compared with utf8mb4_bin, which knows no difference in case or
// accent but ignores blanks at the end. Names, owners and runs that end in a
// blank are therefore stored with a visible mark behind it.
//
// # The statements
//
// Every statement stands for itself: it commits on its own, needs nothing of
// the session but what is set when it begins, and may be repeated. They mean
// the same in every sql_mode and at every isolation level.
//
//	acquire  one UPDATE of the row if it is free, or kept and of our own run;
//	         the answer carries the token
//	         if nothing changed, one SELECT says why:
//	           no row             an INSERT; if another was first, SELECT again
//	           our own, live      an UPDATE that extends it
//	           our own, released  ErrLost
//	           another's          ErrHeld
//	         who was last told that the lock is another's sends a SELECT before
//	         all this, and nothing else while that is so: ErrHeld
//	renew    one UPDATE of the live row with our owner and token; the answer
//	         carries the lease's age
//	release  one UPDATE of the row with our owner and token
//
// That a lock is free is decided by the UPDATE or the INSERT alone. The SELECT
// only words the refusal, and keeps those who wait from writing: an UPDATE locks
// the row even if it then changes nothing, and enough of them starve the holder's
// own. An answer from a replica that lags makes them wait longer, at most until
// the lease that it knows has ended. Rows count when they match, not when they change: two
// renewals in the same microsecond both count.
//
// A statement that waits for another's row lock keeps the time at which it
// began. That makes what it grants shorter and never longer.
//
// # Connections
//
// There is at most one, and calls take turns. Each new one asks for the address
// and the credentials again. Before the first statement it sends one SET, for
// the character set, autocommit and a short lock wait, whatever the server's
// init_connect has set.
package mysql
