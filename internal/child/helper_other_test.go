//go:build unix && !linux

package child

import (
	"fmt"
	"os"
)

func playSystemRole(role string, _ []string) {
	fmt.Fprintln(os.Stderr, "no such role:", role)
	os.Exit(98)
}
