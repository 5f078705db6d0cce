//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"example.com/cellmart/cmd/cellctl/drill/bank"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// promoter fails slots over as the drill bank does.
func promoter(t *testing.T) bank.Promoter {
	t.Helper()
	key, err := link.LoadPublicKey(filepath.Join(sys.root, ".demo", "pki", "control.pub"))
	if err != nil {
		t.Fatal(err)
	}
	p := bank.Promoter{
		Control:   &controlapi.Client{BaseURL: sys.Global.Agent + "/admin/control", Key: key, OperatorKey: sys.OperatorKey},
		Databases: map[string]string{},
	}
	for _, c := range sys.Cells {
		p.Databases[c.Name] = c.PG
	}
	return p
}

// place is who has a slot, once its standby is in sync, and nothing was sent without it.
func place(t *testing.T, p bank.Promoter, slot routing.Slot) (at bank.Place) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("slot %s has a standby in sync", slot), func() (bool, string) {
		all, err := p.Places(t.Context(), []routing.Slot{slot})
		if err != nil || len(all) != 1 {
			return false, fmt.Sprintf("%v, %v", all, err)
		}
		at = all[0]
		if err := errors.Join(p.InSync(t.Context(), at), p.Unmarked(t.Context(), at)); err != nil {
			return false, err.Error()
		}
		return true, ""
	})
	return at
}

// has waits until a shopper sees that much money.
func (u *shopper) has(t *testing.T, want int64) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("user %s has %d", u.id, want), func() (bool, string) {
		a := u.do(t, "GET", "/wallet", "", nil)
		return a.status == 200 && a.num("balances.0.available") == want, a.String()
	})
}

// S-M12: the payee's slot moves to another cell, and later fails over, in the middle
// of a transfer. Each is credited once, and comes to its end.
func TestScenario_M12_PayeeMovesInTheMiddle(t *testing.T) {
	payer, payee := register(t, "c1"), register(t, "c2")
	payer.deposit(t, 10000)
	slot := mustID(t, payee.id).Slot()
	p := promoter(t)
	first := place(t, p, slot)
	to := "c4"
	if first.Standby == "c4" {
		to = "c3"
	}
	lift := func() { mustCellctl(t, "link", "c1", "c2", "--cut", "none") }
	defer func() { // as it was, whoever has it by now
		lift()
		if at := place(t, p, slot); at.Owner != first.Owner {
			if err := p.HandOver(t.Context(), at, "test: back"); err != nil {
				t.Error(err)
			}
		}
		mustCellctl(t, "standby", "set", "--slots", slot.String(), "--to", first.Standby)
		atRest(t)
		covered(t)
	}()
	pay := func(amount int) string {
		return payer.want(t, 202, "POST", "/transfers", fresh("m12"), map[string]any{"to_user": payee.id, "amount": amount, "currency": "CNY"}).str("id")
	}

	// The CREDIT can't get to c2; meanwhile the slot goes to another cell.
	mustCellctl(t, "link", "c1", "c2", "--cut", "both")
	moving := pay(100)
	mustCellctl(t, "standby", "set", "--slots", slot.String(), "--to", to)
	if err := p.HandOver(t.Context(), place(t, p, slot), "test: the payee moves"); err != nil {
		t.Fatal(err)
	}
	lift()
	payer.transfer(t, moving, "SETTLED")
	payee.has(t, 100)

	// It is credited where the standby doesn't hear of it, and fails over: the answer
	// never left, the new owner is asked again.
	at := place(t, p, slot)
	if at.Owner != to {
		t.Fatalf("%s, want the owner %s", at, to)
	}
	defer mustCellctl(t, "link", at.Owner, at.Standby, "--cut", "none")
	for sum, try := int64(100), 0; ; try++ {
		mustCellctl(t, "link", at.Owner, at.Standby, "--cut", "both")
		failing := pay(10)
		sum += 10
		eventually(t, 30*time.Second, "the payee's cell has the money", func() (bool, string) {
			n := text(t, at.Owner, "SELECT count(*)::text FROM cell.credits WHERE transfer_id = "+failing)
			return n == "1", n
		})
		err := p.Promote(t.Context(), at, "test: the payee's cell fails")
		mustCellctl(t, "link", at.Owner, at.Standby, "--cut", "none")
		payer.transfer(t, failing, "SETTLED")
		payee.has(t, sum)
		if err == nil {
			return
		}
		// Slower than the 2 s for which the answer is held: marked, and rightly refused.
		if !errors.Is(err, bank.ErrUncovered) || try == 10 {
			t.Fatal(err)
		}
		at = place(t, p, slot)
	}
}
