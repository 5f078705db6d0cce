package id

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/bits"

	"example.com/cellmart/platform/routing"
)

// Numbers writes IDs as order numbers and reads them, e.g. 8R2K-7QF3M-XN09T.
//
//	bit  64 63   62     61                  14 13     0
//	   +-------+------+----------------------+---------+-------+
//	   |version| mode | sequence 48, keyed   | slot 14 | check |
//	   +-------+------+----------------------+---------+-------+
//	    13 symbols of Crockford's base32                 1 symbol
//
// The check symbol makes sum(a^i * symbol i) zero over GF(32), a its generator.
// One wrong symbol changes the sum by a^i*(x-y), two swapped neighbours by
// (a^i + a^(i+1))*(x-y): neither is ever zero, so every such slip is found
// before anything is looked up.
//
// The sequence goes through a bijection of 48 bits under a secret key, tweaked
// by mode and slot, so numbers tell nobody how many orders there are. The slot
// stays readable for routing. The key must be the same in every cell and never
// change while numbers of its version are about; another key is another version.
type Numbers struct {
	k0, k1 uint64
}

const (
	numberVersion = 1
	symbols       = 14 // with the check symbol
	numberLen     = symbols + 2
	alphabet      = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	bad           = 0xff
	minKey        = 16
)

// ErrKey refuses a key that could be guessed.
var ErrKey = errors.New("the key of order numbers has at least 16 bytes")

// NewNumbers derives the bijection from a secret of 16 bytes or more.
func NewNumbers(key []byte) (*Numbers, error) {
	if len(key) < minKey {
		return nil, ErrKey
	}
	h := sha256.New()
	h.Write([]byte("cellmart order numbers v1\x00"))
	h.Write(key)
	sum := h.Sum(nil)
	return &Numbers{k0: binary.LittleEndian.Uint64(sum), k1: binary.LittleEndian.Uint64(sum[8:])}, nil
}

// Encode writes an ID, XXXX-XXXXX-XXXXX. Only for real IDs, above zero.
func (n *Numbers) Encode(i ID) string {
	tweak := uint64(i)>>modeBit&1<<14 | uint64(i)&(1<<14-1)
	low := uint64(i)>>modeBit&1<<modeBit | n.seal(uint64(i.Seq()), tweak)<<14 | tweak&(1<<14-1)
	// 65 bits: the first symbol has the version and the top three of low.
	var out [numberLen]byte
	var check byte
	at := 0
	for p := range symbols - 1 {
		var v byte
		if p == 0 {
			v = numberVersion<<3 | byte(low>>60)
		} else {
			v = byte(low>>(60-5*p)) & 31
		}
		check ^= gfTable[p][v]
		if p == 4 || p == 9 {
			out[at] = '-'
			at++
		}
		out[at] = alphabet[v]
		at++
	}
	out[at] = alphabet[check]
	return string(out[:])
}

// Decode reads an order number: any case, O as 0, I and L as 1, each hyphen
// optional. Anything Encode wouldn't write for some ID is ErrMalformed.
func (n *Numbers) Decode(s string) (ID, error) {
	low, ok := readNumber(s)
	if !ok {
		return 0, ErrMalformed
	}
	mode := low >> modeBit & 1
	slot := low & (1<<14 - 1)
	seq := n.open(low>>14&MaxSeq, mode<<14|slot)
	i := ID(mode<<modeBit | seq<<14 | slot)
	if i == 0 {
		return 0, ErrMalformed
	}
	return i, nil
}

// NumberSlot reads only the slot of an order number, for routing: that and the
// check symbol need no key.
func NumberSlot(s string) (routing.Slot, error) {
	low, ok := readNumber(s)
	if !ok {
		return 0, ErrMalformed
	}
	return routing.SlotOf(int64(low)), nil
}

// readNumber gives the 63 bits below the version, the sequence still sealed.
func readNumber(s string) (low uint64, ok bool) {
	if len(s) < symbols || len(s) > numberLen {
		return 0, false
	}
	var check, first byte
	p := 0
	for i := range len(s) {
		if s[i] == '-' && (p == 4 || p == 9) && s[i-1] != '-' {
			continue
		}
		v := valueOf[s[i]]
		if v == bad || p == symbols {
			return 0, false
		}
		switch {
		case p == 0:
			first, low = v, uint64(v&7)
		case p < symbols-1:
			low = low<<5 | uint64(v)
		default:
			check ^= v
		}
		if p < symbols-1 {
			check ^= gfTable[p][v]
		}
		p++
	}
	return low, p == symbols && check == 0 && first>>3 == numberVersion
}

// A Feistel network over two halves of 24 bits; any round function makes it a
// bijection, a keyed pseudorandom one makes it look random.
const (
	rounds   = 6
	halfBits = 24
	halfMask = 1<<halfBits - 1
)

func (n *Numbers) seal(x, tweak uint64) uint64 {
	l, r := x>>halfBits, x&halfMask
	for round := range uint64(rounds) {
		l, r = r, l^n.round(round, tweak, r)
	}
	return l<<halfBits | r
}

func (n *Numbers) open(x, tweak uint64) uint64 {
	l, r := x>>halfBits, x&halfMask
	for round := rounds - 1; round >= 0; round-- {
		l, r = r^n.round(uint64(round), tweak, l), l
	}
	return l<<halfBits | r
}

// round is SipHash-1-2 of one word (round, tweak, half), without the length
// block: all inputs have one length.
func (n *Numbers) round(round, tweak, half uint64) uint64 {
	m := round<<48 | tweak<<halfBits | half
	v0, v1 := n.k0^0x736f6d6570736575, n.k1^0x646f72616e646f6d
	v2, v3 := n.k0^0x6c7967656e657261, n.k1^0x7465646279746573^m
	for i := range 3 {
		v0 += v1
		v1 = bits.RotateLeft64(v1, 13) ^ v0
		v0 = bits.RotateLeft64(v0, 32)
		v2 += v3
		v3 = bits.RotateLeft64(v3, 16) ^ v2
		v0 += v3
		v3 = bits.RotateLeft64(v3, 21) ^ v0
		v2 += v1
		v1 = bits.RotateLeft64(v1, 17) ^ v2
		v2 = bits.RotateLeft64(v2, 32)
		if i == 0 {
			v0 ^= m
			v2 ^= 0xff
		}
	}
	return (v0 ^ v1 ^ v2 ^ v3) & halfMask
}

// valueOf maps a byte to its symbol's value, bad for what is none.
var valueOf = func() (t [256]byte) {
	for i := range t {
		t[i] = bad
	}
	for v := range len(alphabet) {
		c := alphabet[v]
		t[c] = byte(v)
		if c >= 'A' {
			t[c+'a'-'A'] = byte(v)
		}
	}
	for _, c := range []byte("Oo") {
		t[c] = 0
	}
	for _, c := range []byte("IiLl") {
		t[c] = 1
	}
	return t
}()

// gfTable[p][v] is v times a^(13-p) in GF(32) modulo x^5 + x^2 + 1, whose
// root a has order 31; the check symbol's own factor is a^0 = 1.
var gfTable = func() (t [symbols - 1][32]byte) {
	for p := range t {
		for v := range t[p] {
			x := v
			for range symbols - 1 - p {
				x <<= 1
				if x&32 != 0 {
					x ^= 0b100101
				}
			}
			t[p][v] = byte(x)
		}
	}
	return t
}()
