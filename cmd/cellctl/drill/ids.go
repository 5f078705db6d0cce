package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/cmd/cellctl/load"
	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/idgen/idgenapi"
)

// IDSystem is what the drills about IDs do beyond System.
type IDSystem interface {
	// SetClock sets the clock of a cell's processes wrong, or right with 0.
	SetClock(ctx context.Context, cell string, d time.Duration) error
	// Starve starts a part again without a way to its agent.
	Starve(ctx context.Context, part string) (undo func(context.Context) error, err error)
	// Databases tells where the cells' are, for a superuser; idgen's under "idgen".
	Databases() (map[string]string, error)
	// IDGen is where an idgen answers.
	IDGen() (string, error)
	// Backup copies idgen's database as it is now; a standby follows it.
	Backup(ctx context.Context, standby bool) error
	// Detach has the standby follow no longer.
	Detach(ctx context.Context) error
	// Replace kills idgen's database, with what it has not told anybody, and puts
	// what Backup made in its place; a standby is promoted.
	Replace(ctx context.Context) error
	// Discard removes what the others left, and has the database run.
	Discard(ctx context.Context) error
}

// ErrLocalOnly is for what can't be done to containers from outside.
var ErrLocalOnly = cellkit.Usage{Err: fmt.Errorf("needs the databases of the demo's processes: scripts/demo --local")}

const idgenPart = "global/idgen"

// idgenDown stops idgen under load: nobody notices, since every process holds
// stock, and a cell has some more.
func idgenDown(ctx context.Context, r *run) error {
	calm, outage := 5*time.Second, time.Minute
	if r.Short {
		calm, outage = 2*time.Second, 6*time.Second
	}
	stop := func() error {
		r.after(func(ctx context.Context) error { return r.System.Start(ctx, idgenPart) })
		return r.System.Stop(ctx, idgenPart, false)
	}
	if r.Sabotage {
		part := r.Cell + "/order"
		if err := stop(); err != nil {
			return err
		}
		undo, err := r.IDs.Starve(ctx, part)
		if err != nil {
			return err
		}
		r.after(undo)
		r.event("sabotage: %s was started without idgen and without its agent: it has no stock and gets none", part)
	}
	if err := r.begin(ctx, r.rate(), nil); err != nil {
		return err
	}
	if err := pause(ctx, calm); err != nil {
		return err
	}
	if !r.Sabotage {
		if err := stop(); err != nil {
			return err
		}
	}
	down := r.event("%s is stopped", idgenPart)
	if err := pause(ctx, outage); err != nil {
		return err
	}
	up := r.load.Now()
	if err := r.System.Start(ctx, idgenPart); err != nil {
		return err
	}
	r.event("%s runs again", idgenPart)
	if err := pause(ctx, calm); err != nil {
		return err
	}
	r.end()
	all := r.load.Samples()
	r.nobodyNoticed(all, span{down, up})
	return nil
}

// nobodyNoticed demands that no request failed, and shows the p99 while it was
// broken beside that of before.
func (r *run) nobodyNoticed(all []load.Sample, broken span) {
	failed, orders := 0, 0
	for _, x := range all {
		if !x.OK {
			failed++
		}
		if broken.has(x.At) && (x.Kind == load.Order || x.Kind == load.Transfer || x.Kind == load.Deposit) {
			orders++
		}
	}
	p99 := func(in span) float64 {
		return load.MS(load.Percentile(load.Took(all, func(x load.Sample) bool { return in.has(x.At) }), 99))
	}
	f := r.report.Figures
	f["requests"], f["errors"], f["logged_in_again"] = len(all), failed, r.load.LoggedIn()
	f["requests_with_ids_meanwhile"], f["p99_before_ms"], f["p99_meanwhile_ms"] = orders, p99(span{0, broken.from}), p99(broken)
	f["broken_ms"] = (broken.to - broken.from).Milliseconds()
	r.need(failed == 0, "%d of %d requests failed%s", failed, len(all), r.examples(false)+r.examples(true))
	r.need(orders > 0, "no request needed an ID meanwhile: nothing was tried")
}

// clockBack sets the clock of a cell's processes back by an hour, forward by an
// hour, and right again, under load.
func clockBack(ctx context.Context, r *run) error {
	window := 10 * time.Second
	if r.Short {
		window = 3 * time.Second
	}
	if r.Sabotage {
		part := r.Cell + "/user"
		undo, err := r.IDs.Starve(ctx, part)
		if err != nil {
			return err
		}
		r.after(undo)
		r.event("sabotage: %s doesn't hear of its agent's clock, and gives out tokens of another time", part)
	}
	// Tokens of another time are refused by others' gateways, as they should be: the
	// cell's own people come in at home, and only they.
	doors := func(home int) []int {
		if home == r.broken {
			return []int{home}
		}
		return r.othersDoors(false)(home)
	}
	r.Load.Edgeless = true                                          // it doesn't know that a gateway's clock is wrong
	r.Load.LogsIn = func(home int) bool { return home == r.broken } // a token of another hour is refused, as it should be
	if err := r.begin(ctx, r.rate(), doors); err != nil {
		return err
	}
	if err := pause(ctx, window); err != nil {
		return err
	}
	from := r.load.Now()
	r.after(func(ctx context.Context) error { return r.IDs.SetClock(ctx, r.Cell, 0) })
	for _, d := range []time.Duration{-time.Hour, time.Hour, 0} {
		if err := r.IDs.SetClock(ctx, r.Cell, d); err != nil {
			return err
		}
		r.event("the clock of %s's processes is %v off", r.Cell, d)
		if !r.Sabotage { // what a start does with such a clock: it has no floor of its own yet
			if err := r.fresh(ctx); err != nil {
				return err
			}
		}
		if err := pause(ctx, window); err != nil {
			return err
		}
	}
	to := r.load.Now()
	r.end()
	r.nobodyNoticed(r.load.Samples(), span{from, to})
	if _, err := r.IDs.Databases(); errors.As(err, new(cellkit.Usage)) {
		r.event("the databases of containers can't be read from here: IDs are not compared")
		return nil
	}
	j, err := r.journal(ctx)
	if err != nil {
		return err
	}
	return r.noneTwice(ctx, j)
}

// fresh has a process start, and end again, beside the one that runs.
func (r *run) fresh(ctx context.Context) error {
	name, err := r.System.AddInstance(ctx, r.Cell+"/order")
	if err != nil {
		return err
	}
	return r.System.RemoveInstance(ctx, name)
}

// ledger is what was leased of each kind.
type ledger map[string][]leased

type leased struct {
	lo, hi int64
	holder string
}

func (j ledger) add(kind string, l leased) {
	if !slices.Contains(j[kind], l) {
		j[kind] = append(j[kind], l)
	}
}

// overlaps gives the pairs of different leases that have a sequence in common.
func (j ledger) overlaps() (out []string) {
	for kind, all := range j {
		slices.SortFunc(all, func(a, b leased) int { return int(min(max(a.lo-b.lo, -1), 1)) })
		top := leased{}
		for _, l := range all {
			if l.lo < top.hi {
				out = append(out, fmt.Sprintf("%s [%d, %d) of %s and [%d, %d) of %s", kind, top.lo, top.hi, top.holder, l.lo, l.hi, l.holder))
			}
			if l.hi > top.hi {
				top = l
			}
		}
	}
	return out
}

// has says whether a sequence was leased. overlaps must have been called: it sorts.
func (j ledger) has(kind string, seq int64) bool {
	all := j[kind]
	i, found := slices.BinarySearchFunc(all, seq, func(l leased, seq int64) int { return int(min(max(l.lo-seq, -1), 1)) })
	return found || i > 0 && seq < all[i-1].hi
}

// journal reads idgen's.
func (r *run) journal(ctx context.Context) (ledger, error) {
	dbs, err := r.IDs.Databases()
	if err != nil {
		return nil, err
	}
	c, err := pgx.Connect(ctx, dbs["idgen"])
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	rows, err := c.Query(ctx, "SELECT k.kind, j.lo, j.hi, j.holder FROM idgen.journal j JOIN idgen.kinds k USING (number)")
	if err != nil {
		return nil, err
	}
	j := ledger{}
	var kind string
	var l leased
	_, err = pgx.ForEachRow(rows, []any{&kind, &l.lo, &l.hi, &l.holder}, func() error {
		j[kind] = append(j[kind], l)
		return nil
	})
	return j, err
}

// issued are the IDs that a cell's database has, by kind: where they were made.
// What it only keeps a copy of was issued elsewhere.
var issued = map[string]string{
	idgenapi.User:     "SELECT u.id FROM users.users u" + owned,
	idgenapi.Order:    "SELECT u.id FROM orders.orders u" + owned,
	idgenapi.Hold:     "SELECT u.hold_id FROM orders.holds u" + owned,
	idgenapi.Transfer: "SELECT u.id FROM cell.transfers u" + owned,
}

const owned = " JOIN cell.slots s ON s.slot = u.slot WHERE s.role = 'owner'"

// noneTwice reads all IDs back from the cells' databases: no sequence of a kind is
// there twice, whatever its slot, and each was leased.
func (r *run) noneTwice(ctx context.Context, j ledger) error {
	dbs, err := r.IDs.Databases()
	if err != nil {
		return err
	}
	overlaps := j.overlaps()
	var ids, fallback int
	var twice, unknown []string
	for kind, sql := range issued {
		seen := map[id.ID]string{}
		for _, cell := range r.homes {
			all, err := read(ctx, dbs[cell], sql)
			if err != nil {
				return fmt.Errorf("%s's IDs of %s: %w", kind, cell, err)
			}
			for _, i := range all {
				bare := id.Make(i.Seq(), 0, i.Fallback())
				if was, ok := seen[bare]; ok {
					twice = append(twice, fmt.Sprintf("%s %s of %s and of %s", kind, i, was, cell))
				}
				seen[bare] = cell
				ids++
				switch {
				case i.Fallback():
					fallback++
				case !j.has(kind, i.Seq()):
					unknown = append(unknown, fmt.Sprintf("%s %s of %s", kind, i, cell))
				}
			}
		}
	}
	leases := 0
	for _, all := range j {
		leases += len(all)
	}
	f := r.report.Figures
	f["leases"], f["leases_overlapping"], f["ids"], f["ids_twice"], f["ids_not_leased"], f["ids_of_fallback"] = leases, len(overlaps), ids, len(twice), len(unknown), fallback
	r.need(len(overlaps) == 0, "%d ranges were leased twice: %s", len(overlaps), some(overlaps))
	r.need(len(twice) == 0, "%d IDs were issued twice: %s", len(twice), some(twice))
	r.need(len(unknown) == 0, "%d IDs were never leased: %s", len(unknown), some(unknown))
	r.need(ids > 0, "no ID was issued: nothing was tried")
	return nil
}

func some(all []string) string { return strings.Join(all[:min(3, len(all))], "; ") }

func read(ctx context.Context, dsn, sql string) ([]id.ID, error) {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	rows, err := c.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	out := make([]id.ID, len(all))
	for i, n := range all {
		out[i] = id.ID(n)
	}
	return out, err
}
