package catalog

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/singleflight"

	"example.com/cellmart/platform/cellkit/pg"
)

const (
	cacheTTL     = 30 * time.Second
	cacheLimit   = 50 * time.Millisecond // for one question to Redis; Postgres answers in less than a slow Redis
	breakerTrips = 3                     // failures in a row
	breakerRest  = time.Second           // then one question per this time
)

// cache keeps whole answers in the cell's Redis, cache-aside. Keys carry the
// copy's position, so an entry is right for as long as it lives and nothing is
// ever invalidated. Whatever Redis does, it is never an error: the answer is then
// made from Postgres. Equal questions at one time are asked once.
type cache struct {
	client  *redis.Client // nil: no Redis
	count   func(result string)
	breaker breaker
	flights singleflight.Group
}

// newCache talks to the Redis at addr, when it's there.
func newCache(addr string, count func(result string)) *cache {
	c := &cache{count: count}
	if addr != "" {
		c.client = redis.NewClient(&redis.Options{
			Addr: addr, Protocol: 2, DisableIdentity: true,
			DialTimeout: cacheLimit, ReadTimeout: cacheLimit, WriteTimeout: cacheLimit, PoolTimeout: cacheLimit,
			ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
	}
	return c
}

func (c *cache) close() {
	if c.client != nil {
		_ = c.client.Close() // nothing is lost with it
	}
}

// get gives the answer under a key, from Redis or made by load. load gets a
// context of its own: those who wait for it must not fail with the one who came
// first.
func (c *cache) get(ctx context.Context, key string, load func(context.Context) ([]byte, error)) ([]byte, error) {
	flight := c.flights.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pg.TxTimeout+4*cacheLimit)
		defer cancel()
		if b, ok := c.read(ctx, key); ok {
			return b, nil
		}
		b, err := load(ctx)
		if err == nil {
			c.write(ctx, key, b)
		}
		return b, err
	})
	select {
	case r := <-flight:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.([]byte), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *cache) read(ctx context.Context, key string) ([]byte, bool) {
	if c.client == nil || !c.breaker.enter(time.Now()) {
		c.count("skipped")
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	b, err := c.client.Get(ctx, key).Bytes()
	switch {
	case err == nil:
		c.breaker.worked()
		c.count("hit")
		return b, true
	case errors.Is(err, redis.Nil):
		c.breaker.worked()
		c.count("miss")
	default:
		c.breaker.failed(time.Now())
		c.count("failed")
	}
	return nil, false
}

// write is not waited for by anyone but the one flight, and for no longer than
// its limit.
func (c *cache) write(ctx context.Context, key string, b []byte) {
	if c.client == nil || c.breaker.open(time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cacheLimit)
	defer cancel()
	if err := c.client.Set(ctx, key, b, cacheTTL).Err(); err != nil {
		c.count("failed")
		c.breaker.failed(time.Now())
	}
}

// breaker spares Postgres's callers the wait for a Redis that is gone.
type breaker struct {
	mu    sync.Mutex
	row   int       // failures in a row
	until time.Time // closed again from then, for one question
}

// enter says whether Redis may be asked. Once the rest is over one question gets
// through, and the rest begins again until that one has worked.
func (b *breaker) enter(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.row < breakerTrips {
		return true
	}
	if now.Before(b.until) {
		return false
	}
	b.until = now.Add(breakerRest)
	return true
}

func (b *breaker) open(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.row >= breakerTrips && now.Before(b.until)
}

func (b *breaker) worked() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row = 0
}

func (b *breaker) failed(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.row++; b.row >= breakerTrips {
		b.until = now.Add(breakerRest)
	}
}
