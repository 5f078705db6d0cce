package pg

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"example.com/cellmart/platform/cellkit/errs"
)

// ErrDraining is given while a slot is being handed over; it passes.
var ErrDraining = errs.New(errs.Unavailable, "SLOT_DRAINING", "this account is being moved, try again").After(time.Second)

// Error gives the *errs.Error for what the database answered (the package's
// table), and any other error unchanged.
func Error(err error) error {
	var known *errs.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		if connectionLost(err) {
			return errs.ErrUnavailable.Because(err)
		}
		return err
	}
	switch pe.Code {
	case "SL001", "SL002", "SL008":
		return misrouted(pe)
	case "SL003":
		if m := misrouted(pe); strings.Contains(pe.Message, "given") {
			return m
		}
		return ErrDraining.Because(err)
	case "SL004":
		return errs.ErrLeaseOver.Because(err)
	case "SL009":
		return errs.ErrUnknown.Because(err)
	case "SL010":
		return errs.ErrUnavailable.Because(err)
	}
	switch pe.Code[:2] {
	case "08", "57", "53", "58", "25": // connection, shutdown and cancel, resources, system, read-only
		return errs.ErrUnavailable.Because(err)
	}
	if pe.Code == "55P03" { // lock timeout
		return errs.ErrUnavailable.Because(err)
	}
	return err
}

func misrouted(pe *pgconn.PgError) error {
	e := *errs.ErrMisrouted
	var d struct {
		Owner string `json:"owner"`
		Epoch int64  `json:"epoch"`
	}
	if json.Unmarshal([]byte(pe.Detail), &d) == nil {
		e.Owner, e.Epoch = d.Owner, d.Epoch
	}
	return e.Because(pe)
}

func connectionLost(err error) bool {
	var ce *pgconn.ConnectError
	return errors.As(err, &ce) || errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err) ||
		pgconn.SafeToRetry(err) || strings.Contains(err.Error(), "conn closed") ||
		strings.Contains(err.Error(), "unexpected EOF") || strings.Contains(err.Error(), "connection reset")
}

func again(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == "40001" || pe.Code == "40P01")
}

// IsUnique says whether err is a violation of that unique constraint ("" = any).
func IsUnique(err error, constraint string) bool { return violates(err, "23505", constraint) }

// IsCheck says whether err is a violation of that check constraint ("" = any).
func IsCheck(err error, constraint string) bool { return violates(err, "23514", constraint) }

func violates(err error, code, constraint string) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == code && (constraint == "" || pe.ConstraintName == constraint)
}
