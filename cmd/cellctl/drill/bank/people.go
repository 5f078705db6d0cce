package bank

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/user/userapi"
)

const (
	apiPrefix = "/api/v1"
	password  = "cellmart-bank" // of people that this makes, on a demo
	oneTry    = 5 * time.Second // for an answer; then it's asked for again
	askAgain  = 250 * time.Millisecond
	moreTime  = 2 * time.Minute // of a token's life that must be left
)

// Cell is where one cell's people come in.
type Cell struct {
	Name    string
	Gateway string // http://host:port
}

// person has an account in each currency.
type person struct {
	n, home int // home is where they were made
	phone   string
	id      id.ID
	token   atomic.Pointer[userapi.Session]
	entry   sync.Mutex // one log-in at a time
}

// people ask gateways until they have an answer: whatever is broken meanwhile,
// nobody who asks again under the same Idempotency-Key is served twice.
type people struct {
	cells []Cell
	all   []*person
	http  *http.Client
	tries atomic.Int64 // beyond the first
	again atomic.Int64 // log-ins because a token wasn't taken
}

// answer is what a gateway said for good.
type answer struct {
	status   int
	body     []byte
	replayed bool
}

func (a answer) ok() bool { return a.status/100 == 2 }

// refusal is an answer that isn't 2xx, as an error.
func (a answer) refusal() error { return fmt.Errorf("%d %.200s", a.status, a.body) }

// newPeople names people; nobody is asked yet. The same seed names the same.
func newPeople(cells []Cell, each int, seed uint64) *people {
	h := fnv.New32a()
	fmt.Fprint(h, "bank", seed)
	p := &people{cells: cells, http: &http.Client{Timeout: oneTry, Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second}}}
	for home := range cells {
		for u := range each {
			p.all = append(p.all, &person{n: len(p.all), home: home, phone: fmt.Sprintf("+86135%03d%02d%03d", h.Sum32()%1000, home, u)})
		}
	}
	return p
}

// open registers everybody, or logs them in.
func (p *people) open(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(4) // a password costs 19 MiB and some ten milliseconds
	for _, who := range p.all {
		group.Go(func() error {
			in := userapi.RegisterRequest{Phone: who.phone, Password: password, Name: fmt.Sprintf("Bank %d", who.n)}
			got, err := p.send(inner, who, "POST", "/users", fresh("user"), "", in)
			if err != nil {
				return fmt.Errorf("user %s: %w", who.phone, err)
			}
			var s userapi.Session
			if got.status == http.StatusCreated && json.Unmarshal(got.body, &s) == nil {
				who.id = s.User.ID
				who.token.Store(&s)
				return nil
			}
			// Taken: there already. 202: the phone's home thinks.
			for err = errors.New("no time"); err != nil && pause(inner, askAgain) == nil; {
				err = p.login(inner, who)
			}
			return err
		})
	}
	return group.Wait()
}

// login asks for a token once.
func (p *people) login(ctx context.Context, who *person) error {
	got, err := p.send(ctx, who, "POST", "/sessions", "", "", userapi.LoginRequest{Phone: who.phone, Password: password})
	if err != nil {
		return err
	}
	var s userapi.Session
	if !got.ok() || json.Unmarshal(got.body, &s) != nil {
		return fmt.Errorf("user %s: log-in: %w", who.phone, got.refusal())
	}
	who.id = s.User.ID
	who.token.Store(&s)
	return nil
}

// renew gets another token than had, unless somebody else has done it.
func (p *people) renew(ctx context.Context, who *person, had *userapi.Session) error {
	who.entry.Lock()
	defer who.entry.Unlock()
	if who.token.Load() != had {
		return nil
	}
	p.again.Add(1)
	return p.login(ctx, who)
}

// ask asks until somebody answers for good, or ctx ends: then the outcome isn't
// known, and the error says why.
func (p *people) ask(ctx context.Context, who *person, method, path, key string, in any) (answer, error) {
	for {
		had := who.token.Load()
		if time.Until(had.ExpiresAt) < moreTime {
			if err := p.renew(ctx, who, had); err != nil {
				return answer{}, err
			}
			continue
		}
		got, err := p.send(ctx, who, method, path, key, had.Token, in)
		switch {
		case err != nil:
			return got, err
		case got.status != http.StatusUnauthorized:
			return got, nil
		}
		if err := pause(ctx, askAgain); err != nil { // a clock that was set reaches a cell's processes in turn
			return got, err
		}
		if err := p.renew(ctx, who, had); err != nil {
			return got, err
		}
	}
}

// send goes from gateway to gateway, home first, until one says something for good.
func (p *people) send(ctx context.Context, who *person, method, path, key, token string, in any) (answer, error) {
	for try := 0; ; try++ {
		door := p.cells[(who.home+try)%len(p.cells)]
		got, err := p.once(ctx, method, door.Gateway+apiPrefix+path, key, token, in)
		if err == nil && !passing(got) {
			return got, nil
		}
		if err == nil {
			err = got.refusal()
		}
		p.tries.Add(1)
		if pause(ctx, askAgain) != nil {
			return answer{}, fmt.Errorf("%s %s: not known: %w", method, path, err)
		}
	}
}

// passing says that an answer is about the moment, not about what was asked.
func passing(a answer) bool {
	if a.status == http.StatusConflict {
		var problem struct{ Code string }
		return json.Unmarshal(a.body, &problem) == nil && problem.Code == "IDEMPOTENCY_KEY_IN_FLIGHT"
	}
	return a.status >= 500 || a.status == http.StatusMisdirectedRequest || a.status == http.StatusTooManyRequests
}

func (p *people) once(ctx context.Context, method, url, key, token string, in any) (answer, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return answer{}, err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return answer{}, err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		r.Header.Set(call.HeaderIdempotencyKey, key)
	}
	res, err := p.http.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, b, res.Header.Get(web.HeaderReplayed) == "true"}, err
}

// get reads something of a person's own.
func (p *people) get(ctx context.Context, who *person, path string, out any) error {
	got, err := p.ask(ctx, who, "GET", path, "", nil)
	if err == nil && !got.ok() {
		err = got.refusal()
	}
	if err == nil {
		err = json.Unmarshal(got.body, out)
	}
	if err != nil {
		return fmt.Errorf("GET %s of %s: %w", path, who.phone, err)
	}
	return nil
}

// fresh gives an Idempotency-Key that nobody had before.
func fresh(word string) string { return word + "-" + rand.Text() }

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
