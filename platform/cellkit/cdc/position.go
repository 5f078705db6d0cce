package cdc

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// State says what a follower knows of its source.
type State string

// The states. Only Live means that everything up to the position is there.
const (
	Unknown State = ""        // nothing is known, or something is missing: a copy must come
	Copying State = "copying" // a copy began: changes are taken, but not all rows are there
	Live    State = "live"    // everything up to the position is there
)

// Position is how far a sink is with one zone. The sink stores it in the same
// commit as the rows.
type Position struct {
	State       State  `json:"state"`
	Incarnation string `json:"incarnation,omitempty"`
	LSN         LSN    `json:"lsn"`
	Copy        string `json:"copy,omitempty"`   // the last copy that began: what came since carries its name
	N           int    `json:"n,omitempty"`      // messages of that copy so far
	Commit      LSN    `json:"commit,omitempty"` // of the transaction that came in part
	Chunk       int    `json:"chunk,omitempty"`  // its last chunk
}

// verdict is what is to be done with a message.
type verdict int

const (
	skip    verdict = iota // seen before, or of no use
	apply                  // rows and position, or the begin or end of a copy
	pass                   // of a copy of some slots: rows, and the position stays
	missing                // something is missing, and may be had again
	gap                    // something is missing, and only a copy has it
)

// advance is the follower's rule: where it is after a message, and what to do
// with it. A position whose state is Unknown takes nothing but the begin of a copy.
func advance(p Position, m Message) (next Position, v verdict, why string) {
	if m.Kind == KindBegin && m.Slots == nil {
		if m.Copy == p.Copy && m.Incarnation == p.Incarnation && p.State != Unknown {
			return p, skip, ""
		}
		// From here the chain holds; what is before it is in the copy.
		return Position{State: Copying, Incarnation: m.Incarnation, LSN: m.Prev, Copy: m.Copy}, apply, ""
	}
	if p.State == Unknown {
		return p, skip, ""
	}
	lost := Position{Incarnation: p.Incarnation, LSN: p.LSN, Copy: p.Copy}
	switch {
	case m.Incarnation != p.Incarnation:
		return lost, gap, fmt.Sprintf("another incarnation of the database, %s after %s", m.Incarnation, p.Incarnation)
	case m.Kind == KindResync:
		return lost, gap, "declared: " + m.Reason
	case m.Prev > p.LSN:
		return p.without(lost, fmt.Sprintf("nothing between %s and %s", p.LSN, m.Prev))
	case m.Slots != nil && (m.Kind == KindBegin || m.Kind == KindCopy || m.Kind == KindEnd):
		return p, pass, ""
	}
	next = p
	switch m.Kind {
	case KindSchema: // KindSchema
		return p, apply, ""
	case KindTx:
		switch {
		case m.LSN <= p.LSN: // published twice
			return p, skip, ""
		case m.Chunk == 1:
		case m.Commit != p.Commit || m.Chunk > p.Chunk+1:
			return p.without(lost, fmt.Sprintf("chunk %d of %s comes after chunk %d of %s", m.Chunk, m.Commit, p.Chunk, p.Commit))
		case m.Chunk <= p.Chunk: // published twice
			return p, skip, ""
		}
		next.Commit, next.Chunk = m.Commit, m.Chunk
		if m.Chunks > 0 {
			next.LSN, next.Commit, next.Chunk = m.LSN, 0, 0
		}
		return next, apply, ""
	case KindCopy, KindEnd:
		switch {
		case p.State != Copying || m.Copy != p.Copy || m.N <= p.N:
			return p, skip, ""
		case m.N != p.N+1:
			return lost, gap, fmt.Sprintf("message %d of the copy comes after %d", m.N, p.N)
		}
		next.N = m.N
		if m.Kind == KindEnd {
			next.State = Live
		}
		return next, apply, ""
	}
	return lost, gap, fmt.Sprintf("a message of kind %q isn't known here", m.Kind)
}

// without says what is to be done when a message's predecessor isn't there: who
// has everything up to a position has it sent again from there.
func (p Position) without(lost Position, why string) (Position, verdict, string) {
	if p.State == Live {
		return p, missing, why
	}
	return lost, gap, why
}

// storedSubject is where a sink says what it has stored, in the zone's NATS.
func storedSubject(sink string) string { return "cdc.stored." + sink }

// resendSubject is where a sink asks to be sent again what comes after a position.
func resendSubject(sink string) string { return "cdc.resend." + sink }

// report is a sink's word on its position: the body of both.
type report struct {
	Incarnation string `json:"incarnation"`
	LSN         LSN    `json:"lsn"`
	State       State  `json:"state"` // Unknown: nothing up to LSN is needed, a copy must come
}

// answer to a question for what is missing, or for a copy.
type answer struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why it can't be: only a copy helps
}

const answerLimit = 2 * time.Second

// AskCopy has the zone's relay copy some slots again, beside the stream. It is
// said until the copy begins; a later call takes an earlier one's place.
func (f *Follower) AskCopy(slots []int32, reason string) {
	f.mu.Lock()
	if f.wish.ID == "" || !slices.Equal(f.wish.Slots, slots) {
		f.wish = wish{ask: ask{ID: rand.Text(), Reason: reason, Slots: slots}}
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Follower) wishing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wish.ID != ""
}

// wished notes that a copy has begun: a name is the question's id and the attempt.
func (f *Follower) wished(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id, _, _ := strings.Cut(name, "/"); id == f.wish.ID {
		f.wish = wish{}
	}
}

// report tells the relay what is stored: it keeps the WAL from there on, and
// sends it again when it is asked to. Lost: the next one says it.
func (f *Follower) report(nc *nats.Conn, pos Position) {
	r := report{Incarnation: pos.Incarnation, LSN: pos.LSN, State: pos.State}
	if pos.State == Unknown {
		if r.LSN = f.unread; r.LSN == 0 {
			return
		}
	}
	if body, err := json.Marshal(r); err == nil {
		_ = nc.Publish(storedSubject(f.o.Sink), body)
	}
}

// resend asks for what is missing. It says true when that is gone, or doesn't come.
func (f *Follower) resend(nc *nats.Conn, pos Position) bool {
	h := &f.hole
	if h.gone || time.Since(h.since) > f.o.times.giveUp {
		return true
	}
	if time.Since(h.asked) < f.o.times.ask/4 {
		return false
	}
	h.asked = time.Now()
	body, err := json.Marshal(report{Incarnation: pos.Incarnation, LSN: pos.LSN, State: pos.State})
	if err != nil {
		return false // can't be: strings
	}
	m, err := nc.Request(resendSubject(f.o.Sink), body, answerLimit)
	var a answer
	if err == nil {
		err = json.Unmarshal(m.Data, &a)
	}
	switch {
	case err != nil:
		f.o.Log.Info("nobody answers who could send again", "error", err)
	case a.OK:
		f.o.Log.Info("asked to be sent again what is missing", "after", pos.LSN.String())
	default:
		h.gone, h.why = true, h.why+"; "+a.Reason
	}
	return h.gone
}

// askAgain asks for the same copy once more when it doesn't come to its end: the
// stream may have lost the rest of it after the relay had given it all. While the
// relay is still at it, the question changes nothing.
func (f *Follower) askAgain(nc *nats.Conn, pos Position) {
	if f.copyAt.IsZero() {
		f.copyAt = time.Now()
	}
	if time.Since(f.copyAt) < f.o.times.stall {
		return
	}
	f.copyAt = time.Now()
	id, _, _ := strings.Cut(pos.Copy, "/")
	f.o.Log.Warn("the copy doesn't go on, it's asked for again", "copy", pos.Copy)
	f.request(nc, ask{ID: id, Reason: "the copy didn't come to its end"})
}

// ask asks the zone's relay for a copy, while one is needed and none began.
func (f *Follower) ask(nc *nats.Conn, pos Position) {
	if pos.State == Live {
		f.askSlots(nc)
	}
	if pos.State == Copying {
		f.askAgain(nc, pos)
	}
	if pos.State != Unknown || f.asking != "" && time.Since(f.askedAt) < f.o.times.ask {
		return
	}
	if f.asking == "" {
		f.asking = rand.Text()
	}
	f.mu.Lock()
	reason := f.status.Reason
	f.mu.Unlock()
	if reason == "" {
		reason = "nothing is known of this zone"
	}
	f.askedAt = time.Now()
	if !f.request(nc, ask{ID: f.asking, Reason: reason}) {
		f.askedAt = time.Now().Add(3*time.Second - f.o.times.ask) // soon again
	}
}

// askSlots asks for the copy of some slots that is wished.
func (f *Follower) askSlots(nc *nats.Conn) {
	f.mu.Lock()
	w := f.wish
	due := w.ID != "" && time.Since(w.at) > f.o.times.ask
	f.mu.Unlock()
	if !due {
		return
	}
	at := time.Now()
	if !f.request(nc, w.ask) {
		at = at.Add(3*time.Second - f.o.times.ask)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wish.ID == w.ID {
		f.wish.at = at
	}
}

func (f *Follower) request(nc *nats.Conn, a ask) bool {
	body, err := json.Marshal(a)
	if err != nil {
		return false // can't be: strings and numbers
	}
	if _, err := nc.Request(askSubject(f.o.Sink), body, answerLimit); err != nil {
		f.o.Log.Info("nobody answers who could copy", "error", err) // once in a while: asked again soon
		return false
	}
	f.o.Log.Info("asked for a copy", "reason", a.Reason, "slots", len(a.Slots))
	return true
}

// lose makes the position one that only a copy leads on from.
func (b *batch) lose(p Position, why string) {
	b.pos, b.moved, b.reason = Position{Incarnation: p.Incarnation, LSN: p.LSN, Copy: p.Copy}, true, why
}

// received notes the newest position that was seen.
func (f *Follower) received(lsn LSN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Received = lsn
}
