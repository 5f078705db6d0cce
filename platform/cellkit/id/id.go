package id

import (
	"errors"
	"fmt"
	"strconv"

	"example.com/cellmart/platform/routing"
)

// ID is a user, product, SKU, order, transfer or hold. In JSON it is a string,
// since it passes 2^53. The zero ID is nobody's.
type ID int64

// Layout of the 63 bits.
const (
	SeqBits = 48
	MaxSeq  = 1<<SeqBits - 1
	modeBit = 62
)

// Make puts a sequence number and a slot together; fallback sets the mode bit.
func Make(seq int64, slot routing.Slot, fallback bool) ID {
	v := seq<<14 | int64(slot&routing.SlotMask)
	if fallback {
		v |= 1 << modeBit
	}
	return ID(v)
}

// Slot is the slot in the ID's low bits.
func (i ID) Slot() routing.Slot { return routing.SlotOf(int64(i)) }

// Seq is the sequence number.
func (i ID) Seq() int64 { return int64(i) >> 14 & MaxSeq }

// Fallback says whether the ID came from the fallback generator.
func (i ID) Fallback() bool { return int64(i)>>modeBit&1 == 1 }

// String is the decimal number.
func (i ID) String() string { return strconv.FormatInt(int64(i), 10) }

// ErrMalformed is given for a text that can't be an ID.
var ErrMalformed = errors.New("not an ID")

// Parse reads the decimal form; anything but a positive int64 is ErrMalformed.
func Parse(s string) (ID, error) {
	if len(s) == 0 || len(s) > 19 || s[0] < '1' || s[0] > '9' {
		return 0, ErrMalformed
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, ErrMalformed
	}
	return ID(v), nil
}

// MarshalJSON writes the decimal form as a string.
func (i ID) MarshalJSON() ([]byte, error) { return []byte(`"` + i.String() + `"`), nil }

// UnmarshalJSON reads the string form only: a JSON number may have lost digits.
func (i *ID) UnmarshalJSON(b []byte) error {
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return fmt.Errorf("%w: an ID is a string of digits", ErrMalformed)
	}
	v, err := Parse(string(b[1 : len(b)-1]))
	if err != nil {
		return err
	}
	*i = v
	return nil
}
