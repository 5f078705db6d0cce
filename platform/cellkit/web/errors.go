package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
)

// What the edge itself refuses.
var (
	ErrUnauthenticated = errs.New(errs.Unauthenticated, "UNAUTHENTICATED", "log in first")
	ErrInvalidJSON     = errs.New(errs.Invalid, "INVALID_JSON", "the body is not one JSON object")
	ErrUnknownField    = errs.New(errs.Invalid, "UNKNOWN_FIELD", "the body has a field that is not known here")
	ErrInvalidCursor   = errs.New(errs.Invalid, "INVALID_CURSOR", "the cursor was not made here").At("cursor")
	ErrNoKey           = errs.New(errs.Invalid, "IDEMPOTENCY_KEY_MISSING", "this request needs an Idempotency-Key of 1 to 128 visible ASCII characters").At(HeaderIdempotencyKey)
	ErrTimeout         = errs.New(errs.Unavailable, "TIMEOUT", "this took too long, try again").After(time.Second)
)

// WriteProblem answers with an error as problem+json. It works for any handler,
// also outside of echo.
func WriteProblem(w http.ResponseWriter, r *http.Request, err error) {
	rid := call.RequestID(r.Context())
	if rid == "" {
		rid = r.Header.Get(HeaderRequestID)
	}
	p := call.NewProblem(problem(r, err), rid)
	body, marshalErr := json.Marshal(p)
	if marshalErr != nil { // can't happen: strings and numbers only
		body = []byte("{}")
	}
	h := w.Header()
	h.Set("Content-Type", call.ProblemType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(p.RetryAfter, 10))
	}
	w.WriteHeader(p.Status)
	// A failure here means that the client is gone.
	_, _ = w.Write(append(body, '\n'))
}

// problem says what an error is to the client. An error that says nothing but
// that time ran out is 503; after a write the outcome isn't known.
func problem(r *http.Request, err error) *errs.Error {
	var known *errs.Error
	if errors.As(err, &known) && known.Kind != errs.Internal {
		return known
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			return ErrTimeout.Because(err)
		}
		return errs.ErrUnknown.Because(err)
	}
	if known != nil {
		return known
	}
	var tooLong *http.MaxBytesError
	if errors.As(err, &tooLong) {
		e := errs.New(errs.Invalid, "BODY_TOO_LARGE", "the body is over "+strconv.FormatInt(tooLong.Limit, 10)+" bytes")
		e.Status = http.StatusRequestEntityTooLarge
		return e.Because(err)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		e := errs.New(errs.Invalid, "BODY_TOO_SLOW", "the body did not arrive in time")
		e.Status = http.StatusRequestTimeout
		return e.Because(err)
	}
	var he *echo.HTTPError
	if errors.As(err, &he) {
		return fromEcho(he, err)
	}
	return errs.ErrInternal.Because(err)
}

// fromEcho keeps echo's status: errors.As, because a wrapped 404 is a 404. What
// echo says about a 5xx is not for the client.
func fromEcho(he *echo.HTTPError, err error) *errs.Error {
	if he.Code < 400 || he.Code > 599 || he.Code == http.StatusInternalServerError {
		return errs.ErrInternal.Because(err)
	}
	text := http.StatusText(he.Code)
	if text == "" {
		text = "status " + strconv.Itoa(he.Code)
	}
	kind := errs.KindOf(he.Code)
	if kind == errs.Internal && he.Code < 500 {
		kind = errs.Invalid
	}
	e := errs.New(kind, strings.ToUpper(strings.NewReplacer(" ", "_", "-", "_", "'", "").Replace(text)), strings.ToLower(text))
	switch {
	case he.Code == http.StatusNotFound:
		e = errs.ErrNotFound
	case he.Code < 500:
		if message, ok := he.Message.(string); ok && message != text {
			e.Message = message
		}
	}
	e = e.Because(err)
	if kind.Status() != he.Code {
		e.Status = he.Code
	}
	return e
}
