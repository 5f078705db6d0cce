package user

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/user/userapi"
)

// The messages of a claim (protocols P5).
//
//	user's slot                phone's home               every cell's slot
//	PENDING  -- claim.begin -->  PENDING
//	         <-- granted ------
//	ACTIVE, user's row
//	         -- claim.confirm->  CONFIRMED -- claim.copy -->  phone -> user
//	         <-- claim.ask ----  PENDING for long
//	         -- state -------->  CONFIRMED, or RELEASED (tombstone)
const (
	name = transfer.Service // whose messages these are

	kindBegin     = userapi.KindBegin
	kindGranted   = "claim.granted"
	kindTaken     = "claim.taken"
	kindConfirm   = "claim.confirm"
	kindConfirmed = "claim.confirmed"
	kindCopy      = "claim.copy"
	kindCopied    = "claim.copied"
	kindAsk       = "claim.ask"
	kindState     = "claim.state"
)

// claimBody is what all of them carry. The phone itself never leaves its user's
// home: its keyed hash says as much.
type claimBody struct {
	MAC    []byte   `json:"mac"`
	User   id.ID    `json:"user"`
	OpID   string   `json:"op,omitempty"`
	Winner id.ID    `json:"winner,omitzero"` // claim.taken: of the same operation
	State  RegState `json:"state,omitempty"` // claim.state

	// claim.confirm, claim.state, claim.copy: what a payer is shown (hidden), and
	// which of the user's names it is.
	Name   string `json:"name,omitempty"`
	NameNo int64  `json:"name_no,omitempty"`
}

// handlers registers what this service takes.
func (s *service) handlers(c *bus.Consumer) {
	transfer.Register(c.Handle, c.HandleReply, payee)
	transfer.RegisterMany(c.HandleMany, c.HandleManyReplies, payees)
	c.Handle(kindBegin, s.onBegin)
	c.HandleReply(kindGranted, s.onGranted)
	c.HandleReply(kindTaken, s.onTaken)
	c.Handle(kindConfirm, s.onConfirm)
	c.HandleReply(kindConfirmed, done)
	c.Handle(kindCopy, s.onCopy)
	c.HandleReply(kindCopied, done)
	c.Handle(kindAsk, s.onAsk)
	c.HandleReply(kindState, s.onState)
}

// done is for replies that only end their request.
func done(context.Context, *pg.Tx, bus.Message) (bool, error) { return true, nil }

func decode(m bus.Message) (b claimBody, err error) {
	if err = m.Decode(&b); err == nil && (len(b.MAC) != macSize || b.User <= 0) {
		err = bus.Park(fmt.Errorf("%s: not a claim: %s", m.ID, m.Body))
	}
	return b, err
}

func (s *service) send(ctx context.Context, tx *pg.Tx, kind, key string, to routing.Slot, b claimBody) error {
	tx.AfterCommit(s.poke)
	return bus.Send(ctx, tx, bus.Request{Service: name, Kind: kind, Key: key, To: to, Body: b, ReplyService: name})
}

// sendBegin asks the phone's home for the claim.
func (s *service) sendBegin(ctx context.Context, tx *pg.Tx, r Registration) error {
	return s.send(ctx, tx, kindBegin, bus.IDKey(r.UserID), routing.HashSlot(r.Phone), claimBody{MAC: r.PhoneMAC, User: r.UserID, OpID: r.OpID})
}

// onBegin is the phone's home.
func (s *service) onBegin(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
	b, err := decode(m)
	if err != nil {
		return bus.Reply{}, err
	}
	for {
		c, err := lockClaim(ctx, tx, b.MAC)
		if err != nil {
			return bus.Reply{}, err
		}
		granted, write, winner := c.grant(b.User, b.OpID)
		if write {
			took, err := takeClaim(ctx, tx, b.MAC, Claim{User: b.User, UserSlot: m.From, OpID: b.OpID})
			if err != nil {
				return bus.Reply{}, err
			}
			if !took {
				continue // somebody made the row since: it is there to be locked now
			}
		}
		if granted {
			return bus.Reply{Kind: kindGranted, Body: claimBody{MAC: b.MAC, User: b.User}}, nil
		}
		return bus.Reply{Kind: kindTaken, Body: claimBody{MAC: b.MAC, User: b.User, Winner: winner}}, nil
	}
}

// onGranted is the user's slot: the user's row, the wallet and CONFIRM, at once.
func (s *service) onGranted(ctx context.Context, tx *pg.Tx, m bus.Message) (bool, error) {
	r, err := s.replied(ctx, tx, m)
	if err != nil {
		return false, err
	}
	_, news, ok := r.State.onGrant()
	switch {
	case !ok:
		return false, bus.Park(fmt.Errorf("%s: granted, but the registration is %q", m.ID, r.State))
	case news:
		return true, s.create(ctx, tx, r)
	}
	return true, nil
}

// create makes the user of a pending registration.
func (s *service) create(ctx context.Context, tx *pg.Tx, r Registration) error {
	if err := activate(ctx, tx, r); err != nil {
		return err
	}
	if err := transfer.OpenWallet(ctx, tx, r.UserID, transfer.DefaultCurrency); err != nil {
		return err
	}
	tx.AfterCommit(func() { s.waiters.Wake(r.UserID.String()) })
	return s.send(ctx, tx, kindConfirm, bus.IDKey(r.UserID), routing.HashSlot(r.Phone), claimBody{MAC: r.PhoneMAC, User: r.UserID, Name: hidden(r.Name)})
}

// onTaken is the user's slot: somebody else has the phone.
func (s *service) onTaken(ctx context.Context, tx *pg.Tx, m bus.Message) (bool, error) {
	b, err := decode(m)
	if err != nil {
		return false, err
	}
	r, err := s.replied(ctx, tx, m)
	if err != nil {
		return false, err
	}
	next, news, ok := r.State.onTaken()
	switch {
	case !ok:
		return false, bus.Park(fmt.Errorf("%s: taken, but the registration is %q", m.ID, r.State))
	case news:
		tx.AfterCommit(func() { s.waiters.Wake(r.UserID.String()) })
		return true, endRegistration(ctx, tx, r, next, b.Winner)
	}
	return true, nil
}

func (s *service) replied(ctx context.Context, tx *pg.Tx, m bus.Message) (Registration, error) {
	b, err := decode(m)
	if err != nil {
		return Registration{}, err
	}
	return lockRegistration(ctx, tx, b.User)
}

// onConfirm is the phone's home: the claim stands for ever, every cell is told.
func (s *service) onConfirm(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
	b, err := decode(m)
	if err != nil {
		return bus.Reply{}, err
	}
	if err := s.confirm(ctx, tx, m.ID, b); err != nil {
		return bus.Reply{}, err
	}
	return bus.Reply{Kind: kindConfirmed, Body: claimBody{MAC: b.MAC, User: b.User}}, nil
}

func (s *service) confirm(ctx context.Context, tx *pg.Tx, message string, b claimBody) error {
	c, err := lockClaim(ctx, tx, b.MAC)
	if err != nil {
		return err
	}
	write, ok := c.confirm(b.User)
	switch {
	case !ok:
		return bus.Park(fmt.Errorf("%s: user %d confirms a claim that user %d has as %q", message, b.User, c.User, c.State))
	case !write:
		return nil
	}
	if err := endClaim(ctx, tx, b.MAC, b.User, Confirmed); err != nil {
		return err
	}
	return s.tellAll(ctx, tx, claimBody{MAC: b.MAC, User: b.User, Name: b.Name, NameNo: b.NameNo}, "")
}

// tellAll sends a copy to every cell. Keys name the cell's slot, so each cell has a
// message of its own.
func (s *service) tellAll(ctx context.Context, tx *pg.Tx, b claimBody, key string) error {
	for _, cell := range s.table.Load().Cells() {
		slot := routing.CellSlot(cell.Ordinal)
		if err := s.send(ctx, tx, kindCopy, bus.IDKey(b.User)+":"+slot.String()+key, slot, b); err != nil {
			return err
		}
	}
	return nil
}

// tellName is the user's slot, with another name. A user who is there has their
// phone for good, so the copies may come before those of the phone's home.
func (s *service) tellName(ctx context.Context, tx *pg.Tx, r renamed) error {
	return s.tellAll(ctx, tx, claimBody{MAC: r.MAC, User: r.User.ID, Name: hidden(r.User.Name), NameNo: r.No}, fmt.Sprintf(":name-%d", r.No))
}

// onCopy is a cell's own slot.
func (s *service) onCopy(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
	b, err := decode(m)
	if err != nil {
		return bus.Reply{}, err
	}
	there, err := copyClaim(ctx, tx, b)
	switch {
	case err != nil:
		return bus.Reply{}, err
	case there != b.User:
		return bus.Reply{}, bus.Park(fmt.Errorf("%s: users %d and %d have one phone", m.ID, there, b.User))
	}
	return bus.Reply{Kind: kindCopied, Body: claimBody{MAC: b.MAC, User: b.User}}, nil
}

// askOpen is the phone's home: it asks the user's slot about claims that have
// been pending for age. Each is asked about once; the bus sends until there is an
// answer. It gives how many it asked about; one that fails holds up no other.
func (s *service) askOpen(ctx context.Context, age time.Duration) (int, error) {
	list, err := s.store.unasked(ctx, age.Seconds(), 100)
	if err != nil {
		return 0, err
	}
	n := 0
	var failed error
	for _, o := range list {
		err := s.store.write(ctx, pg.Entry{Slot: o.Slot, Epoch: o.Epoch}, func(tx *pg.Tx) error {
			c, err := lockClaim(ctx, tx, o.MAC)
			if err != nil {
				return err
			}
			if open, err := noteAsked(ctx, tx, o.MAC); err != nil || !open {
				return err
			}
			return s.send(ctx, tx, kindAsk, bus.IDKey(c.User), c.UserSlot, claimBody{MAC: o.MAC, User: c.User, OpID: c.OpID})
		})
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		n++
	}
	return n, failed
}

// onAsk is the user's slot: its row answers, or a tombstone that it makes now.
func (s *service) onAsk(ctx context.Context, tx *pg.Tx, m bus.Message) (bus.Reply, error) {
	b, err := decode(m)
	if err != nil {
		return bus.Reply{}, err
	}
	for {
		r, err := lockRegistration(ctx, tx, b.User)
		if err != nil {
			return bus.Reply{}, err
		}
		next, news := r.State.onAsk()
		switch {
		case news && next == Active:
			err = s.create(ctx, tx, r)
		case news:
			var made bool
			if made, err = bury(ctx, tx, b.User, b.OpID, b.MAC); err == nil && !made {
				continue
			}
		}
		if err != nil {
			return bus.Reply{}, err
		}
		return bus.Reply{Kind: kindState, Body: claimBody{MAC: b.MAC, User: b.User, State: next, Name: hidden(r.Name)}}, nil
	}
}

// onState is the phone's home, with the answer to its question.
func (s *service) onState(ctx context.Context, tx *pg.Tx, m bus.Message) (bool, error) {
	b, err := decode(m)
	if err != nil {
		return false, err
	}
	if b.State == Active {
		return true, s.confirm(ctx, tx, m.ID, b)
	}
	c, err := lockClaim(ctx, tx, b.MAC)
	switch {
	case err != nil:
		return false, err
	case c.User != b.User || c.State == Released: // taken over, or known
		return true, nil
	case c.State == Confirmed:
		return false, bus.Park(fmt.Errorf("%s: the confirmed user %d is %s", m.ID, b.User, b.State))
	}
	return true, endClaim(ctx, tx, b.MAC, b.User, Released)
}

// await waits until done, at most limit: it is woken when this process handles
// the reply, and looks by itself now and then.
func (s *service) await(ctx context.Context, user id.ID, limit time.Duration, done func(context.Context) (bool, error)) error {
	_, err := s.waiters.Until(ctx, user.String(), limit, done)
	return err
}
