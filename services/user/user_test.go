package user

import (
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/id"
)

// Every state of a claim x who begins.
func TestClaimGrant(t *testing.T) {
	t.Parallel()
	const me, other = id.ID(1), id.ID(2)
	type want struct {
		granted, write bool
		winner         id.ID
	}
	for _, state := range []ClaimState{Unclaimed, Claimed, Confirmed, Released} {
		for _, holder := range []id.ID{me, other} {
			for _, op := range []string{"op", "another"} {
				c := Claim{User: holder, OpID: op, State: state}
				w := want{}
				switch {
				case state == Unclaimed:
					w = want{granted: true, write: true}
				case state == Released && holder == other:
					w = want{granted: true, write: true} // the phone is free again
				case state == Released: // but not for a late copy of what is gone
				case holder == me:
					w = want{granted: true}
				case op == "op":
					w = want{winner: other}
				}
				granted, write, winner := c.grant(me, "op")
				if (want{granted, write, winner}) != w {
					t.Errorf("claim %+v, BEGIN of 1 by op: %v, want %+v", c, want{granted, write, winner}, w)
				}
			}
		}
	}
}

func TestClaimConfirm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim     Claim
		write, ok bool
	}{
		{Claim{}, false, false},
		{Claim{User: 1, State: Claimed}, true, true},
		{Claim{User: 1, State: Confirmed}, false, true},
		{Claim{User: 1, State: Released}, false, false},
		{Claim{User: 2, State: Claimed}, false, false},
		{Claim{User: 2, State: Confirmed}, false, false},
	} {
		if write, ok := c.claim.confirm(1); write != c.write || ok != c.ok {
			t.Errorf("%+v confirmed by 1: %v, %v, want %v, %v", c.claim, write, ok, c.write, c.ok)
		}
	}
}

// Every state of a registration x every word of the home.
func TestRegistrationSteps(t *testing.T) {
	t.Parallel()
	type step struct {
		next     RegState
		news, ok bool
	}
	for s, want := range map[RegState][3]step{ // granted, taken, asked
		Pending: {{Active, true, true}, {Taken, true, true}, {Active, true, true}},
		Active:  {{Active, false, true}, {Active, false, false}, {Active, false, true}},
		Taken:   {{Taken, false, false}, {Taken, false, true}, {Taken, false, true}},
		Gone:    {{Gone, false, false}, {Gone, false, true}, {Gone, false, true}},
		"":      {{"", false, false}, {"", false, false}, {Gone, true, true}},
	} {
		var got [3]step
		got[0].next, got[0].news, got[0].ok = s.onGrant()
		got[1].next, got[1].news, got[1].ok = s.onTaken()
		got[2].next, got[2].news = s.onAsk()
		got[2].ok = true
		if got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	for in, ok := range map[string]bool{"1234567": false, "12345678": true, "密码密码密码密码": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false} {
		if err := checkPassword(in); (err == nil) != ok {
			t.Errorf("checkPassword(%d bytes) = %v", len(in), err)
		}
	}
}
