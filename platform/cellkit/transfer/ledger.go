package transfer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// Account is one of a wallet's accounts.
type Account string

// The accounts of a wallet.
const (
	Available Account = "available"
	InFreeze  Account = "frozen"
	Clearing  Account = "clearing"
	External  Account = "external"
	Suspense  Account = "suspense"
	Recovery  Account = "recovery"
)

// Limits of money, in minor units. A balance stays a whole number in every JSON
// reader; the limit only stops what comes in, never what is given back.
const (
	MaxAmount  = 1_000_000_000_000
	MaxBalance = 1<<53 - 1
)

// The refusals of the ledger. None of them leaves a trace in the transaction.
var (
	ErrInsufficientFunds = errs.New(errs.Unprocessable, "INSUFFICIENT_FUNDS", "there is not enough money in the wallet")
	ErrBalanceLimit      = errs.New(errs.Unprocessable, "BALANCE_LIMIT", "the wallet can't hold that much")
	ErrLimit             = errs.New(errs.Unprocessable, "LIMIT", "this is over the limit of one transfer, or of all of a day")
	ErrPosted            = errs.New(errs.Conflict, "ALREADY_POSTED", "this step was posted before")
	ErrAmount            = errs.New(errs.Invalid, "INVALID_AMOUNT", "an amount is a whole number from 1 to 1000000000000 in minor units of CNY, USD, EUR, JPY or KWD").At("amount")
)

// Posting moves Amount from account Debit to account Credit of one user. Ref and
// Step (transfer:<id>, settle) name it; a slot has each pair once.
type Posting struct {
	User          id.ID
	Currency      string
	Debit, Credit Account
	Amount        int64
	Ref, Step     string
	Memo          string
	Count         Count
}

// Count is what a posting changes of what its user spent on the day (UTC, by the
// database's clock); the zero Count changes nothing.
type Count struct {
	Amount int64     // below zero: given back
	Limit  int64     // what a day may come to, 0 = no limit
	Since  time.Time // given back: when it was counted; another day's total is left alone
}

// Post writes a posting and the wallet's new balances in the caller's
// transaction, making the wallet when it isn't there. Refusals are
// ErrInsufficientFunds, ErrBalanceLimit, ErrLimit, ErrPosted and ErrAmount. (Only when the
// same step is posted by two transactions at once, the later one's transaction is
// spent by its ErrPosted.)
func Post(ctx context.Context, tx *pg.Tx, p Posting) error {
	if p.Amount <= 0 || !ValidCurrency(p.Currency) || p.User <= 0 {
		return ErrAmount.Because(fmt.Errorf("posting %s %s: %d %s of user %d", p.Ref, p.Step, p.Amount, p.Currency, p.User))
	}
	for made := false; ; made = true {
		n, err := post(ctx, tx, p)
		if err != nil || n == 1 {
			return err
		}
		why, err := refusal(ctx, tx, p)
		if err != nil || why != nil {
			return errors.Join(err, why)
		}
		if made {
			return fmt.Errorf("posting %s %s: the wallet did not take it", p.Ref, p.Step)
		}
		if err := OpenWallet(ctx, tx, p.User, p.Currency); err != nil {
			return err
		}
	}
}

// today is the day that a limit counts for.
const today = `(now() AT TIME ZONE 'UTC')::date`

// post is one statement: the wallet's row is locked and its balances and the day's
// limit checked by the UPDATE itself, again after a wait for another spender.
func post(ctx context.Context, tx *pg.Tx, p Posting) (int64, error) {
	delta := func(a Account) int64 {
		switch a {
		case p.Debit:
			return -p.Amount
		case p.Credit:
			return p.Amount
		}
		return 0
	}
	tag, err := tx.Exec(ctx, `
		WITH w AS (
			UPDATE cell.wallets SET available = available + $4, frozen = frozen + $5, clearing = clearing + $6,
				external = external + $7, suspense = suspense + $8, recovery = recovery + $16, seq = seq + 1,
				spent = CASE WHEN $17::bigint > 0 AND spent_on >= `+today+` THEN spent + $17
					WHEN $17 > 0 THEN $17
					WHEN spent_on = ($19::timestamptz AT TIME ZONE 'UTC')::date THEN greatest(spent + $17, 0)
					ELSE spent END,
				spent_on = CASE WHEN $17 > 0 THEN greatest(spent_on, `+today+`) ELSE spent_on END
			WHERE slot = $1 AND user_id = $2 AND currency = $3
				AND available + $4 BETWEEN 0 AND $9 AND frozen + $5 >= 0 AND suspense + $8 >= 0 AND recovery + $16 <= 0
				AND ($18::bigint = 0 OR CASE WHEN spent_on >= `+today+` THEN spent ELSE 0 END + $17 <= $18)
				AND NOT EXISTS (SELECT FROM cell.postings WHERE slot = $1 AND ref = $13 AND step = $14)
			RETURNING seq, available, frozen)
		INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen, memo)
		SELECT $1, $2, $3, w.seq, $10, $11, $12, $13, $14, w.available, w.frozen, $15 FROM w`,
		tx.Slot, p.User, p.Currency, delta(Available), delta(InFreeze), delta(Clearing), delta(External), delta(Suspense),
		limit(p), string(p.Debit), string(p.Credit), p.Amount, p.Ref, p.Step, p.Memo, delta(Recovery),
		p.Count.Amount, p.Count.Limit, p.Count.Since)
	if pg.IsUnique(err, "postings_slot_ref_step_key") {
		return 0, ErrPosted.Because(err)
	}
	return tag.RowsAffected(), err
}

func limit(p Posting) int64 {
	if p.Credit == Available && p.Debit != InFreeze {
		return MaxBalance
	}
	return math.MaxInt64
}

// refusal says why a posting wasn't taken; nil means that the wallet is missing
// and may be made.
func refusal(ctx context.Context, tx *pg.Tx, p Posting) (why, err error) {
	var posted bool
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM cell.postings WHERE slot = $1 AND ref = $2 AND step = $3)`,
		tx.Slot, p.Ref, p.Step).Scan(&posted)
	if err != nil {
		return nil, err
	}
	if posted {
		return ErrPosted.Because(fmt.Errorf("%s %s", p.Ref, p.Step)), nil
	}
	if p.Count.Limit > 0 {
		a, err := Allowed(ctx, tx, tx.Slot, p.User, p.Currency)
		if err != nil {
			return nil, err
		}
		if a.Spent > p.Count.Limit-p.Count.Amount {
			return ErrLimit, nil
		}
	}
	if p.Debit == Available || p.Debit == InFreeze || p.Debit == Suspense || p.Credit == Recovery {
		return ErrInsufficientFunds, nil
	}
	var room bool
	err = tx.QueryRow(ctx, `SELECT available + $4 <= $5 FROM cell.wallets WHERE slot = $1 AND user_id = $2 AND currency = $3`,
		tx.Slot, p.User, p.Currency, p.Amount, int64(MaxBalance)).Scan(&room)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	case !room && p.Credit == Available:
		return ErrBalanceLimit, nil
	}
	return nil, nil
}

// Allowance is what a user could send on.
type Allowance struct {
	Available int64
	Spent     int64 // today
}

// Allowed reads a user's wallet; without one all is zero.
func Allowed(ctx context.Context, tx pgx.Tx, slot routing.Slot, user id.ID, currency string) (a Allowance, err error) {
	err = tx.QueryRow(ctx, `SELECT available, CASE WHEN spent_on >= `+today+` THEN spent ELSE 0 END
		FROM cell.wallets WHERE slot = $1 AND user_id = $2 AND currency = $3`, slot, user, currency).Scan(&a.Available, &a.Spent)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return a, err
}

// Balance is one wallet, without the accounts that only the books need.
type Balance struct {
	Currency  string
	Available int64
	Frozen    int64
}

// Balances lists a user's wallets by currency.
func Balances(ctx context.Context, tx pgx.Tx, slot routing.Slot, user id.ID) ([]Balance, error) {
	rows, err := tx.Query(ctx, `SELECT currency, available, frozen FROM cell.wallets
		WHERE slot = $1 AND user_id = $2 ORDER BY currency`, slot, user)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Balance])
}

// Entry is a posting as it stands in the books, with the balances after it.
type Entry struct {
	Seq       int64
	Debit     Account
	Credit    Account
	Amount    int64
	Ref       string
	Step      string
	Memo      string
	Available int64
	Frozen    int64
	CreatedAt time.Time
}

// Statement lists a wallet's entries, newest first, from below seq before (0 =
// from the newest).
func Statement(ctx context.Context, tx pgx.Tx, slot routing.Slot, user id.ID, currency string, before int64, limit int) ([]Entry, error) {
	if before <= 0 {
		before = math.MaxInt64
	}
	rows, err := tx.Query(ctx, `SELECT seq, debit, credit, amount, ref, step, memo, available, frozen, created_at FROM cell.postings
		WHERE slot = $1 AND user_id = $2 AND currency = $3 AND seq < $4 ORDER BY seq DESC LIMIT $5`,
		slot, user, currency, before, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Entry])
}

// OpenWallet makes a user's wallet, empty, so that it can be shown.
func OpenWallet(ctx context.Context, tx *pg.Tx, user id.ID, currency string) error {
	_, err := tx.Exec(ctx, `INSERT INTO cell.wallets (slot, user_id, currency) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		tx.Slot, user, currency)
	return err
}
