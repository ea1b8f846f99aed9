// Package testserver gives tests a real database server, and a bad network to
// it.
//
// # The room
//
// It is imported by tests only, and knows nothing of lockgate. [MariaDB] is a
// server with a data folder of its own on a free loopback port, which can be
// stopped, frozen and restarted. [Forwarder] stands between a client and that
// server: it counts and logs the statements that pass, and can lose, delay,
// cut or hold back any of them.
//
// Both clean up after themselves. A server does not outlive a test binary that
// is killed (on Linux), only its temporary folder does.
package testserver
