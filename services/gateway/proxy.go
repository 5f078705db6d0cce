package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/relay"
	"example.com/cellmart/platform/routing"
)

// limits are the gateway's times; tests shorten them.
type limits struct {
	request  time.Duration // the whole of a request
	local    time.Duration // for the head of a local service's answer
	forward  time.Duration // for the head of another cell's answer
	doubtful time.Duration // the same while the cell's health calls are late
	hold     time.Duration // for a slot that is being handed over
	pause    time.Duration // between two tries while holding
	fresh    time.Duration // for a newer table, when one must exist
}

func defaultLimits() limits {
	return limits{
		request: 8 * time.Second, local: 3 * time.Second, forward: 2 * time.Second, doubtful: time.Second,
		hold: 2 * time.Second, pause: 50 * time.Millisecond, fresh: 250 * time.Millisecond,
	}
}

// Gateway sends each request to the cell that has its slot.
type Gateway struct {
	cell      string
	table     *routing.Holder
	refresh   func() // asks for a newer table, doesn't wait
	verify    verifyFunc
	denied    *denied
	now       func() time.Time // for what is measured
	wall      func() time.Time // for tokens
	numbers   *id.Numbers
	local     map[string]*service
	peers     *peers
	writer    *peer
	search    *peer
	linkUp    func(zone string) (up, known bool)
	count     func(kind, way string)
	redirects redirects // nil: what belongs to another cell is forwarded
	limits    limits
}

// job is one request on its way.
type job struct {
	rule          rule
	from          arrival
	authorization string
	user          id.ID        // who asks
	who           id.ID        // whose home it goes to; 0: the slot's
	slot          routing.Slot // if it's about nobody
	at            place        // where it is now believed to belong
	away          bool         // another cell was asked
	redirected    bool         // by another gateway, to this one
}

// global says that the global zone answers.
func (j job) global() bool { return j.rule.service == svcWriter || j.rule.service == svcSearch }

// way is what the job took.
func (j job) way() string {
	switch {
	case j.global():
		return wayGlobal
	case j.away || j.redirected:
		return wayForwarded
	}
	return wayLocal
}

// home gives the job's place by a table.
func (j job) home(t *routing.Table) (place, error) {
	if j.who == 0 || t == nil {
		return locate(t, j.slot)
	}
	slot, a, ok := t.Home(int64(j.who))
	if !ok {
		return locate(t, slot)
	}
	return place{cell: a.Owner, slot: slot, epoch: a.Epoch}, nil
}

// locate finds where a job goes now. A sender that knows a later epoch than this
// table does, or a private slot that it doesn't have, has a newer table: it's
// waited for a moment. Without it nothing is said about a private slot, least of
// all that what is looked for doesn't exist.
func (g *Gateway) locate(ctx context.Context, j job) (place, error) {
	p, err := j.home(g.table.Load())
	if !j.from.hopped {
		return p, err
	}
	unknown := func() bool {
		return j.from.slot >= routing.FirstUserSlot && (err != nil || p.slot != j.from.slot)
	}
	if unknown() || err == nil && p.slot == j.from.slot && j.from.epoch > p.epoch {
		g.awaitTable(ctx)
		p, err = j.home(g.table.Load())
	}
	switch {
	case unknown():
		return p, ErrUnsettled.Because(fmt.Errorf("route table %d doesn't have private slot %s for this", g.table.Version(), j.from.slot))
	case err != nil:
		return p, err
	case p.cell != g.cell:
		return p, misrouted(p)
	}
	return p, nil
}

// awaitTable asks for a newer table and gives it a moment to come.
func (g *Gateway) awaitTable(ctx context.Context) {
	changed := g.table.Changed()
	g.refresh()
	wait(ctx, g.limits.fresh, changed)
}

func wait(ctx context.Context, d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-ctx.Done():
	}
}

// settle sends the job where it belongs and gives the answer. A refusal with 421
// had no effect, so the request is sent once more, to where the refuser or the
// newest table says; what was refused twice is moving, and 503.
func (g *Gateway) settle(ctx context.Context, j *job, q relay.Request) (*http.Response, error) {
	until := g.now().Add(g.limits.hold)
	for corrected := false; ; {
		j.away = j.away || j.at.cell != g.cell
		res, err := g.ask(ctx, *j, q)
		if err != nil {
			return nil, err
		}
		refused, err := refusal(res)
		if err != nil {
			return nil, g.lost(j.at.cell, q, err)
		}
		switch {
		case refused == nil:
			return res, nil
		case refused.Code == codeDraining:
			// The first gateway holds the request, so that it isn't held twice.
			if j.from.hopped || g.now().After(until) || ctx.Err() != nil {
				return nil, refused
			}
			wait(ctx, g.limits.pause, g.table.Changed())
			j.at = g.correct(*j, refused)
			continue
		case corrected:
			return nil, g.unsettled(*j, refused)
		}
		corrected = true
		next := g.correct(*j, refused)
		if next == j.at { // no news: the refuser is ahead of us and didn't say how
			g.awaitTable(ctx)
			next = g.correct(*j, refused)
		} else {
			g.refresh()
		}
		if j.at = next; j.from.hopped && next.cell != g.cell {
			return nil, misrouted(next)
		}
	}
}

// correct gives where to ask after a refusal.
func (g *Gateway) correct(j job, refused *errs.Error) place {
	t := g.table.Load()
	base, err := j.home(t)
	if err != nil {
		base = j.at
	}
	return correct(j.at, refused, base, t)
}

// unsettled is the end of a job that was refused twice: only gateways understand
// a 421.
func (g *Gateway) unsettled(j job, refused *errs.Error) error {
	if j.from.hopped {
		return refused
	}
	return ErrUnsettled.Because(refused)
}

// maxProblem bounds what is read of an answer to see whether it's a refusal.
const maxProblem = 64 << 10

// refusal gives the error of an answer that may be asked for again elsewhere or
// later: 421, or 503 of a slot that is being handed over. Then the answer is
// closed. Any other answer is left as it is.
func refusal(res *http.Response) (*errs.Error, error) {
	if res.StatusCode != http.StatusMisdirectedRequest && res.StatusCode != http.StatusServiceUnavailable {
		return nil, nil
	}
	body, err := relay.Hold(res, maxProblem)
	if err != nil {
		return nil, err
	}
	e := call.DecodeProblem(res.StatusCode, res.Header, body)
	if res.StatusCode == http.StatusServiceUnavailable && e.Code != codeDraining {
		return nil, nil
	}
	res.Body.Close()
	e.Kind = errs.KindOf(res.StatusCode) // of a 421 that isn't one of ours, too
	return e, nil
}

// ask sends the job to where it is now believed to belong.
func (g *Gateway) ask(ctx context.Context, j job, q relay.Request) (*http.Response, error) {
	q.Header = q.Header.Clone()
	q.Header.Del("Authorization")
	route := call.Route{Cell: j.at.cell, Slot: j.at.slot, Epoch: j.at.epoch, User: j.user}
	switch {
	case j.rule.service == svcWriter:
		return g.askWriter(ctx, j, q, route)
	case j.rule.service == svcSearch:
		return g.askSearch(ctx, j, q, route)
	case j.at.cell == g.cell:
		route.SetHeaders(q.Header, g.cell)
		res, err := g.local[j.rule.service].send(ctx, q, g.limits.local)
		if err != nil {
			return nil, g.lost(g.cell, q, err)
		}
		return res, nil
	}
	route.User = 0 // the home reads the token itself
	route.SetHeaders(q.Header, g.cell)
	q.Header.Set(call.HeaderHop, strconv.Itoa(1))
	if j.authorization != "" {
		q.Header.Set("Authorization", j.authorization)
	}
	return g.askPeer(ctx, g.peers.get(j.at.cell), q, ErrUnreachable.In(j.at.cell))
}

// askWriter goes to the global zone, which no request needs but this one.
func (g *Gateway) askWriter(ctx context.Context, j job, q relay.Request, route call.Route) (*http.Response, error) {
	toGlobal(j, q, route, g.cell)
	q.Header.Set("Authorization", j.authorization)
	down := ErrWriterDown.In(routing.Global)
	if up, known := g.linkUp(routing.Global); known && !up {
		return nil, down.Because(errors.New("the link to the global zone is down"))
	}
	res, err := relay.Send(ctx, g.writer.transport, g.writer.base, q, g.limits.forward)
	var lost *relay.Lost
	if errors.As(err, &lost) && ctx.Err() == nil {
		return nil, lostOr(down, q, lost)
	}
	return res, err
}

// toGlobal sets the headers for the global zone's services.
func toGlobal(j job, q relay.Request, route call.Route, cell string) {
	route.SetHeaders(q.Header, cell)
	q.Header.Del(call.HeaderFrom) // the global zone is no cell that one could call from
	if j.rule.who == sellers {
		q.Header.Set(call.HeaderSeller, "true") // the token was checked here; they hold no keys
	}
}

// askSearch goes to the global zone. Whatever is wrong with search has one name:
// nothing but this request needs it.
func (g *Gateway) askSearch(ctx context.Context, j job, q relay.Request, route call.Route) (*http.Response, error) {
	toGlobal(j, q, route, g.cell)
	down := ErrSearchDown.In(routing.Global)
	res, err := g.askPeer(ctx, g.search, q, down)
	var known *errs.Error
	if errors.As(err, &known) && known.Kind == errs.Unavailable {
		return nil, down.Because(err)
	}
	return res, err
}

// askPeer sends a request through the link. down is the answer when the zone is
// known, or found, to be unreachable.
func (g *Gateway) askPeer(ctx context.Context, p *peer, q relay.Request, down *errs.Error) (*http.Response, error) {
	if up, known := g.linkUp(p.zone); known && !up {
		return nil, down.Because(fmt.Errorf("the link to %s is down", p.zone))
	}
	for again := q.Repeatable(); ; again = false {
		inner, leave, ok := p.breaker.Enter(ctx)
		if !ok {
			_, why := p.breaker.Open()
			return nil, down.Because(fmt.Errorf("the breaker of %s is open: %w", p.zone, why))
		}
		limit := g.limits.forward
		if p.breaker.Doubtful() {
			limit = min(limit, g.limits.doubtful)
		}
		res, err := relay.Send(inner, p.transport, p.base, q, limit)
		if err == nil {
			p.breaker.Worked()
			relay.OnClose(res, leave)
			return res, nil
		}
		leave()
		var lost *relay.Lost
		switch {
		case !errors.As(err, &lost) || ctx.Err() != nil:
			return nil, err
		case errors.Is(err, relay.ErrSlow) && !p.breaker.Doubtful():
			return nil, g.lost(p.zone, q, err) // it's there, but slow
		case errors.Is(err, relay.ErrSlow), errors.Is(err, relay.ErrOpen):
			return nil, lostOr(down, q, lost)
		}
		p.breaker.Failed(err)
		if !again || !lost.Sent {
			return nil, lostOr(down, q, lost)
		}
	}
}

// lostOr is down, unless the request may have been done there.
func lostOr(down *errs.Error, q relay.Request, lost *relay.Lost) error {
	if lost.Sent && !q.Safe() {
		return errs.ErrUnknown.In(down.Cell).Because(lost)
	}
	return down.Because(lost)
}

// lost is the answer when a service didn't give one.
func (g *Gateway) lost(cell string, q relay.Request, err error) error {
	if errors.Is(err, context.Canceled) && !errors.Is(err, relay.ErrOpen) {
		return fmt.Errorf("the client is gone: %w", err)
	}
	var lost *relay.Lost
	if errors.As(err, &lost) && lost.Sent && !q.Safe() {
		return errs.ErrUnknown.In(cell).Because(err)
	}
	return errs.ErrUnavailable.In(cell).Because(err)
}
