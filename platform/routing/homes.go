package routing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxGroup is the longest name of an affinity group, in bytes.
const maxGroup = 64

// homes is what a table knows beyond slots: users who were moved alone, and
// groups that are pinned to a slot. The zero homes is: nobody.
type homes struct {
	moved  map[int64]privateRow // by user ID: their private slot and its row
	marked [Slots / 64]uint64   // a bit per hash slot that somebody was taken from
	taken  map[Slot][]Slot      // by hash slot: the private slots taken from it, ascending
	groups map[string]Slot      // by canonical name
}

// Home gives the slot that an ID is served from, with its row: the private slot
// of a user who was moved alone, else the slot that the ID names. Only an ID of
// a slot that somebody was taken from pays for a look into the map, so it stays
// about as quick as Slot, without an allocation. IDs of a moved user's things
// (orders) keep naming the old slot: see TakenFrom.
func (t *Table) Home(id int64) (Slot, Assignment, bool) {
	s := SlotOf(id)
	if t.marked[s>>6]>>(s&63)&1 != 0 {
		if p, ok := t.moved[id]; ok {
			return p.slot, Assignment{Owner: t.names[p.owner], Standby: t.names[p.standby], Epoch: p.epoch}, true
		}
	}
	r := &t.rows[t.kind[s]]
	return s, r.Assignment, r.owner != 0
}

// TakenFrom lists the private slots whose users once belonged to a hash slot,
// ascending; nil for none. Who looks for a thing by an ID of that slot asks the
// slot's home and the homes of these, and says "not found" only when all answered.
func (t *Table) TakenFrom(s Slot) []Slot { return slices.Clone(t.taken[s]) }

// Overrides counts the users who were moved alone.
func (t *Table) Overrides() int { return len(t.moved) }

// GroupSlot gives the slot that an affinity group's new users get, so that they
// live together: the one it is pinned to, else the hash of its canonical name.
func (t *Table) GroupSlot(group string) Slot {
	group = CanonicalGroup(group)
	if s, ok := t.groups[group]; ok {
		return s
	}
	return HashSlot(group)
}

// CanonicalGroup is the one form of a group's name: lower case, words divided by
// one blank ("city: Berlin " and "City: berlin" are one group).
func CanonicalGroup(name string) string {
	return strings.Join(strings.Fields(strings.ToLower(name)), " ")
}

func validGroup(s string) bool {
	return len(s) > 0 && len(s) <= maxGroup && utf8.ValidString(s) && CanonicalGroup(s) == s &&
		strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// addHomes needs the private slots to be there.
func (t *Table) addHomes(overrides map[int64]Slot, groups map[string]Slot) error {
	owner := make(map[Slot]int64, len(overrides))
	for user, s := range overrides {
		i, ok := t.findPrivate(s)
		switch {
		case user <= 0:
			return fmt.Errorf("%w: %d is no user who could be moved", ErrTable, user)
		case s < FirstUserSlot || !ok:
			return fmt.Errorf("%w: user %d is in slot %d, which is no user's private slot", ErrTable, user, s)
		case owner[s] != 0:
			return fmt.Errorf("%w: users %d and %d share private slot %d", ErrTable, min(user, owner[s]), max(user, owner[s]), s)
		}
		owner[s] = user
		if t.moved == nil {
			t.moved, t.taken = make(map[int64]privateRow, len(overrides)), map[Slot][]Slot{}
		}
		from := SlotOf(user)
		t.moved[user] = t.private[i]
		t.marked[from>>6] |= 1 << (from & 63)
		t.taken[from] = append(t.taken[from], s)
	}
	for _, taken := range t.taken {
		slices.Sort(taken)
	}
	for name, s := range groups {
		if !validGroup(name) || uint32(s) >= Slots {
			return fmt.Errorf("%w: group %q can't be pinned to slot %d", ErrTable, name, s)
		}
	}
	t.groups = maps.Clone(groups)
	return nil
}

func (t *Table) findPrivate(s Slot) (int, bool) {
	return slices.BinarySearchFunc(t.private, s, func(p privateRow, s Slot) int { return cmp.Compare(p.slot, s) })
}

func (h *homes) overrides() map[int64]Slot {
	out := make(map[int64]Slot, len(h.moved))
	for user, p := range h.moved {
		out[user] = p.slot
	}
	return out
}

// checkOverrides refuses a successor in which a moved user would be looked for in
// the hash slot again, or in another private slot: the old home keeps its
// forwarding row for ever, so a user who comes back comes back in the same
// private slot. Pins of groups may change, they only count for new users.
func (t *Table) checkOverrides(next *Table) error {
	for user, p := range t.moved {
		if now, ok := next.moved[user]; !ok || now.slot != p.slot {
			return fmt.Errorf("%w: user %d is in private slot %d, which a later table may not take back", ErrTable, user, p.slot)
		}
	}
	return nil
}
