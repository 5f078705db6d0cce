package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/catalog/catalogapi"
)

const sellerSlot = routing.Slot(700)

var (
	alice = id.Make(1, sellerSlot, false)
	bob   = id.Make(2, sellerSlot, false) // in the same slot
)

// counting hands out IDs from one counter.
type counting struct {
	n     atomic.Int64
	empty atomic.Bool
}

func (c *counting) Next(_ string, slot routing.Slot) (id.ID, error) {
	if c.empty.Load() {
		return 0, id.ErrExhausted
	}
	return id.Make(c.n.Add(1), slot, false), nil
}

// newWriter is a writer on a database of its own, as the application's role.
func newWriter(t testing.TB) (*writer, *pgtest.DB) {
	t.Helper()
	db := pgtest.NewGlobal(t, WriterMigrations())
	u, err := url.Parse(db.SuperDSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(pg.RoleApp)
	pool, err := pg.OpenGlobal(t.Context(), u.String(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &writer{store: writerStore{pool}, ids: &counting{}}, db
}

// direct is the feed without HTTP, and nearly without waiting.
type direct struct{ *writer }

func (d direct) Feed(ctx context.Context, history string, after int64, _ time.Duration) (catalogapi.Feed, error) {
	over, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	return d.feed(ctx, over, history, after, catalogapi.MaxFeed)
}

// newCopy is an empty copy that follows a feed when told to.
func newCopy(t testing.TB, f feeder) (*follower, *pgtest.DB) {
	t.Helper()
	db := pgtest.New(t, Migrations())
	return &follower{store: store{db.App}, feed: f, log: slog.New(slog.DiscardHandler)}, db
}

func newProduct(title string, prices ...int64) catalogapi.NewProduct {
	p := catalogapi.NewProduct{Title: title, Category: "books"}
	for i, price := range prices {
		p.SKUs = append(p.SKUs, catalogapi.NewVariant{Title: fmt.Sprint("size ", i), Price: price})
	}
	return p
}

func (w *writer) mustCreate(t testing.TB, seller id.ID, key string, in catalogapi.NewProduct) (p catalogapi.Product) {
	t.Helper()
	r, _, err := w.create(t.Context(), seller, key, in)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(r.Body, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func (f *follower) mustStep(t testing.TB) position {
	t.Helper()
	if err := f.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	return *f.at.Load()
}

// caughtUp waits until the copy is at the writer's newest version.
func (f *follower) caughtUp(t testing.TB, w *writer) {
	t.Helper()
	waitFor(t, func() error {
		want, err := w.store.feed(t.Context(), "", 1<<62, 1)
		if err != nil {
			return err
		}
		at, err := f.store.position(t.Context())
		if err == nil && at.version != want.Newest {
			err = fmt.Errorf("the copy is at %d, the writer at %d", at.version, want.Newest)
		}
		return err
	})
}

// waitFor gives even a busy machine its time: only a failure takes the minute.
func waitFor(t testing.TB, cond func() error) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %v", err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// request is one row of a table of HTTP scenarios; user 0 is nobody.
type request struct {
	name, method, path, body, key string
	user                          id.ID
	status                        int
	want                          string // in the body
}

func ask(t testing.TB, e *echo.Echo, r request, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(r.method, r.path, strings.NewReader(r.body))
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.user != 0 {
		req.Header.Set(web.HeaderUser, r.user.String())
		req.Header.Set(web.HeaderSlot, r.user.Slot().String())
		req.Header.Set(web.HeaderEpoch, "1")
	}
	if r.key != "" {
		req.Header.Set(web.HeaderIdempotencyKey, r.key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return apitest.Serve(t, e, req)
}

func (r request) check(t *testing.T, rec *httptest.ResponseRecorder) {
	t.Helper()
	if rec.Code != r.status || !strings.Contains(rec.Body.String(), r.want) {
		t.Errorf("%s: %d %s, want %d with %s", r.name, rec.Code, rec.Body, r.status, r.want)
	}
	if rec.Code >= 400 && rec.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s: %s", r.name, rec.Header().Get("Content-Type"))
	}
}

func writerEcho(t testing.TB, w *writer) *echo.Echo {
	e := web.New(web.Options{Service: "catalog-writer", Cell: routing.Global, Timeout: 30 * time.Second})
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	(&writerServer{writer: w, stop: ctx}).mount(e)
	return e
}

func copyEcho(f *follower, c *cache) *echo.Echo {
	e := web.New(web.Options{Service: "catalog", Cell: "c1"})
	newServer(f, c, []byte("a key for cursors")).mount(e)
	return e
}

// noCache is a cache without a Redis.
func noCache() *cache { return newCache("", func(string) {}) }

var errDown = errors.New("down")

// broken is a feed that is away.
type broken struct{}

func (broken) Feed(context.Context, string, int64, time.Duration) (catalogapi.Feed, error) {
	return catalogapi.Feed{}, errDown
}

func decode[T any](t testing.TB, rec *httptest.ResponseRecorder) (v T) {
	t.Helper()
	if rec.Code != http.StatusOK {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	return v
}
