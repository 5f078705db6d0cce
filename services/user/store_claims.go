package user

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

const regColumns = `op_id, user_id, phone, phone_mac, name, password_hash, state, winner`

// collectReg gives the zero Registration (State "") when there is no row.
func collectReg(rows pgx.Rows, err error) (Registration, error) {
	if err != nil {
		return Registration{}, err
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Registration])
	if errors.Is(err, pgx.ErrNoRows) {
		return Registration{}, nil
	}
	return r, err
}

// registration finds an operation's row; State "" = there is none.
func (s *store) registration(ctx context.Context, slot routing.Slot, op string) (r Registration, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error {
		r, err = collectReg(tx.Query(ctx, `SELECT `+regColumns+` FROM users.registrations WHERE slot = $1 AND op_id = $2 AND state <> 'GONE'`, slot, op))
		return err
	})
	return r, err
}

// registrationOf finds the row by the ID of the user to be; State "" = none.
func (s *store) registrationOf(ctx context.Context, slot routing.Slot, user id.ID) (r Registration, err error) {
	err = s.read(ctx, slot, func(tx pgx.Tx) error {
		r, err = collectReg(tx.Query(ctx, `SELECT `+regColumns+` FROM users.registrations WHERE slot = $1 AND user_id = $2`, slot, user))
		return err
	})
	return r, err
}

// openRegistration makes the row, or gives the one that the operation has.
func openRegistration(ctx context.Context, tx *pg.Tx, r Registration) (Registration, bool, error) {
	tag, err := tx.Exec(ctx, `INSERT INTO users.registrations (slot, op_id, user_id, phone, phone_mac, name, password_hash, state)
		VALUES ($1, $2, $3, $4, $5, $6, $7, 'PENDING') ON CONFLICT (slot, op_id) WHERE state <> 'GONE' DO NOTHING`,
		tx.Slot, r.OpID, r.UserID, r.Phone, r.PhoneMAC, r.Name, r.PasswordHash)
	if err != nil || tag.RowsAffected() == 1 {
		r.State = Pending
		return r, true, err
	}
	r, err = collectReg(tx.Query(ctx, `SELECT `+regColumns+` FROM users.registrations WHERE slot = $1 AND op_id = $2 AND state <> 'GONE'`, tx.Slot, r.OpID))
	return r, false, err
}

// lockRegistration holds the row of a user to be; State "" = there is none.
func lockRegistration(ctx context.Context, tx *pg.Tx, user id.ID) (Registration, error) {
	return collectReg(tx.Query(ctx, `SELECT `+regColumns+` FROM users.registrations WHERE slot = $1 AND user_id = $2 FOR UPDATE`, tx.Slot, user))
}

// activate ends a pending registration with the user's row.
func activate(ctx context.Context, tx *pg.Tx, r Registration) error {
	if err := endRegistration(ctx, tx, r, Active, 0); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO users.users (slot, id, phone, phone_mac, name, password_hash) VALUES ($1, $2, $3, $4, $5, $6)`,
		tx.Slot, r.UserID, r.Phone, r.PhoneMAC, r.Name, r.PasswordHash)
	return err
}

// endRegistration names the state it saw, so that an end is never overwritten.
func endRegistration(ctx context.Context, tx *pg.Tx, r Registration, next RegState, winner id.ID) error {
	tag, err := tx.Exec(ctx, `UPDATE users.registrations SET state = $4, winner = $5, ended_at = now() WHERE slot = $1 AND user_id = $2 AND state = $3`,
		tx.Slot, r.UserID, r.State, next, winner)
	if err == nil && tag.RowsAffected() != 1 {
		return errors.New("registration " + r.UserID.String() + " changed under its lock")
	}
	return err
}

// bury makes the tombstone for a user that will never be. False: a row was made
// meanwhile, look again.
func bury(ctx context.Context, tx *pg.Tx, user id.ID, op string, mac []byte) (bool, error) {
	tag, err := tx.Exec(ctx, `INSERT INTO users.registrations (slot, op_id, user_id, phone, phone_mac, name, password_hash, state, ended_at)
		VALUES ($1, $2, $3, '', $4, '', '', 'GONE', now()) ON CONFLICT (slot, user_id) DO NOTHING`, tx.Slot, op, user, mac)
	return tag.RowsAffected() == 1, err
}

// claim holds the claim of a phone; State Unclaimed = there is no row.
func lockClaim(ctx context.Context, tx *pg.Tx, mac []byte) (Claim, error) {
	rows, err := tx.Query(ctx, `SELECT user_id, user_slot, op_id, state FROM users.claims WHERE slot = $1 AND phone_mac = $2 FOR UPDATE`, tx.Slot, mac)
	if err != nil {
		return Claim{}, err
	}
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Claim])
	if errors.Is(err, pgx.ErrNoRows) {
		return Claim{}, nil
	}
	return c, err
}

// takeClaim makes the claim, or takes a released one over; it says whether it
// did: another operation may have been first.
func takeClaim(ctx context.Context, tx *pg.Tx, mac []byte, c Claim) (bool, error) {
	tag, err := tx.Exec(ctx, `INSERT INTO users.claims AS c (slot, phone_mac, user_id, user_slot, op_id, state) VALUES ($1, $2, $3, $4, $5, 'PENDING')
		ON CONFLICT (slot, phone_mac) DO UPDATE SET user_id = excluded.user_id, user_slot = excluded.user_slot, op_id = excluded.op_id,
			state = 'PENDING', created_at = now(), asked_at = NULL
		WHERE c.state = 'RELEASED'`, tx.Slot, mac, c.User, c.UserSlot, c.OpID)
	return tag.RowsAffected() == 1, err
}

// endClaim confirms or releases a pending claim; it names what it saw.
func endClaim(ctx context.Context, tx *pg.Tx, mac []byte, user id.ID, next ClaimState) error {
	tag, err := tx.Exec(ctx, `UPDATE users.claims SET state = $4, confirmed_at = CASE WHEN $4 = 'CONFIRMED' THEN now() END
		WHERE slot = $1 AND phone_mac = $2 AND user_id = $3 AND state = 'PENDING'`, tx.Slot, mac, user, next)
	if err == nil && tag.RowsAffected() != 1 {
		return errors.New("claim of user " + user.String() + " changed under its lock")
	}
	return err
}

// copyClaim keeps a confirmed claim in the cell's own slot, with the newest name
// that came. It gives the user that is there: another one means that two have one
// phone.
func copyClaim(ctx context.Context, tx *pg.Tx, b claimBody) (id.ID, error) {
	_, err := tx.Exec(ctx, `INSERT INTO users.claim_copies AS c (slot, phone_mac, user_id, name, name_no) VALUES ($1, $2, $3, $4, CASE $4 WHEN '' THEN -1 ELSE $5 END)
		ON CONFLICT (slot, phone_mac) DO UPDATE SET name = excluded.name, name_no = excluded.name_no
		WHERE c.user_id = excluded.user_id AND c.name_no < excluded.name_no`,
		tx.Slot, b.MAC, b.User, b.Name, b.NameNo)
	if err != nil {
		return 0, err
	}
	var there id.ID
	err = tx.QueryRow(ctx, `SELECT user_id FROM users.claim_copies WHERE slot = $1 AND phone_mac = $2`, tx.Slot, b.MAC).Scan(&there)
	return there, err
}

// known is what a cell knows of somebody who may live in another one.
type known struct {
	User id.ID
	Name string // hidden; empty in a copy from before names were in them
}

// payeeByPhone and payeeByID look only at the cell's own database: at the copy, else
// at a user of this cell whose copy is still on its way. errs.ErrNotFound.
func (s *store) payeeByPhone(ctx context.Context, cellSlot routing.Slot, mac []byte) (known, error) {
	return s.payee(ctx, cellSlot, `c.phone_mac = $2`, `u.phone_mac = $2`, mac)
}

func (s *store) payeeByID(ctx context.Context, cellSlot routing.Slot, user id.ID) (known, error) {
	return s.payee(ctx, cellSlot, `c.user_id = $2`, `u.slot = $3 AND u.id = $2`, user, user.Slot())
}

func (s *store) payee(ctx context.Context, cellSlot routing.Slot, copied, own string, args ...any) (k known, err error) {
	var whole bool
	err = s.read(ctx, cellSlot, func(tx pgx.Tx) error {
		return notFound(tx.QueryRow(ctx, `SELECT * FROM (
				SELECT c.user_id, c.name, false FROM users.claim_copies c WHERE c.slot = $1 AND `+copied+`
				UNION ALL
				SELECT u.id, u.name, true FROM users.users u JOIN cell.owned s ON s.slot = u.slot WHERE `+own+` AND u.closed_at IS NULL) p (id, name, whole)
			ORDER BY name = '' LIMIT 1`, append([]any{cellSlot}, args...)...).Scan(&k.User, &k.Name, &whole))
	})
	if whole {
		k.Name = hidden(k.Name)
	}
	return k, err
}

// openClaim is a claim to ask about.
type openClaim struct {
	Slot  routing.Slot
	Epoch routing.Epoch
	MAC   []byte
}

// unasked lists this cell's claims that have been pending for age and were never
// asked about.
func (s *store) unasked(ctx context.Context, ageSeconds float64, limit int) ([]openClaim, error) {
	rows, err := s.pool.Query(ctx, `SELECT c.slot, s.epoch, c.phone_mac FROM users.claims c
		CROSS JOIN LATERAL (SELECT epoch FROM cell.owned w WHERE w.slot = c.slot AND w.active OFFSET 0) s
		WHERE c.state = 'PENDING' AND c.asked_at IS NULL AND c.created_at < now() - make_interval(secs => $1)
		ORDER BY c.created_at LIMIT $2`, ageSeconds, limit)
	if err != nil {
		return nil, pg.Error(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowToStructByPos[openClaim])
	return out, pg.Error(err)
}

// noteAsked marks a pending claim as asked about; false: it isn't open any more.
func noteAsked(ctx context.Context, tx *pg.Tx, mac []byte) (bool, error) {
	tag, err := tx.Exec(ctx, `UPDATE users.claims SET asked_at = now() WHERE slot = $1 AND phone_mac = $2 AND state = 'PENDING' AND asked_at IS NULL`,
		tx.Slot, mac)
	return tag.RowsAffected() == 1, err
}
