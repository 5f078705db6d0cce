package routing

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// hashRow is an assignment with its names and their places.
type hashRow struct {
	Assignment
	row
}

// SlotsOf lists the hash slots that a cell owns, ascending.
func (t *Table) SlotsOf(cell string) []Slot {
	owned := t.owned[t.place[cell]]
	if len(owned) == 0 {
		return nil
	}
	out := make([]Slot, len(owned))
	for i, s := range owned {
		out[i] = Slot(s)
	}
	return out
}

// addSlots fills the hash slots from one assignment each.
func (t *Table) addSlots(slots []Assignment) error {
	if len(slots) != Slots {
		return fmt.Errorf("%w: %d slots, want %d", ErrTable, len(slots), Slots)
	}
	known := map[Assignment]uint16{}
	for i, a := range slots {
		if i > 0 && a == slots[i-1] {
			t.kind[i] = t.kind[i-1]
			continue
		}
		kind, ok := known[a]
		if !ok {
			var err error
			if kind, err = t.addRow(Slot(i), a); err != nil {
				return err
			}
			known[a] = kind
		}
		t.kind[i] = kind
	}
	return nil
}

// addRow adds a row that no slot has yet; s is the first.
func (t *Table) addRow(s Slot, a Assignment) (uint16, error) {
	r, err := t.row(s, a)
	if err != nil {
		return 0, err
	}
	// The table's own names, so that it doesn't hold on to the document's.
	t.rows = append(t.rows, hashRow{Assignment{Owner: t.names[r.owner], Standby: t.names[r.standby], Epoch: r.epoch}, r})
	return uint16(len(t.rows) - 1), nil
}

func (t *Table) listOwned() {
	t.owned = make([][]uint16, len(t.names))
	owns := make([]int, len(t.names))
	for _, k := range t.kind {
		owns[t.rows[k].owner]++
	}
	all := make([]uint16, Slots)
	for place, n := range owns {
		t.owned[place], all = all[:0:n], all[n:]
	}
	for i, k := range t.kind {
		place := t.rows[k].owner
		t.owned[place] = append(t.owned[place], uint16(i))
	}
}

// Where the run lengths of the hash slots are in the document. Before them are
// only words and numbers, so the first of these is the one.
const (
	runsBegin = `"slots":[`
	runsEnd   = `],"private":`
)

// insertRuns writes the run lengths into a document without them.
func (t *Table) insertRuns(doc []byte) []byte {
	at := bytes.Index(doc, []byte(runsBegin)) + len(runsBegin)
	out := append(slices.Grow([]byte(nil), len(doc)+256), doc[:at]...)
	for i := 0; i < Slots; {
		kind, from := t.kind[i], i
		for i++; i < Slots && t.kind[i] == kind; i++ {
		}
		if from > 0 {
			out = append(out, ',')
		}
		r := t.rows[kind].row
		for n, v := range [4]int64{int64(i - from), t.ordinal(r.owner), t.ordinal(r.standby), int64(r.epoch)} {
			out = append(out, "[,,,"[n])
			out = strconv.AppendInt(out, v, 10)
		}
		out = append(out, ']')
	}
	return append(out, doc[at:]...)
}

// cutRuns takes the run lengths out of a document. One in which they aren't where
// they should be comes back whole; it isn't in the one form.
func cutRuns(doc []byte) (rest, runs []byte) {
	at := bytes.Index(doc, []byte(runsBegin))
	if at < 0 {
		return doc, nil
	}
	at += len(runsBegin)
	n := bytes.Index(doc[at:], []byte(runsEnd))
	if n < 0 {
		return doc, nil
	}
	return slices.Concat(doc[:at], doc[at+n:]), doc[at : at+n]
}

// addRuns fills the hash slots from their run lengths.
func (t *Table) addRuns(b []byte, names map[int64]string) error {
	known := map[[3]int64]uint16{}
	done := 0
	for len(b) > 0 {
		r, rest, ok := nextRun(b)
		if !ok {
			return fmt.Errorf("%w: no run after %d slots: %.40q", ErrTable, done, b)
		}
		b = rest
		if r[0] < 1 || r[0] > int64(Slots-done) {
			return fmt.Errorf("%w: a run of %d slots after %d", ErrTable, r[0], done)
		}
		kind, ok := known[[3]int64(r[1:])]
		if !ok {
			a, err := assignment(names, r)
			if err != nil {
				return err
			}
			if kind, err = t.addRow(Slot(done), a); err != nil {
				return err
			}
			known[[3]int64(r[1:])] = kind
		}
		for i := range t.kind[done : done+int(r[0])] {
			t.kind[done+i] = kind
		}
		done += int(r[0])
	}
	if done != Slots {
		return fmt.Errorf("%w: %d slots, want %d", ErrTable, done, Slots)
	}
	return nil
}

// nextRun reads one "[n,n,n,n]" with the comma before the next. It takes a little
// more than insertRuns writes, such as zeros in front: Decode compares the bytes.
func nextRun(b []byte) (r [4]int64, rest []byte, ok bool) {
	for n := range r {
		if len(b) == 0 || b[0] != "[,,,"[n] {
			return r, b, false
		}
		i := 1
		for ; i < len(b) && '0' <= b[i] && b[i] <= '9'; i++ {
			digit := int64(b[i] - '0')
			if r[n] > (math.MaxInt64-digit)/10 {
				return r, b, false
			}
			r[n] = 10*r[n] + digit
		}
		if i == 1 {
			return r, b, false
		}
		b = b[i:]
	}
	if len(b) == 0 || b[0] != ']' {
		return r, b, false
	}
	if b = b[1:]; len(b) > 0 {
		if b[0] != ',' {
			return r, b, false
		}
		b = b[1:]
	}
	return r, b, true
}
