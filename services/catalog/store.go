package catalog

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/catalog/catalogapi"
)

//go:embed migrations/*.sql
var copyFiles embed.FS

//go:embed migrations_writer/*.sql
var writerFiles embed.FS

// Migrations is the schema of a cell's copy.
func Migrations() pg.Migrations { return pg.Sub("catalog", copyFiles) }

// WriterMigrations is the writer's schema, in the global zone's database.
func WriterMigrations() pg.Migrations {
	sub, err := fs.Sub(writerFiles, "migrations_writer")
	if err != nil {
		sub = writerFiles // can't happen: the folder's name is a valid path
	}
	return pg.Migrations{Schema: "catalogw", FS: sub}
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// applyLimit bounds the transaction of one feed answer.
const applyLimit = 10 * time.Second

const productColumns = `id, seller_id, title, description, category, active, version, created_at, updated_at`

// products runs a query for productColumns and adds the SKUs, in their order.
func products(ctx context.Context, q querier, sql, skus string, args ...any) ([]catalogapi.Product, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	at := map[id.ID]int{}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (p catalogapi.Product, err error) {
		err = r.Scan(&p.ID, &p.Seller, &p.Title, &p.Description, &p.Category, &p.Active, &p.Version, &p.CreatedAt, &p.UpdatedAt)
		p.CreatedAt, p.UpdatedAt = p.CreatedAt.UTC(), p.UpdatedAt.UTC()
		at[p.ID] = len(at)
		return p, err
	})
	if err != nil || len(list) == 0 {
		return list, err
	}
	ids := make([]int64, len(list))
	for i, p := range list {
		ids[i] = int64(p.ID)
	}
	rows, err = q.Query(ctx, `SELECT product_id, id, title, price, currency FROM `+skus+`
		WHERE product_id = ANY($1) ORDER BY product_id, position`, ids)
	if err != nil {
		return nil, err
	}
	var product id.ID
	var v catalogapi.Variant
	_, err = pgx.ForEachRow(rows, []any{&product, &v.ID, &v.Title, &v.Price, &v.Currency}, func() error {
		p := &list[at[product]]
		p.SKUs = append(p.SKUs, v)
		return nil
	})
	return list, err
}

func categories(ctx context.Context, q querier, sql string, args ...any) ([]catalogapi.Category, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[catalogapi.Category])
}

// store is the SQL of a cell's copy.
type store struct{ pool *pgxpool.Pool }

// position says how far the copy is.
func (s *store) position(ctx context.Context) (position, error) {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	p, err := readPosition(ctx, s.pool, "")
	return p, pg.Error(err)
}

func readPosition(ctx context.Context, q querier, lock string) (p position, err error) {
	err = q.QueryRow(ctx, `SELECT history, version, generation, rebuilding, complete FROM catalog.copy`+lock).
		Scan(&p.history, &p.version, &p.generation, &p.rebuilding, &p.complete)
	return p, err
}

// apply takes an answer of the feed in, rows and position in one transaction. from
// is the position that was asked with; when the copy is elsewhere by now (another
// process of the cell was faster) nothing happens.
func (s *store) apply(ctx context.Context, from position, f catalogapi.Feed) (p position, err error) {
	ctx, cancel := context.WithTimeout(ctx, applyLimit)
	defer cancel()
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if p, err = readPosition(ctx, tx, ` FOR UPDATE`); err != nil || p != from {
			return err
		}
		if f.After != p.version { // another history, or it went back: pull all of it again beside the old rows
			p.generation++
			p.rebuilding = true
		}
		p.history, p.version = f.History, f.Upto
		if err := s.upsert(ctx, tx, p.generation, f); err != nil {
			return err
		}
		if f.Upto == f.Newest {
			if p.rebuilding {
				if err := s.sweep(ctx, tx, p.generation); err != nil {
					return err
				}
			}
			p.rebuilding, p.complete = false, true
		}
		_, err := tx.Exec(ctx, `UPDATE catalog.copy SET history = $1, version = $2, generation = $3, rebuilding = $4, complete = $5`,
			p.history, p.version, p.generation, p.rebuilding, p.complete)
		return err
	})
	return p, pg.Error(err)
}

// upsert writes the rows of an answer: a handful of statements, however many.
func (s *store) upsert(ctx context.Context, tx pgx.Tx, generation int64, f catalogapi.Feed) error {
	for _, c := range f.Categories {
		_, err := tx.Exec(ctx, `INSERT INTO catalog.categories (id, name, position, generation) VALUES ($1, $2, $3, $4)
			ON CONFLICT (id) DO UPDATE SET name = $2, position = $3, generation = $4`, c.ID, c.Name, c.Position, generation)
		if err != nil {
			return err
		}
	}
	if len(f.Products) == 0 {
		return nil
	}
	var ids, sellers, versions, skuIDs, skuProducts, positions, prices []int64
	var titles, descriptions, cats, skuTitles, currency []string
	var active []bool
	var created, updated []time.Time
	for _, p := range f.Products {
		ids, sellers, versions = append(ids, int64(p.ID)), append(sellers, int64(p.Seller)), append(versions, p.Version)
		titles, descriptions, cats = append(titles, p.Title), append(descriptions, p.Description), append(cats, p.Category)
		active, created, updated = append(active, p.Active), append(created, p.CreatedAt), append(updated, p.UpdatedAt)
		for i, v := range p.SKUs {
			skuIDs, skuProducts, positions = append(skuIDs, int64(v.ID)), append(skuProducts, int64(p.ID)), append(positions, int64(i))
			skuTitles, prices, currency = append(skuTitles, v.Title), append(prices, v.Price), append(currency, v.Currency)
		}
	}
	_, err := tx.Exec(ctx, `INSERT INTO catalog.products (`+productColumns+`, generation)
		SELECT *, $10::bigint FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::bigint[], $8::timestamptz[], $9::timestamptz[])
		ON CONFLICT (id) DO UPDATE SET title = excluded.title, description = excluded.description, category = excluded.category,
			active = excluded.active, version = excluded.version, generation = excluded.generation, updated_at = excluded.updated_at`,
		ids, sellers, titles, descriptions, cats, active, versions, created, updated, generation)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `DELETE FROM catalog.skus WHERE product_id = ANY($1)`, ids); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO catalog.skus (id, product_id, position, title, price, currency)
		SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[], $5::bigint[], $6::text[])`,
		skuIDs, skuProducts, positions, skuTitles, prices, currency)
	return err
}

// sweep removes what the pull that has just reached the newest version didn't see.
func (s *store) sweep(ctx context.Context, tx pgx.Tx, generation int64) error {
	if _, err := tx.Exec(ctx, `DELETE FROM catalog.products WHERE generation <> $1`, generation); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM catalog.categories WHERE generation <> $1`, generation)
	return err
}

// list gives active products, newest first; after the given one when its ID is set.
func (s *store) list(ctx context.Context, from cursor, limit int64) ([]catalogapi.Product, error) {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	// One statement for each index: an OR over optional filters would use none.
	where, args := `active`, []any{limit}
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	if from.Category != "" {
		where += " AND category = " + arg(from.Category)
	}
	if from.Seller != 0 {
		where += " AND seller_id = " + arg(from.Seller)
	}
	if from.ID != 0 {
		where += " AND (created_at, id) < (" + arg(from.At) + ", " + arg(from.ID) + ")"
	}
	list, err := products(ctx, s.pool, `SELECT `+productColumns+` FROM catalog.products WHERE `+where+`
		ORDER BY created_at DESC, id DESC LIMIT $1`, "catalog.skus", args...)
	return list, pg.Error(err)
}

// product gives one product, active or not.
func (s *store) product(ctx context.Context, product id.ID) (p catalogapi.Product, err error) {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	list, err := products(ctx, s.pool, `SELECT `+productColumns+` FROM catalog.products WHERE id = $1`, "catalog.skus", product)
	if err != nil {
		return p, pg.Error(err)
	}
	if len(list) == 0 {
		return p, errs.ErrNotFound
	}
	return list[0], nil
}

func (s *store) categories(ctx context.Context) ([]catalogapi.Category, error) {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	list, err := categories(ctx, s.pool, `SELECT id, name, position FROM catalog.categories ORDER BY position, id`)
	return list, pg.Error(err)
}

// skus gives what there is of the SKUs.
func (s *store) skus(ctx context.Context, ids []id.ID) ([]catalogapi.SKU, error) {
	ctx, cancel := context.WithTimeout(ctx, pg.TxTimeout)
	defer cancel()
	numbers := make([]int64, len(ids))
	for i, v := range ids {
		numbers[i] = int64(v)
	}
	rows, err := s.pool.Query(ctx, `SELECT s.id, p.id, p.seller_id, p.title, s.title, s.price, s.currency, p.active
		FROM catalog.skus s JOIN catalog.products p ON p.id = s.product_id WHERE s.id = ANY($1)`, numbers)
	if err != nil {
		return nil, pg.Error(err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (v catalogapi.SKU, err error) {
		var variant string
		err = r.Scan(&v.SKU, &v.Product, &v.Seller, &v.Title, &variant, &v.Price, &v.Currency, &v.Active)
		v.SellerSlot, v.Title = v.Seller.Slot(), offerTitle(v.Title, variant)
		return v, err
	})
	return list, pg.Error(err)
}
