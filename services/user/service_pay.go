package user

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/services/user/userapi"
)

// confirmLife is how long what was looked at may be sent as it was.
const confirmLife = 10 * time.Minute

// confirmation is what a payer has looked at. It goes to them signed, and back.
type confirmation struct {
	Payer    id.ID  `json:"p"`
	Payee    id.ID  `json:"t"`
	Amount   int64  `json:"a"`
	Currency string `json:"c"`
	Until    int64  `json:"u"` // Unix seconds
}

// confirmKey signs confirmations.
func (s *service) confirmKey() []byte { return s.keyed("confirm", "") }

// onePayee holds a request to exactly one payee; a phone becomes its canonical form.
func onePayee(user id.ID, phone *string) error {
	if (user == 0) == (*phone == "") {
		return errs.Field("to_user", "exactly one of to_user and to_phone must be there")
	}
	if *phone == "" {
		return nil
	}
	var err error
	*phone, err = phoneField("to_phone", *phone)
	return err
}

// preview says what a transfer would be and refuses what would be refused now, out
// of the payer's slot and this cell's copies: the payee's cell isn't asked.
func (s *service) preview(ctx context.Context, r call.Route, in userapi.PreviewRequest) (out userapi.Preview, c confirmation, err error) {
	if err = money(in.Amount, &in.Currency); err != nil {
		return out, c, err
	}
	if err = onePayee(in.ToUser, &in.ToPhone); err != nil {
		return out, c, err
	}
	at, err := s.cellSlot()
	if err != nil {
		return out, c, err
	}
	var who known
	if in.ToPhone != "" {
		who, err = s.store.payeeByPhone(ctx, at, s.mac(in.ToPhone))
	} else {
		who, err = s.store.payeeByID(ctx, at, in.ToUser)
	}
	switch {
	case errs.IsKind(err, errs.NotFound):
		return out, c, userapi.ErrNoPayee
	case err != nil:
		return out, c, err
	case who.User == r.User:
		return out, c, transfer.ErrSelf
	}
	a, err := s.store.allowed(ctx, r.Slot, r.User, in.Currency)
	if err != nil {
		return out, c, err
	}
	l := s.limits[in.Currency]
	switch {
	case l.Each > 0 && in.Amount > l.Each, l.Day > 0 && in.Amount > l.Day-a.Spent:
		return out, c, transfer.ErrLimit
	case in.Amount > a.Available:
		return out, c, transfer.ErrInsufficientFunds
	}
	until := s.now().UTC().Truncate(time.Second).Add(confirmLife)
	out = userapi.Preview{ToUser: who.User, ToName: who.Name, Amount: in.Amount, Currency: in.Currency, Available: a.Available, ExpiresAt: until}
	out.Digits, _ = transfer.Digits(in.Currency)
	if l.Day > 0 {
		left := l.Day - a.Spent
		out.LeftToday = &left
	}
	return out, confirmation{Payer: r.User, Payee: who.User, Amount: in.Amount, Currency: in.Currency, Until: until.Unix()}, nil
}

// pay starts a transfer. The answer is that of the local commit: FROZEN, or
// REJECTED without the money or over a limit, which is kept as a row and an answer
// too. With a confirmation it sends what was looked at, or nothing.
func (s *service) pay(ctx context.Context, r call.Route, key string, in userapi.TransferRequest, seen *confirmation) (pg.Record, bool, error) {
	var none pg.Record
	if err := money(in.Amount, &in.Currency); err != nil {
		return none, false, err
	}
	var err error
	if in.Memo, err = textField("memo", in.Memo, 0, 200); err != nil {
		return none, false, err
	}
	if err := onePayee(in.ToUser, &in.ToPhone); err != nil {
		return none, false, err
	}
	in.Confirm = "" // a repeated request may have looked again
	asked := in
	if in.ToPhone != "" {
		if in.ToUser, err = s.lookup(ctx, in.ToPhone); errs.IsKind(err, errs.NotFound) {
			return none, false, userapi.ErrNoPayee
		} else if err != nil {
			return none, false, err
		}
	}
	if in.ToUser == r.User {
		return none, false, transfer.ErrSelf
	}
	return s.once(ctx, r, routeTransfer, key, asked, func(tx *pg.Tx) (pg.Record, error) {
		if seen != nil && (seen.Payer != r.User || seen.Payee != in.ToUser || seen.Amount != in.Amount || seen.Currency != in.Currency || s.now().Unix() >= seen.Until) {
			return none, userapi.ErrConfirm
		}
		n, err := s.ids.Next("transfer", r.User.Slot())
		if err != nil {
			return none, err
		}
		t, err := transfer.Try(ctx, tx, transfer.Order{ID: n, Kind: transfer.User, From: r.User, To: in.ToUser, ToSlot: in.ToUser.Slot(),
			Amount: in.Amount, Currency: in.Currency, Memo: in.Memo, Limits: s.limits[in.Currency]})
		return s.begun(tx, r, t, err)
	})
}

// begun is the answer to a transfer that was begun, or REJECTED.
func (s *service) begun(tx *pg.Tx, r call.Route, t transfer.Transfer, err error) (pg.Record, error) {
	if err != nil {
		return pg.Record{}, err
	}
	tx.AfterCommit(s.poke)
	status := http.StatusAccepted
	if t.State == transfer.Rejected {
		status = http.StatusUnprocessableEntity
	}
	body, err := json.Marshal(shown(t, r.User))
	return pg.Record{Ref: t.ID.String(), Status: status, Location: api + "/transfers/" + t.ID.String(), Body: body}, err
}

// rejected is the refusal that a kept answer stands for.
func rejected(rec pg.Record) error {
	var t userapi.Transfer
	if err := json.Unmarshal(rec.Body, &t); err != nil {
		return err
	}
	if t.Reason == transfer.ErrLimit.Code {
		return transfer.ErrLimit
	}
	return transfer.ErrInsufficientFunds
}
