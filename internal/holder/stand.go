package holder

import (
	"context"

	"github.com/lockgate/lockgate/internal/gate"
	"github.com/lockgate/lockgate/internal/gatedir"
)

// Stand takes the lock for a main that starts later, and returns with the verdict,
// which stands by itself: nobody renews, and the TTL frees. nonce names it, unless
// an earlier holder that was killed has left a verdict that nobody has taken up;
// then that one is carried on with, because its lock is ours. The end of ctx
// withdraws the attempt, and nothing is left held.
func (h *Holder) Stand(ctx context.Context, nonce string) gate.Status {
	req := gatedir.Request{Nonce: nonce, Boot: h.Boot, Pod: h.Pod}
	s := &served{Holder: h, req: req, lock: h.Gate.Request.Name, owner: owner(h.Owner, nonce), standing: true}
	cfg := h.Gate
	cfg.Publish = s.publish
	if state, ok := h.unclaimed(req); ok {
		s.req.Nonce, s.owner = state.Request, state.Owner
		cfg.MaybeTaken = true
	}
	cfg.Kin = h.kin(s.req)
	cfg.Request.Name, cfg.Request.Owner = s.lock, s.owner
	return gate.Take(ctx, cfg)
}

// unclaimed returns a standing verdict on the same lock that an earlier holder of
// this boot and pod has left, or was about to give, and that no exec has taken up.
func (h *Holder) unclaimed(req gatedir.Request) (gatedir.State, bool) {
	state, err := h.Dir.ReadState()
	if err != nil || !state.Standing || !state.Near(req) || state.Verdict.Final() || state.Lock != h.Gate.Request.Name {
		return state, false
	}
	claim, err := h.Dir.ReadRequest()
	return state, err != nil || claim.Nonce != state.Request
}
