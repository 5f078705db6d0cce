package explore

import (
	"fmt"
	"slices"
)

// World is a part of the protocol as a graph: states, and the moves between them.
// A state is a value, so that one reached on two ways is seen once.
type World[S comparable] interface {
	// Start gives the first state.
	Start() S
	// Moves calls to for each state that one move leads to, always in the same
	// order. who and what say the move; free ones may never happen (a fault, a
	// wish), the others do in the end.
	Moves(s S, to func(who, what string, next S, free bool))
	// Broken names the invariant that s breaks, "" = none.
	Broken(s S) string
	// Rests says that nothing is left to be done.
	Rests(s S) bool
}

// Found is what States has seen.
type Found struct {
	States int             // all that can be reached, or all up to the violation
	Moves  int             // between them
	Depth  int             // moves on the shortest way to the last state
	Broken string          // the violation that is nearest to the start, "" = none
	Trace  []string        // the shortest way there
	Taken  map[string]bool // the kinds of moves that were made
}

// Stuck is the violation that is seen last: no end can be reached any more.
const Stuck = "stuck for ever"

// States looks at every state, breadth first, so that the way to a violation is a
// shortest one. Without one it looks whether from every state one that rests
// can be reached without any further fault or wish.
// wants, if it isn't empty, is the only violation that counts.
func States[S comparable](w World[S], wants string, limit int) (Found, error) {
	g := graph[S]{w: w, wants: wants, index: map[S]int32{}, taken: map[string]bool{}}
	g.add(w.Start(), -1)
	for at := 0; at < len(g.states) && g.broken < 0; at++ {
		g.first = append(g.first, int32(len(g.healing)))
		if len(g.states) > limit {
			return Found{}, fmt.Errorf("more than %d states", limit)
		}
		g.expand(int32(at))
	}
	f := Found{States: len(g.states), Moves: g.moves, Depth: g.depth(int32(len(g.states) - 1)), Taken: g.taken}
	bad, why := g.broken, g.why
	if bad < 0 && (wants == "" || wants == Stuck) {
		bad, why = g.stuck(), Stuck
	}
	if bad >= 0 {
		f.Broken, f.Depth, f.Trace = why, g.depth(bad), g.trace(bad)
	}
	return f, nil
}

type graph[S comparable] struct {
	w       World[S]
	wants   string
	taken   map[string]bool
	index   map[S]int32
	states  []S
	parent  []int32
	moves   int
	healing []int32 // where the moves that aren't free lead to, state by state
	first   []int32 // where a state's begin in there
	broken  int32   // the first that breaks something; 0 = none as yet, see add
	why     string
}

func (g *graph[S]) add(s S, from int32) int32 {
	if i, ok := g.index[s]; ok {
		return i
	}
	i := int32(len(g.states))
	g.index[s], g.states, g.parent = i, append(g.states, s), append(g.parent, from)
	if i == 0 {
		g.broken = -1
	}
	if why := g.w.Broken(s); why != "" && g.broken < 0 && (g.wants == "" || g.wants == why) {
		g.broken, g.why = i, why
	}
	return i
}

func (g *graph[S]) expand(at int32) {
	s := g.states[at]
	g.w.Moves(s, func(_, what string, next S, free bool) {
		if next == s {
			return
		}
		g.moves++
		if !g.taken[what] {
			g.taken[what] = true
		}
		i := g.add(next, at)
		if !free {
			g.healing = append(g.healing, i)
		}
	})
}

// stuck gives the nearest state from which no healing move leads to rest, or -1.
func (g *graph[S]) stuck() int32 {
	n := len(g.states)
	g.first = append(g.first, int32(len(g.healing)))
	count := make([]int32, n+1) // the same edges, by where they lead to
	for _, to := range g.healing {
		count[to+1]++
	}
	for i := range n {
		count[i+1] += count[i]
	}
	from, next := make([]int32, len(g.healing)), slices.Clone(count)
	for i := range n {
		for _, to := range g.healing[g.first[i]:g.first[i+1]] {
			from[next[to]] = int32(i)
			next[to]++
		}
	}
	heals := make([]bool, n)
	var queue []int32
	for i, s := range g.states {
		if g.w.Rests(s) {
			heals[i], queue = true, append(queue, int32(i))
		}
	}
	for len(queue) > 0 {
		i := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, j := range from[count[i]:count[i+1]] {
			if !heals[j] {
				heals[j], queue = true, append(queue, j)
			}
		}
	}
	return int32(slices.Index(heals, false))
}

func (g *graph[S]) depth(i int32) (n int) {
	for ; g.parent[i] >= 0; i = g.parent[i] {
		n++
	}
	return n
}

// trace says the moves again that led to a state.
func (g *graph[S]) trace(i int32) (out []string) {
	for ; g.parent[i] >= 0; i = g.parent[i] {
		said := false
		g.w.Moves(g.states[g.parent[i]], func(who, what string, next S, _ bool) {
			if !said && next == g.states[i] {
				said, out = true, append(out, who+": "+what)
			}
		})
	}
	slices.Reverse(out)
	return out
}
