package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/catalog/catalogapi"
	"example.com/cellmart/services/idgen/idgenapi"
)

// look is how often a waiting feed looks for what another process has written.
const look = time.Second

// idSource hands out IDs; it never waits.
type idSource interface {
	Next(kind string, slot routing.Slot) (id.ID, error)
}

// writer is the use cases of the one place that writes.
type writer struct {
	store writerStore
	ids   idSource

	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil while nobody waits
}

const createRoute = "POST /products"

// create makes a product of the seller, once per key.
func (w *writer) create(ctx context.Context, seller id.ID, key string, in catalogapi.NewProduct) (r pg.Record, replayed bool, err error) {
	if in, err = clean(in); err != nil {
		return r, false, err
	}
	canonical, err := json.Marshal(in)
	if err != nil {
		return r, false, err
	}
	hash := sha256.Sum256(canonical)
	k := pg.Key{Actor: seller, Route: createRoute, Key: key, Hash: hash[:]}
	err = w.store.write(ctx, func(tx *writing) error {
		kept, err := tx.claim(ctx, k)
		if err != nil {
			return err
		}
		if kept != nil {
			r, replayed = *kept, true
			return nil
		}
		p, err := w.product(seller, in)
		if err != nil {
			return err
		}
		if p, err = tx.insert(ctx, p); err != nil {
			return err
		}
		r = pg.Record{Status: http.StatusCreated, Location: "/api/v1/products/" + p.ID.String()}
		if r.Body, err = json.Marshal(p); err != nil {
			return err
		}
		return tx.keep(ctx, k, r)
	})
	if err != nil {
		return pg.Record{}, false, err
	}
	if !replayed {
		w.announce()
	}
	return r, replayed, nil
}

// product gives a new product its IDs, all in the seller's slot (R1).
func (w *writer) product(seller id.ID, in catalogapi.NewProduct) (p catalogapi.Product, err error) {
	p = catalogapi.Product{Seller: seller, Title: in.Title, Description: in.Description, Category: in.Category, Active: true}
	if p.ID, err = w.ids.Next(idgenapi.Product, seller.Slot()); err != nil {
		return p, err
	}
	for _, v := range in.SKUs {
		sku := catalogapi.Variant{Title: v.Title, Price: v.Price, Currency: v.Currency}
		if sku.ID, err = w.ids.Next(idgenapi.SKU, seller.Slot()); err != nil {
			return p, err
		}
		p.SKUs = append(p.SKUs, sku)
	}
	return p, nil
}

// change changes a product of the seller. It needs no key: doing it twice is
// doing it once, and the second time makes no new version.
func (w *writer) change(ctx context.Context, seller, product id.ID, c catalogapi.Change) (p catalogapi.Product, err error) {
	if c, err = cleanChange(c); err != nil {
		return p, err
	}
	changed := false
	err = w.store.write(ctx, func(tx *writing) error {
		before, err := tx.lock(ctx, seller, product)
		if err != nil {
			return err
		}
		if p, changed, err = change(before, c); err != nil || !changed {
			return err
		}
		p, err = tx.update(ctx, p)
		return err
	})
	if err == nil && changed {
		w.announce()
	}
	return p, err
}

// announce wakes the feeds that wait.
func (w *writer) announce() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

func (w *writer) nextChange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

// feed reads what changed after a version; while that is nothing it waits until
// wait ends.
func (w *writer) feed(ctx, wait context.Context, history string, after int64, limit int) (catalogapi.Feed, error) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		changed := w.nextChange() // before the look, so that no change falls between
		f, err := w.store.feed(ctx, history, after, limit)
		if err != nil || f.After != after || f.Upto > after {
			return f, err
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-wait.Done():
			return f, nil
		}
	}
}

// feeder is the way to the writer; catalogapi.FeedClient is one.
type feeder interface {
	Feed(ctx context.Context, history string, after int64, wait time.Duration) (catalogapi.Feed, error)
}

// follower keeps a cell's copy up with the writer. It only pulls (R4).
type follower struct {
	store store
	feed  feeder
	log   *slog.Logger
	heard func() // called after each answer that is in; nil in tests

	at atomic.Pointer[position]
}

// where is the copy's position as this process knows it; it asks the database only
// before the first step.
func (f *follower) where(ctx context.Context) (position, error) {
	if p := f.at.Load(); p != nil {
		return *p, nil
	}
	return f.store.position(ctx)
}

// ready says why the copy can't be read from.
func (f *follower) ready(ctx context.Context) error {
	p, err := f.store.position(ctx)
	if err == nil && !p.complete {
		err = ErrNotReady
	}
	return err
}

// step pulls once: it waits for a change and takes it in.
func (f *follower) step(ctx context.Context) error {
	from, err := f.store.position(ctx)
	if err != nil {
		return err
	}
	f.at.Store(&from)
	answer, err := f.feed.Feed(ctx, from.history, from.version, catalogapi.MaxWait)
	if err != nil {
		return err
	}
	if answer.Upto != from.version || answer.After != from.version || answer.History != from.history || !from.complete {
		p, err := f.store.apply(ctx, from, answer)
		if err != nil {
			return err
		}
		if p.generation != from.generation {
			f.log.Warn("the writer has another history, all is pulled again", "history", p.history, "was_at", from.version, "newest", answer.Newest)
		}
		f.at.Store(&p)
	}
	if f.heard != nil {
		f.heard()
	}
	return nil
}

// run follows until ctx ends, whatever happens to the writer, the link or the
// database.
func (f *follower) run(ctx context.Context) error {
	const least, most = 100 * time.Millisecond, 2 * time.Second
	pause := least
	for ctx.Err() == nil {
		err := f.step(ctx)
		switch {
		case err == nil:
			if pause != least {
				f.log.Info("the catalog's feed is back")
			}
			pause = least
			continue
		case ctx.Err() != nil:
			return nil
		case pause == least: // once per outage, not at each try
			f.log.Warn("the catalog's feed is away; what is here is served on", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)): // jitter: the cells come back one by one
		}
		pause = min(2*pause, most)
	}
	return nil
}
