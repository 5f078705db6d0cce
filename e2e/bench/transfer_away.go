package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/agent/agentapi"
)

// The size of transfer-away.
const (
	awayBefore = 12 * time.Second // with everybody there
	awayGone   = 30 * time.Second
	awayPayees = 50
	awayLock   = time.Second // that the baseline waits for a row
)

// transferAway has c1 and c3 pay the same accounts of c2 while c1 goes for 30 s in
// the middle of its transfers: what do those of c3 notice?
func transferAway(ctx context.Context, b *bank) ([]row, error) {
	if err := b.withoutCopies(ctx); err != nil {
		return nil, err
	}
	a := &awayBench{b: b}
	a.gone = flow{from: b.cells[0], to: b.cells[1], payees: awayPayees, clients: bankClients}
	a.stays = flow{from: b.cells[2], to: b.cells[1], payees: awayPayees, clients: bankClients}
	var err error
	if a.p, err = openTwoPhase(ctx, b, twoPhaseDatabase, b.cells[:3]...); err != nil {
		return nil, err
	}
	a.p.timeout = awayLock
	if err := b.warm(ctx, &a.gone); err != nil {
		return nil, err
	}
	peak, err := b.pay(ctx, a.gone, time.Second, 3*time.Second)
	if err != nil {
		return nil, err
	}
	if err := b.warm(ctx, &a.stays); err != nil {
		return nil, err
	}
	for _, f := range []*flow{&a.gone, &a.stays} { // half of the peak together
		f.rate, f.open = peak.rate()/4, mostOpen
	}
	ours, err := a.ours(ctx)
	if err != nil {
		return nil, fmt.Errorf("ours: %w", err)
	}
	base, err := a.base(ctx)
	if err != nil {
		return nil, fmt.Errorf("two-phase commit: %w", err)
	}
	return awayRows(ours, base, a.stays.rate), nil
}

type awayBench struct {
	b           *bank
	p           *twoPhase
	gone, stays flow // of the cell that goes, and of one that stays
}

// undisturbed is what those who stay noticed.
type undisturbed struct {
	before, during payments
	locked         int           // wallets of the payees that nobody could change, in the middle of the time
	inDoubt        int           // transactions of the one who is gone that are prepared at the payee
	back           time.Duration // until all of its transfers have ended, once it is back
}

// ours unplugs c1.
func (a *awayBench) ours(ctx context.Context) (out undisturbed, err error) {
	group, inner := errgroup.WithContext(ctx)
	cut, stop := context.WithCancel(inner)
	defer stop()
	group.Go(func() error { return a.b.begins(cut, a.gone) })
	group.Go(func() (err error) {
		defer stop()
		if out.before, err = a.b.pay(inner, a.stays, 2*time.Second, awayBefore); err != nil {
			return err
		}
		stop() // its people are cut off with it
		if err := a.gone.from.agent.SetFault(inner, "*", agentapi.Fault{CutIn: true, CutOut: true}); err != nil {
			return err
		}
		looked := make(chan error, 1)
		go func() {
			err := pause(inner, awayGone/2)
			if err == nil {
				out.locked, err = lockedWallets(inner, a.gone.to, "cellmart")
			}
			looked <- err
		}()
		out.during, err = a.b.pay(inner, a.stays, 0, awayGone)
		return errors.Join(err, <-looked)
	})
	err = group.Wait()
	begun := time.Now()
	err = errors.Join(err, a.gone.from.agent.SetFault(context.WithoutCancel(ctx), "*", agentapi.Fault{}))
	if err == nil {
		err = a.b.rest(ctx, a.gone.from)
	}
	out.back = time.Since(begun)
	return out, err
}

// begins begins a flow's transfers until ctx ends, and waits for none.
func (b *bank) begins(ctx context.Context, f flow) error {
	first := time.Now()
	var count atomic.Int64
	var group errgroup.Group
	for range f.clients {
		group.Go(func() error {
			for {
				n := count.Add(1)
				if pause(ctx, time.Until(first.Add(f.due(n)))) != nil {
					return nil
				}
				payer, payee := f.pair(n)
				if _, err := b.begin(context.WithoutCancel(ctx), f.from, payer, payee); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// lockedWallets counts the payees whose wallet nobody can change: it is locked in
// five looks, a second in all.
func lockedWallets(ctx context.Context, at *branch, database string) (n int, err error) {
	c, err := at.connect(ctx, database)
	if err != nil {
		return 0, err
	}
	defer c.Close(ctx)
	var list []id.ID
	for _, a := range at.accounts[:awayPayees] {
		list = append(list, a.id)
	}
	held := map[id.ID]int{}
	for range 5 {
		var free []id.ID
		err := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT user_id FROM cell.wallets WHERE user_id = ANY ($1) FOR UPDATE SKIP LOCKED", list)
			if err != nil {
				return err
			}
			free, err = pgx.CollectRows(rows, pgx.RowTo[id.ID])
			return err
		})
		if err != nil {
			return 0, err
		}
		seen := map[id.ID]bool{}
		for _, i := range free {
			seen[i] = true
		}
		for _, i := range list {
			if !seen[i] {
				held[i]++
			}
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return 0, err
		}
	}
	for _, times := range held {
		if times == 5 {
			n++
		}
	}
	return n, nil
}

// base stops c1's clients where they are, as when c1 is cut off.
func (a *awayBench) base(ctx context.Context) (out undisturbed, err error) {
	victims, closeAll, err := a.p.clients(ctx, a.gone, baseClients)
	if err != nil {
		return out, err
	}
	defer closeAll()
	staying, closeStaying, err := a.p.clients(ctx, a.stays, baseClients)
	if err != nil {
		return out, err
	}
	defer closeStaying()
	group, inner := errgroup.WithContext(ctx)
	var gone atomic.Bool
	defer gone.Store(true)
	group.Go(func() error { return a.p.until(inner, victims, a.gone, &gone) })
	group.Go(func() (err error) {
		defer gone.Store(true)
		if out.before, err = a.p.paced(inner, staying, a.stays, 2*time.Second, awayBefore); err != nil {
			return err
		}
		gone.Store(true)
		looked := make(chan error, 1)
		go func() {
			err := pause(inner, awayGone/2)
			if err == nil {
				out.locked, err = lockedWallets(inner, a.gone.to, twoPhaseDatabase)
			}
			if err == nil {
				out.inDoubt, err = inDoubt(inner, a.gone.to)
			}
			looked <- err
		}()
		out.during, err = a.p.paced(inner, staying, a.stays, 0, awayGone)
		return errors.Join(err, <-looked)
	})
	return out, group.Wait()
}

// inDoubt counts the baseline's transactions that have been prepared for long.
func inDoubt(ctx context.Context, at *branch) (n int, err error) {
	return n, at.super.QueryRow(ctx, "SELECT count(*) FROM pg_prepared_xacts WHERE database = $1 AND prepared < now() - interval '5 s'", twoPhaseDatabase).Scan(&n)
}

// until keeps clients busy until they are gone. Each stops where it is then: what it
// has asked the payee to prepare is prepared, and what the payer has decided isn't told.
func (p *twoPhase) until(ctx context.Context, pairs []*pairOf, f flow, gone *atomic.Bool) error {
	var count atomic.Int64
	group, inner := errgroup.WithContext(ctx)
	for _, c := range pairs {
		group.Go(func() error {
			for !gone.Load() {
				payer, payee := f.pair(count.Add(1))
				n := id.Make(p.b.next.Add(1), payer.slot, false)
				err := c.prepare(inner, n, payer, payee)
				var refused *pgconn.PgError
				switch {
				case errors.As(err, &refused): // a lock that wasn't free in time
					continue
				case err != nil:
					return err
				case gone.Load():
					return nil
				}
				if err := c.decide(inner, n, payer, payee); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// paced makes a flow's transfers at its rate, by as many clients as are free.
func (p *twoPhase) paced(ctx context.Context, pairs []*pairOf, f flow, lead, window time.Duration) (payments, error) {
	out := payments{window: window}
	var mu sync.Mutex
	var count atomic.Int64
	first := time.Now()
	begin, until := first.Add(lead), first.Add(lead+window)
	group, inner := errgroup.WithContext(ctx)
	for _, c := range pairs {
		group.Go(func() error {
			for {
				n := count.Add(1)
				due := first.Add(f.due(n))
				if !due.Before(until) || pause(inner, time.Until(due)) != nil || time.Now().After(until) {
					return c.finish(context.WithoutCancel(ctx))
				}
				payer, payee := f.pair(n)
				err := c.transfer(inner, payer, payee)
				if err == nil { // nobody is to wait for the next one's beginning
					err = c.finish(inner)
				}
				now := time.Now()
				var refused *pgconn.PgError
				mu.Lock()
				out.begun++
				switch {
				case errors.As(err, &refused):
					out.failed, out.why = out.failed+1, err
				case err != nil:
					mu.Unlock()
					return err
				default:
					if !now.Before(begin) && now.Before(until) {
						out.ended++
					}
					if !due.Before(begin) {
						out.took = append(out.took, now.Sub(due))
					}
				}
				mu.Unlock()
			}
		})
	}
	return out, group.Wait()
}

// awayRows judges: those who stay must not notice.
func awayRows(ours, base undisturbed, rate float64) []row {
	part := func(u undisturbed) float64 { return u.during.rate() / u.before.rate() }
	p99 := func(p payments) float64 { return percentile(p.took, 0.99) }
	note := fmt.Sprintf("transfers from c3 to %d accounts of c2 at %.0f a second while c1, which paid the same accounts at the same rate, is unplugged for %s;  p99 %.0f ms before, %.0f ms during, %d of %d couldn't begin; "+
		"all of c1's had ended %.1f s after it was back; baseline: two-phase commit, c1's 16 clients (as fast as they can) stop where they are: p99 %.0f ms before, %.0f ms during, %d of %d refused (a lock not had in %s)",
		awayPayees, rate, awayGone, p99(ours.before), p99(ours.during), ours.during.failed, ours.during.begun+ours.during.failed, ours.back.Seconds(),
		p99(base.before), p99(base.during), base.during.failed, base.during.begun, awayLock)
	r := compare("transfer-away", "of the rate", part(ours), part(base), ">= 0.95, no error", nil, note)
	ok := part(ours) >= 0.95 && ours.during.failed == 0
	slower := compare("transfer-away/p99", "ms", p99(ours.during), p99(ours.before), "<= 1.5", func(r float64) bool { return r <= 1.5 }, "of c3's transfers while c1 is gone; baseline: the same before")
	r.OK = &ok
	locked := compare("transfer-away/locked", "wallets", float64(ours.locked), float64(base.locked), "0", nil,
		fmt.Sprintf("of the %d payees' wallets, held locked through five looks in a second, c1 gone for %s; two-phase commit has %d transactions in doubt", awayPayees, awayGone/2, base.inDoubt))
	none := ours.locked == 0
	locked.OK = &none
	return []row{r, slower, locked}
}
