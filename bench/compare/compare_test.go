package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockgate/lockgate/bench"
)

func TestFiguresOfABenchmarkAreRead(t *testing.T) {
	const said = `goos: linux
BenchmarkAcquireRelease-2   	     200	   3456789 ns/op	      1500 µs/bare	      1800 µs/cycle	         1.200 ratio
BenchmarkAcquireRelease-2   	     200	   3456789 ns/op	      1600 µs/bare	      1700.5 µs/cycle	         1.063 ratio
PASS
ok  	github.com/lockgate/lockgate/internal/db/mysql	2.345s
`
	cycles, bare, err := parse(said)
	if err != nil {
		t.Fatal(err)
	}
	if want := (bench.Sample{1800 * time.Microsecond, 1700500 * time.Nanosecond}); !slices.Equal(cycles, want) {
		t.Errorf("cycles = %v; want %v", cycles, want)
	}
	if want := (bench.Sample{1500 * time.Microsecond, 1600 * time.Microsecond}); !slices.Equal(bare, want) {
		t.Errorf("bare = %v; want %v", bare, want)
	}
	for _, wrong := range []string{"PASS\n", "BenchmarkAcquireRelease-2 200 3456789 ns/op\n"} {
		if _, _, err := parse(wrong); err == nil {
			t.Errorf("parse(%q) found figures", wrong)
		}
	}
}

func TestTheExitSaysThatAGoalIsMissedByALot(t *testing.T) {
	for _, tt := range []struct {
		ratio  float64
		missed bool
	}{{2, false}, {5.9, false}, {6.1, true}} {
		var out strings.Builder
		err := report(&out, 20, []comparison{{ours: "a", theirs: "b", ratio: tt.ratio, goal: 2}})
		if errors.Is(err, errMissed) != tt.missed {
			t.Errorf("report of %g for 2 = %v; want a failure: %t\n%s", tt.ratio, err, tt.missed, out.String())
		}
	}
}
