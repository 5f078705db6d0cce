package bus

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/routing"
)

// note is a claimed relay note with the message it is about. Attempts and due
// are what the claim wrote: every later update names them, so it never touches
// what somebody else has changed since (S-M07).
type note struct {
	Message
	due  time.Time
	rev  int64 // of the outbox row; it grows when a reply is to go out once more
	held Held  // what it waits for; only of one that isn't early
}

// relay is the SQL of the dispatcher.
type relay struct{ pool *pgxpool.Pool }

// claimSQL compares with the statement's time, which doesn't change while it
// runs: so the index on due is searched, not read through. The slot is looked up
// for each due note: a join would start from all slots where no table has
// statistics yet. Where outputs are held ($2) and there is one, the claim writes a
// message to the WAL: its position lies behind everything the claim has seen, and
// the relay tells the standbys that it names of it, so that an idle one passes it too.
const claimSQL = `WITH due AS (
		SELECT r.slot, r.id FROM cell.relay r
		WHERE r.due <= statement_timestamp() AND (SELECT o.active FROM cell.owned o WHERE o.slot = r.slot)
			AND (SELECT cell.lease_left_ms() > 0)
		ORDER BY r.due LIMIT $1 FOR UPDATE OF r SKIP LOCKED),
	jumped AS (
		SELECT r.slot, r.id FROM cell.relay r
		WHERE r.due > statement_timestamp() + interval '1 min' AND (SELECT o.active FROM cell.owned o WHERE o.slot = r.slot)
			AND (SELECT cell.lease_left_ms() > 0)
		ORDER BY r.due LIMIT $1 FOR UPDATE OF r SKIP LOCKED),
	ready AS (SELECT * FROM due UNION ALL SELECT * FROM jumped LIMIT $1),
	claimed AS (
		UPDATE cell.relay r SET attempts = r.attempts + 1,
			due = clock_timestamp() + least(2 * 2 ^ least(r.attempts, 10), 30) * interval '1 s'
		FROM ready WHERE r.slot = ready.slot AND r.id = ready.id
		RETURNING r.slot, r.id, r.attempts, r.due),
	sent AS MATERIALIZED (
		SELECT c.attempts, c.due, o.*, s.epoch AS at_epoch, coalesce(s.standby, '') AS standby, CASE WHEN s.gates THEN coalesce(s.incoming, '') ELSE '' END AS incoming
		FROM claimed c JOIN cell.outbox o ON o.slot = c.slot AND o.id = c.id
			CROSS JOIN LATERAL (SELECT * FROM cell.slots s WHERE s.slot = o.slot OFFSET 0) s),
	held AS MATERIALIZED (
		SELECT pg_logical_emit_message(true, 'cellmart.hold', n.names) AS at
		FROM (SELECT string_agg(DISTINCT u.name, ',') AS names FROM sent, unnest(ARRAY[standby, incoming]) AS u(name) WHERE NOT early AND u.name <> '') n
		WHERE $2 AND n.names IS NOT NULL)
	SELECT o.slot, o.id, o.attempts, o.due, o.rev, o.to_slot, o.service, o.kind, o.key, o.body, o.reply_service, o.reply_to, o.trace, o.early, o.echo,
		o.at_epoch, o.standby, o.incoming, coalesce(h.at - '0/0'::pg_lsn, 0)::bigint,
		i.incarnation::text || '.' || ('x' || left(pg_walfile_name(coalesce(h.at, '0/1')), 8))::bit(32)::int
	FROM sent o LEFT JOIN held h ON true CROSS JOIN cell.identity i`

// claim takes due notes and moves them on to their next attempt, 2 s x 2^n up to
// 30 s, before anything is published: who dies after this has only lost time,
// and a second agent takes others. Only slots that this cell owns, only while it
// holds its lease. A due time further off than any attempt is set is from before
// a jump of the database's clock, and counts as due.
func (r relay) claim(ctx context.Context, limit int, hold bool) ([]note, error) {
	rows, err := r.pool.Query(ctx, claimSQL, limit, hold)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (n note, err error) {
		err = row.Scan(&n.From, &n.ID, &n.Attempt, &n.due, &n.rev, &n.To, &n.Service, &n.Kind, &n.Key, &n.Body, &n.ReplyService, &n.ReplyTo, &n.Trace,
			&n.Early, &n.Echo, &n.held.Epoch, &n.held.Standby, &n.held.Incoming, &n.held.At, &n.held.Incarnation)
		n.held.Slot, n.held.ID = n.From, n.ID
		return n, err
	})
}

// seen picks the notes that are as the caller claimed them and that nobody holds:
// who holds one is changing it.
const seen = `WITH mine AS (
	SELECT r.slot, r.id FROM cell.relay r
	JOIN unnest($1::int[], $2::text[], $3::int[], $4::timestamptz[]) AS n(slot, id, attempts, due)
		ON r.slot = n.slot AND r.id = n.id AND r.attempts = n.attempts AND r.due = n.due
	FOR UPDATE OF r SKIP LOCKED) `

// sent ends the notes of replies that the stream has. A request's note stays,
// for the next attempt.
func (r relay) sent(ctx context.Context, notes []note) error {
	return r.each(ctx, notes, `DELETE FROM cell.relay r USING mine WHERE r.slot = mine.slot AND r.id = mine.id`)
}

// unsent brings notes back that didn't go out, sooner than their next attempt.
func (r relay) unsent(ctx context.Context, notes []note, after time.Duration) error {
	return r.each(ctx, notes, `UPDATE cell.relay r SET due = least(r.due, clock_timestamp() + $5 * interval '1 ms')
		FROM mine WHERE r.slot = mine.slot AND r.id = mine.id`, after.Milliseconds())
}

func (r relay) each(ctx context.Context, notes []note, then string, args ...any) error {
	if len(notes) == 0 {
		return nil
	}
	slots, ids := make([]routing.Slot, len(notes)), make([]string, len(notes))
	attempts, dues := make([]int, len(notes)), make([]time.Time, len(notes))
	for i, n := range notes {
		slots[i], ids[i], attempts[i], dues[i] = n.From, n.ID, n.Attempt, n.due
	}
	_, err := r.pool.Exec(ctx, seen+then, append([]any{slots, ids, attempts, dues}, args...)...)
	return err
}

// state is what an operator wants to know: how many messages have no final reply
// or aren't sent, the age of the oldest of them, and how long the most overdue
// note has been due.
func (r relay) state(ctx context.Context) (waiting int, oldest, overdue time.Duration, err error) {
	var age, late float64
	err = r.pool.QueryRow(ctx, `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(o.created_at)), 0)::float8,
			greatest(coalesce(extract(epoch FROM clock_timestamp() - min(r.due)), 0), 0)::float8
		FROM cell.relay r CROSS JOIN LATERAL (SELECT FROM cell.owned s WHERE s.slot = r.slot OFFSET 0) s
		CROSS JOIN LATERAL (SELECT created_at FROM cell.outbox o WHERE o.slot = r.slot AND o.id = r.id OFFSET 0) o`).
		Scan(&waiting, &age, &late)
	return waiting, seconds(age), seconds(late), err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
