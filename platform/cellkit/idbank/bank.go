package idbank

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
)

// Database keeps the book: Postgres, or a model of one in tests.
type Database interface {
	// Update runs fn once over the book, with the bank's ranges of kind, and
	// stores what fn changed when it gives nil: all of it or nothing, on disk
	// when Update gives nil. After another error nobody knows.
	Update(ctx context.Context, kind string, fn func(*Book) error) error
	// Deposit adds a range.
	Deposit(ctx context.Context, kind string, r Range) error
	// Look reads what is there; ranges older than BankAge are thrown away first.
	Look(ctx context.Context) (Look, error)
}

// Witness remembers, outside the cell's database, how far that had come. The
// agent's file is one; the leases' counter at the voters will be another (P2).
type Witness interface {
	// Recall gives what was last attested; false: nothing ever, or nothing that
	// can be read any more.
	Recall(ctx context.Context) (Mark, bool, error)
	// Attest stores a mark durably before it returns nil.
	Attest(ctx context.Context, m Mark) error
}

// Options of a Bank.
type Options struct {
	Cell     string
	Database Database // nil = the zone has none, and no stock
	Witness  Witness
	Lease    id.LeaseFunc // idgen's, for the bank; nil = it isn't filled
	Budgets  func(ctx context.Context) (map[string]Budget, error)
	Log      *slog.Logger
	Clock    func() time.Time // wall time of grants, default time.Now; ages are measured without it

	// Judge is what finds a database that went back; default Judge. A test takes
	// it away to see what it is good for.
	Judge func(remembered Mark, have bool, shows Mark) string
}

// Bank hands out the cell's own stock. One per cell: it is the agent's.
type Bank struct {
	o  Options
	mu sync.Mutex // one grant at a time, so that what is remembered only goes up

	floors map[string]int64 // of Fill: the end of the last lease, by kind

	seen sync.Mutex
	said map[string]said       // reports of processes, by name
	fill map[string]fillStatus // by kind
}

type said struct {
	at     time.Time
	report id.Report
}

// Open makes a bank; Run fills it.
func Open(o Options) *Bank {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Judge == nil {
		o.Judge = Judge
	}
	return &Bank{o: o, floors: map[string]int64{}, said: map[string]said{}, fill: map[string]fillStatus{}}
}

// Withdraw gives up to size IDs of a kind.
func (b *Bank) Withdraw(ctx context.Context, ask WithdrawRequest) (Withdrawal, error) {
	if ask.Kind == "" || len(ask.Kind) > 40 || ask.Size < 1 || ask.Size > id.MaxLease {
		return Withdrawal{}, errs.Field("size", "is not 1 to %d of a kind", id.MaxLease)
	}
	var r Range
	err := b.handOut(ctx, ask.Kind, func(k *Book) (err error) {
		r, err = k.Withdraw(ask.Size)
		return err
	})
	if err != nil {
		return Withdrawal{}, err
	}
	b.o.Log.Warn("IDs withdrawn from the bank", "kind", ask.Kind, "lo", r.Lo, "hi", r.Hi, "holder", ask.Holder)
	return Withdrawal(r), nil
}

// Fallback gives up to size numbers of a machine's counter.
func (b *Bank) Fallback(ctx context.Context, ask FallbackRequest) (id.FallbackGrant, error) {
	if ask.Holder == "" || len(ask.Holder) > 100 || ask.Size < 1 || ask.Size > id.MaxLease {
		return id.FallbackGrant{}, errs.Field("size", "is not 1 to %d for a holder", id.MaxLease)
	}
	var g id.FallbackGrant
	err := b.handOut(ctx, "", func(k *Book) (err error) {
		g, err = k.Raise(ask.Holder, ask.Size, b.o.Clock())
		return err
	})
	if err != nil {
		return id.FallbackGrant{}, err
	}
	b.o.Log.Info("fallback numbers granted", "machine", g.Machine, "lo", g.Lo, "hi", g.Hi, "holder", ask.Holder)
	return g, nil
}

// errNew undoes the transaction that met a new cell's database: it is remembered
// before anything comes out of it, so that an agent that ends after its very first
// commit isn't taken for one that lost its file.
var errNew = errors.New("a new cell's database")

// handOut is the order that everything hangs on: commit with the counter raised,
// remember that outside, and only then answer. Whatever ends in between, a range
// is lost and none is given twice.
func (b *Bank) handOut(ctx context.Context, kind string, decide func(*Book) error) error {
	if b.o.Database == nil {
		return errs.ErrNotFound.Msgf("zone %s has no stock of IDs of its own", b.o.Cell)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for range 3 { // again after the first look at a new cell, and after all was given up
		remembered, have, err := b.o.Witness.Recall(ctx)
		if err != nil {
			return errs.ErrUnavailable.Because(fmt.Errorf("what is remembered of the cell's database: %w", err))
		}
		var mark Mark
		var why string
		err = b.o.Database.Update(ctx, kind, func(k *Book) error {
			if why = b.o.Judge(remembered, have, k.Mark()); why != "" {
				k.GiveUp(why, remembered, b.o.Clock())
			} else if !have {
				mark = k.Mark()
				return errNew
			} else if err := decide(k); err != nil {
				return err
			}
			mark = k.Mark()
			return nil
		})
		isNew := errors.Is(err, errNew)
		if err != nil && !isNew {
			return err
		}
		if err := b.o.Witness.Attest(ctx, mark); err != nil {
			return errs.ErrUnavailable.Because(fmt.Errorf("the cell's database could not be remembered: %w", err))
		}
		if isNew {
			continue
		}
		if why == "" {
			return nil
		}
		b.o.Log.Error("the cell's database can't be believed: bank, machines and ceilings were given up", "alarm", "ids.lost", "cell", b.o.Cell, "why", why)
	}
	return ErrLost
}
