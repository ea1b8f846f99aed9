//go:build !linux

package gatedir

import "fmt"

func playSystemRole(role string, _ *Dir) error { return fmt.Errorf("no such role: %s", role) }
