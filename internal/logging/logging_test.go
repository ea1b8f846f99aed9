package logging

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// forever is a limit that no test reaches.
const forever = time.Hour

// logged returns what a logger with these options writes for a few calls.
func logged(t *testing.T, o Options, calls func(*slog.Logger)) string {
	t.Helper()
	var out bytes.Buffer
	o.Writer = &out
	log, buf := New(o)
	calls(log)
	buf.Close(forever)
	return out.String()
}

func TestTheFormatFollowsTheTerminalUnlessToldOtherwise(t *testing.T) {
	for _, c := range []struct {
		name         string
		o            Options
		json, colour bool
	}{
		{"a pipe", Options{}, true, false},
		{"a pipe, auto", Options{Format: Auto}, true, false},
		{"a terminal", Options{IsTerminal: true}, false, true},
		{"a terminal without colours", Options{Format: Auto, IsTerminal: true, NoColor: true}, false, false},
		{"JSON on a terminal", Options{Format: JSON, IsTerminal: true}, true, false},
		{"text in a pipe", Options{Format: Text}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := logged(t, c.o, func(l *slog.Logger) { l.Warn("lock is busy", "lock", "nightly") })
			if json.Valid([]byte(got)) != c.json || strings.Contains(got, "\x1b[") != c.colour {
				t.Errorf("logged %q; want JSON %v, colours %v", got, c.json, c.colour)
			}
			if !strings.Contains(got, "nightly") || strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "\n") {
				t.Errorf("logged %q; want one line with its attribute", got)
			}
		})
	}
}

func TestALineOfJSONCanBeReadByPeople(t *testing.T) {
	got := logged(t, Options{}, func(l *slog.Logger) {
		l.With("lock", "nightly").Info("waiting", "wait", 90*time.Second, "err", errors.New("two\nlines"))
	})
	var line struct{ Time, Level, Msg, Lock, Wait, Err string }
	if err := json.Unmarshal([]byte(got), &line); err != nil {
		t.Fatalf("logged %q: %v", got, err)
	}
	if _, err := time.Parse(time.RFC3339Nano, line.Time); err != nil {
		t.Errorf("time = %q: %v", line.Time, err)
	}
	line.Time = ""
	want := line
	want.Level, want.Msg, want.Lock, want.Wait, want.Err = "INFO", "waiting", "nightly", "1m30s", "two\nlines"
	if line != want {
		t.Errorf("logged %+v; want %+v", line, want)
	}
}

func TestALineOfTextHasTheWholeTime(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		got := logged(t, Options{Format: Text, IsTerminal: terminal, NoColor: true}, func(l *slog.Logger) {
			l.Error("gave up", "wait", 90*time.Second, "err", errors.New("no route"))
		})
		at, rest, _ := strings.Cut(got, " ")
		if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
			t.Errorf("time in %q: %v", got, err)
		}
		if want := "ERR gave up wait=1m30s err=\"no route\"\n"; rest != want {
			t.Errorf("logged %q after the time; want %q", rest, want)
		}
	}
}

func TestLinesBelowTheLevelAreNotLogged(t *testing.T) {
	for _, format := range []string{JSON, Text} {
		got := logged(t, Options{Format: format, Level: slog.LevelWarn}, func(l *slog.Logger) {
			l.Info("quiet")
			l.Warn("loud")
		})
		if strings.Contains(got, "quiet") || !strings.Contains(got, "loud") {
			t.Errorf("%s: logged %q; want only the warning", format, got)
		}
	}
}

// The owner of a busy lock is whatever somebody wrote into the table.
func TestValuesCannotCommandTheTerminal(t *testing.T) {
	for _, v := range []any{"\x1b[2Jowned", `\x1b[2J owned`, errors.New("\x1b[2Jowned"), errors.New(`\x1b[2J owned`), "\u009b2Jowned", "\rowned", slog.GroupValue(slog.String("x", "\x1b[2Jowned"))} {
		got := logged(t, Options{Format: Text, IsTerminal: true}, func(l *slog.Logger) {
			l.With("a", v).Info("busy", "owner", v)
		})
		for _, seq := range strings.Split(got, "\x1b")[1:] {
			// Colours end in m; nothing else of what follows an escape is ours.
			end := strings.IndexFunc(seq, func(r rune) bool { return r >= 'A' && r <= 'z' && r != '[' })
			if end < 0 || seq[end] != 'm' {
				t.Errorf("logging %q wrote %q", v, got)
			}
		}
		if strings.ContainsAny(got, "\r\u009b") || strings.Count(got, "owned") != 2 {
			t.Errorf("logging %q wrote %q", v, got)
		}
	}
}

// number is the attribute n of a line, or -1; lost is the count of a note.
func number(t *testing.T, text []byte) (n, lost int) {
	t.Helper()
	line := struct {
		Msg, Level string
		N, Lines   int
	}{N: -1}
	if err := json.Unmarshal(text, &line); err != nil {
		t.Fatalf("line %q: %v", text, err)
	}
	if line.Msg == "log lines dropped" && line.Level != "WARN" {
		t.Errorf("line %q; want a warning", text)
	}
	return line.N, line.Lines
}

func TestAPipeThatNobodyReadsStopsNoLogCall(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	log, buf := New(Options{Writer: w})

	// Far more than the pipe and the buffer hold; this hangs if a call waits.
	const writers, each = 4, 2000
	var calls sync.WaitGroup
	for g := range writers {
		calls.Go(func() {
			for i := range each {
				log.Info("line", "n", g*each+i, "pad", strings.Repeat("x", 200))
			}
		})
	}
	calls.Wait()

	lines := make(chan []byte)
	go func() {
		defer close(lines)
		scan := bufio.NewScanner(r)
		for scan.Scan() {
			lines <- bytes.Clone(scan.Bytes())
		}
	}()
	seen, lost := 0, 0
	last := map[int]int{}
	count := func(text []byte) {
		n, dropped := number(t, text)
		lost += dropped
		if n < 0 {
			return
		}
		seen++
		if before, ok := last[n/each]; ok && n <= before {
			t.Errorf("line %d after %d", n, before)
		}
		last[n/each] = n
	}
	// The count is told once the pipe moves, without another line to push it.
	for seen+lost < writers*each {
		count(<-lines)
	}
	if lost == 0 {
		t.Errorf("no line was lost of %d; the pipe was never full", writers*each)
	}
	buf.Close(forever)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for text := range lines {
		count(text)
	}
	if seen+lost != writers*each {
		t.Errorf("%d lines seen and %d told as lost; want %d together", seen, lost, writers*each)
	}
}

// gatedWriter holds each write until it is let through.
type gatedWriter struct {
	entered chan struct{} // one for each write that has begun
	let     chan error    // one for each write that may end

	mu  sync.Mutex
	got []string
}

func newGatedWriter() *gatedWriter {
	return &gatedWriter{entered: make(chan struct{}, 1<<16), let: make(chan error)}
}

func (w *gatedWriter) Write(p []byte) (int, error) {
	w.entered <- struct{}{}
	if err := <-w.let; err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got = append(w.got, string(p))
	return len(p), nil
}

func (w *gatedWriter) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.got...)
}

// plain is a handler whose records are just their message and count.
type plain struct{ w io.Writer }

func (h plain) Enabled(context.Context, slog.Level) bool { return true }
func (h plain) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h plain) WithGroup(string) slog.Handler            { return h }
func (h plain) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		_, err := fmt.Fprintf(h.w, "%s: %s", r.Message, a.Value)
		return err == nil
	})
	return nil
}

// small starts a buffer with room for n lines of one byte.
func small(w io.Writer, n int) *Buffer {
	return newBuffer(w, n*(lineOverhead+1), func(w io.Writer) slog.Handler { return plain{w} })
}

func write(b *Buffer, lines ...string) {
	for _, l := range lines {
		_, _ = b.Write([]byte(l))
	}
}

func TestTheGapIsToldOfWhereItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGatedWriter()
		b := small(w, 4)
		write(b, "1", "2", "3", "4", "5", "6") // 5 and 6 find no room
		for range 3 {
			w.let <- nil
			synctest.Wait()
		}
		write(b, "7")
		close(w.let)
		b.Close(forever)
		want := "1 2 3 4 log lines dropped: 2 7"
		if got := strings.Join(w.lines(), " "); got != want {
			t.Errorf("written: %q; want %q", got, want)
		}
	})
}

func TestAGapIsOneGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGatedWriter()
		b := small(w, 4)
		write(b, "1", "2", "3", "4", "5")
		w.let <- nil // room for one line, which would be lost and told of in turn
		synctest.Wait()
		write(b, "6")
		close(w.let)
		synctest.Wait()
		write(b, "7")
		b.Close(forever)
		want := "1 2 3 4 log lines dropped: 2 7"
		if got := strings.Join(w.lines(), " "); got != want {
			t.Errorf("written: %q; want %q", got, want)
		}
	})
}

func TestALineThatCanNeverFitIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGatedWriter()
		close(w.let)
		b := small(w, 4)
		write(b, strings.Repeat("x", 1000), "1")
		synctest.Wait()
		write(b, "2")
		b.Close(forever)
		if got := strings.Join(w.lines(), " "); !strings.Contains(got, "log lines dropped: 1") || !strings.HasSuffix(got, "2") {
			t.Errorf("written: %q; want the drop told of, and 2", got)
		}
	})
}

func TestManyShortLinesAreBoundedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGatedWriter()
		b := newBuffer(w, maxBytes, func(w io.Writer) slog.Handler { return plain{w} })
		for range 100_000 {
			write(b, "x")
		}
		b.mu.Lock()
		waiting := len(b.lines)
		b.mu.Unlock()
		if most := maxBytes / lineOverhead; waiting > most {
			t.Errorf("%d lines wait; want at most %d", waiting, most)
		}
		close(w.let)
		b.Close(forever)
	})
}

func TestAWriterThatReturnsErrorsIsNotAskedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGatedWriter()
		b := small(w, 10)
		broken := errors.New("broken pipe")
		write(b, "1", "2")
		w.let <- broken
		w.let <- broken
		synctest.Wait()
		if n := len(w.entered); n != 2 {
			t.Errorf("%d writes of 2 lines that failed; want 2", n)
		}
		// The next line brings the count along, and when both fail nothing of it
		// is forgotten.
		write(b, "3")
		w.let <- broken
		w.let <- broken
		synctest.Wait()
		write(b, "4")
		close(w.let)
		b.Close(forever)
		want := "log lines dropped: 3 4"
		if got := strings.Join(w.lines(), " "); got != want {
			t.Errorf("written: %q; want %q", got, want)
		}
	})
}

func TestCloseWritesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGatedWriter()
		b := small(w, 10)
		write(b, "1", "2", "3")
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			b.Close(forever)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close returned before the lines were written")
		default:
		}
		close(w.let)
		<-closed
		write(b, "4")
		b.Close(forever) // a second time
		if got := strings.Join(w.lines(), " "); got != "1 2 3" {
			t.Errorf("written: %q; want what was logged before Close", got)
		}
	})
}

func TestCloseGivesUpOnABlockedWriter(t *testing.T) {
	for _, limit := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newGatedWriter()
			b := small(w, 10)
			write(b, "1", "2", "3")
			synctest.Wait()
			start := time.Now()
			b.Close(limit)
			if took := time.Since(start); took != limit {
				t.Errorf("Close(%s) took %s", limit, took)
			}
			w.let <- nil // the write that was stuck comes back
			<-b.done     // and nothing follows it
			if got := strings.Join(w.lines(), " "); got != "1" {
				t.Errorf("written: %q; want only the line that was stuck", got)
			}
		})
	}
}

func TestCloseGivesUpOnAPipeThatNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log, buf := New(Options{Writer: w})
	for range 2000 {
		log.Info("line", "pad", strings.Repeat("x", 200))
	}
	buf.Close(time.Millisecond) // hangs if it waits for the pipe
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	<-buf.done // the write comes back with an error, and the goroutine ends
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkLog(b *testing.B) {
	log, buf := New(Options{Writer: io.Discard})
	b.ReportAllocs()
	for b.Loop() {
		log.Info("renewed", "lock", "nightly", "token", uint64(1))
	}
	buf.Close(forever)
}
