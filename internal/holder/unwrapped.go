package holder

import (
	"context"
	"errors"
	"time"

	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// mainLag is how long main may live on after a native sidecar was told to stop.
// kubelet gives a container that is still alive when the grace period is over
// two seconds between SIGTERM and SIGKILL, and ends main within one of them; half
// a second is left for the release.
const mainLag = 1500 * time.Millisecond

// Unwrapped takes the lock on behalf of a main that does not ask for it, and holds
// it until ctx has ended and main has had the time to end. nonce names the
// request, unless an earlier holder has left one. After a verdict that is final it
// stays until ctx ends. The error is [gate.ErrPublish], when the directory cannot
// be written.
func (h *Holder) Unwrapped(ctx context.Context, nonce string) error {
	req, err := h.ownRequest(nonce)
	if err != nil {
		return err
	}
	if state, err := h.Dir.ReadState(); err != nil || !state.Answers(req) || !state.Verdict.Final() {
		gone, ended := make(chan struct{}), make(chan struct{})
		over, stop := context.WithCancel(context.WithoutCancel(ctx))
		go func() {
			defer close(ended)
			defer close(gone)
			select {
			case <-over.Done():
				return
			case <-ctx.Done():
			}
			lag := time.NewTimer(mainLag)
			defer lag.Stop()
			select {
			case <-over.Done():
			case <-lag.C:
			}
		}()
		status := h.Serve(ctx, req, gone)
		stop()
		<-ended
		if errors.Is(status.Err, gate.ErrPublish) {
			return status.Err
		}
	}
	<-ctx.Done()
	return nil
}

// ownRequest makes our request, which is the one that an earlier holder has made if
// there was one.
func (h *Holder) ownRequest(nonce string) (gatedir.Request, error) {
	// What is there of an earlier boot must not be taken for ours.
	if _, _, err := h.unfinished(); err != nil {
		return gatedir.Request{}, err
	}
	req := gatedir.Request{Nonce: nonce, Boot: h.Boot, Pod: h.Pod, ByHolder: true}
	// The state says it also when an exec that should not be there has overwritten
	// the request.
	if state, err := h.Dir.ReadState(); err == nil && state.Policy.Unwrapped && !state.Standing && state.Near(req) {
		req.Nonce = state.Request
	} else if old, err := h.Dir.ReadRequest(); err == nil && old.ByHolder && old.For(h.Boot, h.Pod) {
		return old, nil
	}
	if err := h.Dir.WriteRequest(req); err != nil {
		return req, errors.Join(gate.ErrPublish, err)
	}
	return req, nil
}
