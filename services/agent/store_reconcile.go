package agent

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/pg"
)

// countBooks counts the violations of I3 and I4 that this database shows by itself.
func (s store) countBooks(ctx context.Context) (map[string]bookLook, error) {
	out := map[string]bookLook{}
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '25s'"); err != nil {
			return err
		}
		for _, c := range checks() {
			if c.id != "I3" && c.id != "I4" {
				continue
			}
			var looked, found int64
			if err := tx.QueryRow(ctx, own("SELECT ("+c.looked+"), (SELECT count(*) FROM ("+c.found+") x)")).Scan(&looked, &found); err != nil {
				return fmt.Errorf("%w: %s", err, c.found)
			}
			l := out[c.id]
			l.checked, l.violations = l.checked+looked, l.violations+found
			out[c.id] = l
		}
		return nil
	})
	return out, pg.Error(err)
}
