package outputcommit

import (
	"context"

	"example.com/cellmart/platform/routing"
)

// FailAt sets a failpoint: f is called with each step's name, and its error breaks
// the work off there.
func (o Options) FailAt(f func(step string) error) Options {
	o.step = f
	return o
}

// Lift ends a slot's mark, if nothing was sent beyond a position.
func (g *Gate) Lift(ctx context.Context, slot routing.Slot, sent int64) (int, error) {
	rows, err := readRows(ctx, g.o.Pool)
	if err != nil {
		return 0, err
	}
	for _, r := range rows {
		if r.mark.Slot == slot {
			out, err := g.remove(ctx, []row{r}, []int64{sent})
			return len(out), err
		}
	}
	return 0, nil
}

// Uncover writes a slot's row, and gives the verdict.
func (g *Gate) Uncover(ctx context.Context, slot routing.Slot, epoch routing.Epoch, standby, incoming string, sent int64) (string, error) {
	k := place{slot, epoch, standby, incoming}
	out, err := g.uncover(ctx, []place{k}, map[place]*group{k: {sent: sent}})
	if err != nil {
		return "", err
	}
	return out[0].verdict, nil
}
