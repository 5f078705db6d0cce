package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"example.com/cellmart/platform/routing"
)

// Tokens of a ring: how many the cell of most weight has, and how many even the
// smallest keeps.
const (
	DefaultBase = 400
	floorTokens = 10
)

// Ring is consistent hashing with virtual nodes: a cell has tokens
// `<cell>#<i>` on a circle, and a key belongs to the first token at or after it.
// Tokens go by capacity, base x weight / most weight, at least 10 (or base).
type Ring struct {
	Hash Hash // default FNVMurmur
	Base int  // tokens of the cell of most weight; default 400
}

// Plan implements Planner.
func (r Ring) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	c, err := r.Circle(shares)
	if err != nil {
		return Plan{}, err
	}
	h := r.hash()
	plan := assign(current, shares, func(slot int) int { return c.Owner(h.Sum(slotKey(slot))) })
	c.report(&plan.Report, shares)
	return plan, nil
}

func (r Ring) hash() Hash {
	if r.Hash.Finish == nil {
		return FNVMurmur()
	}
	return r.Hash
}

// Tokens gives the number of tokens of a cell.
func (r Ring) Tokens(weight, most int) int {
	base := r.Base
	if base == 0 {
		base = DefaultBase
	}
	return max(base*weight/most, min(floorTokens, base))
}

// Circle places the tokens. Cells are numbered by name, c2 before c10.
func (r Ring) Circle(shares []routing.Share) (*Circle, error) {
	if r.Base < 0 || r.Base > 1<<16 {
		return nil, fmt.Errorf("%w: a ring of %d tokens per cell", routing.ErrTable, r.Base)
	}
	_, shares, err := prepare(nil, shares)
	if err != nil {
		return nil, err
	}
	most := 0
	for _, s := range shares {
		most = max(most, s.Weight)
	}
	h, c := r.hash(), &Circle{}
	for cell, s := range shares {
		for i := range r.Tokens(s.Weight, most) {
			c.tokens = append(c.tokens, token{h.Sum(s.Cell + "#" + strconv.Itoa(i)), int32(cell)})
		}
	}
	// By cell where two tokens share a place, so the order of adding cells can't
	// matter.
	slices.SortFunc(c.tokens, func(a, b token) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.cell, b.cell)) })
	return c, nil
}

type token struct {
	at   uint64
	cell int32
}

// Circle is a ring's tokens in order.
type Circle struct{ tokens []token }

// Owner gives the number of the cell that a hash belongs to.
func (c *Circle) Owner(hash uint64) int { return int(c.tokens[c.first(hash)].cell) }

// first finds the first token at or after a hash, around the end.
func (c *Circle) first(hash uint64) int {
	i, _ := slices.BinarySearchFunc(c.tokens, hash, func(t token, h uint64) int { return cmp.Compare(t.at, h) })
	return i % len(c.tokens)
}

// Sweep writes the owners of ascending hashes in one walk around the circle,
// for millions of keys.
func (c *Circle) Sweep(ascending []uint64, owners []int32) {
	at := 0
	for i, h := range ascending {
		for at < len(c.tokens) && c.tokens[at].at < h {
			at++
		}
		owners[i] = c.tokens[at%len(c.tokens)].cell
	}
}

// Gaps gives, for each cell, the widest distance between two of its tokens that
// follow each other, divided by the mean one. Chance gives about ln(tokens);
// tokens that all sit together give about their number.
func (c *Circle) Gaps(cells int) []float64 {
	first, last, widest, n := make([]uint64, cells), make([]uint64, cells), make([]uint64, cells), make([]int, cells)
	for _, t := range c.tokens {
		if n[t.cell] == 0 {
			first[t.cell] = t.at
		} else {
			widest[t.cell] = max(widest[t.cell], t.at-last[t.cell])
		}
		last[t.cell] = t.at
		n[t.cell]++
	}
	out := make([]float64, cells)
	for i := range out {
		if n[i] < 2 {
			out[i] = float64(n[i]) // one token: its only gap is the mean
			continue
		}
		around := max(widest[i], first[i]-last[i]) // wraps past zero
		out[i] = float64(around) / math.Exp2(64) * float64(n[i])
	}
	return out
}

// Clustered says whether a cell's tokens sit closer together than chance does
// once in a million: for n random tokens the widest gap exceeds x means with
// probability at most n (1 - x/n)^(n-1). Fewer than three tell nothing.
func Clustered(gap float64, tokens int) bool {
	const chance = 1e-6
	n := float64(tokens)
	return tokens > 2 && gap > n*(1-math.Pow(chance/n, 1/(n-1)))
}

func (c *Circle) report(r *Report, shares []routing.Share) {
	n := make([]int, len(shares))
	for _, t := range c.tokens {
		n[t.cell]++
	}
	r.Gaps = make(map[string]float64, len(shares))
	clustered := false
	for i, gap := range c.Gaps(len(shares)) {
		r.Gaps[shares[i].Cell] = gap
		clustered = clustered || Clustered(gap, n[i])
	}
	if clustered {
		r.Flags = append([]string{FlagClustered}, r.Flags...)
	}
}

// Bounded is a ring on which no cell takes more than Factor x its exact share:
// what is too much goes on clockwise to the next cell with room (Mirrokni,
// Thorup and Zadimoghaddam, 2016).
type Bounded struct {
	Ring   Ring
	Factor float64 // at least 1; default 1.25
}

// Plan implements Planner.
func (b Bounded) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	if b.Factor == 0 {
		b.Factor = 1.25
	}
	if !(b.Factor >= 1 && b.Factor <= 1000) {
		return Plan{}, fmt.Errorf("%w: a bound of %g times the mean", routing.ErrTable, b.Factor)
	}
	c, err := b.Ring.Circle(shares)
	if err != nil {
		return Plan{}, err
	}
	sum := 0
	for _, s := range shares {
		sum += s.Weight
	}
	room := make([]int, len(shares))
	for i, s := range shares {
		room[i] = int(math.Ceil(b.Factor * routing.Slots * float64(s.Weight) / float64(sum)))
	}
	h := b.Ring.hash()
	plan := assign(current, shares, func(slot int) int {
		for at := c.first(h.Sum(slotKey(slot))); ; at = (at + 1) % len(c.tokens) {
			if cell := c.tokens[at].cell; room[cell] > 0 {
				room[cell]--
				return int(cell)
			}
		}
	})
	c.report(&plan.Report, shares)
	return plan, nil
}
