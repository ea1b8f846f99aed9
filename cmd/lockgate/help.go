package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lockgate/lockgate/internal/config"
)

// helpWidth is how wide help is: as wide as the narrowest usual terminal.
const helpWidth = 79

//nolint:gosec // the password in it is an example
const helpIntro = `lockgate runs a command only while it holds a named lock in a database, so that
a job which is started in several places at once runs in one of them.

usage:
  lockgate COMMAND [OPTION...] [ARG...]

Two jobs with the same lock name on one machine; the second one is skipped:
  export LOCKGATE_NAME=nightly LOCKGATE_DB_URL=sqlite:///tmp/locks.db
  lockgate run -- sleep 20 &
  lockgate run -- echo "nobody else is running"

The same on any number of machines that reach one MySQL or MariaDB:
  export LOCKGATE_NAME=nightly LOCKGATE_DB_URL=mysql://user:password@db.example/jobs
  lockgate run -- ./job.sh
`

const helpSettings = `
Settings are environment variables that begin with LOCKGATE_. Those above are what
a job needs; LOCKGATE_ON_BUSY says what happens while somebody else has the lock:
skip (the default), wait or fail. "lockgate help COMMAND" lists all that a
command reads, "lockgate config" shows their values, and the README has them in
one table.
`

// runHelp prints the help of everything or of one command.
func (p *program) runHelp(args []string) int {
	switch len(args) {
	case 0:
		return p.print(nil, generalHelp())
	case 1:
		spec := findSpec(args[0])
		if spec == nil {
			return p.wrongUsage("there is no command %q; did you mean %s?", args[0], nearestCommand(args[0]))
		}
		return p.print(nil, spec.help())
	default:
		return p.wrongUsage("unexpected argument %q", args[1])
	}
}

func generalHelp() string {
	var b strings.Builder
	b.WriteString(helpIntro)
	for _, group := range groups() {
		fmt.Fprintf(&b, "\n%s:\n", group)
		for _, s := range specs() {
			if s.group == group {
				fmt.Fprintf(&b, "  %-12s%s\n", s.name, s.short)
			}
		}
	}
	b.WriteString(helpSettings)
	return b.String()
}

// help is the command's own help.
func (s *spec) help() string {
	var b strings.Builder
	b.WriteString("usage:\n")
	for _, line := range s.usage {
		fmt.Fprintf(&b, "  lockgate %s\n", line)
	}
	for paragraph := range strings.SplitSeq(s.about, "\n") {
		b.WriteString("\n" + wrapText("", paragraph))
	}
	b.WriteString("\noptions:\n")
	for _, o := range append(slices.Clone(s.options), option{name: "help", letter: "h", doc: "this text"}) {
		fmt.Fprintf(&b, "  %s\n%s", o.shown(), wrapText("        ", o.doc))
	}
	if s.reads != "" {
		b.WriteString("\nsettings that it reads, environment variables:\n")
		for _, set := range config.Settings() {
			if !set.Supported || !slices.Contains(set.Commands, s.reads) {
				continue
			}
			text := set.Doc
			if set.Default != "" {
				text += "; " + s.defaultOf(set)
			}
			fmt.Fprintf(&b, "  %s\n%s", set.Name, wrapText("        ", text))
		}
	}
	b.WriteString("\nexit codes:\n")
	for _, e := range s.exits {
		lead := fmt.Sprintf("  %-10s", e.code)
		b.WriteString(lead + strings.TrimLeft(wrapText(strings.Repeat(" ", len(lead)), e.meaning), " "))
	}
	b.WriteString("\nfor example:\n")
	for _, line := range s.examples {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	return b.String()
}

// defaultOf is the default of a setting in this command: what those who take
// locks require, those who look do not.
func (s *spec) defaultOf(set config.Setting) string {
	takes := s.reads == config.Sidecar || s.reads == config.Init
	switch {
	case set.Name == config.Prefix+"DB_URL" && !takes:
		return "required in a container, elsewhere a SQLite file of this user"
	case strings.HasPrefix(set.Default, "required") && s.reads == config.Show:
		return "required by run, sidecar and init"
	case strings.HasPrefix(set.Default, "required"):
		return "required"
	}
	return "default: " + set.Default
}

// wrapText breaks a line of words so that it fits, each piece indented.
func wrapText(indent, text string) string {
	var b strings.Builder
	width := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case width == 0:
			b.WriteString(indent)
			width = len(indent)
		case width+1+n > helpWidth:
			b.WriteString("\n" + indent)
			width = len(indent)
		default:
			b.WriteString(" ")
			width++
		}
		b.WriteString(word)
		width += n
	}
	return b.String() + "\n"
}
