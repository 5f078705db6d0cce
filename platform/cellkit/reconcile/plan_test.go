package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg/pgtest"
)

// What slots are meant is worked out once for a question, not for each row of it.
func TestSlotsAreReadOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.NewCell(t, "c1", 1)
	s := scope{From: "{[1,5)}", To: "{[7,9)}", Since: time.Now().Add(-time.Hour), Until: time.Now()}
	for name, q := range map[string]struct {
		sql  string
		args []any
	}{
		"payers": {digestSQL(payers(), s), s.args()},
		"payees": {digestSQL(payees(), s), s.args()},
		"open":   {openSQL, []any{s.Since, s.Until, s.From, s.To, 10}},
	} {
		rows, err := db.Super.Query(t.Context(), "EXPLAIN "+q.sql, q.args...)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, line := range plan {
			found = found || strings.Contains(line, "<@")
			if strings.Contains(line, "<@") && strings.Contains(line, "multirange") {
				t.Errorf("%s: read for each row: %s", name, line)
			}
		}
		if !found {
			t.Errorf("%s: no slots in the plan: %v", name, plan)
		}
	}
}
