package agentapi

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Ways counts one kind by what it took. Of requests (kind "GET /me"), which are
// counted by the gateway that people came to: Local needed the own cell's services
// only, Forwarded another cell, Global the global zone. Of messages (kind
// "stock.reserve"), counted by the dispatcher, each request once and no reply:
// Local stayed in the cell, Messaged left it, and Begun are those of Messaged that
// begin what a person asked for.
type Ways struct {
	Local     uint64 `json:"local"`
	Forwarded uint64 `json:"forwarded"`
	Global    uint64 `json:"global"`
	Messaged  uint64 `json:"messaged"`
	Begun     uint64 `json:"begun"`
}

func (w Ways) plus(o Ways) Ways {
	return Ways{w.Local + o.Local, w.Forwarded + o.Forwarded, w.Global + o.Global, w.Messaged + o.Messaged, w.Begun + o.Begun}
}

// minus is what came since o; a counter that is lower than it was began anew.
func (w Ways) minus(o Ways) Ways {
	d := func(now, was uint64) uint64 {
		if now < was {
			return now
		}
		return now - was
	}
	return Ways{d(w.Local, o.Local), d(w.Forwarded, o.Forwarded), d(w.Global, o.Global), d(w.Messaged, o.Messaged), d(w.Begun, o.Begun)}
}

// Word is what a process has counted since its start, by kind.
type Word struct {
	Process string          `json:"process"`
	Start   int64           `json:"start"` // of the process; another one begins from zero
	Kinds   map[string]Ways `json:"kinds"`
}

// Report tells the agent what a process has counted.
func (c *Client) Report(ctx context.Context, w Word) error {
	return c.json(ctx, http.MethodPost, "/requests", w, nil)
}

// Requests is what a cell's gateways and dispatcher have counted since the agent
// began. AgeMS is that of the oldest gateway's last word: what was counted since is
// missing.
type Requests struct {
	SinceMS   int64           `json:"since_ms"`
	AgeMS     int64           `json:"age_ms"`
	Local     uint64          `json:"local"`     // needed the own cell only, messages included
	Forwarded uint64          `json:"forwarded"` // needed another cell, or the global zone
	Messaged  uint64          `json:"messaged"`  // answered here, but what they began left the cell
	Kinds     map[string]Ways `json:"kinds"`
}

// ClosedLoop is the share of requests that needed no other zone; false when none
// were counted.
func (r Requests) ClosedLoop() (float64, bool) {
	all := r.Local + r.Forwarded + r.Messaged
	if all == 0 {
		return 0, false
	}
	return float64(r.Local) / float64(all), true
}

// forgotten is after how much silence a process no longer ages the sums: it has
// ended. What it counted stays counted.
const forgotten = time.Minute

// Book adds up the words of a cell's processes. The zero Book is empty.
type Book struct {
	mu    sync.Mutex
	start time.Time
	heard map[string]heard // by process
	sums  map[string]Ways  // by kind, since start
}

type heard struct {
	Word
	at time.Time
}

// NewBook begins to count at now.
func NewBook(now time.Time) *Book {
	return &Book{start: now, heard: map[string]heard{}, sums: map[string]Ways{}}
}

// Note takes a word. What a process counted before the book began doesn't count,
// so that all sums are over the same time.
func (b *Book) Note(w Word, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, known := b.heard[w.Process]
	switch {
	case !known && w.Start < b.start.UnixNano():
		last.Word = w // began before the book: only a base
	case known && last.Start != w.Start:
		last.Word = Word{} // restarted
	}
	for kind, n := range w.Kinds {
		if d := n.minus(last.Kinds[kind]); d != (Ways{}) {
			b.sums[kind] = b.sums[kind].plus(d)
		}
	}
	b.heard[w.Process] = heard{w, now}
}

// Sums adds up the gateways' words and what the own dispatcher has sent; nil while
// no gateway was heard, since nothing is known then.
func (b *Book) Sums(sent map[string]Ways, now time.Time) *Requests {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.heard) == 0 {
		return nil
	}
	out := &Requests{SinceMS: now.Sub(b.start).Milliseconds(), Kinds: maps.Clone(b.sums)}
	last := slices.MaxFunc(slices.Collect(maps.Values(b.heard)), func(x, y heard) int { return x.at.Compare(y.at) })
	oldest := last.at
	for _, h := range b.heard {
		if now.Sub(h.at) < forgotten && h.at.Before(oldest) {
			oldest = h.at
		}
	}
	out.AgeMS = max(0, now.Sub(oldest).Milliseconds())
	for _, n := range b.sums {
		out.Local += n.Local
		out.Forwarded += n.Forwarded + n.Global
	}
	for kind, n := range sent {
		out.Kinds[kind] = out.Kinds[kind].plus(n)
		out.Messaged += n.Begun
	}
	// What was begun by a request that came over a hop was counted as forwarded
	// where it came in, so there may be more of them than local requests.
	out.Messaged = min(out.Messaged, out.Local)
	out.Local -= out.Messaged
	return out
}

// Sorted gives the kinds by name, for people.
func (r Requests) Sorted() []string {
	return slices.SortedFunc(maps.Keys(r.Kinds), cmp.Compare[string])
}
