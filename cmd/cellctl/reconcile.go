package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/reconcile"
	"example.com/cellmart/services/agent/agentapi"
)

// reconcileMoney compares both sides of all transfers. Its exit code is 0 only when
// everything that was asked for was compared and no transfer's sides differ.
func reconcileMoney(ctx context.Context, c *cli, args []string) error {
	cells := c.flags.String("cells", "", "only transfers from these cells, comma-separated")
	since := c.flags.Duration("since", 0, "only those begun so long ago or later; 0 = all")
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	if *since < 0 {
		return usage("--since takes how long ago, 24h, not %v", *since)
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	ask := reconcile.Ask{Since: *since}
	if *cells != "" {
		ask.Cells = strings.Split(*cells, ",")
		for _, name := range ask.Cells {
			if _, ok := f.cells[name]; !ok {
				return usage("there is no cell %q; there are %v", name, f.names)
			}
		}
	}
	r, err := reconcile.Run(ctx, f.cells, ask)
	if err != nil {
		return err
	}
	if err := c.print(r, func(w io.Writer) { printReconcile(w, r) }); err != nil {
		return err
	}
	if !r.Equal() {
		return errFails
	}
	return nil
}

func printReconcile(w io.Writer, r reconcile.Report) {
	const hour = "2006-01-02 15h"
	for _, h := range r.Differing {
		fmt.Fprintf(w, "hour     %s UTC, %s to %s, %s %s: %d of %s at the payers', %d of %s at the payees'\n", h.Hour.Hour.Format(hour), h.From, h.To, h.End, h.Currency,
			h.Payer.N, h.Payer.Sum, h.Payee.N, h.Payee.Sum)
	}
	for _, d := range r.Differences {
		fmt.Fprintf(w, "%-8s %s to %s, begun in %s UTC: %s\n", d.Kind, d.From, d.To, d.Hour.Format(hour), d.Text)
	}
	if r.NotLooked > 0 {
		fmt.Fprintf(w, "and %d more differ in their digests: too many to be looked at one by one\n", r.NotLooked)
	}
	for _, n := range r.NotCompared {
		to := ""
		if n.To != "" {
			to = " to " + n.To
		}
		fmt.Fprintf(w, "NOT COMPARED %s%s: %s\n", n.From, to, n.Reason)
	}
	for _, p := range r.Summary {
		fmt.Fprintf(w, "%s to %s: %d transfers in %d hours from %s UTC on, %d in flight, %d differences, %d ms\n", p.From, p.To, p.Transfers, p.Hours, p.Since.UTC().Format(hour), p.Open, p.Different, p.MS)
	}
	word := "EQUAL"
	if !r.Equal() {
		word = "NOT EQUAL, or not all of it known"
	}
	fmt.Fprintf(w, "%s: %d transfers compared in %d ms, %d in flight, %d differences\n", word, r.Transfers, r.ElapsedMS, r.Open, len(r.Differences))
}

// booksOld is when a cell's own look at its money is worth a line.
const booksOld = 10 * time.Minute

// outOfBalance says what a cell's own looks at its money found, and what they don't
// know; nothing when all is well.
func outOfBalance(s *agentapi.Status) []string {
	if s.Database == nil {
		return nil
	}
	age := func(ms int64) time.Duration { return (time.Duration(ms) * time.Millisecond).Round(time.Second) }
	var out []string
	for _, r := range s.Reconciled {
		switch {
		case r.RecentAgeMS == nil:
			out = append(out, fmt.Sprintf("transfers to %s aren't compared yet %s", r.To, r.Error))
			continue
		case r.Different > 0:
			out = append(out, fmt.Sprintf("%d transfers to %s whose two sides don't match (%s ago): cellctl reconcile names them", r.Different, r.To, age(*r.RecentAgeMS)))
		}
		if old := age(*r.RecentAgeMS); old > time.Minute {
			out = append(out, fmt.Sprintf("transfers to %s were compared %s ago: %s", r.To, old, r.Error))
		}
	}
	for _, b := range s.Books {
		if b.Violations > 0 {
			out = append(out, fmt.Sprintf("%d violations of %s (%s ago): cellctl invariants names them", b.Violations, b.ID, age(b.AgeMS)))
		}
		if old := age(b.AgeMS); old > booksOld {
			out = append(out, fmt.Sprintf("the last look at %s was %s ago", b.ID, old))
		}
	}
	if len(s.Books) == 0 {
		out = append(out, "nobody has looked at the ledger yet")
	}
	return out
}
