package bus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go/jetstream"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// DefaultBatch is how many messages of a kind are handled in one transaction at
// most.
const DefaultBatch = 50

const batchers = 2 // of each kind: one gathers while the other commits

// Effect queues the statements of messages that are handled together; their rows
// are written in the order of the list. A statement that doesn't do all of it
// refuses the whole (Whole).
type Effect func(b *pgx.Batch)

// ManyHandler looks at requests of one kind, in the order of their slots, and gives
// the reply to each that it takes (Kind "" = it doesn't) with what is to be done for
// exactly those. It reads only and locks nothing: by the time of the effect
// things may have changed, and the effect must notice. What isn't taken, or
// comes to nothing, goes to the kind's Handler, alone: so only the usual case needs
// to be known here.
type ManyHandler func(ctx context.Context, tx *pg.Many, list []Message) ([]Reply, Effect, error)

// ManyReplyHandler looks at replies of one kind in the same way, with their
// requests' outbox rows locked and open. It says which it takes: those requests end.
type ManyReplyHandler func(ctx context.Context, tx *pg.Many, list []Message) (takes []bool, effect Effect, err error)

// HandleMany registers who takes several requests of a kind that has a Handler too.
func (c *Consumer) HandleMany(kind string, h ManyHandler) { c.many[kind] = h }

// HandleManyReplies registers who takes several replies of a kind that has a
// ReplyHandler too.
func (c *Consumer) HandleManyReplies(kind string, h ManyReplyHandler) { c.manyReplies[kind] = h }

// errTogether undoes a transaction of several messages: each is handled alone.
var errTogether = errors.New("messages can't be handled together")

// Whole is for the statements of an Effect: it refuses one that did another number
// of rows.
func Whole(rows int) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != int64(rows) {
			return fmt.Errorf("%w: %d rows of %d", errTogether, tag.RowsAffected(), rows)
		}
		return nil
	}
}

// item is a message on its way through the consumer, with where it came from.
type item struct {
	s    *source
	msg  jetstream.Msg
	n    int // the nth time that the server gave it out
	m    Message
	err  error // it isn't a message
	came time.Time
	done <-chan struct{} // closed when its source is to end
}

// late says that a queued message is left to its next copy: its source ends, or the
// server is about to give it out again.
func (it item) late() bool {
	select {
	case <-it.done:
		_ = it.msg.Nak() // for another instance, at once
		return true
	default:
		return time.Since(it.came) > it.s.c.timing.ackWait/2
	}
}

// runBatchers handles what is queued until the queues are closed. A batcher is a
// worker while it does: what comes until one is free is gathered.
func (c *Consumer) runBatchers(wg *sync.WaitGroup) {
	for _, q := range c.queues {
		for range batchers {
			wg.Go(func() {
				for it := range q {
					c.work <- struct{}{}
					list := slices.DeleteFunc(gather(it, q, c.o.Batch), func(it item) bool {
						if it.late() {
							it.s.wg.Done()
							return true
						}
						return false
					})
					results := c.batch(list)
					<-c.work
					c.settle(list, results)
				}
			})
		}
	}
}

// settle tells what became of those that were handled, and then has a worker take
// each of the others: what has been done waits for nobody.
func (c *Consumer) settle(list []item, results []Result) {
	for i, it := range list {
		if results[i].Outcome != "" {
			it.s.tell(context.Background(), it, results[i])
			it.s.wg.Done()
		}
	}
	for i, it := range list {
		if results[i].Outcome == "" {
			it.s.alone(context.Background(), it)
		}
	}
}

// gather takes what has come meanwhile, and waits for nothing.
func gather(first item, q <-chan item, limit int) []item {
	list := []item{first}
	for len(list) < limit {
		select {
		case it, open := <-q:
			if !open {
				return list
			}
			list = append(list, it)
		default:
			return list
		}
	}
	return list
}

// queue gives the batchers' queue for a message, nil when it goes alone: nobody
// takes its kind with others, or it has failed before.
func (c *Consumer) queue(it item) chan item {
	if it.err != nil || it.n > 1 {
		return nil
	}
	return c.queues[it.m.Kind]
}

// makeQueues makes one for each kind that can be handled together.
func (c *Consumer) makeQueues() {
	c.queues = map[string]chan item{}
	for kind := range c.many {
		c.queues[kind] = make(chan item, c.o.Batch)
	}
	for kind := range c.manyReplies {
		c.queues[kind] = make(chan item, c.o.Batch)
	}
}

// batch handles messages of one kind together, or the one that there is in the same
// way: it costs less than alone.
func (c *Consumer) batch(list []item) []Result {
	if len(list) == 0 {
		return nil
	}
	messages := make([]Message, len(list))
	for i, it := range list {
		messages[i] = it.m
	}
	return c.DeliverMany(context.Background(), messages) // bounded by the transaction's own limit
}

// DeliverMany runs messages of one kind through one transaction, without NATS. What
// has no Outcome afterwards was left out, and is to be delivered alone.
func (c *Consumer) DeliverMany(ctx context.Context, list []Message) []Result {
	results := make([]Result, len(list))
	taken, err := c.together(ctx, list)
	if err != nil {
		c.o.Log.Debug("messages go alone", "count", len(list), "kind", list[0].Kind, "error", err)
		c.metrics.undone.WithLabelValues(c.kindLabel(list[0].Kind)).Inc()
		return results
	}
	for _, i := range taken {
		results[i] = Result{Outcome: Handled}
		c.fails.forget(list[i])
	}
	if len(taken) > 0 {
		kind := c.kindLabel(list[0].Kind)
		c.metrics.handled.WithLabelValues(kind, string(Handled)).Add(float64(len(taken)))
		c.metrics.batches.WithLabelValues(kind).Inc()
		c.Poke()
	}
	return results
}

// together gives which of the messages were handled, by their place in the list.
func (c *Consumer) together(ctx context.Context, list []Message) (taken []int, err error) {
	table := c.o.Table.Load()
	if table == nil {
		return nil, nil
	}
	type name struct {
		to, from routing.Slot
		id       string
	}
	slots, seen := map[routing.Slot]routing.Epoch{}, map[name]bool{}
	var places []int
	for i, m := range list {
		n := name{m.To, m.From, m.ID}
		a, ok := table.Slot(m.To)
		if !ok || a.Owner != c.o.Cell || seen[n] || m.Kind != list[0].Kind || (m.ReplyTo == "") != (list[0].ReplyTo == "") {
			continue
		}
		seen[n], slots[m.To] = true, a.Epoch
		places = append(places, i)
	}
	if len(places) == 0 {
		return nil, nil
	}
	slices.SortFunc(places, func(i, j int) int {
		a, b := list[i], list[j]
		return cmp.Or(cmp.Compare(a.To, b.To), cmp.Compare(a.From, b.From), cmp.Compare(a.ID, b.ID))
	})
	err = pg.InSlots(ctx, c.o.Pool, slots, func(ctx context.Context, tx *pg.Many) error {
		var err error
		if list[0].ReplyTo == "" {
			taken, err = c.requests(ctx, tx, list, places)
		} else {
			taken, err = c.answers(ctx, tx, list, places)
		}
		if err == nil && len(taken) == 0 {
			err = errTogether // nothing to commit
		}
		if err == nil {
			err = c.at("commit")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return taken, nil
}

// pick gives the messages of some places, and their columns.
func pick(list []Message, places []int) (out []Message, to, from []routing.Slot, ids []string) {
	for _, i := range places {
		m := list[i]
		out, to, from, ids = append(out, m), append(to, m.To), append(from, m.From), append(ids, m.ID)
	}
	return out, to, from, ids
}

// keep reads places in the list ($1...'s ordinality) that a query gives.
func keep(ctx context.Context, tx *pg.Many, places []int, sql string, args ...any) ([]int, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	var out []int
	var n int
	_, err = pgx.ForEachRow(rows, []any{&n}, func() error { out = append(out, places[n-1]); return nil })
	slices.SortFunc(out, func(a, b int) int { return cmp.Compare(slices.Index(places, a), slices.Index(places, b)) })
	return out, err
}

// newSQL gives the requests, of the slots entered, that were neither handled nor parked.
var newSQL = `SELECT u.i::int FROM unnest($1::int[], $2::int[], $3::text[]) WITH ORDINALITY AS u(slot, from_slot, id, i)
	WHERE ` + pg.Entered("u.slot") + ` AND (SELECT count(*) FROM cell.inbox x WHERE x.slot = u.slot AND x.from_slot = u.from_slot AND x.id = u.id) = 0
		AND (SELECT count(*) FROM cell.parked p WHERE p.slot = u.slot AND p.from_slot = u.from_slot AND p.id = u.id) = 0`

// requests is Consumer.request for several: the inbox rows come first, with the
// replies in them, so of two copies at the same time the second waits here.
func (c *Consumer) requests(ctx context.Context, tx *pg.Many, list []Message, places []int) ([]int, error) {
	_, to, from, ids := pick(list, places)
	places, err := keep(ctx, tx, places, newSQL, to, from, ids)
	if err != nil || len(places) == 0 {
		return nil, err
	}
	messages, _, _, _ := pick(list, places)
	var replies []Reply
	var effect Effect
	err = safely(func() (err error) { replies, effect, err = c.many[list[0].Kind](ctx, tx, messages); return err })
	if err == nil && len(replies) != len(messages) {
		err = fmt.Errorf("the handler of several %s gave %d replies to %d", list[0].Kind, len(replies), len(messages))
	}
	if err != nil {
		return nil, err
	}
	var taken []int
	var prints, bodies [][]byte
	var kinds, keys, replyIDs, services, traces []string
	var early, echo []bool
	for j, r := range replies {
		if r.Kind == "" {
			continue
		}
		m := messages[j]
		print, err := fingerprint(m)
		if err != nil {
			return nil, err
		}
		body, err := json.Marshal(r.Body)
		if err != nil {
			return nil, fmt.Errorf("body of %s: %w", r.Kind, err)
		}
		taken = append(taken, places[j])
		prints, bodies, kinds, keys = append(prints, print), append(bodies, body), append(kinds, r.Kind), append(keys, m.Key)
		replyIDs, services, traces = append(replyIDs, ReplyID(m.From, m.ID)), append(services, m.ReplyService), append(traces, m.Trace)
		early, echo = append(early, r.Early), append(echo, m.Early)
	}
	if len(taken) == 0 {
		return nil, nil
	}
	_, to, from, ids = pick(list, taken)
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO cell.inbox (slot, from_slot, id, fingerprint, reply_kind, reply_body)
		SELECT u.slot, u.from_slot, u.id, u.print, u.kind, u.body::jsonb
		FROM unnest($1::int[], $2::int[], $3::text[], $4::bytea[], $5::text[], $6::text[]) AS u(slot, from_slot, id, print, kind, body)
		ON CONFLICT (slot, from_slot, id) DO NOTHING`, to, from, ids, prints, kinds, texts(bodies)).Exec(Whole(len(taken)))
	if err := safely(func() error { effect(b); return nil }); err != nil {
		return nil, err
	}
	b.Queue(`INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_to, trace, early, echo)
		SELECT u.slot, u.id, u.to_slot, u.service, u.kind, u.key, u.body::jsonb, u.reply_to, u.trace, u.early, u.echo
		FROM unnest($1::int[], $2::text[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bool[], $11::bool[])
			AS u(slot, id, to_slot, service, kind, key, body, reply_to, trace, early, echo)`,
		to, replyIDs, from, services, kinds, keys, texts(bodies), ids, traces, early, echo)
	return taken, tx.SendBatch(ctx, b).Close()
}

// openSQL locks the requests, of the slots entered, that wait for their final reply.
// One that somebody else holds isn't waited for.
var openSQL = `SELECT u.i::int
	FROM (SELECT * FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS u(slot, id, i) WHERE ` + pg.Entered("u.slot") + ` OFFSET 0) u
	CROSS JOIN LATERAL (SELECT FROM cell.outbox o WHERE o.slot = u.slot AND o.id = u.id AND o.reply_to = '' AND o.closed_at IS NULL
		FOR UPDATE SKIP LOCKED) o`

// answers is Consumer.reply for several.
func (c *Consumer) answers(ctx context.Context, tx *pg.Many, list []Message, places []int) ([]int, error) {
	asked := map[string]bool{}
	places = slices.DeleteFunc(places, func(i int) bool { // two replies to one request
		k := fmt.Sprint(list[i].To, " ", list[i].ReplyTo)
		defer func() { asked[k] = true }()
		return asked[k]
	})
	to, ids := make([]routing.Slot, len(places)), make([]string, len(places))
	for j, i := range places {
		to[j], ids[j] = list[i].To, list[i].ReplyTo
	}
	places, err := keep(ctx, tx, places, openSQL, to, ids)
	if err != nil || len(places) == 0 {
		return nil, err
	}
	messages, _, _, _ := pick(list, places)
	var takes []bool
	var effect Effect
	err = safely(func() (err error) { takes, effect, err = c.manyReplies[list[0].Kind](ctx, tx, messages); return err })
	if err == nil && len(takes) != len(messages) {
		err = fmt.Errorf("the handler of several %s judged %d of %d", list[0].Kind, len(takes), len(messages))
	}
	if err != nil {
		return nil, err
	}
	var taken []int
	var raws [][]byte
	to, ids = to[:0], ids[:0]
	for j, ok := range takes {
		if !ok {
			continue
		}
		m := messages[j]
		raw, err := encode(m)
		if err != nil {
			return nil, err
		}
		taken, raws, to, ids = append(taken, places[j]), append(raws, raw), append(to, m.To), append(ids, m.ReplyTo)
	}
	if len(taken) == 0 {
		return nil, nil
	}
	b := &pgx.Batch{}
	if err := safely(func() error { effect(b); return nil }); err != nil {
		return nil, err
	}
	b.Queue(`UPDATE cell.outbox o SET closed_at = now(), reply = u.raw::jsonb
		FROM unnest($1::int[], $2::text[], $3::text[]) AS u(slot, id, raw) WHERE o.slot = u.slot AND o.id = u.id AND o.closed_at IS NULL AND o.slot = ANY ($1)`,
		to, ids, texts(raws)).Exec(Whole(len(taken)))
	return taken, tx.SendBatch(ctx, b).Close()
}

// texts is JSON as Postgres takes it in an array.
func texts(list [][]byte) []string {
	out := make([]string, len(list))
	for i, raw := range list {
		out[i] = string(bytes.TrimSpace(raw))
	}
	return out
}
