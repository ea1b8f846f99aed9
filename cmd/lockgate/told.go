package main

import (
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockgate/lockgate/internal/config"
	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
	"github.com/lockgate/lockgate/internal/wallclock"
)

// told hears each status of a gate and tells those who do not read the verdict:
// the termination log, for who looks at the pod, and a warning, for whose lock is
// held by somebody that they may not know.
type told struct {
	cfg     config.Config
	log     *slog.Logger
	warned  string // the holder that was warned about
	letting bool   // Releasing was said

	// failed, when set, is told of each final status that is a failure.
	failed func(gate.Status)

	lines chan string // for the termination log
	ended chan struct{}
}

func newTold(cfg config.Config, log *slog.Logger) *told {
	t := &told{cfg: cfg, log: log, lines: make(chan string, 1), ended: make(chan struct{})}
	go t.write()
	return t
}

// observe is called from the gate's goroutine, and does not block.
func (t *told) observe(s gate.Status) {
	t.warnOfStranger(s)
	if s.State == gate.Releasing {
		t.letting = true
	}
	if line := terminationLine(t.cfg.Name, s); line != "" {
		replace(t.lines, line)
	}
	// A loss is said when it is noticed, and again when all is over.
	if t.failed != nil && failed(s) && (s.State != gate.Lost || t.letting || s.Lease.Token == 0) {
		t.failed(s)
	}
	if s.State == gate.Waiting || s.State == gate.Acquired {
		t.letting = false // it may be another request
	}
}

// failed tells whether a final status is one that somebody has to do something
// about.
func failed(s gate.Status) bool {
	switch s.State {
	case gate.Busy, gate.Lost:
		return true
	case gate.Failed:
		return !errors.Is(s.Err, gate.ErrWithdrawn)
	default:
		return false
	}
}

// close returns when the termination log is written, or cannot be.
func (t *told) close() {
	close(t.lines)
	select {
	case <-t.ended:
	case <-time.After(flushLimit):
	}
}

// write writes each line over the one before. It works on a goroutine of its own,
// because a disk may take its time, and a renewal may not.
func (t *told) write() {
	defer close(t.ended)
	said := ""
	for line := range t.lines {
		if t.cfg.TerminationLog == "" || line == said {
			continue
		}
		said = line
		if err := t.writeLine(line); err != nil && t.cfg.TerminationLogIsSet {
			t.log.Warn("cannot write the termination log", "err", err, "setting", "LOCKGATE_TERMINATION_LOG")
		}
	}
}

// writeLine makes the line the file's whole content. The file is not replaced:
// kubelet mounts it by itself. One that nobody chose is not made.
func (t *told) writeLine(line string) error {
	flags := os.O_WRONLY | os.O_TRUNC | syscall.O_NONBLOCK // a FIFO must not hold us up
	if t.cfg.TerminationLogIsSet {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(t.cfg.TerminationLog, flags, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// maxReason bounds a reason in the termination log: kubelet keeps 4096 bytes of it
// (https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/).
const maxReason = 2048

// terminationLine is the one line that is left of a holder: the outcome, the lock,
// the other holder.
func terminationLine(lock string, s gate.Status) string {
	var b strings.Builder
	add := func(key, value string) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(key + "=" + value)
	}
	quoted := func(key, value string) {
		if len(value) > maxReason {
			value = strings.ToValidUTF8(value[:maxReason], "") + "…"
		}
		add(key, strconv.Quote(value))
	}
	outcome := string(s.State)
	switch {
	case s.State == gate.Waiting && s.Held == nil, s.State == gate.Releasing:
		return ""
	case s.State == gate.Failed && errors.Is(s.Err, gate.ErrWithdrawn):
		outcome = "stopped"
	case s.State == gate.Failed:
		outcome = "error"
	}
	add("outcome", outcome)
	quoted("lock", lock)
	if s.Lease.Token != 0 {
		add("token", strconv.FormatUint(s.Lease.Token, 10))
	}
	if h := s.Held; h != nil {
		quoted("holder", h.Owner)
		add("since", wallclock.Now().Add(-h.Age).Format(time.RFC3339))
		add("lease_left", h.Remaining.Round(time.Millisecond).String())
	}
	if s.Kept > 0 {
		add("kept_for", s.Kept.Round(time.Millisecond).String())
	}
	if s.Err != nil && s.Held == nil {
		quoted("reason", s.Err.Error())
	}
	return b.String()
}

// warnOfStranger says once for each holder that it is of another namespace. Two
// teams that gave their locks one name by accident stop each other's jobs, and
// see nothing but skips.
func (t *told) warnOfStranger(s gate.Status) {
	if s.Held == nil || s.Held.Owner == t.warned || t.cfg.PodNamespace == "" {
		return
	}
	theirs, ok := namespaceOf(s.Held.Owner)
	if !ok || theirs == t.cfg.PodNamespace {
		return
	}
	t.warned = s.Held.Owner
	t.log.Warn("the holder is in another namespace; if that is not meant, give this lock another name",
		"lock", t.cfg.Name, "holder", s.Held.Owner, "holder_namespace", theirs, "namespace", t.cfg.PodNamespace, "setting", "LOCKGATE_NAME")
}

// namespaceOf reads the namespace from an owner as readableOwner and the nonce make
// it: [cluster/]namespace/pod/nonce. There is none outside Kubernetes, where a
// process number is in the place of the pod.
func namespaceOf(owner string) (string, bool) {
	parts := strings.Split(owner, "/")
	if len(parts) < 3 {
		return "", false
	}
	namespace, pod := parts[len(parts)-3], parts[len(parts)-2]
	if _, err := strconv.Atoi(pod); err == nil || namespace == "" || namespace == "-" {
		return "", false
	}
	return namespace, true
}

// ownCode is the exit code for a final status, for who has no CMD of its own.
func ownCode(s gate.Status) int {
	switch s.State {
	case gate.Acquired, gate.Skipped, gate.Released:
		return 0
	case gate.Busy:
		return gatedir.CodeBusy
	case gate.Lost:
		return gatedir.CodeLost
	case gate.Failed:
		if errors.Is(s.Err, gate.ErrPublish) {
			return gatedir.CodeConfig
		}
		return gatedir.CodeUnavailable
	}
	return gatedir.CodeInternal
}
