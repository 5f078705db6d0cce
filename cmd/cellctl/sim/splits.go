package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/platform/routing/planner"
)

// Buckets counts users by weighted buckets, with single keys to hold on to.
type Buckets struct {
	Users  int         `json:"users"`
	Rows   []BucketRow `json:"rows"`
	Golden []BucketKey `json:"golden"`
}

// BucketRow is the range of buckets of one weight.
type BucketRow struct {
	From  int `json:"from"`
	To    int `json:"to"` // the last one
	Users int `json:"users"`
}

// BucketKey is one key's bucket.
type BucketKey struct {
	Key    string `json:"key"`
	Bucket int    `json:"bucket"`
}

func buckets(_ context.Context, p *population, r *Result) error {
	cut := planner.CutBuckets([]routing.Share{{Cell: "c1", Weight: 50}, {Cell: "c2", Weight: 30}, {Cell: "c3", Weight: 20}})
	out := &Buckets{Users: p.Users}
	for b, owner := range cut {
		if owner == len(out.Rows) {
			out.Rows = append(out.Rows, BucketRow{From: b})
		}
		out.Rows[owner].To = b
	}
	for i := range p.Users {
		out.Rows[cut[planner.Bucket(p.user(i))]].Users++
	}
	for _, key := range []string{"10086", "U_001"} {
		out.Golden = append(out.Golden, BucketKey{key, planner.Bucket(key)})
	}
	r.Buckets = out
	return nil
}

// Skew is shards of tables where both hashes share a multiplier.
type Skew struct {
	IDs    int         `json:"ids"`      // for each seed
	AllIDs int         `json:"full_ids"` // what --full takes
	Seeds  []int64     `json:"seeds"`
	Full   bool        `json:"full"`
	Shapes []SkewShape `json:"shapes"`
	Common []Common    `json:"common_factor"`
}

// SkewShape is (max - min) / min over all shard x table pairs in percent, mean
// of the seeds; null where a pair is empty. Chance is what as many ids make of
// an even hash.
type SkewShape struct {
	Shards int      `json:"shards"`
	Tables int      `json:"tables"`
	Skew   *float64 `json:"skew"`
	Chance float64  `json:"chance"`
}

// Common is one hash taken mod shards and mod tables.
type Common struct {
	Shards int `json:"shards"`
	Tables int `json:"tables"`
	Pairs  int `json:"pairs"`
	Empty  int `json:"empty"`
}

// The published run has 200 million ids. A run of 60 ids per user tells the
// trap from the rest and takes two seconds.
const (
	fullIDs     = 200_000_000
	fullSeeds   = 3
	idsPerUser  = 60
	skewTables  = 100
	idsPerCheck = 1 << 20
)

func skew(ctx context.Context, p *population, r *Result) error {
	out := &Skew{IDs: p.Users * idsPerUser, AllIDs: fullIDs, Seeds: []int64{p.Seed}, Full: p.Full}
	if p.Full {
		out.IDs = out.AllIDs
		for len(out.Seeds) < fullSeeds {
			out.Seeds = append(out.Seeds, p.Seed+int64(len(out.Seeds)))
		}
	}
	splits := []planner.Split{{Shards: 16, Tables: skewTables}, {Shards: 8, Tables: skewTables}, {Shards: 20, Tables: skewTables}}
	sums := make([]float64, len(splits))
	for _, seed := range out.Seeds {
		counts, err := countIDs(ctx, seed, out.IDs, splits)
		if err != nil {
			return err
		}
		for i, c := range counts {
			most, least := float64(slices.Max(c)), float64(slices.Min(c))
			sums[i] += (most - least) / least // +Inf stays so
		}
	}
	for i, s := range splits {
		shape := SkewShape{Shards: s.Shards, Tables: s.Tables, Chance: round(chance(out.IDs, s.Shards*s.Tables)*100, 2)}
		if !math.IsInf(sums[i], 0) && !math.IsNaN(sums[i]) {
			mean := round(sums[i]*100/float64(len(out.Seeds)), 2)
			shape.Skew = &mean
		}
		out.Shapes = append(out.Shapes, shape)
	}
	for _, n := range []int{10, 11, 22} {
		out.Common = append(out.Common, p.common(planner.Split{Shards: n, Tables: skewTables}))
	}
	r.Skew = out
	return nil
}

// countIDs counts random ids of 16 hex digits by shard and table, as
// planner.Split.GeneOf has it, which a test holds it against: ids are drawn as
// numbers, and the hash of 16 digits is put together from four of 4. One
// goroutine has all of it; the race detector would take a minute to say so.
//
//go:norace
func countIDs(ctx context.Context, seed int64, ids int, splits []planner.Split) ([][]int32, error) {
	quads := make([]int32, 1<<16)
	for i := range quads {
		quads[i] = planner.Hash31(hex(uint64(i), 4))
	}
	var p4 int32 = 31 * 31 * 31 * 31
	p8 := p4 * p4 // wraps, as the hash does
	p12 := p8 * p4
	counts, rows := make([][]int32, len(splits)), make([][]int32, len(splits))
	for k, s := range splits {
		counts[k], rows[k] = make([]int32, s.Shards*s.Tables), make([]int32, 1<<16)
		for i := range rows[k] {
			shard, _ := s.GeneOf(hex(uint64(i), 4))
			rows[k][i] = int32(shard * s.Tables)
		}
	}
	draw := rand.NewPCG(uint64(seed), 0)
	for done := range ids {
		if done%idsPerCheck == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		id := draw.Uint64()
		gene := uint16(id >> 48)
		h := quads[gene]*p12 + quads[uint16(id>>32)]*p8 + quads[uint16(id>>16)]*p4 + quads[uint16(id)]
		table := h % skewTables
		table = max(table, -table)
		for k := range counts {
			counts[k][rows[k][gene]+table]++
		}
	}
	return counts, nil
}

// hex gives the last digits of a number, lower case.
func hex(n uint64, digits int) string {
	const zeros = "0000000000000000"
	s := zeros + strconv.FormatUint(n, 16)
	return s[len(s)-digits:]
}

// chance gives the (max - min) / min to expect of n ids thrown evenly into so
// many pairs: the extremes of that many normal deviates, after Blom.
func chance(n, pairs int) float64 {
	k := float64(pairs)
	deviation := math.Sqrt(k / float64(n)) // of a pair's count, by its mean
	extreme := math.Sqrt2 * math.Erfinv(2*(k-0.375)/(k+0.25)-1) * deviation
	return 2 * extreme / (1 - extreme)
}

func (p *population) common(s planner.Split) Common {
	used := make([]bool, s.Shards*s.Tables)
	for _, h := range p.hashes() {
		shard, table := s.At(planner.SameHash, h)
		used[shard*s.Tables+table] = true
	}
	out := Common{Shards: s.Shards, Tables: s.Tables, Pairs: len(used)}
	for _, u := range used {
		if !u {
			out.Empty++
		}
	}
	return out
}

// Doubling is where one hash goes when shards double, the wrong and the right
// way, and how many users' tables change.
type Doubling struct {
	Hash   uint64      `json:"hash"`
	Before string      `json:"before"` // shards x tables
	After  string      `json:"after"`
	Rows   []DoubleRow `json:"rows"`
}

// DoubleRow has shard and table before and after, and percentages of users.
type DoubleRow struct {
	Way          string  `json:"way"`
	From         [2]int  `json:"from"`
	To           [2]int  `json:"to"`
	TableChanged float64 `json:"table_changed"`
	ShardChanged float64 `json:"shard_changed"`
}

// publishedHash is the one that the published example follows.
const publishedHash = 1986

func doubling(_ context.Context, p *population, r *Result) error {
	const shards = 10
	before, after := planner.Split{Shards: shards, Tables: skewTables}, planner.Split{Shards: 2 * shards, Tables: skewTables}
	out := &Doubling{Hash: publishedHash, Before: size(before), After: size(after)}
	for _, w := range []struct {
		name string
		way  planner.Way
	}{{"wrong", planner.Mixed}, {"two-step", planner.TwoStep}} {
		row := DoubleRow{Way: w.name}
		row.From[0], row.From[1] = before.At(w.way, out.Hash)
		row.To[0], row.To[1] = after.At(w.way, out.Hash)
		var table, shard float64
		for _, h := range p.hashes() {
			s1, t1 := before.At(w.way, h)
			s2, t2 := after.At(w.way, h)
			if t1 != t2 {
				table++
			}
			if s1 != s2 {
				shard++
			}
		}
		row.TableChanged, row.ShardChanged = percent(table, float64(p.Users), 2), percent(shard, float64(p.Users), 2)
		out.Rows = append(out.Rows, row)
	}
	r.Doubling = out
	return nil
}

func size(s planner.Split) string { return fmt.Sprintf("%dx%d", s.Shards, s.Tables) }
