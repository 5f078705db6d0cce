package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/pg"
)

const (
	openMost = 20_000 // open transfers in one comparison
	listed   = 20_000 // transfers listed in one answer
	looked   = 2_000  // transfers looked at in one comparison
	lookMost = 500    // in one question
	longest  = 366 * 24 * time.Hour
	stepMost = 30 * time.Second // for a step of Run
	spanMost = 5 * time.Second  // for a cell's first answer
)

var errMany = fmt.Errorf("more than %d transfers are open", openMost)

// Pair is one comparison: transfers from one cell to another, begun from Since to
// before Until.
type Pair struct {
	From        string       `json:"from"`
	To          string       `json:"to"`
	Since       time.Time    `json:"since"`
	Until       time.Time    `json:"until"`
	Hours       int          `json:"hours"`     // with transfers that have ended
	Transfers   int64        `json:"transfers"` // of them, at the payer's
	Open        int          `json:"open"`      // in flight: compared when they have ended
	Differing   []Hour       `json:"differing"`
	Differences []Difference `json:"differences"`
	NotLooked   int          `json:"not_looked"` // differ in a digest too, too many to look at
	NotCompared []string     `json:"not_compared"`
	MS          int64        `json:"ms"`

	unsure []ref // what was known of them stays
}

// Compare compares this cell's transfers to another cell; also are looked at
// whatever the digests say. What can't be compared is in the answer; an error says
// that nothing was.
func (r *Reconciler) Compare(ctx context.Context, to string, since, until time.Time) (Pair, error) {
	var mine ranges
	err := r.read(ctx, func(tx pgx.Tx) (err error) { mine, err = rangesOf(ctx, tx); return err })
	if err != nil {
		return Pair{}, err
	}
	return r.compare(ctx, mine, to, since, until, nil)
}

func (r *Reconciler) compare(ctx context.Context, mine ranges, to string, since, until time.Time, also []ref) (Pair, error) {
	began := time.Now()
	p := Pair{From: r.o.Cell, To: to, Since: since, Until: until, Differing: []Hour{}, Differences: []Difference{}, NotCompared: []string{}}
	other, err := r.other(to)
	if err != nil {
		return p, err
	}
	there, err := other.span(ctx)
	if err != nil {
		return p, err
	}
	var s start
	err = r.read(ctx, func(tx pgx.Tx) (err error) {
		s, err = begin(ctx, tx, mine, to, there.Owned, since, until, r.o.Settled)
		return err
	})
	if err != nil {
		return p, err
	}
	p.Until, p.Open = s.Until, len(s.Open)
	if s.apart != "{}" {
		p.NotCompared = append(p.NotCompared, fmt.Sprintf("slots %s: %s doesn't own them yet", s.apart, to))
	}
	if s.many {
		return p, errMany // nothing was compared
	}
	var theirs digests
	if err := other.ask(ctx, opDigest, question{Scope: &s.scope}, &theirs); err != nil {
		return p, err
	}
	hours := map[int64]bool{}
	for _, g := range s.groups {
		hours[g.Key] = true
		p.Transfers += g.N
	}
	p.Hours = len(hours)
	refs := append(slices.Clone(also), s.unasked...)
	differ := differing(s.groups, theirs.Groups)
	for _, hour := range keys(differ) {
		if len(refs) > looked {
			p.NotLooked++
			continue
		}
		found, more, err := r.hour(ctx, other, s.scope, hour)
		if err != nil {
			return p, err
		}
		refs = append(refs, found...)
		p.NotLooked += more
	}
	refs = unique(refs)
	if len(refs) > looked+len(also) {
		p.NotLooked += len(refs) - looked - len(also)
		refs = refs[:looked+len(also)]
	}
	if p.Differences, p.unsure, err = r.look(ctx, other, refs); err != nil {
		return p, err
	}
	if n := len(p.unsure); n > 0 {
		p.NotCompared = append(p.NotCompared, fmt.Sprintf("%d transfers: the cells don't know their slots at the same epochs, %s first", n, p.unsure[0].ID))
	}
	p.Differing = confirmed(differ, p)
	p.MS = time.Since(began).Milliseconds()
	return p, nil
}

// confirmed are the hours that differ and have a difference, or weren't looked at.
func confirmed(differ []pairOf, p Pair) []Hour {
	bad := map[time.Time]bool{}
	for _, d := range p.Differences {
		bad[d.Hour] = true
	}
	out := []Hour{}
	for _, d := range differ {
		if at := hourOf(d.key); bad[at] || p.NotLooked > 0 {
			out = append(out, Hour{Hour: at, End: d.end, Currency: d.currency, Payer: d.payer, Payee: d.payee})
		}
	}
	return out
}

// hour finds the transfers of an hour that both sides don't have alike: first the
// parts in which they differ, then the rows of these parts.
func (r *Reconciler) hour(ctx context.Context, other peer, s scope, hour int64) (refs []ref, more int, err error) {
	s.Since, s.Until = later(s.Since, hourOf(hour)), earlier(s.Until, hourOf(hour+1))
	s.Parts = true
	var mine, theirs digests
	err = r.read(ctx, func(tx pgx.Tx) (err error) { mine.Groups, err = digest(ctx, tx, payers(), s); return err })
	if err != nil {
		return nil, 0, err
	}
	if err := other.ask(ctx, opDigest, question{Scope: &s}, &theirs); err != nil {
		return nil, 0, err
	}
	var parts []int32
	for _, k := range keys(differing(mine.Groups, theirs.Groups)) {
		parts = append(parts, int32(k))
	}
	for some := range slices.Chunk(parts, 16) {
		found, n, err := r.parts(ctx, other, s, some)
		if err != nil {
			return nil, 0, err
		}
		refs, more = append(refs, found...), more+n
	}
	return refs, more, nil
}

// parts compares the rows of some parts; where these are too many for an answer, one
// part after the other. more are the parts that are too many even so.
func (r *Reconciler) parts(ctx context.Context, other peer, s scope, some []int32) (refs []ref, more int, err error) {
	var a, b lines
	err = r.read(ctx, func(tx pgx.Tx) (err error) { a, err = list(ctx, tx, payers(), s, some); return err })
	if err != nil {
		return nil, 0, err
	}
	if err := other.ask(ctx, opRows, question{Scope: &s, Parts: some}, &b); err != nil {
		return nil, 0, err
	}
	switch {
	case !a.More && !b.More:
		return suspects(a.Lines, b.Lines), 0, nil
	case len(some) == 1:
		return nil, 1, nil
	}
	for one := range slices.Chunk(some, 1) {
		found, n, err := r.parts(ctx, other, s, one)
		if err != nil {
			return nil, 0, err
		}
		refs, more = append(refs, found...), more+n
	}
	return refs, more, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// look looks at some transfers by themselves, payer's side before and after the
// payee's, and gives those that are wrong for certain, and those that nobody can say.
func (r *Reconciler) look(ctx context.Context, other peer, refs []ref) (out []Difference, unsure []ref, err error) {
	out = []Difference{}
	for some := range slices.Chunk(refs, lookMost) {
		before, err := r.payer(ctx, some)
		if err != nil {
			return nil, nil, err
		}
		var payee rows
		if err := other.ask(ctx, opLook, question{Refs: some}, &payee); err != nil {
			return nil, nil, err
		}
		if len(payee.Rows) != len(some) {
			return nil, nil, fmt.Errorf("%s: %d rows for %d transfers", other.name, len(payee.Rows), len(some))
		}
		after, err := r.payer(ctx, some)
		if err != nil {
			return nil, nil, err
		}
		for i, n := range some {
			kind, text := judge(n.ID, before[i], payee.Rows[i], after[i])
			if kind == "" {
				continue
			}
			if kind != Forgotten && !agree(before[i], payee.Rows[i], after[i]) {
				unsure = append(unsure, n)
				continue
			}
			at := after[i].At
			if after[i].State == "" {
				at = payee.Rows[i].At
			}
			out = append(out, Difference{
				Kind: kind, ID: n.ID, From: r.o.Cell, To: other.name, FromSlot: n.From, ToSlot: n.To, Hour: at.UTC().Truncate(time.Hour), Text: text,
			})
		}
	}
	return out, unsure, nil
}

func (r *Reconciler) payer(ctx context.Context, refs []ref) (out []row, err error) {
	return out, r.read(ctx, func(tx pgx.Tx) (err error) { out, err = look(ctx, tx, true, refs); return err })
}

// Answer answers a question whose body is JSON.
func (r *Reconciler) Answer(ctx context.Context, op string, body []byte) (any, error) {
	var q question
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, errs.Field("body", "isn't JSON of a question: %v", err)
	}
	out, err := r.answer(ctx, op, q)
	var known *errs.Error
	var gone awayError
	switch {
	case errors.As(err, &gone):
		err = errs.ErrUnavailable.Msgf("%s: %s: %v", r.o.Cell, op, err).In(gone.cell)
	case err != nil && !errors.As(err, &known):
		err = errs.ErrUnavailable.Msgf("%s: %s: %v", r.o.Cell, op, err) // the operator is to know why
	}
	return out, err
}

func (r *Reconciler) answer(ctx context.Context, op string, q question) (out any, err error) {
	if q.Scope == nil && (op == opDigest || op == opRows) {
		return nil, errs.Field("scope", "is missing")
	}
	switch op {
	case opCompare:
		return r.ordered(ctx, q)
	case opSpan:
		var s span
		err = r.read(ctx, func(tx pgx.Tx) (err error) { s, err = spanOf(ctx, tx, q.Oldest); return err })
		return s, err
	case opDigest:
		var d digests
		err = r.read(ctx, func(tx pgx.Tx) (err error) { d.Groups, err = digest(ctx, tx, payees(), *q.Scope); return err })
		return d, err
	case opRows:
		var l lines
		err = r.read(ctx, func(tx pgx.Tx) (err error) { l, err = list(ctx, tx, payees(), *q.Scope, q.Parts); return err })
		return l, err
	case opLook:
		if len(q.Refs) > lookMost {
			return nil, errs.Field("refs", "are more than %d", lookMost)
		}
		var all rows
		err = r.read(ctx, func(tx pgx.Tx) (err error) { all.Rows, err = look(ctx, tx, false, q.Refs); return err })
		return all, err
	}
	return nil, errs.ErrNotFound
}

// ordered is a comparison that somebody asked for: one at a time.
func (r *Reconciler) ordered(ctx context.Context, q question) (any, error) {
	if q.To == "" || !q.Since.Before(q.Until) || q.Until.Sub(q.Since) > longest {
		return nil, errs.Field("to", "or the time from since to until is missing, or that is over a year")
	}
	select {
	case r.busy <- struct{}{}:
		defer func() { <-r.busy }()
	case <-ctx.Done():
		return nil, errs.ErrUnavailable.Because(ctx.Err())
	}
	p, err := r.Compare(ctx, q.To, q.Since, q.Until)
	if err != nil {
		return nil, fmt.Errorf("with %s: %w", q.To, err)
	}
	return p, nil
}

// read runs fn in a snapshot.
func (r *Reconciler) read(ctx context.Context, fn func(pgx.Tx) error) error {
	return inSnapshot(ctx, r.o.Pool, fn)
}

func inSnapshot(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		// The plan depends on how many slots and open transfers there are, and takes no core from others.
		if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '20s'; SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL max_parallel_workers_per_gather = 0"); err != nil {
			return err
		}
		return fn(tx)
	})
	return pg.Error(err)
}
