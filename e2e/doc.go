// Package e2e tests the built binary as its users meet it: as processes, on real
// servers, over a network that fails.
//
// # The room
//
// It has no code but tests and the puppet, the command that lockgate runs in
// them. Every promise of the design has its test here, named by what must hold.
package e2e
