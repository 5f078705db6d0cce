package bank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
	"example.com/cellmart/services/user/userapi"
)

// Options of a run.
type Options struct {
	Cells     []Cell
	Agents    map[string]*agentapi.Client
	Control   *controlapi.Client
	System    System
	Databases map[string]string // administrator's connections; nil where they can't be reached
	Seed      uint64
	Short     bool // fewer people and faults, for tests of the drill itself
	// Event and Fail report what is done and what doesn't hold; After has something
	// undone when all is over, also after an error.
	Event func(format string, args ...any)
	Fail  func(format string, args ...any)
	After func(undo func(context.Context) error)
}

// size of a run.
type size struct {
	each    int // people of each cell; an account each in five currencies
	lasts   time.Duration
	workers int
	every   time.Duration // between two steps
	promote int           // promotions at least
}

func (o *Options) size() size {
	if o.Short {
		return size{each: 6, lasts: 12 * time.Second, workers: 8, every: 25 * time.Millisecond, promote: 1}
	}
	return size{each: 50, lasts: time.Minute, workers: 16, every: 15 * time.Millisecond, promote: 3}
}

// limits of waiting. They bound, and decide nothing: a slow machine takes longer.
const (
	toPrepare = 2 * time.Minute
	toRest    = 100 * time.Second
	watchGap  = 3 * time.Second
)

// Bank is a run on its way.
type Bank struct {
	o      Options
	size   size
	people *people
	book   book
	before map[account]int64
	faults *faults

	steps, late, postings  atomic.Int64
	looked, unlooked       atomic.Int64 // at I3
	walletReads, stateRead atomic.Int64
	mu                     sync.Mutex      // of what follows, and of the report
	said                   map[string]bool // violations, each once
}

// New makes a run.
func New(o Options) *Bank {
	b := &Bank{o: o, size: o.size(), said: map[string]bool{}}
	// Several things happen at the same time; a report is one's.
	b.o.Event = func(format string, args ...any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		o.Event(format, args...)
	}
	b.o.After = func(undo func(context.Context) error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		o.After(undo)
	}
	b.people = newPeople(o.Cells, b.size.each, o.Seed)
	b.faults = newFaults(b)
	return b
}

// Open makes the people, and their accounts with some money.
func (b *Bank) Open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, toPrepare)
	defer cancel()
	if err := b.people.open(ctx); err != nil {
		return fmt.Errorf("people: %w", err)
	}
	var err error
	if b.before, err = b.wallets(ctx); err != nil {
		return err
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(b.size.workers)
	for _, who := range b.people.all {
		for _, currency := range currencies {
			group.Go(func() error {
				w := b.ordered(step{kind: deposits, who: who.n, currency: currency, amount: opening})
				return b.put(inner, w, false)
			})
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("opening: %w", err)
	}
	b.o.Event("%d people have %d accounts in %d currencies", len(b.people.all), len(b.people.all)*len(currencies), len(currencies))
	return nil
}

// Run has money moved and things broken for as long as the run lasts, and until
// every kind of fault was made once.
func (b *Bank) Run(ctx context.Context, broken bool) error {
	b.o.After(b.Home) // the first to be registered is the last to be done
	inner, stop := context.WithCancel(ctx)
	defer stop()
	var going sync.WaitGroup
	going.Go(func() { b.load(inner) })
	going.Go(func() { b.watch(inner) })
	var err error
	if broken {
		err = b.faults.run(ctx, b.size.lasts)
	} else {
		err = pause(ctx, b.size.lasts/2)
	}
	stop()
	going.Wait()
	return err
}

// load does the steps of the seed, at their pace; what is late is left out.
func (b *Bank) load(ctx context.Context) {
	plan := newPlanner(b.o.Seed, len(b.people.all))
	steps := make(chan step)
	var going sync.WaitGroup
	for range b.size.workers {
		going.Go(func() {
			for s := range steps {
				b.do(ctx, s)
				b.steps.Add(1)
			}
		})
	}
	for pause(ctx, b.size.every) == nil {
		select {
		case steps <- plan.next():
		default:
			b.late.Add(1)
		}
	}
	close(steps)
	going.Wait()
}

// ordered notes what will be asked for; nil when there is nothing to do it with.
func (b *Bank) ordered(s step) *write {
	w := &write{kind: s.kind, who: s.who, to: s.to, currency: s.currency, amount: s.amount, key: fresh(string(s.kind))}
	money := map[string]any{"amount": s.amount, "currency": s.currency}
	switch s.kind {
	case deposits:
		w.path, w.body = "/wallet/deposits", money
	case withdraws:
		w.path, w.body = "/wallet/withdrawals", money
	case transfers:
		money["to_user"] = b.people.all[s.to].id
		w.path, w.body = "/transfers", money
	case refunds:
		old := b.book.pick(s.pick, 200)
		if old == nil {
			return nil
		}
		w.who, w.to, w.currency, w.of = old.to, old.who, old.currency, old.id
		w.amount = 1 + s.amount%max(1, old.amount)
		w.path, w.body = "/transfers/"+old.id.String()+"/refunds", map[string]any{"amount": w.amount}
	}
	b.book.add(w)
	return w
}

// do does one step; what isn't known at the end is asked again then.
func (b *Bank) do(ctx context.Context, s step) {
	switch s.kind {
	case reads:
		b.read(ctx, s)
	case cancels:
		if old := b.book.pick(s.pick, 10); old != nil {
			_, _ = b.people.ask(ctx, b.people.all[old.who], "POST", "/transfers/"+old.id.String()+"/cancel", "", nil) // only a wish: the end is read later
		}
	default:
		if w := b.ordered(s); w != nil {
			_ = b.put(ctx, w, false)
		}
	}
}

// put asks for a write until it's known. An error leaves it unknown.
func (b *Bank) put(ctx context.Context, w *write, lossy bool) error {
	got, err := b.people.ask(ctx, b.people.all[w.who], "POST", w.path, w.key, w.body)
	if err != nil {
		return err
	}
	if bad := b.book.take(w, got, lossy); bad != "" {
		b.violated("%s", bad)
	}
	return nil
}

// read holds what a person sees of their money to I3.
func (b *Bank) read(ctx context.Context, s step) {
	who := b.people.all[s.who]
	var wallet userapi.Wallet
	if b.people.get(ctx, who, "/wallet", &wallet) != nil {
		return
	}
	b.walletReads.Add(1)
	for _, x := range wallet.Balances {
		if x.Available < 0 || x.Frozen < 0 {
			b.violated("I3: user %s has %d available and %d frozen in %s", who.id, x.Available, x.Frozen, x.Currency)
		}
	}
	var page userapi.Statement
	if b.people.get(ctx, who, "/wallet/statement?limit=50&currency="+s.currency, &page) != nil {
		return
	}
	b.postings.Add(int64(len(page.Items)))
	if bad := statement(page.Items); bad != "" {
		b.violated("I3: user %s %s: %s", who.id, s.currency, bad)
	}
}

// watch asks the cells for I3 while they are broken: one that can't be asked is
// unknown then, and no violation.
func (b *Bank) watch(ctx context.Context) {
	for pause(ctx, watchGap) == nil {
		for _, cell := range b.o.Cells {
			f, err := b.o.Agents[cell.Name].Facts(ctx, agentapi.PartLocal)
			if err != nil {
				b.unlooked.Add(1)
				continue
			}
			b.looked.Add(1)
			for _, found := range f.Found {
				if found.ID == "I3" {
					b.violated("I3 in %s: %s", cell.Name, found.Text)
				}
			}
		}
	}
}

// violated fails the run, once for each text.
func (b *Bank) violated(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.said[text] {
		b.said[text] = true
		b.o.Fail("%s", text)
	}
}

// each calls do for everybody, some at a time.
func (b *Bank) each(ctx context.Context, do func(context.Context, *person) error) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(b.size.workers)
	for _, who := range b.people.all {
		group.Go(func() error { return do(inner, who) })
	}
	return group.Wait()
}

// wallets reads what everybody has. Frozen money at rest is a violation.
func (b *Bank) wallets(ctx context.Context) (map[account]int64, error) {
	var mu sync.Mutex
	out := map[account]int64{}
	return out, b.each(ctx, func(ctx context.Context, who *person) error {
		var wallet userapi.Wallet
		if err := b.people.get(ctx, who, "/wallet", &wallet); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, x := range wallet.Balances {
			if x.Frozen != 0 {
				b.violated("user %s still has %d %s frozen at rest", who.id, x.Frozen, x.Currency)
			}
			if slices.Contains(currencies[:], x.Currency) {
				out[account{who.n, x.Currency}] = x.Available
			}
		}
		return nil
	})
}

// Settle finds out what became of everything that was asked for: what isn't known is
// asked again, and so is what was answered by a slot's owner whose last moments went
// with it. Then every transfer's end is read. rest waits until no message is open.
func (b *Bank) Settle(ctx context.Context, rest func(context.Context, time.Duration) []string) error {
	for _, bad := range rest(ctx, toRest) {
		b.violated("invariants: %s", bad)
	}
	again, cancel := context.WithTimeout(ctx, toRest)
	defer cancel()
	group, inner := errgroup.WithContext(again)
	group.SetLimit(b.size.workers)
	for _, w := range b.book.all() {
		lost := b.faults.lost(b.people.all[w.who].id.Slot())
		if w.known && (len(lost) == 0 || w.id == 0) { // what was refused was promised to nobody
			continue
		}
		group.Go(func() error { return b.put(inner, w, w.known && during(lost, w.answered)) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("asking again: %w", err)
	}
	for _, bad := range rest(ctx, toRest) {
		b.violated("invariants: %s", bad)
	}
	return b.ends(ctx)
}

// ends reads every transfer's state from its payer.
func (b *Bank) ends(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(b.size.workers)
	for _, w := range b.book.all() {
		if w.id == 0 || w.kind != transfers && w.kind != refunds {
			continue
		}
		group.Go(func() error {
			var t userapi.Transfer
			got, err := b.people.ask(inner, b.people.all[w.who], "GET", "/transfers/"+w.id.String(), "", nil)
			if err != nil {
				return err
			}
			if !got.ok() {
				b.violated("%s %s was answered, and is not there: %v", w.kind, w.id, got.refusal())
				return nil
			}
			if err := json.Unmarshal(got.body, &t); err != nil {
				return err
			}
			if !ended(t.State) {
				b.violated("%s %s is %s at rest", w.kind, w.id, t.State)
			}
			w.state = t.State
			b.stateRead.Add(1)
			return nil
		})
	}
	return group.Wait()
}

var errNotHere = errors.New("needs the databases of the demo's processes")
