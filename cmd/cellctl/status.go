package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"example.com/cellmart/services/agent/agentapi"
)

// cellStatus is one line of status: Status is nil when the agent didn't answer.
type cellStatus struct {
	Cell   string           `json:"cell"`
	Status *agentapi.Status `json:"status"`
	Error  string           `json:"error,omitempty"`
}

func status(ctx context.Context, c *cli, args []string) error {
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	got, failed := ask(f, func(a *agentapi.Client) (agentapi.Status, error) { return a.Status(ctx) })
	if s, err := f.global.Status(ctx); err == nil {
		got[f.state.Global.Name] = s
	} else {
		failed[f.state.Global.Name] = err
	}
	var all []cellStatus
	for _, name := range append(slices.Clone(f.names), f.state.Global.Name) {
		line := cellStatus{Cell: name}
		if s, ok := got[name]; ok {
			line.Status = &s
		} else {
			line.Error = failed[name].Error()
		}
		all = append(all, line)
	}
	err = c.print(all, func(w io.Writer) { printStatus(w, all) })
	if err == nil && len(failed) > 0 {
		err = errFails
	}
	return err
}

func printStatus(w io.Writer, all []cellStatus) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "CELL\tROUTE\tSLOTS\tLEASE\tOPEN MSGS\tOLDEST\tSTUCK\tPARKED\tUNCOVERED\tSTANDBY LAG\tCLOSED LOOP\tCONTROL\tLINKS")
	for _, l := range all {
		if l.Status == nil {
			fmt.Fprintf(tw, "%s\t?\t?\t?\t?\t?\t?\t?\t?\t?\t?\t?\tagent: %s\n", l.Cell, l.Error)
			continue
		}
		s := l.Status
		db := "?\t?\t?\t?\t?\t?"
		switch {
		case s.Database != nil:
			d := s.Database
			lease := "no end"
			if d.LeaseLeftMS >= 0 {
				lease = (time.Duration(d.LeaseLeftMS) * time.Millisecond).String()
			}
			db = fmt.Sprintf("%d\t%s\t%d\t%s\t%d\t%d", d.Owned, lease, d.Open, (time.Duration(d.OldestOpenMS) * time.Millisecond).Round(100*time.Millisecond), d.Stuck, d.Parked)
		case s.DatabaseError == "":
			db = "-\t-\t-\t-\t-\t-"
		}
		cover, behind := uncovered(s.Cover), worstLag(s.Cover)
		if s.Database == nil && s.DatabaseError == "" {
			cover, behind = "-", "-" // no cell
		}
		control := "never"
		if s.ControlAgeMS >= 0 {
			control = (time.Duration(s.ControlAgeMS) * time.Millisecond).Round(time.Second).String() + " ago"
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Cell, s.RouteVersion, db, cover, behind, closedLoop(s.Requests), control, links(s))
	}
	tw.Flush()
	for _, l := range all {
		if l.Status != nil && l.Status.DatabaseError != "" {
			fmt.Fprintf(w, "%s: database: %s\n", l.Cell, l.Status.DatabaseError)
		}
		if l.Status != nil {
			for _, text := range slices.Concat(stragglers(l.Status), outOfPlace(l.Status.Database), outOfBalance(l.Status), outputs(l.Status.Commit)) {
				fmt.Fprintf(w, "%s: %s\n", l.Cell, text)
			}
		}
	}
}

// wordEach is how often a process says which table it holds.
const wordEach = 5 * time.Second

// stragglers says who holds an older table than the agent, and of whom it isn't
// known; nothing when all is well.
func stragglers(s *agentapi.Status) []string {
	var out []string
	if heard := time.Duration(s.ListeningMS) * time.Millisecond; heard <= wordEach {
		out = append(out, fmt.Sprintf("the agent has listened for %s only, processes may be missing", heard.Round(100*time.Millisecond)))
	}
	for _, p := range s.Route {
		age := (time.Duration(p.AgeMS) * time.Millisecond).Round(100 * time.Millisecond)
		switch {
		case p.BehindMS != nil:
			behind := (time.Duration(*p.BehindMS) * time.Millisecond).Round(100 * time.Millisecond)
			out = append(out, fmt.Sprintf("%s holds table %d, behind for %s, heard %s ago", p.Process, p.Version, behind, age))
		case age > 2*wordEach:
			out = append(out, fmt.Sprintf("%s is silent: it held table %d %s ago", p.Process, p.Version, age))
		}
	}
	return out
}

// heldLong is how old an output that is held may get without being named: they wait
// for 2 s where they don't wait for ever.
const heldLong = 4000

// outputs says which slots' outputs leave without their standby, that none are held
// at all, or that one has waited for too long; nothing when all is well.
func outputs(s *agentapi.OutputCommit) []string {
	if s == nil {
		return nil
	}
	ms := func(n int64) time.Duration {
		return (time.Duration(n) * time.Millisecond).Round(100 * time.Millisecond)
	}
	var out []string
	if s.Mode == "off" {
		out = append(out, "outputs don't wait for standbys: AGENT_OUTPUT_COMMIT is off")
	}
	if s.OldestMS > heldLong {
		out = append(out, fmt.Sprintf("%d outputs wait for a standby (%s), the oldest for %s", s.Held, s.Mode, ms(s.OldestMS)))
	}
	if u := s.Uncovered; u != nil && u.Slots > 0 {
		text := fmt.Sprintf("%d slots are marked uncovered, the oldest for %s (seen %s ago)", u.Slots, ms(u.OldestMS), ms(u.AgeMS))
		if u.Untold > 0 {
			text += fmt.Sprintf(", control doesn't know of %d", u.Untold)
		}
		out = append(out, text)
	}
	return out
}

// closedLoop is the share of requests that needed no other zone, of how many, and
// how old that is when it isn't of this moment; "?" is unknown.
func closedLoop(r *agentapi.Requests) string {
	if r == nil {
		return "?"
	}
	share, ok := r.ClosedLoop()
	if !ok {
		return "none yet"
	}
	text := fmt.Sprintf("%.1f %% of %d", 100*share, r.Local+r.Forwarded+r.Messaged)
	if age := time.Duration(r.AgeMS) * time.Millisecond; age > 5*time.Second {
		text += fmt.Sprintf(" (%s ago)", age.Round(time.Second))
	}
	return text
}

func links(s *agentapi.Status) string {
	var out []string
	for _, zone := range slices.Sorted(maps.Keys(s.Links)) {
		l := s.Links[zone]
		word := fmt.Sprintf("%s %.1fms", zone, l.RTTMS)
		if !l.Up {
			word = zone + " DOWN"
		}
		out = append(out, word)
	}
	for _, peer := range slices.Sorted(maps.Keys(s.Faults)) {
		f := s.Faults[peer]
		out = append(out, fmt.Sprintf("[fault %s: delay %dms out %v in %v]", peer, f.DelayMS, f.CutOut, f.CutIn))
	}
	return strings.Join(out, ", ")
}
