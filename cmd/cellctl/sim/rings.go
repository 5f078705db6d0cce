package sim

import (
	"context"
	"math"
	"slices"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/platform/routing/planner"
)

// Movement is a ring that grows by one cell, for several numbers of tokens.
type Movement struct {
	From   int           `json:"from"`
	To     int           `json:"to"`
	Users  int           `json:"users"`
	Modulo float64       `json:"modulo_moved"`
	Rows   []MovementRow `json:"rows"`
}

// MovementRow has percentages of the users; largest and smallest before the
// new cell.
type MovementRow struct {
	VNodes    int     `json:"vnodes"`
	Moved     float64 `json:"moved"`
	Largest   float64 `json:"largest"`
	Smallest  float64 `json:"smallest"`
	Ratio     float64 `json:"ratio"`
	Clustered bool    `json:"clustered"` // flagged as a ring whose tokens sit together
}

// The published run has tokens unit<C>#<V>, both from 0.
const unit = "unit"

func vnodes(_ context.Context, p *population, r *Result) (err error) {
	r.VNodes, err = p.movement(planner.FNVMurmur(), p.sorted())
	return err
}

func weakHash(_ context.Context, p *population, r *Result) (err error) {
	bare := p.hash(planner.FNV(), p.user, p.Users)
	slices.Sort(bare)
	r.WeakHash, err = p.movement(planner.FNV(), bare)
	return err
}

func (p *population) movement(h planner.Hash, ascending []uint64) (*Movement, error) {
	m := &Movement{From: p.Cells, To: p.Cells + 1, Users: p.Users, Modulo: percent(float64(p.moduloMoved(p.Cells)), float64(p.Users), 2)}
	for _, v := range []int{1, 10, 100, 500} {
		ring := planner.Ring{Hash: h, Base: v}
		before, circle, err := owners(ring, named(unit, m.From), ascending)
		if err != nil {
			return nil, err
		}
		after, _, err := owners(ring, named(unit, m.To), ascending)
		if err != nil {
			return nil, err
		}
		n := count(before, m.From)
		total := float64(p.Users)
		m.Rows = append(m.Rows, MovementRow{
			VNodes:  v,
			Moved:   percent(float64(moved(before, after)), total, 2),
			Largest: percent(slices.Max(n), total, 2), Smallest: percent(slices.Min(n), total, 2),
			Ratio:     round(slices.Max(n)/max(slices.Min(n), 1), 1),
			Clustered: slices.ContainsFunc(circle.Gaps(m.From), func(gap float64) bool { return planner.Clustered(gap, v) }),
		})
	}
	return m, nil
}

// owners gives the cell of each of ascending hashes.
func owners(ring planner.Ring, cells []routing.Share, ascending []uint64) ([]int32, *planner.Circle, error) {
	c, err := ring.Circle(cells)
	if err != nil {
		return nil, nil, err
	}
	out := make([]int32, len(ascending))
	c.Sweep(ascending, out)
	return out, c, nil
}

// moduloMoved counts users whose number mod n changes with n + 1.
func (p *population) moduloMoved(n int) int {
	out, first := 0, p.first(p.Users)
	for i := first; i < first+int64(p.Users); i++ {
		if i%int64(n) != i%int64(n+1) {
			out++
		}
	}
	return out
}

// Cross is how much of the traffic between random users crosses cells.
type Cross struct {
	VNodes int        `json:"vnodes"`
	Draws  int        `json:"draws"`
	Peers  int        `json:"peers"`
	Rows   []CrossRow `json:"rows"`
}

// CrossRow is a percentage of the pairs of user and peer.
type CrossRow struct {
	Cells int     `json:"cells"`
	Cross float64 `json:"cross"`
}

// The published run draws 200,000 users of a million, with three peers each,
// from math/rand, anew for each number of cells, on a ring of 100 tokens.
const (
	usersPerDraw = 5
	peers        = 3
	ringTokens   = 100
)

func cross(_ context.Context, p *population, r *Result) error {
	out := &Cross{VNodes: ringTokens, Draws: p.Users / usersPerDraw, Peers: peers}
	for _, n := range []int{p.Cells, 2 * p.Cells, 4 * p.Cells} {
		share, _, err := p.crossing(n)
		if err != nil {
			return err
		}
		out.Rows = append(out.Rows, CrossRow{n, round(share, 2)})
	}
	r.Cross = out
	return nil
}

// crossing gives the percentage of drawn pairs that cross cells, and of all
// pairs that there are.
func (p *population) crossing(cells int) (drawn, all float64, err error) {
	circle, err := planner.Ring{Base: ringTokens}.Circle(named(unit, cells))
	if err != nil {
		return 0, 0, err
	}
	homes, sizes := make([]int32, p.Users), make([]float64, cells)
	for i, h := range p.hashes() {
		homes[i] = int32(circle.Owner(h))
		sizes[homes[i]]++
	}
	all = 1
	for _, n := range sizes {
		all -= n / float64(p.Users) * n / float64(p.Users)
	}
	draw, draws, crossed := p.draw(), p.Users/usersPerDraw, 0
	for range draws {
		mine := homes[draw.Intn(p.Users)]
		for range peers {
			if homes[draw.Intn(p.Users)] != mine {
				crossed++
			}
		}
	}
	return float64(crossed) / float64(draws*peers) * 100, all * 100, nil
}

// Path grows step by step, four times by one cell.
type Path struct {
	Steps     []PathStep `json:"steps"`
	ModuloSum float64    `json:"modulo_sum"`
	RingSum   float64    `json:"ring_sum"`
	TimesLess float64    `json:"times_less"` // modulo's sum by the ring's
	Slots     string     `json:"slots"`
}

// PathStep has percentages. SamplingError is one standard error of UsersMoved
// as a sample of the slots' share, where users hash to slots by chance.
type PathStep struct {
	From          int     `json:"from"`
	To            int     `json:"to"`
	Modulo        float64 `json:"modulo"`
	Ring          float64 `json:"ring"`
	Bound         float64 `json:"lower_bound"` // 1/(N+1)
	Balanced      float64 `json:"balanced"`    // slots
	SlotSkew      float64 `json:"slot_skew"`
	UsersMoved    float64 `json:"users_moved"`
	SamplingError float64 `json:"sampling_error"`
	UsersLargest  float64 `json:"users_largest"`
	UsersSmallest float64 `json:"users_smallest"`
}

const pathSteps = 4

func path(_ context.Context, p *population, r *Result) error {
	out := &Path{Slots: p.Slots}
	ring := planner.Ring{Base: ringTokens}
	ringed, _, err := owners(ring, named(unit, p.Cells), p.sorted())
	if err != nil {
		return err
	}
	plan, err := planner.Balanced{}.Plan(nil, named(unit, p.Cells))
	if err != nil {
		return err
	}
	slots, total := p.slots(), float64(p.Users)
	var moduloSum, ringSum float64
	for n := p.Cells; n < p.Cells+pathSteps; n++ {
		next, _, err := owners(ring, named(unit, n+1), p.sorted())
		if err != nil {
			return err
		}
		grown, err := planner.Balanced{}.Plan(plan.Owners, named(unit, n+1))
		if err != nil {
			return err
		}
		modulo, ringMoved := float64(p.moduloMoved(n)), float64(moved(ringed, next))
		moduloSum, ringSum = moduloSum+modulo, ringSum+ringMoved
		had, usersMoved := map[string]float64{}, 0.0
		for s, users := range slots {
			had[grown.Owners[s]] += users
			if grown.Owners[s] != plan.Owners[s] {
				usersMoved += users
			}
		}
		var homes []float64
		for _, c := range named(unit, n+1) {
			homes = append(homes, had[c.Cell])
		}
		share, chance := grown.Report.MovedShare, 0.0
		if p.Slots == "hash" {
			chance = math.Sqrt(share * (1 - share) / total)
		}
		out.Steps = append(out.Steps, PathStep{
			From: n, To: n + 1,
			Modulo: percent(modulo, total, 2), Ring: percent(ringMoved, total, 2),
			Bound: percent(1, float64(n+1), 2), Balanced: round(share*100, 2), SlotSkew: round(grown.Report.Skew*100, 3),
			UsersMoved: percent(usersMoved, total, 2), SamplingError: round(100*chance, 2),
			UsersLargest: percent(slices.Max(homes), total, 2), UsersSmallest: percent(slices.Min(homes), total, 2),
		})
		ringed, plan = next, grown
	}
	out.ModuloSum, out.RingSum = percent(moduloSum, total, 1), percent(ringSum, total, 1)
	out.TimesLess = round(moduloSum/ringSum, 1)
	r.Path = out
	return nil
}

// slots gives the number of users in each slot.
func (p *population) slots() []float64 {
	out := make([]float64, routing.Slots)
	if p.Slots == "range" {
		slotOf := planner.ByRange(int64(p.Users / routing.Slots)) // the last slot has what is left over
		for i := range p.Users {
			out[slotOf(int64(i))]++
		}
		return out
	}
	slotOf := planner.ByHash("user")
	first := p.first(p.Users)
	for i := range p.Users {
		out[slotOf(first+int64(i))]++
	}
	return out
}

// WayFound is one planner, growing by a cell (doubling: to twice as many), in
// percentages of the slots.
type WayFound struct {
	Name        string   `json:"name"`
	From        int      `json:"from"`
	To          int      `json:"to"`
	Moved       float64  `json:"moved"`
	Largest     float64  `json:"largest"` // after
	Smallest    float64  `json:"smallest"`
	Skew        *float64 `json:"skew"` // null: a cell has nothing
	CV          float64  `json:"cv"`
	MaxMean     float64  `json:"max_mean"`
	Gap         float64  `json:"max_gap"` // of a ring: the worst cell's widest / mean gap
	EmptyTables int      `json:"empty_tables"`
	Flags       []string `json:"flags"`
	Refused     string   `json:"refused,omitempty"`
}

func ways(ctx context.Context, p *population, r *Result) error {
	for _, w := range planner.All() {
		if err := ctx.Err(); err != nil {
			return err
		}
		row := WayFound{Name: w.Name, From: p.Cells, To: p.Cells + 1, Flags: []string{}}
		if _, ok := w.Planner.(planner.Doubling); ok {
			row.To = 2 * p.Cells
		}
		before, err := w.Planner.Plan(nil, named(unit, row.From))
		if err == nil {
			before, err = w.Planner.Plan(before.Owners, named(unit, row.To))
		}
		if err != nil {
			row.Refused = err.Error()
		} else {
			row.fill(before.Report)
		}
		r.Planners = append(r.Planners, row)
	}
	return nil
}

func (w *WayFound) fill(r planner.Report) {
	w.Moved, w.Largest, w.Smallest = round(r.MovedShare*100, 2), round(r.MaxShare*100, 2), round(r.MinShare*100, 2)
	w.CV, w.MaxMean, w.EmptyTables = round(r.CV, 3), round(r.MaxMean, 3), r.EmptyTables
	w.Flags = append(w.Flags, r.Flags...)
	if !math.IsInf(r.Skew, 1) {
		skew := round(r.Skew*100, 2)
		w.Skew = &skew
	}
	for _, gap := range r.Gaps {
		w.Gap = max(w.Gap, round(gap, 1))
	}
}
