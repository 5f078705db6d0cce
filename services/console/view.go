package console

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// Fig is a value as a page shows it, with what it's worth.
type Fig struct{ Text, State string }

// Head says what a panel's source is worth.
type Head struct{ State, Text, Err string }

// Has says that there is a value, however old.
func (h Head) Has() bool { return h.State == Known || h.State == Old }

// viewer makes views of one snapshot, for one language.
type viewer struct {
	s    *Snapshot
	l    *Lang
	now  time.Time
	each time.Duration
}

func head[T any](v viewer, r Reading[T], each time.Duration) Head {
	h := Head{State: r.State(v.now, each), Err: r.Err}
	h.Text = v.l.T("state." + h.State)
	if r.Has() {
		h.Text += ", " + v.l.T("ago", v.l.Span(r.Age(v.now)))
	}
	return h
}

func (v viewer) unknown() Fig { return Fig{v.l.T("state." + Unknown), Unknown} }

// fig is a part of a reading; ok false: the source doesn't know it.
func fig[T any](v viewer, r Reading[T], part func(T) (string, bool)) Fig {
	state := r.State(v.now, v.each)
	if !r.Has() {
		return Fig{v.l.T("state." + state), state}
	}
	text, ok := part(r.Value)
	if !ok {
		return v.unknown()
	}
	if state == Old {
		text += " (" + v.l.T("ago", v.l.Span(r.Age(v.now))) + ")"
	}
	return Fig{text, state}
}

// CellRow is a cell of the overview's table.
type CellRow struct {
	Name                                       string
	Head                                       Head
	Slots, Lease, Route, Traffic, Errors, P99  Fig
	Closed, Uncovered, Messages, Stuck, Parked Fig
	Cut                                        bool     // unplugged on purpose
	Notes                                      []string // stragglers, a database that can't be asked
}

func percent(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }

func (v viewer) database(r Reading[agentapi.Status], part func(*agentapi.Database) string) Fig {
	return fig(v, r, func(s agentapi.Status) (string, bool) {
		if s.Database == nil {
			return "", false
		}
		return part(s.Database), true
	})
}

func (v viewer) rate(cell string, part func(Rates) *float64, text func(float64) string) Fig {
	return fig(v, v.s.Gateways[cell], func(r Rates) (string, bool) {
		if f := part(r); f != nil {
			return text(*f), true
		}
		return "", false
	})
}

// cut says that a zone was unplugged on purpose.
func cut(s agentapi.Status) bool {
	f := s.Faults[everyone]
	return f.CutIn || f.CutOut
}

func (v viewer) cells() []CellRow {
	var out []CellRow
	for _, cell := range v.s.Cells {
		r := v.s.Zones[cell]
		row := CellRow{Name: cell, Head: head(v, r, v.each), Cut: r.Has() && cut(r.Value), Notes: v.notes(r)}
		row.Slots = v.database(r, func(d *agentapi.Database) string { return fmt.Sprint(d.Owned) })
		row.Lease = v.database(r, func(d *agentapi.Database) string {
			if d.LeaseLeftMS < 0 {
				return v.l.T("lease.endless")
			}
			return v.l.MS(d.LeaseLeftMS)
		})
		row.Messages = v.database(r, func(d *agentapi.Database) string { return fmt.Sprint(d.Open) })
		row.Stuck = v.database(r, func(d *agentapi.Database) string { return fmt.Sprint(d.Stuck) })
		row.Parked = v.database(r, func(d *agentapi.Database) string { return fmt.Sprint(d.Parked) })
		row.Route = fig(v, r, func(s agentapi.Status) (string, bool) { return fmt.Sprint(s.RouteVersion), true })
		row.Uncovered = fig(v, r, func(s agentapi.Status) (string, bool) {
			if s.Cover == nil {
				return "", false
			}
			return fmt.Sprintf("%d / %d", s.Cover.Uncovered, s.Cover.Slots), true
		})
		row.Closed = fig(v, r, func(s agentapi.Status) (string, bool) {
			if s.Requests == nil {
				return "", false
			}
			share, ok := s.Requests.ClosedLoop()
			return percent(share), ok
		})
		row.Traffic = v.traffic(cell)
		row.Errors = v.rate(cell, func(r Rates) *float64 { return r.Errors }, percent)
		row.P99 = v.rate(cell, func(r Rates) *float64 { return r.P99 }, func(s float64) string { return fmt.Sprintf("%.1f ms", 1000*s) })
		out = append(out, row)
	}
	return out
}

// traffic is the newest point of the history, while the agent answers.
func (v viewer) traffic(cell string) Fig {
	h := v.s.History[cell]
	if len(h) == 0 || h[len(h)-1].PerSecond == nil || v.s.Zones[cell].State(v.now, v.each) != Known {
		return v.unknown()
	}
	return Fig{fmt.Sprintf("%.1f", *h[len(h)-1].PerSecond), Known}
}

// wordEach is how often a process says which table it holds.
const wordEach = 5000

func (v viewer) notes(r Reading[agentapi.Status]) []string {
	var out []string
	if r.Value.DatabaseError != "" {
		out = append(out, v.l.T("note.database", r.Value.DatabaseError))
	}
	for _, p := range r.Value.Route {
		switch {
		case p.BehindMS != nil:
			out = append(out, v.l.T("note.behind", p.Process, p.Version, v.l.MS(*p.BehindMS)))
		case p.AgeMS > 2*wordEach:
			out = append(out, v.l.T("note.silent", p.Process, p.Version, v.l.MS(p.AgeMS)))
		}
	}
	return out
}

// LinkRow is a link between two zones: what was done to it on purpose (desired), and
// what both ends see of it.
type LinkRow struct {
	A, B    string
	State   string // up, down, unknown
	RTT     Fig
	Desired string // the fault that is set; "" = none
	Reason  string
}

func (v viewer) links() []LinkRow {
	zones := append(slices.Clone(v.s.Cells), routing.Global)
	var out []LinkRow
	for i, a := range zones {
		for _, b := range zones[i+1:] {
			row := LinkRow{A: a, B: b, State: Unknown, RTT: v.unknown()}
			for _, end := range [][2]string{{a, b}, {b, a}} {
				r := v.s.Zones[end[0]]
				if r.Has() {
					row.Desired = v.faults(row.Desired, end[0], end[1], r.Value.Faults)
				}
				l, ok := r.Value.Links[end[1]]
				if !ok || r.State(v.now, v.each) != Known {
					continue
				}
				if !l.Up {
					row.State, row.Reason, row.RTT = "down", l.Reason, v.unknown()
				} else if row.State == Unknown {
					row.State, row.RTT = "up", Fig{fmt.Sprintf("%.1f ms", l.RTTMS), Known}
				}
			}
			out = append(out, row)
		}
	}
	return out
}

func (v viewer) faults(had, zone, peer string, set map[string]agentapi.Fault) string {
	for _, to := range []string{peer, everyone} {
		f, ok := set[to]
		if !ok || f == (agentapi.Fault{}) {
			continue
		}
		text := v.l.T("fault.delay", zone, f.DelayMS)
		if f.CutIn || f.CutOut {
			text = v.l.T("fault.cut", zone)
		}
		if had != "" {
			had += ", "
		}
		had += text
	}
	return had
}

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
		out.Version.Text, out.Complete = fmt.Sprint(a.Version), a.Complete
		for _, z := range a.Zones {
			switch {
			case z.AgeMS == nil:
				out.Waiting = append(out.Waiting, v.l.T("route.silent", z.Zone))
			case !z.Done:
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
				return fig(v, r, func(agentapi.Status) (string, bool) { return text, ok })
			}
			row := StandbyRow{Owner: cell, Standby: by.Cell, Slots: part(true, fmt.Sprint(by.Slots)), InSync: part(by.AgeMS != nil, fmt.Sprint(by.InSync)), Err: by.Error}
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
			return fig(v, v.s.Search, func([]searchLag) (string, bool) {
				if f == nil || !z.Live {
					return "", false
				}
				return v.l.Span(time.Duration(*f * float64(time.Second))), true
			})
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
				Zone: cell, Kind: k.Kind, Err: k.Error,
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
	None   bool     // known, and there are none
}

// stuckAfter is when a transfer that has not ended counts as stuck.
const stuckAfter = 30_000

func (v viewer) transfers() TransfersView {
	out := TransfersView{L: v.l}
	for _, cell := range v.s.Cells {
		r := v.s.Open[cell]
		row := TransfersRow{Cell: cell, Head: head(v, r, v.each), None: r.Has() && len(r.Value) == 0}
		counts := map[string]int{}
		for _, t := range r.Value {
			counts[t.State]++
			if t.AgeMS >= stuckAfter || t.Parked != "" {
				out.Stuck = append(out.Stuck, t)
			}
		}
		for _, state := range slices.Sorted(maps.Keys(counts)) {
			row.Counts = append(row.Counts, fmt.Sprintf("%s: %d", state, counts[state]))
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

// Overview is the first page.
type Overview struct {
	Map                                   Map
	Links                                 []LinkRow
	Cells                                 []CellRow
	Route                                 RouteView
	Standbys                              []StandbyRow
	SearchHead, InvariantsHead, MarksHead Head
	Search                                []SearchRow
	IDs                                   []IDRow
	Transfers                             TransfersView
	Invariants                            []InvariantRow
	Marks                                 []MarkRow
	Charts                                []Chart
}

func (v viewer) overview(checkEach time.Duration) Overview {
	links := v.links()
	return Overview{
		Map: v.mapOf(links), Links: links, Cells: v.cells(), Route: v.route(), Standbys: v.standbys(),
		SearchHead: head(v, v.s.Search, v.each), Search: v.search(), IDs: v.ids(), Transfers: v.transfers(),
		InvariantsHead: head(v, v.s.Invariants, max(checkEach, v.each)), Invariants: v.invariants(),
		MarksHead: head(v, v.s.Marks, v.each), Marks: v.marks(), Charts: v.charts(),
	}
}

// The map's geometry.
const (
	mapWide, mapHigh = 520, 420
	mapRadius        = 160
)

// Map is the cells around the global zone, and the links between all of them.
type Map struct {
	Wide, High int
	Nodes      []Node
	Edges      []Edge
}

// Node is a zone on the map.
type Node struct {
	Name, Class string // known, old, failed, unknown; cut
	X, Y        int
}

// Edge is a link on the map.
type Edge struct {
	Class          string // up, down, unknown
	Title          string
	X1, Y1, X2, Y2 int
}

func (v viewer) mapOf(links []LinkRow) Map {
	m := Map{Wide: mapWide, High: mapHigh}
	at := map[string]Node{}
	place := func(zone string, x, y float64) {
		r := v.s.Zones[zone]
		n := Node{Name: zone, Class: r.State(v.now, v.each), X: int(math.Round(x)), Y: int(math.Round(y))}
		if r.Has() && cut(r.Value) {
			n.Class += " cut"
		}
		at[zone] = n
		m.Nodes = append(m.Nodes, n)
	}
	for i, cell := range v.s.Cells {
		turn := 2 * math.Pi * (float64(i)/float64(len(v.s.Cells)) - .125)
		place(cell, mapWide/2+mapRadius*math.Cos(turn), mapHigh/2+mapRadius*math.Sin(turn))
	}
	place(routing.Global, mapWide/2, mapHigh/2)
	for _, l := range links {
		a, b := at[l.A], at[l.B]
		m.Edges = append(m.Edges, Edge{
			Class: l.State, Title: l.A + " - " + l.B + ": " + v.l.T("link."+l.State), X1: a.X, Y1: a.Y, X2: b.X, Y2: b.Y,
		})
	}
	return m
}
