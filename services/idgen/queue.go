package idgen

import (
	"context"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/services/idgen/idgenapi"
)

const (
	batchMost    = 256              // requests in one transaction
	holdersEvery = 10 * time.Second // other instances' leases are looked at
	holdersAge   = time.Hour        // a process that leases nothing for so long isn't a holder
)

// queue is one kind's: while a transaction is under way, requests gather for the
// next one. There is one transaction at a time in this process, so the row is
// waited for in here and not by connections.
type queue struct {
	mu      sync.Mutex
	waiting []*waiter
	busy    bool

	// The rest is the working goroutine's.
	memo    memo
	holders holders
}

type waiter struct {
	ctx  context.Context
	ask  idgenapi.LeaseRequest
	done chan answer // capacity 1
}

// await puts a request into the queue and waits for what comes of it. Whoever
// goes away before leaves the range to nobody.
func (s *service) await(ctx context.Context, ask idgenapi.LeaseRequest) (idgenapi.Lease, error) {
	q := s.queues[number(ask.Kind)-1]
	w := &waiter{ctx: ctx, ask: ask, done: make(chan answer, 1)}
	q.mu.Lock()
	q.waiting = append(q.waiting, w)
	begin := !q.busy
	q.busy = true
	q.mu.Unlock()
	if begin {
		go s.work(ask.Kind, q)
	}
	select {
	case a := <-w.done:
		return a.lease, a.err
	case <-ctx.Done():
		return idgenapi.Lease{}, context.Cause(ctx)
	}
}

// work serves a kind's queue until it's empty.
func (s *service) work(kind string, q *queue) {
	for {
		batch := q.take()
		if batch == nil {
			return
		}
		s.serve(kind, q, batch)
	}
}

// take is the next batch of those that still wait; nil ends the work.
func (q *queue) take() []*waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*waiter
	for len(batch) < batchMost && len(q.waiting) > 0 {
		if w := q.waiting[0]; w.ctx.Err() == nil {
			batch = append(batch, w)
		}
		q.waiting = q.waiting[1:]
	}
	q.busy = batch != nil
	return batch
}

// serve leases for a batch in one transaction. The time is the transaction's own,
// not that of any of the requests.
func (s *service) serve(kind string, q *queue, batch []*waiter) {
	ctx, cancel := context.WithTimeout(context.Background(), pg.TxTimeout)
	defer cancel()
	asks := make([]idgenapi.LeaseRequest, len(batch))
	for i, w := range batch {
		asks[i] = w.ask
	}
	var last struct {
		was, is       row
		own, database time.Time
	}
	answers, err := s.store.lease(ctx, kind, asks, &q.memo, func(r row, incarnation string, database time.Time) (row, []answer) {
		own := s.clock()
		next, answers := decideAll(r, incarnation, asks, own, database)
		last.was, last.is, last.own, last.database = r, next, own, database
		return next, answers
	}, s.clock)
	if err != nil {
		answers = make([]answer, len(batch))
		for i := range answers {
			answers[i].err = err
		}
	} else {
		s.paused(kind, last.was, last.is)
		q.holders.see(asks, answers)
		if q.holders.old(last.own) {
			s.others(ctx, kind, &q.holders, last.own)
		}
		left := clocks{own: last.own, database: last.database}.left(last.is)
		for i := range answers {
			answers[i].lease.Left, answers[i].lease.Holders = left, q.holders.count(last.own)
		}
	}
	for i, w := range batch {
		w.done <- answers[i]
	}
}

// paused tells once that a pause begins.
func (s *service) paused(kind string, was, is row) {
	if was.incarnation != is.incarnation {
		s.log.Warn("the database changed, leases pause", "kind", kind, "was", was.incarnation, "is", is.incarnation,
			"until", id.Epoch.Add(time.Duration(is.pausedUntil)*time.Millisecond))
	}
}

// others takes in who leased from other instances. Without them a step may be too
// large, and is cut short: nothing to fail for.
func (s *service) others(ctx context.Context, kind string, h *holders, now time.Time) {
	h.looked = now
	seen, err := s.store.holders(ctx, kind, max(h.upTo, id.SeqAt(now.Add(-holdersAge))))
	if err != nil {
		s.log.Warn("the journal's holders are unknown", "kind", kind, "error", err)
		return
	}
	for name, lo := range seen {
		h.add(name, lo)
		h.upTo = max(h.upTo, lo)
	}
}

// holders are who leased of a kind, each with the beginning of the last lease,
// which tells its time.
type holders struct {
	last   map[string]int64
	upTo   int64 // of the journal
	looked time.Time
}

func (h *holders) add(name string, lo int64) {
	if h.last == nil {
		h.last = map[string]int64{}
	}
	h.last[name] = max(h.last[name], lo)
}

func (h *holders) see(asks []idgenapi.LeaseRequest, answers []answer) {
	for i, a := range answers {
		if a.err == nil {
			h.add(asks[i].Holder, a.lease.Lo)
		}
	}
}

func (h *holders) old(now time.Time) bool {
	return h.looked.IsZero() || now.Sub(h.looked) >= holdersEvery || now.Before(h.looked)
}

func (h *holders) count(now time.Time) int {
	gone := id.SeqAt(now.Add(-holdersAge))
	for name, lo := range h.last {
		if lo < gone {
			delete(h.last, name)
		}
	}
	return max(len(h.last), 1)
}
