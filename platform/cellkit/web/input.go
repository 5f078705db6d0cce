package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
)

// Bind reads the body, one JSON object, into dst and nothing else: path and
// query are read by name (PathID, QueryInt), so no body can replace them.
// Unknown fields, wrong types, text after the object, text that isn't UTF-8 and
// NUL characters (Postgres has none in text) are refused with the field's path.
func Bind(c echo.Context, dst any) error {
	mediaType, _, err := mime.ParseMediaType(c.Request().Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		e := errs.New(errs.Invalid, "UNSUPPORTED_MEDIA_TYPE", "the body must be application/json")
		e.Status = http.StatusUnsupportedMediaType
		return e
	}
	raw, err := io.ReadAll(c.Request().Body)
	if err != nil {
		if c.Request().Context().Err() == nil && errors.Is(err, io.ErrUnexpectedEOF) {
			return ErrInvalidJSON.Msgf("the body ended early").Because(err)
		}
		return fmt.Errorf("read the body: %w", err)
	}
	return decode(raw, dst)
}

// binder makes echo's own c.Bind the strict one.
type binder struct{}

// Bind implements echo.Binder.
func (binder) Bind(dst any, c echo.Context) error { return Bind(c, dst) }

func decode(raw []byte, dst any) error {
	trimmed := bytes.TrimSpace(raw)
	switch {
	case !utf8.Valid(raw):
		return ErrInvalidJSON.Msgf("the body is not UTF-8")
	case len(trimmed) == 0:
		return ErrInvalidJSON.Msgf("the body is empty")
	case trimmed[0] != '{':
		return ErrInvalidJSON
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(dst); err != nil {
		return explain(raw, dst, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return ErrInvalidJSON.Msgf("there is text after the JSON object")
	}
	if bytes.Contains(raw, []byte(`\u0000`)) && hasNUL(raw) {
		return ErrInvalidJSON.Msgf("the body has a NUL character")
	}
	return nil
}

// hasNUL looks at the decoded strings: `\\u0000` is only a text about one.
func hasNUL(raw []byte) bool {
	d := json.NewDecoder(bytes.NewReader(raw))
	for {
		token, err := d.Token()
		if err != nil {
			return false
		}
		if s, ok := token.(string); ok && strings.ContainsRune(s, 0) {
			return true
		}
	}
}

// PathID reads an ID from the path. A text that can't be an ID is NOT_FOUND,
// like an ID that doesn't exist: the answer is no oracle.
func PathID(c echo.Context, name string) (id.ID, error) {
	v, err := id.Parse(c.Param(name))
	if err != nil {
		return 0, errs.ErrNotFound.Because(err)
	}
	return v, nil
}

// QueryInt reads a whole number from the query, def when it's missing.
func QueryInt(c echo.Context, name string, def, min, max int64) (int64, error) {
	text := c.QueryParam(name)
	if text == "" {
		return def, nil
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < min || v > max {
		return 0, errs.Field(name, "must be a whole number from %d to %d", min, max)
	}
	return v, nil
}

// Actor is the user that the gateway authenticated.
func Actor(c echo.Context) (id.ID, error) {
	v, err := id.Parse(c.Request().Header.Get(HeaderUser))
	if err != nil {
		return 0, ErrUnauthenticated
	}
	return v, nil
}

// IdempotencyKey reads the header that POSTs with an effect on money need.
func IdempotencyKey(c echo.Context) (string, error) {
	key := c.Request().Header.Get(HeaderIdempotencyKey)
	if len(key) == 0 || len(key) > 128 {
		return "", ErrNoKey
	}
	for _, b := range []byte(key) {
		if b <= ' ' || b > '~' {
			return "", ErrNoKey
		}
	}
	return key, nil
}
