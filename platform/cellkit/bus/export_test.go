package bus

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/routing"
)

// FailAt sets a failpoint: f is called with each step's name, and its error
// breaks the work off there.
func (c *Consumer) FailAt(f func(step string) error) { c.step = f }

// FailAt is the same for a dispatcher.
func (d *Dispatcher) FailAt(f func(step string) error) { d.step = f }

// Hurry shortens the waits that a test would have to sit out.
func (c *Consumer) Hurry(ackWait, silent, nakFirst, nakLast time.Duration) {
	c.timing.pull, c.timing.heartbeat = time.Second, 200*time.Millisecond
	c.timing.ackWait, c.timing.silent = ackWait, silent
	c.timing.nakFirst, c.timing.nakLast = nakFirst, nakLast
}

// ClaimSQL is how due notes are taken.
const ClaimSQL = claimSQL

// Look counts what waits, and claims what is due, of each slot.
func Look(ctx context.Context, pool *pgxpool.Pool, limit int) (waiting int, from []routing.Slot, err error) {
	r := relay{pool}
	if waiting, _, _, err = r.state(ctx); err != nil {
		return 0, nil, err
	}
	notes, err := r.claim(ctx, limit, false)
	for _, n := range notes {
		from = append(from, n.From)
	}
	return waiting, from, err
}

// MaxTries is how often a message may fail.
const MaxTries = maxTries

// Encode is a message on the wire.
func Encode(m Message) []byte {
	b, err := encode(m)
	if err != nil {
		panic(err)
	}
	return b
}
