package bus_test

import (
	"fmt"
	"testing"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

// Messages of a slot that this cell only stands by for are its owner's to send and
// to count, even where a note about them is left.
func TestOnlyOwnedSlotsAreSentFrom(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const own, standby, given = 10, 11, 12
	for _, slot := range []int{own, standby, given} {
		db.Plant(t, fmt.Sprintf(`INSERT INTO cell.outbox (slot, epoch, rev, id, to_slot, service, kind, key, body, reply_service) VALUES (%d, 1, 1, 'm', 1, 's', 'k', '1', '{}', 's')`, slot))
	}
	db.StandBy(t, standby, standby, "c2")
	db.Plant(t, fmt.Sprintf("UPDATE cell.slots SET state = 'given', given_to = 'c2' WHERE slot = %d; INSERT INTO cell.relay (slot, id) VALUES (%d, 'm'), (%d, 'm'), (%[1]d, 'm')", given, own, standby))
	waiting, slots, err := bus.Look(t.Context(), db.Super, 10)
	if err != nil || waiting != 1 || len(slots) != 1 || slots[0] != own {
		t.Errorf("%d waiting, sent from %v, %v, want slot %d's", waiting, slots, err, own)
	}
}
