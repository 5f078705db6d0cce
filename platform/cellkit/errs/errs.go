// Package errs has the one error type that crosses every border of a cell:
// a kind (what the caller may do about it), a stable code (what programs
// compare) and a message that is safe to show. Anything else is Internal, and
// its text stays in the log.
package errs

import (
	"errors"
	"fmt"
	"time"
)

// Kind says what the caller may do about an error; each has one HTTP status.
type Kind uint8

// The kinds. Unprocessable is for requests that are well formed and refused by
// the state of things: out of stock, insufficient funds, a reused key.
const (
	Internal Kind = iota
	Invalid
	Unauthenticated
	Forbidden
	NotFound
	Conflict
	Unprocessable
	Misrouted
	Exhausted
	Unavailable
)

var kinds = [...]struct {
	name   string
	status int
}{
	Internal:        {"internal", 500},
	Invalid:         {"invalid", 400},
	Unauthenticated: {"unauthenticated", 401},
	Forbidden:       {"forbidden", 403},
	NotFound:        {"not_found", 404},
	Conflict:        {"conflict", 409},
	Unprocessable:   {"unprocessable", 422},
	Misrouted:       {"misrouted", 421},
	Exhausted:       {"exhausted", 429},
	Unavailable:     {"unavailable", 503},
}

// String is the kind's word in logs and metrics.
func (k Kind) String() string { return kinds[k].name }

// Status is the kind's HTTP status.
func (k Kind) Status() int { return kinds[k].status }

// KindOf gives the kind for an HTTP status, Internal for one it doesn't know.
func KindOf(status int) Kind {
	for k, v := range kinds {
		if v.status == status {
			return Kind(k)
		}
	}
	switch {
	case status == 405 || status == 413 || status == 415:
		return Invalid
	case status == 502 || status == 504:
		return Unavailable
	}
	return Internal
}

// Error is an error with a kind and a code. Two errors with the same code are
// the same to errors.Is, so a sentinel still matches after it crossed HTTP.
// The zero values of the optional fields mean "not said".
type Error struct {
	Kind    Kind
	Code    string // stable, upper snake case: OUT_OF_STOCK
	Message string // safe to show to anyone
	Field   string // the request's field that is wrong
	Status  int    // overrides the kind's status (405, 413, 415), 0 = the kind's

	Cell       string        // the cell that is meant: who owns it, who is down
	Owner      string        // Misrouted: the owner, as far as the refuser knows
	Epoch      int64         // Misrouted: the owner's epoch
	RetryAfter time.Duration // Exhausted, Unavailable: when to ask again

	cause error
}

// New makes an error, usually a package's sentinel.
func New(kind Kind, code, message string) *Error {
	return &Error{Kind: kind, Code: code, Message: message}
}

// Error has the code, the message and the cause: for the log, not for a user.
func (e *Error) Error() string {
	s := e.Code + ": " + e.Message
	if e.Field != "" {
		s += " (" + e.Field + ")"
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.cause }

// Is compares by code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// HTTPStatus is the status to answer with.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	return e.Kind.Status()
}

// Because is a copy that keeps cause for the log.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Msgf is a copy with another message.
func (e *Error) Msgf(format string, args ...any) *Error {
	c := *e
	c.Message = fmt.Sprintf(format, args...)
	return &c
}

// At is a copy that names the request's field.
func (e *Error) At(field string) *Error {
	c := *e
	c.Field = field
	return &c
}

// In is a copy that names a cell.
func (e *Error) In(cell string) *Error {
	c := *e
	c.Cell = cell
	return &c
}

// After is a copy that says when to ask again.
func (e *Error) After(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// Field is the usual refusal of one field: Invalid, code INVALID_FIELD.
func Field(field, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Code: "INVALID_FIELD", Message: fmt.Sprintf(format, args...), Field: field}
}

// From finds the *Error in err's chain; an unknown error becomes Internal with
// its text hidden behind the cause. From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return ErrInternal.Because(err)
}

// IsKind says whether err is of a kind.
func IsKind(err error, k Kind) bool { return err != nil && From(err).Kind == k }

// The errors that any part may give.
var (
	ErrInternal    = New(Internal, "INTERNAL", "something went wrong on our side")
	ErrUnavailable = New(Unavailable, "UNAVAILABLE", "a part that this needs is not available, try again").After(time.Second)
	ErrNotFound    = New(NotFound, "NOT_FOUND", "there is no such thing")
	ErrUnknown     = New(Unavailable, "OUTCOME_UNKNOWN", "the outcome is not known, ask again with the same Idempotency-Key").After(time.Second)
	ErrMisrouted   = New(Misrouted, "MISROUTED", "this cell does not own that slot at that epoch")
	ErrLeaseOver   = New(Unavailable, "LEASE_OVER", "this cell may not write at the moment").After(time.Second)
	ErrViolation   = New(Internal, "CELL_ROUTING_VIOLATION", "a call without a route, or to another cell, was refused")
)
