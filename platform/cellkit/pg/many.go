package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/routing"
)

// Many is a transaction that has entered several slots, for messages that are
// handled together. Its statements name the slot of each row they write.
type Many struct {
	pgx.Tx
	Entered map[routing.Slot]routing.Epoch
}

// InSlots runs fn once in a write transaction that has entered those of the slots
// that are owned here at that epoch, active, and locked by nobody: perhaps none. It
// never waits for a slot. Errors are as those of InSlot. Only the bus may use it:
// what one person asks for never needs a second slot (R2).
func InSlots(ctx context.Context, pool *pgxpool.Pool, slots map[routing.Slot]routing.Epoch, fn func(*Many) error) error {
	ctx, cancel := context.WithTimeout(ctx, TxTimeout)
	defer cancel()
	list, epochs := make([]routing.Slot, 0, len(slots)), make([]routing.Epoch, 0, len(slots))
	for slot, epoch := range slots {
		list, epochs = append(list, slot), append(epochs, epoch)
	}
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin, CommitQuery: commit})
	if err != nil {
		return Error(err)
	}
	m := &Many{Tx: tx, Entered: make(map[routing.Slot]routing.Epoch, len(slots))}
	var entered []routing.Slot
	if err = tx.QueryRow(ctx, "SELECT cell.enter_many($1, $2)", list, epochs).Scan(&entered); err == nil {
		for _, slot := range entered {
			m.Entered[slot] = slots[slot]
		}
		err = fn(m)
	}
	if err != nil {
		rollback(ctx, tx)
		return Error(err)
	}
	if err := tx.Commit(ctx); err != nil {
		rollback(ctx, tx)
		return commitError(err)
	}
	return nil
}
