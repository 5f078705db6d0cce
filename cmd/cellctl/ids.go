package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/agent/agentapi"
)

// zoneIDs is one zone of the verb ids: Figures is nil when its agent didn't answer.
type zoneIDs struct {
	Cell    string          `json:"cell"`
	Figures *id.CellFigures `json:"figures"`
	Error   string          `json:"error,omitempty"`
}

// silent is when a process's last word is too old to hold for it now.
const silent = 30 * time.Second

// leastShare is of calls for an ID that find one in their process.
const leastShare = 0.999

func showIDs(ctx context.Context, c *cli, args []string) error {
	words, err := c.parse(args, 0, 1)
	if err != nil {
		return err
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	names := append(slices.Clone(f.names), f.state.Global.Name)
	if len(words) == 1 {
		if _, err := f.zone(words[0]); err != nil {
			return err
		}
		names = words
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	got, failed := ask(f, func(a *agentapi.Client) (id.CellFigures, error) { return a.IDs(ctx) })
	if g, err := f.global.IDs(ctx); err == nil {
		got[f.state.Global.Name] = g
	} else {
		failed[f.state.Global.Name] = err
	}
	var all []zoneIDs
	for _, name := range names {
		line := zoneIDs{Cell: name}
		if g, ok := got[name]; ok {
			line.Figures = &g
		} else {
			line.Error = failed[name].Error()
		}
		all = append(all, line)
	}
	err = c.print(all, func(w io.Writer) { printIDs(w, all) })
	if err == nil && !idsHold(all) {
		err = errFails
	}
	return err
}

// idsHold says whether all is known and every process serves its callers.
func idsHold(all []zoneIDs) bool {
	for _, z := range all {
		if z.Figures == nil || z.Figures.BankError != "" || len(z.Figures.Processes) == 0 {
			return false
		}
		heard := false
		for _, p := range z.Figures.Processes {
			if p.AgeMS > silent.Milliseconds() {
				continue // it ended: a start is another process
			}
			heard = true
			for _, k := range p.Kinds {
				if k.Share != nil && *k.Share < leastShare {
					return false
				}
			}
		}
		if !heard {
			return false // what nobody says is not known
		}
	}
	return true
}

func printIDs(w io.Writer, all []zoneIDs) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "CELL\tKIND\tPROCESS\tSTOCK\tLASTS\tRATE\tGIVEN\tFALLBACK\tWAITS\tLOCAL\tBUDGET\tYEARS\tPUT ASIDE\tAGE")
	for _, z := range all {
		if z.Figures == nil {
			fmt.Fprintf(tw, "%s\t?\tagent: %s\n", z.Cell, z.Error)
			continue
		}
		for _, p := range z.Figures.Processes {
			for _, k := range p.Kinds {
				rate := "?"
				if k.Rate > 0 {
					rate = fmt.Sprintf("%.2f/s", k.Rate)
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%.1f\t%d\t%s\n", z.Cell, k.Kind, p.Process, k.Stock, seconds(k.StockS), rate,
					k.Given, k.Fallback, k.Waits, percent(k.Share), percent(k.BudgetUsed), k.YearsLeft, k.Quarantined, millis(p.AgeMS))
			}
		}
	}
	fmt.Fprintln(tw, "\nCELL\tKIND\tBANK\tTARGET\tIDGEN'S BUDGET\tYEARS\tAGE\tNOTE")
	for _, z := range all {
		if z.Figures == nil || z.Figures.Bank == nil {
			if z.Figures != nil && z.Figures.BankError != "" {
				fmt.Fprintf(tw, "%s\t?\t?\t?\t?\t?\t?\t%s\n", z.Cell, z.Figures.BankError)
			}
			continue
		}
		for _, k := range z.Figures.Bank.Kinds {
			target, years, age := "?", "?", "?"
			if k.Target != nil {
				target = fmt.Sprint(*k.Target)
			}
			if k.YearsLeft != nil {
				years = fmt.Sprintf("%.1f", *k.YearsLeft)
			}
			if k.IDGenAgeMS != nil {
				age = millis(*k.IDGenAgeMS)
			}
			fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", z.Cell, k.Kind, k.Stock, target, percent(k.BudgetUsed), years, age, k.Error)
		}
	}
	tw.Flush()
	for _, z := range all {
		if z.Figures == nil || z.Figures.Bank == nil {
			continue
		}
		b := z.Figures.Bank
		fmt.Fprintf(w, "%s: ordinal %d, %d fallback machines in use, handed out %d times, given up %d times %s%s\n",
			z.Cell, b.Ordinal, len(b.Machines), b.Counter, b.Losses, b.LostWhy, b.NoFallback)
	}
}

func seconds(v *float64) string {
	if v == nil {
		return "?"
	}
	return (time.Duration(*v) * time.Second).String()
}

func percent(v *float64) string {
	if v == nil {
		return "?"
	}
	return fmt.Sprintf("%.2f%%", *v*100)
}

func millis(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Round(100 * time.Millisecond).String()
}
