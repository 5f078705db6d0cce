package pg

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
)

// Many is a transaction that has entered several slots, for messages that are
// handled together. Its statements name the slot of each row they touch, and touch
// rows of no other: Entered says which.
type Many struct{ pgx.Tx }

// Entered is SQL that is true for a slot (an expression) that this transaction has
// entered.
func Entered(slot string) string {
	return "strpos(current_setting('cell.epoch'), ',' || " + slot + " || ':') > 0"
}

// InSlots runs fn once in a write transaction that has entered those of the slots
// that are owned here at that epoch, active, and locked by nobody: perhaps none. It
// never waits for a slot, and 200 ms at most for a row. fn's ctx ends with the
// transaction's limit. Errors are as those of InSlot. Only the bus may use it:
// what one person asks for never needs a second slot (R2).
func InSlots(ctx context.Context, pool *pgxpool.Pool, slots map[routing.Slot]routing.Epoch, fn func(context.Context, *Many) error) error {
	ctx, cancel := context.WithTimeout(ctx, TxTimeout)
	defer cancel()
	var list, epochs []byte
	for slot, epoch := range slots {
		list, epochs = strconv.AppendInt(append(list, ','), int64(slot), 10), strconv.AppendInt(append(epochs, ','), int64(epoch), 10)
	}
	if len(slots) == 0 {
		return errs.ErrUnavailable.Msgf("no slot to enter")
	}
	enter := fmt.Sprintf("%s; SELECT cell.enter_many('{%s}', '{%s}')", begin, list[1:], epochs[1:])
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: enter, CommitQuery: commit})
	if err != nil {
		return Error(err)
	}
	if err := fn(ctx, &Many{tx}); err != nil {
		rollback(ctx, tx)
		return Error(err)
	}
	if err := tx.Commit(ctx); err != nil {
		rollback(ctx, tx)
		return commitError(err)
	}
	return nil
}
