package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// The size of the rows about money.
const (
	bankCells    = 4
	bankAccounts = 1000 // of each cell, each in a slot of its own
	bankClients  = 8    // that begin transfers, one after the other: as many as there are connections
	leastOpen    = 64
	mostOpen     = 1024
	bankFunds    = int64(1e12) // of each account, in minor units
	bankDay      = int64(1e11) // limit of a day, so that it is counted and checked as in the service
	bankFirst    = 1 << 34     // sequence of the first transfer's ID: far from what idgen gives out
	bankUser     = 1 << 33     // and of the first account's
)

// bank is a demo of four cells with accounts in all of them. It begins transfers with
// the service's own function in a transaction of its own; agents and user services
// do the rest.
type bank struct {
	d     demo
	log   io.Writer
	cells []*branch
	next  atomic.Int64                 // sequence of transfers
	env   map[string]map[string]string // what processes were started with beyond their own
	made  map[string]bool              // databases of the baseline, by cell
}

// branch is one cell of the bank.
type branch struct {
	name     string
	app      *pgxpool.Pool // as the services have it
	super    *pgxpool.Pool // for looking
	nats     *nats.Conn
	agent    *agentapi.Client
	accounts []account
}

// account is a user with a wallet.
type account struct {
	id    id.ID
	slot  routing.Slot
	epoch routing.Epoch
}

// withBank starts the demo with the settings that the rows need of Postgres:
// prepared transactions for the baseline, commit times for the latencies.
func withBank(ctx context.Context, log io.Writer, do func(*bank) ([]row, error)) ([]row, error) {
	return withCells(ctx, log, bankCells, func(d demo) ([]row, error) {
		b := &bank{d: d, log: log, env: map[string]map[string]string{}, made: map[string]bool{}}
		b.next.Store(bankFirst)
		defer b.close()
		if err := b.open(ctx); err != nil {
			return nil, fmt.Errorf("open the bank: %w", err)
		}
		return do(b)
	})
}

// sharedBank is one bank for all benches that need one: a demo takes long to start.
// The zero value has none.
type sharedBank struct {
	b       *bank
	release chan struct{}
	ended   chan error
}

// with makes a bench of what is measured in a bank, which is there after the first.
func (s *sharedBank) with(do func(context.Context, *bank) ([]row, error)) func(context.Context, io.Writer) ([]row, error) {
	return func(ctx context.Context, log io.Writer) ([]row, error) {
		if s.b == nil {
			ready := make(chan *bank)
			s.release, s.ended = make(chan struct{}), make(chan error, 1)
			go func() {
				_, err := withBank(ctx, log, func(b *bank) ([]row, error) {
					ready <- b
					<-s.release
					return nil, nil
				})
				s.ended <- err
			}()
			select {
			case s.b = <-ready:
			case err := <-s.ended:
				return nil, err
			}
		}
		return do(ctx, s.b)
	}
}

// end ends the bank, if there is one.
func (s *sharedBank) end() error {
	if s.b == nil {
		return nil
	}
	s.b = nil
	close(s.release)
	return <-s.ended
}

// fewer is how many pairs of rounds are to be measured: usual, or CELLMART_BENCH_PAIRS
// when that is less.
func fewer(usual int) (int, error) {
	v := os.Getenv("CELLMART_BENCH_PAIRS")
	if v == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return 0, cellkit.Usage{Err: fmt.Errorf("CELLMART_BENCH_PAIRS is %q, not a number of pairs", v)}
	}
	return min(n, usual), nil
}

func (b *bank) open(ctx context.Context) error {
	var servers []string
	for _, c := range b.d.state.Cells {
		super, err := pgx.Connect(ctx, c.PG)
		if err != nil {
			return err
		}
		for _, q := range []string{"ALTER SYSTEM SET max_prepared_transactions = 200", "ALTER SYSTEM SET track_commit_timestamp = on"} {
			if _, err := super.Exec(ctx, q); err != nil {
				return err
			}
		}
		_ = super.Close(ctx) // its server ends next
		servers = append(servers, c.Name+"/postgres")
	}
	if err := b.d.state.Restart(ctx, servers...); err != nil {
		return err
	}
	for _, c := range b.d.state.Cells {
		p, err := b.d.state.Process(c.Name + "/user")
		if err != nil {
			return err
		}
		at := &branch{name: c.Name, agent: &agentapi.Client{BaseURL: c.Agent, OperatorKey: b.d.state.OperatorKey}}
		b.cells = append(b.cells, at)
		if at.app, err = pg.Open(ctx, p.Env["PG_DSN"], c.Name, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		if at.super, err = pgxpool.New(ctx, c.PG); err != nil {
			return err
		}
		if at.nats, err = nats.Connect(c.NATS); err != nil {
			return err
		}
		if err := eventually(ctx, func() error { return at.fill(ctx) }); err != nil {
			return fmt.Errorf("accounts of %s: %w", c.Name, err)
		}
	}
	return nil
}

// fill makes the accounts, in slots that the cell owns: the user's row, which the
// payee's side looks at, and a wallet with money. Triggers are off meanwhile, so
// that one statement may write to many slots.
func (at *branch) fill(ctx context.Context) error {
	return pgx.BeginFunc(ctx, at.super, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL session_replication_role = replica"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT slot, epoch FROM cell.slots WHERE role = 'owner' AND slot < $1 ORDER BY hashint4(slot) LIMIT $2", routing.Slots, bankAccounts)
		if err != nil {
			return err
		}
		at.accounts, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a account, err error) {
			err = row.Scan(&a.slot, &a.epoch)
			a.id = id.Make(bankUser, a.slot, false)
			return a, err
		})
		if err == nil && len(at.accounts) < bankAccounts {
			err = fmt.Errorf("the cell owns %d slots", len(at.accounts))
		}
		if err != nil {
			return err
		}
		var b pgx.Batch
		for _, a := range at.accounts {
			b.Queue(`INSERT INTO users.users (slot, epoch, rev, id, phone, phone_mac, name, password_hash) VALUES ($1, $2, 1, $3, $4, $5, 'Bench', '-')`,
				a.slot, a.epoch, a.id, a.id.String(), []byte(a.id.String()))
			b.Queue(walletSQL, a.slot, a.epoch, a.id, bankFunds)
		}
		return tx.SendBatch(ctx, &b).Close()
	})
}

// walletSQL makes a wallet with money from outside.
const walletSQL = `INSERT INTO cell.wallets (slot, epoch, rev, user_id, currency, available, external) VALUES ($1, $2, 1, $3, 'CNY', $4, -$4::bigint)`

func (b *bank) close() {
	for _, at := range b.cells {
		for _, p := range []*pgxpool.Pool{at.app, at.super} {
			if p != nil {
				p.Close()
			}
		}
		if at.nats != nil {
			at.nats.Close()
		}
	}
}

// set starts a service of some cells again with other variables, and waits until it
// is ready; one that has them already goes on.
func (b *bank) set(ctx context.Context, service string, env map[string]string, cells ...string) error {
	for _, cell := range cells {
		name := cell + "/" + service
		if maps.Equal(b.env[name], env) {
			continue
		}
		if err := b.d.state.RestartWith(ctx, name, env); err != nil {
			return err
		}
		b.env[name] = env
	}
	return nil
}

// all names the cells.
func (b *bank) all() (names []string) {
	for _, at := range b.cells {
		names = append(names, at.name)
	}
	return names
}

// begin is what the user service's transaction does for POST /transfers, but for the
// Idempotency-Key: the money is frozen and the CREDIT is in the outbox.
func (b *bank) begin(ctx context.Context, from *branch, payer, payee account) (id.ID, error) {
	n := id.Make(b.next.Add(1), payer.slot, false)
	err := pg.InSlot(ctx, from.app, pg.Entry{Slot: payer.slot, Epoch: payer.epoch, User: payer.id}, func(tx *pg.Tx) error {
		t, err := transfer.Try(ctx, tx, transfer.Order{ID: n, From: payer.id, To: payee.id, ToSlot: payee.slot, Amount: 1, Currency: "CNY",
			Limits: transfer.Limits{Each: bankDay, Day: bankDay}})
		if err == nil && t.State != transfer.Frozen {
			err = fmt.Errorf("transfer %d is %s (%s)", n, t.State, t.Reason)
		}
		tx.AfterCommit(func() { _ = from.nats.Publish(bus.PokeSubject, nil) }) // nobody depends on it
		return err
	})
	return n, err
}

// flow is who pays whom, and how much of it may be on its way.
type flow struct {
	from, to *branch
	payees   int     // accounts that are paid to
	clients  int     // that begin transfers, one after the other
	open     int     // on their way at once; the baseline's clients have one each
	rate     float64 // a second, evenly; 0 = as many as get through
}

func (f flow) pair(n int64) (payer, payee account) {
	return f.from.accounts[n%bankAccounts], f.to.accounts[(n*7+n/bankAccounts)%int64(f.payees)]
}

// due is when the nth transfer of a flow with a rate is, from its first moment on.
func (f flow) due(n int64) time.Duration {
	return time.Duration(float64(n) / f.rate * float64(time.Second))
}

// payments is what came of a flow.
type payments struct {
	took   []time.Duration // from the moment it was due to its end's commit, of those that were due in the window
	ended  int             // within the window, whenever they began
	window time.Duration
	begun  int   // in all
	failed int   // couldn't begin
	why    error // of the last that couldn't
}

func (p payments) rate() float64 { return float64(p.ended) / p.window.Seconds() }

// pay keeps a flow up for lead and then for a window, and waits until all have ended.
func (b *bank) pay(ctx context.Context, f flow, lead, window time.Duration) (payments, error) {
	inner, stop := context.WithCancel(ctx)
	defer stop()
	first := time.Now()
	due := map[id.ID]time.Time{}
	var mu sync.Mutex
	var out payments
	var count, ended atomic.Int64
	group := errgroup.Group{}
	room := make(chan struct{}, f.open)
	for range f.open {
		room <- struct{}{}
	}
	until := first.Add(lead + window)
	for range f.clients {
		group.Go(func() error {
			for {
				select {
				case <-inner.Done():
					return nil
				case <-room:
				}
				at := time.Now()
				n := count.Add(1)
				if f.rate > 0 {
					at = first.Add(f.due(n))
				}
				if !at.Before(until) || pause(inner, time.Until(at)) != nil {
					return nil
				}
				payer, payee := f.pair(n)
				t, err := b.begin(context.WithoutCancel(ctx), f.from, payer, payee)
				mu.Lock()
				if err != nil {
					out.failed++
					out.why = err
				} else {
					out.begun++
					due[t] = at
				}
				mu.Unlock()
			}
		})
	}
	group.Go(func() error { // gives room for what has ended
		defer stop()
		for {
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return err
			}
			open, err := f.from.openTransfers(ctx)
			if err != nil {
				return err
			}
			mu.Lock()
			now := int64(out.begun + out.failed)
			mu.Unlock()
			for was := ended.Load(); was < now-int64(open); was++ {
				ended.Add(1)
				room <- struct{}{}
			}
			if time.Now().After(until) {
				return nil
			}
		}
	})
	if err := group.Wait(); err != nil {
		return out, err
	}
	if out.begun == 0 {
		return out, errors.Join(errors.New("no transfer was begun"), out.why)
	}
	if err := b.rest(ctx, f.from); err != nil {
		return out, err
	}
	return out, b.times(ctx, f, first, lead, window, due, &out)
}

// warm has a flow's connections, statements and caches ready, and sets how many of
// its transfers may be on their way: as many as end in 0.8 s, so that none is sent
// again for being 2 s old.
func (b *bank) warm(ctx context.Context, f *flow) error {
	f.open = leastOpen
	for range 2 {
		got, err := b.pay(ctx, *f, time.Second, 1500*time.Millisecond)
		if err != nil {
			return err
		}
		f.open = min(max(int(0.8*got.rate()), leastOpen), mostOpen)
	}
	return nil
}

// connect opens one of a cell's databases, to look.
func (at *branch) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	cfg := at.super.Config().ConnConfig.Copy()
	cfg.Database = database
	return pgx.ConnectConfig(ctx, cfg)
}

// openTransfers counts those of a cell that haven't ended.
func (at *branch) openTransfers(ctx context.Context) (n int, err error) {
	return n, at.super.QueryRow(ctx, "SELECT count(*) FROM cell.transfers WHERE ended_at IS NULL").Scan(&n)
}

// rest waits until no transfer of a cell is on its way.
func (b *bank) rest(ctx context.Context, at *branch) error {
	return within(ctx, time.Minute, func() error {
		n, err := at.openTransfers(ctx)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d transfers of %s are on their way", n, at.name)
		}
		return err
	})
}

// times reads when the transfers ended: the commit of the row's last change, by the
// clock of this machine, which is the one that they were due by.
func (b *bank) times(ctx context.Context, f flow, first time.Time, lead, window time.Duration, due map[id.ID]time.Time, out *payments) error {
	out.window = window
	begin, end := first.Add(lead), first.Add(lead+window)
	rows, err := f.from.super.Query(ctx, "SELECT id, state, pg_xact_commit_timestamp(xmin) FROM cell.transfers WHERE created_at >= $1", first.Add(-time.Second))
	if err != nil {
		return err
	}
	var n int64
	var state transfer.State
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&n, &state, &at}, func() error {
		asked, ok := due[id.ID(n)]
		if !ok {
			return nil // of a window before
		}
		if state != transfer.Settled {
			return fmt.Errorf("transfer %d is %s", n, state)
		}
		if !at.Before(begin) && at.Before(end) {
			out.ended++
		}
		if !asked.Before(begin) && asked.Before(end) {
			out.took = append(out.took, at.Sub(asked))
		}
		return nil
	})
	return err
}
