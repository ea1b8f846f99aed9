package logging

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// lineOverhead is what a waiting line costs beyond its bytes, so that many
// short lines are bounded too.
const lineOverhead = 64

// Buffer holds lines until they are written. Its Write never waits for the
// writer behind it. It may be used from several goroutines.
type Buffer struct {
	out   io.Writer
	limit int // bytes

	wake chan struct{} // has room for one: there is something to do
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	lines   []line
	size    int    // what lines and the line being written cost
	lost    uint64 // lines that were dropped and not told of
	full    bool   // lines are dropped until half of the limit is free
	broken  bool   // the last write returned an error
	closed  bool   // no line is taken any more
	gaveUp  bool   // Close did not wait any longer
	note    slog.Handler
	noteBuf bytes.Buffer // what note writes to
}

// line is a line that waits.
type line struct {
	text   []byte
	counts uint64 // lines that are lost when this one is
}

func (l line) cost() int { return len(l.text) + lineOverhead }

// newBuffer starts the goroutine that writes to out; Close ends it. handler
// makes the handler for the buffer's own lines.
func newBuffer(out io.Writer, limit int, handler func(io.Writer) slog.Handler) *Buffer {
	b := &Buffer{
		out:   out,
		limit: limit,
		wake:  make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	b.note = handler(&b.noteBuf)
	go b.drain()
	return b
}

// Write takes one whole line, or drops and counts it. It always returns len(p)
// and nil: nobody can do anything about a log that cannot be written.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full && b.size <= b.limit/2 {
		b.full = false
	}
	next := line{text: p, counts: 1}
	if b.closed || b.full || b.size+next.cost() > b.limit {
		// Not every other line: a gap is told of once, not once for each line.
		b.full = true
		b.lost++
		return len(p), nil
	}
	b.tell()
	next.text = bytes.Clone(p)
	b.push(next)
	return len(p), nil
}

// tell puts the line about the lost ones where they would have been. The caller
// has b.mu.
func (b *Buffer) tell() {
	if b.lost == 0 {
		return
	}
	b.noteBuf.Reset()
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines dropped", 0)
	r.AddAttrs(slog.Uint64("lines", b.lost))
	// Writing to a bytes.Buffer cannot go wrong.
	_ = b.note.Handle(context.Background(), r)
	b.push(line{text: bytes.Clone(b.noteBuf.Bytes()), counts: b.lost})
	b.lost = 0
}

// push appends a line. The caller has b.mu.
func (b *Buffer) push(l line) {
	b.lines = append(b.lines, l)
	b.size += l.cost()
	b.poke()
}

// poke wakes the goroutine, which looks at everything when it wakes.
func (b *Buffer) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// drain writes line by line until the buffer is closed and empty. One write for
// each line keeps a line whole when another process has the same pipe.
func (b *Buffer) drain() {
	defer close(b.done)
	for {
		l, state := b.next()
		switch state {
		case idle:
			<-b.wake
		case ended:
			return
		case busy:
			_, err := b.out.Write(l.text)
			b.written(l, err)
		}
	}
}

// state is what drain has to do.
type state int

const (
	idle state = iota
	busy
	ended
)

// next takes the line to write, with busy.
func (b *Buffer) next() (line, state) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lines) == 0 && !b.broken {
		// A writer that returns errors would refuse this line too, for ever.
		b.tell()
	}
	switch {
	case b.gaveUp:
		return line{}, ended
	case len(b.lines) > 0:
		l := b.lines[0]
		b.lines[0] = line{}
		b.lines = b.lines[1:]
		return l, busy
	case b.closed:
		return line{}, ended
	}
	b.lines = nil // let go of what a burst has needed
	return line{}, idle
}

// written gives the line's room back, and counts it when it is lost.
func (b *Buffer) written(l line, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size -= l.cost()
	b.broken = err != nil
	if b.broken {
		b.lost += l.counts
	}
}

// Close takes no more lines and returns when all that were taken are written,
// or after limit. In the second case the goroutine may stay in its write for as
// long as the program lives; should that write return, nothing follows it. It
// may be called more than once.
func (b *Buffer) Close(limit time.Duration) {
	b.mu.Lock()
	b.closed = true
	b.poke()
	b.mu.Unlock()

	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-b.done:
	case <-timeout.C:
		b.mu.Lock()
		b.gaveUp = true
		b.poke()
		b.mu.Unlock()
	}
}
