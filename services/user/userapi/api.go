// Package userapi is what others may know of the user service: the wire types of
// its API, the session token that every cell verifies by itself, and the client
// for calls inside a cell.
package userapi

import (
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
)

// The service's refusals, beside those of transfer (INSUFFICIENT_FUNDS ...) and
// pg (IDEMPOTENCY_KEY_...).
var (
	ErrPhoneTaken   = errs.New(errs.Conflict, "PHONE_TAKEN", "this phone number has an account").At("phone")
	ErrCredentials  = errs.New(errs.Unauthenticated, "INVALID_CREDENTIALS", "phone or password is wrong")
	ErrRegistration = errs.New(errs.Conflict, "REGISTRATION_GONE", "this registration came to nothing, register again with another Idempotency-Key")
	ErrBusy         = errs.New(errs.Exhausted, "TOO_MANY_LOGINS", "too many people log in at the moment, try again").After(time.Second)
	ErrSellerOther  = errs.New(errs.Conflict, "ALREADY_SELLER", "this account has a shop with another name")
	ErrNoPayee      = errs.New(errs.Unprocessable, "UNKNOWN_PAYEE", "nobody has this phone number").At("to_phone")
	ErrConfirm      = errs.New(errs.Unprocessable, "NOT_CONFIRMED", "this is not what was looked at, or too long ago: look at it again").At("confirm")
	ErrNotEmpty     = errs.New(errs.Conflict, "ACCOUNT_NOT_EMPTY", "there is money in this account, or owed by it, or a transfer under way")
	ErrTooMany      = errs.New(errs.Unprocessable, "TOO_MANY_ADDRESSES", "an account has at most 20 addresses")
	ErrCellClosed   = errs.New(errs.Unavailable, "CELL_CLOSED", "this cell takes no new users at the moment").After(5 * time.Second)
)

// KindBegin is the message that begins a registration, to the phone's home.
const KindBegin = "claim.begin"

// RegisterRequest is the body of POST /users.
type RegisterRequest struct {
	Phone    string `json:"phone"` // international, +8613800000001
	Password string `json:"password"`
	Name     string `json:"name"`
	Group    string `json:"group,omitempty"` // whose members should live together: "city: berlin"
}

// MaxGroup is the longest name of a group, in bytes.
const MaxGroup = 64

// LoginRequest is the body of POST /sessions.
type LoginRequest struct {
	Phone    string `json:"phone"`
	Password string `json:"password"`
}

// User is a user as they see themselves.
type User struct {
	ID        id.ID     `json:"id"`
	Name      string    `json:"name"`
	Phone     string    `json:"phone"`
	Seller    bool      `json:"seller"`
	ShopName  string    `json:"shop_name,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// Session is the answer of POST /users (201), POST /sessions and POST /seller.
type Session struct {
	Token        string    `json:"token"`
	ExpiresAt    time.Time `json:"expires_at"`
	RefreshToken string    `json:"refresh_token,omitempty"` // once for POST /sessions/refresh
	User         User      `json:"user"`
}

// The states of an operation.
const (
	OperationPending = "PENDING"
	OperationDone    = "DONE"
	OperationFailed  = "FAILED"
)

// Operation is how a registration stands. Done names the user that it made; a
// retry at another gateway names the one that the first made.
type Operation struct {
	ID     id.ID  `json:"id"`
	State  string `json:"state"`
	UserID id.ID  `json:"user_id,omitzero"`
	Reason string `json:"reason,omitempty"` // FAILED: PHONE_TAKEN, REGISTRATION_GONE
}

// PatchMe is the body of PATCH /me; what isn't there stays.
type PatchMe struct {
	Name *string `json:"name"`
}

// AddressRequest is the body of POST /me/addresses.
type AddressRequest struct {
	Recipient string `json:"recipient"`
	Phone     string `json:"phone"`
	Line      string `json:"line"`
	City      string `json:"city"`
	Postcode  string `json:"postcode"`
}

// Address is where parcels go.
type Address struct {
	ID        id.ID     `json:"id"`
	Recipient string    `json:"recipient"`
	Phone     string    `json:"phone"`
	Line      string    `json:"line"`
	City      string    `json:"city"`
	Postcode  string    `json:"postcode,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// Addresses is the answer of GET /me/addresses.
type Addresses struct {
	Items []Address `json:"items"`
}

// SellerRequest is the body of POST /seller.
type SellerRequest struct {
	ShopName string `json:"shop_name"`
}

// Balance is the money of one currency, in minor units.
type Balance struct {
	Currency  string `json:"currency"`
	Available int64  `json:"available"`
	Frozen    int64  `json:"frozen"`
	Digits    int    `json:"digits"` // behind the point: 2 means that 1234 is 12.34
}

// Wallet is the answer of GET /wallet.
type Wallet struct {
	Balances []Balance `json:"balances"`
}

// Entry is one line of a statement: Amount moved from account From to account To,
// and the balances after it.
type Entry struct {
	Seq       int64     `json:"seq"`
	From      string    `json:"from"`
	To        string    `json:"to"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	Ref       string    `json:"ref"`  // transfer:<id>, order:<id>, deposit:<id>, withdrawal:<id>
	Step      string    `json:"step"` // freeze, settle, reverse, credit, deposit, withdraw, unfreeze, owe, disown
	Memo      string    `json:"memo,omitempty"`
	Available int64     `json:"available"`
	Frozen    int64     `json:"frozen"`
	CreatedAt time.Time `json:"created_at"`
}

// Statement is the answer of GET /wallet/statement.
type Statement struct {
	Items      []Entry `json:"items"`
	NextCursor string  `json:"next_cursor,omitempty"`
}

// DepositRequest is the body of POST /wallet/deposits.
type DepositRequest struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"` // CNY when empty
}

// Deposit is the answer of POST /wallet/deposits.
type Deposit struct {
	ID        id.ID     `json:"id"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	Balance   Balance   `json:"balance"`
	CreatedAt time.Time `json:"created_at"`
}

// WithdrawalRequest is the body of POST /wallet/withdrawals.
type WithdrawalRequest DepositRequest

// Withdrawal is the answer of POST /wallet/withdrawals.
type Withdrawal Deposit

// TransferRequest is the body of POST /transfers: exactly one of the payees.
type TransferRequest struct {
	ToUser   id.ID  `json:"to_user"`
	ToPhone  string `json:"to_phone"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"` // CNY when empty
	Memo     string `json:"memo"`
	Confirm  string `json:"confirm,omitempty"` // out of a preview: what was looked at, or nothing is sent
}

// PreviewRequest is the body of POST /transfers/preview: exactly one of the payees.
type PreviewRequest struct {
	ToUser   id.ID  `json:"to_user"`
	ToPhone  string `json:"to_phone"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"` // CNY when empty
}

// Preview is what a transfer would be, for the payer to confirm. Nothing has
// happened yet, and what was refused now would be refused then.
type Preview struct {
	ToUser    id.ID     `json:"to_user"`
	ToName    string    `json:"to_name"` // its ends only: A***n; empty when this cell hasn't got it yet
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	Digits    int       `json:"digits"`
	Available int64     `json:"available"`
	LeftToday *int64    `json:"left_today,omitempty"` // of the day's limit, before this one
	Confirm   string    `json:"confirm"`              // for POST /transfers
	ExpiresAt time.Time `json:"expires_at"`
}

// RefundRequest is the body of POST /transfers/{id}/refunds.
type RefundRequest struct {
	Amount int64  `json:"amount"` // 0: all that is left
	Memo   string `json:"memo"`
}

// Transfer is one transfer as one of its two parties sees it. State is FROZEN,
// CANCELLING, SETTLED, REVERSED or REJECTED; in a payee's list, and for a payee while
// the payer's cell is away, it is what the payee's home did: CREDITED, REFUSED,
// CANCELLED.
type Transfer struct {
	ID        id.ID      `json:"id"`
	Direction string     `json:"direction"` // out, in
	Kind      string     `json:"kind"`      // transfer, order, refund
	FromUser  id.ID      `json:"from_user"`
	ToUser    id.ID      `json:"to_user"`
	Amount    int64      `json:"amount"`
	Currency  string     `json:"currency"`
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Memo      string     `json:"memo,omitempty"`
	OrderID   id.ID      `json:"order_id,omitzero"`
	CreatedAt time.Time  `json:"created_at"`
	Deadline  *time.Time `json:"deadline,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	RefundOf  id.ID      `json:"refund_of,omitzero"` // kind refund: of which transfer
	Refunded  int64      `json:"refunded,omitempty"` // what was given back of it; at the payee's with what is on its way

	History []TransferEvent `json:"history,omitempty"` // of GET /transfers/{id}: oldest first
}

// TransferEvent is one thing that happened to a transfer: a state that one side
// came to (the payer's FROZEN ..., the payee's CREDITED, REFUSED, CANCELLED), or a
// REFUND.
type TransferEvent struct {
	At       time.Time `json:"at"`
	Side     string    `json:"side"` // payer, payee
	State    string    `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Attempts int       `json:"attempts,omitempty"` // how often the payee's home was asked, while it hasn't answered
	Refund   id.ID     `json:"refund,omitzero"`    // REFUND: the transfer that gives back
	Amount   int64     `json:"amount,omitempty"`   // REFUND
}

// Transfers is the answer of GET /transfers.
type Transfers struct {
	Items      []Transfer `json:"items"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

// LookupRequest asks inside a cell whose a phone is (POST /internal/lookup).
type LookupRequest struct {
	Phone string `json:"phone"`
}

// LookupAnswer names the user. Nobody's phone is 404 NOT_FOUND.
type LookupAnswer struct {
	UserID id.ID `json:"user_id"`
}
