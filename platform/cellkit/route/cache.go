package route

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/cellmart/platform/routing"
)

// Keys in the cell's Redis. Both are written together, but any of them may be
// evicted, flushed or rolled back at any time: nothing is believed without the
// signature.
const (
	keyTable   = "route:table"
	keyVersion = "route:version"
)

// cacheLimit is for one question to the cell's Redis, which is near; the agent
// is asked when it takes longer.
const cacheLimit = 100 * time.Millisecond

// Cache is the second level of the table: the newest signed one in the cell's
// own Redis. The agent writes it, the others read it. A nil Cache has nothing.
type Cache struct {
	client *redis.Client
}

// OpenCache talks to the Redis at addr, when it's there; nil without an addr.
func OpenCache(addr string) *Cache {
	if addr == "" {
		return nil
	}
	return &Cache{redis.NewClient(&redis.Options{
		Addr: addr, Protocol: 2, DisableIdentity: true, PoolSize: 2,
		DialTimeout: cacheLimit, ReadTimeout: cacheLimit, WriteTimeout: cacheLimit, PoolTimeout: cacheLimit,
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})}
}

// Close ends the connections.
func (c *Cache) Close() {
	if c != nil {
		_ = c.client.Close() // nothing is lost with it
	}
}

// Version gives the version that Redis says it has, 0 for none.
func (c *Cache) Version(ctx context.Context) (int64, error) {
	if c == nil {
		return 0, nil
	}
	text, err := c.client.Get(ctx, keyVersion).Result()
	return version(text, err)
}

func version(text string, err error) (int64, error) {
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 1 {
		return 0, fmt.Errorf("%w: version %.40q in Redis", routing.ErrTable, text)
	}
	return v, nil
}

// Signed gives the stored table in signed form, not checked yet; nil for none.
func (c *Cache) Signed(ctx context.Context) ([]byte, error) {
	if c == nil {
		return nil, nil
	}
	return signedIn(c.client.Get(ctx, keyTable).Bytes())
}

func signedIn(b []byte, err error) ([]byte, error) {
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return b, err
}

// Sync brings Redis to the given table and never back: a newer one there that
// control signed stays and is returned, so that the agent takes it. What isn't
// sound, or was lost or rolled back, is written anew. Nil bytes only look.
func (c *Cache) Sync(ctx context.Context, key ed25519.PublicKey, mine *routing.Table, signed []byte) (newer *routing.Table, newerSigned []byte, err error) {
	if c == nil {
		return nil, nil, nil
	}
	// Another writer between look and write makes the transaction fail: an agent
	// that is being replaced may still run.
	err = c.client.Watch(ctx, func(tx *redis.Tx) error {
		stored, err := signedIn(tx.Get(ctx, keyTable).Bytes())
		if err != nil {
			return err
		}
		said, err := version(tx.Get(ctx, keyVersion).Result())
		if err != nil && !errors.Is(err, routing.ErrTable) {
			return err
		}
		best, body := mine, signed
		if signed != nil && claimed(stored) <= mine.Version() { // not newer, whoever signed it
			if said == mine.Version() && bytes.Equal(stored, signed) {
				return nil
			}
		} else if t, err := routing.Open(key, stored); err == nil {
			best, body = t, stored
			newer, newerSigned = t, stored
			if said == t.Version() {
				return nil
			}
		}
		if body == nil {
			return nil // nothing there and nothing to write
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, keyTable, body, 0)
			p.Set(ctx, keyVersion, best.Version(), 0)
			return nil
		})
		return err
	}, keyTable, keyVersion)
	if err != nil {
		return nil, nil, fmt.Errorf("route table in Redis: %w", err)
	}
	return newer, newerSigned, nil
}
