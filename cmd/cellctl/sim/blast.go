package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strconv"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/platform/routing/planner"
)

// Blast is what losing one cell costs, and what dividing costs each day.
type Blast struct {
	Note     string     `json:"note"`
	Affinity float64    `json:"affinity"` // percent of calls that go to the own group: an assumption
	Groups   int        `json:"groups"`
	Rows     []BlastRow `json:"rows"`
}

// BlastRow has percentages. Cross is the ring's as in [cross], CrossAll the same
// over all pairs of users instead of those drawn, CrossSlots that of the 16,384
// slots in exact shares, which needs no users. The last two have calls mostly
// within groups, with users spread one by one, or with each group (a city, a
// merchant) in one slot.
type BlastRow struct {
	Cells        int     `json:"cells"`
	UsersHit     float64 `json:"users_hit"`     // of the largest cell
	Spare        float64 `json:"spare"`         // that each cell keeps for the loss of one
	SurvivorLoad float64 `json:"survivor_load"` // of what it had before
	Cross        float64 `json:"cross"`
	CrossAll     float64 `json:"cross_all_pairs"`
	CrossSlots   float64 `json:"cross_slots"`
	CrossRandom  float64 `json:"cross_random"`
	CrossGrouped float64 `json:"cross_affinity"`
}

const (
	usersPerGroup = 1000
	ownGroup      = 80 // percent
)

func blast(_ context.Context, p *population, r *Result) error {
	out := &Blast{Affinity: ownGroup, Groups: p.groups(), Note: fmt.Sprintf(
		"cross: pairs drawn on the ring of [cross], so 2 cells give the published 50.0 only within the drawing's error (one sigma of it is %.2f); all pairs: the same ring, not drawn; slots: the table, exactly",
		// What is drawn for one user isn't independent, but nearly: for two equal cells it is.
		100*math.Sqrt(0.25/float64(max(1, p.Users/usersPerDraw)*peers)))}
	sizes := []int{2, 4, 8, 16}
	if !slices.Contains(sizes, p.Cells) {
		sizes = append(sizes, p.Cells)
	}
	for _, n := range sizes {
		row := BlastRow{Cells: n}
		plan, err := planner.Balanced{}.Plan(nil, named(unit, n))
		if err != nil {
			return err
		}
		hit := plan.Report.MaxShare
		// The dead cell's slots go to the survivors as a failover gives them.
		after, err := planner.Balanced{}.Plan(plan.Owners, named(unit, n)[1:])
		if err != nil {
			return err
		}
		load := 0.0
		for cell, slots := range after.Report.Slots {
			load = max(load, float64(slots)/float64(plan.Report.Slots[cell]))
		}
		row.UsersHit, row.Spare, row.SurvivorLoad = round(hit*100, 2), round((load-1)*100, 1), round(load*100, 0)
		crossed, all, err := p.crossing(n)
		if err != nil {
			return err
		}
		row.Cross, row.CrossAll = round(crossed, 2), round(all, 2)
		inside := 0.0
		for _, slots := range plan.Report.Slots {
			inside += math.Pow(float64(slots)/routing.Slots, 2)
		}
		row.CrossSlots = round(100*(1-inside), 2)
		row.CrossRandom, row.CrossGrouped = p.groupCrossing(plan.Owners)
		out.Rows = append(out.Rows, row)
	}
	r.Blast = out
	return nil
}

func (p *population) groups() int { return max(p.Users/usersPerGroup, 1) }

// groupSlot is the slot of a group's affinity; groups count from 0 by run.
func (p *population) groupSlot(group int) routing.Slot {
	return routing.HashSlot("group" + strconv.FormatInt(p.first(p.groups())+int64(group), 10))
}

// groupCrossing has users call peers, most of their own group, and counts what
// crosses cells under both placements.
func (p *population) groupCrossing(owners []string) (spread, grouped float64) {
	draw, slotOf, groups := p.draw(), planner.ByHash("user"), p.groups()
	first := p.first(p.Users)
	alone := func(user int) string { return owners[slotOf(first+int64(user))] }
	together := func(user int) string { return owners[p.groupSlot(user%groups)] }
	n, draws := 0.0, p.Users/usersPerDraw
	for range draws {
		me := draw.Intn(p.Users)
		for range peers {
			peer := p.peer(draw, me, ownGroup)
			if alone(me) != alone(peer) {
				spread++
			}
			if together(me) != together(peer) {
				grouped++
			}
			n++
		}
	}
	return percent(spread, n, 2), percent(grouped, n, 2)
}

// peer draws someone of the own group with that percentage, else anyone. A user
// is in the group number mod groups.
func (p *population) peer(draw *rand.Rand, me, own int) int {
	groups := p.groups()
	if draw.Intn(100) >= own {
		return draw.Intn(p.Users)
	}
	size := (p.Users - me%groups + groups - 1) / groups
	return me%groups + groups*draw.Intn(size)
}

// Fanout is a page that shows many users: how often one cell has all of them,
// and how often at least one of several calls is slow.
type Fanout struct {
	PageUsers int         `json:"page_users"`
	Pages     int         `json:"pages"`
	Rows      []FanoutRow `json:"rows"`
	Slow      float64     `json:"slow"` // percent of calls, an assumption
	Tail      []TailRow   `json:"tail"`
}

// FanoutRow has the share of pages that stay in one cell in percent, drawn and
// computed, and the same where users sit beside their group.
type FanoutRow struct {
	Cells    int             `json:"cells"`
	OneCell  float64         `json:"one_cell"`
	Expected float64         `json:"one_cell_expected"`
	Touched  float64         `json:"cells_touched"` // mean
	Grouped  []FanoutGrouped `json:"affinity"`
}

// FanoutGrouped is for pages of which that percentage is of the own group.
type FanoutGrouped struct {
	Affinity int     `json:"affinity"`
	OneCell  float64 `json:"one_cell"`
	Touched  float64 `json:"cells_touched"`
}

// TailRow is 1 - (1-p)^n in percent.
type TailRow struct {
	Calls int     `json:"calls"`
	Slow  float64 `json:"slow"`
}

const (
	pageUsers    = 20
	usersPerPage = 50
	slowCalls    = 1 // percent
)

func fanout(_ context.Context, p *population, r *Result) error {
	out := &Fanout{PageUsers: pageUsers, Pages: p.Users / usersPerPage, Slow: slowCalls}
	for _, n := range []int{p.Cells, 2 * p.Cells, 4 * p.Cells} {
		plan, err := planner.Balanced{}.Plan(nil, named(unit, n))
		if err != nil {
			return err
		}
		row := FanoutRow{Cells: n}
		for _, slots := range plan.Report.Slots {
			row.Expected += 100 * math.Pow(float64(slots)/routing.Slots, pageUsers)
		}
		row.Expected, _ = strconv.ParseFloat(strconv.FormatFloat(row.Expected, 'g', 3, 64), 64)
		slotOf, first := planner.ByHash("user"), p.first(p.Users)
		row.OneCell, row.Touched = p.pages(out.Pages, 0, func(user int) string { return plan.Owners[slotOf(first+int64(user))] })
		for _, own := range []int{ownGroup, 95, 100} {
			g := FanoutGrouped{Affinity: own}
			g.OneCell, g.Touched = p.pages(out.Pages, own, func(user int) string { return plan.Owners[p.groupSlot(user%p.groups())] })
			row.Grouped = append(row.Grouped, g)
		}
		out.Rows = append(out.Rows, row)
	}
	for _, n := range []int{1, 2, 4, 8, 16, 20, 100} {
		out.Tail = append(out.Tail, TailRow{n, round(100*(1-math.Pow(1-slowCalls/100.0, float64(n))), 1)})
	}
	r.Fanout = out
	return nil
}

// pages draws pages of users, own percent of each of one group, and gives the
// percentage that stays in one cell and the mean number of cells.
func (p *population) pages(n, own int, home func(user int) string) (oneCell, touched float64) {
	draw := p.draw()
	for range n {
		cells := make(map[string]bool, pageUsers)
		me := draw.Intn(p.Users)
		cells[home(me)] = true
		for range pageUsers - 1 {
			cells[home(p.peer(draw, me, own))] = true
		}
		if len(cells) == 1 {
			oneCell++
		}
		touched += float64(len(cells))
	}
	return percent(oneCell, float64(n), 2), round(touched/float64(n), 2)
}
