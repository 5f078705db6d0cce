package sim

import (
	"context"
	"math"
	"slices"
	"strconv"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/platform/routing/planner"
)

// OneToken is a ring with a single token per node, for both starts of FNV.
type OneToken struct {
	Keys      int       `json:"keys"`
	Published []float64 `json:"published_start"` // percent, by node
	Standard  []float64 `json:"standard_start"`
}

// Tokens is how shares even out with more tokens per node: means over salts.
type Tokens struct {
	Keys        int        `json:"keys"`
	Nodes       int        `json:"nodes"`
	Salts       int        `json:"salts"`
	Published   []TokenRow `json:"published_start"`
	Standard    []TokenRow `json:"standard_start"`
	NoFinalizer Bare       `json:"no_finalizer"`
}

// TokenRow is one number of tokens per node.
type TokenRow struct {
	VNodes    int     `json:"vnodes"`
	MaxMean   float64 `json:"max_mean"`
	CV        float64 `json:"cv"`
	Predicted float64 `json:"predicted_cv"` // 1/sqrt(v)
	Moved     float64 `json:"moved"`        // percent of keys, to one node more
}

// Bare is the same ring hashed without a finalizer, percent by node.
type Bare struct {
	VNodes    int       `json:"vnodes"`
	Salt      string    `json:"salt"`
	Keys      int       `json:"keys"`
	Published []float64 `json:"published_start"`
	Standard  []float64 `json:"standard_start"`
}

// The published runs: three nodes, growing to four, a tenth as many keys as the
// other runs have users; tokens node-<n>#0, or <salt>-<node>#<i> with salts
// t0 to t29. Their FNV starts at planner.PublishedStart and their splitmix64 is
// the bare finalizer; that reproduces every figure, the standard start doesn't.
const (
	nodes       = 3
	salts       = 30
	usersPerKey = 10
	bareTokens  = 10
)

func starts() []uint64 { return []uint64{planner.PublishedStart, planner.FNVStart} }

// keys hashes key-<i>, ascending.
func (p *population) keys(h planner.Hash, n int) []uint64 {
	first := p.first(n)
	out := p.hash(h, func(i int) string { return "key-" + strconv.FormatInt(first+int64(i), 10) }, n)
	slices.Sort(out)
	return out
}

// shares gives the percentages of ascending keys on a ring.
func shares(h planner.Hash, tokens int, cells []routing.Share, ascending []uint64) ([]float64, error) {
	o, _, err := owners(planner.Ring{Hash: h, Base: tokens}, cells, ascending)
	if err != nil {
		return nil, err
	}
	out := count(o, len(cells))
	for i := range out {
		out[i] = percent(out[i], float64(len(ascending)), 1)
	}
	return out, nil
}

func oneToken(_ context.Context, p *population, r *Result) error {
	out := &OneToken{Keys: p.Users / usersPerKey}
	for _, start := range starts() {
		h := planner.Hash{Start: start, Finish: planner.Splitmix}
		got, err := shares(h, 1, named("node-", nodes), p.keys(h, out.Keys))
		if err != nil {
			return err
		}
		if start == planner.FNVStart {
			out.Standard = got
		} else {
			out.Published = got
		}
	}
	r.OneToken = out
	return nil
}

func tokens(ctx context.Context, p *population, r *Result) error {
	n := p.Users / usersPerKey
	out := &Tokens{Keys: n, Nodes: nodes, Salts: salts, NoFinalizer: Bare{VNodes: bareTokens, Salt: p.salt(0), Keys: n / usersPerKey}}
	for _, start := range starts() {
		h := planner.Hash{Start: start, Finish: planner.Splitmix}
		keys := p.keys(h, n)
		var rows []TokenRow
		for _, v := range []int{1, 10, 100, 1000} {
			if err := ctx.Err(); err != nil {
				return err
			}
			row, err := p.tokenRow(planner.Ring{Hash: h, Base: v}, keys)
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		bare := planner.FNV()
		bare.Start = start
		got, err := shares(bare, bareTokens, named(p.salt(0)+"-", nodes), p.keys(bare, out.NoFinalizer.Keys))
		if err != nil {
			return err
		}
		for i := range got {
			got[i] = round(got[i], 0)
		}
		if start == planner.FNVStart {
			out.Standard, out.NoFinalizer.Standard = rows, got
		} else {
			out.Published, out.NoFinalizer.Published = rows, got
		}
	}
	r.Tokens = out
	return nil
}

func (p *population) salt(i int) string { return "t" + strconv.FormatInt(p.first(salts)+int64(i), 10) }

// tokenRow gives the means over all salts.
func (p *population) tokenRow(ring planner.Ring, keys []uint64) (TokenRow, error) {
	var maxMean, cv, movedKeys float64
	for i := range salts {
		prefix := p.salt(i) + "-"
		before, _, err := owners(ring, named(prefix, nodes), keys)
		if err != nil {
			return TokenRow{}, err
		}
		after, _, err := owners(ring, named(prefix, nodes+1), keys)
		if err != nil {
			return TokenRow{}, err
		}
		_, c, m := planner.Evenness(count(before, nodes))
		maxMean, cv, movedKeys = maxMean+m, cv+c, movedKeys+float64(moved(before, after))
	}
	return TokenRow{
		VNodes: ring.Base, MaxMean: round(maxMean/salts, 2), CV: round(cv/salts, 2),
		Predicted: round(1/math.Sqrt(float64(ring.Base)), 2), Moved: percent(movedKeys, float64(salts*len(keys)), 1),
	}, nil
}
