package bank

import (
	"math/rand/v2"
)

// currencies have 0, 2 and 3 digits behind the point.
var currencies = [...]string{"CNY", "USD", "EUR", "JPY", "KWD"}

const (
	opening = 100_000 // that each account gets, in minor units: nobody runs out by chance
	largest = 200     // one movement
)

// kind of a thing that somebody does.
type kind string

const (
	transfers kind = "transfer"
	refunds   kind = "refund"
	cancels   kind = "cancel"
	deposits  kind = "deposit"
	withdraws kind = "withdraw"
	reads     kind = "read"
)

// mix is what each round of twenty is made of, in an order of its own: each kind is
// there, whatever the seed.
var mix = [...]struct {
	kind kind
	n    int
}{{transfers, 11}, {reads, 3}, {refunds, 2}, {cancels, 2}, {deposits, 1}, {withdraws, 1}}

// step is one thing to do. pick chooses among what was done before.
type step struct {
	kind     kind
	who, to  int // people
	currency string
	amount   int64
	pick     uint64
}

// planner gives the steps of a seed, always the same.
type planner struct {
	random *rand.Rand
	people int
	round  []kind
}

func newPlanner(seed uint64, people int) *planner {
	return &planner{random: rand.New(rand.NewPCG(seed, 7)), people: people}
}

func (p *planner) next() step {
	if len(p.round) == 0 {
		for _, m := range mix {
			for range m.n {
				p.round = append(p.round, m.kind)
			}
		}
		p.random.Shuffle(len(p.round), func(i, j int) { p.round[i], p.round[j] = p.round[j], p.round[i] })
	}
	s := step{kind: p.round[0], who: p.random.IntN(p.people), currency: currencies[p.random.IntN(len(currencies))],
		amount: 1 + p.random.Int64N(largest), pick: p.random.Uint64()}
	p.round = p.round[1:]
	// Never to oneself; most people are in other cells.
	s.to = (s.who + 1 + p.random.IntN(p.people-1)) % p.people
	return s
}
