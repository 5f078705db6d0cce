package main

import (
	"context"
	"fmt"
	"time"
)

// The size of transfer-latency.
const (
	latencyRounds = 2
	latencyWindow = 8 * time.Second
	latencyPeak   = 4 * time.Second
	latencyGoal   = 1000.0 // ms, of the p99
)

// transferLatency measures from a transfer's beginning to its end at half of what
// gets through at most, with outputs held for the standby and not held.
func transferLatency(ctx context.Context, b *bank) ([]row, error) {
	fmt.Fprintln(b.log, "bench: transfer-latency: waiting until every slot has a standby in sync")
	held := &paced{b: b, mode: "timed"}
	free := &paced{b: b, mode: "off"}
	rounds, err := fewer(latencyRounds)
	if err != nil {
		return nil, err
	}
	for n := range rounds {
		order := []*paced{held, free}
		if n%2 == 1 {
			order = []*paced{free, held}
		}
		for _, p := range order {
			if err := p.round(ctx); err != nil {
				return nil, err
			}
		}
	}
	return []row{held.row("transfer-latency/held", free, "held until the slot's standby has them (AGENT_OUTPUT_COMMIT timed)", "not held"),
		free.row("transfer-latency", held, "not held (AGENT_OUTPUT_COMMIT off)", "held")}, nil
}

// paced is transfers at half of the peak, with outputs in one mode.
type paced struct {
	b          *bank
	mode       string
	peak, rate []float64
	took       []time.Duration
	failed     int
}

func (p *paced) round(ctx context.Context) error {
	if err := p.b.set(ctx, "agent", map[string]string{"AGENT_OUTPUT_COMMIT": p.mode}, p.b.cells[0].name, p.b.cells[1].name); err != nil {
		return err
	}
	if err := p.b.inSync(ctx); err != nil {
		return err
	}
	f := flow{from: p.b.cells[0], to: p.b.cells[1], payees: bankAccounts, clients: bankClients}
	if err := p.b.warm(ctx, &f); err != nil {
		return err
	}
	peak, err := p.b.pay(ctx, f, time.Second, latencyPeak)
	if err != nil {
		return err
	}
	f.rate, f.open = peak.rate()/2, mostOpen
	got, err := p.b.pay(ctx, f, time.Second, latencyWindow)
	if err != nil {
		return err
	}
	p.peak, p.rate = append(p.peak, peak.rate()), append(p.rate, got.rate())
	p.took, p.failed = append(p.took, got.took...), p.failed+got.failed
	fmt.Fprintf(p.b.log, "bench: transfer-latency: %s: peak %.0f a second; at %.0f p50 %.0f ms, p99 %.0f ms\n", p.mode, peak.rate(), got.rate(), percentile(got.took, 0.5), percentile(got.took, 0.99))
	return nil
}

func (p *paced) row(name string, other *paced, what, than string) row {
	ms := percentile(p.took, 0.99)
	r := compare(name, "ms", ms, percentile(other.took, 0.99), fmt.Sprintf("p99 < %.0f ms", latencyGoal), nil,
		fmt.Sprintf("%s; from when a transfer is due to the commit of its end, c1 to c2, four cells with standbys; at half of the peak (%.0f of %.0f a second), p50 %.0f ms, %d transfers in %d windows, %d couldn't begin; baseline: the same %s, p50 %.0f ms, in turn",
			what, median(p.rate), median(p.peak), percentile(p.took, 0.5), len(p.took), len(p.rate), p.failed, than, percentile(other.took, 0.5)))
	ok := ms < latencyGoal && p.failed == 0
	r.OK = &ok
	return r
}

// inSync waits until every cell's copies are.
func (b *bank) inSync(ctx context.Context) error {
	for _, at := range b.cells {
		err := within(ctx, 2*time.Minute, func() error {
			var slots, left int
			err := at.super.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE state <> 'in_sync') FROM cell.standing_by").Scan(&slots, &left)
			if err == nil && (slots == 0 || left > 0) {
				err = fmt.Errorf("%w: %d of %d slots that %s stands by for are not in sync", errNotFound, left, slots, at.name)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
