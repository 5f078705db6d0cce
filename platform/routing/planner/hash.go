package planner

import (
	"crypto/md5"
	"encoding/binary"
	"strconv"

	"example.com/cellmart/platform/routing"
)

// Where FNV-1a 64 starts. PublishedStart is what a well-known published run
// used: the standard one with its last digit lost. Any start gives a hash, but
// another one.
const (
	FNVStart       = 14695981039346656037
	PublishedStart = 1469598103934665603
)

// Hash is FNV-1a 64 from Start, then Finish.
type Hash struct {
	Start  uint64
	Finish func(uint64) uint64
}

// FNVMurmur is FNV-1a with murmur3's finalizer, the hash of routing.HashSlot.
func FNVMurmur() Hash { return Hash{FNVStart, routing.Murmur} }

// FNVSplitmix is FNV-1a with splitmix64's finalizer.
func FNVSplitmix() Hash { return Hash{FNVStart, Splitmix} }

// FNV is bare FNV-1a, to show why not: texts that differ in the last character
// differ by a multiple of FNV's prime, 2^40 and a bit, so on a circle of 2^64
// they sit together.
func FNV() Hash { return Hash{FNVStart, func(h uint64) uint64 { return h }} }

// Sum hashes a text.
func (h Hash) Sum(s string) uint64 {
	sum := h.Start
	for i := range len(s) {
		sum ^= uint64(s[i])
		sum *= 1099511628211
	}
	return h.Finish(sum)
}

// Splitmix is splitmix64's finalizer, without the step that its generator adds.
func Splitmix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Hash31 is the 31-multiplier hash in wrapping int32, as Java has it.
func Hash31(s string) int32 {
	var h int32
	for i := range len(s) {
		h = h*31 + int32(s[i])
	}
	return h
}

// BucketCount is what Bucket divides by.
const BucketCount = 100

// Bucket is the first 8 bytes of the MD5, big-endian, mod 100.
func Bucket(key string) int {
	sum := md5.Sum([]byte(key))
	return int(binary.BigEndian.Uint64(sum[:8]) % BucketCount)
}

// Jump is the jump consistent hash of Lamping and Veach (2014): the bucket,
// 0 to n-1, of a key. Growing n by one moves 1/n of the keys, all to the new one.
func Jump(key uint64, n int) int {
	b, j := int64(-1), int64(0)
	for j < int64(n) {
		b = j
		key = key*2862933555777941757 + 1
		j = int64(float64(b+1) * (float64(1<<31) / float64(key>>33+1)))
	}
	return int(b)
}

// SlotFunc says which hash slot a user number lives in.
type SlotFunc func(id int64) routing.Slot

// ByHash hashes prefix and number as text, so that a number and its text can't
// part ways. Consecutive numbers spread over all slots.
func ByHash(prefix string) SlotFunc {
	return func(id int64) routing.Slot { return routing.HashSlot(prefix + strconv.FormatInt(id, 10)) }
}

// ByRange puts width consecutive numbers into each slot; what lies outside goes
// to the first or last. A range of users is then a range of slots.
func ByRange(width int64) SlotFunc {
	return func(id int64) routing.Slot {
		return routing.Slot(min(max(id/max(width, 1), 0), routing.Slots-1))
	}
}

// slotKey is the text that stands for a slot where keys are hashed.
func slotKey(slot int) string { return strconv.Itoa(slot) }
