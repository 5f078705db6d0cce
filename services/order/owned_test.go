package order

import (
	"fmt"
	"testing"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
)

// An order that this cell only stands by for ends at its owner.
func TestOverdueStaysInOwnedSlots(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, Migrations())
	const own, standby, draining = 10, 11, 12
	for _, slot := range []routing.Slot{own, standby, draining} {
		db.Plant(t, fmt.Sprintf(`INSERT INTO orders.orders (slot, epoch, rev, id, user_id, state, payment_status, fulfilment_status, currency, total, from_cart, deadline)
			VALUES (%d, 1, 1, %d, %[2]d, 'PENDING', 'NONE', 'WAITING', 'CNY', 1, false, now() - interval '1 h')`, slot, id.Make(7, slot, false)))
	}
	db.StandBy(t, standby, standby, "c2")
	db.Plant(t, fmt.Sprintf("UPDATE cell.slots SET state = 'draining' WHERE slot = %d", draining))
	got, err := store{db.App}.overdue(t.Context(), 10)
	if err != nil || len(got) != 1 || got[0].Slot != own || got[0].Epoch != 1 {
		t.Errorf("overdue: %+v, %v, want slot %d's order", got, err, own)
	}
}
