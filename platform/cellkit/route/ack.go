package route

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/cellmart/platform/routing"
)

// SubjectAck is where each process says on the zone's NATS which table it holds:
// at its start, at each change, and with each check.
const SubjectAck = "route.ack"

const (
	ackSilent = 15 * time.Second // three checks: not heard since then, it isn't pushed to any more
	ackForget = 10 * time.Minute // then it's gone, whatever it was
	maxAcks   = 1000             // processes of one zone; a bound for nonsense, not a limit of use
)

// Ack is one process's word.
type Ack struct {
	Process string `json:"process"`
	Version int64  `json:"version"`
	Gone    bool   `json:"gone,omitempty"` // it ends now
}

// Held is what is known of one process.
type Held struct {
	Process string
	Version int64
	Behind  time.Duration // how long it's known to hold an older table than the agent; negative: it doesn't
	Age     time.Duration // since it last said so
}

// Acks is an agent's knowledge of who holds which table. Not heard of is not the
// same as up to date: a process stays in the list for 10 minutes after its last
// word unless it said goodbye, and Settled says whether everyone had the time to
// speak up.
type Acks struct {
	now func() time.Time

	mu      sync.Mutex
	begun   time.Time
	newest  int64
	heard   map[string]*heard
	changed chan struct{}
}

type heard struct {
	version int64
	at      time.Time
	behind  time.Time // zero: not behind
}

// NewAcks knows nobody yet.
func NewAcks() *Acks {
	a := &Acks{now: time.Now, heard: map[string]*heard{}, changed: make(chan struct{}, 1)}
	a.begun = a.now()
	return a
}

// Parse reads what comes on SubjectAck.
func (a *Acks) Parse(b []byte) error {
	var ack Ack
	if err := json.Unmarshal(b, &ack); err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	return a.Note(ack)
}

// Note takes a process's word.
func (a *Acks) Note(ack Ack) error {
	odd := func(r rune) bool { return r <= ' ' || r > '~' } // it's printed to terminals
	if len(ack.Process) == 0 || len(ack.Process) > 100 || strings.ContainsFunc(ack.Process, odd) || ack.Version < 0 {
		return fmt.Errorf("ack of %.40q for version %d", ack.Process, ack.Version)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if ack.Gone {
		delete(a.heard, ack.Process)
		a.tell()
		return nil
	}
	now := a.now()
	h := a.heard[ack.Process]
	if h == nil {
		if len(a.heard) >= maxAcks {
			return fmt.Errorf("more than %d processes", maxAcks)
		}
		h = &heard{version: -1}
		a.heard[ack.Process] = h
	}
	if h.version != ack.Version {
		a.tell()
	}
	h.version, h.at = ack.Version, now
	h.mark(a.newest, now)
	return nil
}

func (h *heard) mark(newest int64, now time.Time) {
	switch {
	case h.version >= newest:
		h.behind = time.Time{}
	case h.behind.IsZero():
		h.behind = now
	}
}

func (a *Acks) tell() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Hold says which version the agent itself holds now, before it pushes it.
func (a *Acks) Hold(version int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if version <= a.newest {
		return
	}
	a.newest = version
	for _, h := range a.heard {
		h.mark(version, a.now())
	}
	a.tell()
}

// Changed gets a word after something new is known; one reader.
func (a *Acks) Changed() <-chan struct{} { return a.changed }

// Listening is how long the words are listened to.
func (a *Acks) Listening() time.Duration { return a.now().Sub(a.begun) }

// Behind says whether somebody who was lately heard of should be pushed to again.
func (a *Acks) Behind() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.heard {
		if !h.behind.IsZero() && a.now().Sub(h.at) < ackSilent {
			return true
		}
	}
	return false
}

// Gather waits after a change for what will change next: until all who were lately
// heard of hold the agent's table, but no longer than limit.
func (a *Acks) Gather(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for a.Behind() {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		}
	}
}

// List gives all known processes by name.
func (a *Acks) List() []Held {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	out := make([]Held, 0, len(a.heard))
	for name, h := range a.heard {
		if now.Sub(h.at) > ackForget {
			delete(a.heard, name)
			continue
		}
		held := Held{Process: name, Version: h.version, Behind: -1, Age: now.Sub(h.at)}
		if !h.behind.IsZero() {
			held.Behind = now.Sub(h.behind)
		}
		out = append(out, held)
	}
	slices.SortFunc(out, func(x, y Held) int { return cmp.Compare(x.Process, y.Process) })
	return out
}

// word is what a process says of what it holds.
func word(process string, t *routing.Holder, gone bool) []byte {
	b, err := json.Marshal(Ack{Process: process, Version: max(0, t.Version()), Gone: gone})
	if err != nil {
		panic(err) // two words and a number always marshal
	}
	return b
}
