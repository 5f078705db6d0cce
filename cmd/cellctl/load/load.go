package load

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/services/agent/agentapi"
)

// The bounds of a load: it can't fill a memory or run for ever.
const (
	maxRate      = 2000
	maxDuration  = 30 * time.Minute
	maxUsers     = 500
	maxInFlight  = 2000
	requestLimit = 10 * time.Second // for an answer; the gateways' own limit is below
	shownErrors  = 10               // of each home, in full
)

// Cell is where one cell's people come in.
type Cell struct {
	Name    string
	Gateway string // http://host:port
}

// Options of a Load.
type Options struct {
	Cells []Cell
	Edge  string  // http://host:port
	Rate  float64 // requests per second of all homes together
	Users int     // of each cell
	Seed  uint64
	// Doors lists the cells (by index) whose gateways a home's users ask; nil is
	// all. The edge is for everybody, unless Edgeless: it asks any gateway.
	Doors    func(home int) []int
	Edgeless bool
	// LogsIn says whose users log in and ask again when a token is not taken, as a
	// client would; nil is nobody's: then a 401 is an error like any other.
	LogsIn func(home int) bool
	// Log takes a line of progress; may be nil.
	Log func(format string, args ...any)
}

func (o *Options) check() error {
	usage := func(format string, args ...any) error { return cellkit.Usage{Err: fmt.Errorf(format, args...)} }
	switch {
	case !(o.Rate > 0 && o.Rate <= maxRate):
		return usage("--rate takes more than 0 and at most %d a second, not %g", maxRate, o.Rate)
	case o.Users < 2 || o.Users > maxUsers:
		return usage("--users takes 2 to %d, not %d", maxUsers, o.Users)
	case len(o.Cells) == 0 || len(o.Cells) > 99:
		return usage("a load needs 1 to 99 cells, not %d", len(o.Cells))
	}
	urls := []string{o.Edge}
	for _, c := range o.Cells {
		urls = append(urls, c.Gateway)
	}
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" || !loopback(u.Hostname()) {
			return usage("%q is not on this machine's loopback: a load is for demos only", text)
		}
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// CheckDuration refuses what is not 1 s to 30 min.
func CheckDuration(d time.Duration) error {
	if d < time.Second || d > maxDuration {
		return cellkit.Usage{Err: fmt.Errorf("--duration takes 1s to %s, not %s", maxDuration, d)}
	}
	return nil
}

// Load is a running load. It is for one Start.
type Load struct {
	o      Options
	http   *http.Client
	cells  []*cell
	search bool

	start   time.Time
	flying  chan struct{}
	mu      sync.Mutex
	samples []Sample
	errors  map[int][]string // of each home, the first
	again   int              // log-ins because a token wasn't taken any more
	late    time.Duration    // the latest that one was sent after its time
	orders  []bought         // that were answered
}

// Prepare makes users, sellers, goods and money.
func Prepare(ctx context.Context, o Options) (*Load, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	l := &Load{
		o: o, flying: make(chan struct{}, maxInFlight), errors: map[int][]string{},
		http: &http.Client{Timeout: requestLimit, Transport: &http.Transport{
			DialContext:  (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			MaxIdleConns: 4096, MaxIdleConnsPerHost: 512, IdleConnTimeout: 30 * time.Second,
		}},
	}
	o.Log("making %d users in each of %d cells", o.Users, len(o.Cells))
	if err := l.open(ctx); err != nil {
		return nil, err
	}
	_, err := l.once(ctx, "GET", o.Cells[0].Gateway+apiPrefix+"/search?q=teapot", "", "", nil, nil)
	if l.search = err == nil; !l.search {
		o.Log("search doesn't answer: browsing instead")
	}
	return l, nil
}

// Searches says whether search is in the mix.
func (l *Load) Searches() bool { return l.search }

// Homes lists the cells' names; samples have their indexes.
func (l *Load) Homes() []string {
	var out []string
	for _, c := range l.o.Cells {
		out = append(out, c.Name)
	}
	return out
}

// Run sends until ctx ends, then waits for what is unanswered.
func (l *Load) Run(ctx context.Context) {
	plan := newPlanner(l.o.Seed, len(l.cells), l.o.Users, l.search, l.o.Doors)
	plan.edgeless = l.o.Edgeless
	l.mu.Lock()
	l.start = time.Now()
	l.mu.Unlock()
	var wg sync.WaitGroup
	defer l.http.CloseIdleConnections()
	defer wg.Wait()
	inner, cancel := context.WithTimeout(ctx, maxDuration)
	defer cancel()
	wg.Go(func() { l.refresh(inner) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := int64(0); ; n++ {
		at := when(n, l.o.Rate)
		if late := time.Since(l.start) - at; late < 0 {
			timer.Reset(-late)
			select {
			case <-inner.Done():
				return
			case <-timer.C:
			}
		} else if inner.Err() != nil {
			return
		}
		s := plan.next()
		l.mu.Lock()
		l.late = max(l.late, time.Since(l.start)-at)
		l.mu.Unlock()
		select {
		case l.flying <- struct{}{}:
		default:
			l.note(s, at, 0, nil, errCrowded)
			continue
		}
		wg.Go(func() {
			defer func() { <-l.flying }()
			// Not inner: what was sent when the load ends is waited for.
			status, body, err := l.insist(context.WithoutCancel(ctx), s)
			l.note(s, at, status, body, err)
		})
	}
}

// Now is the time since the load's start, as samples have it; 0 before.
func (l *Load) Now() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.start.IsZero() {
		return 0
	}
	return time.Since(l.start)
}

// Samples are those that have ended so far.
func (l *Load) Samples() []Sample {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.samples[:len(l.samples):len(l.samples)]
}

// Errors are the first errors of a home, in words.
func (l *Load) Errors(home int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.errors[home]...)
}

// LoggedIn is how often somebody had to log in again for a request, because the
// token was not taken any more.
func (l *Load) LoggedIn() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.again
}

// Late is how long after its time a request was sent at worst: how long the machine
// gave this process no CPU, whatever became of the system.
func (l *Load) Late() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.late
}

var errCrowded = errors.New("not sent: too many requests are unanswered")

func (l *Load) note(s shot, at time.Duration, status int, body []byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := time.Since(l.start)
	ok := err == nil && status/100 == 2
	l.samples = append(l.samples, Sample{At: at, Took: end - at, Kind: s.kind, Home: s.home, User: s.user, Status: status, OK: ok})
	if ok && s.kind == Order {
		l.noteOrder(s, body)
	}
	if ok || len(l.errors[s.home]) >= shownErrors {
		return
	}
	door := "edge"
	if s.via != viaEdge {
		door = l.o.Cells[s.via].Name
	}
	text := fmt.Sprintf("%s of %s through %s at %s: ", s.kind, l.o.Cells[s.home].Name, door, at.Round(time.Millisecond))
	if err != nil {
		text += err.Error()
	} else {
		text += problem(status, body)
	}
	l.errors[s.home] = append(l.errors[s.home], text)
}

func problem(status int, body []byte) string {
	var p struct{ Code, Detail, Cell string }
	if json.Unmarshal(body, &p) != nil || p.Code == "" {
		return fmt.Sprintf("%d %.200q", status, body)
	}
	return fmt.Sprintf("%d %s %s (%s)", status, p.Code, p.Cell, p.Detail)
}

// fresh gives an Idempotency-Key that nobody had before.
func fresh(word string) string { return word + "-" + rand.Text() }

// fire sends one shot.
func (l *Load) fire(ctx context.Context, s shot) (int, []byte, error) {
	base, home, other := l.o.Edge, l.cells[s.home], l.cells[s.other]
	if s.via != viaEdge {
		base = l.o.Cells[s.via].Gateway
	}
	token := home.users[s.user].token.Load().Token
	pick := func(of []string) string { return of[s.pick%uint64(len(of))] }
	sku := other.skus[s.pick%uint64(len(other.skus))].String()
	method, path, key := "GET", "", ""
	var in any
	switch s.kind {
	case Browse:
		token = ""
		path = pick([]string{"/products?limit=10", "/products?category=home&limit=10", "/products/" + other.products[0].String(), "/categories"})
	case Search:
		token, path = "", "/search?q="+pick([]string{"teapot", "tea", "home"})
	case Cart:
		method, path, in = "PUT", "/cart/items/"+sku, map[string]any{"quantity": 1 + s.pick%3}
		if s.pick>>8%2 == 0 {
			method, path, in = "GET", "/cart", nil
		}
	case Order:
		method, path, key = "POST", "/orders", fresh("load")
		in = map[string]any{"items": []map[string]any{{"sku": sku, "quantity": 1}}}
	case Transfer:
		method, path, key = "POST", "/transfers", fresh("load")
		in = map[string]any{"to_user": other.users[s.peer].id, "amount": 1, "currency": "CNY"}
	case Deposit:
		method, path, key = "POST", "/wallet/deposits", fresh("load")
		in = map[string]any{"amount": 10, "currency": "CNY"}
	case Lists:
		path = pick([]string{"/orders?limit=10", "/transfers?limit=10", "/wallet/statement?limit=10"})
	}
	status, _, body, err := l.send(ctx, method, base+apiPrefix+path, token, key, in)
	return status, body, err
}

// Check asks all cells for their invariants and gives what is certainly violated,
// and what is unknown.
func Check(ctx context.Context, agents map[string]*agentapi.Client) (violated, unknown []string) {
	for _, r := range agentapi.Check(ctx, agents) {
		switch {
		case r.OK == nil:
			unknown = append(unknown, fmt.Sprintf("%s is unknown: %v", r.ID, r.Missing))
		case !*r.OK:
			for _, v := range r.Violations {
				violated = append(violated, r.ID+": "+v)
			}
		}
	}
	return violated, unknown
}

// AtRest waits until no cell has an open message, at most limit, then checks.
// What is unknown at rest does not hold.
func AtRest(ctx context.Context, agents map[string]*agentapi.Client, limit time.Duration) []string {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		open := ""
		for name, a := range agents {
			switch s, err := a.Status(ctx); {
			case err != nil:
				open = err.Error()
			case s.Database == nil:
				open = name + ": " + s.DatabaseError
			case s.Database.Open > 0:
				open = fmt.Sprintf("%s has %d open messages, the oldest for %d ms", name, s.Database.Open, s.Database.OldestOpenMS)
			}
		}
		if open == "" {
			break
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			return []string{"not at rest within " + limit.String() + ": " + open}
		}
	}
	violated, unknown := Check(ctx, agents)
	return append(violated, unknown...)
}
