// Package rooms keeps the plan of the house: which room sees which, and why.
//
// # The room
//
// Each folder with Go code is a room with one purpose, which its package comment
// states. Its test holds the table of rooms and what each may import; it fails
// when a file of any platform or build tag breaks a rule, when a room is not in
// the table, and when the table names a room that is gone. There is nothing
// here to call.
//
// A new import between rooms is a decision: it goes into the table with its
// reason, or the code goes into another room.
package rooms
