package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"

	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/agent/agentapi"
	"example.com/cellmart/services/control/controlapi"
)

const (
	exchangeEach = time.Second
	askLimit     = 25 * time.Second // of a list of slots that are locked one after the other
)

// exchanger carries out exchanges of standbys. What it knows is in rows; each step
// may be done twice, and by two instances at once.
type exchanger struct {
	service *service
	agent   func(cell string) *agentapi.Client
	log     *slog.Logger
	wake    chan struct{}
	open    atomic.Int64 // parts that have not ended, as last seen; -1 = not known
}

func newExchanger(s *service, agent func(cell string) *agentapi.Client, log *slog.Logger) *exchanger {
	x := &exchanger{service: s, agent: agent, log: log, wake: make(chan struct{}, 1)}
	x.open.Store(-1)
	return x
}

// begin plans what isn't as asked for, and stores it.
func (x *exchanger) begin(ctx context.Context, req controlapi.ExchangeRequest) (controlapi.Exchange, error) {
	if err := x.service.refresh(ctx); err != nil {
		return controlapi.Exchange{}, err
	}
	cur := x.service.holder.Load()
	if cur == nil {
		return controlapi.Exchange{}, controlapi.ErrNone
	}
	parts, err := planParts(cur, req)
	if err == nil && len(parts) == 0 {
		err = x.opposed(ctx, req)
	}
	if err != nil || len(parts) == 0 {
		return controlapi.Exchange{Reason: req.Reason, Parts: []controlapi.ExchangePart{}}, err
	}
	id, err := x.service.store.plan(ctx, req.Reason, parts)
	if err != nil {
		return controlapi.Exchange{}, err
	}
	x.poke()
	return x.one(ctx, id)
}

// opposed refuses to call it done already while another exchange is about to
// change it.
func (x *exchanger) opposed(ctx context.Context, req controlapi.ExchangeRequest) error {
	open, err := x.service.store.openParts(ctx)
	if err != nil {
		return err
	}
	for _, p := range open {
		for _, s := range p.list() {
			if req.Spread || slices.ContainsFunc(req.Standbys, func(b controlapi.Standby) bool { return s >= b.From && s <= b.To && b.Standby != p.target }) {
				return controlapi.ErrExchangeOpen.Msgf("exchange %d has some of these slots, and has not ended", p.exchange)
			}
		}
	}
	return nil
}

func (x *exchanger) cancel(ctx context.Context, id int64) (controlapi.Exchange, error) {
	if err := x.service.store.cancel(ctx, id); err != nil {
		return controlapi.Exchange{}, err
	}
	x.poke()
	return x.one(ctx, id)
}

func (x *exchanger) one(ctx context.Context, id int64) (controlapi.Exchange, error) {
	all, err := x.service.store.exchanges(ctx, id, 1)
	if err == nil && len(all) == 0 {
		err = controlapi.ErrNoExchange
	}
	if err != nil {
		return controlapi.Exchange{}, err
	}
	return all[0], nil
}

func (x *exchanger) poke() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// planParts says what has to change in a table: by owner, then target. Slots that
// are as asked for are left out.
func planParts(cur *routing.Table, req controlapi.ExchangeRequest) ([]part, error) {
	if req.Spread == (len(req.Standbys) > 0) {
		return nil, errs.Field("standbys", "give either standbys or spread")
	}
	want := cur.Spec()
	if req.Spread {
		spread(&want)
	}
	for i, b := range req.Standbys {
		field := fmt.Sprintf("standbys[%d]", i)
		if _, ok := cur.Cell(b.Standby); !ok {
			return nil, errs.Field(field, "there is no cell %q", b.Standby)
		}
		if err := eachSlot(&want, field, b.From, b.To, func(s routing.Slot, row *routing.Assignment) error {
			if row.Owner == b.Standby {
				return errs.Field(field, "%s owns slot %d and can't stand by for it", b.Standby, s)
			}
			row.Standby = b.Standby
			return nil
		}); err != nil {
			return nil, err
		}
	}
	byPair := map[pair]*part{}
	add := func(s routing.Slot, to string) {
		was, ok := cur.Slot(s)
		if !ok || to == "" || to == was.Standby {
			return
		}
		p := byPair[pair{was.Owner, to}]
		if p == nil {
			p = &part{owner: was.Owner, target: to}
			byPair[pair{was.Owner, to}] = p
		}
		p.slots, p.epochs = append(p.slots, int32(s)), append(p.epochs, int64(was.Epoch))
	}
	for s, a := range want.Slots {
		add(routing.Slot(s), a.Standby)
	}
	for _, s := range cur.PrivateSlots() {
		add(s, want.Private[s].Standby)
	}
	out := make([]part, 0, len(byPair))
	for _, p := range byPair {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b part) int { return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.target, b.target)) })
	return out, nil
}

// run carries on what is open, each second, until ctx ends.
func (x *exchanger) run(ctx context.Context) error {
	tick := time.NewTicker(exchangeEach)
	defer tick.Stop()
	var was string
	for {
		err := x.once(ctx)
		if now := fmt.Sprint(err); now != was && ctx.Err() == nil {
			if was = now; err != nil {
				x.log.Warn("exchange of standbys", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-x.wake:
		case <-tick.C:
		}
	}
}

// once carries each open part one step on. Parts that are in sync are switched
// together: each table costs every process something.
func (x *exchanger) once(ctx context.Context) error {
	parts, err := x.service.store.openParts(ctx)
	if err != nil {
		x.open.Store(-1)
		return err
	}
	if x.open.Store(int64(len(parts))); len(parts) == 0 {
		return nil
	}
	if err := x.service.refresh(ctx); err != nil {
		return err
	}
	cur := x.service.holder.Load()
	if cur == nil {
		return controlapi.ErrNone
	}
	ready := make([]bool, len(parts))
	failed := make([]error, len(parts))
	byOwner := map[string][]int{} // an owner is asked for one part after the other
	for i, p := range parts {
		byOwner[p.owner] = append(byOwner[p.owner], i)
	}
	var all sync.WaitGroup
	for _, list := range byOwner {
		all.Go(func() {
			for _, i := range list {
				ready[i], failed[i] = x.step(ctx, parts[i], cur)
			}
		})
	}
	all.Wait()
	var inSync []part
	for i, p := range parts {
		if ready[i] {
			inSync = append(inSync, p)
		}
	}
	if len(inSync) > 0 {
		failed = append(failed, x.publish(ctx, inSync))
	}
	return errors.Join(failed...)
}

// still is what of a part the table has as it was planned.
func still(p part, cur *routing.Table) part {
	out := p
	out.slots, out.epochs = []int32{}, []int64{}
	for i, s := range p.slots {
		if a, ok := cur.Slot(routing.Slot(s)); ok && a.Owner == p.owner && int64(a.Epoch) == p.epochs[i] {
			out.slots, out.epochs = append(out.slots, s), append(out.epochs, p.epochs[i])
		}
	}
	return out
}

// step carries a part on, but for the table that it needs: ready then. What others
// don't answer is noted, and asked again.
func (x *exchanger) step(ctx context.Context, p part, cur *routing.Table) (ready bool, err error) {
	asking, cancel := context.WithTimeout(ctx, askLimit) // not of what is noted after
	defer cancel()
	to := still(p, cur)
	store := func(state, detail string) error {
		to.state = state
		return x.service.store.become(ctx, p, to, detail)
	}
	if len(to.slots) == 0 {
		to.slots, to.epochs = p.slots, p.epochs // for the record
		if p.state == controlapi.Switched {
			return false, store(controlapi.Done, "the slots have another owner since")
		}
		return false, store(controlapi.Cancelled, "the slots have another owner")
	}
	ask := agentapi.Incoming{Slots: to.list(), Target: p.target}
	switch p.state {
	case controlapi.Switched:
		ask = agentapi.Incoming{}
	case controlapi.Cancelling:
		ask.Target = ""
	}
	at, err := x.agent(p.owner).SetIncoming(asking, ask)
	if err != nil {
		return false, store(p.state, fmt.Sprintf("%s: %v", p.owner, err))
	}
	if err := x.service.store.step("asked"); err != nil {
		return false, err
	}
	switch p.state {
	case controlapi.Switched:
		if at.AppliedRoute < p.version {
			return false, store(p.state, fmt.Sprintf("%s has table %d, not %d yet", p.owner, at.AppliedRoute, p.version))
		}
		return false, store(controlapi.Done, "")
	case controlapi.Cancelling:
		return false, store(controlapi.Cancelled, "cancelled by an operator")
	}
	if p.state == controlapi.Planned || at.Changed > 0 || at.Incarnation != p.incarnation || len(to.slots) != len(p.slots) {
		to.incarnation, to.lsn = at.Incarnation, at.LSN
		return false, store(controlapi.Copying, p.target+" has yet to hear of it")
	}
	missing, err := x.missing(asking, to)
	if err == nil && missing == "" {
		missing, err = x.passed(asking, to, ask)
	}
	if err != nil {
		return false, store(p.state, fmt.Sprintf("%s: %v", p.target, err))
	}
	return missing == "", store(p.state, missing)
}

func (p part) list() []routing.Slot {
	out := make([]routing.Slot, len(p.slots))
	for i, s := range p.slots {
		out[i] = routing.Slot(s)
	}
	return out
}

// missing says what the target lacks. What it has counts only once it has applied
// the owner's word that it is incoming: before that it may speak of an older copy.
func (x *exchanger) missing(ctx context.Context, p part) (string, error) {
	st, err := x.agent(p.target).Standby(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(st.Sources, func(s agentapi.StandbySource) bool { return s.Source == p.owner })
	if i < 0 {
		return p.target + " has nothing of " + p.owner + " yet", nil
	}
	s := st.Sources[i]
	has, err := pglogrepl.ParseLSN(s.LSN)
	if err != nil {
		return "", fmt.Errorf("position %q: %w", s.LSN, err)
	}
	wants, err := pglogrepl.ParseLSN(p.lsn)
	if err != nil {
		return "", fmt.Errorf("position %q: %w", p.lsn, err)
	}
	if s.Incarnation != p.incarnation {
		return fmt.Sprintf("%s is with another database of %s, %s, not %s", p.target, p.owner, s.Incarnation, p.incarnation), nil
	}
	if has < wants {
		return fmt.Sprintf("%s is at %s of %s, not at %s yet", p.target, has, p.owner, wants), nil
	}
	n := 0
	for i, slot := range p.slots {
		if s.Has(routing.Slot(slot), routing.Epoch(p.epochs[i])) {
			n++
		}
	}
	if n < len(p.slots) {
		return fmt.Sprintf("%s has %d of %d slots in sync", p.target, n, len(p.slots)), nil
	}
	return "", nil
}

// publish stores a table that names the targets, and that it did, in one
// transaction: there is no state in between.
func (x *exchanger) publish(ctx context.Context, parts []part) error {
	if err := x.service.store.step("in sync"); err != nil {
		return err
	}
	reason := fmt.Sprintf("exchange %d of standbys: %s", parts[0].exchange, parts[0].reason)
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	_, err := x.service.writeParts(ctx, reason, func(cur *routing.Table) (*routing.Table, error) {
		if cur == nil {
			return nil, controlapi.ErrNone
		}
		spec := cur.Spec()
		spec.Version++
		for _, p := range parts {
			if len(still(p, cur).slots) != len(p.slots) {
				return nil, errAgain // a newer table than the one that was looked at
			}
			for _, n := range p.slots {
				if s := routing.Slot(n); s.Private() {
					a := spec.Private[s]
					a.Standby = p.target
					spec.Private[s] = a
				} else {
					spec.Slots[s].Standby = p.target
				}
			}
		}
		next, err := routing.Build(spec)
		if err != nil {
			return nil, err
		}
		return next, cur.CheckNext(next)
	}, parts)
	if errors.Is(err, errAgain) {
		return nil // the next round sees what there is
	}
	return err
}
