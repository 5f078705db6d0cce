package reconcile

import (
	"context"
	"time"
)

// Step is one round of Run for one pair.
func (r *Reconciler) Step(ctx context.Context, to string) (time.Duration, error) {
	mine, _, err := r.cells(ctx)
	if err != nil {
		return 0, err
	}
	return r.step(ctx, mine, to), nil
}
