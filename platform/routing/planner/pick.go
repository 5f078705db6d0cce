package planner

import (
	"fmt"
	"math"

	"example.com/cellmart/platform/routing"
)

// Modulo is slot mod number of cells. It has no weights.
type Modulo struct{}

// Plan implements Planner.
func (Modulo) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	if err := equal("modulo", shares); err != nil {
		return Plan{}, err
	}
	return assign(current, shares, func(slot int) int { return slot % len(shares) }), nil
}

// Rendezvous gives a slot to the cell with the highest score of (cell, slot),
// the score stretched by weight: -weight / ln(score).
type Rendezvous struct{}

// Plan implements Planner.
func (Rendezvous) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	h := FNVMurmur()
	seeds := make([]uint64, len(shares))
	for i, s := range shares {
		seeds[i] = h.Sum(s.Cell)
	}
	return assign(current, shares, func(slot int) int {
		best, high := 0, 0.0
		key := h.Sum(slotKey(slot))
		for i, s := range shares {
			// 53 bits, never 0 nor 1, so the logarithm is finite and negative.
			u := (float64(routing.Murmur(key^seeds[i])>>12) + 0.5) / (1 << 52)
			if score := -float64(s.Weight) / math.Log(u); score > high {
				best, high = i, score
			}
		}
		return best
	}), nil
}

// JumpHash is the jump consistent hash over the cells by name. It has no
// weights, and only the last cell can go without moving what others hold.
type JumpHash struct{}

// Plan implements Planner.
func (JumpHash) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	if err := equal("jump", shares); err != nil {
		return Plan{}, err
	}
	h := FNVMurmur()
	return assign(current, shares, func(slot int) int { return Jump(h.Sum(slotKey(slot)), len(shares)) }), nil
}

// Buckets cuts 100 buckets by weight: weights 50, 30, 20 are buckets 00-49,
// 50-79, 80-99.
type Buckets struct{}

// Plan implements Planner.
func (Buckets) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	if len(shares) > BucketCount {
		return Plan{}, fmt.Errorf("%w: %d cells share %d buckets", routing.ErrTable, len(shares), BucketCount)
	}
	owners := CutBuckets(shares)
	return assign(current, shares, func(slot int) int { return owners[Bucket(slotKey(slot))] }), nil
}

// CutBuckets gives the place in shares of each bucket's owner: ranges in the
// order of shares, each border where the weights before it say.
func CutBuckets(shares []routing.Share) [BucketCount]int {
	sum, before := 0, 0
	for _, s := range shares {
		sum += s.Weight
	}
	var out [BucketCount]int
	for i, s := range shares {
		from := (before*BucketCount + sum/2) / sum
		before += s.Weight
		for b := from; b < (before*BucketCount+sum/2)/sum; b++ {
			out[b] = i
		}
	}
	return out
}
