package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/link"
	"example.com/cellmart/platform/cellkit/relay"
)

const (
	target       = "gateway-public"
	connectLimit = time.Second
	answerLimit  = 10 * time.Second // longer than a gateway takes at most
	maxRefused   = 2                // gateways that are asked, when the first refuses
	held         = 256 << 10        // of an answer, so that half of one can be thrown away

	sessionCookie = "__Host-session" // of the gateways' pages
)

// gateway is one cell's way in.
type gateway struct {
	zone      zone
	base      string
	peer      *link.Peer
	transport *http.Transport
	breaker   *relay.Breaker
}

// proxy passes requests to gateways.
type proxy struct {
	choose   chooser
	gateways []*gateway
	count    func(cell, how string)
}

// newProxy makes a proxy whose gateways are unknown, and so not asked, until run
// has heard of them.
func newProxy(zones []zone, conf *tls.Config, log *slog.Logger, count func(cell, how string), notify func(cell string, up bool)) *proxy {
	p := &proxy{choose: chooser{zones: zones}, count: count}
	for _, z := range zones {
		g := &gateway{zone: z, base: "http://" + target + "." + z.name}
		g.peer = link.NewPeer(link.PeerConfig{Zone: z.name, Addr: z.border, TLS: conf})
		dial := g.peer.DialContext(target)
		g.transport = relay.NewTransport(dial, connectLimit)
		g.breaker = relay.NewBreaker(relay.BreakerOptions{
			Probe: relay.Probe(dial, g.base),
			OnChange: func(open bool, why error) {
				notify(z.name, !open)
				if open {
					g.transport.CloseIdleConnections()
					log.Warn("gateway is out", "target", z.name, "error", why)
					return
				}
				log.Info("gateway is in", "target", z.name)
			},
		})
		p.gateways = append(p.gateways, g)
	}
	return p
}

// run keeps links and health calls going until ctx ends.
func (p *proxy) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, g := range p.gateways {
		running.Go(func() { _ = g.peer.Run(ctx) }) // returns ctx.Err() only
		running.Go(func() { g.breaker.Run(ctx) })
	}
}

func (p *proxy) healthy(i int) bool {
	g := p.gateways[i]
	open, _ := g.breaker.Open()
	return !open && g.peer.Status().Up
}

// serve tries the gateways in order until one answers. A request that may have
// arrived somewhere is sent elsewhere only if that does no more than once would.
func (p *proxy) serve(ctx context.Context, w http.ResponseWriter, q relay.Request, region, cookie string) error {
	var failure error = ErrNoCell
	var page *http.Response // of the gateway that refused: the words for people
	refused := 0
	for n, i := range p.choose.order(region, cookie, p.healthy) {
		g := p.gateways[i]
		how := "first"
		if n > 0 {
			how = "again"
		}
		p.count(g.zone.name, how)
		res, leave, err := g.ask(ctx, q)
		if err == nil {
			defer leave()
			var better error
			if refused++; refused < maxRefused {
				better = g.refusal(res, q)
			}
			if better == nil {
				return relay.Answer(w, res)
			}
			failure = better
			if isPage(res) {
				page = res
				defer res.Body.Close()
			}
			continue
		}
		var lost *relay.Lost
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("the client is gone: %w", err)
		case errors.As(err, &lost) && lost.Sent && !repeatable(q):
			return errs.ErrUnknown.In(g.zone.name).Because(err)
		case errors.Is(err, relay.ErrSlow):
			return errs.ErrUnavailable.In(g.zone.name).Because(err)
		}
		failure = ErrNoCell.Because(err)
	}
	if page != nil {
		return relay.Answer(w, page)
	}
	return failure
}

// isPage says that the answer is for people, not for programs.
func isPage(res *http.Response) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/html")
}

// repeatable says that the request may be sent through two gateways. Keys are
// kept with their user, so that it doesn't matter which gateway brings them; who
// isn't logged in (registers) has no such place, and another gateway may be
// another home.
func repeatable(q relay.Request) bool {
	return q.Safe() || q.Repeatable() && q.Header.Get("Authorization") != "" || keyedForm(q)
}

// keyedForm says that the request is a form of the shop's that carries its key, of
// somebody who is logged in: the gateway sends the key on with what the form asks for.
func keyedForm(q relay.Request) bool {
	kind, _, err := mime.ParseMediaType(q.Header.Get("Content-Type"))
	if q.Method != http.MethodPost || err != nil || kind != "application/x-www-form-urlencoded" || strings.HasPrefix(q.Path, "/register") {
		return false
	}
	if c, err := (&http.Request{Header: q.Header}).Cookie(sessionCookie); err != nil || c.Value == "" {
		return false
	}
	form, err := url.ParseQuery(string(q.Body))
	return err == nil && len(form["key"]) == 1 && form["key"][0] != ""
}

// codeUnreachable is a gateway's when it can't reach the user's home: it has not
// sent the request then (else it says OUTCOME_UNKNOWN).
const codeUnreachable = "CELL_UNREACHABLE"

// refusal is a 503 that another gateway may have a better answer than, nil for any
// other answer. A gateway that can't reach the home may be the only one: its cell
// has just been plugged in again. A read that is refused costs nothing to ask for
// once more: it may be of what every cell has (products), or of what another
// gateway still reaches (search).
func (g *gateway) refusal(res *http.Response, q relay.Request) error {
	if res.StatusCode != http.StatusServiceUnavailable {
		return nil
	}
	body, err := relay.Hold(res, held)
	if err != nil {
		return err
	}
	e := call.DecodeProblem(res.StatusCode, res.Header, body)
	if e.Cell == "" {
		e.Cell = res.Header.Get(call.HeaderCell)
	}
	if e.Code != codeUnreachable && !q.Safe() {
		return nil
	}
	if !isPage(res) {
		res.Body.Close()
	}
	return e
}

// ask is one exchange. The answer of what may be asked again elsewhere is held
// back until it is whole, or too long to be held. leave is called when the answer
// has been passed on.
func (g *gateway) ask(ctx context.Context, q relay.Request) (*http.Response, func(), error) {
	inner, leave, ok := g.breaker.Enter(ctx)
	if !ok {
		return nil, nil, &relay.Lost{Err: relay.ErrOpen}
	}
	res, err := relay.Send(inner, g.transport, g.base, q, answerLimit)
	if err == nil && repeatable(q) && !relay.IsStream(res) {
		_, err = relay.Hold(res, held)
	}
	if err != nil {
		leave()
		if ctx.Err() == nil && !errors.Is(err, relay.ErrSlow) && !errors.Is(err, relay.ErrOpen) {
			g.breaker.Failed(err)
		}
		return nil, nil, err
	}
	g.breaker.Worked()
	return res, leave, nil
}
