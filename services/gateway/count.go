package gateway

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/cellmart/services/agent/agentapi"
)

// How a request was answered. A redirected one is counted where it goes, as
// forwarded, so that the sums have it once.
const (
	wayLocal      = "local"
	wayForwarded  = "forwarded"
	wayGlobal     = "global"
	wayRedirected = "redirected"
)

// sayEvery is how often the agent is told what was counted.
const sayEvery = time.Second

// tally counts the requests that people brought to this gateway, by kind and by
// what they took: what another gateway sent on was counted there.
type tally struct {
	total *prometheus.CounterVec // kind, way

	mu   sync.Mutex
	word agentapi.Word
}

func newTally(process string, total *prometheus.CounterVec, now time.Time) *tally {
	return &tally{total: total, word: agentapi.Word{Process: process, Start: now.UnixNano(), Kinds: map[string]agentapi.Ways{}}}
}

func (t *tally) add(kind, way string) {
	t.total.WithLabelValues(kind, way).Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.word.Kinds[kind]
	switch way {
	case wayLocal:
		n.Local++
	case wayForwarded:
		n.Forwarded++
	case wayGlobal:
		n.Global++
	default:
		return
	}
	t.word.Kinds[kind] = n
}

func (t *tally) snapshot() agentapi.Word {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.word
	w.Kinds = maps.Clone(w.Kinds)
	return w
}

// run tells the agent until ctx ends. A word that isn't heard costs nothing: the
// next one has it all, and the agent shows how old the last one is.
func (t *tally) run(ctx context.Context, tell func(context.Context, agentapi.Word) error) {
	tick := time.NewTicker(sayEvery)
	defer tick.Stop()
	for {
		once, cancel := context.WithTimeout(ctx, 2*time.Second)
		_ = tell(once, t.snapshot())
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
