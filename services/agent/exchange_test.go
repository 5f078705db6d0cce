package agent

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// row is what the cell has of a slot: owner, standby, incoming, role, epoch, state.
func (b *bench) row(t *testing.T, slot int) string {
	t.Helper()
	var out string
	if err := b.db.Super.QueryRow(t.Context(),
		"SELECT concat_ws(' ', owner, coalesce(standby, '-'), coalesce(incoming, '-'), role, epoch, state) FROM cell.slots WHERE slot = $1", slot).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (b *bench) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.db.Super.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// publishNext brings the bench to the next table, in which slots are as given.
func (b *bench) publishNext(t *testing.T, slots map[routing.Slot]routing.Assignment) {
	t.Helper()
	b.takeNext(t, slots)
	if err := b.k.once(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// takeNext has the keeper hold it only.
func (b *bench) takeNext(t *testing.T, slots map[routing.Slot]routing.Assignment) {
	t.Helper()
	spec := routing.Spread([]string{"c1", "c2", "c3"}).Spec()
	if have, _ := b.k.held(); have != nil {
		spec = have.Spec()
	}
	spec.Version++
	for s, a := range slots {
		spec.Slots[s] = a
	}
	next, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	b.k.take(next, routing.Sign(b.priv, next).Bytes(), "control")
}

type slots = map[routing.Slot]routing.Assignment

// A newer table changes a slot's standby at an equal epoch, and nothing else there.
func TestTableChangesStandbys(t *testing.T) {
	t.Parallel()
	const a = 10
	for _, x := range []struct {
		name   string
		before string // SET of cell.slots for the slot, after the first table
		first  routing.Assignment
		next   routing.Assignment
		want   string
	}{
		{"the owner gets a standby", "", routing.Assignment{Owner: "c1", Epoch: 1}, routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, "c1 c2 - owner 1 active"},
		{"the owner gets another", "", routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, routing.Assignment{Owner: "c1", Standby: "c3", Epoch: 1}, "c1 c3 - owner 1 active"},
		{"the incoming becomes it", "incoming = 'c3'", routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, routing.Assignment{Owner: "c1", Standby: "c3", Epoch: 1}, "c1 c3 - owner 1 active"},
		{"another incoming stays", "incoming = 'c3'", routing.Assignment{Owner: "c1", Epoch: 1}, routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, "c1 c2 c3 owner 1 active"},
		{"the owner has none any more", "", routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, routing.Assignment{Owner: "c1", Epoch: 1}, "c1 - - owner 1 active"},
		{"this cell becomes it", "", routing.Assignment{Owner: "c2", Epoch: 2}, routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 2}, "c2 c1 - standby 2 active"},
		{"this cell was incoming", "incoming = 'c1', role = 'incoming'", routing.Assignment{Owner: "c2", Standby: "c3", Epoch: 2}, routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 2}, "c2 c1 - standby 2 active"},
		{"this cell stays incoming", "incoming = 'c1', role = 'incoming'", routing.Assignment{Owner: "c2", Standby: "c3", Epoch: 2}, routing.Assignment{Owner: "c2", Epoch: 2}, "c2 - c1 incoming 2 active"},
		{"this cell was the standby", "", routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 2}, routing.Assignment{Owner: "c2", Standby: "c3", Epoch: 2}, "c2 c3 - none 2 active"},
		{"nobody's business here", "", routing.Assignment{Owner: "c2", Epoch: 2}, routing.Assignment{Owner: "c2", Standby: "c3", Epoch: 2}, "c2 c3 - none 2 active"},
		{"a draining slot keeps its state", "state = 'draining'", routing.Assignment{Owner: "c1", Epoch: 1}, routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, "c1 c2 - owner 1 draining"},
		{"a slot given away is left alone", "state = 'given', given_to = 'c2'", routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, routing.Assignment{Owner: "c1", Standby: "c3", Epoch: 1}, "c1 c2 - owner 1 given"},
		{"another owner at an equal epoch never", "owner = 'c3', role = 'none'", routing.Assignment{Owner: "c1", Epoch: 1}, routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, "c3 - - none 1 active"},
		{"a newer local epoch is left alone", "epoch = 9", routing.Assignment{Owner: "c1", Epoch: 1}, routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, "c1 - - owner 9 active"},
		{"a new owner drops the incoming", "incoming = 'c3'", routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}, routing.Assignment{Owner: "c2", Standby: "c1", Epoch: 2}, "c2 c1 - standby 2 active"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			bench := newBench(t)
			bench.publishNext(t, slots{a: x.first})
			if x.before != "" {
				bench.exec(t, "UPDATE cell.slots SET "+x.before+" WHERE slot = 10")
			}
			bench.publishNext(t, slots{a: x.next})
			if got := bench.row(t, a); got != x.want {
				t.Errorf("slot %d is %q, want %q", a, got, x.want)
			}
		})
	}
}

// Only slots to which this cell is something are locked: the writers of the others
// don't notice a table. The writer who is inside is waited for.
func TestStandbyChangeWaitsForWhoIsInside(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publishNext(t, slots{10: {Owner: "c1", Standby: "c2", Epoch: 1}, 11: {Owner: "c2", Standby: "c3", Epoch: 2}})
	tx, err := b.db.Super.Begin(t.Context()) // a writer's lock, by one who isn't ended for being idle
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock_shared(4401, 10)"); err != nil {
		t.Fatal(err)
	}
	other, err := b.db.Super.Begin(t.Context()) // not ended for being idle
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_xact_lock(4401, 11)"); err != nil { // this cell is nothing to it
		t.Fatal(err)
	}
	b.takeNext(t, slots{10: {Owner: "c1", Standby: "c3", Epoch: 1}, 11: {Owner: "c2", Epoch: 2}})
	if err := b.k.once(t.Context()); !errors.Is(err, errs.ErrUnavailable) {
		t.Errorf("with a writer inside: %v, want unavailable", err)
	}
	if got := b.row(t, 10); got != "c1 c2 - owner 1 active" {
		t.Errorf("changed while a writer is inside: %s", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.k.once(t.Context()); err != nil {
		t.Error(err)
	}
	if got := b.row(t, 10) + ", " + b.row(t, 11); got != "c1 c3 - owner 1 active, c2 - - none 2 active" {
		t.Errorf("after the writer: %s", got)
	}
}

// The agent of the owner takes a cell as incoming, says where its database is then,
// and refuses what it doesn't own, all of it.
func TestIncoming(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publishNext(t, slots{10: {Owner: "c1", Standby: "c2", Epoch: 1}, 11: {Owner: "c1", Epoch: 1}, 12: {Owner: "c2", Epoch: 2}, 13: {Owner: "c1", Epoch: 1}})
	b.exec(t, "UPDATE cell.slots SET state = 'given', given_to = 'c2' WHERE slot = 13")
	h := httptest.NewServer((&server{cell: "c1", operator: "secret", keeper: b.k, db: b.k.db}).peer(web.Options{Service: "agent", Cell: "c1"}))
	defer h.Close()
	client := &agentapi.Client{BaseURL: h.URL, OperatorKey: "secret"}
	set := func(target string, list ...routing.Slot) (agentapi.Here, error) {
		return client.SetIncoming(t.Context(), agentapi.Incoming{Slots: list, Target: target})
	}
	var before, lsn, incarnation string
	if err := b.db.Super.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		t.Fatal(err)
	}
	at, err := set("c3", 10, 11)
	if err != nil || at.Changed != 2 || at.AppliedRoute != 1 {
		t.Fatalf("set: %+v, %v", at, err)
	}
	if err := b.db.Super.QueryRow(t.Context(), `SELECT pg_current_wal_insert_lsn()::text, (SELECT incarnation::text FROM cell.identity) || '.' || timeline_id::text
		FROM pg_control_checkpoint()`).Scan(&lsn, &incarnation); err != nil || incarnation != at.Incarnation {
		t.Errorf("incarnation %q, want %q, %v", at.Incarnation, incarnation, err)
	}
	var between bool
	if err := b.db.Super.QueryRow(t.Context(), "SELECT $1::text::pg_lsn < $2::text::pg_lsn AND $2::text::pg_lsn <= $3::text::pg_lsn", before, at.LSN, lsn).Scan(&between); err != nil || !between {
		t.Errorf("it says it is at %s, that is not between %s and %s, %v", at.LSN, before, lsn, err)
	}
	if got := b.row(t, 10) + ", " + b.row(t, 11); got != "c1 c2 c3 owner 1 active, c1 - c3 owner 1 active" {
		t.Error(got)
	}
	if again, err := set("c3", 10, 11); err != nil || again.Changed != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
	for name, x := range map[string]struct {
		target string
		list   []routing.Slot
		want   error
	}{
		"another's slot":  {"c3", []routing.Slot{11, 12}, errs.ErrMisrouted},
		"a strange slot":  {"c3", []routing.Slot{999_999}, errs.ErrMisrouted},
		"given away":      {"c3", []routing.Slot{13}, errs.ErrMisrouted},
		"an unknown cell": {"c9", []routing.Slot{10}, errs.Field("", "")},
	} {
		if _, err := set(x.target, x.list...); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
	}
	if _, err := set("c1", 10); err == nil {
		t.Error("a cell became its own incoming one")
	}
	if got, err := set("c2", 10, 11); err != nil || got.Changed != 2 { // it is 10's standby: nobody is incoming then
		t.Errorf("the standby as incoming: %+v, %v", got, err)
	}
	if got := b.row(t, 10) + ", " + b.row(t, 11); got != "c1 c2 - owner 1 active, c1 - c2 owner 1 active" {
		t.Error(got)
	}
	if got, err := set("", 10, 11); err != nil || got.Changed != 1 {
		t.Errorf("let go: %+v, %v", got, err)
	}
	if _, err := (&agentapi.Client{BaseURL: h.URL}).SetIncoming(t.Context(), agentapi.Incoming{}); !errors.Is(err, agentapi.ErrOperator) {
		t.Errorf("without the key: %v", err)
	}
}

// Many slots change in several transactions; a writer who doesn't come out stops
// it, and it goes on where it was.
func TestIncomingOfManySlots(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	all := make([]int32, 1000)
	for i := range all {
		all[i] = int32(i)
	}
	tx, err := b.db.Super.Begin(t.Context()) // a writer's lock, by one who isn't ended for being idle
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock_shared(4401, 500)"); err != nil {
		t.Fatal(err)
	}
	n, err := b.k.db.setIncoming(t.Context(), all, "c2")
	if want := 500 / atOnce * atOnce; n != want || !errors.Is(err, errs.ErrUnavailable) {
		t.Errorf("with a writer inside: %d changed, %v, want %d and unavailable", n, err, want)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := b.k.db.setIncoming(t.Context(), all, "c2")
	if err != nil || n+m != 1000 {
		t.Errorf("then %d changed, %v", m, err)
	}
	rows, err := b.db.Super.Query(t.Context(), "SELECT coalesce(incoming, '-') || ' ' || count(*) FROM cell.slots WHERE slot < 1000 GROUP BY incoming")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if diff := cmp.Diff([]string{"c2 1000"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// A read at a standby goes home, until there are rules for what is read there.
func TestStandbyIsNotRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.publishNext(t, slots{10: {Owner: "c2", Standby: "c1", Epoch: 2}})
	err := pg.See(t.Context(), b.db.App, 10, func(pgx.Tx, bool) error { return nil })
	var e *errs.Error
	if !errors.Is(err, errs.ErrMisrouted) || !errors.As(err, &e) || e.Owner != "c2" || e.Epoch != 2 {
		t.Errorf("a read at the standby: %+v", err)
	}
}

// A table that changes many standbys doesn't lock them all at once: a writer who
// stays inside one slot stops it there, nobody else waits, and it goes on later,
// also to another table that takes some of it back.
func TestManyStandbysChangeSomeAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	all := func(standby string) slots {
		out := slots{}
		for s := range routing.Slot(1000) {
			out[s] = routing.Assignment{Owner: "c1", Standby: standby, Epoch: 1}
		}
		return out
	}
	b.publishNext(t, all("c2"))
	tx, err := b.db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock_shared(4401, 500)"); err != nil {
		t.Fatal(err)
	}
	b.takeNext(t, all("c3"))
	if err := b.k.once(t.Context()); !errors.Is(err, errs.ErrUnavailable) {
		t.Errorf("with a writer inside slot 500: %v", err)
	}
	if got := b.row(t, 0) + ", " + b.row(t, 500); got != "c1 c3 - owner 1 active, c1 c2 - owner 1 active" {
		t.Errorf("then %s", got)
	}
	if v, err := b.k.db.version(t.Context()); err != nil || v != 1 {
		t.Errorf("the database has version %d, %v, want 1 until all is there", v, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := all("c3")
	for s := range routing.Slot(300) {
		back[s] = routing.Assignment{Owner: "c1", Standby: "c2", Epoch: 1}
	}
	b.publishNext(t, back)
	if got := b.row(t, 0) + ", " + b.row(t, 500); got != "c1 c2 - owner 1 active, c1 c3 - owner 1 active" {
		t.Errorf("after the next table %s", got)
	}
}
