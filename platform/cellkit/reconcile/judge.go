package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// Kind says what is wrong with a transfer.
type Kind string

// The kinds of differences.
const (
	NoCredit  Kind = "no_credit"  // SETTLED, and the destination has no row
	NotGiven  Kind = "not_given"  // SETTLED, and the destination says REFUSED or CANCELLED
	Twice     Kind = "twice"      // CREDITED, and REVERSED or REJECTED: the money is there twice
	NoRefusal Kind = "no_refusal" // REVERSED, and the destination has no row: a late CREDIT would be taken
	NoSource  Kind = "no_source"  // CREDITED or REFUSED, and the source has no transfer
	Fields    Kind = "fields"     // the sides say different things
	Forgotten Kind = "forgotten"  // open, and no message asks for its end
)

// Difference is a transfer whose two sides don't match.
type Difference struct {
	Kind     Kind         `json:"kind"`
	ID       id.ID        `json:"id"`
	From     string       `json:"from"` // the payer's cell
	To       string       `json:"to"`   // the payee's cell
	FromSlot routing.Slot `json:"from_slot"`
	ToSlot   routing.Slot `json:"to_slot"`
	Hour     time.Time    `json:"hour"`
	Text     string       `json:"text"`
}

// judge says what is wrong with a transfer of which the payer's side was read
// before and after the payee's; "" = nothing, or nothing that is certain.
func judge(n id.ID, before, payee, after row) (Kind, string) {
	open := func(s string) bool { return s == "FROZEN" || s == "CANCELLING" }
	switch {
	case before.Owned && payee.Owned && before.State == "SETTLED" && payee.State == "":
		return NoCredit, fmt.Sprintf("transfer %s is SETTLED, its destination has no credit", n)
	case before.Owned && payee.Owned && before.State == "SETTLED" && payee.State != "CREDITED":
		return NotGiven, fmt.Sprintf("transfer %s is SETTLED, its destination says %s", n, payee.State)
	case before.Owned && payee.Owned && (before.State == "REVERSED" || before.State == "REJECTED") && payee.State == "CREDITED":
		return Twice, fmt.Sprintf("transfer %s is both CREDITED and %s", n, before.State)
	case before.Owned && payee.Owned && before.State == "REVERSED" && payee.State == "":
		return NoRefusal, fmt.Sprintf("transfer %s is REVERSED, its destination has no refusal", n)
	case after.Owned && payee.Owned && after.State == "" && (payee.State == "CREDITED" || payee.State == "REFUSED"):
		return NoSource, fmt.Sprintf("credit of transfer %s (%s) has no source", n, payee.State)
	case after.Owned && payee.Owned && after.State != "" && payee.State != "" && !same(after, payee):
		return Fields, fmt.Sprintf("transfer %s: source says %s, destination %s", n, fields(after, payee), fields(payee, after))
	case after.Owned && open(after.State) && !after.Asked && payee.State == "CREDITED":
		return Forgotten, fmt.Sprintf("transfer %s is CREDITED, its source is %s and asks no more", n, after.State)
	case after.Owned && open(after.State) && !after.Asked:
		return Forgotten, fmt.Sprintf("transfer %s is %s and asks no more", n, after.State)
	}
	return "", ""
}

// agree says that all rows were read under the same reigns of both slots. Around a
// promotion one cell may still hold for its own what another has taken over, and
// know nothing of what that did.
func agree(all ...row) bool {
	for _, r := range all {
		if r.FromEpoch != all[0].FromEpoch || r.ToEpoch != all[0].ToEpoch {
			return false
		}
	}
	return true
}

func same(a, b row) bool {
	return a.Amount == b.Amount && a.Currency == b.Currency && a.FromUser == b.FromUser && a.ToUser == b.ToUser
}

// fields is what one side says, as far as it matters beside the other.
func fields(a, b row) string {
	text := fmt.Sprintf("%d %s to %s", a.Amount, a.Currency, a.ToUser)
	if a.FromUser != b.FromUser {
		text += " from " + a.FromUser.String()
	}
	return text
}

// Hour is an hour in which the two sides don't sum up to the same.
type Hour struct {
	Hour     time.Time `json:"hour"`
	End      string    `json:"end"` // SETTLED: beside CREDITED. REVERSED: beside REFUSED and CANCELLED
	Currency string    `json:"currency"`
	Payer    Sums      `json:"payer"`
	Payee    Sums      `json:"payee"`
}

// Sums are of one side. Sum is in minor units, Xor of hashes of the rows.
type Sums struct {
	N   int64  `json:"n"`
	Sum string `json:"sum"`
	Xor int64  `json:"xor"`
}

// differing pairs the groups of both sides and gives those that aren't equal, by
// key, end and currency.
func differing(payer, payee []group) []pairOf {
	type key struct {
		n             int64
		end, currency string
	}
	all := map[key]*pairOf{}
	at := func(g group) *pairOf {
		k := key{g.Key, g.End, g.Currency}
		if all[k] == nil {
			all[k] = &pairOf{key: g.Key, end: g.End, currency: g.Currency, payer: Sums{Sum: "0"}, payee: Sums{Sum: "0"}}
		}
		return all[k]
	}
	for _, g := range payer {
		at(g).payer = Sums{g.N, g.Sum, g.Xor}
	}
	for _, g := range payee {
		at(g).payee = Sums{g.N, g.Sum, g.Xor}
	}
	var out []pairOf
	for _, p := range all {
		if p.payer != p.payee {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b pairOf) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.end, b.end), cmp.Compare(a.currency, b.currency))
	})
	return out
}

type pairOf struct {
	key           int64
	end, currency string
	payer, payee  Sums
}

// keys of what differs, each once.
func keys(all []pairOf) []int64 {
	var out []int64
	for _, p := range all {
		out = append(out, p.key)
	}
	return slices.Compact(out)
}

// suspects are the transfers that both lists don't have alike.
func suspects(payer, payee []line) []ref {
	had := map[line]bool{}
	for _, l := range payer {
		had[l] = true
	}
	var out []ref
	for _, l := range payee {
		if had[l] {
			delete(had, l)
		} else {
			out = append(out, l.ref)
		}
	}
	for l := range had {
		out = append(out, l.ref)
	}
	return unique(out)
}

func unique(refs []ref) []ref {
	slices.SortFunc(refs, func(a, b ref) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return slices.Compact(refs)
}

func hourOf(n int64) time.Time { return time.Unix(n*3600, 0).UTC() }
