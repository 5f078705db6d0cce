package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// A transfer is found by keys: no table is read through for it, in a cell that owns
// all slots.
func TestStoryReadsNoTableThrough(t *testing.T) {
	t.Parallel()
	db, _ := wholeCell(t)
	db.Plant(t, in(ownSlot, wrong))
	db.Plant(t, in(ownSlot, `INSERT INTO cell.credits (slot, epoch, rev, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state)
		SELECT n % 100 + 100, 1, 1, n::bigint * 16384 + n % 100 + 100, 'transfer', 1, 2, 3, 4, 'CNY', 'CREDITED' FROM generate_series(1, 20000) n; ANALYZE cell.credits; ANALYZE cell.slots`))
	conn, err := pgx.Connect(t.Context(), db.AgentDSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	sent := id.Make(103, ownSlot, false)
	var owned []routing.Slot
	if err := conn.QueryRow(t.Context(), "SELECT array_agg(slot) FROM cell.owned").Scan(&owned); err != nil {
		t.Fatal(err)
	}
	asked := []chapter{{sql: sentSQL}, {sql: receivedSQL}}
	args := [][]any{{sent, []routing.Slot{ownSlot}}, {sent, owned}}
	for _, c := range chapters() {
		asked = append(asked, c)
		args = append(args, c.args(sent, sides{ownSlot, ownSlot, ownSlot}))
	}
	for i, c := range asked {
		// Of a few rows a plan would always read them all: without that way, whatever has an index takes it.
		if i != 1 {
			if _, err := conn.Exec(t.Context(), "SET enable_seqscan = off"); err != nil {
				t.Fatal(err)
			}
		} else if _, err := conn.Exec(t.Context(), "SET enable_seqscan = on"); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), "EXPLAIN "+c.sql, args[i]...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if plan := strings.Join(lines, "\n"); err != nil || strings.Contains(plan, "Seq Scan") {
			t.Errorf("read through (%v):\n%s\n%.2000s", err, c.sql, plan)
		}
	}
}

// What the tables remember of a refund, of what is parked and of what an operator
// had done, from both sides.
func TestStoryOfARefund(t *testing.T) {
	t.Parallel()
	db, s := wholeCell(t)
	db.Plant(t, in(ownSlot, `INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, ended_at, refunded) VALUES
			($slot, 1, 1, $4, 'transfer', $1, $2, $slot, 5, 'CNY', 'SETTLED', now(), now(), 3);
		INSERT INTO cell.transfers (slot, epoch, rev, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, refund_of) VALUES
			($slot, 1, 1, $5, 'refund', $2, $1, $slot, 3, 'CNY', 'FROZEN', now(), $4);
		INSERT INTO cell.credits (slot, epoch, rev, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, refund_of, refunded) VALUES
			($slot, 1, 1, $4, 'transfer', $2, $1, $slot, 5, 'CNY', 'CREDITED', 0, 3), ($slot, 1, 1, $5, 'refund', $1, $2, $slot, 3, 'CNY', 'CREDITED', $4, 0);
		INSERT INTO cell.outbox (slot, epoch, rev, id, to_slot, service, kind, key, body, reply_service) VALUES
			($slot, 1, 1, 'transfer.credit:$5', $slot, 'user', 'transfer.credit', '$5', '{}', 'user');
		INSERT INTO cell.outbox (slot, epoch, rev, id, to_slot, service, kind, key, body, reply_to) VALUES
			($slot, 1, 1, 're:$slot:transfer.credit:$5', $slot, 'user', 'transfer.answer', '$5', '{}', 'transfer.credit:$5');
		INSERT INTO cell.relay (slot, id, attempts) VALUES ($slot, 'transfer.credit:$5', 4);
		INSERT INTO cell.parked (slot, epoch, rev, from_slot, id, digest, reason, message) VALUES
			($slot, 1, 1, $slot, 're:$slot:transfer.credit:$5', 'd', 'a conflict', '{"kind":"transfer.answer","key":"$5","body":{"verdict":"CREDITED"}}'), ($slot, 1, 1, $slot, 'm', 'd', 'r', '{"kind":"claim.begin"}')`))
	first, back := id.Make(103, ownSlot, false), id.Make(104, ownSlot, false)
	want := func(n id.ID, lines ...string) {
		t.Helper()
		got, err := s.transfer(t.Context(), n, []routing.Slot{ownSlot})
		if err != nil || got.Source == nil || got.Dest == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		for _, w := range lines {
			found := false
			for _, l := range got.Story {
				found = found || strings.Contains(l.What, w)
			}
			if !found {
				t.Errorf("no %q in %+v", w, got.Story)
			}
		}
	}
	want(first, "source: ended SETTLED", "destination: CREDITED", "source: came back 3 CNY by transfer "+back.String(), "destination: gives back 3 CNY by transfer "+back.String())
	want(back, "refund of "+first.String(), "open, attempts 4", "is an answer", "parked: transfer.answer a conflict")
	stuck, err := s.stuck(t.Context())
	if err != nil || len(stuck) != 1 || stuck[0].ID != back || stuck[0].Attempts != 4 || stuck[0].Parked != "a conflict" || !strings.Contains(string(stuck[0].Answer), "CREDITED") || stuck[0].Kind != "refund" {
		t.Errorf("stuck: %+v, %v", stuck, err)
	}
	parked, err := s.parked(t.Context(), "c1")
	if err != nil || len(parked) != 1 || parked[0].Transfer != back.String() || parked[0].Slot != ownSlot {
		t.Errorf("parked: %+v, %v", parked, err)
	}
	for i, slot := range []routing.Slot{ownSlot, 30000} {
		j, err := s.askJob(t.Context(), agentapi.TransferJob{ID: fmt.Sprint("j", i), Transfer: back, Slot: slot, What: agentapi.Retry, Reason: "why not"})
		if (err == nil) != (slot == ownSlot) || err == nil && j.State != agentapi.JobOpen {
			t.Errorf("job for slot %d: %+v, %v", slot, j, err)
		}
	}
	want(back, "operator: retry why not OPEN")
	if j, err := s.job(t.Context(), "j0"); err != nil || j.What != agentapi.Retry || j.Transfer != back {
		t.Errorf("job: %+v, %v", j, err)
	}
}
