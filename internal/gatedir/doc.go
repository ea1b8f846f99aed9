// Package gatedir is the directory that a holder and main share: its files, its
// two locks and its events, both sides.
//
// # The room
//
// Everything here is about files. When to write them is decided by the holder
// and by the exec side; this package knows their names, their shapes and how to
// publish and read them so that neither side can be fooled or blocked by the
// other. It sees none of lockgate's other packages.
//
// # The files
//
//	holder.lock  flock held by the holder while it lives
//	main.lock    flock held by exec and inherited by CMD and its descendants:
//	             who gets it knows that all of them are gone
//	request      written by exec: "I want to run"; where main has no exec, by
//	             the holder
//	state.json   written by the holder: the verdict, and the deadlines
//	acquired     written by the holder, for scripts: the token, while it holds
//	skipped      written by the holder, for scripts: why main does not run
//	done         written by exec: CMD's exit code
//
// Both sides may be different users, and the directory is usually sticky. So
// each file has one writer, is mode 0644 whatever the umask, and is published by
// rename; a lock is opened read-only by the side that did not make it. There is
// no fsync: files of another boot are void.
//
// A reader takes a file that is missing, malformed, of another boot or of
// another pod as "no".
package gatedir
