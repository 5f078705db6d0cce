package plan

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"strconv"
	"time"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/routing"
)

// Input is what a plan is made from; Default has a value for all of it.
type Input struct {
	QPS      float64       // at the peak, of all users together
	CellQPS  float64       // that one cell carries, measured
	Data     Bytes         // that a new cell takes over
	Link     Bytes         // per second
	Throttle float64       // the part of the link that copying may use
	Users    int64         //
	Recovery time.Duration // until the users of a lost cell are served again
	Blast    float64       // at most this share of the users may be hit at once; 1 = as it comes
	Rollout  time.Duration // of one cell, with the time it is watched
	Regions  int
	RTT      time.Duration // between two cells
	Peers    int           // other users that a request of one user touches
	Cells    int           // 0 = as the plan says
	Measured *Measured     // nil = random placement
}

// Measured is what gateways and dispatchers of a running demo have counted.
type Measured struct {
	Cells     int    `json:"cells"`
	Local     uint64 `json:"local"`
	Forwarded uint64 `json:"forwarded"`
	Messaged  uint64 `json:"messaged"`
	AgeMS     int64  `json:"age_ms"` // of the oldest count
}

// ClosedLoop is the share of requests that needed no other cell.
func (m Measured) ClosedLoop() float64 {
	return float64(m.Local) / float64(m.Local+m.Forwarded+m.Messaged)
}

// Default is a shop that has outgrown one database.
func Default() Input {
	return Input{
		QPS: 50_000, CellQPS: 20_000, Data: 20 << 40, Link: 200 * mebibyte, Throttle: 0.5, Users: 10_000_000, Recovery: 15 * time.Minute,
		Blast: 1, Rollout: 30 * time.Minute, Regions: 2, RTT: 2 * time.Millisecond, Peers: 3,
	}
}

// Flags lets a command line change the input.
func (in *Input) Flags(f *flag.FlagSet) {
	f.Float64Var(&in.QPS, "qps", in.QPS, "requests a second at the peak")
	f.Float64Var(&in.CellQPS, "cell-qps", in.CellQPS, "requests a second that one cell carries")
	amount := func(to *Bytes, parse func(string) (Bytes, error)) func(string) error {
		return func(s string) (err error) {
			*to, err = parse(s)
			return err
		}
	}
	f.Func("data", "that a new cell takes over", amount(&in.Data, ParseBytes))
	f.Func("link", "between two cells", amount(&in.Link, ParseRate))
	f.Float64Var(&in.Throttle, "throttle", in.Throttle, "part of the link that copying may use")
	f.Int64Var(&in.Users, "users", in.Users, "how many there are")
	f.DurationVar(&in.Recovery, "recovery", in.Recovery, "until users of a lost cell are served again")
	f.Float64Var(&in.Blast, "blast", in.Blast, "largest share of the users that may be hit at once")
	f.DurationVar(&in.Rollout, "rollout", in.Rollout, "of one cell, watched")
	f.IntVar(&in.Regions, "regions", in.Regions, "over which cells are laid out")
	f.DurationVar(&in.RTT, "rtt", in.RTT, "round trip between two cells")
	f.IntVar(&in.Peers, "peers", in.Peers, "other users that one request touches")
	f.Func("cells", "instead of what the plan says", func(s string) (err error) {
		if in.Cells, err = strconv.Atoi(s); err != nil {
			return errors.New("isn't a number")
		}
		if in.Cells < 2 {
			return errors.New("takes 2 or more: one cell has nobody to take over from it")
		}
		return nil
	})
}

// Check refuses what has no answer, with cellkit.Usage.
func (in Input) Check() error {
	positive := func(name string, v float64) error {
		if !(v > 0) || math.IsInf(v, 0) { // NaN isn't > 0
			return fmt.Errorf("--%s takes more than 0, not %g", name, v)
		}
		return nil
	}
	share := func(name string, v float64) error {
		if !(v > 0) || v > 1 {
			return fmt.Errorf("--%s takes more than 0 and at most 1, not %g", name, v)
		}
		return nil
	}
	for _, err := range []error{
		positive("qps", in.QPS), positive("cell-qps", in.CellQPS), positive("data", float64(in.Data)), positive("link", float64(in.Link)),
		share("throttle", in.Throttle), positive("users", float64(in.Users)), positive("recovery", in.Recovery.Seconds()), share("blast", in.Blast),
		positive("rollout", in.Rollout.Seconds()), positive("regions", float64(in.Regions)), positive("rtt", in.RTT.Seconds()), positive("peers", float64(in.Peers)),
	} {
		if err != nil {
			return cellkit.Usage{Err: err}
		}
	}
	if in.Regions > routing.MaxOrdinal {
		return cellkit.Usage{Err: fmt.Errorf("--regions takes at most %d, not %d", routing.MaxOrdinal, in.Regions)}
	}
	if in.Rollout > workday {
		return cellkit.Usage{Err: fmt.Errorf("--rollout takes at most a working day of %s, not %s", workday, in.Rollout)}
	}
	if m := in.Measured; m != nil && (m.Cells < 2 || m.Local+m.Forwarded+m.Messaged == 0) {
		return cellkit.Usage{Err: fmt.Errorf("--measured: %d cells have counted %d requests; `cellctl load` makes some",
			m.Cells, m.Local+m.Forwarded+m.Messaged)}
	}
	switch n := in.cells().Serving; {
	case n >= routing.MaxOrdinal: // and one gray
		return cellkit.Usage{Err: fmt.Errorf("this takes more cells than the %d of a route table, one of them gray", routing.MaxOrdinal)}
	case float64(n) > float64(in.Users):
		return cellkit.Usage{Err: fmt.Errorf("%d cells for %d users", n, in.Users)}
	case in.Regions > n:
		return cellkit.Usage{Err: fmt.Errorf("--regions %d is more than the %d cells", in.Regions, n)}
	}
	return nil
}
