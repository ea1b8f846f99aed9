package gatedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Version is the format of the files that this package writes. A state of
// another version is refused, never guessed at.
const Version = 1

// maxFileBytes bounds what is read of a file that the other side wrote.
const maxFileBytes = 64 << 10

// MaxNonceBytes bounds the nonce of a request. It becomes part of the owner,
// which has a bound too.
const MaxNonceBytes = 128

// Names of the files; see the package comment.
const (
	holderLockName = "holder.lock"
	mainLockName   = "main.lock"
	requestName    = "request"
	stateName      = "state.json"
	acquiredName   = "acquired"
	skippedName    = "skipped"
	doneName       = "done"
)

var (
	// ErrNone says that there is nothing to read: the file is missing, or what
	// is there cannot be taken for one.
	ErrNone = errors.New("nothing there")

	// ErrVersion says that a state was written by another version of lockgate.
	ErrVersion = errors.New("unknown format version")
)

// Dir is a gate directory. Its methods may be called from several goroutines,
// but only one process, and one goroutine at a time, writes a given file.
type Dir struct {
	path string
}

// Open returns the gate directory at path. It is an error when there is no
// directory.
func Open(path string) (*Dir, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open gate directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open gate directory: %s is not a directory", path)
	}
	return &Dir{path: path}, nil
}

// Path returns the directory's path.
func (d *Dir) Path() string { return d.path }

// Check returns an error when files cannot be published in the directory, for
// instance because it is read-only, another user's or full. who keeps apart the
// files of two sides that check at the same time.
func (d *Dir) Check(who string) error {
	name := ".check-" + who
	// A full file system often still takes an empty file, so write a block.
	if err := d.publish(name, make([]byte, 4096)); err != nil {
		return fmt.Errorf("check gate directory: %w", err)
	}
	if err := os.Remove(d.file(name)); err != nil {
		return fmt.Errorf("check gate directory: %w", err)
	}
	return nil
}

// Request is what exec publishes: it wants to run.
type Request struct {
	Version int    `json:"version"`
	Nonce   string `json:"nonce"`
	Boot    string `json:"boot"`
	Pod     string `json:"pod,omitempty"` // pod UID; empty matches any

	// ByHolder says that a holder has made it itself, for a main without exec.
	ByHolder bool `json:"by_holder,omitempty"`
}

// For tells whether a request is meant for a holder of this boot and pod.
func (r Request) For(boot, pod string) bool {
	return r.Nonce != "" && r.Boot == boot && samePod(r.Pod, pod)
}

func samePod(a, b string) bool { return a == "" || b == "" || a == b }

// WriteRequest publishes a request. Only exec calls it, with main.lock in hand, or
// a holder whose main has no exec.
func (d *Dir) WriteRequest(r Request) error {
	r.Version = Version
	return d.publishJSON(requestName, r)
}

// ReadRequest returns the published request, or [ErrNone].
func (d *Dir) ReadRequest() (Request, error) {
	var r Request
	err := d.readJSON(requestName, &r)
	if err == nil && (r.Version != Version || !isNonce(r.Nonce)) {
		err = ErrNone
	}
	return r, err
}

func isNonce(s string) bool { return s != "" && len(s) <= MaxNonceBytes }

// Verdict is the word that a state gives on a request.
type Verdict string

// The verdicts. All but Waiting and Acquired are final for their request.
const (
	Waiting  Verdict = "waiting"  // no verdict yet
	Acquired Verdict = "acquired" // CMD may run until the deadlines
	Skipped  Verdict = "skipped"  // busy, and told to skip
	Busy     Verdict = "busy"     // busy, and told to fail, or waited too long
	Error    Verdict = "error"    // no verdict can be given; Code says why
	Lost     Verdict = "lost"     // the lock was lost; CMD must stop
	Released Verdict = "released" // the lock was let go
)

// Final tells whether nothing more is going to happen for the request.
func (v Verdict) Final() bool {
	switch v {
	case Skipped, Busy, Error, Lost, Released:
		return true
	default:
		return false
	}
}

// known tells whether a verdict is one of this version.
func (v Verdict) known() bool { return v == Waiting || v == Acquired || v.Final() }

// Holder says who else has the lock.
type Holder struct {
	Owner     string    `json:"owner"`
	Run       string    `json:"run,omitempty"`
	Since     time.Time `json:"since"`
	Remaining Duration  `json:"remaining"`
}

// Policy is what exec follows; it travels with the verdict so that exec needs
// no settings of its own.
type Policy struct {
	StopGrace    Duration `json:"stop_grace"`     // from SIGTERM to SIGKILL when lockgate stops CMD
	SkipExitCode int      `json:"skip_exit_code"` // exec's exit code for Skipped
	MaxHold      Duration `json:"max_hold,omitempty"`
	OnLost       string   `json:"on_lost,omitempty"`   // GoOn, or empty: CMD is stopped
	Unwrapped    bool     `json:"unwrapped,omitempty"` // no exec follows this; for people
}

// GoOn is the policy by which CMD goes on when the lock is lost.
const GoOn = "continue"

// State is the holder's word on one request. Durations named …Boot are readings
// of the boot clock, the same in all containers of a pod.
type State struct {
	Version int     `json:"version"`
	Request string  `json:"request"` // the nonce it answers
	Boot    string  `json:"boot"`
	Pod     string  `json:"pod,omitempty"`
	Verdict Verdict `json:"state"`

	// Standing is the verdict of a holder that does not stay: the request is its
	// own, and the first exec that comes takes it up by naming it in turn.
	Standing bool `json:"standing,omitempty"`

	Lock  string `json:"lock"`
	Owner string `json:"owner"`
	Token uint64 `json:"token,omitempty"`

	UpdatedAt    time.Time `json:"updated_at"`
	AcquiredAt   time.Time `json:"acquired_at,omitzero"`
	UpdatedBoot  Duration  `json:"updated_boot"`
	AcquiredBoot Duration  `json:"acquired_boot,omitempty"`
	EndBoot      Duration  `json:"end_boot,omitempty"` // the lease ends
	StopBoot     Duration  `json:"stop_at,omitempty"`  // CMD gets SIGTERM
	KillBoot     Duration  `json:"kill_at,omitempty"`  // CMD gets SIGKILL

	Holder *Holder `json:"holder,omitempty"`
	Reason string  `json:"reason,omitempty"`
	Code   int     `json:"code,omitempty"` // exec's exit code for Busy, Error and Lost; 0: the holder was told to stop
	Policy Policy  `json:"policy"`
}

// Answers tells whether the state is a word on this request, from this boot and
// pod.
func (s State) Answers(r Request) bool {
	return s.Request == r.Nonce && s.Boot == r.Boot && samePod(s.Pod, r.Pod)
}

// Near tells whether the state is of the boot and pod of this request, whatever
// request it answers.
func (s State) Near(r Request) bool { return s.Boot == r.Boot && samePod(s.Pod, r.Pod) }

// WriteState publishes a state. Only the holder calls it.
func (d *Dir) WriteState(s State) error {
	s.Version = Version
	return d.publishJSON(stateName, s)
}

// ReadState returns the published state, or [ErrNone]. A state of another
// version comes back with [ErrVersion] and only the fields that say which
// request it answers.
func (d *Dir) ReadState() (State, error) {
	data, err := d.read(stateName)
	if err != nil {
		return State{}, err
	}
	return parseState(data)
}

func parseState(data []byte) (State, error) {
	// Only these fields keep their meaning in every version.
	var head struct {
		Version int    `json:"version"`
		Request string `json:"request"`
		Boot    string `json:"boot"`
		Pod     string `json:"pod"`
	}
	if json.Unmarshal(data, &head) != nil || head.Version == 0 || !isNonce(head.Request) {
		return State{}, ErrNone
	}
	if head.Version != Version {
		return State{Version: head.Version, Request: head.Request, Boot: head.Boot, Pod: head.Pod},
			fmt.Errorf("%w: %d", ErrVersion, head.Version)
	}
	var s State
	if json.Unmarshal(data, &s) != nil || !s.makesSense() {
		return State{}, ErrNone
	}
	return s, nil
}

// makesSense tells whether exec can follow a state: a word that it knows and,
// when the lock is held, deadlines in their order.
func (s State) makesSense() bool {
	return s.Verdict.known() && (s.Verdict != Acquired || 0 < s.StopBoot && s.StopBoot <= s.KillBoot)
}

// Done is exec's word that CMD and everything it started has ended.
type Done struct {
	Request string `json:"request"`
	Code    int    `json:"code"`
}

// WriteDone publishes exec's last word. Only exec calls it.
func (d *Dir) WriteDone(done Done) error { return d.publishJSON(doneName, done) }

// ReadDone returns exec's last word, or [ErrNone].
func (d *Dir) ReadDone() (Done, error) {
	var done Done
	err := d.readJSON(doneName, &done)
	return done, err
}

// MarkAcquired publishes the file that tells scripts that the lock is held.
func (d *Dir) MarkAcquired(token uint64) error {
	return d.publish(acquiredName, fmt.Appendln(nil, token))
}

// MarkSkipped publishes the file that tells scripts that main is not to run.
func (d *Dir) MarkSkipped(reason string) error {
	return d.publish(skippedName, fmt.Appendln(nil, reason))
}

// IsMarkedAcquired tells whether the file of [Dir.MarkAcquired] is there.
func (d *Dir) IsMarkedAcquired() bool {
	_, err := os.Lstat(d.file(acquiredName))
	return err == nil
}

// Unmark removes the files for scripts. It is no error when there are none.
func (d *Dir) Unmark() error {
	return errors.Join(remove(d.file(acquiredName)), remove(d.file(skippedName)))
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

func (d *Dir) publishJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("publish %s: %w", name, err)
	}
	return d.publish(name, append(data, '\n'))
}

// publish makes data the content of name at once. The temporary file has a
// fixed name, because each file has one writer; what a killed one left is
// removed, not opened, since opening it with O_CREAT can be refused.
func (d *Dir) publish(name string, data []byte) error {
	tmp := d.file("." + name + ".tmp")
	if err := remove(tmp); err != nil {
		return fmt.Errorf("publish %s: %w", name, err)
	}
	err := writeFile(tmp, data)
	if err == nil {
		err = os.Rename(tmp, d.file(name))
	}
	if err != nil {
		_ = remove(tmp)
		return fmt.Errorf("publish %s: %w", name, err)
	}
	return nil
}

func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644) // the umask may have taken bits away
	}
	return errors.Join(err, f.Close())
}

func (d *Dir) readJSON(name string, v any) error {
	data, err := d.read(name)
	if err != nil {
		return err
	}
	if json.Unmarshal(data, v) != nil {
		return ErrNone
	}
	return nil
}

// read returns a small regular file, else [ErrNone]. The other side may have put
// anything there: a FIFO must not block us and a link must not lead us away.
func (d *Dir) read(name string) ([]byte, error) {
	f, err := openRead(d.file(name))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) {
			return nil, ErrNone // also for a link, and for a socket
		}
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, ErrNone
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxFileBytes {
		return nil, ErrNone
	}
	return data, nil
}

// Duration is a time.Duration in the Go form, so that people can read the files.
type Duration time.Duration

// MarshalText returns the Go form, such as 1m30s.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText parses the Go form.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}
