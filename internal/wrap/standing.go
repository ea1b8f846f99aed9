package wrap

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockgate/lockgate/internal/bootclock"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// claim finds out whether there is anybody to ask. A sidecar that has made the request
// itself would never answer. A verdict that init has left is taken up: from then on the request is the one
// that it answers. It can be taken up once, for whoever comes later does not know
// what the first has done under it. With ok there was none, or it is ours; else
// code is exec's own.
func (w *wrapper) claim() (code int, ok bool) {
	state, err := w.Dir.ReadState()
	if err == nil && state.Near(w.request) && w.isUnexpected(state) {
		return gatedir.CodeConfig, false
	}
	if err != nil || !state.Standing || !state.Near(w.request) || state.Verdict == gatedir.Waiting {
		return 0, true
	}
	if state.Verdict != gatedir.Acquired {
		code, _ := w.verdict(state, 0) // it can be said to as many as ask
		return code, false
	}
	if last, err := w.Dir.ReadRequest(); err == nil && last.Nonce == state.Request {
		w.Log.Error("the lock that init took has been used already", "lock", state.Lock, "token", state.Token)
		w.hint = "give the pod restartPolicy: Never, or use a sidecar: it takes the lock anew for each start of main"
		return gatedir.CodeUnavailable, false
	}
	if now := bootclock.Now(); now >= time.Duration(state.StopBoot) {
		if w.Dir.HolderLives() {
			return 0, true // a sidecar that can be asked
		}
		w.hint = "give init a LOCKGATE_TTL that exceeds what comes between init and main, and main; or use a sidecar, which renews"
		w.Log.Error("the lock that init took is too old to be trusted",
			"lock", state.Lock, "token", state.Token, "too_old_for", (now - time.Duration(state.StopBoot)).Round(time.Millisecond))
		return gatedir.CodeUnavailable, false
	}
	w.request.Nonce = state.Request
	w.Log.Log(context.Background(), slog.LevelDebug, "taking up the verdict of init", "lock", state.Lock)
	return 0, true
}

// isUnexpected tells, and says, whether the holder has made its request itself and
// will not answer ours.
func (w *wrapper) isUnexpected(state gatedir.State) bool {
	if !state.Policy.Unwrapped || state.Standing || !w.Dir.HolderLives() {
		return false
	}
	w.Log.Error("the sidecar does not answer exec, because it is told that main is not run by it", "setting", "LOCKGATE_WRAPPED")
	w.hint = "unset LOCKGATE_WRAPPED in the sidecar, or start main without lockgate exec"
	return true
}
