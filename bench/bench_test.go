package bench

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestASampleSaysWhatItsPartsAre(t *testing.T) {
	sample := Sample{5, 1, 3, 2, 4}
	for _, tt := range []struct {
		part float64
		want time.Duration
	}{{0, 1}, {0.5, 3}, {1, 5}, {0.99, 5}} {
		if got := sample.At(tt.part); got != tt.want {
			t.Errorf("At(%g) = %d; want %d", tt.part, got, tt.want)
		}
	}
	if got := (Sample{}).Median(); got != 0 {
		t.Errorf("the median of nothing = %d; want 0", got)
	}
	if got := Ratio(sample, Sample{2}); got != 1.5 {
		t.Errorf("Ratio = %g; want 1.5", got)
	}
}

func TestAGoalMissedByALotIsAFailure(t *testing.T) {
	for _, tt := range []struct {
		ratio  float64
		want   string
		failed bool
	}{
		{1.9, "met", false},
		{2, "met", false},
		{2.1, "goal missed", false},
		{6, "goal missed", false},
		{6.1, "GOAL MISSED by more than 3 x", true},
	} {
		if got, failed := Goal(2).Judge(tt.ratio); got != tt.want || failed != tt.failed {
			t.Errorf("Goal(2).Judge(%g) = %q, %t; want %q, %t", tt.ratio, got, failed, tt.want, tt.failed)
		}
	}
}

func TestATaskThatFailsSaysWhatItSaid(t *testing.T) {
	fails := Task{Name: "the task", Argv: []string{"/bin/sh", "-c", "echo no such luck >&2; exit 3"}}
	_, err := Interleave(t.Context(), 1, fails)
	if err == nil || !strings.Contains(err.Error(), "the task") || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("Interleave = %v; want an error with the task's name and what it said", err)
	}
}

func TestTasksAreRunInTurnAndOneRoundDoesNotCount(t *testing.T) {
	trace := t.TempDir() + "/trace"
	task := func(name string) Task {
		return Task{Name: name, Argv: []string{"/bin/sh", "-c", "printf " + name + " >>" + trace}}
	}
	samples, err := Interleave(t.Context(), 2, task("a"), task("b"))
	if err != nil {
		t.Fatal(err)
	}
	if len(samples) != 2 || len(samples[0]) != 2 || len(samples[1]) != 2 {
		t.Errorf("samples = %v; want two of two", samples)
	}
	if got := read(t, trace); got != "ababab" {
		t.Errorf("the order was %q; want %q", got, "ababab")
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
