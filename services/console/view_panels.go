package console

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/agent/agentapi"
)

// RouteView is the route table: what is wanted, and who holds it.
type RouteView struct {
	Head     Head
	Version  Fig
	Complete bool
	Waiting  []string // zones that don't hold it
	Newest   []string // the last tables, with their reasons
}

func (v viewer) route() RouteView {
	out := RouteView{Head: head(v, v.s.Acks, v.each)}
	out.Version = Fig{out.Head.Text, out.Head.State}
	if v.s.Acks.Has() {
		a := v.s.Acks.Value
		out.Version.Text, out.Complete = fmt.Sprint(a.Version), a.Complete && out.Head.State == Known
		for _, z := range a.Zones {
			switch {
			case z.AgeMS == nil:
				out.Waiting = append(out.Waiting, v.l.T("route.silent", z.Zone))
			case !z.Done || v.silent(*z.AgeMS): // what a silent zone holds now isn't known
				out.Complete = false
				out.Waiting = append(out.Waiting, v.l.T("route.holds", z.Zone, z.Version, v.l.MS(*z.AgeMS)))
			}
		}
	}
	for i, x := range v.s.Versions.Value.Versions {
		if i == 5 {
			break
		}
		out.Newest = append(out.Newest, fmt.Sprintf("%d: %s (%s)", x.Version, x.Reason, v.l.T("ago", v.l.MS(x.AgeMS))))
	}
	return out
}

// silent says that who speaks that often as the sources are asked has missed three times.
func (v viewer) silent(ageMS int64) bool { return ageMS > 3*v.each.Milliseconds() }

// StandbyRow is what one cell keeps of another one's slots.
type StandbyRow struct {
	Owner, Standby string
	Slots, InSync  Fig
	Lag, Age       Fig
	Err            string
}

func (v viewer) standbys() []StandbyRow {
	var out []StandbyRow
	for _, cell := range v.s.Cells {
		r := v.s.Zones[cell]
		if !r.Has() || r.Value.Cover == nil {
			f := fig(v, r, func(agentapi.Status) (string, bool) { return "", false })
			out = append(out, StandbyRow{Owner: cell, Standby: "?", Slots: f, InSync: f, Lag: f, Age: f, Err: r.Err})
			continue
		}
		for _, by := range r.Value.Cover.Standbys {
			part := func(ok bool, text string) Fig {
				f := fig(v, r, func(agentapi.Status) (string, bool) { return text, ok })
				if f.State == Known && (by.Error != "" || by.AgeMS != nil && v.silent(*by.AgeMS)) {
					f.State = Old // the standby's own words are; its age stands beside them
				}
				return f
			}
			row := StandbyRow{Owner: cell, Standby: by.Cell, Slots: part(true, fmt.Sprint(by.Slots)), InSync: part(by.AgeMS != nil, fmt.Sprint(by.InSync)), Err: cmp.Or(by.Error, r.Err)}
			row.Lag, row.Age = v.unknown(), v.unknown()
			if by.LagMS != nil {
				row.Lag = part(true, v.l.MS(*by.LagMS))
			}
			if by.AgeMS != nil {
				row.Age = part(true, v.l.MS(*by.AgeMS))
			}
			out = append(out, row)
		}
	}
	return out
}

// SearchRow is how far search is behind one zone.
type SearchRow struct {
	Zone     string
	Lag, Age Fig
}

func (v viewer) search() []SearchRow {
	var out []SearchRow
	for _, z := range v.s.Search.Value {
		seconds := func(f *float64) Fig {
			out := fig(v, v.s.Search, func([]searchLag) (string, bool) {
				if f == nil || !z.Live {
					return "", false
				}
				return v.l.Span(time.Duration(*f * float64(time.Second))), true
			})
			if out.State == Known && z.Age != nil && v.silent(int64(1000**z.Age)) {
				out.State = Old
			}
			return out
		}
		out = append(out, SearchRow{z.Zone, seconds(z.Lag), seconds(z.Age)})
	}
	return out
}

// IDRow is a zone's stock of one kind of IDs.
type IDRow struct {
	Zone, Kind           string
	Stock, Target, Years Fig
	Err                  string
}

func (v viewer) ids() []IDRow {
	var out []IDRow
	for _, cell := range v.s.Cells {
		r := v.s.IDs[cell]
		v := v
		v.each *= 3
		if !r.Has() || r.Value.Bank == nil {
			f := fig(v, r, func(id.CellFigures) (string, bool) { return "", false })
			out = append(out, IDRow{Zone: cell, Kind: "?", Stock: f, Target: f, Years: f, Err: r.Err + r.Value.BankError})
			continue
		}
		for _, k := range r.Value.Bank.Kinds {
			part := func(ok bool, text func() string) Fig {
				return fig(v, r, func(id.CellFigures) (string, bool) {
					if !ok {
						return "", false
					}
					return text(), true
				})
			}
			out = append(out, IDRow{
				Zone: cell, Kind: k.Kind, Err: cmp.Or(k.Error, r.Err),
				Stock:  part(true, func() string { return fmt.Sprint(k.Stock) }),
				Target: part(k.Target != nil, func() string { return fmt.Sprint(*k.Target) }),
				Years:  part(k.YearsLeft != nil, func() string { return fmt.Sprintf("%.0f", *k.YearsLeft) }),
			})
		}
	}
	return out
}

// TransfersView is the transfers that have not ended, by cell and state, and those
// that wait for a person.
type TransfersView struct {
	L      *Lang
	Cells  []TransfersRow
	Stuck  []agentapi.StuckTransfer // oldest first
	Parked []agentapi.ParkedTransfer
}

// TransfersRow is one cell's.
type TransfersRow struct {
	Cell   string
	Head   Head
	Counts []string // FROZEN: 3
	None   bool     // known now, and there are none
	Parked Fig      // messages that wait for a person
}

// counted is a number of what is in a list of operators, which may have been cut off.
func counted(n, list int) string {
	if list >= agentapi.Listed {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}

// stuckAfter is when a transfer that has not ended counts as stuck.
const stuckAfter = 30_000

func (v viewer) transfers() TransfersView {
	out := TransfersView{L: v.l}
	for _, cell := range v.s.Cells {
		r := v.s.Open[cell]
		row := TransfersRow{Cell: cell, Head: head(v, r, v.each)}
		row.None = row.Head.State == Known && len(r.Value) == 0
		row.Parked = fig(v, v.s.Parked[cell], func(all []agentapi.ParkedTransfer) (string, bool) { return counted(len(all), len(all)), true })
		counts := map[string]int{}
		for _, t := range r.Value {
			counts[t.State]++
			if t.AgeMS >= stuckAfter || t.Parked != "" {
				out.Stuck = append(out.Stuck, t)
			}
		}
		for _, state := range slices.Sorted(maps.Keys(counts)) {
			row.Counts = append(row.Counts, state+": "+counted(counts[state], len(r.Value)))
		}
		out.Cells = append(out.Cells, row)
		out.Parked = append(out.Parked, v.s.Parked[cell].Value...)
	}
	slices.SortStableFunc(out.Stuck, func(a, b agentapi.StuckTransfer) int { return int(b.AgeMS - a.AgeMS) })
	slices.SortStableFunc(out.Parked, func(a, b agentapi.ParkedTransfer) int { return int(b.AgeMS - a.AgeMS) })
	return out
}

// InvariantRow is one invariant of the strip.
type InvariantRow struct {
	agentapi.Result
	State string // ok, violated, unknown
}

func (v viewer) invariants() []InvariantRow {
	var out []InvariantRow
	for _, r := range v.s.Invariants.Value {
		row := InvariantRow{r, Unknown}
		if r.OK != nil {
			row.State = map[bool]string{true: "ok", false: "violated"}[*r.OK]
		}
		out = append(out, row)
	}
	return out
}

// MarkRow is the slots of a cell that nobody may be promoted for.
type MarkRow struct {
	Cell  string
	Slots int
}

func (v viewer) marks() []MarkRow {
	n := map[string]int{}
	for _, m := range v.s.Marks.Value.Marks {
		if !m.Over {
			n[m.Cell]++
		}
	}
	var out []MarkRow
	for _, cell := range slices.Sorted(maps.Keys(n)) {
		out = append(out, MarkRow{cell, n[cell]})
	}
	return out
}
