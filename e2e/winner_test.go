package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// logLine is what the tests look at in a line of the JSON log.
type logLine struct {
	Level, Msg string
	Token      uint64
}

// logLines reads a whole log. What is no line of it is a problem of its own.
func logLines(t *testing.T, text string) []logLine {
	t.Helper()
	var lines []logLine
	for line := range strings.Lines(text) {
		var l logLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("%q is no line of a log: %v", line, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// Fifty contenders, started at the same stroke, again and again. The one that
// gets the lock keeps it until the others have ended, so a second winner of the
// same round cannot be one that came later.
func TestOneContenderWins(t *testing.T) {
	const contenders, rounds = 50, 50
	t.Run("MariaDB with REPEATABLE READ", func(t *testing.T) {
		var isolation string
		err := mariadb(t).Admin().QueryRowContext(t.Context(), "SELECT @@GLOBAL.tx_isolation").Scan(&isolation)
		if err != nil || isolation != "REPEATABLE-READ" {
			t.Fatalf("the server's isolation is %q, %v; want REPEATABLE-READ", isolation, err)
		}
		wantOneWinner(t, database(t), contenders, rounds)
	})
	t.Run("SQLite", func(t *testing.T) {
		wantOneWinner(t, sqliteURL(t), contenders, rounds)
	})
}

func wantOneWinner(t *testing.T, url string, contenders, rounds int) {
	last := map[string]uint64{} // token by name
	levels := map[string]int{}
	names := map[string]int{}
	winners, skipped := 0, 0
	for i := range rounds {
		// A name that nobody has ever used; the same again, once it is free; and
		// one that has been used all the time.
		name := "nightly"
		if i%2 == 0 || i%4 == 1 {
			name = fmt.Sprintf("new %d", i/4)
		}
		if i%4 == 2 {
			name += " too"
		}
		names[name]++
		if !t.Run(fmt.Sprintf("round %d", i+1), func(t *testing.T) {
			r := playRound(t, settings{"NAME": name, "DB_URL": url, "LOG_FORMAT": "json"}, contenders)
			winners, skipped = winners+r.won, skipped+r.skipped
			for _, l := range r.lines {
				levels[l.Level]++
			}
			if r.token <= last[name] {
				t.Errorf("token of %q = %d after %d; want a greater one", name, r.token, last[name])
			}
			last[name] = r.token
		}) {
			return // the other rounds would say the same
		}
	}
	if levels["ERROR"] > 0 || levels["WARN"] > 0 {
		t.Errorf("%d errors and %d warnings were logged; want none", levels["ERROR"], levels["WARN"])
	}
	t.Logf("%d rounds of %d processes on %d names: %d winners, %d skipped; tokens grew each time; %d lines logged, %d warnings, %d errors",
		rounds, contenders, len(names), winners, skipped, levels["INFO"]+levels["WARN"]+levels["ERROR"], levels["WARN"], levels["ERROR"])
}

// round is what has come out of one round.
type round struct {
	won, skipped int
	token        uint64
	lines        []logLine
}

func playRound(t *testing.T, s settings, contenders int) round {
	t.Helper()
	const won = 7 // the exit code of the winner's CMD
	dir := t.TempDir()
	witness, over := filepath.Join(dir, "witness"), filepath.Join(dir, "over")
	gun, fire, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	environ := append(s.environ(), markVar+"="+newMark(t), "XDG_RUNTIME_DIR="+dir)
	ended := make(chan struct{}, contenders)
	var field []*proc
	for range contenders {
		cmd := exec.Command("sh", "-c", `read _; exec "$@"`, "sh", built.lockgate, "run", "--",
			built.puppet, "-witness", witness, "-until", over, "-exit", strconv.Itoa(won))
		cmd.Stdin = gun
		p := launch(t, cmd, environ)
		field = append(field, p)
		go func() { // ends with the process
			<-p.done
			ended <- struct{}{}
		}()
	}
	_, _ = gun.Close(), fire.Close()

	limit := time.After(patience)
	for range contenders - 1 {
		select {
		case <-ended:
		case <-limit:
			t.Fatal("the others do not end")
		}
	}
	awaitFile(t, witness)
	touch(t, over)

	var r round
	for _, p := range field {
		code, lines := p.wait(), logLines(t, p.said())
		r.lines = append(r.lines, lines...)
		switch {
		case code == won && has(lines, "lock acquired") && has(lines, "lock released"):
			r.won++
			r.token = lines[0].Token
		case code == 0 && len(lines) == 1 && has(lines, "lock is busy, skipping"):
			r.skipped++
		default:
			t.Errorf("a contender ended with %d and said %s; want a winner with %d, or a skip with 0", code, p.said(), won)
		}
	}
	if r.won != 1 || r.skipped != contenders-1 {
		t.Errorf("%d won and %d skipped; want 1 and %d", r.won, r.skipped, contenders-1)
	}
	text, err := os.ReadFile(witness)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(text)); got != strconv.FormatUint(r.token, 10) || r.token == 0 {
		t.Errorf("CMD has the token %q, lockgate says %d; want the same", got, r.token)
	}
	return r
}

// has tells whether a message was logged.
func has(lines []logLine, msg string) bool {
	return slices.ContainsFunc(lines, func(l logLine) bool { return l.Msg == msg })
}
