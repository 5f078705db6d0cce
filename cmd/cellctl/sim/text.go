package sim

import (
	"fmt"
	"io"
	"strings"
)

// Text prints what was computed, a block per key.
func (r *Result) Text(w io.Writer) {
	fmt.Fprintf(w, "%d users, %d cells, seed %d; figures in %% unless said\n", r.Config.Users, r.Config.Cells, r.Config.Seed)
	r.VNodes.text(w, "vnodes", "FNV-1a + murmur3 finalizer")
	r.WeakHash.text(w, "weak_hash", "bare FNV-1a")
	for _, t := range []interface{ text(io.Writer) }{r.Cross, r.Path, r.OneToken, r.Tokens, r.Buckets, r.Skew, r.Doubling, r.Blast, r.Fanout} {
		t.text(w)
	}
	if r.Planners == nil {
		return
	}
	fmt.Fprintln(w, "\n[planners] over slots")
	for _, p := range r.Planners {
		if p.Refused != "" {
			fmt.Fprintf(w, "  %-14s refused: %s\n", p.Name, p.Refused)
			continue
		}
		fmt.Fprintf(w, "  %-14s %d -> %d: %5.2f moved, largest / smallest %.2f / %.2f, skew %s, CV %.3f, max/mean %.3f", p.Name, p.From, p.To, p.Moved, p.Largest, p.Smallest, orNone(p.Skew), p.CV, p.MaxMean)
		if p.Gap > 0 {
			fmt.Fprintf(w, ", gap %.1f", p.Gap)
		}
		if p.EmptyTables > 0 {
			fmt.Fprintf(w, ", %d tables empty", p.EmptyTables)
		}
		if len(p.Flags) > 0 {
			fmt.Fprintf(w, "  FLAG %s", strings.Join(p.Flags, ", "))
		}
		fmt.Fprintln(w)
	}
}

func orNone(x *float64) string {
	if x == nil {
		return "- (a cell or table has nothing)"
	}
	return fmt.Sprintf("%.2f", *x)
}

func (m *Movement) text(w io.Writer, key, hash string) {
	if m == nil {
		return
	}
	fmt.Fprintf(w, "\n[%s] %d -> %d cells, %s\n", key, m.From, m.To, hash)
	fmt.Fprintf(w, "  modulo      %.2f moved\n", m.Modulo)
	for _, r := range m.Rows {
		fmt.Fprintf(w, "  vnodes %-4d %.2f moved, largest / smallest %.2f / %.2f (%.2g times)", r.VNodes, r.Moved, r.Largest, r.Smallest, r.Ratio)
		if r.Clustered {
			fmt.Fprint(w, "  FLAG clustered ring")
		}
		fmt.Fprintln(w)
	}
}

func (c *Cross) text(w io.Writer) {
	if c == nil {
		return
	}
	fmt.Fprintf(w, "\n[cross] %d draws of a user with %d random peers, ring of %d tokens\n", c.Draws, c.Peers, c.VNodes)
	for _, r := range c.Rows {
		fmt.Fprintf(w, "  %2d cells    %.2f of calls cross\n", r.Cells, r.Cross)
	}
}

func (p *Path) text(w io.Writer) {
	if p == nil {
		return
	}
	fmt.Fprintf(w, "\n[path] moved step by step; slots by %s\n", p.Slots)
	for _, s := range p.Steps {
		fmt.Fprintf(w, "  %d -> %d: modulo %.2f, ring %.2f, balanced %.2f of slots (bound %.2f, skew %.3f), users %.2f +- %.2f, largest / smallest %.2f / %.2f\n",
			s.From, s.To, s.Modulo, s.Ring, s.Balanced, s.Bound, s.SlotSkew, s.UsersMoved, s.SamplingError, s.UsersLargest, s.UsersSmallest)
	}
	fmt.Fprintf(w, "  sum: modulo %.1f, ring %.1f (%.1f times less)\n", p.ModuloSum, p.RingSum, p.TimesLess)
}

func (t *OneToken) text(w io.Writer) {
	if t == nil {
		return
	}
	fmt.Fprintf(w, "\n[one_token] %d keys on 3 nodes, FNV-1a + splitmix64\n", t.Keys)
	fmt.Fprintf(w, "  published start %s; standard start %s\n", slashed(t.Published, 1), slashed(t.Standard, 1))
}

func slashed(xs []float64, digits int) string {
	var out []string
	for _, x := range xs {
		out = append(out, fmt.Sprintf("%.*f", digits, x))
	}
	return strings.Join(out, " / ")
}

func (t *Tokens) text(w io.Writer) {
	if t == nil {
		return
	}
	fmt.Fprintf(w, "\n[tokens] %d keys, %d nodes, means of %d salts, FNV-1a + splitmix64\n", t.Keys, t.Nodes, t.Salts)
	for i, r := range t.Published {
		s := t.Standard[i]
		fmt.Fprintf(w, "  vnodes %-4d max/mean %.2f, CV %.2f (1/sqrt(v) %.2f), %d -> %d moved %.1f; standard start %.2f, %.2f, %.1f\n",
			r.VNodes, r.MaxMean, r.CV, r.Predicted, t.Nodes, t.Nodes+1, r.Moved, s.MaxMean, s.CV, s.Moved)
	}
	b := t.NoFinalizer
	fmt.Fprintf(w, "  no finalizer, %d vnodes, salt %s, %d keys: %s; standard start %s\n", b.VNodes, b.Salt, b.Keys, slashed(b.Published, 0), slashed(b.Standard, 0))
}

func (b *Buckets) text(w io.Writer) {
	if b == nil {
		return
	}
	fmt.Fprintln(w, "\n[buckets] MD5 mod 100, users")
	for _, r := range b.Rows {
		fmt.Fprintf(w, "  %02d-%02d       %d\n", r.From, r.To, r.Users)
	}
	for _, g := range b.Golden {
		fmt.Fprintf(w, "  %-11s bucket %02d\n", g.Key, g.Bucket)
	}
}

func (s *Skew) text(w io.Writer) {
	if s == nil {
		return
	}
	fmt.Fprintf(w, "\n[skew] (max-min)/min over shard x table, %d ids, seeds %v\n", s.IDs, s.Seeds)
	if !s.Full {
		fmt.Fprintf(w, "  fewer ids than the published %d, so more of it is chance; --full takes as many\n", s.AllIDs)
	}
	for _, r := range s.Shapes {
		fmt.Fprintf(w, "  %2dx%d      %s (an even hash: about %.2f)\n", r.Shards, r.Tables, orNone(r.Skew), r.Chance)
	}
	for _, c := range s.Common {
		fmt.Fprintf(w, "  %2dx%d      one hash for both: %d of %d tables empty\n", c.Shards, c.Tables, c.Empty, c.Pairs)
	}
}

func (d *Doubling) text(w io.Writer) {
	if d == nil {
		return
	}
	fmt.Fprintf(w, "\n[doubling] hash %d, %s -> %s\n", d.Hash, d.Before, d.After)
	for _, r := range d.Rows {
		fmt.Fprintf(w, "  %-11s (%d,%d) -> (%d,%d); of all users %.2f change table, %.2f change shard\n", r.Way, r.From[0], r.From[1], r.To[0], r.To[1], r.TableChanged, r.ShardChanged)
	}
}

func (b *Blast) text(w io.Writer) {
	if b == nil {
		return
	}
	fmt.Fprintf(w, "\n[blast] one cell lost; affinity: %.0f %% of calls within %d groups\n", b.Affinity, b.Groups)
	for _, r := range b.Rows {
		fmt.Fprintf(w, "  %2d cells    users hit %.2f, spare %.1f, survivor %.0f, cross %.2f (all pairs %.2f, slots %.2f); with affinity: users spread %.2f, groups together %.2f\n",
			r.Cells, r.UsersHit, r.Spare, r.SurvivorLoad, r.Cross, r.CrossAll, r.CrossSlots, r.CrossRandom, r.CrossGrouped)
	}
	fmt.Fprintln(w, "  "+b.Note)
}

func (f *Fanout) text(w io.Writer) {
	if f == nil {
		return
	}
	fmt.Fprintf(w, "\n[fanout] %d pages of %d users\n", f.Pages, f.PageUsers)
	for _, r := range f.Rows {
		fmt.Fprintf(w, "  %2d cells    in one cell %.2f (expected %.3g), %.2f cells touched;", r.Cells, r.OneCell, r.Expected, r.Touched)
		for _, g := range r.Grouped {
			fmt.Fprintf(w, " %d %% of the own group: %.2f, %.2f cells;", g.Affinity, g.OneCell, g.Touched)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "  tail, %.0f %% of calls slow:", f.Slow)
	for _, t := range f.Tail {
		fmt.Fprintf(w, " %d calls %.1f;", t.Calls, t.Slow)
	}
	fmt.Fprintln(w)
}
