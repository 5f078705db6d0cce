package idgen

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/services/idgen/idgenapi"
)

// service leases. Several of them may share one database.
type service struct {
	store *store
	clock func() time.Time
	log   *slog.Logger
	count func(kind, result string) // metrics; never nil

	queues []*queue // by the kind's number - 1
}

// How long an empty budget is waited for before a caller is told so: it grows by
// 1,000 in each step.
const (
	budgetStep = 10 * time.Millisecond
	budgetWait = 1500 * time.Millisecond // less than callers wait for an answer
)

// lease gives a range, or says why not. Its refusals that a person must look at
// are alarms in the log.
func (s *service) lease(ctx context.Context, ask idgenapi.LeaseRequest) (idgenapi.Lease, error) {
	if err := validate(ask); err != nil {
		return idgenapi.Lease{}, err
	}
	lease, err := s.await(ctx, ask)
	for waited := time.Duration(0); errors.Is(err, idgenapi.ErrBudget) && waited < budgetWait; waited += budgetStep {
		select {
		case <-time.After(budgetStep):
			lease, err = s.await(ctx, ask)
		case <-ctx.Done():
			return idgenapi.Lease{}, context.Cause(ctx)
		}
	}
	log := s.log.With("kind", ask.Kind, "holder", ask.Holder)
	switch {
	case err == nil:
		s.count(ask.Kind, "leased")
		log.Info("leased", "lo", lease.Lo, "hi", lease.Hi)
		return lease, nil
	case errors.Is(err, idgenapi.ErrPaused):
		s.count(ask.Kind, "paused")
	case errors.Is(err, idgenapi.ErrClock):
		s.count(ask.Kind, "clock")
		log.Error("no lease: the clocks disagree", "alarm", "ids.clock", "error", err)
	case errors.Is(err, errOverlap):
		s.count(ask.Kind, "overlap")
		log.Error("no lease: it would overlap an older one", "alarm", "ids.overlap", "error", err)
	default:
		s.count(ask.Kind, errs.From(err).Code)
	}
	return idgenapi.Lease{}, err
}

// status reports every kind.
func (s *service) status(ctx context.Context) (idgenapi.Status, error) {
	now := s.clock()
	out, err := s.store.status(ctx)
	if err != nil {
		return out, err
	}
	out.NowMS = now.UnixMilli()
	since := now.Sub(id.Epoch).Milliseconds()
	for i := range out.Kinds {
		k := &out.Kinds[i]
		k.PausedForMS = max(k.PausedForMS-since, 0) // the store gives the end
		ahead := max(k.Hi-id.SeqAt(now), 0)
		k.BudgetUsed = float64(ahead) / float64(id.PerMilli*id.Budget.Milliseconds())
		perYear := float64(id.PerMilli) * float64((365 * 24 * time.Hour).Milliseconds())
		k.YearsLeft = float64(id.MaxSeq-max(k.Hi, id.SeqAt(now))) / perYear
	}
	return out, nil
}
