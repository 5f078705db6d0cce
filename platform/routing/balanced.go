package routing

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// MaxWeight keeps sums of weights far from overflow.
const MaxWeight = 1 << 20

// Share is a cell with its weight in a plan. Here 0 means: owns nothing.
type Share struct {
	Cell   string
	Weight int
}

// Plan is a way to own the hash slots, with what it costs and how even it is.
type Plan struct {
	Owners []string // per hash slot
	Report Report
}

// Report measures a plan.
type Report struct {
	Slots      map[string]int // by cell
	Moved      int            // slots that change their owner; first owners don't count
	MovedShare float64        // of all hash slots
	MaxShare   float64
	MinShare   float64
	Skew       float64 // (most - least) / least of slots per weight
}

// Balanced plans exact shares by weight (largest remainder) with the least
// possible movement from current, which has the owner per hash slot, "" for
// none, and may be nil. An owner that has no share gives all its slots away.
// The plan depends on the names and weights only, not on the order of shares.
func Balanced(current []string, shares []Share) (Plan, error) {
	if current == nil {
		current = make([]string, Slots)
	}
	if len(current) != Slots {
		return Plan{}, fmt.Errorf("%w: %d slots, want %d", ErrTable, len(current), Slots)
	}
	shares = slices.Clone(shares)
	slices.SortFunc(shares, func(a, b Share) int { return compareNames(a.Cell, b.Cell) })
	if err := checkShares(shares); err != nil {
		return Plan{}, err
	}
	have := make(map[string]int)
	for _, o := range current {
		have[o]++
	}
	want := targets(shares, have)

	// First everyone keeps what it may keep, lowest slots first; what is left
	// over then fills the cells that lack some, in order. From nothing this
	// gives one contiguous range per cell, which also encodes shortest.
	owners := make([]string, Slots)
	room := make(map[string]int, len(want))
	for name, n := range want {
		room[name] = n
	}
	for i, o := range current {
		if room[o] > 0 {
			room[o]--
			owners[i] = o
		}
	}
	at := 0
	for i := range owners {
		if owners[i] != "" {
			continue
		}
		for room[shares[at].Cell] == 0 {
			at++
		}
		owners[i] = shares[at].Cell
		room[owners[i]]--
	}
	return Plan{Owners: owners, Report: report(current, owners, shares)}, nil
}

func checkShares(shares []Share) error {
	sum := 0
	for i, s := range shares {
		if !ValidName(s.Cell) || s.Weight < 0 || s.Weight > MaxWeight {
			return fmt.Errorf("%w: cell %q with weight %d can't be planned", ErrTable, s.Cell, s.Weight)
		}
		if i > 0 && shares[i-1].Cell == s.Cell {
			return fmt.Errorf("%w: cell %s is there twice", ErrTable, s.Cell)
		}
		sum += s.Weight
	}
	if sum == 0 {
		return fmt.Errorf("%w: no cell has a weight", ErrTable)
	}
	return nil
}

// targets gives each cell its exact number of slots. Where remainders tie, a
// cell that already holds the odd slot keeps it, so nothing moves for a tie.
func targets(shares []Share, have map[string]int) map[string]int {
	sum := 0
	for _, s := range shares {
		sum += s.Weight
	}
	want := make(map[string]int, len(shares))
	left := Slots
	for _, s := range shares {
		want[s.Cell] = Slots * s.Weight / sum
		left -= want[s.Cell]
	}
	order := slices.Clone(shares)
	slices.SortStableFunc(order, func(a, b Share) int {
		return cmp.Or(
			cmp.Compare(Slots*b.Weight%sum, Slots*a.Weight%sum),
			cmp.Compare(have[b.Cell]-want[b.Cell], have[a.Cell]-want[a.Cell]),
		)
	})
	for _, s := range order[:left] {
		want[s.Cell]++
	}
	return want
}

func report(current, owners []string, shares []Share) Report {
	r := Report{Slots: make(map[string]int, len(shares))}
	for i, o := range owners {
		r.Slots[o]++
		if current[i] != "" && current[i] != o {
			r.Moved++
		}
	}
	r.MovedShare = float64(r.Moved) / Slots
	var most, least float64
	for _, s := range shares {
		if s.Weight == 0 {
			continue
		}
		n := float64(r.Slots[s.Cell])
		share, load := n/Slots, n/float64(s.Weight)
		if most == 0 && least == 0 {
			r.MinShare, least = share, load
		}
		r.MaxShare, r.MinShare = max(r.MaxShare, share), min(r.MinShare, share)
		most, least = max(most, load), min(least, load)
	}
	if least > 0 {
		r.Skew = (most - least) / least
	}
	return r
}

// compareNames sorts c2 before c10.
func compareNames(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// Spread is the table of last resort: the slots evenly over the configured
// cells, version 0, epoch 1, so every process that is configured alike makes
// the same. Names that can't be cells are left out; of no name comes a table
// that finds nothing.
func Spread(names []string) *Table {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !ValidName(n) })
	slices.SortFunc(names, compareNames)
	names = slices.Compact(names)
	spec := Spec{Slots: make([]Assignment, Slots), Voters: append([]string{Global}, names...)}
	var shares []Share
	for i, n := range names {
		spec.Cells = append(spec.Cells, Cell{Name: n, Ordinal: i + 1, Weight: 1})
		shares = append(shares, Share{Cell: n, Weight: 1})
	}
	plan, err := Balanced(nil, shares)
	if err != nil {
		return nothing()
	}
	for i, o := range plan.Owners {
		spec.Slots[i] = Assignment{Owner: o, Epoch: 1}
	}
	t, err := Build(spec)
	if err != nil {
		return nothing() // more cells than ordinals
	}
	return t
}

func nothing() *Table {
	return &Table{names: []string{""}, rows: make([]hashRow, 1), owned: make([][]uint16, 1)}
}

// PickSlot chooses a new user's slot evenly among those of a cell, by a hash
// that the caller makes (of a random number, or of the group that the user
// should sit beside). False: the cell is unknown, closed to new users (weight
// 0), or owns nothing.
func PickSlot(t *Table, cell string, hash uint64) (Slot, bool) {
	p := t.place[cell]
	if p == 0 || t.cells[p-1].Weight == 0 || len(t.owned[p]) == 0 {
		return 0, false
	}
	// The high half of a product spreads any hash evenly over n, and the
	// finalizer makes small numbers good hashes.
	i, _ := bits.Mul64(Murmur(hash), uint64(len(t.owned[p])))
	return Slot(t.owned[p][i]), true
}
