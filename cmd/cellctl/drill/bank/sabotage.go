package bank

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// The sabotages: faults of the kinds that the drill exists to find.
const (
	Early = "early" // an owner sends at once: others act on what its standby doesn't have
	Twice = "twice" // a credit is posted twice
)

// PlantEarly has a cell hold nothing, and fails a slot over once others have acted on
// transfers that its standby never had.
func (b *Bank) PlantEarly(ctx context.Context) error {
	for _, cell := range b.o.Cells { // whichever owns what is chosen
		undo, err := b.o.System.HoldNothing(ctx, cell.Name)
		if err != nil {
			return fmt.Errorf("sabotage: %w", err)
		}
		b.o.After(undo)
	}
	b.o.Event("sabotage: no cell holds anything for its standbys")
	err := b.faults.failover(ctx, 0, func(ctx context.Context, at Place, sent []*write) error {
		return until(ctx, func() error { return b.credited(ctx, sent) })
	})
	if err != nil {
		return fmt.Errorf("sabotage: %w", err)
	}
	b.o.After(func(ctx context.Context) error {
		var all []error
		for _, transfer := range b.lostIDs() {
			all = append(all, b.takeBack(ctx, transfer))
		}
		return errors.Join(all...)
	})
	return nil
}

// credited is nil once all have arrived.
func (b *Bank) credited(ctx context.Context, sent []*write) error {
	if len(sent) == 0 {
		return errors.New("nothing was sent")
	}
	for _, w := range sent {
		if !b.book.answered(w) {
			return fmt.Errorf("%s under key %s has no answer", w.kind, w.key)
		}
		if _, err := b.find(ctx, w.id); err != nil {
			return err
		}
	}
	return nil
}

var errNoCredit = errors.New("no cell has a credit of")

// credit is a row that says what came.
type credit struct {
	cell     string
	slot     routing.Slot
	epoch    routing.Epoch
	user     id.ID
	currency string
	amount   int64
}

// find looks for a transfer's credit in every cell.
func (b *Bank) find(ctx context.Context, transfer id.ID) (c credit, err error) {
	for cell := range b.o.Databases {
		err := b.faults.promoter.on(ctx, cell, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT c.slot, s.epoch, c.user_id, c.currency, c.amount FROM cell.credits c JOIN cell.slots s ON s.slot = c.slot
				WHERE s.role = 'owner' AND c.transfer_id = $1 AND c.state = 'CREDITED'`, transfer).Scan(&c.slot, &c.epoch, &c.user, &c.currency, &c.amount)
		})
		if err == nil {
			c.cell = cell
			return c, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return c, err
		}
	}
	return c, fmt.Errorf("%w %s", errNoCredit, transfer)
}

// PlantTwice posts a credit that is there once more.
func (b *Bank) PlantTwice(ctx context.Context) error {
	for _, w := range b.book.all() {
		if w.kind != transfers || w.state != settled {
			continue
		}
		c, err := b.find(ctx, w.id)
		if err != nil {
			return fmt.Errorf("sabotage: %w", err)
		}
		if err := b.move(ctx, c, w.id, c.amount, "credit again"); err != nil {
			return fmt.Errorf("sabotage: %w", err)
		}
		b.o.After(func(ctx context.Context) error { return b.move(ctx, c, w.id, -c.amount, "taken back") })
		b.o.Event("sabotage: the credit of transfer %s is posted once more in %s", w.id, c.cell)
		return nil
	}
	return errors.New("sabotage: no transfer has come to its end")
}

// takeBack undoes a credit whose transfer doesn't exist.
func (b *Bank) takeBack(ctx context.Context, transfer id.ID) error {
	c, err := b.find(ctx, transfer)
	if errors.Is(err, errNoCredit) {
		return nil // nobody had acted on it
	} else if err != nil {
		return err
	}
	if err := b.move(ctx, c, transfer, -c.amount, "taken back"); err != nil {
		return err
	}
	return b.entered(ctx, c, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM cell.credits WHERE slot = $1 AND transfer_id = $2", c.slot, transfer)
		return err
	})
}

// move posts from clearing to available, as the administrator.
func (b *Bank) move(ctx context.Context, c credit, transfer id.ID, amount int64, step string) error {
	from, to, size := "clearing", "available", amount
	if amount < 0 {
		from, to, size = to, from, -amount
	}
	return b.entered(ctx, c, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `WITH w AS (UPDATE cell.wallets SET available = available + $4, clearing = clearing - $4, seq = seq + 1
				WHERE slot = $1 AND user_id = $2 AND currency = $3 RETURNING seq, available, frozen)
			INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen)
			SELECT $1, $2, $3, w.seq, $5, $6, $7, $8, $9, w.available, w.frozen FROM w`,
			c.slot, c.user, c.currency, amount, from, to, size, "transfer:"+transfer.String(), step)
		return err
	})
}

// entered writes in a slot, whoever owns it by now.
func (b *Bank) entered(ctx context.Context, c credit, do func(pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return b.faults.promoter.on(ctx, c.cell, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT cell.enter(slot, epoch) FROM cell.slots WHERE slot = $1", c.slot); err != nil {
			return err
		}
		return do(tx)
	})
}

// slots are everybody's.
func (b *Bank) slots() (out []routing.Slot) {
	for _, who := range b.people.all {
		out = append(out, who.id.Slot())
	}
	return out
}
