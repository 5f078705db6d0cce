package verify

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Ask says what to compare.
type Ask struct {
	Slots  *[2]int32     // from and to; nil = all
	Cells  []string      // owners; nil = all
	Repair bool          // have slots that differ copied anew, and compare them again
	List   int           // so many differences are listed; 0 = 1000
	Copied time.Duration // how long a copy may take; 0 = 2 minutes
}

const (
	groupMost  = 2048 // slots under lock at a time
	groupLeast = 64   // fewer aren't tried when they are busy
	pairTries  = 3
)

// run is one comparison of all that was asked for.
type run struct {
	Ask
	cells  map[string]cell
	known  map[string]cellSlots
	report Report
}

// Run compares all copies of all cells' slots. The error is about the question
// only: what can't be compared is in the report.
func Run[C Caller](ctx context.Context, cells map[string]C, a Ask) (Report, error) {
	start := time.Now()
	a.List = cmp.Or(a.List, 1000)
	a.Copied = cmp.Or(a.Copied, 2*time.Minute)
	r := &run{Ask: a, cells: map[string]cell{}, known: map[string]cellSlots{}}
	r.report = Report{
		AtLSN: map[string]lsn{}, Differences: []Difference{}, NotCompared: []NotCompared{}, Pairs: []Pair{}, Left: []Left{}, Limits: limits(),
	}
	for name, c := range cells {
		r.cells[name] = cell{name, c}
	}
	for _, name := range a.Cells {
		if _, ok := cells[name]; !ok {
			return r.report, fmt.Errorf("there is no cell %s", name)
		}
	}
	r.learn(ctx)
	for _, p := range r.pairs() {
		r.group(ctx, p, p.slots)
	}
	r.strays(ctx)
	if a.Repair {
		r.repair(ctx)
	}
	r.report.NotListed = len(r.report.unlisted)
	if r.report.RowsCompared == 0 {
		r.report.left("", "", "", "no row was compared", nil)
	}
	r.report.sort()
	r.report.ElapsedMS = time.Since(start).Milliseconds()
	return r.report, nil
}

// learn asks every cell for its slots.
func (r *run) learn(ctx context.Context) {
	got, failed := each(r.cells, func(c cell) (out cellSlots, err error) {
		return out, c.ask(ctx, opSlots, question{}, &out)
	})
	r.known = got
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		r.report.left(name, "", "", fmt.Sprintf("%s can't be asked: %v", name, failed[name]), nil)
	}
}

// each calls f for every cell at the same time.
func each[T any](cells map[string]cell, f func(cell) (T, error)) (map[string]T, map[string]error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	got, failed := map[string]T{}, map[string]error{}
	for name, c := range cells {
		wg.Go(func() {
			out, err := f(c)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[name] = err
				return
			}
			got[name] = out
		})
	}
	wg.Wait()
	return got, failed
}

// pair is what is compared at one position.
type pair struct {
	owner, standby cell
	slots          []int32
	incoming       bool // not in sync is no failure
}

// wants says whether a slot was asked for.
func (r *run) wants(slot int32) bool {
	return r.Slots == nil || r.Slots[0] <= slot && slot <= r.Slots[1]
}

// pairs groups the slots by owner and copy, in the order of names.
func (r *run) pairs() []pair {
	type key struct {
		owner, standby string
		incoming       bool
	}
	by := map[key][]int32{}
	bare := map[string][]int32{}
	for name, known := range r.known {
		if len(r.Cells) > 0 && !slices.Contains(r.Cells, name) {
			continue
		}
		for _, s := range known.Slots {
			if s.Role != "owner" || !r.wants(s.Slot) {
				continue
			}
			if s.Standby == "" {
				bare[name] = append(bare[name], s.Slot)
			} else {
				k := key{name, s.Standby, false}
				by[k] = append(by[k], s.Slot)
			}
			if s.Incoming != "" {
				k := key{name, s.Incoming, true}
				by[k] = append(by[k], s.Slot)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(bare)) {
		r.report.left(name, "", "", "uncovered: no cell stands by for these slots", bare[name])
	}
	keys := slices.SortedFunc(maps.Keys(by), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.standby, b.standby))
	})
	var out []pair
	for _, k := range keys {
		slots := by[k]
		standby, ok := r.cells[k.standby]
		_, known := r.known[k.standby]
		if !ok || !known {
			if !k.incoming {
				r.report.left(k.owner, k.standby, "", "the standby can't be asked", slots)
			}
			continue
		}
		for part := range slices.Chunk(slots, groupMost) {
			out = append(out, pair{r.cells[k.owner], standby, part, k.incoming})
		}
	}
	return out
}

// group compares some slots of a pair; those that are busy in halves.
func (r *run) group(ctx context.Context, p pair, slots []int32) {
	p.slots = slots
	var err error
	for range pairTries {
		err = r.compare(ctx, p)
		if err == nil || ctx.Err() != nil || errors.Is(err, errBusy) {
			break
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, errBusy) && len(slots) > groupLeast:
		half := len(slots) / 2
		r.group(ctx, p, slots[:half])
		r.group(ctx, p, slots[half:])
	case p.incoming:
	default:
		r.report.left(p.owner.name, p.standby.name, "", err.Error(), slots)
	}
}

var errBusy = errors.New("writers were inside these slots each time that their locks were tried for")

// compare takes the two snapshots and compares them.
func (r *run) compare(ctx context.Context, p pair) error {
	start := time.Now()
	o := side{p.owner, rand.Text()}
	s := side{p.standby, rand.Text()}
	defer o.close(ctx)
	defer s.close(ctx)
	if err := s.ask(ctx, opHold, question{Source: p.owner.name}, nil); err != nil {
		return err
	}
	var mine, theirs snapshot
	if err := o.ask(ctx, opLock, question{Slots: p.slots}, &mine); err != nil {
		return err
	}
	if mine.Busy {
		return errBusy
	}
	waiting := time.Now()
	if err := s.ask(ctx, opAt, question{Incarnation: mine.Incarnation, LSN: mine.LSN, Slots: p.slots}, &theirs); err != nil {
		return err
	}
	line := Pair{
		Owner: p.owner.name, Standby: p.standby.name, AtLSN: mine.LSN, LockMS: mine.LockMS, Tries: mine.Tries,
		WaitMS: time.Since(waiting).Milliseconds(),
	}
	// Nothing goes into the report before all of it is known: it may be tried again.
	found := Report{}
	epochs := r.comparable(p, mine, theirs, &found)
	line.Slots = len(epochs)
	slots := slices.Sorted(maps.Keys(epochs))
	d := differ{r: r, pair: p, owner: o, standby: s, epochs: epochs, report: &found}
	for part := range slices.Chunk(r.tables(p, &found), digested) {
		if len(slots) == 0 {
			break
		}
		n, err := d.tables(ctx, part, slots)
		if err != nil {
			return err
		}
		line.Rows += n
	}
	line.MS = time.Since(start).Milliseconds()
	r.take(found, line)
	return nil
}

func (r *run) take(found Report, line Pair) {
	out := &r.report
	out.RowsCompared += line.Rows
	out.SlotsCompared += line.Slots
	out.Differences = append(out.Differences, found.Differences...)
	out.unlisted = append(out.unlisted, found.unlisted...)
	out.NotCompared = append(out.NotCompared, found.NotCompared...)
	out.Pairs = append(out.Pairs, line)
	out.AtLSN[line.Owner] = max(out.AtLSN[line.Owner], line.AtLSN)
}

// comparable gives the slots whose copy can be relied on in these snapshots, with
// their epochs, and names the others.
func (r *run) comparable(p pair, mine, theirs snapshot, found *Report) map[int32]int64 {
	there := map[int32]slotState{}
	for _, s := range theirs.Slots {
		there[s.Slot] = s
	}
	out := map[int32]int64{}
	not := map[string][]int32{}
	for _, s := range mine.Slots {
		c, ok := there[s.Slot]
		why := ""
		switch {
		case s.Role != "owner" || s.Given:
			why = fmt.Sprintf("%s doesn't own it any more", p.owner.name)
		case s.Standby != p.standby.name && s.Incoming != p.standby.name:
			why = "its standby has just been changed"
		case !ok || c.Role != "standby" && c.Role != "incoming" || c.Owner != p.owner.name:
			why = fmt.Sprintf("%s doesn't stand by for it yet", p.standby.name)
		case c.Epoch != s.Epoch:
			why = fmt.Sprintf("%s has it at another epoch", p.standby.name)
		case c.Copy != "in_sync":
			why = fmt.Sprintf("not in sync: %s", cmp.Or(c.Copy, "nothing is known of it"))
			if c.Reason != "" {
				why += ", " + c.Reason
			}
		}
		if why == "" {
			out[s.Slot] = s.Epoch
		} else if !p.incoming {
			not[why] = append(not[why], s.Slot)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(not)) {
		found.left(p.owner.name, p.standby.name, "", why, not[why])
	}
	return out
}

// tables gives those that both sides have alike, and names the others.
func (r *run) tables(p pair, found *Report) []table {
	there := map[string]table{}
	for _, t := range r.known[p.standby.name].Tables {
		there[t.Name] = t
	}
	var out []table
	for _, t := range r.known[p.owner.name].Tables {
		other, ok := there[t.Name]
		delete(there, t.Name)
		switch {
		case !ok:
			found.left(p.owner.name, p.standby.name, t.Name, "the standby doesn't have this table", p.slots)
		case !slices.Equal(t.Columns, other.Columns) || !slices.Equal(t.Key, other.Key):
			found.left(p.owner.name, p.standby.name, t.Name, "its columns aren't the same in both cells", p.slots)
		default:
			out = append(out, t)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		found.left(p.owner.name, p.standby.name, name, "the owner doesn't have this table", p.slots)
	}
	return out
}

// strays names rows of slots that are nobody's where they are.
func (r *run) strays(ctx context.Context) {
	got, failed := each(r.cells, func(c cell) (out []stray, err error) {
		if _, ok := r.known[c.name]; !ok {
			return nil, nil // named already
		}
		return out, c.ask(ctx, opStrays, question{}, &out)
	})
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		r.report.left("", name, "", fmt.Sprintf("rows of slots that are nobody's weren't looked for: %v", failed[name]), nil)
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		left := Left{Cell: name}
		var slots []int32
		for _, s := range got[name] {
			switch {
			case !r.wants(s.Slot):
			case s.Left:
				left.Rows += s.N
				slots = append(slots, s.Slot)
			default:
				r.stray(name, s)
			}
		}
		if left.Rows > 0 {
			slices.Sort(slots)
			left.Slots = len(slices.Compact(slots))
			r.report.Left = append(r.report.Left, left)
		}
	}
}

func (r *run) stray(name string, s stray) {
	names := keyNames(r.known[name], s.Table)
	for _, x := range s.Rows {
		r.report.Differences = append(r.report.Differences, Difference{
			Kind: Stray, Slot: s.Slot, Table: s.Table, Key: named(names, x.Key), Standby: name,
			There: &Version{x.Epoch, x.Rev}, Rows: [2]int64{0, s.N},
		})
	}
	if int64(len(s.Rows)) < s.N {
		r.report.unlisted = append(r.report.unlisted, place{"", name, s.Slot})
	}
}
