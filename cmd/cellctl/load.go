package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"example.com/cellmart/cmd/cellctl/load"
)

// loadReport is what a load answers.
type loadReport struct {
	Pass       bool        `json:"pass"`
	Seed       uint64      `json:"seed"`
	Rate       float64     `json:"rate"` // asked for
	Seconds    float64     `json:"seconds"`
	Search     bool        `json:"search"`
	Requests   int         `json:"requests"`
	Errors     int         `json:"errors"`
	Lines      []load.Line `json:"lines"`
	Checks     int         `json:"invariant_checks"`
	Violations []string    `json:"violations"`
	Failed     []string    `json:"failed"`
}

// The pause before the first look at the invariants under load, and between two: each
// reads every cell's rows.
const (
	checkFirst = 2 * time.Second
	checkEvery = 15 * time.Second
)

func runLoad(ctx context.Context, c *cli, args []string) error {
	rate := c.flags.Float64("rate", 40, "requests per second, of all homes together")
	duration := c.flags.Duration("duration", 30*time.Second, "how long, 1s to 30m")
	seed := c.flags.Uint64("seed", 1, "same seed, same requests in the same order")
	users := c.flags.Int("users", 10, "of each cell")
	allowed := c.flags.Int("max-errors", 0, "more errors than this fail it")
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	if err := load.CheckDuration(*duration); err != nil {
		return err
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	l, err := load.Prepare(ctx, f.people(c, load.Options{Rate: *rate, Seed: *seed, Users: *users}))
	if err != nil {
		return err
	}
	c.logf("%g requests a second for %s", *rate, *duration)
	r := loadReport{Seed: *seed, Rate: *rate, Search: l.Searches(), Violations: []string{}, Failed: []string{}}
	timed, cancel := context.WithTimeout(ctx, *duration)
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() {
		for wait := checkFirst; ; wait = checkEvery {
			t := time.NewTimer(wait)
			select {
			case <-timed.Done():
				t.Stop()
				return
			case <-t.C:
			}
			violated, _ := load.Check(ctx, f.cells) // what is certain only: cells go on working
			r.Checks++
			r.Violations = append(r.Violations, violated...)
		}
	})
	begun := time.Now()
	l.Run(timed)
	watching.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.Seconds = time.Since(begun).Seconds()
	c.logf("waiting until all messages have their answer")
	r.Violations = append(r.Violations, load.AtRest(ctx, f.cells, 90*time.Second)...)
	r.Checks++
	r.judge(l, *allowed)
	err = c.print(r, func(w io.Writer) { r.write(w) })
	if err == nil && !r.Pass {
		err = errFails
	}
	return err
}

// judge counts, and says what failed.
func (r *loadReport) judge(l *load.Load, allowed int) {
	r.Lines = load.Lines(l.Samples(), l.Homes(), r.Search)
	for _, line := range r.Lines {
		if line.Home == "*" {
			r.Requests += line.Requests
			r.Errors += line.Errors
		}
		if line.Requests == 0 {
			r.Failed = append(r.Failed, fmt.Sprintf("no %s of %s: let it run longer", line.Kind, line.Home))
		}
	}
	if r.Errors > allowed {
		r.Failed = append(r.Failed, fmt.Sprintf("%d errors, %d are allowed", r.Errors, allowed))
		for home := range l.Homes() {
			r.Failed = append(r.Failed, l.Errors(home)...)
		}
	}
	if len(r.Violations) > 0 {
		r.Failed = append(r.Failed, fmt.Sprintf("invariants: %s", strings.Join(r.Violations, "; ")))
	}
	r.Pass = len(r.Failed) == 0
}

func (r *loadReport) write(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "KIND\tHOME\tREQUESTS\tERRORS\tP50 MS\tP99 MS")
	for _, l := range r.Lines {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%.1f\t%.1f\n", l.Kind, l.Home, l.Requests, l.Errors, l.P50, l.P99)
	}
	tw.Flush()
	fmt.Fprintf(w, "%d requests in %.1f s, %d errors; invariants checked %d times, %d violations\n", r.Requests, r.Seconds, r.Errors, r.Checks, len(r.Violations))
	for _, why := range r.Failed {
		fmt.Fprintln(w, "FAILED:", why)
	}
}

// people fills in where a demo's people come in.
func (f *fleet) people(c *cli, o load.Options) load.Options {
	o.Edge, o.Log = f.state.Edge, c.logf
	for _, cell := range f.state.Cells {
		o.Cells = append(o.Cells, load.Cell{Name: cell.Name, Gateway: cell.Gateway})
	}
	return o
}

// logf writes a line of progress.
func (c *cli) logf(format string, args ...any) { fmt.Fprintf(c.log, format+"\n", args...) }
