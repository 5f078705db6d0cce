//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
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
