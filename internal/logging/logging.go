// Package logging makes the program's logger, which nothing ever waits for.
//
// The pipe behind a container's stdout stands still for seconds while the
// container's runtime is away. A lock holder that waits for it misses its
// renewals. So every line goes into a bounded [Buffer] first, which one
// goroutine empties into the real writer. When the buffer is full, lines are
// dropped and counted, and a line of its own says how many as soon as there is
// room again.
//
// The line is written by a goroutine shortly after the call that logged it.
// What must be on paper before the program ends is waited for with
// [Buffer.Close].
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/lmittmann/tint"
)

// maxBytes bounds the lines that wait to be written. A holder logs a few
// hundred bytes per change of its state: this is hours of trouble.
const maxBytes = 64 << 10

// The formats of [Options].
const (
	Auto = "auto" // Text on a terminal, JSON elsewhere
	JSON = "json"
	Text = "text"
)

// Options says how to log.
type Options struct {
	Writer     io.Writer  // where the lines go; one Write for each line
	Format     string     // Auto, JSON or Text; empty means Auto
	Level      slog.Level // the lowest level that is logged; zero is Info
	IsTerminal bool       // Writer is a terminal
	NoColor    bool       // never use colours; without a terminal there are none anyway
}

// New returns a logger and the buffer that its lines go through. The caller
// closes the buffer when nothing will log any more. The logger may be used from
// several goroutines; no call of it waits for the Writer.
func New(o Options) (*slog.Logger, *Buffer) {
	b := newBuffer(o.Writer, maxBytes, o.handler)
	return slog.New(o.handler(b)), b
}

// handler returns a handler that makes one Write to w for each record.
func (o Options) handler(w io.Writer) slog.Handler {
	if o.Format == Text || o.Format != JSON && o.IsTerminal {
		color := o.IsTerminal && !o.NoColor
		return tint.NewTextHandler(w, &tint.Options{
			Level:       o.Level,
			TimeFormat:  "2006-01-02T15:04:05.000Z07:00",
			NoColor:     !color,
			ReplaceAttr: harmless,
		})
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: o.Level, ReplaceAttr: readable})
}

// readable writes a duration as people do: "1m30s", where slog's JSON has
// nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// harmless takes the escape character out of values: the name of another holder
// comes from a table that others write, and must not command our terminal. The
// text handler keeps escapes when it uses colours, and even makes one of the
// four letters \x1b; so those are changed as well.
func harmless(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.LevelKey || a.Key == slog.TimeKey) {
		return a
	}
	switch a.Value.Kind() {
	case slog.KindString, slog.KindAny:
		s := a.Value.String()
		if a.Value.Kind() == slog.KindAny {
			s = fmt.Sprint(a.Value.Any())
		}
		a.Value = slog.StringValue(strings.NewReplacer("\x1b", "␛", `\x1b`, `\x1B`).Replace(s))
	}
	return a
}
