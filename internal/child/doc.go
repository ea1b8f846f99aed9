// Package child runs one command and answers for all of its descendants: it
// signals them, reaps them, and says when the last has ended.
//
// # One at a time
//
// A [Process] reaps every child of its operating-system process, whoever started
// it. So at most one Process may be live (from [Start] until [Process.Gone]), and
// nothing else in the program may start or wait for processes meanwhile: os/exec
// would find its children already reaped. SIGCHLD must not be ignored.
//
// # Who is a descendant
//
// After [BecomeSubreaper], or as pid 1, an orphan among our descendants becomes
// our own child, however it daemonized. Then "we have no child" means "there is no
// descendant of CMD's left", which is what Gone says.
//
// As pid 1 of a container we also inherit the orphans of processes that entered
// the container from outside (kubectl exec). They cannot be told from CMD's, so
// they are signalled and waited for like those.
//
// Descendants that we had before [Start] are not CMD's: a shell can start some and
// then have us take its place. They, and what is below them, are neither signalled
// nor waited for, only reaped if they end before Gone. The limit: what one of them
// starts later and leaves as an orphan falls to us, and cannot be told from CMD's.
// Nor can they be told if /proc could not be read.
//
// A process that enters another PID namespace by a privileged call (nsenter) and
// is orphaned there belongs to that namespace's first process, not to us.
//
// # Other systems
//
// This is for Linux. Elsewhere there is no subreaper and no /proc: "every
// descendant" means CMD's process group there, and our own children, the earlier
// ones too.
package child
