package bench

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Task is a way to an end that is compared with others.
type Task struct {
	Name string
	Argv []string
	Env  []string // the whole environment
}

// Command returns the task's command. Its output goes nowhere.
func (t Task) Command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.Argv[0], t.Argv[1:]...)
	cmd.Env = t.Env
	return cmd
}

// Run runs the task to its end and returns how long that took. It is an error
// when it exits with anything but 0.
func (t Task) Run(ctx context.Context) (time.Duration, error) {
	cmd := t.Command(ctx)
	begin := time.Now()
	err := cmd.Run()
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("%s: %w%s", t.Name, err, t.complaint(ctx))
	}
	return took, nil
}

// complaint runs a task that has failed once more, for what it says.
func (t Task) complaint(ctx context.Context) string {
	said, _ := t.Command(ctx).CombinedOutput()
	if len(said) == 0 {
		return ""
	}
	return "\n" + strings.TrimSpace(string(said))
}

// Interleave runs the tasks in turn, n times each after one that does not count,
// and returns a sample of each. What slows the machine down for a while slows
// all of them down.
func Interleave(ctx context.Context, n int, tasks ...Task) ([]Sample, error) {
	samples := make([]Sample, len(tasks))
	for round := -1; round < n; round++ {
		for i, task := range tasks {
			took, err := task.Run(ctx)
			if err != nil {
				return nil, err
			}
			if round >= 0 {
				samples[i] = append(samples[i], took)
			}
		}
	}
	return samples, nil
}

// Sample is a number of measurements of one thing.
type Sample []time.Duration

// At returns the measurement that the given part of all does not exceed: 0 is
// the least, 0.5 the median, 1 the greatest. It is 0 when there is none.
func (s Sample) At(part float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[int(part*float64(len(sorted)-1)+0.5)]
}

// Median is the measurement in the middle.
func (s Sample) Median() time.Duration { return s.At(0.5) }

// String is the least, the median and the greatest.
func (s Sample) String() string {
	return fmt.Sprintf("%s / %s / %s", Short(s.At(0)), Short(s.Median()), Short(s.At(1)))
}

// Ratio is how many times the median of b the median of a is.
func Ratio(a, b Sample) float64 { return float64(a.Median()) / float64(b.Median()) }

// Short is a duration with three digits or so.
func Short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}

// Goal is a ratio that is aimed at.
type Goal float64

// tolerance is by how much a goal may be missed: the machines differ in how long
// a process, a disk and a processor take (flock writes nothing, SQLite waits for the
// disk four times), and a goal is no promise. By more it is no longer the machine.
const tolerance = 3

// Judge says for people whether a ratio meets the goal, and whether it misses it
// by so much that it is a failure.
func (g Goal) Judge(ratio float64) (verdict string, failed bool) {
	switch {
	case ratio <= float64(g):
		return "met", false
	case ratio <= float64(g)*tolerance:
		return "goal missed", false
	default:
		return fmt.Sprintf("GOAL MISSED by more than %d x", tolerance), true
	}
}
