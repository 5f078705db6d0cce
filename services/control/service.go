package control

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/control/controlapi"
)

// look is how often the store is asked for a table that another instance, or
// this one before it was killed, has published.
const look = time.Second

// service publishes tables and hands out the newest.
type service struct {
	store *store
	key   ed25519.PrivateKey
	log   *slog.Logger
	acks  *acks

	mu     sync.Mutex // orders offer
	holder routing.Holder
	signed atomic.Pointer[[]byte] // at least as new as the holder's table
}

func (s *service) public() ed25519.PublicKey { return s.key.Public().(ed25519.PublicKey) }

// offer makes a stored table the one that is handed out.
func (s *service) offer(signed []byte) error {
	t, err := routing.Open(s.public(), signed)
	if err != nil {
		return fmt.Errorf("stored table: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.Version() <= s.holder.Version() {
		return nil
	}
	s.signed.Store(&signed)
	s.holder.Store(t)
	s.log.Info("route table", "version", t.Version())
	return nil
}

// refresh looks into the store once.
func (s *service) refresh(ctx context.Context) error {
	b, err := s.store.newest(ctx, max(0, s.holder.Version()))
	if err != nil || b == nil {
		return err
	}
	return s.offer(b)
}

// watch looks into the store until ctx ends, and publishes the first table when
// there is none and first asks for one.
func (s *service) watch(ctx context.Context, first *controlapi.InitRequest) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	troubled := false
	for {
		err := s.refresh(ctx)
		if err == nil && s.holder.Load() == nil && first != nil {
			_, err = s.initialize(ctx, *first)
		}
		if ctx.Err() != nil {
			return nil
		}
		switch { // once per change, not each second
		case err != nil && !troubled:
			s.log.Error("route store", "error", err)
		case err == nil && troubled:
			s.log.Info("route store is back")
		}
		troubled = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ready says why control can't hand out a table.
func (s *service) ready() error {
	if s.holder.Load() == nil {
		return controlapi.ErrNone
	}
	return nil
}

// route gives the newest signed table if its version is above after, and waits
// for one until ctx ends, then nil.
func (s *service) route(ctx context.Context, after int64) ([]byte, error) {
	for {
		changed := s.holder.Changed()
		if s.holder.Version() > after {
			return *s.signed.Load(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, s.ready()
		}
	}
}

// initialize publishes version 1 unless there is a table; one of other cells is an
// error, so that a set-up doesn't take an old database for its own.
func (s *service) initialize(ctx context.Context, req controlapi.InitRequest) (controlapi.Published, error) {
	errThere := errors.New("there is a table")
	var found *routing.Table
	p, err := s.write(ctx, "init", func(cur *routing.Table) (*routing.Table, error) {
		if cur != nil {
			found = cur
			return nil, errThere
		}
		return firstTable(req)
	})
	if !errors.Is(err, errThere) {
		return p, err
	}
	if !sameCells(found, req) {
		return p, controlapi.ErrExists
	}
	return controlapi.Published{Version: found.Version()}, nil
}

// publish stores the successor of the expected version.
func (s *service) publish(ctx context.Context, req controlapi.PublishRequest) (controlapi.Published, error) {
	return s.write(ctx, req.Reason, func(cur *routing.Table) (*routing.Table, error) {
		if cur == nil {
			return nil, controlapi.ErrNone
		}
		if cur.Version() != req.ExpectVersion {
			return nil, controlapi.ErrVersion.Msgf("the current version is %d, not %d", cur.Version(), req.ExpectVersion)
		}
		return nextTable(cur, req)
	})
}

// write runs one compare-and-swap: change gets the newest stored table and gives
// its successor. Stored first, then handed out.
func (s *service) write(ctx context.Context, reason string, change func(*routing.Table) (*routing.Table, error)) (controlapi.Published, error) {
	return s.writeParts(ctx, reason, change, nil)
}

// writeParts also notes, in the same transaction, that the table switches parts of
// exchanges.
func (s *service) writeParts(ctx context.Context, reason string, change func(*routing.Table) (*routing.Table, error), parts []part) (controlapi.Published, error) {
	var version int64
	var signed []byte
	err := s.store.publishParts(ctx, reason, func(newest []byte) (int64, []byte, error) {
		var cur *routing.Table
		if newest != nil {
			var err error
			if cur, err = routing.Open(s.public(), newest); err != nil {
				return 0, nil, fmt.Errorf("stored table: %w", err)
			}
		}
		next, err := change(cur)
		if err != nil {
			return 0, nil, err
		}
		version, signed = next.Version(), routing.Sign(s.key, next).Bytes()
		return version, signed, nil
	}, parts)
	if err != nil {
		return controlapi.Published{}, err
	}
	s.log.Info("route table stored", "version", version, "reason", reason)
	return controlapi.Published{Version: version, Created: true}, s.offer(signed)
}
