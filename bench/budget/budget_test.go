package main

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestTheExitSaysThatSomethingIsOver(t *testing.T) {
	fits := line{what: "one", measured: "1", budget: "2"}
	printed := line{what: "two", measured: "3"}
	over := line{what: "three", measured: "3", budget: "2", over: true}
	for _, tt := range []struct {
		lines []line
		over  bool
	}{
		{[]line{fits, printed}, false},
		{[]line{fits, printed, over}, true},
	} {
		var out strings.Builder
		err := report(&out, tt.lines)
		if errors.Is(err, errOver) != tt.over || strings.Contains(out.String(), "OVER") != tt.over {
			t.Errorf("report = %v; want over: %t\n%s", err, tt.over, out.String())
		}
	}
}

func TestWhatABinaryWeighsDecides(t *testing.T) {
	m := &meter{sized: t.TempDir() + "/binary"}
	for size, over := range map[int64]bool{maxBytes: false, maxBytes + 1: true} {
		weigh(t, m.sized, size)
		lines, err := m.size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if lines[0].over != over {
			t.Errorf("a binary of %d bytes is over: %t; want %t", size, lines[0].over, over)
		}
	}
}

// weigh makes a file of that size.
func weigh(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
}
