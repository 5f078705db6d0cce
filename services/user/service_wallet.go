package user

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/services/user/userapi"
)

const api = "/api/v1"

// Routes that idempotency keys are scoped to.
const (
	routeDeposit  = "POST /wallet/deposits"
	routeWithdraw = "POST /wallet/withdrawals"
	routeTransfer = "POST /transfers"
	routeRefund   = "POST /transfers/:id/refunds"
)

// once has the effect behind an Idempotency-Key once: fn makes it and gives the
// answer to keep, in the same transaction. replayed says that the answer is an
// earlier request's; what only the effect needs (an ID) is fn's to get.
func (s *service) once(ctx context.Context, r call.Route, name, key string, body any, fn func(*pg.Tx) (pg.Record, error)) (rec pg.Record, replayed bool, err error) {
	canonical, err := json.Marshal(body)
	if err != nil {
		return rec, false, err
	}
	hash := sha256.Sum256(canonical)
	k := pg.Key{Actor: r.User, Route: name, Key: key, Hash: hash[:]}
	err = s.store.write(ctx, entry(r), func(tx *pg.Tx) error {
		replayed = false
		old, err := pg.Claim(ctx, tx, k)
		if err != nil {
			return err
		}
		if old != nil {
			rec, replayed = *old, true
			return nil
		}
		if rec, err = fn(tx); err != nil {
			return err
		}
		return pg.Keep(ctx, tx, k, rec)
	})
	return rec, replayed, err
}

// money checks an amount from outside; an empty currency is the default one.
func money(amount int64, currency *string) error {
	if amount <= 0 || amount > transfer.MaxAmount {
		return errs.Field("amount", "must be a whole number from 1 to %d, in minor units", int64(transfer.MaxAmount))
	}
	if *currency == "" {
		*currency = transfer.DefaultCurrency
	}
	if !transfer.ValidCurrency(*currency) {
		return errs.Field("currency", "must be CNY, USD, EUR, JPY or KWD")
	}
	return nil
}

func (s *service) wallet(ctx context.Context, r call.Route) (userapi.Wallet, error) {
	list, err := s.store.balances(ctx, r.Slot, r.User)
	out := userapi.Wallet{Balances: make([]userapi.Balance, 0, len(list))}
	for _, b := range list {
		out.Balances = append(out.Balances, wireBalance(b))
	}
	return out, err
}

func wireBalance(b transfer.Balance) userapi.Balance {
	digits, _ := transfer.Digits(b.Currency)
	return userapi.Balance{Currency: b.Currency, Available: b.Available, Frozen: b.Frozen, Digits: digits}
}

// deposit brings money in from outside (in a real shop: when the bank says so).
func (s *service) deposit(ctx context.Context, r call.Route, key string, in userapi.DepositRequest) (pg.Record, bool, error) {
	return s.outside(ctx, r, routeDeposit, key, in, transfer.Posting{Debit: transfer.External, Credit: transfer.Available, Ref: "deposit:", Step: "deposit"})
}

// withdraw is the mirror of deposit (in a real shop: the bank is told in the same
// transaction, by message).
func (s *service) withdraw(ctx context.Context, r call.Route, key string, in userapi.WithdrawalRequest) (pg.Record, bool, error) {
	return s.outside(ctx, r, routeWithdraw, key, userapi.DepositRequest(in),
		transfer.Posting{Debit: transfer.Available, Credit: transfer.External, Ref: "withdrawal:", Step: "withdraw"})
}

// outside moves money between a wallet and the world outside, once per key. p says
// from where to where, and how the entry is named.
func (s *service) outside(ctx context.Context, r call.Route, name, key string, in userapi.DepositRequest, p transfer.Posting) (pg.Record, bool, error) {
	if err := money(in.Amount, &in.Currency); err != nil {
		return pg.Record{}, false, err
	}
	return s.once(ctx, r, name, key, in, func(tx *pg.Tx) (pg.Record, error) {
		n, err := s.ids.Next("deposit", r.User.Slot())
		if err != nil {
			return pg.Record{}, err
		}
		p := p
		p.User, p.Currency, p.Amount, p.Ref = r.User, in.Currency, in.Amount, p.Ref+n.String()
		ok, _, err := payee(ctx, tx, r.User)
		if err == nil && !ok {
			err = errs.ErrNotFound
		}
		if err == nil {
			err = transfer.Post(ctx, tx, p)
		}
		if err != nil {
			return pg.Record{}, err
		}
		list, err := transfer.Balances(ctx, tx, tx.Slot, r.User)
		if err != nil {
			return pg.Record{}, err
		}
		out := userapi.Deposit{ID: n, Amount: in.Amount, Currency: in.Currency, CreatedAt: s.now().UTC().Truncate(time.Microsecond)}
		for _, b := range list {
			if b.Currency == in.Currency {
				out.Balance = wireBalance(b)
			}
		}
		body, err := json.Marshal(out)
		return pg.Record{Ref: n.String(), Status: http.StatusCreated, Body: body}, err
	})
}

// shown is a transfer as one of its parties sees it.
func shown(t transfer.Transfer, viewer id.ID) userapi.Transfer {
	deadline := t.Deadline.UTC()
	out := userapi.Transfer{ID: t.ID, Direction: "out", Kind: string(t.Kind), FromUser: t.From, ToUser: t.To, Amount: t.Amount, Currency: t.Currency,
		State: string(t.State), Reason: t.Reason, Memo: t.Memo, OrderID: t.OrderID, CreatedAt: t.CreatedAt.UTC(), Deadline: &deadline, EndedAt: utc(t.EndedAt),
		RefundOf: t.RefundOf, Refunded: t.Refunded}
	if t.To == viewer {
		out.Direction = "in"
	}
	return out
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// told is what one side has of a transfer: the payer's row, or else the payee's.
type told struct {
	sent     transfer.Transfer
	received transfer.Credit
	events   []transfer.Moment
}

// transfer is for its two parties, at the payer's home, or for the payee at their
// own; for anyone else there is no such thing.
func (s *service) transfer(ctx context.Context, r call.Route, n id.ID) (out userapi.Transfer, err error) {
	t, err := s.store.transfer(ctx, r.Slot, n)
	switch {
	case err != nil:
		return out, err
	case t.sent.ID != 0 && (t.sent.From == r.User || t.sent.To == r.User):
		out = shown(t.sent, r.User)
	case t.sent.ID == 0 && t.received.To == r.User:
		c := t.received
		at := c.CreatedAt.UTC()
		out = userapi.Transfer{ID: c.Transfer, Direction: "in", Kind: string(c.Kind), FromUser: c.From, ToUser: c.To, Amount: c.Amount, Currency: c.Currency,
			State: string(c.Verdict), Reason: c.Reason, Memo: c.Memo, CreatedAt: at, EndedAt: &at, RefundOf: c.RefundOf, Refunded: c.Refunded}
	default:
		return out, errs.ErrNotFound
	}
	for _, e := range t.events {
		out.History = append(out.History, userapi.TransferEvent{At: e.At.UTC(), Side: e.Side, State: e.State, Reason: e.Reason, Attempts: e.Attempts,
			Refund: e.Refund, Amount: e.Amount})
	}
	return out, nil
}

// giveBack starts a refund of what the user has received, once per key.
func (s *service) giveBack(ctx context.Context, r call.Route, key string, of id.ID, in userapi.RefundRequest) (pg.Record, bool, error) {
	if in.Amount < 0 || in.Amount > transfer.MaxBalance {
		return pg.Record{}, false, errs.Field("amount", "must be a whole number from 1 on, in minor units, or be left out")
	}
	var err error
	if in.Memo, err = textField("memo", in.Memo, 0, 200); err != nil {
		return pg.Record{}, false, err
	}
	asked := struct {
		Of id.ID
		userapi.RefundRequest
	}{of, in}
	return s.once(ctx, r, routeRefund, key, asked, func(tx *pg.Tx) (pg.Record, error) {
		n, err := s.ids.Next("transfer", r.User.Slot())
		if err != nil {
			return pg.Record{}, err
		}
		t, err := transfer.GiveBack(ctx, tx, transfer.Back{ID: n, Of: of, By: r.User, Amount: in.Amount, Memo: in.Memo})
		return s.begun(tx, r, t, err)
	})
}

// takeBack asks for a transfer back; only its payer may.
func (s *service) takeBack(ctx context.Context, r call.Route, n id.ID) (out userapi.Transfer, err error) {
	err = s.store.write(ctx, entry(r), func(tx *pg.Tx) error {
		t, err := transfer.Get(ctx, tx, tx.Slot, n)
		if err == nil && t.From != r.User {
			err = errs.ErrNotFound
		}
		if err != nil {
			return err
		}
		if t, err = transfer.Cancel(ctx, tx, n, transfer.WishUser); err != nil {
			return err
		}
		tx.AfterCommit(s.poke)
		out = shown(t, r.User)
		return nil
	})
	return out, err
}

// statementPlace and transfersPlace are what the lists' cursors carry: also whose
// list it is, so that a cursor opens no other.
type statementPlace struct {
	User     id.ID  `json:"u"`
	Currency string `json:"c"`
	Seq      int64  `json:"s"`
}

type transfersPlace struct {
	User id.ID          `json:"u"`
	Last transfer.Place `json:"l"`
}

var errCursor = errors.New("a cursor of another list")

func (s *service) statement(ctx context.Context, r call.Route, from statementPlace, limit int) (userapi.Statement, *statementPlace, error) {
	list, err := s.store.statement(ctx, r.Slot, r.User, from.Currency, from.Seq, limit+1)
	if err != nil {
		return userapi.Statement{}, nil, err
	}
	var next *statementPlace
	if len(list) > limit {
		list = list[:limit]
		next = &statementPlace{User: r.User, Currency: from.Currency, Seq: list[limit-1].Seq}
	}
	out := userapi.Statement{Items: make([]userapi.Entry, 0, len(list))}
	for _, e := range list {
		out.Items = append(out.Items, userapi.Entry{Seq: e.Seq, From: string(e.Debit), To: string(e.Credit), Amount: e.Amount, Currency: from.Currency,
			Ref: e.Ref, Step: e.Step, Memo: e.Memo, Available: e.Available, Frozen: e.Frozen, CreatedAt: e.CreatedAt.UTC()})
	}
	return out, next, nil
}

func (s *service) transfers(ctx context.Context, r call.Route, after transfer.Place, limit int) (userapi.Transfers, *transfersPlace, error) {
	list, err := s.store.transfers(ctx, r.Slot, r.User, after, limit+1)
	if err != nil {
		return userapi.Transfers{}, nil, err
	}
	var next *transfersPlace
	if len(list) > limit {
		list = list[:limit]
		next = &transfersPlace{User: r.User, Last: transfer.Place{At: list[limit-1].CreatedAt, ID: list[limit-1].ID}}
	}
	out := userapi.Transfers{Items: make([]userapi.Transfer, 0, len(list))}
	for _, i := range list {
		direction := "out"
		if i.Incoming {
			direction = "in"
		}
		out.Items = append(out.Items, userapi.Transfer{ID: i.ID, Direction: direction, Kind: string(i.Kind), FromUser: i.From, ToUser: i.To,
			Amount: i.Amount, Currency: i.Currency, State: i.State, Reason: i.Reason, Memo: i.Memo, OrderID: i.OrderID, CreatedAt: i.CreatedAt.UTC(), EndedAt: utc(i.EndedAt),
			RefundOf: i.RefundOf, Refunded: i.Refunded})
	}
	return out, next, nil
}
