package id

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/sonyflake/v2"
)

// The fallback's sequence is an ID in the layout of sonyflake v2 with a unit of
// 1 s, 9 bits of sequence and 8 of machine, so 31 bits of seconds since Epoch
// are left of the 48:
//
//	 47                    17 16       8 7       3 2      0
//	+------------------------+----------+---------+--------+
//	| seconds, 31            | count, 9 | ordinal | number |   machine = ordinal of the cell,
//	+------------------------+----------+---------+--------+   number of the eight it has
//
// Seconds and count are one counter of 40 bits. It only goes up: the clock pulls
// it forward when a range of it is granted, and nothing pulls it back.
const (
	fallbackCountBits   = 9
	fallbackMachineBits = 8
	fallbackNumberBits  = 3
	fallbackBits        = 40 // of the counter
	// FallbackNumbers is how many machines a cell has.
	FallbackNumbers = 1 << fallbackNumberBits
	// MaxOrdinal is the last cell that has a fallback: five bits, never used again.
	MaxOrdinal = 1<<(fallbackMachineBits-fallbackNumberBits) - 1
	// FallbackEnd is where the counter ends, in 2094.
	FallbackEnd = 1 << fallbackBits
	// FallbackAhead is how far the counter may run ahead of time when more than
	// 512 IDs/s are taken: all that was ever granted lies below now + that.
	FallbackAhead = time.Hour

	firstFallback = 8192 // what a process holds before it needs any: 16 s of one machine
	fallbackFor   = time.Minute
	maxFallback   = 1 << 19
)

// FallbackAt is where the counter of every machine belongs at a time.
func FallbackAt(t time.Time) int64 { return int64(t.Sub(Epoch)/time.Second) << fallbackCountBits }

// FallbackGrant is a range [Lo, Hi) of a machine's counter.
type FallbackGrant struct {
	Machine int   `json:"machine"` // ordinal << 3 | number
	Lo      int64 `json:"lo,string"`
	Hi      int64 `json:"hi,string"`
}

// FallbackFunc asks for up to size numbers of some machine's counter. Whoever
// grants them has stored their end before it answers, and whoever comes next on
// that machine begins above it.
type FallbackFunc func(ctx context.Context, size int64) (FallbackGrant, error)

// codec puts the parts together. Only the library's Compose and Decompose are
// used: its generator sleeps through a clock's step back while it holds its
// lock, and repeats IDs when it restarts with the clock behind.
type codec struct{ sf *sonyflake.Sonyflake }

func newCodec() (codec, error) {
	sf, err := sonyflake.New(sonyflake.Settings{
		BitsSequence: fallbackCountBits, BitsMachineID: fallbackMachineBits, TimeUnit: time.Second, StartTime: Epoch,
		MachineID: func() (int, error) { return 0, nil }, // else it looks for an IP address to take one from
	})
	if err != nil {
		return codec{}, fmt.Errorf("no fallback for IDs: %w", err)
	}
	return codec{sf}, nil
}

func (c codec) compose(machine int, counter int64) (int64, error) {
	at := Epoch.Add(time.Duration(counter>>fallbackCountBits) * time.Second)
	return c.sf.Compose(at, int(counter&(1<<fallbackCountBits-1)), machine)
}

// FallbackParts are what a fallback ID says of itself.
type FallbackParts struct {
	At      time.Time `json:"at"`      // the counter's second: when its range was granted, or later
	Ordinal int       `json:"ordinal"` // of the cell that made it
	Number  int       `json:"number"`  // the cell's machine
	Count   int       `json:"count"`
}

// Parts takes a fallback ID apart; false for one out of a segment.
func (i ID) Parts() (FallbackParts, bool) {
	c, err := newCodec()
	if err != nil || i < 0 || !i.Fallback() {
		return FallbackParts{}, false
	}
	p := c.sf.Decompose(i.Seq())
	return FallbackParts{
		At:      Epoch.Add(time.Duration(p["time"]) * time.Second),
		Ordinal: int(p["machine"]) >> fallbackNumberBits, Number: int(p["machine"]) & (FallbackNumbers - 1),
		Count: int(p["sequence"]),
	}, true
}

// fallback is a process's stock of fallback numbers, for all its kinds: a chain
// of segments like any other, with the machine above the counter's 40 bits.
type fallback struct {
	*source
	codec codec
	ask   FallbackFunc
	err   error // why there is none

	// of the refilling goroutine
	ordinal int // of the first grant, 0 = none yet
	ends    map[int]int64
}

func newFallback(ask FallbackFunc) *fallback {
	f := &fallback{source: newSource("fallback"), ask: ask, ends: map[int]int64{}}
	if ask != nil {
		f.codec, f.err = newCodec()
	}
	return f
}

// none says that no fallback is bound: in the global zone, and in tests.
func (f *fallback) none() bool { return f.ask == nil || f.err != nil }

// next gives a sequence; false: there is none.
func (f *fallback) next() (int64, bool) {
	if f.none() {
		return 0, false
	}
	v, ok := f.take()
	if !ok {
		return 0, false
	}
	seq, err := f.codec.compose(int(v>>fallbackBits), v&(FallbackEnd-1))
	return seq, err == nil
}

var errMachine = errors.New("another cell's machine")

// refill gets another range. A grant that can't be right is put aside.
func (f *fallback) refill(ctx context.Context, c *Client) error {
	f.measure(time.Now())
	size := int64(min(max(f.perSecond()*fallbackFor.Seconds(), firstFallback), maxFallback))
	ctx, cancel := context.WithTimeout(ctx, leaseLimit)
	defer cancel()
	g, err := f.ask(ctx, size)
	if err != nil {
		return err
	}
	if err := f.check(g, size, c.clock()); err != nil {
		c.putAside(f.source, "fallback", g.Lo, g.Hi, err)
		return err
	}
	f.ordinal, f.ends[g.Machine] = g.Machine>>fallbackNumberBits, g.Hi
	top := int64(g.Machine) << fallbackBits
	f.append(top|g.Lo, top|g.Hi)
	return nil
}

func (f *fallback) check(g FallbackGrant, size int64, now time.Time) error {
	ordinal := g.Machine >> fallbackNumberBits
	switch {
	case ordinal < 1 || ordinal > MaxOrdinal:
		return fmt.Errorf("%d is no cell's machine", g.Machine)
	case f.ordinal != 0 && ordinal != f.ordinal:
		return fmt.Errorf("%w: %d, not of cell %d", errMachine, g.Machine, f.ordinal)
	case g.Lo < f.ends[g.Machine]:
		return fmt.Errorf("starts at %d, below %d: given before", g.Lo, f.ends[g.Machine])
	case g.Lo < 1 || g.Hi <= g.Lo || g.Hi >= FallbackEnd:
		return fmt.Errorf("[%d, %d) is not a range of the counter", g.Lo, g.Hi)
	case g.Hi-g.Lo > size:
		return fmt.Errorf("%d long, %d were asked for", g.Hi-g.Lo, size)
	case g.Lo < FallbackAt(now.Add(-maxSkew)):
		return fmt.Errorf("starts at %d, more than %v behind the own clock", g.Lo, maxSkew)
	case g.Hi > FallbackAt(now.Add(FallbackAhead+maxSkew)):
		return fmt.Errorf("ends at %d, more than %v ahead of the own clock", g.Hi, FallbackAhead+maxSkew)
	}
	return nil
}
