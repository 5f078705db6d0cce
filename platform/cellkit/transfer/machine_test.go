package transfer

import (
	"errors"
	"testing"
)

// Every state x every event x every kind, against a table written out in full.
func TestNext(t *testing.T) {
	t.Parallel()
	type step struct {
		state  State
		effect Effect
		err    error
	}
	keep := func(s State, err error) step { return step{s, Nothing, err} }
	want := map[State]map[Event]step{
		Frozen: {
			"CREDITED": {Settled, Settle, nil}, "REFUSED": {Reversed, Reverse, nil}, "CANCELLED": {Reversed, Reverse, nil},
			WishUser: {Cancelling, Ask, nil}, WishDeadline: {Cancelling, Ask, nil}, WishOperator: {Cancelling, Ask, nil},
		},
		Cancelling: {
			"CREDITED": {Settled, Settle, nil}, "REFUSED": {Reversed, Reverse, nil}, "CANCELLED": {Reversed, Reverse, nil},
			WishUser: keep(Cancelling, nil), WishDeadline: keep(Cancelling, nil), WishOperator: keep(Cancelling, nil),
		},
		Settled: {
			"CREDITED": keep(Settled, nil), "REFUSED": keep(Settled, errConflict), "CANCELLED": keep(Settled, errConflict),
			WishUser: keep(Settled, ErrEnded), WishDeadline: keep(Settled, ErrEnded), WishOperator: keep(Settled, ErrEnded),
		},
		Reversed: {
			"CREDITED": keep(Reversed, errConflict), "REFUSED": keep(Reversed, nil), "CANCELLED": keep(Reversed, nil),
			WishUser: keep(Reversed, ErrEnded), WishDeadline: keep(Reversed, ErrEnded), WishOperator: keep(Reversed, ErrEnded),
		},
		Rejected: {
			"CREDITED": keep(Rejected, errConflict), "REFUSED": keep(Rejected, errConflict), "CANCELLED": keep(Rejected, errConflict),
			WishUser: keep(Rejected, ErrEnded), WishDeadline: keep(Rejected, ErrEnded), WishOperator: keep(Rejected, ErrEnded),
		},
		"NOVEL": {
			"CREDITED": keep("NOVEL", errConflict), "REFUSED": keep("NOVEL", errConflict), "CANCELLED": keep("NOVEL", errConflict),
			WishUser: keep("NOVEL", errImpossible), WishDeadline: keep("NOVEL", errImpossible), WishOperator: keep("NOVEL", errImpossible),
		},
	}
	for state, row := range want {
		row["NOVEL"] = keep(state, errImpossible)
		row["" /* no verdict is no answer */] = keep(state, errImpossible)
		for event, w := range row {
			for _, kind := range []Kind{User, Sales, Refund} {
				w := w
				if kind == Sales && (event == WishUser || event == WishDeadline || event == WishOperator) && (state == Frozen || state == Cancelling || state == "NOVEL") {
					w = keep(state, ErrNoCancel)
				}
				s, e, err := Next(kind, state, event)
				if s != w.state || e != w.effect || !errors.Is(err, w.err) {
					t.Errorf("Next(%s, %s, %q) = %s, %d, %v, want %s, %d, %v", kind, state, event, s, e, err, w.state, w.effect, w.err)
				}
			}
		}
	}
}

// An end is never left, whatever comes, and money moves at most once.
func TestNextNeverLeavesAnEnd(t *testing.T) {
	t.Parallel()
	events := []Event{"CREDITED", "REFUSED", "CANCELLED", WishUser, WishDeadline, WishOperator, "NOVEL"}
	var walk func(s State, moved, depth int)
	walk = func(s State, moved, depth int) {
		if moved > 1 {
			t.Fatalf("money moved %d times on the way to %s", moved, s)
		}
		if s.Ended() != (moved == 1) {
			t.Fatalf("%s with money moved %d times", s, moved)
		}
		if depth == 0 {
			return
		}
		for _, e := range events {
			next, effect, err := Next(User, s, e)
			if err != nil && (next != s || effect != Nothing) {
				t.Fatalf("a refused step changes %s to %s", s, next)
			}
			m := moved
			if effect == Settle || effect == Reverse {
				m++
			}
			walk(next, m, depth-1)
		}
	}
	walk(Frozen, 0, 5)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, have := range []Verdict{NoVerdict, Credited, Refused, Cancelled} {
		for _, q := range []Question{AskCredit, AskCancel, 0} {
			for _, kind := range []Kind{User, Sales, Refund} {
				for _, ok := range []bool{true, false} {
					payee := Standing{OK: ok}
					if !ok {
						payee.Reason = "UNKNOWN_PAYEE"
					}
					got, err := Judge(have, q, kind, payee)
					want, fails := wantJudgement(have, q, kind, payee)
					if got != want || (err != nil) != fails {
						t.Errorf("Judge(%q, %d, %s, %v) = %+v, %v, want %+v, error %v", have, q, kind, payee, got, err, want, fails)
					}
				}
			}
		}
	}
}

func wantJudgement(have Verdict, q Question, kind Kind, payee Standing) (Judgement, bool) {
	if have != NoVerdict {
		return Judgement{Verdict: have}, false // first insert wins, for ever
	}
	type c struct {
		q    Question
		kind Kind
		ok   bool
	}
	j, known := map[c]Judgement{
		{AskCredit, User, true}:    {Credited, Available, ""},
		{AskCredit, User, false}:   {Refused, "", "UNKNOWN_PAYEE"},
		{AskCredit, Sales, true}:   {Credited, Available, ""},
		{AskCredit, Sales, false}:  {Credited, Suspense, "UNKNOWN_PAYEE"}, // never refused
		{AskCredit, Refund, true}:  {Credited, Available, ""},
		{AskCredit, Refund, false}: {Refused, "", "UNKNOWN_PAYEE"},
		{AskCancel, User, true}:    {Verdict: Cancelled},
		{AskCancel, User, false}:   {Verdict: Cancelled},
		{AskCancel, Refund, true}:  {Verdict: Cancelled},
		{AskCancel, Refund, false}: {Verdict: Cancelled},
	}[c{q, kind, payee.OK}]
	return j, !known
}
