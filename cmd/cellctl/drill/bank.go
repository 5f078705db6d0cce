package drill

import (
	"context"
	"fmt"
	"strings"
	"time"

	"example.com/cellmart/cmd/cellctl/drill/bank"
	"example.com/cellmart/cmd/cellctl/load"
	"example.com/cellmart/platform/cellkit/reconcile"
)

// MoneySystem is what the drill bank does beyond System, IDSystem and CopySystem.
type MoneySystem interface {
	// DropStreams deletes the streams that a cell's messages leave by.
	DropStreams(ctx context.Context, cell string) (int, error)
	// FlushRedis empties a cell's Redis.
	FlushRedis(ctx context.Context, cell string) error
	// HoldNothing starts a cell's agent again without output commit.
	HoldNothing(ctx context.Context, cell string) (undo func(context.Context) error, err error)
}

// breaker is all that the bank is broken with.
type breaker struct {
	System
	IDSystem
	CopySystem
	MoneySystem
}

// bankDrill moves money between people of all cells while everything that can be is
// broken; at rest nobody has a unit too much or too little.
func bankDrill(ctx context.Context, r *run) error {
	databases, err := r.IDs.Databases()
	if err != nil {
		databases = nil // the faults that need them are left out, and said to be
	}
	delete(databases, "idgen")
	var cells []bank.Cell
	for _, c := range r.Load.Cells {
		cells = append(cells, bank.Cell{Name: c.Name, Gateway: c.Gateway})
	}
	b := bank.New(bank.Options{
		Cells: cells, Agents: r.Agents, Control: r.Control, Databases: databases, Seed: r.Load.Seed, Short: r.Short,
		System: breaker{r.System, r.IDs, r.Copies, r.Money},
		Event:  func(format string, args ...any) { r.event(format, args...) }, Fail: r.fail, After: r.after,
	})
	if r.Sabotage && databases == nil {
		return ErrLocalOnly
	}
	if bad := load.AtRest(ctx, r.Agents, time.Minute); len(bad) > 0 {
		return fmt.Errorf("before anything is broken: %s", strings.Join(bad, "; "))
	}
	if err := b.Open(ctx); err != nil {
		return err
	}
	if err := b.Run(ctx, !r.Sabotage); err != nil {
		return err
	}
	return r.judgeBank(ctx, b)
}

// judgeBank brings everything to rest, and holds what is there to what was answered.
func (r *run) judgeBank(ctx context.Context, b *bank.Bank) error {
	rest := func(ctx context.Context, limit time.Duration) []string { return load.AtRest(ctx, r.Agents, limit) }
	if r.Sabotage && r.Kind != bank.Twice {
		if bad := rest(ctx, time.Minute); len(bad) > 0 { // only what the sabotage sends is to be lost
			return fmt.Errorf("before the sabotage: %s", strings.Join(bad, "; "))
		}
		if err := b.PlantEarly(ctx); err != nil {
			return err
		}
	}
	r.event("waiting until all messages have their answer, and asking again what has none")
	if err := b.Settle(ctx, rest); err != nil {
		return err
	}
	if r.Sabotage && r.Kind == bank.Twice {
		if err := b.PlantTwice(ctx); err != nil {
			return err
		}
	}
	r.event("looking at every account")
	figures, err := b.Judge(ctx)
	if err != nil {
		return err
	}
	for _, more := range []map[string]any{figures, b.Figures()} {
		for name, v := range more {
			r.report.Figures[name] = v
		}
	}
	if err := r.reconciled(ctx); err != nil {
		return err
	}
	if err := b.Home(ctx); err != nil {
		return err
	}
	if r.Sabotage {
		return nil
	}
	b.Probed()
	return r.equal(ctx)
}

// reconciled compares both sides of all transfers since the drill's start.
func (r *run) reconciled(ctx context.Context) error {
	if err := pause(ctx, 4*time.Second); err != nil { // what has just begun isn't compared yet
		return err
	}
	got, err := reconcile.Run(ctx, r.Agents, reconcile.Ask{Since: time.Since(r.begun) + time.Hour})
	if err != nil {
		return err
	}
	r.report.Figures["transfers_reconciled"], r.report.Figures["transfers_differ"] = got.Transfers, len(got.Differences)
	r.need(got.Transfers > 0, "no transfer was reconciled")
	for i, d := range got.Differences {
		if i == shownDifferences {
			r.fail("reconciliation: and %d more", len(got.Differences)-i)
			break
		}
		r.fail("reconciliation: %s", d.Text)
	}
	for _, n := range got.NotCompared {
		r.fail("reconciliation: %s to %s not compared: %s", n.From, n.To, n.Reason)
	}
	r.need(got.NotLooked == 0, "reconciliation: %d digests that differ were not looked into", got.NotLooked)
	return nil
}

// shownDifferences are named, the others counted.
const shownDifferences = 10

// equal compares all standbys with their owners, where that can be waited for.
func (r *run) equal(ctx context.Context) error {
	c, err := r.openCopies(ctx)
	if err != nil {
		return nil //nolint:nilerr // not here, as the figures say
	}
	defer c.close(ctx)
	bad, err := c.wait(ctx, recovered, c.behind)
	if err != nil {
		return err
	}
	r.need(bad == "", "%s after: %s", recovered, bad)
	got, err := r.Copies.Verify(ctx)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	r.report.Figures["rows_compared"], r.report.Figures["differences"] = got.Rows, len(got.Differences)
	r.need(got.Rows > 0, "no row was compared")
	r.need(len(got.Differences) == 0, "%d rows of standbys differ from their owner's: %s", len(got.Differences), some(got.Differences))
	r.need(len(got.Failed) == 0, "not compared: %s", some(got.Failed))
	return nil
}
