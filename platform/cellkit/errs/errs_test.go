package errs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestKindsAndStatuses(t *testing.T) {
	t.Parallel()
	seen := map[int]Kind{}
	for k := Internal; k <= Unavailable; k++ {
		if k.String() == "" || k.Status() == 0 {
			t.Errorf("kind %d has no name or status", k)
		}
		if other, ok := seen[k.Status()]; ok {
			t.Errorf("%v and %v share status %d: a kind must survive the hop", k, other, k.Status())
		}
		seen[k.Status()] = k
		if got := KindOf(k.Status()); got != k {
			t.Errorf("KindOf(%d) = %v, want %v", k.Status(), got, k)
		}
	}
	for status, want := range map[int]Kind{405: Invalid, 413: Invalid, 415: Invalid, 502: Unavailable, 504: Unavailable, 418: Internal, 0: Internal} {
		if got := KindOf(status); got != want {
			t.Errorf("KindOf(%d) = %v, want %v", status, got, want)
		}
	}
}

func TestSameCodeIsTheSameError(t *testing.T) {
	t.Parallel()
	sentinel := New(Unprocessable, "OUT_OF_STOCK", "not enough")
	cause := errors.New("row 7")
	for name, err := range map[string]error{
		"itself":    sentinel,
		"wrapped":   fmt.Errorf("place: %w", sentinel),
		"caused":    sentinel.Because(cause),
		"adorned":   sentinel.Msgf("only %d left", 2).At("lines[0]").In("c2").After(time.Second),
		"from afar": New(Unprocessable, "OUT_OF_STOCK", "other words"),
	} {
		if !errors.Is(err, sentinel) {
			t.Errorf("%s: %v is not the sentinel", name, err)
		}
	}
	if errors.Is(New(Unprocessable, "OTHER", "not enough"), sentinel) {
		t.Error("another code is the same error")
	}
	if !errors.Is(sentinel.Because(cause), cause) {
		t.Error("the cause is lost")
	}
	if sentinel.Message != "not enough" || sentinel.Field != "" || sentinel.Cell != "" || sentinel.RetryAfter != 0 || sentinel.Unwrap() != nil {
		t.Errorf("a copy changed the sentinel: %+v", sentinel)
	}
}

func TestFrom(t *testing.T) {
	t.Parallel()
	if From(nil) != nil {
		t.Error("From(nil) isn't nil")
	}
	secret := errors.New("password=hunter2")
	e := From(fmt.Errorf("open: %w", secret))
	if e.Kind != Internal || e.Code != "INTERNAL" || strings.Contains(e.Message, "hunter2") {
		t.Errorf("From(unknown) = %+v, want Internal with its text hidden", e)
	}
	if !errors.Is(e, secret) || !strings.Contains(e.Error(), "hunter2") {
		t.Errorf("the log can't see the cause of %v", e)
	}
	if e := From(fmt.Errorf("x: %w", ErrNotFound.At("id"))); e.Code != "NOT_FOUND" || e.Field != "id" {
		t.Errorf("From(wrapped) = %+v", e)
	}
	if IsKind(nil, Internal) || !IsKind(context.Canceled, Internal) || !IsKind(fmt.Errorf("x: %w", ErrLeaseOver), Unavailable) {
		t.Error("IsKind is wrong about nil, an unknown or a wrapped error")
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	if got, want := Field("amount", "is %d", -1).Because(errors.New("why")).Error(), "INVALID_FIELD: is -1 (amount): why"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	e := *Field("a", "b")
	if e.HTTPStatus() != 400 {
		t.Errorf("status %d, want 400", e.HTTPStatus())
	}
	if e.Status = 413; e.HTTPStatus() != 413 {
		t.Errorf("status %d, want the override 413", e.HTTPStatus())
	}
}
