package user

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// User is a user's row.
type User struct {
	ID           id.ID
	Phone        string // canonical: the digits of +8613800000001
	Name         string
	PasswordHash string
	Seller       bool
	ShopName     string
	CreatedAt    time.Time
	DeniedUntil  *time.Time // tokens issued up to then are refused; nil: none
}

func (u User) wire() userapi.User {
	return userapi.User{ID: u.ID, Name: u.Name, Phone: "+" + u.Phone, Seller: u.Seller, ShopName: u.ShopName, CreatedAt: u.CreatedAt.UTC()}
}

// RegState is how a registration stands in the new user's slot.
type RegState string

// The states of a registration. All but Pending are ends.
const (
	Pending RegState = "PENDING"
	Active  RegState = "ACTIVE" // the user's row is there
	Taken   RegState = "TAKEN"  // another one has the phone
	Gone    RegState = "GONE"   // tombstone
)

// Registration is the row behind an operation id.
type Registration struct {
	OpID         string
	UserID       id.ID // what the user's ID will be
	Phone        string
	PhoneMAC     []byte
	Name         string
	PasswordHash string
	State        RegState
	Winner       id.ID // Taken: the user that the same operation made at another gateway, 0 = it wasn't this operation
}

// operation is the registration as its URL shows it.
func (r Registration) operation() userapi.Operation {
	o := userapi.Operation{ID: r.UserID, State: userapi.OperationPending}
	switch {
	case r.State == Active:
		o.State, o.UserID = userapi.OperationDone, r.UserID
	case r.State == Taken && r.Winner != 0:
		o.State, o.UserID = userapi.OperationDone, r.Winner
	case r.State == Taken:
		o.State, o.Reason = userapi.OperationFailed, userapi.ErrPhoneTaken.Code
	case r.State == Gone:
		o.State, o.Reason = userapi.OperationFailed, userapi.ErrRegistration.Code
	}
	return o
}

// ClaimState is how a claim stands at the phone's home.
type ClaimState string

// The states of a claim. It never ends by time.
const (
	Unclaimed ClaimState = ""
	Claimed   ClaimState = "PENDING"
	Confirmed ClaimState = "CONFIRMED"
	Released  ClaimState = "RELEASED" // the user's slot knew nothing of it
)

// Claim is the row at the phone's home.
type Claim struct {
	User     id.ID
	UserSlot routing.Slot
	OpID     string
	State    ClaimState
}

// grant judges a BEGIN against what the home has. write says that the row is to
// be made (or taken over from a released claim).
func (c Claim) grant(user id.ID, op string) (granted, write bool, winner id.ID) {
	switch {
	case c.State == Unclaimed, c.State == Released && c.User != user:
		return true, true, 0
	case c.State == Released: // a late copy of what was found to be gone
		return false, false, 0
	case c.User == user: // the same BEGIN once more
		return true, false, 0
	case c.OpID == op: // the same operation at another gateway: who was first wins
		return false, false, c.User
	}
	return false, false, 0
}

// confirm judges a CONFIRM: write says that the claim becomes Confirmed; not ok
// means that the user's slot acted on a grant that it doesn't have.
func (c Claim) confirm(user id.ID) (write, ok bool) {
	if c.User != user || c.State == Unclaimed || c.State == Released {
		return false, false
	}
	return c.State == Claimed, true
}

// onGrant, onTaken and onAsk are what the registration does with the home's
// words: the next state, and whether that is news. Not ok is a contradiction.
func (s RegState) onGrant() (next RegState, news, ok bool) {
	switch s {
	case Pending:
		return Active, true, true
	case Active:
		return s, false, true
	}
	return s, false, false
}

func (s RegState) onTaken() (next RegState, news, ok bool) {
	switch s {
	case Pending:
		return Taken, true, true
	case Taken, Gone:
		return s, false, true
	}
	return s, false, false
}

// onAsk answers the home's question. That it asks proves that it granted, so a
// pending registration becomes active by it; without a row ("") there will never
// be one.
func (s RegState) onAsk() (next RegState, news bool) {
	switch s {
	case Pending:
		return Active, true
	case "":
		return Gone, true
	}
	return s, false
}

func phoneField(field, s string) (string, error) {
	p, ok := userapi.CanonicalPhone(s)
	if !ok {
		return "", errs.Field(field, "must be an international phone number such as +8613800000001")
	}
	return p, nil
}

// hidden is a name as somebody sees it who only knows the number: its ends, as far
// as there are more characters, and nothing of how long it is.
func hidden(name string) string {
	r := []rune(name)
	switch {
	case len(r) == 0:
		return ""
	case len(r) < 3:
		return string(r[:1]) + "***"
	}
	return string(r[:1]) + "***" + string(r[len(r)-1:])
}

// textField trims a text for people and holds it to a length in characters.
func textField(field, s string, least, most int) (string, error) {
	s = strings.TrimSpace(s)
	if n := utf8.RuneCountInString(s); n < least || n > most {
		return "", errs.Field(field, "must have %d to %d characters", least, most)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }) {
		return "", errs.Field(field, "must have no control characters")
	}
	return s, nil
}

// checkPassword holds a new password to its length; what is in it is its owner's.
func checkPassword(s string) error {
	if n := utf8.RuneCountInString(s); n < 8 || n > 128 {
		return errs.Field("password", "must have 8 to 128 characters")
	}
	return nil
}
