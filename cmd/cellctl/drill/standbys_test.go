package drill

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"example.com/cellmart/cmd/cellctl/load"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

// two are the databases of c1, which owns slots, and c2, which stands by for half of
// them, and owns a few of which c1 keeps a copy.
func two(t *testing.T) *copies {
	t.Helper()
	c := &copies{dsn: map[string]string{}, conns: map[string]*pgx.Conn{}, cells: []string{"c1", "c2"}}
	for i, cell := range c.cells {
		db := pgtest.NewCell(t, cell, i+1, cdc.Migrations())
		c.dsn[cell] = db.SuperDSN
	}
	t.Cleanup(func() { c.close(t.Context()) })
	for cell, all := range map[string][]string{
		"c1": {
			"DELETE FROM cell.slots WHERE slot > 19",
			"UPDATE cell.slots SET standby = 'c2' WHERE slot < 10",
			"UPDATE cell.slots SET owner = 'c2', role = 'standby', standby = 'c1' WHERE slot >= 10",
			"INSERT INTO cell.standby_slots (slot, source, epoch, state) SELECT slot, owner, epoch, 'in_sync' FROM cell.slots WHERE role = 'standby' ON CONFLICT (slot) DO UPDATE SET state = 'in_sync', source = excluded.source, epoch = excluded.epoch",
		},
		"c2": {
			"DELETE FROM cell.slots WHERE slot > 19",
			"UPDATE cell.slots SET standby = 'c1' WHERE slot >= 10",
			"UPDATE cell.slots SET owner = 'c1', role = 'standby', standby = 'c2' WHERE slot < 10",
			"INSERT INTO cell.standby_slots (slot, source, epoch, state) SELECT slot, owner, epoch, 'in_sync' FROM cell.slots WHERE role = 'standby' ON CONFLICT (slot) DO UPDATE SET state = 'in_sync', source = excluded.source, epoch = excluded.epoch",
			"CREATE SCHEMA orders", "CREATE TABLE orders.orders (slot int, id bigint PRIMARY KEY, note text)",
			"INSERT INTO orders.orders SELECT n, 16384 * n + n, 'of slot ' || n FROM generate_series(5, 14) n",
		},
	} {
		c.exec(t, cell, all...)
	}
	return c
}

func (c *copies) exec(t *testing.T, cell string, all ...string) {
	t.Helper()
	db, err := c.db(t.Context(), cell)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range all {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %s: %v", cell, sql, err)
		}
	}
}

// Every slot needs a copy that says that it is in sync, and a copy has to have
// passed what the source has now.
func TestBehind(t *testing.T) {
	t.Parallel()
	c := two(t)
	says := func(want string) {
		t.Helper()
		if got, err := c.behind(t.Context()); err != nil || got != want {
			t.Errorf("behind: %q, %v; want %q", got, err, want)
		}
	}
	says("")
	c.exec(t, "c2", "UPDATE cell.standby_slots SET state = 'copying', reason = 'the slot was lost' WHERE slot = 3")
	says("1 of c1's 10 slots have no copy in sync (1 in c2: the slot was lost)")
	c.exec(t, "c2", "UPDATE cell.standby_slots SET state = 'in_sync' WHERE slot = 3", "UPDATE cell.slots SET role = 'none' WHERE slot = 4")
	says("1 of c1's 10 slots have no copy in sync")

	before := func(source, lsn, want string) {
		t.Helper()
		if got, err := c.before(t.Context(), source, lsn); err != nil || got != want {
			t.Errorf("before %s: %q, %v; want %q", lsn, got, err, want)
		}
	}
	before("c1", "0/10", "c2 has nothing of c1")
	c.exec(t, "c2", "INSERT INTO cell.watermarks (source, position, incarnation, lsn) VALUES ('c1', '{}', 'x', '0/F')")
	before("c1", "0/10", "c2 is at 0/F of c1, not at 0/10")
	before("c1", "0/F", "")
	if lsn, err := c.position(t.Context(), "c1"); err != nil || !strings.Contains(lsn, "/") {
		t.Errorf("position %q, %v", lsn, err)
	}
}

// What a source says of its slot and its sinks.
func TestSourceSays(t *testing.T) {
	t.Parallel()
	c := two(t)
	since, err := c.now(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	c.exec(t, "c1",
		"INSERT INTO cdc.slot (name, state, declared, losses, reason) VALUES (current_database() || '_cdc', 'made', true, 3, 'gone')",
		"SELECT pg_create_logical_replication_slot(name, 'pgoutput') FROM cdc.slot",
		"INSERT INTO cdc.copies (sink, id, state, reason, asked_at) VALUES ('search', 'a', 'done', 'lost', now()), ('standby_c2', 'b', 'done', 'old', now() - interval '1 hour')")
	if got, err := c.copiesSince(t.Context(), "c1", since); err != nil || cmp.Diff([]string{"search: lost"}, got) != "" {
		t.Errorf("copies since %s: %v, %v", since, got, err)
	}
	if l, err := c.declared(t.Context(), "c1", 2); err != nil || l != (loss{3, "gone"}) {
		t.Errorf("declared %+v, %v", l, err)
	}
	if err := c.dropSlot(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := c.one(t.Context(), "c1", "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()", nil, &n); err != nil || n != 0 {
		t.Errorf("%d slots after one was dropped, %v", n, err)
	}
}

// The sabotage takes copies only, and what it took comes back as it was.
func TestSkipSome(t *testing.T) {
	t.Parallel()
	c := two(t)
	all := func() (out []string) {
		t.Helper()
		out, err := list(t.Context(), c, "c2", "SELECT to_jsonb(o)::text FROM orders.orders o ORDER BY id", nil, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	was := all()
	rows, err := c.take(t.Context(), "c2", "c1")
	if err != nil || len(rows) != 3 || len(all()) != len(was)-3 || !strings.Contains(rows[0]+rows[1]+rows[2], "of slot 9") {
		t.Fatalf("took %v of %v, %v", rows, was, err)
	}
	if err := c.giveBack(t.Context(), "c2", rows); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, all()); diff != "" {
		t.Errorf("back (-want +got):\n%s", diff)
	}
}

func TestPending(t *testing.T) {
	t.Parallel()
	r := &run{report: &Report{Figures: map[string]any{}}}
	at := func(s int, k load.Kind, status int) load.Sample {
		return load.Sample{At: time.Duration(s) * time.Second, Kind: k, Status: status, OK: true}
	}
	r.pending([]load.Sample{
		at(1, load.Order, http.StatusCreated), at(2, load.Transfer, http.StatusCreated), at(3, load.Transfer, http.StatusAccepted), at(4, load.Order, http.StatusCreated),
		at(11, load.Order, http.StatusAccepted), at(12, load.Transfer, http.StatusCreated), at(12, load.Cart, http.StatusOK),
	}, []span{{10 * time.Second, 20 * time.Second}})
	if b, m := r.report.Figures["pending_share_before"], r.report.Figures["pending_share_meanwhile"]; b != 0.25 || m != 0.5 {
		t.Errorf("pending %v before and %v meanwhile, want 0.25 and 0.5", b, m)
	}
}
