package verify

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/cdc"
)

type lsn = cdc.LSN

// side is a cell with a snapshot that is open there.
type side struct {
	cell
	id string
}

func (s side) ask(ctx context.Context, op string, q question, out any) error {
	q.ID = s.id
	return s.cell.ask(ctx, op, q, out)
}

func (s side) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = s.ask(ctx, opClose, question{}, nil) // else it closes by itself
}

// differ compares two snapshots.
type differ struct {
	r              *run
	pair           pair
	owner, standby side
	epochs         map[int32]int64
	report         *Report
}

const (
	digested = 8   // tables in one question
	page     = 500 // rows of each side in memory at a time
	slotList = 100 // differences listed of one slot's table
)

// both asks both sides the same, at the same time.
func both[T any](ctx context.Context, d *differ, op string, q question) (mine, theirs T, err error) {
	done := make(chan error, 1)
	go func() { done <- d.standby.ask(ctx, op, q, &theirs) }()
	err = d.owner.ask(ctx, op, q, &mine)
	if other := <-done; err == nil {
		err = other
	}
	return mine, theirs, err
}

// tables compares the digests of some tables, and the rows where they differ. It
// gives how many rows the owner has there.
func (d *differ) tables(ctx context.Context, tables []table, slots []int32) (int64, error) {
	q := question{Slots: slots}
	for _, t := range tables {
		q.Tables = append(q.Tables, t.Name)
	}
	mine, theirs, err := both[[]slotDigest](ctx, d, opDigest, q)
	if err != nil {
		return 0, err
	}
	type place struct {
		table string
		slot  int32
	}
	at := map[place][2]slotDigest{}
	var n int64
	for i, side := range [][]slotDigest{mine, theirs} {
		for _, x := range side {
			p := place{x.Table, x.Slot}
			both := at[p]
			both[i] = x
			at[p] = both
			if i == 0 {
				n += x.N
			}
		}
	}
	for _, t := range tables {
		for _, slot := range slots {
			x := at[place{t.Name, slot}]
			switch {
			case x[0] == x[1]:
			case len(d.r.report.Differences)+len(d.report.Differences) >= d.r.List:
				d.unlisted(slot)
			default:
				if err := d.slot(ctx, t, slot, x); err != nil {
					return 0, err
				}
			}
		}
	}
	return n, nil
}

// slot compares the rows of a slot's table, a page of each side at a time.
func (d *differ) slot(ctx context.Context, t table, slot int32, x [2]slotDigest) error {
	found := 0
	defer func(before int) {
		for i := range d.report.Differences[before:] {
			d.report.Differences[before+i].Rows = [2]int64{x[0].N, x[1].N}
		}
	}(len(d.report.Differences))
	for after := []string(nil); ; {
		mine, theirs, upto, err := d.pages(ctx, t, slot, after)
		if err != nil {
			return err
		}
		n, err := d.rows(ctx, t, slot, mine, theirs, slotList-found)
		if err != nil {
			return err
		}
		if found += n; found >= slotList {
			d.unlisted(slot)
			return nil
		}
		if upto == nil {
			break
		}
		after = upto
	}
	if found == 0 { // can't be: the same snapshots, the same hashes
		d.add(Difference{Kind: Digest, Slot: slot, Table: t.Name})
	}
	return nil
}

// pages gives the rows of both sides between the same two keys: as many as fit a
// page on both. upto is nil at the end.
func (d *differ) pages(ctx context.Context, t table, slot int32, after []string) (mine, theirs []row, upto []string, err error) {
	q := question{Table: t.Name, Slot: slot, After: after, Limit: page}
	if err := d.owner.ask(ctx, opRows, q, &mine); err != nil {
		return nil, nil, nil, err
	}
	if len(mine) == page {
		q.Upto = mine[page-1].Key
	}
	if err := d.standby.ask(ctx, opRows, q, &theirs); err != nil {
		return nil, nil, nil, err
	}
	if len(theirs) == page {
		// Maybe not all up to there: then up to here, which is no more of the owner's.
		q.Upto = theirs[page-1].Key
		mine = nil
		if err := d.owner.ask(ctx, opRows, q, &mine); err != nil {
			return nil, nil, nil, err
		}
	}
	return mine, theirs, q.Upto, nil
}

// rows compares two lists between the same keys, and tells how many differ.
func (d *differ) rows(ctx context.Context, t table, slot int32, mine, theirs []row, most int) (int, error) {
	key := func(r row) string { return strings.Join(r.Key, "\x00") }
	there := map[string]row{}
	for _, r := range theirs {
		there[key(r)] = r
	}
	n := 0
	for _, m := range mine {
		x, ok := there[key(m)]
		delete(there, key(m))
		if ok && x.Hash == m.Hash {
			continue
		}
		if n++; n > most {
			return n, nil
		}
		diff := Difference{Kind: Missing, Slot: slot, Table: t.Name, Key: named(t.Key, m.Key), At: &Version{m.Epoch, m.Rev}}
		if ok {
			diff.Kind, diff.There = Differs, &Version{x.Epoch, x.Rev}
			a, b, err := both[map[string]int64](ctx, d, opColumns, question{Table: t.Name, Slot: slot, Key: m.Key})
			if err != nil {
				return n, err
			}
			for _, c := range slices.Sorted(maps.Keys(a)) {
				if v, ok := b[c]; !ok || v != a[c] {
					diff.Columns = append(diff.Columns, c)
				}
			}
		}
		d.add(diff)
	}
	for _, x := range theirs {
		if _, ok := there[key(x)]; !ok {
			continue
		}
		if n++; n > most {
			return n, nil
		}
		kind := Extra
		if x.Epoch < d.epochs[slot] {
			kind = Tail
		}
		d.add(Difference{Kind: kind, Slot: slot, Table: t.Name, Key: named(t.Key, x.Key), There: &Version{x.Epoch, x.Rev}})
	}
	return n, nil
}

func (d *differ) add(x Difference) {
	x.Owner, x.Standby = d.pair.owner.name, d.pair.standby.name
	d.report.Differences = append(d.report.Differences, x)
}

func (d *differ) unlisted(slot int32) {
	d.report.unlisted = append(d.report.unlisted, place{d.pair.owner.name, d.pair.standby.name, slot})
}

func keyNames(c cellSlots, name string) []string {
	for _, t := range c.Tables {
		if t.Name == name {
			return t.Key
		}
	}
	return nil
}

func named(names, values []string) map[string]string {
	out := map[string]string{}
	for i, v := range values {
		if i < len(names) {
			out[names[i]] = v
		}
	}
	return out
}
