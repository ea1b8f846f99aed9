package gatedir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

func playSystemRole(role string, d *Dir) error {
	switch role {
	case "check a full disk", "check a read-only disk": // in a mount namespace of our own
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := syscall.Mount("tmpfs", d.path, "tmpfs", 0, "size=64k"); err != nil {
			return err
		}
		if role == "check a full disk" {
			if err := fill(d.file("ballast")); err != nil {
				return err
			}
		} else if err := syscall.Mount("", d.path, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			return err
		}
		err := d.Check("test")
		entries, readErr := os.ReadDir(d.path)
		if readErr != nil {
			return readErr
		}
		for _, e := range entries {
			if e.Name() != "ballast" {
				return fmt.Errorf("%s was left behind", e.Name())
			}
		}
		return answer(err)
	default:
		return fmt.Errorf("no such role: %s", role)
	}
}

// fill writes until nothing more fits.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = io.WriteString(f, "ballast")
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return f.Close()
}
