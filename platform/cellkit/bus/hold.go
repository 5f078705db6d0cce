package bus

import (
	"errors"
	"time"

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
	// Hold takes messages that were claimed. Each comes back once, by Take.
	Hold(list []Held)
	// Ready says that Take has something.
	Ready() <-chan struct{}
	// Take gives up to limit messages that may leave now, and those that are no longer
	// this cell's to send.
	Take(limit int) (leave, gone []Held)
}

const (
	maxHeld   = 16 << 10 // messages in memory; more stay due
	crowdWait = time.Second
)

// key names a message while it is held.
type key struct {
	slot routing.Slot
	id   string
}

// admit sorts claimed notes: those that leave now, and those for which there is no
// room. The others are held. One that is held already was claimed again: the later
// claim is the one that is settled, and it waits as it did.
func (d *Dispatcher) admit(notes []note) (leave, crowd []note) {
	if d.o.Commit == nil {
		return notes, nil
	}
	var hold []Held
	for _, n := range notes {
		k := key{n.From, n.ID}
		_, again := d.held[k]
		switch {
		case n.early:
			leave = append(leave, n)
		case again:
			d.held[k] = n
		case len(d.held) >= maxHeld:
			crowd = append(crowd, n)
		default:
			d.held[k] = n
			hold = append(hold, n.held)
		}
	}
	if len(hold) > 0 {
		d.o.Commit.Hold(hold)
	}
	return leave, crowd
}

// released gives the held notes that may leave. Those of a slot that the table has
// taken from this cell meanwhile stay where they are, with those that are gone.
func (d *Dispatcher) released(t *routing.Table) []note {
	if d.o.Commit == nil {
		return nil
	}
	leave, gone := d.o.Commit.Take(dispatchBatch)
	var out []note
	for _, h := range leave {
		k := key{h.Slot, h.ID}
		n, ok := d.held[k]
		if !ok {
			continue
		}
		delete(d.held, k)
		if a, ok := t.Slot(h.Slot); ok && a.Epoch > h.Epoch {
			gone = append(gone, h)
			continue
		}
		out = append(out, n)
	}
	var bad complaints
	for _, h := range gone {
		n, ok := d.held[key{h.Slot, h.ID}]
		if !ok {
			n.Message = Message{ID: h.ID, From: h.Slot}
		}
		delete(d.held, key{h.Slot, h.ID})
		bad.add("not_ours", n, errNotOurs)
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
