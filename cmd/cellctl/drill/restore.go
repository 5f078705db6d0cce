package drill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/services/idgen/idgenapi"
)

const (
	copyAge   = time.Minute // of what takes the database's place
	pauseMost = 80 * time.Second
)

// idgenRestore replaces idgen's database under load: by a copy from a minute ago,
// then by a standby that has missed the last seconds. Just before, somebody leased
// order IDs up to the end of the budget, a minute ahead of time; right after, one
// who never leased before asks for some. None may be given twice, and nobody runs
// out meanwhile.
func idgenRestore(ctx context.Context, r *run) error {
	if _, err := r.IDs.Databases(); err != nil {
		return err
	}
	url, err := r.IDs.IDGen()
	if err != nil {
		return err
	}
	if err := r.begin(ctx, r.rate(), nil); err != nil {
		return err
	}
	if err := r.leases(ctx, url); err != nil {
		return err
	}
	from := r.load.Now() + time.Second
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	all := ledger{} // every lease that anyone was told of or a journal had
	rounds := []bool{false, true}
	if r.Short {
		rounds = rounds[:1] // a second one would have to wait for the first one's pause
	}
	for n, standby := range rounds {
		if err := r.loseAndAsk(ctx, url, standby, n, all); err != nil {
			return err
		}
	}
	to := r.load.Now()
	r.end()
	j, err := r.journal(ctx)
	if err != nil {
		return err
	}
	all.merge(j)
	r.nobodyNoticed(r.load.Samples(), span{from, to})
	if err := r.noneTwice(ctx, all); err != nil {
		return err
	}
	return r.remember(ctx, all)
}

// remember puts back into the journal what the database lost with its place, and
// has the next lease begin above it: the processes still use those leases, and who
// looks later should find them. The drill's own are nobody's. What the exclusion
// constraint refuses is covered by another lease.
func (r *run) remember(ctx context.Context, all ledger) error {
	dbs, err := r.IDs.Databases()
	if err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, dbs["idgen"])
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	for kind, leases := range all {
		var lo, hi []int64
		var holder []string
		for _, l := range leases {
			if !strings.HasPrefix(l.holder, "drill/") {
				lo, hi, holder = append(lo, l.lo), append(hi, l.hi), append(holder, l.holder)
			}
		}
		if _, err := c.Exec(ctx, `
			WITH k AS (
				UPDATE idgen.kinds SET hi = greatest(hi, (SELECT max(h) FROM unnest($3::bigint[]) h)) WHERE kind = $1 RETURNING number)
			INSERT INTO idgen.journal (number, lo, hi, holder)
			SELECT k.number, u.lo, u.hi, u.holder FROM k, unnest($2::bigint[], $3::bigint[], $4::text[]) u(lo, hi, holder)
			ON CONFLICT DO NOTHING`, kind, lo, hi, holder); err != nil {
			return fmt.Errorf("put the lost leases back: %w", err)
		}
	}
	return nil
}

// leases waits until idgen does: it may pause since a drill before. (Sabotage needn't
// wait: it makes idgen forget anyway.)
func (r *run) leases(ctx context.Context, url string) error {
	if r.Sabotage {
		dbs, err := r.IDs.Databases()
		if err != nil {
			return err
		}
		return forget(ctx, dbs["idgen"])
	}
	c := idgenapi.NewClient(url, nil)
	c.Holder = "drill/first"
	for begun := time.Now(); ; {
		_, _, err := c.Lease(ctx, idgenapi.Order, 0, 1)
		if err == nil {
			return nil
		}
		if time.Since(begun) > pauseMost {
			return fmt.Errorf("idgen gives no lease to begin with: %w", err)
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

func (j ledger) merge(other ledger) {
	for kind, leases := range other {
		seen := map[leased]bool{}
		for _, l := range j[kind] {
			seen[l] = true
		}
		for _, l := range leases {
			if !seen[l] {
				j[kind] = append(j[kind], l)
			}
		}
	}
}

// loseAndAsk is one round.
func (r *run) loseAndAsk(ctx context.Context, url string, standby bool, n int, all ledger) error {
	age, what := copyAge, "a copy of idgen's database"
	if standby {
		age, what = 10*time.Second, "a standby of idgen's database"
	}
	if r.Short {
		age = 4 * time.Second
	}
	r.after(r.IDs.Discard)
	if err := r.IDs.Backup(ctx, standby); err != nil {
		return err
	}
	r.event("%s was made", what)
	if standby {
		if err := r.IDs.Detach(ctx); err != nil {
			return err
		}
		r.event("it follows no longer")
	}
	if err := pause(ctx, age); err != nil {
		return err
	}
	lost, err := greedy(ctx, url, n, all)
	if err != nil {
		return err
	}
	r.event("order IDs were leased to the end of the budget, up to %d", lost)
	if err := r.replace(ctx, all); err != nil {
		return err
	}
	took := r.event("%s, %v old, is in its place", what, age)
	if r.Sabotage {
		dbs, err := r.IDs.Databases()
		if err != nil {
			return err
		}
		if err := forget(ctx, dbs["idgen"]); err != nil {
			return err
		}
		r.event("sabotage: idgen is told that it's the same database as ever")
	}
	if err := r.System.Pause(ctx, idgenPart, false); err != nil {
		return err
	}
	return r.ask(ctx, url, n, lost, took, all)
}

// replace reads the journal that will be lost while idgen stands still, so that
// it is whole, and has the database replaced. idgen is let go by the caller.
func (r *run) replace(ctx context.Context, all ledger) error {
	if err := r.System.Pause(ctx, idgenPart, true); err != nil {
		return err
	}
	r.after(func(ctx context.Context) error { return r.System.Pause(ctx, idgenPart, false) })
	j, err := r.journal(ctx)
	if err != nil {
		return err
	}
	all.merge(j)
	return r.IDs.Replace(ctx)
}

// greedy leases all there is.
func greedy(ctx context.Context, url string, n int, all ledger) (top int64, err error) {
	holder := fmt.Sprintf("drill/greedy-%d", n)
	c := idgenapi.NewClient(url, nil)
	c.Holder = holder
	for range 100 {
		lo, hi, err := c.Lease(ctx, idgenapi.Order, top, 1_000_000)
		if err != nil {
			return 0, err
		}
		top = hi
		all.add(idgenapi.Order, leased{lo, hi, holder})
		if hi-lo < 100_000 {
			return top, nil
		}
	}
	return 0, errors.New("the budget has no end")
}

// ask leases as one who has no floor: refused at first, then above all that was.
func (r *run) ask(ctx context.Context, url string, n int, lost int64, took time.Duration, all ledger) error {
	c := idgenapi.NewClient(url, nil)
	c.Holder = fmt.Sprintf("drill/newcomer-%d", n)
	refused := false
	for r.load.Now() < took+pauseMost {
		lo, hi, err := c.Lease(ctx, idgenapi.Order, 0, 1000)
		switch {
		case err == nil:
			all.add(idgenapi.Order, leased{lo, hi, c.Holder})
			at := r.event("a newcomer leased [%d, %d)", lo, hi)
			r.report.Figures[fmt.Sprintf("round_%d_paused_ms", n+1)] = (at - took).Milliseconds()
			r.need(refused, "nobody was refused after the database was replaced: it should pause")
			r.need(lo >= lost, "a newcomer was leased [%d, %d), below %d it was all leased before", lo, hi, lost)
			return nil
		case errors.Is(err, idgenapi.ErrPaused) && !refused:
			refused = true
			r.event("idgen pauses")
			if r.Short {
				r.report.Figures["paused"] = true
				return nil
			}
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	r.fail("no lease within %v of the database's return", pauseMost)
	return nil
}

// forget has the rows of a database say that nothing happened to it.
func forget(ctx context.Context, dsn string) error {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	_, err = c.Exec(ctx, "UPDATE idgen.kinds SET incarnation = idgen.incarnation(), paused_until = 0")
	return err
}
