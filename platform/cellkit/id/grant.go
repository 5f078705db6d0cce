package id

import (
	"fmt"
	"sync"
	"time"
)

// What idgen keeps to, and a grant is held against: sequences follow the time
// since Epoch at PerMilli, and never run ahead of it by more than Budget.
const (
	PerMilli = 100
	Budget   = 60 * time.Second
	// maxSkew is how far a grant may be from this process's clock. It is wide:
	// it finds clocks that are plainly wrong and stops them from using up the
	// sequence, while uniqueness needs no clock here at all.
	maxSkew = 24 * time.Hour
	// BankAge is how long a range may lie in the bank: the bank's keeper throws
	// older ones away, a process that is given one doesn't believe it.
	BankAge = 30 * 24 * time.Hour
)

// Epoch is when sequences start to count.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// SeqAt is the sequence that belongs to a time: PerMilli for each millisecond
// since Epoch. Negative before it.
func SeqAt(t time.Time) int64 { return t.Sub(Epoch).Milliseconds() * PerMilli }

// Grant is a range [Lo, Hi) that was given, beside what was asked for.
type Grant struct {
	Lo, Hi int64
	Floor  int64 // the end of the last one from there
	Size   int64 // the most that was asked for
	Now    time.Time
	Age    time.Duration // how old the range may be, beyond the clocks' skew
}

// CheckGrant holds a grant against what was asked for and against the own clock,
// so that one source gone wrong isn't believed.
func CheckGrant(g Grant) error {
	switch {
	case g.Lo < g.Floor:
		return fmt.Errorf("starts at %d, below %d: given before", g.Lo, g.Floor)
	case g.Lo < 1 || g.Hi <= g.Lo || g.Hi > MaxSeq:
		return fmt.Errorf("[%d, %d) is not a range of sequences: bit 62 and the sign are not part of one", g.Lo, g.Hi)
	case g.Hi-g.Lo > g.Size:
		return fmt.Errorf("%d long, %d were asked for", g.Hi-g.Lo, g.Size)
	case g.Lo < SeqAt(g.Now.Add(-maxSkew-g.Age)):
		return fmt.Errorf("starts at %d, more than %v behind the own clock", g.Lo, maxSkew+g.Age)
	case g.Hi > SeqAt(g.Now.Add(Budget+maxSkew)):
		return fmt.Errorf("ends at %d, more than %v ahead of the own clock", g.Hi, maxSkew)
	}
	return nil
}

type span struct{ lo, hi int64 }

// spans are the last ranges that a process had of a kind, whoever gave them.
type spans []span

const maxSpans = 256

func (s spans) overlap(lo, hi int64) error {
	for _, had := range s {
		if lo < had.hi && had.lo < hi {
			return fmt.Errorf("[%d, %d) overlaps [%d, %d), which this process had", lo, hi, had.lo, had.hi)
		}
	}
	return nil
}

func (s *spans) add(lo, hi int64) {
	if len(*s) == maxSpans {
		*s = append((*s)[:0], (*s)[1:]...)
	}
	*s = append(*s, span{lo, hi})
}

// Quarantined is a grant that was not believed: nobody ever uses it, and it is
// shown until the process ends.
type Quarantined struct {
	Source string    `json:"source"` // idgen, bank, fallback
	Lo     int64     `json:"lo,string"`
	Hi     int64     `json:"hi,string"`
	Why    string    `json:"why"`
	At     time.Time `json:"at"`
}

// quarantine keeps the last few and counts all.
type quarantine struct {
	mu    sync.Mutex
	count int64
	last  []Quarantined
}

func (q *quarantine) put(g Quarantined) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count++
	if len(q.last) == 5 {
		q.last = q.last[1:]
	}
	q.last = append(q.last, g)
}

func (q *quarantine) get() (int64, []Quarantined) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count, append([]Quarantined(nil), q.last...)
}
