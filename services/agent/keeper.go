package agent

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/routing"
)

// source is where a newer table may come from: control, or a peer's agent. It
// gives nil when there is none newer than after.
type source func(ctx context.Context, after int64, wait time.Duration) (*routing.Table, []byte, error)

const (
	pollWait  = 20 * time.Second // long poll at control
	retry     = time.Second      // after control didn't answer
	upkeep    = time.Second      // lease and application of the table
	leaseTime = 2 * time.Second  // limit of one look at the database
)

// keeper holds the zone's table: it fetches, stores, applies and tells.
type keeper struct {
	log     *slog.Logger
	key     ed25519.PublicKey
	dir     string
	holder  *routing.Holder
	control source
	peers   map[string]source
	db      *store // nil in the global zone
	publish func(signed []byte)

	mu       sync.Mutex
	signed   []byte    // of the held table
	answered time.Time // when control last answered
	applied  int64     // version known to be in the database
	trouble  string    // last logged, so that it's logged once
}

// load takes the newest sound snapshot, for a start with everything else down.
func (k *keeper) load() {
	snap := route.ReadSnapshot(k.dir, k.key)
	for _, err := range snap.Skipped {
		k.log.Warn("snapshot skipped", "error", err)
	}
	if snap.Table != nil {
		k.hold(snap.Table, snap.Signed)
	}
}

// take checks a signed table and holds it if it is newer; it is written to disk
// before anyone is told.
func (k *keeper) take(t *routing.Table, signed []byte) {
	if t.Version() <= k.holder.Version() {
		return
	}
	if err := route.WriteSnapshot(k.dir, signed); err != nil {
		k.log.Error("snapshot not written", "error", err)
	}
	if k.hold(t, signed) {
		k.log.Info("route table", "version", t.Version())
		k.publish(signed)
	}
}

func (k *keeper) hold(t *routing.Table, signed []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.holder.Store(t) {
		return false
	}
	k.signed = signed
	return true
}

// current gives the held table in signed form if it's newer than after.
func (k *keeper) current(after int64) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holder.Version() <= after {
		return nil
	}
	return k.signed
}

// controlAge is the time since control last answered; negative = never.
func (k *keeper) controlAge() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.answered.IsZero() {
		return -1
	}
	return time.Since(k.answered)
}

// fetch asks control for newer tables for ever; while it doesn't answer, the
// peers hand theirs on.
func (k *keeper) fetch(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := pollWait
		if k.controlAge() < 0 { // the first answer says that control is there
			wait = 0
		}
		t, signed, err := k.control(ctx, k.holder.Version(), wait)
		if err == nil {
			k.mu.Lock()
			k.answered = time.Now()
			k.mu.Unlock()
			k.tell("")
			if t != nil {
				k.take(t, signed)
			}
			continue
		}
		if ctx.Err() != nil {
			break
		}
		k.tell("control: " + err.Error())
		for _, zone := range slices.Sorted(maps.Keys(k.peers)) {
			if t, signed, err := k.peers[zone](ctx, k.holder.Version(), 0); err == nil && t != nil {
				k.log.Info("newer table from a peer", "peer", zone, "version", t.Version())
				k.take(t, signed)
			}
		}
		pause(ctx, retry)
	}
	return nil
}

// tell logs a trouble once, and its end.
func (k *keeper) tell(trouble string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if (trouble == "") == (k.trouble == "") {
		return
	}
	k.trouble = trouble
	if trouble != "" {
		k.log.Warn("no route from control", "error", trouble)
	} else {
		k.log.Info("control answers")
	}
}

// keep holds the lease and brings the database to the held table, each second
// and at each new table.
func (k *keeper) keep(ctx context.Context) error {
	if k.db == nil {
		<-ctx.Done()
		return nil
	}
	var was string
	for ctx.Err() == nil {
		changed := k.holder.Changed()
		err := k.once(ctx)
		if now := text(err); now != was && ctx.Err() == nil {
			was = now
			k.log.Warn("cell database", "error", now) // "" = it's well again
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(upkeep):
		}
	}
	return nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (k *keeper) once(ctx context.Context) error {
	look, cancel := context.WithTimeout(ctx, leaseTime)
	defer cancel()
	if err := k.db.holdLease(look); err != nil {
		return err
	}
	have, err := k.db.version(look)
	if err != nil {
		return err
	}
	if have > max(0, k.holder.Version()) { // the database outlived the snapshots
		signed, err := k.db.stored(look)
		if err != nil {
			return err
		}
		t, err := routing.Open(k.key, signed)
		if err != nil {
			return err
		}
		k.take(t, signed)
	}
	t, signed := k.held()
	if t != nil && t.Version() > have {
		n, err := k.db.apply(ctx, t, signed)
		if err != nil {
			return err
		}
		k.log.Info("applied the route table", "version", t.Version(), "slots_changed", n)
		have = t.Version()
	}
	k.mu.Lock()
	k.applied = have
	k.mu.Unlock()
	return nil
}

// held gives the table with its signed form, nil when only the table of last
// resort is held: that one is never applied.
func (k *keeper) held() (*routing.Table, []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.signed == nil {
		return nil, nil
	}
	return k.holder.Load(), k.signed
}

// ready says why the agent can't do its work yet.
func (k *keeper) ready() error {
	if k.holder.Version() < 1 {
		return errNoTable
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.db != nil && k.applied < 1 {
		return errNotApplied
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
