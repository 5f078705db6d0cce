package reconcile

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// table is one side's rows in words that both sides share.
type table struct {
	name, id, at, from, to, toUser string
	end                            string // what the payer's end is, if the sides match
	only                           string
}

func payers() table {
	return table{
		name: "cell.transfers t", id: "t.id", at: "t.created_at", from: "t.slot", to: "t.to_slot", toUser: "t.to_user",
		end: "t.state", only: "t.state IN ('SETTLED', 'REVERSED')",
	}
}

func payees() table {
	return table{
		name: "cell.credits t", id: "t.transfer_id", at: "coalesce(t.begun_at, t.created_at)", from: "t.from_slot", to: "t.slot", toUser: "t.user_id",
		end: "CASE t.state WHEN 'CREDITED' THEN 'SETTLED' ELSE 'REVERSED' END", only: "true",
	}
}

func (t table) sql(query string) string {
	return strings.NewReplacer("{rows}", t.name, "{id}", t.id, "{at}", t.at, "{from}", t.from, "{to}", t.to, "{end}", t.end, "{only}", t.only,
		"{hash}", "cell.transfer_hash("+t.id+", t.amount, t.currency, t.from_user, "+t.toUser+")",
		"{hour}", "floor(extract(epoch FROM "+t.at+") / 3600)::bigint",
		"{part}", "(hashint8extended("+t.id+", 0) & 255)").Replace(query)
}

// inScope is the WHERE of a scope: $1 to $5.
// (A sub-select is worked out once; the cast itself would be, row by row.)
const inScope = `{at} >= $1 AND {at} < $2 AND {from} <@ (SELECT $3::text::int4multirange) AND {to} <@ (SELECT $4::text::int4multirange) AND {only}
	AND {id} <> ALL ($5::bigint[])`

func (s scope) args(more ...any) []any {
	open := make([]int64, len(s.Open))
	for i, n := range s.Open {
		open[i] = int64(n)
	}
	return append([]any{s.Since, s.Until, s.From, s.To, open}, more...)
}

// digest sums a scope up, by hour or by part.
func digest(ctx context.Context, tx pgx.Tx, t table, s scope) ([]group, error) {
	rows, err := tx.Query(ctx, digestSQL(t, s), s.args()...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[group])
}

func digestSQL(t table, s scope) string {
	key := "{hour}"
	if s.Parts {
		key = "{part}"
	}
	return t.sql(`SELECT ` + key + `, {end}, t.currency, count(*), sum(t.amount)::text, bit_xor({hash})
		FROM {rows} WHERE ` + inScope + ` GROUP BY 1, 2, 3`)
}

// list gives the transfers of some parts of a scope, and whether there are more.
func list(ctx context.Context, tx pgx.Tx, t table, s scope, parts []int32) (lines, error) {
	rows, err := tx.Query(ctx, t.sql(`SELECT {id}, {from}, {to}, {end}, {hash} FROM {rows} WHERE `+inScope+` AND {part} = ANY ($6) LIMIT $7`),
		s.args(parts, listed+1)...)
	if err != nil {
		return lines{}, err
	}
	var out lines
	var l line
	_, err = pgx.ForEachRow(rows, []any{&l.ID, &l.From, &l.To, &l.End, &l.Hash}, func() error {
		if len(out.Lines) == listed {
			out.More = true
			return nil
		}
		out.Lines = append(out.Lines, l)
		return nil
	})
	return out, err
}

// asked says that a message is out for the transfer t.
const asked = `EXISTS (SELECT FROM cell.outbox b WHERE b.slot = t.slot AND b.id IN ('transfer.credit:' || t.id, 'transfer.cancel:' || t.id) AND b.closed_at IS NULL)`

// look reads some transfers on one side.
func look(ctx context.Context, tx pgx.Tx, payer bool, refs []ref) ([]row, error) {
	from, to, ids := make([]int32, len(refs)), make([]int32, len(refs)), make([]int64, len(refs))
	for i, r := range refs {
		from[i], to[i], ids[i] = int32(r.From), int32(r.To), int64(r.ID)
	}
	t, slot, out := payees(), "q.to_slot", "false"
	if payer {
		t, slot, out = payers(), "q.from_slot", asked
	}
	rows, err := tx.Query(ctx, t.sql(`SELECT o.slot IS NOT NULL, coalesce(t.state, ''), coalesce(t.amount, 0), coalesce(t.currency, ''),
			coalesce(t.from_user, 0), coalesce(`+t.toUser+`, 0), coalesce({at}, 'epoch'), `+out+`,
			coalesce(f.epoch + (f.state = 'given')::int, 0), coalesce(d.epoch + (d.state = 'given')::int, 0)
		FROM unnest($1::int[], $2::int[], $3::bigint[]) WITH ORDINALITY q(from_slot, to_slot, id, n)
		LEFT JOIN cell.slots f ON f.slot = q.from_slot LEFT JOIN cell.slots d ON d.slot = q.to_slot
		LEFT JOIN cell.owned o ON o.slot = `+slot+` LEFT JOIN {rows} ON t.slot = `+slot+` AND {id} = q.id ORDER BY q.n`), from, to, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[row])
}

// start is the payer's side of a comparison, from one snapshot.
type start struct {
	scope
	groups  []group
	unasked []ref
	apart   string // slots that the other cell doesn't own yet, "{}" = none
	many    bool   // too many are open
}

// ranges are whose slots are whose, as a cell knows. They may be a little old: what
// a row says counts only where its slot is owned when it's looked at.
type ranges struct {
	owned string            // this cell's
	of    map[string]string // by owner
}

func rangesOf(ctx context.Context, tx pgx.Tx) (ranges, error) {
	r := ranges{of: map[string]string{}}
	rows, err := tx.Query(ctx, `SELECT coalesce(given_to, owner), range_agg(int4range(slot, slot + 1))::text FROM cell.slots GROUP BY 1`)
	if err != nil {
		return r, err
	}
	var owner, slots string
	if _, err := pgx.ForEachRow(rows, []any{&owner, &slots}, func() error { r.of[owner] = slots; return nil }); err != nil {
		return r, err
	}
	return r, tx.QueryRow(ctx, ownSlots).Scan(&r.owned)
}

const ownSlots = `SELECT coalesce(range_agg(int4range(slot, slot + 1)), '{}')::text FROM cell.slots WHERE role = 'owner' AND state <> 'given'`

const openSQL = `SELECT t.id, t.slot, t.to_slot, ` + asked + ` FROM cell.transfers t
	WHERE t.ended_at IS NULL AND t.created_at >= $1 AND t.created_at < $2
		AND t.slot <@ (SELECT $3::text::int4multirange) AND t.to_slot <@ (SELECT $4::text::int4multirange) LIMIT $5`

// begin takes it. owned are the slots that the payees' cell says are its own.
func begin(ctx context.Context, tx pgx.Tx, mine ranges, to, owned string, since, until time.Time, settled time.Duration) (start, error) {
	s := start{scope: scope{From: mine.owned}}
	err := tx.QueryRow(ctx, `SELECT (o.its * o.owned)::text, (o.its - o.owned)::text, $3::timestamptz, least($4::timestamptz, now() - make_interval(secs => $5))
		FROM (SELECT $1::text::int4multirange AS its, $2::text::int4multirange AS owned) o`, cmp.Or(mine.of[to], "{}"), owned, since, until, settled.Seconds()).
		Scan(&s.To, &s.apart, &s.Since, &s.Until)
	if err != nil {
		return s, err
	}
	rows, err := tx.Query(ctx, openSQL,
		s.Since, s.Until, s.From, s.To, openMost+1)
	if err != nil {
		return s, err
	}
	var r ref
	var out bool
	_, err = pgx.ForEachRow(rows, []any{&r.ID, &r.From, &r.To, &out}, func() error {
		s.Open = append(s.Open, r.ID)
		if !out {
			s.unasked = append(s.unasked, r)
		}
		return nil
	})
	if err != nil {
		return s, err
	}
	if s.many = len(s.Open) > openMost; s.many {
		return s, nil
	}
	s.groups, err = digest(ctx, tx, payers(), s.scope)
	return s, err
}

// spanOf is what this cell has to compare; to find the oldest transfer takes a look
// at all of them.
func spanOf(ctx context.Context, tx pgx.Tx, oldest bool) (s span, err error) {
	err = tx.QueryRow(ctx, `SELECT (SELECT cell FROM cell.identity), ARRAY(SELECT coalesce(given_to, owner) FROM cell.slots GROUP BY 1 ORDER BY 1), (`+ownSlots+`),
			CASE WHEN $1 THEN least((SELECT min(created_at) FROM cell.transfers), (SELECT min(coalesce(begun_at, created_at)) FROM cell.credits)) END, now()`, oldest).
		Scan(&s.Cell, &s.Cells, &s.Owned, &s.Oldest, &s.Now)
	return s, err
}
