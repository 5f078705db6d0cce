package call

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
)

// Headers between gateway and services. The gateway strips the X-Cellmart ones
// from requests that come from outside; the others are public.
const (
	HeaderUser           = "X-Cellmart-User"   // the authenticated user's ID
	HeaderSlot           = "X-Cellmart-Slot"   // the slot the request is about
	HeaderSeller         = "X-Cellmart-Seller" // "true" when that user's token says seller
	HeaderEpoch          = "X-Cellmart-Epoch"  // its epoch in the router's table
	HeaderHop            = "X-Cellmart-Hop"    // forwards between gateways so far
	HeaderFrom           = "X-Cellmart-From"   // the calling cell
	HeaderRequestID      = "X-Request-Id"
	HeaderCell           = "X-Cell"          // who served
	HeaderRouteVersion   = "X-Route-Version" // the table that the server held
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderReplayed       = "Idempotent-Replayed"
)

// Route is what a request is about: the slot it reads or writes, at the epoch
// that the router believed, in the cell that serves it. User is 0 for a request
// of nobody, such as logging in.
type Route struct {
	Cell  string
	Slot  routing.Slot
	Epoch routing.Epoch
	User  id.ID
}

type routeKey struct{}

// WithRoute puts the route into the context.
func WithRoute(ctx context.Context, r Route) context.Context {
	return context.WithValue(ctx, routeKey{}, r)
}

// RouteFrom gives the request's route.
func RouteFrom(ctx context.Context) (Route, bool) {
	r, ok := ctx.Value(routeKey{}).(Route)
	return r, ok
}

type requestIDKey struct{}

// WithRequestID puts the request's id into the context.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID gives the request's id, empty outside of a request.
func RequestID(ctx context.Context) string {
	s, _ := ctx.Value(requestIDKey{}).(string)
	return s
}

// SetHeaders writes the route's headers; From names the calling cell.
func (r Route) SetHeaders(h http.Header, from string) {
	h.Set(HeaderSlot, r.Slot.String())
	h.Set(HeaderEpoch, strconv.FormatInt(int64(r.Epoch), 10))
	h.Set(HeaderFrom, from)
	if r.User != 0 {
		h.Set(HeaderUser, r.User.String())
	} else {
		h.Del(HeaderUser)
	}
}

// RouteFromHeaders reads what SetHeaders wrote, for a server in the given cell.
// Without a slot header there is no route. A malformed header, or a caller of
// another cell, is CELL_ROUTING_VIOLATION.
func RouteFromHeaders(h http.Header, cell string) (r Route, ok bool, err error) {
	text := h.Get(HeaderSlot)
	if text == "" {
		return Route{}, false, nil
	}
	slot, err := strconv.ParseInt(text, 10, 32)
	if err != nil || slot < 0 {
		return Route{}, false, violation("%s is %q", HeaderSlot, text)
	}
	epoch, err := strconv.ParseInt(h.Get(HeaderEpoch), 10, 64)
	if err != nil || epoch < 1 {
		return Route{}, false, violation("%s is %q", HeaderEpoch, h.Get(HeaderEpoch))
	}
	r = Route{Cell: cell, Slot: routing.Slot(slot), Epoch: routing.Epoch(epoch)}
	if user := h.Get(HeaderUser); user != "" {
		if r.User, err = id.Parse(user); err != nil {
			return Route{}, false, violation("%s is %q", HeaderUser, user)
		}
	}
	if from := h.Get(HeaderFrom); from != "" && from != cell {
		return Route{}, false, violation("called from cell %q in cell %q", from, cell)
	}
	return r, true, nil
}

func violation(format string, args ...any) error {
	return errs.ErrViolation.Because(fmt.Errorf(format, args...))
}
