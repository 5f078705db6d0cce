package cdc

import "fmt"

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
	skip  verdict = iota // seen before, or of no use
	apply                // rows and position, or the begin or end of a copy
	gap                  // something is missing
)

// advance is the follower's rule: where it is after a message, and what to do
// with it. A position whose state is Unknown takes nothing but the begin of a copy.
func advance(p Position, m Message) (next Position, v verdict, why string) {
	if m.Kind == KindBegin {
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
		return lost, gap, fmt.Sprintf("nothing between %s and %s", p.LSN, m.Prev)
	}
	next = p
	switch m.Kind {
	case KindTx:
		switch {
		case m.LSN <= p.LSN: // published twice
			return p, skip, ""
		case m.Chunk == 1:
		case m.Commit != p.Commit || m.Chunk > p.Chunk+1:
			return lost, gap, fmt.Sprintf("chunk %d of %s comes after chunk %d of %s", m.Chunk, m.Commit, p.Chunk, p.Commit)
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
