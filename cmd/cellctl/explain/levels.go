package explain

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

// The levels, nearest to control first.
const (
	Control  = "control"
	Agent    = "agent"
	Redis    = "redis"
	Snapshot = "snapshot"
)

// Sources is where tables are asked for. What is empty isn't asked.
type Sources struct {
	Key       ed25519.PublicKey
	Control   *controlapi.Client
	Agents    map[string]*agentapi.Client // by cell
	Redis     map[string]string           // host:port by cell
	Snapshots map[string]string           // folder by cell
}

// limit is for each question: one that is dead must not hold up the others.
const limit = 3 * time.Second

// Ask asks all of them at the same time.
func (s Sources) Ask(ctx context.Context) []Level {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var out []Level
	ask := func(level, from string, get func() (*routing.Table, *int64, error)) {
		wg.Go(func() {
			t, age, err := get()
			l := Level{Level: level, From: from, Table: t, AgeMS: age}
			switch {
			case err != nil:
				l.Table, l.AgeMS, l.Error = nil, nil, err.Error()
			case t == nil:
				l.AgeMS, l.Error = nil, "it has none"
			default:
				l.Version = t.Version()
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, l)
		})
	}
	if s.Control != nil {
		ask(Control, routing.Global, func() (*routing.Table, *int64, error) {
			t, _, err := s.Control.Route(ctx, 0, 0)
			return t, new(int64), err
		})
	}
	for cell, a := range s.Agents {
		ask(Agent, cell, func() (*routing.Table, *int64, error) { return fromAgent(ctx, a) })
	}
	for cell, addr := range s.Redis {
		ask(Redis, cell, func() (*routing.Table, *int64, error) {
			t, err := fromRedis(ctx, addr, s.Key)
			return t, nil, err // it doesn't say since when
		})
	}
	for cell, dir := range s.Snapshots {
		ask(Snapshot, cell, func() (*routing.Table, *int64, error) { return fromSnapshot(dir, s.Key) })
	}
	wg.Wait()
	order := []string{Control, Agent, Redis, Snapshot}
	slices.SortFunc(out, func(a, b Level) int {
		if a.Level != b.Level {
			return slices.Index(order, a.Level) - slices.Index(order, b.Level)
		}
		return cmp.Or(cmp.Compare(len(a.From), len(b.From)), cmp.Compare(a.From, b.From)) // c9 before c10
	})
	return out
}

// fromAgent's age is the time since control told the agent that nothing is newer.
func fromAgent(ctx context.Context, a *agentapi.Client) (*routing.Table, *int64, error) {
	t, _, err := a.Route(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := a.Status(ctx)
	if err != nil || st.ControlAgeMS < 0 {
		return t, nil, nil // the table stands, its age is unknown
	}
	return t, &st.ControlAgeMS, nil
}

func fromRedis(ctx context.Context, addr string, key ed25519.PublicKey) (*routing.Table, error) {
	c := route.OpenCache(addr)
	defer c.Close()
	signed, err := c.Signed(ctx)
	if err != nil || signed == nil {
		return nil, err
	}
	return routing.Open(key, signed)
}

// fromSnapshot's age is that of the newest file: when the agent took the table.
func fromSnapshot(dir string, key ed25519.PublicKey) (*routing.Table, *int64, error) {
	found := route.ReadSnapshot(dir, key)
	if found.Table == nil {
		if len(found.Skipped) > 0 {
			return nil, nil, found.Skipped[0]
		}
		return nil, nil, nil
	}
	var newest time.Time
	files, err := filepath.Glob(filepath.Join(dir, "*.snapshot"))
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && st.ModTime().After(newest) {
			newest = st.ModTime()
		}
	}
	ms := max(0, time.Since(newest).Milliseconds())
	return found.Table, &ms, nil
}
