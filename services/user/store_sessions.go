package user

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/user/userapi"
)

// seats is how many logins of one user last at once; the next takes the oldest's.
const seats = 10

// sitDown gives a login a seat: a free one, else the one unused for longest.
func sitDown(ctx context.Context, tx *pg.Tx, r userapi.Refresh, now, ends time.Time) (userapi.Refresh, error) {
	// The user's row is what two logins at once wait for.
	var open bool
	err := tx.QueryRow(ctx, `SELECT closed_at IS NULL FROM users.users WHERE slot = $1 AND id = $2 FOR UPDATE`, tx.Slot, r.User).Scan(&open)
	switch {
	case err != nil:
		return r, notFound(err)
	case !open:
		return r, userapi.ErrToken
	}
	err = tx.QueryRow(ctx, `INSERT INTO users.sessions (slot, user_id, seat, family, turned_at, ends_at)
		SELECT $1, $2, n, $3, $4, $5 FROM generate_series(0, $6 - 1) n LEFT JOIN users.sessions s ON s.slot = $1 AND s.user_id = $2 AND s.seat = n
		ORDER BY coalesce(s.ended_at IS NULL AND s.ends_at > $4, false), s.turned_at NULLS FIRST, n LIMIT 1
		ON CONFLICT (slot, user_id, seat) DO UPDATE SET family = excluded.family, turn = 0, turned_at = excluded.turned_at, ends_at = excluded.ends_at, ended_at = NULL
		RETURNING seat`, tx.Slot, r.User, int64(r.Family), now, ends, seats).Scan(&r.Seat)
	return r, err
}

// seat is a login as it stands.
type seat struct {
	Turn     uint32
	TurnedAt time.Time
}

// lockSeat reads the seat of a refresh token; not ok when another login has it, or
// it has ended.
func lockSeat(ctx context.Context, tx *pg.Tx, r userapi.Refresh, now time.Time) (s seat, ok bool, err error) {
	err = tx.QueryRow(ctx, `SELECT turn, turned_at FROM users.sessions
		WHERE slot = $1 AND user_id = $2 AND seat = $3 AND family = $4 AND ended_at IS NULL AND ends_at > $5 FOR UPDATE`,
		tx.Slot, r.User, int16(r.Seat), int64(r.Family), now).Scan(&s.Turn, &s.TurnedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, false, nil
	}
	return s, err == nil, err
}

func turnSeat(ctx context.Context, tx *pg.Tx, r userapi.Refresh, now, ends time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE users.sessions SET turn = $6, turned_at = $4, ends_at = $5 WHERE slot = $1 AND user_id = $2 AND seat = $3`,
		tx.Slot, r.User, int16(r.Seat), now, ends, int64(r.Turn))
	return err
}

// leave ends the login that a refresh token is of.
func leave(ctx context.Context, tx *pg.Tx, r userapi.Refresh, now time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE users.sessions SET ended_at = $5 WHERE slot = $1 AND user_id = $2 AND seat = $3 AND family = $4 AND ended_at IS NULL`,
		tx.Slot, r.User, int16(r.Seat), int64(r.Family), now)
	return err
}

// leaveAll ends all logins of a user.
func leaveAll(ctx context.Context, tx *pg.Tx, user id.ID) error {
	_, err := tx.Exec(ctx, `UPDATE users.sessions SET ended_at = now() WHERE slot = $1 AND user_id = $2 AND ended_at IS NULL`, tx.Slot, user)
	return err
}

// deny has the tokens refused that were issued until now.
func deny(ctx context.Context, tx *pg.Tx, user id.ID, now time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE users.users SET denied_until = greatest(denied_until, $3) WHERE slot = $1 AND id = $2`, tx.Slot, user, now)
	return err
}

// denied lists, of all rows that this database has, copies too, whose tokens are
// refused up to when. What is older than a token lives needs nobody.
func (s *store) denied(ctx context.Context, since time.Time) (map[id.ID]int64, error) {
	rows, err := s.pool.Query(ctx, `SELECT id, denied_until FROM users.users WHERE denied_until > $1`, since)
	if err != nil {
		return nil, pg.Error(err)
	}
	out := map[id.ID]int64{}
	var user id.ID
	var until time.Time
	_, err = pgx.ForEachRow(rows, []any{&user, &until}, func() error {
		out[user] = max(out[user], until.Unix())
		return nil
	})
	return out, pg.Error(err)
}
