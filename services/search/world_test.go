package search

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/api/apitest"
	"example.com/cellmart/platform/cellkit/bus/bustest"
	"example.com/cellmart/platform/cellkit/cdc"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/search/searchapi"
)

const limit = 45 * time.Second

// world is the catalog's database and its NATS with a relay, and a search that
// follows it. The tables are the catalog's, as far as search reads them.
type world struct {
	t       *testing.T
	db      *pgtest.DB
	nats    *bustest.NATS
	log     *slog.Logger
	pool    *pgxpool.Pool
	numbers *id.Numbers
	dir     string
	stop    map[string]func()
	url     string
	index   *index
	sources *sources
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, nats: bustest.NewNATS(t), dir: t.TempDir(), stop: map[string]func(){}, log: slog.New(slog.DiscardHandler)}
	if testing.Verbose() {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	schema := func(name string) pg.Migrations { return pg.Migrations{Schema: name, FS: os.DirFS("testdata/" + name)} }
	w.db = pgtest.NewGlobal(t, cdc.Migrations(), schema("catalogw"), schema("orders"))
	var level string
	if err := w.db.Super.QueryRow(t.Context(), "SHOW wal_level").Scan(&level); err != nil || level != "logical" {
		t.Fatalf("wal_level is %q (%v) on the Postgres of CELLMART_TEST_PG: start it with -c wal_level=logical, as scripts/test does", level, err)
	}
	tables := searchapi.GlobalTables()
	for name, columns := range searchapi.CellTables() { // one database stands for both kinds
		tables[name] = columns
	}
	if err := cdc.Publish(t.Context(), w.db.SuperDSN, tables); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.numbers, err = id.NewNumbers([]byte("a key of the tests")); err != nil {
		t.Fatal(err)
	}
	if w.pool, err = pg.OpenGlobal(t.Context(), w.db.AgentDSN, w.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	t.Cleanup(w.end)
	w.relay(tables)
	return w
}

func (w *world) end() {
	for _, name := range []string{"search", "relay"} {
		w.halt(name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, _ = w.db.Super.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
}

func (w *world) halt(name string) {
	if stop := w.stop[name]; stop != nil {
		stop()
		delete(w.stop, name)
	}
}

func (w *world) run(name string, f func(context.Context) error, then func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil && ctx.Err() == nil {
			w.t.Errorf("%s: %v", name, err)
		}
	}()
	w.stop[name] = func() {
		cancel()
		<-done
		then()
	}
}

func (w *world) relay(tables cdc.Tables) {
	r := cdc.NewRelay(cdc.Options{
		Zone: routing.Global, Pool: w.pool, DSN: w.db.AgentDSN, NATSURL: w.nats.URL, Sinks: []cdc.Sink{{Name: searchapi.Sink, Tables: tables}},
		Log: w.log, Beat: 300 * time.Millisecond,
	})
	w.run("relay", r.Run, func() {})
}

// search starts, from what is on the disk.
func (w *world) search() {
	w.t.Helper()
	var err error
	if w.index, err = openIndex(w.dir, w.numbers.Encode, w.log); err != nil {
		w.t.Fatal(err)
	}
	w.sources = &sources{
		index: w.index, table: &routing.Holder{}, own: routing.Global, natsURL: w.nats.URL, log: w.log, zone: map[string]*cdc.Follower{},
	}
	e := web.New(web.Options{Service: "search", Cell: routing.Global, Log: w.log})
	newServer(w.index, w.sources, []byte("key")).mount(e)
	s := httptest.NewServer(e)
	w.url = s.URL
	x := w.index
	w.run("search", w.sources.run, func() {
		s.Close()
		if err := x.close(); err != nil {
			w.t.Errorf("close the index: %v", err)
		}
	})
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Super.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// product writes a product with one SKU, as the catalog's writer does.
func (w *world) product(n int64, title string, price int64) {
	w.t.Helper()
	err := pgx.BeginFunc(w.t.Context(), w.db.Super, func(tx pgx.Tx) error {
		_, err := tx.Exec(w.t.Context(), `INSERT INTO catalogw.products (id, seller_id, title, description, category, version)
			VALUES ($1::bigint, 16384 * 9, $2, 'Of the finest clay.', 'home', $1)`, n, title)
		if err != nil {
			return err
		}
		_, err = tx.Exec(w.t.Context(), `INSERT INTO catalogw.skus (id, product_id, position, title, price, currency) VALUES ($1 + 1000, $1, 0, '', $2, 'CNY')`, n, price)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// get asks search, holds the answer against the API's document, and reads it.
func (w *world) get(path string, header http.Header, want int, out any) http.Header {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for name, v := range header {
		req.Header[name] = v
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	apitest.Check(w.t, req, res)
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		w.t.Fatalf("GET %s = %d %s (%v), want %d", path, res.StatusCode, body, err, want)
	}
	if out != nil {
		if err := json.Unmarshal(body, out); err != nil {
			w.t.Fatal(err)
		}
	}
	return res.Header
}

func (w *world) titles(query string) []string {
	w.t.Helper()
	var out searchapi.Products
	w.get("/api/v1/search"+query, nil, 200, &out)
	list := []string{}
	for _, p := range out.Items {
		list = append(list, p.Title)
	}
	return list
}

// becomes waits until a search finds exactly these, in this order, and the zone is live.
func (w *world) becomes(query string, want ...string) {
	w.t.Helper()
	var have []string
	end := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		have = w.titles(query)
		st := w.sources.status()[routing.Global]
		if len(have) == len(want) && st.State == cdc.Live {
			same := true
			for i := range want {
				same = same && have[i] == want[i]
			}
			if same {
				return
			}
		}
		select {
		case <-end:
			w.t.Fatalf("%s finds %q while the zone is %q, want %q", query, have, st.State, want)
		case <-tick.C:
		}
	}
}
