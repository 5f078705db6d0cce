package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// awayBound is what a standby's stream may take in this drill. A running cell's is
// larger by far: what takes its changes must keep up with the load within it, or its
// copy begins again and again.
const awayBound = 256 << 10

// standbyAway cuts a cell off until what waits for its standby is past its bound.
// That standby alone is detached, and says so; all others stay in sync. Plugged in
// again it copies, and is equal.
func standbyAway(ctx context.Context, r *run) error {
	calm, most := 5*time.Second, 100*time.Second
	if r.Short {
		calm = 2 * time.Second
	}
	if r.Sabotage {
		most = 30 * time.Second // enough by far where there is a bound
	}
	c, err := r.openCopies(ctx)
	if err != nil {
		return err
	}
	defer c.close(ctx)
	sink := "standby_" + r.Cell
	for _, cell := range r.homes {
		if cell == r.Cell || r.Sabotage {
			continue
		}
		undo, err := r.Copies.Bound(ctx, cell, awayBound)
		if err != nil {
			return err
		}
		r.after(undo)
	}
	if r.Sabotage {
		r.event("sabotage: nothing bounds what waits for %s's standby", r.Cell)
	} else {
		r.event("what waits for a standby is bounded to %d kB", awayBound>>10)
	}
	if err := r.beginInSync(ctx, c, r.othersDoors(false)); err != nil {
		return err
	}
	if err := pause(ctx, calm); err != nil {
		return err
	}
	r.after(func(ctx context.Context) error { return r.System.Plug(ctx, r.Cell) })
	if err := r.System.Unplug(ctx, r.Cell); err != nil {
		return err
	}
	cut := r.event("%s is unplugged", r.Cell)
	looks, left, err := r.detached(ctx, c, sink, most)
	if err != nil {
		return err
	}
	r.report.Figures["detached"] = len(r.homes) - 1 - len(left)
	r.need(len(left) == 0, "%s after it was cut off %s", most, strings.Join(left, "; "))
	if len(left) == 0 {
		r.report.Figures["detached_ms"] = (r.event("every other cell has detached %s, and declared it", sink) - cut).Milliseconds()
	}
	end := r.load.Now() + calm
	for r.load.Now() < end {
		n, err := r.othersInSync(ctx, c)
		if err != nil {
			return err
		}
		looks += n
	}
	r.report.Figures["others_looks"] = looks
	r.need(looks > 0, "no other pair of cells was looked at")
	if r.Sabotage {
		r.end()
		return nil
	}
	return r.backInSync(ctx, c)
}

// backInSync plugs the cell in again, and judges what it has then.
func (r *run) backInSync(ctx context.Context, c *copies) error {
	if err := r.System.Plug(ctx, r.Cell); err != nil {
		return err
	}
	plugged := r.event("%s is plugged in again", r.Cell)
	if err := r.inSyncAgain(ctx, c, plugged, "back_in_sync_ms", r.homes...); err != nil {
		return err
	}
	for _, cell := range r.homes {
		sinks, err := c.sinks(ctx, cell)
		if err != nil {
			return err
		}
		for _, s := range sinks {
			r.need(!s.detached(), "%s still has %s detached: %s", cell, s.name, s.reason)
		}
	}
	r.end()
	all := r.load.Samples()
	survivors, failed, missing := r.survivors(all)
	f := r.report.Figures
	f["survivors_requests"], f["survivors_errors"] = survivors, failed
	r.need(failed == 0, "%d of %d survivors' requests failed%s", failed, survivors, r.examples(false))
	r.need(len(missing) == 0, "survivors had no request of the kinds %v", missing)
	return r.complete(ctx)
}

// detached waits until every other cell has detached the sink, and looks whether
// all others stay in sync meanwhile.
func (r *run) detached(ctx context.Context, c *copies, sink string, most time.Duration) (looks int, left []string, err error) {
	for end := r.load.Now() + most; ; {
		left = nil
		for _, cell := range r.homes {
			if cell == r.Cell {
				continue
			}
			if err := c.busy(ctx, cell); err != nil {
				return looks, nil, err
			}
			sinks, err := c.sinks(ctx, cell)
			if err != nil {
				return looks, nil, err
			}
			for _, s := range sinks {
				switch {
				case s.name == sink && !s.detached():
					left = append(left, fmt.Sprintf("%s hasn't detached %s", cell, sink))
				case s.name == sink && s.reason == "":
					left = append(left, fmt.Sprintf("%s says nothing of why %s is detached", cell, sink))
				case s.name != sink && s.detached():
					r.fail("%s has detached %s, which was not cut off: %s", cell, s.name, s.reason)
					return looks, nil, nil
				}
			}
			if !slices.ContainsFunc(sinks, func(s taker) bool { return s.name == sink }) {
				left = append(left, cell+" has no sink "+sink)
			}
		}
		n, err := r.othersInSync(ctx, c)
		if looks += n; err != nil || len(left) == 0 || r.load.Now() > end {
			return looks, left, err
		}
	}
}

// busy makes commits that every sink of a cell hears of, and that change nothing:
// which slots a few shoppers write, and so for which standby, is chance.
func (c *copies) busy(ctx context.Context, cell string) error {
	db, err := c.db(ctx, cell)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, `DO $$ BEGIN
		FOR i IN 1..200 LOOP
			PERFORM set_config('synchronous_commit', 'off', true), pg_logical_emit_message(true, 'cellmart.beat', '');
			COMMIT;
		END LOOP;
	END $$`)
	return err
}

// othersInSync looks once, and judges, whether the copies that the cut-off cell has
// no part in are in sync.
func (r *run) othersInSync(ctx context.Context, c *copies) (looks int, err error) {
	for _, keeper := range r.homes {
		if keeper == r.Cell {
			continue
		}
		all, err := c.kept(ctx, keeper)
		if err != nil {
			return looks, err
		}
		for _, k := range all {
			if k.source == r.Cell {
				continue
			}
			looks++
			if k.inSync < k.slots {
				return looks, r.once("%d of the %d slots that %s keeps of %s are not in sync meanwhile: %s", k.slots-k.inSync, k.slots, keeper, k.source, k.reason)
			}
		}
	}
	return looks, pause(ctx, 250*time.Millisecond)
}

// once fails with the first such finding only: a look every moment would fill the
// report.
func (r *run) once(format string, args ...any) error {
	const mark = "not in sync meanwhile"
	if !slices.ContainsFunc(r.report.Failed, func(s string) bool { return strings.Contains(s, mark) }) {
		r.fail(format, args...)
	}
	return nil
}

// copies looks at what standbys have, and sources say, in the cells' databases.
type copies struct {
	dsn   map[string]string
	conns map[string]*pgx.Conn
	cells []string
}

func (r *run) openCopies(ctx context.Context) (*copies, error) {
	dsn, err := r.IDs.Databases()
	if err != nil {
		return nil, err
	}
	return &copies{dsn: dsn, conns: map[string]*pgx.Conn{}, cells: r.homes}, nil
}

func (c *copies) close(ctx context.Context) {
	for _, db := range c.conns {
		_ = db.Close(context.WithoutCancel(ctx)) // nothing is open in it
	}
}

// db connects to a cell's database, again when the connection is gone.
func (c *copies) db(ctx context.Context, cell string) (*pgx.Conn, error) {
	if db := c.conns[cell]; db != nil && !db.IsClosed() {
		return db, nil
	}
	db, err := pgx.Connect(ctx, c.dsn[cell])
	if err != nil {
		return nil, err
	}
	c.conns[cell] = db
	return db, nil
}

// one reads one row.
func (c *copies) one(ctx context.Context, cell, sql string, args []any, into ...any) error {
	db, err := c.db(ctx, cell)
	if err != nil {
		return err
	}
	if err := db.QueryRow(ctx, sql, args...).Scan(into...); err != nil {
		return fmt.Errorf("%s: %w", cell, err)
	}
	return nil
}

func list[T any](ctx context.Context, c *copies, cell, sql string, args []any, row pgx.RowToFunc[T]) ([]T, error) {
	db, err := c.db(ctx, cell)
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cell, err)
	}
	return pgx.CollectRows(rows, row)
}

// kept is what a cell keeps of one source.
type kept struct {
	source        string
	slots, inSync int
	reason        string // of one that isn't
}

func (c *copies) kept(ctx context.Context, keeper string) ([]kept, error) {
	return list(ctx, c, keeper, `SELECT source, count(*), count(*) FILTER (WHERE state = 'in_sync'), coalesce(max(reason) FILTER (WHERE state <> 'in_sync'), '')
		FROM cell.standing_by GROUP BY source ORDER BY source`, nil, func(row pgx.CollectableRow) (k kept, err error) {
		return k, row.Scan(&k.source, &k.slots, &k.inSync, &k.reason)
	})
}

// behind says which slots have no copy that is in sync; "" when all have.
func (c *copies) behind(ctx context.Context) (string, error) {
	inSync, reason := map[string]int{}, map[string]string{}
	for _, keeper := range c.cells {
		all, err := c.kept(ctx, keeper)
		if err != nil {
			return "", err
		}
		for _, k := range all {
			inSync[k.source] += k.inSync
			if k.inSync < k.slots {
				reason[k.source] = fmt.Sprintf(" (%d in %s: %s)", k.slots-k.inSync, keeper, k.reason)
			}
		}
	}
	for _, cell := range c.cells {
		var owned int
		if err := c.one(ctx, cell, "SELECT count(*) FROM cell.slots WHERE role = 'owner'", nil, &owned); err != nil {
			return "", err
		}
		if owned == 0 || inSync[cell] < owned {
			return fmt.Sprintf("%d of %s's %d slots have no copy in sync%s", owned-inSync[cell], cell, owned, reason[cell]), nil
		}
	}
	return "", nil
}

// position is how far a cell's database is.
func (c *copies) position(ctx context.Context, cell string) (lsn string, err error) {
	return lsn, c.one(ctx, cell, "SELECT pg_current_wal_insert_lsn()::text", nil, &lsn)
}

// before says who hasn't come to a position of the source; "" when all have.
func (c *copies) before(ctx context.Context, source, lsn string) (string, error) {
	for _, keeper := range c.cells {
		if keeper == source {
			continue
		}
		var at string
		var past bool
		err := c.one(ctx, keeper, "SELECT lsn::text, lsn >= $2::pg_lsn FROM cell.watermarks WHERE source = $1", []any{source, lsn}, &at, &past)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Sprintf("%s has nothing of %s", keeper, source), nil
		}
		if err != nil || !past {
			return fmt.Sprintf("%s is at %s of %s, not at %s", keeper, at, source, lsn), err
		}
	}
	return "", nil
}

// wait asks until the answer is "", and gives the last one.
func (c *copies) wait(ctx context.Context, limit time.Duration, ask func(context.Context) (string, error)) (string, error) {
	for end := time.Now().Add(limit); ; {
		bad, err := ask(ctx)
		if bad == "" || err != nil || time.Now().After(end) {
			return bad, err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return bad, err
		}
	}
}

// now is the database's own time.
func (c *copies) now(ctx context.Context, cell string) (at time.Time, err error) {
	return at, c.one(ctx, cell, "SELECT clock_timestamp()", nil, &at)
}

// copiesSince lists who asked a cell for a copy, and why.
func (c *copies) copiesSince(ctx context.Context, cell string, since time.Time) ([]string, error) {
	return list(ctx, c, cell, "SELECT DISTINCT sink || ': ' || reason FROM cdc.copies WHERE asked_at > $1 ORDER BY 1", []any{since}, pgx.RowTo[string])
}

// taker is what a source says of one who takes its changes.
type taker struct{ name, state, reason string }

func (s taker) detached() bool { return s.state == "detached" }

func (s taker) String() string { return s.name }

func (c *copies) sinks(ctx context.Context, cell string) ([]taker, error) {
	return list(ctx, c, cell, "SELECT sink, state, reason FROM cdc.sinks ORDER BY sink", nil, func(row pgx.CollectableRow) (s taker, err error) {
		return s, row.Scan(&s.name, &s.state, &s.reason)
	})
}

// loss is what a source says of the slots that it has lost.
type loss struct {
	losses int
	reason string
}

func (c *copies) losses(ctx context.Context, cell string) (l loss, err error) {
	return l, c.one(ctx, cell, "SELECT losses, reason FROM cdc.slot", nil, &l.losses, &l.reason)
}

// declared waits until a loss is stored, and the sinks were told.
func (c *copies) declared(ctx context.Context, cell string, before int) (l loss, err error) {
	_, err = c.wait(ctx, recovered, func(ctx context.Context) (string, error) {
		var told bool
		err := c.one(ctx, cell, "SELECT losses, reason, declared FROM cdc.slot", nil, &l.losses, &l.reason, &told)
		if err != nil || l.losses > before && told {
			return "", err
		}
		return "not declared", nil
	})
	return l, err
}

// dropSlot ends the reader of a cell's slot, and drops it before it's back.
func (c *copies) dropSlot(ctx context.Context, cell string) error {
	bad, err := c.wait(ctx, 30*time.Second, func(ctx context.Context) (string, error) {
		db, err := c.db(ctx, cell)
		if err != nil {
			return "", err
		}
		_, err = db.Exec(ctx, "SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE slot_name = (SELECT name FROM cdc.slot) AND active_pid IS NOT NULL")
		if err != nil {
			return "", err
		}
		if _, err := db.Exec(ctx, "SELECT pg_drop_replication_slot(name) FROM cdc.slot"); err != nil {
			return err.Error(), nil // its reader was faster
		}
		return "", nil
	})
	if err == nil && bad != "" {
		err = errors.New(bad)
	}
	return err
}
