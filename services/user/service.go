package user

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/password"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

const (
	macSize   = sha256.Size
	replyWait = 300 * time.Millisecond // for the phone's home, then 202
	askAge    = 5 * time.Second        // a claim pending that long is asked about
)

// ids hands out IDs: id.Client.
type ids interface {
	Next(kind string, slot routing.Slot) (id.ID, error)
}

// waiters is bus.Waiters.
type waiters interface {
	Wake(key string)
	Until(ctx context.Context, key string, limit time.Duration, done func(context.Context) (bool, error)) (bool, error)
}

// service has the use cases. Every write names the slot and epoch that the
// request was routed by; the database refuses when they aren't this cell's.
type service struct {
	cell    string
	store   *store
	table   *routing.Holder
	links   *route.Links
	ids     ids
	waiters waiters
	hasher  *password.Hasher
	key     ed25519.PrivateKey         // signs tokens
	secret  []byte                     // of phone hashes and cursors, the same in every cell
	limits  map[string]transfer.Limits // by currency; none = no limit
	poke    func()                     // the outbox has something new
	now     func() time.Time
	log     *slog.Logger
}

// mac is a phone in claims, copies and messages.
func (s *service) mac(phone string) []byte { return s.keyed("phone", phone) }

// cursorKey signs the cursors of lists.
func (s *service) cursorKey() []byte { return s.keyed("cursor", "") }

func (s *service) keyed(use, text string) []byte {
	h := hmac.New(sha256.New, s.secret)
	h.Write([]byte(use + "\x00" + text))
	return h.Sum(nil)
}

func entry(r call.Route) pg.Entry { return pg.Entry{Slot: r.Slot, Epoch: r.Epoch, User: r.User} }

// registered is what became of a request to register.
type registered struct {
	Operation userapi.Operation
	Session   *userapi.Session // the user is there, and it is this cell's
	Replayed  bool
}

// register makes a user, or finds what the operation made before. The slot comes
// from the operation, so a retry at this gateway finds its row; a retry at
// another one makes a row there, and the phone's home tells it who won.
func (s *service) register(ctx context.Context, op string, in userapi.RegisterRequest) (registered, error) {
	var out registered
	phone, err := phoneField("phone", in.Phone)
	if err != nil {
		return out, err
	}
	if in.Name, err = textField("name", in.Name, 1, 64); err != nil {
		return out, err
	}
	if err := checkPassword(in.Password); err != nil {
		return out, err
	}
	if len(in.Group) > userapi.MaxGroup {
		return out, errs.Field("group", "has more than %d bytes", userapi.MaxGroup)
	}
	at, err := s.newHome(op, in.Group)
	if err != nil {
		return out, err
	}
	r, err := s.store.registration(ctx, at.Slot, op)
	if err != nil {
		return out, unsettled(err)
	}
	if r.State == "" {
		if r, out.Replayed, err = s.openRegistration(ctx, at, op, phone, in); err != nil {
			return out, unsettled(err)
		}
	} else {
		out.Replayed = true
	}
	if out.Replayed {
		if err := s.sameRequest(ctx, r, phone, in); err != nil {
			return out, err
		}
	}
	if r, err = s.awaitClaim(ctx, at.Slot, r); err != nil {
		return out, err
	}
	out.Operation = r.operation()
	switch {
	case r.State == Active:
		u, err := s.store.user(ctx, at.Slot, r.UserID)
		if err != nil {
			return out, err
		}
		session, err := s.session(at.Slot, u)
		if err == nil {
			session = s.remembered(ctx, at, session)
		}
		out.Session = &session
		return out, err
	case r.State == Taken && r.Winner == 0:
		return out, userapi.ErrPhoneTaken
	case r.State == Taken:
		out.Operation.ID = r.Winner // its home can say how it stands
	case r.State == Gone:
		return out, userapi.ErrRegistration
	}
	return out, nil
}

// newHome chooses the slot of a new user among those of this cell: the one of
// their group, if this cell has it and takes new users, else any, evenly.
func (s *service) newHome(op, group string) (pg.Entry, error) {
	t := s.table.Load()
	if t == nil {
		return pg.Entry{}, errs.ErrUnavailable.Because(errors.New("no route table yet"))
	}
	sum := sha256.Sum256([]byte(op))
	slot, ok := routing.PickSlot(t, s.cell, binary.BigEndian.Uint64(sum[:]))
	if !ok {
		return pg.Entry{}, userapi.ErrCellClosed.In(s.cell)
	}
	if routing.CanonicalGroup(group) != "" {
		if a, ok := t.Slot(t.GroupSlot(group)); ok && a.Owner == s.cell {
			slot = t.GroupSlot(group)
		}
	}
	a, err := route.Resolve(t, slot)
	return pg.Entry{Slot: slot, Epoch: a.Epoch}, err
}

// unsettled is for slots that the caller didn't choose: that they have moved is
// none of the caller's business.
func unsettled(err error) error {
	if errs.IsKind(err, errs.Misrouted) {
		return errs.ErrUnavailable.Because(err)
	}
	return err
}

func (s *service) openRegistration(ctx context.Context, at pg.Entry, op, phone string, in userapi.RegisterRequest) (Registration, bool, error) {
	hash, err := s.hasher.Hash(ctx, in.Password)
	if err != nil {
		return Registration{}, false, err
	}
	user, err := s.ids.Next("user", at.Slot)
	if err != nil {
		return Registration{}, false, err
	}
	want := Registration{OpID: op, UserID: user, Phone: phone, PhoneMAC: s.mac(phone), Name: in.Name, PasswordHash: hash}
	var r Registration
	var made bool
	err = s.store.write(ctx, at, func(tx *pg.Tx) error {
		if r, made, err = openRegistration(ctx, tx, want); err != nil || !made {
			return err
		}
		return s.sendBegin(ctx, tx, r)
	})
	return r, !made, err
}

// sameRequest holds a repeated request against the first: the password too, by
// its hash, since nothing faster to guess is kept.
func (s *service) sameRequest(ctx context.Context, r Registration, phone string, in userapi.RegisterRequest) error {
	same, err := s.hasher.Verify(ctx, r.PasswordHash, in.Password)
	if err != nil {
		return err
	}
	if !same || r.Name != in.Name || subtle.ConstantTimeCompare(r.PhoneMAC, s.mac(phone)) != 1 {
		return pg.ErrKeyReused
	}
	return nil
}

// awaitClaim waits a moment for the phone's home, and not at all when the link
// to it is known to be down.
func (s *service) awaitClaim(ctx context.Context, slot routing.Slot, r Registration) (Registration, error) {
	if r.State != Pending {
		return r, nil
	}
	home, ok := s.table.Load().Slot(routing.HashSlot(r.Phone))
	if !ok {
		return r, nil
	}
	if home.Owner != s.cell {
		if up, known := s.links.Up(home.Owner); known && !up {
			return r, nil
		}
	}
	err := s.await(ctx, r.UserID, replyWait, func(ctx context.Context) (bool, error) {
		now, err := s.store.registrationOf(ctx, slot, r.UserID)
		if err == nil && now.State != "" {
			r = now
		}
		return r.State != Pending, err
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("waiting for a claim", "user", r.UserID, "error", err) // the registration stands: 202
		err = nil
	}
	return r, err
}

// operation shows a registration by the ID of the user to be.
func (s *service) operation(ctx context.Context, r call.Route, user id.ID) (userapi.Operation, error) {
	reg, err := s.store.registrationOf(ctx, r.Slot, user)
	if err == nil && reg.State == "" {
		err = errs.ErrNotFound
	}
	return reg.operation(), err
}

// login checks a password at the user's home. A phone that nobody has, here or
// anywhere, takes as long and gets the same answer.
func (s *service) login(ctx context.Context, r call.Route, in userapi.LoginRequest) (userapi.Session, error) {
	phone, err := phoneField("phone", in.Phone)
	if err != nil {
		return userapi.Session{}, err
	}
	if in.Password == "" || len(in.Password) > 512 {
		return userapi.Session{}, errs.Field("password", "must have 1 to 128 characters")
	}
	u, err := s.store.userByPhone(ctx, r.Slot, s.mac(phone))
	if err != nil && !errs.IsKind(err, errs.NotFound) {
		return userapi.Session{}, err
	}
	ok, err := s.hasher.Verify(ctx, u.PasswordHash, in.Password)
	if err != nil {
		return userapi.Session{}, err
	}
	if !ok {
		return userapi.Session{}, userapi.ErrCredentials
	}
	out, err := s.session(r.Slot, u)
	if err != nil {
		return out, err
	}
	return s.remembered(ctx, pg.Entry{Slot: r.Slot, Epoch: r.Epoch}, out), nil
}

// session signs a token for a user of this cell.
func (s *service) session(slot routing.Slot, u User) (userapi.Session, error) {
	now := s.now().UTC().Truncate(time.Second)
	out := userapi.Session{ExpiresAt: now.Add(userapi.TokenLife), User: u.wire()}
	var err error
	out.Token, err = userapi.Sign(s.key, userapi.Claims{User: u.ID, Slot: slot, Cell: s.cell, IssuedAt: issued(now, u),
		ExpiresAt: out.ExpiresAt.Unix(), Seller: u.Seller, Name: u.Name})
	return out, err
}

// lookup gives the user that has a phone; errs.ErrNotFound.
func (s *service) lookup(ctx context.Context, phone string) (id.ID, error) {
	slot, err := s.cellSlot()
	if err != nil {
		return 0, err
	}
	return s.store.lookup(ctx, slot, s.mac(phone))
}

// cellSlot is the cell's own slot, where the copies are.
func (s *service) cellSlot() (routing.Slot, error) {
	t := s.table.Load()
	if t == nil {
		return 0, errs.ErrUnavailable.Because(errors.New("no route table yet"))
	}
	slot, ok := t.CellSlot(s.cell)
	if !ok {
		return 0, errs.ErrUnavailable.Because(fmt.Errorf("route table %d has no cell %s", t.Version(), s.cell))
	}
	return slot, nil
}

func (s *service) patchMe(ctx context.Context, r call.Route, in userapi.PatchMe) (u User, err error) {
	if in.Name == nil {
		return s.store.user(ctx, r.Slot, r.User)
	}
	text, err := textField("name", *in.Name, 1, 64)
	if err != nil {
		return u, err
	}
	err = s.store.write(ctx, entry(r), func(tx *pg.Tx) error {
		now, err := rename(ctx, tx, r.User, text)
		if u = now.User; err != nil || !now.News {
			return err
		}
		return s.tellName(ctx, tx, now)
	})
	return u, err
}

// closeMe closes the account of whoever asks. Nobody gets money into it any more,
// and its phone stays taken.
func (s *service) closeMe(ctx context.Context, r call.Route) error {
	return s.store.write(ctx, entry(r), func(tx *pg.Tx) error { return closeAccount(ctx, tx, r.User) })
}

// openShop makes a seller. The answer has a new token, since the old one says
// that they are none.
func (s *service) openShop(ctx context.Context, r call.Route, in userapi.SellerRequest) (userapi.Session, error) {
	shop, err := textField("shop_name", in.ShopName, 1, 64)
	if err != nil {
		return userapi.Session{}, err
	}
	var u User
	err = s.store.write(ctx, entry(r), func(tx *pg.Tx) error { u, err = openShop(ctx, tx, r.User, shop); return err })
	if err != nil {
		return userapi.Session{}, err
	}
	return s.session(r.Slot, u)
}

func (s *service) addAddress(ctx context.Context, r call.Route, in userapi.AddressRequest) (a userapi.Address, err error) {
	for _, f := range []struct {
		name   string
		in     string
		out    *string
		lo, hi int
	}{
		{"recipient", in.Recipient, &a.Recipient, 1, 64},
		{"line", in.Line, &a.Line, 1, 200},
		{"city", in.City, &a.City, 1, 64},
		{"postcode", in.Postcode, &a.Postcode, 0, 16},
	} {
		if *f.out, err = textField(f.name, f.in, f.lo, f.hi); err != nil {
			return a, err
		}
	}
	digits, err := phoneField("phone", in.Phone)
	if err != nil {
		return a, err
	}
	a.Phone = "+" + digits
	if a.ID, err = s.ids.Next("address", r.User.Slot()); err != nil {
		return a, err
	}
	err = s.store.write(ctx, entry(r), func(tx *pg.Tx) error { a, err = addAddress(ctx, tx, r.User, a); return err })
	return a, err
}

func (s *service) dropAddress(ctx context.Context, r call.Route, address id.ID) error {
	return s.store.write(ctx, entry(r), func(tx *pg.Tx) error { return dropAddress(ctx, tx, r.User, address) })
}

// ask runs askOpen now and then.
func (s *service) ask(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		n, err := s.askOpen(ctx, askAge)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.log.Warn("asking about open claims", "error", err)
		case n > 0:
			s.log.Info("asked about open claims", "count", n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
