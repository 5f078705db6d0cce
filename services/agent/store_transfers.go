package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/transfer"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
)

// stuck lists transfers that have not ended, oldest first.
func (s store) stuck(ctx context.Context) ([]agentapi.StuckTransfer, error) {
	all := []agentapi.StuckTransfer{}
	var cell string
	if err := s.pool.QueryRow(ctx, "SELECT cell FROM cell.identity").Scan(&cell); err != nil {
		return nil, pg.Error(err)
	}
	list, err := transfer.ListStuck(ctx, s.pool, 0, agentapi.Listed)
	for _, t := range list {
		all = append(all, agentapi.StuckTransfer{ID: t.ID, Cell: cell, Kind: string(t.Kind), ToSlot: t.ToSlot, State: string(t.State), Amount: t.Amount,
			Currency: t.Currency, AgeMS: t.AgeMS, Attempts: t.Attempts, Answer: t.Answer, Parked: t.Parked})
	}
	return all, pg.Error(err)
}

// parked lists messages about transfers that nobody could handle, oldest first.
func (s store) parked(ctx context.Context, cell string) ([]agentapi.ParkedTransfer, error) {
	all := []agentapi.ParkedTransfer{}
	list, err := transfer.ListParked(ctx, s.pool, "", agentapi.Listed)
	for _, p := range list {
		all = append(all, agentapi.ParkedTransfer{Cell: cell, Slot: p.Slot, From: p.From, Transfer: p.Transfer, Kind: p.Kind, Reason: p.Reason,
			AgeMS: p.AgeMS, Message: p.Message})
	}
	return all, pg.Error(err)
}

// askJob keeps a job for a slot of this cell.
func (s store) askJob(ctx context.Context, j agentapi.TransferJob) (agentapi.TransferJob, error) {
	var here bool
	err := s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM cell.owned WHERE slot = $1)", j.Slot).Scan(&here)
	if err != nil {
		return j, pg.Error(err)
	}
	if !here {
		return j, errs.ErrNotFound.Msgf("slot %s isn't this cell's", j.Slot)
	}
	kept, err := transfer.AskJob(ctx, s.pool, transfer.Job{ID: j.ID, Transfer: j.Transfer, Slot: j.Slot, What: transfer.Task(j.What), Reason: j.Reason})
	return wireJob(kept), err
}

func (s store) job(ctx context.Context, job string) (agentapi.TransferJob, error) {
	j, err := transfer.GetJob(ctx, s.pool, job)
	return wireJob(j), err
}

func wireJob(j transfer.Job) agentapi.TransferJob {
	return agentapi.TransferJob{ID: j.ID, Transfer: j.Transfer, Slot: j.Slot, What: string(j.What), Reason: j.Reason, State: j.State, Detail: j.Detail,
		CreatedAt: j.CreatedAt, EndedAt: j.EndedAt}
}

// The two sides of a transfer. The payer's slot is known from the ID; the payee's,
// when the payer's side isn't here, is looked for in each own slot by its key.
const (
	sentSQL = `SELECT slot, state, from_user, to_user, amount, currency, reason, to_slot FROM cell.transfers t
		WHERE t.slot = ANY ($2) AND t.id = $1 AND EXISTS (SELECT FROM cell.owned s WHERE s.slot = t.slot)`
	receivedSQL = `SELECT c.* FROM unnest($2::int[]) AS its(slot), LATERAL (
			SELECT slot, state, from_user, user_id, amount, currency, reason, from_slot FROM cell.credits c WHERE c.slot = its.slot AND c.transfer_id = $1 LIMIT 1) c LIMIT 1`
)

// transfer gives what this cell has of a transfer, NotFound when nothing. Of copies
// the owner tells. homes are the slots that the payer's side may be in.
func (s store) transfer(ctx context.Context, n id.ID, homes []routing.Slot) (agentapi.Transfer, error) {
	out := agentapi.Transfer{Story: []agentapi.Line{}}
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return out, pg.Error(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // read only
	var owned []routing.Slot
	if err := tx.QueryRow(ctx, "SELECT coalesce(array_agg(slot), '{}') FROM cell.owned").Scan(&owned); err != nil {
		return out, pg.Error(err)
	}
	at := sides{source: -1, dest: -1, fromSlot: -1}
	if out.Source, _, err = side(ctx, tx, sentSQL, n, homes); err != nil {
		return out, err
	}
	if out.Dest, at.fromSlot, err = side(ctx, tx, receivedSQL, n, owned); err != nil {
		return out, err
	}
	if out.Source == nil && out.Dest == nil {
		return out, errs.ErrNotFound
	}
	if out.Source != nil {
		at.source = out.Source.Slot
	}
	if out.Dest != nil {
		at.dest = out.Dest.Slot
	}
	out.Story, err = story(ctx, tx, n, at)
	return out, err
}

func side(ctx context.Context, tx pgx.Tx, sql string, n id.ID, slots []routing.Slot) (*agentapi.Side, routing.Slot, error) {
	var d agentapi.Side
	var other routing.Slot
	err := tx.QueryRow(ctx, sql, n, slots).Scan(&d.Slot, &d.State, &d.From, &d.To, &d.Amount, &d.Currency, &d.Reason, &other)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, -1, nil
	}
	return &d, other, pg.Error(err)
}

// sides are the slots that this cell has of a transfer, -1 = not here, and where
// the questions came from that the destination answers.
type sides struct{ source, dest, fromSlot routing.Slot }

// chapter is one part of a transfer's story, found by keys: [1] the payer's and
// the payee's slot, [2] what is looked for.
type chapter struct{ slots, key, sql string }

const (
	bySource, byDest, byBoth     = "source", "dest", "both"
	ofID, ofRef, ofAsked, ofSaid = "id", "ref", "questions", "answers"
)

func chapters() []chapter {
	return []chapter{
		{byBoth, ofRef, `SELECT created_at, ARRAY['posted', step || ':', amount::text, currency, debit || ' -> ' || credit] FROM cell.postings p
			WHERE slot = ANY ($1) AND ref = $2`},
		{bySource, ofID, `SELECT created_at, ARRAY['source: made, deadline', deadline::text, 'state now', state, reason, CASE WHEN refund_of <> 0 THEN 'refund of ' || refund_of END]
			FROM cell.transfers t WHERE slot = ANY ($1) AND id = $2::text::bigint`},
		{bySource, ofID, `SELECT ended_at, ARRAY['source: ended', state, reason] FROM cell.transfers t WHERE slot = ANY ($1) AND id = $2::text::bigint AND ended_at IS NOT NULL`},
		{byDest, ofID, `SELECT created_at, ARRAY['destination:', state, reason] FROM cell.credits c WHERE slot = ANY ($1) AND transfer_id = $2::text::bigint`},
		{bySource, ofID, `SELECT created_at, ARRAY['source: came back', amount::text, currency, 'by transfer', transfer_id::text] FROM cell.credits c
			WHERE slot = ANY ($1) AND refund_of = $2::text::bigint AND state = 'CREDITED'`},
		{byDest, ofID, `SELECT created_at, ARRAY['destination: gives back', amount::text, currency, 'by transfer', id::text, 'state now', state] FROM cell.transfers t
			WHERE slot = ANY ($1) AND refund_of = $2::text::bigint AND refund_of <> 0`},
		{bySource, ofAsked, `SELECT o.created_at, ARRAY[o.kind, 'to slot', o.to_slot::text,
			CASE WHEN o.closed_at IS NOT NULL THEN 'answered ' || o.closed_at::text || coalesce(': ' || o.reply::text, '')
			     ELSE 'open, attempts ' || coalesce(r.attempts, 0)::text || ', next ' || coalesce(r.due::text, 'unknown') END]
			FROM cell.outbox o LEFT JOIN cell.relay r ON r.slot = o.slot AND r.id = o.id WHERE o.slot = ANY ($1) AND o.id = ANY ($2)`},
		{byDest, ofSaid, `SELECT o.created_at, ARRAY[o.kind, 'to slot', o.to_slot::text, 'is an answer'] FROM cell.outbox o WHERE o.slot = ANY ($1) AND o.id = ANY ($2)`},
		{byBoth, ofID, `SELECT p.parked_at, ARRAY['parked:', p.message->>'kind', p.reason, CASE WHEN p.resolved_at IS NOT NULL THEN 'resolved ' || p.resolved_at::text END]
			FROM cell.parked p WHERE p.slot = ANY ($1) AND p.message->>'key' = $2::text AND p.message->>'kind' LIKE 'transfer.%'`},
		{byBoth, ofID, `SELECT created_at, ARRAY['operator:', what, reason, state, detail] FROM cell.transfer_jobs j WHERE slot = ANY ($1) AND transfer = $2::text::bigint`},
	}
}

func (c chapter) args(n id.ID, at sides) []any {
	slots := map[string][]routing.Slot{bySource: {at.source}, byDest: {at.dest}, byBoth: {at.source, at.dest}}[c.slots]
	switch c.key {
	case ofRef:
		return []any{slots, transfer.Ref(n)}
	case ofAsked:
		return []any{slots, transfer.Questions(n)}
	case ofSaid:
		return []any{slots, transfer.Answers(at.fromSlot, n)}
	}
	return []any{slots, n.String()}
}

// story tells what the tables remember: the postings, the messages out with their
// attempts and answers, what is parked, and what operators had done.
func story(ctx context.Context, tx pgx.Tx, n id.ID, at sides) ([]agentapi.Line, error) {
	lines := []agentapi.Line{}
	for _, c := range chapters() {
		rows, err := tx.Query(ctx, c.sql, c.args(n, at)...)
		if err != nil {
			return nil, pg.Error(fmt.Errorf("story of %s: %w", n, err))
		}
		part, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agentapi.Line, error) {
			var when time.Time
			var words []*string
			err := row.Scan(&when, &words)
			var text []string
			for _, w := range words {
				if w != nil && *w != "" {
					text = append(text, *w)
				}
			}
			return agentapi.Line{At: when, What: strings.Join(text, " ")}, err
		})
		if err != nil {
			return nil, pg.Error(fmt.Errorf("story of %s: %w", n, err))
		}
		lines = append(lines, part...)
	}
	slices.SortStableFunc(lines, func(a, b agentapi.Line) int { return a.At.Compare(b.At) })
	return lines, nil
}
