package transfer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/routing"
)

// Payees is Payee for users of several entered slots: it queues the question whether
// each takes money, whose answer fills takes. One that doesn't needs no reason here:
// Payee is asked again.
type Payees func(b *pgx.Batch, slots []routing.Slot, users []id.ID, takes []bool)

// RegisterMany gives a consumer's HandleMany and HandleManyReplies what can be done
// for several transfers at once: credits that are taken, and the answers to them.
func RegisterMany(handle func(kind string, h bus.ManyHandler), reply func(kind string, h bus.ManyReplyHandler), payees Payees) {
	handle(KindCredit, HandleCredits(payees))
	reply(KindAnswer, HandleAnswers)
}

// columnsOf are what is known of several transfers, as the statements take it.
type columnsOf struct {
	slots, fromSlots  []routing.Slot
	ids, users, from  []id.ID
	kinds, currencies []string
	memos, refs       []string
	amounts           []int64
	begun             []*time.Time
}

func (c *columnsOf) add(slot, fromSlot routing.Slot, b Body, user id.ID) {
	c.slots, c.fromSlots = append(c.slots, slot), append(c.fromSlots, fromSlot)
	c.ids, c.users, c.from = append(c.ids, b.Transfer), append(c.users, user), append(c.from, b.From)
	c.kinds, c.currencies = append(c.kinds, string(b.Kind)), append(c.currencies, b.Currency)
	c.memos, c.refs = append(c.memos, b.Memo), append(c.refs, Ref(b.Transfer))
	c.amounts, c.begun = append(c.amounts, b.Amount), append(c.begun, b.begun())
}

// newCreditsSQL says of each whether it has no row yet and its payee has a wallet.
const newCreditsSQL = `SELECT (SELECT count(*) FROM cell.credits c WHERE c.slot = u.slot AND c.transfer_id = u.id) = 0
		AND (SELECT count(*) FROM cell.wallets w WHERE w.slot = u.slot AND w.user_id = u.user_id AND w.currency = u.currency) = 1
	FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::text[]) WITH ORDINALITY AS u(slot, id, user_id, currency, i) ORDER BY u.i`

// HandleCredits is the destination's side of several CREDITs: it takes those that
// are to be CREDITED to a balance, as HandleCredit would, and leaves all others
// (refunds, users who take no money, what is here already) to it.
func HandleCredits(payees Payees) bus.ManyHandler {
	return func(ctx context.Context, tx *pg.Many, list []bus.Message) ([]bus.Reply, bus.Effect, error) {
		replies := make([]bus.Reply, len(list))
		var c columnsOf
		var places []int
		for i, m := range list {
			var b Body
			if m.Decode(&b) != nil || !b.valid() || b.Kind == Refund {
				continue
			}
			c.add(m.To, m.From, b, b.To)
			places = append(places, i)
		}
		takes, fresh := make([]bool, len(places)), make([]bool, len(places))
		look := &pgx.Batch{}
		payees(look, c.slots, c.users, takes)
		look.Queue(newCreditsSQL, c.slots, c.ids, c.users, c.currencies).Query(Flags(fresh))
		if err := tx.SendBatch(ctx, look).Close(); err != nil {
			return nil, nil, err
		}
		var taken columnsOf
		for j := range places {
			if !takes[j] || !fresh[j] {
				continue
			}
			i := places[j]
			var b Body
			if err := list[i].Decode(&b); err != nil {
				return nil, nil, err
			}
			taken.add(list[i].To, list[i].From, b, b.To)
			replies[i] = bus.Reply{Kind: KindAnswer, Body: Answer{Transfer: b.Transfer, Verdict: Credited}}
		}
		return replies, func(b *pgx.Batch) {
			b.Queue(`INSERT INTO cell.credits (slot, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, memo, begun_at)
				SELECT u.slot, u.id, u.kind, u.user_id, u.from_user, u.from_slot, u.amount, u.currency, 'CREDITED', u.memo, u.begun
				FROM unnest($1::int[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::int[], $7::bigint[], $8::text[], $9::text[], $10::timestamptz[])
					AS u(slot, id, kind, user_id, from_user, from_slot, amount, currency, memo, begun)
				ON CONFLICT (slot, transfer_id) DO NOTHING`,
				taken.slots, taken.ids, taken.kinds, taken.users, taken.from, taken.fromSlots, taken.amounts, taken.currencies, taken.memos, taken.begun).
				Exec(bus.Whole(len(taken.ids)))
			taken.post(b, Clearing, Available, "credit")
		}, nil
	}
}

// Flags reads a column of booleans, of the rows' order, for Payees.
func Flags(out []bool) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, pgx.RowTo[bool])
		if err == nil && len(list) != len(out) {
			err = fmt.Errorf("%d rows, want %d", len(list), len(out))
		}
		copy(out, list)
		return err
	}
}

// frozenSQL locks the transfers that wait for an answer, and gives what is needed to
// post it. One that somebody else holds isn't waited for. A refund's end is HandleAnswer's.
const frozenSQL = `SELECT u.i::int, t.kind, t.from_user, t.to_user, t.amount, t.currency, t.memo
	FROM unnest($1::int[], $2::bigint[]) WITH ORDINALITY AS u(slot, id, i)
	CROSS JOIN LATERAL (SELECT * FROM cell.transfers t WHERE t.slot = u.slot AND t.id = u.id AND t.state = 'FROZEN' AND t.kind <> 'refund'
		FOR UPDATE SKIP LOCKED) t`

// HandleAnswers is the source's side of several answers: it takes those that end a
// FROZEN transfer as SETTLED, as HandleAnswer would, and leaves all others to it.
func HandleAnswers(ctx context.Context, tx *pg.Many, list []bus.Message) ([]bool, bus.Effect, error) {
	takes := make([]bool, len(list))
	var slots []routing.Slot
	var ids []id.ID
	var places []int
	for i, m := range list {
		var a Answer
		if m.Decode(&a) == nil && a.Verdict == Credited && a.Reason == "" && m.ReplyTo == bus.MessageID(KindCredit, bus.IDKey(a.Transfer)) && !slices.Contains(ids, a.Transfer) {
			slots, ids, places = append(slots, m.To), append(ids, a.Transfer), append(places, i)
		}
	}
	rows, err := tx.Query(ctx, frozenSQL, slots, ids)
	if err != nil {
		return nil, nil, err
	}
	var c columnsOf
	var n int
	var b Body
	_, err = pgx.ForEachRow(rows, []any{&n, &b.Kind, &b.From, &b.To, &b.Amount, &b.Currency, &b.Memo}, func() error {
		b.Transfer = ids[n-1]
		c.add(slots[n-1], 0, b, b.From)
		takes[places[n-1]] = true
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return takes, func(b *pgx.Batch) {
		b.Queue(`UPDATE cell.transfers t SET state = 'SETTLED', ended_at = now()
			FROM unnest($1::int[], $2::bigint[]) AS u(slot, id) WHERE t.slot = u.slot AND t.id = u.id AND t.state = 'FROZEN' AND t.slot = ANY ($1)`,
			c.slots, c.ids).Exec(bus.Whole(len(c.ids)))
		c.post(b, InFreeze, Clearing, "settle")
	}, nil
}

// post is Post for several transfers, of the same accounts and step: the wallets are
// locked in the order of their keys, each is written once (the policy never sees
// another: its slot is looked at first), and the entries have the
// balances that they would have one after the other. A wallet that can't take all of
// its entries refuses the whole.
func (c *columnsOf) post(b *pgx.Batch, debit, credit Account, step string) {
	sign := func(a Account) int64 {
		switch a {
		case debit:
			return -1
		case credit:
			return 1
		}
		return 0
	}
	b.Queue(`WITH m AS MATERIALIZED (
			SELECT u.*, row_number() OVER w AS k, sum(u.amount) OVER w AS upto, count(*) OVER p AS n, sum(u.amount) OVER p AS total
			FROM unnest($1::int[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[]) WITH ORDINALITY AS u(slot, user_id, currency, amount, ref, memo, i)
			WINDOW p AS (PARTITION BY u.slot, u.user_id, u.currency),
				w AS (PARTITION BY u.slot, u.user_id, u.currency ORDER BY u.i ROWS UNBOUNDED PRECEDING)),
		w AS (
			UPDATE cell.wallets w SET available = w.available + $7::bigint * t.total, frozen = w.frozen + $8::bigint * t.total,
				clearing = w.clearing + $9::bigint * t.total, seq = w.seq + t.n
			FROM (SELECT slot, user_id, currency, total::bigint, n FROM m WHERE k = 1 ORDER BY slot, user_id, currency) t
			WHERE w.slot = t.slot AND w.user_id = t.user_id AND w.currency = t.currency AND w.slot = ANY ($1)
				AND w.available + $7 * t.total BETWEEN 0 AND $10 AND w.frozen + $8 * t.total >= 0
			RETURNING w.slot, w.user_id, w.currency, w.seq, w.available, w.frozen)
		INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step, available, frozen, memo)
		SELECT m.slot, m.user_id, m.currency, w.seq - m.n + m.k, $11, $12, m.amount, m.ref, $13,
			w.available - $7 * (m.total - m.upto)::bigint, w.frozen - $8 * (m.total - m.upto)::bigint, m.memo
		FROM w JOIN m ON m.slot = w.slot AND m.user_id = w.user_id AND m.currency = w.currency`,
		c.slots, c.users, c.currencies, c.amounts, c.refs, c.memos, sign(Available), sign(InFreeze), sign(Clearing), limit(Posting{Debit: debit, Credit: credit}),
		string(debit), string(credit), step).Exec(bus.Whole(len(c.ids)))
}
