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
	"example.com/cellmart/services/agent/agentapi"
)

// stuck lists transfers that have not ended, oldest first, at most 200.
func (s store) stuck(ctx context.Context) ([]agentapi.StuckTransfer, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT t.id, (SELECT cell FROM cell.identity) AS cell, t.to_slot, t.state, t.amount, t.currency,
		       (extract(epoch FROM now() - t.created_at) * 1000)::bigint AS age_ms, coalesce(max(r.attempts), 0) AS attempts
		FROM cell.transfers t JOIN cell.owned mine ON mine.slot = t.slot
		LEFT JOIN cell.outbox o ON o.slot = t.slot AND o.key = t.id::text AND o.closed_at IS NULL AND o.kind LIKE 'transfer.%'
		LEFT JOIN cell.relay r ON r.slot = o.slot AND r.id = o.id
		WHERE t.ended_at IS NULL
		GROUP BY t.slot, t.id ORDER BY t.created_at, t.id LIMIT 200`)
	if err != nil {
		return nil, pg.Error(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[agentapi.StuckTransfer])
	if all == nil {
		all = []agentapi.StuckTransfer{}
	}
	return all, pg.Error(err)
}

// transfer gives what this cell has of a transfer, NotFound when nothing. Of copies
// the owner tells.
func (s store) transfer(ctx context.Context, transfer id.ID) (agentapi.Transfer, error) {
	out := agentapi.Transfer{Story: []agentapi.Line{}}
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return out, pg.Error(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // read only
	out.Source, err = side(ctx, tx, `SELECT slot, state, from_user, to_user, amount, currency, reason FROM {cell.transfers} t WHERE id = $1`, transfer)
	if err != nil {
		return out, err
	}
	out.Dest, err = side(ctx, tx, `SELECT slot, state, from_user, user_id, amount, currency, reason FROM {cell.credits} c WHERE transfer_id = $1`, transfer)
	if err != nil {
		return out, err
	}
	if out.Source == nil && out.Dest == nil {
		return out, errs.ErrNotFound
	}
	out.Story, err = story(ctx, tx, transfer)
	return out, err
}

func side(ctx context.Context, tx pgx.Tx, sql string, transfer id.ID) (*agentapi.Side, error) {
	var d agentapi.Side
	err := tx.QueryRow(ctx, own(sql), transfer).Scan(&d.Slot, &d.State, &d.From, &d.To, &d.Amount, &d.Currency, &d.Reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &d, pg.Error(err)
}

// story tells what the tables remember: the postings, the messages out with
// their attempts and answers, and the messages in.
func story(ctx context.Context, tx pgx.Tx, transfer id.ID) ([]agentapi.Line, error) {
	var lines []agentapi.Line
	collect := func(sql string, arg any) error {
		rows, err := tx.Query(ctx, own(sql), arg)
		if err != nil {
			return err
		}
		part, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (agentapi.Line, error) {
			var at time.Time
			var words []string
			err := row.Scan(&at, &words)
			return agentapi.Line{At: at, What: strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")}, err
		})
		lines = append(lines, part...)
		return err
	}
	key := transfer.String()
	err := errors.Join(
		collect(`SELECT created_at, ARRAY['posted', step || ':', amount::text, currency, debit || ' -> ' || credit] FROM {cell.postings} p WHERE ref = $1`, "transfer:"+key),
		collect(`SELECT created_at, ARRAY['source: made, deadline', deadline::text, 'state now', state, reason] FROM {cell.transfers} t WHERE id = $1`, transfer),
		collect(`SELECT ended_at, ARRAY['source: ended', state, reason] FROM {cell.transfers} t WHERE id = $1 AND ended_at IS NOT NULL`, transfer),
		collect(`SELECT created_at, ARRAY['destination:', state, reason] FROM {cell.credits} c WHERE transfer_id = $1`, transfer),
		collect(`SELECT o.created_at, ARRAY[o.kind, 'to slot', o.to_slot::text,
			CASE WHEN o.closed_at IS NOT NULL THEN 'answered ' || o.closed_at::text || coalesce(': ' || o.reply::text, '')
			     WHEN o.reply_to <> '' THEN 'is an answer'
			     ELSE 'open, attempts ' || coalesce(r.attempts, 0)::text || ', next ' || coalesce(r.due::text, 'unknown') END]
			FROM {cell.outbox} o LEFT JOIN cell.relay r USING (slot, id) WHERE o.key = $1 AND o.kind LIKE 'transfer.%'`, key),
	)
	if err != nil {
		return nil, pg.Error(fmt.Errorf("story of %s: %w", transfer, err))
	}
	slices.SortStableFunc(lines, func(a, b agentapi.Line) int { return a.At.Compare(b.At) })
	return lines, nil
}
