package id

import (
	"math"
	"time"
)

// Stat is how one kind stands in one process.
type Stat struct {
	Kind        string        `json:"kind"`
	Stock       int64         `json:"stock"`       // IDs at hand
	Rate        float64       `json:"rate"`        // IDs per second, as last measured; 0 = not yet known
	StockS      *float64      `json:"stock_s"`     // seconds that Stock lasts at Rate; nil = not known
	Given       int64         `json:"given"`       // IDs handed out of segments
	Ranges      int64         `json:"ranges"`      // taken into stock
	Banked      int64         `json:"banked"`      // IDs that came out of the cell's bank
	Fallback    int64         `json:"fallback"`    // IDs out of the fallback
	Failures    int64         `json:"failures"`    // leases that failed, those not believed included
	Waits       int64         `json:"waits"`       // calls that found nothing
	Share       *float64      `json:"share_local"` // of calls that were served at once; nil = nobody called
	BudgetUsed  *float64      `json:"budget_used"` // of idgen's, by the last lease; nil = none yet
	YearsLeft   float64       `json:"years_left"`  // of the kind's sequences, at the most there may be
	Quarantined int64         `json:"quarantined"` // grants that were not believed
	Quarantine  []Quarantined `json:"quarantine,omitempty"`
}

// Report is what one process says of its IDs.
type Report struct {
	Process  string        `json:"process"` // c1/order/3f9a12
	Kinds    []Stat        `json:"kinds"`
	Fallback *FallbackStat `json:"fallback"` // nil = it has none
}

// FallbackStat is a process's stock of fallback numbers, for all kinds.
type FallbackStat struct {
	Machine     int           `json:"machine"` // 0 = none yet
	Stock       int64         `json:"stock"`
	Failures    int64         `json:"failures"`
	Error       string        `json:"error,omitempty"` // why there is none and won't be
	Quarantined int64         `json:"quarantined"`
	Quarantine  []Quarantined `json:"quarantine,omitempty"`
}

const secondsPerYear = 365 * 24 * 3600

// YearsLeft is how long a kind's sequences last from hi on when they are used
// up as fast as they may.
func YearsLeft(hi int64, now time.Time) float64 {
	return float64(MaxSeq-max(hi, SeqAt(now))) / (PerMilli * 1000 * secondsPerYear)
}

// BudgetUsed is how far hi is ahead of time, as a part of what it may be; above
// 1 the clock is behind hi.
func BudgetUsed(hi int64, now time.Time) float64 {
	return float64(max(hi-SeqAt(now), 0)) / float64(PerMilli*Budget.Milliseconds())
}

// Stats reports each kind, in the order they were bound.
func (c *Client) Stats() []Stat {
	now := c.clock()
	out := make([]Stat, 0, len(c.sources))
	for _, s := range c.sources {
		st := Stat{
			Kind: s.kind, Stock: s.stock(), Rate: s.perSecond(), Ranges: s.ranges.Load(), Banked: s.banked.Load(),
			Fallback: s.fallbacks.Load(), Failures: s.failures.Load(), Waits: s.waits.Load(),
		}
		top := s.top.Load()
		st.Given = max(s.leased.Load()-st.Stock, 0) // a lease may have come in between
		st.Quarantined, st.Quarantine = s.quarantine.get()
		st.YearsLeft = YearsLeft(top, now)
		if top > 0 {
			used := BudgetUsed(top, now)
			st.BudgetUsed = &used
		}
		if st.Rate > 0 {
			lasts := math.Min(float64(st.Stock)/st.Rate, secondsPerYear)
			st.StockS = &lasts
		}
		if served := st.Given + st.Fallback; served+st.Waits > 0 {
			share := float64(served) / float64(served+st.Waits)
			st.Share = &share
		}
		out = append(out, st)
	}
	return out
}

// Report is all that the process can say; name is who it is.
func (c *Client) Report(name string) Report {
	r := Report{Process: name, Kinds: c.Stats()}
	f := c.fallback
	if f.ask == nil {
		return r
	}
	r.Fallback = &FallbackStat{Stock: f.stock(), Failures: f.failures.Load()}
	if f.err != nil {
		r.Fallback.Error = f.err.Error()
	}
	r.Fallback.Machine = int(f.cur.Load().lo >> fallbackBits)
	r.Fallback.Quarantined, r.Fallback.Quarantine = f.quarantine.get()
	return r
}

// CellFigures are what a zone's agent knows of its IDs, for cellctl.
type CellFigures struct {
	Cell      string           `json:"cell"`
	Processes []ProcessFigures `json:"processes"`
	Bank      *BankFigures     `json:"bank"` // nil where it can't be asked, or there is none
	BankError string           `json:"bank_error,omitempty"`
}

// ProcessFigures is a process's last report.
type ProcessFigures struct {
	AgeMS int64 `json:"age_ms"`
	Report
}

// BankFigures is the cell's own stock.
type BankFigures struct {
	Ordinal    int              `json:"ordinal"`
	NoFallback string           `json:"no_fallback,omitempty"` // why
	Counter    int64            `json:"counter"`               // how often anything was handed out
	Losses     int              `json:"losses"`                // how often the database went back and all was given up
	LostWhy    string           `json:"lost_why,omitempty"`
	LostAt     *time.Time       `json:"lost_at"`
	Kinds      []BankKind       `json:"kinds"`
	Machines   []MachineFigures `json:"machines"`
}

// BankKind is the bank's stock of a kind. Target and what idgen says are nil
// until they are known.
type BankKind struct {
	Kind       string   `json:"kind"`
	Stock      int64    `json:"stock"`
	Target     *int64   `json:"target"`
	BudgetUsed *float64 `json:"budget_used"`
	YearsLeft  *float64 `json:"years_left"`
	IDGenAgeMS *int64   `json:"idgen_age_ms"`
	Error      string   `json:"error,omitempty"` // why it wasn't filled the last time
}

// MachineFigures is one of the cell's eight fallback machines.
type MachineFigures struct {
	Number  int     `json:"number"`
	Ceiling int64   `json:"ceiling,string"`
	AheadS  float64 `json:"ahead_s"` // how far what was granted is ahead of time; negative = behind
	Holder  string  `json:"holder"`
}
