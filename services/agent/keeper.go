package agent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
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
	askEach   = 5 * time.Second  // peers are asked so often even while control answers
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
	cache   *route.Cache // nil in the global zone
	acks    *route.Acks
	stats   *route.Stats
	silent  chan struct{} // control didn't answer: peers are asked now
	cached  int64         // version last brought to Redis; of spread alone

	inDB *routing.Table // last applied to the database; of keep alone

	mu       sync.Mutex
	signed   []byte    // of the held table
	answered time.Time // when control last answered
	applied  int64     // version known to be in the database
	trouble  string    // last logged, so that it's logged once
}

// load takes the newest of the sound snapshots and what Redis has, for a start
// with everything else down.
func (k *keeper) load(ctx context.Context) {
	snap := route.ReadSnapshot(k.dir, k.key)
	for _, err := range snap.Skipped {
		k.log.Warn("snapshot skipped", "error", err)
	}
	if snap.Table != nil && k.hold(snap.Table, snap.Signed) {
		k.stats.Took("snapshot")
	}
	if err := k.sync(ctx); err != nil {
		k.log.Warn("no route table from Redis", "error", err)
	}
}

// take holds a signed table if it is newer, tells everyone, and then writes it to
// disk. Nobody waits for the disk: an agent that is killed in between starts with
// the table before, which is no worse than one that was never told, and gets this
// one from Redis, the database, control or a peer.
func (k *keeper) take(t *routing.Table, signed []byte, from string) {
	if t.Version() <= k.holder.Version() {
		if t.Version() < k.holder.Version() {
			k.stats.Refuse(from, nil)
		}
		return
	}
	if !k.hold(t, signed) {
		return
	}
	k.stats.Took(from)
	k.log.Info("route table", "version", t.Version(), "source", from)
	k.publish(signed)
	if err := route.WriteSnapshot(k.dir, signed); err != nil {
		k.log.Error("snapshot not written", "error", err)
	}
}

func (k *keeper) hold(t *routing.Table, signed []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.holder.Store(t) {
		return false
	}
	k.signed = signed
	k.acks.Hold(t.Version())
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

// fetch asks control for newer tables for ever, and the peers beside it.
func (k *keeper) fetch(ctx context.Context) error {
	var peers sync.WaitGroup
	defer peers.Wait()
	peers.Go(func() { k.askPeers(ctx) })
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
				k.take(t, signed, "control")
			}
			continue
		}
		if ctx.Err() != nil {
			break
		}
		k.refused("control", err)
		k.tell("control: " + err.Error())
		select {
		case k.silent <- struct{}{}:
		default:
		}
		pause(ctx, retry)
	}
	return nil
}

// askPeers takes newer tables from the other zones' agents: each second while
// control doesn't answer, else now and then. Control may die, or lose its way to
// this zone without a sign, when it has told only some of a new table.
func (k *keeper) askPeers(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.silent:
		case <-time.After(askEach):
		}
		var all sync.WaitGroup
		for zone, peer := range k.peers {
			all.Go(func() {
				t, signed, err := peer(ctx, k.holder.Version(), 0)
				if err != nil {
					k.refused("peer", err)
				} else if t != nil {
					k.log.Info("table from a peer", "peer", zone, "version", t.Version())
					k.take(t, signed, "peer")
				}
			})
		}
		all.Wait()
	}
}

// refused counts an answer that was no table.
func (k *keeper) refused(from string, err error) {
	if errors.Is(err, routing.ErrSignature) || errors.Is(err, routing.ErrTable) {
		k.stats.Refuse(from, err)
	}
}

// sync brings the zone's Redis to the held table, or takes what it has newer.
func (k *keeper) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	t, signed := k.held()
	newer, signed, err := k.cache.Sync(ctx, k.key, t, signed)
	if newer != nil {
		k.take(newer, signed, "redis")
	}
	return err
}

// spread keeps the zone at the held table: Redis, at each new one and each 5 s
// in case it was flushed or went back, and each second the processes that say
// that they hold an older one.
func (k *keeper) spread(ctx context.Context) error {
	var was string
	var synced time.Time
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		changed := k.holder.Changed()
		if v := k.holder.Version(); v != k.cached || time.Since(synced) >= askEach {
			err := k.sync(ctx)
			if now := text(err); now != was && ctx.Err() == nil {
				was = now
				k.log.Warn("route table in Redis", "error", now) // "" = it's well again
			}
			k.cached, synced = v, time.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
			if _, signed := k.held(); signed != nil && k.acks.Behind() {
				k.publish(signed)
			}
		}
	}
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
		k.take(t, signed, "database")
	}
	t, signed := k.held()
	if t != nil && t.Version() > have {
		n, err := k.db.apply(ctx, k.inDB, t, signed)
		if err != nil {
			return err
		}
		k.log.Info("applied the route table", "version", t.Version(), "slots_changed", n)
		have, k.inDB = t.Version(), t
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
