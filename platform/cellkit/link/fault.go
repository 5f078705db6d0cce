package link

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Fault is what is done to a link on purpose, at this agent's end of it. A
// link with a fault at either end has the fault.
type Fault struct {
	Delay  time.Duration `json:"delay"`   // added to each direction; order is kept, throughput isn't throttled
	CutOut bool          `json:"cut_out"` // bytes to the peer are held
	CutIn  bool          `json:"cut_in"`  // bytes from the peer are held
}

// Everyone is the peer name of a fault on all of a zone's links, the edge's
// included: the zone is unplugged.
const Everyone = "*"

// gateState never changes; a new one replaces it and closes next.
type gateState struct {
	cut   bool
	delay time.Duration
	next  chan struct{}
}

// gate is one direction of the link to one peer.
type gate struct{ state atomic.Pointer[gateState] }

func newGate() *gate {
	g := &gate{}
	g.state.Store(&gateState{next: make(chan struct{})})
	return g
}

// set is called by one goroutine at a time.
func (g *gate) set(cut bool, delay time.Duration) {
	old := g.state.Swap(&gateState{cut: cut, delay: delay, next: make(chan struct{})})
	close(old.next)
}

// clear says that bytes may pass at once.
func (g *gate) clear() bool {
	s := g.state.Load()
	return !s.cut && s.delay == 0
}

func (g *gate) delay() time.Duration { return g.state.Load().delay }

// hold waits while the gate is cut; false means that stop came first.
func (g *gate) hold(stop <-chan struct{}) bool {
	for {
		s := g.state.Load()
		if !s.cut {
			return true
		}
		select {
		case <-s.next:
		case <-stop:
			return false
		}
	}
}

// pass takes as long as one packet would.
func (g *gate) pass(ctx context.Context) error {
	if g.clear() {
		return ctx.Err()
	}
	if !g.hold(ctx.Done()) || !sleepUntil(time.Now().Add(g.delay()), ctx.Done()) || !g.hold(ctx.Done()) {
		return ctx.Err()
	}
	return nil
}

// wire is both directions of the link to one peer.
type wire struct{ out, in *gate }

func newWire() *wire { return &wire{out: newGate(), in: newGate()} }

// roundTrip takes as long as a packet and its answer would.
func (w *wire) roundTrip(ctx context.Context) error {
	if err := w.out.pass(ctx); err != nil {
		return err
	}
	return w.in.pass(ctx)
}

// sleepUntil waits for a moment; false means that stop came first.
func sleepUntil(t time.Time, stop <-chan struct{}) bool {
	d := time.Until(t)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stop:
		return false
	}
}

// faults has an agent's faults and the wires they act on.
type faults struct {
	mu    sync.Mutex
	set   map[string]Fault
	wires map[string]*wire
}

func newFaults() *faults {
	return &faults{set: map[string]Fault{}, wires: map[string]*wire{}}
}

// wire gives the peer's wire. The wire of Everyone feels only faults on all
// peers: it is for connections whose peer isn't known yet.
func (f *faults) wire(peer string) *wire {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, ok := f.wires[peer]
	if !ok {
		w = newWire()
		f.wires[peer] = w
		f.tune(peer, w)
	}
	return w
}

func (f *faults) apply(peer string, fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fault == (Fault{}) {
		delete(f.set, peer)
	} else {
		f.set[peer] = fault
	}
	for name, w := range f.wires {
		if peer == Everyone || peer == name {
			f.tune(name, w)
		}
	}
}

// tune gives a wire its own fault and the one on all peers: cables in a row.
func (f *faults) tune(peer string, w *wire) {
	sum := f.set[Everyone]
	if peer != Everyone {
		own := f.set[peer]
		sum.Delay += own.Delay
		sum.CutOut = sum.CutOut || own.CutOut
		sum.CutIn = sum.CutIn || own.CutIn
	}
	w.out.set(sum.CutOut, sum.Delay)
	w.in.set(sum.CutIn, sum.Delay)
}

func (f *faults) list() map[string]Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]Fault, len(f.set))
	for k, v := range f.set {
		out[k] = v
	}
	return out
}
