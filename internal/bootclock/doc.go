// Package bootclock reads the clock that also counts while the machine is
// suspended, and waits for a point of it.
//
// A lease goes on ageing in the store while a laptop sleeps or a virtual machine
// is suspended. Go's timers and [time.Since] count on a clock that stands still
// meanwhile (CLOCK_MONOTONIC on Linux), so after waking they believe that a lease
// which ended long ago has its whole life ahead. The wall clock counts, but may be
// set. The boot clock counts and cannot be set.
//
// A point of the clock is a [time.Duration] since the boot. It means something to
// every process of one boot, in all containers of a pod, and nothing after the
// next boot: whoever stores one stores [BootID] beside it.
//
// On Linux the clock is CLOCK_BOOTTIME. In a time namespace that is the
// namespace's own clock, and so is the one an [Alarm] waits for; the containers of
// a pod share it. See [HostOffset] for comparing across namespaces.
package bootclock
