package bus

import (
	"errors"

	"example.com/cellmart/platform/routing"
)

// Held is a claimed message that may leave the cell when what was committed with it
// is somewhere else too: where the slot's other copies are, and how far they must be.
type Held struct {
	Slot        routing.Slot
	ID          string
	Epoch       routing.Epoch
	Standby     string // "" = none
	Incoming    string // "" = none
	Incarnation string // of the database that At is a place of
	At          int64  // in the WAL, behind the commit of the message
}

// Commit decides when held messages leave (P4). It may be asked by one goroutine.
type Commit interface {
	// Hold takes messages that were claimed. Each comes back by Take. One that is held
	// already waits for what it is given with now.
	Hold(list []Held)
	// Ready says that Take has something.
	Ready() <-chan struct{}
	// Take gives up to limit messages that may leave now, and those that are no longer
	// this cell's to send.
	Take(limit int) (leave, gone []Held)
}

const (
	maxHeld     = 16 << 10 // messages in memory
	maxHeldEach = 4 << 10  // of those that wait for one standby
)

// key names a message while it is held.
type key struct {
	slot routing.Slot
	id   string
}

// admit gives the claimed notes that leave now. The others are held; where there is
// no room they keep the claim's long wait. One that is held already was claimed
// again: the later claim is the one that is settled, and what the slot is now counts.
func (d *Dispatcher) admit(notes []note) (leave []note) {
	if d.o.Commit == nil {
		return notes
	}
	var hold []Held
	crowd := 0
	for _, n := range notes {
		k := key{n.From, n.ID}
		was, again := d.held[k]
		switch {
		case n.Early:
			leave = append(leave, n)
			continue
		case again:
			if !was.held.same(n.held) {
				d.crowd[was.held.Standby]--
				d.crowd[n.held.Standby]++
				hold = append(hold, n.held)
			} else {
				n.held.At = was.held.At
			}
		case len(d.held) >= maxHeld || d.crowd[n.held.Standby] >= maxHeldEach:
			crowd++
			continue
		default:
			d.crowd[n.held.Standby]++
			hold = append(hold, n.held)
		}
		d.held[k] = n
	}
	if crowd > 0 {
		d.failed.WithLabelValues("crowd").Add(float64(crowd))
	}
	if len(hold) > 0 {
		d.o.Commit.Hold(hold)
	}
	return leave
}

// same says that a message waits for the same cells, in the same database.
func (h Held) same(o Held) bool {
	h.At = o.At
	return h == o
}

// forget ends a message's being held.
func (d *Dispatcher) forget(h Held) (n note, ok bool) {
	k := key{h.Slot, h.ID}
	if n, ok = d.held[k]; !ok {
		return n, false
	}
	delete(d.held, k)
	if d.crowd[n.held.Standby]--; d.crowd[n.held.Standby] == 0 {
		delete(d.crowd, n.held.Standby)
	}
	return n, true
}

// released gives the held notes that may leave. Those of a slot that the table has
// taken from this cell meanwhile stay where they are, with those that are gone.
func (d *Dispatcher) released(t *routing.Table) []note {
	if d.o.Commit == nil {
		return nil
	}
	leave, gone := d.o.Commit.Take(dispatchBatch)
	var out []note
	var bad complaints
	for _, h := range leave {
		n, ok := d.forget(h)
		if !ok {
			continue
		}
		if a, ok := t.Slot(h.Slot); ok && a.Epoch > h.Epoch {
			bad.add("not_ours", n, errNotOurs)
			continue
		}
		out = append(out, n)
	}
	for _, h := range gone {
		if n, ok := d.forget(h); ok {
			bad.add("not_ours", n, errNotOurs)
		}
	}
	d.complain(bad)
	return out
}

var errNotOurs = errors.New("the slot isn't this cell's any more at that epoch")

// ready is the channel of d.o.Commit, nil without one.
func (d *Dispatcher) ready() <-chan struct{} {
	if d.o.Commit == nil {
		return nil
	}
	return d.o.Commit.Ready()
}
