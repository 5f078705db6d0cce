package verify

import (
	"cmp"
	"fmt"
	"slices"

	"example.com/cellmart/platform/cellkit/cdc"
)

// Report is what a comparison found.
type Report struct {
	RowsCompared  int64              `json:"rows_compared"`
	SlotsCompared int                `json:"slots_compared"`
	AtLSN         map[string]cdc.LSN `json:"at_lsn"` // the newest position compared at, by owner
	Differences   []Difference       `json:"differences"`
	NotListed     int                `json:"not_listed"` // slots of tables that differ too, not looked at row by row
	NotCompared   []NotCompared      `json:"not_compared"`
	Pairs         []Pair             `json:"pairs"`
	Left          []Left             `json:"left"`
	Limits        []string           `json:"limits"`
	ElapsedMS     int64              `json:"elapsed_ms"`

	unlisted []place
}

// place is where rows differ.
type place struct {
	owner, standby string // of a stray the owner is ""
	slot           int32
}

// Equal says that something was compared, all that was asked for, and that no
// difference is left.
func (r Report) Equal() bool {
	for _, d := range r.Differences {
		if !d.Repaired {
			return false
		}
	}
	return r.RowsCompared > 0 && r.NotListed == 0 && len(r.NotCompared) == 0
}

// Kind says how a row differs.
type Kind string

// The kinds of differences.
const (
	Missing Kind = "missing" // the owner has it, the standby not
	Extra   Kind = "extra"   // the standby has it, the owner not
	Tail    Kind = "tail"    // the standby has it at an older epoch than the slot's, the owner not: a lost tail, or a delete that was missed
	Differs Kind = "differs" // both have it
	Stray   Kind = "stray"   // of a slot that the cell neither owns nor stands by for
	Digest  Kind = "digest"  // the digests differ; the rows weren't looked at, or are equal by now
)

// Difference is a row that isn't the same at both.
type Difference struct {
	Kind     Kind              `json:"kind"`
	Slot     int32             `json:"slot"`
	Table    string            `json:"table"`
	Key      map[string]string `json:"key"` // the primary key after slot
	Owner    string            `json:"owner"`
	Standby  string            `json:"standby"` // where the copy is; of a stray where the row is
	Columns  []string          `json:"columns,omitempty"`
	At       *Version          `json:"at_owner"`   // null = it hasn't the row
	There    *Version          `json:"at_standby"` // null = it hasn't the row
	Rows     [2]int64          `json:"rows"`       // in the slot's table, at the owner and at the standby
	Repaired bool              `json:"repaired,omitempty"`
}

// Version of a row.
type Version struct {
	Epoch int64 `json:"epoch"`
	Rev   int64 `json:"rev"`
}

// NotCompared is what was asked for and isn't known.
type NotCompared struct {
	Owner   string     `json:"owner,omitempty"`
	Standby string     `json:"standby,omitempty"`
	Table   string     `json:"table,omitempty"`
	Slots   [][2]int32 `json:"slots,omitempty"` // runs
	N       int        `json:"n_slots"`
	Reason  string     `json:"reason"`
}

// Pair is one comparison: slots of one owner with their copies in one standby.
type Pair struct {
	Owner   string  `json:"owner"`
	Standby string  `json:"standby"`
	Slots   int     `json:"slots"`
	Rows    int64   `json:"rows"`
	AtLSN   cdc.LSN `json:"at_lsn"`
	LockMS  float64 `json:"lock_ms"` // how long writers were kept out
	Tries   int     `json:"lock_tries"`
	WaitMS  int64   `json:"wait_ms"` // until the standby was there
	MS      int64   `json:"ms"`
}

// Left is what a cell has of slots that it let go of, and that the clean-up knows.
type Left struct {
	Cell  string `json:"cell"`
	Slots int    `json:"slots"`
	Rows  int64  `json:"rows"`
}

// limits are what an equal answer doesn't say.
func limits() []string {
	return []string{
		"what was committed after a pair's position isn't compared: it is on its way",
		"only unit tables are compared: not relay notes, leases, IDs in stock, the catalog, search, Redis",
		"rows are compared by 64-bit hashes of all columns: equal hashes of different rows aren't seen",
		"slots with no copy in sync are named, not compared; so are copies in a cell that can't be asked",
		"an incoming copy is compared only when it says that it is in sync",
		"the owner is taken at its word: whether its rows are right is what `cellctl invariants` asks",
	}
}

// runs gives slots, ascending, as runs.
func runs(slots []int32) [][2]int32 {
	slots = slices.Compact(slices.Sorted(slices.Values(slots)))
	var out [][2]int32
	for _, s := range slots {
		if n := len(out); n > 0 && out[n-1][1] == s-1 {
			out[n-1][1] = s
		} else {
			out = append(out, [2]int32{s, s})
		}
	}
	return out
}

// Runs writes runs of slots, not more than a few.
func Runs(all [][2]int32) string {
	out := ""
	for i, r := range all {
		if i == 5 {
			return fmt.Sprintf("%s and %d more ranges", out, len(all)-i)
		}
		if i > 0 {
			out += ","
		}
		if r[0] == r[1] {
			out += fmt.Sprint(r[0])
		} else {
			out += fmt.Sprintf("%d-%d", r[0], r[1])
		}
	}
	return out
}

// left takes slots that can't be compared together with those of the same reason.
func (r *Report) left(owner, standby, table, reason string, slots []int32) {
	if len(slots) == 0 && table == "" && owner != "" && standby != "" {
		return
	}
	r.NotCompared = append(r.NotCompared, NotCompared{
		Owner: owner, Standby: standby, Table: table, Slots: runs(slots), N: len(slots), Reason: reason,
	})
}

func (r *Report) sort() {
	slices.SortStableFunc(r.Differences, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Standby, b.Standby))
	})
	slices.SortStableFunc(r.NotCompared, func(a, b NotCompared) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Standby, b.Standby))
	})
}
