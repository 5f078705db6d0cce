package catalog

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/catalog/catalogapi"
)

// maxFeedBytes bounds the text of one feed answer, whatever the sellers wrote;
// call reads at most 8 MB.
const maxFeedBytes = 6 << 20

// writerStore is the SQL of the one place that writes.
type writerStore struct{ pool *pgxpool.Pool }

// writing is a transaction of the writer.
type writing struct{ tx pgx.Tx }

// write runs fn in a transaction. Locks are taken in the order key, product,
// counter; the counter last, since all writers queue for it until the commit.
func (s *writerStore) write(ctx context.Context, fn func(*writing) error) error {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	committing := false
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := fn(&writing{tx})
		committing = err == nil
		return err
	})
	var refused *pgconn.PgError
	if err != nil && committing && !errors.As(err, &refused) {
		return errs.ErrUnknown.Because(err) // the COMMIT may have come through
	}
	return pg.Error(err)
}

// next takes the next version.
func (w *writing) next(ctx context.Context) (version int64, err error) {
	err = w.tx.QueryRow(ctx, `UPDATE catalogw.counter SET newest = newest + 1 RETURNING newest`).Scan(&version)
	return version, err
}

// claim looks under an Idempotency-Key, as pg.Claim does for unit data: the answer
// that is kept, or nil and the key is the caller's until the transaction ends.
func (w *writing) claim(ctx context.Context, k pg.Key) (*pg.Record, error) {
	var got bool
	err := w.tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`,
		k.Route+"\n"+k.Actor.String()+"\n"+k.Key).Scan(&got)
	if err != nil {
		return nil, err
	}
	if !got {
		return nil, pg.ErrKeyInFlight
	}
	var r pg.Record
	var same bool
	err = w.tx.QueryRow(ctx, `SELECT status, location, body, hash = $4 FROM catalogw.idempotency
		WHERE actor = $1 AND route = $2 AND key = $3`, k.Actor, k.Route, k.Key, k.Hash).
		Scan(&r.Status, &r.Location, &r.Body, &same)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case !same:
		return nil, pg.ErrKeyReused
	}
	return &r, nil
}

func (w *writing) keep(ctx context.Context, k pg.Key, r pg.Record) error {
	_, err := w.tx.Exec(ctx, `INSERT INTO catalogw.idempotency (actor, route, key, hash, status, location, body)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`, k.Actor, k.Route, k.Key, k.Hash, r.Status, r.Location, r.Body)
	return err
}

// insert stores a new product at the next version and gives it back as stored.
func (w *writing) insert(ctx context.Context, p catalogapi.Product) (catalogapi.Product, error) {
	var err error
	if p.Version, err = w.next(ctx); err != nil {
		return p, err
	}
	err = w.tx.QueryRow(ctx, `INSERT INTO catalogw.products (id, seller_id, title, description, category, active, version)
		VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING created_at, updated_at`,
		p.ID, p.Seller, p.Title, p.Description, p.Category, p.Active, p.Version).Scan(&p.CreatedAt, &p.UpdatedAt)
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.ConstraintName == "products_category" {
		return p, ErrCategory.Because(err)
	}
	if err != nil {
		return p, err
	}
	for i, v := range p.SKUs {
		_, err := w.tx.Exec(ctx, `INSERT INTO catalogw.skus (id, product_id, position, title, price, currency)
			VALUES ($1, $2, $3, $4, $5, $6)`, v.ID, p.ID, i, v.Title, v.Price, v.Currency)
		if err != nil {
			return p, err
		}
	}
	p.CreatedAt, p.UpdatedAt = p.CreatedAt.UTC(), p.UpdatedAt.UTC()
	return p, nil
}

// lock gives a seller's product, locked; another's is not found.
func (w *writing) lock(ctx context.Context, seller, product id.ID) (catalogapi.Product, error) {
	list, err := products(ctx, w.tx, `SELECT `+productColumns+` FROM catalogw.products
		WHERE id = $1 AND seller_id = $2 FOR UPDATE`, "catalogw.skus", product, seller)
	if err != nil {
		return catalogapi.Product{}, err
	}
	if len(list) == 0 {
		return catalogapi.Product{}, errs.ErrNotFound
	}
	return list[0], nil
}

// update stores a changed product at the next version.
func (w *writing) update(ctx context.Context, p catalogapi.Product) (catalogapi.Product, error) {
	var err error
	if p.Version, err = w.next(ctx); err != nil {
		return p, err
	}
	err = w.tx.QueryRow(ctx, `UPDATE catalogw.products SET title = $2, description = $3, active = $4, version = $5, updated_at = clock_timestamp()
		WHERE id = $1 RETURNING updated_at`, p.ID, p.Title, p.Description, p.Active, p.Version).Scan(&p.UpdatedAt)
	if err != nil {
		return p, err
	}
	for _, v := range p.SKUs {
		if _, err := w.tx.Exec(ctx, `UPDATE catalogw.skus SET price = $2 WHERE id = $1 AND price <> $2`, v.ID, v.Price); err != nil {
			return p, err
		}
	}
	p.UpdatedAt = p.UpdatedAt.UTC()
	return p, nil
}

// feed reads one answer in one snapshot: the newest version and the rows belong
// together.
func (s *writerStore) feed(ctx context.Context, history string, after int64, limit int) (f catalogapi.Feed, err error) {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.pool, snapshot, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT history::text, newest FROM catalogw.counter`).Scan(&f.History, &f.Newest)
		if err != nil {
			return err
		}
		f.After = after
		if history != "" && history != f.History || after > f.Newest {
			f.After = 0
		}
		if f.Categories, err = categories(ctx, tx, `SELECT id, name, position FROM catalogw.categories WHERE version > $1 ORDER BY version`, f.After); err != nil {
			return err
		}
		f.Products, err = products(ctx, tx, `SELECT `+productColumns+` FROM catalogw.products
			WHERE version > $1 ORDER BY version LIMIT $2`, "catalogw.skus", f.After, limit)
		return err
	})
	if err != nil {
		return f, pg.Error(err)
	}
	f.Upto = f.Newest
	if n := fits(f.Products); n < len(f.Products) || n == limit {
		f.Products = f.Products[:n]
		f.Upto = f.Products[n-1].Version
	}
	return f, nil
}

// fits says how many of the products go into one answer, at least one.
func fits(list []catalogapi.Product) int {
	size := 0
	for i, p := range list {
		size += 512 + 6*(len(p.Title)+len(p.Description)) // JSON makes up to 6 bytes of one
		for _, v := range p.SKUs {
			size += 128 + 6*len(v.Title)
		}
		if size > maxFeedBytes && i > 0 {
			return i
		}
	}
	return len(list)
}
