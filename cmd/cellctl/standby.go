package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// standbyVerb shows and changes which cell stands by for which slots.
func standbyVerb(ctx context.Context, c *cli, args []string) error {
	slots := c.flags.String("slots", "", "with set: A-B, or A")
	to := c.flags.String("to", "", "with set: the cell that is to stand by")
	reason := c.flags.String("reason", "", "why, kept with the job and the table")
	wait := c.flags.Duration("wait", time.Minute, "how long to wait for the end; the job goes on without")
	words, err := c.parse(args, 1, 2)
	if err != nil {
		return err
	}
	if words[0] != "cancel" && len(words) > 1 {
		return usage("%s takes no word, not %q", words[0], words[1])
	}
	if (*slots == "") != (words[0] != "set") || (*to == "") != (words[0] != "set") {
		return usage("set needs --slots A-B and --to CELL, and only set takes them")
	}
	req := controlapi.ExchangeRequest{Reason: *reason}
	switch words[0] {
	case "status":
		return standbyStatus(ctx, c)
	case "cancel":
		return standbyCancel(ctx, c, words)
	case "spread":
		req.Spread = true
	case "set":
		from, last, err := standbySlots(*slots)
		if err != nil {
			return err
		}
		req.Standbys = []controlapi.Standby{{From: from, To: last, Standby: *to}}
	default:
		return usage("takes spread, set, status or cancel ID, not %q", words[0])
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	if _, ok := f.cells[*to]; !ok && *to != "" {
		return usage("there is no cell %q; there are %v", *to, f.names)
	}
	if req.Reason == "" {
		req.Reason = strings.TrimSpace(fmt.Sprintf("standby %s %s %s", words[0], *slots, *to))
	}
	out, err := f.control().Exchange(ctx, req)
	if err == nil {
		out, err = awaitExchange(ctx, f.control(), out, *wait)
	}
	if err != nil {
		return err
	}
	err = c.print(out, func(w io.Writer) { printExchange(w, out) })
	if err == nil && *wait > 0 && !went(out) {
		return errFails
	}
	return err
}

// standbySlots reads "A-B" or "A".
func standbySlots(text string) (from, to routing.Slot, err error) {
	a, b, two := strings.Cut(text, "-")
	if !two {
		b = a
	}
	x, err1 := strconv.ParseInt(a, 10, 32)
	y, err2 := strconv.ParseInt(b, 10, 32)
	if err := errors.Join(err1, err2); err != nil || x < 0 || y < x {
		return 0, 0, usage("--slots takes A-B or A, two numbers, not %q", text)
	}
	return routing.Slot(x), routing.Slot(y), nil
}

// awaitExchange asks each half second until it has ended, or the time is over.
// Control may be away for a moment; the job isn't.
func awaitExchange(ctx context.Context, control *controlapi.Client, x controlapi.Exchange, wait time.Duration) (controlapi.Exchange, error) {
	end := time.After(wait)
	var away error
	for x.ID != 0 && !x.Ended() {
		select {
		case <-ctx.Done():
			return x, ctx.Err()
		case <-end:
			if away != nil {
				return x, fmt.Errorf("exchange %d was begun, how far it is isn't known: %w", x.ID, away)
			}
			return x, nil
		case <-time.After(500 * time.Millisecond):
		}
		var all controlapi.Exchanges
		all, away = control.Exchanges(ctx)
		for _, other := range all.Exchanges {
			if other.ID == x.ID {
				x = other
			}
		}
	}
	return x, nil
}

// went says that all of an exchange was done.
func went(x controlapi.Exchange) bool {
	for _, p := range x.Parts {
		if p.State != controlapi.Done {
			return false
		}
	}
	return true
}

func printExchange(w io.Writer, x controlapi.Exchange) {
	if x.ID == 0 {
		fmt.Fprintln(w, "nothing to do: the table has it so")
		return
	}
	fmt.Fprintf(w, "exchange %d, begun %s ago: %s\n", x.ID, ago(x.AgeMS), x.Reason)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "OWNER\tNEW STANDBY\tSLOTS\tSTATE\tSINCE\tWAITS FOR")
	for _, p := range x.Parts {
		detail := p.Detail
		if p.LookedMS != nil && detail != "" && !p.Ended() {
			detail += fmt.Sprintf(" (%s ago)", ago(*p.LookedMS))
		}
		if p.Version > 0 {
			detail = strings.TrimSpace(fmt.Sprintf("table %d names it  %s", p.Version, detail))
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\t%s\n", p.Owner, p.Target, p.Slots, p.State, ago(p.StateMS), detail)
	}
	tw.Flush()
}

func ago(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// standbyOverview is what `standby status` shows: null where it isn't known.
type standbyOverview struct {
	Cells     map[string]*agentapi.Cover `json:"cells"`
	Exchanges []controlapi.Exchange      `json:"exchanges"`
	Errors    map[string]string          `json:"errors,omitempty"`
}

// standbyStatus holds when all slots of all cells are covered.
func standbyStatus(ctx context.Context, c *cli) error {
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out := standbyOverview{Cells: map[string]*agentapi.Cover{}, Errors: map[string]string{}}
	got, failed := ask(f, func(a *agentapi.Client) (agentapi.Status, error) { return a.Status(ctx) })
	holds := true
	for _, name := range f.names {
		out.Cells[name] = nil
		if s, ok := got[name]; ok {
			out.Cells[name] = s.Cover
		} else {
			out.Errors[name] = failed[name].Error()
		}
		holds = holds && out.Cells[name] != nil && out.Cells[name].Uncovered == 0
	}
	if all, err := f.control().Exchanges(ctx); err != nil {
		out.Errors["control"] = err.Error()
	} else {
		out.Exchanges = all.Exchanges
	}
	err = c.print(out, func(w io.Writer) { printOverview(w, f.names, out) })
	if err == nil && !holds {
		return errFails
	}
	return err
}

func printOverview(w io.Writer, names []string, o standbyOverview) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "CELL\tSTANDBY\tSLOTS\tIN SYNC\tLAG\tWAL BEHIND\tHEARD")
	for _, name := range names {
		v := o.Cells[name]
		if v == nil {
			fmt.Fprintf(tw, "%s\t?\t?\t?\t?\t?\t%s\n", name, o.Errors[name])
			continue
		}
		for _, b := range v.Standbys {
			heard := "never"
			if b.AgeMS != nil {
				heard = ago(*b.AgeMS) + " ago"
			}
			fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", name, b.Cell, b.Slots, b.InSync, lag(b.LagMS), orUnknown(b.LagBytes), strings.TrimSpace(heard+"  "+b.Error))
		}
		if v.None > 0 {
			fmt.Fprintf(tw, "%s\tnone\t%d\n", name, v.None)
		}
	}
	tw.Flush()
	for _, name := range names {
		if v := o.Cells[name]; v != nil && v.Uncovered > 0 {
			fmt.Fprintf(w, "%s: %s of %d slots uncovered\n", name, uncovered(v), v.Slots)
		}
	}
	for i, x := range o.Exchanges {
		if i == 0 || !x.Ended() {
			printExchange(w, x)
		}
	}
	if why := o.Errors["control"]; why != "" {
		fmt.Fprintln(w, "exchanges are unknown: "+why)
	}
}

func lag(ms *int64) string {
	if ms == nil {
		return "?"
	}
	return (time.Duration(*ms) * time.Millisecond).String()
}

func orUnknown(n *int64) string {
	if n == nil {
		return "?"
	}
	return strconv.FormatInt(*n, 10)
}

// uncovered counts slots, and those among them of which nothing is known.
func uncovered(v *agentapi.Cover) string {
	switch {
	case v == nil:
		return "?"
	case v.Unknown > 0:
		return fmt.Sprintf("%d (%d unknown)", v.Uncovered, v.Unknown)
	}
	return strconv.Itoa(v.Uncovered)
}

// worstLag is the lag of the slowest standby, with the age of what was heard when
// it isn't of this moment; "?" when one of them isn't known.
func worstLag(v *agentapi.Cover) string {
	if v == nil || len(v.Standbys) == 0 {
		return "?"
	}
	var worst, age int64
	for _, b := range v.Standbys {
		if b.LagMS == nil || b.AgeMS == nil {
			return "? (" + b.Cell + ")"
		}
		worst, age = max(worst, *b.LagMS), max(age, *b.AgeMS)
	}
	text := lag(&worst)
	if age > 5000 {
		text += " (" + ago(age) + " ago)"
	}
	return text
}

func standbyCancel(ctx context.Context, c *cli, words []string) error {
	if len(words) != 2 {
		return usage("cancel takes the exchange's number; `cellctl standby status` shows it")
	}
	id, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil || id < 1 {
		return usage("%q is no exchange's number", words[1])
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	out, err := f.control().CancelExchange(ctx, id)
	if err == nil {
		out, err = awaitExchange(ctx, f.control(), out, 30*time.Second)
	}
	if err != nil {
		return err
	}
	err = c.print(out, func(w io.Writer) { printExchange(w, out) })
	if err == nil && slices.ContainsFunc(out.Parts, func(p controlapi.ExchangePart) bool { return p.State != controlapi.Cancelled }) {
		return errFails // a part that was switched stays so
	}
	return err
}
