package load

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"example.com/cellmart/services/search/searchapi"
)

const (
	lookedFor = 300 // orders at most, of those that were placed: each costs two requests
	lookAgain = 200 * time.Millisecond
)

// bought is an order that was answered.
type bought struct {
	home, user, seller int // indexes; seller is the cell whose seller it is from
	number             string
}

// noteOrder remembers an order's number. With mu held.
func (l *Load) noteOrder(s shot, body []byte) {
	var o struct{ Number string }
	if json.Unmarshal(body, &o) == nil && o.Number != "" {
		l.orders = append(l.orders, bought{s.home, s.user, s.other, o.Number})
	}
}

// spread takes at most n, evenly over all.
func spread(all []bought, n int) (out []bought) {
	step := max(1, (len(all)+n-1)/n)
	for i := 0; i < len(all); i += step {
		out = append(out, all[i])
	}
	return out
}

// Find looks for the orders that a home's users placed, as their sellers do: by
// number, in search, and each in the state that the buyer sees. It gives how many
// it looked for, and those that search doesn't have so within the limit.
func (l *Load) Find(ctx context.Context, home int, limit time.Duration) (looked int, missing []string, err error) {
	l.mu.Lock()
	var all []bought
	for _, b := range l.orders {
		if b.home == home {
			all = append(all, b)
		}
	}
	l.mu.Unlock()
	all = spread(all, lookedFor)
	for end := time.Now().Add(limit); ; {
		var left []bought
		missing = nil
		for _, b := range all {
			why, err := l.differs(ctx, b)
			if err != nil {
				return looked, nil, err
			}
			if why != "" {
				left, missing = append(left, b), append(missing, why)
			}
		}
		looked = max(looked, len(all))
		if all = left; len(all) == 0 || time.Now().After(end) {
			return looked, missing, nil
		}
		if err := pause(ctx, lookAgain); err != nil {
			return looked, nil, err
		}
	}
}

// differs says how what the seller finds isn't what the buyer has.
func (l *Load) differs(ctx context.Context, b bought) (string, error) {
	buyer, from := l.cells[b.home], l.cells[b.seller]
	var have struct{ State string }
	if _, err := l.ask(ctx, "GET", buyer.Gateway+apiPrefix+"/orders/"+b.number, buyer.users[b.user].token.Load().Token, "", nil, &have); err != nil {
		return "", err
	}
	var found searchapi.Orders
	url := from.Gateway + apiPrefix + "/seller/orders/search?q=" + b.number
	if _, err := l.ask(ctx, "GET", url, from.users[seller].token.Load().Token, "", nil, &found); err != nil {
		return "", err
	}
	for _, o := range found.Items {
		if o.Number == b.number && o.State == have.State {
			return "", nil
		}
		if o.Number == b.number {
			return fmt.Sprintf("%s is %s and found as %s", b.number, have.State, o.State), nil
		}
	}
	return fmt.Sprintf("%s is %s and not found", b.number, have.State), nil
}
