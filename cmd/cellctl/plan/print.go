package plan

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Write prints a plan for people.
func (r Report) Write(w io.Writer, in Input) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	c := r.Cells
	line("asked for", "%.0f qps of %.0f a cell; %d users, recovery %s; %s to a new cell over %s/s x %g", in.QPS, in.CellQPS, in.Users, in.Recovery, in.Data, in.Link, in.Throttle)
	line("cells", "%d at least, %d with one to lose, %d at most (blast radius %d, operations %d)", c.Lower, c.NPlusOne, c.Upper, c.UpperBlast, c.UpperOperations)
	var regions []string
	for _, g := range c.Layout {
		text := fmt.Sprintf("%s: %d", g.Name, g.Cells)
		if g.Gray > 0 {
			text += " + 1 gray"
		}
		regions = append(regions, text)
	}
	line("figures for", "%d serving and 1 gray: %s", c.Serving, strings.Join(regions, ", "))
	line("load of each", "%.1f %%; %.1f %% with one lost, which takes %.1f %% spare", r.Load.Usual, r.Load.OneLost, r.Load.Spare)
	if c.RegionLoss != nil {
		line("a region lost", "%.1f %%", *c.RegionLoss)
	}
	line("a cell lost", "%d users (%.2f %%) for %s: %.0f user minutes, without cells %.0f", r.Blast.Users, r.Blast.Share, in.Recovery, r.Blast.UserMinutes, r.Blast.OneUserMinutes)
	if m := in.Measured; m == nil {
		line("cross-cell", "%.2f %% of peers, %.2f %% of requests with %d peers (random placement)", r.Cross.Pair, r.Cross.Any, in.Peers)
	} else {
		line("cross-cell", "%.2f %% of requests, one of %d at least: %.2f %%", r.Cross.Pair, in.Peers, r.Cross.Any)
		line("measured", "closed loop %.2f %% in %d cells: %d local, %d forwarded, %d messaged, %s ago", percent(m.ClosedLoop()), m.Cells, m.Local, m.Forwarded, m.Messaged,
			(time.Duration(m.AgeMS) * time.Millisecond).Round(time.Second))
	}
	line("round trips", "%.2f ms a request with one peer; %d peers at once %.2f, in turn %.2f; %.0f crossings a second",
		r.RoundTrip.OnePeerMS, in.Peers, r.RoundTrip.ParallelMS, r.RoundTrip.SerialMS, r.RoundTrip.PerSecond)
	line("a cell more", "%.2f h (%.2f with a MB of 10^6); %.1f %% of the users move; %.2f h if %s is what all cells have",
		r.Add.Hours, r.Add.DecimalHours, r.Add.MovedShare, r.Add.OfTotalHours, in.Data)
	line("verdict", "%s: %s", r.Verdict.Verdict, r.Verdict.Reason)
	for _, warning := range r.Warnings {
		line("but", "%s", warning)
	}
	t.Flush()
}
