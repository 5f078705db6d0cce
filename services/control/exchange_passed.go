package control

import (
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"

	"example.com/cellmart/services/agent/agentapi"
)

// passed says what the target lacks of what its owner had sent when the target was in
// sync already. Until the owner hears that, its outputs don't wait for the target
// (P4.2): what left before the word that is asked for here may not be there yet, and
// what leaves after it waits for the target.
func (x *exchanger) passed(ctx context.Context, p part, ask agentapi.Incoming) (string, error) {
	ask.Gate = true
	at, err := x.agent(p.owner).SetIncoming(ctx, ask)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.owner, err)
	}
	if at.Changed > 0 || at.Incarnation != p.incarnation {
		return p.owner + " is with another database, or has let go of it", nil
	}
	wants, err := pglogrepl.ParseLSN(at.LSN)
	if err != nil {
		return "", fmt.Errorf("position %q: %w", at.LSN, err)
	}
	a, err := x.agent(p.target).Applied(ctx, agentapi.Question{Source: p.owner, LSN: int64(wants), Slots: ask.Slots})
	if err != nil {
		return "", err
	}
	if has := pglogrepl.LSN(a.LSN); a.Incarnation != p.incarnation || has < wants {
		return fmt.Sprintf("%s is at %s of %s, not at %s yet, where that was when it was in sync", p.target, has, p.owner, wants), nil
	}
	for i, slot := range ask.Slots {
		if epoch, ok := a.InSync[slot]; !ok || int64(epoch) != p.epochs[i] {
			return fmt.Sprintf("%s has slot %d no longer in sync", p.target, slot), nil
		}
	}
	return "", nil
}
