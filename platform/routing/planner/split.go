package planner

import (
	"fmt"
	"slices"

	"example.com/cellmart/platform/routing"
)

// DefaultTables is how many tables a shard has where nobody says.
const DefaultTables = 100

// geneLength is how many characters of an ID say its shard.
const geneLength = 4

// Split cuts keys into shards of tables.
type Split struct{ Shards, Tables int }

// Way is how a hash (0 or more) becomes shard and table.
type Way int

// TwoStep takes the table first, and the shard from what is left: a table keeps
// its index when shards double. Mixed takes the shard first: then the table's
// index depends on the number of shards, and changes with it. SameHash takes
// both from one hash, mod shards and mod tables: a common factor of the two
// leaves tables empty; Coprime is the cure, on the next number of shards that
// has none. Gene takes the shard from the key's first characters alone, so that
// an order's number that starts like its user's ID lands in the user's shard.
const (
	TwoStep Way = iota
	Mixed
	SameHash
	Coprime
	Gene
)

// At gives shard and table of a hash. Gene isn't made of one hash: see GeneOf.
func (s Split) At(way Way, hash uint64) (shard, table int) {
	n, t := uint64(s.Shards), uint64(s.Tables)
	switch way {
	case Mixed:
		r := hash % (n * t)
		return int(r % n), int(r / n)
	case SameHash:
		return int(hash % n), int(hash % t)
	case Coprime:
		return int(hash % uint64(s.Cured().Shards)), int(hash % t)
	default:
		r := hash % (n * t)
		return int(r / t), int(r % t)
	}
}

// GeneOf gives |hash(first four) mod shards| and |hash mod tables|, with the
// 31-multiplier hash. The two hashes share a multiplier: shards and tables with
// a large common power of two come out uneven.
func (s Split) GeneOf(id string) (shard, table int) {
	return abs(int(Hash31(id[:min(len(id), geneLength)])) % s.Shards), abs(int(Hash31(id)) % s.Tables)
}

func abs(n int) int { return max(n, -n) }

// Cured is the split with the fewest shards, not fewer than now, that have no
// common factor with the tables.
func (s Split) Cured() Split {
	for gcd(s.Shards, s.Tables) != 1 {
		s.Shards++
	}
	return s
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Sharded gives each cell one shard of tables, by name, a slot hashed like a
// key. It has no weights.
type Sharded struct {
	Way    Way
	Tables int // default 100
}

// Plan implements Planner. With Coprime a cell may have two of the shards.
func (p Sharded) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	if err := equal("a split into shards", shares); err != nil {
		return Plan{}, err
	}
	return p.plan(current, shares)
}

// plan takes the cells in the order of their shards.
func (p Sharded) plan(current []string, shares []routing.Share) (Plan, error) {
	if p.Tables == 0 {
		p.Tables = DefaultTables
	}
	if p.Tables < 0 || p.Tables > routing.MaxWeight {
		return Plan{}, fmt.Errorf("%w: %d tables per shard", routing.ErrTable, p.Tables)
	}
	s := Split{len(shares), p.Tables}
	h := FNVMurmur()
	shards := s.Shards
	if p.Way == Coprime {
		shards = s.Cured().Shards
	}
	used := make(map[[2]int]bool)
	plan := assign(current, shares, func(slot int) int {
		hash := h.Sum(slotKey(slot))
		shard, table := s.At(p.Way, hash)
		if p.Way == Gene {
			shard, table = s.GeneOf(fmt.Sprintf("%016x", hash))
		}
		used[[2]int{shard, table}] = true
		return shard % len(shares)
	})
	plan.Report.EmptyTables = shards*s.Tables - len(used)
	return plan, nil
}

// Doubling is the two-step split grown from n to 2n shards: shard s gives half
// to shard s + n, under the same table index. It has no weights, and refuses
// any other step.
type Doubling struct{ Tables int }

// Plan implements Planner. Which cell has which shard is read from current, so
// new cells may have any names.
func (p Doubling) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	if err := equal("doubling", shares); err != nil {
		return Plan{}, err
	}
	sharded := Sharded{Way: TwoStep, Tables: p.Tables}
	var had []routing.Share // those that own something
	for _, s := range shares {
		if slices.Contains(current, s.Cell) {
			had = append(had, s)
		}
	}
	if len(had) == 0 {
		return sharded.plan(current, shares)
	}
	order, err := p.shardsOf(current, had)
	if err != nil {
		return Plan{}, err
	}
	if len(shares) != len(had) && len(shares) != 2*len(had) {
		return Plan{}, fmt.Errorf("%w: %d cells double to %d, not to %d", routing.ErrTable, len(had), 2*len(had), len(shares))
	}
	for _, s := range shares {
		if !slices.Contains(order, s) {
			order = append(order, s)
		}
	}
	return sharded.plan(current, order)
}

// shardsOf finds the cells' order by shard; current must be a doubling's plan.
func (p Doubling) shardsOf(current []string, had []routing.Share) ([]routing.Share, error) {
	s := Split{len(had), p.Tables}
	if s.Tables == 0 {
		s.Tables = DefaultTables
	}
	order, h := make([]routing.Share, len(had)), FNVMurmur()
	for slot, o := range current {
		shard, _ := s.At(TwoStep, h.Sum(slotKey(slot)))
		switch at := &order[shard]; at.Cell {
		case "":
			*at = routing.Share{Cell: o, Weight: had[0].Weight}
		case o:
		default:
			return nil, fmt.Errorf("%w: slot %d is at %s, its shard at %s: only a split of %d shards doubles", routing.ErrTable, slot, o, at.Cell, len(had))
		}
	}
	return order, nil
}
