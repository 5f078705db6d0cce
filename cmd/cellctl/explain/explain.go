package explain

import (
	"fmt"
	"io"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// Kinds of input.
const (
	KindID     = "id"
	KindNumber = "order number"
	KindPhone  = "phone"
)

// Input is what was asked about.
type Input struct {
	Text, Kind string
	ID         id.ID        // not of a phone
	Slot       routing.Slot // that the text alone leads to
}

// Parse reads an ID, an order number or an international phone. What is none of
// them is a usage error.
func Parse(text string, numbers *id.Numbers) (Input, error) {
	in := Input{Text: text}
	if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "00") {
		if phone, ok := userapi.CanonicalPhone(text); ok {
			in.Kind, in.Slot = KindPhone, routing.HashSlot(phone)
			return in, nil
		}
	}
	var err error
	if in.ID, err = id.Parse(text); err == nil {
		in.Kind, in.Slot = KindID, in.ID.Slot()
		return in, nil
	}
	if in.ID, err = numbers.Decode(text); err == nil {
		in.Kind, in.Slot = KindNumber, in.ID.Slot()
		return in, nil
	}
	return in, cellkit.Usage{Err: fmt.Errorf("%.80q is no ID, order number or international phone", text)}
}

// Place is a slot and who has it.
type Place struct {
	Slot    routing.Slot  `json:"slot"`
	Owner   string        `json:"owner"`
	Epoch   routing.Epoch `json:"epoch"`
	Standby string        `json:"standby,omitempty"`
}

// Decision is how a request is routed, step by step. Slot is the private one of a
// user who was moved alone; HashSlot is what the ID says.
type Decision struct {
	Asked    string       `json:"asked"`
	Kind     string       `json:"kind"`
	ID       id.ID        `json:"id,omitempty"`
	Fallback bool         `json:"fallback"`
	HashSlot routing.Slot `json:"hash_slot"`
	Override bool         `json:"override"`
	Place
	Also  []Place `json:"also"` // where else a thing with this ID may be: with users who were moved
	Table int64   `json:"route_version"`
	From  string  `json:"table_from"`
	Level string  `json:"level"`
	AgeMS *int64  `json:"age_ms"` // since the table was known to be the newest; null = unknown
	Asks  []Level `json:"levels"`
}

// Level is one place that has a table, or why it has none.
type Level struct {
	Level   string         `json:"level"` // control, agent, redis, snapshot
	From    string         `json:"from"`
	Version int64          `json:"route_version"` // 0 = none
	AgeMS   *int64         `json:"age_ms"`
	Error   string         `json:"error,omitempty"`
	Table   *routing.Table `json:"-"`
}

// Decide explains the input by the newest table among the levels, which are in
// order of nearness to control.
func Decide(in Input, levels []Level) (Decision, error) {
	d := Decision{Asked: in.Text, Kind: in.Kind, ID: in.ID, Fallback: in.Kind != KindPhone && in.ID.Fallback(), HashSlot: in.Slot, Also: []Place{}, Asks: levels}
	var best *Level
	var failed []string
	for i, l := range levels {
		if l.Table == nil {
			failed = append(failed, fmt.Sprintf("%s of %s: %s", l.Level, l.From, l.Error))
		} else if best == nil || l.Version > best.Version {
			best = &levels[i]
		}
	}
	if best == nil {
		return d, fmt.Errorf("no route table anywhere: %s", strings.Join(failed, "; "))
	}
	t := best.Table
	d.Table, d.From, d.Level, d.AgeMS = best.Version, best.From, best.Level, best.AgeMS
	slot, a, ok := in.Slot, routing.Assignment{}, false
	if in.Kind == KindID {
		slot, a, ok = t.Home(int64(in.ID))
	} else {
		a, ok = t.Slot(slot)
	}
	if !ok {
		return d, cellkit.Usage{Err: fmt.Errorf("slot %s of %q has no owner in table %d", slot, in.Text, t.Version())}
	}
	d.Place, d.Override = Place{slot, a.Owner, a.Epoch, a.Standby}, slot != in.Slot
	if in.Kind != KindPhone && !d.Override {
		for _, p := range t.TakenFrom(slot) {
			if a, ok := t.Slot(p); ok {
				d.Also = append(d.Also, Place{p, a.Owner, a.Epoch, a.Standby})
			}
		}
	}
	return d, nil
}

// Write says it for people.
func (d Decision) Write(w io.Writer) {
	switch d.Kind {
	case KindPhone:
		fmt.Fprintf(w, "%s is a phone; its hash is slot %s, where the claim on it lives (not its user: every cell has a copy that says who)\n", d.Asked, d.HashSlot)
	default:
		fmt.Fprintf(w, "%s is an %s: ID %s; its low 14 bits are slot %s\n", d.Asked, d.Kind, d.ID, d.HashSlot)
	}
	if d.Fallback {
		fmt.Fprintln(w, "the ID was made by a fallback generator")
	}
	if d.Override {
		fmt.Fprintf(w, "this user was moved alone, to private slot %s\n", d.Slot)
	}
	fmt.Fprintf(w, "slot %s belongs to %s at epoch %d (standby: %s)\n", d.Slot, d.Owner, d.Epoch, orNone(d.Standby))
	for _, p := range d.Also {
		fmt.Fprintf(w, "or, if it went along with a user who was moved: private slot %s of %s at epoch %d (standby: %s)\n", p.Slot, p.Owner, p.Epoch, orNone(p.Standby))
	}
	fmt.Fprintf(w, "by table %d, from the %s of %s, the newest as of %s\n", d.Table, d.Level, d.From, age(d.AgeMS))
	for _, l := range d.Asks {
		if l.Table == nil {
			fmt.Fprintf(w, "  %-8s %-7s no table: %s\n", l.Level, l.From, l.Error)
		} else {
			fmt.Fprintf(w, "  %-8s %-7s table %d, %s\n", l.Level, l.From, l.Version, age(l.AgeMS))
		}
	}
}

func age(ms *int64) string {
	if ms == nil {
		return "an unknown age"
	}
	if *ms == 0 {
		return "now"
	}
	return (time.Duration(*ms) * time.Millisecond).Round(100*time.Millisecond).String() + " ago"
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
