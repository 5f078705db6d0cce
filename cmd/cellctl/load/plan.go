package load

import (
	"math/rand/v2"
	"time"
)

// Kind is what a request is for.
type Kind uint8

// The kinds, in the order they are printed.
const (
	Browse Kind = iota
	Search
	Cart
	Order
	Transfer
	Deposit
	Lists
	kinds
)

// String is the kind's name in lines and JSON.
func (k Kind) String() string {
	return [...]string{"browse", "search", "cart", "order", "transfer", "deposit", "lists"}[k]
}

// OfUser says that only the user's home can serve the kind; what is left any cell
// has.
func (k Kind) OfUser() bool { return k != Browse && k != Search }

// deck is the mix: 20 requests of one home.
func deck(search bool) []Kind {
	d := []Kind{
		Browse, Browse, Browse, Browse, Browse, Browse, Browse, Browse, Search, Search,
		Cart, Cart, Cart, Order, Order, Order, Transfer, Transfer, Deposit, Lists,
	}
	for i := range d {
		if d[i] == Search && !search {
			d[i] = Browse
		}
	}
	return d
}

// shot is one request to send.
type shot struct {
	kind  Kind
	home  int // index of the cell
	user  int // of the home's
	other int // index of the cell that the seller or payee is in
	peer  int // which of that cell's users
	via   int // index of the cell whose gateway is asked; edge = -1
	pick  uint64
}

const (
	viaEdge = -1
	seller  = 0 // the user of each cell that sells
)

// planner makes the same shots from the same seed.
type planner struct {
	edgeless bool // nobody asks the edge
	rng      *rand.Rand
	cells    int
	users    int // of each cell
	search   bool
	doors    func(home int) []int // gateways that a home's users may use; nil = all

	round     []int // homes of this round that are not yet out
	decks     [][]Kind
	orders    []int
	transfers []int
}

func newPlanner(seed uint64, cells, users int, search bool, doors func(home int) []int) *planner {
	return &planner{
		rng: rand.New(rand.NewPCG(seed, 0x63656c6c)), cells: cells, users: users, search: search, doors: doors,
		decks: make([][]Kind, cells), orders: make([]int, cells), transfers: make([]int, cells),
	}
}

func (p *planner) next() shot {
	if len(p.round) == 0 {
		p.round = p.rng.Perm(p.cells)
	}
	s := shot{home: p.round[0], pick: p.rng.Uint64()}
	p.round = p.round[1:]
	if len(p.decks[s.home]) == 0 {
		d := deck(p.search)
		p.rng.Shuffle(len(d), func(i, j int) { d[i], d[j] = d[j], d[i] })
		p.decks[s.home] = d
	}
	s.kind = p.decks[s.home][0]
	p.decks[s.home] = p.decks[s.home][1:]
	s.user, s.peer, s.via = p.rng.IntN(p.users), p.rng.IntN(p.users), p.via(s.home)
	far := false
	switch s.kind {
	case Order:
		p.orders[s.home]++
		far = p.orders[s.home]%2 == 0
	case Transfer:
		p.transfers[s.home]++
		far = p.transfers[s.home]%4 != 0
	case Cart, Browse, Search:
		far = s.pick%2 == 0
	}
	s.other = s.home
	if far && p.cells > 1 {
		s.other = (s.home + 1 + p.rng.IntN(p.cells-1)) % p.cells
	}
	switch {
	case s.other != s.home:
	case s.kind == Order && s.user == seller: // nobody buys from themselves
		s.user = 1 + p.rng.IntN(p.users-1)
	case s.peer == s.user: // or pays themselves
		s.peer = (s.peer + 1) % p.users
	}
	return s
}

// via chooses whom to ask: three of five times the own gateway, else another or
// the edge.
func (p *planner) via(home int) int {
	var doors []int
	if p.doors != nil {
		doors = p.doors(home)
	} else {
		for i := range p.cells {
			doors = append(doors, i)
		}
	}
	own := false
	var others []int
	for _, d := range doors {
		if d == home {
			own = true
		} else {
			others = append(others, d)
		}
	}
	switch n := p.rng.IntN(5); {
	case own && (n < 3 || p.edgeless && len(others) == 0):
		return home
	case p.edgeless && len(others) > 0:
	case len(others) == 0 || n == 4 || !own && n >= 2:
		return viaEdge
	}
	return others[p.rng.IntN(len(others))]
}

// when is the time of the n-th request since the start.
func when(n int64, rate float64) time.Duration {
	return time.Duration(float64(n) / rate * float64(time.Second))
}

// Kinds lists the kinds of a mix.
func Kinds(search bool) (out []Kind) {
	for k := range kinds {
		if k != Search || search {
			out = append(out, k)
		}
	}
	return out
}
