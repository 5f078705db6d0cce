package bank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/services/user/userapi"
)

// door is a gateway that answers in turn what a test says, the last for ever.
type door struct {
	mu    sync.Mutex
	says  []int
	heard []string // path, key, token
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/sessions") {
		d.heard = append(d.heard, "log-in")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(userapi.Session{Token: "new", ExpiresAt: time.Now().Add(time.Hour), User: userapi.User{ID: 16385}})
		return
	}
	d.heard = append(d.heard, fmt.Sprintf("%s %s %s", r.URL.Path, r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization")))
	w.WriteHeader(d.says[0])
	fmt.Fprint(w, `{"id":"16385"}`)
	if len(d.says) > 1 {
		d.says = d.says[1:]
	}
}

// doors are people of two cells, the first of whom has a token.
func doors(t *testing.T, all ...*door) (*people, *person) {
	t.Helper()
	var cells []Cell
	for i, d := range all {
		s := httptest.NewServer(d)
		t.Cleanup(s.Close)
		cells = append(cells, Cell{Name: fmt.Sprint("c", i+1), Gateway: s.URL})
	}
	p := newPeople(cells, 1, 1)
	p.all[0].token.Store(&userapi.Session{Token: "old", ExpiresAt: time.Now().Add(time.Hour)})
	return p, p.all[0]
}

// Whoever has no answer asks the next gateway, under the same key, until there is one.
func TestAskUntilKnown(t *testing.T) {
	t.Parallel()
	home, other := &door{says: []int{503}}, &door{says: []int{421, 202}}
	p, who := doors(t, home, other)
	got, err := p.ask(t.Context(), who, "POST", "/transfers", "k", map[string]int{"amount": 1})
	if err != nil || got.status != 202 {
		t.Fatalf("ask = %+v, %v", got, err)
	}
	want := []string{"/api/v1/transfers k Bearer old", "/api/v1/transfers k Bearer old"}
	if d := cmp.Diff([][]string{want, want}, [][]string{home.heard, other.heard}); d != "" {
		t.Errorf("heard (-want +got):\n%s", d)
	}
}

// A token that isn't taken is renewed once, whoever else had it.
func TestAskLogsIn(t *testing.T) {
	t.Parallel()
	home := &door{says: []int{401, 200}}
	p, who := doors(t, home)
	if got, err := p.ask(t.Context(), who, "GET", "/wallet", "", nil); err != nil || got.status != 200 {
		t.Fatalf("ask = %+v, %v", got, err)
	}
	if d := cmp.Diff([]string{"/api/v1/wallet  Bearer old", "log-in", "/api/v1/wallet  Bearer new"}, home.heard); d != "" {
		t.Errorf("heard (-want +got):\n%s", d)
	}
	had := who.token.Load()
	if err := p.renew(t.Context(), who, &userapi.Session{}); err != nil || who.token.Load() != had {
		t.Errorf("renewed a token that somebody else had renewed: %v", err)
	}
}

// What nobody answers isn't known, and is no refusal.
func TestAskIsNotKnown(t *testing.T) {
	t.Parallel()
	p, who := doors(t, &door{says: []int{503}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got, err := p.ask(ctx, who, "GET", "/wallet", "", nil); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("ask = %+v, %v", got, err)
	}
}

// A lane has each fault once before it looks at the time, leaves out what can't be
// done here, and ends with a fault that can't be mended.
func TestLane(t *testing.T) {
	t.Parallel()
	b := &Bank{o: Options{Cells: []Cell{{Name: "c1"}, {Name: "c2"}, {Name: "c3"}}}}
	f := newFaults(b)
	same := 0
	ok := func(_ context.Context, cell, other string, _ time.Duration) error {
		if cell == other {
			same++
		}
		return nil
	}
	deck := []fault{{"a", ok}, {"b", ok}, {"not here", func(context.Context, string, string, time.Duration) error { return cellkit.Usage{Err: errNotHere} }}}
	random := rand.New(rand.NewPCG(1, 1))
	if err := f.lane(t.Context(), deck, random, time.Now()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]int{"a": 1, "b": 1}, f.done); d != "" || f.skipped["not here"] == "" || same > 0 {
		t.Errorf("done (-want +got):\n%s\nskipped %v, %d times one cell was both", d, f.skipped, same)
	}
	broken := errors.New("can't be mended")
	deck = append(deck, fault{"x", func(context.Context, string, string, time.Duration) error { return broken }})
	if err := f.lane(t.Context(), deck, random, time.Now().Add(time.Hour)); !errors.Is(err, broken) {
		t.Errorf("lane = %v", err)
	}
}
