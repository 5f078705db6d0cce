package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
)

// The baseline's databases are beside the cell's own, on the same server, made by the
// same migrations. The plain one has no triggers and no policies on its tables.
const (
	twoPhaseDatabase = "bench_twophase"
	plainDatabase    = "bench_plain"
)

// twoPhase is two-phase commit between two cells' servers in its strongest form:
//
//	payee: BEGIN, credit, entry, PREPARE TRANSACTION       one round trip
//	payer: BEGIN, transfer (the decision), entry, COMMIT   one round trip: the last agent commits in one phase
//	payee: COMMIT PREPARED                                 with the next transfer's first round trip
//
// The tables are the cells' own: their keys, checks, triggers and policies, by the
// services' role, with the fence (enter and leave). Plain ones have keys and checks.
type twoPhase struct {
	b        *bank
	database string
	dialTo   func(ctx context.Context, network, addr string) (net.Conn, error) // to payees' servers, nil = at once
	timeout  time.Duration                                                     // of a statement that waits for a lock, 0 = none
}

// openTwoPhase makes the databases in some cells, with the same accounts.
func openTwoPhase(ctx context.Context, b *bank, database string, cells ...*branch) (*twoPhase, error) {
	for i, at := range b.cells {
		for _, chosen := range cells {
			if chosen != at || b.made[at.name+database] {
				continue
			}
			b.made[at.name+database] = true
			if err := migrateBench(ctx, b.d, i, database); err != nil {
				return nil, err
			}
			if err := at.fillTwoPhase(ctx, b, database); err != nil {
				return nil, fmt.Errorf("accounts of the baseline in %s: %w", at.name, err)
			}
		}
	}
	return &twoPhase{b: b, database: database}, nil
}

func (at *branch) fillTwoPhase(ctx context.Context, b *bank, database string) error {
	c, err := b.d.state.Cell(at.name)
	if err != nil {
		return err
	}
	super, err := pgx.Connect(ctx, inDatabase(c.PG, database))
	if err != nil {
		return err
	}
	defer super.Close(ctx)
	if _, err := super.Exec(ctx, `SET session_replication_role = replica; SELECT cell.set_lease('infinity')`); err != nil {
		return err
	}
	var batch pgx.Batch
	for _, a := range at.accounts {
		batch.Queue("INSERT INTO cell.slots (slot, epoch, owner, role) VALUES ($1, $2, $3, 'owner')", a.slot, a.epoch, at.name)
		batch.Queue(walletSQL, a.slot, a.epoch, a.id, bankFunds)
	}
	if err := super.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	if database == plainDatabase {
		for _, t := range []string{"wallets", "postings", "transfers", "credits"} {
			t = "ALTER TABLE cell." + t
			if _, err := super.Exec(ctx, t+" DISABLE TRIGGER USER; "+t+" DISABLE ROW LEVEL SECURITY; "+t+" ALTER epoch SET DEFAULT 1, ALTER rev SET DEFAULT 1"); err != nil {
				return err
			}
		}
	}
	_, err = super.Exec(ctx, "ANALYZE")
	return err
}

// The statements of both sides. $1 slot, $2 user, $3 transfer, $4 amount; those with more say so.
const (
	twoPhaseCredit = `INSERT INTO cell.credits (slot, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, begun_at)
		VALUES ($1, $3, 'transfer', $2, $5, $6, $4, 'CNY', 'CREDITED', now())`
	twoPhaseIn = `WITH w AS (
			UPDATE cell.wallets SET available = available + $4, clearing = clearing - $4, seq = seq + 1
			WHERE slot = $1 AND user_id = $2 AND currency = 'CNY' RETURNING seq, available, frozen)
		INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen)
		SELECT $1, $2, 'CNY', w.seq, 'clearing', 'available', $4, 'transfer:' || $3, 'credit', w.available, w.frozen FROM w`
	// $5 payee, $6 their slot; the row is the decision, and what somebody would look for who finds the prepared half.
	twoPhaseTransfer = `INSERT INTO cell.transfers (slot, id, kind, from_user, to_user, to_slot, amount, currency, state, deadline, ended_at)
		VALUES ($1, $3, 'transfer', $2, $5, $6, $4, 'CNY', 'SETTLED', now() + interval '1 h', now())`
	twoPhaseOut = `WITH w AS (
			UPDATE cell.wallets SET available = available - $4, clearing = clearing + $4, seq = seq + 1,
				spent = CASE WHEN spent_on >= (now() AT TIME ZONE 'UTC')::date THEN spent ELSE 0 END + $4,
				spent_on = greatest(spent_on, (now() AT TIME ZONE 'UTC')::date)
			WHERE slot = $1 AND user_id = $2 AND currency = 'CNY'
				AND CASE WHEN spent_on >= (now() AT TIME ZONE 'UTC')::date THEN spent ELSE 0 END + $4 <= 100000000000
			RETURNING seq, available, frozen)
		INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen)
		SELECT $1, $2, 'CNY', w.seq, 'available', 'clearing', $4, 'transfer:' || $3, 'settle', w.available, w.frozen FROM w`
)

// pairOf is one client's two connections.
type pairOf struct {
	p            *twoPhase
	payer, payee *pgconn.PgConn
	prepared     string // at the payee, decided, not told yet
}

func (p *twoPhase) connect(ctx context.Context, from, to *branch) (*pairOf, error) {
	c := &pairOf{p: p}
	var err error
	if c.payer, err = p.dial(ctx, from, nil, map[string]string{"transfer": twoPhaseTransfer, "entry": twoPhaseOut}); err != nil {
		return nil, err
	}
	if c.payee, err = p.dial(ctx, to, p.dialTo, map[string]string{"credit": twoPhaseCredit, "entry": twoPhaseIn}); err != nil {
		c.close(ctx)
		return nil, err
	}
	return c, nil
}

func (p *twoPhase) dial(ctx context.Context, at *branch, dial func(context.Context, string, string) (net.Conn, error), statements map[string]string) (*pgconn.PgConn, error) {
	cell, err := p.b.d.state.Cell(at.name)
	if err != nil {
		return nil, err
	}
	cfg, err := pgconn.ParseConfig(roleDSN(cell.PG, p.database, pg.RoleApp, p.b.d.state.Secrets.App))
	if err != nil {
		return nil, err
	}
	if dial != nil {
		cfg.DialFunc = dial
	}
	if p.timeout > 0 {
		cfg.RuntimeParams["lock_timeout"] = strconv.FormatInt(p.timeout.Milliseconds(), 10)
	}
	c, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	all := map[string]string{"enter": "SELECT cell.enter($1, $2, 0)", "leave": "SELECT cell.leave()"}
	maps.Copy(all, statements)
	for name, sql := range all {
		if _, err := c.Prepare(ctx, name, sql, nil); err != nil {
			_ = c.Close(ctx) // the error says why
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return c, nil
}

func (c *pairOf) close(ctx context.Context) {
	for _, conn := range []*pgconn.PgConn{c.payer, c.payee} {
		if conn != nil {
			_ = conn.Close(ctx) // of a demo that is about to end
		}
	}
}

// half is one side's transaction, sent in one go.
type half struct {
	conn  *pgconn.PgConn
	batch pgconn.Batch
	rows  []int // 1 = this statement must write a row
}

func (h *half) sql(text string) {
	h.batch.ExecParams(text, nil, nil, nil, nil)
	h.rows = append(h.rows, 0)
}

func (h *half) call(name string, writes int, args ...int64) {
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = strconv.AppendInt(nil, a, 10)
	}
	h.batch.ExecPrepared(name, values, nil, nil)
	h.rows = append(h.rows, writes)
}

func (h *half) send(ctx context.Context) error {
	results, err := h.conn.ExecBatch(ctx, &h.batch).ReadAll()
	if err != nil {
		return err
	}
	for i, want := range h.rows {
		if i >= len(results) || results[i].Err != nil || want == 1 && results[i].CommandTag.RowsAffected() != 1 {
			return errNoRow
		}
	}
	return nil
}

var errNoRow = errors.New("a wallet took no entry")

// enter begins a side's transaction.
func (c *pairOf) enter(h *half, a account) {
	h.sql("BEGIN")
	if c.p.database != plainDatabase {
		h.call("enter", 0, int64(a.slot), int64(a.epoch))
	}
}

// leave is the fence's last look.
func (c *pairOf) leave(h *half) {
	if c.p.database != plainDatabase {
		h.call("leave", 0)
	}
}

// prepare is the payee's half, with the end of the transfer before it.
func (c *pairOf) prepare(ctx context.Context, n id.ID, payer, payee account) error {
	h := &half{conn: c.payee}
	if c.prepared != "" { // first: it can't be inside a transaction
		h.sql("COMMIT PREPARED '" + c.prepared + "'")
	}
	c.enter(h, payee)
	h.call("credit", 1, int64(payee.slot), int64(payee.id), int64(n), 1, int64(payer.id), int64(payer.slot))
	h.call("entry", 1, int64(payee.slot), int64(payee.id), int64(n), 1)
	c.leave(h)
	h.sql("PREPARE TRANSACTION '" + n.String() + "'")
	if err := h.send(ctx); err != nil {
		undo := "ROLLBACK"
		if errors.Is(err, errNoRow) { // it came to its end all the same
			undo = "ROLLBACK PREPARED '" + n.String() + "'"
		}
		_, undone := c.payee.Exec(context.WithoutCancel(ctx), undo).ReadAll()
		c.prepared = "" // its end was the first statement
		return errors.Join(err, undone)
	}
	c.prepared = ""
	return nil
}

// decide is the payer's half: with its commit the transfer is done.
func (c *pairOf) decide(ctx context.Context, n id.ID, payer, payee account) error {
	h := &half{conn: c.payer}
	c.enter(h, payer)
	h.call("transfer", 1, int64(payer.slot), int64(payer.id), int64(n), 1, int64(payee.id), int64(payee.slot))
	h.call("entry", 1, int64(payer.slot), int64(payer.id), int64(n), 1)
	c.leave(h)
	h.sql("COMMIT")
	if err := h.send(ctx); err != nil {
		_, undone := c.payer.Exec(context.WithoutCancel(ctx), "ROLLBACK").ReadAll()
		_, told := c.payee.Exec(context.WithoutCancel(ctx), "ROLLBACK PREPARED '"+n.String()+"'").ReadAll()
		return errors.Join(err, undone, told)
	}
	c.prepared = n.String()
	return nil
}

func (c *pairOf) transfer(ctx context.Context, payer, payee account) error {
	n := id.Make(c.p.b.next.Add(1), payer.slot, false)
	if err := c.prepare(ctx, n, payer, payee); err != nil {
		return err
	}
	return c.decide(ctx, n, payer, payee)
}

// finish tells the payee of the last one.
func (c *pairOf) finish(ctx context.Context) error {
	if c.prepared == "" {
		return nil
	}
	_, err := c.payee.Exec(ctx, "COMMIT PREPARED '"+c.prepared+"'").ReadAll()
	c.prepared = ""
	return err
}

// clients opens so many, for a flow.
func (p *twoPhase) clients(ctx context.Context, f flow, n int) (pairs []*pairOf, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range pairs {
			c.close(context.WithoutCancel(ctx))
		}
	}
	for range n {
		c, err := p.connect(ctx, f.from, f.to)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		pairs = append(pairs, c)
	}
	return pairs, closeAll, nil
}

// pay keeps clients busy for lead and then for a window.
func (p *twoPhase) pay(ctx context.Context, pairs []*pairOf, f flow, lead, window time.Duration) (payments, error) {
	out := payments{window: window}
	var mu sync.Mutex
	var count atomic.Int64
	begin := time.Now().Add(lead)
	until := begin.Add(window)
	group, inner := errgroup.WithContext(ctx)
	for _, c := range pairs {
		group.Go(func() error {
			for time.Now().Before(until) {
				payer, payee := f.pair(count.Add(1))
				asked := time.Now()
				err := c.transfer(inner, payer, payee)
				now := time.Now()
				var refused *pgconn.PgError
				mu.Lock()
				out.begun++
				switch {
				case errors.As(err, &refused): // a lock that wasn't free in time
					out.failed, out.why = out.failed+1, err
					err = nil
				case err == nil && !now.Before(begin) && now.Before(until):
					out.ended++
				}
				if err == nil && refused == nil && !asked.Before(begin) {
					out.took = append(out.took, now.Sub(asked))
				}
				mu.Unlock()
				if err != nil {
					return err
				}
			}
			return c.finish(context.WithoutCancel(ctx))
		})
	}
	if err := group.Wait(); err != nil {
		return out, err
	}
	if out.begun == out.failed {
		return out, errors.Join(errors.New("no transfer was made"), out.why)
	}
	return out, nil
}
