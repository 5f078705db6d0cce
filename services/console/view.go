package console

import (
	"fmt"
	"slices"
	"time"

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
		row := CellRow{Name: cell, Head: head(v, r, v.each), Cut: r.Has() && cut(r.Value), Notes: v.notes(r, v.s.Gateways[cell].Err)}
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

func (v viewer) notes(r Reading[agentapi.Status], gateway string) []string {
	var out []string
	if gateway != "" {
		out = append(out, v.l.T("note.gateway", gateway))
	}
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
	Desired string // the fault that is set; "" = none that is known of
	Wanted  Fig    // the same for the page: without a fault it's whole only while both ends say so
	Reason  string
}

func (v viewer) links() []LinkRow {
	zones := append(slices.Clone(v.s.Cells), routing.Global)
	var out []LinkRow
	for i, a := range zones {
		for _, b := range zones[i+1:] {
			row := LinkRow{A: a, B: b, State: Unknown, RTT: v.unknown(), Wanted: Fig{v.l.T("link.whole"), Known}}
			for _, end := range [][2]string{{a, b}, {b, a}} {
				r := v.s.Zones[end[0]]
				if r.Has() {
					row.Desired = v.faults(row.Desired, end[0], end[1], r.Value.Faults)
				}
				if r.State(v.now, v.each) != Known {
					row.Wanted = v.unknown()
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
			if row.Desired != "" {
				row.Wanted.Text = row.Desired
				if row.Wanted.State != Known {
					row.Wanted.State = Old
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

// TourRow is what one cell looks like during the tour.
type TourRow struct {
	CellRow
	Up   Fig // links, of all
	Open Fig // transfers that have not ended
}

// TourView is the tour, and who is hurt now.
type TourView struct {
	Shop  string
	Cells []TourRow
}

func (v viewer) tour(shop string) TourView {
	out := TourView{Shop: shop}
	links := v.links()
	for _, c := range v.cells() {
		row := TourRow{CellRow: c, Up: v.unknown()}
		var up, known, all int
		for _, l := range links {
			if l.A != c.Name && l.B != c.Name {
				continue
			}
			all++
			if l.State != Unknown {
				known++
			}
			if l.State == "up" {
				up++
			}
		}
		if known > 0 {
			row.Up = Fig{fmt.Sprintf("%d / %d", up, all), Known}
		}
		row.Open = fig(v, v.s.Open[c.Name], func(all []agentapi.StuckTransfer) (string, bool) { return counted(len(all), len(all)), true })
		out.Cells = append(out.Cells, row)
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
