package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/relay"
	"example.com/cellmart/services/user/userapi"
)

// find gives the answer to a job, from wherever it may be.
func (g *Gateway) find(ctx context.Context, j *job, q relay.Request) (*http.Response, error) {
	switch {
	case j.from.hopped: // the first gateway looks around
	case j.rule.slot == ofNew:
		return g.register(ctx, j, q)
	case j.rule.slot.scattered():
		t := g.table.Load()
		others, err := homes(t, j.slot)
		if j.rule.slot == ofParty && t != nil {
			own, a, ok := t.Home(int64(j.user))
			if p := (place{cell: a.Owner, slot: own, epoch: a.Epoch}); ok && own != j.slot && !slices.Contains(others, p) {
				others = append(others, p)
			}
		}
		if err != nil || len(others) > 0 {
			return g.seek(ctx, j, q, others, err)
		}
	}
	return g.settle(ctx, j, q)
}

// seek asks the home of an ID's slot, and those of the private slots that were
// taken from it while the answer is 404. "Not found" is only said when all have
// said it: one that can't be asked may have it (P8), so that is 503. A thing is in
// one place, so a write that one home has refused with 404 may go to the next.
func (g *Gateway) seek(ctx context.Context, j *job, q relay.Request, others []place, unasked error) (*http.Response, error) {
	var nowhere *http.Response // the first 404
	for _, p := range append([]place{j.at}, others...) {
		j.slot, j.at = p.slot, p
		res, err := g.settle(ctx, j, q)
		switch {
		case errs.IsKind(err, errs.Unavailable) && !errors.Is(err, errs.ErrUnknown):
			unasked = err
		case err != nil:
			discard(nowhere)
			return nil, err
		case res.StatusCode == http.StatusNotFound && nowhere == nil:
			nowhere = res
		case res.StatusCode == http.StatusNotFound:
			discard(res)
		case res.StatusCode == http.StatusServiceUnavailable:
			if unasked, err = problem(res); err != nil {
				unasked = g.lost(p.cell, q, err)
			}
			if errors.Is(unasked, errs.ErrUnknown) {
				discard(nowhere)
				return nil, unasked // it may have been done there
			}
		default:
			discard(nowhere)
			return res, nil
		}
	}
	if unasked != nil {
		discard(nowhere)
		return nil, unasked
	}
	return nowhere, nil
}

// register sends a registration to the best cell that takes new users and can be
// reached. It goes on to the next only after an answer that had no effect.
func (g *Gateway) register(ctx context.Context, j *job, q relay.Request) (*http.Response, error) {
	t := g.table.Load()
	if t == nil {
		return g.settle(ctx, j, q) // which says why not
	}
	var failure error = userapi.ErrCellClosed.In(g.cell)
	places := newHomes(t, g.cell, q.Header.Get(headerRegion), groupIn(q.Body), q.Header.Get(call.HeaderIdempotencyKey))
	for _, p := range places {
		j.slot, j.at = p.slot, p
		res, err := g.settle(ctx, j, q)
		switch {
		case errors.Is(err, ErrUnreachable):
			failure = err
		case err != nil:
			return nil, err
		case res.StatusCode != http.StatusServiceUnavailable:
			return res, nil
		default:
			said, err := problem(res)
			if err != nil {
				return nil, g.lost(p.cell, q, err)
			}
			if !errors.Is(said, userapi.ErrCellClosed) {
				return nil, said
			}
			failure = said
		}
	}
	return nil, failure
}

// headerRegion is where a new user wants to live: a region, or a cell by its name.
const headerRegion = "X-Region"

// problem reads and closes a refusal.
func problem(res *http.Response) (said, err error) {
	defer res.Body.Close()
	body, err := relay.Hold(res, maxProblem)
	if err != nil {
		return nil, err
	}
	e := call.DecodeProblem(res.StatusCode, res.Header, body)
	if e.Cell == "" {
		e.Cell = res.Header.Get(call.HeaderCell)
	}
	return e, nil
}

func discard(res *http.Response) {
	if res != nil {
		res.Body.Close()
	}
}

// lookup asks the own user service whose phone stands in the body of a login: 0
// is nobody's. Every cell has a copy of all phones, so no other cell is asked.
func (g *Gateway) lookup(ctx context.Context, body []byte) (id.ID, error) {
	phone := phoneIn(body)
	if phone == "" {
		return 0, nil
	}
	slot, err := g.ownSlot()
	if err != nil {
		return 0, err
	}
	at, err := locate(g.table.Load(), slot)
	if err != nil {
		return 0, err
	}
	question, err := json.Marshal(userapi.LookupRequest{Phone: phone})
	if err != nil {
		return 0, err
	}
	q := relay.Request{Method: http.MethodPost, Path: "/internal/lookup", Header: http.Header{}, Body: question}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set(call.HeaderRequestID, call.RequestID(ctx))
	call.Route{Cell: g.cell, Slot: at.slot, Epoch: at.epoch}.SetHeaders(q.Header, g.cell)
	res, err := g.local[svcUser].send(ctx, q, g.limits.local)
	if err != nil {
		return 0, errs.ErrUnavailable.In(g.cell).Because(err) // a question changes nothing
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	if err != nil {
		return 0, errs.ErrUnavailable.In(g.cell).Because(err)
	}
	if res.StatusCode >= http.StatusMultipleChoices {
		e := call.DecodeProblem(res.StatusCode, res.Header, answer)
		if e.Kind == errs.NotFound || e.Kind == errs.Invalid {
			return 0, nil
		}
		return 0, e
	}
	var out userapi.LookupAnswer
	if err := json.Unmarshal(answer, &out); err != nil {
		return 0, fmt.Errorf("decode the answer of the user service: %w", err)
	}
	return out.UserID, nil
}
