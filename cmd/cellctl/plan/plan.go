package plan

import (
	"fmt"
	"math"
	"time"
)

const (
	workday = 8 * time.Hour
	gain    = 0.01 // a further cell that spares fewer of the users than this at an outage isn't worth its keep
	few     = 4    // the least that is advised: with 3 each survivor takes half as much again
	many    = 8
)

// Verdicts, from the least to the most.
const (
	NoCells = "no cells yet"
	Few     = "4"
	Many    = "8 and more"
)

// Report is the plan. Shares and loads are in percent.
type Report struct {
	Cells     Cells      `json:"cells"`
	Load      Load       `json:"load"`
	Blast     Blast      `json:"blast"`
	Cross     Cross      `json:"cross"`
	RoundTrip RoundTrips `json:"round_trips"`
	Add       Add        `json:"add_cell"`
	Verdict   Verdict    `json:"verdict"`
	Warnings  []string   `json:"warnings"`
}

// Cells is how many, and where.
type Cells struct {
	Capacity        int      `json:"capacity"`         // ceil(qps / cell-qps)
	Lower           int      `json:"lower"`            // that, or what the largest blast radius asks for
	UpperBlast      int      `json:"upper_blast"`      // from here on one more cell spares fewer than 1 % of the users
	UpperOperations int      `json:"upper_operations"` // rolled out one after the other in a working day
	Upper           int      `json:"upper"`            // the lower of both
	NPlusOne        int      `json:"n_plus_one"`       // capacity with one lost
	Serving         int      `json:"serving"`          // what the rest of the plan is about
	Gray            int      `json:"gray"`             // own people and test users, first in every rollout
	Total           int      `json:"total"`
	Layout          []Region `json:"layout"`
	// RegionLoss is the load of the cells left when the largest region is lost,
	// null when none are; RegionSafe is how many cells would carry it, null
	// when there is one region.
	RegionLoss *float64 `json:"region_lost_load_percent"`
	RegionSafe *int     `json:"region_safe_cells"`
}

// Region is what stands in one region.
type Region struct {
	Name  string `json:"name"`
	Cells int    `json:"cells"`
	Gray  int    `json:"gray"`
}

// Load is that of each cell, of what it carries.
type Load struct {
	Usual   float64 `json:"usual_percent"`
	OneLost float64 `json:"one_lost_percent"`
	Spare   float64 `json:"spare_percent"` // of its usual load, that each survivor must have free: 1/(n-1)
}

// Blast is what one lost cell costs.
type Blast struct {
	Share          float64 `json:"users_share_percent"`
	Users          int64   `json:"users"`
	UserMinutes    float64 `json:"user_minutes"`          // users x recovery
	OneUserMinutes float64 `json:"one_cell_user_minutes"` // the same without cells
}

// Cross is how much needs another cell.
type Cross struct {
	Pair       float64   `json:"pair_percent"` // a user and one peer; measured: a request, whatever it was
	Any        float64   `json:"any_percent"`  // of so many peers (requests) one at least
	ClosedLoop float64   `json:"closed_loop_percent"`
	Source     string    `json:"source"` // random or measured
	Measured   *Measured `json:"measured"`
}

// RoundTrips is what a request waits for other cells in the mean, if it waits:
// a message instead costs no wait.
type RoundTrips struct {
	OnePeerMS  float64 `json:"one_peer_ms"`
	ParallelMS float64 `json:"all_peers_at_once_ms"`
	SerialMS   float64 `json:"all_peers_in_turn_ms"`
	PerSecond  float64 `json:"crossings_per_second"` // of all cells, one peer a request
}

// Add is how long it takes to give a new cell its data.
type Add struct {
	Hours        float64 `json:"hours"`         // --data is what it takes over
	DecimalHours float64 `json:"decimal_hours"` // the same with a MB of 10^6 bytes
	OfTotalHours float64 `json:"hours_if_data_is_of_all_cells"`
	MovedShare   float64 `json:"moved_percent"` // of all users: 1/(n+1)
}

// Verdict is what to do.
type Verdict struct {
	Verdict string `json:"verdict"`
	Cells   int    `json:"cells"` // 1 = no cells
	Reason  string `json:"reason"`
}

// Make plans. Call Check first.
func Make(in Input) Report {
	r := Report{Cells: in.cells(), Warnings: []string{}}
	n := float64(r.Cells.Serving)
	r.Load = Load{
		Usual: percent(in.QPS / n / in.CellQPS), OneLost: percent(in.QPS / (n - 1) / in.CellQPS), Spare: percent(1 / (n - 1)),
	}
	r.Blast = Blast{
		Share: percent(1 / n), Users: int64(math.Ceil(float64(in.Users) / n)),
		UserMinutes: float64(in.Users) / n * in.Recovery.Minutes(), OneUserMinutes: float64(in.Users) * in.Recovery.Minutes(),
	}
	pair := in.pair(n)
	elsewhere := 1 - math.Pow(1-pair, float64(in.Peers))
	r.Cross = Cross{Pair: percent(pair), Any: percent(elsewhere), ClosedLoop: percent(1 - pair), Source: "random", Measured: in.Measured}
	if in.Measured != nil {
		r.Cross.Source = "measured"
	}
	rtt := in.RTT.Seconds() * 1e3
	r.RoundTrip = RoundTrips{OnePeerMS: pair * rtt, ParallelMS: elsewhere * rtt, SerialMS: pair * rtt * float64(in.Peers), PerSecond: pair * in.QPS}
	hours := float64(in.Data) / (float64(in.Link) * in.Throttle) / 3600
	r.Add = Add{Hours: hours, DecimalHours: hours * mebibyte / 1e6, OfTotalHours: hours / (n + 1), MovedShare: percent(1 / (n + 1))}
	r.Verdict = in.verdict(r)
	r.warn(in)
	return r
}

func percent(share float64) float64 { return 100 * share }

// cells counts; without --cells it serves what the verdict says, and where that
// is none, the figures are those of the fewest cells that are advised.
func (in Input) cells() Cells {
	c := Cells{Capacity: ceil(in.QPS / in.CellQPS), Gray: 1, UpperBlast: 1, UpperOperations: int(workday / in.Rollout)}
	spread := ceil(1 / in.Blast)
	c.Lower = max(c.Capacity, spread)
	c.NPlusOne = max(c.Capacity+1, spread)
	for 1/float64(c.UpperBlast*(c.UpperBlast+1)) >= gain {
		c.UpperBlast++
	}
	c.Upper = min(c.UpperBlast, c.UpperOperations)
	switch {
	case in.Cells > 0:
		c.Serving = in.Cells
	case c.NPlusOne <= few:
		c.Serving = few
	default:
		c.Serving = max(many, c.NPlusOne)
	}
	c.Total = c.Serving + c.Gray
	c.layOut(in)
	return c
}

// ceil forgives what floating point adds to 1/0.1 and stops where Check refuses anyway.
func ceil(f float64) int { return int(math.Ceil(min(f*(1-1e-12), 1e6))) }

// layOut spreads evenly; the gray cell is where the fewest are.
func (c *Cells) layOut(in Input) {
	regions := min(in.Regions, c.Serving)
	for k := range regions {
		r := Region{Name: fmt.Sprintf("r%d", k+1), Cells: c.Serving / regions}
		if k < c.Serving%regions {
			r.Cells++
		}
		c.Layout = append(c.Layout, r)
	}
	c.Layout[regions-1].Gray = 1
	if left := c.Serving - c.Layout[0].Cells; left > 0 {
		load := percent(in.QPS / float64(left) / in.CellQPS)
		c.RegionLoss = &load
	}
	if in.Regions > 1 {
		// n - ceil(n/R) cells are left of n.
		n := in.Regions
		for n-(n+in.Regions-1)/in.Regions < c.Capacity {
			n++
		}
		c.RegionSafe = &n
	}
}

// pair is the chance that a user's peer is in another of n cells.
func (in Input) pair(n float64) float64 {
	random := 1 - 1/n
	if in.Measured == nil {
		return random
	}
	m := float64(in.Measured.Cells)
	return min(1, (1-in.Measured.ClosedLoop())*random/(1-1/m))
}

func (in Input) verdict(r Report) Verdict {
	c := r.Cells
	cost := fmt.Sprintf("%.1f %% of what touches another user would leave its cell", r.Cross.Pair)
	switch spread := ceil(1 / in.Blast); {
	case c.Capacity == 1 && spread == 1:
		return Verdict{NoCells, 1, fmt.Sprintf("one cell carries %.0f requests a second at %.0f %% of what it can; with %d cells %s. "+
			"A standby and a tested restore do more; come back above %.0f requests a second, or with a --blast", in.QPS, percent(in.QPS/in.CellQPS), c.Serving, cost, in.CellQPS)}
	case c.NPlusOne <= few:
		return Verdict{Few, few, fmt.Sprintf("%s, so %d with one to lose; with %d each survivor needs %.1f %% spare (2 cells: 100 %%, 3: 50 %%) and a lost cell hits %.1f %% of the users",
			why(in, c, spread), c.NPlusOne, few, percent(1.0/(few-1)), percent(1.0/few))}
	default:
		n := max(many, c.NPlusOne)
		return Verdict{Many, n, fmt.Sprintf("%s, so %d with one to lose; with %d each survivor needs %.1f %% spare and a lost cell hits %.1f %% of the users",
			why(in, c, spread), c.NPlusOne, n, percent(1/float64(n-1)), percent(1/float64(n)))}
	}
}

func why(in Input, c Cells, spread int) string {
	if spread > c.Capacity {
		return fmt.Sprintf("at most %.1f %% of the users hit at once take %d cells", percent(in.Blast), spread)
	}
	return fmt.Sprintf("%.0f requests a second take %d cells of %.0f", in.QPS, c.Capacity, in.CellQPS)
}

// warn says what the plan does not hold.
func (r *Report) warn(in Input) {
	say := func(format string, args ...any) { r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...)) }
	c := r.Cells
	if r.Load.OneLost > 100 {
		say("%d cells don't carry the load with one lost (%.0f %%): %d would", c.Serving, r.Load.OneLost, c.Capacity+1)
	}
	if r.Blast.Share > percent(in.Blast)*(1+1e-9) {
		say("a lost cell hits %.1f %% of the users, more than the %.1f %% that may be", r.Blast.Share, percent(in.Blast))
	}
	if c.Serving > c.UpperOperations {
		say("%d cells can't be rolled out one after the other in %s: at most %d of %s; let --rollout be shorter, or cells larger", c.Serving, workday, c.UpperOperations, in.Rollout)
	}
	if c.Serving > c.UpperBlast {
		say("above %d cells one more spares fewer than %.0f %% of the users: larger cells (--cell-qps) are better than more", c.UpperBlast, percent(gain))
	}
	switch {
	case c.RegionSafe == nil:
		say("with one region a lost region loses all")
	case c.RegionLoss == nil || *c.RegionLoss > 100:
		say("a lost region of %d isn't carried by the others: %d cells would", c.Layout[0].Cells, *c.RegionSafe)
	}
}
