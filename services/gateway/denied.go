package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/relay"
	"example.com/cellmart/services/user/userapi"
)

const (
	deniedEach  = time.Second
	deniedLimit = time.Second
	maxDenied   = 8 << 20
)

// denied are the users whose tokens are refused up to when: those that have logged
// out everywhere. The own user service knows them, of the users that live here and of
// those that this cell stands by for; what lives in no cell (a seller's products, the
// search of their orders) any gateway asks for, and one that is neither takes a token
// until it ends, 10 minutes at most. While the service is away the last list stands.
type denied struct {
	users atomic.Pointer[map[id.ID]int64]
}

func (d *denied) covers(who userapi.Claims) bool {
	if d == nil || who.User == 0 {
		return false
	}
	users := d.users.Load()
	if users == nil {
		return false
	}
	until, ok := (*users)[who.User]
	return ok && who.IssuedAt <= until
}

// follow asks for the list until ctx ends.
func (g *Gateway) follow(ctx context.Context) {
	tick := time.NewTicker(deniedEach)
	defer tick.Stop()
	for {
		if users, err := g.askDenied(ctx); err == nil {
			g.denied.users.Store(&users)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (g *Gateway) askDenied(ctx context.Context) (map[id.ID]int64, error) {
	res, err := g.local[svcUser].send(ctx, relay.Request{Method: http.MethodGet, Path: "/internal/denied", Header: http.Header{}}, deniedLimit)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close() //nolint:errcheck // only read
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("whose tokens are refused: status %d", res.StatusCode)
	}
	var out userapi.Denied
	if err := json.NewDecoder(io.LimitReader(res.Body, maxDenied)).Decode(&out); err != nil {
		return nil, fmt.Errorf("whose tokens are refused: %w", err)
	}
	return out.Users, nil
}
