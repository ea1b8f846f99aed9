// Package bench has what the programs below it share: starting a process and
// measuring it, samples and their ratios, tables, and an account on a server.
//
//	bench/budget   every budget of the design, measured on the built binary
//	bench/compare  lockgate against other ways to the same end
//	bench/holders  ten thousand holders, and a thousand contenders for one name
//	bench/connect  a program that only connects, for comparison
//	bench/etcd     a module of its own, for the programs that etcd is
//
// No absolute time decides anything: the machines that run this differ, and are
// busy. What decides are counts, sizes, and ratios within one run.
package bench
