package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// The size of transfer-spread.
const (
	spreadPairs  = 5
	spreadWindow = 4 * time.Second
	spreadLead   = time.Second
	baseClients  = 16   // of the baseline, each with a connection to both servers
	manyMessages = "50" // that a consumer may commit together, its default
)

// transferSpread measures transfers from one cell to another by CPU: ours one
// message a commit and many, two-phase commit on the same tables and on plain
// ones, and the three local transactions alone.
func transferSpread(ctx context.Context, b *bank) ([]row, error) {
	if err := b.withoutCopies(ctx); err != nil {
		return nil, err
	}
	s := &spreadBench{b: b, flow: flow{from: b.cells[0], to: b.cells[1], payees: bankAccounts, clients: bankClients}}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	defer s.close()
	pairs, err := fewer(spreadPairs)
	if err != nil {
		return nil, err
	}
	for n := range pairs {
		if err := s.pair(ctx, n); err != nil {
			return nil, err
		}
	}
	if err := s.balanced(ctx); err != nil {
		return nil, err
	}
	return s.rows(), nil
}

// withoutCopies has the cells tell nobody of their changes and hold no outputs, as
// the baseline's cells do; everything else is as usual.
func (b *bank) withoutCopies(ctx context.Context) error {
	err := b.set(ctx, "agent", map[string]string{"AGENT_CDC_DSN": "off", "AGENT_OUTPUT_COMMIT": "off"}, b.all()...)
	if err == nil {
		err = b.set(ctx, "user", nil, b.all()...)
	}
	return err
}

// side is one way of making transfers, and what its rounds came to.
type side struct {
	name  string
	batch string          // ours: messages that a consumer may commit together
	parts []string        // whose CPU counts
	each  map[int]float64 // transfers per CPU-second, by round
	lean  map[int]float64 // the same without NATS
	rate  map[int]float64 // transfers per second
	last  string          // the last round's CPU by part
	do    func(ctx context.Context) (payments, error)
	cpu   func() float64 // CPU-seconds so far of a program of its own, nil = none
	first struct {       // what its connections' beginning costs with some transfers, taken off each round
		spent
		count int
	}
}

type spreadBench struct {
	b    *bank
	flow flow
	rest measured
	set  string // how many messages a consumer may commit together at the moment

	one, many, hot    *side // ours: one message a commit, many; many, to one account
	two, plain, limit *side // two-phase commit, the same on plain tables; the three local transactions
	closers           []func()
}

func (s *spreadBench) open(ctx context.Context) error {
	ours := func(name, batch string, payees int) *side {
		return &side{name: name, batch: batch, parts: ourParts, do: func(ctx context.Context) (payments, error) {
			f := s.flow
			f.payees = payees
			return s.b.pay(ctx, f, spreadLead, spreadWindow)
		}}
	}
	s.one, s.many = ours("one message a commit", "1", bankAccounts), ours("many messages a commit", manyMessages, bankAccounts)
	s.hot = ours("many messages a commit, one payee", manyMessages, 1)
	var err error
	base := func(name, database string) (*side, error) {
		p, err := openTwoPhase(ctx, s.b, database, s.flow.from, s.flow.to)
		if err != nil {
			return nil, err
		}
		pairs, closeAll, err := p.clients(ctx, s.flow, baseClients)
		if err != nil {
			return nil, err
		}
		s.closers = append(s.closers, closeAll)
		if _, err := p.pay(ctx, pairs, s.flow, 0, time.Second); err != nil {
			return nil, err
		}
		return &side{name: name, parts: baseParts, do: func(ctx context.Context) (payments, error) {
			return p.pay(ctx, pairs, s.flow, spreadLead, spreadWindow)
		}}, nil
	}
	if s.two, err = base("two-phase commit", twoPhaseDatabase); err != nil {
		return err
	}
	if s.plain, err = base("two-phase commit on plain tables", plainDatabase); err != nil {
		return err
	}
	l, err := openLimit(ctx, s.b)
	if err != nil {
		return err
	}
	args := []string{"-t", "5"}
	s.limit = &side{name: "three local transactions", parts: []string{"postgres *", "pgbench"}, cpu: func() float64 { return l.cpu },
		do: func(ctx context.Context) (payments, error) { return l.pay(ctx, args...) }}
	if err := s.b.warm(ctx, &s.flow); err != nil {
		return err
	}
	if s.rest, err = s.b.atRest(ctx, s.cells()...); err != nil {
		return err
	}
	// pgbench connects anew each time: a short run's cost is taken off the long ones.
	for range 2 { // the first has the database come into the cache
		got, used, err := s.measured(ctx, s.limit)
		if err != nil {
			return fmt.Errorf("%s: %w", s.limit.name, err)
		}
		s.limit.first.spent, s.limit.first.count = used.spent, got.begun
	}
	args = []string{"-T", fmt.Sprint(int((spreadLead + spreadWindow).Seconds()))}
	return nil
}

func (s *spreadBench) cells() []string { return []string{s.flow.from.name, s.flow.to.name} }

func (s *spreadBench) close() {
	for _, c := range s.closers {
		c()
	}
}

// pair has each side measured once; those that are only shown in every second pair.
// The order turns round, so that what the machine does slowly falls on all.
func (s *spreadBench) pair(ctx context.Context, n int) error {
	order := []*side{s.one, s.two, s.many}
	if n%2 == 0 {
		order = append(order, s.hot, s.limit, s.plain)
	} else {
		slices.Reverse(order)
	}
	for _, w := range order {
		if err := s.commitTogether(ctx, w); err != nil {
			return err
		}
		if err := s.round(ctx, n, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// commitTogether has the user services take as many messages as a side of ours is for.
func (s *spreadBench) commitTogether(ctx context.Context, w *side) error {
	if w.batch == "" || w.batch == s.set {
		return nil
	}
	s.set = w.batch
	if err := s.b.set(ctx, "user", map[string]string{"BUS_BATCH": w.batch}, s.cells()...); err != nil {
		return err
	}
	return s.b.warm(ctx, &s.flow)
}

// measured has a side make its transfers, with the CPU that they cost.
func (s *spreadBench) measured(ctx context.Context, w *side) (got payments, used measured, err error) {
	other := 0.0
	if w.cpu != nil {
		other = w.cpu()
	}
	used, err = s.b.measure(s.rest, func() (err error) { got, err = w.do(ctx); return err }, s.cells()...)
	if err == nil && w.cpu != nil {
		used.spent["pgbench"] = w.cpu() - other
	}
	return got, used, err
}

func (s *spreadBench) round(ctx context.Context, n int, w *side) error {
	got, used, err := s.measured(ctx, w)
	if err != nil {
		return err
	}
	used.spent = used.since(w.first.spent)
	count := got.begun - got.failed - w.first.count
	if w.each == nil {
		w.each, w.lean, w.rate = map[int]float64{}, map[int]float64{}, map[int]float64{}
	}
	w.each[n], w.rate[n] = float64(count)/used.sum(w.parts...), got.rate()
	w.lean[n] = float64(count) / (used.sum(w.parts...) - used.spent["nats"])
	w.last = used.breakdown(count, w.parts...)
	fmt.Fprintf(s.b.log, "bench: transfer-spread: %s: %.0f transfers per CPU-second, %.0f a second, p99 %.0f ms; CPU-ms each: %s\n",
		w.name, w.each[n], got.rate(), percentile(got.took, 0.99), w.last)
	return nil
}

// balanced holds the books of both sides to what they must come to: what was measured
// is transfers, each with both its halves.
func (s *spreadBench) balanced(ctx context.Context) error {
	for _, database := range []string{"cellmart", twoPhaseDatabase, plainDatabase} {
		var sent, received, clearing int64
		for _, at := range []*branch{s.flow.from, s.flow.to} {
			c, err := at.connect(ctx, database)
			if err != nil {
				return err
			}
			var out, in, sum int64
			err = c.QueryRow(ctx, `SELECT (SELECT count(*) FROM cell.transfers JOIN cell.slots s USING (slot) WHERE s.role = 'owner' AND transfers.state = 'SETTLED'),
				(SELECT count(*) FROM cell.credits JOIN cell.slots s USING (slot) WHERE s.role = 'owner' AND credits.state = 'CREDITED'),
				(SELECT sum(clearing)::bigint FROM cell.wallets JOIN cell.slots s USING (slot) WHERE s.role = 'owner')`).Scan(&out, &in, &sum)
			_ = c.Close(ctx) // it has said what there is
			if err != nil {
				return err
			}
			sent, received, clearing = sent+out, received+in, clearing+sum
		}
		if sent == 0 || sent != received || clearing != 0 {
			return fmt.Errorf("the books of %s don't balance: %d sent, %d received, %d on the way", database, sent, received, clearing)
		}
	}
	return nil
}

func (s *spreadBench) rows() []row {
	const unit = "transfers/CPU-s"
	line := func(name string, ours, base *side, goal float64, text string) row {
		each, baseEach := paired(ours.each, base.each)
		rate, baseRate := paired(ours.rate, base.rate)
		lean, _ := paired(ours.lean, base.lean)
		lo, hi := spread(each, baseEach)
		return atLeast(compare(name, unit, median(each), median(baseEach), shown, nil, fmt.Sprintf("%s; ratio of a pair %.2f to %.2f, median of %d pairs in turn, %.2f if NATS didn't count; %.0f a second (CPU-ms each: %s); baseline %.0f a second (%s)",
			text, lo, hi, len(each), median(lean)/median(baseEach), median(rate), ours.last, median(baseRate), base.last)), goal)
	}
	hot, many := paired(s.hot.rate, s.many.rate)
	lo, hi := spread(hot, many)
	limit, two := paired(s.limit.each, s.two.each)
	return []row{
		line("transfer-spread", s.one, s.two, 0.7, "handlers commit each message by itself; 1,000 payers of c1 to 1,000 payees of c2; counted: this program (begins them with the service's function and looks for their end), "+
			"agents, user services, NATS and Postgres of both cells; baseline: two-phase commit, last agent, pipelined, 16 clients, decision row: this program and the same two Postgres servers, tables with the same checks, triggers and policies, and the fence; "+
			"no side has copies, nothing is held; what the cells use at rest is taken off"),
		line("transfer-spread/batched", s.many, s.two, 1.2, "handlers commit several messages together (BUS_BATCH "+manyMessages+"); else the same"),
		line("transfer-spread/plain", s.many, s.plain, 0, "the same; the baseline's tables have keys and checks, but no triggers and no policies, and nobody looks whose slot it is"),
		line("transfer-spread/local-limit", s.many, s.limit, 0, fmt.Sprintf("the same; baseline: the three local transactions alone (transfer.sql, with the fence), by pgbench with 16 clients on c1's Postgres: no messages; it is %.2f of two-phase commit", median(limit)/median(two))),
		atLeast(compare("transfer-spread/hot-share", "transfers/s", median(hot), median(many), shown, nil,
			fmt.Sprintf("all to one payee; baseline: ours to 1,000 payees; %.2f to %.2f, median of %d pairs", lo, hi, len(hot))), 0.4),
	}
}

// atLeast sets a goal for a line's ratio, 0 = none.
func atLeast(r row, goal float64) row {
	if goal == 0 {
		return r
	}
	ok := r.Ratio != nil && *r.Ratio >= goal
	r.Goal, r.OK = fmt.Sprintf(">= %g", goal), &ok
	if !ok {
		r.Note = fmt.Sprintf("below the goal of %g: ", goal) + r.Note
	}
	return r
}

// paired gives the figures of the rounds that both have.
func paired(ours, base map[int]float64) (a, b []float64) {
	for n := range spreadPairs {
		x, one := ours[n]
		y, both := base[n]
		if one && both {
			a, b = append(a, x), append(b, y)
		}
	}
	return a, b
}

// spread gives the lowest and the highest ratio of a pair.
func spread(ours, base []float64) (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for i := range ours {
		lo, hi = min(lo, ours[i]/base[i]), max(hi, ours[i]/base[i])
	}
	return lo, hi
}
