package bank

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/user/userapi"
)

const shown = 5 // differences in words

// Judge compares what everybody has with what the answers come to: every account,
// the totals, each line of each statement. At rest.
func (b *Bank) Judge(ctx context.Context) (figures map[string]any, err error) {
	now, err := b.wallets(ctx)
	if err != nil {
		return nil, err
	}
	want := b.book.expected(b.before)
	sum, sumWant := map[string]int64{}, map[string]int64{}
	var wrong []string
	for _, who := range b.people.all {
		for _, currency := range currencies {
			a := account{who.n, currency}
			sum[currency] += now[a]
			sumWant[currency] += want[a]
			if now[a] != want[a] {
				wrong = append(wrong, fmt.Sprintf("user %s has %d %s, its answers come to %d", who.id, now[a], currency, want[a]))
			}
		}
	}
	b.differ("accounts differ", wrong)
	for _, currency := range currencies {
		if sum[currency] != sumWant[currency] {
			b.violated("totals: all accounts have %d %s, deposits less withdrawals come to %d", sum[currency], currency, sumWant[currency])
		}
	}
	lines, err := b.statements(ctx)
	if err != nil {
		return nil, err
	}
	clearing, err := b.clearing(ctx)
	if err != nil {
		return nil, err
	}
	unknown := 0
	for _, w := range b.book.all() {
		if !w.known {
			unknown++
		}
	}
	if unknown > 0 {
		b.violated("%d of %d requests have no answer at rest", unknown, len(b.book.all()))
	}
	return map[string]any{"accounts_wrong": len(wrong), "totals": sum, "postings_checked": lines, "clearing": clearing}, nil
}

func (b *Bank) differ(what string, wrong []string) {
	if len(wrong) > 0 {
		slices.Sort(wrong)
		b.violated("%d %s: %s", len(wrong), what, strings.Join(wrong[:min(shown, len(wrong))], "; "))
	}
}

// statements reads every account's, whole.
func (b *Bank) statements(ctx context.Context) (lines int, err error) {
	var mu sync.Mutex
	var broken, double []string
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(b.size.workers)
	for _, who := range b.people.all {
		for _, currency := range currencies {
			group.Go(func() error {
				all, err := b.statementOf(inner, who, currency)
				mu.Lock()
				defer mu.Unlock()
				lines += len(all)
				if bad := statement(all); bad != "" {
					broken = append(broken, fmt.Sprintf("user %s %s: %s", who.id, currency, bad))
				}
				for _, ref := range twice(all) {
					double = append(double, fmt.Sprintf("%s at user %s", ref, who.id))
				}
				return err
			})
		}
	}
	err = group.Wait()
	b.differ("statements don't add up", broken)
	b.differ("transfers came twice", double)
	return lines, err
}

func (b *Bank) statementOf(ctx context.Context, who *person, currency string) (all []userapi.Entry, err error) {
	for cursor := ""; ; {
		var page userapi.Statement
		if err := b.people.get(ctx, who, "/wallet/statement?limit=100&currency="+currency+cursor, &page); err != nil {
			return all, err
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		cursor = "&cursor=" + page.NextCursor
	}
}

// clearing nets to zero over all cells, at rest; nil where databases can't be asked.
func (b *Bank) clearing(ctx context.Context) (map[string]int64, error) {
	if b.o.Databases == nil {
		return nil, nil
	}
	out := map[string]int64{}
	for cell := range b.o.Databases {
		err := b.faults.promoter.on(ctx, cell, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT currency, sum(clearing)::bigint FROM cell.wallets w JOIN cell.owned mine ON mine.slot = w.slot GROUP BY currency")
			if err != nil {
				return err
			}
			var currency string
			var n int64
			_, err = pgx.ForEachRow(rows, []any{&currency, &n}, func() error {
				out[currency] += n
				return nil
			})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for currency, n := range out {
		if n != 0 {
			b.violated("clearing in %s comes to %d over all cells at rest", currency, n)
		}
	}
	return out, nil
}

// Probed demands that faults were tried: nothing is proved by what didn't happen.
func (b *Bank) Probed() {
	f := b.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	machines, wires := f.decks()
	for _, x := range slices.Concat(machines, wires) {
		if f.done[x.name] == 0 && f.skipped[x.name] == "" {
			b.violated("%s was not tried", x.name)
		}
	}
	if f.promoted > 0 && len(b.lostIDs()) == 0 {
		b.violated("%d promotions, and none has lost anything: nothing was tried", f.promoted)
	}
	did := map[kind]int{}
	for _, w := range b.book.all() {
		if w.id != 0 {
			did[w.kind]++
		}
	}
	for _, k := range []kind{transfers, deposits, withdraws} {
		if did[k] == 0 {
			b.violated("no %s got through", k)
		}
	}
	if b.looked.Load() == 0 || b.postings.Load() == 0 {
		b.violated("I3 was not looked at meanwhile")
	}
}

// lostIDs are transfers and others that were answered, and went with a slot's owner.
func (b *Bank) lostIDs() (out []id.ID) {
	for _, w := range b.book.all() {
		out = append(out, w.lost...)
	}
	return out
}
