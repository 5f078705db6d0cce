package user

import (
	"errors"
	"fmt"
	"testing"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
)

// Users and claims that this cell only stands by for, or has given away, are found
// and asked about where they live.
func TestOnlyOwnedSlotsAreLookedThrough(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, Migrations())
	const own, standby, given = 10, 11, 12
	for _, slot := range []routing.Slot{own, standby, given} {
		db.Plant(t, fmt.Sprintf(`INSERT INTO users.users (slot, epoch, rev, id, phone, phone_mac, name, password_hash) VALUES (%d, 1, 1, %d, '+1', decode('%02x', 'hex'), 'a', 'b');
			INSERT INTO users.claims (slot, epoch, rev, phone_mac, user_id, user_slot, op_id, state, created_at) VALUES (%[1]d, 1, 1, decode('%02[3]x', 'hex'), %[2]d, %[1]d, 'op', 'PENDING', now() - interval '1 h')`,
			slot, id.Make(7, slot, false), int(slot)))
	}
	db.StandBy(t, standby, standby, "c2")
	db.Plant(t, fmt.Sprintf("UPDATE cell.slots SET state = 'given', given_to = 'c2' WHERE slot = %d", given))
	s := &store{db.App}
	for slot, want := range map[routing.Slot]id.ID{own: id.Make(7, own, false), standby: 0, given: 0} {
		got, err := s.lookup(t.Context(), routing.CellSlot(1), []byte{byte(slot)})
		if got != want || want == 0 && !errors.Is(err, errs.ErrNotFound) {
			t.Errorf("the user of slot %d: %d, %v, want %d", slot, got, err, want)
		}
		byPhone, err := s.payeeByPhone(t.Context(), routing.CellSlot(1), []byte{byte(slot)})
		if byPhone.User != want || want == 0 && !errors.Is(err, errs.ErrNotFound) || want != 0 && byPhone.Name != "a***" {
			t.Errorf("the payee of slot %d: %+v, %v, want %d", slot, byPhone, err, want)
		}
		byID, err := s.payeeByID(t.Context(), routing.CellSlot(1), id.Make(7, slot, false))
		if byID.User != want || want == 0 && !errors.Is(err, errs.ErrNotFound) || want != 0 && byID.Name != "a***" {
			t.Errorf("the payee %d: %+v, %v", id.Make(7, slot, false), byID, err)
		}
	}
	open, err := s.unasked(t.Context(), 60, 10)
	if err != nil || len(open) != 1 || open[0].Slot != own {
		t.Errorf("claims to ask about: %+v, %v, want slot %d's", open, err, own)
	}
}
