package user

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/user/userapi"
)

func (s *service) handleWallet(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	out, err := s.wallet(c.Request().Context(), r)
	return answer(c, http.StatusOK, out, err)
}

func (s *service) handleStatement(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	limit, err := web.QueryInt(c, "limit", pageSize, 1, maxPage)
	if err != nil {
		return err
	}
	from := statementPlace{User: r.User, Currency: c.QueryParam("currency")}
	if from.Currency == "" {
		from.Currency = transfer.DefaultCurrency
	}
	if !transfer.ValidCurrency(from.Currency) {
		return errs.Field("currency", "must be CNY, USD, EUR, JPY or KWD")
	}
	if text := c.QueryParam("cursor"); text != "" {
		var at statementPlace
		if err := web.DecodeCursor(s.cursorKey(), text, &at); err != nil {
			return err
		}
		if at.User != r.User || at.Currency != from.Currency || at.Seq <= 0 {
			return web.ErrInvalidCursor.Because(errCursor)
		}
		from = at
	}
	out, next, err := s.statement(c.Request().Context(), r, from, int(limit))
	if err != nil {
		return err
	}
	if next != nil {
		out.NextCursor = web.EncodeCursor(s.cursorKey(), next)
	}
	return c.JSON(http.StatusOK, out)
}

func (s *service) handleDeposit(c echo.Context) error { return keyed(c, s.deposit) }

func (s *service) handleWithdraw(c echo.Context) error { return keyed(c, s.withdraw) }

// keyed is a request that takes effect once for each Idempotency-Key.
func keyed[In any](c echo.Context, do func(context.Context, call.Route, string, In) (pg.Record, bool, error)) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	key, err := web.IdempotencyKey(c)
	if err != nil {
		return err
	}
	var in In
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	rec, replayed, err := do(c.Request().Context(), r, key, in)
	if err != nil {
		return err
	}
	return recorded(c, rec, replayed)
}

// handlePreview is a POST because it carries a phone number, which has no place in
// a URL; it changes nothing.
func (s *service) handlePreview(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	var in userapi.PreviewRequest
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	out, seen, err := s.preview(c.Request().Context(), r, in)
	if err != nil {
		return err
	}
	out.Confirm = web.EncodeCursor(s.confirmKey(), seen)
	return c.JSON(http.StatusOK, out)
}

// recorded answers with what is kept under an Idempotency-Key.
func recorded(c echo.Context, rec pg.Record, replayed bool) error {
	if replayed {
		c.Response().Header().Set(web.HeaderReplayed, "true")
	}
	if rec.Location != "" {
		c.Response().Header().Set(echo.HeaderLocation, rec.Location)
	}
	if rec.Status == http.StatusUnprocessableEntity { // REJECTED: the only refusals that are kept
		return rejected(rec)
	}
	return c.Blob(rec.Status, echo.MIMEApplicationJSON, rec.Body)
}

func (s *service) handlePay(c echo.Context) error {
	return keyed(c, func(ctx context.Context, r call.Route, key string, in userapi.TransferRequest) (pg.Record, bool, error) {
		var seen *confirmation
		if in.Confirm != "" {
			seen = &confirmation{}
			if err := web.DecodeCursor(s.confirmKey(), in.Confirm, seen); err != nil {
				return pg.Record{}, false, userapi.ErrConfirm.Because(err)
			}
		}
		return s.pay(ctx, r, key, in, seen)
	})
}

func (s *service) handleTransfers(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	limit, err := web.QueryInt(c, "limit", pageSize, 1, maxPage)
	if err != nil {
		return err
	}
	var at transfersPlace
	if text := c.QueryParam("cursor"); text != "" {
		if err := web.DecodeCursor(s.cursorKey(), text, &at); err != nil {
			return err
		}
		if at.User != r.User || at.Last.ID <= 0 {
			return web.ErrInvalidCursor.Because(errCursor)
		}
	}
	out, next, err := s.transfers(c.Request().Context(), r, at.Last, int(limit))
	if err != nil {
		return err
	}
	if next != nil {
		out.NextCursor = web.EncodeCursor(s.cursorKey(), next)
	}
	return c.JSON(http.StatusOK, out)
}

func (s *service) handleTransfer(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	n, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	out, err := s.transfer(c.Request().Context(), r, n)
	return answer(c, http.StatusOK, out, err)
}

func (s *service) handleTakeBack(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	n, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	out, err := s.takeBack(c.Request().Context(), r, n)
	return answer(c, http.StatusAccepted, out, err)
}

func (s *service) handleGiveBack(c echo.Context) error {
	of, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	return keyed(c, func(ctx context.Context, r call.Route, key string, in userapi.RefundRequest) (pg.Record, bool, error) {
		return s.giveBack(ctx, r, key, of, in)
	})
}
