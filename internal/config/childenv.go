package config

import (
	"slices"
	"strconv"
	"strings"
)

// What CMD inherits, and what a nested lockgate therefore finds.
const (
	TokenVar = Prefix + "TOKEN"
	LockVar  = Prefix + "LOCK"
)

// ChildEnv returns the environment for CMD: environ with LOCKGATE_TOKEN and
// LOCKGATE_LOCK of this lock (those of an outer lock are replaced), and without
// any LOCKGATE_DB_ variable, because CMD has no business with the lock's
// database. environ is not changed.
func ChildEnv(environ []string, lock string, token uint64) []string {
	out := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == TokenVar || name == LockVar || strings.HasPrefix(name, dbPrefix)
	})
	return append(out, TokenVar+"="+strconv.FormatUint(token, 10), LockVar+"="+lock)
}

// dbPrefix starts the settings that CMD does not inherit.
const dbPrefix = Prefix + "DB_"
