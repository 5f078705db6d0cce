package sim

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strconv"
	"strings"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/platform/routing/planner"
)

// Limits of a run. Fewer users than that say nothing, more don't fit a laptop.
const (
	MinUsers = 1000
	MaxUsers = 20_000_000
	MinCells = 2 // with one there is nothing to divide
	MaxCells = 250
	MaxSeed  = 1<<31 - 1

	// PublishedSeed is the seed of the published draws.
	PublishedSeed = 42
)

// Config is what a run is made of; zero values aren't defaults.
type Config struct {
	Users int
	Seed  int64
	Cells int
	Slots string // hash or range: how a user number becomes a slot
	Full  bool   // [skew] with 200 million ids and three seeds
	Keys  []string
}

// Defaults is the published run.
func Defaults() Config {
	return Config{Users: 1_000_000, Seed: PublishedSeed, Cells: 4, Slots: "hash"}
}

// Result has one part per key; those that weren't asked for are nil.
type Result struct {
	Config   Setting    `json:"config"`
	VNodes   *Movement  `json:"vnodes,omitempty"`
	WeakHash *Movement  `json:"weak_hash,omitempty"`
	Cross    *Cross     `json:"cross,omitempty"`
	Path     *Path      `json:"path,omitempty"`
	OneToken *OneToken  `json:"one_token,omitempty"`
	Tokens   *Tokens    `json:"tokens,omitempty"`
	Buckets  *Buckets   `json:"buckets,omitempty"`
	Skew     *Skew      `json:"skew,omitempty"`
	Doubling *Doubling  `json:"doubling,omitempty"`
	Blast    *Blast     `json:"blast,omitempty"`
	Fanout   *Fanout    `json:"fanout,omitempty"`
	Planners []WayFound `json:"planners,omitempty"`
}

// Setting says what a result was computed with.
type Setting struct {
	Users int    `json:"users"`
	Seed  int64  `json:"seed"`
	Cells int    `json:"cells"`
	Slots string `json:"slots"`
	Full  bool   `json:"full"`
}

type part struct {
	key     string
	compute func(ctx context.Context, p *population, r *Result) error
}

func parts() []part {
	return []part{
		{"vnodes", vnodes},
		{"weak_hash", weakHash},
		{"cross", cross},
		{"path", path},
		{"one_token", oneToken},
		{"tokens", tokens},
		{"buckets", buckets},
		{"skew", skew},
		{"doubling", doubling},
		{"blast", blast},
		{"fanout", fanout},
		{"planners", ways},
	}
}

// Keys lists the parts of a result.
func Keys() []string {
	var out []string
	for _, p := range parts() {
		out = append(out, p.key)
	}
	return out
}

// Check says in one line what is wrong with a config.
func (c Config) Check() error {
	for _, k := range c.Keys {
		if !slices.Contains(Keys(), k) {
			return fmt.Errorf("no key %q; there are %s", k, strings.Join(Keys(), ", "))
		}
	}
	switch {
	case c.Users < MinUsers || c.Users > MaxUsers:
		return fmt.Errorf("--users takes %d to %d, not %d", MinUsers, MaxUsers, c.Users)
	case c.Cells < MinCells || c.Cells > MaxCells:
		return fmt.Errorf("--cells takes %d to %d, not %d", MinCells, MaxCells, c.Cells)
	case c.Seed < 1 || c.Seed > MaxSeed:
		return fmt.Errorf("--seed takes 1 to %d, not %d", MaxSeed, c.Seed)
	case c.Slots != "hash" && c.Slots != "range":
		return fmt.Errorf("--slots takes hash or range, not %q", c.Slots)
	}
	return nil
}

// Run computes the parts asked for, all if none is named.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	r := &Result{Config: Setting{c.Users, c.Seed, c.Cells, c.Slots, c.Full}}
	p := &population{Config: c}
	for _, part := range parts() {
		if len(c.Keys) > 0 && !slices.Contains(c.Keys, part.key) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := part.compute(ctx, p, r); err != nil {
			return nil, fmt.Errorf("%s: %w", part.key, err)
		}
	}
	return r, nil
}

// population is the users of a run.
type population struct {
	Config
	byUser    []uint64 // FNV-1a and murmur3's finalizer, by user
	ascending []uint64 // the same in order
}

// first gives the number of the first of n things: 0 for the published seed,
// and for each other seed a block of its own.
func (p *population) first(n int) int64 { return (p.Seed ^ PublishedSeed) * int64(n) }

func (p *population) user(i int) string {
	return "user" + strconv.FormatInt(p.first(p.Users)+int64(i), 10)
}

func (p *population) draw() *rand.Rand { return rand.New(rand.NewSource(p.Seed)) }

// hashes gives each user's hash, by user; it is computed once.
func (p *population) hashes() []uint64 {
	if p.byUser == nil {
		p.byUser = p.hash(planner.FNVMurmur(), p.user, p.Users)
	}
	return p.byUser
}

func (p *population) sorted() []uint64 {
	if p.ascending == nil {
		p.ascending = slices.Sorted(slices.Values(p.hashes()))
	}
	return p.ascending
}

func (p *population) hash(h planner.Hash, name func(int) string, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = h.Sum(name(i))
	}
	return out
}

// named gives n equal cells <prefix>0, <prefix>1 and so on.
func named(prefix string, n int) []routing.Share {
	out := make([]routing.Share, n)
	for i := range out {
		out[i] = routing.Share{Cell: prefix + strconv.Itoa(i), Weight: 1}
	}
	return out
}

// count gives how many of the owners are each cell.
func count(owners []int32, cells int) []float64 {
	out := make([]float64, cells)
	for _, o := range owners {
		out[o]++
	}
	return out
}

// moved gives how many owners differ.
func moved(before, after []int32) int {
	n := 0
	for i := range before {
		if before[i] != after[i] {
			n++
		}
	}
	return n
}

// percent gives n of total as a percentage, to so many digits. It divides first,
// as the published runs do: 98,250 of a million is 9.83 then, else 9.82.
func percent(n, total float64, digits int) float64 { return round(n/total*100, digits) }

// round gives the number that is printed with so many digits.
func round(x float64, digits int) float64 {
	out, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', digits, 64), 64)
	return out
}
