package reconcile

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// pass is a look at all hours, window by window, from the oldest.
type pass struct {
	began, next time.Time
	window      time.Duration
	sum         int64
	notLooked   int
}

// step compares one pair's recent hours, and one window of the others, and gives
// how long that took: also in vain, unless the other cell is away.
func (r *Reconciler) step(ctx context.Context, mine ranges, to string) time.Duration {
	now := time.Now()
	since := now.Add(-r.wide(to, recentHours, r.o.Recent)).Truncate(time.Hour)
	recent, err := r.some(ctx, mine, to, since, now.Add(longest))
	r.note(ctx, to, recentHours, recent, err, func(s *state) {
		s.recent, s.figure.Open, s.notLooked[recentHours] = now, recent.Open, recent.NotLooked
		if s.whole.IsZero() {
			s.figure.Transfers = recent.Transfers
		}
	})
	r.resize(to, recentHours, r.o.Recent, time.Since(now), err)
	if away(err) {
		return 0
	}
	worked := time.Since(now)
	if err != nil || !r.turn(to, now) {
		return worked
	}
	if err := r.older(ctx, mine, to, since, recent.Transfers); err != nil {
		return worked
	}
	return time.Since(now)
}

// some is a comparison in its time; what is known is looked at again with it.
func (r *Reconciler) some(ctx context.Context, mine ranges, to string, since, until time.Time) (Pair, error) {
	ctx, cancel := context.WithTimeout(ctx, stepMost)
	defer cancel()
	return r.compare(ctx, mine, to, since, until, r.known(to))
}

// older compares the next window before the recent hours, which begin at last.
func (r *Reconciler) older(ctx context.Context, mine ranges, to string, last time.Time, recent int64) error {
	begun := time.Now()
	p, err := r.next(ctx, to)
	if err != nil {
		r.note(ctx, to, otherHours, Pair{}, err, nil)
		r.rest(to, begun, err)
		return err
	}
	until, whole := p.next.Add(r.wide(to, otherHours, p.window)), false
	if whole = !until.Before(last); whole {
		until = last
	}
	var old Pair
	if p.next.Before(until) {
		old, err = r.some(ctx, mine, to, p.next, until)
	}
	window := p.window
	r.note(ctx, to, otherHours, old, err, func(s *state) {
		p.next, p.sum, p.notLooked = later(p.next, until), p.sum+old.Transfers, p.notLooked+old.NotLooked
		s.notLooked[otherHours] = max(s.notLooked[otherHours], p.notLooked)
		if whole {
			s.whole, s.figure.Transfers, s.notLooked[otherHours] = p.began, p.sum+recent, p.notLooked
			p = pass{}
		}
		s.pass = p
	})
	r.resize(to, otherHours, window, time.Since(begun), err)
	if err != nil {
		r.rest(to, begun, err)
	}
	return err
}

// wide is how much is compared at a time, of hours that are usually usual.
func (r *Reconciler) wide(to string, hours int, usual time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.pairs[to]; s != nil && s.width[hours] > 0 {
		return min(s.width[hours], usual)
	}
	return usual
}

// resize halves a window that was too much, down to an hour, and doubles it again
// after one that was easy.
func (r *Reconciler) resize(to string, hours int, usual, took time.Duration, err error) {
	width := r.wide(to, hours, usual)
	switch {
	case away(err):
		return
	case err != nil:
		width = min(width, max(width/2, time.Hour))
	case took < stepMost/4:
		width *= 2
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.pairs[to]; s != nil {
		if s.width[hours] = width; width >= usual {
			s.width[hours] = 0
		}
	}
}

// rest gives the older hours a pause of their own for what was begun then in vain, so
// that the recent ones needn't wait for it.
func (r *Reconciler) rest(to string, began time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.pairs[to]; s != nil && !away(err) {
		s.rest = time.Now().Add(time.Duration(r.o.Patience) * time.Since(began))
	}
}

// turn says whether a window of the older hours is due.
func (r *Reconciler) turn(to string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.pairs[to]
	if s == nil || now.Before(s.rest) || !s.whole.IsZero() && now.Sub(s.slow) < r.o.Slow {
		return false
	}
	s.slow = now
	return true
}

// next is where the pass over all hours goes on, or a new one.
func (r *Reconciler) next(ctx context.Context, to string) (pass, error) {
	ctx, cancel := context.WithTimeout(ctx, stepMost)
	defer cancel()
	r.mu.Lock()
	var p pass
	if s := r.pairs[to]; s != nil {
		p = s.pass
	}
	r.mu.Unlock()
	if !p.began.IsZero() {
		return p, nil
	}
	p.began = time.Now()
	other, err := r.other(to)
	if err != nil {
		return p, err
	}
	var mine, theirs span
	if err := r.read(ctx, func(tx pgx.Tx) (err error) { mine, err = spanOf(ctx, tx, true); return err }); err != nil {
		return p, err
	}
	if err := other.ask(ctx, opSpan, question{Oldest: true}, &theirs); err != nil {
		return p, err
	}
	p.next = oldest(p.began, mine, theirs).Truncate(time.Hour)
	p.window = wide(r.o.Window, p.began.Sub(p.next))
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.pairs[to]; s != nil {
		s.pass = p // to find it took a look at everything: once is enough
	}
	return p, nil
}

// oldest is when the first transfer of any cell began.
func oldest(now time.Time, all ...span) time.Time {
	for _, s := range all {
		if s.Oldest != nil {
			now = earlier(now, *s.Oldest)
		}
	}
	return now
}
