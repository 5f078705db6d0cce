package transfer

import (
	"fmt"

	"example.com/cellmart/platform/cellkit/errs"
)

// Kind says what a transfer is for.
type Kind string

// The kinds.
const (
	User   Kind = "transfer" // between two users
	Sales  Kind = "order"    // an order's payment to a seller
	Refund Kind = "refund"   // of either of them, or of a part
)

func (k Kind) known() bool { return k == User || k == Sales || k == Refund }

// State is the source's side of a transfer.
type State string

// The states. Settled, Reversed and Rejected are ends.
const (
	Frozen     State = "FROZEN"
	Cancelling State = "CANCELLING"
	Settled    State = "SETTLED"
	Reversed   State = "REVERSED"
	Rejected   State = "REJECTED"
)

// Ended says whether nothing can happen any more.
func (s State) Ended() bool { return s == Settled || s == Reversed || s == Rejected }

// Verdict is the destination's side: what it did with a transfer, for ever.
type Verdict string

// The verdicts; the empty one means that the destination has no row.
const (
	NoVerdict Verdict = ""
	Credited  Verdict = "CREDITED"
	Refused   Verdict = "REFUSED"
	Cancelled Verdict = "CANCELLED"
)

// Event is what can happen to the source's side: an answer (a Verdict), or a
// wish to cancel.
type Event string

// The wishes. All only ask the destination.
const (
	WishUser     Event = "USER"
	WishDeadline Event = "DEADLINE"
	WishOperator Event = "OPERATOR"
)

// Effect is what a step does beside the new state.
type Effect uint8

// The effects.
const (
	Nothing Effect = iota
	Settle         // frozen -> clearing
	Reverse        // frozen -> available
	Ask            // send CANCEL
)

// The refusals of a step.
var (
	ErrEnded      = errs.New(errs.Conflict, "TRANSFER_ENDED", "this transfer has come to its end")
	ErrNoCancel   = errs.New(errs.Conflict, "TRANSFER_NOT_CANCELLABLE", "the payment of an order can't be cancelled")
	errConflict   = errs.New(errs.Internal, "TRANSFER_CONFLICT", "an answer contradicts what is stored")
	errImpossible = errs.New(errs.Internal, "TRANSFER_CONFLICT", "no such state or event")
)

// Next is the whole machine of the source's side. An answer that contradicts a
// stored end is errConflict: it must be parked, never acted on.
func Next(kind Kind, s State, e Event) (State, Effect, error) {
	switch e {
	case Event(Credited), Event(Refused), Event(Cancelled):
		return onAnswer(s, Verdict(e))
	case WishUser, WishDeadline, WishOperator:
		switch {
		case s.Ended():
			return s, Nothing, ErrEnded
		case kind == Sales:
			return s, Nothing, ErrNoCancel
		case s == Frozen:
			return Cancelling, Ask, nil
		case s == Cancelling: // CANCEL is on its way already
			return s, Nothing, nil
		}
	}
	return s, Nothing, errImpossible.Because(fmt.Errorf("event %q in state %q", e, s))
}

func onAnswer(s State, v Verdict) (State, Effect, error) {
	end, effect := Reversed, Reverse
	if v == Credited {
		end, effect = Settled, Settle
	}
	switch s {
	case Frozen, Cancelling:
		// CANCELLED in FROZEN: the wish was lost with a failover, the tombstone wasn't.
		return end, effect, nil
	case end: // the same answer once more
		return s, Nothing, nil
	}
	return s, Nothing, errConflict.Because(fmt.Errorf("answer %s in state %q", v, s))
}

// Question is what the source asks the destination for.
type Question uint8

// The questions.
const (
	AskCredit Question = iota + 1
	AskCancel
)

// Standing says how the payee stands, as far as a credit goes.
type Standing struct {
	OK     bool
	Reason string // why not: UNKNOWN_PAYEE, PAYEE_CLOSED, BALANCE_LIMIT
}

// Judgement is a verdict and the account that the money goes to ("" = none).
type Judgement struct {
	Verdict Verdict
	Account Account
	Reason  string
}

// Judge is the whole machine of the destination's side. With a row there it
// answers the row and does nothing.
func Judge(have Verdict, q Question, kind Kind, payee Standing) (Judgement, error) {
	switch {
	case have != NoVerdict:
		return Judgement{Verdict: have}, nil
	case q == AskCancel && kind == Sales:
		return Judgement{}, errConflict.Because(fmt.Errorf("the payment of an order is never cancelled"))
	case q == AskCancel:
		return Judgement{Verdict: Cancelled}, nil
	case q == AskCredit && payee.OK:
		return Judgement{Verdict: Credited, Account: Available}, nil
	case q == AskCredit && kind == Sales:
		return Judgement{Verdict: Credited, Account: Suspense, Reason: payee.Reason}, nil
	case q == AskCredit:
		return Judgement{Verdict: Refused, Reason: payee.Reason}, nil
	}
	return Judgement{}, errImpossible.Because(fmt.Errorf("question %d", q))
}
