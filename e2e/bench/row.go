package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
)

// shown is the goal of a line that is only to be looked at.
const shown = "shown"

// row is one line. What isn't known is null.
type row struct {
	Name     string   `json:"name"`
	Ours     *float64 `json:"ours"`
	Baseline *float64 `json:"baseline"`
	Unit     string   `json:"unit"`
	Ratio    *float64 `json:"ratio"` // ours / baseline
	Goal     string   `json:"goal"`
	OK       *bool    `json:"ok"`               // null = can't run here
	Reason   string   `json:"reason,omitempty"` // why ok is null
	Note     string   `json:"note,omitempty"`   // what is in the figures
}

// compare makes a line of two figures; holds is nil for one that is only shown.
func compare(name, unit string, ours, baseline float64, goal string, holds func(ratio float64) bool, note string) row {
	r := row{Name: name, Ours: &ours, Baseline: &baseline, Unit: unit, Goal: goal, Note: note}
	ok := true
	if baseline != 0 { // else there is no ratio, not even to itself
		ratio := ours / baseline
		r.Ratio = &ratio
	}
	if holds != nil {
		ok = r.Ratio != nil && holds(*r.Ratio)
	}
	r.OK = &ok
	return r
}

// print writes the lines for people, the notes below.
func print(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tOURS\tBASELINE\tUNIT\tRATIO\tGOAL\tOK")
	for _, r := range rows {
		ok := "can't run"
		if r.OK != nil {
			ok = map[bool]string{true: "yes", false: "NO"}[*r.OK]
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, figure(r.Ours), figure(r.Baseline), dash(r.Unit), figure(r.Ratio), r.Goal, ok)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		for _, text := range []string{r.Reason, r.Note} {
			if text != "" {
				fmt.Fprintf(w, "%s: %s\n", r.Name, text)
			}
		}
	}
	return nil
}

// figure keeps three digits that matter.
func figure(f *float64) string {
	if f == nil {
		return "-"
	}
	if *f >= 1000 {
		return strconv.FormatFloat(*f, 'f', 0, 64)
	}
	return strconv.FormatFloat(*f, 'g', 3, 64)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// median of one or more figures.
func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}
