package agent

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// A whole cell's database, with three slots that the tests play with.
const (
	ownSlot     routing.Slot = 10
	standbySlot routing.Slot = 11
	noSlot      routing.Slot = 12
)

func wholeCell(t *testing.T) (*pgtest.DB, store) {
	t.Helper()
	of := func(schema, service string) pg.Migrations {
		return pg.Migrations{Schema: schema, FS: os.DirFS("../" + service + "/migrations")}
	}
	db := pgtest.New(t, of("users", "user"), of("orders", "order"), of("inventory", "inventory"))
	pool, err := pg.Open(t.Context(), db.AgentDSN, "c1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return db, store{pool}
}

// in puts a slot, and IDs of it, into SQL: $slot, $1 to $9.
func in(slot routing.Slot, sql string) string {
	pairs := []string{"$slot", slot.String()}
	for n := range int64(9) {
		pairs = append(pairs, "$"+string(rune('1'+n)), id.Make(100+n, slot, false).String())
	}
	return strings.NewReplacer(pairs...).Replace(sql)
}

// wrong has a violation of every check that one database can do of its own money,
// stock and orders.
const wrong = `
	ALTER TABLE cell.wallets DROP CONSTRAINT wallets_zero; ALTER TABLE inventory.stock DROP CONSTRAINT stock_sum;
	INSERT INTO cell.wallets (slot, epoch, rev, user_id, currency, available) VALUES ($slot, 1, 1, $1, 'CNY', 7);
	INSERT INTO cell.postings (slot, epoch, rev, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen) VALUES
		($slot, 1, 1, $2, 'CNY', 1, 'available', 'frozen', 3, 'order:$3', 'freeze', 0, 3), ($slot, 1, 1, $2, 'CNY', 2, 'external', 'available', 3, 'deposit:9', 'deposit', 3, 3);
	INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, created_at, ended_at) VALUES
		($slot, 1, 1, $4, 'transfer', $1, $2, $slot, 5, 'CNY', 'FROZEN', now(), now() - interval '1 h', NULL),
		($slot, 1, 1, $5, 'transfer', $1, $2, $slot, 5, 'CNY', 'SETTLED', now(), now() - interval '1 h', now());
	INSERT INTO cell.credits (slot, epoch, rev, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state) VALUES ($slot, 1, 1, $4, 'transfer', $2, $1, $slot, 1, 'CNY', 'CREDITED');
	INSERT INTO cell.idempotency (slot, epoch, rev, actor, route, key, hash, ref) VALUES ($slot, 1, 1, $1, 'POST /orders', 'a', '', 'x'), ($slot, 1, 1, $1, 'POST /orders', 'b', '', 'x'),
		($slot, 1, 1, $1, 'POST /wallet/withdrawals', 'c', '', '9'), ($slot, 1, 1, $1, 'POST /transfers/:id/refunds', 'd', '', '9');
	UPDATE cell.credits SET refunded = 1 WHERE slot = $slot; UPDATE cell.transfers SET refunded = 1 WHERE slot = $slot AND state = 'SETTLED';
	INSERT INTO cell.outbox (slot, epoch, rev, id, to_slot, service, kind, key, body, reply_service) VALUES ($slot, 1, 1, 'transfer.credit:$4', 1, 'user', 'transfer.credit', '$4', '{}', 'user');
	INSERT INTO cell.relay (slot, id) VALUES ($slot, 'transfer.credit:$4');
	INSERT INTO cell.parked (slot, epoch, rev, from_slot, id, digest, reason, message) VALUES ($slot, 1, 1, 1, 'm', 'd', 'r', '{}');
	INSERT INTO inventory.stock (slot, epoch, rev, sku, seller_id, stocked, free, held) VALUES ($slot, 1, 1, $6, $1, 5, 5, 1);
	INSERT INTO inventory.holds (slot, epoch, rev, id, order_id, buyer_slot, seller_id, state, expires_at) VALUES ($slot, 1, 1, $7, $3, $slot, $1, 'CONFIRMED', now());
	INSERT INTO inventory.hold_lines (slot, epoch, rev, hold_id, sku, quantity) VALUES ($slot, 1, 1, $7, $6, 2);
	INSERT INTO orders.orders (slot, epoch, rev, id, user_id, state, reason, payment_status, fulfilment_status, currency, total, from_cart, deadline) VALUES
		($slot, 1, 1, $3, $1, 'CANCELLED', 'USER', 'RETURNED', 'CANCELLED', 'CNY', 3, false, now()), ($slot, 1, 1, $8, $1, 'PAID', '', 'PAID', 'TO_SHIP', 'CNY', 3, false, now());
	INSERT INTO orders.holds (slot, epoch, rev, order_id, hold_id, seller_id, seller_slot, transfer_id, state, amount) VALUES ($slot, 1, 1, $8, $7, $1, $slot, $5, 'CONFIRMED', 3);
	INSERT INTO users.users (slot, epoch, rev, id, phone, phone_mac, name, password_hash) VALUES ($slot, 1, 1, $1, '+1', '\x01', 'a', 'b');
	INSERT INTO users.claims (slot, epoch, rev, phone_mac, user_id, user_slot, op_id, state) VALUES ($slot, 1, 1, '\x01', $1, $slot, 'op', 'CONFIRMED')`

// What a cell only stands by for is in none of its audits: neither counted nor
// found wrong. The same rows are both once the cell owns the slot, in every one.
func TestAuditsSeeOwnedSlotsOnly(t *testing.T) {
	t.Parallel()
	db, s := wholeCell(t)
	db.Plant(t, in(standbySlot, wrong))
	audits := slices.Concat(checks(), effects())
	for _, owned := range []bool{false, true} {
		if owned {
			db.Own(t, standbySlot, standbySlot)
		} else {
			db.StandBy(t, standbySlot, standbySlot, "c2")
		}
		for _, c := range audits {
			f := agentapi.Facts{Checked: map[string]int64{}}
			err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error { return look(t.Context(), tx, c, &f) })
			if err != nil {
				t.Fatalf("%s: %v: %s", c.id, err, c.found)
			}
			if (len(f.Found) > 0) != owned || c.looked != "SELECT 0" && (f.Checked[c.id] > 0) != owned {
				t.Errorf("%s, owned %v: found %v, looked at %d: %s", c.id, owned, f.Found, f.Checked[c.id], c.found)
			}
		}
		size := map[bool]int{true: 1}[owned]
		for _, part := range []string{agentapi.PartSource, agentapi.PartDest} {
			f, err := s.facts(t.Context(), part)
			if err != nil {
				t.Fatal(err)
			}
			got := [][2]int{{len(f.Transfers), 2 * size}, {len(f.Claims), size}, {len(f.Orders), size}, {0, 0}, {0, 0}}
			if part == agentapi.PartDest {
				got = [][2]int{{0, 0}, {0, 0}, {len(f.Credits), size}, {len(f.Users), size}, {len(f.Holds), size}}
			}
			for i, n := range got {
				if n[0] != n[1] {
					t.Errorf("%s, owned %v: list %d has %d, want %d", part, owned, i, n[0], n[1])
				}
			}
		}
	}
}

// Nor is it in what status and the operator's lists of messages and transfers show.
func TestStatusSeesOwnedSlotsOnly(t *testing.T) {
	t.Parallel()
	db, s := wholeCell(t)
	db.Plant(t, in(standbySlot, wrong))
	before, err := s.counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sent := id.Make(103, standbySlot, false)
	for _, role := range []string{"owner", "standby", "given"} {
		switch role {
		case "standby":
			db.StandBy(t, standbySlot, standbySlot, "c2")
			db.Plant(t, in(standbySlot, "INSERT INTO cell.relay (slot, id) VALUES ($slot, 'transfer.credit:$4')")) // a note that was left
		case "given":
			db.Own(t, standbySlot, standbySlot)
			db.Plant(t, in(standbySlot, "UPDATE cell.slots SET state = 'given', given_to = 'c2' WHERE slot = $slot"))
		}
		want := counts{Owned: before.Owned, Due: 1, Open: 1, Parked: 1, Stuck: 1}
		if role != "owner" {
			want = counts{Owned: before.Owned - 1}
		}
		got, err := s.counts(t.Context())
		if (got.OldestOpenMS > 0) != (role == "owner") {
			t.Errorf("%s: the oldest open message is %v ms old", role, got.OldestOpenMS)
		}
		got.LeaseLeftMS, got.OldestOpenMS = 0, 0
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got)\n%s", role, err, d)
		}
		stuck, err := s.stuck(t.Context())
		if err != nil || (len(stuck) == 1) != (role == "owner") {
			t.Errorf("%s: stuck %v, %v", role, stuck, err)
		}
		shown, err := s.transfer(t.Context(), sent, []routing.Slot{standbySlot})
		if (err == nil) != (role == "owner") || role == "owner" && (shown.Source == nil || shown.Dest == nil || len(shown.Story) != 3) {
			t.Errorf("%s: transfer %+v, %v", role, shown, err)
		}
	}
}

// Each row in the wrong place is named with its table, slot and ID; copies, and what
// is being cleaned up, are in the right one.
func TestMisplacedRowsAreNamed(t *testing.T) {
	t.Parallel()
	db, s := wholeCell(t)
	cart := "INSERT INTO orders.carts (slot, epoch, rev, user_id) VALUES ($slot, 1, 1, $1)"
	other := id.Make(100, noSlot, false).String()
	for _, tc := range []struct {
		name, do, undo, want string
		leftovers            int
	}{
		{"a standby's copy", "UPDATE cell.slots SET role = 'standby', owner = 'c2', standby = 'c1' WHERE slot = $slot; " + cart, "", "", 0},
		{"an incoming copy", "UPDATE cell.slots SET role = 'incoming', owner = 'c2', standby = 'c3', incoming = 'c1' WHERE slot = $slot; " + cart, "", "", 0},
		{"let go of, being cleaned up", "UPDATE cell.slots SET role = 'standby' WHERE slot = $slot; UPDATE cell.slots SET role = 'none', owner = 'c2' WHERE slot = $slot; " + cart, "", "", 1},
		{"a clean-up that doesn't get on", "UPDATE cell.slots SET role = 'standby' WHERE slot = $slot; UPDATE cell.slots SET role = 'none', owner = 'c2' WHERE slot = $slot; " + cart +
			"; UPDATE cell.cleanup SET since = now() - interval '1 h'", "", "orders.carts: row $1 lies in slot $slot, which c2 owns, and the clean-up doesn't get on", 1},
		{"a long clean-up that gets on", "UPDATE cell.slots SET role = 'standby' WHERE slot = $slot; UPDATE cell.slots SET role = 'none', owner = 'c2' WHERE slot = $slot; " + cart +
			"; UPDATE cell.cleanup SET since = now() - interval '1 h'; UPDATE cell.cleanup_run SET batch_at = now()", "", "", 1},
		{"taken from this cell", "UPDATE cell.slots SET role = 'none', owner = 'c2' WHERE slot = $slot; " + cart, "",
			"orders.carts: row $1 lies in slot $slot, which c2 took from this cell: nobody has reviewed it", 1},
		{"somebody else's", "UPDATE cell.slots SET role = 'none', owner = 'c2' WHERE slot = $slot; DELETE FROM cell.cleanup; " + cart, "", "orders.carts: row $1 lies in slot $slot, which c2 owns", 0},
		{"nobody's", "DELETE FROM cell.slots WHERE slot = $slot; " + cart, "INSERT INTO cell.slots (slot, epoch, owner, role) VALUES ($slot, 1, 'c1', 'owner')", "orders.carts: row $1 lies in slot $slot, which nobody owns", 0},
		{"a key of several columns", "UPDATE cell.slots SET role = 'none', owner = 'c2' WHERE slot = $slot; DELETE FROM cell.cleanup; INSERT INTO orders.cart_items (slot, epoch, rev, user_id, sku, quantity) VALUES ($slot, 1, 1, $1, $2, 1)",
			"DELETE FROM orders.cart_items", "orders.cart_items: row $1 $2 lies in slot $slot, which c2 owns", 0},
		{"an ID of another slot", "INSERT INTO orders.carts (slot, epoch, rev, user_id) VALUES ($slot, 1, 1, " + other + ")", "", "orders.carts: user_id " + other + " names slot 12 and lies in slot $slot", 0},
		{"a private slot's", "INSERT INTO cell.slots (slot, epoch, owner, role) VALUES (16500, 1, 'c1', 'owner'); INSERT INTO orders.carts (slot, epoch, rev, user_id) VALUES (16500, 1, 1, $1)", "DELETE FROM cell.slots WHERE slot = 16500", "", 0},
		{"an owner by its own word", "UPDATE cell.slots SET owner = 'c2', standby = 'c1' WHERE slot = $slot", "", "cell.slots: slot $slot has the role owner here, its owner is c2, its standby c1, incoming none", 0},
		{"an owner that doesn't know", "UPDATE cell.slots SET role = 'standby' WHERE slot = $slot", "", "cell.slots: slot $slot has the role standby here, its owner is c1, its standby none, incoming none", 0},
		{"an epoch to come", "INSERT INTO orders.carts (slot, epoch, rev, user_id) VALUES ($slot, 2, 1, $1)", "", "I1 orders.carts has 1 rows of slot $slot at epochs up to 2, the slot is at 1", 0},
	} {
		db.Plant(t, in(ownSlot, tc.do))
		f, err := s.facts(t.Context(), agentapi.PartLocal)
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for _, x := range f.Found {
			got = append(got, strings.TrimPrefix(x.ID+" "+x.Text, "I2 "))
		}
		if tc.want != "" {
			want = []string{in(ownSlot, tc.want)}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, d)
		}
		if f.Leftovers.Slots != tc.leftovers || f.Leftovers.Rows != int64(tc.leftovers) {
			t.Errorf("%s: leftovers %+v, want %d", tc.name, f.Leftovers, tc.leftovers)
		}
		n, err := s.countMisplaced(t.Context())
		if wantN := len(want) - strings.Count(tc.want, "I1 "); err != nil || n != int64(wantN) {
			t.Errorf("%s: %d counted, %v, want %d", tc.name, n, err, wantN)
		}
		db.Plant(t, in(ownSlot, "DELETE FROM orders.carts; "+tc.undo))
		db.Plant(t, in(ownSlot, "UPDATE cell.slots SET role = 'owner', owner = 'c1', standby = NULL, incoming = NULL WHERE slot = $slot; UPDATE cell.cleanup_run SET batch_at = NULL"))
	}
}

// The look for rows in the wrong place goes on by itself, and its figure has an age.
func TestMisplacedRowsAreCounted(t *testing.T) {
	t.Parallel()
	db, s := wholeCell(t)
	p := &places{}
	if l := p.last(); l != nil {
		t.Errorf("nobody has looked, and %+v is known", l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.watch(ctx, &s, slog.New(slog.DiscardHandler), time.Millisecond) }()
	is := func(n int64) func() bool {
		return func() bool { l := p.last(); return l != nil && l.Rows == n }
	}
	eventually(t, "nothing is found", is(0))
	db.Plant(t, "INSERT INTO orders.carts (slot, epoch, rev, user_id) VALUES (30000, 1, 1, 1), (30000, 1, 1, 2)")
	eventually(t, "two rows are found", is(2))
	cancel()
	<-done
	eventually(t, "what is known gets old", func() bool { return p.last().AgeMS > 20 })
}
