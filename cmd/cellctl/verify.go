package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"example.com/cellmart/platform/cellkit/verify"
)

// verifyCopies compares standbys with their owners. Its exit code is 0 only when
// something was compared, all that was asked for, and nothing differs.
func verifyCopies(ctx context.Context, c *cli, args []string) error {
	slots := c.flags.String("slots", "", "only these: A or A-B")
	cells := c.flags.String("cells", "", "only slots that these cells own, comma-separated")
	repair := c.flags.Bool("repair", false, "have slots that differ copied anew, and compare them again")
	if _, err := c.parse(args, 0, 0); err != nil {
		return err
	}
	ask := verify.Ask{Repair: *repair}
	if *slots != "" {
		from, to, err := slotRange(*slots)
		if err != nil {
			return err
		}
		ask.Slots = &[2]int32{from, to}
	}
	f, err := c.fleet(ctx)
	if err != nil {
		return err
	}
	if *cells != "" {
		ask.Cells = strings.Split(*cells, ",")
		for _, name := range ask.Cells {
			if _, ok := f.cells[name]; !ok {
				return usage("there is no cell %q; there are %v", name, f.names)
			}
		}
	}
	r, err := verify.Run(ctx, f.cells, ask)
	if err != nil {
		return err
	}
	if err := c.print(r, func(w io.Writer) { printVerify(w, r) }); err != nil {
		return err
	}
	if !r.Equal() {
		return errFails
	}
	return nil
}

// slotRange reads A or A-B.
func slotRange(s string) (from, to int32, err error) {
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		b = a
	}
	lo, err1 := strconv.ParseInt(a, 10, 32)
	hi, err2 := strconv.ParseInt(b, 10, 32)
	if err1 != nil || err2 != nil || lo < 0 || lo > hi {
		return 0, 0, usage("--slots takes A or A-B with 0 <= A <= B, not %q", s)
	}
	return int32(lo), int32(hi), nil
}

func printVerify(w io.Writer, r verify.Report) {
	for _, d := range r.Differences {
		text := fmt.Sprintf("%-8s %s %s of slot %d", d.Kind, d.Table, keyText(d.Key), d.Slot)
		switch {
		case d.Kind == verify.Stray:
			text += fmt.Sprintf(", in %s, which neither owns the slot nor stands by for it", d.Standby)
		case d.Owner != "":
			text += fmt.Sprintf(", of %s at %s", d.Owner, d.Standby)
		}
		if d.At != nil {
			text += fmt.Sprintf("; owner: epoch %d rev %d", d.At.Epoch, d.At.Rev)
		}
		if d.There != nil {
			text += fmt.Sprintf("; there: epoch %d rev %d", d.There.Epoch, d.There.Rev)
		}
		if len(d.Columns) > 0 {
			text += "; columns " + strings.Join(d.Columns, ", ")
		}
		if d.Repaired {
			text += "; REPAIRED: copied anew, and equal"
		}
		fmt.Fprintln(w, text)
	}
	if r.NotListed > 0 {
		fmt.Fprintf(w, "and %d more tables of slots differ, or differ in more rows than are listed\n", r.NotListed)
	}
	for _, n := range r.NotCompared {
		text := "NOT COMPARED"
		if n.Owner != "" {
			text += " " + n.Owner
		}
		if n.Standby != "" {
			text += " at " + n.Standby
		}
		if n.Table != "" {
			text += ", " + n.Table
		}
		if n.N > 0 {
			text += fmt.Sprintf(", %d slots (%s)", n.N, verify.Runs(n.Slots))
		}
		fmt.Fprintln(w, text+":", n.Reason)
	}
	for _, l := range r.Left {
		fmt.Fprintf(w, "left     %s has %d rows of %d slots that it let go of: the clean-up's\n", l.Cell, l.Rows, l.Slots)
	}
	slices.SortStableFunc(r.Pairs, func(a, b verify.Pair) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Standby, b.Standby))
	})
	for _, p := range r.Pairs {
		fmt.Fprintf(w, "%s at %s: %d slots, %d rows at %s; writers kept out for %.1f ms, standby there after %d ms, all in %d ms\n",
			p.Owner, p.Standby, p.Slots, p.Rows, p.AtLSN, p.LockMS, p.WaitMS, p.MS)
	}
	word := "EQUAL"
	if !r.Equal() {
		word = "NOT EQUAL, or not all of it known"
	}
	fmt.Fprintf(w, "%s: %d rows of %d slots compared in %d ms, %d differences\n", word, r.RowsCompared, r.SlotsCompared, r.ElapsedMS, len(r.Differences))
	for _, l := range r.Limits {
		fmt.Fprintln(w, "limit:", l)
	}
}

func keyText(key map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(key)) {
		parts = append(parts, k+" "+key[k])
	}
	return strings.Join(parts, " ")
}
