package user

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/user/userapi"
)

const (
	refreshLife = 30 * 24 * time.Hour // without being used
	turnGrace   = 30 * time.Second    // for who didn't get the answer, and for a second tab
)

func (s *service) refreshKey() []byte { return s.keyed("refresh", "") }

// remembered gives a new session a refresh token. Without one it's a session, too: a
// login isn't refused because it can't be kept.
func (s *service) remembered(ctx context.Context, at pg.Entry, out userapi.Session) userapi.Session {
	var family [8]byte
	_, _ = rand.Read(family[:]) // never fails
	r := userapi.Refresh{User: out.User.ID, Family: binary.BigEndian.Uint64(family[:])}
	at.User = r.User
	now := s.now()
	err := s.store.write(ctx, at, func(tx *pg.Tx) (err error) {
		r, err = sitDown(ctx, tx, r, now, now.Add(refreshLife))
		return err
	})
	if err != nil {
		s.log.WarnContext(ctx, "a session without a refresh token", "user", r.User, "error", err)
		return out
	}
	out.RefreshToken = r.Text(s.refreshKey())
	return out
}

// reading is a refresh token that this shop issued, whatever became of it.
func (s *service) reading(route call.Route, text string) (userapi.Refresh, pg.Entry, error) {
	r, ok := userapi.ReadRefresh(s.refreshKey(), text)
	if !ok {
		return r, pg.Entry{}, userapi.ErrToken
	}
	return r, pg.Entry{Slot: route.Slot, Epoch: route.Epoch, User: r.User}, nil
}

// refresh exchanges a refresh token for a new session with the next one. The last
// one, again and soon, gets the same answer: it got lost, or two tabs asked at once.
// An older one was taken from somebody: that login ends, for whoever has it.
func (s *service) refresh(ctx context.Context, route call.Route, text string) (out userapi.Session, err error) {
	r, at, err := s.reading(route, text)
	if err != nil {
		return out, err
	}
	now, stolen := s.now(), false
	err = s.store.write(ctx, at, func(tx *pg.Tx) error {
		stolen = false
		have, ok, err := lockSeat(ctx, tx, r, now)
		switch {
		case err != nil:
			return err
		case !ok:
			return userapi.ErrTokenExpired
		case r.Turn >= have.Turn: // a later one than is known here: only we make them, a failover has lost it
			r.Turn++
			return turnSeat(ctx, tx, r, now, now.Add(refreshLife))
		case r.Turn+1 == have.Turn && now.Sub(have.TurnedAt) < turnGrace:
			r.Turn = have.Turn
			return nil
		}
		stolen = true
		if err := leave(ctx, tx, r, now); err != nil {
			return err
		}
		return deny(ctx, tx, r.User, now)
	})
	switch {
	case err != nil:
		return out, err
	case stolen:
		s.log.WarnContext(ctx, "a refresh token came a second time: its login is ended", "user", r.User)
		return out, userapi.ErrTokenReused
	}
	u, err := s.store.user(ctx, route.Slot, r.User)
	if err != nil {
		if errs.IsKind(err, errs.NotFound) { // closed meanwhile
			err = userapi.ErrTokenExpired
		}
		return out, err
	}
	if out, err = s.session(route.Slot, u); err == nil {
		out.RefreshToken = r.Text(s.refreshKey())
	}
	return out, err
}

// logOut ends the login that a refresh token is of; one that has ended is no error.
func (s *service) logOut(ctx context.Context, route call.Route, text string) error {
	r, at, err := s.reading(route, text)
	if err != nil {
		return err
	}
	return s.store.write(ctx, at, func(tx *pg.Tx) error { return leave(ctx, tx, r, s.now()) })
}

// logOutEverywhere ends all logins of a user, and has their tokens refused.
func (s *service) logOutEverywhere(ctx context.Context, route call.Route) error {
	now := s.now()
	return s.store.write(ctx, entry(route), func(tx *pg.Tx) error {
		if err := leaveAll(ctx, tx, route.User); err != nil {
			return err
		}
		return deny(ctx, tx, route.User, now)
	})
}

// denied is what this cell's gateways ask for again and again.
func (s *service) denied(ctx context.Context) (userapi.Denied, error) {
	users, err := s.store.denied(ctx, s.now().Add(-userapi.TokenLife-time.Minute))
	return userapi.Denied{Users: users}, err
}

// issued is when a token says that it was made: after what is refused, also within
// the same second.
func issued(now time.Time, u User) int64 {
	if u.DeniedUntil != nil {
		return max(now.Unix(), u.DeniedUntil.Unix()+1)
	}
	return now.Unix()
}
