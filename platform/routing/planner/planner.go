package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"example.com/cellmart/platform/routing"
)

// Planner decides which cell owns each hash slot. current has the owner per
// slot, "" for none, and may be nil.
type Planner interface {
	Plan(current []string, shares []routing.Share) (Plan, error)
}

// Plan is an owner per hash slot, with what it costs and how even it is.
type Plan struct {
	Owners []string
	Report Report
}

// Report measures a plan. Loads are slots per weight, so a cell of twice the
// weight with twice the slots is even.
type Report struct {
	Slots       map[string]int // by cell
	Moved       int            // slots that change their owner; first owners don't count
	MovedShare  float64        // of all hash slots
	MaxShare    float64
	MinShare    float64
	Skew        float64            // (most - least) / least load; +Inf where a cell has nothing
	CV          float64            // standard deviation / mean of loads
	MaxMean     float64            // most load / mean load
	Gaps        map[string]float64 // of a ring, by cell: widest / mean distance of its tokens
	EmptyTables int                // of shard x table pairs: those that no slot leads to
	Flags       []string
}

// What a report flags.
const (
	FlagClustered = "clustered ring"
	FlagSkew      = "skew over 5 %"
	FlagMaxMean   = "max/mean over 1.1"
)

const (
	skewLimit    = 0.05
	maxMeanLimit = 1.1
)

// Named is a planner with the word that people know it by.
type Named struct {
	Name    string
	Planner Planner
}

// All lists every way, with what is usual for it.
func All() []Named {
	return []Named{
		{"modulo", Modulo{}},
		{"ring", Ring{}},
		{"ring-bare-fnv", Ring{Hash: FNV()}},
		{"bounded", Bounded{Factor: 1.05}},
		{"rendezvous", Rendezvous{}},
		{"jump", JumpHash{}},
		{"buckets", Buckets{}},
		{"hash-ranges", HashRanges{}},
		{"id-ranges", IDRanges{Used: routing.Slots / 8 * 7}},
		{"two-step", Sharded{Way: TwoStep}},
		{"mixed-split", Sharded{Way: Mixed}},
		{"common-factor", Sharded{Way: SameHash}},
		{"coprime", Sharded{Way: Coprime}},
		{"prefix-gene", Sharded{Way: Gene}},
		{"doubling", Doubling{}},
		{"balanced", Balanced{}},
	}
}

// Balanced wraps routing.Balanced: exact shares by weight with the least
// possible movement.
type Balanced struct{}

// Plan implements Planner.
func (Balanced) Plan(current []string, shares []routing.Share) (Plan, error) {
	current, shares, err := prepare(current, shares)
	if err != nil {
		return Plan{}, err
	}
	p, err := routing.Balanced(current, shares)
	if err != nil {
		return Plan{}, err
	}
	return Plan{Owners: p.Owners, Report: measure(current, p.Owners, shares)}, nil
}

// prepare checks what every planner is given and puts it in one order. Cells of
// weight 0 own nothing, so no planner gets to see them.
func prepare(current []string, shares []routing.Share) ([]string, []routing.Share, error) {
	if current == nil {
		current = make([]string, routing.Slots)
	}
	if len(current) != routing.Slots {
		return nil, nil, fmt.Errorf("%w: %d slots, want %d", routing.ErrTable, len(current), routing.Slots)
	}
	shares, err := sorted(shares)
	if err != nil {
		return nil, nil, err
	}
	shares = slices.DeleteFunc(shares, func(s routing.Share) bool { return s.Weight == 0 })
	if len(shares) == 0 {
		return nil, nil, fmt.Errorf("%w: no cell has a weight", routing.ErrTable)
	}
	return current, shares, nil
}

func sorted(shares []routing.Share) ([]routing.Share, error) {
	shares = slices.Clone(shares)
	slices.SortFunc(shares, func(a, b routing.Share) int { return compareNames(a.Cell, b.Cell) })
	for i, s := range shares {
		if !routing.ValidName(s.Cell) || s.Weight < 0 || s.Weight > routing.MaxWeight {
			return nil, fmt.Errorf("%w: cell %q with weight %d can't be planned", routing.ErrTable, s.Cell, s.Weight)
		}
		if i > 0 && shares[i-1].Cell == s.Cell {
			return nil, fmt.Errorf("%w: cell %s is there twice", routing.ErrTable, s.Cell)
		}
	}
	return shares, nil
}

// equal refuses weights where the way has none: a plan that quietly ignores
// them would overload the small cells.
func equal(way string, shares []routing.Share) error {
	for _, s := range shares {
		if s.Weight != shares[0].Weight {
			return fmt.Errorf("%w: %s has no weights, but %s has %d and %s %d", routing.ErrTable, way, shares[0].Cell, shares[0].Weight, s.Cell, s.Weight)
		}
	}
	return nil
}

// assign plans slot by slot.
func assign(current []string, shares []routing.Share, cell func(slot int) int) Plan {
	owners := make([]string, routing.Slots)
	for i := range owners {
		owners[i] = shares[cell(i)].Cell
	}
	return Plan{Owners: owners, Report: measure(current, owners, shares)}
}

func measure(current, owners []string, shares []routing.Share) Report {
	r := Report{Slots: make(map[string]int, len(shares))}
	for i, o := range owners {
		r.Slots[o]++
		if current[i] != "" && current[i] != o {
			r.Moved++
		}
	}
	r.MovedShare = float64(r.Moved) / routing.Slots
	var loads []float64
	for _, s := range shares {
		if s.Weight == 0 {
			continue
		}
		n := float64(r.Slots[s.Cell])
		if share := n / routing.Slots; len(loads) == 0 {
			r.MaxShare, r.MinShare = share, share
		} else {
			r.MaxShare, r.MinShare = max(r.MaxShare, share), min(r.MinShare, share)
		}
		loads = append(loads, n/float64(s.Weight))
	}
	r.Skew, r.CV, r.MaxMean = Evenness(loads)
	if r.Skew > skewLimit {
		r.Flags = append(r.Flags, FlagSkew)
	}
	if r.MaxMean > maxMeanLimit {
		r.Flags = append(r.Flags, FlagMaxMean)
	}
	return r
}

// Evenness measures loads: (most - least) / least, standard deviation / mean
// (of the whole population), most / mean.
func Evenness(loads []float64) (skew, cv, maxMean float64) {
	var sum, squares float64
	for _, l := range loads {
		sum += l
	}
	mean := sum / float64(len(loads))
	for _, l := range loads {
		squares += (l - mean) * (l - mean)
	}
	most, least := slices.Max(loads), slices.Min(loads)
	skew = (most - least) / least
	if least == 0 {
		skew = math.Inf(1)
	}
	return skew, math.Sqrt(squares/float64(len(loads))) / mean, most / mean
}

// compareNames sorts c2 before c10.
func compareNames(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}
