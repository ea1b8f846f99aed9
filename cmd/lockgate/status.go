package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/db"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/wallclock"
)

// The states of a lock, as people read them; "lockgate help status" says what
// they mean.
const (
	stateHeld    = "held"
	stateRevoked = "revoked"
	stateKept    = "kept"
	stateFree    = "free"
	stateExpired = "expired"
)

func stateOf(r db.Row) string {
	switch {
	case r.Remaining > 0 && r.Released:
		return stateKept
	case r.Remaining > 0 && r.Revoked:
		return stateRevoked
	case r.Remaining > 0:
		return stateHeld
	case r.Released:
		return stateFree
	default:
		return stateExpired
	}
}

// statusReport is what status knows, and its JSON. Keys are never left out.
type statusReport struct {
	Database *string     `json:"database"` // without secrets; null when none was asked
	Locks    []lockState `json:"locks"`    // null when no database could be asked
	ThisPod  *podState   `json:"this_pod"`
}

// lockState is one lock. Of one that is free the rest is that of its last
// holder; of one that was never used it is empty.
type lockState struct {
	Name    string     `json:"name"`
	State   string     `json:"state"`
	Holder  string     `json:"holder"` // for people
	Owner   string     `json:"owner"`  // in full
	Run     string     `json:"run"`
	Token   uint64     `json:"token"`
	Since   *time.Time `json:"since"`
	Age     *float64   `json:"age_seconds"`
	Renewed *float64   `json:"renewed_seconds_ago"`
	Left    *float64   `json:"left_seconds"` // null when the lock is not taken
}

func lockOf(r db.Row, now time.Time) lockState {
	since := now.Add(-r.Age).Truncate(time.Millisecond)
	age, renewed := r.Age.Seconds(), r.Renewed.Seconds()
	s := lockState{
		Name: r.Name, State: stateOf(r), Holder: readable(r.Owner), Owner: r.Owner, Run: r.Run, Token: r.Token,
		Since: &since, Age: &age, Renewed: &renewed,
	}
	if r.Remaining > 0 {
		left := r.Remaining.Seconds()
		s.Left = &left
	}
	return s
}

// locksOf are the locks of those rows, and after the wishes of who named some,
// those without a row too.
func locksOf(rows []db.Row, names []string, now time.Time) []lockState {
	locks := []lockState{}
	if len(names) == 0 {
		for _, r := range rows {
			locks = append(locks, lockOf(r, now))
		}
		return locks
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		at := slices.IndexFunc(rows, func(r db.Row) bool { return r.Name == name })
		if at < 0 {
			locks = append(locks, lockState{Name: name, State: stateFree})
			continue
		}
		locks = append(locks, lockOf(rows[at], now))
	}
	return locks
}

func (p *program) runStatus(args []string) int {
	opts, err := parseOptions(args, findSpec("status").options)
	if err != nil {
		return p.wrongUsage("status: %v", err)
	}
	names := opts.rest
	if slices.Contains(names, "") {
		return p.wrongUsage("status: the name of a lock is empty")
	}
	var report statusReport
	if report.ThisPod, err = p.thisPod(); err != nil {
		if _, all := config.Load(config.Status, p.environ); all != nil {
			err = all // this has every problem, the other one only those of the directory
		}
		return p.wrongConfig(err)
	}
	if report.ThisPod.answers(names) && !p.namesDatabase() {
		return p.show(report, opts.json())
	}
	cfg, boot, code := p.load(config.Status)
	if code != 0 {
		return code
	}
	code, err = p.lookAtLocks(&report, cfg, boot, names)
	if err != nil && code == gatedir.CodeConfig {
		return p.wrongConfig(err)
	}
	if err != nil && report.ThisPod == nil {
		return p.fail(code, err)
	}
	if shown := p.show(report, opts.json()); shown != 0 {
		return shown
	}
	if err != nil {
		return p.fail(code, err)
	}
	return 0
}

// lookAtLocks fills in what the database says.
func (p *program) lookAtLocks(report *statusReport, cfg config.Config, boot string, names []string) (code int, err error) {
	store, err := p.openLooker(cfg, boot)
	if err != nil {
		return gatedir.CodeConfig, err
	}
	defer store.close()
	database := cfg.Database.String()
	report.Database = &database
	rows, err := store.list(cfg, names...)
	if err != nil {
		return gatedir.CodeUnavailable, err
	}
	report.Locks = locksOf(rows, names, wallclock.Now())
	return 0, nil
}

// namesDatabase tells whether somebody has said which database it is.
func (p *program) namesDatabase() bool {
	return slices.ContainsFunc(p.environ, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		name = strings.TrimPrefix(name, config.Prefix)
		return slices.Contains([]string{"DB_URL", "DB_URL_FILE", "DB_USER", "DB_PASSWORD", "DB_PASSWORD_FILE"}, name)
	})
}

func (p *program) show(report statusReport, asJSON bool) int {
	if asJSON {
		return p.printJSON(report)
	}
	var b strings.Builder
	if report.Locks != nil {
		writeLocks(&b, report.Locks)
	}
	if report.ThisPod != nil {
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		report.ThisPod.write(&b)
	}
	return p.print(nil, b.String())
}

func (p *program) printJSON(v any) int {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return p.fail(gatedir.CodeInternal, err)
	}
	return p.print(nil, string(data)+"\n")
}

// writeLocks writes the table for people.
func writeLocks(b *strings.Builder, locks []lockState) {
	if len(locks) == 0 {
		b.WriteString("no lock was ever taken\n")
		return
	}
	runs := slices.ContainsFunc(locks, func(s lockState) bool { return s.Run != "" && s.State != stateFree })
	rows := [][]string{{"NAME", "STATE", "HOLDER", "SINCE", "LEFT", "TOKEN"}}
	for _, s := range locks {
		row := []string{harmless(s.Name), s.State, "-", "-", "-", "-"}
		if s.State != stateFree {
			row[2] = s.Holder
			row[3] = stamp(*s.Since) + " (" + shortly(seconds(*s.Age)) + " ago)"
		}
		if s.Left != nil {
			row[4] = shortly(seconds(*s.Left))
		}
		if s.Token != 0 {
			row[5] = strconv.FormatUint(s.Token, 10)
		}
		rows = append(rows, row)
	}
	if runs {
		rows[0] = append(rows[0], "RUN")
		for i, s := range locks {
			run := "-"
			if s.Run != "" && s.State != stateFree {
				run = harmless(s.Run)
			}
			rows[i+1] = append(rows[i+1], run)
		}
	}
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	_ = table.Flush()
}

func seconds(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }

// podState is what the gate directory says.
type podState struct {
	Dir        string     `json:"dir"`
	Verdict    string     `json:"verdict"`
	Summary    string     `json:"summary"` // for people
	Lock       string     `json:"lock"`
	Holder     string     `json:"holder"`
	Owner      string     `json:"owner"`
	Token      uint64     `json:"token"`
	AcquiredAt *time.Time `json:"acquired_at"`
	StopIn     *float64   `json:"stop_in_seconds"` // null unless the lock is held
	KillIn     *float64   `json:"kill_in_seconds"`
	Reason     string     `json:"reason"`
	OnLost     string     `json:"on_lost"`

	standing  bool // nobody renews the lease
	unwrapped bool
}

// thisPod reads the gate directory, if there is one with a state of this boot
// and pod. The error is one of the settings.
func (p *program) thisPod() (*podState, error) {
	cfg, err := config.Load(config.Check, p.environ)
	if err != nil {
		return nil, err
	}
	boot, err := bootclock.BootID()
	if err != nil {
		return nil, nil //nolint:nilerr // then there is nothing of this boot
	}
	dir, err := gatedir.Open(cfg.Dir)
	if err != nil {
		return nil, nil //nolint:nilerr // most machines have none
	}
	state, err := dir.ReadState()
	if errors.Is(err, gatedir.ErrVersion) {
		p.say("%s has a state of another version of lockgate; it is left out", dir.Path())
	}
	if err != nil || !state.Answers(gatedir.Request{Nonce: state.Request, Boot: boot, Pod: cfg.PodUID}) {
		return nil, nil //nolint:nilerr // no state, no part of it
	}
	done, err := dir.ReadDone()
	ended := err == nil && done.Request == state.Request
	pod := podOf(dir.Path(), state, ended, bootclock.Now())
	if !state.Standing && !state.Verdict.Final() && !dir.HolderLives() {
		pod.Summary += "; its holder does not run, so the lock ends by its TTL unless that comes back"
	}
	return pod, nil
}

func podOf(dir string, state gatedir.State, ended bool, now time.Duration) *podState {
	pod := &podState{
		Dir: dir, Verdict: string(state.Verdict), Lock: state.Lock,
		Holder: readable(state.Owner), Owner: state.Owner, Token: state.Token, Reason: state.Reason,
		OnLost: state.Policy.OnLost, standing: state.Standing, unwrapped: state.Policy.Unwrapped,
	}
	if !state.AcquiredAt.IsZero() {
		pod.AcquiredAt = &state.AcquiredAt
	}
	if state.Verdict == gatedir.Acquired {
		stop, kill := (time.Duration(state.StopBoot) - now).Seconds(), (time.Duration(state.KillBoot) - now).Seconds()
		pod.StopIn, pod.KillIn = &stop, &kill
	}
	pod.Summary = pod.summary(ended)
	return pod
}

// summary is the verdict in words.
func (pod *podState) summary(ended bool) string {
	goesOn := pod.OnLost == gatedir.GoOn
	stopped := "the command is being stopped"
	if pod.unwrapped {
		stopped = "main is not to run any more, see its liveness probe (LOCKGATE_WRAPPED=false)"
	}
	switch gatedir.Verdict(pod.Verdict) {
	case gatedir.Waiting:
		return "waiting for the lock"
	case gatedir.Acquired:
		switch {
		case ended && pod.standing:
			return "acquired; the command has ended, the lock ends by its TTL"
		case ended:
			return "acquired; the command has ended, the lock is about to be released"
		case *pod.StopIn > 0:
			return "acquired"
		case goesOn:
			return "acquired, but not renewed in time; the command goes on without the lock (LOCKGATE_ON_LOST=continue)"
		default:
			return "acquired, but not renewed in time; " + stopped
		}
	case gatedir.Lost:
		switch {
		case ended:
			return "lost; the command has ended"
		case goesOn:
			return "lost; the command goes on without the lock (LOCKGATE_ON_LOST=continue)"
		default:
			return "lost; " + stopped
		}
	case gatedir.Skipped:
		return "skipped; the lock was busy, the command does not run"
	case gatedir.Busy:
		return "busy; the command does not run"
	case gatedir.Error:
		return "error; the command does not run"
	case gatedir.Released:
		return "released"
	}
	return pod.Verdict
}

// answers tells whether there is a state and it says something of those names,
// all of them.
func (pod *podState) answers(names []string) bool {
	return pod != nil && !slices.ContainsFunc(names, func(name string) bool { return name != pod.Lock })
}

// write writes the part for people.
func (pod *podState) write(b *strings.Builder) {
	fmt.Fprintf(b, "this pod (%s):\n", harmless(pod.Dir))
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	line := func(key, value string) { _, _ = fmt.Fprintf(table, "  %s\t%s\n", key, value) }
	line("verdict", pod.Summary)
	line("lock", harmless(pod.Lock))
	if pod.Token != 0 {
		line("token", strconv.FormatUint(pod.Token, 10))
	}
	if pod.AcquiredAt != nil {
		line("since", stamp(pod.AcquiredAt.Local()))
	}
	if pod.StopIn != nil && *pod.StopIn > 0 {
		left := shortly(seconds(*pod.StopIn)) + " until the command is stopped"
		if !pod.standing {
			left += ", unless the lock is renewed"
		}
		line("left", left)
	}
	if pod.Reason != "" {
		line("reason", harmless(pod.Reason))
	}
	_ = table.Flush()
}
