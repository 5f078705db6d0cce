package routing

import "strconv"

// Slot is the unit of ownership: 0..16383 are the hash slots, from 16384 up are
// private slots (a cell's own slot, later a user moved alone).
type Slot int32

// Epoch counts a slot's changes of owner, from 1.
type Epoch int64

// Slots is the number of hash slots; SlotMask cuts a slot out of an ID.
const (
	Slots    = 16384
	SlotMask = Slots - 1
)

// SlotOf gives the slot that an ID's low 14 bits name (design rule R1).
func SlotOf(id int64) Slot { return Slot(id & SlotMask) }

// CellSlot is the private slot of the cell with that ordinal, for rows that
// belong to the cell itself. Ordinals count from 1 and are never used again.
func CellSlot(ordinal int) Slot { return Slot(Slots + ordinal) }

// Private says whether the slot is above the hash slots.
func (s Slot) Private() bool { return s >= Slots }

// String is the decimal number.
func (s Slot) String() string { return strconv.Itoa(int(s)) }

// HashSlot gives the slot of a value that is not an ID, such as a phone number
// in canonical form: FNV-1a 64, murmur3's 64-bit finalizer, low 14 bits. The
// finalizer matters: FNV-1a alone clusters (TestHashSlot has golden vectors).
func HashSlot(value string) Slot {
	h := uint64(14695981039346656037)
	for i := range len(value) {
		h ^= uint64(value[i])
		h *= 1099511628211
	}
	return Slot(Murmur(h) & SlotMask)
}

// Murmur is murmur3's 64-bit finalizer.
func Murmur(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// ValidName says whether a word can name a cell: lower-case letters, digits and
// dashes, a letter first, at most 32. So no address passes.
func ValidName(s string) bool {
	return validWord(s) && s[0] >= 'a' && s[0] <= 'z' && s != Global
}

// validWord allows what regions and key IDs are made of.
func validWord(s string) bool {
	if len(s) == 0 || len(s) > 32 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
