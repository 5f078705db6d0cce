//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/reconcile"
	"example.com/cellmart/services/agent/agentapi"
)

// Each invariant has a violation that is planted behind the services' backs, named
// by cellctl, and taken away again.
func TestPlantedViolationsAreNamed(t *testing.T) {
	seller := register(t, "c2")
	sku := seller.sell(t, 100, 20)
	buyer := register(t, "c1")
	buyer.deposit(t, 10000)
	bought := buyer.do(t, "POST", "/orders", fresh("plant"), items(sku, 2))
	buyer.order(t, bought.str("number"), "PAID")
	var explained struct {
		ID id.ID `json:"id"`
	}
	if err := json.Unmarshal([]byte(mustCellctl(t, "route", bought.str("number"), "-o", "json")), &explained); err != nil {
		t.Fatal(err)
	}
	order := explained.ID.String()
	friend := register(t, "c2")
	sent := buyer.want(t, 202, "POST", "/transfers", fresh("plant"), map[string]any{"to_user": friend.id, "amount": 5, "currency": "CNY"}).str("id")
	buyer.transfer(t, sent, "SETTLED")
	atRest(t)
	user := mustID(t, buyer.id)
	slot := user.Slot().String()
	other := outsider(t, slot)
	plants := []struct {
		id, cell, do, undo, names string
	}{
		{"I1", other, "UPDATE cell.slots SET role = 'owner', owner = '" + other + "' WHERE slot = " + slot,
			"UPDATE cell.slots SET role = 'none', owner = 'c1' WHERE slot = " + slot + "; DELETE FROM cell.cleanup WHERE slot = " + slot, "slot " + slot},
		{"I2", other, "INSERT INTO orders.carts VALUES (" + slot + ", 1, 1, " + buyer.id + ")",
			"DELETE FROM orders.carts WHERE slot = " + slot + " AND user_id = " + buyer.id, "orders.carts: row " + buyer.id + " lies in slot " + slot + ", which c1 owns"},
		{"I3", "c1", "UPDATE cell.wallets SET available = available + 7, external = external - 7 WHERE user_id = " + buyer.id,
			"UPDATE cell.wallets SET available = available - 7, external = external + 7 WHERE user_id = " + buyer.id, "user " + buyer.id},
		{"I4", "c2", "UPDATE cell.credits SET amount = amount + 1 WHERE transfer_id = " + sent,
			"UPDATE cell.credits SET amount = amount - 1 WHERE transfer_id = " + sent, "transfer " + sent},
		{"I5", "c2", "UPDATE inventory.stock SET free = free - 1, held = held + 1 WHERE sku = " + sku,
			"UPDATE inventory.stock SET free = free + 1, held = held - 1 WHERE sku = " + sku, "SKU " + sku},
		{"I6", "c2", "UPDATE inventory.holds SET state = 'RELEASED' WHERE order_id = " + order,
			"UPDATE inventory.holds SET state = 'CONFIRMED' WHERE order_id = " + order, "order " + order},
		{"I7", "c2", "UPDATE users.users u SET phone_mac = decode('00ff', 'hex') WHERE id = " + friend.id,
			"", "user " + friend.id},
		{"I9", "c1", "UPDATE cell.idempotency SET ref = 'x' || ref WHERE route = 'POST /orders' AND ref = '" + order + "'",
			"UPDATE cell.idempotency SET ref = substr(ref, 2) WHERE ref = 'x" + order + "'", "order " + order},
	}
	for _, p := range plants {
		t.Run(p.id, func(t *testing.T) {
			undo := p.undo
			if p.id == "I7" {
				undo = "UPDATE users.users SET phone_mac = decode('" + text(t, p.cell, "SELECT encode(phone_mac, 'hex') FROM users.users WHERE id = "+friend.id) + "', 'hex') WHERE id = " + friend.id
			}
			plant(t, p.cell, p.do)
			out, code := cellctl(t, "invariants", "-o", "json")
			plant(t, p.cell, undo)
			var results []agentapi.Result
			if err := json.Unmarshal([]byte(out), &results); err != nil || code != 1 {
				t.Fatalf("cellctl invariants = %d, %v: %s", code, err, out)
			}
			named := false
			for _, r := range results {
				if r.ID == p.id && r.OK != nil && !*r.OK {
					named = strings.Contains(strings.Join(r.Violations, "\n"), p.names)
				}
			}
			if !named {
				t.Errorf("%s was planted with %q, and not named with %q: %s", p.id, p.do, p.names, out)
			}
		})
	}
	mustCellctl(t, "invariants")
}

// Both sides of all transfers are compared while the demo lives on: what is planted
// between two cells is named to the ID by `cellctl reconcile`, the payer's cell finds
// it by itself too, and nothing is left of it when it's undone.
func TestReconciliationNamesPlantedViolations(t *testing.T) {
	buyer, friend := register(t, "c1"), register(t, "c2")
	buyer.deposit(t, 10000)
	sent := buyer.want(t, 202, "POST", "/transfers", fresh("reconcile"), map[string]any{"to_user": friend.id, "amount": 5, "currency": "CNY"}).str("id")
	buyer.transfer(t, sent, "SETTLED")
	atRest(t)
	lone := id.Make(1<<40, mustID(t, buyer.id).Slot(), false).String()
	slots := fmt.Sprintf("%s, 1, 1, %s", mustID(t, friend.id).Slot(), lone)
	reconciled := func() (r reconcile.Report, code int) {
		out, code := cellctl(t, "reconcile", "--since", "2h", "-o", "json")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("cellctl reconcile = %d, %v: %s", code, err, out)
		}
		return r, code
	}
	is := func(t *testing.T, what string, ok func(reconcile.Report, int) bool) {
		t.Helper()
		eventually(t, 2*time.Minute, what, func() (bool, string) { // what has begun in the last seconds is compared later
			r, code := reconciled()
			return ok(r, code), fmt.Sprintf("cellctl reconcile = %d, %+v", code, r)
		})
	}
	equal := func(r reconcile.Report, code int) bool { return code == 0 && r.Transfers > 0 && len(r.Summary) == 16 }
	is(t, "nothing is planted", equal)
	for _, p := range []struct{ what, cell, do, undo, kind, names string }{
		{
			"one-sided credit", "c2", "INSERT INTO cell.credits (slot, epoch, rev, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, begun_at) VALUES (" + slots +
				", 'transfer', " + friend.id + ", " + buyer.id + ", " + mustID(t, buyer.id).Slot().String() + ", 500, 'CNY', 'CREDITED', now() - interval '1 minute')",
			"DELETE FROM cell.credits WHERE transfer_id = " + lone, "no_source", "credit of transfer " + lone,
		},
		{
			"missing settle", "c1", "UPDATE cell.transfers SET state = 'FROZEN', memo = ended_at::text, ended_at = NULL WHERE id = " + sent,
			"UPDATE cell.transfers SET state = 'SETTLED', ended_at = memo::timestamptz, memo = '' WHERE id = " + sent, "forgotten", "transfer " + sent, // to the microsecond: standbys have it
		},
		{"both ends", "c1", "UPDATE cell.transfers SET state = 'REVERSED' WHERE id = " + sent, "UPDATE cell.transfers SET state = 'SETTLED' WHERE id = " + sent, "twice", "transfer " + sent + " is both CREDITED and REVERSED"},
		{"amount changed", "c2", "UPDATE cell.credits SET amount = amount + 1 WHERE transfer_id = " + sent, "UPDATE cell.credits SET amount = amount - 1 WHERE transfer_id = " + sent, "fields", "transfer " + sent},
	} {
		t.Run(p.what, func(t *testing.T) {
			plant(t, p.cell, p.do)
			named := func(r reconcile.Report, code int) bool {
				return code == 1 && len(r.Differences) == 1 && string(r.Differences[0].Kind) == p.kind && strings.HasPrefix(r.Differences[0].Text, p.names)
			}
			is(t, p.what, named)
			if p.kind == "fields" { // by itself, too
				found := func() (bool, string) {
					s, err := sys.agents["c1"].Status(t.Context())
					return err == nil && slices.ContainsFunc(s.Reconciled, func(r agentapi.Reconciled) bool {
						return r.To == "c2" && slices.ContainsFunc(r.Differences, func(d string) bool { return strings.HasPrefix(d, p.names) })
					}), fmt.Sprintf("%v, %+v", err, s.Reconciled)
				}
				eventually(t, 2*time.Minute, "c1 finds it by itself", found)
			}
			plant(t, p.cell, p.undo)
		})
	}
	is(t, "all is undone", equal)
	mustCellctl(t, "invariants")
}

// A cell that can't be asked is unknown, neither fine nor wrong.
func TestUnknownIsNotFine(t *testing.T) {
	if err := process(t, "c4/agent").Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { restart(t, "c4/agent") })
	out, code := cellctl(t, "invariants", "-o", "json")
	var results []agentapi.Result
	if err := json.Unmarshal([]byte(out), &results); err != nil || code != 1 {
		t.Fatalf("cellctl invariants with an agent dead = %d, %v: %s", code, err, out)
	}
	for _, r := range results {
		if r.OK != nil {
			t.Errorf("%s = %v with a cell unread, want unknown", r.ID, *r.OK)
		}
	}
	if out, code := cellctl(t, "status"); code != 1 || !strings.Contains(out, "c1") || !strings.Contains(out, "c4      ?") {
		t.Errorf("status = %d: %s", code, out)
	}
}

// outsider is a cell that neither owns a slot nor stands by for it.
func outsider(t *testing.T, slot string) string {
	t.Helper()
	for _, cell := range []string{"c2", "c3", "c4"} {
		if text(t, cell, "SELECT role FROM cell.slots WHERE slot = "+slot) == "none" {
			return cell
		}
	}
	t.Fatalf("every cell has a part in slot %s", slot)
	return ""
}

// plant runs SQL as the administrator, past fence and triggers.
func plant(t *testing.T, cell, sql string) {
	t.Helper()
	c := admin(t, cell)
	if tag, err := c.Exec(t.Context(), "SET session_replication_role = replica; "+sql); err != nil || tag.RowsAffected() == 0 {
		t.Fatalf("%s: %s: %v rows, %v", cell, sql, tag, err)
	}
}

func text(t *testing.T, cell, sql string) (out string) {
	t.Helper()
	if err := admin(t, cell).QueryRow(t.Context(), sql).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func admin(t *testing.T, cell string) *pgx.Conn {
	t.Helper()
	at, err := sys.Cell(cell)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), at.PG)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func mustID(t *testing.T, s string) id.ID {
	t.Helper()
	v, err := id.Parse(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return v
}
