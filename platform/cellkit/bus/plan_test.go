package bus_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

// The dispatcher looks every 25 ms for what is due. While a cell is away for an
// hour, what waits for it must not be read each time.
func TestClaimReadsOnlyWhatIsDue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := pgx.Connect(t.Context(), db.AgentDSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	for _, c := range []struct {
		name, due, then string
		notes           int
	}{
		{"a young cell: no statistics, a few are due", "now()", "", 20},
		{"nothing is due, and nobody has looked at the table yet", "now() + interval '20 s'", "", 20000},
		{"nothing is due", "now() + interval '20 s'", "ANALYZE cell.relay; ANALYZE cell.slots", 20000},
		{"all of it is due", "now() - random() * interval '1 h'", "ANALYZE cell.relay", 20000},
	} {
		_, err := db.Super.Exec(t.Context(), `TRUNCATE cell.relay;
			INSERT INTO cell.relay (slot, id, due) SELECT n % 100, 'transfer.credit:' || n, `+c.due+` FROM generate_series(1, `+strconv.Itoa(c.notes)+`) n; `+c.then)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, TIMING off) "+bus.ClaimSQL, pgx.QueryExecModeSimpleProtocol, 256, true)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan := strings.Join(lines, "\n")
		if err != nil || strings.Contains(plan, "Seq Scan on relay r ") || strings.Contains(plan, "Rows Removed by Filter: 20000") {
			t.Errorf("%s: all notes are read (%v):\n%s", c.name, err, plan)
		}
		if strings.Contains(plan, "Seq Scan on slots") || strings.Contains(plan, "rows=16385 loops") {
			t.Errorf("%s: all slots are read:\n%s", c.name, plan)
		}
	}
}
