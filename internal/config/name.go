package config

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxNameBytes is the longest name of a lock.
const maxNameBytes = 255

// varForm is what may stand between ${ and }.
const varForm = `^[A-Za-z_][A-Za-z0-9_]*$`

// expandName replaces each ${VAR} by its value, once: what a value contains is
// taken as it is. $${ stands for a plain ${, read from the left; every other $
// is just a $, so a name that was written for no shell needs no escaping.
//
// A variable that is not set is an error, because a lock under half its name
// excludes the wrong others. One that is set to nothing expands to nothing.
func expandName(raw string, lookup func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for rest := raw; ; {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			b.WriteString(rest)
			return b.String(), nil
		}
		if strings.HasSuffix(before, "$") {
			b.WriteString(before[:len(before)-1] + "${")
			rest = after
			continue
		}
		b.WriteString(before)
		name, after, closed := strings.Cut(after, "}")
		switch {
		case !closed:
			return "", errors.New("has a ${ without its }; write $${ for a plain ${")
		case !matches(varForm, name):
			return "", fmt.Errorf("has ${%s}, which names no variable; write ${VAR}, or $${ for a plain ${", clip(name))
		case strings.HasPrefix(name, dbPrefix):
			return "", fmt.Errorf("expands ${%s}: a lock's name is for everybody to read, what leads to the database is not", clip(name))
		}
		value, ok := lookup(name)
		if !ok {
			return "", fmt.Errorf("expands ${%s}, which is not set; set it, or write $${ for a plain ${", clip(name))
		}
		b.WriteString(value)
		rest = after
	}
}

// clip is the name of a variable as a message shows it: quoted as a value is,
// but without the quotes.
func clip(s string) string { return strings.ReplaceAll(quote(s), `"`, "") }

// checkName says what is wrong with the name of a lock. It does not repeat the
// name, which may have been expanded from anything.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty once it is expanded; give the lock a name")
	case len(name) > maxNameBytes:
		return fmt.Errorf("has %d bytes; the longest name has %d", len(name), maxNameBytes)
	case name[0] == ' ' || name[len(name)-1] == ' ':
		return errors.New("has a blank at its end; remove it")
	}
	if i := firstUnprintable(name); i >= 0 {
		r, size := utf8.DecodeRuneInString(name[i:])
		if r == utf8.RuneError && size <= 1 {
			return fmt.Errorf("is not valid UTF-8 at byte %d; use printable characters", i+1)
		}
		return fmt.Errorf("has a character that cannot be printed, %U at byte %d; remove it", r, i+1)
	}
	return nil
}
