package agentapi

import (
	"fmt"
	"time"
)

// Reconciled is how the transfers from a cell to another one stand, compared by the
// cell itself, again and again. Ages are null while there was no look.
type Reconciled struct {
	To          string   `json:"to"`
	RecentAgeMS *int64   `json:"recent_age_ms"`   // since the recent hours were compared
	WholeAgeMS  *int64   `json:"whole_age_ms"`    // since any hour was compared the last time
	Transfers   int64    `json:"transfers"`       // compared
	Open        int      `json:"open"`            // in flight
	Different   int      `json:"different"`       // transfers whose sides don't match, or hours that nobody looked into
	Differences []string `json:"differences"`     // of these, not more than 20
	Stale       bool     `json:"stale,omitempty"` // the differences were true once; they couldn't be looked at again
	Error       string   `json:"error,omitempty"`
}

// LedgerLook is what a cell's own look at its books found, the last time.
type LedgerLook struct {
	ID         string `json:"id"` // I3, I4
	Checked    int64  `json:"checked"`
	Violations int64  `json:"violations"`
	AgeMS      int64  `json:"age_ms"`
}

// notesOn says in one line for each invariant what a cell's own, running looks say
// of it, and how old that is.
func notesOn(f Facts) map[string][]string {
	out := map[string][]string{}
	for _, b := range f.Books {
		out[b.ID] = append(out[b.ID], fmt.Sprintf("%s: own look %v ago: %d violations in %d rows", f.Cell, ago(b.AgeMS), b.Violations, b.Checked))
	}
	if f.Reconciled == nil {
		return out
	}
	var transfers int64
	var open, n int
	var recent, whole int64
	for _, r := range f.Reconciled {
		transfers += r.Transfers
		open += r.Open
		switch {
		case r.RecentAgeMS == nil:
			out["I4"] = append(out["I4"], fmt.Sprintf("%s: transfers to %s not compared yet %s", f.Cell, r.To, r.Error))
			continue
		case r.WholeAgeMS == nil:
			out["I4"] = append(out["I4"], fmt.Sprintf("%s: transfers to %s: only the recent hours are compared so far", f.Cell, r.To))
		default:
			whole = max(whole, *r.WholeAgeMS)
		}
		if r.Error != "" {
			out["I4"] = append(out["I4"], fmt.Sprintf("%s: transfers to %s, compared %v ago: %s", f.Cell, r.To, ago(*r.RecentAgeMS), r.Error))
		}
		recent = max(recent, *r.RecentAgeMS)
		n++
	}
	if n > 0 {
		out["I4"] = append(out["I4"], fmt.Sprintf("%s: %d transfers to %d cells compared, recent hours at most %v ago, all at most %v ago; %d in flight",
			f.Cell, transfers, n, ago(recent), ago(max(recent, whole)), open))
	}
	return out
}

func ago(ms int64) time.Duration { return (time.Duration(ms) * time.Millisecond).Round(time.Second) }
