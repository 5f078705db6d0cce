package main

import (
	"context"
	"fmt"
	"time"

	"example.com/cellmart/services/agent/agentapi"
)

// The size of transfer-hot.
const (
	hotPairs  = 3
	hotWindow = 4 * time.Second
	hotWay    = 15 * time.Millisecond // each way between the cells
	hotGoal   = 50.0
)

// transferHot measures transfers from one cell to one account of another, with a
// round trip of 30 ms between them.
func transferHot(ctx context.Context, b *bank) ([]row, error) {
	if err := b.withoutCopies(ctx); err != nil {
		return nil, err
	}
	from, to := b.cells[0], b.cells[1]
	p, err := openTwoPhase(ctx, b, twoPhaseDatabase, from, to)
	if err != nil {
		return nil, err
	}
	p.dialTo = delayed(hotWay)
	if err := from.agent.SetFault(ctx, to.name, agentapi.Fault{DelayMS: hotWay.Milliseconds()}); err != nil {
		return nil, err
	}
	defer from.agent.SetFault(context.WithoutCancel(ctx), to.name, agentapi.Fault{}) //nolint:errcheck // with its agent gone the demo is broken anyway
	var rows []row
	for _, clients := range []int{16, 64} {
		r, err := b.hot(ctx, p, flow{from: from, to: to, payees: 1, clients: clients})
		if err != nil {
			return nil, fmt.Errorf("%d clients: %w", clients, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// hot measures with so many clients.
func (b *bank) hot(ctx context.Context, p *twoPhase, f flow) (row, error) {
	pairs, closeAll, err := p.clients(ctx, f, f.clients)
	if err != nil {
		return row{}, err
	}
	defer closeAll()
	if err := b.warm(ctx, &f); err != nil {
		return row{}, err
	}
	var ours, base []float64
	var took, baseTook []time.Duration
	all, err := fewer(hotPairs)
	if err != nil {
		return row{}, err
	}
	for n := range all {
		theirs, err := p.pay(ctx, pairs, f, time.Second, hotWindow)
		if err != nil {
			return row{}, fmt.Errorf("two-phase commit: %w", err)
		}
		got, err := b.pay(ctx, f, time.Second, hotWindow)
		if err != nil {
			return row{}, err
		}
		ours, base = append(ours, got.rate()), append(base, theirs.rate())
		took, baseTook = append(took, got.took...), append(baseTook, theirs.took...)
		fmt.Fprintf(b.log, "bench: transfer-hot: %d clients: pair %d: %.0f a second, p99 %.0f ms, two-phase commit %.1f, p99 %.0f ms\n",
			f.clients, n+1, got.rate(), percentile(got.took, 0.99), theirs.rate(), percentile(theirs.took, 0.99))
	}
	lo, hi := spread(ours, base)
	return atLeast(compare(fmt.Sprintf("transfer-hot/%d-clients", f.clients), "transfers/s", median(ours), median(base), shown, nil,
		fmt.Sprintf("to one account, 30 ms round trip between the cells, 1,000 payers; p99 until it has ended %.0f ms, p50 %.0f ms, %d on their way at once (a client's transfer is begun when its money is frozen, as the API answers); "+
			"baseline: two-phase commit, client at the payer, %.0f ms each way to the payee's Postgres, p99 until it is decided %.0f ms, p50 %.0f ms; ratio of a pair %.0f to %.0f, median of %d pairs in turn; no side has copies",
			percentile(took, 0.99), percentile(took, 0.5), f.open, float64(hotWay.Milliseconds()), percentile(baseTook, 0.99), percentile(baseTook, 0.5), lo, hi, len(ours))), hotGoal), nil
}
