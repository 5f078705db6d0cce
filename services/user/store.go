package user

import (
	"context"
	"embed"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations is the schema users.
func Migrations() pg.Migrations { return pg.Sub("users", migrations) }

// store is the cell's database, as this service uses it.
type store struct{ pool *pgxpool.Pool }

func (s *store) write(ctx context.Context, e pg.Entry, fn func(*pg.Tx) error) error {
	return pg.InSlot(ctx, s.pool, e, fn)
}

func (s *store) ready(ctx context.Context) error { return pg.Error(s.pool.Ping(ctx)) }

// read runs fn on a slot of this cell. (Standbys and their staleness come with
// the standby.)
func (s *store) read(ctx context.Context, slot routing.Slot, fn func(tx pgx.Tx) error) error {
	return pg.See(ctx, s.pool, slot, func(tx pgx.Tx, _ bool) error { return fn(tx) })
}

func notFound(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return errs.ErrNotFound
	}
	return err
}

const userColumns = `id, phone, name, password_hash, seller, shop_name, created_at, denied_until`

func collectUser(rows pgx.Rows, err error) (User, error) {
	if err != nil {
		return User{}, err
	}
	u, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[User])
	return u, notFound(err)
}

// user gives an open account; errs.ErrNotFound.
func (s *store) user(ctx context.Context, slot routing.Slot, user id.ID) (u User, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error {
		u, err = collectUser(tx.Query(ctx, `SELECT `+userColumns+` FROM users.users WHERE slot = $1 AND id = $2 AND closed_at IS NULL`, slot, user))
		return err
	})
	return u, err
}

// userByPhone is for logging in at the user's home; errs.ErrNotFound.
func (s *store) userByPhone(ctx context.Context, slot routing.Slot, mac []byte) (u User, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error {
		u, err = collectUser(tx.Query(ctx, `SELECT `+userColumns+` FROM users.users WHERE slot = $1 AND phone_mac = $2 AND closed_at IS NULL`, slot, mac))
		return err
	})
	return u, err
}

// lookup gives the user that has a phone, in whatever cell: by the copy in the
// cell's own slot, else by a user of this cell whose copy is still on its way.
func (s *store) lookup(ctx context.Context, cellSlot routing.Slot, mac []byte) (user id.ID, err error) {
	err = s.read(ctx, cellSlot, func(tx pgx.Tx) error {
		return notFound(tx.QueryRow(ctx, `SELECT user_id FROM users.claim_copies WHERE slot = $1 AND phone_mac = $2
			UNION ALL
			SELECT u.id FROM users.users u JOIN cell.owned s ON s.slot = u.slot
			WHERE u.phone_mac = $2 AND u.closed_at IS NULL LIMIT 1`, cellSlot, mac).Scan(&user))
	})
	return user, err
}

// payee says whether a user of the entered slot takes money.
func payee(ctx context.Context, tx *pg.Tx, user id.ID) (bool, string, error) {
	var closed bool
	err := tx.QueryRow(ctx, `SELECT closed_at IS NOT NULL FROM users.users WHERE slot = $1 AND id = $2`, tx.Slot, user).Scan(&closed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, "UNKNOWN_PAYEE", nil
	case err != nil:
		return false, "", err
	case closed:
		return false, "PAYEE_CLOSED", nil
	}
	return true, "", nil
}

// payees is payee for several.
func payees(b *pgx.Batch, slots []routing.Slot, users []id.ID, takes []bool) {
	b.Queue(`SELECT (SELECT count(*) FROM users.users x WHERE x.slot = u.slot AND x.id = u.id AND x.closed_at IS NULL) = 1
		FROM unnest($1::int[], $2::bigint[]) WITH ORDINALITY AS u(slot, id, i) ORDER BY u.i`, slots, users).Query(transfer.Flags(takes))
}

// renamed is a user with a name, the how manieth that is, and their phone in
// messages. News says that it is another one than before.
type renamed struct {
	User User
	No   int64
	MAC  []byte
	News bool
}

// rename gives the user with the new name; errs.ErrNotFound.
func rename(ctx context.Context, tx *pg.Tx, user id.ID, name string) (r renamed, err error) {
	r.User, err = collectUser(tx.Query(ctx, `SELECT `+userColumns+` FROM users.users WHERE slot = $1 AND id = $2 AND closed_at IS NULL FOR UPDATE`, tx.Slot, user))
	if err != nil || r.User.Name == name {
		return r, err
	}
	r.User.Name, r.News = name, true
	err = tx.QueryRow(ctx, `UPDATE users.users SET name = $3, name_no = name_no + 1 WHERE slot = $1 AND id = $2 RETURNING name_no, phone_mac`,
		tx.Slot, user, name).Scan(&r.No, &r.MAC)
	return r, err
}

// openShop makes a seller; ErrSellerOther when there is a shop of another name.
func openShop(ctx context.Context, tx *pg.Tx, user id.ID, shop string) (User, error) {
	u, err := collectUser(tx.Query(ctx, `SELECT `+userColumns+` FROM users.users WHERE slot = $1 AND id = $2 AND closed_at IS NULL FOR UPDATE`,
		tx.Slot, user))
	switch {
	case err != nil:
		return u, err
	case u.Seller && u.ShopName == shop:
		return u, nil
	case u.Seller:
		return u, userapi.ErrSellerOther
	}
	return collectUser(tx.Query(ctx, `UPDATE users.users SET seller = true, shop_name = $3 WHERE slot = $1 AND id = $2 AND NOT seller RETURNING `+userColumns,
		tx.Slot, user, shop))
}

// closeAccount closes an account that has no money and nothing under way;
// userapi.ErrNotEmpty, errs.ErrNotFound. The whole slot is held for it: whoever has
// seen the account open has come out by then, and what they did is seen here. Before,
// it's looked whether there is anything to close, so that nobody can hold up a slot by
// asking for what is refused.
// (Credits only read whether an account is open, since a lock would cost each of
// them, and closing is rare.) A closed one once more is no error.
func closeAccount(ctx context.Context, tx *pg.Tx, user id.ID) error {
	if open, err := closable(ctx, tx, user); err != nil || !open {
		return err
	}
	if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '1s'"); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(4401, $1)", int32(tx.Slot)); err != nil {
		return err
	}
	if open, err := closable(ctx, tx, user); err != nil || !open {
		return err
	}
	if err := leaveAll(ctx, tx, user); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE users.users SET closed_at = now() WHERE slot = $1 AND id = $2 AND closed_at IS NULL`, tx.Slot, user)
	return err
}

// closable says whether an account is open, and refuses if it isn't empty.
func closable(ctx context.Context, tx *pg.Tx, user id.ID) (open bool, err error) {
	var busy bool
	err = tx.QueryRow(ctx, `SELECT closed_at IS NULL, closed_at IS NULL AND (
			EXISTS (SELECT FROM cell.wallets WHERE slot = $1 AND user_id = $2 AND (available, frozen, suspense, recovery) <> (0, 0, 0, 0))
			OR EXISTS (SELECT FROM cell.transfers WHERE slot = $1 AND from_user = $2 AND ended_at IS NULL))
		FROM users.users WHERE slot = $1 AND id = $2`, tx.Slot, user).Scan(&open, &busy)
	if busy {
		err = userapi.ErrNotEmpty
	}
	return open, notFound(err)
}

const (
	maxAddresses   = 20
	addressColumns = `id, recipient, phone, line, city, postcode, created_at`
)

func scanAddress(row pgx.CollectableRow) (a userapi.Address, err error) {
	err = row.Scan(&a.ID, &a.Recipient, &a.Phone, &a.Line, &a.City, &a.Postcode, &a.CreatedAt)
	a.CreatedAt = a.CreatedAt.UTC()
	return a, err
}

// addAddress adds one below the limit. The user's row is locked, so that two
// additions at once can't both be the last.
func addAddress(ctx context.Context, tx *pg.Tx, user id.ID, a userapi.Address) (userapi.Address, error) {
	var n int
	err := tx.QueryRow(ctx, `SELECT 1 FROM users.users WHERE slot = $1 AND id = $2 AND closed_at IS NULL FOR UPDATE`, tx.Slot, user).Scan(&n)
	if err != nil {
		return a, notFound(err)
	}
	err = tx.QueryRow(ctx, `SELECT count(*) FROM users.addresses WHERE slot = $1 AND user_id = $2 AND deleted_at IS NULL`, tx.Slot, user).Scan(&n)
	if err != nil {
		return a, err
	}
	if n >= maxAddresses {
		return a, userapi.ErrTooMany
	}
	rows, err := tx.Query(ctx, `INSERT INTO users.addresses (slot, id, user_id, recipient, phone, line, city, postcode)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING `+addressColumns, tx.Slot, a.ID, user, a.Recipient, a.Phone, a.Line, a.City, a.Postcode)
	if err != nil {
		return a, err
	}
	return pgx.CollectExactlyOneRow(rows, scanAddress)
}

func (s *store) addresses(ctx context.Context, slot routing.Slot, user id.ID) (out []userapi.Address, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+addressColumns+` FROM users.addresses
			WHERE slot = $1 AND user_id = $2 AND deleted_at IS NULL ORDER BY created_at, id`, slot, user)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, scanAddress)
		return err
	})
	return out, err
}

func (s *store) address(ctx context.Context, slot routing.Slot, user, address id.ID) (out userapi.Address, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+addressColumns+` FROM users.addresses
			WHERE slot = $1 AND id = $2 AND user_id = $3 AND deleted_at IS NULL`, slot, address, user)
		if err != nil {
			return err
		}
		out, err = pgx.CollectExactlyOneRow(rows, scanAddress)
		return notFound(err)
	})
	return out, err
}

// dropAddress hides it: unit rows are never deleted.
func dropAddress(ctx context.Context, tx *pg.Tx, user, address id.ID) error {
	tag, err := tx.Exec(ctx, `UPDATE users.addresses SET deleted_at = now() WHERE slot = $1 AND id = $2 AND user_id = $3 AND deleted_at IS NULL`,
		tx.Slot, address, user)
	if err == nil && tag.RowsAffected() == 0 {
		return errs.ErrNotFound
	}
	return err
}

// The ledger's reads, in a transaction of their own.

func (s *store) allowed(ctx context.Context, slot routing.Slot, user id.ID, currency string) (out transfer.Allowance, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error { out, err = transfer.Allowed(ctx, tx, slot, user, currency); return err })
	return out, err
}

func (s *store) balances(ctx context.Context, slot routing.Slot, user id.ID) (out []transfer.Balance, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error { out, err = transfer.Balances(ctx, tx, slot, user); return err })
	return out, err
}

func (s *store) statement(ctx context.Context, slot routing.Slot, user id.ID, currency string, before int64, limit int) (out []transfer.Entry, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error {
		out, err = transfer.Statement(ctx, tx, slot, user, currency, before, limit)
		return err
	})
	return out, err
}

// transfer gives a transfer with its history: the payer's side if it is of this
// slot, else what the payee's side knows.
func (s *store) transfer(ctx context.Context, slot routing.Slot, n id.ID) (out told, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error {
		out.sent, err = transfer.Get(ctx, tx, slot, n)
		if err == nil {
			out.events, err = transfer.SentHistory(ctx, tx, slot, out.sent)
			return err
		}
		if !errs.IsKind(err, errs.NotFound) {
			return err
		}
		if out.received, err = transfer.Received(ctx, tx, slot, n); err == nil {
			out.events, err = transfer.ReceivedHistory(ctx, tx, slot, out.received)
		}
		return err
	})
	return out, err
}

func (s *store) transfers(ctx context.Context, slot routing.Slot, user id.ID, after transfer.Place, limit int) (out []transfer.Item, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error { out, err = transfer.List(ctx, tx, slot, user, after, limit); return err })
	return out, err
}
