package outputcommit

import (
	"context"
	"time"

	"example.com/cellmart/platform/routing"
)

// Status is what a gate knows. Counts are since its start.
type Status struct {
	Mode      string
	Held      int
	OldestMS  int64             // of what is held
	Released  map[string]uint64 // by how: covered, timed, uncovered, unmarked, alone
	Uncovered *Uncovered        // null = not read yet
	read      time.Time
}

// Uncovered is the own slots that are marked.
type Uncovered struct {
	Slots    int
	Untold   int // of which the voters don't know
	OldestMS int64
	Ranges   [][2]routing.Slot // the first of them
	AgeMS    int64             // since that was read
}

const maxRanges = 100

func (s *Status) count(how string) {
	if s.Released == nil {
		s.Released = map[string]uint64{}
	}
	s.Released[how]++
}

// marks takes what was read.
func (s *Status) marks(rows []row) {
	u := &Uncovered{Ranges: [][2]routing.Slot{}}
	for _, r := range rows {
		if !r.owned {
			continue
		}
		u.Slots++
		u.OldestMS = max(u.OldestMS, r.age.Milliseconds())
		if !r.marked {
			u.Untold++
		}
		if n := len(u.Ranges); n > 0 && u.Ranges[n-1][1] == r.mark.Slot-1 {
			u.Ranges[n-1][1] = r.mark.Slot
		} else if n < maxRanges {
			u.Ranges = append(u.Ranges, [2]routing.Slot{r.mark.Slot, r.mark.Slot})
		}
	}
	s.Uncovered, s.read = u, time.Now()
}

// Status tells how it is.
func (g *Gate) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := Status{Mode: "timed", Held: len(g.tickets), Released: map[string]uint64{}}
	if g.o.Strict {
		out.Mode = "strict"
	}
	for how, n := range g.shown.Released {
		out.Released[how] = n
	}
	for _, t := range g.order {
		if t.state != done {
			out.OldestMS = time.Since(t.since).Milliseconds()
			break
		}
	}
	if g.shown.Uncovered != nil {
		u := *g.shown.Uncovered
		u.AgeMS = time.Since(g.shown.read).Milliseconds()
		out.Uncovered = &u
	}
	return out
}

// Promotable says which slots nobody may be promoted for, and why: by the owner's
// own rows (nil = its database can't be asked), and by the marks that the voters
// have. Epochs are those of the owner. The caller has fenced the owner before: a row
// that comes later would be of something that is sent later.
func Promotable(ctx context.Context, owner Querier, marks []Mark, slots map[routing.Slot]routing.Epoch) (refused map[routing.Slot]string, err error) {
	refused = map[routing.Slot]string{}
	for _, m := range marks {
		if epoch, ok := slots[m.Slot]; ok && m.Epoch >= epoch {
			refused[m.Slot] = "it is marked uncovered since " + m.Since.UTC().Format(time.RFC3339)
		}
	}
	if owner == nil {
		return refused, nil
	}
	rows, err := readRows(ctx, owner)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		epoch, ok := slots[r.mark.Slot]
		switch {
		case !ok || r.mark.Epoch < epoch:
		case r.marked:
			refused[r.mark.Slot] = "its owner sent on uncovered, and has marked it"
		default:
			refused[r.mark.Slot] = "its owner sent on uncovered, and nobody was told"
		}
	}
	return refused, nil
}
