package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/cellmart/platform/cellkit/bus"
	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/pg"
	"example.com/cellmart/platform/cellkit/pg/pgtest"
	"example.com/cellmart/platform/routing"
	"example.com/cellmart/services/inventory/inventoryapi"
)

const sellerSlot = routing.Slot(700)

var seller = id.Make(1, sellerSlot, false)

// sku and hold make IDs of the seller's slot.
func sku(n int64) id.ID  { return id.Make(1000+n, sellerSlot, false) }
func hold(n int64) id.ID { return id.Make(5000+n, sellerSlot, false) }

type fixture struct {
	*Service
	t  testing.TB
	db *pgtest.DB
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	db := pgtest.New(t, Migrations())
	return &fixture{&Service{store: store{db.App}, ttl: 15 * time.Minute, log: slog.New(slog.DiscardHandler)}, t, db}
}

func (f *fixture) stock(n, units int64) {
	f.t.Helper()
	route := call.Route{Cell: "c1", Slot: sellerSlot, Epoch: 1}
	if _, _, err := f.addStock(context.Background(), route, seller, sku(n), fmt.Sprint("stock", n), units); err != nil {
		f.t.Fatal(err)
	}
}

// deliver runs a message's handler as the consumer does, without its inbox: the
// state machine alone must bear repetition.
func (f *fixture) deliver(kind string, body any) (inventoryapi.Answer, string, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	var reply bus.Reply
	err = errs.ErrUnavailable
	for try := 0; try < 20 && (errs.IsKind(err, errs.Unavailable) || errors.Is(err, errs.ErrUnknown)); try++ { // as the bus does: a hundred at once may be more than a busy machine does in 2 s
		err = pg.InSlot(context.Background(), f.db.App, pg.Entry{Slot: sellerSlot, Epoch: 1}, func(tx *pg.Tx) error {
			var err error
			reply, err = f.handlers()[kind](context.Background(), tx, bus.Message{ID: kind, Kind: kind, From: 3, To: sellerSlot, Body: raw})
			return err
		})
	}
	if reply.Early != (reply.Kind == inventoryapi.KindReserved) { // only what expires by itself leaves before the standby has it
		f.t.Errorf("the reply %s to %s: early %v", reply.Kind, kind, reply.Early)
	}
	a, _ := reply.Body.(inventoryapi.Answer)
	return a, reply.Kind, err
}

func reserve(n, q int64) inventoryapi.Reserve {
	return inventoryapi.Reserve{
		Hold: hold(n), Order: id.Make(9000+n, 3, false), BuyerSlot: 3, Seller: seller,
		Lines: []inventoryapi.Line{{SKU: sku(1), Quantity: q}},
	}
}

func release(n int64) inventoryapi.Release {
	return inventoryapi.Release{Hold: hold(n), Order: id.Make(9000+n, 3, false)}
}

func (f *fixture) want(kind string, body any, reply string) inventoryapi.Answer {
	f.t.Helper()
	a, got, err := f.deliver(kind, body)
	if err != nil || got != reply {
		f.t.Fatalf("%s -> %s %+v, %v, want %s", kind, got, a, err, reply)
	}
	return a
}

// counters gives free, held and sold of a SKU after checking all of them against
// the rows of the holds (S-O03).
func (f *fixture) counters(n int64) [3]int64 {
	f.t.Helper()
	var bad string
	err := f.db.Super.QueryRow(context.Background(), `
		SELECT coalesce(string_agg(format('sku %s: held %s, holds %s; sold %s, holds %s', s.sku, s.held, h.held, s.sold, h.sold), '; '), '')
		FROM inventory.stock s, LATERAL (
			SELECT coalesce(sum(l.quantity) FILTER (WHERE h.state = 'HELD'), 0) held,
			       coalesce(sum(l.quantity) FILTER (WHERE h.state = 'CONFIRMED'), 0) sold
			FROM inventory.hold_lines l JOIN inventory.holds h ON h.slot = l.slot AND h.id = l.hold_id
			WHERE l.slot = s.slot AND l.sku = s.sku) h
		WHERE s.held <> h.held OR s.sold <> h.sold OR s.stocked <> s.free + s.held + s.sold`).Scan(&bad)
	if err != nil || bad != "" {
		f.t.Fatalf("counters drifted from the rows: %s %v", bad, err)
	}
	var c [3]int64
	if err := f.db.Super.QueryRow(context.Background(), `SELECT free, held, sold FROM inventory.stock WHERE sku = $1`, sku(n)).Scan(&c[0], &c[1], &c[2]); err != nil {
		f.t.Fatal(err)
	}
	return c
}

// S-M10: any order of RESERVE, CONFIRM and RELEASE, each also twice.
func TestScenario_M10_AnyOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 100)
	bodies := map[string]any{}
	// State the hold is in, and what the messages answer, by the order they come in.
	orders := map[string]struct {
		replies string
		end     [3]int64 // change of free, held, sold
	}{
		"reserve confirm release": {"reserved confirmed released", [3]int64{0, 0, 0}},
		"reserve release confirm": {"reserved released ended", [3]int64{0, 0, 0}},
		"confirm reserve release": {"confirmed reserved released", [3]int64{0, 0, 0}},
		"confirm release reserve": {"confirmed released refused", [3]int64{0, 0, 0}},
		"release reserve confirm": {"released refused ended", [3]int64{0, 0, 0}},
		"release confirm reserve": {"released ended refused", [3]int64{0, 0, 0}},
		"reserve confirm":         {"reserved confirmed", [3]int64{-7, 0, 7}},
		"confirm reserve":         {"confirmed reserved", [3]int64{-7, 0, 7}},
		"reserve":                 {"reserved", [3]int64{-7, 7, 0}},
	}
	n := int64(0)
	for order, want := range orders {
		n++
		bodies["reserve"], bodies["confirm"], bodies["release"] = reserve(n, 7), reserve(n, 7), release(n)
		before := f.counters(1)
		var got []string
		for kind := range strings.FieldsSeq(order) {
			_, reply, err := f.deliver("stock."+kind, bodies[kind])
			_, again, err2 := f.deliver("stock."+kind, bodies[kind])
			if err != nil || err2 != nil || reply != again {
				t.Fatalf("%s in %q: %s, then %s (%v, %v)", kind, order, reply, again, err, err2)
			}
			got = append(got, strings.TrimPrefix(reply, "stock."))
		}
		after := f.counters(1)
		diff := [3]int64{after[0] - before[0], after[1] - before[1], after[2] - before[2]}
		if s := strings.Join(got, " "); s != want.replies || diff != want.end {
			t.Errorf("%q: replies %q and change %v, want %q and %v", order, s, diff, want.replies, want.end)
		}
	}
}

func TestConfirmOfAnUnknownHold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 5)
	f.want("stock.confirm", reserve(1, 4), "stock.confirmed")
	a := f.want("stock.confirm", reserve(2, 2), "stock.ended")
	if a.Reason != "OUT_OF_STOCK" || a.SKU != sku(1) {
		t.Errorf("answer %+v, want OUT_OF_STOCK of the SKU", a)
	}
	f.stock(2, 1)
	if a := f.want("stock.reserve", reserve(2, 1), "stock.refused"); a.Reason != "ENDED" {
		t.Errorf("answer %+v: a refused CONFIRM must end the hold for good", a)
	}
	if c := f.counters(1); c != [3]int64{1, 0, 4} {
		t.Errorf("counters %v, want 1 free, 4 sold", c)
	}
}

func TestSameHoldWithOtherContentsIsParked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 5)
	f.want("stock.reserve", reserve(1, 2), "stock.reserved")
	other := reserve(1, 2)
	other.Order = id.Make(77, 3, false)
	badLine := reserve(9, 0)
	for name, body := range map[string]inventoryapi.Reserve{"quantity": reserve(1, 3), "order": other, "bad line": badLine} {
		_, _, err := f.deliver("stock.reserve", body)
		if err == nil || !strings.HasPrefix(err.Error(), "parked:") {
			t.Errorf("%s: %v, want parked", name, err)
		}
	}
	if _, _, err := f.deliver("stock.release", inventoryapi.Release{Hold: hold(1), Order: other.Order}); !errors.Is(err, errOther) {
		t.Errorf("release for another order: %v, want parked", err)
	}
	if c := f.counters(1); c != [3]int64{3, 2, 0} {
		t.Errorf("counters %v, want 3 free, 2 held", c)
	}
}

func TestAllLinesOrNone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 5)
	f.stock(2, 1)
	r := reserve(1, 5)
	r.Lines = append(r.Lines, inventoryapi.Line{SKU: sku(2), Quantity: 2})
	if a := f.want("stock.reserve", r, "stock.refused"); a.SKU != sku(2) || a.State != "" {
		t.Errorf("answer %+v, want SKU 2 short and no hold", a)
	}
	r = reserve(2, 1)
	r.Lines = append(r.Lines, inventoryapi.Line{SKU: sku(3), Quantity: 1})
	if a := f.want("stock.reserve", r, "stock.refused"); a.SKU != sku(3) {
		t.Errorf("answer %+v, want the SKU that was never stocked", a)
	}
	wrong := reserve(3, 1)
	wrong.Seller = id.Make(2, sellerSlot, false)
	f.want("stock.reserve", wrong, "stock.refused")
	if c := f.counters(1); c != [3]int64{5, 0, 0} {
		t.Errorf("counters %v, want everything free", c)
	}
}

// S-O01: 100 buyers at once, K units: exactly K get one.
func TestScenario_O01_NeverOversold(t *testing.T) {
	t.Parallel()
	const buyers, units = 100, 13
	f := newFixture(t)
	f.stock(1, units)
	var won, lost atomic.Int64
	var wg sync.WaitGroup
	for n := range int64(buyers) {
		wg.Go(func() {
			_, kind, err := f.deliver("stock.reserve", reserve(n, 1))
			switch {
			case err != nil:
				t.Error(err)
			case kind == inventoryapi.KindReserved:
				won.Add(1)
			default:
				lost.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != units || lost.Load() != buyers-units {
		t.Errorf("%d buyers got a unit and %d none, want %d and %d", won.Load(), lost.Load(), units, buyers-units)
	}
	if c := f.counters(1); c != [3]int64{0, units, 0} {
		t.Errorf("counters %v, want all held", c)
	}
}

// S-O02: who holds a SKU while its order pays keeps no lock on it.
func TestScenario_O02_HoldingKeepsNoLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 2)
	f.want("stock.reserve", reserve(1, 1), "stock.reserved")
	// The first buyer's payment takes as long as it likes. No row is locked:
	_, err := f.db.Super.Exec(context.Background(), `SELECT * FROM inventory.stock FOR UPDATE NOWAIT`)
	if err != nil {
		t.Fatalf("the stock is locked: %v", err)
	}
	f.want("stock.reserve", reserve(2, 1), "stock.reserved")
}

// S-O03: a storm of everything, at once and out of order, over several SKUs.
func TestScenario_O03_CountersFollowTheRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for n := range int64(4) {
		f.stock(n, 30)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	var wg sync.WaitGroup
	for w := range uint64(6) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, w))
			for range rounds {
				f.randomStep(rnd)
			}
		})
	}
	wg.Wait()
	for n := range int64(4) {
		f.counters(n)
	}
}

func (f *fixture) randomStep(rnd *rand.Rand) {
	n := rnd.Int64N(25)
	// A hold's contents follow its number, its lines come in any order.
	r := reserve(n, 1+n%4)
	r.Lines = append(r.Lines, inventoryapi.Line{SKU: sku(0), Quantity: 1}, inventoryapi.Line{SKU: sku(2 + n%2), Quantity: 2})
	rnd.Shuffle(len(r.Lines), func(i, j int) { r.Lines[i], r.Lines[j] = r.Lines[j], r.Lines[i] })
	var err error
	switch rnd.IntN(6) {
	case 0, 1:
		_, _, err = f.deliver("stock.reserve", r)
	case 2:
		_, _, err = f.deliver("stock.confirm", r)
	case 3:
		_, _, err = f.deliver("stock.release", release(n))
	case 4:
		_, err = f.db.Super.Exec(context.Background(), `ALTER TABLE inventory.holds DISABLE TRIGGER USER;
			UPDATE inventory.holds SET expires_at = now() - interval '1 s' WHERE id = `+hold(n).String()+`; ALTER TABLE inventory.holds ENABLE TRIGGER USER`)
	default:
		_, err = f.expire(context.Background())
	}
	if err != nil && !errs.IsKind(err, errs.Unavailable) {
		f.t.Error(err)
	}
}

func TestExpireEndsOnlyWhatIsHeldAndDue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 10)
	short := reserve(1, 1)
	short.TTL = time.Microsecond
	confirmed := reserve(2, 2)
	confirmed.TTL = time.Microsecond
	long := reserve(3, 4)
	long.TTL = 24 * time.Hour // cut to the seller's own
	f.want("stock.reserve", short, "stock.reserved")
	f.want("stock.reserve", confirmed, "stock.reserved")
	f.want("stock.reserve", long, "stock.reserved")
	// S-O04 from the other side: the CONFIRM was first, so the clock comes too late.
	f.want("stock.confirm", confirmed, "stock.confirmed")
	if n, err := f.expire(context.Background()); n != 1 || err != nil {
		t.Errorf("expire = %d, %v, want the one that was due", n, err)
	}
	if c := f.counters(1); c != [3]int64{4, 4, 2} {
		t.Errorf("counters %v, want 4 free, 4 held, 2 sold", c)
	}
	if a := f.want("stock.confirm", short, "stock.ended"); a.State != "EXPIRED" || a.Reason != "ENDED" {
		t.Errorf("answer %+v, want EXPIRED", a)
	}
	f.want("stock.release", release(1), "stock.released")
	if n, err := f.expire(context.Background()); n != 0 || err != nil {
		t.Errorf("second expire = %d, %v, want none", n, err)
	}
	var left time.Duration
	if err := f.db.Super.QueryRow(context.Background(), `SELECT expires_at - now() FROM inventory.holds WHERE id = $1`, hold(3)).Scan(&left); err != nil || left > 15*time.Minute {
		t.Errorf("a hold was given for %v, want at most 15m (%v)", left, err)
	}
}

// The sweeper of a cell leaves alone what the cell doesn't own.
func TestExpireStaysInItsSlots(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.stock(1, 10)
	r := reserve(1, 1)
	r.TTL = time.Microsecond
	f.want("stock.reserve", r, "stock.reserved")
	f.db.StandBy(t, sellerSlot, sellerSlot, "c2")
	if n, err := f.expire(context.Background()); n != 0 || err != nil {
		t.Errorf("expire at a standby = %d, %v, want none", n, err)
	}
	f.db.Own(t, sellerSlot, sellerSlot)
	if n, err := f.expire(context.Background()); n != 1 || err != nil {
		t.Errorf("expire at the owner = %d, %v, want one", n, err)
	}
}
