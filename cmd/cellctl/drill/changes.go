package drill

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/cmd/cellctl/load"
)

// CopySystem is what the drills about changes and standbys do beyond System.
type CopySystem interface {
	// KeepStore copies a cell's store of messages as it is now; LoseStore kills
	// its NATS, deletes the store, or puts the copy in its place, and starts it.
	KeepStore(ctx context.Context, cell string) error
	LoseStore(ctx context.Context, cell string, back bool) error
	// DropStoreCopy removes what KeepStore made, and has NATS run.
	DropStoreCopy(ctx context.Context, cell string) error
	// Bound starts a cell's agent again with another bound of each sink's stream.
	Bound(ctx context.Context, cell string, bytes int64) (undo func(context.Context) error, err error)
	// Verify does what the verb of cellctl does, over all cells.
	Verify(ctx context.Context) (Compared, error)
}

// Compared is what a comparison of the standbys with their owners has shown.
type Compared struct {
	Rows        int64
	Differences []string
	Failed      []string // what couldn't be compared
}

// recovered bounds how long after a fault's end all copies may take to be in sync.
const recovered = time.Minute

// cdcSlotLost drops a cell's replication slot under load: it's declared, every
// standby and search copy what the cell has, and are complete again.
func cdcSlotLost(ctx context.Context, r *run) error {
	calm := 10 * time.Second
	if r.Short {
		calm = 2 * time.Second
	}
	c, err := r.openCopies(ctx)
	if err != nil {
		return err
	}
	defer c.close(ctx)
	before, err := c.losses(ctx, r.Cell)
	if err != nil {
		return err
	}
	if err := r.beginInSync(ctx, c, nil); err != nil {
		return err
	}
	if err := pause(ctx, calm); err != nil {
		return err
	}
	since, err := c.now(ctx, r.Cell)
	if err != nil {
		return err
	}
	down := r.load.Now()
	if err := c.dropSlot(ctx, r.Cell); err != nil {
		return err
	}
	r.event("%s's replication slot is dropped", r.Cell)
	after, err := c.declared(ctx, r.Cell, before.losses)
	if err != nil {
		return err
	}
	r.need(after.losses == before.losses+1, "the slot was lost once, it is declared %d times more", after.losses-before.losses)
	r.report.Figures["declared"] = after.losses - before.losses
	r.report.Figures["declared_ms"] = (r.event("declared: %s", after.reason) - down).Milliseconds()
	if err := r.inSyncAgain(ctx, c, down, "recovered_ms", r.Cell); err != nil {
		return err
	}
	up := r.load.Now()
	if err := pause(ctx, calm); err != nil {
		return err
	}
	copies, err := c.copiesSince(ctx, r.Cell, since)
	if err != nil {
		return err
	}
	sinks, err := c.sinks(ctx, r.Cell)
	if err != nil {
		return err
	}
	r.report.Figures["sinks"], r.report.Figures["copies"] = len(sinks), len(copies)
	for _, s := range sinks {
		r.need(slices.ContainsFunc(copies, func(x string) bool { return strings.HasPrefix(x, s.name+": ") }), "%s didn't copy again", s.name)
	}
	r.need(len(sinks) == len(r.homes), "%s has the sinks %v, there should be search and a standby in each other cell", r.Cell, sinks)
	r.end()
	if r.Sabotage {
		if err := r.skipSome(ctx, c); err != nil {
			return err
		}
	}
	r.nobodyNoticed(r.load.Samples(), span{down, up})
	return r.complete(ctx)
}

// natsLost loses what a cell's NATS has stored, all of it, then the last half a
// minute: everything is sent again, and applied once. Nothing is copied.
func natsLost(ctx context.Context, r *run) error {
	calm, age := 10*time.Second, 30*time.Second
	if r.Short {
		calm, age = 2*time.Second, 5*time.Second
	}
	c, err := r.openCopies(ctx)
	if err != nil {
		return err
	}
	defer c.close(ctx)
	if err := r.beginInSync(ctx, c, nil); err != nil {
		return err
	}
	if err := pause(ctx, calm); err != nil {
		return err
	}
	since, err := c.now(ctx, r.Cell)
	if err != nil {
		return err
	}
	r.after(func(ctx context.Context) error { return r.Copies.DropStoreCopy(ctx, r.Cell) })
	var broken []span
	for _, back := range []bool{false, true} {
		if back {
			if err := r.Copies.KeepStore(ctx, r.Cell); err != nil {
				return err
			}
			r.event("%s's store of messages is copied", r.Cell)
			if err := pause(ctx, age); err != nil {
				return err
			}
		}
		down := r.load.Now()
		if r.Sabotage {
			if err := c.dropSlot(ctx, r.Cell); err != nil {
				return err
			}
			r.event("sabotage: %s's replication slot is dropped as well", r.Cell)
		}
		if err := r.Copies.LoseStore(ctx, r.Cell, back); err != nil {
			return err
		}
		what, figure := "deleted", "deleted_recovered_ms"
		if back {
			what, figure = fmt.Sprintf("%s old", age), "back_recovered_ms"
		}
		r.event("%s's NATS was killed, its store is %s, and it runs again", r.Cell, what)
		if err := r.inSyncAgain(ctx, c, down, figure, r.Cell); err != nil {
			return err
		}
		broken = append(broken, span{down, r.load.Now()})
		if err := pause(ctx, calm); err != nil {
			return err
		}
		if r.Sabotage {
			break // one round shows it
		}
	}
	r.end()
	copies, err := c.copiesSince(ctx, r.Cell, since)
	if err != nil {
		return err
	}
	r.report.Figures["copies"] = len(copies)
	r.need(len(copies) == 0, "%d sinks copied again, though %s's WAL had everything: %s", len(copies), r.Cell, strings.Join(copies, "; "))
	r.pending(r.load.Samples(), broken)
	r.nobodyNoticed(r.load.Samples(), span{broken[0].from, broken[len(broken)-1].to})
	return r.complete(ctx)
}

// pending shows which share of the requests that other cells have a part in was
// taken and not finished at once, with the store and without.
func (r *run) pending(all []load.Sample, broken []span) {
	share := func(in bool) float64 {
		asked, waits := 0, 0
		for _, x := range all {
			if (x.Kind == load.Order || x.Kind == load.Transfer) && within(broken, x.At) == in {
				asked++
				if x.Status == http.StatusAccepted {
					waits++
				}
			}
		}
		return round(float64(waits) / float64(max(1, asked)))
	}
	r.report.Figures["pending_share_before"], r.report.Figures["pending_share_meanwhile"] = share(false), share(true)
}

// beginInSync starts the load, and waits until every copy is in sync: what a fault
// does can only be seen on a whole system.
func (r *run) beginInSync(ctx context.Context, c *copies, doors func(home int) []int) error {
	if err := r.begin(ctx, r.rate(), doors); err != nil {
		return err
	}
	bad, err := c.wait(ctx, 3*recovered, c.behind) // no promise yet: a drill before may have left much to copy
	if err == nil && bad != "" {
		err = errors.New("before anything is broken: " + bad)
	}
	return err
}

// inSyncAgain waits until every copy is in sync, and that of the sources' slots
// with what they have by now.
func (r *run) inSyncAgain(ctx context.Context, c *copies, down time.Duration, figure string, sources ...string) error {
	past := map[string]string{}
	for _, s := range sources {
		var err error
		if past[s], err = c.position(ctx, s); err != nil {
			return err
		}
	}
	bad, err := c.wait(ctx, recovered, func(ctx context.Context) (string, error) {
		for _, s := range sources {
			if bad, err := c.before(ctx, s, past[s]); bad != "" || err != nil {
				return bad, err
			}
		}
		return c.behind(ctx)
	})
	if err != nil {
		return err
	}
	if bad != "" {
		r.fail("%s later: %s", recovered, bad)
		return nil
	}
	r.report.Figures[figure] = (r.event("all copies of %s are in sync", strings.Join(sources, ", ")) - down).Milliseconds()
	return nil
}

// complete judges what is there once the load is over: every copy is compared with
// its owner, row by row, and every order of the cell's users is found.
func (r *run) complete(ctx context.Context) error {
	looked, missing, err := r.load.Find(ctx, r.broken, 30*time.Second)
	if err != nil {
		return err
	}
	got, err := r.Copies.Verify(ctx)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	f := r.report.Figures
	f["orders_looked_for"], f["orders_not_found"] = looked, len(missing)
	f["rows_compared"], f["differences"] = got.Rows, len(got.Differences)
	r.event("%d rows were compared, %d orders looked for", got.Rows, looked)
	r.need(looked > 0, "%s's users placed no order: search wasn't tried", r.Cell)
	r.need(len(missing) == 0, "%d of %d orders aren't found as they are: %s", len(missing), looked, some(missing))
	r.need(got.Rows > 0, "no row was compared")
	r.need(len(got.Differences) == 0, "%d rows of standbys differ from their owner's: %s", len(got.Differences), some(got.Differences))
	r.need(len(got.Failed) == 0, "not compared: %s", some(got.Failed))
	return nil
}

// drillOrigin names whose changes those of the sabotage are, as the applier's have a
// name: relays drop both. Such names are the server's, not the database's.
const drillOrigin = "'cellmart_drill_' || current_database()"

// skipSome takes rows from a standby, as if changes had been skipped, and has them
// put back later.
func (r *run) skipSome(ctx context.Context, c *copies) error {
	at := r.other()
	rows, err := c.take(ctx, at, r.Cell)
	if err != nil {
		return fmt.Errorf("sabotage: %w", err)
	}
	r.after(func(ctx context.Context) error { return c.giveBack(ctx, at, rows) })
	r.event("sabotage: %d orders of %s are missing in %s's copy, as if their changes had been skipped", len(rows), r.Cell, at)
	if len(rows) == 0 {
		return errors.New("sabotage: there is nothing to skip")
	}
	return nil
}

// take deletes some orders that a cell only stands by for.
func (c *copies) take(ctx context.Context, keeper, source string) (rows []string, err error) {
	err = c.quietly(ctx, keeper, func(tx pgx.Tx) error {
		got, err := tx.Query(ctx, `WITH o AS (
				SELECT o.slot, o.id FROM orders.orders o JOIN cell.slots s ON s.slot = o.slot
				WHERE s.role = 'standby' AND s.owner = $1 ORDER BY o.id DESC LIMIT 3)
			DELETE FROM orders.orders t USING o WHERE t.slot = o.slot AND t.id = o.id RETURNING to_jsonb(t)::text`, source)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(got, pgx.RowTo[string])
		return err
	})
	return rows, err
}

func (c *copies) giveBack(ctx context.Context, keeper string, rows []string) error {
	return c.quietly(ctx, keeper, func(tx pgx.Tx) error {
		for _, row := range rows {
			if _, err := tx.Exec(ctx, "INSERT INTO orders.orders SELECT (jsonb_populate_record(NULL::orders.orders, $1::jsonb)).* ON CONFLICT DO NOTHING", row); err != nil {
				return err
			}
		}
		return nil
	})
}

// quietly does something that no trigger sees, and nobody's change stream has, as
// the database's administrator.
func (c *copies) quietly(ctx context.Context, cell string, do func(pgx.Tx) error) (err error) {
	db, err := c.db(ctx, cell)
	if err != nil {
		return err
	}
	for _, sql := range []string{
		"SELECT pg_replication_origin_create(" + drillOrigin + ") WHERE pg_replication_origin_oid(" + drillOrigin + ") IS NULL",
		"SELECT pg_replication_origin_session_setup(" + drillOrigin + ")",
	} {
		if _, err := db.Exec(ctx, sql); err != nil {
			return err
		}
	}
	defer func() {
		_, undone := db.Exec(ctx, "SELECT pg_replication_origin_session_reset(), pg_replication_origin_drop("+drillOrigin+")")
		err = errors.Join(err, undone)
	}()
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL session_replication_role = replica"); err != nil {
			return err
		}
		return do(tx)
	})
}
