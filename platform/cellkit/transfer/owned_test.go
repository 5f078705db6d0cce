package transfer_test

import (
	"fmt"
	"testing"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
)

// A transfer that this cell only stands by for is asked back by its owner, and
// shown as stuck there.
func TestExpireStaysInOwnedSlots(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const own, standby, given = 10, 11, 12
	for _, slot := range []routing.Slot{own, standby, given} {
		db.Plant(t, fmt.Sprintf(`INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, created_at)
			VALUES (%d, 1, 1, %d, 'transfer', %[2]d, 1, 1, 5, 'CNY', 'FROZEN', now() - interval '1 h', now() - interval '2 h')`, slot, id.Make(7, slot, false)))
	}
	db.StandBy(t, standby, standby, "c2")
	db.Plant(t, fmt.Sprintf("UPDATE cell.slots SET state = 'given', given_to = 'c2' WHERE slot = %d", given))
	stuck, err := transfer.ListStuck(t.Context(), db.App, 0, 10)
	if err != nil || len(stuck) != 1 || stuck[0].Slot != own {
		t.Errorf("stuck: %+v, %v, want slot %d's", stuck, err, own)
	}
	if n, err := transfer.Expire(t.Context(), db.App); n != 1 || err != nil {
		t.Errorf("Expire = %d, %v, want 1", n, err)
	}
}
