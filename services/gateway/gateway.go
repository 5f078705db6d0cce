package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// What the gateway itself refuses.
var (
	ErrUnreachable = errs.New(errs.Unavailable, "CELL_UNREACHABLE", "the cell that keeps this can't be reached at the moment; others go on").After(time.Second)
	ErrWriterDown  = errs.New(errs.Unavailable, "CATALOG_WRITER_DOWN", "products can't be written at the moment; reading goes on").After(time.Second)
	ErrSearchDown  = errs.New(errs.Unavailable, "SEARCH_UNAVAILABLE", "search is away at the moment; the shop goes on").After(2 * time.Second)
	ErrUnsettled   = errs.New(errs.Unavailable, "ROUTE_UNSETTLED", "this account is being moved, try again").After(time.Second)
	ErrNotSeller   = errs.New(errs.Forbidden, "NOT_A_SELLER", "only sellers may do this; log in again if you have just become one")
	ErrNoToken     = errs.New(errs.Unauthenticated, "UNAUTHENTICATED", "log in first")
)

// codeDraining is the code of a slot that is being handed over (pg.ErrDraining).
const codeDraining = "SLOT_DRAINING"

// verifyFunc is userapi.Verify: it checks a token without asking anyone, the keys
// are in the table.
type verifyFunc func(t *routing.Table, token string, now time.Time) (userapi.Claims, error)

// rule is one row of the routes table: which requests, to whom, about what.
type rule struct {
	method, path string
	service      string
	slot         finder
	who          access
	param        string // the path's ID or number that is checked before anything else
	query        string // an optional ID in the query, checked too
}

// finder says how the slot of a request is found.
type finder uint8

const (
	ofUser    finder = iota // where the logged-in user is at home
	ofCell                  // the own cell's: data that every cell has
	ofNew                   // a new user's, in a cell that takes new users
	ofPhone                 // where the user with the phone in the body is at home
	ofRefresh               // where the user of the refresh token in the body is at home
	ofID                    // where the user with the path's ID is at home
	ofThing                 // the path's ID has it, unless it went along with a user who was moved
	ofNumber                // the same with the path's order number
	ofParty                 // as ofThing; while that is away, what the home of the user who asks knows of it
)

// scattered says that what is looked for may be in the slot that its ID has or in
// any that was taken from that.
func (f finder) scattered() bool { return f == ofThing || f == ofNumber || f == ofParty }

// access says who may ask.
type access uint8

const (
	anyone access = iota
	users
	sellers
)

// The services that a rule may name. The catalog's writer and search are in the
// global zone; the others are the own cell's.
const (
	svcUser      = "user"
	svcOrder     = "order"
	svcInventory = "inventory"
	svcCatalog   = "catalog"
	svcWriter    = "catalog writer"
	svcSearch    = "search"
)

// place is a slot and who has it at which epoch, as far as somebody knows.
type place struct {
	cell  string
	slot  routing.Slot
	epoch routing.Epoch
}

// locate finds a slot's place. There is no default cell: an unknown slot is 404.
func locate(t *routing.Table, slot routing.Slot) (place, error) {
	if t == nil {
		return place{}, errs.ErrUnavailable.Because(errors.New("no route table yet"))
	}
	a, ok := t.Slot(slot)
	if !ok {
		return place{}, errs.ErrNotFound.Because(fmt.Errorf("slot %d is not in route table %d", slot, t.Version()))
	}
	return place{cell: a.Owner, slot: slot, epoch: a.Epoch}, nil
}

// correct gives where to ask after the place refused with what it knows. base is
// what the newest table says. The newest epoch counts, whoever names it: a
// straggler's word takes nobody back.
func correct(p place, refused *errs.Error, base place, t *routing.Table) place {
	if base.slot != p.slot {
		return base // the user was moved alone, or back to the slot they share
	}
	next := base
	if p.epoch > next.epoch {
		next = p
	}
	if epoch := routing.Epoch(refused.Epoch); refused.Owner != "" && epoch > next.epoch {
		if _, known := t.Cell(refused.Owner); known {
			next = place{cell: refused.Owner, slot: p.slot, epoch: epoch}
		}
	}
	return next
}

// homes lists where else a thing may be, whose ID has the slot: the private slots
// of the users who were taken from it.
func homes(t *routing.Table, slot routing.Slot) ([]place, error) {
	if t == nil {
		return nil, nil
	}
	var out []place
	for _, s := range t.TakenFrom(slot) {
		p, err := locate(t, s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// newHomes lists where a new user may live, best first: with the group, then in
// the cells that take new users: of the wished region (or of that name), the own,
// of the own region, the others. Among equals the key decides, so that a second
// try goes the same way.
func newHomes(t *routing.Table, own, region, group, key string) []place {
	var out []place
	if group != "" {
		slot := t.GroupSlot(group)
		if p, err := locate(t, slot); err == nil {
			if c, _ := t.Cell(p.cell); c.Weight > 0 {
				out = append(out, p)
			}
		}
	}
	me, _ := t.Cell(own)
	rank := func(c routing.Cell) int {
		switch {
		case region != "" && (region == c.Region || region == c.Name) && c.Name == own:
			return 0
		case region != "" && (region == c.Region || region == c.Name):
			return 1
		case c.Name == own:
			return 2
		case c.Region != "" && c.Region == me.Region:
			return 3
		}
		return 4
	}
	cells := slices.DeleteFunc(t.Cells(), func(c routing.Cell) bool {
		_, open := routing.PickSlot(t, c.Name, 0)
		return !open
	})
	slices.SortFunc(cells, func(a, b routing.Cell) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(routing.HashSlot(key+a.Name), routing.HashSlot(key+b.Name)), cmp.Compare(a.Name, b.Name))
	})
	for _, c := range cells {
		if p, err := locate(t, routing.CellSlot(c.Ordinal)); err == nil && p.cell == c.Name {
			out = append(out, p)
		}
	}
	return out
}

// misrouted is the refusal of a request that another gateway sent here wrongly.
func misrouted(p place) error {
	e := *errs.ErrMisrouted
	e.Owner, e.Epoch = p.cell, int64(p.epoch)
	return &e
}

// arrival is how a request came in. Only the peers' listener gives more than the
// zero arrival: a public one has had its internal headers thrown away.
type arrival struct {
	hopped bool // another gateway sent it: it is answered here or refused
	slot   routing.Slot
	epoch  routing.Epoch // what the sender believes
}

func arrivalOf(h http.Header) (arrival, error) {
	slot, err := strconv.ParseInt(h.Get(call.HeaderSlot), 10, 32)
	if err != nil || slot < 0 {
		return arrival{}, errs.ErrViolation.Because(fmt.Errorf("%s is %q", call.HeaderSlot, h.Get(call.HeaderSlot)))
	}
	epoch, err := strconv.ParseInt(h.Get(call.HeaderEpoch), 10, 64)
	if err != nil || epoch < 1 {
		return arrival{}, errs.ErrViolation.Because(fmt.Errorf("%s is %q", call.HeaderEpoch, h.Get(call.HeaderEpoch)))
	}
	if hop := h.Get(call.HeaderHop); hop != "1" {
		return arrival{}, errs.ErrViolation.Because(fmt.Errorf("%s is %q", call.HeaderHop, hop))
	}
	return arrival{hopped: true, slot: routing.Slot(slot), epoch: routing.Epoch(epoch)}, nil
}

// bearer takes the token out of an Authorization header.
func bearer(header string) (string, error) {
	scheme, token, ok := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", ErrNoToken
	}
	return token, nil
}

// authenticate proves who asks, and that they may.
func (r rule) authenticate(verify verifyFunc, t *routing.Table, header string, now time.Time) (userapi.Claims, error) {
	if r.who == anyone {
		return userapi.Claims{}, nil // a token that has run out hinders nobody to read
	}
	token, err := bearer(header)
	if err != nil {
		return userapi.Claims{}, err
	}
	who, err := verify(t, token, now)
	var known *errs.Error
	switch {
	case errors.As(err, &known):
		return userapi.Claims{}, err
	case err != nil:
		return userapi.Claims{}, ErrNoToken.Because(err)
	case r.who == sellers && !who.Seller:
		return userapi.Claims{}, ErrNotSeller
	}
	return who, nil
}

// numberReader reads order numbers for their slot. Neither the check symbol nor
// the slot depends on the secret key, so the gateway needs none; only the
// sequence it reads is wrong.
func numberReader() *id.Numbers {
	n, err := id.NewNumbers([]byte("the gateway reads the slot only"))
	if err != nil {
		panic(err) // can't be: the key is a constant, long enough
	}
	return n
}
