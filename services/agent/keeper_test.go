package agent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/cellkit/route"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/platform/routing"
)

// bench is a keeper on a real cell database, with a control that the test plays.
type bench struct {
	k    *keeper
	db   *pgtest.DB
	priv ed25519.PrivateKey

	mu      sync.Mutex
	offer   *routing.Table // what control has; nil = it doesn't answer
	peer    *routing.Table // what the peer c2 has
	pushed  int
	pushing chan bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	db := pgtest.New(t)
	pool, err := pg.Open(t.Context(), db.AgentDSN, "c1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{db: db, priv: priv, pushing: make(chan bool, 100)}
	from := func(get func() *routing.Table) source {
		return func(_ context.Context, after int64, _ time.Duration) (*routing.Table, []byte, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			t := get()
			if t == nil {
				return nil, nil, errors.New("no answer")
			}
			if t.Version() <= after {
				return nil, nil, nil
			}
			return t, routing.Sign(priv, t).Bytes(), nil
		}
	}
	b.k = &keeper{
		log: slog.New(slog.DiscardHandler), key: pub, dir: t.TempDir(), holder: &routing.Holder{}, db: &store{pool},
		control: from(func() *routing.Table { return b.offer }),
		peers:   map[string]source{"c2": from(func() *routing.Table { return b.peer })},
		publish: func([]byte) { b.pushed++; b.pushing <- true },
		acks:    route.NewAcks(), stats: route.NewStats(nil), silent: make(chan struct{}, 1),
	}
	return b
}

// table makes one of that version in which slot 7 belongs to owner at that epoch.
func table(t *testing.T, version int64, owner string, epoch routing.Epoch) *routing.Table {
	t.Helper()
	spec := routing.Spread([]string{"c1", "c2"}).Spec()
	spec.Version = version
	spec.Slots[7] = routing.Assignment{Owner: owner, Epoch: epoch}
	out, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func slot7(t *testing.T, pool *pgxpool.Pool) (owner, role string, epoch int64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT owner, role, epoch FROM cell.slots WHERE slot = 7").Scan(&owner, &role, &epoch); err != nil {
		t.Fatal(err)
	}
	return owner, role, epoch
}

func TestTableReachesDatabaseSnapshotAndPush(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	next := table(t, 5, "c2", 2)
	count := b.k.publish
	b.k.publish = func(signed []byte) {
		if s := route.ReadSnapshot(b.k.dir, b.k.key); s.Table != nil || b.k.holder.Version() != 5 {
			t.Errorf("at the push %d is held and the disk has it: %v; nobody should wait for the disk", b.k.holder.Version(), s.Table != nil)
		}
		count(signed)
	}
	b.k.take(next, routing.Sign(b.priv, next).Bytes(), "control")
	if err := b.k.ready(); !errors.Is(err, errNotApplied) {
		t.Errorf("ready before the database has it = %v", err)
	}
	if err := b.k.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if owner, role, epoch := slot7(t, b.db.Super); owner != "c2" || role != "none" || epoch != 2 {
		t.Errorf("slot 7 = %s %s %d, want c2 none 2", owner, role, epoch)
	}
	if snap := route.ReadSnapshot(b.k.dir, b.k.key); snap.Table == nil || snap.Table.Version() != 5 {
		t.Errorf("snapshot = %+v", snap)
	}
	if err := b.k.ready(); err != nil || b.pushed != 1 {
		t.Errorf("ready = %v, pushed %d times", err, b.pushed)
	}
	older := table(t, 4, "c1", 3)
	b.k.take(older, routing.Sign(b.priv, older).Bytes(), "control")
	if b.k.holder.Version() != 5 || b.pushed != 1 {
		t.Error("an older table was taken")
	}
}

// Only what differs is sent to the database, unless it isn't the one that has the
// table before.
func TestApplySendsWhatDiffers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	apply := func(next *routing.Table) {
		t.Helper()
		b.k.take(next, routing.Sign(b.priv, next).Bytes(), "control")
		if err := b.k.once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	one, two, three := table(t, 1, "c1", 1), table(t, 2, "c2", 2), table(t, 3, "c2", 2)
	spec := three.Spec()
	spec.Private[routing.FirstUserSlot] = routing.Assignment{Owner: "c1", Epoch: 1}
	three, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	spec.Version, spec.Slots[9].Standby = 4, "c2"
	four, err := routing.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		before, next *routing.Table
		want         int
	}{
		"all": {nil, one, routing.Slots + 2}, "one slot": {one, two, 1}, "a new private slot": {two, three, 1}, "nothing": {one, one, 0},
		"a standby": {three, four, 1},
	} {
		if got := len(differing(x.before, x.next).slots); got != x.want {
			t.Errorf("%s: %d rows, want %d", name, got, x.want)
		}
	}
	apply(one)
	apply(two)
	if owner, role, epoch := slot7(t, b.db.Super); owner != "c2" || role != "none" || epoch != 2 {
		t.Errorf("slot 7 = %s %s %d, want c2 none 2", owner, role, epoch)
	}
	// Another database comes in its place, where slot 7 is as it was in table 1.
	if _, err := b.db.Super.Exec(t.Context(), "UPDATE cell.route SET version = 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Super.Exec(t.Context(), "UPDATE cell.slots SET owner = 'c1', role = 'owner', epoch = 1 WHERE slot = 7"); err != nil {
		t.Fatal(err)
	}
	apply(three)
	if owner, _, epoch := slot7(t, b.db.Super); owner != "c2" || epoch != 2 {
		t.Errorf("slot 7 = %s %d after the database went back, want c2 2", owner, epoch)
	}
	var private string
	if err := b.db.Super.QueryRow(t.Context(), "SELECT owner FROM cell.slots WHERE slot = $1", int(routing.FirstUserSlot)).Scan(&private); err != nil || private != "c1" {
		t.Errorf("the private slot belongs to %q, %v", private, err)
	}
}

// The snapshots are lost, the database has the table: it counts.
func TestDatabaseOutlivesSnapshots(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	next := table(t, 9, "c2", 2)
	b.k.take(next, routing.Sign(b.priv, next).Bytes(), "control")
	if err := b.k.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.k.holder, b.k.signed = &routing.Holder{}, nil
	b.k.holder.Store(routing.Spread([]string{"c1", "c2"}))
	if err := b.k.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v := b.k.holder.Version(); v != 9 {
		t.Errorf("holds version %d, want the database's 9", v)
	}
}

// The table of last resort routes, but is never written to the database.
func TestLastResortIsNotApplied(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.k.holder.Store(routing.Spread([]string{"c2", "c3"}))
	if err := b.k.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if owner, _, epoch := slot7(t, b.db.Super); owner != "c1" || epoch != 1 {
		t.Errorf("slot 7 went to %s at %d", owner, epoch)
	}
	if err := b.k.ready(); !errors.Is(err, errNoTable) {
		t.Errorf("ready = %v, want no table", err)
	}
}

func TestLeaseIsWrittenAnewAfterAPostmasterStart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	write := func() error {
		return pg.InSlot(t.Context(), b.db.App, pg.Entry{Slot: 3, Epoch: 1}, func(*pg.Tx) error { return nil })
	}
	for _, void := range []string{"UPDATE cell.lease SET postmaster = postmaster - interval '1 min'", "DELETE FROM cell.lease"} {
		if _, err := b.db.Super.Exec(t.Context(), void); err != nil {
			t.Fatal(err)
		}
		if err := write(); err == nil {
			t.Fatal("wrote without a lease")
		}
		if err := b.k.once(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := write(); err != nil {
			t.Errorf("after the agent's second: %v", err)
		}
	}
}

// Control is silent: peers hand their newer table on; control's own next one is
// taken when it answers again.
func TestPeersHandTablesOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.peer = table(t, 3, "c2", 2)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.k.fetch(ctx) }()
	<-b.pushing
	if v := b.k.holder.Version(); v != 3 {
		t.Errorf("holds %d, want the peer's 3", v)
	}
	if age := b.k.controlAge(); age >= 0 {
		t.Errorf("control answered %s ago, it never did", age)
	}
	b.mu.Lock()
	b.offer = table(t, 4, "c1", 3)
	b.mu.Unlock()
	<-b.pushing
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if v := b.k.holder.Version(); v != 4 {
		t.Errorf("holds %d, want control's 4", v)
	}
}

func TestAdminNeedsTheOperatorsKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	control := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/route/acks" || r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	s := &server{cell: "c1", operator: "secret", keeper: b.k, db: b.k.db, control: control}
	h := s.local(web.Options{Service: "agent", Cell: "c1"})
	get := func(h http.Handler, path, key string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, strings.NewReader(""))
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		path, key string
		want      int
	}{
		{"/admin/transfers", "", 401},
		{"/admin/transfers", "wrong", 401},
		{"/admin/transfers", "secret", 200},
		{"/admin/transfers/12x", "secret", 404},
		{"/admin/transfers/12", "secret", 404},
		{"/admin/facts/nothing", "secret", 404},
		{"/admin/control/route/acks", "", 401},
		{"/admin/control/route/acks", "secret", 200},
		{"/route?after=x", "", 400},
		{"/route", "", 204},
	} {
		if got := get(h, c.path, c.key); got != c.want {
			t.Errorf("GET %s with key %q = %d, want %d", c.path, c.key, got, c.want)
		}
	}
	peer := s.peer(web.Options{Service: "agent"})
	if got := get(peer, "/admin/control/route/acks", "secret"); got != 404 {
		t.Errorf("peers may ask control by this agent: %d", got)
	}
	if got := get(peer, "/admin/transfers", ""); got != 401 {
		t.Errorf("peers may ask without the key: %d", got)
	}
}
